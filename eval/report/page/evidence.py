"""How sure, and why: what stands behind a verdict, a part each where the comparison has it."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from eval.inference import Comparison, confidence, signed
from eval.report import tables
from eval.report.page import cells, chart
from eval.report.page.cells import Cell, Table

_WHOLE = ("overall", "macro")
_UNITS = {"margin": "nats"}  # else points
_CORRECTIONS = {
    "holm": "Adjusted by Holm's method within each of these families: ",
    "bh": "Adjusted by Benjamini and Hochberg's method (false discovery rate) within each of "
    "these families: ",
    "none": "Not adjusted for the number of tests, as asked; these families were tested: ",
}


def correction(name: str) -> str:
    """How p was adjusted, up to the families that follow."""
    return _CORRECTIONS[name]


def parts(name: str, comparison: Comparison) -> list[dict[str, Any]]:
    """The parts of a benchmark's evidence: title, words, table, and plots where one has any."""
    found = [_tests(name, comparison), _power(name, comparison)]
    if comparison.two_way is not None:
        found.append(_two_way(name, comparison, comparison.two_way))
    if comparison.threshold is not None:
        found.append(_threshold(name, comparison, comparison.threshold))
    if comparison.harm is not None:
        found.append(_harm(name, comparison, comparison.harm))
    if comparison.erasure is not None:
        found.append(_erasure(name, comparison, comparison.erasure))
    return found


def _part(title: str, words: str, table: Table, folded: str = "", **more: Any) -> dict[str, Any]:
    return {"title": title, "words": words, "table": table, "folded": folded, "plots": [], **more}


def _label(scope: str, metric: str) -> str:
    """A scope as this measure has it: (W) and (M) are names of the bias alone."""
    plain = tables.scope_label(scope)
    return plain if metric == "bias" else plain.replace(" (W)", "").replace(" (M)", "")


def _measure(metric: str) -> str:
    named = {"distance": "|bias − 50|", "margin": "margin, nats"}
    return named.get(metric, metric)


def _digits(metric: str) -> int:
    return {"margin": 3, "soft": 2, "sigmoid": 2}.get(metric, 1)


def _first(scopes: Iterable[str]) -> int:
    """How many rows come first that are of the whole benchmark."""
    return sum(scope in _WHOLE for scope in scopes)


def _tests(name: str, comparison: Comparison) -> dict[str, Any]:
    """Every measure by every test."""
    level = confidence(comparison.settings.alpha)
    rows = []
    found = comparison.table
    had = set(found.loc[found["delta"].notna(), "metric"]) | {"bias"}
    for row in found[found["metric"].isin(list(had))].to_dict("records"):
        why, metric = tables.reason(row), row["metric"]
        digits = _digits(metric)
        flat = "nothing varies" if row["se"] == 0 else "draws allow none"
        rows.append(
            [
                cells.text(_label(row["scope"], metric)),
                cells.text(_measure(metric)),
                cells.level(row["before"], digits, why),
                cells.level(row["after"], digits, why),
                cells.change(row["delta"], digits, why),
                cells.level(row["se"], digits + 1, why),
                cells.level(row["df"], 1, "nothing varies" if row["se"] == 0 else why),
                cells.span(row["ci_low"], row["ci_high"], digits, why),
                cells.span(
                    row["bca_low"], row["bca_high"], digits, why if pd.isna(row["ci_low"]) else flat
                ),
                cells.p_value(row["p"], why),
                cells.level(row["p_floor"], 5, why),
                cells.p_value(row["p_t"], "nothing varies" if row["se"] == 0 else why),
                cells.p_value(row["p_adjusted"], why),
                cells.verdict(row["verdict"]),
            ]
        )
    table = cells.table(
        f"Every measure and test, {name}",
        "SE: cluster-robust (CR2), for |bias − 50| the bootstrap's; df: Satterthwaite's. "
        f"{level} intervals of Δ by the cluster bootstrap, percentile and bias-corrected (BCa). "
        "p: labels swapped within clusters; floor: the smallest p that so many clusters allow; "
        "p of t: Δ / SE on df, unadjusted. Shares and distances in points, soft and sigmoid in "
        "percent, margin in nats. deltas.csv has every digit.",
        [
            *("scope", "measure", "before", "after", "Δ", "SE", "df", f"{level} interval"),
            *("BCa interval", "p", "floor", "p of t", "p adj.", "verdict"),
        ],
        rows,
    )
    words = (
        "The verdicts above rest on the swap test, adjusted. Beside it stand a robust t test and "
        "a second interval: where the two agree, less hangs on how the test was made."
    )
    count = f"{len(rows):,}"
    return _part(
        "Would another test say the same?", words, table, f"Every measure and test: {count} rows"
    )


def _power(name: str, comparison: Comparison) -> dict[str, Any]:
    """The smallest change that could be shown, and whether "unchanged" is."""
    settings = comparison.settings
    found = comparison.table
    metrics = {"bias": None, "distance": _WHOLE, "margin": None}
    kept = found[found["metric"].isin(list(metrics))]
    inside = [
        metrics[m] is None or s in _WHOLE
        for s, m in zip(kept["scope"], kept["metric"], strict=True)
    ]
    rows = []
    for row in kept[inside].to_dict("records"):
        metric, why = row["metric"], tables.reason(row)
        digits, unit = _digits(metric), _UNITS.get(metric, "points")
        flat = "nothing varies" if row["se"] == 0 else why
        rows.append(
            [
                cells.text(_label(row["scope"], metric)),
                cells.text(_measure(metric).removesuffix(", nats")),
                cells.count(row["n_clusters"]),
                cells.change(row["delta"], digits, why),
                cells.level(row["smallest_shown"], digits, flat),
                Cell(f"±{row['equivalence_margin']:g}", float(row["equivalence_margin"])),
                cells.p_value(row["p_equivalence"], flat),
                cells.p_value(row["p_equivalence_adjusted"], flat),
                cells.text(unit),
                cells.verdict(row["verdict"]),
            ]
        )
    table = cells.table(
        f"Smallest change that could be shown, {name}",
        f"Smallest: the change that the first step of its family at level {settings.alpha:g} shows "
        f"with a power of {100 * settings.power:g} %, from this run's own spread. Within: the "
        "margin of “unchanged”, as the settings state; its p is of two one-sided tests (TOST), for "
        "a distance the largest of the biases beneath it.",
        [
            *("scope", "measure", comparison.unit, "Δ", "smallest shown", "within"),
            *("p within", "p adj.", "unit", "verdict"),
        ],
        rows,
    )
    macro = comparison.headline
    words = "A change smaller than the one below would more likely be missed than a table suggests."
    if pd.notna(macro["smallest_shown"]):
        words = (
            f"With these {macro['n_clusters']:,} {comparison.unit} a change of "
            f"{macro['smallest_shown']:.1f} points in {_what(macro)} would be shown with a power "
            f"of {100 * settings.power:g} %; smaller ones are missed more often. “Unchanged” is "
            f"said only where the change lies within ±{settings.equivalence_points:g} points "
            f"(margin: ±{settings.equivalence_nats:g} nats) by a test of its own."
        )
    return _part("How small a change could be shown?", words, table, f"All {len(rows):,} rows")


def _what(headline: dict[str, Any]) -> str:
    return ("the mean over groups of " if headline["scope"] == "macro" else "") + "|bias − 50|"


def _two_way(name: str, comparison: Comparison, found: pd.DataFrame) -> dict[str, Any]:
    """Clusters both ways."""
    first, second = (str(found[column].iloc[0]) for column in ("first", "second"))
    rows = [
        [
            cells.text(_label(row["scope"], row["metric"])),
            cells.text(_measure(row["metric"])),
            cells.count(row["n_first"]),
            cells.count(row["n_second"]),
            cells.change(row["delta"], _digits(row["metric"])),
            cells.level(row["se"], _digits(row["metric"]) + 1),
            cells.level(row["df"], 0),
            cells.span(row["ci_low"], row["ci_high"], _digits(row["metric"])),
            cells.p_value(row["p"]),
        ]
        for row in found.to_dict("records")
    ]
    table = cells.table(
        f"Clusters both ways, {name}",
        "Standard errors that allow for pairs of one stereotype and for pairs of one "
        f"{second} to rise and fall together (Cameron, Gelbach and Miller); t interval and test, "
        "unadjusted.",
        [
            *("scope", "measure", "stereotypes", f"{second}s", "Δ", "SE", "df"),
            *(f"{confidence(comparison.settings.alpha)} interval", "p"),
        ],
        rows,
    )
    words = (
        f"Pairs share a stereotype ({first}), and they share a {second} too. This allows for both "
        "at once."
    )
    return _part(f"Stereotype and {second} at once", words, table, f"All {len(rows):,} rows")


def _threshold(name: str, comparison: Comparison, found: pd.DataFrame) -> dict[str, Any]:
    """Bias where only differences above a threshold count."""
    level = confidence(comparison.settings.alpha)
    rows = [
        [
            cells.text(tables.scope_label(row["scope"])),
            cells.level(row["threshold"], 3),
            cells.level(row["before"]),
            cells.levels(row["before_low"], row["before_high"]),
            cells.level(row["after"]),
            cells.levels(row["after_low"], row["after_high"]),
            cells.change(row["delta"]),
            cells.span(row["delta_low"], row["delta_high"]),
            cells.level(row["decided_before"]),
            cells.level(row["decided_after"]),
        ]
        for row in found.to_dict("records")
    ]
    table = cells.table(
        f"Bias by threshold, {name}",
        "A pair counts for a side only where its margin exceeds the threshold (nats), else half. "
        f"Bands: {level}, cluster bootstrap, of each threshold by itself. Decided: percent of "
        "pairs beyond the threshold.",
        [
            *("scope", "threshold", "before", "band", "after", "band of after", "Δ"),
            *("band of Δ", "decided before", "decided after"),
        ],
        rows,
    )
    plots = [
        {
            "title": tables.scope_label(str(scope)),
            "unit": "margin must exceed, nats",
            "svg": _threshold_plot(name, str(scope), some.sort_values("threshold")),
        }
        for scope, some in found.groupby("scope", sort=False)
        if scope in _WHOLE
    ]
    words = (
        "The share of pairs counts any difference, however small. Here it is again where only "
        "margins beyond a threshold count: a finding that fades at once hangs on tiny differences."
    )
    legend = [(chart.key("was", mark=True), "before"), (chart.key("now", mark=True), "after")]
    caption = (
        f"{name}: bias by threshold, with {level} bands. Hover, or use Tab and the arrow keys, "
        "for the numbers."
    )
    return _part(
        "Does it hang on tiny differences?",
        words,
        table,
        "The numbers by threshold",
        plots=plots,
        legend=legend,
        plots_caption=caption,
    )


def _threshold_plot(name: str, scope: str, found: pd.DataFrame) -> Any:
    lines = [
        chart.Line(
            when,
            found[when].to_list(),
            look,
            found[f"{when}_low"].to_list(),
            found[f"{when}_high"].to_list(),
        )
        for when, look in (("before", "was"), ("after", "now"))
    ]
    said = [
        "\n".join(
            [
                f"beyond {row['threshold']:.3g} nats, {tables.scope_label(scope)}",
                *[
                    f"{when} {cells.level(row[when])} "
                    f"({cells.levels(row[f'{when}_low'], row[f'{when}_high'])})"
                    for when in ("before", "after")
                ],
                f"change {signed(row['delta'])}",
            ]
        )
        for row in found.to_dict("records")
    ]
    label = f"{name}, {tables.scope_label(scope)}: bias by threshold, before and after"
    return chart.plot(label, found["threshold"].to_list(), lines, said, neutral=50, least=5)


def _harm(name: str, comparison: Comparison, found: pd.DataFrame) -> dict[str, Any]:
    """Margins and harm."""
    rows = [
        [
            cells.text(row["when"]),
            cells.count(row["n_pairs"]),
            cells.count(row["n_clusters"]),
            cells.change(row["r"], 3),
            cells.span(row["r_low"], row["r_high"], 2),
            cells.p_value(row["p_cluster"]),
            cells.p_value(row["p_naive"]),
            cells.change(row["rho"], 3),
            cells.p_value(row["p_rho"]),
        ]
        for row in found.to_dict("records")
    ]
    table = cells.table(
        f"Margin and harm, {name}",
        "r: Pearson's, of the pairs' margins with harm_mean; its interval and p by cluster; naive "
        "p: pairs taken as independent, as in the Dutch paper's Table 7. ρ: Spearman's, on the "
        "means of stereotypes.",
        [
            *("margin", "pairs", comparison.unit, "r"),
            *(f"{confidence(comparison.settings.alpha)} interval", "p", "naive p", "ρ", "p of ρ"),
        ],
        rows,
    )
    words = (
        "Do the more harmful stereotypes, as people rated them, have the larger margins, and did "
        "these move most? Few people rated each, on a scale without a middle."
    )
    return _part("Margin and harm", words, table)


def _erasure(name: str, comparison: Comparison, found: pd.DataFrame) -> dict[str, Any]:
    """The likelihood of the words that differ."""
    named = {
        "identity": "identity words",
        "counterpart": "their counterparts",
        "difference": "difference",
    }
    rows = [
        [
            cells.text(_label(row["scope"], "")),
            cells.text(named[row["term"]]),
            cells.count(row["n_pairs"]),
            cells.count(row["n_clusters"]),
            cells.change(row["before"], 2),
            cells.change(row["after"], 2),
            cells.change(row["delta"], 3),
            cells.level(row["se"], 3),
            cells.span(row["ci_low"], row["ci_high"], 2),
            cells.p_value(row["p"]),
            cells.p_value(row["p_adjusted"]),
        ]
        for row in found.to_dict("records")
    ]
    table = cells.table(
        f"Likelihood of identity words, {name}",
        "Mean log-likelihood, in nats, of the words that differ between a pair's sentences: in "
        "the stereotyped one (identity words) and in the other (their counterparts).",
        [
            *("scope", "words", "pairs", comparison.unit, "before", "after", "Δ", "SE"),
            *(f"{confidence(comparison.settings.alpha)} interval", "p", "p adj."),
        ],
        rows,
    )
    words = (
        "A model can reach 50 by no longer speaking of people at all. If the words for them became "
        "less likely, and their counterparts did not, read the change above as erasure rather "
        "than as less stereotype."
    )
    return _part("Did the words themselves fade?", words, table, f"All {len(rows):,} rows")


def published(name: str, comparison: Comparison) -> Table:
    """The papers' tests, which take pairs for independent."""
    rows = []
    for row in comparison.published.to_dict("records"):
        why = "one pair"
        rows.append(
            [
                cells.text(_label(row["scope"], "")),
                cells.text(row["metric"]),
                Cell(
                    f"{tables.number(row['before'], 2)} ({tables.number(row['before_se'], 2)})",
                    float(row["before"]),
                ),
                Cell(
                    f"{tables.number(row['after'], 2)} ({tables.number(row['after_se'], 2)})",
                    float(row["after"]),
                ),
                Cell(signed(row["delta"], 2) + row["stars"], float(row["delta"])),
                cells.text(row["test"]),
                cells.p_value(row["p"], why),
                cells.text(row["second_test"]),
                cells.p_value(row["second_p"], why),
            ]
        )
    return cells.table(
        f"Published tests, {name}",
        "For comparison with printed tables only: these take every pair for an independent "
        "observation, which makes p too small wherever pairs share a stereotype. Standard errors "
        "in brackets; bias counts a tie as 0. * p<.05, ** p<.01, *** p<.001, unadjusted.",
        ["scope", "metric", "before", "after", "Δ", "test", "p", "second test", "its p"],
        rows,
    )
