"""W&B: one run, on the main process only, started after the process group.

Our own files are the truth. What goes up: losses and the curve over the run's own steps, every
level and change as summary keys, tables, figures, and the scores pair by pair as an artifact,
without sentences unless they are asked for. docs/wandb.md names every key.
"""

import hashlib
import json
import math
import netrc
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from eval import scores
from eval.benchmarks.filters import sample
from eval.inference import Comparison
from eval.report.figures.files import CURVE, DETAILS
from eval.scores import Scores, align
from mitigate import reporting
from mitigate.run import Run

#: The run's own axis: W&B drops values whose step goes back, as after a resume.
STEP = "train/step"
#: What stands under a change's own key, e.g. bias/delta/overall/bias/ci_low.
OF_A_CHANGE = ("se", "ci_low", "ci_high", "p", "p_adjusted", "smallest_shown", "verdict")
#: Rows of the table of pairs at most; the artifact holds them all.
SAMPLED = 200
#: Text columns that hold no part of a sentence; every other one is dropped with the sentences.
KEPT_TEXT = (
    *("pair_id", "benchmark", "language", "group", "group_label", "counterfactual"),
    *("slice", "tier", "origin", "stereo_antistereo", scores.PUBLISHED_ID),
)


class Tracker:
    """The run's W&B side; on other processes, and with tracking disabled, it does nothing."""

    def __init__(self, run: Run, config: dict[str, Any]):
        self._wandb: Any = None
        self._run = run
        self._step = -math.inf  # the last step that was sent
        self._sent: set[str] = set()  # and the keys of it
        self._found: dict[str, Comparison] = {}
        settings = run.recipe.tracking
        mode = mode_of(settings.mode)
        if not run.main or mode == "disabled":
            return
        import wandb

        logged = list(_logged(run.path("metrics.jsonl")))
        if mode == "offline":
            _set_earlier_aside(run.path("wandb"))
        # What waits for a later sync stays in the run's folder, not in the user's home.
        os.environ.setdefault("WANDB_DATA_DIR", str(run.path("wandb").resolve()))
        self._wandb = wandb.init(
            project=settings.project,
            entity=settings.entity,
            id=run.manifest["wandb_id"],
            name=run.folder.name,
            group=run.recipe.name,
            job_type="placebo" if run.recipe.placebo else "train",
            tags=_tags(run),
            dir=str(run.folder.resolve()),
            mode=mode,
            config=config,
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(silent=True),
        )
        self._wandb.define_metric(STEP)
        self._wandb.define_metric("train/*", step_metric=STEP)
        self._wandb.define_metric("curve/*", step_metric=STEP)
        for values in logged:  # of the run's first part, where it was stopped and goes on
            new = self._unsent(values)
            if mode == "offline" and new:
                self._wandb.log(new)

    def log(self, values: dict[str, Any]) -> None:
        """Send values; what a resumed run computes a second time is not sent again."""
        new = self._unsent(values)
        if self._wandb is not None and new:
            self._wandb.log(new)

    def finding(self, name: str, several: bool, comparison: Comparison, figure: Path) -> None:
        """Send one benchmark's levels, changes, tables, figures and scores.

        `several`: the benchmark's name ends every key, and the levels and changes overall stand
        without a name too, as means over the benchmarks sent so far.
        """
        if self._wandb is None:
            return
        import wandb

        suffix = f"/{name}" if several else ""
        self._found[name] = comparison
        summary = summary_of(comparison, suffix)
        if several:
            summary |= means({key: summary_of(one) for key, one in self._found.items()})
        self._wandb.summary.update(summary)
        recipe, count = self._run.recipe, 2 if several else 1
        before, after = (
            scores.read(self._run.path(reporting.score_file(when, name, count)))
            for when in ("before", "after")
        )
        sentences = recipe.tracking.sentences
        moved = pairs_table(before, after, recipe.inference.seed, sentences=sentences)
        self._wandb.log(
            {
                f"bias/deltas{suffix}": _wandb_table(comparison.table),
                f"bias/published{suffix}": _wandb_table(comparison.published),
                f"bias/pairs{suffix}": _wandb_table(moved),
                f"bias/figure{suffix}": wandb.Image(str(figure)),
                **{
                    f"bias/{kind}{end}": wandb.Image(str(path))
                    for kind, end, path in _further_figures(figure, suffix)
                    if path.is_file()
                },
            }
        )
        self._keep_scores(name, before, after)

    def summary(self, values: dict[str, Any]) -> None:
        if self._wandb is not None:
            self._wandb.summary.update(values)

    def tag(self, name: str) -> None:
        """Add a tag to those the run began with."""
        if self._wandb is not None:
            self._wandb.tags = (*(self._wandb.tags or ()), name)

    def finish(self) -> None:
        if self._wandb is not None:
            self._wandb.finish()

    def _keep_scores(self, name: str, before: Scores, after: Scores) -> None:
        """Both Score tables as an artifact of the type `scores`, from files that stay here."""
        import wandb

        sentences = self._run.recipe.tracking.sentences
        artifact = wandb.Artifact(
            re.sub(r"[^\w.-]+", "-", f"scores-{self._run.manifest['wandb_id']}-{name}")[:128],
            type="scores",
            metadata={
                key: before.meta.get(key)
                for key in ("benchmark", "benchmark_hash", "scorer", "scorer_version")
            }
            | {"sentences": sentences},
        )
        for when, found in (("before", before), ("after", after)):
            path = self._run.path("wandb", "scores", f"{when}-{name}.parquet").resolve()
            scores.write(found if sentences else without_sentences(found), path)
            # Not copied into W&B's folder in the user's home: the file stays what it is.
            artifact.add_file(str(path), f"{when}.parquet", policy="immutable", skip_cache=True)
        self._wandb.log_artifact(artifact)

    def _unsent(self, values: dict[str, Any]) -> dict[str, Any]:
        """What of these values was not sent: no step goes back, and none says a thing twice."""
        step = values.get(STEP)
        if step is None:
            return values
        if step < self._step:
            return {}
        if step > self._step:
            self._step, self._sent = step, set()
        new = {key: value for key, value in values.items() if key not in self._sent and key != STEP}
        self._sent |= new.keys()
        return {STEP: step, **new} if new else {}


def summary_of(comparison: Comparison, suffix: str = "") -> dict[str, float | str]:
    """The summary keys of one benchmark; numbers that can't be had are left out.

    `bias/before|after|delta/<scope>/<metric>`; under a delta OF_A_CHANGE; the headline as
    `bias/before|after|delta/distance_from_50`; `bias/finding` in two sentences.
    """
    found: dict[str, Any] = {}
    for row in comparison.table.to_dict("records"):
        place = f"{row['scope'].replace(':', '/')}/{row['metric']}"
        found |= {f"bias/{when}/{place}": row[when] for when in ("before", "after", "delta")}
        found |= {f"bias/delta/{place}/{key}": row[key] for key in OF_A_CHANGE}
    headline = comparison.headline
    for when in ("before", "after", "delta"):
        found[f"bias/{when}/distance_from_50"] = headline[when]
    for key in ("ci_low", "ci_high", "p", "p_adjusted", "verdict"):
        found[f"bias/delta/distance_from_50/{key}"] = headline[key]
    for when in ("before", "after"):
        if f"spread_{when}" in headline:
            found[f"bias/{when}/spread"] = headline[f"spread_{when}"]
    found["bias/clusters"] = headline["n_clusters"]
    found["bias/clusters_moved"] = headline["clusters_moved"]
    found["bias/finding"] = " ".join(comparison.sentences())
    return {
        f"{key}{suffix}": value if isinstance(value, str) else float(value)
        for key, value in found.items()
        if isinstance(value, str) or not pd.isna(value)
    }


def means(by_benchmark: Mapping[str, Mapping[str, float | str]]) -> dict[str, float]:
    """Levels and changes overall, as means over benchmarks, so that a runs table sorts by them.

    No interval and no p: those are each benchmark's own.
    """
    pattern = re.compile(r"bias/(before|after|delta)/((overall|macro)/\w+|distance_from_50)")
    frame = pd.DataFrame(
        [
            {key: value for key, value in keys.items() if pattern.fullmatch(key)}
            for keys in by_benchmark.values()
        ]
    ).astype(float)
    return {str(key): float(value) for key, value in frame.dropna(axis=1).mean().items()}


def without_sentences(found: Scores) -> Scores:
    """A Score table without text of a pair; it can still be compared, pair by pair.

    Sentences, templates and whatever else a benchmark tells in words go; clusters keep apart by
    a hash of the stereotype, which is itself a phrase.
    """
    table = found.table
    kept = table[
        [
            column
            for column in table
            if column in KEPT_TEXT
            or column == "stereotype_id"
            or pd.api.types.is_numeric_dtype(table[column])
        ]
    ]
    return Scores(kept.assign(stereotype_id=_hashed(table["stereotype_id"])), found.meta)


def pairs_table(before: Scores, after: Scores, seed: int, *, sentences: bool) -> pd.DataFrame:
    """A sample of the pairs, each group in proportion, with the margins before and after.

    Columns: pair_id, group, stereotype (a hash unless `sentences`), margin_before, margin_after,
    change (nats), flipped; with `sentences` sent_more and sent_less. SAMPLED rows at most.
    """
    before, after = align(before, after)
    table = before.table.assign(margin_before=before.margin, margin_after=after.margin)
    table["change"] = table["margin_after"] - table["margin_before"]
    table["flipped"] = np.sign(before.margin) != np.sign(after.margin)
    table["stereotype"] = table["stereotype_id"]
    if not sentences:
        table["stereotype"] = _hashed(table["stereotype_id"])
    if len(table) > SAMPLED:
        table = sample(table, SAMPLED, seed)
    columns = ["pair_id", "group", "stereotype", "margin_before", "margin_after", "change"]
    return table[[*columns, "flipped", *(["sent_more", "sent_less"] if sentences else [])]]


def _tags(run: Run) -> list[str]:
    """The model's and the method's name; W&B takes 64 signs at most."""
    names = (run.manifest.get("model", {}).get("name"), run.recipe.method.name)
    return [str(name)[:64] for name in names if name]


def _further_figures(figure: Path, suffix: str) -> Iterator[tuple[str, str, Path]]:
    """The report's other figures, where it drew them: what is shown, end of the key, file."""
    for kind in DETAILS:
        yield kind, suffix, figure.with_name(f"{figure.stem}-{kind}.png")
    yield CURVE, "", figure.with_name(f"{CURVE}.png")


def _hashed(names: pd.Series) -> pd.Series:
    return names.astype(str).map(lambda name: hashlib.sha256(name.encode()).hexdigest()[:12])


def _wandb_table(frame: pd.DataFrame) -> Any:
    import wandb

    return wandb.Table(dataframe=frame.astype(object).where(frame.notna(), None))


def _logged(path: Path) -> Iterator[dict[str, Any]]:
    """What metrics.jsonl holds, a line each, but for the time; a torn last line is none."""
    if not path.is_file():
        return
    for line in path.read_text("utf-8").splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        values.pop("time", None)
        yield values


def _set_earlier_aside(folder: Path) -> None:
    """Put the offline files of a run's stopped parts where `wandb sync --sync-all` finds none.

    The part that goes on says again what they say, so that one file holds the whole run: synced
    one after the other, the parts would overwrite each other.
    """
    for part in sorted(folder.glob("offline-run-*")):
        (folder / "earlier").mkdir(exist_ok=True)
        part.rename(folder / "earlier" / part.name)


def mode_of(wanted: str) -> Any:  # one of the modes that wandb.init takes
    """`auto` follows WANDB_MODE where it is set, else online with a key and offline without."""
    if wanted != "auto":
        return wanted
    stated = os.environ.get("WANDB_MODE")
    if stated:
        return stated
    return "online" if has_key() else "offline"


def has_key() -> bool:
    """Whether a W&B key is in the environment or in the netrc file; nobody is asked for one."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if not path.is_file():
        return False
    try:
        return any("wandb" in host for host in netrc.netrc(str(path)).hosts)
    except netrc.NetrcParseError:
        return False
