"""The model card: valid metadata, what it must say, and the lines that load the result."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model

from mitigate import card, models, settings
from mitigate.run import Run
from mitigate.settings import ModelSettings
from tests.conftest import ROOT
from tests.mitigate.finished import compared, finished

BASE = {"name": "made", "source": "somewhere", "licence": "mit", "kind": "masked"}


def written(run: Run, *words: str, retention: dict[str, Any] | None = None, **noted: Any) -> str:
    """The card of a made-up run's model/, its recipe changed by `words`."""
    folder = run.path("model")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}", "utf-8")
    run.note(model=BASE, training={"steps": 5}, **noted)
    run.recipe = settings.from_words(words, recipe="demo")
    card.write(run, run.recipe, compared(run), retention or {})
    return (folder / "README.md").read_text("utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return finished(tmp_path / "run")


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("mit", {"license": "mit"}),
        ("unknown", {}),
        ("'other: OPT licence'", {"license": "other", "license_name": "OPT licence"}),
    ],
)
def test_the_licence_is_the_hubs_identifier(
    run: Run, stated: str, expected: dict[str, str]
) -> None:
    text = written(run, f"model.licence={stated}")
    data = ModelCard(text).data.to_dict()
    assert {key: data[key] for key in data if key.startswith("license")} == expected


def test_every_change_stands_in_it(run: Run) -> None:
    text = written(run)
    data = ModelCard(text).data
    rows = {row["metric"]: row for row in compared(run)["samples_de"].table.to_dict("records")
            if row["scope"] == "overall"}  # fmt: skip
    assert {result.metric_type for result in data.eval_results} == set(card.METRICS)
    for result in data.eval_results:
        row = rows[result.metric_type]
        assert result.metric_value == pytest.approx(row["after"], abs=1e-4)
        assert f"{row['before']:.2f} | {row['after']:.2f} | {row['delta']:+.2f}" in text
    for sentence in compared(run)["samples_de"].sentences():
        assert sentence in text


def test_a_degraded_or_contaminated_run_says_so(run: Run) -> None:
    gate = {"reasons": ["perplexity on neutral text changed by +90.0 %"], "degraded": True}
    text = written(
        run,
        retention={"gate": gate},
        corpus={"texts_with_benchmark_sentences": 3},
        notes=["Trained on the benchmark's distribution."],
    )
    assert text.index("Degraded") < text.index("## Loading")
    assert "the change is no measure" in text
    assert "Trained on the benchmark's distribution." in text


def test_a_published_card_names_no_folder_of_this_machine(run: Run) -> None:
    run.manifest["command"] = f"mitigate train model.path={run.folder}"
    text = written(run, "hub.push=a/b", f"model.path={run.folder}")
    assert str(run.folder) not in text
    assert 'from_pretrained("a/b")' in text


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("adapter", [True, False])
def test_its_three_lines_load_the_result(
    kind: str, adapter: bool, request: pytest.FixtureRequest, run: Run
) -> None:
    """They are run as they stand in the card, and give the model that the run scored."""
    base = request.getfixturevalue(f"tiny_{kind}")
    lm = models.load(ModelSettings(path=str(base)))
    targets = ["query"] if kind == "masked" else ["c_attn"]
    made: Any = lm.model
    if adapter:
        made = get_peft_model(made, LoraConfig(target_modules=targets, init_lora_weights=False))
    else:
        with torch.no_grad():
            next(made.parameters()).mul_(2)
    folder = run.path("adapter" if adapter else "model")
    models.save_folder(made, lm.tokenizer, folder)
    run.note(model=BASE | {"kind": kind}, training={"steps": 5})
    recipe = settings.from_words([f"model.path={base}"], recipe="demo")
    card.write(run, recipe, compared(run), {})
    text = (folder / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    codes = [code]
    if adapter and kind == "masked":  # the README shows the same, with names to fill in
        readme = (ROOT / "README.md").read_text("utf-8")
        (shown,) = re.findall(r"```\n(from peft.*?)```", readme, re.DOTALL)
        codes.append(shown.replace('"BASE"', repr(str(base))).replace("RUN", str(run.folder)))
    ids = torch.arange(5, 25)[None]
    for code in codes:
        assert len(code.strip().splitlines()) == 3
        found: dict[str, Any] = {}
        exec(code, found)
        with torch.no_grad():
            ours = found["model"].eval()(input_ids=ids).logits
            theirs = made.eval()(input_ids=ids).logits
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
