"""report.html: one file that opens from disk and asks the network for nothing.

Everything stands in the page as text; its one script only sorts, filters and shows values. The
content-security policy lets in that script and the style sheet by their hashes, and nothing else.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from eval import gate
from eval.inference import Comparison, confidence, format_p, plain_verdict, signed
from eval.pairs import GROUP_SEPARATOR
from eval.report import tables
from eval.report.page import asked, cells, chart, completions, evidence, front
from eval.scores import Scores, align

if TYPE_CHECKING:
    from eval.report import ReportInput, RunsInput

#: How many pairs of a benchmark are shown of those whose margin changed most.
MOST_MOVED = 20
#: From here on the report warns that the model lost much of its language.
RETENTION_WARNING = 20.0  # per cent more (pseudo-)perplexity
#: What of a manifest a reader looks for first; all of it stands below.
_MANIFEST_FIRST = ("licence", "hash", "sha256", "fingerprint", "version", "commit", "seed")
_PAGE = Path(__file__).parent / "page"
_UNIT = "bias: stereotyped sentence the likelier one, % of pairs"


def render(report: "ReportInput") -> str:
    """Render the report. Whatever came from data is escaped by the template engine."""
    benchmarks = [
        _benchmark(
            name,
            comparison,
            report.scores.get(name),
            report.findings.get(name) or list(comparison.sentences()),
        )
        for name, comparison in report.comparisons.items()
    ]
    chosen = asked.section(report.comparisons, report.personas)
    parts = [
        ("finding", "The finding"),
        ("groups", "Per group"),
        *([] if chosen is None else [("asked", "Asked to choose")]),
        *([("written", "What it writes")] if report.completions else []),
        ("retention", "Still a language model?"),
        *([] if report.curve is None else [("curve", "While it was trained")]),
        ("sure", "How sure"),
        ("pairs", "Pairs that moved most"),
        ("made", "How it was made"),
        ("limits", "What this does not show"),
    ]
    return _render(
        "report.html.j2",
        title=report.title,
        parts=parts,
        command=report.command,
        recipe_yaml=report.recipe_yaml,
        benchmarks=benchmarks,
        asked=chosen,
        written=[completions.section(*each) for each in report.completions.items()],
        retention=_retention(report.retention) if report.retention else None,
        curve=None if report.curve is None else _curve(report.curve),
        retention_warning=f"{RETENTION_WARNING:g}",
        facts=_facts(report.manifest),
        manifest=json.dumps(report.manifest, indent=1, ensure_ascii=False, default=str),
        notes=report.notes,
        sides=report.sides,
        degraded=report.degraded,
    )


def render_runs(runs: "RunsInput") -> str:
    """Render the page that sets many runs side by side."""
    across = None if runs.across is None or runs.across.empty else runs.across
    fronts = [] if runs.front is None else front.parts(runs.front)
    parts = [
        ("finding", "What can be claimed"),
        ("runs", "The runs side by side"),
        *([("front", "Near 50 against language left")] if fronts else []),
        *([] if runs.heat.empty else [("heat", "Run by group")]),
        *([] if across is None else [("across", "Across models and languages")]),
        ("made", "How it was made"),
        ("limits", "What this does not show"),
    ]
    return _render(
        "runs.html.j2",
        title=runs.title,
        parts=parts,
        command=runs.command,
        claims=runs.claims,
        charts=[
            _runs_chart(str(name), rows)
            for name, rows in runs.table.groupby("benchmark", sort=False)
        ],
        table=_runs_table(runs.table),
        fronts=fronts,
        heat=None if runs.heat.empty else _heat(runs.heat),
        across=None if across is None else _plain_table("Across models and languages", across),
        notes=runs.notes,
    )


def _render(template: str, **given: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((_PAGE / name).read_text("utf-8") for name in ("style.css", "page.js"))
    return environment.get_template(template).render(
        style=Markup(style),  # ours, and no data in it
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        **given,
    )


def _hash(text: str) -> str:
    """A text's hash as a content-security policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _benchmark(
    name: str,
    comparison: Comparison,
    scores: tuple[Scores, Scores] | None,
    finding: list[str],
) -> dict[str, Any]:
    """Everything the template shows of one benchmark, as text and numbers."""
    settings = comparison.settings
    shown = comparison.table["metric"].isin(["bias", "distance", "margin"])
    families = comparison.table[shown & (comparison.table["family"] != "")]
    overall = comparison.rows("bias").iloc[0]
    return {
        "name": name,
        "finding": " ".join(finding),
        "tiles": _tiles(comparison),
        "chart": _chart(name, comparison),
        "table": _bias_table(name, comparison),
        "groups": [
            tables.scope_label(scope) for scope in comparison.rows("bias", "group")["scope"]
        ],
        "unit": comparison.unit,
        "one": comparison.unit.removesuffix("s"),
        "clusters": overall["n_clusters"],
        "pairs": overall["n_pairs"],
        "correction": evidence.correction(settings.correction),
        "families": list(dict.fromkeys(families["family"])),
        "tests": list(dict.fromkeys(families["test"])),
        "settings": settings,
        "level": confidence(comparison.settings.alpha),
        "parts": evidence.parts(name, comparison),
        "published": evidence.published(name, comparison),
        "notes": comparison.notes,
        "moved": _most_moved(name, *scores) if scores else None,
    }


def _tiles(comparison: Comparison) -> list[dict[str, str]]:
    """What, before, after, and more: the numbers that an overall score hides."""
    found = comparison.headline
    macro = found["scope"] == "macro"
    tiles = [
        {
            "what": f"{'mean over groups of ' if macro else ''}|bias − 50|, points",
            "before": tables.number(found["before"]),
            "after": tables.number(found["after"]),
            "more": _tested(found, 1),
        }
    ]
    groups = comparison.rows("bias", "group").set_index("scope")[["before", "after"]].dropna()
    if len(groups) > 1:
        spread = groups.max() - groups.min()
        ends = {
            when: f"{tables.scope_label(str(groups[when].idxmax()))} to "
            f"{tables.scope_label(str(groups[when].idxmin()))}"
            if spread[when]
            else "all alike"
            for when in ("before", "after")
        }
        tiles.append(
            {
                "what": "spread of bias, most to least affected group, points",
                "before": tables.number(spread["before"]),
                "after": tables.number(spread["after"]),
                "more": f"change {signed(spread['after'] - spread['before'])}; before: "
                f"{ends['before']}; after: {ends['after']}",
            }
        )
    margin: Mapping[Any, Any] = comparison.rows("margin").to_dict("records")[0]
    tiles.append(
        {
            "what": "mean margin between the two sentences, nats (0: none)",
            "before": signed(margin["before"], 2),
            "after": signed(margin["after"], 2),
            "more": _tested(margin, 3),
        }
    )
    return tiles


def _tested(found: Mapping[Any, Any], digits: int) -> str:
    """A change with its test and verdict, as far as there are any."""
    if np.isnan(found["delta"]):
        return str(found["verdict"])
    tested = not np.isnan(found["p_adjusted"])
    p = f", {format_p(found['p_adjusted'])} (adjusted)" if tested else ""
    return f"change {signed(found['delta'], digits)}{p}: {found['verdict']}"


def _chart(name: str, comparison: Comparison) -> dict[str, Any]:
    """Before and after, a row a scope: whole first, then groups by their bias before."""
    rows = comparison.rows("bias")
    whole = rows["scope"].isin(["overall", "macro"])
    groups = rows["scope"].str.startswith("group:")
    parts = [
        rows[whole],
        rows[groups].sort_values("before", ascending=False, kind="stable"),
        rows[~whole & ~groups],
    ]
    ends = ("before", "after", "before_low", "before_high", "after_low", "after_high")
    axis = chart.Axis.over(rows[list(ends)].to_numpy(float).ravel(), around=50, least=20)
    shown = [
        {
            "label": tables.scope_label(row["scope"]),
            "svg": chart.track(
                axis,
                row["before"],
                row["after"],
                before_ends=(row["before_low"], row["before_high"]),
                after_ends=(row["after_low"], row["after_high"]),
                shown=plain_verdict(row["verdict"]) not in ("not shown", "unchanged"),
                said=_said(row, comparison.unit),
                missing=tables.reason(row),
            ),
            "value": f"{tables.number(row['before'])} → {tables.number(row['after'])}",
            "change": signed(row["delta"]),
            "gap": number == 0 and at > 0,
        }
        for at, part in enumerate(parts)
        for number, row in enumerate(part.to_dict("records"))
    ]
    return {
        "caption": "Bias before and after, and the change, by group. Hover over a row, or reach "
        "the chart with Tab and its rows with the arrow keys, for intervals and tests.",
        "rows": shown,
        "ruler": chart.ruler(axis),
        "ends": f", with its {confidence(comparison.settings.alpha)} interval",
        "firm": "change shown",
        "dotted": "change not shown",
        "unit": _UNIT,
    }


def _said(row: Mapping[Any, Any], unit: str) -> str:
    """A row of the Delta table in words."""
    why = tables.reason(row)
    lines = [tables.scope_label(str(row["scope"]))]
    for when in ("before", "after"):
        ends = cells.levels(row[f"{when}_low"], row[f"{when}_high"], why=why)
        lines.append(f"{when} {tables.because(tables.number(row[when]), why)} ({ends})")
    p = tables.because(tables.p_cell(row["p_adjusted"]), why)
    within = tables.because(tables.interval(row["ci_low"], row["ci_high"]), why)
    lines.append(f"change {tables.because(signed(row['delta']), why)} ({within}), adjusted p {p}")
    lines.append(str(row["verdict"]))
    many = f"{row['n_pairs']:,} pairs"
    lines.append(many if unit == "pairs" else f"{many}, {row['n_clusters']:,} {unit}")
    return "\n".join(lines)


def _bias_table(name: str, comparison: Comparison) -> cells.Table:
    """Bias by scope, with the changes of distance, soft score and margin beside."""
    by_pair = comparison.unit == "pairs"
    level = confidence(comparison.settings.alpha)
    head = ["scope", "before", "after", "Δ", f"{level} interval", "p", "p adj."]
    head += ["verdict", "Δ |b−50|", "Δ soft", "Δ margin", "pairs"]
    head += [] if by_pair else [comparison.unit]
    other = {
        metric: comparison.rows(metric).set_index("scope")["delta"]
        for metric in ("distance", "soft", "margin")
    }
    found = comparison.rows("bias")
    rows = []
    for row in found.to_dict("records"):
        scope, why = row["scope"], tables.reason(row)
        rows.append(
            [
                cells.text(tables.scope_label(scope)),
                cells.level(row["before"], why=why),
                cells.level(row["after"], why=why),
                cells.change(row["delta"], why=why),
                cells.span(row["ci_low"], row["ci_high"], why=why),
                cells.p_value(row["p"], why),
                cells.p_value(row["p_adjusted"], why),
                cells.verdict(row["verdict"]),
                cells.change(other["distance"][scope], why=why),
                cells.change(other["soft"][scope], 2),
                cells.change(other["margin"][scope], 3),
                cells.count(row["n_pairs"]),
                *([] if by_pair else [cells.count(row["n_clusters"])]),
            ]
        )
    return cells.table(
        f"Bias by group, {name}",
        tables.caption(comparison),
        head,
        rows,
        whole=int(found["scope"].isin(["overall", "macro"]).sum()),
    )


def _curve(curve: pd.DataFrame) -> dict[str, Any]:
    """The scores during training, a benchmark at a time: plots, in words, and a table."""
    parts = [(str(name), rows) for name, rows in curve.groupby("benchmark", sort=False)]
    said = []
    for name, rows in parts:
        overall = rows[rows["scope"] == "overall"].sort_values("step")
        ends = overall.iloc[[0, -1]].to_dict("records")
        levels = " to ".join(
            f"{tables.number(row['bias'])} at update {row['step']:,}" for row in ends
        )
        said.append(f"{name}, overall bias {levels}, lowest {tables.number(overall['bias'].min())}")
    return {
        "alt": "Bias in percent of pairs, and margin in nats, at each checkpoint of training: "
        f"{'; '.join(said)}. The numbers stand in the table below.",
        "tables": [_curve_table(name, rows) for name, rows in parts],
    }


def _curve_table(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """A row a step: validation loss, overall margin, and the bias of every scope; and plots."""
    scopes = [str(scope) for scope in rows["scope"].unique()]
    bias = rows.pivot(index="step", columns="scope", values="bias")[scopes]
    margin = rows.pivot(index="step", columns="scope", values="margin")[scopes]
    overall = rows[rows["scope"] == "overall"].sort_values("step").to_dict("records")
    pairs = f"{overall[-1]['n_pairs']:,}"
    table = cells.table(
        f"Scores during training, {name}",
        f"{pairs} pairs, each group in proportion. Margin: mean over all of them, in nats. Then "
        "bias, in percent of pairs. curve.csv has every digit.",
        ["update", "epoch", "valid. loss", "margin", *map(tables.scope_label, scopes)],
        [
            [
                cells.count(row["step"]),
                cells.level(row["epoch"], 2),
                cells.level(row["valid_loss"], 3, "not evaluated"),
                cells.change(row["margin"], 3),
                *[cells.level(value, why="only ties") for value in bias.loc[row["step"]]],
            ]
            for row in overall
        ],
    )
    loss = pd.DataFrame({"overall": [row["valid_loss"] for row in overall]}, index=bias.index)
    looks = {
        scope: "strong" if scope == "overall" else chart.look(number)
        for number, scope in enumerate(scope for scope in scopes if scope != "macro")
    }
    panels = [
        _panel(f"{name}: bias during training", "bias, % of pairs", bias, looks, 1, 50, 5),
        _panel(f"{name}: margin during training", "margin, nats", margin, looks, 3, 0, 0),
    ]
    if loss["overall"].notna().any():
        strong = {"overall": "strong"}
        panels.append(
            _panel(f"{name}: loss during training", "validation loss", loss, strong, 3, None, 0)
        )
    return {
        **table,
        "name": name,
        "pairs": pairs,
        "plots": panels,
        "legend": [
            (chart.key(classes, mark=True), tables.scope_label(scope))
            for scope, classes in looks.items()
        ],
        "plots_caption": f"{pairs} pairs of {name} at each checkpoint. Hover, or use Tab "
        "and the arrow keys, for the numbers.",
    }


def _panel(
    label: str,
    title: str,
    values: pd.DataFrame,
    looks: Mapping[str, str],
    digits: int,
    neutral: float | None,
    least: float,
) -> dict[str, Any]:
    """One measure over the updates done, a line a scope."""
    said = [
        "\n".join(
            [
                f"update {step:,}, {title}",
                *[
                    f"{tables.scope_label(scope)} {cells.level(values.loc[step, scope], digits)}"
                    for scope in looks
                ],
            ]
        )
        for step in values.index
    ]
    lines = [
        chart.Line(scope, values[scope].to_list(), classes)
        for scope, classes in reversed(list(looks.items()))  # the strong one lies on top
    ]
    return {
        "title": title,
        "unit": "updates",
        "svg": chart.plot(label, values.index.to_list(), lines, said, neutral=neutral, least=least),
    }


def _most_moved(name: str, before: Scores, after: Scores) -> cells.Table:
    """The pairs whose margin changed most, largest change first."""
    before, after = align(before, after)
    found = before.table
    change = after.margin - before.margin
    most = np.argsort(-np.abs(change), kind="stable")[:MOST_MOVED]
    rows = [
        [
            cells.text(str(found["group"].iloc[row]).replace(GROUP_SEPARATOR, ", ") or tables.DASH),
            cells.change(before.margin[row], 2),
            cells.change(after.margin[row], 2),
            cells.change(change[row], 2),
            cells.text(found["sent_more"].iloc[row], "wrap"),
            cells.text(found["sent_less"].iloc[row], "wrap"),
        ]
        for row in most
    ]
    return cells.table(
        f"Pairs that moved most, {name}",
        "Margin: log-likelihood of the stereotyped sentence minus that of the other, in nats.",
        ["group", "before", "after", "Δ", "stereotyped sentence", "the other"],
        rows,
    )


def _retention(retention: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The retention table, and which texts are predicted much worse."""
    why = "not measured"
    texts = gate.texts(retention)
    rows = [
        [
            cells.text(text),
            cells.text(found["kind"]),
            cells.level(found["before"], 2, why),
            cells.level(found["after"], 2, why),
            cells.change(float(found["change_percent"]), why=why),
            _ends(found),
            cells.count(found["texts"]),
            cells.count(found["tokens"]),
        ]
        for text, found in texts.items()
    ]
    moved = retention.get("divergence", {})
    return {
        "tiles": [
            {
                "what": f"{found['kind']}, {text} text (lower is better)",
                "before": tables.number(found["before"], 2),
                "after": tables.number(found["after"], 2),
                "more": f"change {signed(float(found['change_percent']))} %",
            }
            for text, found in texts.items()
        ],
        "table": cells.table(
            "Retention",
            "(Pseudo-)perplexity on held-out text; lower is better. Change in percent, with its "
            "paired bootstrap interval over texts.",
            ["text", "measure", "before", "after", "change, %", "interval", "texts", "tokens"],
            rows,
        ),
        "worse": [
            text
            for text, found in texts.items()
            if float(found["change_percent"]) >= RETENTION_WARNING
        ],
        "grammar": [
            _grammar(gate.LANGUAGES.get(language, language), found)
            for language, found in retention.get("grammar", {}).items()
        ],
        "moved": f"Predictions at {moved['places']} places of neutral text have moved by "
        f"{moved['nats']:.4f} nats: the mean Kullback-Leibler divergence from the model before. "
        "0 would be no change at all; there is no level that is good or bad in itself."
        if moved
        else "",
        "further": _further(retention),
    }


def _ends(found: Mapping[str, Any]) -> cells.Cell:
    """A change's interval, or why there is none."""
    low, high = (float(found.get(end, np.nan)) for end in ("ci_low", "ci_high"))
    return cells.span(low, high, why="not measured")


def _grammar(language: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The grammatical minimal pairs of a language: all of them, then by phenomenon."""
    rows = [("all", found), *found["phenomena"].items()]
    return {
        "title": f"Grammatical minimal pairs, {language}",
        "table": cells.table(
            f"Grammatical minimal pairs, {language}",
            "Percent of pairs of which the right sentence is the likelier one, and the change in "
            "points, with its paired bootstrap interval over frames. The pairs name no identity.",
            ["phenomenon", "before", "after", "change", "interval", "pairs", "frames"],
            [
                [
                    cells.text(name),
                    cells.level(row["before"]),
                    cells.level(row["after"]),
                    cells.change(row["change"]),
                    _ends(row),
                    cells.count(row["pairs"]),
                    cells.count(row["clusters"]),
                ]
                for name, row in rows
            ],
            whole=1,
        ),
    }


def _further(retention: Mapping[str, Mapping[str, Any]]) -> cells.Table | None:
    """Untargeted benchmarks and tasks of lm-eval, each in its own unit."""
    rows = [
        (f"{name}, not aimed at", "points from 50", found, 1)
        for name, found in retention.get("untargeted", {}).items()
    ]
    rows += [
        (f"lm-eval {name}", found["metric"], found, 4)
        for name, found in retention.get("tasks", {}).items()
    ]
    if not rows:
        return None
    return cells.table(
        "What else is left",
        "Benchmarks that the mitigation does not aim at, and tasks of lm-evaluation-harness.",
        ["what", "measure", "before", "after", "change", "interval"],
        [
            [
                cells.text(name),
                cells.text(measure),
                cells.level(found["before"], digits),
                cells.level(found["after"], digits),
                cells.change(found["change"], digits),
                _ends(found),
            ]
            for name, measure, found, digits in rows
        ],
    )


def _facts(manifest: Mapping[str, Any]) -> cells.Table | None:
    """The manifest's versions, hashes, licences and seeds, each by its path."""

    def walk(value: Any, path: str, wanted: bool) -> list[tuple[str, str]]:
        if isinstance(value, Mapping):
            found = []
            for key, item in value.items():
                here = wanted or any(word in str(key).lower() for word in _MANIFEST_FIRST)
                found += walk(item, f"{path}.{key}" if path else str(key), here)
            return found
        if not wanted or isinstance(value, list | tuple) or value in (None, ""):
            return []
        return [(path, str(value))]

    found = walk(manifest, "", False)
    if not found:
        return None
    return cells.table(
        "Versions, hashes, licences",
        "Versions, hashes, licences, seeds. The whole manifest stands below.",
        ["what", "value"],
        [[cells.text(path), cells.text(value, "wrap")] for path, value in found],
    )


#: The columns of a table of runs, in the order shown: head, and how a value stands. Others
#: follow, as they are.
_RUNS: dict[str, tuple[str, Callable[[Any], cells.Cell]]] = {
    "run": ("run", cells.text),
    "benchmark": ("benchmark", cells.text),
    "bias_before": ("bias before", cells.level),
    "bias_after": ("after", cells.level),
    "bias_delta": ("Δ", cells.change),
    "p": ("p", cells.p_value),
    "distance_before": ("distance before", cells.level),
    "distance_after": ("after", cells.level),
    "distance_verdict": ("verdict", cells.verdict),
    "margin_delta": ("Δ margin, nats", lambda value: cells.change(value, 3)),
    "perplexity_change_percent": (
        "Δ perplexity, %",
        lambda value: cells.change(value, why="not measured"),
    ),
    "grammar_change": (
        "Δ grammar, points",
        lambda value: cells.change(value, why="not measured"),
    ),
    "degraded": ("degraded", lambda value: cells.text("degraded" if value else "no")),
    "recipe": ("recipe", cells.text),
    "seed": ("seed", lambda value: cells.Cell(f"{value}", float(value))),
    "placebo": ("placebo", lambda value: cells.text("placebo" if value else "no")),
    "model": ("model", cells.text),
    "distance_delta": ("Δ distance", cells.change),
    "soft_delta": ("Δ soft", lambda value: cells.change(value, 2)),
    "bias_se": ("SE of Δ bias", lambda value: cells.level(value, 2)),
    "margin_se": ("SE of Δ margin", lambda value: cells.level(value, 3)),
    "n_pairs": ("pairs", cells.count),
    "n_clusters": ("clusters", cells.count),
}


def _runs_table(table: pd.DataFrame) -> cells.Table:
    """A row a run and benchmark."""
    table = table[
        [*(c for c in _RUNS if c in table), *(c for c in table.columns if c not in _RUNS)]
    ]
    rows = [
        [
            _RUNS[column][1](value) if column in _RUNS else _plain_cell(value)
            for column, value in row.items()
        ]
        for row in table.to_dict("records")
    ]
    return cells.table(
        "Runs side by side",
        "Bias: overall, percent of pairs; p: of the run's own test, over stereotypes, not adjusted "
        "for the number of runs. Distance: mean over groups of |bias − 50|, points; the verdict "
        "is on it. Perplexity: change on held-out text, in percent. Grammar: change of minimal "
        "pairs right. Degraded: failed the gate of retention that its recipe sets.",
        [
            _RUNS[column][0] if column in _RUNS else str(column).replace("_", " ")
            for column in table.columns
        ],
        rows,
    )


def _plain_table(label: str, table: pd.DataFrame) -> cells.Table:
    """A data frame as it is: words as words, numbers to three decimals."""
    return cells.table(
        label,
        "Percentage points, for margin nats. A mean row takes each model, or each language, once.",
        [str(column).replace("_", " ") for column in table.columns],
        [[_plain_cell(value) for value in row.values()] for row in table.to_dict("records")],
    )


def _plain_cell(value: Any) -> cells.Cell:
    if isinstance(value, bool | np.bool_):
        return cells.text("yes" if value else "no")
    if isinstance(value, int | np.integer):
        return cells.count(value)
    if isinstance(value, float | np.floating):
        return cells.level(float(value), 3)
    return cells.text(value)


def _runs_chart(name: str, table: pd.DataFrame) -> dict[str, Any]:
    """Overall bias before and after, a row a run; placebo runs below the others."""
    levels = table[["bias_before", "bias_after"]].to_numpy(float).ravel()
    axis = chart.Axis.over(levels, around=50, least=20)
    none = (float("nan"), float("nan"))
    rows = []
    ordered: Sequence[Mapping[Any, Any]] = table.sort_values(
        "placebo", kind="stable", key=lambda column: column.astype(bool)
    ).to_dict("records")
    for number, row in enumerate(ordered):
        label = f"{row['run']}{' (placebo)' if row['placebo'] else ''}"
        value = f"{tables.number(row['bias_before'])} → {tables.number(row['bias_after'])}"
        p = tables.because(tables.p_cell(row["p"]), "no test")
        rows.append(
            {
                "label": label,
                "svg": chart.track(
                    axis,
                    row["bias_before"],
                    row["bias_after"],
                    before_ends=none,
                    after_ends=none,
                    shown=bool(row["p"] < 0.05),
                    said=f"{label}, recipe {row['recipe']}, seed {row['seed']}\noverall bias "
                    f"{value}, change {signed(row['bias_delta'])}, p {p}",
                    missing="only ties",
                ),
                "value": value,
                "change": signed(row["bias_delta"]),
                "gap": bool(row["placebo"]) and number > 0 and not ordered[number - 1]["placebo"],
            }
        )
    return {
        "name": name,
        "caption": "Overall bias before and after, by run. A run's own test speaks of its model "
        "only. Hover over a row, or reach the chart with Tab and its rows with the arrow keys.",
        "rows": rows,
        "ruler": chart.ruler(axis),
        "ends": "",
        "firm": "p < 0.05 in its own test",
        "dotted": "not so",
        "unit": _UNIT,
    }


def _heat(heat: pd.DataFrame) -> dict[str, Any]:
    """Bias by run and group; the number stands in each cell, its shade says how far from 50."""
    return {
        "label": "Heat map, bias by run and group",
        "caption": "Bias in percent of pairs; blue below 50, orange above, a step stronger every "
        "12.5 points. A dash: the run has no such group.",
        "head": [tables.scope_label(str(column)) for column in heat.columns],
        "rows": [
            {
                "name": str(name),
                "cells": [
                    cells.Cell(tables.number(float(value)), float(value), chart.shade(float(value)))
                    for value in values
                ],
            }
            for name, values in zip(heat.index, heat.to_numpy(float), strict=True)
        ],
    }
