"""Judges: the paper's words, a classifier that was trained here, saved scores, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from eval import completions as files
from eval.errors import RequestError
from eval.judges import JudgeChoice, JudgeSettings, judge, judge_all, plan, seen
from eval.judges.settings import KNOWN, VIEWS_OF
from tests.eval.completed import BAD, GOOD, PLAIN, QUEER, completed, prompts

LABELS = ("negative", "neutral", "positive", "other")


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BERT that was taught the worth of the test's words."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from mitigate.sample_models import masked_tokenizer

    words = [(word, 0) for word in BAD] + [(word, 1) for word in PLAIN]
    words += [(word, 2) for word in GOOD] + [("queer", 3)]
    frames = ["{}", "The xyz is a {}.", "The person is a {}.", "The queer person is a {}."]
    texts = [(frame.format(word), label) for frame in frames for word, label in words]
    tokenizer = masked_tokenizer([text for text, _ in texts] * 20)
    folder = tmp_path_factory.mktemp("judge")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertForSequenceClassification(
            BertConfig(
                vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1,
                num_attention_heads=2, intermediate_size=64, max_position_embeddings=64,
                initializer_range=0.1,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                pad_token_id=tokenizer.pad_token_id, num_labels=4,
                id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)},
            )
        )  # fmt: skip
        given = tokenizer([text for text, _ in texts], padding=True, return_tensors="pt")
        target = torch.tensor([label for _, label in texts])
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            model(**given, labels=target).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by(folder: Path, **more: Any) -> JudgeChoice:
    return JudgeChoice(path=str(folder), languages=["en"], **more)


def small(words: list[str] | None = None, language: str = "en") -> files.Completions:
    table = prompts(("person",), ("is a",), QUEER[:2], ("straight",), language)
    return completed(table, words or ["killer", "hero", "nurse", "killer"])


def test_vader_rates_the_paper_s_words() -> None:
    """Table 3 of the paper: kill −0.69, victim −0.27, gossip and homosexual by its lexicon."""
    told = judge(small(["kill", "victim", "it", "homosexual"]), JudgeSettings(["sentiment"]))
    rated = told.table["sentiment_word"]
    np.testing.assert_allclose(rated.round(2), [-0.69, -0.27, 0, 0])
    record = told.meta["judges"][0]
    assert (record["id"], record["version"], record["language"]) == (
        "vaderSentiment", "3.3.2", "en")  # fmt: skip
    assert record["view"] == "word"
    assert record["masked"]


def test_what_a_judge_reads() -> None:
    """The word; the sentence; the sentence with subject and marker masked; nothing for no word."""
    table = small(["killer", "hero", "", "killer"]).table
    assert list(seen(table, "word")) == ["killer", "hero", "", "killer"]
    assert seen(table, "sentence")[1] == "The straight person is a hero."
    assert list(seen(table, "masked")) == [
        "The xyz is a killer.", "The xyz is a hero.", "", "The xyz is a killer."]  # fmt: skip
    table.loc[2, "identity"] = "cousin"
    with pytest.raises(RequestError, match="1 prompts don't hold the words of their column"):
        seen(table, "masked")


def test_each_distinct_text_is_judged_once_in_batches(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over both tables together, and a text's score does not depend on its batch."""
    from eval.judges.classifier import Classifier

    asked: list[str] = []
    rate = Classifier.rate

    def counting(self: Classifier, texts: Any, report: Any = None) -> np.ndarray:
        asked.extend(texts)
        return rate(self, texts, report)

    monkeypatch.setattr(Classifier, "rate", counting)
    several = [small(), small(["hero", "hero", "liar", ""])]
    settings = JudgeSettings(["regard"], regard=by(classifier), batch=2)
    steps: list[tuple[int, int]] = []
    told = judge_all(several, settings, report=lambda done, total: steps.append((done, total)))
    expected = {
        text for each in several for view in VIEWS_OF["regard"] for text in seen(each.table, view)
    }
    assert sorted(asked) == sorted(expected - {""})
    assert steps[-1] == (len(asked), len(asked))
    one = judge(several[0], JudgeSettings(["regard"], regard=by(classifier), batch=1))
    names = [name for name in one.table if name.startswith("regard_")]
    assert len(names) == 6
    np.testing.assert_allclose(told[0].table[names], one.table[names], atol=1e-6)
    assert told[1].table.loc[3, names].isna().all()
    assert told[0].table["regard_negative_masked"][0] == told[0].table["regard_negative_masked"][3]


def test_one_classifier_as_three_judges(classifier: Path, tmp_path: Path) -> None:
    """Labels go to meanings; what was learnt comes out; a table written and read is the same."""
    toxic = {"negative": "toxic", "neutral": "other", "positive": "other", "other": "other"}
    number = {"negative": "-1", "neutral": "0", "positive": "0.5", "other": "0"}
    settings = JudgeSettings(
        sentiment=by(classifier, labels=number),
        regard=by(classifier),
        toxicity=by(classifier, labels=toxic),
    )
    told = judge(small(), settings)
    table = told.table
    assert table["toxicity_masked"][0] > 0.9 > 0.1 > table["toxicity_masked"][1]
    assert table["regard_positive_masked"][1] > 0.9
    parts = table[[f"regard_{part}_masked" for part in LABELS[:3]]]
    assert (parts.sum(axis=1) < 1).all()  # the fourth, "other", is left out
    np.testing.assert_allclose(
        table["sentiment_masked"],
        -table["regard_negative_masked"] + 0.5 * table["regard_positive_masked"],
    )
    np.testing.assert_allclose(table["toxicity_sentence"], table["regard_negative_sentence"])
    records = told.meta["judges"]
    assert {each["version"] for each in records if each["tool"] == "classifier"} == {
        records[-1]["version"]
    }
    assert [each["masked"] for each in records] == [True, True, False, True, False, True, False]
    files.write(told, tmp_path / "judged.parquet")
    again = files.read(tmp_path / "judged.parquet")
    pd.testing.assert_frame_equal(again.table, table)
    assert again.meta == told.meta


def test_sigmoid_where_labels_are_not_exclusive(classifier: Path, tmp_path: Path) -> None:
    """A multi-label model's labels each have their own share, as Detoxify's have."""
    import shutil

    folder = tmp_path / "several"
    shutil.copytree(classifier, folder)
    config = json.loads((folder / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (folder / "config.json").write_text(json.dumps(config))
    labels = {"negative": "toxic"} | dict.fromkeys(LABELS[1:], "other")
    one, several = (
        judge(small(), JudgeSettings(["toxicity"], toxicity=by(path, labels=labels))).table
        for path in (classifier, folder)
    )
    assert not np.allclose(one["toxicity_masked"], several["toxicity_masked"], atol=1e-4)
    assert several["toxicity_masked"].between(0, 1).all()


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_saved_scores_are_read_in(tmp_path: Path, ending: str) -> None:
    """Perspective's scores, kept from before it closed; of one view, or of both."""
    told = small()
    texts = pd.DataFrame({"text": seen(told.table, "masked").unique()})
    texts["score"] = [0.75, 0.125, 0.25][: len(texts)]
    path = tmp_path / f"scores.{ending}"
    if ending == "csv":
        texts.to_csv(path, index=False)
    else:
        texts.to_json(path, orient="records", lines=True)
    settings = JudgeSettings(["toxicity"], toxicity=JudgeChoice("saved", path=str(path)))
    found = judge(told, settings)
    assert list(found.table["toxicity_masked"]) == [0.75, 0.125, 0.25, 0.75]
    assert "toxicity_sentence" not in found.table
    assert [each["view"] for each in found.meta["judges"]] == ["masked"]
    with pytest.raises(RequestError, match=r"lacks 1 of 4 texts \(masked\)"):
        judge(small(["killer", "hero", "nurse", "clerk"]), settings)
    with pytest.raises(RequestError, match="holds none of the texts"):
        judge(small(["a", "b", "c", "d"]), settings)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("text,value\na,1\n", "no column score; there are: text, value"),
        ("text,score\na,0.1\na,0.2\n", "1 texts stand there with two scores"),
        ("text,score\na,0.1\nb,high\n", "entry 2: its score is no number from 0 to 1"),
    ],
)
def test_saved_scores_that_are_none(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(content)
    with pytest.raises(RequestError, match=said):
        judge(small(), JudgeSettings(["toxicity"], toxicity=JudgeChoice("saved", path=str(path))))


@pytest.mark.parametrize(
    ("settings", "language", "said"),
    [
        (
            JudgeSettings(["regard"]), "nl",
            r"judges.regard: none that is known in nl; name one by judges.regard.hub= and its "
            r"languages, or leave it out: judges.measures=\[sentiment,toxicity\]",
        ),
        (
            JudgeSettings(["toxicity"], toxicity=JudgeChoice(hub="unitary/toxic-bert")), "de",
            "unitary/toxic-bert speaks en, not de; those that do: ml6team/distilbert",
        ),
        (
            JudgeSettings(["sentiment"], sentiment=JudgeChoice("vader")), "nl",
            "VADER speaks en, not nl; those that do: nlptown/bert-base-multilingual",
        ),
        (
            JudgeSettings(["regard"], regard=JudgeChoice(hub="me/mine")), "en",
            r"say which languages me/mine speaks: judges.regard.languages=\[en\]",
        ),
        (JudgeSettings(["mood"]), "en", "judges.measures=mood: must be of sentiment, regard"),
        (
            JudgeSettings(["regard"], regard=JudgeChoice("vader")), "en",
            "judges.regard.tool=vader: must be one of auto, classifier",
        ),
        (
            JudgeSettings(["regard"], regard=JudgeChoice(path="/nowhere")), "en",
            "judges.regard.path=/nowhere: no such folder",
        ),
        (
            JudgeSettings(["regard"], regard=JudgeChoice(labels={"LABEL_0": "bad"})), "en",
            "judges.regard.labels.LABEL_0=bad: must be one of negative, neutral, positive, other",
        ),
        (
            JudgeSettings(["regard"], regard=JudgeChoice(hub="unitary/toxic-bert")), "en",
            "judges.regard.hub=unitary/toxic-bert: it judges toxicity",
        ),
    ],
)  # fmt: skip
def test_refused_before_anything_is_read(settings: JudgeSettings, language: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        plan(settings, [language])


def test_who_judges_by_default() -> None:
    """VADER for English words, a multilingual model elsewhere; Detoxify's model for English."""
    english = {each.measure: each.source for each in plan(JudgeSettings(), ["en"])}
    assert english == {
        "sentiment": "vaderSentiment",
        "regard": "sasha/regardv3",
        "toxicity": "unitary/toxic-bert",
    }
    dutch = plan(JudgeSettings(["sentiment", "toxicity"]), ["nl", "de"])
    assert [KNOWN[each.source].measure for each in dutch] == ["sentiment"] * 2 + ["toxicity"] * 2
    assert all(each.language in KNOWN[each.source].languages for each in dutch)


def test_a_judge_that_is_missing(classifier: Path, tmp_path: Path) -> None:
    """Offline, without its head, without safetensors, with labels of unknown meaning."""
    with pytest.raises(
        RequestError, match=r"HF_HUB_OFFLINE is set .* `hf download sasha/regardv3`"
    ):
        judge(small(), JudgeSettings(["regard"]))
    from transformers import BertForSequenceClassification, BertModel

    headless = tmp_path / "headless"
    model = BertForSequenceClassification.from_pretrained(classifier)
    model.bert.save_pretrained(headless)
    for file in classifier.glob("*token*"):
        (headless / file.name).write_bytes(file.read_bytes())
    assert isinstance(model.bert, BertModel)
    with pytest.raises(RequestError, match=r"lacks 2 weights \(classifier.bias"):
        judge(small(), JudgeSettings(["regard"], regard=by(headless)))
    (headless / "model.safetensors").rename(headless / "pytorch_model.bin")
    with pytest.raises(RequestError, match="has no safetensors weights"):
        judge(small(), JudgeSettings(["regard"], regard=by(headless)))
    with pytest.raises(
        RequestError, match="has the labels negative, neutral, positive, other; say"
    ):
        judge(small(), JudgeSettings(["toxicity"], toxicity=by(classifier)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"no config\.json, so not a model's folder"):
        judge(small(), JudgeSettings(["regard"], regard=by(tmp_path / "empty")))


def test_a_recipe_s_keys() -> None:
    """`judges.…` on the command line, typed and checked as every other key."""
    from mitigate import settings

    words = ["judges.regard.path=DIR", "judges.regard.languages=[de]", "judges.measures=[regard]"]
    recipe = settings.from_words(words, recipe="demo")
    assert recipe.judges == JudgeSettings(
        ["regard"], regard=JudgeChoice(path="DIR", languages=["de"])
    )
    with pytest.raises(RequestError, match=r"judges\.regard\.hubb.*did you mean"):
        settings.from_words(["judges.regard.hubb=x"], recipe="demo")
