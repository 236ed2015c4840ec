"""report.html: one file that opens from disk, asks the network for nothing, and runs no script."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import pandas as pd

from eval.inference import Comparison, signed
from eval.pairs import GROUP_SEPARATOR
from eval.report import figures, tables
from eval.scores import Scores, align

if TYPE_CHECKING:
    from eval.report import ReportInput

#: How many pairs of a benchmark are shown of those whose margin changed most.
MOST_MOVED = 20
#: From here on the report warns that the model lost much of its language.
RETENTION_WARNING = 20.0  # per cent more (pseudo-)perplexity
#: What of a manifest a reader looks for first; all of it stands below.
_MANIFEST_FIRST = ("licence", "hash", "sha256", "fingerprint", "version", "commit", "seed")


def render(report: "ReportInput") -> str:
    """Render the report. Whatever came from data is escaped by the template engine."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    benchmarks = [
        _benchmark(name, comparison, report.scores.get(name))
        for name, comparison in report.comparisons.items()
    ]
    return environment.get_template("report.html.j2").render(
        title=report.title,
        command=report.command,
        recipe_yaml=report.recipe_yaml,
        benchmarks=benchmarks,
        retention=[_retention(text, found) for text, found in report.retention.items()],
        curve=None if report.curve is None else _curve(report.curve),
        retention_warning=f"{RETENTION_WARNING:g}",
        facts=_facts(report.manifest),
        manifest=json.dumps(report.manifest, indent=1, ensure_ascii=False, default=str),
        notes=report.notes,
    )


def _benchmark(
    name: str, comparison: Comparison, scores: tuple[Scores, Scores] | None
) -> dict[str, Any]:
    """Everything the template shows of one benchmark, as text and numbers."""
    head, rows = tables.bias_rows(comparison)
    settings = comparison.settings
    shown = comparison.table["metric"].isin(["bias", "distance", "margin"])
    families = comparison.table[shown & (comparison.table["family"] != "")]
    overall = comparison.rows("bias").iloc[0]
    return {
        "name": name,
        "sentences": comparison.sentences(),
        "headline": _headline(comparison),
        "head": head,
        "rows": rows,
        "caption": tables.caption(comparison),
        "figure": base64.b64encode(figures.as_svg(comparison)).decode(),
        "alt": _alt(comparison),
        "groups": [
            tables.scope_label(scope) for scope in comparison.rows("bias", "group")["scope"]
        ],
        "unit": comparison.unit,
        "one": comparison.unit.removesuffix("s"),
        "clusters": overall["n_clusters"],
        "pairs": overall["n_pairs"],
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
                tables.because(tables.p_cell(row["p"]), "one pair"),
            ]
            for row in comparison.published.to_dict("records")
        ],
        "notes": comparison.notes,
        "moved": _most_moved(*scores) if scores else [],
    }


def _alt(comparison: Comparison) -> str:
    """What the figure shows, in words."""
    said = [
        f"{tables.scope_label(row['scope'])} {tables.number(row['before'])} to "
        f"{tables.number(row['after'])}"
        for row in comparison.rows("bias").to_dict("records")
        if row["scope"].startswith("group:") or row["scope"] in ("overall", "macro")
    ]
    return (
        f"Bias on {comparison.benchmark} before and after, in percent of pairs, with a line at "
        f"50: {'; '.join(said)}. The intervals stand in the table below."
    )


def _curve(curve: pd.DataFrame) -> dict[str, Any]:
    """The scores during training: the figure, it in words, and a table a benchmark."""
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
        "figure": base64.b64encode(figures.curve_as_svg(curve)).decode(),
        "alt": "Bias in percent of pairs, and margin in nats, at each checkpoint of training: "
        f"{'; '.join(said)}. The numbers stand in the table below.",
        "tables": [_curve_table(name, rows) for name, rows in parts],
    }


def _curve_table(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """A row a step: validation loss, overall margin, and the bias of every scope."""
    scopes = [str(scope) for scope in rows["scope"].unique()]
    bias = rows.pivot(index="step", columns="scope", values="bias")[scopes]
    overall = rows[rows["scope"] == "overall"].sort_values("step").to_dict("records")
    return {
        "name": name,
        "pairs": f"{overall[-1]['n_pairs']:,}",
        "head": ["update", "epoch", "valid. loss", "margin", *map(tables.scope_label, scopes)],
        "rows": [
            [
                f"{row['step']:,}",
                tables.number(row["epoch"], 2),
                tables.because(tables.number(row["valid_loss"], 3), "not evaluated"),
                signed(row["margin"], 3),
                *[tables.because(tables.number(v), "only ties") for v in bias.loc[row["step"]]],
            ]
            for row in overall
        ],
    }


def _headline(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """What, before, after, change: the numbers that an overall score hides."""
    distance = comparison.rows("distance")
    macro = distance[distance["scope"] == "macro"]
    found = (distance if macro.empty else macro).to_dict("records")[0]
    rows = [
        (
            "|bias − 50|" if macro.empty else "mean over groups of |bias − 50|",
            tables.number(found["before"]),
            tables.number(found["after"]),
            signed(found["delta"]),
        )
    ]
    groups = comparison.rows("bias", "group").set_index("scope")[["before", "after"]].dropna()
    if len(groups) > 1:
        spread = groups.max() - groups.min()
        ends = {
            when: f"{tables.scope_label(str(groups[when].idxmax()))} to "
            f"{tables.scope_label(str(groups[when].idxmin()))}"
            for when in groups
        }
        rows.append(
            (
                "spread: most to least affected group",
                f"{spread['before']:.1f} ({ends['before']})",
                f"{spread['after']:.1f} ({ends['after']})",
                signed(spread["after"] - spread["before"]),
            )
        )
    return rows


def _most_moved(before: Scores, after: Scores) -> list[dict[str, str]]:
    """The pairs whose margin changed most, largest change first."""
    before, after = align(before, after)
    table = before.table
    change = after.margin - before.margin
    most = np.argsort(-np.abs(change), kind="stable")[:MOST_MOVED]
    return [
        {
            "group": str(table["group"].iloc[row]).replace(GROUP_SEPARATOR, ", ") or tables.DASH,
            "before": signed(before.margin[row], 2),
            "after": signed(after.margin[row], 2),
            "change": signed(change[row], 2),
            "more": str(table["sent_more"].iloc[row]),
            "less": str(table["sent_less"].iloc[row]),
        }
        for row in most
    ]


def _retention(text: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the retention table."""
    change = float(found["change_percent"])
    return {
        "cells": [
            text,
            found["kind"],
            tables.because(tables.number(found["before"], 2), "not measured"),
            tables.because(tables.number(found["after"], 2), "not measured"),
            tables.because(signed(change), "not measured"),
            f"{found['texts']:,}",
            f"{found['tokens']:,}",
        ],
        "text": text,
        "worse": change >= RETENTION_WARNING,
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
