"""Facts of any Pair table, and the datasheet made of them; no sentence may show in either."""

import json
from pathlib import Path

import pandas as pd
import pytest

from eval.benchmarks import BenchmarkSettings, load
from eval.datasheet import datasheet, write
from eval.describe import LONGEST_LABEL, as_dict, describe, difference, tables
from eval.errors import RequestError
from eval.pairs import Pairs, build
from mitigate.sample_models import masked_tokenizer

EXAMPLE = "pkg:eval/benchmarks/components/example"


def made(**changes: list) -> Pairs:
    """Five pairs of three stereotypes; one pair names two groups, one has two spans."""
    rows = {
        "sent_more": [
            "Anna is lesbisch en zingt vals.",
            "Anna is lesbisch en fietst.",
            "Kim is homo en zingt  vals.",
            "Kim is queer en breit veel sokken.",
            "Robin is queer en breit..",
        ],
        "sent_less": [
            "Anna is hetero en zingt vals.",
            "Anna is hetero en fietst.",
            "Kim is hetero en zingt vals.",
            "Kim is cis en breit weinig sokken.",
            "Robin is hetero en breit..",
        ],
        "group": ["lesbian", "lesbian", "gay|queer", "queer", "queer"],
        "counterfactual": ["hetero", "hetero", "hetero", "cis", "hetero"],
        "stereotype_id": ["zingen", "fietsen", "zingen", "breien", "breien"],
        "template": ["11", "11", "2", "2", "2"],
        "tier": [1, 2, 1, pd.NA, pd.NA],
        "harm_mean": [2.0, -1.0, 2.0, None, None],
        "origin": ["translated", "translated", "translated", "survey", "survey"],
    }
    frame = pd.DataFrame({**rows, **changes})
    frame["tier"] = frame["tier"].astype("Int64")
    left_out = pd.DataFrame(
        {
            "row": [7, 8, 9],
            "reason": ["empty", "too old", "empty"],
            "sent_more": "",
            "sent_less": "",
        }
    )
    return build(frame, name="mine", language="nl", left_out=left_out)


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return made()


def records(frame: pd.DataFrame) -> list[list]:
    return frame.astype(object).to_numpy().tolist()


def test_what_is_counted_once(pairs: Pairs) -> None:
    facts = describe(pairs).facts
    assert facts == {
        "pairs": 5,
        "stereotypes (clusters)": 3,
        "stereotypes with one pair": 1,
        "stereotypes in several groups": 1,
        "pairs of a stereotype, median": 2.0,
        "rows left out": 3,
        "distinct sentences": 10,
        "times the median sentence stands there": 1.0,
        "times the most frequent sentence stands there": 1,
        "pairs that stand there more than once": 0,
        "pairs with doubled blanks": 1,
        "pairs with doubled stops": 1,
        "stereotypes with a harm rating": 2,
        "stereotypes with harm of 0 or less": 1,
    }


def test_groups_count_a_pair_in_each_that_it_names(pairs: Pairs) -> None:
    found = describe(pairs).groups.set_index("group")
    assert found["pairs"].to_dict() == {"queer": 3, "lesbian": 2, "gay": 1}
    assert list(found.index) == ["queer", "lesbian", "gay"]
    assert found["share"].to_dict() == {"queer": 60.0, "lesbian": 40.0, "gay": 20.0}
    assert found["stereotypes"].to_dict() == {"queer": 2, "lesbian": 2, "gay": 1}
    assert found["tier 1"].to_dict() == {"queer": 1, "lesbian": 1, "gay": 1}
    assert found["tier 2"].to_dict() == {"queer": 0, "lesbian": 1, "gay": 0}
    harm = found[["harm mean", "harm min", "harm max"]].loc["lesbian"].tolist()
    assert harm == [0.5, -1.0, 2.0]
    assert found.loc["queer", "harm mean"] == 2.0  # the unrated one isn't counted


def test_harm_is_a_mean_of_stereotypes_not_of_pairs() -> None:
    pairs = made(
        group=["queer"] * 5,
        stereotype_id=["a", "a", "a", "a", "b"],
        harm_mean=[1.0, 1.0, 1.0, 1.0, 3.0],
    )
    assert describe(pairs).groups["harm mean"].tolist() == [2.0]


def test_tiers_origins_templates_counterfactuals_and_what_was_left_out(pairs: Pairs) -> None:
    found = describe(pairs)
    assert records(found.tiers) == [["1", 2, 40.0, 1], ["2", 1, 20.0, 1], ["none", 2, 40.0, 1]]
    assert records(found.origins) == [["survey", 2, 40.0, 1], ["translated", 3, 60.0, 2]]
    assert records(found.templates) == [["2", 3, 60.0, 2], ["11", 2, 40.0, 2]]
    assert found.counterfactuals.set_index("counterfactual")["pairs"].to_dict() == {
        "cis": 1,
        "hetero": 4,
    }
    assert found.left_out.set_index("reason")["rows"].to_dict() == {"empty": 2, "too old": 1}


def test_lengths_in_words_and_tokens(pairs: Pairs) -> None:
    words = describe(pairs).lengths
    assert records(words) == [["words", "sent_more", 5, 6.0, 7], ["words", "sent_less", 5, 6.0, 7]]
    tokenizer = masked_tokenizer(list(pairs.table["sent_more"]))
    both = describe(pairs, tokenizer).lengths.set_index(["unit", "side"])
    lengths = [len(tokenizer.tokenize(one)) for one in pairs.table["sent_less"]]
    assert both.loc[("tokens", "sent_less"), "max"] == max(lengths)
    assert both.loc[("tokens", "sent_less"), "median"] == sorted(lengths)[2]
    assert list(both.index.get_level_values("unit")) == ["words", "words", "tokens", "tokens"]


def test_repeated_sentences() -> None:
    pairs = made(sent_less=["Dezelfde zin."] * 4 + ["Een andere."])
    facts = describe(pairs).facts
    assert facts["distinct sentences"] == 7
    assert facts["times the most frequent sentence stands there"] == 4
    assert facts["times the median sentence stands there"] == 1.0


@pytest.mark.parametrize(
    ("more", "less", "kind"),
    [
        ("Jo is trans en zingt.", "Jo is cis en zingt.", "one span"),
        ("Lesbische vrouwen zingen.", "Hetero's zingen.", "one span"),
        ("Alle trans mensen zingen.", "Alle mensen zingen.", "one span"),
        ("Jo is trans en zingt vals.", "Jo is cis en zingt mooi.", "several spans"),
        ("Zingen doet Jo.", "Fietsen kan Kim!", "no word in common"),
        ("Jo zingt", "zingt Jo vals", "several spans"),
        ("zingt Jo vals", "zingt Jo", "one span"),
        ("Kim zingt", "Vaak zingt Kim zingt", "one span"),
        ("Jo is Trans.", "Jo is  trans.", "only case or blanks"),
    ],
)
def test_how_two_sentences_differ(more: str, less: str, kind: str) -> None:
    assert difference(more, less) == kind
    assert difference(less, more) == kind


def test_differences_are_shares_of_the_pairs(pairs: Pairs) -> None:
    assert records(describe(pairs).differences) == [
        ["one span", 4, 80.0],
        ["several spans", 1, 20.0],
    ]


def test_stereotypes_shared_by_groups(pairs: Pairs) -> None:
    shared = describe(pairs).shared.set_index("group")
    assert shared.loc["lesbian", "gay"] == shared.loc["gay", "lesbian"] == 1
    assert shared.loc["queer", "queer"] == 2
    assert describe(made(group=["a", "a", "a", "b", "b"])).shared.empty


def test_overlap_with_another_benchmark(pairs: Pairs) -> None:
    other = made(
        sent_more=["Kim is homo en zingt vals.", *(f"Heel anders {n}." for n in range(4))],
        sent_less=["Kim is hetero en zingt vals.", *(f"Ook anders {n}." for n in range(4))],
        stereotype_id=["zingen", "x", "y", "z", ""],
    )
    found = describe(pairs, other=other)
    assert records(found.other) == [
        ["distinct sentences", 2, 20.0, 20.0],  # runs of blanks are as one
        ["distinct pairs", 1, 20.0, 20.0],
        ["stereotypes, by name", 1, pytest.approx(100 / 3), 25.0],  # "" is no name
    ]
    same = describe(pairs, other=pairs).other
    assert (same["of this"] == 100).all()


def test_a_table_without_anything_optional() -> None:
    plain = build(
        pd.DataFrame({"sent_more": ["Een zin.", "Twee."], "sent_less": ["Geen zin.", "Drie."]}),
        name="plain",
        language="",
    )
    found = describe(plain)
    titles = [title for title, _ in tables(found)]
    assert titles == [
        "plain (no language said)",
        "Lengths",
        "How the two sentences of a pair differ",
    ]
    assert found.facts["stereotypes with one pair"] == 2
    assert json.loads(json.dumps(as_dict(found)))["groups"] == []


def test_no_sentence_and_no_stereotype_is_said() -> None:
    secret = "Een hele zin die niemand hoort te zien."
    pairs = made(template=[secret, secret, "2", "2", "2"], counterfactual=[secret] * 5)
    assert len(secret) > LONGEST_LABEL
    found = describe(pairs, other=pairs)
    said = [json.dumps(as_dict(found), ensure_ascii=False), datasheet(pairs)]
    said += [title + frame.to_string() for title, frame in tables(found)]
    hidden = [secret, *pairs.table["stereotype_id"]]
    hidden += [*pairs.table["sent_more"], *pairs.table["sent_less"]]
    for text in said:
        assert not [one for one in hidden if one in text]
    assert "template no. 2" in said[0]


def test_many_templates_end_in_one_row() -> None:
    count = 100
    rows = {
        "sent_more": [f"Zin {n}." for n in range(count)],
        "sent_less": [f"Geen {n}." for n in range(count)],
        "template": [str(n) for n in range(count)],
    }
    found = describe(build(pd.DataFrame(rows), name="many", language="nl"))
    assert len(found.templates) == count
    shown = dict(tables(found))["Templates"]
    assert len(shown) == 30
    assert shown.iloc[-1].tolist()[:3] == ["71 others", 71, pytest.approx(71)]


def test_json_has_whole_numbers_and_no_nan(pairs: Pairs) -> None:
    unrated = made(harm_mean=[2.0, 2.0, 2.0, None, None], group=["a", "a", "a", "b", "b"])
    text = json.dumps(as_dict(describe(unrated)), allow_nan=False)
    said = json.loads(text)
    assert {row["group"]: row["harm mean"] for row in said["groups"]} == {"a": 2.0, "b": None}
    assert said["facts"]["pairs"] == 5
    assert [type(value) for value in dict(tables(describe(pairs)))["mine (nl)"]["how many"]][
        :2
    ] == [
        int,
        int,
    ]


def test_a_datasheet_says_what_is_known_and_asks_the_rest() -> None:
    pairs = load(BenchmarkSettings(name="mine", reader="components", path=EXAMPLE, licence="CC0"))
    sheet = datasheet(pairs)
    for section in ("Motivation", "Composition", "Collection", "Preparation", "Uses"):
        assert f"\n## {section}\n" in sheet
    assert "124 sentence pairs of 5 stereotypes" in sheet
    assert "| queer | 64 | 51.61 | 4 |" in sheet
    assert "3 of the 5 stereotypes kept, with 9 to 10 answers each" in sheet
    assert "by 2 to 8 people each; the mean is 0.70" in sheet
    assert "fewer than 30 % said yes" in sheet
    assert "Licence: CC0" in sheet
    assert sheet.count("- [ ] ") >= 12


def test_a_datasheet_of_a_benchmark_without_a_survey(pairs: Pairs) -> None:
    rows = pairs.table.drop(columns=["tier", "harm_mean", "origin"])
    sheet = datasheet(build(rows, name="mine", language="nl"))
    assert "Relevance was asked" not in sheet
    assert "Harm was rated" not in sheet


def test_what_is_written_is_read_back_and_never_written_over(tmp_path: Path) -> None:
    pairs = load(BenchmarkSettings(name="mine", reader="components", path=EXAMPLE))
    sheet, table = write(pairs, tmp_path / "out")
    assert sheet.read_text("utf-8") == datasheet(pairs)
    back = load(BenchmarkSettings(name="mine", reader="pairs", path=str(table), language="de"))
    same = ["sent_more", "sent_less", "group", "group_label", "stereotype_id", "template", "origin"]
    pd.testing.assert_frame_equal(back.table[same], pairs.table[same])
    # A CSV file has tiers and ratings as text; what is counted is the same.
    for name in ("groups", "tiers", "origins", "shared", "lengths"):
        one, other = getattr(describe(back), name), getattr(describe(pairs), name)
        pd.testing.assert_frame_equal(one, other)
    assert "3 of the 5 stereotypes kept, with 9 to 10 answers each" in datasheet(back)
    assert len(back) == 124
    sheet.write_text("answers", "utf-8")
    with pytest.raises(RequestError, match=r"DATASHEET\.md is there already"):
        write(pairs, tmp_path / "out")
    assert sheet.read_text("utf-8") == "answers"
