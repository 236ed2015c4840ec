"""A run that is done, read back from its folder, and its report."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from eval import gate, scores
from eval.errors import RequestError
from eval.files import replacing
from eval.inference import Comparison, compare, personas
from eval.inference.completions import Change
from eval.metrics import measure
from eval.report import ReportInput
from eval.report import write as write_report
from eval.rules import PROMPTED
from eval.scores import Scores
from mitigate import completing, curve, selection, settings
from mitigate.run import Run
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
    retention: dict[str, dict[str, Any]]  # what retention.json holds: see eval.gate
    curve: pd.DataFrame | None  # what curve.csv holds, if the run has one

    @functools.cached_property
    def completions(self) -> dict[str, Change]:
        """What changed in what was written, by benchmark of prompts; takes a while."""
        return completing.changes(self.folder, self.recipe)

    def comparisons(self) -> dict[str, Comparison]:
        return {
            name: self._noted(compare(*pair, self.recipe.inference, name=name))
            for name, pair in self.tables.items()
        }

    def _noted(self, comparison: Comparison) -> Comparison:
        """With the run's own notes first, which every table and page then carries."""
        comparison.notes[:0] = self.manifest.get("notes", [])
        return comparison


def read_run(folder: Path) -> Finished:
    """Read a run's folder.

    Raises:
        RequestError: it is not a run's folder, or the run has not come to its second score.
    """
    missing = [name for name in ("recipe.yaml", "manifest.json") if not (folder / name).is_file()]
    if missing:
        raise RequestError(f"{folder}: no {' and no '.join(missing)}, so not a run's folder")
    recipe = settings.from_yaml((folder / "recipe.yaml").read_text("utf-8"))
    names = list(score_tables(recipe))
    tables = {}
    for name in names:
        pair = [folder / score_file(when, name, len(names)) for when in ("before", "after")]
        absent = [path.name for path in pair if not path.is_file()]
        if absent:
            raise RequestError(
                f"{folder}: no {', '.join(absent)} yet; the run goes on with the same command and "
                f"run.dir={folder}"
            )
        tables[name] = _readable(scores.read(pair[0]), scores.read(pair[1]))
    retention = folder / "retention.json"
    return Finished(
        folder,
        recipe,
        json.loads((folder / "manifest.json").read_text("utf-8")),
        tables,
        json.loads(retention.read_text("utf-8")) if retention.is_file() else {},
        curve.read(path) if (path := folder / curve.FILE).is_file() else None,
    )


def score_tables(recipe: Recipe) -> dict[str, tuple[str, str | None]]:
    """The Score tables of a run, by name: of which benchmark, and asked as which persona.

    A table a benchmark, named as it is; in prompted choice a table a benchmark and persona,
    "<benchmark> <persona>".
    """
    if recipe.score.scorer != PROMPTED:
        return {name: (name, None) for name in completing.of_pairs(recipe)}
    return {
        f"{name} {persona}": (name, persona)
        for name in completing.of_pairs(recipe)
        for persona in recipe.score.personas
    }


def benchmark_of(name: str) -> str:
    """The benchmark that a table or comparison of `score_tables` is of."""
    return name.partition(" ")[0]


def score_file(when: str, name: str, tables: int) -> str:
    """The file of a Score table in a run's folder; a single one keeps the plain name."""
    return f"{when}-{name.replace(' ', '-')}.parquet" if tables > 1 else f"{when}.parquet"


def _readable(before: Scores, after: Scores) -> tuple[Scores, Scores]:
    """Written answers of two models: the pairs of which both gave some that can be read."""
    if before.meta.get("answer") == "generate" and scores.differing(before, after):
        before, after, _ = scores.common(before, after)
    return before, after


def note_selection(run: Run, done: Finished) -> dict[str, dict[str, float]]:
    """Write the levels of the part to choose by, if there is one; returns them, by benchmark.

    `bias_before`, `bias_after` (overall, %), `distance_before`, `distance_after` (mean over
    groups of |bias - 50|, points), `n_pairs`, `n_clusters`.
    """
    levels: dict[str, dict[str, float]] = {}
    if not done.manifest.get("selection"):
        return levels
    names = list(done.tables)
    for name in names:
        levels[name] = {}
        for when in ("before", "after"):
            path = done.folder / selection.FOLDER / score_file(when, name, len(names))
            table = measure(scores.read(path), done.recipe.inference.ties, [])
            found = {row["scope"]: row for row in table.to_dict("records")}
            overall = found["overall"]
            levels[name] |= {
                f"bias_{when}": float(overall["bias"]),
                f"distance_{when}": float(found.get("macro", overall)["distance"]),
                "n_pairs": int(overall["n_pairs"]),
                "n_clusters": int(overall["n_clusters"]),
            }
    run.write_text(selection.LEVELS, selection.write_levels(levels))
    return levels


def retention_lines(retention: dict[str, dict[str, Any]]) -> list[str]:
    """What a person is told of what is left of the language; that it is degraded, first."""
    marked = gate.degraded(retention)
    return [*([marked] if marked else []), *gate.sentences(retention)]


def write(run: Finished, comparisons: dict[str, Comparison], out: Path) -> dict[str, Path]:
    """Write a run's tables, figures and page; returns each benchmark's figure."""
    notes = [PLACEBO if run.recipe.placebo else ONE_RUN]
    if run.manifest.get("corpus", {}).get("texts_with_benchmark_sentences"):
        notes.append(CONTAMINATED)
    if divided := selection.note(run.manifest.get("selection", {})):
        notes.append(divided)
    notes += completing.unsaid(run.folder, run.recipe)
    out.mkdir(parents=True, exist_ok=True)
    for name, change in run.completions.items():
        with replacing(out / f"completions-{name}.json") as path:
            path.write_text(json.dumps(change.as_json(), indent=2, ensure_ascii=False), "utf-8")
    return write_report(
        ReportInput(
            title=run.folder.name,
            command=run.manifest["command"],
            recipe_yaml=settings.resolved_yaml(run.recipe),
            manifest=run.manifest,
            comparisons=comparisons,
            scores=run.tables,
            retention=run.retention,
            degraded=gate.degraded(run.retention),
            curve=run.curve,
            notes=notes,
            personas=personas_of(run),
            completions=run.completions,
        ),
        out,
    )


def personas_of(run: Finished) -> dict[str, pd.DataFrame]:
    """What personas do, before and after, by benchmark; empty where only one was asked as."""
    found: dict[str, list[pd.DataFrame]] = {}
    for number, when in enumerate(("before", "after")):
        by_benchmark: dict[str, dict[str, Scores]] = {}
        for name, pair in run.tables.items():
            persona = pair[number].meta.get("persona")
            if persona is not None:
                by_benchmark.setdefault(benchmark_of(name), {})[persona] = pair[number]
        for benchmark, tables in by_benchmark.items():
            if personas.comparable(tables):
                effects = personas.effects(tables, run.recipe.inference)
                found.setdefault(benchmark, []).append(effects.assign(when=when))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in found.items()}


def again(folder: Path, out: Path | None) -> Path:
    """Make a run's report again, in its folder or in `out`; returns the page."""
    run = read_run(folder)
    where = out or folder
    write(run, run.comparisons(), where)
    return where / "report.html"
