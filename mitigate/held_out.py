"""Whether a run's model is still a language model: on what that is measured, and the gate.

Each measure is a file of its own in the run's folder `retention/`, written once for the model
before and once for the one after, so that a killed run measures nothing twice; retention.json is
made from those files.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import corpora
from corpora.samples.world import LANGUAGES, load_world, neutral_text
from eval import gate, grammar, inference, lm_tasks, scores
from eval.errors import RequestError
from eval.files import replacing
from eval.inference import Comparison
from eval.retention import change, divergence, grammar_scores, perplexity, predictions
from eval.scorers.model import LanguageModel
from eval.scorers.work import told
from mitigate import reporting
from mitigate.console import progress, scores_folder
from mitigate.run import Run
from mitigate.settings import Recipe

#: The file with the model's predictions before; gone when the run is done, since it is large.
PREDICTIONS = "predictions.npy"


def languages(recipe: Recipe) -> list[str]:
    """The run's languages: those of its corpora, then those of its benchmarks."""
    stated = [
        *(some.language for some in recipe.corpus.values()),
        *(some.language for some in recipe.benchmark.values()),
    ]
    return [language for language in dict.fromkeys(stated) if language]


def held_out_texts(recipe: Recipe, corpus: corpora.Corpus) -> dict[str, list[str]]:
    """Texts by kind: `neutral` names no identity, `general` is the user's, `corpus` its own.

    `neutral` is the embedded world's in the first of the run's languages that has one; of others
    the right sentences of the minimal pairs. `general` is the file of `retention.text`; `corpus`
    is what the corpus itself holds out.

    Raises:
        RequestError: the file of general text is missing or empty, or a gate is set and there is
            nothing to measure it on.
    """
    count = recipe.retention.sentences
    texts = {}
    own = languages(recipe)
    worlds = [language for language in own if language in LANGUAGES]
    pairs = [language for language in own if language in grammar.LANGUAGES]
    if worlds:
        texts["neutral"] = neutral_text(load_world(worlds[0]), count)
    elif pairs:
        texts["neutral"] = grammar.load(pairs[0]).table["sent_more"].tolist()[:count]
    if recipe.retention.text:
        texts["general"] = _lines(Path(recipe.retention.text))[:count]
    if corpus.valid:
        texts["corpus"] = corpus.valid[:count]
    settings = recipe.retention
    if settings.max_worse is not None and not texts:
        raise RequestError(
            f"retention.max_worse={settings.max_worse:g}: there is no text to measure it on; "
            "retention.text=FILE"
        )
    if settings.max_grammar_loss is not None and not (settings.grammar and pairs):
        raise RequestError(
            f"retention.max_grammar_loss={settings.max_grammar_loss:g}: no minimal pairs in "
            f"{', '.join(own) or 'no language'} (there are: {', '.join(grammar.LANGUAGES)}), or "
            "retention.grammar=false"
        )
    return texts


def check(recipe: Recipe, lm: LanguageModel) -> None:
    """Refuse what can't be measured, before anything is scored.

    Raises:
        RequestError: an untargeted benchmark that isn't chosen, or no other one; lm-eval for a
            masked model, or where it isn't installed.
    """
    for name in recipe.retention.untargeted:
        if name not in recipe.benchmark:
            raise RequestError(
                f"retention.untargeted: {name} is not among benchmark={','.join(recipe.benchmark)}"
            )
    if set(recipe.retention.untargeted) >= set(recipe.benchmark):
        raise RequestError("retention.untargeted: one benchmark at least must be aimed at")
    if recipe.retention.lm_eval:
        if lm.kind != "causal":
            raise RequestError(f"retention.lm_eval: is for causal models; {lm.name} is {lm.kind}")
        lm_tasks.check(recipe.retention.lm_eval, _tasks_folder(recipe))


def measure_retention(
    run: Run, when: str, lm: LanguageModel, recipe: Recipe, texts: Mapping[str, list[str]]
) -> None:
    """Measure one of the two models, `before` or `after`; what was measured stands.

    Every process takes part; the main process writes.
    """
    settings = recipe.retention

    def measured(name: str, what: object, work: Callable[[Any], dict[str, Any]]) -> None:
        """`work` once, into retention/<when>-<name>.json, with what it was measured on."""
        of = {"fingerprint": lm.fingerprint, "measured_on": _hash(what)}
        file = f"retention/{when}-{name}.json"
        if told(lambda: _has(run.path(file), of)):
            return
        with run.timed(f"{name} {when}"), progress(f"{name} {when}") as report:
            found = work(report)
        run.write_text(file, json.dumps({**of, **found}))

    for kind, some in texts.items():
        work = functools.partial(_perplexity, lm, some, recipe)
        measured(f"perplexity-{kind}", [some, settings.max_tokens], work)
    for language in languages(recipe) if settings.grammar else []:
        if language in grammar.LANGUAGES:
            _score_grammar(run, when, lm, recipe, language)
    if "neutral" in texts and settings.places:
        _compare_predictions(run, when, lm, recipe, texts["neutral"])
    if settings.lm_eval:
        folder = _tasks_folder(recipe)
        measured(
            "tasks",
            [settings.lm_eval, settings.lm_eval_limit],
            lambda report: {
                "tasks": lm_tasks.measure(
                    lm, settings.lm_eval, folder=folder, limit=settings.lm_eval_limit
                )
            },
        )
    if run.main:
        run.write_text("retention.json", json.dumps(_noted(run, recipe), indent=2))


def conclude(run: Run, recipe: Recipe, comparisons: Mapping[str, Comparison]) -> dict[str, Any]:
    """Add the untargeted benchmarks and the gate's verdict to retention.json; returns it.

    On the main process, when both models are measured; from here on the predictions that were
    kept are of no more use.
    """
    noted = _noted(run, recipe)
    untargeted = {}
    for name, comparison in comparisons.items():
        if reporting.benchmark_of(name) not in recipe.retention.untargeted:
            continue
        headline = comparison.headline
        untargeted[name] = {
            "before": float(headline["before"]),
            "after": float(headline["after"]),
            "change": float(headline["delta"]),
            "ci_low": float(headline["ci_low"]),
            "ci_high": float(headline["ci_high"]),
            "verdict": headline["verdict"],
        }
    if untargeted:
        noted["untargeted"] = untargeted
    settings = recipe.retention
    if settings.max_worse is not None or settings.max_grammar_loss is not None:
        noted["gate"] = gate.judged(noted, settings.max_worse, settings.max_grammar_loss)
    run.write_text("retention.json", json.dumps(noted, indent=2))
    run.path("retention", PREDICTIONS).unlink(missing_ok=True)
    return noted


def _perplexity(
    lm: LanguageModel, texts: list[str], recipe: Recipe, report: Callable[[int, int], None]
) -> dict[str, Any]:
    found = perplexity(
        lm,
        texts,
        max_tokens=recipe.retention.max_tokens,
        batch_tokens=recipe.score.batch_tokens,
        report=report,
    )
    return {
        "kind": found.kind,
        "value": found.value,
        "losses": found.losses.tolist(),
        "counts": found.counts.tolist(),
    }


def _score_grammar(run: Run, when: str, lm: LanguageModel, recipe: Recipe, language: str) -> None:
    """Score the minimal pairs of a language into a Score table, unless that is done."""
    path = run.path("retention", f"{when}-grammar_{language}.parquet")
    if told(lambda: _scored(path, lm, language)):
        return
    with run.timed(f"grammar {when} {language}"), progress(f"grammar {when}") as report:
        found = grammar_scores(
            lm,
            language,
            batch_tokens=recipe.score.batch_tokens,
            store=scores_folder(),
            report=report,
        )
    if run.main:
        scores.write(found, path)


def _compare_predictions(
    run: Run, when: str, lm: LanguageModel, recipe: Recipe, texts: list[str]
) -> None:
    """Keep the predictions before; after, note how far they have moved. On the main process."""
    if not run.main:
        return
    kept, file = run.path("retention", PREDICTIONS), "retention/divergence.json"
    of = {"fingerprint": lm.fingerprint, "measured_on": _hash([texts, recipe.retention.places])}
    if when == "before":
        if kept.is_file() and _has(run.path("retention", "predictions.json"), of):
            return
    elif _has(run.path(file), of):
        return
    with run.timed(f"predictions {when}"):
        found = predictions(lm, texts, places=recipe.retention.places)
    if when == "before":
        with replacing(kept) as temporary, temporary.open("wb") as out:
            np.save(out, found)
        run.write_text("retention/predictions.json", json.dumps(of))
    elif kept.is_file():
        moved = {"nats": divergence(np.load(kept), found), "places": len(found)}
        run.write_text(file, json.dumps({**of, **moved}))


def _noted(run: Run, recipe: Recipe) -> dict[str, Any]:
    """retention.json, as far as it can be made from what is measured."""
    folder = run.path("retention")
    how = recipe.inference
    noted: dict[str, Any] = {}
    for path in _ordered(folder.glob("before-perplexity-*.json")):
        kind = path.stem.removeprefix("before-perplexity-")
        before, after = _both(folder, f"perplexity-{kind}")
        noted[kind] = {
            "kind": before["kind"],
            "texts": len(before["losses"]),
            "tokens": int(sum(before["counts"])),
            "before": before["value"],
            "fingerprint_before": before["fingerprint"],
        }
        if after:
            noted[kind] |= {
                "after": after["value"],
                "fingerprint_after": after["fingerprint"],
                **change(
                    np.asarray(before["losses"], float),
                    np.asarray(after["losses"], float),
                    np.asarray(before["counts"]),
                    alpha=how.alpha,
                    resamples=how.resamples,
                    seed=how.seed,
                ),
            }
    for path in sorted(folder.glob("before-grammar_*.parquet")):
        later = path.with_name(path.name.replace("before", "after", 1))
        if later.is_file():
            language = path.stem.removeprefix("before-grammar_")
            plain = dataclasses.replace(how, ties="half", slices=[], second_cluster="none")
            found = inference.compare(
                scores.read(path), scores.read(later), plain, name=f"grammar_{language}"
            )
            noted.setdefault("grammar", {})[language] = _accuracy(found)
    moved = folder / "divergence.json"
    if moved.is_file():
        facts = json.loads(moved.read_text("utf-8"))
        noted["divergence"] = {key: facts[key] for key in ("nats", "places")}
    before, after = _both(folder, "tasks")
    if before and after:
        noted["tasks"] = lm_tasks.changes(before["tasks"], after["tasks"])
    return noted


def _accuracy(found: Comparison) -> dict[str, Any]:
    """Pairs right, in percent: whole, and by phenomenon, with the paired cluster interval."""

    def row(of: Mapping[Any, Any]) -> dict[str, Any]:
        return {
            "pairs": int(of["n_pairs"]),
            "clusters": int(of["n_clusters"]),
            "before": float(of["before"]),
            "after": float(of["after"]),
            "change": float(of["delta"]),
            "ci_low": float(of["ci_low"]),
            "ci_high": float(of["ci_high"]),
        }

    by_scope = {of["scope"]: row(of) for of in found.rows("bias").to_dict("records")}
    phenomena = {
        scope.removeprefix("group:"): of
        for scope, of in by_scope.items()
        if scope.startswith("group:")
    }
    return {**by_scope["overall"], "phenomena": phenomena}


def _both(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A measure before and after, as far as there is one of the same things."""
    found: list[dict[str, Any]] = []
    for when in ("before", "after"):
        path = folder / f"{when}-{name}.json"
        found.append(json.loads(path.read_text("utf-8")) if path.is_file() else {})
    before, after = found
    same = before.get("measured_on") == after.get("measured_on")
    return before, after if same else {}


def _ordered(files: Any) -> list[Path]:
    """Neutral text first: a table of runs takes the first."""
    return sorted(files, key=lambda path: ("neutral" not in path.name, path.name))


def _has(path: Path, of: Mapping[str, Any]) -> bool:
    """Whether a measure's file is there and of the same model and things."""
    if not path.is_file():
        return False
    found = json.loads(path.read_text("utf-8"))
    return all(found.get(key) == value for key, value in of.items())


def _scored(path: Path, lm: LanguageModel, language: str) -> bool:
    if not path.is_file():
        return False
    meta = scores.read(path).meta
    return (
        meta["model_fingerprint"] == lm.fingerprint
        and meta["benchmark_hash"] == grammar.load(language).hash
    )


def _hash(what: object) -> str:
    return hashlib.sha256(json.dumps(what, ensure_ascii=False).encode()).hexdigest()[:16]


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise RequestError(f"retention.text={path}: no such file")
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise RequestError(f"retention.text={path}: is not UTF-8") from error
    lines = [line for line in lines if line]
    if not lines:
        raise RequestError(f"retention.text={path}: is empty")
    return lines


def _tasks_folder(recipe: Recipe) -> Path | None:
    return Path(recipe.retention.lm_eval_path) if recipe.retention.lm_eval_path else None
