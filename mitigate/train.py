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
from corpora import filtering
from corpora.decontaminate import Benchmark, overlap
from eval import benchmarks, gate, scores
from eval.errors import RequestError
from eval.pairs import Pairs
from eval.prompts import Prompts
from eval.report import terminal
from eval.rules import PROMPTED
from eval.scorers import prompted, score
from eval.scorers.model import LanguageModel
from mitigate import card, completing, curve, held_out, hub, models, reporting, selection, settings
from mitigate.console import messages, progress, rank, say, scores_folder, show_recipe
from mitigate.held_out import held_out_texts, measure_retention
from mitigate.launching import check_strategy, check_world_size, use_threads
from mitigate.methods import Context, method, splits
from mitigate.methods.self_debias import SelfDebias
from mitigate.run import Run, check_folder, open_run
from mitigate.settings import Recipe
from mitigate.signals import Stopped, listening
from mitigate.tracking import Tracker


def main(words: Sequence[str]) -> Path:
    """Run the main job for a command's `key=value` words; returns the run's folder."""
    recipe = settings.from_words(words, recipe="demo")
    show_recipe(recipe)
    pairs, prompts, corpus = inputs(recipe)
    preferences = splits.preferences(recipe, pairs)
    if preferences is not None:
        pairs = preferences.evaluated
        say(preferences.sentence())
    parts = selection.divide(pairs, recipe.selection)
    held_out_texts(recipe, corpus)  # so that a gate without a text ends here
    check_folder(recipe)
    check_world_size(recipe)
    hub.check(recipe)
    curve.check(recipe)
    chosen = method(recipe.method)
    models.prepare(recipe.model)
    state = accelerate.PartialState(cpu=recipe.launch.cpu)  # starts the process group
    real = check_strategy(recipe, state)
    threads = use_threads(recipe, state)
    # Only `job` may hold the model: it has to be gone before the fine-tuned one is loaded.
    loaded = [models.load(recipe.model)]
    chosen.check(loaded[0], recipe.method, recipe.model.lora_targets, state.num_processes)
    held_out.check(recipe, loaded[0])
    completing.check_model(recipe, loaded[0], prompts)
    with listening(), closing(open_run(recipe, "mitigate train " + " ".join(words))) as run:
        run.note(strategy=real, threads=threads)
        try:
            job(run, recipe, parts, corpus, loaded.pop(), preferences, prompts)
        except Stopped:
            run.note(status="stopped")
            raise
    return run.folder


def job(
    run: Run,
    recipe: Recipe,
    parts: selection.Parts,
    corpus: corpora.Corpus,
    lm: LanguageModel,
    preferences: splits.Split | None,
    prompts: dict[str, Prompts],
) -> None:
    """Everything between an open run folder and a finished one. The line, in order."""
    pairs = parts.claim
    run.note(
        selection=parts.facts,
        wandb_id=run.manifest.get("wandb_id", run.folder.name),
        corpus=corpus.facts,
        benchmarks={name: benchmark_facts(some) for name, some in pairs.items()},
    )
    if preferences is not None:
        run.note(preferences=preferences.facts, notes=preferences.notes)
    if prompts:
        run.note(prompts=completing.facts(prompts))
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
    scored(run, "before", lm, recipe, parts.choose or {}, selection.FOLDER)
    completing.completed(run, "before", lm, recipe, prompts)
    measure_retention(run, "before", lm, recipe, texts)

    # Fine-tune.
    kept = run.path("adapter" if recipe.method.weights == "lora" else "model")
    if not kept.is_dir():
        fine_tune(run, recipe, lm, parts.choose or pairs, corpus, tracker, kept, preferences)
    del lm

    # Score again, from the files that a user would load.
    tuned = load_result(recipe, kept)
    if tuned.fingerprint == run.manifest["model"]["fingerprint"]:
        raise RuntimeError("the weights are the same before and after: nothing was trained")
    scored(run, "after", tuned, recipe, pairs)
    scored(run, "after", tuned, recipe, parts.choose or {}, selection.FOLDER)
    completing.completed(run, "after", tuned, recipe, prompts)
    measure_retention(run, "after", tuned, recipe, texts)

    # Say what changed.
    if recipe.result.merge and run.main:
        merge(run, recipe, tuned, [text for some in texts.values() for text in some])
    if run.main:
        completing.judged(run, recipe, prompts)
        finish(run, recipe, tracker)


def inputs(recipe: Recipe) -> tuple[dict[str, Pairs], dict[str, Prompts], corpora.Corpus]:
    """Read benchmarks and corpus, before any weight, and refuse what can't be meant.

    Raises:
        RequestError: a file is missing or unreadable, no benchmark is of pairs, or the corpus
            holds sentences of one, or its templates filled with its predicates.
    """
    models.check_weights(recipe.model)
    if not recipe.benchmark:
        raise RequestError("no benchmark: benchmark=NAME")
    if not recipe.corpus:
        raise RequestError("no corpus: corpus=NAME")
    completing.check(recipe)
    corpus = corpora.combine([corpora.load(some) for some in recipe.corpus.values()])
    pairs = {name: benchmarks.load(recipe.benchmark[name]) for name in completing.of_pairs(recipe)}
    prompts = completing.read(recipe)
    if recipe.score.scorer == PROMPTED:
        for asked in pairs.values():
            prompted.check(asked, recipe.score)
    rows = (row for some in pairs.values() for row in some.table.to_dict("records"))
    known = Benchmark.from_pairs({str(name): of for name, of in row.items()} for row in rows)
    found = len(overlap([*corpus.train, *corpus.valid], known))
    if found and not recipe.allow_contaminated:
        raise RequestError(
            f"{found} texts of the corpus hold sentences of the benchmark, or its templates "
            "filled, so the score after would mean nothing; `mitigate corpus … benchmark=NAME` "
            "cuts them out, or allow_contaminated=true (said in the report)"
        )
    corpus.facts["texts_with_benchmark_sentences"] = found
    for name, some in recipe.corpus.items():  # what a filter of the text knew of the evaluation
        for title, of in pairs.items() if some.stereotypes else ():
            said = of.table[["sent_more", "stereotype_id"]].itertuples(index=False, name=None)
            listed, all_of_them = filtering.evaluated(some, said)
            noted = corpus.facts.setdefault("evaluated_stereotypes_filtered", {})
            noted[f"{title} by {name}"] = f"{listed} of {all_of_them}"
    return pairs, prompts, corpus


def scored(
    run: Run,
    when: str,
    lm: LanguageModel,
    recipe: Recipe,
    pairs: dict[str, Pairs],
    folder: str = "",
) -> None:
    """Write a Score table for each benchmark; one that the run already has is not made again.

    In prompted choice there is one for each benchmark and persona.
    """
    tables = reporting.score_tables(recipe)
    for name, (benchmark, persona) in tables.items() if pairs else ():
        path = run.path(folder, reporting.score_file(when, name, len(tables)))
        if path.is_file() and scores.read(path).meta["model_fingerprint"] == lm.fingerprint:
            continue
        what = f"score {when} {name}"
        what = f"{what} ({folder})" if folder else what
        with run.timed(what), progress(f"scoring {when}") as report:
            found = score(
                lm,
                pairs[benchmark],
                recipe.score,
                persona=persona,
                store=scores_folder(),
                report=report,
            )
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
    preferences: splits.Split | None = None,
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
        pairs=None if preferences is None else (preferences.train, preferences.valid),
        language=next(iter(recipe.corpus.values())).language,
    )
    with run.timed("train"):
        trained = method(recipe.method).train(context)
    run.note(training=trained.facts)
    state = models.whole_state(trained.model)
    if run.main:
        models.save_folder(trained.model, lm.tokenizer, kept, state)
    accelerate.PartialState().wait_for_everyone()


def load_result(recipe: Recipe, kept: Path) -> LanguageModel:
    """The fine-tuned model, from its folder: whole, or what goes on top of the recipe's model."""
    rule = SelfDebias.read(kept)
    if rule is not None:
        return rule.around(models.load(recipe.model))
    given = dataclasses.replace(recipe.model)
    if recipe.method.weights == "lora":
        given.adapter = str(kept)
    else:
        given.path, given.adapter = str(kept), None
    return models.load(given)


def merge(run: Run, recipe: Recipe, tuned: LanguageModel, texts: list[str]) -> None:
    """Merge the adapter into `model/` beside it; where that isn't the same, say so and leave it."""
    folder = run.path("model")
    if recipe.method.weights != "lora" or folder.is_dir():
        return
    try:
        with run.timed("merge"):
            apart = models.merge(tuned, recipe.model, texts, folder)
        kept, why = folder.is_dir(), f"its logits are {apart:.1e} off, more than {models.SAME:.0e}"
    except models.MergeError as error:
        apart, kept, why = None, False, str(error)
    run.note(merged={"kept": kept, "difference": apart, "why": "" if kept else why})
    say(f"merged into {folder}" if kept else f"not merged, only the adapter is kept: {why}")


def finish(run: Run, recipe: Recipe, tracker: Tracker) -> None:
    """Compare, write tables, figure, report and model card, and tell the user."""
    done = reporting.read_run(run.folder)
    comparisons = done.comparisons()
    done.retention.update(held_out.conclude(run, recipe, comparisons))
    levels = reporting.note_selection(run, done)
    figures = reporting.write(done, comparisons, run.folder)
    card.write(run, recipe, comparisons, done.retention)
    for name, comparison in comparisons.items():
        tracker.finding(name, len(comparisons) > 1, comparison, figures[name])
    tracker.summary({**gate.summary(done.retention), **selection.summary(levels)})
    if gate.degraded(done.retention):
        tracker.tag("degraded")
    if run.manifest.get("preferences", {}).get("same_benchmark"):
        tracker.tag("trained on the benchmark's distribution")
    tracker.finish()
    if recipe.hub.push:  # before the run is finished, so that the same command tries again
        hub.push(run, recipe, run.path("model" if run.path("model").is_dir() else "adapter"))
    run.finish()
    terminal.show(comparisons, run.path("report.html"), messages)
    written = [line for change in done.completions.values() for line in change.sentences()]
    for line in [
        *written,
        *reporting.retention_lines(done.retention),
        *run.manifest.get("notes", []),
    ]:
        say(line)


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
        "dtype": lm.precision,
        "langs": stated.langs,
        "fingerprint": lm.fingerprint,
        "tokenizer_fingerprint": lm.tokenizer_fingerprint,
    }


if __name__ == "__main__":
    from mitigate.cli import guarded

    sys.exit(guarded(lambda: main(sys.argv[1:]), quiet=rank() != 0))
