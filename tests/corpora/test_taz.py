"""taz2024full in the form it is described in: years, keywords, field mapping, zips."""

import gzip
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from omegaconf import OmegaConf

from corpora import Corpus, CorpusSettings, RequestError, load, taz
from corpora.samples import taz_files

RECIPE = Path(__file__).parents[2] / "recipes" / "corpus" / "taz.yaml"


def article(body: str, date: str = "2021-03-08", keywords: Any = ("Queer",)) -> dict[str, Any]:
    text = {"headline": f"Titel {body}", "lead": None, "body": body}
    return {"publishing_date": date, "keywords": list(keywords), "text": text}


YEARS = {
    "taz_2018.json": {"1": article("Achtzehn", "31.12.2018")},
    "taz_2021.json": {
        "2": article("Eins"),
        "3": article("Zwei", keywords=["Fußball", "Trans-Frau"]),
        "4": article("Drei über queere Themen", keywords=["Fußball", "Transport"]),
        "5": article("Vier", keywords=[]),
        "6": article("Fünf", date="", keywords=["Queer"]),
    },
    "taz_2024.json": {"7": article("Sechs", "20240101", keywords=["LGBTQ"])},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, articles in YEARS.items():
        (tmp_path / name).write_text(json.dumps(articles), encoding="utf-8")
    return tmp_path


def settings(folder: Path, **more: Any) -> CorpusSettings:
    """The shipped recipe, on a folder, with changes."""
    recipe = OmegaConf.to_container(OmegaConf.load(RECIPE))
    assert isinstance(recipe, dict)
    short = {"min_words": 1, "near_duplicates": 0}  # the texts here are
    return CorpusSettings(**{**recipe, "path": str(folder), **short, **more})  # type: ignore[arg-type]


def bodies(corpus: Corpus) -> list[str]:
    return sorted(text.split("\n")[-1] for text in corpus.train + corpus.valid)


def test_the_recipe_takes_the_papers_years_and_keywords(folder: Path) -> None:
    corpus = load(settings(folder))
    assert bodies(corpus) == ["Eins", "Sechs", "Zwei"]
    assert corpus.facts["documents_read"] == 7
    assert corpus.facts["dropped"] == {
        "not of 2019-2024": 1,
        "without a keyword": 2,
        "without a date": 1,
    }
    assert corpus.facts["files"] == list(YEARS)
    assert "Titel Eins\nEins" in corpus.train + corpus.valid


@pytest.mark.parametrize(
    ("years", "found"),
    [
        ("", ["Achtzehn", "Eins", "Fünf", "Sechs", "Zwei"]),
        ("2022-", ["Sechs"]),
        ("-2021", ["Achtzehn", "Eins", "Zwei"]),
        ("2021", ["Eins", "Zwei"]),
    ],
)
def test_years(folder: Path, years: str, found: list[str]) -> None:
    if len(found) == 1:
        assert bodies(load(settings(folder, years=years, valid_share=0))) == found
    else:
        assert bodies(load(settings(folder, years=years))) == found


def test_without_keywords_every_article_counts(folder: Path) -> None:
    found = bodies(load(settings(folder, keywords=[])))
    assert found == ["Drei über queere Themen", "Eins", "Sechs", "Vier", "Zwei"]


def test_without_keyword_metadata_the_text_is_searched(folder: Path) -> None:
    mapping = {"keywords": None}
    wanted = ["queer*"]
    found = load(settings(folder, fields=mapping, keywords=wanted, valid_share=0))
    assert bodies(found) == ["Drei über queere Themen"]
    with pytest.raises(RequestError, match="5 without a keyword"):  # no whole word of 'queere'
        load(settings(folder, fields=mapping, keywords=["queer"]))


def test_zip_gzip_and_single_file_read_alike(folder: Path, tmp_path: Path) -> None:
    expected = bodies(load(settings(folder)))
    packed = tmp_path / "packed"
    packed.mkdir()
    with zipfile.ZipFile(packed / "taz.zip", "w") as archive:
        for name in YEARS:
            archive.write(folder / name, f"taz2024full/{name}")
        archive.writestr("__MACOSX/._taz_2018.json", "junk")
    assert bodies(load(settings(packed))) == expected
    assert bodies(load(settings(packed / "taz.zip"))) == expected
    zipped = tmp_path / "gzipped"
    zipped.mkdir()
    for name, articles in YEARS.items():
        (zipped / f"{name}.gz").write_bytes(gzip.compress(json.dumps(articles).encode()))
    assert bodies(load(settings(zipped))) == expected
    assert bodies(load(settings(folder / "taz_2021.json"))) == ["Eins", "Zwei"]


@pytest.mark.parametrize(
    ("ours", "nearest"),
    [("body", "text.body"), ("date", "publishing_date"), ("keywords", "keywords")],
)
def test_a_wrong_mapping_is_answered_with_the_fields_there_are(
    folder: Path, ours: str, nearest: str
) -> None:
    wrong = nearest + "s"
    with pytest.raises(RequestError, match=rf"corpus\.fields\.{ours}={wrong}: no such") as raised:
        load(settings(folder, fields={ours: wrong}))
    assert f"say corpus.fields.{ours}={nearest}" in str(raised.value)
    assert "text.headline" in str(raised.value)


def test_other_key_names_are_a_mapping_away(tmp_path: Path) -> None:
    rows = {
        str(number): {
            "meta": {"d": "2020-01-01", "kw": "queer, Berlin"},
            "t": {"b": [f"Abs {number}"]},
        }
        for number in range(3)
    }
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    mapping = {"headline": None, "lead": None, "body": "t.b", "date": "meta.d"}
    corpus = load(settings(tmp_path, fields={**mapping, "keywords": "meta.kw"}))
    assert bodies(corpus) == ["Abs 0", "Abs 1", "Abs 2"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"years": "19-20"}, r"corpus\.years=19-20: write 2019-2024"),
        ({"years": "2024-2019"}, r"corpus\.years=2024-2019: the first year comes first"),
        ({"fields": {"datum": "x"}}, r"corpus\.fields\.datum: taz has headline"),
        ({"fields": {"date": None}}, r"corpus\.years needs corpus\.fields\.date"),
        ({"keywords": ["Zitrone"]}, r"no usable text in .*without a keyword"),
        ({"path": "/nowhere"}, r"nothing at .*Zenodo.*`mitigate corpus taz .*samples_de"),
        ({"path": None}, r"no data given.*Zenodo.*corpus\.path="),
    ],
)
def test_bad_requests_get_one_line(folder: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as raised:
        load(settings(folder, **change))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"1": {"text": ', r"a\.json: not JSON, or not all of it"),
        (b'{"1": "text"}', r"a\.json: not of the form .*corpus=text"),
        (b"3", r"a\.json: neither a JSON object nor a list"),
        (b'{"1": {"a": nope}}', r"a\.json: not JSON, .*at byte 12\); corpus\.on_error=skip"),
        (b'{"1": {"a": "gr\xfcn"}}', r"a\.json: not utf-8 \(byte 15\); say corpus\.encoding="),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(RequestError, match=said):
        load(settings(tmp_path))


def test_a_folder_without_json_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    with pytest.raises(RequestError, match=r"no text in this folder; .*reader=taz takes \.json"):
        load(settings(tmp_path))


def test_one_broken_file_stops_or_is_passed(folder: Path) -> None:
    """Its place is said; the articles before it and the other files stay."""
    whole = json.dumps(YEARS["taz_2021.json"])
    at = whole.index('"4"') + 9
    (folder / "taz_2021.json").write_text(whole[:at], encoding="utf-8")
    with pytest.raises(RequestError, match=rf"taz_2021\.json: .* at byte {at - 3:,}\)"):
        load(settings(folder))
    with pytest.warns(UserWarning, match=r"taz_2021\.json: .* the rest of it is left out"):
        corpus = load(settings(folder, on_error="skip"))
    assert bodies(corpus) == ["Eins", "Sechs", "Zwei"]
    assert corpus.facts["dropped"]["unreadable: the rest of a file"] == 1


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_the_same_articles_in_other_files(folder: Path, tmp_path: Path, suffix: str) -> None:
    expected = sorted(load(settings(folder)).train)
    rows = [
        {"id": key, "text": article["text"], **{k: v for k, v in article.items() if k != "text"}}
        for articles in YEARS.values()
        for key, article in articles.items()
    ]
    out = tmp_path / "other"
    out.mkdir()
    file = out / f"taz{suffix}"
    flat = [
        {**{f"text.{k}": v or "" for k, v in row["text"].items()}, "id": row["id"],
         "publishing_date": row["publishing_date"], "keywords": ", ".join(row["keywords"])}
        for row in rows
    ]  # fmt: skip
    if suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    elif suffix == ".csv":
        pd.DataFrame(flat).to_csv(file, index=False)
    else:
        pd.DataFrame(flat).to_parquet(file)
    given = {"id": "id"}
    assert sorted(load(settings(out, fields=given)).train) == expected
    with pytest.raises(RequestError, match=r"corpus\.fields\.body=body: .*text\.body"):
        load(settings(out, fields={"body": "body"}))


def test_a_dataset_of_the_hub_or_a_folder_of_one(folder: Path, tmp_path: Path) -> None:
    expected = sorted(load(settings(folder)).train)
    rows = [article for articles in YEARS.values() for article in articles.values()]
    saved = tmp_path / "saved"
    datasets.DatasetDict({"all": datasets.Dataset.from_list(rows)}).save_to_disk(str(saved))
    given = {"path": None, "hub": str(saved)}
    assert sorted(load(settings(folder, **given, hub_split="all")).train) == expected
    with pytest.raises(RequestError, match=r"corpus\.hub_split=train: there are: all"):
        load(settings(folder, **given))
    with pytest.raises(RequestError, match=r"corpus\.hub=me/none: .*HF_HUB_OFFLINE"):
        load(settings(folder, path=None, hub="me/none"))
    with pytest.raises(RequestError, match=r"corpus\.hub=/no/where: no such folder"):
        load(settings(folder, path=None, hub="/no/where"))


def test_large_files_are_read_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times the articles take no more memory: a chunk and an article are held."""
    monkeypatch.setattr("corpora.json_stream.CHUNK", 2**16)
    peaks = []
    for count in (1_000, 4_000):
        folder = tmp_path / str(count)
        taz_files.write(folder, count)
        one = folder / "all.json"
        articles = dict(taz_files.articles(count))
        one.write_text(json.dumps(articles), encoding="utf-8")
        del articles
        tracemalloc.start()
        found = sum(1 for _ in taz.read(settings(one, years="")))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found == count
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < one.stat().st_size / 2
