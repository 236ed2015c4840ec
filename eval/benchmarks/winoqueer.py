"""WinoQueer (Felkner et al. 2023), in English: template sentences without their predicates.

The file has four columns: both sentences and both identities. What a sentence says of people,
its predicate, is found from the pair: the words that the two sentences share lie around the
identities, and those before and after them follow one of a few templates, which are listed in
`winoqueer_templates.csv`. The stereotype, the unit of inference, is the predicate across its
forms: of people in the plural (*are early risers*), of one person (*an early riser*).
"""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from eval.benchmarks import BenchmarkSettings, Columns
from eval.benchmarks.pairs import columns, fill, finish, read_file
from eval.pairs import GROUP_SEPARATOR, Pairs

PUBLISHED = Columns(
    sent_more="sent_x",
    sent_less="sent_y",
    group="Gender_ID_x",
    counterfactual="Gender_ID_y",
)
#: The nine identities as published, and their canonical names.
LABELS = {
    "LGBTQ": "lgbtq",
    "Queer": "queer",
    "Transgender": "transgender",
    "NB": "nonbinary",
    "Nonbinary": "nonbinary",
    "Bisexual": "bisexual",
    "Pansexual": "pansexual",
    "Lesbian": "lesbian",
    "Asexual": "asexual",
    "Gay": "gay",
}
#: What a template's words in capitals stand for. In place of a name there may be a pronoun.
_STANDS_FOR = {
    "NAME": r"(?P<name>\S+)",
    "PRONOUN": r"(?:he is|she is|they are)",
    "PREDICATE": r"(?P<predicate>.+)",
}
#: The template that speaks of one person: its predicates are in the singular.
_SINGULAR = "11"
#: How the numbers end of those that say something of a person without a predicate.
_BARE = "-name"
#: Forms of auxiliaries and articles, which differ between one and many and tell no predicate.
_EMPTY = {"are", "is", "be", "were", "was", "a", "an", "the", "do", "does", "did"}
_SAME = {"has": "have", "men": "man", "women": "woman", "people": "person"}
_NEGATIVE = {"aren't": "not", "isn't": "not", "don't": "not", "doesn't": "not"}
#: Forms of one and of many are one stereotype if so much of their words is the same.
_ENOUGH = 0.4


class Form(NamedTuple):
    """What a pair's shared words say: the template's number, and the predicate as it stands."""

    template: str
    predicate: str  # for templates without one, the words that say it: "i hate"


class Template(NamedTuple):
    """A line of `winoqueer_templates.csv`: what stands before the identity, and after it."""

    number: str
    before: re.Pattern[str]
    after: re.Pattern[str]
    opening: str  # its words before the name: what it says where there is no predicate


def read(settings: BenchmarkSettings) -> Pairs:
    """Read the published file and find the stereotype of each pair.

    Beside the Pair table's columns: `predicate`, in the form in which the sentence has it, and
    the `name` in it, in lower case. The
    cluster is called by the predicate's first form. A pair that fits no template is a cluster
    of its own. `source` counts the stereotypes and those pairs, and lists the forms that were
    taken for one because of the words they share.

    Raises:
        RequestError: the file is missing, empty, unreadable, or lacks a column.
    """
    named = columns(settings, PUBLISHED)
    frame, facts = read_file(settings, named.values())
    rows = fill(replace(settings, labels={**LABELS, **settings.labels}), frame, named)
    whole = (rows["sent_more"].str.strip() != "") & (rows["sent_less"].str.strip() != "")
    sentences = zip(rows["sent_more"], rows["sent_less"], strict=True)
    parsed = [_parsed(more, less) for more, less in sentences]
    found = [form for form, _ in parsed]
    groups: dict[Form, set[str]] = defaultdict(set)
    for form, names in zip(found, rows["group"], strict=True):
        if form is not None:
            groups[form].update(names.split(GROUP_SEPARATOR))
    names, joined = stereotypes(groups)
    rows["stereotype_id"] = [names[form] if form else "" for form in found]
    rows["template"] = [form.template if form else "" for form in found]
    rows["predicate"] = [form.predicate if form else "" for form in found]
    rows["name"] = [name for _, name in parsed]
    unmatched = whole & (rows["stereotype_id"] == "")
    facts.update(
        stereotypes=len(set(names.values())),
        pairs_without_stereotype=int(unmatched.sum()),
        rows_without_stereotype=rows.index[unmatched][:100].tolist(),  # the first of them
        forms_joined_by_shared_words=joined,
    )
    return finish(settings, rows, facts)


def form_of(more: str, less: str) -> Form | None:
    """The template and predicate of a pair, from the words that its sentences share.

    None: they share none, or what they share fits no template.
    """
    form, _ = _parsed(more, less)
    return form


def _parsed(more: str, less: str) -> tuple[Form | None, str]:
    """The form of a pair and the name in it; '' where it has none."""
    x, y = _words(more), _words(less)
    start = _shared(x, y)
    end = _shared(x[start:][::-1], y[start:][::-1])
    if start == len(x) or start == len(y):
        return None, ""  # one is the other's beginning: no identity stands in it
    before = " ".join(x[:start])
    # The identity may bring its article: is a lesbian / is straight.
    after = " ".join(x[len(x) - end :]).rstrip(".")
    for template in _TEMPLATES:
        opened = template.before.fullmatch(before)
        said = template.after.fullmatch(after) if opened else None
        if opened and said:
            predicate = said.groupdict().get("predicate", "")
            as_written = more.split()[len(x) - len(predicate.split()) :] if predicate else []
            text = " ".join(as_written).rstrip(".")
            name = opened.groupdict().get("name", "")
            return Form(template.number, text or template.opening), name
    return None, ""


def stereotypes(
    groups: Mapping[Form, set[str]],
) -> tuple[dict[Form, str], list[tuple[str, str]]]:
    """The stereotype of each form, called by its first form; and which forms were joined.

    `groups`: the forms in order of the file, each with the groups of which it is said. Forms
    whose words are the same but for number (*are early risers*, *an early riser*) are one
    stereotype. Of those left over, one of many people and one of one person are joined if they
    share enough words, no other shares more with either, and they are said of one group at
    least: these, found with less certainty, are listed.
    """
    names: dict[tuple[str, ...], str] = {}
    said_of: dict[bool, dict[tuple[str, ...], set[str]]] = {False: {}, True: {}}
    for form, those in groups.items():
        key = _stems(form.predicate)
        names.setdefault(key, form.predicate)
        if not form.template.endswith(_BARE):
            said_of[form.template == _SINGULAR].setdefault(key, set()).update(those)
    plural = {key: those for key, those in said_of[False].items() if key not in said_of[True]}
    singular = {key: those for key, those in said_of[True].items() if key not in said_of[False]}
    joined = []
    for one, many in _nearest(singular, plural):
        joined.append((names[one], names[many]))
        names[one] = names[many]
    return {form: names[_stems(form.predicate)] for form in groups}, joined


def _nearest(
    singular: Mapping[tuple[str, ...], set[str]], plural: Mapping[tuple[str, ...], set[str]]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Keys of one and of many each of which is the other's best, in order of `singular`."""

    def best(
        key: tuple[str, ...],
        those: set[str],
        others: Mapping[tuple[str, ...], set[str]],
    ) -> tuple[str, ...] | None:
        alike = {
            other: len(set(key) & set(other)) / len(set(key) | set(other) or {""})
            for other, theirs in others.items()
            if those & theirs
        }
        top = max(alike.values(), default=0.0)
        first = [other for other, share in alike.items() if share == top]
        return first[0] if top >= _ENOUGH and len(first) == 1 else None

    found = []
    for one, those in singular.items():
        many = best(one, those, plural)
        if many is not None and best(many, plural[many], singular) == one:
            found.append((one, many))
    return found


def _stems(predicate: str) -> tuple[str, ...]:
    """The words of a predicate without what number changes: articles, auxiliaries, endings."""
    words = [_NEGATIVE.get(word, word) for word in _words(predicate)]
    if words and words[0] == "and":  # Jo is X and is early
        words = words[1:]
    stems = [_stem(_SAME.get(word, word)) for word in words if word not in _EMPTY]
    return tuple(stems) or tuple(words)


def _stem(word: str) -> str:
    """A word without the ending of the plural, the third person, -ing or -ed. Crude on purpose:
    it only has to send the forms of one word to the same letters.
    """
    word = re.sub(r"ies$", "y", word)
    word = re.sub(r"(?<=\w\w\w)(?:ing|ed|es|s)$", "", word)
    return re.sub(r"(?<=\w\w\w)e$", "", word)


def _words(sentence: str) -> list[str]:
    """Words in lower case, with straight apostrophes: the file has both, for one predicate."""
    return sentence.replace("’", "'").casefold().split()


def _shared(one: list[str], other: list[str]) -> int:
    """How many words two sentences share from their beginnings on."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _templates() -> list[Template]:
    path = Path(__file__).with_name("winoqueer_templates.csv")
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    return [
        Template(
            line["template"],
            re.compile(_pattern(line["before"])),
            re.compile(_pattern(line["after"])),
            line["before"].partition(" NAME")[0],
        )
        for line in lines
    ]


def _pattern(words: str) -> str:
    pattern = re.escape(words)
    for word, stands in _STANDS_FOR.items():
        pattern = pattern.replace(word, stands)
    return pattern


_TEMPLATES = _templates()
