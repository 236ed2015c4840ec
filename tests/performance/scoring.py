"""How fast is scoring, and against what? `python -m tests.performance.scoring`

One thread, real shapes with random weights, the sample in WinoQueer-NL's form; everything that
is compared is measured in this one run, in turns. Writes tests/performance/RESULTS.md.
`--quick` takes a tenth of the work, to try the script.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import torch.distributed
import torch.multiprocessing
from platformdirs import user_cache_path

from eval.pairs import Pairs
from eval.rules import SCORERS, ScoreSettings
from eval.scorers import causal, masked, score, work
from eval.scorers.batching import Effort, TokenBudget, default_budget, equal_lengths, logit_rows
from eval.scorers.model import LanguageModel
from eval.scorers.plan import Plan, plan
from eval.scorers.work import Requests
from tests.performance.shapes import (
    cost,
    grown_pairs,
    matmul_rate,
    peak_memory,
    random_model,
    sample_pairs,
)

RESULTS = Path(__file__).with_name("RESULTS.md")
BENCHMARK = 45_540  # pairs of the German translation, the largest of the benchmarks
TURNS = 3


@dataclass
class Results:
    """Lines of the results' table: what, target, measured, whether it was met."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, target: str, measured: str, met: bool | None) -> None:
        said = {True: "yes", False: "NO", None: "–"}[met]
        self.rows.append((what, target, measured, said))
        print(f"{what}: {measured} (target {target or 'none'}) {said}", flush=True)

    def at_least(self, what: str, target: float, ratio: float, unit: str = "×") -> None:
        self.add(what, f"≥ {target:g}{unit}", f"{ratio:.2f}{unit}", ratio >= target)

    def at_most(self, what: str, target: float, value: float, unit: str = "") -> None:
        self.add(what, f"≤ {target:g}{unit}", f"{value:.3f}{unit}", value <= target)


def seconds(work_: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work_()
    return time.perf_counter() - begun


def in_turns(*works: Callable[[], object], turns: int = TURNS) -> list[float]:
    """The median seconds of each, all of them in every turn: the machine's moods hit all."""
    taken = [[seconds(each) for each in works] for _ in range(turns)]
    return [float(np.median(column)) for column in zip(*taken, strict=True)]


def planned(lm: LanguageModel, pairs: Pairs) -> Plan:
    rule = SCORERS["pll" if lm.kind == "masked" else "shared"]
    return plan(lm, pairs, rule, ScoreSettings())


def compute(lm: LanguageModel, requests: Requests) -> Effort:
    """Score requests as the product does."""
    effort = Effort()
    work.log_probs(lm, requests, budget=TokenBudget(default_budget(lm)), effort=effort)
    return effort


def part_of(requests: Requests, lm: LanguageModel, parts: int) -> Requests:
    """A part of the work such as one of so many processes would get."""
    module = masked if lm.kind == "masked" else causal
    share = module.share(requests.tokens, requests.rows, requests.places, 0, parts)
    return requests.only(share)


def some_batches(lm: LanguageModel, requests: Requests, every: int) -> Requests:
    """Every so manieth of the full batches that the product would make of all requests."""
    lengths = requests.tokens.lengths[requests.rows]
    chosen = []
    for length in np.unique(lengths):
        numbers = np.flatnonzero(lengths == length)
        size = max(1, default_budget(lm) // int(length))
        starts = np.arange(0, max(1, len(numbers) - size + 1), size)
        chosen += [(numbers[start : start + size]) for start in starts]
    return requests.only(np.sort(np.concatenate(chosen[every // 2 :: every])))


def definition_loop(lm: LanguageModel, requests: Requests, numbers: np.ndarray) -> None:
    """One forward pass a token, a sentence at a time, all logits: as the papers' scripts do."""
    for number in numbers:
        row, place = requests.tokens[int(requests.rows[number])], int(requests.places[number])
        seen = torch.tensor(row.tolist())[None]
        with torch.no_grad():
            if lm.kind == "masked":
                seen[0, place] = lm.tokenizer.mask_token_id
                logits = lm.model(input_ids=seen).logits[0, place]
            else:
                logits = lm.model(input_ids=seen[:, :place]).logits[0, place - 1]
            torch.log_softmax(logits, -1)[row[place]].item()


def plain_batches(lm: LanguageModel, requests: Requests) -> int:
    """Distinct sentences in batches of equal length, nothing shared, all logits; their tokens."""
    needed = np.unique(requests.rows)
    lengths = requests.tokens.lengths[needed]

    def forward(items: np.ndarray) -> np.ndarray:
        ids = torch.from_numpy(requests.tokens.block(needed[items]))
        with torch.inference_mode():
            logits = lm.model(input_ids=ids).logits[:, :-1]
            picked = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])
        return picked.squeeze(-1).numpy()

    order = np.argsort(-lengths, kind="stable")
    budget = TokenBudget(default_budget(lm))
    for _ in equal_lengths(order, lengths, budget, logit_rows(lm), forward):
        pass
    return int(lengths.sum())


def masked_speed(results: Results, pairs: Pairs, scale: float) -> None:
    lm = random_model("bert-base")
    whole = planned(lm, pairs)
    requests, uses = whole.requests, len(whole.scored.what)
    mine = some_batches(lm, requests, round(24 / scale))
    some = np.random.default_rng(0).choice(len(requests), max(10, round(60 * scale)), False)
    effort = compute(lm, mine.only(np.arange(min(50, len(mine)))))  # warm
    rates, ours, loop = [], [], []
    for _ in range(TURNS):
        rates.append(matmul_rate())
        begun = time.perf_counter()
        effort = compute(lm, mine)
        ours.append(time.perf_counter() - begun)
        loop.append(seconds(lambda: definition_loop(lm, requests, some)))
        rates.append(matmul_rate())
    rate, took, looped = float(np.median(rates)), float(np.median(ours)), float(np.median(loop))
    a_request, a_loop = took / len(mine), looped / len(some)
    price = cost(lm)
    lengths = requests.tokens.lengths[mine.rows]
    mean = float((lengths**2).sum() / lengths.sum())
    flops = price.flops(effort.tokens, effort.head_rows, round(effort.tokens * mean))
    results.notes.append(
        f"BERT-base: {len(requests):,} distinct requests ({uses:,} with repetitions) of "
        f"{len(requests.tokens):,} sentences; {len(mine):,} measured, {effort.tokens:,} tokens "
        f"computed, {flops / 1e12:.2f} TFLOP in {took:.1f} s; {effort.arrangement}; budget "
        f"{default_budget(lm)} tokens"
    )
    results.at_least("masked, a request, against the definition loop (a)", 4, a_loop / a_request)
    results.at_least(
        "masked, the benchmark, against the definition loop (a)",
        9,
        (a_loop * uses) / (a_request * len(requests)),
    )
    results.at_least(
        "masked, GFLOP/s of the same machine's sgemm",
        80,
        100 * flops / took / rate,
        " %",
    )
    results.add("sgemm, 2,048 square, one thread", "", f"{rate / 1e9:.0f} GFLOP/s", None)
    minicons(results, lm, requests, a_request, scale)


def causal_speed(results: Results, pairs: Pairs, scale: float) -> None:
    lm = random_model("gpt2-small")
    whole = planned(lm, pairs)
    requests, uses = whole.requests, len(whole.scored.what)
    mine = part_of(requests, lm, round(6 / scale))
    some = np.random.default_rng(0).choice(len(requests), max(10, round(60 * scale)), False)
    compute(lm, mine.only(np.arange(min(200, len(mine)))))  # warm
    efforts: list[Effort] = []
    trees, plain, loop = in_turns(
        lambda: efforts.append(compute(lm, mine)),
        lambda: plain_batches(lm, mine),
        lambda: definition_loop(lm, requests, some),
        turns=TURNS,
    )
    effort = efforts[-1]
    share = len(mine) / len(requests)
    # The scripts run every use: a sentence that stands in five pairs is computed five times.
    a_use = loop / len(some)
    computed = compute_nodes(lm, requests)
    distinct = int(requests.tokens.starts[-1])
    results.notes.append(
        f"GPT-2-small: {len(requests):,} distinct requests ({uses:,} with repetitions) of "
        f"{len(requests.tokens):,} sentences with {distinct:,} tokens, BOS included; a share of "
        f"{share:.1%} measured, {effort.tokens:,} nodes; {effort.arrangement}"
    )
    results.at_least(
        "causal, the benchmark, against the definition loop (a)", 60, a_use * uses * share / trees
    )
    results.at_least("causal, the benchmark, against equal lengths (b)", 2, plain / trees)
    results.at_most("causal, nodes of distinct-sentence tokens", 0.5, computed / distinct)


def compute_nodes(lm: LanguageModel, requests: Requests) -> int:
    """Nodes of the whole benchmark: counted with a body that does nothing, in no time."""
    small = random_model("gpt2-small", n_layer=1, n_embd=16, n_head=1, vocab_size=2_000)
    return compute(small, requests).tokens


def minicons(
    results: Results, lm: LanguageModel, requests: Requests, a_request: float, scale: float
) -> None:
    """The library that people use for this today, in an environment of its own."""
    what = "masked, a request, against minicons (c)"
    python = _minicons_python()
    if python is None:
        results.add(what, "≥ 2.5×", "not measured: it can't be installed here", None)
        return
    with tempfile.TemporaryDirectory() as folder:
        lm.model.save_pretrained(folder)
        lm.tokenizer.save_pretrained(folder)
        rows = np.random.default_rng(1).choice(len(requests.tokens), round(120 * scale), False)
        texts = [
            lm.tokenizer.decode(requests.tokens[int(row)], skip_special_tokens=True) for row in rows
        ]
        given = json.dumps({"model": folder, "texts": texts, "turns": 1})
        found = subprocess.run(
            [python, Path(__file__).with_name("minicons_side.py")],
            input=given, capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
        )  # fmt: skip
    if found.returncode:
        last = found.stderr.strip().split("\n")[-1]
        results.add(what, "≥ 2.5×", f"not measured: it fails here ({last})", None)
        return
    side = json.loads(found.stdout.strip().split("\n")[-1])
    for batch, taken in side["seconds"].items():
        theirs = taken / side["requests"]
        results.at_least(f"{what}, {batch} sentences at a time", 2.5, theirs / a_request)
    results.notes.append(
        f"minicons {side['version']}: {side['requests']:,} tokens of {len(texts)} sentences drawn "
        "at random, each token masked alone; ours is the time a request of the benchmark"
    )


def _minicons_python() -> Path | None:
    folder = user_cache_path("mitigate") / "performance" / "minicons"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.is_file():
        venv.create(folder, with_pip=True, clear=True)
        # It calls what transformers 5 has dropped.
        wanted = ["minicons", "transformers<5", f"torch=={version('torch').partition('+')[0]}"]
        command = [python, "-m", "pip", "install", "-q", *wanted]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return None
        ready.touch()
    return python


def planning(results: Results, pairs: Pairs, scale: float) -> None:
    """Planning the largest benchmark, against computing it at the rate measured here."""
    many = grown_pairs(BENCHMARK)
    for name in ("bert-base", "gpt2-small"):
        lm = random_model(name)
        begun = time.perf_counter()
        whole = planned(lm, many).requests
        plans = time.perf_counter() - begun
        mine = part_of(whole, lm, round((600 if lm.kind == "masked" else 60) / scale))
        begun = time.perf_counter()
        effort = compute(lm, mine)
        taken = time.perf_counter() - begun
        scoring = taken * len(whole) / len(mine)
        results.at_most(
            f"{name}: planning {BENCHMARK:,} pairs, of the time to score them",
            5, 100 * plans / scoring, " %",
        )  # fmt: skip
        results.notes.append(
            f"{name}, {BENCHMARK:,} pairs: planned in {plans:.1f} s, {len(whole):,} requests; "
            f"scored in {scoring / 60:.0f} min at the rate of {len(mine):,} of them "
            f"({effort.tokens:,} tokens in {taken:.1f} s)"
        )


class EnoughError(Exception):
    """Memory has been seen at its highest: the longest batches come first."""


def memory_of(name: str, count: int, limit_s: float) -> None:
    """In a process of its own: print the memory beyond the model that scoring takes."""
    torch.set_num_threads(1)
    pairs = grown_pairs(count)
    lm = random_model(name, **({"num_hidden_layers": 1} if name == "bert-base" else {"n_layer": 1}))
    with torch.inference_mode():
        lm.model(input_ids=torch.zeros(1, 8, dtype=torch.long))
    before = peak_memory()
    begun = time.monotonic()

    def report(done: int, total: int) -> None:
        if time.monotonic() - begun > limit_s:
            raise EnoughError

    with contextlib.suppress(EnoughError):
        score(lm, pairs, ScoreSettings(), report=report)
    print(peak_memory() - before)


def memory(results: Results, scale: float) -> None:
    for name in ("bert-base", "gpt2-small"):
        found = {}
        for count in (4_000, 40_000):
            said = subprocess.run(
                [sys.executable, "-m", "tests.performance.scoring", "--memory", name, str(count),
                 str(25 * scale)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found[count] = int(said.stdout.strip().split("\n")[-1]) / 2**30
        small, large = found.values()
        results.at_most(f"{name}: memory beyond the model, 4,000 pairs", 1.5, small, " GiB")
        results.at_most(f"{name}: memory beyond the model, 40,000 pairs", 1.5, large, " GiB")


def _one_process(rank: int, world: int, folder: str, scale: float) -> None:
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/meet{world}", rank=rank, world_size=world
        )
    lm = random_model("bert-base")
    requests = part_of(planned(lm, sample_pairs()).requests, lm, round(24 / scale))
    compute(lm, requests.only(np.arange(50)))
    if world > 1:
        torch.distributed.barrier()
    taken = seconds(lambda: compute(lm, requests))
    if rank == 0:
        Path(folder, f"took{world}").write_text(str(taken))
    if world > 1:
        torch.distributed.destroy_process_group()


def two_processes(results: Results, scale: float) -> None:
    ratios = []
    for _ in range(TURNS):
        with tempfile.TemporaryDirectory() as folder:
            for world in (1, 2):
                torch.multiprocessing.spawn(_one_process, args=(world, folder, scale), nprocs=world)
            one, two = (float(Path(folder, f"took{world}").read_text()) for world in (1, 2))
            ratios.append(one / two)
    results.at_least("two processes of one thread, against one", 1.7, float(np.median(ratios)))


def written(results: Results) -> str:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers", "numpy")
    )
    lines = [
        "# Scoring, measured",
        "",
        "By `python -m tests.performance.scoring`: one thread, random weights, everything in one "
        "run and in turns; medians of three. Ratios are times as fast.",
        "",
        "| what | target | measured | met |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in results.rows),
        "",
        "## How it was measured",
        "",
        f"- {packages}; Python {platform.python_version()}, {os.cpu_count()} cores "
        f"({platform.machine()})",
        *(f"- {note}" for note in results.notes),
        "- (a) is one forward pass a token, a sentence at a time, with all logits; for causal "
        "models over the tokens before it. (b) is the distinct sentences in batches of equal "
        "length, no prefix shared, all logits.",
        "- FLOP: two a weight of every linear layer and position, and attention's products; "
        "softmax, norms and activations count as time, not as work.",
        "- Memory beyond the model: the peak of a process with a model of one layer, over what it "
        "held when model and pairs were loaded; after 25 s it is stopped, since the longest "
        "batches come first.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", help="masked causal planning memory processes")
    parser.add_argument("--memory", nargs=3, metavar=("MODEL", "PAIRS", "SECONDS"))
    given = parser.parse_args()
    if given.memory:
        memory_of(given.memory[0], int(given.memory[1]), float(given.memory[2]))
        return
    torch.set_num_threads(1)
    scale = 0.1 if given.quick else 1.0
    results, pairs = Results(), sample_pairs()
    stages = {
        "masked": lambda: masked_speed(results, pairs, scale),
        "causal": lambda: causal_speed(results, pairs, scale),
        "planning": lambda: planning(results, pairs, scale),
        "memory": lambda: memory(results, scale),
        "processes": lambda: two_processes(results, scale),
    }
    for name in given.only or stages:
        stages[name]()
    if not given.quick and not given.only:
        RESULTS.write_text(written(results), encoding="utf-8")
    missed = [row[0] for row in results.rows if row[3] == "NO"]
    if missed:
        raise SystemExit(f"missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
