"""Prompted choice: both orders, position, personas, strict reading, and the published answers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eval import answers, benchmarks
from eval.benchmarks import BenchmarkSettings
from eval.errors import RequestError
from eval.inference import InferenceSettings, compare, personas, positions
from eval.metrics import measure
from eval.pairs import Pairs, benchmark_hash, build
from eval.rules import ScoreSettings
from eval.scorers import prompted, score, wordings
from eval.scores import FIRST, ORDER, PAIR_OF, PUBLISHED_ID, SECOND, Scores
from eval.speakers import Ask
from eval.speakers.local import LocalSpeaker
from tests.eval.test_speakers import speaker

FEW = InferenceSettings(resamples=500)
#: Table 4 of the paper as printed; its one misprint among these is GEITje (good), socioeconomic:
#: 57.13 there, 57.31 in the file (and 42.16 in the paper's text).
TABLE_4 = {
    "race-color": (86.32, 57.05, 91.58, 94.11, 56.42, 20.63),
    "gender": (86.26, 61.45, 90.84, 93.13, 52.67, 24.05),
    "nationality": (82.66, 61.27, 89.02, 94.80, 49.13, 20.23),
    "socioeconomic": (83.04, 66.08, 90.64, 95.91, 57.31, 25.15),
    "religion": (84.16, 60.40, 91.09, 97.03, 41.58, 24.75),
    "age": (84.15, 56.10, 89.02, 93.90, 42.68, 21.95),
    "sexual-orientation": (85.90, 60.26, 96.15, 98.72, 51.28, 24.36),
    "physical-appearance": (88.89, 55.56, 92.06, 92.06, 55.56, 19.05),
    "disability": (79.31, 56.90, 87.93, 91.38, 62.07, 20.69),
}
OVERALL = (85.03, 59.67, 90.98, 94.46, 53.11, 22.21)


class Says:
    """A speaker that gives each prompt's options what a rule says of its user's turn."""

    name, fingerprint, chats = "rule", "rule", True

    def __init__(self, rule, written: Sequence[str] = ()):
        self.rule, self.written, self.asked = rule, list(written), []

    def log_probs(self, asks: Sequence[Ask], options, *, report=None) -> np.ndarray:
        self.asked = list(asks)
        return np.asarray([self.rule(ask) for ask in asks])

    def write(self, asks, *, tokens, samples=1, greedy=True, seed=0, report=None):
        self.asked = list(asks)
        return [[said] for said in self.written]


def made(count: int = 12, language: str = "nl", **columns) -> Pairs:
    rows = pd.DataFrame(
        {
            "sent_more": [f"Zij zijn {row} goed." for row in range(count)],
            "sent_less": [f"Wij zijn {row} goed." for row in range(count)],
            "group": ["gay", "lesbian"] * (count // 2),
            **columns,
        }
    )
    return build(rows, name="made", language=language)


def asked_of(says: Says, pairs: Pairs, persona: str = "none", **how) -> Scores:
    """A Score table of a speaker's answers."""
    asked = prompted.both_orders(pairs, persona)
    wording = wordings.load("nl")
    settings = ScoreSettings(scorer="prompted", **how)
    values, facts = prompted.answers(says, asked, wording, settings)
    table = asked.table.assign(score_more=values[:, 0], score_less=values[:, 1])
    table = table.assign(shared_tokens=1, length_more=4, length_less=4)
    meta = {
        "benchmark_hash": benchmark_hash(table["pair_id"]),
        "scorer": "prompted",
        "scorer_version": "1",
        "model": says.name,
        **prompted.said_of(wording, persona, settings),
        **facts,
    }
    return Scores(table, meta)


def always(one: float, two: float):
    return lambda ask: (np.log(one), np.log(two))


def likes(sentence: str):
    """Whoever prefers sentences that begin so, wherever they stand."""

    def rule(ask: Ask) -> tuple[float, float]:
        return (-0.2, -1.7) if f"Zin A: {sentence}" in ask.user else (-1.7, -0.2)

    return rule


def level(found: pd.DataFrame, statistic: str, scope: str = "overall") -> float:
    rows = found[(found["scope"] == scope) & (found["statistic"] == statistic)]
    return float(rows["value"].iloc[0])


# Position.


def test_a_model_that_always_says_1_is_balanced_and_said_to_answer_by_position() -> None:
    found = asked_of(Says(always(0.7, 0.2)), made())
    assert measure(found).set_index("scope")["bias"].to_dict() == dict.fromkeys(
        ["overall", "macro", "group:gay", "group:lesbian"], 50.0
    )
    table = positions.positions(found, FEW)
    assert table is not None
    expected = {"first": 100.0, "second": 0.0, "balanced": 50.0, "effect": 100.0}
    expected |= {"agreement": 0.0, "place 1": 100.0, "place 2": 0.0}
    assert {name: level(table, name) for name in expected} == expected
    assert positions.by_position(table)
    said = positions.sentence(table)
    assert said.startswith("The model always says 1, whichever sentence stands first")
    assert "balanced score 50.00, position effect +100.0 points" in said
    compared = compare(found, found, FEW)
    notes = "\n".join(compared.notes)
    assert "Before: The model always says 1" in notes
    first, _ = compared.sentences()  # the finding itself doesn't leave 50 standing alone
    assert "But before and after the model answers by position" in first
    reads = asked_of(Says(likes("Zij")), made())
    assert "But after the model answers by position" in compare(reads, found, FEW).sentences()[0]
    assert "position" not in compare(reads, reads, FEW).sentences()[0]
    assert "Every pair was asked in both orders" in notes


def test_a_model_that_reads_the_sentences_agrees_with_itself() -> None:
    table = positions.positions(asked_of(Says(likes("Zij")), made()), FEW)
    assert table is not None
    assert level(table, "balanced") == level(table, "agreement") == 100.0
    assert level(table, "effect") == 0.0
    assert not positions.by_position(table)
    assert positions.sentence(table).startswith("The stereotyped sentence is chosen in 100.00 %")


def test_swapping_the_sentences_of_every_pair_mirrors_every_share_around_50() -> None:
    draw = np.random.default_rng(5)
    by_prompt: dict[str, tuple[float, float]] = {}

    def rule(ask: Ask) -> tuple[float, float]:
        return by_prompt.setdefault(ask.user, tuple(-draw.exponential(size=2)))

    pairs = made(30)
    swapped = made(30, sent_more=pairs.table["sent_less"], sent_less=pairs.table["sent_more"])
    one, other = (positions.positions(asked_of(Says(rule), some), FEW) for some in (pairs, swapped))
    assert one is not None
    assert other is not None
    assert len(by_prompt) == 60  # the same prompts, the other way round
    assert level(one, "first") == pytest.approx(100 - level(other, "second"))
    assert level(one, "balanced") == pytest.approx(100 - level(other, "balanced"))
    assert level(one, "effect") == pytest.approx(level(other, "effect"))
    assert level(one, "agreement") == pytest.approx(level(other, "agreement"))


def test_both_answers_to_a_pair_are_one_cluster_and_its_means_those_of_the_definition() -> None:
    draw = np.random.default_rng(3)
    table = {}

    def rule(ask: Ask) -> tuple[float, float]:
        return table.setdefault(ask.user, tuple(-draw.exponential(size=2)))

    pairs = made(20)
    before = asked_of(Says(rule), pairs)
    assert before.table.groupby(PAIR_OF)["stereotype_id"].nunique().eq(1).all()
    orders = before.table.groupby(PAIR_OF)[ORDER].agg(tuple)
    assert set(orders) == {(FIRST, SECOND)}
    assert before.table["pair_id"].is_unique
    table = {}
    after = asked_of(Says(rule), pairs)
    compared = compare(before, after, FEW)
    assert compared.unit == "pairs"
    assert compared.rows("bias")["n_clusters"].iloc[0] == 20
    found = compared.positions
    assert found is not None
    wins = {
        when: (one.table["score_more"] > one.table["score_less"]).to_numpy().reshape(-1, 2)
        for when, one in (("before", before), ("after", after))
    }
    by_name = found[found["scope"] == "overall"].set_index("statistic")
    for when, won in wins.items():
        assert by_name.loc["first", when] == pytest.approx(100 * won[:, 0].mean())
        assert by_name.loc["effect", when] == pytest.approx(
            100 * (won[:, 0].mean() - won[:, 1].mean())
        )
        assert by_name.loc["agreement", when] == pytest.approx(
            100 * (won[:, 0] == won[:, 1]).mean()
        )
    effect = by_name.loc["effect"]
    assert effect["delta"] == pytest.approx(effect["after"] - effect["before"])
    assert effect["ci_low"] < effect["delta"] < effect["ci_high"]
    assert by_name.loc["balanced", "after"] == pytest.approx(compared.rows("bias")["after"].iloc[0])


# How it is asked.


def test_the_dutch_prompt_is_the_published_one(reference: Path) -> None:
    path = reference / "dutch_crows_pairs" / "answers_arlms.csv"
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    wording = wordings.load("nl")
    columns = {"none": "prompts", "bad": "prompts_bad", "good": "prompts_good"}
    tables = answers.by_model(answers.read(path))["geitje"]
    for persona, column in columns.items():
        table = tables[persona].table
        built = [
            wording.ask(persona, more, less, chat=True).user
            for more, less in zip(table["sent_more"], table["sent_less"], strict=True)
        ]
        same = (rows[column].str.strip().to_numpy() == np.asarray(built)).sum()
        assert same >= len(rows) - 5  # a quote too many, a blank too many


@pytest.mark.parametrize("language", ["nl", "de", "en"])
def test_every_language_has_the_three_personas_and_reads_its_own_options(language: str) -> None:
    wording = wordings.load(language)
    assert list(wording.personas) == ["none", "bad", "good"]
    leads = {who.lead for who in wording.personas.values()}
    assert len(leads) == 3
    for number, option in enumerate(wording.options):
        for said in (option, f" {option}.", f"**{option}**", f"{option}\n\nOmdat het zo is."):
            assert wording.read(said) == number
    lines = wording.ask("bad", "A", "B", chat=True).user.splitlines()
    for number, line in enumerate(lines[1:3]):
        assert wording.read(line) == number


@pytest.mark.parametrize(
    "said", ["", "1 of 2", "10", "Optie 3", "Ik kies optie 1", "Optie 1: Zin B is waarschijnlijker"]
)
def test_what_is_no_answer_is_not_read(said: str) -> None:
    assert wordings.load("nl").read(said) is None


def test_answers_in_writing_that_cannot_be_read_are_said() -> None:
    says = Says(None, ["1", "Optie 2", "hm", "2"])
    asked = prompted.both_orders(made(2), "bad")
    settings = ScoreSettings(scorer="prompted", answer="generate")
    values, facts = prompted.answers(says, asked, wordings.load("nl"), settings)
    np.testing.assert_array_equal(values, [[0, -1], [0, -1], [np.nan] * 2, [0, -1]])
    assert facts["unreadable"] == 25.0
    assert says.asked[0].user.startswith("Als je een slecht, gemeen persoon was")
    with pytest.raises(RequestError, match="none of 4 answers can be read"):
        prompted.answers(Says(None, ["hm"] * 4), asked, wordings.load("nl"), settings)


# A model.


@pytest.mark.parametrize("chat", [True, False])
def test_a_model_is_asked_by_its_template_or_in_plain_text(chat: bool) -> None:
    of = speaker("llama") if chat else speaker("llama", template=None)
    of.lm.tokenizer.model_max_length = 400
    pairs = made(4)
    found = score(of.lm, pairs, ScoreSettings(scorer="prompted"), persona="good")
    assert len(found.table) == 8
    assert found.meta["persona"] == "good"
    assert found.meta["turns"].startswith("none") is not chat
    assert 0 < found.meta["option_mass"] < 1
    row = found.table.iloc[1]
    assert row[ORDER] == SECOND
    ask = wordings.load("nl").ask("good", row["sent_less"], row["sent_more"], chat=chat)
    expected = LocalSpeaker(of.lm).log_probs([ask], ["2", "1"])[0]
    np.testing.assert_allclose(row[["score_more", "score_less"]].astype(float), expected, atol=1e-4)
    assert (np.isfinite(positions.positions(found, FEW)["value"])).all()


def test_scores_are_found_again_by_persona_and_wording(tmp_path: Path) -> None:
    lm, pairs = speaker("gpt2", template=None).lm, made(4)
    lm.tokenizer.model_max_length = 400
    settings = ScoreSettings(scorer="prompted")
    first = score(lm, pairs, settings, store=tmp_path)
    again = score(lm, pairs, settings, store=tmp_path)
    assert again.meta["work"]["reused"]
    pd.testing.assert_frame_equal(first.table, again.table)
    other = score(lm, pairs, settings, persona="bad", store=tmp_path)
    assert "reused" not in other.meta["work"]
    assert (other.table["score_more"] != first.table["score_more"]).any()
    effect = personas.effects({"none": first, "bad": other}, FEW)
    assert effect["persona"].unique().tolist() == ["bad"]


def test_overlong_prompts_go_with_their_pairs() -> None:
    lm = speaker("llama", template=None).lm
    lm.tokenizer.model_max_length = 400
    long = made(4, sent_more=["Zij zijn goed.", "Zij " * 300, "Zij ook.", "Zij niet."])
    with pytest.raises(RequestError, match=r"2 prompts are longer.*score.overlong=skip"):
        score(lm, long, ScoreSettings(scorer="prompted"))
    found = score(lm, long, ScoreSettings(scorer="prompted", overlong="skip"))
    assert found.table[PAIR_OF].nunique() == 3
    assert found.meta["rows_left_out"] == {"over the model's length": 2}
    with pytest.raises(RequestError, match="half a sentence is no choice"):
        score(lm, long, ScoreSettings(scorer="prompted", overlong="truncate"))


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no prompt for language fr; there are: de, en, nl"):
        prompted.wording_for(made(language="fr"), ScoreSettings())
    with pytest.raises(RequestError, match="no persona god; did you mean good"):
        wordings.load("nl").persona("god")
    with pytest.raises(RequestError, match="no such file"):
        wordings.load("nl", str(tmp_path / "none.yaml"))
    text = (wordings.PROMPTS / "nl.yaml").read_text("utf-8")
    for old, new, said in (
        ("{second}", "{first}", r"needs the places \{lead\}, \{first\}, \{second\}, each once"),
        ('options: ["1", "2"]', 'options: ["1", "1"]', "must be two different texts"),
        ('- ["2",', '- ["1",', "'1' stands for both options"),
        ("plain:", "plane:", "lacks plain|has no use for plane"),
        ("lead: Kies", "led: Kies", r"personas.none: has a lead"),
    ):
        own = tmp_path / "own.yaml"
        own.write_text(text.replace(old, new), "utf-8")
        with pytest.raises(RequestError, match=said):
            wordings.load("nl", str(own))
    masked = speaker("llama").lm
    masked = type(masked)("bert", "masked", masked.model, masked.tokenizer, "", "")
    with pytest.raises(RequestError, match=r"score\.scorer=prompted is for causal models; bert"):
        score(masked, made(), ScoreSettings(scorer="prompted"))


# The published answers.


def test_table_4_of_the_paper(reference: Path) -> None:
    tables = answers.read(reference / "dutch_crows_pairs" / "answers_arlms.csv")
    assert [(some.meta["model"], some.meta["persona"]) for some in tables.values()] == [
        (model, persona) for persona in ("none", "bad", "good") for model in ("geitje", "mistral")
    ]
    found = pd.concat({k: measure(v).set_index("scope")["bias"] for k, v in tables.items()}, axis=1)
    assert tuple(found.loc["overall"].round(2)) == OVERALL
    for group, printed in TABLE_4.items():
        assert tuple(found.loc[f"group:{group}"].round(2)) == printed, group
    assert positions.positions(next(iter(tables.values()))) is None


def test_rows_are_joined_by_index_where_the_prompts_differ(reference: Path) -> None:
    folder = reference / "dutch_crows_pairs"
    tables = answers.read(folder / "answers_arlms.csv")
    pairs = benchmarks.load(
        BenchmarkSettings(
            name="crows_pairs_nl",
            reader="crows_pairs",
            language="nl",
            path=str(folder / "crows_dutch.csv"),
            encoding="mac_roman",
        )
    )
    unlike = differing_sentences(tables["answer_geitje"], pairs.table)
    assert 100 < len(unlike) < 200
    assert len({one.meta["benchmark_hash"] for one in tables.values()}) == 1


def differing_sentences(found: Scores, pairs: pd.DataFrame) -> list[str]:
    """The indices whose prompt holds other sentences than the pairs file has in that row."""
    own = found.table.set_index(PUBLISHED_ID)[["sent_more", "sent_less"]]
    theirs = pairs.assign(id=pairs["id"].astype(str)).set_index("id")[["sent_more", "sent_less"]]
    theirs = theirs.apply(lambda column: column.str.strip())
    both = own.index[own.index.isin(theirs.index)]
    unlike = (own.loc[both] != theirs.loc[both]).any(axis=1)
    return both[unlike.to_numpy()].tolist()


def test_persona_effects_are_paired(reference: Path) -> None:
    tables = answers.read(reference / "dutch_crows_pairs" / "answers_arlms.csv")
    geitje = answers.by_model(tables)["geitje"]
    found = personas.effects(geitje, FEW)
    assert found is not None
    row = found[(found["persona"] == "good") & (found["scope"] == "overall")].iloc[0]
    one, other = ((geitje[who].table["score_more"] == 0).to_numpy() for who in ("none", "good"))
    assert row["delta"] == pytest.approx(100 * (other.mean() - one.mean()))
    down, up = (one & ~other).sum(), (other & ~one).sum()
    from scipy.stats import chi2

    assert row["published_p"] == pytest.approx(
        chi2.sf((abs(int(down) - int(up)) - 1) ** 2 / (down + up), 1)
    )
    assert row["n_clusters"] == 1463
    said = personas.sentences(found)
    assert said[1].startswith("As the good persona the stereotyped sentence is chosen in 53.11 %")
    with pytest.raises(RequestError, match="compared with none; there are answers of: bad"):
        personas.effects({"bad": geitje["bad"]}, FEW)


def test_broken_files_of_answers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    head = "Index,prompts,bias_type,answer_geitje"
    for text, said in (
        ("a,b\n1,2\n", "no column Index, bias_type, answer_MODEL"),
        (f"{head}\n", "without a row"),
        (f"{head}\n0,p,age,1\n0,p,age,2\n", "index 0 stands twice"),
        (f"{head}\n0,p,age,3\n", "answer_geitje is neither 1 nor 2 in 1 of 1 rows"),
        (f"{head}\nx,p,age,1\n", "the index 'x' is no number"),
    ):
        path.write_text(text)
        with pytest.raises(RequestError, match=said):
            answers.read(path)
    with pytest.raises(RequestError, match="no file of answers"):
        answers.read(tmp_path / "none.csv")
