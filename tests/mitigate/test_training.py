"""Continued pretraining keeps its promises: the loss, the masks, the rows, LoRA, resuming."""

import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerBase

from corpora.samples.world import load_world, planted_text
from eval.errors import RequestError
from eval.scorers.model import LanguageModel
from mitigate.methods import Context, Trained
from mitigate.methods.continued import check, train
from mitigate.methods.record import TrainingError
from mitigate.methods.rows import IGNORED, MaskedRows, text_rows, word_starts
from mitigate.methods.training import last_whole_checkpoint, trainer_for
from mitigate.sample_models import causal_tokenizer, masked_tokenizer
from mitigate.settings import LoraSettings, MethodSettings

BERT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "roberta": ("RobertaForMaskedLM", BERT),
    "distilbert": (
        "DistilBertForMaskedLM",
        {
            "dim": 16,
            "hidden_dim": 32,
            "n_layers": 2,
            "n_heads": 2,
            "max_position_embeddings": 128,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "initializer_range": 0.3,
        },
    ),
    "xlm-roberta": ("XLMRobertaForMaskedLM", BERT),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**BERT, "initializer_cutoff_factor": 2.0, "local_attention": 8},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 128,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "initializer_range": 0.3,
        },
    ),
    "xlm": (
        "XLMWithLMHeadModel",
        {
            "causal": True,
            "emb_dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "max_position_embeddings": 128,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "embed_init_std": 0.3,
            "init_std": 0.3,
        },
    ),
    "bloom": (
        "BloomForCausalLM",
        {"hidden_size": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3},
    ),
    "llama": (
        "LlamaForCausalLM",
        {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 128,
            "initializer_range": 0.3,
        },
    ),
}
MASKED = ("bert", "roberta", "distilbert", "xlm-roberta", "modernbert")
TARGETS = {"bert": ["query", "value"], "gpt2": ["c_attn"], "llama": ["q_proj"]}


@pytest.fixture(scope="module")
def text() -> list[str]:
    return planted_text(load_world("de"), 500)


@pytest.fixture(scope="module")
def tokenizers(text: list[str]) -> dict[str, PreTrainedTokenizerBase]:
    return {"masked": masked_tokenizer(text), "causal": causal_tokenizer(text)}


@pytest.fixture
def model(tokenizers: dict[str, PreTrainedTokenizerBase]) -> Callable[..., LanguageModel]:
    """`model("bert")`: a fresh random one, the same each time."""

    def build(name: str, **changed: Any) -> LanguageModel:
        kind = "masked" if name in MASKED else "causal"
        tokenizer = tokenizers[kind]
        of, shape = MODELS[name]
        cls = getattr(transformers, of)
        special = {
            key: getattr(tokenizer, key)
            for key in ("pad_token_id", "bos_token_id", "eos_token_id")
            if getattr(tokenizer, key) is not None
        }
        if name == "xlm":
            special["pad_index"] = tokenizer.pad_token_id
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = cls(cls.config_class(vocab_size=len(tokenizer), **special, **shape | changed))
        return LanguageModel(name, kind, made.eval(), tokenizer, "weights", "tokens")

    return build


def quick(**changed: Any) -> MethodSettings:
    given = {
        "name": "continued",
        "lr": 1e-2,
        "max_steps": 2,
        "batch": 2,
        "accumulation": 1,
        "eval_steps": 2,
        "save_steps": 2,
        "keep": "last",
        "block": 24,
    }
    return MethodSettings(**(given | changed))


def context(lm: LanguageModel, train: list[str], folder: Path, **changed: Any) -> Context:
    given = {
        "lm": lm,
        "train": train,
        "valid": [],
        "settings": quick(),
        "lora_targets": TARGETS.get(lm.name, []),
        "seed": 0,
        "processes": 1,
        "checkpoints": folder / "checkpoints",
        "log": lambda values: None,
        "say": lambda line: None,
    }
    return Context(**(given | changed))


def weights(trained: Trained) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}


def logged(log: list[dict[str, Any]], key: str) -> list[float]:
    return [line[f"train/{key}"] for line in log if f"train/{key}" in line]


# The loss.


def uneven(lm: LanguageModel, text: list[str]) -> list[str]:
    """Texts that make exactly four rows, each with another number of labels."""
    if lm.kind == "causal":
        return [text[0], f"{text[1]} {text[2]}", text[3].split()[0], " ".join(text[4:9])]
    return [" ".join(text[start:stop]) for start, stop in ((0, 6), (6, 9), (9, 14), (14, 16))]


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_four_is_four_accumulated_batches_of_one(
    name: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    seen = {}
    for batch, accumulation in ((4, 1), (1, 4), (2, 2)):
        lm = model(name)
        texts = uneven(lm, text)
        # A block as long as the longest text: the masked rows hold one text each.
        longest = max(len(ids) for ids in lm.tokenizer(texts)["input_ids"])
        settings = quick(max_steps=1, batch=batch, accumulation=accumulation, block=longest)
        log: list[dict[str, Any]] = []
        assert len(text_rows(lm, texts, settings)) == 4
        train(context(lm, texts, tmp_path / str(batch), settings=settings, log=log.append))
        seen[batch] = [*logged(log, "loss"), *logged(log, "grad_norm")]
        assert len(seen[batch]) == 2
    loss, norm = defined(model(name), texts, quick(block=longest))
    for some in seen.values():
        assert some == pytest.approx([loss, norm], rel=1e-5)


def defined(lm: LanguageModel, texts: list[str], settings: MethodSettings) -> tuple[float, float]:
    """Loss and gradient norm of an update over all rows, written out, a row at a time."""
    rows = text_rows(lm, texts, settings)
    if lm.kind == "masked":
        data = MaskedRows(rows, lm.tokenizer, settings.mask_share, 0, fixed=False)
        given = [(data[at]["input_ids"], data[at]["labels"]) for at in range(len(rows))]
    else:
        given = [(row[:-1], row[1:]) for row in rows]
    assert len({sum(label >= 0 for label in labels) for _, labels in given}) > 1
    total, count = torch.zeros(()), 0
    for ids, labels in given:
        logs = torch.log_softmax(lm.model(**lm.inputs(torch.tensor([ids]))).logits[0], -1)
        for place, label in enumerate(labels):
            if label >= 0:
                total, count = total - logs[place, label], count + 1
    loss = total / count
    loss.backward()
    grads = [p.grad for p in lm.model.parameters() if p.grad is not None]
    return loss.item(), torch.stack([grad.norm() for grad in grads]).norm().item()


def test_a_loss_that_is_no_number_stops_the_run(
    model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    settings = quick(max_steps=60, accumulation=2, save_steps=2)  # told every three steps
    for name in ("bert", "gpt2"):
        lm = model(name)
        rows = text_rows(lm, text[:60], settings)
        seen: list[list[list[int]]] = []

        def break_down(module: torch.nn.Module, given: Any, seen: Any = seen) -> None:
            if module.training:
                seen.append(given[0].tolist())
                if len(seen) == 8:  # the second batch of the fourth step
                    with torch.no_grad():
                        module.weight[:] = float("nan")

        lm.model.get_input_embeddings().register_forward_pre_hook(break_down)
        with pytest.raises(TrainingError) as error:
            train(context(lm, text[:60], tmp_path / name, settings=settings))
        found = re.match(
            r"the loss is nan at step 4, in training rows (\d+), (\d+); checkpoint-2 is the last",
            str(error.value),
        )
        assert found, error.value
        if name == "gpt2":  # whose batches are not masked
            for line, row in zip(seen[7], map(int, found.groups()), strict=True):
                assert line[: len(rows[row])] == rows[row]
        assert not (tmp_path / name / "checkpoints" / "checkpoint-4").exists()


@pytest.mark.parametrize("name", ["bert", "modernbert", "gpt2"])
def test_only_labelled_tokens_go_through_the_output_head(
    name: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    lm = model(name)
    settings = quick(batch=4, max_steps=2)
    given = context(lm, text[:40], tmp_path, settings=settings)
    trainer = trainer_for(given, lm.model, text[:40], [])
    seen: list[int] = []
    lm.model.get_output_embeddings().register_forward_hook(
        lambda module, given, logits: seen.append(logits.shape[:-1].numel())
    )
    labelled, tokens = [], 0
    for batch in trainer.get_train_dataloader():
        labelled.append(int((batch["labels"] != IGNORED).sum()))
        tokens += batch["labels"].numel()
        trainer.compute_loss(lm.model, trainer._prepare_inputs(batch)).backward()
    assert seen == labelled
    assert sum(seen) < tokens
    assert lm.model.get_input_embeddings().weight.grad.isfinite().all()


# The masks.


def test_masks_are_decided_by_seed_epoch_and_row(
    model: Callable[..., LanguageModel], text: list[str]
) -> None:
    lm = model("bert")
    rows = text_rows(lm, text[:60], quick())

    def masked(rows: list[list[int]], seed: int, epoch: int, fixed: bool = False) -> list[Any]:
        data = MaskedRows(rows, lm.tokenizer, 0.15, seed, fixed=fixed)
        data.epoch = epoch
        order = np.random.default_rng().permutation(len(rows))
        found = {int(at): data[int(at)] for at in order}  # whatever was asked for before
        return [found[at] for at in range(len(rows))]

    first = masked(rows, 0, 0)
    assert masked(rows, 0, 0) == first
    assert masked(rows[:3], 0, 0) == first[:3]
    assert masked(rows, 0, 1) != first
    assert masked(rows, 1, 0) != first
    assert masked(rows, 0, 0, fixed=True) == masked(rows, 0, 5, fixed=True)
    same = [rows[0]] * 2
    assert masked(same, 0, 0)[0] != masked(same, 0, 0)[1]


def test_training_masks_each_row_anew_each_epoch_and_evaluation_never(
    model: Callable[..., LanguageModel],
    text: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    plain = MaskedRows.__getitem__

    def recording(self: MaskedRows, index: int) -> dict[str, list[int]]:
        drawn[self.fixed].append((self.epoch, index))
        return plain(self, index)

    monkeypatch.setattr(MaskedRows, "__getitem__", recording)
    lm = model("bert")
    settings = quick(max_steps=-1, epochs=3, lr=0.0, batch=2, accumulation=2, eval_steps=2)
    log: list[dict[str, Any]] = []
    train(context(lm, text[:30], tmp_path, valid=text[30:40], settings=settings, log=log.append))
    rows = len(text_rows(lm, text[:30], settings))
    assert rows > 4
    assert sorted(drawn[False]) == [(epoch, row) for epoch in range(3) for row in range(rows)]
    losses = logged(log, "eval_loss")
    assert len(losses) > 2
    assert set(losses) == {losses[0]}  # with a rate of 0 the model stays as it is


# The rows and labels.


def test_masked_batches_never_predict_padding_or_special_tokens(
    model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    for name in MASKED:
        lm = model(name)
        settings = quick(batch=4, block=40)
        rows = text_rows(lm, text[:200], settings)
        trainer = trainer_for(
            context(lm, [], tmp_path / name, settings=settings), lm.model, text[:200], []
        )
        special = torch.tensor(lm.tokenizer.all_special_ids)
        labelled = words = masks = 0
        padded = False
        for batch in trainer.get_train_dataloader():
            ids, labels, attention = (
                batch[key] for key in ("input_ids", "labels", "attention_mask")
            )
            chosen = labels != IGNORED
            assert not torch.isin(labels[chosen], special).any()
            assert (attention[chosen] == 1).all()
            assert (ids[attention == 0] == lm.tokenizer.pad_token_id).all()
            padded |= bool((attention == 0).any())
            labelled += int(chosen.sum())
            masks += int((ids[chosen] == lm.tokenizer.mask_token_id).sum())
            # Given back what was hidden, a line is one of the rows.
            whole = torch.where(chosen, labels, ids)
            for line, seen in zip(whole.tolist(), attention.sum(1).tolist(), strict=True):
                assert line[:seen] in rows
            words += int((~torch.isin(whole, special)).sum())
        assert padded
        assert 0.13 < labelled / words < 0.17
        assert 0.7 < masks / labelled < 0.9


@pytest.mark.parametrize("pad", ["its own", "eos", "none"])
def test_causal_batches_predict_the_end_and_never_padding(
    pad: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    lm = model("gpt2")
    tokenizer = lm.tokenizer
    own = tokenizer.pad_token
    try:
        if pad != "its own":
            tokenizer.pad_token = tokenizer.eos_token if pad == "eos" else None
        settings = quick(batch=4, block=40)
        trainer = trainer_for(context(lm, [], tmp_path, settings=settings), lm.model, text[:40], [])
        padded = False
        for batch in trainer.get_train_dataloader():
            ids, labels, attention = (
                batch[key] for key in ("input_ids", "labels", "attention_mask")
            )
            assert (labels[attention == 0] == IGNORED).all()
            assert (labels[:, 0] == IGNORED).all()
            assert (ids[:, 0] == tokenizer.bos_token_id).all()
            assert (labels == ids)[:, 1:][attention[:, 1:] == 1].all()
            padded |= bool((attention == 0).any())
            for line, seen in zip(labels.tolist(), attention.sum(1).tolist(), strict=True):
                assert line[seen - 1] == tokenizer.eos_token_id
                assert line[:seen].count(tokenizer.eos_token_id) == 1
        assert padded
    finally:
        tokenizer.pad_token = own


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_rows_keep_every_token_and_never_cut_a_text_that_fits(
    name: str, model: Callable[..., LanguageModel], text: list[str]
) -> None:
    lm = model(name)
    texts = [*text[:50], " ".join(text[50:60]), *text[60:80]]
    plain = lm.tokenizer(texts, add_special_tokens=False)["input_ids"]
    special = set(lm.tokenizer.all_special_ids)
    for block in (16, 24, 64):
        rows = text_rows(lm, texts, quick(block=block))
        assert max(map(len, rows)) <= block
        kept = [token for row in rows for token in row if token not in special]
        assert kept == [token for ids in plain for token in ids if token not in special]
        room = block - 2
        cut = [ids for ids in plain if len(ids) > room]
        assert cut or block == 64
        for ids in plain:
            if len(ids) <= room:
                assert any(
                    row[start : start + len(ids)] == ids
                    for row in rows
                    for start in range(len(row))
                )
    if name == "bert":
        # Grouped: fewer rows than texts, and no two neighbours would have fitted in one.
        assert len(rows) < len(texts)
        assert all(len(a) + len(b) - 1 > 64 for a, b in itertools.pairwise(rows))
    else:
        assert len(rows) >= len(texts)


# LoRA.


@pytest.mark.parametrize(
    ("name", "target", "module"),
    [
        ("bert", "decoder", "cls.predictions.decoder"),
        ("gpt2", "lm_head", "lm_head"),
        ("bert", "word_embeddings", "bert.embeddings.word_embeddings"),
        ("gpt2", "wte", "transformer.wte"),
    ],
)
def test_lora_on_a_tied_output_layer_is_refused(
    name: str,
    target: str,
    module: str,
    model: Callable[..., LanguageModel],
    text: list[str],
    tmp_path: Path,
) -> None:
    settings = quick(weights="lora", lora=LoraSettings(targets=[*TARGETS[name], target]))
    with pytest.raises(RequestError, match=rf"lora\.targets: {module} .*tied"):
        train(context(model(name), text[:60], tmp_path, settings=settings))


def test_lora_targets_that_match_nothing_are_refused_by_name(
    model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    for targets in (["q_proj"], ["query", "q_proj"], ["uery"]):
        settings = quick(weights="lora", lora=LoraSettings(targets=targets))
        with pytest.raises(RequestError, match=r"match nothing in bert.* query, key, value"):
            train(context(model("bert"), text[:60], tmp_path, settings=settings))
    settings = quick(weights="lora", lora=LoraSettings())
    with pytest.raises(RequestError, match="name modules, such as query, key, value"):
        train(context(model("bert"), text[:60], tmp_path, settings=settings, lora_targets=[]))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_lora_moves_the_adapter_and_nothing_else(
    name: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    base = {key: tensor.clone() for key, tensor in model(name).model.state_dict().items()}
    said: list[str] = []
    settings = quick(weights="lora", lora=LoraSettings(r=2, alpha=4))
    trained = train(context(model(name), text[:60], tmp_path, settings=settings, say=said.append))
    after = weights(trained)
    adapter = [key for key in after if "lora_" in key]
    assert trained.facts["trained_weights"] == sum(after[key].numel() for key in adapter)
    assert all(after[key].any() for key in adapter)
    assert f"{trained.facts['trained_weights']:,} of " in said[0]
    assert f"LoRA on {len(adapter) // 2} modules" in said[0]
    for key, tensor in after.items():
        if "lora_" not in key:
            plain = key.removeprefix("base_model.model.").replace(".base_layer", "")
            assert torch.equal(tensor, base[plain]), plain


# Stopped and resumed.


class KilledError(RuntimeError):
    """What ends a run in the middle of a step's log."""


def killed_at(step: int) -> Callable[[dict[str, Any]], None]:
    def log(values: dict[str, Any]) -> None:
        if values["train/step"] >= step:
            raise KilledError

    return log


RESUMED = [("bert", False), ("bert", True), ("gpt2", False), ("gpt2", True)]


@pytest.mark.parametrize(("name", "lora"), RESUMED, ids=lambda value: str(value))
@pytest.mark.parametrize("stop", [3, 5])
def test_stopped_and_resumed_is_uninterrupted(
    name: str,
    lora: bool,
    stop: int,
    model: Callable[..., LanguageModel],
    text: list[str],
    tmp_path: Path,
) -> None:
    # With dropout, so that the state of the random numbers counts; over several epochs.
    drop = "hidden_dropout_prob" if name == "bert" else "resid_pdrop"
    settings = quick(
        max_steps=6,
        accumulation=2,
        batch=2,
        scheduler="cosine",
        weights="lora" if lora else "all",
        lora=LoraSettings(r=2, dropout=0.1) if lora else None,
    )
    texts = text[:12] if name == "bert" else text[:7]
    said: list[str] = []

    def run(folder: str, log: Callable[[dict[str, Any]], None]) -> Trained:
        return train(
            context(
                model(name, **{drop: 0.1}),
                texts,
                tmp_path / folder,
                valid=text[20:26],
                settings=settings,
                log=log,
                say=said.append,
            )
        )

    whole_log: list[dict[str, Any]] = []
    whole = run("whole", whole_log.append)
    assert whole.facts["epochs"] > 2
    with pytest.raises(KilledError):
        run("parts", killed_at(stop))
    log: list[dict[str, Any]] = []
    parts = run("parts", log.append)
    at = stop - 1
    assert f"going on from checkpoint-{at}" in said
    assert logged(log, "loss") == pytest.approx(logged(whole_log, "loss")[at:], rel=1e-5)
    expected = weights(whole)
    for key, tensor in weights(parts).items():
        torch.testing.assert_close(tensor, expected[key], atol=1e-6, rtol=0)
    start = model(name).model.state_dict()
    moved = [key for key in expected if "lora_B" in key or key in start]
    assert any(not torch.allclose(expected[key], start.get(key, torch.zeros(()))) for key in moved)
    assert parts.facts["steps"] == 6


def test_a_torn_checkpoint_is_not_gone_on_from(
    model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    settings = quick(max_steps=6)
    said: list[str] = []

    def run() -> Trained:
        return train(
            context(model("bert"), text[:60], tmp_path, settings=settings, say=said.append)
        )

    expected = weights(run())
    folder = tmp_path / "checkpoints"
    assert last_whole_checkpoint(folder) == folder / "checkpoint-6"
    (folder / "checkpoint-6" / "trainer_state.json").unlink()
    shutil.copytree(folder / "checkpoint-4", folder / "checkpoint-10")
    state = folder / "checkpoint-10" / "trainer_state.json"
    state.write_text(state.read_text("utf-8")[:100], "utf-8")
    for key, tensor in weights(run()).items():
        torch.testing.assert_close(tensor, expected[key], atol=1e-6, rtol=0)
    assert [line for line in said if line.startswith("going")] == ["going on from checkpoint-4"]
    assert not (folder / "checkpoint-10").exists()


@pytest.mark.parametrize("scheduler", ["linear", "constant"])
def test_a_finished_training_is_not_done_again(
    scheduler: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    settings = quick(scheduler=scheduler, weight_decay=0.1)
    first = train(context(model("bert"), text[:60], tmp_path, settings=settings))
    log: list[dict[str, Any]] = []
    again = train(context(model("bert"), text[:60], tmp_path, settings=settings, log=log.append))
    assert again.facts["train_loss"] == first.facts["train_loss"]
    assert not logged(log, "loss")
    assert again.facts["steps"] == first.facts["steps"] == 2
    expected = weights(first)
    for key, tensor in weights(again).items():
        assert torch.equal(tensor, expected[key])


# Which rows, in which order, and how fast.


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_log_proves_the_order_of_the_rows(
    name: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    texts = text[:30]

    def hashes(folder: str, log: Callable[[dict[str, Any]], None], **changed: Any) -> Trained:
        settings = quick(**({"max_steps": 8, "accumulation": 2} | changed))
        return train(context(model(name), texts, tmp_path / folder, settings=settings, log=log))

    def order(log: list[dict[str, Any]]) -> dict[str, str]:
        said = [part for line in log if "train/rows" in line for part in line["train/rows"].split()]
        return dict(part.split(":") for part in said)

    whole: list[dict[str, Any]] = []
    facts = hashes("whole", whole.append).facts
    assert list(order(whole)) == [str(step) for step in range(1, 9)]
    # Four rows one after the other are twice two.
    wide: list[dict[str, Any]] = []
    hashes("wide", wide.append, batch=4, accumulation=1)
    assert order(wide) == order(whole)
    parts: list[dict[str, Any]] = []
    with pytest.raises(KilledError):
        hashes("parts", lambda values: (parts.append(values), killed_at(5)(values))[0])
    again: list[dict[str, Any]] = []
    resumed = hashes("parts", again.append).facts
    assert order(parts) | order(again) == order(whole)
    assert order(again) != order(whole)
    # Real tokens are counted, padding is not, and those before the kill are not forgotten.
    assert resumed["tokens_seen"] == facts["tokens_seen"]
    assert logged(whole, "tokens")[-1] == facts["tokens_seen"]
    lengths = list(map(len, text_rows(model(name), texts, quick())))
    if name == "gpt2":  # thirty rows, four an update: eight are an epoch
        assert facts["tokens_seen"] == sum(lengths)
    assert facts["tokens_per_second"] > 0
    assert 0 < facts["share_of_matmul_rate"] < 1


# Packing.


@pytest.mark.parametrize("name", [name for name in MODELS if name not in MASKED])
def test_packed_texts_have_the_logits_they_have_alone_or_nothing_is_packed(
    name: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    said: list[str] = []
    settings = quick(packing=True, block=64, batch=2)
    lm = model(name)
    given = context(lm, text[:40], tmp_path, settings=settings, say=said.append)
    trainer = trainer_for(given, lm.model, text[:40], text[40:44])
    packs = name in ("gpt2", "llama")
    assert ("lengths" in trainer.train_dataset[0]) == packs
    if not packs:
        assert "nothing is packed" in said[-1]
        assert len(trainer.train_dataset) == len(text_rows(lm, text[:40], settings))
        return
    assert "lengths" not in trainer.eval_dataset[0]
    rows = text_rows(lm, text[:40], settings)
    seen: list[list[int]] = []
    for batch in trainer.get_train_dataloader():
        numbers = batch.pop("rows").tolist()
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = lm.model(**batch).logits
        for line, number in enumerate(numbers):
            start = 0
            for length in trainer.train_dataset[number]["lengths"]:
                piece = slice(start, start + length)
                ids = batch["input_ids"][line, piece]
                alone = lm.model(**lm.inputs(ids[None])).logits[0]
                torch.testing.assert_close(logits[line, piece], alone, atol=1e-5, rtol=1e-5)
                assert labels[line, piece].tolist() == [IGNORED, *ids[1:].tolist()]
                seen.append(ids.tolist())
                start += length
            assert (labels[line, start:] == IGNORED).all()
    assert sorted(seen) == sorted(rows)
    assert len(trainer.train_dataset) < len(rows) / 2


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_update_over_packed_texts_is_one_over_the_texts(
    name: str, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    losses = []
    for packing in (False, True):
        settings = quick(max_steps=1, packing=packing, block=1000 if packing else 64)
        settings.batch = 1 if packing else 8
        log: list[dict[str, Any]] = []
        lm = model(name, **({"n_positions": 1000} if name == "gpt2" else {}))
        if name == "llama":
            lm.model.config.max_position_embeddings = 1000
        train(context(lm, text[:8], tmp_path / str(packing), settings=settings, log=log.append))
        losses.append([*logged(log, "loss"), *logged(log, "grad_norm")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# Whole words.


def test_whole_words_are_masked_together_to_the_same_share(
    model: Callable[..., LanguageModel], text: list[str]
) -> None:
    for name in ("bert", "modernbert"):
        lm = model(name)
        # Words that the vocabulary has not: each is cut into pieces.
        texts = [f"{line} unbekanntestes Nebenstehendes" for line in text[:80]]
        settings = quick(whole_words=True, block=100)
        rows = text_rows(lm, texts, settings)
        begins = word_starts(lm, texts, settings)
        assert rows == text_rows(lm, texts, quick(block=100))
        assert [len(row) for row in rows] == [len(row) for row in begins]
        assert not all(all(row) for row in begins)
        data = MaskedRows(rows, lm.tokenizer, 0.15, 0, fixed=False, begins=begins)
        special = set(lm.tokenizer.all_special_ids)
        masked = words = 0
        for number, row in enumerate(rows):
            item = data[number]
            assert item == data[number]
            chosen = [label != IGNORED for label in item["labels"]]
            for at in range(1, len(row)):
                if not begins[number][at]:  # a word's piece goes with the one before it
                    assert chosen[at] == chosen[at - 1]
                assert not (chosen[at] and row[at] in special)
            masked += sum(chosen)
            words += sum(token not in special for token in row)
        assert 0.12 < masked / words < 0.18


# Keys of a recipe for speed and memory.


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("lora", [False, True])
def test_computing_activations_again_changes_nothing(
    name: str, lora: bool, model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    found = []
    for again in (False, True):
        settings = quick(gradient_checkpointing=again, optimizer="adamw_torch")
        if lora:
            settings.weights, settings.lora = "lora", LoraSettings(r=2)
        lm = model(name)
        calls: list[int] = []
        layer = next(
            module for key, module in lm.model.named_modules() if key.endswith((".layer.0", ".h.0"))
        )
        product = next(
            module for module in layer.modules() if type(module).__name__ in ("Linear", "Conv1D")
        )
        product.register_forward_pre_hook(
            lambda module, given, calls=calls: calls.append(1) if module.training else None
        )
        trained = train(context(lm, text[:20], tmp_path / str(again), settings=settings))
        found.append((weights(trained), len(calls)))
    (plain, once), (recomputed, twice) = found
    assert twice > once
    for key, tensor in plain.items():
        torch.testing.assert_close(recomputed[key], tensor, atol=1e-6, rtol=0)


def test_bfloat16_and_other_optimisers_train(
    model: Callable[..., LanguageModel], text: list[str], tmp_path: Path
) -> None:
    found = {}
    for name, changed in (
        ("plain", {}),
        ("auto", {"mixed_precision": "auto"}),  # there is no GPU
        ("bf16", {"mixed_precision": "bf16"}),
        ("adafactor", {"optimizer": "adafactor"}),
    ):
        given = context(
            model("bert"),
            text[:20],
            tmp_path / name,
            settings=quick(**changed),  # type: ignore[arg-type]
        )
        if name == "auto" and torch.cuda.is_available():
            continue
        found[name] = weights(train(given))
        assert all(tensor.dtype != torch.bfloat16 for tensor in found[name].values())
    some = "bert.encoder.layer.0.attention.self.query.weight"
    if "auto" in found:
        assert torch.equal(found["auto"][some], found["plain"][some])
    assert not torch.equal(found["bf16"][some], found["plain"][some])
    assert (found["bf16"][some] - found["plain"][some]).abs().mean() < 1e-2  # as far as the rate
    assert not torch.allclose(found["adafactor"][some], found["plain"][some], atol=1e-4)


def test_what_a_model_can_not_do_is_refused_before_it_is_scored(
    model: Callable[..., LanguageModel],
) -> None:
    for name, changed, says in (
        ("bert", {"packing": True}, "method.packing: is for causal models"),
        ("gpt2", {"whole_words": True}, "method.whole_words: gpt2: is a causal model"),
        ("bert", {"batch": 3}, "method.batch=3 can't be shared by 2 processes"),
    ):
        with pytest.raises(RequestError, match=says):
            check(model(name), quick(**changed), [], 2)  # type: ignore[arg-type]
