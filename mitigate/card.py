"""The model card of a run's result, in the hub's metadata form."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from eval import benchmarks, gate
from eval.inference import Comparison
from mitigate.methods.self_debias import SelfDebias
from mitigate.reporting import benchmark_of
from mitigate.run import Run
from mitigate.settings import Recipe

CLASSES = {"masked": "AutoModelForMaskedLM", "causal": "AutoModelForCausalLM"}
TASKS = {"masked": "fill-mask", "causal": "text-generation"}
#: The metrics that go into the metadata, with their names there.
METRICS = {
    "bias": "bias: pairs in which the stereotyped sentence is likelier (%, 50 is the target)",
    "margin": "mean margin between the two sentences (nats, 0 is the target)",
}
LIMITS = """\
For research on bias and its measurement. Paired sentences show which of two wordings a model \
finds likelier, for the identities and stereotypes of one benchmark, in its language. A score \
near 50 does not mean that the model is free of bias: other identities, stereotypes, wordings, \
languages and uses were not measured, and what a model writes can be biased whatever its pairs \
say. One run speaks of one model; a claim about a method needs several seeds. Not for decisions \
about people, and no licence to deploy: where the model is used, test it there, with the people \
concerned."""


def write(
    run: Run, recipe: Recipe, comparisons: dict[str, Comparison], retention: dict[str, Any]
) -> None:
    """Write README.md into the run's adapter/ and model/, whichever there are."""
    for name in ("adapter", "model"):
        if run.path(name).is_dir():
            content = card(run, recipe, comparisons, retention, run.path(name))
            run.write_text(f"{name}/README.md", content)


def card(
    run: Run,
    recipe: Recipe,
    comparisons: dict[str, Comparison],
    retention: dict[str, Any],
    folder: Path,
) -> str:
    """The card of one folder: what it is made from, what changed, how to load it, its limits."""
    adapter = (folder / "adapter_config.json").is_file()
    metadata = _metadata(run, recipe, comparisons, adapter=adapter)
    if SelfDebias.read(folder) is not None:
        metadata.library_name = None  # nothing on the hub loads it
    text = f"---\n{metadata.to_yaml(line_break=chr(10))}\n---\n\n" + "\n".join(
        _body(run, recipe, comparisons, retention, folder, adapter=adapter)
    )
    return str(ModelCard(text, ignore_metadata_errors=False))


def _metadata(
    run: Run, recipe: Recipe, comparisons: dict[str, Comparison], *, adapter: bool
) -> ModelCardData:
    kind = run.manifest["model"]["kind"]
    licence = _licence(recipe.model.licence)
    return ModelCardData(
        base_model=recipe.model.hub if not recipe.model.path else None,
        language=recipe.model.languages or None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag=TASKS[kind],
        tags=["bias-mitigation", "fairness", "lgbtq", "research", *(["lora"] if adapter else [])],
        datasets=[some.hub for some in recipe.corpus.values() if some.hub] or None,
        model_name=_title(run, recipe),
        eval_results=[
            EvalResult(
                task_type=TASKS[kind],
                task_name="bias in paired sentences",
                dataset_type=recipe.benchmark[benchmark_of(name)].hub or benchmark_of(name),
                dataset_name=name,
                metric_type=metric,
                metric_name=title,
                metric_value=round(float(row["after"]), 4),
                metric_args={
                    key: round(float(row[key]), 4)
                    for key in ("before", "delta", "ci_low", "ci_high")
                    if row[key] == row[key]
                },
            )
            for name, comparison in comparisons.items()
            for metric, title in METRICS.items()
            for row in comparison.rows(metric).to_dict("records")
            if row["scope"] == "overall" and row["after"] == row["after"]
        ]
        or None,
        **licence,
    )


def _licence(stated: str) -> dict[str, Any]:
    """The hub's identifier; a licence of one's own goes under `other` with its name."""
    if not stated or stated == "unknown":
        return {}
    if stated.startswith("other:"):
        return {"license": "other", "license_name": stated.partition(":")[2].strip()}
    return {"license": stated}


def _title(run: Run, recipe: Recipe) -> str:
    return recipe.hub.push.partition("/")[2] if recipe.hub.push else run.folder.name


def _body(
    run: Run,
    recipe: Recipe,
    comparisons: dict[str, Comparison],
    retention: dict[str, Any],
    folder: Path,
    *,
    adapter: bool,
) -> list[str]:
    base, training = run.manifest["model"], run.manifest["training"]
    degraded = gate.degraded(retention)
    what = "An adapter for" if adapter else "The weights of"
    if not adapter and recipe.method.weights == "lora":
        what = "An adapter merged into"
    steps = f", {training['steps']} steps" if "steps" in training else ""
    done = f"after {recipe.method.name} on {', '.join(recipe.corpus)}{steps}; seed {recipe.seed}"
    rule = SelfDebias.read(folder)
    if rule is not None:
        what, done = "A rule of decoding for", f"({recipe.method.name}; nothing is trained)"
    # What goes to the hub says nothing of the folders of the machine that it was made on.
    public = recipe.hub.push is not None
    source = "a model of one's own" if public and recipe.model.path else base["source"]
    made = f"recipe={recipe.name}" if public else run.manifest["command"]
    return [
        f"# {_title(run, recipe)}",
        "",
        f"{what} {base['name']} ({source}, licence {base['licence'] or 'unknown'}) {done}. Made "
        f"by `{made}`.",
        *(["", f"**{degraded}**"] if degraded else []),
        "",
        "## Loading it",
        "",
        "```python",
        *loading(recipe, base["kind"], folder, adapter=adapter),
        "```",
        *([] if rule is None else _decoding(rule)),
        "",
        "## What changed",
        "",
        *(f"- {name}: {' '.join(said.sentences())}" for name, said in comparisons.items()),
        "",
        "| benchmark | metric | before | after | change | 95 % interval |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {metric} | {row['before']:.2f} | {row['after']:.2f} | {row['delta']:+.2f} "
            f"| {row['ci_low']:+.2f} to {row['ci_high']:+.2f} |"
            for name, comparison in comparisons.items()
            for metric in METRICS
            for row in comparison.rows(metric).to_dict("records")
            if row["scope"] == "overall"
        ),
        "",
        "Bias is a percentage whose target is 50; the margin is in nats, and its target 0.",
        "",
        "## Is it still a language model?",
        "",
        *(f"- {line}" for line in gate.sentences(retention)),
        "",
        "## Data",
        "",
        *(f"- {_corpus(name, some, rule is None)}" for name, some in recipe.corpus.items()),
        *(f"- {_benchmark(name, some)}" for name, some in recipe.benchmark.items()),
        "",
        "No text of a corpus is part of this folder, though a model may repeat what it was trained "
        "on.",
        *(
            ["", "The corpus holds sentences of the benchmark, so the change is no measure."]
            if run.manifest.get("corpus", {}).get("texts_with_benchmark_sentences")
            else []
        ),
        *(["", *(f"- {note}" for note in notes)] if (notes := run.manifest.get("notes")) else []),
        "",
        "## Intended use and limits",
        "",
        LIMITS,
        "",
    ]


def loading(recipe: Recipe, kind: str, folder: Path, *, adapter: bool) -> list[str]:
    """Three lines of transformers, peft for an adapter, or this package, that load the result."""
    auto = CLASSES[kind]
    # The hub has one of the two folders: the merged one where there is one.
    public = recipe.hub.push and (not adapter or not (folder.parent / "model").is_dir())
    where = recipe.hub.push if public else str(folder)
    if SelfDebias.read(folder) is not None:
        return [
            "from mitigate import models",
            "from mitigate.settings import ModelSettings",
            f'lm = models.load(ModelSettings(path="{where}"))',
        ]
    if not adapter:
        return [
            f"from transformers import {auto}, AutoTokenizer",
            f'model = {auto}.from_pretrained("{where}")',
            f'tokenizer = AutoTokenizer.from_pretrained("{where}")',
        ]
    base = recipe.model.path or recipe.model.hub or _base(folder)
    return [
        "from peft import PeftModel",
        f"from transformers import {auto}",
        f'model = PeftModel.from_pretrained({auto}.from_pretrained("{base}"), "{where}")',
    ]


def _base(folder: Path) -> str:
    """The base that the adapter itself names: an embedded model has no other address."""
    from peft import PeftConfig

    return str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path)


def _decoding(rule: SelfDebias) -> list[str]:
    """What is and what isn't in the folder, where it holds no weights."""
    return [
        "",
        f"{rule}. This folder holds no weights: whoever loads the model without this package has "
        "it as it was. `lm.model` takes whole sentences and gives their logits; `mitigate score "
        "model.path=…` takes the folder. The prefixes:",
        "",
        *(f"- {prefix}" for prefix in rule.prefixes),
    ]


def _corpus(name: str, some: Any, trained: bool) -> str:
    said = [f"trained on {name}" if trained else f"held-out text and language: {name}"]
    said[0] += f" ({some.language})" if some.language else ""
    said += [f"licence {some.licence or 'unknown'}"]
    said += [some.paper] if some.paper else []
    return ", ".join(said)


def _benchmark(name: str, some: Any) -> str:
    paper = f", {some.paper}" if some.paper else ""
    how = "completed" if benchmarks.is_prompts(some) else "scored on"
    return f"{how} {name}, licence {some.licence or 'unknown'}{paper}"
