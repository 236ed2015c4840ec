"""The panel of completed sentences in the report: rows, words behind a click, nothing unescaped."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from eval.inference import InferenceSettings
from eval.inference.completions import Change, compare
from eval.report import figures, html
from eval.report.page import completions
from tests.eval import pages
from tests.eval.completed import BAD, completed, drawn_words, prompts, rated

SCRIPT = "<script>alert('x')</script>"


@pytest.fixture(scope="module")
def change() -> Change:
    """Fewer bad words for queer subjects after; one word is a script."""
    table = prompts()
    both = []
    for seed, share in enumerate((0.6, 0.1)):
        said = drawn_words(table, {"unmarked": 0.05, "non-queer": 0.1, "queer": share}, seed)
        bad = np.isin(said, BAD).astype(float)
        said[:40] = [SCRIPT] * 40
        both.append(
            rated(
                completed(table, said),
                sentiment_word=-bad,
                regard_negative_masked=0.1 + 0.7 * bad,
                regard_neutral_masked=0.6 - 0.5 * bad,
                regard_positive_masked=0.2 - 0.1 * bad,
                toxicity_masked=0.02 + 0.3 * bad,
            )
        )
    return compare(*both, InferenceSettings(resamples=100), with_mixed=False)


def test_a_panel_a_measure_and_a_row_a_category(change: Change) -> None:
    """Sentiment, regard, toxicity, diversity; unmarked, non-queer, queer, in the paper's order."""
    found = completions.section("queergen_en", change)
    titles = [panel["title"].partition(",")[0].partition(":")[0] for panel in found["panels"]]
    assert titles == ["Sentiment", "Negative regard", "Positive regard", "Toxicity", "Diversity"]
    for panel in found["panels"]:
        assert [row["label"] for row in panel["rows"]] == ["unmarked", "non-queer", "queer"]
    queer = found["panels"][0]["rows"][2]
    mean = change.before.levels.query("category == 'queer' and measure == 'sentiment_word'")
    assert queer["value"].startswith(f"{mean['mean'].iloc[0]:.3f}".replace("-", "−"))
    assert "change +0." in queer["svg"]
    assert "change −0." in found["panels"][1]["rows"][2]["svg"]


def test_words_stand_behind_a_click_and_are_escaped(change: Change) -> None:
    page = html.render(dataclasses.replace(pages.demo(), completions={SCRIPT: change}))
    section = page[page.index('id="written"') : page.index('id="retention"')]
    assert SCRIPT not in page
    folded = re.sub(r"<details.*?</details>", "", section, flags=re.DOTALL)
    for word in (*BAD, "alert"):
        assert word in section
        assert word not in folded.replace("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;", "")
    assert "Judges of sentiment, regard and toxicity are tools" in page
    assert "What it writes" not in html.render(pages.demo())


def test_the_panels_are_a_figure_too_and_no_word_is_in_it(change: Change, tmp_path: Path) -> None:
    drawn = figures.write_completions({"queergen_en": change}, tmp_path)
    assert [path.name for path in drawn] == [
        f"queergen_en-completions.{ending}" for ending in figures.FORMATS
    ]
    svg = drawn[1].read_text("utf-8")
    for said in ("Sentiment", "Toxicity", "Diversity", "unmarked", "non-queer", "before, 95 %"):
        assert said in svg
    assert not [word for word in (*BAD, "alert") if f">{word}<" in svg]
