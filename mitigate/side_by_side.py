"""`mitigate report RUN RUN …`: many runs side by side, and what they let one claim."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from eval import gate
from eval.errors import RequestError
from eval.inference import Comparison, across, runs
from eval.inference.runs import Claims
from eval.report import RunsInput, tables, write_runs
from eval.report.figures import FRONT_COLUMNS, on_front
from mitigate import selection
from mitigate.console import messages, say
from mitigate.reporting import Finished, read_run
from mitigate.run import write_text

#: The table's columns and what they mean; runs.csv has every one.
COLUMNS = {
    "run": "the run's folder",
    "recipe": "the recipe's name",
    "model": "the model before training",
    "language": "of the benchmark's pairs",
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
    "grammar_change": "of grammatical minimal pairs right, points; mean over languages",
    "degraded": "failed the gate of retention that its recipe sets",
}
#: Said of the settings where runs differ in none.
SAME = "the same"
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
    "degraded": "degraded",
}


@dataclass(frozen=True)
class SideBySide:
    """Runs read back and compared, before and after each.

    `table`: COLUMNS, a row a run and benchmark; `rows`: every Delta row of every run, and before
    them what tells runs apart: run, recipe, model, placebo, seed, then tokens, years and settings,
    in which a placebo must match, benchmark and language.
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

    def claims(self) -> Claims:
        """What the runs as wholes let one claim of their methods; see eval.inference.runs."""
        # A scope whose pairs are all ties in one run has no change to speak of.
        whole = self.rows.groupby(["benchmark", "scope", "metric"])["delta"].transform(
            lambda change: change.notna().all()
        )
        return runs.claims(self.rows[whole.astype(bool)])

    def front(self) -> pd.DataFrame:
        """Every setting's retention and distance from 50: FRONT_COLUMNS, a row a benchmark too.

        Where runs set stereotypes aside to choose by, the distance is of those alone. Placebo
        runs are no setting; without two settings there is nothing to choose, and no row.
        """
        rows = []
        told = self.rows.drop_duplicates(["run", "benchmark"]).set_index(["run", "benchmark"])
        several = self.table["model"].nunique() > 1
        for row in self.table[~self.table["placebo"].astype(bool)].to_dict("records"):
            seen = selection.read_levels(self.runs[row["run"]].folder).get(row["benchmark"], row)
            settings = told.loc[(row["run"], row["benchmark"]), "settings"]
            named = [row["recipe"], *([row["model"]] if several else [])]
            rows.append(
                {
                    "benchmark": row["benchmark"],
                    "setting": ", ".join([*named, *([settings] if settings != SAME else [])]),
                    "runs": 1,
                    "worse": row["perplexity_change_percent"],
                    "distance": seen["distance_after"],
                    "distance_before": seen["distance_before"],
                    "grammar": row["grammar_change"],
                    "degraded": row["degraded"],
                }
            )
        if not rows:
            return pd.DataFrame(columns=list(FRONT_COLUMNS))
        how = dict.fromkeys(("worse", "distance", "distance_before", "grammar"), "mean")
        grouped = pd.DataFrame(rows).groupby(["benchmark", "setting"], sort=False)
        points = grouped.agg({"runs": "sum", **how, "degraded": "any"}).reset_index()
        points = points.dropna(subset=["worse", "distance"])
        sizes = points.groupby("benchmark")["setting"].transform("size")
        points = points[sizes > 1].reset_index(drop=True)
        best = pd.Series(False, index=points.index)
        for _, some in points[~points["degraded"].astype(bool)].groupby("benchmark"):
            best[some.index] = on_front(*some[["worse", "distance"]].to_numpy(float).T)
        return points.assign(on_front=best)[list(FRONT_COLUMNS)]

    def notes(self) -> list[str]:
        """What a reader must know of the runs as they are, beside what is claimed."""
        said = []
        marked = [label for label, run in self.runs.items() if gate.degraded(run.retention)]
        if marked:
            said.append(
                f"Degraded, having failed the gate of retention: {', '.join(marked)}. A bias "
                "score can lie nearer 50 merely because a model has lost its language."
            )
        said += [
            f"{label}: {note}"
            for label, run in self.runs.items()
            for note in run.manifest.get("notes", [])
        ]
        apart = [bool(run.manifest.get("selection")) for run in self.runs.values()]
        if len(self.front()):
            said.append(
                "The front is of stereotypes set aside to choose by; the table of runs is of "
                "others, so whoever chooses by the one can report the other."
                if all(apart)
                else "The front is of the same stereotypes as the table of runs: the best of many "
                "settings looks better than it is. selection.share=0.3 sets some aside."
            )
        return said

    def models(self) -> pd.DataFrame:
        """Levels and changes of each model, as `eval.inference.across` takes them.

        The mean over a recipe's seeds; placebo runs are left out; a model that several recipes
        have trained stands once for each.
        """
        rows = self.rows[~self.rows["placebo"]]
        recipes = rows.groupby("model")["recipe"].transform("nunique")
        named = rows["model"].where(recipes == 1, rows["model"] + ", " + rows["recipe"])
        keys = ["model", "language", "benchmark", "scope", "metric"]
        levels = rows.assign(model=named).groupby(keys, sort=False)[["before", "after", "delta"]]
        return levels.mean().reset_index()[list(across.LONG_COLUMNS)]


def read(folders: Sequence[Path]) -> SideBySide:
    """Read runs and compare each one's before and after.

    Raises:
        RequestError: one is not a finished run's folder, or two were scored on different pairs
            of a benchmark.
    """
    found: dict[str, Finished] = {}
    seen: set[Path] = set()
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        run = read_run(folder)
        if folder.resolve() in seen:
            say(f"{folder}: named twice, counted once")
            continue
        seen.add(folder.resolve())
        found[name if name not in found else str(folder)] = run
    _check_same_benchmarks(found)
    comparisons = {
        (label, name): comparison
        for label, run in found.items()
        for name, comparison in run.comparisons().items()
    }
    settings = _settings(found)
    table, rows = [], []
    for (label, name), comparison in comparisons.items():
        run = found[label]
        place = {"benchmark": name, "language": across.language_of(run.tables[name][0])}
        facts = _facts(label, run)
        table.append({**facts, **place, **_levels(comparison, run)})
        facts |= {
            "tokens": run.manifest.get("training", {}).get("tokens_seen", np.nan),
            "years": _years(run) or None,
            "settings": settings[label],
            **place,
        }
        rows.append(comparison.table.assign(**facts))
        rows[-1] = rows[-1][[*facts, *comparison.table]]
    return SideBySide(
        found,
        comparisons,
        pd.DataFrame(table)[list(COLUMNS)],
        pd.concat(rows, ignore_index=True),
    )


def show(folders: Sequence[Path], out: Path | None) -> Path | None:
    """Print runs beside each other and what they let one claim; returns the page, if any.

    With `out` there stand: report.html, runs.csv (a row a run), runs.md, deltas.csv (every Delta
    row of every run), claims.csv and between_runs.csv (methods against their placebo), german.tex
    and dutch.tex (the papers' layouts, by benchmark), figures/heat; with several settings
    front.csv and figures/front (how near 50 against retention); with several models across.csv
    (their mean rows) and spread.csv (most against least affected group), with several languages
    that share identities languages.csv.

    Raises:
        RequestError: see `read`.
    """
    found = read(folders)
    messages.print(_shown(found.table))
    claims = found.claims()
    for line in claims.sentences:
        say(line)
    notes = [*found.notes(), *claims.notes]
    for note in notes:
        say(f"Note: {note}")
    front = found.front()
    for point in front[front["on_front"].astype(bool)].to_dict("records"):
        say(
            f"On the front of {point['benchmark']}: {point['setting']}: "
            f"{point['distance']:.1f} points from 50, perplexity {point['worse']:+.1f} %"
        )
    if out is None:
        return None
    models = found.models()
    means = across.means(models) if models["model"].nunique() > 1 else None
    texts = {
        "runs.csv": found.table.to_csv(index=False, lineterminator="\n"),
        "runs.md": _markdown(found.table, [*claims.sentences, *notes]),
        "claims.csv": claims.table.to_csv(index=False, lineterminator="\n"),
        "between_runs.csv": claims.spread.to_csv(index=False, lineterminator="\n"),
        "deltas.csv": found.rows.to_csv(index=False, lineterminator="\n"),
        **_latex(found),
        **_across(models, means),
        **({"front.csv": front.to_csv(index=False, lineterminator="\n")} if len(front) else {}),
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
            claims=claims.sentences,
            across=None if means is None else means[_whole(means)],
            front=front,
            notes=notes,
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


def _across(models: pd.DataFrame, means: pd.DataFrame | None) -> dict[str, str]:
    """The tables over models and languages, where there are several."""
    found: dict[str, pd.DataFrame] = {}
    if means is not None:
        found = {"across.csv": means, "spread.csv": across.spread(models)}
    groups = models[models["scope"].str.startswith("group:")].groupby("language")["scope"]
    identities = [set(scopes) for _, scopes in groups]
    if len(identities) > 1 and set.intersection(*identities):
        found["languages.csv"] = across.languages(models[models["language"] != ""])
    return {name: table.to_csv(index=False, lineterminator="\n") for name, table in found.items()}


def _whole(means: pd.DataFrame) -> pd.Series:
    """Which mean rows the page shows: those of whole benchmarks."""
    return means["scope"].isin(["overall", "macro"])


def _facts(label: str, run: Finished) -> dict[str, Any]:
    """What tells a run from the others."""
    return {
        "run": label,
        "recipe": run.recipe.name,
        "model": _model(run),
        "placebo": run.recipe.placebo,
        "seed": run.recipe.seed,
    }


#: Keys of `method` that say what is done, not how long or how fast.
TREATMENT = {"name", "module", "cda", "preference", "projection", "dropout"}


def _settings(found: dict[str, Finished]) -> dict[str, str]:
    """Each run's settings of training in which the runs differ, in words: `lr=0.001`.

    A placebo must have those of its method; what all runs share needs no words. Nor does what a
    method is (TREATMENT): that is the difference which is asked about.
    """
    flat = {label: dataclasses.asdict(run.recipe.method) for label, run in found.items()}
    keys = sorted({key for method in flat.values() for key in method} - TREATMENT)
    told = [key for key in keys if len({str(method[key]) for method in flat.values()}) > 1]
    return {
        label: ", ".join(f"{key}={method[key]}" for key in told) or SAME
        for label, method in flat.items()
    }


def _years(run: Finished) -> str:
    """The years that a run's corpora were cut to, where one was."""
    return ", ".join(sorted({some.years for some in run.recipe.corpus.values()} - {""}))


def _model(run: Finished) -> str:
    return str(run.manifest.get("model", {}).get("name") or run.recipe.model.name)


def _levels(comparison: Comparison, run: Finished) -> dict[str, Any]:
    """A run's levels and changes overall, the distance over its groups, and its perplexity."""
    overall = comparison.table[comparison.table["scope"] == "overall"].set_index("metric")
    bias, headline = overall.loc["bias"], comparison.headline
    neutral = next(iter(gate.texts(run.retention).values()), {})
    grammar = [of["change"] for of in run.retention.get("grammar", {}).values() if "change" in of]
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
        "grammar_change": float(np.mean(grammar)) if grammar else np.nan,
        "degraded": bool(gate.degraded(run.retention)),
    }


def _check_same_benchmarks(found: dict[str, Finished]) -> None:
    """Refuse runs whose levels can't stand in one table."""
    first: dict[str, tuple[str, Any]] = {}
    for label, run in found.items():
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
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _markdown(table: pd.DataFrame, lines: Sequence[str]) -> str:
    head = f"| {' | '.join(table.columns)} |\n|{'---|' * len(table.columns)}\n"
    rows = []
    for row in table.to_dict("records"):
        cells = [_cell(value).replace("|", "\\|") for value in row.values()]
        rows.append(f"| {' | '.join(cells)} |")
    return head + "\n".join(rows) + "\n\n" + "\n\n".join(lines) + "\n"
