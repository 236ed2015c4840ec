"""Do the tables of a benchmark from components fit each other? The first that doesn't is said."""

import difflib
import re
from collections.abc import Collection

from eval.benchmarks.components.survey import VOTES
from eval.benchmarks.components.tables import (
    NEEDED,
    WINOQUEER,
    Components,
    Row,
    Table,
    nearest,
    parts,
)
from eval.errors import RequestError
from eval.pairs import COLUMNS
from eval.scores import SCORE_COLUMNS

#: In the place of a predicate's form: it has none, and the templates that need it are left out.
NO_FORM = "-"
#: In the place of a predicate's groups: all of identities.csv.
EVERY_GROUP = "all"
#: Genders of names that WinoQueer's rules know.
GENDERS = ("female", "male", "nonbinary")
#: Columns of predicates.csv with a meaning of their own; those no template uses come along.
MEANT = (*NEEDED["predicates"], "origin", *VOTES, "harm", "harm_mean", "harm_count")
SLOT = re.compile(r"\{([^{}]*)\}")


def slots(text: str) -> list[str]:
    """What a text has in braces."""
    return SLOT.findall(text)


def check(found: Components, kept: Collection[int]) -> None:
    """Check that the tables fit each other; of the predicates' forms, those of `kept` (rows).

    Raises:
        RequestError: one line with the file, the row and the nearest right thing.
    """
    for number, template in found.templates.rows.items():
        _check_template(found, number, template)
    languages = sorted({*found.templates.cells("language")} - {""})
    if len(languages) > 1:
        raise RequestError(
            f"{found.templates.path}: languages {', '.join(languages)}; a benchmark has one, so "
            "make a folder for each"
        )
    for table in (found.identities, found.counterfactuals):
        for number, row in table.rows.items():
            for form in dict.fromkeys(found.templates.cells("identity")):
                if not row[form]:
                    user = _user(found, "identity", form)
                    raise table.error(number, f"no {form}, which template {user} needs")
    _check_names(found)
    _check_rules(found)
    _check_groups(found)
    _check_forms(found, kept)
    for column in found.predicates.columns:
        used = {*MEANT, *found.templates.cells("predicate")}
        if column not in used and column in {*COLUMNS, *SCORE_COLUMNS, "name"}:
            raise RequestError(
                f"{found.predicates.path}: column {column} means something else in a table of "
                "pairs or scores; give it another name"
            )


def _check_template(found: Components, number: int, template: Row) -> None:
    """A template has its slots, something fills each, and the forms it names are columns."""
    templates, inside = found.templates, slots(template["text"])
    if {*"{}"} & {*SLOT.sub("", template["text"])}:
        raise templates.error(number, "a brace without its other; a slot is written {identity}")
    for needed in ("identity", "predicate"):
        if needed not in inside:
            near = difflib.get_close_matches(needed, inside, n=1)
            hint = f"it has {{{near[0]}}}" if near else "put it where the word goes"
            raise templates.error(number, f"no {{{needed}}} in its text; {hint}")
    if "name" in inside and found.names is None:
        raise templates.error(
            number, f"takes a {{name}}, and {templates.path.parent} has no names.csv"
        )
    known = {"identity", "predicate", *_known_slots(found, template)}
    for slot in inside:
        if slot not in known:
            hint = nearest(slot, [*sorted(known), *(["name"] if found.names else [])])
            raise templates.error(number, f"nothing fills {{{slot}}}; {hint}")
    for column, tables in {
        "identity": (found.identities, found.counterfactuals),
        "predicate": (found.predicates,),
    }.items():
        for table in tables:
            if template[column] not in table.columns:
                needed_ones = {*MEANT, *NEEDED[table.path.stem]}
                forms = [name for name in table.columns if name not in needed_ones]
                raise templates.error(
                    number,
                    f"its {column} form, {template[column]!r}, is no column of {table.path.name}; "
                    f"{nearest(template[column], forms)}",
                )


def _known_slots(found: Components, template: Row) -> set[str]:
    """The slots that a template's own cells fill, or those of every name."""
    own = {column for column, cell in template.items() if cell} - {*NEEDED["templates"]}
    if found.names is None or "name" not in slots(template["text"]):
        return own
    return own | {column for column in found.names.columns if all(found.names.cells(column))}


def _check_names(found: Components) -> None:
    """A rule knows each name's gender: for a slip, the name would be dropped without a word."""
    if found.names is None:
        return
    known = sorted(
        {*GENDERS, *(one for cell in found.rules.cells("genders") for one in parts(cell))}
    )
    for number, row in found.names.rows.items():
        if row["gender"] and row["gender"] not in known:
            hint = nearest(row["gender"], known)
            raise found.names.error(number, f"gender {row['gender']!r} is in no rule; {hint}")


def _check_rules(found: Components) -> None:
    """Rules know every identity, and name nothing that isn't there."""
    groups, ruled = found.identities.cells("group"), found.rules.cells("group")
    for number, row in found.identities.rows.items():
        if row["group"] not in ruled:
            raise found.identities.error(
                number,
                f"no rule for group {row['group']!r} in {found.rules.path.name}; "
                f"{nearest(row['group'], ruled)}",
            )
    for number, rule in found.rules.rows.items():
        if rule["group"] in groups:
            _check_rule(found, number, rule)
        elif found.rules.path != WINOQUEER:
            hint = nearest(rule["group"], groups)
            raise found.rules.error(
                number, f"no such group in {found.identities.path.name}; {hint}"
            )


def _check_rule(found: Components, number: int, rule: Row) -> None:
    contrasts = found.counterfactuals.cells("contrast")
    for contrast in parts(rule["contrasts"]) or [""]:
        if contrast not in contrasts:
            raise found.rules.error(
                number,
                f"contrast {contrast!r} is not in {found.counterfactuals.path.name}; "
                f"{nearest(contrast, contrasts)}",
            )
    wanted = parts(rule["genders"])
    for gender in wanted:
        there = {*GENDERS, *(found.names.cells("gender") if found.names else [])} - {""}
        if gender not in there:
            raise found.rules.error(
                number, f"gender {gender!r} is no name's; {nearest(gender, sorted(there))}"
            )
    if wanted and found.names and not {*wanted} & {*found.names.cells("gender")}:
        raise found.rules.error(
            number, f"no name in {found.names.path.name} is {' or '.join(wanted)}"
        )


def _check_groups(found: Components) -> None:
    """A predicate is said of identities that there are."""
    groups = [*found.identities.cells("group"), EVERY_GROUP]
    known = {name.casefold() for name in [*groups, *found.identities.cells("label")]}
    for number, row in found.predicates.rows.items():
        for part in parts(row["groups"]) or [""]:
            if part.casefold() not in known:
                raise found.predicates.error(
                    number,
                    f"group {part!r} is not in {found.identities.path.name}; "
                    f"{nearest(part.casefold(), groups)}",
                )


def _check_forms(found: Components, kept: Collection[int]) -> None:
    """Predicates have every form that a template needs, each its own, and it can be filled."""
    predicates = found.predicates
    for form in dict.fromkeys(found.templates.cells("predicate")):
        seen: dict[str, int] = {}
        for number in kept:
            text = predicates.rows[number][form]
            if not text:
                raise predicates.error(
                    number,
                    f"no {form}, which template {_user(found, 'predicate', form)} needs; "
                    f"write {NO_FORM} if it has none",
                )
            if text == NO_FORM:
                continue
            first = seen.setdefault(text, number)
            if first != number:
                raise predicates.error(
                    number,
                    f"the same {form} as row {first}; join the two, or write {NO_FORM} in one",
                )
            _check_filled(found, predicates, number, form)


def _check_filled(found: Components, predicates: Table, number: int, form: str) -> None:
    """Every template that takes a predicate's form can fill its slots."""
    text = predicates.rows[number][form]
    if {*"{}"} & {*SLOT.sub("", text)}:
        raise predicates.error(number, f"a brace without its other in its {form}")
    for template in found.templates:
        known = _known_slots(found, template)
        for slot in slots(text):
            if template["predicate"] == form and slot not in known:
                raise predicates.error(
                    number,
                    f"nothing fills {{{slot}}} of its {form} in template {template['template']}; "
                    f"{nearest(slot, sorted(known - {'name', 'gender', 'language'}))}",
                )


def _user(found: Components, column: str, form: str) -> str:
    """The first template that takes a form."""
    return next(row["template"] for row in found.templates if row[column] == form)
