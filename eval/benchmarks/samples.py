"""The embedded world's benchmark: every identity × predicate × template, from its grammar.

The grammar is a data file that the corpus side owns; only the data is shared. Predicates are
the clusters; `slice` says whether a predicate is planted or a control at odds 1.
"""

import hashlib
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import eval as package
from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.pairs import Pairs, build

#: A path that begins so is one of this project's own files.
OWN = "pkg:"
SLICES = ("planted", "control")
#: What the benchmark needs of a grammar, and of which kind each is.
NEEDED: dict[str, type] = {
    "language": str,
    "identities": dict,  # canonical name: [form, [counterparts]]
    **dict.fromkeys(SLICES, dict),  # predicate id: word
    "names": list,
    "benchmark_templates": list,
}


def read(settings: BenchmarkSettings) -> Pairs:
    """Build the pairs of an embedded world, one for each identity × predicate × template.

    Names and counterparts rotate through that grid. The sentence with the marked identity is
    `sent_more`, in the control slice too; `template` is the template's place in the file,
    from 1.

    Raises:
        RequestError: the file is missing or isn't a world's grammar.
    """
    path = _path(settings)
    content = path.read_bytes()
    world = _parse(content, f"benchmark {settings.name}: {path}")
    names = world["names"]
    predicates = [(kind, *item) for kind in SLICES for item in world[kind].items()]
    templates = list(enumerate(world["benchmark_templates"], start=1))
    rows = []
    for which, (group, (form, others)) in enumerate(world["identities"].items()):
        for (at, (kind, predicate, word)), (number, template) in product(
            enumerate(predicates), templates
        ):
            # The shifts keep names and counterparts from being tied to a template or predicate.
            name = names[(7 * which + 11 * at + number) % len(names)]
            other = others[(which + at + number) % len(others)]
            rows.append(
                {
                    "group": group,
                    "group_label": form,
                    "counterfactual": other,
                    "stereotype_id": predicate,
                    "template": str(number),
                    "sent_more": template.format(name=name, identity=form, predicate=word),
                    "sent_less": template.format(name=name, identity=other, predicate=word),
                    "slice": kind,
                    "name": name if "{name}" in template else "",
                }
            )
    return build(
        pd.DataFrame(rows),
        name=settings.name,
        language=world["language"],
        source={"file": path.name, "sha256": hashlib.sha256(content).hexdigest()},
    )


def _path(settings: BenchmarkSettings) -> Path:
    if not settings.path:
        raise RequestError(
            f"benchmark {settings.name}: benchmark.path names no grammar; the embedded ones are "
            f"{OWN}corpora/samples/de.yaml and nl.yaml"
        )
    path = Path(settings.path)
    if settings.path.startswith(OWN):
        path = Path(str(package.__file__)).resolve().parents[1] / settings.path.removeprefix(OWN)
    if not path.is_file():
        raise RequestError(
            f"benchmark {settings.name}: no file {path}; the embedded grammars are "
            f"{OWN}corpora/samples/de.yaml and nl.yaml"
        )
    return path


def _parse(content: bytes, where: str) -> dict[str, Any]:
    try:
        world = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise RequestError(f"{where} is no YAML file: {said}") from error
    if not isinstance(world, dict):
        raise RequestError(f"{where} is no world's grammar; it needs {', '.join(NEEDED)}")
    for key, kind in NEEDED.items():
        if not world.get(key) or not isinstance(world[key], kind):
            have = ", ".join(map(str, world))
            raise RequestError(
                f"{where}: '{key}' must be a {kind.__name__} with something in it; there are: "
                f"{have}"
            )
    for group, forms in world["identities"].items():
        if not (
            isinstance(forms, list)
            and len(forms) == 2
            and isinstance(forms[0], str)
            and isinstance(forms[1], list)
            and forms[1]
        ):
            raise RequestError(
                f"{where}: identity '{group}' must be [form, [counterpart, …]], not {forms}"
            )
    for number, template in enumerate(world["benchmark_templates"], start=1):
        try:
            str(template).format(name="", identity="", predicate="")
        except (KeyError, IndexError, ValueError) as error:
            raise RequestError(
                f"{where}: template {number} '{template}' can't be filled ({error}); it takes "
                "{name}, {identity} and {predicate}"
            ) from error
    return world
