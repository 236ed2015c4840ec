"""Reports on runs that are done: one again, or many side by side."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from eval import scores
from eval.errors import RequestError
from eval.inference import Comparison, compare
from eval.report import ReportInput
from eval.report import write as write_report
from eval.scores import Scores
from mitigate import curve, settings
from mitigate.console import messages, say
from mitigate.run import write_text
from mitigate.settings import Recipe

PLACEBO = (
    "This is a placebo run: its corpus has the same tilt as the model's own text. A cluster test "
    "speaks of this one model; a run's own noise is shared by all clusters, so it may reject "
    "without any effect of the text. Compare the spread of several placebo runs: "
    "python -m tests.performance.placebo."
)
ONE_RUN = (
    "One run speaks of one model. A claim about a method needs several seeds and placebo runs "
    "(recipe=demo_control shows one)."
)
CONTAMINATED = "The corpus holds sentences of the benchmark (allow_contaminated=true)."


@dataclass(frozen=True)
class Finished:
    """A run's folder, read back: what its report is made from."""

    folder: Path
    recipe: Recipe
    manifest: dict[str, Any]
    tables: dict[str, tuple[Scores, Scores]]  # by benchmark: before, after
    retention: dict[str, dict[str, Any]]
    curve: pd.DataFrame | None  # what curve.csv holds, if the run has one

    def comparisons(self) -> dict[str, Comparison]:
        return {
            name: compare(*pair, self.recipe.inference, name=name)
            for name, pair in self.tables.items()
        }


def read_run(folder: Path) -> Finished:
    """Read a run's folder.

    Raises:
        RequestError: it is not a run's folder, or the run has not come to its second score.
    """
    missing = [name for name in ("recipe.yaml", "manifest.json") if not (folder / name).is_file()]
    if missing:
        raise RequestError(f"{folder}: no {' and no '.join(missing)}, so not a run's folder")
    recipe = settings.from_yaml((folder / "recipe.yaml").read_text("utf-8"))
    names = list(recipe.benchmark)
    tables = {}
    for name in names:
        pair = [folder / score_file(when, name, len(names)) for when in ("before", "after")]
        absent = [path.name for path in pair if not path.is_file()]
        if absent:
            raise RequestError(
                f"{folder}: no {', '.join(absent)} yet; the run goes on with the same command and "
                f"run.dir={folder}"
            )
        tables[name] = (scores.read(pair[0]), scores.read(pair[1]))
    retention = folder / "retention.json"
    return Finished(
        folder,
        recipe,
        json.loads((folder / "manifest.json").read_text("utf-8")),
        tables,
        json.loads(retention.read_text("utf-8")) if retention.is_file() else {},
        curve.read(path) if (path := folder / curve.FILE).is_file() else None,
    )


def score_file(when: str, benchmark: str, benchmarks: int) -> str:
    """The name of a Score table in a run's folder; a single one keeps the plain name."""
    return f"{when}-{benchmark}.parquet" if benchmarks > 1 else f"{when}.parquet"


def write(run: Finished, comparisons: dict[str, Comparison], out: Path) -> dict[str, Path]:
    """Write a run's tables, figures and page; returns each benchmark's figure."""
    notes = [PLACEBO if run.recipe.placebo else ONE_RUN]
    if run.manifest.get("corpus", {}).get("texts_with_benchmark_sentences"):
        notes.append(CONTAMINATED)
    return write_report(
        ReportInput(
            title=run.folder.name,
            command=run.manifest["command"],
            recipe_yaml=settings.resolved_yaml(run.recipe),
            manifest=run.manifest,
            comparisons=comparisons,
            scores=run.tables,
            retention=run.retention,
            curve=run.curve,
            notes=notes,
        ),
        out,
    )


def again(folder: Path, out: Path | None) -> Path:
    """Make a run's report again, in its folder or in `out`; returns the page."""
    run = read_run(folder)
    where = out or folder
    write(run, run.comparisons(), where)
    return where / "report.html"


def side_by_side(folders: list[Path], out: Path | None) -> Path | None:
    """Print runs beside each other, and whether they lie outside the placebo runs' spread.

    With `out`, the table is written there as runs.csv and runs.md too; returns its folder.
    """
    runs = [read_run(folder) for folder in folders]
    table = pd.DataFrame([row for run in runs for row in _rows(run)])
    messages.print(_shown(table))
    verdicts = against_placebo(table)
    for line in verdicts:
        say(line)
    if out is None:
        return None
    write_text(out / "runs.csv", table.to_csv(index=False))
    write_text(out / "runs.md", _markdown(table, verdicts))
    return out


def _rows(run: Finished) -> list[dict[str, Any]]:
    rows = []
    for name, comparison in run.comparisons().items():
        bias = comparison.rows("bias").set_index("scope").loc["overall"]
        margin = comparison.rows("margin").set_index("scope").loc["overall"]
        neutral: dict[str, Any] = next(iter(run.retention.values()), {})
        rows.append(
            {
                "run": run.folder.name,
                "recipe": run.recipe.name,
                "placebo": run.recipe.placebo,
                "seed": run.recipe.seed,
                "benchmark": name,
                "bias_before": bias["before"],
                "bias_after": bias["after"],
                "bias_delta": bias["delta"],
                "p": bias["p"],
                "distance_before": comparison.headline["before"],
                "distance_after": comparison.headline["after"],
                "margin_delta": margin["delta"],
                "perplexity_change_percent": neutral.get("change_percent", np.nan),
            }
        )
    return rows


def against_placebo(table: pd.DataFrame, column: str = "margin_delta") -> list[str]:
    """Say of each run whether its change lies outside the range of the placebo runs.

    A range, not a test: with five placebo runs, one more of them falls outside their range in
    one case of three.
    """
    lines = []
    for benchmark, rows in table.groupby("benchmark", sort=False):
        placebo = rows.loc[rows["placebo"], column]
        if placebo.empty:
            continue
        low, high = placebo.min(), placebo.max()
        lines.append(
            f"{benchmark}: {len(placebo)} placebo runs changed the mean margin by {low:+.3f} to "
            f"{high:+.3f} nats (mean {placebo.mean():+.3f}); their text has no effect to show, so "
            "this is what a run does by itself."
        )
        for row in rows[~rows["placebo"]].to_dict("records"):
            inside = low <= row[column] <= high
            lines.append(
                f"{row['run']}: {row[column]:+.3f} nats, {'inside' if inside else 'outside'} it."
            )
    return lines


#: What the terminal shows of a run; the files have every column.
SHOWN = {
    "run": "run",
    "benchmark": "benchmark",
    "bias_before": "bias before",
    "bias_after": "after",
    "bias_delta": "Δ",
    "p": "p",
    "distance_after": "distance after",
    "margin_delta": "Δ nats",
    "perplexity_change_percent": "Δ ppl %",
}


def _shown(table: pd.DataFrame) -> Table:
    shown = Table(box=SIMPLE_HEAD)
    for column, head in SHOWN.items():
        left = column in ("run", "benchmark")
        shown.add_column(head, justify="left" if left else "right", no_wrap=True)
    for row in table.to_dict("records"):
        shown.add_row(*(Text(_cell(row[column])) for column in SHOWN))
    return shown


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _markdown(table: pd.DataFrame, verdicts: list[str]) -> str:
    head = f"| {' | '.join(table.columns)} |\n|{'---|' * len(table.columns)}\n"
    rows = (
        f"| {' | '.join(_cell(value) for value in row.values())} |"
        for row in table.to_dict("records")
    )
    return head + "\n".join(rows) + "\n\n" + "\n\n".join(verdicts) + "\n"
