"""What is the same for every source: duplicates, split, limit, combining, building, facts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import corpora
from corpora import Corpus, CorpusSettings, RequestError, build, combine, load

RECIPES = Path(__file__).parents[2] / "recipes" / "corpus"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"Zeile Nummer {n} hier\n" for n in range(400)), encoding="utf-8")
    return path


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return tmp_path / "private"


def settings(path: Path, **more: Any) -> CorpusSettings:
    some = {"name": "lines", "path": str(path), "min_words": 1, "near_duplicates": 0}
    return CorpusSettings(**{**some, **more})


def test_duplicates_go_before_the_split(tmp_path: Path) -> None:
    lines = [f"Zeile {n} da" for n in range(100)]
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*lines, *(f"  {line} \u200b" for line in lines)]), encoding="utf-8")
    corpus = load(settings(path))
    assert sorted(corpus.train + corpus.valid) == sorted(lines)
    assert not set(corpus.train) & set(corpus.valid)
    assert corpus.facts["dropped"] == {"duplicate": 100}


def test_the_split_is_by_document_and_seed_whatever_else_is_there(file: Path) -> None:
    corpus = load(settings(file))
    assert 20 <= len(corpus.valid) <= 60  # 40 expected, 6 the standard deviation
    lines = file.read_text(encoding="utf-8").split("\n")
    file.write_text("\n".join(["Neu dabei", *reversed(lines)]), encoding="utf-8")
    again = load(settings(file))
    assert set(again.valid) - {"Neu dabei"} == set(corpus.valid)
    other = load(settings(file, seed=1))
    assert set(other.valid) != set(corpus.valid)


def test_a_small_corpus_has_both_parts(tmp_path: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("Eins\nZwei\n", encoding="utf-8")
    for seed in range(20):
        for share in (0.01, 0.99):
            corpus = load(settings(path, seed=seed, valid_share=share))
            assert len(corpus.train) == len(corpus.valid) == 1
    path.write_text("Eins\n", encoding="utf-8")
    assert load(settings(path, valid_share=0)).train == ["Eins"]
    with pytest.raises(RequestError, match=r"one single document .* corpus\.valid_share=0"):
        load(settings(path))


def test_a_limit_is_a_seeded_sample_and_a_smaller_one_a_subset(file: Path) -> None:
    whole, hundred, fifty = (load(settings(file, limit=n)) for n in (None, 100, 50))
    assert len(hundred) == 100
    assert len(fifty) == 50
    assert set(fifty.train) < set(hundred.train) < set(whole.train)
    assert set(fifty.valid) < set(hundred.valid) < set(whole.valid)
    assert hundred.train != whole.train[: len(hundred.train)]
    assert len(load(settings(file, limit=2)).valid) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"limit": 1}, r"corpus\.limit=1: 2 documents at least"),
        ({"valid_share": 1.0}, r"corpus\.valid_share=1\.0"),
        ({"valid_share": -0.1}, r"corpus\.valid_share=-0\.1"),
        ({"weight": 0.0}, r"corpus\.weight=0\.0"),
        ({"reader": "tazz"}, r"corpus\.reader=tazz: no file corpora/tazz\.py .* there is: taz"),
        ({"reader": "clean"}, r"corpus\.reader=clean: no file corpora/clean\.py with read"),
        ({"reader": "samples.worlds"}, r"there is: samples\.reader"),
    ],
)
def test_bad_settings_get_one_line(file: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        load(settings(file, **change))


def test_facts_count_what_is_there_and_survive_json(file: Path) -> None:
    corpus = load(settings(file, licence="cc0-1.0"))
    texts = corpus.train + corpus.valid
    facts = corpus.facts
    assert facts["documents_kept"] == len(texts) == 400
    assert facts["words"] == 4 * 400
    assert facts["characters"] == sum(map(len, texts))
    assert facts["licence"] == "cc0-1.0"
    assert json.loads(json.dumps(facts)) == facts
    assert load(settings(file)).facts["sha256"] == facts["sha256"]
    file.write_text(file.read_text(encoding="utf-8") + "Noch eine\n", encoding="utf-8")
    assert load(settings(file)).facts["sha256"] != facts["sha256"]


def test_the_hash_says_which_part_a_text_is_in() -> None:
    assert corpora.texts_hash(["a", "b"], ["c"]) == corpora.texts_hash(["b", "a"], ["c"])
    assert corpora.texts_hash(["a", "b"], ["c"]) != corpora.texts_hash(["a"], ["b", "c"])


def test_what_one_corpus_holds_out_no_other_trains_on() -> None:
    one = Corpus("one", ["a", "b", "shared"], ["v"], {})
    two = Corpus("two", ["c", "v", "shared"], ["w"], {})
    both = combine([one, two])
    assert both.name == "one+two"
    assert both.train == ["a", "b", "shared", "c"]
    assert both.valid == ["v", "w"]
    assert both.facts["dropped"] == {"in two corpora": 2}
    assert combine([one]) is one
    with pytest.raises(RequestError, match="no text left"):
        combine([Corpus("one", ["a"], [], {}), Corpus("two", [], ["a"], {})])


def test_weights_repeat_training_texts_only() -> None:
    many = [f"text {n}" for n in range(1000)]
    both = combine([Corpus("one", many, ["v"], {}, weight=2.5), Corpus("two", ["x"], ["w"], {})])
    counts = [both.train.count(text) for text in many[:200]]
    assert set(counts) == {2, 3}
    assert 2300 < len(both.train) - 1 < 2700
    assert both.valid == ["v", "w"]
    half = combine([Corpus("one", many, [], {}, weight=0.5), Corpus("two", ["x"], [], {})])
    assert 400 < len(half.train) - 1 < 600


def test_a_built_folder_gives_the_same_corpus_whoever_reads_it(
    file: Path, tmp_path: Path, private: Path
) -> None:
    out = tmp_path / "new" / "built"
    asked = settings(file, seed=3, valid_share=0.2, licence="cc0-1.0")
    facts = build(asked, out, private=private)
    before = load(asked)
    for reader in ("text", "taz"):  # a recipe may be of another reader than the folder's
        after = load(CorpusSettings(name="built", reader=reader, path=str(out)))
        assert after.train == before.train
        assert after.valid == before.valid
        assert after.facts["sha256"] == facts["sha256"]
        assert after.facts["built_from"] == facts
        assert len(after.facts["datasheet_sha256"]) == 64
    limited = load(CorpusSettings(name="built", path=str(out), limit=50))
    assert set(limited.valid) < set(before.valid)
    assert len(limited) == 50


def test_build_takes_an_empty_folder_and_no_other(
    file: Path, tmp_path: Path, private: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    build(settings(file), out, private=private)
    before = (out / "manifest.json").read_bytes()
    with pytest.raises(RequestError, match=r"out=.*: is there already"):
        build(settings(file, seed=5), out, private=private)
    assert (out / "manifest.json").read_bytes() == before
    with pytest.raises(RequestError, match="is there already"):
        build(settings(file), file, private=private)
    with pytest.raises(RequestError, match="a corpus that was built already"):
        build(settings(out), tmp_path / "again", private=private)


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_have_their_header_and_fit_the_settings(recipe: Path) -> None:
    said = recipe.read_text(encoding="utf-8")
    # Hydra reads the header in the first line only; the comment with the launch line follows.
    assert said.startswith(f"# @package corpus.{recipe.stem}\n# ")
    values = yaml.safe_load(said)
    assert values["name"] == recipe.stem
    values.pop("defaults", None)  # Hydra's own
    OmegaConf.merge(OmegaConf.structured(CorpusSettings), values)  # unknown keys, wrong types


def test_the_embedded_corpora_need_nothing() -> None:
    for name in ("samples_de", "control_nl"):
        values = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
        few = {**values, "sentences": 600}
        corpus = load(CorpusSettings(**few))
        assert len(corpus) > 500
        assert load(CorpusSettings(**few)).facts == corpus.facts
        assert load(CorpusSettings(**{**few, "seed": 1})).train != corpus.train


@pytest.mark.parametrize("name", ["taz", "text"])
def test_the_others_say_where_their_data_comes_from(name: str) -> None:
    values = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    with pytest.raises(RequestError, match=rf"^corpus {name}: .*corpus\.path=.*mitigate corpus"):
        load(CorpusSettings(**values))
