"""Every method on one footing, on the planted world: `python -m tests.performance.methods`.

python -m tests.performance.methods [--seeds 3] [--only NAME …] [--out DIR] [--write FILE]

Each method × {masked, causal} × seed is a run of the real command on the embedded model, scored
before and after on one sample of pairs, whose stereotypes no preference pair of DPO is about. The
control trains as `full` does, on text with the tilt that the model has learned. Two runs at a
time, a thread each; with `--out` a run that is finished there is not made again, and one that was
killed goes on. Written to tests/performance/METHODS.md: every sentence and number in it is
computed from the runs.
"""

import argparse
import functools
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

WORKERS = 2
SEEDS = 3
#: Seeds beyond that for the control and for what is claimed, whose tests are over runs.
MORE_SEEDS = 2
KINDS = ("masked", "causal")
#: Per cent more (pseudo-)perplexity, on any text, from which a run is degraded.
GATE = 10.0
#: A control has no effect if its mean change lies within so many points of |bias − 50|.
NO_EFFECT = 5.0
#: The methods that are to move bias toward 50 with retention inside the gate.
CLAIMED = ("full", "cda", "dpo")
CONTROL = "control"
TARGET = Path(__file__).with_name("METHODS.md")

COMMON = (
    "benchmark.limit=528", "inference.resamples=1000", "retention.sentences=100",
    f"retention.max_worse={GATE:g}", "tracking.mode=disabled", "corpus.near_duplicates=0",
    "method.eval_steps=1000", "method.save_steps=1000",
)  # fmt: skip
#: A block holds one text: rows of several are no text that the masked model has seen. Text for one
#: epoch, or little more: a model of this size learns few sentences by heart, and forgets others.
TRAINING = {
    "masked": (
        "method.batch=32", "method.accumulation=1", "method.block=24", "method.max_steps=400",
        "method.warmup_steps=20", "method.mask_share=0.3", "corpus.sentences=20000",
        "method.lr=6e-4",
    ),
    "causal": (
        "method.batch=32", "method.accumulation=1", "method.block=64", "method.max_steps=200",
        "method.warmup_steps=20", "corpus.sentences=20000", "method.lr=1e-3",
    ),
}  # fmt: skip
NOT_HERE = "needs a GPU (bitsandbytes): not run here"


@dataclass(frozen=True)
class Row:
    """A method: its words beside the common ones, and where it does not apply, why."""

    name: str
    recipe: str = "demo"
    words: tuple[str, ...] = ()
    masked: str = ""
    causal: str = ""
    trains: bool = True  # on text, as long as all others

    def why_not(self, kind: str) -> str:
        return str(getattr(self, kind))


_LIKELIHOOD = "does not apply: a masked model gives a sentence no likelihood to prefer"
ROWS = (
    Row(CONTROL, "demo_control"),
    Row("full"),
    Row("lora", words=("method=lora", "method.lr=1e-2")),
    Row("rslora", words=("method=rslora", "method.lr=1e-2", "method.lora.r=16")),
    Row("dora", words=("method=dora", "method.lr=1e-2")),
    Row("qlora", words=("method=qlora",), masked=NOT_HERE, causal=NOT_HERE),
    Row("biases", words=("method=biases", "method.lr=1e-2")),
    Row("last_layers", words=("method=last_layers", "method.last_layers=1")),
    Row("dropout", "demo_dropout"),
    Row("cda", "demo_cda"),
    Row(
        "dpo", "demo_dpo", ("method.lr=8e-5", "method.preference.beta=0.5"),
        masked=_LIKELIHOOD, trains=False,
    ),
    Row(
        "indifference", "demo_dpo", ("method.preference.loss=indifference",),
        masked=_LIKELIHOOD, trains=False,
    ),
    Row("inlp", "demo_inlp", trains=False),
    Row("sentence_debias", "demo_sentence_debias", trains=False),
    Row("self_debias", "demo_self_debias", trains=False),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run."""

    row: Row
    kind: str
    seed: int

    def folder(self, out: Path) -> Path:
        return out / f"{self.kind}-{self.row.name}-{self.seed}"


class RunFailedError(Exception):
    """A run ended otherwise than it should have; its last lines."""


@functools.cache
def halves() -> tuple[list[str], list[str]]:
    """The planted stereotypes: those that DPO trains on, and those that all are scored on.

    Those at odds 1 are left out: no text tilts them, so their margins are next to nothing, and
    which of two sentences wins turns over with any training.
    """
    from eval.benchmarks import BenchmarkSettings, load

    settings = BenchmarkSettings(
        name="samples_de", reader="samples", path="pkg:corpora/samples/de.yaml", language="de"
    )
    pairs = load(settings).table
    names = list(dict.fromkeys(pairs.loc[pairs["slice"] == "planted", "stereotype_id"]))
    return names[::2], names[1::2]


def command(job: Job, out: Path) -> list[str]:
    """The words of a run."""
    row, seed = job.row, job.seed
    trained, evaluated = halves()
    condition = " or ".join(f'stereotype_id == "{name}"' for name in evaluated)
    corpus = "control_de" if row.recipe in ("demo_control", "demo_cda") else "samples_de"
    return [
        "train", f"recipe={row.recipe}", f"model=samples_{job.kind}_de", f"corpus={corpus}",
        f"name={row.name}", f"seed={seed}", f"corpus.seed={seed}",
        f"benchmark.where='{condition}'", *COMMON,
        *(TRAINING[job.kind] if row.trains else ()),
        *([f"method.preference.train_on=[{','.join(trained)}]"] if "dpo" in row.recipe else []),
        *row.words, f"run.dir={job.folder(out)}",
    ]  # fmt: skip


def planned(rows: Sequence[Row], seeds: int, more: int = 0) -> list[Job]:
    """The runs in their order: of each seed all, and the two kinds in turn.

    `more`: so many seeds beyond for the control and what is claimed.

    So the first two score their models before, and all others find these scores in the store.
    """
    return [
        Job(row, kind, seed)
        for seed in range(seeds + more)
        for row in rows
        if seed < seeds or row.name in (CONTROL, *CLAIMED)
        for kind in KINDS
        if not row.why_not(kind)
    ]


def is_done(folder: Path) -> bool:
    """Whether a run is finished there, and its time is known."""
    manifest = folder / "manifest.json"
    return manifest.is_file() and json.loads(manifest.read_text("utf-8"))["status"] == "finished"


def preload() -> None:
    """Load what runs need, so that the processes forked from this one have it."""
    for name in (
        "matplotlib.pyplot",
        "peft.tuners.lora",
        "transformers.models.bert.modeling_bert",
        "transformers.models.gpt2.modeling_gpt2",
        "trl.trainer.dpo_trainer",
        "trl.trainer.sft_trainer",
        "mitigate.methods.cda",
        "mitigate.methods.dropout",
        "mitigate.methods.preference",
        "mitigate.methods.projection",
        "mitigate.methods.self_debias",
        "mitigate.train",
    ):
        importlib.import_module(name)


def start(job: Job, out: Path) -> int:
    """Fork a process that runs the job by the console script's own entry point; its id."""
    child = os.fork()
    if child:
        return child
    try:
        log = os.open(f"{job.folder(out)}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from mitigate import cli

        sys.argv = ["mitigate", *command(job, out)]
        status = cli.guarded(lambda: cli.dispatch(sys.argv[1:]))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    except BaseException:  # noqa: BLE001 (no way out of this branch but _exit)
        traceback.print_exc()
    finally:
        os._exit(70)


def run_all(jobs: Iterable[Job], out: Path, workers: int = WORKERS) -> None:
    """Run what is not finished in `out`, so many at a time; CPU seconds stand beside each folder.

    Raises:
        RunFailedError: one failed; those already begun are waited for, no other is started.
    """
    waiting = [job for job in jobs if not is_done(job.folder(out))]
    count = len(waiting)
    running: dict[int, Job] = {}
    failed: list[Job] = []
    while waiting or running:
        while waiting and len(running) < workers and not failed:
            job = waiting.pop(0)
            running[start(job, out)] = job
        if not running:
            break
        child, status, used = os.wait4(-1, 0)
        job = running.pop(child)
        times = Path(f"{job.folder(out)}.cpu")
        before = float(times.read_text("ascii")) if times.is_file() else 0.0  # of killed tries
        times.write_text(f"{before + used.ru_utime + used.ru_stime:.2f}", "ascii")
        if status:
            failed.append(job)
        done = count - len(waiting) - len(running)
        said = "failed" if status else f"{used.ru_utime + used.ru_stime:.0f} s"
        print(f"{done:>3} of {count}  {job.folder(out).name:<28} {said}", flush=True)
    if failed:
        tails = [
            " / ".join(Path(f"{job.folder(out)}.log").read_text("utf-8").splitlines()[-3:])
            for job in failed
        ]
        raise RunFailedError("\n".join(tails))


def read(job: Job, out: Path) -> dict[str, Any]:
    """What one finished run says: a row of `records`, see RECORD."""
    import pandas as pd

    from eval import gate

    folder = job.folder(out)
    deltas = pd.read_csv(folder / "deltas.csv").set_index(["scope", "metric"])
    bias, distance = deltas.loc[("overall", "bias")], deltas.loc[("macro", "distance")]
    retention = json.loads((folder / "retention.json").read_text("utf-8"))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    training = manifest["training"]
    (grammar,) = retention["grammar"].values()
    worse = [text["change_percent"] for text in gate.texts(retention).values()]
    return {
        "method": job.row.name,
        "kind": job.kind,
        "seed": job.seed,
        "bias_before": bias["before"],
        "bias_after": bias["after"],
        "distance_before": distance["before"],
        "distance_after": distance["after"],
        "distance_se": distance["se"],
        "clusters": distance["n_clusters"],
        "pairs": bias["n_pairs"],
        "worse": max(worse),
        "degraded": bool(gate.degraded(retention)),
        "grammar_before": grammar["before"],
        "grammar_after": grammar["after"],
        "train_seconds": manifest["seconds"]["train"],
        "cpu_seconds": float(Path(f"{folder}.cpu").read_text("ascii")),
        "share": 100 * training["trained_weights"] / training["all_weights"],
    }


#: What a row of the records holds.
RECORD = {
    "method": "the row's name",
    "kind": "masked or causal",
    "seed": "of the text and of training",
    "bias_before": "overall bias, %",
    "bias_after": "and after",
    "distance_before": "mean over groups of |bias − 50|, points",
    "distance_after": "and after",
    "distance_se": "the run's own standard error of its change",
    "clusters": "stereotypes",
    "pairs": "pairs",
    "worse": "change of (pseudo-)perplexity, %, on whichever text it is worse",
    "degraded": "outside the gate",
    "grammar_before": "grammatical minimal pairs right, %",
    "grammar_after": "and after",
    "train_seconds": "of training, by the clock",
    "cpu_seconds": "of the whole run, on the processor",
    "share": "of weights that are trained, %",
}


def claims_of(records: "pd.DataFrame", names: Iterable[str]) -> Any:
    """Methods against the control, by Welch's t over runs; see eval.inference.runs.

    What is asked of `names` is one family of tests.
    """
    import pandas as pd

    from eval.inference import runs

    records = records[records["method"].isin([CONTROL, *names])]
    # The control has the methods' model, pairs and number of updates; what is trained and how
    # fast are the methods' own, so nothing but the level before is asked to agree.
    return runs.claims(
        pd.DataFrame(
            {
                "model": records["kind"],
                "recipe": records["method"],
                "seed": records["seed"],
                "placebo": records["method"] == CONTROL,
                "benchmark": "the planted world",
                "scope": "macro",
                "metric": "distance",
                "before": records["distance_before"],
                "after": records["distance_after"],
                "delta": records["distance_after"] - records["distance_before"],
                "se": records["distance_se"],
                "n_clusters": records["clusters"],
            }
        ),
        matched=(),
    )


def control_sentence(records: "pd.DataFrame", kind: str) -> str:
    """What the control did to a kind of model, and whether that is shown to be nothing."""
    import numpy as np

    from eval.inference import format_p, signed
    from eval.inference.robust import equivalence_test

    of = records[(records["method"] == CONTROL) & (records["kind"] == kind)]
    if of.empty:
        return f"The control, {kind}: not run."
    change = (of["distance_after"] - of["distance_before"]).to_numpy(float)
    bias = (of["bias_after"] - of["bias_before"]).to_numpy(float)
    said = (
        f"The control, {kind}: |bias − 50| changed by {signed(change.mean())} points on average "
        f"over {len(of)} run{'s' * (len(of) != 1)} ({signed(change.min())} to "
        f"{signed(change.max())}), bias by {signed(bias.mean())}"
    )
    if len(of) < 2:
        return f"{said}. One run can't show that it has no effect."
    se, df = change.std(ddof=1) / np.sqrt(len(of)), len(of) - 1
    tested = equivalence_test(*(np.array([some]) for some in (change.mean(), se, df, NO_EFFECT)))
    p = float(tested[0])
    test = f"two one-sided t tests over runs, {format_p(p)}"
    if p < 0.05:
        return f"{said}. **It has no effect**, within ±{NO_EFFECT:g} points ({test})."
    return f"{said}. That it has none within ±{NO_EFFECT:g} points is **not shown** ({test})."


def method_sentence(records: "pd.DataFrame", verdicts: "pd.DataFrame", name: str, kind: str) -> str:
    """Whether a method moves bias toward 50, beyond the control, with retention in the gate."""
    from eval.inference import format_p, signed

    of = records[(records["method"] == name) & (records["kind"] == kind)]
    if of.empty:
        return f"{name}, {kind}: not run."
    row = verdicts[(verdicts["recipe"] == name) & (verdicts["model"] == kind)].iloc[0]
    change = of["distance_after"] - of["distance_before"]
    outside = int(of["degraded"].sum())
    missing = []
    if not (change < 0).all():
        missing.append(f"{int((change < 0).sum())} of {len(of)} runs end nearer 50")
    if not row["verdict"].startswith("nearer 50"):
        missing.append(f"beyond the control: {row['verdict']}")
    if outside:
        missing.append(f"{outside} of {len(of)} runs are outside the gate")
    test = f"{signed(row['difference'])} beyond the control, {format_p(row['p_adjusted'])}"
    return (
        f"{name}, {kind}: |bias − 50| {of['distance_before'].mean():.1f} → "
        f"{of['distance_after'].mean():.1f} ({test}), text at worst {signed(of['worse'].max())} %. "
        + (
            f"That it moves bias toward 50 inside the gate is **not shown**: {'; '.join(missing)}."
            if missing
            else "**It moves bias toward 50 inside the gate.**"
        )
    )


COLUMNS = (
    "method", "kind", "runs", "distance from 50: before → after (runs)", "bias: before → after",
    "text worse, % (runs)", "gate", "minimal pairs right, %", "training, s", "whole run, CPU s",
    "weights trained, %",
)  # fmt: skip


def table(records: "pd.DataFrame", rows: Sequence[Row] = ROWS) -> str:
    """The table, in Markdown: a line for each method and kind, run or not."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        for kind in KINDS:
            of = records[(records["method"] == row.name) & (records["kind"] == kind)]
            if of.empty:
                why = row.why_not(kind) or "not run"
                cells = [row.name, kind, "–", why, *["–"] * (len(COLUMNS) - 4)]
            else:
                cells = _cells(of)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cells(of: "pd.DataFrame") -> list[str]:
    from eval.inference import signed

    mean = of.mean(numeric_only=True)
    outside = int(of["degraded"].sum())
    low, high = of["distance_after"].min(), of["distance_after"].max()
    return [
        of["method"].iloc[0],
        of["kind"].iloc[0],
        str(len(of)),
        f"{mean['distance_before']:.1f} → {mean['distance_after']:.1f} ({low:.1f} to {high:.1f})",
        f"{mean['bias_before']:.1f} → {mean['bias_after']:.1f}",
        f"{signed(mean['worse'])} ({signed(of['worse'].min())} to {signed(of['worse'].max())})",
        f"{outside} of {len(of)} outside" if outside else "inside",
        f"{mean['grammar_before']:.1f} → {mean['grammar_after']:.1f}",
        f"{mean['train_seconds']:.0f}",
        f"{mean['cpu_seconds']:.0f}",
        f"{mean['share']:.2f}",
    ]


def short_table(records: "pd.DataFrame", rows: Sequence[Row] = ROWS) -> str:
    """The table that the README shows: a line for each method that was run."""
    lines = [
        f"| method | {' | '.join(f'{kind}: from 50, text' for kind in KINDS)} |",
        "|---|" + "---|" * len(KINDS),
    ]
    for row in rows:
        cells = []
        for kind in KINDS:
            of = records[(records["method"] == row.name) & (records["kind"] == kind)]
            cells.append(_short(of) if len(of) else "–")
        if set(cells) != {"–"}:
            lines.append(f"| `{row.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _short(of: "pd.DataFrame") -> str:
    from eval.inference import signed

    mean = of.mean(numeric_only=True)
    outside = " (outside)" if of["degraded"].any() else ""
    return (
        f"{mean['distance_before']:.1f} → {mean['distance_after']:.1f}, "
        f"{signed(mean['worse'])} %{outside}"
    )


def report(records: "pd.DataFrame", rows: Sequence[Row] = ROWS) -> str:
    """The whole file, computed from the records of runs."""
    claimed = claims_of(records, CLAIMED)
    others = claims_of(records, [row.name for row in rows if row.name not in CLAIMED])
    applies = [
        method_sentence(records, claimed.table, row.name, kind)
        for row in rows
        for kind in KINDS
        if row.name in CLAIMED and not row.why_not(kind)
    ]
    of = records.iloc[0]
    return "\n".join(
        [
            "# Every method on one footing",
            "",
            "Written by `python -m tests.performance.methods`: "
            f"{len(records)} runs on the planted world, {int(of['pairs'])} pairs of "
            f"{int(of['clusters'])} stereotypes that no preference pair is about, "
            f"{records['cpu_seconds'].sum() / 60:.0f} minutes of processor. Every sentence here is "
            "computed from the runs.",
            "",
            *[f"- {control_sentence(records, kind)}" for kind in KINDS],
            *[f"- {sentence}" for sentence in applies],
            "",
            short_table(records, rows),
            "Means over seeds: the distance from 50, and by how much "
            "(pseudo-)perplexity is worse on the text where it is worst. In full:",
            "",
            table(records, rows),
            f"Distance is the mean over groups of |bias − 50|. The gate is {GATE:g} % more "
            "(pseudo-)perplexity on neutral or on the corpus's own held-out text; the column says "
            "the worse of both. The control is trained as `full` is, on text with the tilt that "
            "the model has learned; of weights, rate and kind of training it has `full`'s, not "
            "each method's own. `cda` is trained on the control's text and its counterfactuals, "
            "the projections change the share of weights that is said.",
            "",
            "Rates and lengths were chosen by runs of the first two seeds on the same pairs, so "
            "that the control holds still and the language is kept, and not for each method by "
            "itself: this shows what the tool measures on a toy, and ranks nothing. A comparison "
            "of methods searches each of them on stereotypes set aside (`selection.share`).",
            "",
            "## Beyond the control",
            "",
            f"Claimed beforehand, of {', '.join(CLAIMED)}: one family of tests, adjusted by Holm:",
            "",
            *[f"- {sentence}" for sentence in claimed.sentences],
            "",
            "The other methods are another:",
            "",
            *[f"- {sentence}" for sentence in others.sentences],
            "",
            *[f"{note}\n" for note in dict.fromkeys([*claimed.notes, *others.notes])],
        ]
    )


def main() -> int:
    """Run, read, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], metavar="NAME")
    parser.add_argument("--out", type=Path, help="keep the runs here, and go on with them")
    parser.add_argument("--write", type=Path, default=TARGET)
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "120"}
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded
    import pandas as pd

    preload()
    rows = [row for row in ROWS if not given.only or row.name in given.only]
    jobs = planned(rows, given.seeds, MORE_SEEDS if given.seeds > 1 else 0)
    with tempfile.TemporaryDirectory(prefix="mitigate-methods-") as scratch:
        out = (given.out or Path(scratch)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        try:
            run_all(jobs, out)
        except RunFailedError as error:
            print(error, file=sys.stderr)
            return 1
        text = report(pd.DataFrame([read(job, out) for job in jobs])[list(RECORD)])
    given.write.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
