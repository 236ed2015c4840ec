"""What fits where: the arithmetic against transformers' own models and torch's own memory."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PretrainedConfig,
)

from mitigate import settings, sizes
from mitigate.sizes import Setting, Shape, need


def config(shape: Shape) -> PretrainedConfig:
    """The published configuration of a shape's family."""
    if shape.biases:
        return BloomConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
        )
    family = MistralConfig if shape.name.startswith("mistral") else LlamaConfig
    return family(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head,
        tie_word_embeddings=shape.tied,
    )


@pytest.mark.parametrize("shape", sizes.SHAPES, ids=lambda shape: shape.name)
def test_the_weights_are_those_of_the_model(shape: Shape) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config(shape))
    assert shape.weights == model.num_parameters()
    linear = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name
    )
    assert shape.linear == linear


def test_every_shape_is_a_recipe_of_that_size() -> None:
    for shape in sizes.SHAPES:
        stated = settings.from_words([f"model={shape.name}"], recipe="demo").model.size
        unit = {"M": 1e6, "B": 1e9}[stated[-1]]
        assert shape.weights == pytest.approx(float(stated[:-1]) * unit, rel=0.005)


TINY = Shape("tiny", 2, 64, 160, 500, 4, 2, 16, tied=True)


def test_an_adapter_has_as_many_weights_as_peft_makes() -> None:
    from peft import LoraConfig, get_peft_model

    with torch.device("meta"):
        model = get_peft_model(
            AutoModelForCausalLM.from_config(config(TINY)),
            LoraConfig(r=8, target_modules="all-linear"),
        )
    assert TINY.lora(8) == model.get_nb_trainable_parameters()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_needs_what_it_says(dtype: torch.dtype) -> None:
    """Weights, gradients and Adam to the byte; activations between a half and the whole of it."""
    settings_of = Setting(tokens=4 * 32)
    model = LlamaForCausalLM(config(TINY)).to(dtype)
    found = need(TINY, "full" if dtype == torch.float32 else "full_bf16", settings_of)
    optimizer = torch.optim.AdamW(model.parameters())
    kept: dict[int, int] = {}
    own = {weight.data_ptr() for weight in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ids = torch.randint(0, TINY.vocabulary, (4, 32))
        model(input_ids=ids).logits.float().sum().backward()
    optimizer.step()
    state = sum(
        tensor.nbytes
        for of in optimizer.state.values()
        for name, tensor in of.items()
        if name != "step"
    )
    assert sum(weight.nbytes for weight in model.parameters()) == found.weights
    assert sum(weight.grad.nbytes for weight in model.parameters()) == found.gradients
    assert state == found.adam
    assert 0.4 * found.activations < sum(kept.values()) < 1.6 * found.activations


def test_sharding_divides_the_weights_alone() -> None:
    shape, given = sizes.SHAPES[4], Setting()
    one, four = need(shape, "full", given), need(shape, "full", given, 4)
    assert four.adam == one.adam / 4
    assert four.activations == one.activations
    assert sizes.shared(shape, "full", given) == 2
    # Every process scores the whole model, which 70 billion float32 weights don't allow.
    assert sizes.shared(sizes.SHAPES[5], "full", given) is None
    less = need(shape, "full", Setting(checkpointing=True))
    assert less.activations < one.activations / 10


def test_the_table_has_a_row_for_each_model_and_method() -> None:
    lines = list(sizes.table())
    for shape in sizes.SHAPES:
        assert sum(line.startswith(shape.name) for line in lines) == len(sizes.METHODS)
    assert max(map(len, lines)) <= 120
