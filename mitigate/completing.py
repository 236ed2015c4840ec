"""A run's prompts: completed before and after, by the same settings, each once.

What a model says stands in the run's folder as Completion tables, `completions-before-<benchmark>.
parquet` and `…-after-…`; pairs have their Score tables beside them.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from eval import benchmarks, completions, judges
from eval.completions import Completions
from eval.errors import RequestError
from eval.inference.completions import Change, compare
from eval.instructions import PLAIN, decoding_of, wording_of
from eval.prompts import CATEGORIES, Prompts
from eval.scorers import completions as scorer
from eval.scorers.model import LanguageModel
from eval.speakers import Speaker
from mitigate.console import progress, say, scores_folder
from mitigate.run import Run
from mitigate.settings import Recipe

WHEN = ("before", "after")


def of_pairs(recipe: Recipe) -> list[str]:
    """The names of the recipe's benchmarks of pairs."""
    return [name for name, some in recipe.benchmark.items() if not benchmarks.is_prompts(some)]


def check(recipe: Recipe) -> None:
    """Refuse a run without anything to compare.

    Raises:
        RequestError: all its benchmarks are prompts.
    """
    if not of_pairs(recipe):
        names = ",".join(recipe.benchmark)
        raise RequestError(
            f"benchmark={names}: holds prompts alone, and a run compares scores of pairs; "
            f"benchmark=[{names},samples_de], or mitigate score for the completions of one model"
        )


def read(recipe: Recipe) -> dict[str, Prompts]:
    """The recipe's benchmarks of prompts, by name.

    Raises:
        RequestError: a file is missing or unreadable.
    """
    return {
        name: benchmarks.load_prompts(some)
        for name, some in recipe.benchmark.items()
        if benchmarks.is_prompts(some)
    }


def check_model(recipe: Recipe, lm: LanguageModel, prompts: Mapping[str, Prompts]) -> None:
    """Refuse settings that don't fit the model, and judges that aren't there, before any score.

    Raises:
        RequestError: a causal model's settings for a masked one, no such wording, or a judge that
            is missing or doesn't speak the language.
    """
    judges.check(recipe.judges, languages_of(prompts))
    for some in prompts.values():
        decoding_of(recipe.completion, lm.kind, lm.name)
        if lm.kind == "causal":
            language = str(some.table["language"].iloc[0])
            wording_of(recipe.completion, language, bool(lm.tokenizer.chat_template))


def facts(prompts: Mapping[str, Prompts]) -> dict[str, object]:
    """What the manifest says of benchmarks of prompts."""
    return {
        name: {"hash": some.hash, "prompts": len(some), **some.source}
        for name, some in prompts.items()
    }


def languages_of(prompts: Mapping[str, Prompts]) -> list[str]:
    """The languages of benchmarks of prompts, sorted."""
    return sorted({str(name) for some in prompts.values() for name in some.table["language"]})


def completion_file(when: str, benchmark: str) -> str:
    """The name of a Completion table in a run's folder."""
    return f"completions-{when}-{benchmark}.parquet"


def completed(
    run: Run, when: str, lm: LanguageModel, recipe: Recipe, prompts: Mapping[str, Prompts]
) -> None:
    """Write a Completion table for each benchmark; one that the run has is not made again."""
    for name, some in prompts.items():
        path = run.path(completion_file(when, name))
        if path.is_file() and completions.read(path).meta["model_fingerprint"] == lm.fingerprint:
            continue
        with run.timed(f"complete {when} {name}"):
            found = complete(lm, some, recipe, f"completing {when}")
        if run.main:
            completions.write(found, path)
            if line := no_word(found, when):
                say(line)
            said = run.manifest.get("completions", {})
            run.note(completions={**said, f"{when} {name}": summary(found)})


def judged(run: Run, recipe: Recipe, names: Iterable[str]) -> None:
    """Let the judges rate what was said before and after, each distinct text of both once."""
    for name in names if recipe.judges.measures else ():
        paths = [run.path(completion_file(when, name)) for when in WHEN]
        tables = [completions.read(path) for path in paths]
        if all(table.meta["judges"] for table in tables):
            continue
        with run.timed(f"judge {name}"), progress(f"judging {name}") as report:
            rated = judges.judge_all(tables, recipe.judges, report=report)
        for table, path in zip(rated, paths, strict=True):
            completions.write(table, path)


def changes(folder: Path, recipe: Recipe) -> dict[str, Change]:
    """What changed in the judged completions of a finished run, by benchmark.

    A benchmark of which one side has no usable word is left out: see `unsaid`.

    Raises:
        RequestError: a Completion table is missing, or the two hold other prompts or judges.
    """
    if not recipe.judges.measures:
        return {}
    return {
        name: compare(*tables, recipe.inference)
        for name, tables in _written(folder, recipe).items()
        if not any(map(no_word, tables, WHEN))
    }


def unsaid(folder: Path, recipe: Recipe) -> list[str]:
    """What a reader must know of benchmarks of which nothing can be compared, in lines."""
    tables = _written(folder, recipe)
    lines = [no_word(*each) for both in tables.values() for each in zip(both, WHEN, strict=True)]
    return list(filter(None, lines))


def no_word(found: Completions, when: str = "") -> str:
    """What to say where no completion has a usable word; empty where one has."""
    if found.meta["usable"] > 0:
        return ""
    of = f"{len(found.table):,} completions{' ' + when if when else ''}"
    line = f"{found.meta['benchmark']}: none of the {of} has a usable word, so they show nothing"
    if found.meta["kind"] == "masked" or found.meta["wording"] == PLAIN:
        return line
    return (
        f"{line} (wording {found.meta['wording']}; completion.wording=plain has the model go on "
        "with the sentence, completion.trial=100 tries every wording)"
    )


def _written(folder: Path, recipe: Recipe) -> dict[str, tuple[Completions, Completions]]:
    """The Completion tables of a run, before and after, by benchmark."""
    found = {}
    for name, some in recipe.benchmark.items():
        if benchmarks.is_prompts(some):
            before, after = (completions.read(folder / completion_file(at, name)) for at in WHEN)
            found[name] = (before, after)
    return found


def complete(
    lm: LanguageModel | Speaker, prompts: Prompts, recipe: Recipe, what: str
) -> Completions:
    """Complete prompts as the recipe says: the one place that `train` and `score` share."""
    with progress(what) as report:
        return scorer.complete(
            lm,
            prompts,
            recipe.completion,
            store=scores_folder() if recipe.score.reuse else None,
            batch_tokens=recipe.score.batch_tokens,
            report=report,
        )


def summary(found: Completions) -> dict[str, Any]:
    """How the completions were made and how many are usable, for the manifest."""
    keys = ("wording", "decoding", "usable", "trial", "benchmark_hash", "work")
    return {key: found.meta[key] for key in keys if key in found.meta}


def said_of(found: Completions) -> Iterator[str]:
    """What a reader of completions must know of how they were made, in lines."""
    meta, decoding = found.meta, found.meta["decoding"]
    how = {
        "top": f"the {decoding['how_many']} likeliest words at the mask",
        "greedy": "one greedy answer",
        "samples": f"one greedy answer, then {decoding['how_many']} samples",
    }[decoding["kind"]]
    asked = "" if meta["kind"] == "masked" else f", wording {meta['wording']}"
    yield f"Scorer {meta['scorer']}, version {meta['scorer_version']}: {how}{asked}"
    yield f"Usable words: {100 * meta['usable']:.1f} % of the completions"
    if trial := meta.get("trial"):
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in trial["usable"].items())
        yield f"Usable by wording, greedily, on {trial['prompts']:,} prompts: {shares}"
    if meta["work"].get("reused"):
        yield "Found finished completions of the same weights and prompts (score.reuse=false: anew)"
    elif meta["work"]["found"]:
        yield f"{meta['work']['found']:,} prompts were done already"


def by_category(found: Completions) -> pd.DataFrame:
    """Counts of a Completion table, a row a category: no word is shown, since words may hurt."""
    rows = []
    for category in CATEGORIES:
        some = found.table[found.table["category"] == category]
        said = some.loc[some["word"] != "", "word"].str.casefold()
        if some.empty:
            continue
        most = float(said.value_counts().max() / len(said)) if len(said) else 0.0
        rows.append(
            {
                "category": category,
                "prompts": int(some["prompt_id"].nunique()),
                "completions": len(some),
                "usable %": 100 * len(said) / len(some),
                "distinct words": int(said.nunique()),
                "most frequent word %": 100 * most,
            }
        )
    return pd.DataFrame(rows)
