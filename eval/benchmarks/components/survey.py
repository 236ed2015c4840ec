"""What a survey says of a predicate: its relevance tier, its harm, and whether it stays."""

from dataclasses import dataclass

from eval.benchmarks.components.tables import Row, Table, nearest, parts
from eval.errors import RequestError

VOTES = ("yes", "no", "unsure")
ORIGINS = ("translated", "survey")
#: The least share of yes, in percent, for tiers 1, 2 and 3 (2609.02651, §3, Final Datasets).
CUT_OFFS = (70, 50, 30)
EXCLUDED_TIER = -1
#: Predicates that the survey added, without a vote, count as relevant (the same place).
ADDED_TIER = 1
#: SeeGULL's five points are −1, 1, 2, 3 and 4, as the Dutch survey used them.
HARM_SCALE = (-1, 4)
REJECTED = "predicate left out by the survey: fewer than 30 % said yes"
UNDECIDED = "predicate left out by the survey: nobody said yes or no"


@dataclass(frozen=True)
class Judgement:
    """What is known of one predicate; None where the survey says nothing."""

    tier: int | None  # 1, 2, 3, or −1: left out
    harm_mean: float | None  # −1 … 4
    harm_count: int | None  # how many ratings
    origin: str  # translated, survey, or empty
    yes: int | None
    no: int | None
    unsure: int | None
    left_out: str  # the reason; empty if it stays

    @property
    def votes(self) -> str:
        """The votes in words."""
        return ", ".join(f"{getattr(self, name) or 0} {name}" for name in VOTES)


def relevance_tier(yes: int, no: int) -> int | None:
    """The relevance tier of a predicate: 1, 2, 3, or −1 for one to be left out.

    Tier 1: at least 70 % of those who decided said yes; 2: at least 50 %; 3: at least 30 %; −1:
    fewer. Who was unsure isn't counted. None if nobody decided.

    The paper prints the bands as ≥ 70, 50–69, 30–49 and < 30 %. The share isn't rounded first:
    69.5 % isn't ≥ 70 and is tier 2. The published data can't tell another rule from this one,
    as no share of six to nine votes lies between 69 and 70, 49 and 50, or 29 and 30.
    Source: 2609.02651, §3, Final Datasets.
    """
    if yes + no == 0:
        return None
    reached = [tier for tier, least in enumerate(CUT_OFFS, 1) if 100 * yes >= least * (yes + no)]
    return reached[0] if reached else EXCLUDED_TIER


def judge(predicates: Table) -> dict[int, Judgement]:
    """What the survey says of each predicate, by its row's number.

    A predicate without votes stays: in tier 1 if the survey added it, else without a tier. One
    that everybody was unsure of is left out.

    Raises:
        RequestError: a cell isn't a number, is off the scale, or contradicts another.
    """
    if "tier" in predicates.columns:
        raise RequestError(
            f"{predicates.path}: a column tier; tiers are computed, from the columns yes and no"
        )
    return {number: _judge(predicates, number, row) for number, row in predicates.rows.items()}


def _judge(predicates: Table, number: int, row: Row) -> Judgement:
    votes = {name: _count(predicates, number, name) for name in VOTES}
    if (votes["yes"] is None) != (votes["no"] is None):
        raise predicates.error(number, "yes and no go together; one of them is empty or missing")
    origin = row.get("origin", "").casefold()
    if origin and origin not in ORIGINS:
        raise predicates.error(number, f"origin {origin!r}; {nearest(origin, ORIGINS)}")
    tier, left_out = relevance_tier(votes["yes"] or 0, votes["no"] or 0), ""
    if tier is None and votes["unsure"]:
        left_out = UNDECIDED
    elif tier is None and origin == "survey":
        tier = ADDED_TIER
    elif tier == EXCLUDED_TIER:
        left_out = REJECTED
    harm_mean, harm_count = _harm(predicates, number, row)
    return Judgement(tier, harm_mean, harm_count, origin, **votes, left_out=left_out)


def _harm(predicates: Table, number: int, row: Row) -> tuple[float | None, int | None]:
    """The mean of the harm ratings and how many there are, from a list or as given."""
    listed, mean = row.get("harm", ""), row.get("harm_mean", "")
    if listed and mean:
        raise predicates.error(number, "both harm and harm_mean; give the ratings or their mean")
    column, cells = ("harm_mean", [mean]) if mean else ("harm", parts(listed))
    ratings = [_number(predicates, number, column, cell) for cell in cells]
    least, most = HARM_SCALE
    for rating in ratings:
        if not least <= rating <= most:
            raise predicates.error(
                number, f"{column} {rating:g} is off the scale, which goes from {least} to {most}"
            )
    if mean:
        return ratings[0], _count(predicates, number, "harm_count")
    return (sum(ratings) / len(ratings), len(ratings)) if ratings else (None, None)


def _number(table: Table, number: int, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError as error:
        hint = f"; write {cell.replace(',', '.')}" if "," in cell else ""
        raise table.error(number, f"{column} {cell!r} is not a number{hint}") from error


def _count(table: Table, number: int, column: str) -> int | None:
    """A cell that counts something; None if it is empty or there is no such column."""
    cell = table.rows[number].get(column, "")
    if not cell:
        return None
    value = _number(table, number, column, cell)
    if value < 0 or not value.is_integer():
        raise table.error(number, f"{column} {cell!r} is no count, such as 0, 1 or 2")
    return int(value)
