"""What fits where: the memory of a training step, from a model's shape, with every term shown.

Nothing is measured or loaded here. The terms, for n weights of which t are trained:

- weights: 4 bytes in float32, 2 in bfloat16; in NF4 4 bits and a scale for 64 weights, itself
  quantised (4.127 bits a weight; Dettmers et al. 2023, §3), the embeddings staying in bfloat16;
- gradients: as many bytes as the weight has, for each of the t;
- Adam: two moments of the same size for each of the t (Kingma & Ba 2015);
- activations: what one forward pass keeps for the backward pass, with fused attention. In
  bfloat16 34 bytes a token, layer and hidden unit (Korthikanti et al. 2022, §4.1, without the
  attention matrices), in float32 twice that; with checkpointing the input of each layer, and one
  layer's whole;
- logits: tokens × vocabulary, in float32, with their gradient.

What PyTorch and CUDA need themselves is a fixed sum (OVERHEAD). Fragmentation is not counted, so
what is said to fit with less than a tenth to spare may not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Method = Literal["full", "full_bf16", "lora", "lora_bf16", "qlora"]

GIB = 2**30
OVERHEAD = 1.0 * GIB  # CUDA's context, cuBLAS workspaces, communication buffers
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)  # a weight: its code, its scale, the scales' own scale
#: Activations: bytes a token, layer and hidden unit in 16 bits.
PER_UNIT = 34
DEVICES = (8, 16, 24, 40, 48, 80, 141)  # GiB: from a gaming card to an H200
METHODS: dict[Method, str] = {
    "full": "every weight, float32 (bf16 where the machine multiplies so)",
    "full_bf16": "every weight, kept in bfloat16",
    "lora": "LoRA on float32 weights",
    "lora_bf16": "LoRA on bfloat16 weights",
    "qlora": "LoRA on NF4 weights",
}


@dataclass(frozen=True)
class Shape:
    """What the arithmetic needs to know of a transformer."""

    name: str  # a recipe in recipes/model
    layers: int
    hidden: int
    inner: int  # width of the feed-forward part
    vocabulary: int
    heads: int
    kv_heads: int
    head: int  # width of a head
    tied: bool  # whether the output shares the embeddings
    gated: bool = True  # three matrices in the feed-forward part (SwiGLU), else two
    biases: bool = False  # and layer norms with a bias: BLOOM

    @property
    def embeddings(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def linear(self) -> int:
        """Weights of all linear layers but the output: what NF4 holds and LoRA goes beside."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads)
        feed_forward = (3 if self.gated else 2) * self.hidden * self.inner
        return self.layers * (attention + feed_forward)

    @property
    def norms(self) -> int:
        if not self.biases:
            return self.hidden * (2 * self.layers + 1)
        # Two norms a layer with weight and bias, one on the embeddings, one at the end; and the
        # biases of q, k, v, output, and both feed-forward matrices.
        of_a_layer = 4 * self.hidden + 3 * self.hidden + self.hidden + self.inner + self.hidden
        return self.layers * of_a_layer + 4 * self.hidden

    @property
    def weights(self) -> int:
        """The number of weights (parameters)."""
        return self.embeddings + self.linear + self.norms

    def lora(self, rank: int) -> int:
        """Weights of an adapter of that rank beside every linear layer but the output."""
        hidden, width, narrow = self.hidden, self.heads * self.head, self.kv_heads * self.head
        attention = 2 * (hidden + width) + 2 * (hidden + narrow)
        feed_forward = (3 if self.gated else 2) * (hidden + self.inner)
        return self.layers * rank * (attention + feed_forward)


#: From 560 million to 70 billion weights; the numbers are those of the published configurations.
SHAPES = (
    Shape("bloom_560m", 24, 1024, 4096, 250_880, 16, 16, 64, tied=True, gated=False, biases=True),
    Shape("llama3_2_1b", 16, 2048, 8192, 128_256, 32, 8, 64, tied=True),
    Shape("llama3_2_3b", 28, 3072, 8192, 128_256, 24, 8, 128, tied=True),
    Shape("mistral_7b", 32, 4096, 14_336, 32_768, 32, 8, 128, tied=False),
    Shape("llama3_8b", 32, 4096, 14_336, 128_256, 32, 8, 128, tied=False),
    Shape("llama3_70b", 80, 8192, 28_672, 128_256, 64, 8, 128, tied=False),
)


@dataclass(frozen=True)
class Setting:
    """How a step is made: the tokens in one forward pass on one device, and what is kept of it."""

    tokens: int = 8 * 256  # method.batch × method.block
    rank: int = 8  # LoRA
    checkpointing: bool = False  # activations made again in the backward pass


@dataclass(frozen=True)
class Need:
    """Bytes of one training step on one device, term by term."""

    weights: float
    gradients: float
    adam: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        terms = (self.weights, self.gradients, self.adam, self.activations, self.logits)
        return sum(terms) + OVERHEAD


def need(shape: Shape, method: Method, setting: Setting, devices: int = 1) -> Need:
    """The memory of a training step; `devices` above one share the weights' part (FSDP, ZeRO-3).

    With bfloat16 weights Adam's moments and the gradients are in bfloat16 too, as torch keeps
    them in the type of the weight. An adapter is float32 throughout.
    """
    half = method in ("full_bf16", "lora_bf16", "qlora")
    full = method in ("full", "full_bf16")
    wide = 2 if half else 4
    if method == "qlora":
        rest = shape.embeddings + shape.norms
        weights = shape.linear * NF4_BITS / 8 + rest * 2
    else:
        weights = shape.weights * wide
    trained = shape.weights if full else shape.lora(setting.rank)
    of_trained = wide if full else 4
    weights += 0 if full else trained * 4
    per_layer = setting.tokens * shape.hidden * PER_UNIT * (1 if half else 2)
    if setting.checkpointing:
        inputs = shape.layers * setting.tokens * shape.hidden * wide
        activations = inputs + per_layer
    else:
        activations = shape.layers * per_layer
    return Need(
        weights=weights / devices,
        gradients=trained * of_trained / devices,
        adam=2 * trained * of_trained / devices,
        activations=activations,
        logits=setting.tokens * shape.vocabulary * 4 * 2,
    )


def smallest(total: float) -> str:
    """The smallest of DEVICES that holds so many bytes, as text; else how many of 80 GiB."""
    for size in DEVICES:
        if total <= size * GIB:
            return f"{size} GiB"
    return "none"


def shared(shape: Shape, method: Method, setting: Setting, size: int = 80) -> int | None:
    """How many devices of `size` GiB hold a step between them (a power of two).

    None where none do: activations and logits are each device's own, and a run scores the model
    whole on every device before and after it is trained, so the weights alone must fit one.
    """
    if need(shape, method, setting).weights + OVERHEAD > size * GIB:
        return None
    devices = 1
    while devices <= 256:
        if need(shape, method, setting, devices).total <= size * GIB:
            return devices
        devices *= 2
    return None


def table(setting: Setting | None = None) -> Iterator[str]:
    """What fits where, as lines of text: a row a model and method, the terms in GiB."""
    given = setting or Setting()
    yield (
        f"What fits where: one step over {given.tokens:,} tokens a device, LoRA of rank "
        f"{given.rank}, activations {'made again' if given.checkpointing else 'kept'}; GiB"
    )
    yield (
        f"{'model':<12} {'weights':>8} {'method':<10} {'weights':>8} {'grads':>7} {'Adam':>7} "
        f"{'activ.':>7} {'logits':>7} {'total':>8}  {'one GPU of':<11} 80 GiB, sharded"
    )
    for shape in SHAPES:
        for method in METHODS:
            found = need(shape, method, given)
            terms = (found.weights, found.gradients, found.adam, found.activations, found.logits)
            sizes = "".join(
                f"{term / GIB:>{width}.1f} "
                for term, width in zip(terms, (8, 7, 7, 7, 7), strict=True)
            )
            devices = shared(shape, method, given)
            among = "no" if devices is None else f"× {devices}"
            yield (
                f"{shape.name:<12} {_count(shape.weights):>8} {method:<10} {sizes}"
                f"{found.total / GIB:>8.1f}  {smallest(found.total):<11} "
                f"{among if method != 'qlora' else '–'}"
            )
    for method, said in METHODS.items():
        yield f"{method:<10} {said}"


def _count(weights: int) -> str:
    return f"{weights / 1e9:.2f}B" if weights >= 1e9 else f"{weights / 1e6:.0f}M"
