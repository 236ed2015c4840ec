"""Tables in the layouts of the papers: models side by side, from plain rows.

The German paper (2608.30884) has a row a group and a column a model, `bias/soft` in each cell:
levels with standard errors (Tables 4 and 5), changes with stars (Tables 6 and 7). The Dutch one
(2609.02651, Table 6) has a row a model: bias (W), bias (M), then the groups.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from eval.errors import RequestError
from eval.inference import PUBLISHED_TEST, Comparison, adjust, stars
from eval.report.tables.cells import DASH, number, scope_label
from eval.report.tables.tex import (
    GAP,
    NAME,
    NEEDS,
    Tabular,
    blocks,
    escape,
    floats,
    head_cell,
    name_cell,
    width,
)

#: The columns of `paper_rows`.
PAPER_COLUMNS = {
    "benchmark": "the benchmark's name",
    "model": "the model's name, as the table is to show it",
    "scope": "overall, macro, group:<name>",
    "metric": "bias or soft, %",
    "before": "level before",
    "before_se": "its standard error, of independent pairs; empty by default",
    "after": "level after; empty for one score alone",
    "delta": "after minus before, percentage points; empty for one score alone",
    "p": "what the stars stand for: adjusted over models and groups; as published, raw",
    "tested": "the test and its family, in words; empty where nothing was tested",
}
LAYOUTS = ("both", "levels", "deltas")
_METRICS = ("bias", "soft")
#: As the Dutch paper heads its columns.
_SHORT = {
    "transgender": "Trans",
    "nonbinary": "NB",
    "bisexual": "Bi",
    "pansexual": "Pan",
    "lesbian": "Les",
    "asexual": "Ace",
    "gay": "Gay",
    "queer": "Queer",
}
_MEAN = "mean"
_HEAD = 54.0  # points: a group's name above its column


def paper_rows(models: Mapping[str, Comparison], *, published: bool = False) -> pd.DataFrame:
    """Rows for the papers' layouts, PAPER_COLUMNS, from a comparison a model on one benchmark.

    By default the cluster tests, adjusted anew: all groups of all models are one family a
    measure, overall and macro another. `published`: independent pairs, raw p, standard errors
    of levels, no macro scope, as the papers have it.

    Raises:
        RequestError: the comparisons are of several benchmarks, or corrected differently.
    """
    for what, values in (
        ("benchmarks", {comparison.benchmark for comparison in models.values()}),
        ("corrections", {comparison.settings.correction for comparison in models.values()}),
    ):
        if len(values) > 1:
            raise RequestError(
                f"models in one table must share it, but there are {what} "
                f"{', '.join(sorted(values))}: make a table of each"
            )
    tables = []
    for model, comparison in models.items():
        table = comparison.published if published else comparison.table
        kept = table["metric"].isin(_METRICS) & (
            table["scope"].isin(["overall", "macro"]) | table["scope"].str.startswith("group:")
        )
        table = table[kept].assign(benchmark=comparison.benchmark, model=model)
        if published:
            table["tested"] = PUBLISHED_TEST
        else:
            table["before_se"] = np.nan
            table["tested"] = ""
        tables.append(table)
    rows = pd.concat(tables, ignore_index=True)
    if not published:
        correction = next(iter(models.values())).settings.correction
        whole = rows["scope"].isin(["overall", "macro"])
        for _, some in rows[rows["p"].notna()].groupby(["metric", whole]):
            rows.loc[some.index, "p"] = adjust(some["p"].to_numpy(float), correction)
            of = "overall, macro" if whole[some.index[0]] else "by group"
            rows.loc[some.index, "tested"] = _family(len(some), of, len(models), correction)
    return rows[list(PAPER_COLUMNS)]


def _family(tests: int, of: str, models: int, correction: str) -> str:
    how = {"holm": "Holm", "bh": "Benjamini and Hochberg", "none": "not adjusted"}[correction]
    many = " and model" if models > 1 else ""
    return f"cluster tests, {how} over the {tests} tests of each score {of}{many}"


def german_table(rows: pd.DataFrame, layout: str = "both", label: str = "tab:german") -> str:
    """The German paper's layout in LaTeX: a row a group, a column a model, cells `bias/soft`.

    Models that do not fit side by side stand beneath each other. Several models get a column
    of their means, which are not tested.

    Args:
        rows: PAPER_COLUMNS, of one benchmark; groups and models stand in their order
        layout: levels (Tables 4, 5), deltas (Tables 6, 7), both
        label: what `\\ref` finds the table by

    Raises:
        RequestError: there is no such layout, or there are no rows.
    """
    if layout not in LAYOUTS:
        raise RequestError(f"layout={layout}: must be one of {', '.join(LAYOUTS)}")
    _check(rows)
    parts = {"levels": ["before"], "deltas": ["delta"], "both": ["before", "delta"]}[layout]
    models, scopes = _models(rows), _scopes(rows, last=True)
    found = _by_cell(_with_means(rows, models))
    models = [*models, _MEAN] if len(models) > 1 else models
    columns = [(model, part) for model in models for part in parts]
    cells = {
        column: [_cell(found, column[0], scope, column[1]) for scope in scopes]
        for column in columns
    }
    # a model's columns stay together, as wide as what is in them, or as a name can be
    filled = [
        sum(max(map(width, [*cells[model, part], "before"])) + GAP for part in parts)
        for model in models
    ]
    rooms = [max(wide, NAME) for wide in filled]
    wide = [
        max(has, min(width(escape(model)), room))
        for model, has, room in zip(models, filled, rooms, strict=True)
    ]
    tabulars = []
    for block in blocks(wide):
        some = [models[at] for at in block]
        named = [head_cell(models[at], len(parts), rooms[at]) for at in block]
        heads = [" & ".join(["", *named]) + r" \\"]
        if len(parts) > 1:
            heads += [
                "".join(rf"\cmidrule(lr){{{2 + 2 * at}-{3 + 2 * at}}}" for at in range(len(some))),
                " & ".join(["group", *["before", r"$\Delta$"] * len(some)]) + r" \\",
            ]
        tabulars.append(
            Tabular(
                columns=f"p{{{NAME:g}pt}}" + "r" * (len(parts) * len(some)),
                heads=heads,
                rows=[
                    [name_cell(scope_label(scope)), *[cells[m, p][at] for m in some for p in parts]]
                    for at, scope in enumerate(scopes)
                ],
                rules=frozenset({sum(scope.startswith("group:") for scope in scopes)}),
            )
        )
    return f"{NEEDS}\n\n{floats(_german_caption(rows, layout), label, tabulars)}\n"


def dutch_table(rows: pd.DataFrame, when: str = "before", label: str = "tab:dutch") -> str:
    """The Dutch paper's Table 6 in LaTeX: a row a model; bias (W), bias (M), then the groups.

    In each row the highest group is bold and the lowest underlined; several models get a row of
    means. Groups that do not fit side by side stand beneath each other.

    Args:
        rows: PAPER_COLUMNS, of one benchmark; groups and models stand in their order
        when: before, after, or both: then the levels after stand in a row below each model's
        label: what `\\ref` finds the table by

    Raises:
        RequestError: `when` is something else, or there are no rows.
    """
    times = {"before": ["before"], "after": ["after"], "both": ["before", "after"]}.get(when)
    if times is None:
        raise RequestError(f"when={when}: must be one of before, after, both")
    _check(rows)
    models, scopes = _models(rows), _scopes(rows, last=False)
    found = _by_cell(_with_means(rows, models))
    models = [*models, _MEAN] if len(models) > 1 else models
    named = {scope: _short(scope) for scope in scopes}
    wide = [max(min(width(escape(name)), _HEAD), width("100.0")) for name in named.values()]
    tabulars = []
    for block in blocks(wide):
        some = [scopes[at] for at in block]
        heads = [head_cell(named[scope], 1, _HEAD, "raggedleft") for scope in some]
        body = []
        for model in models:
            for time in times:
                marked = _marked(found, model, scopes, time)
                first = name_cell(model) if time == times[0] else rf"\quad {time}"
                body.append([first, *[marked[scope] for scope in some]])
        tabulars.append(
            Tabular(
                columns=f"p{{{NAME:g}pt}}" + "r" * len(some),
                heads=[" & ".join(["model", *heads]) + r" \\"],
                rows=body,
                rules=frozenset({len(times) * (len(models) - 1)} if len(models) > 1 else ()),
            )
        )
    return f"{NEEDS}\n\n{floats(_dutch_caption(rows, scopes, times), label, tabulars)}\n"


def _check(rows: pd.DataFrame) -> None:
    missing = [column for column in PAPER_COLUMNS if column not in rows]
    if missing:
        raise RequestError(f"rows of a paper's table lack the column {', '.join(missing)}")
    if rows.empty:
        raise RequestError("a paper's table needs rows: there is no model")


def _models(rows: pd.DataFrame) -> list[str]:
    return [str(model) for model in rows["model"].unique()]


def _scopes(rows: pd.DataFrame, last: bool) -> list[str]:
    """Groups in their order, with overall and macro behind or before them."""
    there = [str(scope) for scope in rows["scope"].unique()]
    groups = [scope for scope in there if scope.startswith("group:")]
    whole: list[str] = [scope for scope in ("overall", "macro") if scope in there]
    return groups + whole if last else whole + groups


def _with_means(rows: pd.DataFrame, models: list[str]) -> pd.DataFrame:
    """The rows, and the means over models where there are several."""
    if len(models) < 2:
        return rows
    values = ["before", "after", "delta"]
    means = rows.groupby(["scope", "metric"], as_index=False)[values].mean()
    means = means.assign(model=_MEAN, before_se=np.nan, p=np.nan)
    return pd.concat([rows, means], ignore_index=True)


def _by_cell(rows: pd.DataFrame) -> dict[tuple[str, str, str], pd.Series]:
    """Each row by model, scope and metric."""
    return {
        (str(row["model"]), str(row["scope"]), str(row["metric"])): row
        for _, row in rows.iterrows()
    }


def _cell(found: dict[tuple[str, str, str], pd.Series], model: str, scope: str, part: str) -> str:
    """`bias/soft` as LaTeX; a dash where a model has no such group."""
    halves = []
    for metric in _METRICS:
        row = found.get((model, scope, metric))
        if row is None or np.isnan(row[part]):
            halves.append("--")
        elif part == "delta":
            change = f"{row[part]:+.1f}"
            change = "0.0" if change in ("+0.0", "-0.0") else change
            halves.append(f"${change}^{{{stars(row['p'])}}}$".replace("^{}", ""))
        else:
            error = row["before_se"]
            halves.append(number(row[part]) + ("" if np.isnan(error) else f" ({error:.1f})"))
    return "/".join(halves) if set(halves) != {"--"} else "--"


def _marked(
    found: dict[tuple[str, str, str], pd.Series], model: str, scopes: list[str], time: str
) -> dict[str, str]:
    """A model's bias by scope, its highest group bold and its lowest underlined."""
    values = {
        scope: float(row[time])
        if (row := found.get((model, scope, "bias"))) is not None
        else np.nan
        for scope in scopes
    }
    shown = {scope: number(value) for scope, value in values.items()}
    ranked = [
        scope for scope in scopes if scope.startswith("group:") and not np.isnan(values[scope])
    ]
    cells = {scope: "--" if text == DASH else text for scope, text in shown.items()}
    if len({shown[scope] for scope in ranked}) > 1:
        ordered = sorted(float(shown[scope]) for scope in ranked)
        for scope in ranked:
            if float(shown[scope]) == ordered[-1]:
                cells[scope] = rf"\textbf{{{shown[scope]}}}"
            elif float(shown[scope]) == ordered[0]:
                cells[scope] = rf"\underline{{{shown[scope]}}}"
    return cells


def _short(scope: str) -> str:
    """A column's head, as the Dutch paper has it."""
    whole = {"overall": "bias (W)", "macro": "bias (M)"}
    label = scope_label(scope)
    return whole.get(scope) or _SHORT.get(label, label)


def _german_caption(rows: pd.DataFrame, layout: str) -> str:
    name = escape(str(rows["benchmark"].iloc[0]))
    brackets = " (standard error of independent pairs)" if rows["before_se"].notna().any() else ""
    before = (
        f"Before: bias/soft score, percent{brackets}; 50 means that neither side is preferred. "
    )
    tested = [text for text in rows["tested"].unique() if text]
    change = (
        r"$\Delta$ (bias/soft): percentage points after minus before; stars: "
        f"{'; '.join(map(escape, tested)) or 'not tested'} ({_stars()}). "
    )
    parts = {"levels": [before], "deltas": [change], "both": [before, change]}[layout]
    return f"{name}. {''.join(parts)}{_means(rows)}".strip()


def _dutch_caption(rows: pd.DataFrame, scopes: list[str], times: list[str]) -> str:
    name = escape(str(rows["benchmark"].iloc[0]))
    when = " and ".join(times)
    labels = [scope_label(scope) for scope in scopes]
    short = [f"{_SHORT[label]}: {label}" for label in labels if label in _SHORT]
    short = [text for text in short if text.split(": ")[0].lower() != text.split(": ")[1]]
    return (
        f"{name}. Bias {when}, percent; 50 means that neither side is preferred. Bias (W): of all "
        "pairs; bias (M): mean over groups. In each row the highest group is bold, the lowest "
        f"underlined. {_means(rows)}{escape(', '.join(short))}{'.' if short else ''}"
    ).strip()


def _means(rows: pd.DataFrame) -> str:
    return "Mean: over the models, not tested. " if rows["model"].nunique() > 1 else ""


def _stars() -> str:
    return r"$^{*}p<.05$, $^{**}p<.01$, $^{***}p<.001$"
