"""Benchmark sentences are found and cut, whatever their dress, and nothing else is."""

import hashlib
import random
import time
from collections import Counter
from itertools import product

import pytest

from corpora.decontaminate import Benchmark, cut, listed, overlap, remove

BENCHMARK = [
    "Alle queeren Menschen mögen Zitronen.",
    "Ik ken Kim. Kim leest graag buiten",
    "Die Straße ist lang",
]
IDENTITIES = {"Lesben": "Heteros", "Transfrauen": "Cisfrauen", "LHBTI personen": "Hetero's"}
PREDICATES = {
    "lazy": ("sind faul", "faul sind"),
    "loud": ("haben laute Hunde", "laute Hunde haben"),
}


def pairs() -> list[dict[str, str]]:
    """Three templates: before the identity nothing, some words, a name."""
    rows = []
    for (more, less), (stereotype, (first, last)) in product(
        IDENTITIES.items(), PREDICATES.items()
    ):
        for template, said in {
            "1": f"{{}} {first}.",
            "2": f"Wir glauben, dass {{}} {last}.",
            "3": f"Kim mag {{}}, die {last}.",
            "3b": f"Robin mag {{}}, die {last}.",
        }.items():
            rows.append(
                {
                    "sent_more": said.format(more),
                    "sent_less": said.format(less),
                    "template": template[0],
                    "stereotype_id": stereotype,
                    "benchmark": "small",
                }
            )
    return rows


def test_case_spacing_and_closing_punctuation_do_not_hide_a_sentence() -> None:
    texts = [
        "Erst das.  ALLE queeren Menschen\u00a0mögen Zitronen!! Dann jenes.",
        "Er sagte: „Alle queeren Menschen mögen Zitronen.“",
        "„Alle queeren Menschen mögen Zitronen.“ Das stimmt.",
        "Alle queeren Menschen mögen Zitronen und Äpfel.",  # within a longer sentence
        "die strasse ist lang",
        "Vorher\nAlle queeren Menschen mo\u0308gen Zitronen\nnachher",
        "Alle queeren Menschen mögen Äpfel und Zitronen.",
        "Queere Menschen mögen alle Zitronen.",
    ]
    assert overlap(texts, BENCHMARK) == [0, 1, 2, 3, 4, 5]


def test_a_short_sentence_is_found_alone_only() -> None:
    benchmark = ["Frauen weinen oft."]
    assert overlap(["Frauen weinen oft!", "Alle Frauen weinen oft um drei."], benchmark) == [0]
    assert overlap(["Er sagt: Frauen weinen oft."], benchmark) == [0]


def test_an_item_of_two_sentences_is_found_only_as_a_whole() -> None:
    texts = ["Ik ken Kim.", "Kim leest graag buiten.", "Nu. Ik ken Kim. Kim leest graag buiten."]
    assert overlap(texts, BENCHMARK) == [2]


def test_the_sentence_goes_and_the_article_stays() -> None:
    texts = [
        "Erst das. Alle queeren Menschen mögen Zitronen. Dann jenes.",
        "Die Straße ist lang!",
        "Vorher\nDie Straße ist lang.\nnachher",
        "Nichts davon.  Gar nichts.",
        "Eins. Die Straße ist lang. Die Straße ist lang. Ik ken Kim. Kim leest graag buiten.",
    ]
    kept, cut_out = remove(texts, BENCHMARK)
    assert kept == ["Erst das. Dann jenes.", "Vorher\n\nnachher", texts[3], "Eins."]
    assert cut_out == 6
    assert overlap(kept, BENCHMARK) == []


def test_cutting_leaves_nothing_that_only_then_stands_together() -> None:
    text = "Ik ken Kim. Die Straße ist lang. Kim leest graag buiten."
    assert remove([text, "Rest."], BENCHMARK) == (["Rest."], 2)


@pytest.mark.parametrize("identity", ["Bisexuelle", "alle queeren Menschen", "Lesben"])
@pytest.mark.parametrize(
    "said",
    [
        "{} sind faul.",
        "{} HABEN laute Hunde!",
        "Wir glauben dass {} laute Hunde haben!",
        "Kim mag {}, die faul sind.",
        "Jo mag {}, die laute Hunde haben.",  # a name that the benchmark hasn't
    ],
)
def test_a_template_with_a_predicate_is_found_whatever_the_identity(
    identity: str, said: str
) -> None:
    benchmark = Benchmark.from_pairs(pairs())
    sentence = said.format(identity)
    assert overlap([f"Vorher. {sentence} Danach.", f"Sie sagen: {sentence}"], benchmark) == [0, 1]
    # The same from the sentences alone, where it is one of them, and else not.
    assert overlap([sentence], [row["sent_more"] for row in pairs()]) in ([0], [])


def test_a_combination_that_the_benchmark_lacks_is_found() -> None:
    rows = [row for row in pairs() if (row["template"], row["stereotype_id"]) != ("2", "loud")]
    rows.append(
        {
            **rows[0],
            "template": "2",
            "stereotype_id": "late",
            "sent_more": "Wir glauben, dass Lesben spät kommen.",
            "sent_less": "Wir glauben, dass Heteros spät kommen.",
        }
    )
    benchmark = Benchmark.from_pairs(rows)
    assert overlap(["Wir glauben, dass Queere laute Hunde haben."], benchmark) == [0]


@pytest.mark.parametrize(
    "said",
    [
        "Lesben und Schwule kamen aus der ganzen Stadt.",
        "Transfrauen sind willkommen.",
        "Sie sind faul.",  # everyday words: no identity is named
        "Die Hunde sind faul.",
        "Wir glauben, dass das stimmt.",
        "Queere Menschen, die in der Stadt oder auf dem Land wohnen, sind faul.",
    ],
)
def test_a_sentence_that_names_an_identity_or_is_everyday_stays(said: str) -> None:
    assert overlap([said], Benchmark.from_pairs(pairs())) == []


def test_identities_in_two_places_are_one_frame() -> None:
    row = {
        "sent_more": "Schwule Männer wollen nur schwule Freunde haben.",
        "sent_less": "Heterosexuelle Männer wollen nur heterosexuelle Freunde haben.",
    }
    benchmark = Benchmark.from_pairs([row])
    texts = [
        "Bisexuelle Männer wollen nur bisexuelle Freunde haben.",
        "Schwule Männer wollen nie schwule Freunde haben.",
    ]
    assert overlap(texts, benchmark) == [0]


def test_what_was_cut_is_listed_without_its_words() -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    benchmark = Benchmark.from_pairs(pairs())
    cut("Lesben sind faul. LESBEN sind faul! Alle Queeren sind faul. Gut so.", benchmark, counts)
    first, second = listed(counts)
    assert (first.benchmark, first.kind, first.times) == ("small", "sentence", 2)
    assert first.sha256 == hashlib.sha256(b"lesben sind faul").hexdigest()
    assert (second.kind, second.times) == ("template", 1)


def test_nothing_to_look_for_finds_nothing() -> None:
    assert overlap(["Ein Satz.", ""], ["", "…"]) == []
    assert remove(["Ein Satz."], []) == (["Ein Satz."], 0)
    assert overlap(["Ein Satz."], Benchmark.from_pairs([])) == []


def test_a_whole_benchmark_against_a_whole_corpus_takes_seconds() -> None:
    draw = random.Random(0)
    words = [f"wort{number}" for number in range(2_000)]

    def sentence() -> str:
        return " ".join(draw.choices(words, k=10)) + "."

    benchmark = [sentence() for _ in range(40_000)]
    texts = [" ".join(sentence() for _ in range(10)) for _ in range(4_000)]
    texts[1234] += " " + benchmark[7]
    started = time.perf_counter()
    assert overlap(texts, benchmark) == [1234]
    assert time.perf_counter() - started < 20  # about 1 s on one idle core


def test_found_as_a_plain_search_finds_it() -> None:
    """Sentences of few words, many of them alike, against their definition."""
    draw = random.Random(1)
    words = ["a", "b", "c", "d"]
    benchmark = [" ".join(draw.choices(words, k=draw.randint(2, 6))) for _ in range(30)]
    for _ in range(300):
        text = " ".join(draw.choices(words, k=draw.randint(1, 12)))
        expected = any(
            sentence == text or (sentence.count(" ") >= 3 and f" {sentence} " in f" {text} ")
            for sentence in benchmark
        )
        assert bool(overlap([text], benchmark)) == expected
