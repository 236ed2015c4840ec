"""The main job: score → fine-tune → score again → say what changed, and how sure we are.

accelerate launch mitigate/train.py recipe=taz_lora [key=value …]
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # launched as a file: look for modules in the root, not in here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import dataclasses
from collections.abc import Sequence
from contextlib import closing

import accelerate

import corpora
from corpora.decontaminate import Benchmark, overlap
from eval import benchmarks, scores
from eval.errors import RequestError
from eval.pairs import Pairs
from eval.report import terminal
from eval.scorers import score
from eval.scorers.model import LanguageModel
from mitigate import curve, models, reporting, settings
from mitigate.console import messages, progress, rank, say, scores_folder, show_recipe
from mitigate.held_out import held_out_texts, measure_retention
from mitigate.launching import check_world_size
from mitigate.methods import Context, method
from mitigate.run import Run, check_folder, open_run
from mitigate.settings import Recipe
from mitigate.tracking import Tracker


def main(words: Sequence[str]) -> Path:
    """Run the main job for a command's `key=value` words; returns the run's folder."""
    recipe = settings.from_words(words, recipe="demo")
    show_recipe(recipe)
    pairs, corpus = inputs(recipe)
    check_folder(recipe)
    check_world_size(recipe)
    curve.check(recipe)
    chosen = method(recipe.method)
    models.prepare(recipe.model)
    state = accelerate.PartialState(cpu=recipe.launch.cpu)  # starts the process group
    # Only `job` may hold the model: it has to be gone before the fine-tuned one is loaded.
    loaded = [models.load(recipe.model)]
    chosen.check(loaded[0], recipe.method, recipe.model.lora_targets, state.num_processes)
    with closing(open_run(recipe, "mitigate train " + " ".join(words))) as run:
        job(run, recipe, pairs, corpus, loaded.pop())
    return run.folder


def job(
    run: Run,
    recipe: Recipe,
    pairs: dict[str, Pairs],
    corpus: corpora.Corpus,
    lm: LanguageModel,
) -> None:
    """Everything between an open run folder and a finished one. The line, in order."""
    run.note(
        wandb_id=run.manifest.get("wandb_id", run.folder.name),
        corpus=corpus.facts,
        benchmarks={name: benchmark_facts(some) for name, some in pairs.items()},
    )
    begun_with = run.manifest.get("model", {}).get("fingerprint", lm.fingerprint)
    if begun_with != lm.fingerprint:
        raise RequestError(
            f"{run.folder}: this run began with other weights of {lm.name} (fingerprint "
            f"{begun_with}, now {lm.fingerprint}); name a new folder"
        )
    run.note(model=model_facts(recipe, lm), device=str(lm.device))
    tracker = Tracker(run, dataclasses.asdict(recipe))
    texts = held_out_texts(recipe, corpus)

    # Score.
    scored(run, "before", lm, recipe, pairs)
    measure_retention(run, "before", lm, recipe, texts)

    # Fine-tune.
    kept = run.path("adapter" if recipe.method.lora else "model")
    if not kept.is_dir():
        fine_tune(run, recipe, lm, pairs, corpus, tracker, kept)
    del lm

    # Score again, from the files that a user would load.
    tuned = load_result(recipe, kept)
    if tuned.fingerprint == run.manifest["model"]["fingerprint"]:
        raise RuntimeError("the weights are the same before and after: nothing was trained")
    scored(run, "after", tuned, recipe, pairs)
    measure_retention(run, "after", tuned, recipe, texts)

    # Say what changed.
    if run.main:
        finish(run, recipe, tracker)


def inputs(recipe: Recipe) -> tuple[dict[str, Pairs], corpora.Corpus]:
    """Read benchmarks and corpus, before any weight, and refuse what can't be meant.

    Raises:
        RequestError: a file is missing or unreadable, or the corpus holds sentences of a
            benchmark, or its templates filled with its predicates.
    """
    if not recipe.benchmark:
        raise RequestError("no benchmark: benchmark=NAME")
    if not recipe.corpus:
        raise RequestError("no corpus: corpus=NAME")
    corpus = corpora.combine([corpora.load(some) for some in recipe.corpus.values()])
    pairs = {name: benchmarks.load(some) for name, some in recipe.benchmark.items()}
    rows = (row for some in pairs.values() for row in some.table.to_dict("records"))
    known = Benchmark.from_pairs({str(name): of for name, of in row.items()} for row in rows)
    found = len(overlap([*corpus.train, *corpus.valid], known))
    if found and not recipe.allow_contaminated:
        raise RequestError(
            f"{found} texts of the corpus hold sentences of the benchmark, or its templates "
            "filled, so the score after would mean nothing; `mitigate corpus … benchmark=NAME` cuts them "
            "out, or allow_contaminated=true (said in the report)"
        )
    corpus.facts["texts_with_benchmark_sentences"] = found
    return pairs, corpus


def scored(run: Run, when: str, lm: LanguageModel, recipe: Recipe, pairs: dict[str, Pairs]) -> None:
    """Write a Score table for each benchmark; one that the run already has is not made again."""
    for name, some in pairs.items():
        path = run.path(reporting.score_file(when, name, len(pairs)))
        if path.is_file() and scores.read(path).meta["model_fingerprint"] == lm.fingerprint:
            continue
        with run.timed(f"score {when} {name}"), progress(f"scoring {when}") as report:
            found = score(lm, some, recipe.score, store=scores_folder(), report=report)
        if run.main:
            scores.write(found, path)


def fine_tune(
    run: Run,
    recipe: Recipe,
    lm: LanguageModel,
    pairs: dict[str, Pairs],
    corpus: corpora.Corpus,
    tracker: Tracker,
    kept: Path,
) -> None:
    """Train by the recipe's method and keep the weights where `kept` says."""

    def log(values: dict[str, object]) -> None:
        run.log(values)
        tracker.log(values)

    path = run.path(curve.FILE)
    checkpoint = curve.Curve(path, recipe, lm, pairs, log) if recipe.curve.pairs else None
    context = Context(
        lm=lm,
        train=corpus.train,
        valid=corpus.valid,
        settings=recipe.method,
        lora_targets=recipe.model.lora_targets,
        seed=recipe.seed,
        processes=accelerate.PartialState().num_processes,
        checkpoints=run.path("checkpoints"),
        log=log,
        say=say,
        checkpoint=checkpoint,
    )
    with run.timed("train"):
        trained = method(recipe.method).train(context)
    run.note(training=trained.facts)
    if run.main:
        models.save_folder(trained.model, lm.tokenizer, kept)
    accelerate.PartialState().wait_for_everyone()


def load_result(recipe: Recipe, kept: Path) -> LanguageModel:
    """The fine-tuned model, from its folder: an adapter on the recipe's model, or whole."""
    given = dataclasses.replace(recipe.model)
    if recipe.method.lora:
        given.adapter = str(kept)
    else:
        given.path, given.adapter = str(kept), None
    return models.load(given)


def finish(run: Run, recipe: Recipe, tracker: Tracker) -> None:
    """Compare, write tables, figure, report and model card, and tell the user."""
    done = reporting.read_run(run.folder)
    comparisons = done.comparisons()
    figures = reporting.write(done, comparisons, run.folder)
    models.write_card(run, recipe, comparisons, done.retention)
    for name, comparison in comparisons.items():
        tracker.finding(name, len(comparisons) > 1, comparison, figures[name])
    tracker.summary(
        {
            f"retention/{text}/{key}": value
            for text, row in done.retention.items()
            for key, value in row.items()
            if isinstance(value, int | float)
        }
    )
    tracker.finish()
    run.finish()
    terminal.show(comparisons, run.path("report.html"), messages)


def benchmark_facts(pairs: Pairs) -> dict[str, object]:
    """What the manifest says of a benchmark, the rows left out listed with their reasons."""
    return {
        "hash": pairs.hash,
        "pairs": len(pairs),
        "clusters": int(pairs.table["stereotype_id"].nunique()),
        "left_out": pairs.left_out[["row", "reason"]].to_dict("records"),
        **pairs.source,
    }


def model_facts(recipe: Recipe, lm: LanguageModel) -> dict[str, object]:
    """What the manifest says of the model as it was before."""
    stated = recipe.model
    return {
        "name": lm.name,
        "kind": lm.kind,
        "class": type(lm.model).__name__,
        "source": stated.path or stated.hub or f"embedded ({stated.sample})",
        "licence": stated.licence,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "langs": stated.langs,
        "fingerprint": lm.fingerprint,
        "tokenizer_fingerprint": lm.tokenizer_fingerprint,
    }


if __name__ == "__main__":
    from mitigate.cli import guarded

    sys.exit(guarded(lambda: main(sys.argv[1:]), quiet=rank() != 0))
