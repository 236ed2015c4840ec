"""report.html: one file that opens from disk, asks the network for nothing, and runs no script."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from eval.inference import PUBLISHED_TEST, Comparison, plain_verdict, signed
from eval.report import tables
from eval.scores import Scores

if TYPE_CHECKING:
    from eval.report import ReportInput

#: How many pairs are shown of those whose margin changed most.
MOST_MOVED = 12
#: From here on the report warns that the model lost much of its language.
RETENTION_WARNING = 20.0  # per cent more (pseudo-)perplexity
#: What of a manifest a reader looks for first; all of it stands below.
_MANIFEST_FIRST = ("licence", "hash", "sha256", "fingerprint", "version", "commit", "seed")
_PLOT = {"before": -6, "after": 6}  # pixels from a row's middle


def render(report: "ReportInput") -> str:
    """Render the report. Whatever came from data is escaped by the template engine."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    benchmarks = [
        _benchmark(name, comparison, report.scores.get(name))
        for name, comparison in report.comparisons.items()
    ]
    return environment.get_template("template.html").render(
        title=report.title,
        command=report.command,
        recipe_yaml=report.recipe_yaml,
        benchmarks=benchmarks,
        retention=_retention(report.retention),
        facts=_facts(report.manifest),
        manifest=json.dumps(report.manifest, indent=1, ensure_ascii=False, default=str),
        notes=report.notes,
        published_name=PUBLISHED_TEST,
    )


def _benchmark(
    name: str, comparison: Comparison, scores: tuple[Scores, Scores] | None
) -> dict[str, Any]:
    """Everything the template shows of one benchmark, as text and numbers."""
    head, rows = tables.bias_rows(comparison)
    settings = comparison.settings
    shown = comparison.table["metric"].isin(["bias", "distance", "margin"])
    families = comparison.table[shown & (comparison.table["family"] != "")]
    return {
        "name": name,
        "sentences": comparison.sentences(),
        "headline": _headline(comparison),
        "head": head,
        "rows": rows,
        "caption": tables.caption(comparison),
        "plot": _plot(comparison),
        "unit": comparison.unit,
        "one": comparison.unit.removesuffix("s"),
        "clusters": comparison.rows("bias")["n_clusters"].iloc[0],
        "pairs": comparison.rows("bias")["n_pairs"].iloc[0],
        "families": list(dict.fromkeys(families["family"])),
        "tests": list(dict.fromkeys(families["test"])),
        "settings": settings,
        "level": f"{100 * (1 - settings.alpha):g} %",
        "published": [
            [
                tables.scope_label(row["scope"]).replace(" (W)", ""),
                row["metric"],
                f"{tables.number(row['before'], 2)} ({tables.number(row['before_se'], 2)})",
                f"{tables.number(row['after'], 2)} ({tables.number(row['after_se'], 2)})",
                signed(row["delta"], 2) + row["stars"],
                row["test"],
                tables.p_cell(row["p"]),
            ]
            for row in comparison.published.to_dict("records")
        ],
        "notes": comparison.notes,
        "moved": _most_moved(*scores) if scores else [],
    }


def _headline(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """What, before, after, change: the numbers that an overall score hides."""
    found = comparison.headline
    rows = [
        (
            found["what"],
            tables.number(found["before"]),
            tables.number(found["after"]),
            signed(found["delta"]),
        )
    ]
    if "spread_before" in found and "spread_after" in found and found["n_groups"] > 1:
        spread = [found["spread_before"], found["spread_after"]]
        ends = [f"{found[f'most_{when}']} to {found[f'least_{when}']}" for when in _PLOT]
        rows.append(
            (
                "spread: most to least affected group",
                f"{spread[0]:.1f} ({ends[0]})",
                f"{spread[1]:.1f} ({ends[1]})",
                signed(spread[1] - spread[0]),
            )
        )
    return rows


def _plot(comparison: Comparison) -> dict[str, Any]:
    """Where the inline figure's marks lie: x in per cent of its width, y in pixels.

    No view box: text keeps its size on a phone. A label stands above its row, so that long
    names need no margin.
    """
    height, top = 46, 34
    rows = []
    for number, row in enumerate(comparison.rows("bias").to_dict("records")):
        middle = top + number * height + 26
        label = tables.scope_label(row["scope"])
        marks = []
        for when, lift in _PLOT.items():
            if np.isnan(row[when]):
                continue
            low, high = row[f"{when}_low"], row[f"{when}_high"]
            said = f"{label}, {when}: {row[when]:.1f}"
            ends = None
            if not np.isnan(low):
                ends = (_x(low), _x(high))
                said += f", {100 * (1 - comparison.settings.alpha):g} % interval"
                said += f" {low:.1f} to {high:.1f}"
            marks.append(
                {
                    "when": when,
                    "x": _x(row[when]),
                    "y": middle + lift,
                    "ends": ends,
                    "said": said,
                }
            )
        rows.append(
            {
                "label": label,
                "label_y": middle - 14,
                "marks": marks,
                "shown": plain_verdict(row["verdict"]) != "not shown",
                "verdict": row["verdict"],
            }
        )
    return {
        "rows": rows,
        "height": top + len(rows) * height + 10,
        "ticks": [(value, _x(value)) for value in (0, 25, 50, 75, 100)],
        "middle": _x(50),
    }


def _x(value: float) -> float:
    """Where a percentage lies in the figure: 3 % of room at both ends for the marks."""
    return round(3 + 0.94 * value, 3)


def _most_moved(before: Scores, after: Scores) -> list[dict[str, str]]:
    """The pairs whose margin changed most, largest change first."""
    table = before.table
    margins = {"before": before.margin}
    order = dict(zip(after.table["pair_id"], after.margin, strict=True))
    margins["after"] = np.asarray([order[name] for name in table["pair_id"]])
    change = margins["after"] - margins["before"]
    most = np.argsort(-np.abs(change), kind="stable")[:MOST_MOVED]
    return [
        {
            "group": str(table["group"].iloc[row]).replace("|", ", ") or "–",
            "before": signed(margins["before"][row], 2),
            "after": signed(margins["after"][row], 2),
            "change": signed(change[row], 2),
            "more": str(table["sent_more"].iloc[row]),
            "less": str(table["sent_less"].iloc[row]),
        }
        for row in most
    ]


def _retention(retention: Mapping[str, Any]) -> dict[str, Any] | None:
    """The sentence on retention, or None where it was not measured."""
    if not retention:
        return None
    before, after = retention["before"], retention["after"]
    change = float(retention["change_percent"])
    kind = str(before["kind"])
    return {
        "kind": kind[:1].upper() + kind[1:],
        "before": f"{before['perplexity']:.2f}",
        "after": f"{after['perplexity']:.2f}",
        "tokens": f"{before['tokens']:,}",
        "change": signed(change),
        "worse": change >= RETENTION_WARNING,
        "limit": f"{RETENTION_WARNING:g}",
    }


def _facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
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

    return walk(manifest, "", False)
