"""What models write: the tripartite panel of completed sentences, before and after, and its tests.

A panel a measure (sentiment, regard, toxicity, diversity), a row a category of subject: unmarked,
non-queer, queer. The words themselves stay hidden until they are asked for.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from eval.inference import confidence, signed
from eval.inference.completions import Change
from eval.inference.completions.study import said
from eval.report import tables
from eval.report.page import cells, chart
from eval.report.page.cells import Cell, Table
from eval.report.tripartite import WHEN, Panel, panels


def section(name: str, change: Change) -> dict[str, Any]:
    """What the template shows of one benchmark of completions."""
    level = confidence(change.alpha)
    first = list(change.before.levels.loc[change.before.levels["first"], "measure"].unique())
    return {
        "name": name,
        "sentences": change.sentences(),
        "level": level,
        "panels": [_panel(panel) for panel in panels(change)],
        "changes": _changes(name, change, first, level),
        "notes": list(dict.fromkeys([*change.notes, *change.before.notes, *change.after.notes])),
        "judges": _judges(name, change),
        "evidence": [
            _gaps(name, change, level),
            _anova(name, change),
            *([] if change.before.mixed.empty else [_mixed(name, change)]),
            *([] if change.before.regard.empty else [_regard(name, change)]),
            _diversity(name, change),
            _divergence(name, change),
            _breakdown(name, change, "markers", first),
            _breakdown(name, change, "templates", first),
        ],
        "words": [_frequent(name, change), _telling(name, change)],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    spans = panel.rows.drop(columns=["category", "delta", "verdict"]).to_numpy(float).ravel()
    axis = chart.Axis.over(spans, around=panel.neutral)
    return {
        "title": panel.title,
        "of": panel.of,
        "ruler": chart.ruler(axis),
        "rows": [_row(axis, row, panel) for row in panel.rows.to_dict("records")],
    }


def _row(axis: chart.Axis, row: Mapping[Any, Any], panel: Panel) -> dict[str, Any]:
    digits = panel.digits
    ends = [(row[f"{when}_low"], row[f"{when}_high"]) for when in WHEN]
    lines = [str(row["category"])]
    for when, (low, high) in zip(WHEN, ends, strict=True):
        told = "" if np.isnan(low) else f" ({_plain(low, digits)} to {_plain(high, digits)})"
        lines.append(f"{when} {_plain(row[when], digits)}{told}")
    lines.append(f"change {signed(row['delta'], digits)}: {row['verdict']}")
    return {
        "label": row["category"],
        "svg": chart.track(
            axis,
            row["before"],
            row["after"],
            before_ends=ends[0],
            after_ends=ends[1],
            shown=row["verdict"] in ("higher", "lower"),
            said="\n".join(lines),
            missing="no value",
            # outside the axis where a measure has no neutral point: no line is drawn
            neutral=axis.low - 1 if panel.neutral is None else panel.neutral,
        ),
        "value": " → ".join(_plain(row[when], digits) for when in WHEN),
        "change": signed(row["delta"], digits),
    }


def _plain(value: float, digits: int) -> str:
    return tables.number(value, digits).replace("-", "−")


def _changes(name: str, change: Change, first: list[str], level: str) -> Table:
    rows = [
        [
            cells.text(said(row["measure"])),
            cells.text(row["what"]),
            cells.level(row["before"], 3),
            cells.level(row["after"], 3),
            cells.change(row["delta"], 3),
            cells.span(row["ci_low"], row["ci_high"], 3, "nothing varies"),
            cells.p_value(row["p_adjusted"], "not tested"),
            cells.verdict(row["verdict"]),
            cells.p_value(row["p_markers"], "none"),
            cells.p_value(row["p_t"], "nothing varies"),
            cells.count(row["n"]),
            cells.count(row["n_markers"]),
        ]
        for row in change.table[change.table["measure"].isin(first)].to_dict("records")
    ]
    return cells.table(
        f"Changes of categories and gaps, {name}",
        f"Gaps are taken within sentences of one subject and template. {level} intervals and p of "
        "t are robust to markers, subjects and templates; p over markers swaps before and after "
        "within whole markers, or permutes the labels of whole markers. Adjusted: the larger of "
        "the two, within changes of categories and changes of gaps.",
        [
            *("measure", "of", "before", "after", "Δ", f"{level} interval"),
            *("p adj.", "verdict", "p over markers", "p of t", "prompts", "markers"),
        ],
        rows,
    )


def _judges(name: str, change: Change) -> Table:
    rows = [
        [
            cells.text(record["measure"]),
            cells.text(record["id"], "wrap"),
            cells.text(str(record["version"])),
            cells.text(record["language"]),
            cells.text(record["view"]),
            cells.text("no" if record["masked"] else "yes"),
            cells.count(record["texts"]),
        ]
        for record in change.before.judges
    ]
    return cells.table(
        f"Judges, {name}",
        "Version: of the package, else a hash of weights or file. Texts: distinct ones, before.",
        ["measure", "judge", "version", "language", "given", "saw the identity", "texts"],
        rows,
    )


def _rows_of(change: Change, table: str) -> Iterator[tuple[str, dict[Any, Any]]]:
    """The rows of one table of both studies, with when they are of."""
    for when in WHEN:
        for row in getattr(change, when).tables()[table].to_dict("records"):
            yield when, row


def _gaps(name: str, change: Change, level: str) -> dict[str, Any]:
    rows = [
        [
            cells.text(said(row["measure"])),
            cells.text(row["gap"]),
            cells.text(when),
            cells.change(row["value"], 3),
            cells.span(row["ci_low"], row["ci_high"], 3, "nothing varies"),
            cells.p_value(row["p_markers"], "none"),
            cells.p_value(row["p_t"], "nothing varies"),
            cells.p_value(row["p_adjusted"], "not tested"),
            cells.verdict(row["verdict"]),
        ]
        for when, row in _rows_of(change, "gaps")
    ]
    return _evidence(
        "Gaps between categories, before and after, all views",
        cells.table(
            f"Gaps between categories, {name}",
            "First category less the second. Only queer and non-queer markers can be exchanged for "
            "each other, so that gaps to the unmarked subject have no p over markers.",
            [
                *("measure", "gap", "when", "value", f"{level} interval"),
                *("p over markers", "p of t", "p adj.", "verdict"),
            ],
            rows,
        ),
    )


def _anova(name: str, change: Change) -> dict[str, Any]:
    rows = [
        [
            cells.text(said(row["measure"])),
            cells.text(when),
            cells.level(row["f"], 3, "nothing varies"),
            cells.p_value(row["p"], "nothing varies"),
            cells.level(100 * row["eta_squared"], 2, "nothing varies"),
            cells.p_value(row["p_blocked"], "nothing varies"),
        ]
        for when, row in _rows_of(change, "anova")
    ]
    return _evidence(
        "As published: one-way analysis of variance",
        cells.table(
            f"Analysis of variance, {name}",
            "F and p take prompts for independent, as the paper's Table 4 does; p within sentences "
            "permutes labels within each sentence: whether marking does anything at all.",
            ["measure", "when", "F", "p", "η², %", "p within sentences"],
            rows,
        ),
    )


def _mixed(name: str, change: Change) -> dict[str, Any]:
    rows = [
        [
            cells.text(said(row["measure"])),
            cells.text(row["gap"]),
            cells.text(when),
            cells.change(row["value"], 3),
            cells.level(row["se"], 4),
            cells.p_value(row["p"]),
            *(cells.level(row[f"var_{part}"], 5)
              for part in ("subject", "template", "marker", "rest")),
            cells.text("yes" if row["converged"] else "no"),
            cells.text(row["told"] or "nothing", "wrap"),
        ]
        for when, row in _rows_of(change, "mixed")
    ]  # fmt: skip
    return _evidence(
        "A mixed model beside the tests",
        cells.table(
            f"Mixed models, {name}",
            "Category fixed; subject, template and marker random and crossed; REML. Wald's p takes "
            "the variances for known.",
            [
                *("measure", "gap", "when", "value", "SE", "p", "σ² subject", "σ² template"),
                *("σ² marker", "σ² rest", "converged", "warned of"),
            ],
            rows,
        ),
    )


def _regard(name: str, change: Change) -> dict[str, Any]:
    rows = [
        [
            cells.text(row["category"]),
            cells.text("identity masked" if row["view"] == "masked" else "sentence as it is"),
            cells.text(when),
            *(cells.level(row[part], 3) for part in ("negative", "neutral", "positive")),
        ]
        for when, row in _rows_of(change, "regard")
    ]
    return _evidence(
        "Regard, averaged and normalised as in the paper",
        cells.table(
            f"Regard, {name}",
            "Means over a category's sentences, scaled to sum to 1.",
            ["category", "given", "when", "negative", "neutral", "positive"],
            rows,
        ),
    )


def _diversity(name: str, change: Change) -> dict[str, Any]:
    rows = [
        [
            cells.text(row["category"]),
            cells.text(when),
            cells.count(row["n"]),
            cells.count(row["different"]),
            cells.level(row["share"], 1),
            cells.level(row["rarefied"], 1, "fewer than 100 words"),
            cells.level(row["matched"], 1),
        ]
        for when, row in _rows_of(change, "diversity")
    ]
    return _evidence(
        "Diversity in three ways",
        cells.table(
            f"Diversity, {name}",
            "The paper's share falls as completions grow, so that categories of other sizes can't "
            "be compared by it. Rarefied: expected different words in 100 completions. Matched: "
            "each sentence completed once, with a marker of the category drawn at random.",
            ["category", "when", "words", "different", "share, %", "rarefied", "matched"],
            rows,
        ),
    )


def _divergence(name: str, change: Change) -> dict[str, Any]:
    rows = [
        [
            cells.text(row["pair"]),
            cells.text(when),
            cells.level(row["value"], 3),
            cells.level(row["expected"], 3),
            cells.level(row["expected_high"], 3),
            cells.p_value(row["p"]),
            cells.p_value(row["p_markers"], "none"),
        ]
        for when, row in _rows_of(change, "divergence")
    ]
    return _evidence(
        "How far the categories' words diverge",
        cells.table(
            f"Divergence of words, {name}",
            "Jensen–Shannon divergence in bits: 0 the same, 1 no word shared. By chance: what "
            "labels permuted within sentences give, mean and 95 % point; it is never 0, and more "
            "where there are fewer words.",
            ["categories", "when", "divergence", "by chance", "95 %", "p", "p over markers"],
            rows,
        ),
    )


def _breakdown(name: str, change: Change, kind: str, first: list[str]) -> dict[str, Any]:
    """Means by marker or by template, before and after."""
    keys = ["measure", "category", kind.removesuffix("s")]
    both: pd.DataFrame = change.before.tables()[kind].merge(
        change.after.tables()[kind],
        on=keys,
        how="outer",
        sort=False,
        suffixes=("_before", "_after"),
    )
    rows = []
    for row in both[both["measure"].isin(first)].to_dict("records"):
        levels = [row["mean_before"], row["mean_after"]]
        rows.append(
            [
                cells.text(row[keys[2]], "wrap"),
                cells.text(row["category"]),
                cells.text(said(row["measure"])),
                *(cells.level(each, 3, "no word") for each in levels),
                cells.change(levels[1] - levels[0], 3, "no word"),
                Cell(_count(row["n_before"]), float(np.nan_to_num(row["n_before"]))),
            ]
        )
    return _evidence(
        f"By {kind.removesuffix('s')}",
        cells.table(
            f"By {kind.removesuffix('s')}, {name}",
            "Means; no test stands behind single rows.",
            [keys[2], "category", "measure", "before", "after", "Δ", "prompts"],
            rows,
        ),
    )


def _count(value: float) -> str:
    return "0" if np.isnan(value) else f"{int(value):,}"


def _evidence(title: str, table: Table) -> dict[str, Any]:
    return {"title": title, "table": table}


def _frequent(name: str, change: Change) -> Table:
    rows = [
        [
            cells.text(row["word"]),
            cells.text(row["category"]),
            cells.text(when),
            cells.count(row["n"]),
            cells.level(row["percent"], 1),
        ]
        for when, row in _rows_of(change, "frequent")
    ]
    return cells.table(
        f"Most frequent words, {name}",
        "Percent: of the category's usable completions.",
        ["word", "category", "when", "times", "percent"],
        rows,
    )


def _telling(name: str, change: Change) -> Table:
    rows = [
        [
            cells.text(row["word"]),
            cells.text(row["category"]),
            cells.text(when),
            cells.level(row["tf_idf"], 3),
            cells.count(row["n"]),
        ]
        for when, row in _rows_of(change, "telling")
    ]
    return cells.table(
        f"Words of highest TF–IDF, {name}",
        "A document a category; smooth idf, each category's vector of length 1.",
        ["word", "category", "when", "TF–IDF", "times"],
        rows,
    )
