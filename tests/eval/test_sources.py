"""Benchmarks come from files, from addresses with a hash, and from the hub; each way can fail."""

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from eval.benchmarks import BenchmarkSettings, load
from eval.benchmarks.sources import from_hub, kept_at
from eval.errors import RequestError
from tests.eval.test_benchmarks import recipe

CSV = "sent_more,sent_less,group\nZij komt.,Hij komt.,a\nZij leest.,Hij leest.,b\n"


class Server:
    """A web server on this machine; `files` are its contents, `asked` what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: set[str] = set()  # sent only in part
        self.asked: list[str] = []
        ours = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ours.asked.append(self.path)
                content = ours.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if self.path in ours.cut else content)

            def log_message(self, *words: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MITIGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    server.files["/pairs.csv"] = CSV.encode()
    yield server
    server.close()


def at(url: str, **changes: object) -> BenchmarkSettings:
    return BenchmarkSettings(name="mine", url=url, **changes)  # type: ignore[arg-type]


def refused(settings: BenchmarkSettings) -> str:
    with pytest.raises(RequestError) as caught:
        load(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_first_download_records_the_hash(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{server.url}/pairs.csv"
    pairs = load(at(url))
    assert pairs.table["sent_more"].tolist() == ["Zij komt.", "Zij leest."]
    assert caplog.messages == [f"downloading {url}"]
    assert pairs.source["url"] == url
    assert pairs.source["hash_known"] == "no: recorded now"
    assert pairs.source["file"] == "pairs.csv"
    record = kept_at(url).with_name("pairs.csv.sha256")
    assert record.read_text().strip() == hashlib.sha256(CSV.encode()).hexdigest()
    assert record.read_text().strip() == pairs.source["sha256"]
    # From then on it isn't asked for again, and is known.
    server.files.clear()
    assert load(at(url)).source["hash_known"] == "recorded"
    assert server.asked == ["/pairs.csv"]


def test_changed_content_is_refused(server: Server) -> None:
    url = f"{server.url}/pairs.csv"
    first = load(at(url))
    kept_at(url).unlink()
    server.files["/pairs.csv"] = CSV.replace("leest", "zwemt").encode()
    said = refused(at(url))
    assert first.source["sha256"] in said
    assert f"or delete {kept_at(url)}.sha256 to take it as it is now" in said
    assert not kept_at(url).exists()
    Path(f"{kept_at(url)}.sha256").unlink()
    assert load(at(url)).hash != first.hash


def test_a_file_damaged_in_the_cache_comes_again(server: Server) -> None:
    url = f"{server.url}/pairs.csv"
    first = load(at(url))
    kept_at(url).write_text(CSV + "Zij x.,Hij x.,c\n", encoding="utf-8")
    assert load(at(url)).hash == first.hash
    kept_at(url).write_text("damaged", encoding="utf-8")
    server.files["/pairs.csv"] = b"changed too"
    assert "not the file with sha256" in refused(at(url))
    assert kept_at(url).read_text(encoding="utf-8") == "damaged"


def test_a_stated_hash_must_be_met(server: Server) -> None:
    url = f"{server.url}/pairs.csv"
    right = hashlib.sha256(CSV.encode()).hexdigest()
    assert "which the recipe states; find out why" in refused(at(url, sha256="0" * 64))
    assert not kept_at(url).exists()
    assert load(at(url, sha256=right.upper())).source["hash_known"] == "stated"
    assert not Path(f"{kept_at(url)}.sha256").exists()
    # A file that is there already is checked as well.
    assert "not the file" in refused(at(url, sha256="0" * 64))


def test_what_can_go_wrong_on_the_way(server: Server) -> None:
    url = f"{server.url}/pairs.csv"
    ask = "; download it by hand and give it as benchmark.path=FILE (of several benchmarks, "
    said = refused(at(f"{server.url}/no.csv"))
    assert f"{server.url}/no.csv can't be downloaded: the server says 404 Not Found" in said
    assert ask in said
    server.cut.add("/pairs.csv")
    said = refused(at(url))
    assert f"{url} can't be downloaded: the connection broke off{ask}" in said
    assert [path.name for path in kept_at(url).parent.iterdir()] == ["pairs.csv.lock"]
    server.close()
    said = refused(at(url))
    assert f"{url} can't be downloaded: no connection{ask}" in said
    assert "an address begins with https://" in refused(at("ftp://127.0.0.1/pairs.csv"))


def test_offline_takes_what_is_kept_and_asks_for_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/pairs.csv"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert f"no file given, and HF_HUB_OFFLINE keeps {url} from coming" in refused(at(url))
    assert server.asked == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    load(at(url))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(load(at(url))) == 2
    kept_at(url).write_text("damaged", encoding="utf-8")
    assert "HF_HUB_OFFLINE keeps" in refused(at(url))


def test_a_file_that_is_given_needs_no_network(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(CSV, encoding="utf-8")
    pairs = load(at(f"{server.url}/pairs.csv", path=str(path)))
    assert server.asked == []
    assert pairs.source["file"] == "mine.csv"
    assert "url" not in pairs.source
    # A wrong path isn't answered with a download.
    said = refused(at(f"{server.url}/pairs.csv", path=str(tmp_path / "none.csv")))
    assert "no file " in said
    assert server.asked == []


def test_both_files_of_winoqueer_nl_come(server: Server) -> None:
    server.files["/final_sentence_pairs.csv"] = (
        b"sent_x,sent_y,Gender_ID_x,Gender_ID_y,nl_predicate_altered\n"
        b"Homo's fietsen.,Hetero's fietsen.,Homo,Hetero,fietsen\n"
    )
    server.files["/final_predicates.csv"] = (
        b"template,predicate,nl_predicate_altered,harmfulness_mean,tier\n1,cycle,fietsen,-0.5,2\n"
    )
    settings = recipe(
        "winoqueer_nl",
        url=f"{server.url}/final_sentence_pairs.csv",
        predicates_url=f"{server.url}/final_predicates.csv",
    )
    pairs = load(settings)
    assert pairs.table[["tier", "slice", "origin"]].values.tolist() == [
        [2, "not harmful", "translated"]
    ]
    assert pairs.source["predicates"]["url"] == settings.predicates_url
    del server.files["/final_predicates.csv"]
    kept_at(str(settings.predicates_url)).unlink()
    said = refused(settings)
    assert "404 Not Found" in said
    assert "benchmark.predicates_path=FILE" in said


@pytest.mark.parametrize("name", ["winoqueer", "winoqueer_nl", "crows_pairs", "crows_pairs_fr"])
def test_shipped_addresses_are_pinned(name: str) -> None:
    settings = recipe(name)
    for url in (settings.url, settings.predicates_url):
        if url:
            assert len(url.split("/")[5]) == 40, "a commit, not a branch"
    assert settings.path is None


# --- the hub ---------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the form of a dataset of the hub, with two splits."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    folder = tmp_path / "owner" / "pairs"
    folder.mkdir(parents=True)
    (folder / "test.csv").write_text(CSV, encoding="utf-8")
    (folder / "train.csv").write_text(CSV.replace("Zij", "Die"), encoding="utf-8")
    return folder


def from_folder(folder: Path, **changes: object) -> BenchmarkSettings:
    return BenchmarkSettings(name="mine", hub=str(folder), **changes)  # type: ignore[arg-type]


def test_a_dataset_of_the_hub_is_read(dataset: Path) -> None:
    pairs = load(from_folder(dataset, split="test"))
    assert pairs.table["sent_more"].tolist() == ["Zij komt.", "Zij leest."]
    assert pairs.source["hub"] == str(dataset)
    assert pairs.source["split"] == "test"
    assert pairs.source["rows_read"] == 2
    said = refused(from_folder(dataset))
    assert said.endswith("has several splits; say benchmark.split=train|test")
    said = refused(from_folder(dataset, split="tset"))
    assert said.endswith("no split tset; there are: train, test")
    (dataset / "train.csv").unlink()
    assert len(load(from_folder(dataset))) == 2


def test_numbers_of_classes_become_their_names(tmp_path: Path, dataset: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "sent_more": datasets.Value("string"),
            "sent_less": datasets.Value("string"),
            "stereo_antistereo": datasets.ClassLabel(names=["stereo", "antistereo"]),
            "bias_type": datasets.ClassLabel(names=["age", "gender"]),
        }
    )
    rows = {
        "sent_more": ["Zij komt.", "Zij leest."],
        "sent_less": ["Hij komt.", "Hij leest."],
        "stereo_antistereo": [1, 0],
        "bias_type": [1, -1],
    }
    folder = tmp_path / "crows"
    folder.mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "test.parquet")
    settings = recipe("crows_pairs", hub=str(folder), split="test")
    table = load(settings).table
    assert table["group"].tolist() == ["gender", ""]  # -1 is no class
    assert table["stereo_antistereo"].tolist() == ["antistereo", "stereo"]


def test_a_dataset_that_cannot_be_had(tmp_path: Path, dataset: Path) -> None:
    said = refused(BenchmarkSettings(name="mine", hub="nobody-here/no-such-pairs"))
    assert said.startswith("benchmark.hub=nobody-here/no-such-pairs: ")
    assert "give it as benchmark.path=FILE" in said
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "benchmark.hub=" in refused(from_folder(empty))
    (dataset / "test.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    assert "can't be read" in refused(from_folder(dataset, split="test"))


def test_the_revision_is_the_commit_that_the_files_came_from() -> None:
    from eval.benchmarks.sources import _commit

    assert _commit({"hf://datasets/a/b@1234abcd/test.csv": None}) == "1234abcd"
    assert _commit({"/tmp/a@b/test.csv": None}) == ""
    with pytest.raises(RequestError):
        from_hub("a/b/c/d", None, None, "give it")


def test_columns_that_a_score_table_has_are_kept_by_another_name(tmp_path: Path) -> None:
    path = tmp_path / "scored.csv"
    header = "sent_more,sent_less,score_more,shared_tokens,length_less,pair_id,note\n"
    path.write_text(f"{header}Zij,Hij,1,2,3,x,y\n", encoding="utf-8")
    table = load(BenchmarkSettings(name="mine", path=str(path))).table
    ours = {"score_more", "shared_tokens", "length_less"}
    assert ours.isdisjoint(table.columns)
    assert {f"{name}_in_file" for name in (*ours, "pair_id")} < set(table.columns)
    assert table["score_more_in_file"].tolist() == ["1"]
    assert isinstance(table["note"], pd.Series)
