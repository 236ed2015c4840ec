"""Self-Debias: a model that is told what a text would be, and then says less of just that.

Schick, Udupa and Schütze 2021 (TACL, 2103.00453); a baseline that papers compare with (Meade et
al. 2022, ACL). Each text x is read once as it is and once behind each prefix y, which says that
what follows discriminates. What a prefix makes likelier is scaled down:

    p̃(w | x) ∝ α(w) p(w | x),   Δ(w) = p(w | x) - max over y of p(w | y, x),
    α(w) = 1 where Δ(w) ≥ 0, else the larger of exp(λ Δ(w)) and ε.

λ = 50 is the paper's; ε, a factor's lower bound, is the authors' program's. Nothing is trained and
no weight changes: the result is a rule of decoding around the same weights. So its folder holds
that rule alone (FILE), and names and fingerprints the weights that it belongs to; only this
package reads it. Scorers meet a model like any other, which takes whole sentences only.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
import yaml
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput

from eval.errors import RequestError
from eval.rules import Kind
from eval.scorers import encode_all, max_length
from eval.scorers.causal import bos_policy
from eval.scorers.head import TOLERANCE
from eval.scorers.model import LanguageModel
from mitigate.methods import Context, Trained
from mitigate.settings import PREFIXES, MethodSettings, SelfDebiasSettings

#: The rule, in a result's folder.
FILE = "self_debias.json"
#: Between a prefix and the text, as the authors have it; tokenizers without line ends drop it.
SEPARATOR = "\n"
#: Tokens that must be left for a sentence beside the longest prefix.
ROOM = 64
#: Texts of the corpus that the rule is tried on before it is kept.
TRIED = 8


def check(
    lm: LanguageModel, settings: MethodSettings, model_targets: list[str], processes: int
) -> None:
    """Refuse what can't be wrapped, before anything is scored.

    Raises:
        RequestError: an adapter asked for or already on the model, or prefixes that the model
            has no room for or its tokenizer no word of.
    """
    if settings.weights != "all":
        raise RequestError(
            f"method={settings.name}: trains nothing, so method.weights={settings.weights} means "
            "nothing; method.weights=all"
        )
    if hasattr(lm.model, "peft_config"):
        raise RequestError(
            f"method={settings.name}: {lm.name} carries an adapter, which the result could not "
            "name; merge it (result.merge=true) and give the merged folder as model.path"
        )
    given = settings.self_debias or SelfDebiasSettings()
    for prefixes in [given.prefixes] if given.prefixes else known_prefixes().values():
        _prefix_ids(lm, prefixes)


def train(context: Context) -> Trained:
    """Put the rule around the model, and check that without strength it is the model itself.

    Raises:
        RequestError: as `check`, or no prefixes in the corpus's language.
        RuntimeError: with strength 0 the logits are not the model's own, or with the recipe's
            they are.
    """
    lm, settings = context.lm, context.settings.self_debias or SelfDebiasSettings()
    check(lm, context.settings, context.lora_targets, context.processes)
    config = lm.model.config
    source = str(getattr(config, "_name_or_path", ""))
    rule = SelfDebias(
        base=str(Path(source).resolve()) if Path(source).is_dir() else source,
        revision=getattr(config, "_commit_hash", None),
        fingerprint=lm.fingerprint,
        kind=lm.kind,
        prefixes=tuple(settings.prefixes or _of_language(context.language)),
        strength=settings.strength,
        floor=settings.floor,
    )
    tried = (context.valid or context.train)[:TRIED]
    moved = _tried(lm, rule, tried)
    wrapped = rule.around(lm)
    total = sum(weight.numel() for weight in lm.model.parameters())
    context.say(
        f"{context.settings.name}: {rule}; 0 of {total:,} weights changed; on {len(tried)} texts "
        f"of the corpus, logits change by up to {moved:.2g} nats"
    )
    return Trained(
        wrapped.model,
        False,
        {
            "method": context.settings.name,
            "steps": 0,
            "epochs": 0.0,
            "train_rows": 0,
            "valid_rows": 0,
            "train_loss": None,
            "best_valid_loss": None,
            "kept": "last",
            "trained_weights": 0,
            "all_weights": total,
            "strategy": "NO",
            "world_size": context.processes,
            "tokens_seen": None,
            "self_debias": {**dataclasses.asdict(rule), "base": lm.name, "largest_change": moved},
        },
    )


@functools.cache
def known_prefixes() -> dict[str, list[str]]:
    """Our own prefixes, by language."""
    return cast(dict[str, list[str]], yaml.safe_load(PREFIXES.read_text("utf-8")))


@dataclasses.dataclass(frozen=True)
class SelfDebias:
    """The rule, and the weights that it is put around."""

    base: str  # a folder or a hub id
    revision: str | None  # on the hub
    fingerprint: str  # of the base's weights
    kind: Kind
    prefixes: tuple[str, ...]
    strength: float  # λ
    floor: float  # ε

    def __str__(self) -> str:
        """As a Score table names it."""
        return (
            f"Self-Debias behind {len(self.prefixes)} prefixes, λ = {self.strength:g}, "
            f"ε = {self.floor:g}"
        )

    @property
    def own_fingerprint(self) -> str:
        """Of weights and rule together: what they are read from is none of it. 16 hex digits"""
        said = [self.fingerprint, self.kind, self.prefixes, self.strength, self.floor]
        return hashlib.blake2b(json.dumps(said).encode(), digest_size=8).hexdigest()

    def around(self, lm: LanguageModel) -> LanguageModel:
        """The model with the rule: scored like any other, and under a fingerprint of its own.

        Raises:
            RequestError: these are other weights than the rule's, or as `check`.
        """
        if lm.fingerprint != self.fingerprint:
            raise RequestError(
                f"{FILE}: was made for weights with the fingerprint {self.fingerprint}, and "
                f"{self.base} has {lm.fingerprint}"
            )
        ids = _prefix_ids(lm, self.prefixes)
        model = SelfDebiased(lm.model, lm.kind, _lead(lm), ids, self)
        model.eval()
        return dataclasses.replace(
            lm,
            model=cast(Any, model),
            fingerprint=self.own_fingerprint,
            decoding=str(self),
            reserved=max(map(len, ids)),
        )

    @classmethod
    def read(cls, folder: Path) -> "SelfDebias | None":
        """The rule that a folder holds; None where it holds none.

        Raises:
            RequestError: the file is not one.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text("utf-8"))
            return cls(**{**found, "prefixes": tuple(found["prefixes"])})
        except (ValueError, TypeError, KeyError) as error:
            raise RequestError(f"{path}: not a rule of Self-Debias: {error}") from error


class SelfDebiased(nn.Module):
    """A model whose logits, through a softmax, are p̃."""

    def __init__(
        self, model: Any, kind: Kind, lead: list[int], prefixes: list[list[int]], rule: SelfDebias
    ):
        super().__init__()
        self.model = model
        self.kind, self.lead, self.prefixes, self.rule = kind, lead, prefixes, rule
        own = inspect.signature(model.forward).parameters
        # Keys and values kept for a next token would be the largest thing in memory.
        self.fixed = {"use_cache": False} if "use_cache" in own else {}

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return cast(torch.device, self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        return cast(torch.dtype, self.model.dtype)

    def get_output_embeddings(self) -> Any:
        return self.model.get_output_embeddings()

    def save_pretrained(self, folder: str | Path, state_dict: Any = None) -> None:
        """Write the rule. The weights are the base's, and stay with it."""
        text = json.dumps(dataclasses.asdict(self.rule), ensure_ascii=False, indent=2)
        Path(folder, FILE).write_text(text + "\n", "utf-8")

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        langs: Tensor | None = None,
        **other: Any,
    ) -> MaskedLMOutput:
        """Logits of whole sentences, (batch, tokens) → (batch, tokens, vocabulary).

        Of a masked model's leading special tokens they are the model's own.

        Raises:
            ValueError: rows that don't begin with the tokenizer's special tokens, or anything but
                sentences: trees, positions, labels.
        """
        if other or (attention_mask is not None and attention_mask.dim() != 2):
            raise ValueError("Self-Debias reads whole sentences alone")
        begin = len(self.lead)
        lead = torch.tensor(self.lead, dtype=input_ids.dtype, device=input_ids.device)
        if not bool((input_ids[:, :begin] == lead).all()):
            raise ValueError("Self-Debias needs sentences with their special tokens in front")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        given = {"input_ids": input_ids, "attention_mask": mask}
        if langs is not None:
            given["langs"] = langs
        logits = self._logits(given)
        behind = (self._behind(given, prefix, logits) for prefix in self.prefixes)
        return MaskedLMOutput(logits=adjusted(logits, behind, self.rule.strength, self.rule.floor))

    def _behind(self, given: dict[str, Tensor], prefix: list[int], plain: Tensor) -> Tensor:
        """The logits of the sentences' own places, behind a prefix."""
        begin = len(self.lead)
        # A language's id goes on; the prefix is seen everywhere.
        fill = {"attention_mask": 1, "langs": int(given["langs"][0, 0]) if "langs" in given else 0}
        longer = {}
        for name, value in given.items():
            ids = prefix if name == "input_ids" else [fill[name]] * len(prefix)
            between = torch.tensor(ids, dtype=value.dtype, device=value.device)
            parts = [value[:, :begin], between.expand(len(value), -1), value[:, begin:]]
            longer[name] = torch.cat(parts, dim=1)
        found = self._logits(longer)[:, len(prefix) :]
        if self.kind == "masked":
            found[:, :begin] = plain[:, :begin]
        # A causal model's last leading token predicts the first of the text, and now the last
        # token of the prefix does: the same shift.
        return found

    def _logits(self, given: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.model(**given, **self.fixed).logits
        return logits if logits.dtype == torch.float64 else logits.float()


def adjusted(logits: Tensor, behind: Iterable[Tensor], strength: float, floor: float) -> Tensor:
    """Logits whose softmax is p̃. (…, vocabulary); `behind`: those behind each prefix.

    The smallest α over several prefixes is that of the largest probability.
    """
    plain = logits.softmax(-1)
    likeliest: Tensor | None = None
    for each in behind:
        found = each.softmax(-1)
        likeliest = found if likeliest is None else torch.maximum(likeliest, found)
    if likeliest is None:
        return logits
    log_alpha = likeliest.sub_(plain).clamp_(min=0).mul_(-strength)
    if floor > 0:
        log_alpha.clamp_(min=math.log(floor))
    return logits + log_alpha


def _of_language(language: str) -> list[str]:
    """Our own prefixes in a language.

    Raises:
        RequestError: there are none.
    """
    known = known_prefixes()
    if language not in known:
        raise RequestError(
            f"method.self_debias: no prefixes in language '{language}'; there are: "
            f"{', '.join(known)}; or method.self_debias.prefixes=[…]"
        )
    return known[language]


def _prefix_ids(lm: LanguageModel, prefixes: Iterable[str]) -> list[list[int]]:
    """The token ids of each prefix.

    Raises:
        RequestError: the tokenizer knows no word of one, or it leaves a text no room.
    """
    found = []
    unknown = lm.tokenizer.unk_token_id
    for prefix in prefixes:
        text = prefix.strip() + SEPARATOR
        ids = [int(id_) for id_ in lm.tokenizer(text, add_special_tokens=False)["input_ids"]]
        if all(id_ == unknown for id_ in ids):
            raise RequestError(
                f"method.self_debias.prefixes: the tokenizer of {lm.name} knows no word of "
                f"'{prefix}'"
            )
        longest = max_length(lm)
        if longest - len(ids) < ROOM:
            raise RequestError(
                f"method.self_debias.prefixes: '{prefix}' takes {len(ids)} of the {longest} "
                f"tokens that {lm.name} reads, and a sentence needs {ROOM}; shorter ones"
            )
        found.append(ids)
    return found


def _lead(lm: LanguageModel) -> list[int]:
    """The special tokens that every sentence begins with; the prefix goes behind them."""
    if lm.kind == "causal":
        _, bos = bos_policy(lm)
        return [] if bos is None else [bos]
    encoded = encode_all(lm, ["a"])[0]
    count = encoded.special.index(False)
    return list(encoded.ids[:count])


@torch.inference_mode()
def _tried(lm: LanguageModel, rule: SelfDebias, texts: list[str]) -> float:
    """Try the rule on a few texts: the largest change of a logit, in nats.

    Raises:
        RuntimeError: without strength it isn't the model itself, or with it is.
    """
    off = dataclasses.replace(rule, strength=0.0).around(lm)
    on = rule.around(lm)
    encoded = encode_all(lm, texts)
    largest = 0.0
    for row in range(len(encoded)):
        ids = torch.as_tensor(encoded.tokens[row][:ROOM], device=lm.device)[None]
        plain, without, with_ = (
            each.model(**each.inputs(ids)).logits.float() for each in (lm, off, on)
        )
        apart = float((without - plain).abs().max())
        if not apart <= TOLERANCE[lm.dtype] * max(1.0, float(plain.abs().max())):
            raise RuntimeError(f"{lm.name}: with strength 0, Self-Debias is not the model itself")
        largest = max(largest, float((with_ - without).abs().max()))
    if not largest > 0:
        raise RuntimeError(f"{lm.name}: Self-Debias changes nothing, whatever its prefixes say")
    return largest
