"""W&B: one run, on the main process only, started after the process group.

Our own files are the truth; what goes up are aggregates, the delta table and the figure.
"""

import netrc
import os
from pathlib import Path
from typing import Any

import pandas as pd

from eval.inference import Comparison
from mitigate.run import Run


class Tracker:
    """The run's W&B side; on other processes, and with tracking disabled, it does nothing."""

    def __init__(self, run: Run, config: dict[str, Any]):
        self._wandb: Any = None
        settings = run.recipe.tracking
        mode = mode_of(settings.mode)
        if not run.main or mode == "disabled":
            return
        import wandb

        self._wandb = wandb.init(
            project=settings.project,
            entity=settings.entity,
            id=run.manifest["wandb_id"],
            name=run.folder.name,
            group=run.recipe.name,
            dir=str(run.folder),
            mode=mode,
            config=config,
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(silent=True),
        )
        # A step axis of our own: W&B drops values whose step goes back, as after a resume.
        self._wandb.define_metric("train/step")
        self._wandb.define_metric("train/*", step_metric="train/step")
        self._wandb.define_metric("curve/*", step_metric="train/step")

    def log(self, values: dict[str, Any]) -> None:
        if self._wandb is not None:
            self._wandb.log(values)

    def finding(self, name: str, several: bool, comparison: Comparison, figure: Path) -> None:
        """Send one benchmark's levels, deltas, table and figure; `several`: keys name it."""
        if self._wandb is None:
            return
        import wandb

        suffix = f"/{name}" if several else ""
        summary: dict[str, Any] = {}
        for row in comparison.table.to_dict("records"):
            place = row["scope"].replace(":", "/")
            for when in ("before", "after", "delta"):
                summary[f"bias/{when}/{place}/{row['metric']}{suffix}"] = row[when]
        for key, value in comparison.headline.items():
            if isinstance(value, int | float):
                summary[f"bias/headline/{key}{suffix}"] = value
        self._wandb.summary.update(summary)
        table = comparison.table.astype(object).where(comparison.table.notna(), None)
        self._wandb.log(
            {
                f"bias/deltas{suffix}": wandb.Table(dataframe=pd.DataFrame(table)),
                f"bias/figure{suffix}": wandb.Image(str(figure)),
                **summary,
            }
        )

    def summary(self, values: dict[str, Any]) -> None:
        if self._wandb is not None:
            self._wandb.summary.update(values)

    def finish(self) -> None:
        if self._wandb is not None:
            self._wandb.finish()


def mode_of(wanted: str) -> Any:  # one of the modes that wandb.init takes
    """`auto` follows WANDB_MODE where it is set, else online with a key and offline without."""
    if wanted != "auto":
        return wanted
    stated = os.environ.get("WANDB_MODE")
    if stated:
        return stated
    return "online" if has_key() else "offline"


def has_key() -> bool:
    """Whether a W&B key is in the environment or in the netrc file; nobody is asked for one."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if not path.is_file():
        return False
    try:
        return any("wandb" in host for host in netrc.netrc(str(path)).hosts)
    except netrc.NetrcParseError:
        return False
