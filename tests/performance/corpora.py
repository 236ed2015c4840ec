"""How fast is a corpus made, and of how much? `python -m tests.performance.corpora [--posts N]`

Generated posts of 40 words, half of them HTML, with links, mentions, hashtags, duplicates, other
languages and sentences of a benchmark of 45,540 pairs, go through cleaning, language,
decontamination, duplicates and the split, on two processes; at a tenth of the size, too, and one
post at a time as the libraries' own examples do it. Writes tests/performance/CORPORA.md.
"""

import argparse
import itertools
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ftfy
import psutil
from lingua import Language, LanguageDetectorBuilder
from rensa import RMinHash, RMinHashDeduplicator
from selectolax.lexbor import LexborHTMLParser
from wordfreq import top_n_list

from corpora import CorpusSettings, clean, steps
from corpora.decontaminate import Benchmark
from corpora.documents import Document

RESULTS = Path(__file__).with_name("CORPORA.md")
POSTS = 1_000_000
WORDS = 40
PAIRS = 45_540  # of the German translation of WinoQueer, the largest of the benchmarks
WORKERS = 2
#: Targets: posts a second, bytes, and how much slower a post may be among ten times as many.
SPEED, MEMORY, GROWTH = 5_000, 4 * 2**30, 1.25
RULE = "|---|---|---|---|"
NAIVE = 400  # posts that are done one at a time

TEMPLATES = ("{} {}.", "Alle {} {}.", "Viele sagen, dass {} hier {}.", "Wir finden, {} {}.")
IDENTITIES = ("Transfrauen", "Lesben", "Schwule", "Bisexuelle", "Queere", "Asexuelle")


def pairs() -> list[dict[str, str]]:
    """As many pairs as the largest benchmark has: templates × identities × predicates."""
    verbs, nouns = top_n_list("de", 3000)[1000:], top_n_list("de", 6000)[3000:]
    rows = []
    grid = itertools.product(range(PAIRS), IDENTITIES, TEMPLATES)
    for number, identity, template in itertools.islice(grid, PAIRS):
        predicate = f"{verbs[number % 2000]} {nouns[number % 2999]} {verbs[(7 * number) % 1999]}"
        rows.append(
            {
                "sent_more": template.format(identity, predicate),
                "sent_less": template.format("Heteros", predicate),
                "template": template,
                "stereotype_id": str(number),
                "benchmark": "generated",
            }
        )
    return rows


def posts(count: int, sentences: list[str]) -> Iterator[dict[str, Any]]:
    """Posts of 40 words, by the words' frequency; a tenth of them repeats another."""
    draw = random.Random(0)
    words = {code: top_n_list(code, 8000) for code in ("de", "nl", "en")}
    weights = list(itertools.accumulate(1 / (rank + 5) for rank in range(8000)))
    earlier: list[list[str]] = []
    for number in range(count):
        code = "de" if draw.random() < 0.85 else draw.choice(("nl", "en"))
        said = draw.choices(words[code], cum_weights=weights, k=WORDS)
        kind = draw.random()
        if kind < 0.1 and earlier:
            said = list(draw.choice(earlier))
            if kind < 0.05:
                said[draw.randrange(len(said))] = "anders"
        elif kind < 0.12:
            said[20:] = draw.choice(sentences).split()
        elif kind < 0.5:
            said[draw.randrange(WORDS)] = draw.choice(("queere", "trans", "lesbisch", "schwul"))
        if len(earlier) < 1000:
            earlier.append(said)
        for at in range(9, WORDS, 10):
            if at < len(said):
                said[at] = said[at].rstrip(".") + "."
        text = " ".join(said)
        if draw.random() < 0.5:
            text = _html(said, draw)
        elif draw.random() < 0.3:
            text += f" https://example.org/{number} #csd #queer"
        yield {
            "text": text,
            "html": text.startswith("<p>"),
            "author": f"konto{draw.randrange(count // 20 + 1)}",
            "date": f"2023-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
        }


def _html(said: list[str], draw: random.Random) -> str:
    text = f"<p>{' '.join(said[:20])}</p><p>{' '.join(said[20:])}"
    if draw.random() < 0.3:
        text += (
            ' <span class="h-card"><a href="https://example.org/@wer" class="u-url mention">'
            "@<span>wer</span></a></span>"
        )
    if draw.random() < 0.3:
        text += (
            ' <a href="https://example.org/abc"><span class="invisible">https://</span>'
            '<span class="ellipsis">example.org/a</span><span class="invisible">bc</span></a>'
        )
    if draw.random() < 0.3:
        text += (
            ' <a href="https://example.org/tags/queer" class="mention hashtag" rel="tag">'
            "#<span>queer</span></a>"
        )
    return f"{text}</p>"


class Memory(threading.Thread):
    """The most memory that this process and those it started had together, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.ended = threading.Event()

    def run(self) -> None:
        here = psutil.Process()
        while not self.ended.wait(0.25):
            total = 0
            for process in [here, *here.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, total)


def read(file: Path, count: int) -> Iterator[Document]:
    """The first posts of a file."""
    with file.open(encoding="utf-8") as lines:
        for line in itertools.islice(lines, count):
            yield Document(origin="example.org", host="example.org", **json.loads(line))


def measured(file: Path, count: int, benchmark: Benchmark) -> tuple[float, int, steps.Built]:
    """Seconds, most memory, and what came of it."""
    settings = CorpusSettings(name="posts", language="de", workers=WORKERS)
    memory = Memory()
    memory.start()
    started = time.perf_counter()
    built = steps.run(read(file, count), settings, benchmark)
    seconds = time.perf_counter() - started
    memory.ended.set()
    memory.join()
    return seconds, memory.peak, built


def naive(file: Path, count: int, sentences: list[str]) -> float:
    """Seconds for the same steps, one post at a time, each library called as in its examples."""
    languages = (Language.GERMAN, Language.ENGLISH, Language.DUTCH, Language.FRENCH)
    detector = LanguageDetectorBuilder.from_languages(*languages).build()
    detector.detect_language_of("Die Modelle werden vorher geladen, damit das nicht zählt.")
    seen = RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True, seed=0)
    documents = list(read(file, count))
    started = time.perf_counter()
    for number, document in enumerate(documents):
        text = document.text
        if document.html:
            text = LexborHTMLParser(text).text(separator=" ")
        text = clean.clean(ftfy.fix_text(text))
        if detector.detect_language_of(text) != Language.GERMAN:
            continue
        for sentence in sentences:
            text = text.replace(sentence, "")
        sketch = RMinHash(num_perm=128, seed=0)
        sketch.update(text.split())
        seen.add(str(number), sketch)
    return time.perf_counter() - started


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posts", type=int, default=POSTS)
    count = parser.parse_args().posts
    rows = pairs()
    sentences = [row[side] for row in rows for side in ("sent_more", "sent_less")]
    started = time.perf_counter()
    benchmark = Benchmark.from_pairs(rows)
    known = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "posts.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            for post in posts(count, sentences):
                lines.write(json.dumps(post) + "\n")
        few, _, _ = measured(file, count // 10, benchmark)
        seconds, peak, built = measured(file, count, benchmark)
        one = naive(file, min(NAIVE, count), sentences) / min(NAIVE, count)
    growth = (seconds / count) / (few / (count // 10))
    results = [
        ("posts a second, end to end", f"≥ {SPEED:,}", f"{count / seconds:,.0f}", None),
        ("seconds for all", "", f"{seconds:.1f}", None),
        ("memory of all processes, GiB", "< 4", f"{peak / 2**30:.2f}", peak < MEMORY),
        ("a post's time, against a tenth of the posts", f"≤ {GROWTH}×", f"{growth:.2f}×", None),
        ("a post's time, one at a time, against this", "", f"{one * count / seconds:,.0f}×", None),
        ("seconds to take in the benchmark's pairs", "", f"{known:.1f}", None),
    ]
    results[0] = (*results[0][:3], count / seconds >= SPEED)
    results[3] = (*results[3][:3], growth <= GROWTH)
    print(written := _table(results, built, count))
    RESULTS.write_text(written, encoding="utf-8")


def _table(results: list[tuple[str, str, str, bool | None]], built: steps.Built, count: int) -> str:
    said = {True: "yes", False: "**no**", None: ""}
    lines = "".join(
        f"| {what} | {target} | {got} | {said[met]} |\n" for what, target, got, met in results
    )
    took = "".join(
        f"| {step.name} | {step.before:,} | {step.after:,} | "
        f"{', '.join(f'{n:,} {why}' for why, n in {**step.dropped, **step.changed}.items())} |\n"
        for step in built.counts
    )
    libraries = ", ".join(
        f"{name} {version(name)}"
        for name in ("lingua-language-detector", "rensa", "selectolax", "ftfy")
    )
    return (
        f"# Corpora: speed and size\n\n`python -m tests.performance.corpora --posts {count}`, "
        f"{WORKERS} processes on {psutil.cpu_count()} cores; {libraries}. Reading JSON lines is "
        f"in the time, making them is not.\n\n| what | target | measured | met |\n{RULE}\n"
        f"{lines}\nWhat the steps did:\n\n| step | before | after | what |\n{RULE}\n{took}"
    )


if __name__ == "__main__":
    main()
