"""The text reader: every kind of file, and one clear line for each thing that can be wrong."""

import json
from pathlib import Path

import pandas as pd
import pytest

from corpora import Corpus, CorpusSettings, RequestError, load

LINES = ["Lehrer:innen lesen.", "Grüße aus Köln", 'Een siësta; financiële zorgen, "ja"']


def settings(path: Path | None, **more: object) -> CorpusSettings:
    some = {"name": "text", "path": path and str(path), "min_words": 1, "near_duplicates": 0}
    return CorpusSettings(**{**some, **more})  # type: ignore[arg-type]


def texts(corpus: Corpus) -> list[str]:
    return sorted(corpus.train + corpus.valid)


def write(folder: Path, suffix: str, field: str = "text") -> Path:
    file = folder / f"data{suffix}"
    table = pd.DataFrame({"id": range(len(LINES)), field: LINES})
    if suffix == ".txt":
        file.write_text("\n".join(LINES) + "\n\n", encoding="utf-8")
    elif suffix == ".jsonl":
        rows = ({field: line} for line in LINES)
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    elif suffix == ".parquet":
        table.to_parquet(file)
    else:
        table.to_csv(file, sep="\t" if suffix == ".tsv" else ",", index=False)
    return file


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_kind_of_file_gives_the_same_documents(tmp_path: Path, suffix: str) -> None:
    corpus = load(settings(write(tmp_path, suffix)))
    assert texts(corpus) == sorted(LINES)
    assert corpus.facts["files"] == [f"data{suffix}"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_the_field_is_a_setting_and_a_wrong_one_is_answered(tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path, suffix, field="content")
    assert texts(load(settings(file, fields={"text": "content"}))) == sorted(LINES)
    with pytest.raises(RequestError, match=r"corpus\.fields\.text=contend: no such field") as said:
        load(settings(file, fields={"text": "contend"}))
    assert "corpus.fields.text=content" in str(said.value)


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.txt").write_text("Zwei\n", encoding="utf-8")
    (tmp_path / "a.csv").write_text("id;text\n1;Eins, ja\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("not a text of the corpus", encoding="utf-8")
    corpus = load(settings(tmp_path))
    assert texts(corpus) == ["Eins, ja", "Zwei"]
    assert corpus.facts["files"] == ["a.csv", "b.txt"]


def test_nested_json_and_lists_of_paragraphs(tmp_path: Path) -> None:
    file = tmp_path / "posts.jsonl"
    rows = [{"post": {"content": ["Eins", "Zwei"]}}, {"post": {"content": None}}]
    rows += [{"post": {"content": "Drei"}}]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    corpus = load(settings(file, fields={"text": "post.content"}))
    assert texts(corpus) == ["Drei", "Eins\nZwei"]
    assert corpus.facts["dropped"] == {"no text": 1}


def test_a_long_article_in_a_csv_is_whole(tmp_path: Path) -> None:
    article = "Wort " * 50_000
    pd.DataFrame({"text": [article, "kurz"]}).to_csv(tmp_path / "a.csv", index=False)
    assert article.strip() in texts(load(settings(tmp_path / "a.csv")))


def test_encodings_are_said_never_guessed(tmp_path: Path) -> None:
    file = tmp_path / "alt.txt"
    file.write_bytes("Grüße\nKöln\n".encode("mac_roman"))
    with pytest.raises(RequestError, match=r"alt\.txt: not utf-8 .* corpus\.encoding="):
        load(settings(file))
    assert texts(load(settings(file, encoding="mac_roman"))) == ["Grüße", "Köln"]
    with pytest.raises(RequestError, match=r"corpus\.encoding=latin-99: no such codec"):
        load(settings(file, encoding="latin-99"))
    file.write_bytes("\ufeffGrüße\nKöln\n".encode())
    assert texts(load(settings(file))) == ["Grüße", "Köln"]


def test_a_missing_path_says_where_data_comes_from_and_what_to_type(tmp_path: Path) -> None:
    said = r"corpus text: .*; Zenodo has it\. .*corpus\.path=.*`mitigate corpus text.*samples_nl"
    for path in (None, tmp_path / "nowhere"):
        with pytest.raises(RequestError, match=said):
            load(settings(path, source="Zenodo has it.", language="nl"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.docx", "x", r"a\.docx: can't read \.docx; .*\.parquet"),
        ("a.jsonl", '{"text": "gut"}\n{"text"', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", "[1]", r"a\.jsonl, line 1: not a JSON object"),
        ("a.parquet", "no", r"a\.parquet: not a Parquet file"),
        ("a.txt", "", r"no usable text in .*a\.txt \(0 documents read\)"),
        ("a.csv", "", r"no usable text in .*a\.csv"),
        ("a.txt", "\n \n!!!\n123\n", r"no usable text in .*2 documents read: 2 no text"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(RequestError, match=said) as raised:
        load(settings(tmp_path / name))
    assert "\n" not in str(raised.value)


def test_a_folder_without_text_says_what_it_could_hold(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no text in this folder; .*\.jsonl"):
        load(settings(tmp_path))
