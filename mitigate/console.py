"""What a person sees, and what every process of a run shares: progress, caches, ranks."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from rich.tree import Tree

#: Where people read: standard error, so that standard output holds results alone.
#: In a file or a pipe nothing is cut to the width of a terminal that isn't there.
messages = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 120)


#: In this file a launched process says how it ended: a launcher's own status is always 1.
STATUS = "MITIGATE_STATUS_FILE"


def rank() -> int:
    """This process's number among those of the run; 0 without a launcher."""
    return int(os.environ.get("RANK", 0))


def world_size() -> int:
    """How many processes the launcher started."""
    return int(os.environ.get("WORLD_SIZE", 1))


def say(text: str) -> None:
    """Print a line for the person at the terminal, once, whatever the number of processes."""
    if rank() == 0:
        messages.print(text, markup=False, soft_wrap=True)


class _Rate(ProgressColumn):
    """How many are done in a second."""

    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else f"{task.speed:,.0f}/s", style="progress.data.speed")


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left, on the main process; yields `report(done, total)`."""
    if rank() != 0:
        yield lambda done, total: None
        return
    bar = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=messages,
        transient=not sys.stderr.isatty(),
        disable=not sys.stderr.isatty() and "CI" in os.environ,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def cache_folder() -> Path:
    """Where models built here are kept: `MITIGATE_CACHE`, else the user's cache folder."""
    stated = os.environ.get("MITIGATE_CACHE")
    return Path(stated).expanduser() if stated else user_cache_path("mitigate")


def scores_folder() -> Path:
    """Where scores are kept, finished or on their way, to be found again by what made them."""
    return cache_folder() / "scores"


def once_per_machine(folder: Path, build: Callable[[], None]) -> None:
    """Let one process build `folder` while the others wait; who comes later finds it."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            build()


def show_recipe(recipe: Any) -> None:
    """Print what a run is made of as a tree: chosen names, and what is set in them."""
    if rank() != 0:
        return
    tree = Tree(Text(f"recipe {recipe.name}", style="bold"))
    _branch(tree, dataclasses.asdict(recipe))
    messages.print(tree)


def _branch(tree: Tree, node: dict[str, Any]) -> None:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            _branch(tree.add(Text(key)), value)
        elif value not in (None, "", [], {}):
            shown = str(value) if len(str(value)) <= 90 else f"{str(value)[:87]}…"
            tree.add(Text(f"{key}: {shown}"))
