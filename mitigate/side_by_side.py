"""`mitigate report RUN RUN …`: many runs side by side, and what they let one claim."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from eval.errors import RequestError
from eval.inference import Comparison
from eval.report import RunsInput, tables, write_runs
from mitigate.console import messages, say
from mitigate.reporting import Finished, read_run
from mitigate.run import write_text

#: The table's columns and what they mean; runs.csv has every one.
COLUMNS = {
    "run": "the run's folder",
    "recipe": "the recipe's name",
    "model": "the model before training",
    "placebo": "trained on text with the same tilt as the model's own",
    "seed": "the run's seed",
    "benchmark": "the benchmark",
    "n_pairs": "pairs",
    "n_clusters": "clusters (stereotypes)",
    "bias_before": "overall bias before, %",
    "bias_after": "and after",
    "bias_delta": "after minus before, points",
    "bias_se": "its cluster-robust standard error; of this model only",
    "p": "two-sided p of the run's cluster test of overall bias, unadjusted",
    "distance_before": "mean over groups of |bias - 50| before, points",
    "distance_after": "and after",
    "distance_delta": "after minus before",
    "distance_verdict": "the run's own verdict on it",
    "soft_delta": "change of the soft score, points",
    "margin_delta": "change of the mean margin, nats",
    "margin_se": "its cluster-robust standard error",
    "perplexity_change_percent": "of (pseudo-)perplexity on neutral held-out text",
}
#: What the terminal shows of a run.
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


@dataclass(frozen=True)
class SideBySide:
    """Runs read back and compared, before and after each.

    `table`: COLUMNS, a row a run and benchmark; `rows`: every Delta row of every run, with the
    columns run, recipe, model, seed, placebo and benchmark before them.
    """

    runs: dict[str, Finished]
    comparisons: dict[tuple[str, str], Comparison]  # by run and benchmark
    table: pd.DataFrame
    rows: pd.DataFrame

    @property
    def heat(self) -> pd.DataFrame:
        """Bias by group, in percent: each model before training, each run after it.

        A row a run, and benchmark where there are several; NaN where one has no such group.
        """
        found: dict[str, dict[str, float]] = {}
        several = self.table["benchmark"].nunique() > 1
        for when in ("before", "after"):
            for (run, benchmark), comparison in self.comparisons.items():
                name = f"{_model(self.runs[run])} before" if when == "before" else run
                groups = comparison.rows("bias", "group")
                found[f"{name}, {benchmark}" if several else name] = dict(
                    zip(groups["scope"].str.removeprefix("group:"), groups[when], strict=True)
                )
        return pd.DataFrame.from_dict(found, orient="index").dropna(axis=1, how="all")


def read(folders: Sequence[Path]) -> SideBySide:
    """Read runs and compare each one's before and after.

    Raises:
        RequestError: one is not a finished run's folder, or two were scored on different pairs
            of a benchmark.
    """
    runs: dict[str, Finished] = {}
    seen: set[Path] = set()
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        run = read_run(folder)
        if folder.resolve() in seen:
            say(f"{folder}: named twice, counted once")
            continue
        seen.add(folder.resolve())
        runs[name if names.count(name) == 1 or name not in runs else str(folder)] = run
    _check_same_benchmarks(runs)
    comparisons = {
        (label, name): comparison
        for label, run in runs.items()
        for name, comparison in run.comparisons().items()
    }
    facts = {label: _facts(label, run) for label, run in runs.items()}
    table = pd.DataFrame(
        [
            {**facts[label], **_levels(comparison, runs[label]), "benchmark": name}
            for (label, name), comparison in comparisons.items()
        ]
    )
    rows = pd.concat(
        [
            comparison.table.assign(**facts[label], benchmark=name)
            for (label, name), comparison in comparisons.items()
        ],
        ignore_index=True,
    )
    first = [*next(iter(facts.values())), "benchmark"]
    rows = rows[[*first, *(column for column in rows if column not in first)]]
    return SideBySide(runs, comparisons, table[list(COLUMNS)], rows)


def show(folders: Sequence[Path], out: Path | None) -> Path | None:
    """Print runs beside each other and what they let one claim; returns the page, if any.

    With `out` there stand: report.html, runs.csv (a row a run), runs.md, deltas.csv (every Delta
    row of every run), german.tex and dutch.tex (the papers' layouts, by benchmark), figures/heat.

    Raises:
        RequestError: see `read`.
    """
    found = read(folders)
    messages.print(_shown(found.table))
    lines = against_placebo(found.table)
    for line in lines:
        say(line)
    if out is None:
        return None
    texts = {
        "runs.csv": found.table.to_csv(index=False, lineterminator="\n"),
        "runs.md": _markdown(found.table, lines),
        "deltas.csv": found.rows.to_csv(index=False, lineterminator="\n"),
        **_latex(found),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    words = " ".join(map(str, folders))
    return write_runs(
        RunsInput(
            title=f"{len(found.runs)} runs side by side",
            command=f"mitigate report {words} out={out}",
            table=found.table,
            heat=found.heat,
            claims=lines,
        ),
        out,
    )


def _latex(found: SideBySide) -> dict[str, str]:
    """Every benchmark's table in both papers' layouts, runs for models."""
    german, dutch = [], []
    for number, benchmark in enumerate(found.table["benchmark"].unique(), start=1):
        rows = tables.paper_rows(
            {run: some for (run, name), some in found.comparisons.items() if name == benchmark}
        )
        german.append(tables.german_table(rows, label=f"tab:german{number}"))
        dutch.append(tables.dutch_table(rows, when="both", label=f"tab:dutch{number}"))
    return {"german.tex": "\n".join(german), "dutch.tex": "\n".join(dutch)}


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


def _facts(label: str, run: Finished) -> dict[str, Any]:
    """What tells a run from the others."""
    return {
        "run": label,
        "recipe": run.recipe.name,
        "model": _model(run),
        "placebo": run.recipe.placebo,
        "seed": run.recipe.seed,
    }


def _model(run: Finished) -> str:
    return str(run.manifest.get("model", {}).get("name") or run.recipe.model.name)


def _levels(comparison: Comparison, run: Finished) -> dict[str, Any]:
    """A run's levels and changes overall, the distance over its groups, and its perplexity."""
    overall = comparison.table[comparison.table["scope"] == "overall"].set_index("metric")
    bias, headline = overall.loc["bias"], comparison.headline
    neutral: dict[str, Any] = next(iter(run.retention.values()), {})
    return {
        "n_pairs": bias["n_pairs"],
        "n_clusters": bias["n_clusters"],
        "bias_before": bias["before"],
        "bias_after": bias["after"],
        "bias_delta": bias["delta"],
        "bias_se": bias["se"],
        "p": bias["p"],
        "distance_before": headline["before"],
        "distance_after": headline["after"],
        "distance_delta": headline["delta"],
        "distance_verdict": headline["verdict"],
        "soft_delta": overall.loc["soft", "delta"],
        "margin_delta": overall.loc["margin", "delta"],
        "margin_se": overall.loc["margin", "se"],
        "perplexity_change_percent": neutral.get("change_percent", np.nan),
    }


def _check_same_benchmarks(runs: dict[str, Finished]) -> None:
    """Refuse runs whose levels can't stand in one table."""
    first: dict[str, tuple[str, Any]] = {}
    for label, run in runs.items():
        for name, (before, _) in run.tables.items():
            theirs = before.meta.get("benchmark_hash"), len(before.table)
            held, other = first.setdefault(name, (label, theirs))
            if other != theirs:
                raise RequestError(
                    f"report: {held} and {label} were scored on different pairs of {name} "
                    f"({other[1]:,}, hash {other[0]}; {theirs[1]:,}, hash {theirs[0]}): their "
                    "levels can't stand side by side"
                )


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


def _markdown(table: pd.DataFrame, lines: Sequence[str]) -> str:
    head = f"| {' | '.join(table.columns)} |\n|{'---|' * len(table.columns)}\n"
    rows = []
    for row in table.to_dict("records"):
        cells = [_cell(value).replace("|", "\\|") for value in row.values()]
        rows.append(f"| {' | '.join(cells)} |")
    return head + "\n".join(rows) + "\n\n" + "\n\n".join(lines) + "\n"
