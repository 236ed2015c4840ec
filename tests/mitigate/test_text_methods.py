"""Mitigations on the side of the text: placebo, filters, mixing, one group, another language."""

import json
from pathlib import Path
from typing import Any

import pytest

import corpora
from corpora import RequestError, filtering, keywords, normal
from corpora.samples import taz_files
from mitigate import settings, train

TINY = [
    *("method.max_steps=3", "method.eval_steps=3", "method.save_steps=3", "method.batch=4"),
    *("method.accumulation=1", "method.block=32", "benchmark.limit=40", "retention.sentences=4"),
    *("retention.grammar=false", "retention.places=2"),
    *("inference.resamples=200", "tracking.mode=disabled"),
]
OFFLINE = {
    "cda": ["corpus=control_de", "corpus.sentences=400", "benchmark=samples_de"],
    "taz_control": ["corpus.near_duplicates=0", "benchmark=samples_de", "method=full"],
    "replay": [
        *("corpus=[samples_de,general_de]", "corpus.general_de.weight=0.5", "method=full"),
        *("corpus.samples_de.sentences=300", "corpus.general_de.sentences=300"),
        "benchmark=samples_de",
    ],
    "targeted": ["corpus.sentences=1500"],
    "filtered": ["corpus.sentences=600"],
    "cross_lingual": [
        *("corpus=samples_de", "corpus.sentences=300"),
        *("benchmark=[samples_nl,samples_de]", "method=full"),
    ],
}


def corpus_settings(recipe: str, *words: str) -> dict[str, corpora.CorpusSettings]:
    return settings.from_words(list(words), recipe=recipe).corpus


def load(recipe: str, *words: str) -> corpora.Corpus:
    return corpora.combine([corpora.load(one) for one in corpus_settings(recipe, *words).values()])


@pytest.fixture(scope="module")
def taz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taz")
    taz_files.write(folder, 1200, share=0.15)
    return folder


@pytest.fixture(scope="module")
def treated(taz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `mitigate corpus taz` would build."""
    out = tmp_path_factory.mktemp("built") / "queer"
    given = corpus_settings("taz_lora", f"corpus.path={taz}", "corpus.near_duplicates=0")["taz"]
    corpora.build(given, out, private=out.parent / "private")
    return out


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


#: One of them in every run of the tests; the others take as long each.
RUN = [
    name if name == "taz_control" else pytest.param(name, marks=pytest.mark.long)
    for name in sorted(OFFLINE)
]


@pytest.mark.parametrize("recipe", RUN)
def test_recipes_run_offline(recipe: str, tiny_masked: Path, taz: Path, tmp_path: Path) -> None:
    """The whole job, in this process: the command itself is run elsewhere (test_cda)."""
    words = [f"recipe={recipe}", f"model.path={tiny_masked}", *OFFLINE[recipe], *TINY]
    if recipe == "taz_control":
        words.append(f"corpus.path={taz}")
    train.main([*words, f"run.dir={tmp_path / 'run'}"])
    found = facts(tmp_path / "run")
    assert found["status"] == "finished"
    assert found["training"]["steps"] == 3
    if recipe == "taz_control":
        assert found["placebo"]
        assert found["corpus"]["control"]
        assert found["corpus"]["identities"] == {}
    if recipe == "filtered":
        said = found["corpus"]["evaluated_stereotypes_filtered"]["samples_de by control_de"]
        listed, evaluated = map(int, said.split(" of "))
        assert 0 < listed < evaluated == found["benchmarks"]["samples_de"]["clusters"]


def test_the_placebo_has_no_keyword_no_identity_and_as_many_words(taz: Path, treated: Path) -> None:
    words = (f"corpus.path={taz}", f"corpus.match={treated}", "corpus.near_duplicates=0")
    placebo = load("taz_control", *words)
    with_keyword = corpora.load(
        corpus_settings("taz_lora", f"corpus.path={taz}", "corpus.near_duplicates=0")["taz"]
    )
    names = keywords.identities(("de",))
    texts = [*placebo.train, *placebo.valid]
    assert texts
    assert not any(names.find(text) for text in texts)
    assert not set(texts) & {*with_keyword.train, *with_keyword.valid}
    theirs = json.loads((treated / "manifest.json").read_text("utf-8"))["words"]
    longest = max(len(text.split()) for text in texts)
    assert placebo.facts["tokens"] == theirs
    assert placebo.facts["words"] <= theirs
    assert (
        placebo.facts["words"] > theirs - 2 * longest
        or placebo.facts["dropped"].get("beyond the budget", 0) == 0
    )
    assert all("2019" <= month < "2025" for month in placebo.facts["months"])
    dropped = placebo.facts["dropped"]
    assert dropped["with a keyword"] > 50
    assert dropped["names an identity"] > 0


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("corpus.years=2017-2018", r"its years are 2019-2024, here 2017-2018.*=2019-2024"),
        ("corpus.tokens=5", r"corpus\.tokens=5: corpus\.match has \d+ words"),
    ],
)
def test_a_placebo_of_other_years_or_size_is_refused(
    word: str, problem: str, taz: Path, treated: Path
) -> None:
    with pytest.raises(RequestError, match=problem):
        load("taz_control", f"corpus.path={taz}", f"corpus.match={treated}", word)


def test_a_match_that_was_not_built_is_refused(taz: Path) -> None:
    with pytest.raises(RequestError, match="not a corpus that"):
        load("taz_control", f"corpus.path={taz}", f"corpus.match={taz}")


def brute_force(text: str, predicates: list[str]) -> bool:
    """Whether some sentence of a text has a listed word and an identity, by the definition."""
    names = keywords.identities(("de",))
    return any(
        set(normal.words(text[start:end])) & set(predicates) and names.find(text[start:end])
        for start, end in normal.sentences(text)
    )


def test_sentences_with_a_listed_stereotype_and_an_identity_go() -> None:
    listed = (Path(filtering.__file__).parent / "stereotypes" / "samples_de.txt").read_text("utf-8")
    predicates = [line for line in listed.splitlines() if not line.startswith("#")]
    words = ("corpus.sentences=3000",)
    whole = load("filtered", *words, "corpus.stereotypes=null")
    kept = load("filtered", *words)
    everything = {*whole.train, *whole.valid}
    left = {*kept.train, *kept.valid}
    assert left == {text for text in everything if not brute_force(text, predicates)}
    assert len(everything) - len(left) > 200
    step = next(one for one in kept.facts["steps"] if one["name"] == "stereotypes")
    assert step["changed"]["sentences cut"] >= len(everything) - len(left)
    assert kept.facts["stereotypes"]["forms"] == len(predicates)
    assert whole.facts["stereotypes"] is None


def test_the_rest_of_a_document_stays(tmp_path: Path) -> None:
    listed = tmp_path / "predicates.csv"
    listed.write_text(
        "stereotype,plural,singular,yes\n"
        "cat,reden nur von Katzen,redet nur von {possessive} Katze,5\nlate,–,kommt zu spät,\n",
        encoding="utf-8",
    )
    text = tmp_path / "text.txt"
    lines = [
        "Bo ist schwul und redet nur von seiner Katze. Die Schüler*innen lachen gern darüber.",
        "Kim redet nur von ihrer Katze, der Tee ist warm.",
        "Wer lesbisch ist, kommt zu spät!",
        "Wer lesbisch ist, kommt nie zu spät!",
        "Hier stehen fünf Wörter mehr.",
    ]
    text.write_text("\n".join(lines), encoding="utf-8")
    settings = corpora.CorpusSettings(
        name="text", path=str(text), fields={"text": "text"}, language="de", valid_share=0,
        stereotypes=str(tmp_path), near_duplicates=0,
    )  # fmt: skip
    found = corpora.load(settings)
    assert found.train == ["Die Schüler*innen lachen gern darüber.", lines[1], *lines[3:]]
    assert found.facts["dropped"] == {"little else than stereotypes": 1}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("nowhere.txt", r"no such file; ours are pkg:corpora/stereotypes/samples_de\.txt"),
        ("empty.txt", "holds no predicate"),
        ("odd.json", r"a \.txt with a predicate a line"),
    ],
)
def test_a_wrong_list_gets_one_line(said: str, problem: str, tmp_path: Path) -> None:
    for name in ("empty.txt", "odd.json"):
        (tmp_path / name).write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(RequestError, match=problem):
        load("filtered", "corpus.sentences=300", f"corpus.stereotypes={tmp_path / said}")


def test_the_evaluated_benchmarks_own_list_is_refused() -> None:
    given = corpus_settings("filtered")["control_de"]
    pairs = [("Kim ist schwul, also launisch.", "a"), ("Kim ist schwul, also laut.", "b")]
    assert filtering.evaluated(given, pairs) == (1, 2)
    with pytest.raises(RequestError, match="holds every stereotype that is evaluated"):
        filtering.evaluated(given, pairs[:1])


def test_replay_mixes_general_text_by_weight() -> None:
    words = ["corpus=[samples_de,general_de]", "corpus.samples_de.sentences=600"]
    words.append("corpus.general_de.sentences=2000")
    names = keywords.identities(("de",))
    counts = {}
    for weight in ("0.5", "1", "2"):
        found = load("replay", *words, f"corpus.general_de.weight={weight}")
        counts[weight] = sum(not names.find(text) for text in found.train)
        assert found.facts["weights"]["general_de"] == float(weight)
    alone = load("replay", "corpus=samples_de", "corpus.samples_de.sentences=600")
    own = sum(not names.find(text) for text in alone.train)
    general = counts["1"] - own
    assert general > 200
    assert counts["2"] - own == pytest.approx(2 * general, rel=0.05)
    assert counts["0.5"] - own == pytest.approx(general / 2, rel=0.2)


def test_targeted_text_names_the_one_identity() -> None:
    found = load("targeted", "corpus.sentences=4000")
    names = keywords.identities(("de",))
    assert found.train
    assert all("transgender" in names.find(text) for text in [*found.train, *found.valid])
