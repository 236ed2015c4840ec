"""Load, save and fingerprint models: base models, adapters, tokenizers; masked or causal."""

import atexit
import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from peft import PeftModel
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils.logging import disable_progress_bar

from eval import weights
from eval.errors import RequestError
from eval.rules import Kind
from eval.scorers import max_length
from eval.scorers.model import LanguageModel
from mitigate.console import cache_folder, once_per_machine, rank
from mitigate.methods.self_debias import FILE, SelfDebias
from mitigate.settings import ModelSettings, available, nearest

#: BERT and its kin, causal only as decoders: else each token sees what it should predict.
BOTH_KINDS = MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys() & MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()


#: A model that the user gives by folder or id is called after that.
UNNAMED = ("", "custom")

# The bars of loading and saving would bury what a run has to say.
disable_progress_bar()


class ModelError(RequestError):
    """The model that the request names can't be used; one line says why."""


class MergeError(RuntimeError):
    """An adapter can't be merged into its weights."""


def prepare(settings: ModelSettings) -> None:
    """Build or unpack what has to be built first, before the process group is started.

    Once there is one, transformers saves on rank 0 alone, and whichever process holds the lock
    would build an empty folder.
    """
    _source(settings)


def load(settings: ModelSettings) -> LanguageModel:
    """Load the model that `settings` names, on its device, in evaluation mode.

    Raises:
        RequestError: the folder or hub id is not there, has no config, no safetensors weights,
            missing weights (a head that would be random), or is neither masked nor causal.
    """
    device = _device(settings.device)
    if settings.bits is not None and device.type != "cuda":
        raise ModelError(
            f"model.bits={settings.bits}: weights in four bits need a GPU, and this runs on "
            f"{device.type}; method=lora without it"
        )
    if settings.bits is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            f"model.bits={settings.bits}: needs bitsandbytes (pip install bitsandbytes)"
        )
    source = _source(settings)
    rule = SelfDebias.read(Path(source))
    if rule is not None:  # around weights that lie elsewhere
        source, settings = rule.base, _of_base(rule, settings)
    adapter = _adapter_folder(settings.adapter) if settings.adapter else None
    if (Path(source) / "adapter_config.json").is_file() and not adapter:
        adapter, source = source, _base_of_adapter(Path(source))
    config = _config(source, settings)
    kind = kind_of(config, settings.kind)
    if kind == "causal" and hasattr(config, "causal"):
        config.causal = True  # XLM: the same class reads left to right or both ways
    if config.model_type in BOTH_KINDS:
        config.is_decoder = kind == "causal"
    language_id = _language_id(config, settings.langs)
    tokenizer = _tokenizer(source, settings)
    model: Any = _weights(source, kind, config, settings)
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    if settings.device_map is None and settings.bits is None:
        torch.nn.Module.to(model, device)
    model.eval()
    loaded = LanguageModel(
        name=settings.name if settings.name not in UNNAMED else Path(source).name,
        kind=kind,
        model=model,
        tokenizer=tokenizer,
        fingerprint=fingerprint(model),
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        language_id=language_id,
    )
    return loaded if rule is None else rule.around(loaded)


def load_tokenizer(settings: ModelSettings) -> PreTrainedTokenizerBase:
    """The tokenizer alone of the model that `settings` names.

    Raises:
        RequestError: the folder or hub id is not there, or has no tokenizer.
    """
    source = _source(settings)
    if (rule := SelfDebias.read(Path(source))) is not None:
        source, settings = rule.base, _of_base(rule, settings)
    if (Path(source) / "adapter_config.json").is_file():
        source = _base_of_adapter(Path(source))
    return _tokenizer(source, settings)


def kind_of(config: PretrainedConfig, override: str = "auto") -> Kind:
    """Masked or causal, by the class the checkpoint was saved with, else by its model type.

    Never by a substring of a path, which is how published scripts pick the wrong class.
    """
    if override in ("masked", "causal"):
        return override  # type: ignore[return-value]
    saved = (getattr(config, "architectures", None) or [""])[0]
    if saved.endswith("WithLMHeadModel"):  # XLM and FlauBERT: one class for both
        return "causal" if getattr(config, "causal", False) else "masked"
    if saved.endswith("ForMaskedLM"):
        return "masked"
    if saved.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal"
    masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if masked and not (causal and getattr(config, "is_decoder", False)):
        return "masked"
    if causal:
        return "causal"
    raise ModelError(
        f"a {config.model_type} model ({saved or 'no architecture in its config'}) is neither a "
        "masked nor a causal language model; say model.kind=masked or model.kind=causal if it is"
    )


def fingerprint(model: torch.nn.Module) -> str:
    """Hash every weight, by name and bytes (16 hex digits)."""
    return weights.fingerprint(
        (name, _offloaded(model, name) if tensor.is_meta else tensor)
        for name, tensor in sorted(model.state_dict().items())
    )


def _offloaded(model: torch.nn.Module, name: str) -> torch.Tensor:
    """A weight that accelerate keeps in memory or on disk until its module runs."""
    owner, _, own_name = name.rpartition(".")
    hook = model.get_submodule(owner)._hf_hook
    hooks = getattr(hook, "hooks", [hook])
    maps = [each.weights_map for each in hooks if getattr(each, "weights_map", None) is not None]
    return torch.as_tensor(maps[0][own_name])


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash what a tokenizer does to text (16 hex digits)."""
    digest = hashlib.blake2b(digest_size=8)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        digest.update(backend.to_str().encode())
    else:
        digest.update(repr(sorted(tokenizer.get_vocab().items())).encode())
    digest.update(repr(sorted(map(str, tokenizer.all_special_tokens))).encode())
    return digest.hexdigest()


def check_weights(settings: ModelSettings) -> None:
    """Refuse a model that can only be asked.

    Raises:
        RequestError: it is behind an API.
    """
    if settings.base_url is not None:
        raise ModelError(
            f"{settings.name}: this needs the weights, and a model behind an API is only asked: "
            "mitigate score with score.scorer=prompted; model=NAME or model.path=DIR has weights"
        )


def _source(settings: ModelSettings) -> str:
    """Where the weights are: a folder here, or a hub id."""
    check_weights(settings)
    if settings.path:
        return _folder(Path(settings.path), "model.path")
    if settings.sample:
        from mitigate.sample_models import ensure  # trains; not needed by anyone else

        kind: Kind = "causal" if settings.kind == "causal" else "masked"
        return str(ensure(settings.sample, kind))
    if settings.gguf_package and importlib.util.find_spec(settings.gguf_package):
        return str(_from_gguf(settings.gguf_package))
    if settings.hub:
        return settings.hub
    names = [name for name in available("model") if name != "custom"]
    raise ModelError(f"no model: say model=NAME ({', '.join(names[:4])}, …) or model.path=DIR")


def _folder(path: Path, key: str) -> str:
    """A local folder that must be there: never to be taken for a hub id and asked for."""
    if not path.expanduser().is_dir():
        hint = f"; for a model on the hub write model.hub={path}" if _like_hub_id(path) else ""
        raise ModelError(f"{key}={path}: no such folder{hint}")
    return str(path.expanduser())


def _like_hub_id(path: Path) -> bool:
    return not path.is_absolute() and len(path.parts) <= 2 and path.parts[:1] != ("..",)


def _base_of_adapter(adapter: Path) -> str:
    from peft import PeftConfig

    base = PeftConfig.from_pretrained(str(adapter)).base_model_name_or_path
    if not base:
        raise ModelError(f"{adapter}: its adapter_config.json names no base model")
    return str(base)


def _of_base(rule: SelfDebias, settings: ModelSettings) -> ModelSettings:
    """How the weights are loaded that a rule is put around; what the user says goes first."""
    if Path(rule.base).is_absolute() and not Path(rule.base).is_dir():
        raise ModelError(
            f"{settings.path}/{FILE}: its weights were in {rule.base}, where there is no folder "
            "now; its `base` says where they are"
        )
    return dataclasses.replace(
        settings,
        revision=settings.revision or rule.revision,
        kind=rule.kind if settings.kind == "auto" else settings.kind,
    )


def _hub_arguments(settings: ModelSettings) -> dict[str, Any]:
    return {"revision": settings.revision, "trust_remote_code": settings.trust_remote_code}


def _config(source: str, settings: ModelSettings) -> PretrainedConfig:
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise ModelError(f"{source}: no config.json, so not a model's folder")
    return _from_source(AutoConfig, source, settings)


def _from_source(auto: Any, source: str, settings: ModelSettings, **more: Any) -> Any:
    """`from_pretrained`, with its ways of failing told in one line."""
    try:
        return auto.from_pretrained(source, **_hub_arguments(settings), **more)
    except (OSError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ModelError(_why(source, error, settings)) from error
    except SafetensorError as error:
        raise ModelError(f"{source}: its weights can't be read, or not all: {error}") from error
    except (ValueError, KeyError) as error:
        said = str(error).strip().split("\n")[0]
        raise ModelError(f"{source}: can't be loaded: {said}") from error


def _why(source: str, error: Exception, settings: ModelSettings) -> str:
    said = " ".join(str(error).split())
    if Path(source).is_dir():
        if "safetensors" in said or "no file named" in said:
            return f"{source}: no safetensors weights in this folder"
        return f"{source}: can't be read: {said[:200]}"
    offline = os.environ.get("HF_HUB_OFFLINE") in ("1", "ON", "YES", "TRUE")
    state = (
        "HF_HUB_OFFLINE is set and it is not in the cache"
        if offline
        else "the hub has no such model, asks for a login, or can't be reached (with the model in "
        "the cache, HF_HUB_OFFLINE=1 does without)"
    )
    hint = "a copy on disk goes in by model.path=DIR, and model=samples_masked_de needs no hub"
    if settings.name in UNNAMED:  # an id that the user typed
        names = [name for name in available("model") if name != "custom"]
        close = difflib.get_close_matches(source.rpartition("/")[2], names, n=1)
        hint = f"did you mean model={close[0]}?" if close else hint
    return f"{source}: {state}; {hint}"


def _tokenizer(source: str, settings: ModelSettings) -> PreTrainedTokenizerBase:
    """The tokenizer; where its files are missing, transformers makes one without any word."""
    tokenizer: PreTrainedTokenizerBase = _from_source(AutoTokenizer, source, settings)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ModelError(f"{source}: no tokenizer there, or one without a vocabulary")
    return tokenizer


def _weights(
    source: str, kind: Kind, config: PretrainedConfig, settings: ModelSettings
) -> PreTrainedModel:
    auto = AutoModelForMaskedLM if kind == "masked" else AutoModelForCausalLM
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    placed: dict[str, Any] = {}
    if settings.bits is not None:
        # QLoRA's storage (Dettmers et al. 2023, §3): before and after are both scored in it.
        placed["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
        placed["device_map"] = {"": _device(settings.device)}
    if settings.device_map is not None:
        # More than one device: layers go where there is room, then to memory, then to disk.
        placed |= {
            "device_map": settings.device_map,
            "max_memory": {
                int(device) if device.isdigit() else device: size
                for device, size in settings.max_memory.items()
            }
            or None,
            "offload_folder": tempfile.mkdtemp(prefix="mitigate-offload-"),
        }
        atexit.register(shutil.rmtree, placed["offload_folder"], ignore_errors=True)
    model, report = _from_source(
        auto,
        source,
        settings,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
        **placed,
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{source}: {len(missing)} weights are missing and would be random: "
            f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''} "
            f"(loaded as a {kind} model; is that its kind? model.kind=…)"
        )
    return model


def _adapter_folder(said: str) -> str:
    folder = _folder(Path(said), "model.adapter")
    if not (Path(folder) / "adapter_config.json").is_file():
        raise ModelError(f"model.adapter={said}: no adapter_config.json in this folder")
    return folder


def _device(wanted: str) -> torch.device:
    if wanted != "auto":
        try:
            device = torch.device(wanted)
        except RuntimeError as error:
            raise ModelError(
                f"model.device={wanted}: not a device; cpu, cuda, cuda:0, mps"
            ) from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ModelError(f"model.device={wanted}: no GPU here; model.device=cpu")
        return device
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def _language_id(config: PretrainedConfig, langs: str | None) -> int | None:
    """XLM's id for the language that `model.langs` names; None where the model has none."""
    known = getattr(config, "lang2id", None) or {}
    if langs is None:
        return None
    if langs not in known:
        hint = nearest(langs, known) if known else "this model has no language ids; leave it out"
        raise ModelError(f"model.langs={langs}: {hint}")
    return int(known[langs])


def _from_gguf(package: str) -> Path:
    """Unpack a package's GGUF once into a plain safetensors folder in the cache.

    The state dict goes into a fresh model first: one that was loaded from GGUF still carries
    its quantisation settings and can't be saved as it is.
    """
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec is not None else None
    files = sorted(Path(locations[0]).glob("**/*.gguf")) if locations else []
    if not files:
        raise ModelError(f"the package {package} carries no .gguf file")
    gguf = files[0]
    folder = cache_folder() / "models" / f"{package}-{gguf.stem}-{gguf.stat().st_size}"

    def build() -> None:
        loaded = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        config = LlamaConfig(
            **{
                key: value
                for key, value in loaded.config.to_dict().items()
                if key not in ("quantization_config", "_name_or_path", "dtype")
            }
        )
        fresh = LlamaForCausalLM(config)
        fresh.load_state_dict(loaded.state_dict())
        save_folder(fresh, tokenizer, folder)

    once_per_machine(folder, build)
    return folder


def whole_state(model: torch.nn.Module) -> dict[str, torch.Tensor] | None:
    """The weights of a model that FSDP2 or ZeRO-3 holds in shards, gathered on the first process.

    Every process has to take part; the others get an empty dict. None where nothing is sharded.
    """
    parameters = list(model.parameters())
    if any(isinstance(weight, DTensor) for weight in parameters):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return cast(dict[str, torch.Tensor], get_model_state_dict(model, options=options))
    if any(hasattr(weight, "ds_id") for weight in parameters):
        deepspeed = importlib.import_module("deepspeed")  # here where its launcher was asked for
        with deepspeed.zero.GatheredParameters(parameters):
            return (
                {name: weight.detach().cpu() for name, weight in model.state_dict().items()}
                if rank() == 0
                else {}
            )
    return None


def save_folder(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    state: dict[str, torch.Tensor] | None = None,
) -> None:
    """Save weights (safetensors) and tokenizer beside the place, then move them in whole.

    `state`: the weights, where the model holds only shards of them (`whole_state`).
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        model.save_pretrained(staging, **({} if state is None else {"state_dict": state}))
        tokenizer.save_pretrained(staging)
        described = ("config.json", "adapter_config.json", FILE)
        if not any((staging / name).is_file() for name in described):
            raise RuntimeError(f"{folder.name}: nothing was saved; only rank 0 may save")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


#: How far the merged model's logits may be from the adapter's, as a share of the largest.
SAME = 1e-5


def merge(
    adapted: LanguageModel, settings: ModelSettings, texts: Sequence[str], folder: Path
) -> float:
    """Merge an adapter into its weights, save, reload, and keep it if it does the same.

    `adapted` is used up. The logits of `texts` (eight at most, each alone) are compared, as they
    come from the adapter and from the saved files. Returns the largest difference over the
    largest logit; `folder` is there only if that is SAME at most.

    Raises:
        MergeError: the method's adapter can't be merged into these weights.
    """
    texts = list(texts)[:8]
    before = _logits(adapted, texts)
    model: Any = adapted.model
    try:
        merged = model.merge_and_unload(safe_merge=True)
    except (ValueError, NotImplementedError, AttributeError) as error:
        raise MergeError(str(error).strip().split("\n")[0]) from error
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        save_folder(merged, adapted.tokenizer, staging / "model")
        del model, merged
        given = dataclasses.replace(settings, path=str(staging / "model"), adapter=None)
        again = _logits(load(given), texts)
        largest = max(float(some.abs().max()) for some in before)
        apart = max(float((a - b).abs().max()) for a, b in zip(before, again, strict=True))
        if apart / largest <= SAME:
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(staging / "model", folder)
        return apart / largest
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@torch.no_grad()
def _logits(lm: LanguageModel, texts: Sequence[str]) -> list[torch.Tensor]:
    """The logits of each text, (tokens, vocabulary), in float32 on the CPU."""
    longest = max_length(lm)
    found = []
    for text in texts:
        ids = lm.tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
        inputs = lm.inputs(ids["input_ids"].to(lm.device))
        found.append(lm.model(**inputs).logits[0].float().cpu())
    return found
