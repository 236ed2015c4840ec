"""Folders of finished runs, made up in a moment: real files, scores that nobody trained for."""

import json
from pathlib import Path
from typing import Any

from eval import scores
from eval.inference import compare
from eval.scores import Scores
from mitigate import reporting, settings
from mitigate.run import Run
from tests.eval.scored import simulated

QUICK = ["inference.resamples=200"]


def finished(
    folder: Path, *words: str, recipe: str = "demo", scored: tuple[Scores, Scores] | None = None
) -> Run:
    """A run folder as `mitigate train` leaves it, as far as reports and W&B read it.

    `words` override the recipe; `scored`: before and after of every benchmark.
    """
    resolved = settings.from_words([*QUICK, *words], recipe=recipe)
    run = Run(folder, resolved, None)
    folder.mkdir(parents=True)
    pair = scored or simulated(seed=resolved.seed)
    for name in resolved.benchmark:
        for when, found in zip(("before", "after"), pair, strict=True):
            path = run.path(reporting.score_file(when, name, len(resolved.benchmark)))
            scores.write(found, path)
    run.write_text("recipe.yaml", settings.resolved_yaml(resolved))
    retention: dict[str, Any] = {"kind": "perplexity", "before": 10.0, "after": 11.0}
    retention |= {"change_percent": 10.0, "texts": 3, "tokens": 30}
    run.write_text("retention.json", json.dumps({"neutral": retention}))
    run.note(
        command="mitigate train", wandb_id=folder.name, model={"name": "made"}, status="finished"
    )
    return run


def compared(run: Run) -> Any:
    """The comparisons of a made-up run, by benchmark."""
    done = reporting.read_run(run.folder)
    return {
        name: compare(*pair, run.recipe.inference, name=name) for name, pair in done.tables.items()
    }
