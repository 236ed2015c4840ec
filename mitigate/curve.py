"""Bias at each checkpoint: a sample of every benchmark, scored while the model is trained."""

import contextlib
import dataclasses
import io
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed
from accelerate.utils import parse_flag_from_env

from eval.benchmarks.filters import sample
from eval.errors import RequestError
from eval.metrics import measure
from eval.pairs import Pairs
from eval.scorers import score
from eval.scorers.model import LanguageModel
from mitigate.console import rank
from mitigate.run import write_text
from mitigate.settings import CurveSettings, Recipe

FILE = "curve.csv"
METRICS = ("bias", "soft", "margin", "distance")
#: The columns of curve.csv and their types; units as in eval.metrics.measure.
COLUMNS: dict[str, type] = {
    "step": int,  # updates done; 0 is the model before training
    "epoch": float,
    "benchmark": str,
    "scope": str,  # overall, macro, group:<name>
    "n_pairs": int,
    "n_clusters": int,
    **dict.fromkeys(METRICS, float),
    "valid_loss": float,  # empty where the checkpoint was not evaluated
}


class Curve:
    """What curve.csv holds, and how a row is made. Call it where training stands."""

    def __init__(
        self,
        path: Path,
        recipe: Recipe,
        lm: LanguageModel,
        pairs: dict[str, Pairs],
        log: Callable[[dict[str, Any]], None],
    ):
        self.path = path
        self.recipe = recipe
        self.lm = lm
        self.pairs = {name: sampled(some, recipe.curve) for name, some in pairs.items()}
        self.log = log
        self.rows = _read_by_main(path)

    def __call__(self, step: int, epoch: float | None, valid_loss: float | None) -> None:
        """Score the model as it is now, after `step` updates, unless that was done already.

        Rows of later steps are from before a kill: training has gone back behind them, so they
        are dropped. Every process takes part; the file is written by the main process.
        """
        rows = self.rows[self.rows["step"] <= step]
        news: dict[str, Any] = {}
        if not (rows["step"] == step).any():
            begun = time.monotonic()
            measured = self._measured(step)
            place = {"step": step, "epoch": epoch, "valid_loss": valid_loss}
            new = pd.concat(measured, names=["benchmark"]).reset_index("benchmark").assign(**place)
            seconds = time.monotonic() - begun
            news = {"train/step": step, "epoch": epoch, "curve/seconds": seconds}
            news |= _keys(measured)
            new = new[list(COLUMNS)].astype(COLUMNS)
            rows = pd.concat([rows, new], ignore_index=True) if len(rows) else new
        self.rows = rows
        if rank() == 0:
            write_text(self.path, rows.to_csv(index=False, lineterminator="\n"))
        if news:  # after the file, so that a kill in between makes nothing logged twice
            self.log(news)

    def _measured(self, step: int) -> dict[str, pd.DataFrame]:
        """The measures of every benchmark's sample, by its name."""
        # Other weights than those that the fingerprint is of: nothing may take them for the same.
        lm = dataclasses.replace(self.lm, fingerprint=f"{self.lm.fingerprint}+{step}")
        with _as_scored(lm.model), torch.no_grad():
            scored = {
                # Beside an optimizer there may be no room for the weights in float32.
                name: score(lm, some, self.recipe.score, noise=False)
                for name, some in self.pairs.items()
            }
        ties = self.recipe.inference.ties
        return {name: measure(found, ties, []) for name, found in scored.items()}


def check(recipe: Recipe) -> None:
    """Refuse a curve where it can't be made, before anything is loaded.

    Raises:
        RequestError: the model's weights will be spread over processes while it is trained.
    """
    if not recipe.curve.pairs:
        return
    for flag, name in (
        ("ACCELERATE_USE_FSDP", "FSDP"),
        ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"),
    ):
        if parse_flag_from_env(flag):
            raise RequestError(
                f"curve.pairs={recipe.curve.pairs}: a model can't be scored while {name} holds "
                "its weights; curve.pairs=0, or launch=ddp"
            )


def sampled(pairs: Pairs, settings: CurveSettings) -> Pairs:
    """The pairs of the curve: each group in proportion, the same ones in every run."""
    if settings.pairs >= len(pairs):
        return pairs
    facts = {"curve_pairs": settings.pairs, "curve_seed": settings.seed}
    return dataclasses.replace(
        pairs,
        table=sample(pairs.table, settings.pairs, settings.seed),
        source={**pairs.source, **facts},
    )


def read(path: Path) -> pd.DataFrame:
    """Read a curve.csv, every digit as it was written; COLUMNS without a row if there is none.

    Raises:
        RequestError: the file holds something else.
    """
    if not path.is_file():
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in COLUMNS.items()})
    text = path.read_text("utf-8")
    head = text.partition("\n")[0].split(",")
    if head != list(COLUMNS):
        raise RequestError(f"{path}: not a curve: its columns are {', '.join(head)}")
    # As text first: a group may be called "NA", and pandas reads numbers to the last digit or not
    # by its version.
    rows = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    numbers = [name for name, kind in COLUMNS.items() if kind is float]
    return rows.replace(dict.fromkeys(numbers, ""), np.nan).astype(COLUMNS)


def _read_by_main(path: Path) -> pd.DataFrame:
    """The rows on the main process's disk, on every process: all must agree on what is done."""
    held: list[Any] = [read(path) if rank() == 0 else None]
    if torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(held)
    return held[0]


def _keys(measured: dict[str, pd.DataFrame]) -> dict[str, float]:
    """The measures by the keys of metrics.jsonl and W&B; several benchmarks are named in them."""
    return {
        f"curve/{f'{name}/' if len(measured) > 1 else ''}"
        f"{row['scope'].replace(':', '/')}/{metric}": row[metric]
        for name, table in measured.items()
        for row in table.to_dict("records")
        for metric in METRICS
        if not math.isnan(row[metric])
    }


@contextlib.contextmanager
def _as_scored(model: Any) -> Iterator[None]:
    """The model as it is scored before and after training; then again as training had it.

    Evaluation mode for every module, whose own modes come back; the states of all random
    numbers come back, so that training goes on as if nothing had been; and the model's own
    forward pass, not the one that accelerate wraps into autocast.
    """
    modes = [(module, module.training) for module in model.modules()]
    states = random.getstate(), np.random.get_state()
    wrapped = model.forward
    own = model.__dict__.get("_original_forward")
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        model.eval()
        if own is not None:
            model.forward = own
        try:
            yield
        finally:
            if own is not None:
                model.forward = wrapped
            for module, mode in modes:
                module.training = mode
            random.setstate(states[0])
            np.random.set_state(states[1])
