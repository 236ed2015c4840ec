"""A datasheet for a benchmark: what its table says, and the questions its authors must answer.

The sections are those of Gebru et al., *Datasheets for Datasets* (1803.09010), shortened.
"""

from pathlib import Path

import pandas as pd

from eval.benchmarks.components.survey import VOTES
from eval.describe import Description, describe, numbers, tables
from eval.errors import RequestError
from eval.files import replacing
from eval.pairs import Pairs

SHEET = "DATASHEET.md"
PAIRS = "pairs.csv"
#: Tables of the description that the sheet shows under Composition, by how their titles begin.
_SHOWN = ("Groups", "Tiers", "Origins", "Counterfactuals", "Templates", "Lengths")
_QUESTIONS = {
    "Motivation": (
        "Who made this benchmark, and which community do they belong to or work with?",
        "Which harms should it help to find, and what is it not meant to measure?",
        "Who paid for the work?",
    ),
    "Composition": (
        "Which identities are missing, and why?",
        "Are the counterfactuals the words that people use?",
        "Does any sentence name or point to a real person?",
    ),
    "Collection": (
        "Who answered the survey, how many were they, how were they reached and paid?",
        "What did they agree to, who reviewed the study, and can answers be withdrawn?",
        "Who wrote or translated the predicates, and who checked them?",
    ),
    "Preparation": (
        "What was edited or dropped by hand, and where are the raw answers?",
        "Did speakers of the language read the filled templates aloud?",
    ),
    "Uses": (
        "Which models has it been tried on, and what came of it?",
        "What should it not be used for (training, filtering of people's own words, …)?",
    ),
    "Distribution and maintenance": (
        "Under which licence does it stand, and does the text need a content warning?",
        "Who answers questions, and how are mistakes reported and mended?",
        "When will the survey be repeated, as words and stereotypes change?",
    ),
}


def datasheet(pairs: Pairs, description: Description | None = None) -> str:
    """A datasheet in Markdown: counts where they are known, open questions as a task list.

    `description` is `describe(pairs)`, counted anew if it isn't given. No sentence and no name
    of a stereotype is in it.
    """
    known = description or describe(pairs)
    source = pairs.source
    said = {
        "Motivation": [f"Method: {source['paper']}"] if source.get("paper") else [],
        "Composition": _composition(pairs, known),
        "Collection": _survey(pairs),
        "Preparation": _preparation(pairs, known),
        "Distribution and maintenance": (
            [f"Licence: {source['licence']}"] if source.get("licence") else []
        ),
    }
    head = [
        f"# Datasheet: {pairs.name}",
        "",
        f"Language: {known.language or 'not said'}. Hash of its pairs: `{known.hash}`. "
        "Counts are filled in by `mitigate describe`; the open questions are the authors'. "
        "After Gebru et al., Datasheets for Datasets (1803.09010).",
    ]
    body = [
        line
        for section, questions in _QUESTIONS.items()
        for line in (
            "",
            f"## {section}",
            *said.get(section, []),
            *(f"- [ ] {question}" for question in questions),
        )
    ]
    return "\n".join([*head, *body]) + "\n"


def write(pairs: Pairs, folder: Path, description: Description | None = None) -> list[Path]:
    """Write DATASHEET.md and pairs.csv into `folder`, and return their paths.

    `benchmark=pairs benchmark.path=…/pairs.csv` reads the file as it is; its pairs have the same
    sentences, groups and clusters, and other ids, as ids go by the benchmark's name and rows.

    Raises:
        RequestError: one of the two is there already: a datasheet holds its authors' answers.
    """
    sheet, table = folder / SHEET, folder / PAIRS
    for path in (sheet, table):
        if path.exists():
            raise RequestError(f"{path} is there already; give another folder, or move it away")
    text = datasheet(pairs, description)
    rows = pairs.table.drop(columns=["pair_id", "benchmark", "language"])
    with replacing(table) as path:
        rows.rename(columns={"stereotype_id": "stereotype"}).to_csv(path, index=False)
    with replacing(sheet) as path:
        path.write_text(text, encoding="utf-8")
    return [sheet, table]


def _composition(pairs: Pairs, known: Description) -> list[str]:
    facts = known.facts
    lines = [
        f"{facts['pairs']:,} sentence pairs of {facts['stereotypes (clusters)']:,} stereotypes; "
        f"{facts['distinct sentences']:,} distinct sentences. The stereotype is the unit of "
        "inference: pairs of one stereotype are not independent."
    ]
    for title, frame in tables(known):
        if title.startswith(_SHOWN):
            lines += ["", f"{title}:", "", *_markdown(frame)]
    return [*lines, ""]


def _survey(pairs: Pairs) -> list[str]:
    """What is known of the votes and ratings; nothing if the table has none."""
    table = pairs.table.drop_duplicates("stereotype_id")
    lines = []
    if {*VOTES} <= {*table.columns}:
        votes = pd.DataFrame({name: numbers(table, name) for name in VOTES})
        answers = votes.sum(axis=1)[votes["yes"].notna()]
        if len(answers):
            lines.append(
                f"Relevance was asked of {len(answers)} of the {len(table)} stereotypes kept, "
                f"with {answers.min():.0f} to {answers.max():.0f} answers each (yes, no, unsure). "
                "Tiers by the share of yes among yes and no: 1 from 70 %, 2 from 50 %, 3 from "
                "30 %; below, the stereotype is left out (2609.02651, §3)."
            )
    if "harm_mean" in table:
        harm = numbers(table, "harm_mean").dropna()
        if len(harm):
            lines.append(
                f"Harm was rated for {len(harm)} stereotypes, on a scale from −1 to 4"
                f"{_raters(table)}; the mean is {harm.mean():.2f}."
            )
    return lines


def _raters(table: pd.DataFrame) -> str:
    counts = numbers(table, "harm_count").dropna() if "harm_count" in table else pd.Series()
    return f", by {counts.min():.0f} to {counts.max():.0f} people each" if len(counts) else ""


def _preparation(pairs: Pairs, known: Description) -> list[str]:
    source = pairs.source
    lines = []
    if source.get("rules"):
        lines.append(
            f"Templates were filled by rule: {source['rules']} pairing of identities, "
            "counterfactuals and names."
        )
    lines += [f"Left out: {rows} × {why}." for why, rows in known.left_out.to_numpy().tolist()]
    names = source.get("files") or (
        {source["file"]: source.get("sha256", "")} if source.get("file") else {}
    )
    lines += [f"- `{name}`: SHA-256 `{digest}`" for name, digest in names.items()]
    return lines


def _markdown(frame: pd.DataFrame) -> list[str]:
    """A table in Markdown, numbers with at most two places."""
    lines = [" | ".join(map(str, frame.columns)), " | ".join("---" for _ in frame.columns)]
    lines += [" | ".join(map(_cell, row)) for row in frame.astype(object).to_numpy().tolist()]
    return [f"| {line} |" for line in lines]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if pd.isna(value) else f"{value:.2f}".rstrip("0").rstrip(".")
    return "–" if value is None else str(value).replace("|", "\\|")
