"""Which weights a method trains: all of them, an adapter, biases and norms, or the last layers.

A low-rank adapter is LoRA (Hu et al. 2021), rsLoRA (Kalajdzievski 2023) or DoRA (Liu et al.
2024); over a base in four bits it is QLoRA (Dettmers et al. 2023). Biases and norms alone are
BitFit (Ben Zaken et al. 2022) for models without biases too.
"""

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from mitigate.settings import LoraSettings, MethodSettings


def check(lm: LanguageModel, settings: MethodSettings, model_targets: list[str]) -> None:
    """Refuse what can't be trained, before anything is scored.

    Raises:
        RequestError: the model carries an adapter, lies on several devices or is in four bits
            without one to train; LoRA's targets match nothing or a tied output layer; there are
            no biases or norms, or fewer layers than asked for.
    """
    if isinstance(lm.model, PeftModel):
        raise RequestError(
            "model.adapter: a model with an adapter on it is not trained further, the result "
            "would lose one of the two; merge it first and give the folder as model.path"
        )
    placed = set(map(str, (getattr(lm.model, "hf_device_map", None) or {}).values()))
    if len(placed) > 1 or any(weight.is_meta for weight in lm.model.parameters()):
        raise RequestError(
            "model.device_map: a model over several devices, or put off to memory or disk, is "
            "scored and not trained; leave it out, and method=qlora needs the least memory"
        )
    if getattr(lm.model, "is_quantized", False) and settings.weights != "lora":
        raise RequestError(
            f"model.bits: weights in four bits can't be trained (method.weights="
            f"{settings.weights}); method=qlora trains an adapter on them"
        )
    if settings.lora is not None and settings.weights != "lora":
        raise RequestError(
            f"method.lora: this recipe trains method.weights={settings.weights}; method=lora "
            "trains an adapter"
        )
    if settings.weights == "lora":
        lora_modules(lm, _lora(settings).targets or model_targets)
    elif settings.weights != "all":
        _chosen(lm, settings)


def prepare(
    lm: LanguageModel,
    settings: MethodSettings,
    model_targets: list[str],
    say: Callable[[str], None],
) -> Any:
    """Make the model ready to be trained; what is trained asks for a gradient, and it is said.

    Returns the model itself, or a PeftModel around it. Before a step is taken it still is the
    model that was scored: its logits are the same, with the adapter on and off.

    Raises:
        RequestError: see `check`.
        RuntimeError: the logits are not the same.
    """
    check(lm, settings, model_targets)
    before = _logits(lm, lm.model)
    rounding = torch.finfo(lm.dtype).eps
    if settings.weights == "lora":
        model = _with_lora(lm, settings, model_targets, say)
        with model.disable_adapter():
            _same(before, _logits(lm, model), rounding, "with its adapter off")
    else:
        model = lm.model
        names = None if settings.weights == "all" else set(_chosen(lm, settings))
        for name, weight in model.named_parameters():
            weight.requires_grad_(names is None or name in names)
        say(_said(model, settings))
    _same(before, _logits(lm, model), rounding, "ready to be trained")
    return model


def share(model: Any) -> tuple[int, int]:
    """How many weights are trained, and how many there are; four-bit ones counted singly."""
    trained = total = 0
    for weight in model.parameters():
        # bitsandbytes keeps two weights of four bits in a byte.
        count = weight.numel() * (2 if type(weight).__name__ == "Params4bit" else 1)
        total += count
        trained += count if weight.requires_grad else 0
    return trained, total


def lora_modules(lm: LanguageModel, targets: list[str]) -> list[str]:
    """The full names of the modules that the targets match, all of which LoRA may change.

    Raises:
        RequestError: there are no targets, one matches nothing, or one is the output layer or
            shares its weights.
    """
    if not targets:
        raise RequestError(
            "method.lora.targets: this model has no defaults; name modules, such as "
            f"{', '.join(_linear_names(lm.model)[:6])}"
        )
    modules = dict(lm.model.named_modules())
    found = {
        target: [name for name in modules if name == target or name.endswith(f".{target}")]
        for target in targets
    }
    nothing = [target for target in targets if not found[target]]
    if nothing:
        raise RequestError(
            f"method.lora.targets: {', '.join(nothing)} match nothing in {lm.name}; there are: "
            f"{', '.join(_linear_names(lm.model))}"
        )
    matched = [name for name in modules if any(name in names for names in found.values())]
    output = lm.model.get_output_embeddings()
    for name in matched:
        if modules[name] is output or getattr(modules[name], "weight", None) is output.weight:
            raise RequestError(
                f"method.lora.targets: {name} is the output layer or shares its weights; where "
                "they are tied to the embeddings, an adapter merges into both"
            )
    return matched


def _lora(settings: MethodSettings) -> LoraSettings:
    return settings.lora or LoraSettings()


def _with_lora(
    lm: LanguageModel,
    settings: MethodSettings,
    model_targets: list[str],
    say: Callable[[str], None],
) -> Any:
    """Put LoRA on the model and say what it trains."""
    lora = _lora(settings)
    targets = lora.targets or model_targets
    matched = lora_modules(lm, targets)
    # No task type: peft knows none for masked models, and the default wraps nothing away.
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        bias="none",
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        task_type="CAUSAL_LM" if lm.kind == "causal" else None,
    )
    model = get_peft_model(lm.model, config)
    kind = "DoRA" if lora.dora else "LoRA"
    kind = f"rs{kind}" if lora.rslora else kind
    kind = f"Q{kind}" if getattr(lm.model, "is_quantized", False) else kind
    say(f"{kind} on {len(matched)} modules ({', '.join(targets)}): {_counted(model)}")
    return model


def _chosen(lm: LanguageModel, settings: MethodSettings) -> list[str]:
    """The names of the weights that are trained, where not all are and there is no adapter."""
    if settings.weights == "biases":
        norms = {
            id(weight)
            for module in lm.model.modules()
            if "norm" in type(module).__name__.lower()
            for weight in module.parameters(recurse=False)
        }
        chosen = [
            name
            for name, weight in lm.model.named_parameters()
            if name.rpartition(".")[2] == "bias" or id(weight) in norms
        ]
        if not chosen:
            raise RequestError(f"method.weights=biases: {lm.name} has neither biases nor norms")
        return chosen
    count = settings.last_layers
    layers = lm.model.config.num_hidden_layers
    if count > layers:
        raise RequestError(f"method.last_layers={count}: {lm.name} has {layers} layers")
    # One list of layers in most models; XLM keeps the parts of a layer in a list each.
    lists = [
        f"{name}."
        for name, module in lm.model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers
    ]
    last = [f"{name}{layer}." for name in lists for layer in range(layers - count, layers)]
    chosen = [name for name, _ in lm.model.named_parameters() if name.startswith(tuple(last))]
    if not chosen:
        raise RequestError(
            f"method.weights=last_layers: {lm.name} ({type(lm.model).__name__}) keeps no list of "
            f"{layers} layers; method.weights=all or lora"
        )
    return chosen


def _said(model: Any, settings: MethodSettings) -> str:
    """One line on what is trained where there is no adapter."""
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    modules = dict.fromkeys(name.rpartition(".")[0] for name in trained)
    ends = dict.fromkeys(_kind_of_module(name) for name in modules)
    what = {
        "all": "all weights",
        "biases": "biases and norms",
        "last_layers": f"the last {settings.last_layers} layers",
    }[settings.weights]
    listed = f" ({', '.join(ends)})" if settings.weights != "all" else ""
    return f"training {what} in {len(modules)} modules{listed}: {_counted(model)}"


def _kind_of_module(name: str) -> str:
    """A module's own name; with the one before it, where its own is only a number."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _counted(model: Any) -> str:
    trained, total = share(model)
    return f"{trained:,} of {total:,} weights, {100 * trained / total:.2f} %"


def _linear_names(model: Any) -> list[str]:
    """The last parts of the names of all linear layers but the output, each once."""
    head = model.get_output_embeddings()
    kinds = ("Linear", "Conv1D", "Linear4bit")
    names = (
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if type(module).__name__ in kinds and module is not head
    )
    return list(dict.fromkeys(names))


@torch.no_grad()
def _logits(lm: LanguageModel, model: Any) -> torch.Tensor:
    """Logits of a few tokens from all over the vocabulary, (tokens, vocabulary)."""
    model.eval()
    known = len(lm.tokenizer)
    ids = (torch.arange(1, 9) * (known - 1) // 9).to(lm.device)  # (tokens,)
    return torch.as_tensor(model(**lm.inputs(ids[None])).logits[0].float())


def _same(before: torch.Tensor, now: torch.Tensor, rounding: float, when: str) -> None:
    """Raise unless two models' logits are equal to 1e-6, or to what half precision can tell."""
    # DoRA divides by a norm and multiplies by it again, which rounds.
    room = max(1e-6, 4 * rounding) * max(1.0, before.abs().max().item())
    apart = (before - now).abs().max().item()
    if not before.isfinite().all():
        raise RuntimeError("the model's logits are no numbers before anything is trained")
    if not apart <= room:
        raise RuntimeError(
            f"the model {when} is not the one that was scored: logits differ by {apart:.1e}"
        )
