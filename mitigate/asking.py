"""`mitigate prompted`: what answers to prompted choice show of position and personas.

Reads Score tables of `score.scorer=prompted`, and published answers as they are.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from eval import answers, scores
from eval.errors import RequestError
from eval.inference import InferenceSettings, format_p, personas, positions, signed
from eval.metrics import measure
from eval.scores import PAIR_OF, Scores
from mitigate import settings
from mitigate.console import messages, say
from mitigate.run import write_text

USAGE = "prompted: which answers? mitigate prompted FILE [FILE …] [out=DIR] [inference.…=…]"
#: What the terminal shows of a table of positions, with the words of its heading.
SHOWN = {
    "first": "stereotype first",
    "second": "second",
    "balanced": "balanced",
    "effect": "position effect",
    "agreement": "orders agree",
}


def run(words: Sequence[str]) -> None:
    """Read, print, and write CSV files where `out=` asks for them.

    Raises:
        RequestError: no file, one that holds no answers, or a key that is none of the command's.
    """
    paths = [Path(word) for word in words if "=" not in word or Path(word).exists()]
    keyed = [word for word in words if Path(word) not in paths]
    out = next((word[4:] for word in reversed(keyed) if word.startswith("out=")), None)
    inferred = [word for word in keyed if not word.startswith("out=")]
    wrong = next((word for word in inferred if not word.startswith("inference.")), None)
    if wrong is not None:
        raise RequestError(f"prompted: no key {wrong.partition('=')[0]}; {USAGE}")
    if not paths:
        raise RequestError(USAGE)
    how = settings.from_words(inferred, recipe=None).inference
    found: dict[str, list[pd.DataFrame]] = {"positions": [], "personas": []}
    for model, tables in _read(paths).items():
        placed, effects = show(tables, how, model)
        for name, frame in (("positions", placed), ("personas", effects)):
            if frame is not None:
                found[name].append(frame.assign(model=model))
    for name, frames in found.items() if out is not None else ():
        if frames:
            path = Path(str(out)) / f"{name}.csv"
            write_text(path, pd.concat(frames).to_csv(index=False, lineterminator="\n"))
            say(f"Written: {path}")


def show(
    tables: Mapping[str, Scores], how: InferenceSettings, model: str = ""
) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Print what one model's answers show, by persona; returns positions and persona effects."""
    placed = []
    for persona, found in tables.items():
        table = positions.positions(found, how)
        title = " ".join(filter(None, (model, persona)))
        if table is None:
            messages.print(_levels(title, found, how))
            say(f"{title}: asked in one order only, so what position does is not known")
            continue
        messages.print(_positions(title, table))
        say(f"{title}: {positions.sentence(table, found.meta.get('options', ('1', '2')))}")
        placed.append(table.assign(persona=persona))
    effects = personas.effects(tables, how) if personas.comparable(tables) else None
    if effects is not None:
        messages.print(_effects(model, effects))
        for line in personas.sentences(effects):
            say(line)
    return pd.concat(placed, ignore_index=True) if placed else None, effects


def _read(paths: Sequence[Path]) -> dict[str, dict[str, Scores]]:
    """The Score tables in files, by model and persona."""
    models: dict[str, dict[str, Scores]] = {}
    for path in paths:
        if answers.is_published(path):
            for model, tables in answers.by_model(answers.read(path)).items():
                models.setdefault(model, {}).update(tables)
            continue
        found = scores.read(path)
        if PAIR_OF not in found.table:
            raise RequestError(f"{path}: holds no answers; score.scorer=prompted makes some")
        tables = models.setdefault(str(found.meta["model"]), {})
        persona = str(found.meta["persona"])
        if persona in tables:
            raise RequestError(
                f"{path}: {found.meta['model']} has answered as {persona} in an earlier file; "
                "mitigate compare sets two files against each other"
            )
        tables[persona] = found
    return models


def _positions(title: str, found: pd.DataFrame) -> Table:
    shown = _table(f"{title}: share choosing the stereotyped sentence, %")
    shown.add_column("pairs", justify="right")
    for words in SHOWN.values():
        shown.add_column(words, justify="right")
    for scope, rows in found.groupby("scope", sort=False):
        at = {row["statistic"]: row for row in rows.to_dict("records")}
        effect = at["effect"]
        cells = {name: f"{at[name]['value']:.2f}" for name in SHOWN}
        cells["effect"] = (
            f"{signed(effect['value'])} ({signed(effect['low'])} to {signed(effect['high'])})"
        )
        shown.add_row(Text(str(scope)), f"{effect['n_pairs']:,}", *cells.values())
    return shown


def _levels(title: str, found: Scores, how: InferenceSettings) -> Table:
    shown = _table(f"{title}: share choosing the stereotyped sentence, %")
    for words in ("pairs", "share"):
        shown.add_column(words, justify="right")
    for row in measure(found, how.ties, []).to_dict("records"):
        shown.add_row(Text(row["scope"]), f"{row['n_pairs']:,}", f"{row['bias']:.2f}")
    return shown


def _effects(model: str, found: pd.DataFrame) -> Table:
    shown = _table(" ".join(filter(None, (model, "effects of personas, points"))))
    for words in ("persona", "none", "as persona", "effect", "adjusted p", "McNemar, published"):
        shown.add_column(words, justify="right")
    for row in found.to_dict("records"):
        effect = f"{signed(row['delta'])} ({signed(row['ci_low'])} to {signed(row['ci_high'])})"
        shown.add_row(
            Text(row["scope"]),
            row["persona"],
            f"{row['base']:.2f}",
            f"{row['level']:.2f}",
            effect,
            format_p(row["p_adjusted"]),
            "–" if pd.isna(row["published_p"]) else format_p(row["published_p"]),
        )
    return shown


def _table(title: str) -> Table:
    shown = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD)
    shown.add_column("scope", no_wrap=True)
    return shown
