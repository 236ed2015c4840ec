"""How far does a run move by its own noise? `python -m tests.performance.placebo`

Runs `demo` once and its placebo `demo_control` with five seeds, through the real command, and
sets them side by side; written to tests/performance/PLACEBO.md. About ten minutes on two cores.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

MITIGATE = Path(sys.executable).with_name("mitigate")
SEEDS = range(5)


def main() -> None:
    """Run, compare, write."""
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [("demo", 0), *(("demo_control", seed) for seed in SEEDS)]
        folders = []
        for recipe, seed in jobs:
            folder = Path(scratch) / f"{recipe}-seed{seed}"
            words = [f"recipe={recipe}", f"seed={seed}", f"run.dir={folder}"]
            subprocess.run(
                [MITIGATE, "train", *words, "tracking.mode=disabled"],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            folders.append(folder)
            print(f"{folder.name} done", flush=True)
        out = Path(scratch) / "side_by_side"
        subprocess.run([MITIGATE, "report", *folders, f"out={out}"], check=True)
        table = (out / "runs.md").read_text("utf-8")
    target = Path(__file__).with_name("PLACEBO.md")
    head = "# demo against five placebo runs\n\nWritten by `python -m tests.performance.placebo`."
    target.write_text(f"{head}\n\n{table}", encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
