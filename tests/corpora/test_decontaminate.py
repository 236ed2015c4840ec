"""Benchmark sentences are found and cut, whatever their dress, and nothing else is."""

import random
import time

from corpora.decontaminate import overlap, remove

BENCHMARK = [
    "Alle queeren Menschen mögen Zitronen.",
    "Ik ken Kim. Kim leest graag buiten",
    "Die Straße ist lang",
]


def test_case_spacing_and_closing_punctuation_do_not_hide_a_sentence() -> None:
    texts = [
        "Erst das.  ALLE queeren Menschen\u00a0mögen Zitronen!! Dann jenes.",
        "Er sagte: „Alle queeren Menschen mögen Zitronen.“",  # within a longer sentence
        "„Alle queeren Menschen mögen Zitronen.“ Das stimmt.",
        "Alle queeren Menschen mögen Zitronen und Äpfel.",
        "die strasse ist lang",
        "Vorher\nAlle queeren Menschen mo\u0308gen Zitronen\nnachher",
    ]
    assert overlap(texts, BENCHMARK) == [0, 2, 4, 5]


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
    kept, cut = remove(texts, BENCHMARK)
    assert kept == ["Erst das. Dann jenes.", "Vorher\n\nnachher", texts[3], "Eins."]
    assert cut == 6
    assert overlap(kept, BENCHMARK) == []


def test_nothing_to_look_for_finds_nothing() -> None:
    assert overlap(["Ein Satz.", ""], ["", "…"]) == []
    assert remove(["Ein Satz."], []) == (["Ein Satz."], 0)


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
