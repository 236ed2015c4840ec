"""`mitigate compare`: two score files or two runs, what changed or differs, and how sure we are.

Two files may be one model before and after training, or two models that never met: then nothing
has moved, and the words are of a difference, and of how many pairs the two agree on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from eval import answers, inference, scores
from eval.errors import RequestError
from eval.inference import Comparison, InferenceSettings, format_p, plain_verdict, power, signed
from eval.report import ReportInput, terminal
from eval.report import write as write_report
from eval.scores import Scores
from mitigate import reporting, settings
from mitigate.console import messages, say
from mitigate.run import write_text

USAGE = "compare: two score files or run folders, BEFORE AFTER"
#: `pairs=`: what is done where the two hold different pairs.
PAIRS = ("same", "common")
#: Measures that a power table shows in the terminal; power.csv has every one.
PLANNED = ("distance", "bias", "soft", "margin")


@dataclass
class Request:
    """What `mitigate compare` was asked for."""

    paths: list[Path]
    how: InferenceSettings
    out: Path | None = None
    pairs: str = "same"  # common: go on with the pairs that both hold
    power: bool = False
    clusters: list[int] = field(default_factory=list)  # planned numbers of stereotypes
    ties_given: bool = False  # published scores are counted as published unless ties are given
    words: Sequence[str] = ()

    @property
    def command(self) -> str:
        return " ".join(["mitigate compare", *self.words])


def from_words(words: Sequence[str]) -> Request:
    """Read a command's words.

    Raises:
        RequestError: a word is none of the command's, or has no such value.
    """
    own: dict[str, str] = {}
    inferred, paths = [], []
    for word in words:
        key, equals, value = ("power", "=", "true") if word == "--power" else word.partition("=")
        if key != "power" and word.startswith("-"):
            raise RequestError(f"compare: {word} is no option; written power=true, out=DIR, …")
        if not equals or Path(word).exists():  # a folder may have a sign of equality in its name
            paths.append(Path(word))
        elif key in ("out", "pairs", "power", "clusters"):
            own[key] = value
        elif key.startswith("inference."):
            inferred.append(word)
        else:
            names = InferenceSettings.__dataclass_fields__
            offered = ["out", "pairs", "power", "clusters", *(f"inference.{x}" for x in names)]
            near = f"did you mean inference.{key}?" if key in names else ""
            raise RequestError(f"compare: no key {key}; {near or settings.nearest(key, offered)}")
    for key, allowed in (("pairs", PAIRS), ("power", ("true", "false"))):
        if key in own and own[key] not in allowed:
            raise RequestError(f"{key}={own[key]}: {settings.nearest(own[key], allowed)}")
    planned = own.get("clusters", "").strip("[]")
    try:
        clusters = [int(number) for number in planned.split(",") if number.strip()]
    except ValueError as error:
        raise RequestError(
            f"clusters={planned}: a number of stereotypes, or several, clusters=[30,167]"
        ) from error
    asked = own.get("power") == "true"
    if clusters and not asked:
        raise RequestError(f"clusters={planned}: is for power=true")
    if len(paths) != 2 and not (asked and len(paths) == 1):
        raise RequestError(
            f"{USAGE}; with power=true one earlier run (its folder or its deltas.csv) is enough"
        )
    return Request(
        paths=paths,
        how=settings.from_words(inferred, recipe=None).inference,
        out=Path(own["out"]) if "out" in own else None,
        pairs=own.get("pairs", "same"),
        power=asked,
        clusters=clusters,
        ties_given=any(word.startswith("inference.ties=") for word in inferred),
        words=words,
    )


def run(request: Request) -> None:
    """Compare, print, and write the report where one is asked for.

    Raises:
        RequestError: the two can't be compared; nothing is written then.
    """
    if request.out is not None:
        _check_fresh(request.out)
    if len(request.paths) == 1:
        _plan(_earlier(request.paths[0], request.how), request)
        return
    names, tables = _read_both(request)
    left_out: dict[str, str] = {}
    if request.pairs == "common":
        for benchmark, (before, after) in tables.items():
            *pair, other = scores.common(before, after)
            tables[benchmark] = (pair[0], pair[1])
            if other:
                left_out[benchmark] = (
                    f"Compared on the {other.shared:,} pairs that both hold; left out: {other}."
                )
    published = [found.meta["scorer"] == "published" for pair in tables.values() for found in pair]
    if any(published) and not request.ties_given:
        request.how.ties = "reference"  # as the published scripts count
        say("published scores: ties counted as published (inference.ties=reference)")
    comparisons = {
        name: inference.compare(*pair, request.how, name=name) for name, pair in tables.items()
    }
    found = {
        name: finding(comparison, *tables[name], names) for name, comparison in comparisons.items()
    }
    for benchmark, comparison in comparisons.items():
        if benchmark in left_out:
            comparison.notes.insert(0, left_out[benchmark])
        _show(comparison, found[benchmark])
    if request.out is not None:
        write_report(
            ReportInput(
                title=" and ".join(names),
                command=request.command,
                recipe_yaml="",
                manifest=_manifest(tables),
                comparisons=comparisons,
                scores=tables,
                sides=names if names != ("before", "after") else None,
                findings={name: some.lines for name, some in found.items()},
            ),
            request.out,
        )
    if request.power:
        _plan({name: found.table for name, found in comparisons.items()}, request)
    if request.out is not None:
        say(f"Report: {request.out / 'report.html'}")


# What is read.


def _read_both(
    request: Request,
) -> tuple[tuple[str, str], dict[str, tuple[Scores, Scores]]]:
    """Both sides' names and their Score tables by benchmark."""
    before, after = (_score_tables(path) for path in request.paths)
    if before.keys() != after.keys():
        raise RequestError(
            f"compare: different benchmarks: {request.paths[0]} has {', '.join(before)}; "
            f"{request.paths[1]} has {', '.join(after)}"
        )
    tables = {name: (before[name], after[name]) for name in before}
    return _side_names(request.paths, next(iter(tables.values()))), tables


def _score_tables(path: Path) -> dict[str, Scores]:
    """The Score table in a file, or a run folder's tables after training, by benchmark."""
    if not path.is_dir():
        if path.name == "deltas.csv" and path.is_file():
            raise RequestError(
                f"{path}: holds changes, not scores; mitigate compare {path} power=true plans "
                "from it"
            )
        file, _, column = str(path).rpartition("#")
        if file and not path.exists():
            found = answers.choose(Path(file), column)
        elif answers.is_published(path):
            columns = ", ".join(f"{path}#{name}" for name in answers.read(path))
            raise RequestError(f"{path}: holds several columns of answers; say which: {columns}")
        else:
            found = scores.read(path)
        return {str(found.meta["benchmark"]): found}
    files = sorted(path.glob("after*.parquet"))
    if not files:
        raise RequestError(f"{path}: no after.parquet, so no finished run's folder")
    tables = [scores.read(file) for file in files]
    return {_name_of(table): table for table in tables}


def _name_of(table: Scores) -> str:
    """Its benchmark; in a run of prompted choice, the persona too."""
    return " ".join(filter(None, (str(table.meta["benchmark"]), table.meta.get("persona"))))


def _side_names(paths: Sequence[Path], pair: tuple[Scores, Scores]) -> tuple[str, str]:
    """What the two sides are called: their models where these differ, else their paths."""
    models = [str(found.meta.get("model") or "") for found in pair]
    if all(models) and models[0] != models[1] and not any(path.is_dir() for path in paths):
        return models[0], models[1]
    stems = [path.name if path.is_dir() else path.stem for path in paths]
    if stems[0] != stems[1]:
        return stems[0], stems[1]
    return str(paths[0]), str(paths[1])


def _earlier(path: Path, how: InferenceSettings) -> dict[str, pd.DataFrame]:
    """An earlier run's changes by benchmark: Delta tables, from its folder or its deltas.csv."""
    if path.is_dir():
        done = reporting.read_run(path)
        return {
            name: inference.compare(*pair, how, name=name).table
            for name, pair in done.tables.items()
        }
    if path.suffix.lower() == ".csv" and path.is_file():
        try:
            table = pd.read_csv(path)
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError):
            table = pd.DataFrame()
        if {"benchmark", "scope", "metric"} <= set(table):
            return {str(name): rows for name, rows in table.groupby("benchmark", sort=False)}
    found = scores.read(path)
    clusters = found.table["stereotype_id"].nunique()
    raise RequestError(
        f"{path}: one score file ({clusters:,} stereotypes) has no change whose variance could be "
        f"planned from; mitigate compare EARLIER power=true clusters={clusters}, where EARLIER is "
        "a run's folder or its deltas.csv, or two score files"
    )


def _manifest(tables: Mapping[str, tuple[Scores, Scores]]) -> dict[str, Any]:
    """How each side's scores were made, as the report's page shows it."""
    sides: dict[str, Any] = {}
    for number, when in enumerate(("before", "after")):
        metas = {name: pair[number].meta for name, pair in tables.items()}
        sides[when] = next(iter(metas.values())) if len(metas) == 1 else metas
    return sides


def _check_fresh(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"out={folder}: is there and not empty; name a new folder")


# What is said.


@dataclass(frozen=True)
class Agreement:
    """On how many pairs two models prefer the same sentence, and how the others divide."""

    pairs: int
    same: int
    only_before: int  # the stereotyped sentence wins before, and not after
    only_after: int

    @property
    def share(self) -> float:
        """Percent of pairs."""
        return 100 * self.same / self.pairs


def agreement(before: Scores, after: Scores, ties: str) -> Agreement:
    """Count the pairs on which both prefer the same sentence; a tie agrees with a tie alone.

    Raises:
        RequestError: the two aren't comparable.
    """
    before, after = scores.align(before, after)
    digits = 3 if ties == "reference" else None
    side = []
    for found in (before, after):
        more, less = (found.table[name].to_numpy(float) for name in ("score_more", "score_less"))
        if digits is not None:
            more, less = np.round(more, digits), np.round(less, digits)
        side.append(np.sign(more - less))
    wins = [one > 0 for one in side]
    return Agreement(
        len(before.table),
        int((side[0] == side[1]).sum()),
        int((wins[0] & ~wins[1]).sum()),
        int((wins[1] & ~wins[0]).sum()),
    )


def two_models(before: Scores, after: Scores) -> bool:
    """Whether these are two models that never met, rather than one before and after training.

    Training keeps the tokenizer; published files name the model alone.
    """
    published = before.meta.get("scorer") == "published"
    keys = ["model"] if published else ["tokenizer_fingerprint", "kind"]
    return any(before.meta.get(key) != after.meta.get(key) for key in keys)


@dataclass(frozen=True)
class Finding:
    """What two Score tables show, in sentences, and whether they are two models' (or one's)."""

    names: tuple[str, str]
    models: bool
    lines: list[str]


def finding(
    comparison: Comparison, before: Scores, after: Scores, names: tuple[str, str]
) -> Finding:
    """Say in plain sentences how two models differ, or how one has changed.

    Then on how many pairs the two agree, and what the papers' paired tests say.
    """
    models = two_models(before, after)
    lines = list(_difference(comparison, names) if models else comparison.sentences())
    found = agreement(before, after, comparison.settings.ties)
    rest = found.pairs - found.same
    divided = (
        f"; of the other {rest:,}, {found.only_before:,} favour the stereotype in {names[0]} "
        f"only and {found.only_after:,} in {names[1]} only"
        if rest
        else ""
    )
    lines.append(
        f"{names[0]} and {names[1]} agree on {found.same:,} of {found.pairs:,} pairs "
        f"({found.share:.1f} %){divided}."
    )
    tests = comparison.published[comparison.published["scope"] == "overall"]
    bias, margin = (
        tests[tests["metric"] == metric].iloc[0].to_dict() for metric in ("bias", "margin")
    )
    lines.append(
        f"Paired tests {bias['name']}: bias, {_test(bias)}; mean margin "
        f"{margin['before']:.3f} and {margin['after']:.3f} nats, {_test(margin)}."
    )
    return Finding(names, models, lines)


def _test(row: Mapping[Any, Any]) -> str:
    """A published test and its p, and the second one's where there is one."""
    second = (
        "" if pd.isna(row["second_p"]) else f" ({row['second_test']}, {format_p(row['second_p'])})"
    )
    return f"{row['test']}, {format_p(row['p'])}{second}"


def _difference(comparison: Comparison, names: tuple[str, str]) -> tuple[str, str]:
    """Two models' levels side by side, with what the tests by cluster make of them."""
    rows = comparison.rows("bias")
    row = rows[rows["scope"] == "overall"].iloc[0]
    headline = comparison.headline
    first = (
        f"Overall bias is {row['before']:.2f} in {names[0]} and {row['after']:.2f} in {names[1]} "
        f"(difference {signed(row['delta'], 2)} points, {format_p(row['p_adjusted'])}, tested "
        f"over {row['n_clusters']:,} {comparison.unit}): {_compared(row['verdict'], names)}."
    )
    groups = headline["n_groups"]
    where = f"Averaged over the {groups} groups" if groups > 1 else "Overall"
    second = (
        f"{where} it lies {headline['before']:.1f} points from 50 in {names[0]} and "
        f"{headline['after']:.1f} in {names[1]} ({format_p(headline['p_adjusted'])}): "
        f"{_compared(headline['verdict'], names)}."
    )
    return first, second


def _compared(verdict: str, names: tuple[str, str]) -> str:
    """A verdict on a change, in words for two models that stand side by side."""
    plain = plain_verdict(verdict)
    words = {
        "toward 50": f"{names[1]} lies nearer 50",
        "away from 50": f"{names[0]} lies nearer 50",
        "crossed over": "they lie on different sides of 50",
        "unchanged": "the same, within the margin of the settings",
    }.get(plain, "no difference is shown")
    return words + verdict.removeprefix(plain)


def _show(comparison: Comparison, found: Finding) -> None:
    """Headline, table, and what a reader must know beside the numbers."""
    first, *others = found.lines
    say(first)
    shown = terminal.table(comparison)
    if found.models:
        shown.columns[1].header, shown.columns[2].header = map(Text, found.names)
    messages.print(shown)
    for line in others:
        say(line)
    for note in comparison.notes:
        say(f"Note: {note}")


# What could be shown.


def _plan(earlier: Mapping[str, pd.DataFrame], request: Request) -> None:
    """Print, and write where asked, the smallest changes that could be shown."""
    how = request.how
    planned = request.clusters or list(power.CLUSTERS)
    tables = {
        name: power.needed(table, planned, alpha=how.alpha, power=how.power)
        for name, table in earlier.items()
    }
    for name, table in tables.items():
        messages.print(_power_table(name, table))
        say(power.sentence(table, alpha=how.alpha, power=how.power))
    if request.out is not None:
        whole = pd.concat(tables, names=["benchmark"]).reset_index("benchmark")
        write_text(request.out / "power.csv", whole.to_csv(index=False, lineterminator="\n"))
        say(f"Plan: {request.out / 'power.csv'}")


def _power_table(name: str, table: pd.DataFrame) -> Table:
    """Smallest changes by planned number of stereotypes, overall and over groups."""
    shown = Table(
        title=Text(f"{name}: smallest change that could be shown, by number of stereotypes"),
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    shown.add_column("scope", no_wrap=True)
    shown.add_column("metric", no_wrap=True)
    planned = table["planned"].unique().tolist()
    for number in planned:
        shown.add_column(str(number), justify="right", no_wrap=True)
    shown.add_column("unit")
    rows = table[table["scope"].isin(["overall", "macro"]) & table["metric"].isin(PLANNED)]
    for (scope, metric), some in rows.groupby(["scope", "metric"], sort=False):
        by_number = some.set_index("planned")["smallest_change"]
        digits = 3 if metric == "margin" else 1
        cells = [
            "none" if np.isinf(by_number[number]) else f"{by_number[number]:.{digits}f}"
            for number in planned
        ]
        shown.add_row(Text(str(scope)), Text(str(metric)), *cells, Text(some["unit"].iloc[0]))
    return shown
