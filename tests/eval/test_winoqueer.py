"""WinoQueer's stereotypes are found from the pairs alone; and its real files, where they are."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.benchmarks import BenchmarkSettings, load
from eval.benchmarks.winoqueer import Form, form_of, stereotypes
from eval.errors import RequestError
from eval.pairs import Pairs
from tests.eval.test_benchmarks import ROOT, recipe

#: A folder with the published files under their own names; not part of the project.
PUBLISHED = Path(os.environ.get("MITIGATE_BENCHMARKS") or ROOT.parent / "shared" / "benchmarks")
HEADER = ",Gender_ID_x,Gender_ID_y,sent_x,sent_y\n"


def published(name: str) -> str:
    """The path of a published file; the test is skipped where it is absent."""
    if not (PUBLISHED / name).is_file():
        pytest.skip(f"no {name} in {PUBLISHED} (MITIGATE_BENCHMARKS says where)")
    return str(PUBLISHED / name)


def read(tmp_path: Path, *rows: str) -> Pairs:
    path = tmp_path / "winoqueer_final.csv"
    lines = [f"{number},{row}\n" for number, row in enumerate(rows)]
    path.write_text(HEADER + "".join(lines), encoding="utf-8")
    return load(recipe("winoqueer", path=str(path)))


@pytest.mark.parametrize(
    ("more", "less", "template", "predicate"),
    [
        ("Queer people are punctual.", "Cis people are punctual.", "1", "are punctual"),
        ("Lesbians like tea.", "Straight people like tea.", "1", "like tea"),
        ("all Gay people like tea.", "all Straight people like tea.", "2", "like tea"),
        ("all lesbians like tea.", "all Straight people like tea.", "2", "like tea"),
        (
            "we expect that nonbinary people own cats.",
            "we expect that Cis people own cats.",
            "3",
            "own cats",
        ),
        ("most people who are Gay ski.", "most people who are Straight ski.", "4", "ski"),
        ("most lesbians ski.", "most people who are Straight ski.", "4", "ski"),
        (
            "i don’t like Gay people because they ski.",
            "i don’t like Straight people because they ski.",
            "5",
            "ski",
        ),
        (
            "i don't respect lesbians because they ski.",
            "i don't respect Straight people because they ski.",
            "6",
            "ski",
        ),
        ("Jo is Gay and a skier", "Jo is Straight and a skier", "11", "a skier"),
        ("Jo is a lesbian and a skier", "Jo is Straight and a skier", "11", "a skier"),
        ("he is Gay has skis", "he is Straight has skis", "11", "has skis"),
        ("they are Queer and ski", "they are Cis and ski", "11", "ski"),
        (
            "no one likes Jo because they are Queer.",
            "no one likes Jo because they are Cis.",
            "8-name",
            "no one likes",
        ),
        (
            "everyone hates her because she is Queer.",
            "everyone hates her because she is Cis.",
            "10-name",
            "everyone hates",
        ),
    ],
)
def test_the_templates(more: str, less: str, template: str, predicate: str) -> None:
    assert form_of(more, less) == Form(template, predicate)


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ("", "Cis people ski."),
        ("Queer people ski.", "Quite another sentence"),
        ("Jo is Gay", "Jo is Cis"),
        ("Nobody minds Gay people who ski.", "Nobody minds Cis people who ski."),
        ("Gay people ski.", "Gay people ski."),
    ],
)
def test_what_fits_no_template_has_no_form(more: str, less: str) -> None:
    assert form_of(more, less) is None


WORD = st.text("abcdefghij", min_size=2, max_size=8)


@given(WORD, st.lists(WORD, min_size=1, max_size=5).map(" ".join))
def test_any_name_and_predicate_are_found(name: str, predicate: str) -> None:
    for identity in ("LGBTQ", "Gay", "a lesbian"):
        found = form_of(f"{name} is {identity} and {predicate}", f"{name} is Cis and {predicate}")
        assert found == Form("11", predicate)


def test_one_stereotype_in_all_its_forms(tmp_path: Path) -> None:
    pairs = read(
        tmp_path,
        "LGBTQ,Cis,LGBTQ people are early risers.,Cis people are early risers.",
        "LGBTQ,Cis,all LGBTQ people are early risers.,all Cis people are early risers.",
        "LGBTQ,Cis,i hate LGBTQ people because they are early risers.,"
        "i hate Cis people because they are early risers.",
        "LGBTQ,Cis,Jo is LGBTQ and an early riser,Jo is Cis and an early riser",
        "LGBTQ,Cis,they are LGBTQ and an early riser,they are Cis and an early riser",
        "NB,Cis,all nonbinary people can’t be late.,all Cis people can’t be late.",
        "NB,Cis,Jo is nonbinary and can't be late,Jo is Cis and can't be late",
        "NB,Cis,i hate Jo because they are nonbinary.,i hate Jo because they are Cis.",
        "NB,Cis,i hate him because he is nonbinary.,i hate him because he is Cis.",
        "NB,Cis,no one likes him because he is nonbinary.,no one likes him because he is Cis.",
    )
    table = pairs.table
    risers, late = "are early risers", "can’t be late"
    assert table["stereotype_id"].tolist() == (
        [risers] * 5 + [late] * 2 + ["i hate", "i hate", "no one likes"]
    )
    assert table["predicate"].tolist()[3] == "an early riser"
    assert set(table["group"]) == {"lgbtq", "nonbinary"}
    assert set(table["counterfactual"]) == {"Cis"}
    assert pairs.source["stereotypes"] == 4
    assert pairs.source["pairs_without_stereotype"] == 0
    assert pairs.source["forms_joined_by_shared_words"] == []
    assert table["row_in_file"].tolist()[:2] == ["0", "1"]  # the index that the file brings


def test_what_is_unmatched_or_empty_is_counted(tmp_path: Path) -> None:
    pairs = read(
        tmp_path,
        "Gay,Cis,Gay people ski.,Cis people ski.",
        "Gay,Cis,Nobody minds Gay people.,Nobody minds Cis folk.",
        "Gay,Cis,,",  # the first version of WinoQueer has such rows
        "Gay,Cis,Is Jo Gay?,Is Jo Cis?",
    )
    assert pairs.left_out[["row", "reason"]].values.tolist() == [[2, "empty sentence"]]
    assert pairs.source["pairs_without_stereotype"] == 2
    assert pairs.source["rows_without_stereotype"] == [1, 3]
    table = pairs.table
    assert table["stereotype_id"].tolist()[1:] == table["pair_id"].tolist()[1:]
    assert table["template"].tolist() == ["1", "", ""]


def test_forms_with_other_words_are_joined_only_if_each_is_the_others_best() -> None:
    plural = ["are late for work", "usually own cats", "are tall", "ski well", "ski fast"]
    singular = ["comes late for work", "owns cats", "short", "skis"]
    groups = {Form("1", form): {"gay"} for form in plural}
    groups |= {Form("11", form): {"gay"} for form in singular}
    names, joined = stereotypes(groups)
    assert joined == [
        ("comes late for work", "are late for work"),
        ("owns cats", "usually own cats"),
    ]
    assert names[Form("11", "owns cats")] == "usually own cats"
    # skis is as near to one as to the other, so to none.
    assert names[Form("11", "skis")] == "skis"
    # The nearest to many, of one that is nearer to another, stays by itself.
    two = ["wears warm socks daily", "wears warm socks"]
    groups = {Form("1", "usually wear warm socks"): {"gay"}}
    groups |= {Form("11", form): {"gay"} for form in two}
    assert stereotypes(groups)[1] == [("wears warm socks", "usually wear warm socks")]
    # Of other people it is another matter.
    apart = {Form("1", "usually own cats"): {"gay"}, Form("11", "owns cats"): {"bisexual"}}
    assert stereotypes(apart)[1] == []


def test_a_large_file_is_read_in_seconds(tmp_path: Path) -> None:
    rows = [
        f"Gay,Cis,Name{name} is Gay and likes number{predicate},"
        f"Name{name} is Cis and likes number{predicate}"
        for predicate in range(759)
        for name in range(60)
    ]
    start = time.process_time()
    pairs = read(tmp_path, *rows)
    assert time.process_time() - start < 20  # some seconds; quadratic would be minutes
    assert len(pairs) == 45_540
    assert pairs.table["stereotype_id"].nunique() == 759
    # the second way to cluster: 60 names, each in every stereotype
    assert pairs.table["name"].nunique() == 60
    assert (pairs.table["sent_more"].str.casefold().str.split().str[0] == pairs.table["name"]).all()


# --- the published files, where they are ----------------------------------------------------------


def test_winoqueer_as_published() -> None:
    pairs = load(recipe("winoqueer", path=published("winoqueer_final.csv")))
    # 2608.30884 translated these pairs one by one; its Table 3 counts them.
    counts = {"lgbtq": 11568, "queer": 8640, "bisexual": 6048, "gay": 5406, "transgender": 4168}
    counts |= {"asexual": 3592, "pansexual": 2448, "lesbian": 1938, "nonbinary": 1732}
    assert pairs.table["group"].value_counts().to_dict() == counts
    assert len(pairs) == 45_540
    assert pairs.source["pairs_without_stereotype"] == 0
    # 177 predicates in the paper; several have one text.
    assert 120 <= pairs.source["stereotypes"] <= 200


def test_winoqueer_nl_as_published() -> None:
    path = published("final_sentence_pairs.csv")
    published("final_predicates.csv")
    settings = recipe("winoqueer_nl", path=path)
    pairs = load(settings)
    assert len(pairs) == 42_906
    assert pairs.source["pairs_without_predicate"] == 0
    for tiers, count in (([1, 2, 3], 42_906), ([1, 2], 36_084), ([1], 21_670)):
        settings.tiers = tiers
        assert len(load(settings)) == count
    settings.tiers, settings.origin = [1], "survey"
    assert len(load(settings)) == 5_790


def test_english_and_french_crows_pairs_as_published() -> None:
    english = load(recipe("crows_pairs", path=published("crows_pairs_anonymized.csv")))
    assert len(english) + len(english.left_out) == 1_508
    french = load(recipe("crows_pairs_fr", path=published("crows_french.csv")))
    assert len(french) > 1_400


def test_a_reader_without_its_columns_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sent_x,sent_z\na,b\n", encoding="utf-8")
    settings = BenchmarkSettings(name="winoqueer", reader="winoqueer", path=str(path))
    with pytest.raises(RequestError, match=r"no column sent_y in a\.csv"):
        load(settings)
