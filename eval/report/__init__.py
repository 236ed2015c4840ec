"""The report: tables, a figure, and one HTML file, from comparisons that are already made."""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from eval.errors import RequestError
from eval.inference import Comparison
from eval.inference.completions import Change
from eval.report import figures, html, tables
from eval.scores import Scores


@dataclass
class ReportInput:
    """What a report is made from.

    `comparisons` and `scores` (before, after) go by the benchmark's name; scores may lack some.
    `retention` is what retention.json holds (see eval.gate): by the kind of text ("neutral",
    "corpus") each {"kind": "perplexity" or "pseudo-perplexity", "before", "after",
    "change_percent", "texts", "tokens"}, and further measures; empty where it was not measured.
    `degraded`: the sentence of a run that failed the gate. `notes` are further limits to be told,
    such as what placebo runs showed.
    `curve`: scores during training, a row a step, benchmark and scope (overall, macro, groups),
    with the columns step, epoch, benchmark, scope, n_pairs, bias, margin, valid_loss.
    `sides`: what "before" and "after" are, where that must be said, such as two models' names;
    `findings` go by benchmark and stand in place of the comparison's own two sentences, which
    speak of a change: for two models that never met.
    `personas`: of prompted choice, by benchmark: tables of `eval.inference.personas`, before and
    after as the column `when`.
    `completions`: what judged completions changed, by benchmark; empty where none were made.
    """

    title: str
    command: str
    recipe_yaml: str
    manifest: dict[str, Any]
    comparisons: dict[str, Comparison]
    scores: dict[str, tuple[Scores, Scores]] = field(default_factory=dict)
    retention: dict[str, dict[str, Any]] = field(default_factory=dict)
    degraded: str = ""
    notes: list[str] = field(default_factory=list)
    curve: pd.DataFrame | None = None
    sides: tuple[str, str] | None = None
    findings: dict[str, list[str]] = field(default_factory=dict)
    personas: dict[str, pd.DataFrame] = field(default_factory=dict)
    completions: dict[str, Change] = field(default_factory=dict)


@dataclass
class RunsInput:
    """What the page of many runs is made from.

    `table`: a row a run and benchmark, with the columns run, recipe, seed, placebo, benchmark,
    bias_before, bias_after, bias_delta (overall, %, points), p (of the run's own test), and
    what else is to be shown. `heat`: bias (%), a row a model or run, a column a group, NaN
    where it has no such pairs; may be empty. `claims`: what can be said of methods,
    a sentence each. `front`: settings against each other (eval.report.figures.front); empty or
    None where there is one only. `across`: mean rows over models and languages, shown as they
    are. `notes` are further limits to be told.
    """

    title: str
    command: str
    table: pd.DataFrame
    heat: pd.DataFrame
    claims: list[str] = field(default_factory=list)
    across: pd.DataFrame | None = None
    front: pd.DataFrame | None = None
    notes: list[str] = field(default_factory=list)


def write(report: ReportInput, out: Path) -> dict[str, Path]:
    """Write deltas.csv, .json, .md and .tex, figures/*.png, .svg and .pdf, and report.html.

    Returns each benchmark's figure of levels (PNG).

    Each file is written beside its place and moved in: an interrupted report leaves whole
    files only, and the page, which a reader opens first, comes last.

    Raises:
        RequestError: there is nothing to report on.
    """
    if not report.comparisons:
        raise RequestError(f"report {report.title}: no benchmark was compared")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=out, prefix=".report."))
    try:
        texts = {
            "deltas.csv": tables.as_csv(report.comparisons),
            "deltas.json": tables.as_json(report.comparisons, report.degraded),
            "deltas.md": tables.as_markdown(report.comparisons, report.degraded),
            "deltas.tex": tables.as_latex(report.comparisons, report.degraded),
            "report.html": html.render(report),
        }
        for name, text in texts.items():
            (scratch / name).write_text(text, encoding="utf-8", newline="\n")
        drawn = figures.write(report.comparisons, scratch / "figures")
        pictures = [out / "figures" / path.name for path in drawn if path.suffix == ".png"]
        drawn += figures.write_details(report.comparisons, report.scores, scratch / "figures")
        drawn += figures.write_completions(report.completions, scratch / "figures")
        if report.curve is not None:
            drawn += figures.write_curve(report.curve, scratch / "figures")
        (out / "figures").mkdir(exist_ok=True)
        for path in drawn:
            os.replace(path, out / "figures" / path.name)
        for name in texts:
            os.replace(scratch / name, out / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return dict(zip(report.comparisons, pictures, strict=True))


def write_runs(runs: RunsInput, out: Path) -> Path:
    """Write report.html for many runs, and figures/heat and front as .png, .svg and .pdf; the page.

    Each file is written beside its place and moved in, the page last.

    Raises:
        RequestError: there is no run, or the table lacks a column.
    """
    if runs.table.empty:
        raise RequestError(f"report {runs.title}: no run to set side by side")
    needed = ("run", "recipe", "seed", "placebo", "benchmark", "bias_before", "bias_after")
    missing = [name for name in (*needed, "bias_delta", "p") if name not in runs.table]
    if missing:
        raise RequestError(
            f"report {runs.title}: the table of runs has no column {', '.join(missing)}; "
            f"there are: {', '.join(map(str, runs.table.columns))}"
        )
    out = Path(out)
    page = html.render_runs(runs)
    out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=out, prefix=".report."))
    try:
        (scratch / "report.html").write_text(page, encoding="utf-8", newline="\n")
        if not runs.heat.empty:
            (out / "figures").mkdir(exist_ok=True)
            for path in figures.write_heat(runs.heat, scratch / "figures"):
                os.replace(path, out / "figures" / path.name)
        if runs.front is not None and not runs.front.empty:
            (out / "figures").mkdir(exist_ok=True)
            for path in figures.write_front(runs.front, scratch / "figures"):
                os.replace(path, out / "figures" / path.name)
        os.replace(scratch / "report.html", out / "report.html")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return out / "report.html"
