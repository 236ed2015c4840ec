"""The console script `mitigate`: train, sweep, score, compare, report, corpus, export, …

Exit status: 0 done; 2 the request is wrong; 1 it failed while running.
"""

import errno
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import corpora.errors
import eval.errors
from mitigate.console import STATUS, messages, say

USAGE = """\
Score a language model's bias, fine-tune it, score it again, and say what changed.

  mitigate train    recipe=NAME [key=value …]             score, fine-tune, score, compare
  mitigate sweep    recipe=NAME key=A,B … [out=DIR]       that for every combination, side by side
  mitigate score    model=NAME|model.path=DIR benchmark=NAME [benchmark.path=FILE] out=FILE.parquet
  mitigate describe benchmark=NAME [out=DIR] [json=true]  what a benchmark is made of
  mitigate compare  BEFORE AFTER [out=DIR] [pairs=common] two score files, or two run folders
  mitigate compare  EARLIER power=true [clusters=N]       the smallest change that could be shown
  mitigate prompted FILE [FILE …] [out=DIR]               position and personas in answers
  mitigate report   RUN [RUN …] [out=DIR]                 one run again, or many, or a sweep's
  mitigate export   lm-eval benchmark=NAME out=DIR        as tasks of lm-evaluation-harness
  mitigate corpus   mastodon|taz|text out=DIR [key=value …]   prepare a corpus once
  mitigate corpus   forget corpus=DIR author=…|post=…|instance=…   take it out, for good
  mitigate corpus   recheck DIR                           take out what its source deleted
  mitigate recipes                                        every recipe, a line each
  mitigate doctor                                         what this machine and its caches can do
"""
REQUEST_ERRORS = (eval.errors.RequestError, corpora.errors.RequestError)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(guarded(lambda: dispatch(sys.argv[1:])))


def dispatch(words: Sequence[str]) -> int:
    """Run the command that the first word names."""
    if not words or words[0] == "help" or {"-h", "--help"} & set(words):
        print(USAGE, end="")
        return 0
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        from mitigate.settings import nearest

        raise eval.errors.RequestError(f"no command {command}; {nearest(command, COMMANDS)}")
    return COMMANDS[command](rest)


def guarded(work: Callable[[], Any], *, quiet: bool = False) -> int:
    """Run `work` and turn the ways it can end into an exit status and one line.

    A wrong request and an interrupt need no trace; a failure of ours does, before the line.
    `quiet`: another process says it.
    """
    line, status = "", 0
    _hush()
    try:
        result = work()
        status = result if isinstance(result, int) else 0
    except REQUEST_ERRORS as error:
        line, status = f"mitigate: {error}", 2
    except (corpora.errors.Stopped, eval.errors.Stopped) as stopped:
        line, status = f"mitigate: {stopped}", 1
    except KeyboardInterrupt as stopped:  # SIGTERM says what it saved
        line, status = f"mitigate: {str(stopped) or 'interrupted'}; {_go_on()}", 1
    except Exception as error:  # noqa: BLE001  the last line of defence: it is told, then ends
        if _disk_is_full(error):
            line = "mitigate: No space left on device"
        elif _out_of_memory(error):
            line = f"mitigate: out of memory; {LESS_MEMORY}"
        else:
            traceback.print_exc()
            line = f"mitigate: {type(error).__name__}: {error}"
        line, status = f"{line}; {_go_on()}", 1
    if line and not quiet:
        print(line, file=sys.stderr, flush=True)
        if os.environ.get(STATUS):
            Path(os.environ[STATUS]).write_text(f"{status} {line}", encoding="utf-8")
    return status


#: A disk with less room than this is full: nothing of ours fits any more.
FULL = 2**20  # bytes


def _disk_is_full(error: Exception) -> bool:
    """Whether the run failed for want of room; torch and safetensors don't say so in errno."""
    from mitigate.run import current_folder

    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return True
    folder = current_folder()
    # Somebody may have removed the folder, which is then the error to be told.
    return folder is not None and folder.is_dir() and shutil.disk_usage(folder).free < FULL


#: What a user can do: the first goes on in the same folder, the others are another run.
LESS_MEMORY = (
    "while scoring, score.batch_tokens=N with a smaller N; while training, a smaller method.batch "
    "with more method.accumulation, or a smaller method.block, in a new folder (what is scored is "
    "found again); mitigate doctor says what fits"
)


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of the machine or of a GPU; torch's CPU allocator has no class."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in said or "not enough memory" in said
    )


def _go_on() -> str:
    """What is saved, and the command that goes on from there."""
    from mitigate.run import current_folder

    folder = current_folder()
    if folder is None:
        return "nothing was begun"
    return f"what is done is in {folder}; the same command with run.dir={folder} goes on"


def _hush() -> None:
    """Other people's deprecations out of the user's sight; warnings of ours stay, in a line."""
    warnings.formatwarning = lambda message, *where: f"mitigate: warning: {message}\n"
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)


def train(words: Sequence[str]) -> int:
    """`mitigate train`: the main job here, or through the launcher that the recipe names."""
    from mitigate import settings

    recipe = settings.from_words(words, recipe="demo")
    # Only now: a mistyped word is answered before torch is imported.
    from mitigate import launching
    from mitigate import train as job

    if not launching.needs_launcher(recipe):
        job.main(words)
        return 0
    from mitigate.run import check_folder

    check_folder(recipe)
    job.inputs(recipe)  # so that a wrong request ends here, in one line and with status 2
    return launching.launch(recipe, words)


def score(words: Sequence[str]) -> int:
    """`mitigate score`: a model on a benchmark, into a Score table or a Completion table."""
    out, words = _take(words, "out")
    if not out:
        raise eval.errors.RequestError("score: where to? out=FILE.parquet")
    from eval import benchmarks
    from mitigate import settings

    chosen = {word.partition("=")[0] for word in words}
    if "benchmark" not in chosen:
        names = ", ".join(settings.available("benchmark"))
        raise eval.errors.RequestError(f"score: which benchmark? benchmark=NAME ({names})")
    if not chosen & {"model", "model.path", "model.hub", "model.base_url", "recipe"}:
        raise eval.errors.RequestError("score: which model? model=NAME or model.path=DIR")
    recipe = settings.from_words(words, recipe=None)
    if len(recipe.benchmark) != 1:
        raise eval.errors.RequestError("score: one benchmark a file")
    (name, benchmark), path = next(iter(recipe.benchmark.items())), Path(out)
    if path.suffix != ".parquet":
        raise eval.errors.RequestError(f"out={out}: a Score table is a .parquet file")
    if benchmarks.is_prompts(benchmark):
        return _complete(recipe, benchmarks.load_prompts(benchmark), path)
    pairs = benchmarks.load(benchmark)
    # Only now: what is wrong so far is answered before torch is imported.
    import accelerate

    from eval import scorers
    from eval.rules import PROMPTED
    from eval.scorers import prompted as prompted_choice
    from mitigate import models
    from mitigate.console import scores_folder

    asked = recipe.score.scorer == PROMPTED
    if asked:
        prompted_choice.check(pairs, recipe.score)
    if recipe.model.base_url is not None:
        from mitigate import speaking

        speaker = speaking.remote(recipe.model, reuse=recipe.score.reuse)

        def ask(persona: str | None, report: Callable[[int, int], None]) -> Any:
            whom = str(persona or recipe.score.personas[0])
            found = prompted_choice.spoken(
                speaker, pairs, recipe.score, persona=whom, report=report
            )
            found.meta["work"] |= speaker.facts
            return found

        _score_each(recipe, name, path, ask)
        return 0
    models.prepare(recipe.model)
    state = accelerate.PartialState(cpu=recipe.launch.cpu)
    lm = models.load(recipe.model)

    def compute(persona: str | None, report: Callable[[int, int], None]) -> Any:
        return scorers.score(
            lm, pairs, recipe.score, persona=persona, store=scores_folder(), report=report
        )

    _score_each(recipe, name, path, compute)
    state.wait_for_everyone()
    return 0


def _score_each(
    recipe: Any,
    name: str,
    path: Path,
    scored: Callable[[str | None, Callable[[int, int], None]], Any],
) -> None:
    """Score once, or as each persona, into a file each; print what was found."""
    from eval import scores
    from eval.rules import PROMPTED
    from mitigate.console import progress, rank

    asked = recipe.score.scorer == PROMPTED
    personas: Sequence[str | None] = recipe.score.personas if asked else [None]
    tables = {}
    for persona in personas:
        with progress("scoring") as report:
            found = scored(persona, report)
        if rank() == 0:
            where = path.with_stem(f"{path.stem}-{persona}") if len(personas) > 1 else path
            scores.write(found, where)
            _print_measures(f"{name} {persona}" if asked else name, found, recipe.inference.ties)
            for line in _said_of(found.meta):
                say(line)
            say(f"{len(found.table):,} {'answers' if asked else 'pairs'} in {where}")
            tables[str(persona)] = found
    if asked and rank() == 0:
        from mitigate import asking

        asking.show(tables, recipe.inference)


def _complete(recipe: Any, prompts: Any, path: Path) -> int:
    """`mitigate score` on prompts: what a model says to each, into a Completion table."""
    import accelerate

    from eval import completions, judges
    from eval.inference.completions import study
    from mitigate import completing, models, speaking
    from mitigate.console import rank

    judges.check(recipe.judges, completing.languages_of({prompts.name: prompts}))
    if recipe.model.base_url is not None:
        speaker = speaking.remote(recipe.model, reuse=recipe.score.reuse)
        found = completing.complete(speaker, prompts, recipe, "completing")
    else:
        models.prepare(recipe.model)
        accelerate.PartialState(cpu=recipe.launch.cpu)  # starts the process group
        found = completing.complete(models.load(recipe.model), prompts, recipe, "completing")
    if rank() == 0:
        found = judges.judge(found, recipe.judges)
        completions.write(found, path)
        messages.print(_rich_table(prompts.name, completing.by_category(found)))
        shown: list[str] = []
        if line := completing.no_word(found):
            shown = [line]
        elif found.meta["judges"]:
            shown = study(found, recipe.inference, with_mixed=False).sentences()
        for line in [*completing.said_of(found), *shown]:
            say(line)
        say(f"{len(found.table):,} completions of {len(prompts):,} prompts in {path}")
    accelerate.PartialState().wait_for_everyone()
    return 0


def _said_of(meta: dict[str, Any]) -> Iterator[str]:
    """What a reader of scores must know of how they were made, in lines."""
    work = meta["work"]
    yield f"Scorer {meta['scorer']}, version {meta['scorer_version']}: {meta['rule']}"
    left_out = ", ".join(f"{count} {why}" for why, count in meta["rows_left_out"].items())
    yield f"Left out: {left_out or 'none'}"
    checks = meta["confounds"]
    drivers = {"tokens": checks["length_r"], "log word frequency": checks["frequency_r"]}
    known = [f"{r:+.2f} with {what}" for what, r in drivers.items() if r is not None]
    if known:
        yield f"Margins correlate {', '.join(known)} (difference between the two sentences)"
    noise = meta.get("noise")
    if "noise" in meta and noise is None:
        yield f"{meta['dtype']}: its noise was not measured, since weights are kept off the device"
    if noise:
        yield (
            f"{meta['dtype']}: margins are off by up to {noise['largest']:.4f} nats "
            f"(on {noise['pairs']} pairs scored in float32 too); the sign of "
            f"{noise['sign_could_flip']} pairs could be the other"
        )
    if "calls" in work:
        cost = "" if work["cost"] is None else f", {work['cost']:.4g} at the prices stated"
        yield (
            f"{work['answers']:,} answers, {work['calls']:,} asked for now: "
            f"{work['prompt_tokens']:,} tokens of prompts and {work['answer_tokens']:,} of "
            f"answers{cost}; {work['bounded']:,} options at the bound of the likeliest tokens "
            f"listed, {work['unlisted']:,} prompts without any, {work['filtered']:,} filtered"
        )
    elif work.get("reused"):
        yield "Found finished scores of the same weights and pairs (score.reuse=false: anew)"
    else:
        found = f" ({work['found']:,} were done already)" if work["found"] else ""
        yield (
            f"{work['requests']:,} log-probabilities{found}, {work['tokens']:,} tokens computed in "
            f"{work['seconds']:.1f} s ({work['arrangement']})"
        )


def _print_measures(name: str, found: Any, ties: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from eval.metrics import measure

    shown = Table(title=Text(name), title_justify="left")
    shown.add_column("scope")
    columns = ("n_pairs", "n_clusters", "bias", "soft", "margin", "distance", "ties")
    for column in columns:
        shown.add_column(column, justify="right")
    for row in measure(found, ties).to_dict("records"):
        digits = {"n_pairs": "d", "n_clusters": "d", "margin": ".4f"}
        shown.add_row(
            Text(row["scope"]), *(format(row[key], digits.get(key, ".2f")) for key in columns)
        )
    messages.print(shown)


def describe(words: Sequence[str]) -> int:
    """`mitigate describe`: what a benchmark is made of, in numbers; no sentence is shown."""
    out, words = _take(words, "out")
    as_json, words = _take(words, "json")
    chosen = {word.partition("=")[0] for word in words}
    if "benchmark" not in chosen:
        raise eval.errors.RequestError("describe: which benchmark? benchmark=NAME")
    import json

    from rich.text import Text

    from eval import benchmarks, datasheet
    from eval import describe as facts
    from mitigate import settings

    recipe = settings.from_words(words, recipe=None)
    if len(recipe.benchmark) > 2 or (out and len(recipe.benchmark) > 1):
        raise eval.errors.RequestError("describe: one benchmark, or two without out= to compare")
    pairs, *others = [benchmarks.load(some) for some in recipe.benchmark.values()]
    tokenizer = None
    if chosen & {"model", "model.path", "model.hub"}:
        from mitigate import models

        tokenizer = models.load_tokenizer(recipe.model)
    found = facts.describe(pairs, tokenizer, others[0] if others else None)
    if as_json == "true":
        print(json.dumps(facts.as_dict(found), ensure_ascii=False, allow_nan=False, indent=2))
    else:
        for title, frame in facts.tables(found):
            shown = _rich_table(title, frame)
            messages.print(shown)
            messages.print(Text())
    for path in datasheet.write(pairs, Path(out), found) if out else []:
        say(f"Written: {path}")
    return 0


def _rich_table(title: str, frame: Any) -> Any:
    """A table of facts for the terminal; shares and harm with their digits."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    def cell(value: Any, column: str) -> str:
        if isinstance(value, float):
            if value != value:
                return "–"
            if column in ("share", "of this", "of the other"):
                return f"{value:.1f} %"
            return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"
        return f"{value:,}" if isinstance(value, int) else str(value)

    shown = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    numeric = [frame[column].map(lambda v: not isinstance(v, str)).all() for column in frame]
    for column, right in zip(frame.columns, numeric, strict=True):
        shown.add_column(str(column), justify="right" if right else "left")
    for row in frame.to_dict("records"):
        shown.add_row(*(Text(cell(value, str(column))) for column, value in row.items()))
    return shown


def compare(words: Sequence[str]) -> int:
    """`mitigate compare BEFORE AFTER`: two score files, or the results of two runs."""
    from mitigate import comparing

    comparing.run(comparing.from_words(words))
    return 0


def prompted(words: Sequence[str]) -> int:
    """`mitigate prompted FILE [FILE …]`: position and personas in answers that are there."""
    from mitigate import asking

    asking.run(words)
    return 0


def report(words: Sequence[str]) -> int:
    """`mitigate report RUN [RUN …]`: make a run's report again, or set many side by side."""
    out, words = _take(words, "out")
    folders = [Path(word) for word in words]
    if not folders:
        raise eval.errors.RequestError("report: which run? mitigate report RUN [RUN …] [out=DIR]")
    # A folder may have a sign of equality in its name.
    wrong = [word for word in words if not Path(word).exists() and ("=" in word or word[0] == "-")]
    if wrong:
        raise eval.errors.RequestError(f"report: {wrong[0]}: takes run folders and out=DIR")
    from mitigate import reporting, side_by_side, sweep

    target = Path(out) if out else None
    swept = [folder for folder in folders if (folder / sweep.FILE).is_file()]
    folders = [run for folder in folders for run in sweep.run_folders(folder)]
    if swept and target is None:
        target = swept[0] / sweep.PAGE
    if len(folders) == 1:
        where: Path | None = reporting.again(folders[0], target)
    else:
        where = side_by_side.show(folders, target)
    if where is not None:
        say(f"Report: {where}")
    return 0


def sweep(words: Sequence[str]) -> int:
    """`mitigate sweep`: runs for every combination of values, then all of them side by side."""
    out, words = _take(words, "out")
    from mitigate import sweep as job

    return job.run(words, Path(out) if out else None)


#: What `mitigate export` writes for.
TARGETS = ("lm-eval",)


def export(words: Sequence[str]) -> int:
    """`mitigate export lm-eval`: benchmarks as task files that another harness takes."""
    out, words = _take(words, "out")
    if not words or words[0] not in TARGETS:
        said = words[0] if words else "nothing"
        raise eval.errors.RequestError(
            f"export: {said} is no format; there are: {', '.join(TARGETS)}"
        )
    if not out:
        raise eval.errors.RequestError("export: where to? out=DIR")
    if not any(word.partition("=")[0] == "benchmark" for word in words):
        raise eval.errors.RequestError("export: which benchmark? benchmark=NAME")
    from eval import benchmarks
    from mitigate import export as files
    from mitigate import settings

    recipe = settings.from_words(words[1:], recipe=None)
    pairs = {name: benchmarks.load(some) for name, some in recipe.benchmark.items()}
    facts = {
        name: {"licence": some.licence, "paper": some.paper}
        for name, some in recipe.benchmark.items()
    }
    names = files.write(pairs, Path(out), facts)
    say(f"Tasks: {', '.join(names)} in {out} (its README.md says how to run them)")
    return 0


#: Sources that `mitigate corpus` prepares, by the recipe of the same name.
SOURCES = ("mastodon", "taz", "text")


def corpus(words: Sequence[str]) -> int:
    """`mitigate corpus …`: a source read once into a folder that recipes take; taking out of it."""
    private, words = _take(words, "private")
    place = Path(private) if private else None
    actions = {"forget": _forget, "recheck": _recheck}
    if words and words[0] in actions:
        return actions[words[0]](words[1:], place)
    out, words = _take(words, "out")
    if not words or words[0] not in SOURCES:
        said = words[0] if words else "nothing"
        raise eval.errors.RequestError(
            f"corpus: {said} is not a source; there are: {', '.join(SOURCES)}; what is built "
            "takes: forget, recheck"
        )
    if not out:
        raise eval.errors.RequestError("corpus: where to? out=DIR")
    import corpora as package
    from mitigate import settings

    name = words[0]
    own = ("corpus", "benchmark")
    keyed = [
        word if word.partition("=")[0].split(".")[0] in own or "=" not in word else f"corpus.{word}"
        for word in words[1:]
    ]
    recipe = settings.from_words([f"corpus={name}", *keyed], recipe=None)
    facts = package.build(
        recipe.corpus[name],
        Path(out),
        private=place,
        benchmark=_to_cut_out(recipe.benchmark) if recipe.benchmark else None,
        benchmarks=list(recipe.benchmark),
        say=say,
    )
    say(
        f"{facts['documents_train']:,} documents to train on, {facts['documents_valid']:,} held "
        f"out, {facts['words']:,} words; dropped: {facts['dropped'] or 'none'}"
    )
    if not recipe.benchmark:
        say("No benchmark was looked for in it: benchmark=NAME cuts its sentences out")
    say(f"Corpus: {out} (fill in its DATASHEET.md); corpus={name} corpus.path={out}")
    return 0


def _to_cut_out(chosen: dict[str, Any]) -> Any:
    """The sentences and templates of benchmarks, as data that corpora takes."""
    from corpora.decontaminate import Benchmark
    from eval import benchmarks

    tables = [benchmarks.load(some).table for some in chosen.values()]
    rows = (row for table in tables for row in table.to_dict("records"))
    return Benchmark.from_pairs({str(name): of for name, of in row.items()} for row in rows)


def _forget(words: Sequence[str], private: Path | None) -> int:
    """`mitigate corpus forget corpus=DIR author=…|post=…|instance=…`."""
    from corpora.forget import forget
    from corpora.privacy import KINDS

    folder, words = _take(words, "corpus")
    said = [(kind, value) for kind in KINDS if (value := _take(words, kind)[0]) is not None]
    if not folder or len(said) != 1 or len(words) != 1:
        raise eval.errors.RequestError(
            "corpus forget: corpus=DIR and one of author=@NAME@HOST, post=ID_OR_ADDRESS, "
            "instance=HOST (private=DIR, where it was built with one)"
        )
    kind, value = said[0]
    gone = forget(Path(folder), kind, value, private=private, say=say)
    left = "" if Path(folder).exists() else "; nothing is left of it, the folder is gone"
    say(f"{gone:,} documents taken out of {folder}{left}; no later build takes this {kind} again")
    return 0


def _recheck(words: Sequence[str], private: Path | None) -> int:
    """`mitigate corpus recheck DIR [allowlist=FILE contact=ADDRESS …]`."""
    from corpora.recheck import ASKED_WITH, recheck

    folders = [word for word in words if "=" not in word]
    changes = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = sorted(set(changes) - set(ASKED_WITH))
    if len(folders) != 1 or unknown:
        raise eval.errors.RequestError(
            f"corpus recheck: {f'no key {unknown[0]}; ' if unknown else ''}mitigate corpus recheck "
            f"DIR [{'=… '.join(ASKED_WITH)}=…] [private=DIR]"
        )
    switches: dict[str, Any] = {**changes}
    for key in ("bots", "sensitive", "allow_local"):
        if key in changes:
            if changes[key] not in ("true", "false"):
                raise eval.errors.RequestError(f"{key}={changes[key]}: true or false")
            switches[key] = changes[key] == "true"
    gone = recheck(Path(folders[0]), private=private, changes=switches, say=say)
    say(f"{gone:,} documents taken out of {folders[0]}")
    return 0


def recipes(words: Sequence[str]) -> int:
    """`mitigate recipes`: every recipe with its description, a line each."""
    from mitigate import settings

    for name in settings.available("recipe"):
        print(f"{name:<20} {settings.from_words([], recipe=name).description}")
    return 0


def doctor(words: Sequence[str]) -> int:
    """`mitigate doctor`: what this machine, its keys and its caches can do."""
    from mitigate.doctor import report as facts

    for name, value in facts():
        print(f"{name:<18} {value}")
    from mitigate.sizes import table

    print()
    for line in table():
        print(line)
    return 0


def _take(words: Sequence[str], key: str) -> tuple[str | None, list[str]]:
    """Take `key=value` out of the words."""
    taken = [word for word in words if word.startswith(f"{key}=")]
    rest = [word for word in words if not word.startswith(f"{key}=")]
    return (taken[-1].partition("=")[2] if taken else None), rest


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "sweep": sweep,
    "score": score,
    "describe": describe,
    "compare": compare,
    "prompted": prompted,
    "report": report,
    "corpus": corpus,
    "export": export,
    "recipes": recipes,
    "doctor": doctor,
}
