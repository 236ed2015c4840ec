"""How far does a run move by its own noise? `python -m tests.performance.placebo`

Runs `demo` once and its placebo `demo_control` with five seeds, through the real command, and
sets them side by side; written to tests/performance/PLACEBO.md. About ten minutes on two cores.
The placebo trains just as much on text that has the tilt of the model's own: what it changes is
the effect of any further training, together with a run's own noise. One run of `demo` beside it
claims nothing about the method; `eval.inference.runs` says what does.
"""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MITIGATE = Path(sys.executable).with_name("mitigate")
SEEDS = range(5)


def train(scratch: Path, recipe: str, seed: int) -> Path:
    """Run one recipe with one seed; returns its folder."""
    folder = scratch / f"{recipe}-seed{seed}"
    words = [f"recipe={recipe}", f"seed={seed}", f"run.dir={folder}", "tracking.mode=disabled"]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}  # two at a time
    subprocess.run([MITIGATE, "train", *words], check=True, stderr=subprocess.DEVNULL, env=one)
    print(f"{folder.name} done", flush=True)
    return folder


def main() -> None:
    """Run, two at a time, compare, write."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        jobs = [("demo", 0), *(("demo_control", seed) for seed in SEEDS)]
        folders = list(pool.map(lambda job: train(Path(scratch), *job), jobs))
        out = Path(scratch) / "side_by_side"
        subprocess.run([MITIGATE, "report", *folders, f"out={out}"], check=True)
        table = (out / "runs.md").read_text("utf-8")
    target = Path(__file__).with_name("PLACEBO.md")
    head = "# demo against five placebo runs\n\nWritten by `python -m tests.performance.placebo`."
    target.write_text(f"{head}\n\n{table}", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
