"""A text classifier of the hub, or of a folder, as a judge.

Safetensors only, no remote code; a classifier without its head would judge at random and is
refused. Probabilities are made from the logits as the text-classification pipeline makes them:
sigmoid for several labels at once and for a single one, else softmax.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from eval.errors import RequestError
from eval.judges.settings import MEANINGS, REGARD, Planned, sentiment_of
from eval.weights import fingerprint

_CALLED = {"toxicity": {"toxicity": "toxic", "non-toxic": "other", "neutral": "other"}}


class Classifier:
    """Judges one measure; `columns` is what `rate` gives."""

    def __init__(self, planned: Planned, device: str, batch: int) -> None:
        """Load it on its device.

        Raises:
            RequestError: it is not there, has no safetensors, lacks its head, has labels of
                unknown meaning, or the device is none.
        """
        self._batch = batch
        self._device = _device(device)
        source, key = planned.source, f"judges.{planned.measure}"
        if planned.local and not (Path(source) / "config.json").is_file():
            raise RequestError(f"{key}.path={source}: no config.json, so not a model's folder")
        given: dict[str, Any] = {"revision": planned.revision, "trust_remote_code": False}
        self._tokenizer: Any = _from(AutoTokenizer, source, key, planned.local, **given)
        model, told = _from(
            AutoModelForSequenceClassification,
            source,
            key,
            planned.local,
            use_safetensors=True,
            output_loading_info=True,
            dtype=torch.float32,
            **given,
        )
        missing = sorted(told["missing_keys"])
        if missing:
            raise RequestError(
                f"{key}: {source} lacks {len(missing)} weights ({', '.join(missing[:3])}), which "
                "would be random: not a text classifier, or not all of one"
            )
        self._model: Any = model.to(self._device).eval()
        self.version = fingerprint(sorted(model.state_dict().items()))
        self.revision = getattr(model.config, "_commit_hash", None) or planned.revision
        self.columns, self._mixing = _mixing(planned, model.config, key)
        several = model.config.problem_type == "multi_label_classification"
        self._apart = several or model.config.num_labels == 1
        self._length = _max_length(self._tokenizer, model.config)

    @torch.inference_mode()
    def rate(self, texts: Sequence[str], report: Callable[[int], None] | None = None) -> np.ndarray:
        """What the labels' probabilities come to. (texts, columns)

        Texts of like length share a pass; what a text gets does not depend on its batch but for
        rounding. `report` is told how many texts are done.
        """
        out = np.empty((len(texts), len(self.columns)))
        order = np.argsort([len(text) for text in texts], kind="stable")
        for start in range(0, len(order), self._batch):
            rows = order[start : start + self._batch]
            given = self._tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=self._length,
                return_tensors="pt",
            ).to(self._device)
            logits = self._model(**given).logits.double()  # (batch, labels)
            shares = logits.sigmoid() if self._apart else logits.softmax(dim=-1)
            out[rows] = shares.cpu().numpy() @ self._mixing
            if report:
                report(start + len(rows))
        return out


def _mixing(planned: Planned, config: Any, key: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The measure's columns, and how they are made of the labels' shares. (labels, columns)"""
    measure = planned.measure
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    called = {name: name for name in MEANINGS[measure]} | _CALLED.get(measure, {})
    meaning = {
        name: planned.labels.get(name) or (None if planned.labels else called.get(name.lower()))
        for name in names
    }
    unknown = sorted(set(planned.labels) - set(names))
    needed = {
        "sentiment": all(meaning.values()),
        "regard": set(REGARD) <= set(meaning.values()),
        "toxicity": list(meaning.values()).count("toxic") == 1,
    }
    if unknown or not needed[measure]:
        raise RequestError(
            f"{key}: {planned.source} has the labels {', '.join(names)}; say what they stand for, "
            f"such as {key}.labels={{{names[0]}: {MEANINGS[measure][0]}}}"
        )
    if measure == "sentiment":
        values = np.asarray([[sentiment_of(str(meaning[name]))] for name in names])
        return ("sentiment",), values
    if measure == "toxicity":
        return ("toxicity",), np.asarray([[float(meaning[name] == "toxic")] for name in names])
    columns = tuple(f"regard_{name}" for name in REGARD)
    return columns, np.asarray(
        [[float(meaning[name] == wanted) for wanted in REGARD] for name in names]
    )


def _from(auto: Any, source: str, key: str, local: bool, **given: Any) -> Any:
    """`from_pretrained`, with its ways of failing told in one line."""
    try:
        return auto.from_pretrained(source, **given)
    except (OSError, HFValidationError) as error:
        raise RequestError(_why(source, key, local, str(error))) from error
    except SafetensorError as error:
        raise RequestError(f"{key}: the weights of {source} can't be read: {error}") from error
    except (ValueError, KeyError) as error:
        said = str(error).strip().split("\n")[0]
        raise RequestError(f"{key}: {source} can't be loaded: {said}") from error


def _why(source: str, key: str, local: bool, said: str) -> str:
    said = " ".join(said.split())
    if "safetensors" in said or "no file named" in said:
        return (
            f"{key}: {source} has no safetensors weights; {key}.revision= may name one that has, "
            f"or {key}.path= a folder saved with them"
        )
    if local:
        return f"{key}.path={source}: can't be read: {said[:200]}"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    state = (
        "HF_HUB_OFFLINE is set and it is not in the cache"
        if offline
        else "the hub has no such model, asks for a login, or can't be reached"
    )
    return (
        f"{key}: {source}: {state}; get it once by `hf download {source}`, or give a copy on disk: "
        f"{key}.path=DIR {key}.languages=[…]; without judges: judges.measures=[]"
    )


def _max_length(tokenizer: Any, config: Any) -> int:
    """Tokens, special ones included, that it reads at most."""
    positions = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    # RoBERTa's positions, and XLM-R's, begin after the padding id.
    offset = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
    return int(min(tokenizer.model_max_length, positions - offset))


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        forced = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
        if torch.cuda.is_available() and not forced:
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        return torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise RequestError(f"judges.device={wanted}: not a device; cpu, cuda, cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RequestError(f"judges.device={wanted}: no GPU here; judges.device=cpu")
    return device
