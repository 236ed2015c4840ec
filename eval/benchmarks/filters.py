"""Which pairs or prompts of a benchmark are kept: by what they are; then a sample.

The condition of `benchmark.where` is written as in `pandas.DataFrame.query`, but evaluated
here: it may compare columns and call a few methods of text, and can reach nothing else.
"""

import ast
import difflib
import hashlib
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.pairs import GROUP_SEPARATOR, Pairs
from eval.prompts import CATEGORIES, Prompts


def narrow(pairs: Pairs, settings: BenchmarkSettings) -> Pairs:
    """Keep what the settings' filters keep, in their order, then draw the sample of `limit`.

    `source` gains `filters`, with the number of pairs that each one left, and for a sample
    `limit`, `seed` and `pairs_sampled_from`.

    Raises:
        RequestError: a filter asks for what the benchmark hasn't, or leaves no pair.
    """
    table, steps = pairs.table, []
    for key, value, keep in _filters(settings):
        asked = f"benchmark.{key}={_shown(value)}"
        where = f"benchmark {pairs.name}: {asked}"
        before = len(table)
        table = table[keep(table, where)]
        if table.empty:
            raise RequestError(f"{where} leaves none of the {before:,} pairs before it")
        steps.append({"filter": asked, "pairs": len(table)})
    table = table.reset_index(drop=True)
    facts: dict[str, Any] = {"filters": steps} if steps else {}
    if settings.limit is not None and settings.limit < len(table):
        sampled = {"limit": settings.limit, "seed": settings.seed}
        facts |= {**sampled, "pairs_sampled_from": len(table)}
        table = sample(table, settings.limit, settings.seed)
    return replace(pairs, table=table, source={**pairs.source, **facts})


#: Parts of a benchmark of prompts, by name: the paper's for five words each (2601.20731, B.4).
SUBSETS = ("paper300",)


def narrow_prompts(prompts: Prompts, settings: BenchmarkSettings) -> Prompts:
    """Keep the subset, then what fulfils `where`, then draw the sample of `limit`.

    `source` gains what `narrow` adds, `subset`, and `prompts_sampled_from` for a sample.

    Raises:
        RequestError: no such subset, a filter that is for pairs, or one that leaves nothing.
    """
    said = f"benchmark {prompts.name}"
    for key in ("tiers", "groups", "origin"):
        if getattr(settings, key):
            raise RequestError(
                f"{said}: prompts have no {key}; benchmark.where='\"category == 'queer'\"'"
            )
    table = prompts.table
    facts: dict[str, Any] = {}
    if settings.subset:
        if settings.subset not in SUBSETS:
            raise RequestError(
                f"benchmark.subset={settings.subset}: no such part; there are: {', '.join(SUBSETS)}"
            )
        table = one_marker_each(table, settings.seed)
        facts |= {"subset": settings.subset, "seed": settings.seed}
    if settings.where and settings.where.strip():
        asked = f"benchmark.where={_shown(settings.where)}"
        kept = table[condition(table, settings.where, f"{said}: {asked}")]
        if kept.empty:
            raise RequestError(f"{said}: {asked} leaves none of the {len(table):,} prompts")
        table = kept.reset_index(drop=True)
        facts["filters"] = [{"filter": asked, "prompts": len(table)}]
    if settings.limit is not None and settings.limit < len(table):
        facts |= {"limit": settings.limit, "seed": settings.seed}
        facts["prompts_sampled_from"] = len(table)
        table = sample_prompts(table, settings.limit, settings.seed)
    return replace(prompts, table=table, source={**prompts.source, **facts})


_Keep = Callable[[pd.DataFrame, str], pd.Series]


def _filters(settings: BenchmarkSettings) -> list[tuple[str, Any, _Keep]]:
    """The filters that are asked for: key, value, and which rows it keeps."""
    chosen: list[tuple[str, Any, _Keep]] = []
    tiers, groups, origin, where = (
        settings.tiers,
        settings.groups,
        settings.origin,
        settings.where,
    )
    if tiers:
        chosen.append(("tiers", tiers, lambda table, said: _tiers(table, tiers, said)))
    if groups:
        chosen.append(("groups", groups, lambda table, said: _groups(table, groups, said)))
    if origin:
        chosen.append(("origin", origin, lambda table, said: _origin(table, origin, said)))
    if where and where.strip():
        chosen.append(("where", where, lambda table, said: condition(table, where, said)))
    return chosen


def _tiers(table: pd.DataFrame, tiers: list[int], said: str) -> pd.Series:
    numbers = pd.to_numeric(_column(table, "tier", said), errors="coerce")
    _known(tiers, sorted(numbers.dropna().astype(int).unique()), said)
    return numbers.isin(tiers)


def _groups(table: pd.DataFrame, groups: list[str], said: str) -> pd.Series:
    """A pair that names several groups stays if one of them is asked for."""
    several = table["group"].str.split(GROUP_SEPARATOR, regex=False)
    _known(groups, sorted({name for names in several for name in names} - {""}), said)
    return several.map(lambda names: not set(groups).isdisjoint(names)).astype(bool)


def _origin(table: pd.DataFrame, origin: str, said: str) -> pd.Series:
    values = _column(table, "origin", said).fillna("").astype(str)
    _known([origin], sorted(set(values) - {""}), said)
    return values == origin


def _column(table: pd.DataFrame, name: str, said: str) -> pd.Series:
    if name not in table:
        raise RequestError(
            f"{said}: this benchmark has no column {name}; there are: {', '.join(table.columns)}"
        )
    return table[name]


def _known(asked: Iterable[Any], there: list[Any], said: str) -> None:
    """Raise unless something is asked for that is there, and nothing that isn't."""
    for value in asked:
        if value not in there:
            names = [str(name) for name in there]
            close = difflib.get_close_matches(str(value), names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
            raise RequestError(f"{said}: no pair has {value}; {hint}")


def _shown(value: Any) -> str:
    shown = f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
    return " ".join(shown.split())  # one line, whatever was typed


# --- where -----------------------------------------------------------------------------------

_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
#: Methods of text, all without regular expressions: what each does to a column of text.
_METHODS: dict[str, Callable[..., pd.Series]] = {
    "lower": lambda text: text.str.lower(),
    "upper": lambda text: text.str.upper(),
    "strip": lambda text: text.str.strip(),
    "len": lambda text: text.str.len(),
    "contains": lambda text, part: text.str.contains(part, regex=False),
    "startswith": lambda text, part: text.str.startswith(part),
    "endswith": lambda text, part: text.str.endswith(part),
}
_TAKES = {"contains", "startswith", "endswith"}
_LONGEST = 2_000  # signs of a condition; a longer one is a slip, or meant to exhaust the parser


def condition(table: pd.DataFrame, text: str, said: str) -> pd.Series:
    """Which rows fulfil a condition such as `tier == 1 and group in ["gay", "queer"]`.

    Allowed: names of columns, numbers, quoted text, lists; == != < <= > >=, in, not in;
    and, or, not; + - * / %; and of text, `.contains("x")`, `.startswith`, `.endswith`,
    `.lower()`, `.upper()`, `.strip()`, `.len()`. Cells without a value fulfil nothing but
    `!=` and `not in`. A column of text that is compared with a number is read as numbers.

    `said` opens each error. (pairs,), bool

    Raises:
        RequestError: it can't be read, names no column, or isn't a condition.
    """
    if len(text) > _LONGEST:
        raise RequestError(f"{said[:200]}…: more than {_LONGEST} signs")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = _Reader(table, said).read(tree.body)
    except SyntaxError as error:
        raise RequestError(f"{said}: can't be read ({error.msg})") from error
    except ValueError as error:  # zero bytes
        raise RequestError(f"{said}: can't be read ({error})") from error
    except RecursionError as error:
        raise RequestError(f"{said}: too deeply nested") from error
    if not isinstance(value, pd.Series) or value.dtype != bool:
        raise RequestError(f"{said}: is no condition; compare something, such as tier == 1")
    return value


@dataclass(frozen=True)
class _Reader:
    """Evaluates the parts of a condition, each into a column, a value or a list of values."""

    table: pd.DataFrame
    said: str

    def read(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=str() | int() | float() | bool()):
                return node.value
            case ast.Name():
                return _column(self.table, node.id, self.said)
            case ast.List() | ast.Tuple() | ast.Set():
                return [self._value(item) for item in node.elts]
            case ast.BoolOp():
                parts = [self._truth(part) for part in node.values]
                whole = parts[0]
                for part in parts[1:]:
                    whole = whole & part if isinstance(node.op, ast.And) else whole | part
                return whole
            case ast.UnaryOp(op=ast.Not()):
                return ~self._truth(node.operand)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                number = self._number(node.operand)
                return -number if isinstance(node.op, ast.USub) else number
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                left, right = self._number(node.left), self._number(node.right)
                return self._calculate(_ARITHMETIC[type(node.op)], left, right)
            case ast.Compare():
                return self._compare(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()) | ast.UnaryOp(op=ast.Invert()):
                raise RequestError(f"{self.said}: write and, or, not for & | ~")
        raise RequestError(
            f"{self.said}: '{ast.unparse(node)}' may not stand in a condition; columns, values, "
            f"comparisons, and, or, not, in, arithmetic, and .{', .'.join(_METHODS)} may"
        )

    def _compare(self, node: ast.Compare) -> pd.Series:
        parts = [self.read(part) for part in (node.left, *node.comparators)]
        whole: pd.Series | None = None
        for sign, left, right in zip(node.ops, parts, parts[1:], strict=False):
            if isinstance(sign, ast.In | ast.NotIn):
                met = self._within(left, right, node)
                met = ~met if isinstance(sign, ast.NotIn) else met
            elif type(sign) in _COMPARE:
                met = self._signed(sign, left, right, node)
            else:
                raise RequestError(f"{self.said}: write == for is")
            whole = met if whole is None else whole & met
        assert whole is not None  # a comparison has two sides at least
        return whole

    def _signed(self, sign: ast.cmpop, left: Any, right: Any, node: ast.expr) -> pd.Series:
        if isinstance(left, list) or isinstance(right, list):
            raise RequestError(f"{self.said}: write in for {ast.unparse(node)}")
        if not isinstance(left, pd.Series) and not isinstance(right, pd.Series):
            raise RequestError(f"{self.said}: '{ast.unparse(node)}' names no column")
        if _is_number(left) or _is_number(right):
            left, right = self._as_number(left, node), self._as_number(right, node)
        try:
            met = _COMPARE[type(sign)](left, right)
        except TypeError as error:
            raise RequestError(
                f"{self.said}: '{ast.unparse(node)}' compares a number with text"
            ) from error
        # A cell without a value differs from everything, and is neither more nor less.
        return met.fillna(isinstance(sign, ast.NotEq)).astype(bool)

    def _within(self, left: Any, right: Any, node: ast.expr) -> pd.Series:
        if isinstance(left, pd.Series) and isinstance(right, list):
            if right and all(_is_number(item) for item in right):
                left = self._as_number(left, node)
            return left.isin(right).astype(bool)
        if isinstance(left, str) and isinstance(right, pd.Series):
            return self._text(right, node).str.contains(left, regex=False).astype(bool)
        raise RequestError(
            f"{self.said}: '{ast.unparse(node)}': write COLUMN in [VALUE, …], or 'text' in COLUMN"
        )

    def _call(self, node: ast.Call) -> pd.Series:
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in _METHODS:
            raise RequestError(
                f"{self.said}: '{ast.unparse(node.func)}' may not be called; of a column of text "
                f"may: .{', .'.join(_METHODS)}"
            )
        name = node.func.attr
        text = self._text(self.read(node.func.value), node)
        given = [item.value if isinstance(item, ast.Constant) else None for item in node.args]
        wanted = 1 if name in _TAKES else 0
        if node.keywords or len(given) != wanted or not all(isinstance(x, str) for x in given):
            takes = '("text")' if wanted else "()"
            raise RequestError(f"{self.said}: write .{name}{takes} for '{ast.unparse(node)}'")
        result = _METHODS[name](text, *given)
        return result.astype(bool) if wanted else result

    def _calculate(self, how: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        try:
            return how(left, right)
        except (ZeroDivisionError, OverflowError) as error:
            raise RequestError(f"{self.said}: {error}") from error

    def _value(self, node: ast.expr) -> Any:
        value = self.read(node)
        if isinstance(value, pd.Series | list):
            raise RequestError(f"{self.said}: a list holds values alone: {ast.unparse(node)}")
        return value

    def _truth(self, node: ast.expr) -> pd.Series:
        value = self.read(node)
        if not isinstance(value, pd.Series) or value.dtype != bool:
            raise RequestError(f"{self.said}: '{ast.unparse(node)}' is neither true nor false")
        return value

    def _number(self, node: ast.expr) -> Any:
        value = self.read(node)
        if isinstance(value, str | list):
            raise RequestError(f"{self.said}: '{ast.unparse(node)}' is no number")
        return self._as_number(value, node)

    def _as_number(self, value: Any, node: ast.expr) -> Any:
        """A value or column as numbers; columns of a CSV are text."""
        if isinstance(value, str):
            raise RequestError(f"{self.said}: '{ast.unparse(node)}' compares a number with text")
        if not isinstance(value, pd.Series) or _is_number(value):
            return value
        numbers = pd.to_numeric(value, errors="coerce")
        wrong = numbers.isna() & value.notna() & (value.astype(str).str.strip() != "")
        if wrong.any():
            cell = value[wrong].iloc[0]
            raise RequestError(f"{self.said}: {value.name} is text, such as {cell!r}; quote values")
        return numbers

    def _text(self, value: Any, node: ast.expr) -> pd.Series:
        if not isinstance(value, pd.Series) or _is_number(value) or value.dtype == bool:
            raise RequestError(f"{self.said}: '{ast.unparse(node)}' asks for a column of text")
        return value.fillna("").astype(str)


def _is_number(value: Any) -> bool:
    if isinstance(value, pd.Series):
        return bool(pd.api.types.is_numeric_dtype(value)) and value.dtype != bool
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- limit -----------------------------------------------------------------------------------


def sample(table: pd.DataFrame, limit: int, seed: int) -> pd.DataFrame:
    """Draw `limit` pairs, each group in proportion, in the order of the source.

    A group's share is rounded by largest remainder, but none goes out as long as there are as
    many places as groups. Which pairs of a group are drawn depends on the seed and their ids
    alone, so that neither the platform nor the order of the file changes the sample.
    """
    sizes = {str(group): len(rows) for group, rows in table.groupby("group")}  # sorted by name
    exact = {group: size * limit / len(table) for group, size in sizes.items()}
    least = 1 if limit >= len(sizes) else 0
    places = {group: max(least, int(share)) for group, share in exact.items()}
    # A group raised to one pair has a negative remainder, and is the last to gain another.
    by_remainder = sorted(sizes, key=lambda group: places[group] - exact[group])
    for group in by_remainder[: max(0, limit - sum(places.values()))]:
        places[group] += 1
    while sum(places.values()) > limit:  # many small groups: the largest gives way
        places[max(places, key=places.__getitem__)] -= 1
    ranks = _ranks(table["pair_id"], seed)
    # A stable sort, so that pair ids that stand twice keep their order.
    within = ranks.sort_values(kind="stable").groupby(table["group"]).cumcount()
    chosen = within.reindex(table.index) < table["group"].map(places)
    return table[chosen].reset_index(drop=True)


def sample_prompts(table: pd.DataFrame, limit: int, seed: int) -> pd.DataFrame:
    """Draw `limit` prompts in whole blocks, as far as they go, in the order of the source.

    A block is one subject in one template, with every marker and without: what is compared
    stands in each. Blocks come in an order of the seed's in which subjects and templates take
    turns, so that 310 of the paper's 3,100 are ten blocks with each subject and each template
    once. Of the block that is cut, the categories take turns.
    """
    place = _turns(table, seed)
    ranks = _ranks(table["prompt_id"], seed)
    category = table["category"].map({name: at for at, name in enumerate(CATEGORIES)})
    order = pd.DataFrame({"block": place, "category": category, "rank": ranks})
    order["turn"] = order.sort_values("rank").groupby(["block", "category"]).cumcount()
    first = order.sort_values(["block", "turn", "category"], kind="stable").index[:limit]
    return table.loc[sorted(first)].reset_index(drop=True)


def one_marker_each(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Every unmarked prompt, and its subject and template with one marker of each category.

    Of the paper's 3,100 prompts 300 (App. B.4); which markers depends on seed and prompt alone.
    """
    ranks = _ranks(table["prompt_id"], seed)
    sides = [table[column] for column in ("subject", "template", "category")]
    least = ranks.groupby(sides).transform("min")
    return table[(ranks == least) | (table["category"] == CATEGORIES[0])].reset_index(drop=True)


def _turns(table: pd.DataFrame, seed: int) -> pd.Series:
    """A number for each prompt's block: blocks with other subjects and templates come first."""
    at = {}
    for column in ("subject", "template"):
        names = pd.Series(table[column].unique())
        shuffled = names[_ranks(names, seed).argsort()]
        at[column] = table[column].map({name: place for place, name in enumerate(shuffled)})
    subjects, templates = (int(of.max()) + 1 for of in at.values())
    # Diagonals of the grid, one after another: on each, no two blocks share both ways.
    wide = max(subjects, templates)
    return (at["template"] - at["subject"]) % wide * wide + at["subject"]


def _ranks(ids: pd.Series, seed: int) -> pd.Series:
    """A number of the seed's for each id, whatever the platform and the order of the file."""
    return ids.map(
        lambda one: hashlib.blake2b(f"{seed}\x1f{one}".encode(), digest_size=8).hexdigest()
    )
