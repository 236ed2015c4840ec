"""The scorers as data: what each asks of a model, and how a sentence's score is made of it.

Rules of the papers: `pll` over shared tokens is Nangia et al. 2020 after Salazar et al. 2020,
`pll_word_l2r` Kauf and Ivanova 2023, `aul` Kaneko and Bollegala 2022, `shared` WinoQueer's for
causal models (2609.02651, eq. 2, natural logarithm, no factor 100), `prompted` Dutch CrowS-Pairs'
(2507.16442, §3.3), asked in both orders.

Nothing here needs torch, so that a mistyped setting is answered at once.
"""

from dataclasses import dataclass, field
from typing import Literal

from eval.errors import RequestError

Kind = Literal["masked", "causal"]


@dataclass(frozen=True)
class Rule:
    """One scorer."""

    kind: Kind
    tokens: Literal["shared", "all", "options"]  # which tokens are scored; options: an answer's
    hidden: Literal["token", "word", "nothing"]  # what is masked: the token, the rest of its word
    combined: Literal["sum", "mean"]
    says: str


#: The scorer that asks rather than reads, and takes a persona.
PROMPTED = "prompted"
SCORERS: dict[str, Rule] = {
    "pll": Rule("masked", "shared", "token", "sum", "each shared token masked alone"),
    "pll_word_l2r": Rule(
        "masked", "shared", "word", "sum", "each shared token masked with the rest of its word"
    ),
    "pll_all": Rule(
        "masked", "all", "token", "sum", "each token masked alone, the changed ones too"
    ),
    "aul": Rule("masked", "all", "nothing", "mean", "every token read with nothing masked"),
    "shared": Rule("causal", "shared", "nothing", "sum", "each shared token given those before"),
    "full": Rule("causal", "all", "nothing", "sum", "every token given those before it"),
    "normalised": Rule("causal", "all", "nothing", "mean", "as full, divided by the tokens"),
    PROMPTED: Rule(
        "causal", "options", "nothing", "sum", "asked which of the two is likelier, in both orders"
    ),
}
DEFAULT: dict[Kind, str] = {"masked": "pll", "causal": "shared"}


def rule_for(name: str, kind: Kind, model: str) -> tuple[str, Rule]:
    """The scorer that `name` means for a model of this kind; `auto` is the published one.

    Raises:
        RequestError: no such scorer, or one for the other kind of model.
    """
    name = DEFAULT[kind] if name == "auto" else name
    fitting = [other for other, rule in SCORERS.items() if rule.kind == kind]
    if name not in fitting:
        why = f"is for {SCORERS[name].kind} models" if name in SCORERS else "is none"
        raise RequestError(
            f"score.scorer={name} {why}; {model} is {kind}: auto, {', '.join(fitting)}"
        )
    return name, SCORERS[name]


@dataclass
class ScoreSettings:
    """What changes the measure, or its cost."""

    scorer: str = "auto"  # auto: the published one; see SCORERS
    alignment: str = "tokens"  # tokens: the published rule; words: pieces of a word never shared
    lowercase: str = "auto"  # auto: as the tokenizer does; true: the Dutch paper's scripts; false
    overlong: str = "error"  # sentences over the model's length: error, skip, truncate
    terms: bool = True  # the differing words' own log-likelihood too, for scorers of shared tokens
    batch_tokens: int | None = None  # tokens of a forward pass at most; None: by the device
    answer: str = "log_probs"  # prompted: by the labels' likelihood; generate: written and read
    personas: list[str] = field(default_factory=lambda: ["none"])  # prompted: asked one by one
    prompt: str | None = None  # prompted: a file of prompts instead of the language's own
    reuse: bool = True  # find finished scores and parts of unfinished ones again
