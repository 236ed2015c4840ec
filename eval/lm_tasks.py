"""Tasks of lm-evaluation-harness (Gao et al. 2024), through its Python interface.

The package `lm-eval` is an extra. What a task measures, and on what data, is the harness's own;
its data sets come from the hub unless a folder of task files carries them.
"""

import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.errors import RequestError
from eval.scorers.model import LanguageModel

#: A task's number, the first of these that it has; a task with neither tells its first.
PREFERRED = ("acc_norm", "acc", "exact_match", "f1", "word_perplexity", "perplexity")


def check(tasks: Sequence[str], folder: Path | None = None) -> None:
    """Refuse tasks that can't be run.

    `folder`: where further task files lie.

    Raises:
        RequestError: lm-eval isn't installed, the folder isn't there, or it has no such task.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise RequestError(
            "retention.lm_eval: needs the package lm-eval: pip install 'mitigate[lm-eval]'"
        )
    if folder is not None and not folder.is_dir():
        raise RequestError(f"retention.lm_eval_path={folder}: no such folder")
    known = set(_manager(folder).all_tasks)
    unknown = [task for task in tasks if task not in known]
    if unknown:
        import difflib

        close = difflib.get_close_matches(unknown[0], sorted(known), n=2)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; lm-eval ls tasks lists them"
        raise RequestError(f"retention.lm_eval: lm-eval has no task {unknown[0]}{hint}")


def measure(
    lm: LanguageModel,
    tasks: Sequence[str],
    *,
    folder: Path | None = None,
    limit: int | None = None,
    batch_size: int = 16,
) -> dict[str, dict[str, Any]]:
    """Run the tasks on the model as it is in memory; see `results` for what comes back.

    The weights stay where they are, and the model's mode comes back.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    training = lm.model.training
    # Task files name their data relative to where the harness runs.
    place = contextlib.chdir(folder) if folder is not None else contextlib.nullcontext()
    try:
        manager = _manager(folder)
        with place:
            found = simple_evaluate(
                model=HFLM(pretrained=lm.model, tokenizer=lm.tokenizer, batch_size=batch_size),
                tasks=list(tasks),
                task_manager=manager,
                limit=limit,
                bootstrap_iters=1_000,
                log_samples=False,
            )
    finally:
        lm.model.train(training)
    if found is None:  # on all processes of the harness's own but the first
        return {}
    return results(found)


def results(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A number a task, of what `simple_evaluate` returns.

    By task (those that a named group holds, and the group itself where it is averaged): `metric`
    (of PREFERRED), `filter`, `value`, `error` (standard error, None where there is none), `n`
    (examples), `version` of the task.

    Raises:
        RequestError: a task has no number at all.
    """
    told: dict[str, dict[str, Any]] = {}
    for task, row in found["results"].items():
        numbers = {
            name: value
            for name, value in row.items()
            if "," in name and "_stderr" not in name and isinstance(value, int | float)
        }
        if not numbers:
            if task in found.get("group_subtasks", {}):
                continue  # a group that isn't averaged
            raise RequestError(f"retention.lm_eval: {task} gives no number")

        def order(name: str) -> int:
            metric = name.split(",")[0]
            return PREFERRED.index(metric) if metric in PREFERRED else len(PREFERRED)

        key = min(numbers, key=order)
        metric, _, rule = key.partition(",")
        error = row.get(f"{metric}_stderr,{rule}")
        told[task] = {
            "metric": metric,
            "filter": rule,
            "value": float(numbers[key]),
            "error": float(error) if isinstance(error, int | float) else None,
            "n": found.get("n-samples", {}).get(task, {}).get("effective"),
            "version": found.get("versions", {}).get(task),
        }
    return told


def changes(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Before and after of each task that both have, in the metric's own unit."""
    return {
        task: {
            "metric": before[task]["metric"],
            "version": before[task]["version"],
            "n": before[task]["n"],
            "before": before[task]["value"],
            "after": after[task]["value"],
            "change": after[task]["value"] - before[task]["value"],
            "error_before": before[task]["error"],
            "error_after": after[task]["error"],
        }
        for task in before
        if task in after and before[task]["metric"] == after[task]["metric"]
    }


def _manager(folder: Path | None) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(folder.resolve()) if folder is not None else None)
