"""The datasheet of a corpus (Gebru et al. 2021): what happened, filled in; the rest, asked.

What a build knows stands first and is written anew when documents are taken out; the answers
below the line are people's, and stay as they are.
"""

from collections.abc import Iterable
from typing import Any

#: Parts the two; a person writes below it.
LINE = "<!-- Above: from the build, written anew by `forget` and `recheck`. Below: yours. -->"

QUESTIONS = """\
## For whoever built it to answer

### Motivation
- For what purpose, by whom, funded by whom: **to answer**

### Consent
- How those who wrote the text were told and asked, beyond what is listed above: **to answer**
- Whom they write to, to be taken out: **to answer**

### Uses
- What it is meant for, and what it must not be used for: **to answer**
- Could it identify people, or cause them harm (style, rare events, what others say of them):
  **to answer**

### Distribution and maintenance
- Who has a copy, and how deletions reach them: **to answer**
"""


def render(facts: dict[str, Any], answers_of: str = "") -> str:
    """The datasheet in Markdown; the answers are taken from `answers_of`, an older one."""
    _, line, answers = answers_of.partition(LINE)
    below = answers.lstrip("\n") if line else QUESTIONS
    parts = [
        f"# Datasheet: {facts['name']}\n",
        _composition(facts),
        _collection(facts),
        _steps(facts),
        _removal(facts),
        _gaps(facts),
    ]
    return "\n".join(parts) + f"\n{LINE}\n\n{below}"


def _composition(facts: dict[str, Any]) -> str:
    dates = sorted(facts["months"])
    when = f"{dates[0]} to {dates[-1]}" if dates else "the source gives no dates"
    total = facts["documents_kept"]
    return f"""\
## What is in it
- Documents: {total:,} ({facts["documents_train"]:,} for training, {facts["documents_valid"]:,}
  held out), of {facts["documents_read"]:,} read, by {facts["authors"]:,} known authors
- Words: {facts["words"]:,}; characters: {facts["characters"]:,}
- Written: {when}
- Language wanted: {facts["language"] or "any"}; found: {_shares(facts["languages"], total)}
- Identities named (documents; one may name several): {_shares(facts["identities"], total)}
- Texts, SHA-256: `{facts["sha256"]}`
- Each row: the text, its language, the identities that it names, and four keys (its own, its
  author's, post's and instance's), which say nothing without the salt that the builder keeps
"""


def _collection(facts: dict[str, Any]) -> str:
    licence = facts["licence"].replace("unknown", "") or "not stated: a public text is no licence"
    chosen = {
        "years": facts["years"],
        "keywords": ", ".join(facts["keywords"]),
        "identities": ", ".join(facts["groups"]),
        "files or hosts": ", ".join(facts["origins"]),
        "tokens": facts["tokens"] and f"{facts['tokens']:,}",
        "limit": facts["limit"] and f"{facts['limit']:,} documents",
        "balanced over identities": "yes" if facts["balance"] else "",
    }
    said = "; ".join(f"{name}: {value}" for name, value in chosen.items() if value)
    files = facts["files"]
    named = ", ".join(files[:20]) + (f" and {len(files) - 20} more" if len(files) > 20 else "")
    return f"""\
## Where it comes from
- Built on {facts["built"]} by mitigate, reader `{facts["reader"]}`
- Source: {facts["source"] or "not stated"}
- Files or hosts: {named or "none: generated"}
- Paper: {facts["paper"] or "none stated"}
- Licence: {licence}
- Chosen by: {said or "nothing: every document"}
- Consent:
{_bullets(_consent(entry) for entry in facts["consent"]) or "  - none on record: see below"}
"""


def _consent(entry: dict[str, Any]) -> str:
    return (
        f"{entry['host']}, {entry['date']}: {entry['agreed_by']}, to {entry['agreed_to']} "
        f"({entry['terms']})"
    )


def _steps(facts: dict[str, Any]) -> str:
    rows = []
    for step in facts["steps"]:
        dropped = "; ".join(f"{why}: {count:,}" for why, count in step["dropped"].items())
        changed = "; ".join(f"{what}: {count:,}" for what, count in step["changed"].items())
        rows.append(
            f"| {step['name']} | {step['before']:,} | {step['after']:,} | {dropped} | {changed} |"
        )
    against = ", ".join(facts["benchmarks"]) or "no benchmark: `benchmark=NAME` when it is built"
    table = "\n".join(rows)
    return f"""\
## What was done, in order
| step | documents before | after | dropped | replaced or cut |
|---|---:|---:|---|---|
{table}

- Decontaminated against: {against}
- Names, handles, links, mail addresses, telephone numbers and ids of posts are placeholders in
  the text; gender forms and umlauts are as they were written
- Seed {facts["seed"]}; share held out {facts["valid_share"]}
- Pictures of this: `corpus.html`
"""


def _removal(facts: dict[str, Any]) -> str:
    gone = _bullets(
        f"{entry['date']}: {entry['documents']:,} documents ({entry['why']})"
        for entry in facts["forgotten"]
    )
    return f"""\
## How to be taken out of it
- An author, a post or a whole instance: the builder runs `mitigate corpus forget corpus=DIR
  author=…` (or `post=…`, `instance=…`); no later build takes it again
- What was deleted at the source, or opted out since: `mitigate corpus recheck DIR`
- Taken out so far:
{gone or "  - nothing"}
- A model that was trained before still has seen it
"""


def _gaps(facts: dict[str, Any]) -> str:
    unknown = facts["languages"].get("unknown", 0)
    gaps = [
        "an identity is found by its words: who is meant without one isn't counted, and a word "
        "of another sense is",
        "a name inside a sentence, without a handle, is not recognised as one",
    ]
    if not facts["months"]:
        gaps.append("without dates the split can't be by time")
    if not facts["authors"]:
        gaps.append("without authors the split can't keep an author's texts together")
    if not facts["benchmarks"]:
        gaps.append("benchmark sentences weren't looked for; training looks for them again")
    if unknown:
        gaps.append(f"{unknown:,} documents are too short or too mixed to tell their language")
    return f"## Known gaps\n{_bullets(gaps)}\n"


def _bullets(entries: Iterable[str]) -> str:
    return "\n".join(f"  - {entry}" for entry in entries)


def _shares(counts: dict[str, int], total: int) -> str:
    found = [f"{name} {count:,} ({100 * count / total:.1f} %)" for name, count in counts.items()]
    return ", ".join(found) or "none"
