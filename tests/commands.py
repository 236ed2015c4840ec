"""`mitigate …` in a process of its own that has the libraries loaded already.

Half of a small command's time goes into importing torch and transformers. So one process a session
imports them, and each command is forked from it and enters where the console script does. What a
library reads of the environment when it is imported can't be changed this way: such a test starts
the script itself.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

#: What nearly every command needs.
LOADED = ("mitigate.train", "mitigate.cli", "matplotlib.pyplot", "trl.trainer.sft_trainer")


def context() -> ForkServerContext:
    """The forking process's context; the process itself starts with the first command."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(LOADED))
    return found


def run(
    forking: ForkServerContext, words: Sequence[str], *, cwd: Path, env: dict[str, str], out: Path
) -> subprocess.CompletedProcess[str]:
    """Run `mitigate WORDS`; `out` takes what it writes, a file for each stream.

    Raises:
        subprocess.TimeoutExpired: it took more than five minutes.
    """
    files = [out / "stdout", out / "stderr"]
    process = forking.Process(target=_command, args=(list(words), cwd, env, files))
    process.start()
    process.join(300)
    if process.is_alive():
        process.kill()
        raise subprocess.TimeoutExpired(["mitigate", *words], 300)
    said = [file.read_text("utf-8") if file.is_file() else "" for file in files]
    return subprocess.CompletedProcess(["mitigate", *words], process.exitcode or 0, *said)


def _command(words: list[str], cwd: Path, env: dict[str, str], files: list[Path]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for stream, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    # Python's own streams may point elsewhere, where the parent captured them.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = ["mitigate", *words]
    from mitigate import cli

    cli.main()
