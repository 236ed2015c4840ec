"""Directions of identity taken out of the last hidden state: INLP and SentenceDebias.

Both are baselines that papers compare with (Meade et al. 2022, ACL). A projection P is fitted on
sentences of the corpus and their counterfactuals, never on a benchmark's, and applied to every
token's last hidden state, before the head. Nothing is trained: P is multiplied into the head's
first linear layer, so that the result is a plain model that any loader reads. For most causal
models, and XLM, that layer is the output layer; where it shares its weights with the embeddings,
it gets its own.

INLP (Ravfogel et al. 2020): classifiers of marked against unmarked sentences, one after another,
each on what the last ones can't read; P projects onto the null space of all.
SentenceDebias (Liang et al. 2020): the principal components of the differences between a
sentence's and its counterfactual's representations; P projects onto what is left.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn
from transformers import PreTrainedModel

from corpora.keywords import identities
from eval.errors import RequestError
from eval.scorers.head import TOLERANCE
from eval.scorers.model import LanguageModel
from mitigate.console import progress
from mitigate.methods import Context, Trained
from mitigate.methods.counterfactuals import LANGUAGES, table
from mitigate.settings import MethodSettings

#: Sentences a forward pass.
BATCH = 32
#: Weight of INLP's squared-norm term, for rows of unit variance; scikit-learn's C = 1.
RIDGE = 1.0
#: Folded and projected logits agree so far, relative to the largest.
FOLDED = 1e-5


def check(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
) -> None:
    """Refuse what can't be projected, before anything is scored.

    Raises:
        RequestError: no `method.projection`, an adapter asked for or already on the model, as
            many directions as the hidden state has, or a head whose first layer isn't linear.
    """
    if settings.projection is None:
        raise RequestError(f"method={settings.name}: method.projection is missing; method=inlp")
    if settings.weights != "all" or hasattr(lm.model, "peft_config"):
        raise RequestError(
            f"method={settings.name}: a projection is folded into the model's own weights; "
            "method.weights=all and no adapter"
        )
    _, layer, _ = first_of_head(lm)
    width = layer.weight.shape[1]
    if settings.projection.directions >= width:
        raise RequestError(
            f"method.projection.directions={settings.projection.directions}: the hidden state of "
            f"{lm.name} has {width}, and some must be left; {max(1, width // 10)} is a tenth"
        )


def train(context: Context) -> Trained:
    """Fit the projection on the corpus, fold it in, and check that nothing else changed.

    Raises:
        RequestError: as `check`; no table of counterfactuals for the corpus's language, or fewer
            sentences with one than directions.
        RuntimeError: the folded model's logits are not those of the projected hidden state.
    """
    lm, settings = context.lm, context.settings.projection
    check(lm, context.settings, context.lora_targets, context.processes)
    assert settings is not None
    marked, unmarked = counterfactual_pairs(
        context.train, context.language, settings.pairs, context.seed
    )
    if len(marked) <= settings.directions:
        raise RequestError(
            f"method.projection: {len(marked)} sentences of the corpus name an identity that can "
            f"be exchanged, and {settings.directions} directions need more; a larger corpus, or "
            "fewer method.projection.directions"
        )
    with progress("reading sentences") as report:
        states = sentence_states(lm, [*marked, *unmarked], report)
    pair = states[: len(marked)], states[len(marked) :]
    projection, facts = (inlp if settings.kind == "inlp" else sentence_debias)(
        *pair, settings.directions
    )
    name, layer, total = first_of_head(lm)
    P = torch.from_numpy(projection)  # noqa: N806 (the papers' name)
    sentences = unmarked[:BATCH]
    with projected(lm, P):
        expected = _logits(lm, sentences)
    untied = fold(lm, P)
    apart = float((_logits(lm, sentences) - expected).abs().max())
    tolerance = max(FOLDED, TOLERANCE[lm.dtype]) * max(1.0, float(expected.abs().max()))
    if not apart <= tolerance:
        raise RuntimeError(
            f"{lm.name}: the folded model's logits differ from the projected ones by {apart:.3g}"
        )
    changed = layer.weight.numel()
    context.say(
        f"{context.settings.name}: {facts['directions']} of {len(projection)} directions taken "
        f"out before {name}, from {len(marked):,} sentences and their counterfactuals; "
        f"{changed:,} of {total:,} weights changed, {100 * changed / total:.2f} %"
        + (", no longer tied to the embeddings" if untied else "")
    )
    return Trained(
        lm.model,
        False,
        {
            "method": context.settings.name,
            "steps": 0,
            "epochs": 0.0,
            "train_rows": len(marked),
            "valid_rows": 0,
            "train_loss": None,
            "best_valid_loss": None,
            "kept": "last",
            "trained_weights": changed,
            "all_weights": total,
            "strategy": "NO",
            "world_size": context.processes,
            "tokens_seen": None,
            "projection": {**facts, "layer": name, "untied": untied, "folded_within": apart},
        },
    )


def counterfactual_pairs(
    texts: Sequence[str], language: str, limit: int, seed: int
) -> tuple[list[str], list[str]]:
    """Sentences that name a marked identity alone, and each with its unmarked counterpart.

    Raises:
        RequestError: there is no table for the language.
    """
    if language not in LANGUAGES:
        raise RequestError(
            f"method.projection: no counterfactuals for language '{language}'; there are: "
            f"{', '.join(LANGUAGES)}"
        )
    marked_ones = identities((language,))
    marked: list[str] = []
    unmarked: list[str] = []
    for text in dict.fromkeys(texts):
        other = table(language).swap(text, f"{seed} {text}")
        if other == text:
            continue
        sides = [bool(marked_ones.find(side)) for side in (text, other)]
        if sides[0] == sides[1]:
            continue  # both name one, so neither is the unmarked side
        marked.append(text if sides[0] else other)
        unmarked.append(other if sides[0] else text)
    order = np.random.default_rng(seed).permutation(len(marked))[:limit]
    return [marked[at] for at in order], [unmarked[at] for at in order]


def inlp(
    marked: np.ndarray, unmarked: np.ndarray, directions: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Iterative null-space projection (Ravfogel et al. 2020, algorithm 1). (width, width)

    `marked`, `unmarked`: representations, (sentences, width). Facts say how well the first and
    the last classifier told the two apart, on the sentences they were fitted to (%).
    """
    rows = np.concatenate([marked, unmarked])
    rows = rows - rows.mean(axis=0)
    signs = np.repeat([1.0, -1.0], [len(marked), len(unmarked)])
    basis = np.zeros((0, rows.shape[1]))
    right = []
    for _ in range(directions):
        left = rows - rows @ basis.T @ basis
        weights, accuracy = _classifier(left, signs)
        right.append(accuracy)
        # Against rounding: what is left of the new direction beside the old ones.
        weights = weights - basis.T @ (basis @ weights)
        size = np.linalg.norm(weights)
        if size < 1e-8:
            break
        basis = np.concatenate([basis, weights[None] / size])
    facts = {
        "kind": "inlp",
        "directions": len(basis),
        "accuracy_first": 100 * right[0],
        "accuracy_last": 100 * right[-1],
    }
    return np.eye(rows.shape[1]) - basis.T @ basis, facts


def sentence_debias(
    marked: np.ndarray, unmarked: np.ndarray, directions: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Projection off the bias subspace (Liang et al. 2020, §3). (width, width)

    Representations are scaled to length 1 and centred on their pair's mean, as bias-bench does;
    the subspace is their first principal components.
    """
    pair = np.stack([marked, unmarked])
    pair = pair / np.linalg.norm(pair, axis=-1, keepdims=True)
    centred = (pair - pair.mean(axis=0)).reshape(-1, marked.shape[1])
    centred = centred - centred.mean(axis=0)
    _, sizes, components = np.linalg.svd(centred, full_matrices=False)
    basis = components[:directions]
    facts = {
        "kind": "sentence_debias",
        "directions": len(basis),
        "variance_explained": 100 * float((sizes[:directions] ** 2).sum() / (sizes**2).sum()),
    }
    return np.eye(marked.shape[1]) - basis.T @ basis, facts


def _classifier(rows: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, float]:
    """Logistic regression without an intercept: its weights, and the share it gets right."""
    scale = max(float(rows.std()), 1e-12)
    scaled = rows / scale

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margin = signs * (scaled @ weights)
        value = np.logaddexp(0, -margin).sum() + RIDGE / 2 * weights @ weights
        pull = -signs / (1 + np.exp(np.clip(margin, -500, 500)))
        return float(value), scaled.T @ pull + RIDGE * weights

    found = minimize(loss, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B").x
    right = float((np.sign(scaled @ found) == signs).mean())
    return found, right


@torch.inference_mode()
def sentence_states(lm: LanguageModel, sentences: Sequence[str], report: Any) -> np.ndarray:
    """Each sentence's last hidden state, averaged over its tokens. (sentences, width) float64

    As bias-bench has it; padding is left out.
    """
    states = np.zeros((0, 0))
    order = sorted(range(len(sentences)), key=lambda at: len(sentences[at]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        inputs, real = _inputs(lm, [sentences[at] for at in rows])
        with _caught(lm) as caught:
            lm.model(**inputs)
        hidden = caught[-1].float()  # (batch, tokens, width)
        mean = (hidden * real).sum(dim=1) / real.sum(dim=1)
        if not states.size:
            states = np.zeros((len(sentences), mean.shape[1]))
        states[rows] = mean.double().cpu().numpy()
        report(min(start + BATCH, len(order)), len(order))
    return states


def first_of_head(lm: LanguageModel) -> tuple[str, nn.Linear, int]:
    """The linear layer that reads the last hidden state, its name, and all weights' number.

    Found by looking: the one outside the base model whose input is what the base model gives.

    Raises:
        RequestError: there is none.
    """
    base = _backbone(lm)
    inside = {id(module) for module in base.modules()}
    seen: list[tuple[str, nn.Linear]] = []
    handles = []
    with _caught(lm) as caught:
        for name, module in lm.model.named_modules():
            if isinstance(module, nn.Linear) and id(module) not in inside:

                def look(_: Any, given: Any, name: str = name, module: nn.Linear = module) -> None:
                    same = given[0].shape == caught[-1].shape and torch.equal(given[0], caught[-1])
                    if same:
                        seen.append((name, module))

                handles.append(module.register_forward_pre_hook(look))
        with torch.inference_mode():
            lm.model(**_inputs(lm, ["a b c"])[0])
    for handle in handles:
        handle.remove()
    if base is lm.model or not seen:
        raise RequestError(
            f"{lm.name}: no linear layer of {type(lm.model).__name__} reads the last hidden state "
            "as it is, so no projection can be folded into it"
        )
    return *seen[0], sum(weight.numel() for weight in lm.model.parameters())


def fold(lm: LanguageModel, projection: torch.Tensor) -> bool:
    """Multiply a projection into the head's first layer; whether that untied it.

    The weights then are W P. A layer that shares them with the embeddings gets its own first,
    and the configuration says that they are apart.
    """
    _, layer, _ = first_of_head(lm)
    model: Any = lm.model
    config = model.config
    shared = [
        name
        for name, module in lm.model.named_modules()
        if module is not layer and getattr(module, "weight", None) is layer.weight
    ]
    folded = (layer.weight.detach().double() @ projection.to(layer.weight.device)).to(
        layer.weight.dtype
    )
    layer.weight = nn.Parameter(folded)
    if shared:
        config.tie_word_embeddings = False
        if config.get_text_config() is not config:
            config.get_text_config().tie_word_embeddings = False
        # Else saving takes them for one, and leaves the output layer out.
        model._tied_weights_keys = None
        model.all_tied_weights_keys = {}
    return bool(shared)


@contextmanager
def projected(lm: LanguageModel, projection: torch.Tensor) -> Iterator[None]:
    """The last hidden state projected while the context lasts; what `fold` must equal."""

    def project(_: Any, __: Any, output: Any) -> Any:
        hidden = output[0]
        changed = (hidden.double() @ projection.to(hidden.device).T).to(hidden.dtype)
        if isinstance(output, tuple):
            return (changed, *output[1:])
        output["last_hidden_state"] = changed
        return output

    handle = _backbone(lm).register_forward_hook(project)
    try:
        yield
    finally:
        handle.remove()


def _backbone(lm: LanguageModel) -> nn.Module:
    """The part of a model that gives the last hidden state; OPT calls its decoder directly."""
    base = lm.model.base_model
    inner = getattr(base, "decoder", None)
    return inner if isinstance(inner, PreTrainedModel) else base


@contextmanager
def _caught(lm: LanguageModel) -> Iterator[list[torch.Tensor]]:
    """The last hidden states of the forward passes made in the context."""
    caught: list[torch.Tensor] = []
    handle = _backbone(lm).register_forward_hook(
        lambda _, __, output: caught.append(output[0].detach())
    )
    try:
        yield caught
    finally:
        handle.remove()


def _inputs(lm: LanguageModel, sentences: Sequence[str]) -> tuple[dict[str, Any], torch.Tensor]:
    """A padded forward pass's arguments, and which tokens are real, (batch, tokens, 1)."""
    rows = [
        torch.tensor(ids) for ids in lm.tokenizer(list(sentences), truncation=True)["input_ids"]
    ]
    pad = lm.tokenizer.pad_token_id or 0
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    real = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    ids, real = ids.to(lm.device), real.to(lm.device)
    return {**lm.inputs(ids), "attention_mask": real}, real[..., None]


@torch.inference_mode()
def _logits(lm: LanguageModel, sentences: Sequence[str]) -> torch.Tensor:
    """Logits at the real tokens of some sentences. (tokens, vocabulary) float64"""
    inputs, real = _inputs(lm, sentences)
    found: torch.Tensor = lm.model(**inputs).logits[real[..., 0].bool()].double()
    return found
