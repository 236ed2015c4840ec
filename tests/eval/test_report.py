"""The report's files and its page, read as text; test_report_page.py opens it in a browser."""

import base64
import dataclasses
import hashlib
import itertools
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.errors import RequestError
from eval.inference import compare
from eval.report import ReportInput, html, write, write_runs
from eval.report.page import cells, chart
from eval.scores import Scores
from tests.eval import pages
from tests.eval.pages import FAST, RETENTION
from tests.eval.scored import simulated

SCRIPT = "<script>alert('x')</script>"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """A page's elements as (tag, attributes, text, whether inside closed details)."""

    def __init__(self, source):
        super().__init__()
        self.open, self.elements, self.heads = [], [], []
        self.feed(source)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        hidden = any(name == "details" and "open" not in given for name, given in self.open)
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "hidden": hidden}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))
            self.heads.append(element)

    def handle_startendtag(self, tag, attrs):
        self.elements.append({"tag": tag, "attrs": dict(attrs), "text": "", "hidden": False})

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()
        self.heads.pop()

    def handle_data(self, data):
        for element in self.heads:
            element["text"] += data

    def of(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    @property
    def text(self):
        return " ".join(self.of("body")[0]["text"].split())


def tops(page):
    """Drawings that stand by themselves, not inside another one."""
    return [e for e in page.of("svg") if not {"y", "x", "viewbox"} & set(e["attrs"])]


def made(name="samples_de", groups=("gay", "lesbian", "transgender"), **changes):
    before, after = simulated(groups=groups)
    comparison = compare(before, after, FAST, name=name)
    report = ReportInput(
        title="demo on samples_de",
        command="mitigate train recipe=demo",
        recipe_yaml="name: demo\nseed: 0\n",
        manifest={
            "versions": {"torch": "2.13"},
            "model": {"licence": "Apache-2.0", "device": "cpu"},
            "left_out": [{"row": 3, "sent_more": "a left-out sentence"}],
        },
        comparisons={name: comparison},
        scores={name: (before, after)},
        retention=RETENTION,
        notes=["Five placebo runs moved by −3 to +4 points."],
    )
    return dataclasses.replace(report, **changes)


@pytest.fixture(scope="module")
def page():
    return Page(html.render(made()))


# --- files ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report's folder, and what `write` gave back."""
    folder = tmp_path_factory.mktemp("report") / "run"
    return folder, write(made(), folder)


def bytes_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_report_is_all_its_files_and_nothing_else(written):
    folder, drawn = written
    assert drawn == {"samples_de": folder / "figures" / "samples_de.png"}
    kinds = ("", "-forest", "-margins", "-threshold")
    figures = {f"figures/samples_de{k}.{end}" for k in kinds for end in ("pdf", "png", "svg")}
    tables = {"deltas.csv", "deltas.json", "deltas.md", "deltas.tex"}
    assert set(bytes_of(folder)) == {"report.html"} | tables | figures


def test_a_report_written_again_is_the_same(written):
    folder, _ = written
    first = bytes_of(folder)
    write(made(), folder)
    assert bytes_of(folder) == first


def test_a_report_that_fails_leaves_what_was_there(written):
    folder, _ = written
    first = bytes_of(folder)
    broken = made(title="another", curve=pd.DataFrame({"step": [1]}))
    with pytest.raises(KeyError):
        write(broken, folder)
    assert bytes_of(folder) == first


def test_nothing_to_report_is_said(tmp_path):
    with pytest.raises(RequestError, match="no benchmark was compared"):
        write(made(comparisons={}), tmp_path)


# --- the page -------------------------------------------------------------------------------


def test_the_page_tells_its_story_in_order(page):
    heads = [element["text"] for element in page.of("h2")]
    assert heads == [
        "The finding",
        "What changed per group",
        "Is it still a language model?",
        "How sure, and why",
        "The pairs that moved most",
        "How it was made",
        "What this does not show",
    ]
    first, second = made().comparisons["samples_de"].sentences()
    assert page.text.index(first) < page.text.index(second) < page.text.index(heads[1])
    rows = [e["text"].split() for e in page.of("tr") if e["text"].strip().startswith("neutral")]
    assert rows == [["neutralpseudo-perplexity12.3112.93+5.0+3.1", "to", "+6.92003,456"]]
    assert "Five placebo runs moved by −3 to +4 points." in page.text
    assert "bias over the 3 groups" in page.text
    assert "mitigate train recipe=demo" in page.text
    assert "model.licence" in page.text


def test_the_page_asks_the_network_for_nothing(page):
    policy = [e["attrs"]["content"] for e in page.of("meta") if "http-equiv" in e["attrs"]]
    assert len(policy) == 1
    rules = dict(rule.strip().split(" ", 1) for rule in policy[0].split(";"))
    for kind in ("style", "script"):  # ours by its hash, and nothing else
        (element,) = page.of(kind)
        digest = hashlib.sha256(element["text"].encode()).digest()
        assert rules.pop(f"{kind}-src") == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert rules.pop("default-src") == "'none'"
    assert set(rules.values()) == {"'none'"}
    for element in page.elements:
        assert element["tag"] not in ("link", "iframe", "img", "object", "use", "foreignobject")
        for key, value in element["attrs"].items():
            assert key not in ("src", "srcset", "style", "xlink:href"), (element["tag"], key)
            assert not key.startswith("on")
            assert "//" not in (value or "")
            assert key != "href" or value.startswith("#")
    style = page.of("style")[0]["text"]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_every_link_leads_somewhere_and_no_id_stands_twice(page):
    ids = [e["attrs"]["id"] for e in page.elements if "id" in e["attrs"]]
    assert len(set(ids)) == len(ids)
    links = [e["attrs"]["href"].removeprefix("#") for e in page.of("a")]
    assert links == ["finding", "groups", "retention", "sure", "pairs", "made", "limits"]
    assert set(links) <= set(ids)
    labels = [e["attrs"]["aria-label"] for e in page.of("div") if "role" in e["attrs"]]
    assert len(set(labels)) == len(labels)


def test_the_chart_says_every_row_of_the_delta_table(page):
    rows = made().comparisons["samples_de"].rows("bias")
    said = [e["text"].splitlines() for e in page.of("title") if "adjusted p" in e["text"]]
    assert [lines[0] for lines in said][:2] == ["overall (W)", "macro (M)"]
    assert len(said) == len(rows)
    gay = rows[rows["scope"] == "group:gay"].iloc[0]
    (lines,) = [lines for lines in said if lines[0] == "gay"]
    assert lines[1] == (
        f"before {gay['before']:.1f} ({gay['before_low']:.1f} to {gay['before_high']:.1f})"
    )
    assert lines[4] == gay["verdict"]
    assert lines[5] == f"{gay['n_pairs']} pairs, {gay['n_clusters']} stereotypes"


def test_the_page_fits_a_phone_and_speaks_to_a_screen_reader(page):
    viewports = [e["attrs"]["content"] for e in page.of("meta") if e["attrs"].get("name")]
    assert "width=device-width, initial-scale=1" in viewports
    assert page.of("html")[0]["attrs"]["lang"] == "en"
    assert all("scope" in e["attrs"] for e in page.of("th"))
    assert all(e["attrs"].get("role") or "aria-hidden" in e["attrs"] for e in tops(page))
    scrolled = [e for e in page.of("div") if "wide" in e["attrs"].get("class", "")]
    assert len(scrolled) >= len(page.of("table"))  # a wide table scrolls, the page does not
    assert all(e["attrs"]["aria-label"] and e["attrs"]["tabindex"] == "0" for e in scrolled)


def test_sentences_stay_hidden_until_asked_for(page):
    cells = [e for e in page.of("td") if re.fullmatch(r"(more|less) \d+", e["text"].strip())]
    assert len(cells) == 2 * html.MOST_MOVED
    assert all(cell["hidden"] for cell in cells)
    assert "Content warning" in page.text
    assert all(e["hidden"] for e in page.of("pre") if "left-out sentence" in e["text"])


def test_the_pairs_shown_are_those_whose_margin_changed_most():
    before, after = simulated()
    mixed = Scores(after.table.sample(frac=1, random_state=1).reset_index(drop=True), after.meta)
    shown = html._most_moved("made", before, mixed)["rows"]
    change = after.margin - before.margin
    largest = sorted(range(len(change)), key=lambda row: -abs(change[row]))[: html.MOST_MOVED]
    assert [row[4] for row in shown] == [f"more {row}" for row in largest]
    assert shown[0][3] == f"{change[largest[0]]:+.2f}".replace("-", "−")


def test_script_anywhere_is_shown_as_text():
    before, after = simulated(groups=(SCRIPT, "gay"))
    for scores in (before, after):
        scores.table["sent_more"] = SCRIPT
    comparison = compare(before, after, FAST)
    report = made(
        title=SCRIPT,
        command=SCRIPT,
        recipe_yaml=SCRIPT,
        manifest={"version": {SCRIPT: SCRIPT}},
        comparisons={SCRIPT: comparison},
        scores={SCRIPT: (before, after)},
        notes=[SCRIPT],
        retention={},
    )
    page = Page(html.render(report))
    (script,) = page.of("script")  # ours
    assert SCRIPT not in script["text"]
    assert page.of("h1")[0]["text"] == SCRIPT
    assert page.text.count(SCRIPT) > 10
    assert SCRIPT in [e["text"] for e in page.of("th")]  # the group
    assert any(e["text"].startswith(SCRIPT) for e in page.of("title"))  # in the chart
    assert SCRIPT in [e["text"] for e in page.of("td")]  # the sentence
    assert "Not measured here" in page.text


def test_much_lost_language_is_warned_of():
    lost = {"neutral": {**RETENTION["neutral"], "change_percent": 25.0}}
    assert "worse by 20 % or more" in Page(html.render(made(retention=lost))).text
    assert "worse by 20 % or more" not in Page(html.render(made())).text


def test_the_page_does_not_call_a_score_near_50_fair(page):
    claims, limits = page.text.rsplit("What this does not show", 1)
    assert not re.search(r"\b(fair|unbiased|debiased|bias-free)\b", claims, re.IGNORECASE)
    assert "not freedom from bias" in limits


def test_several_benchmarks_stand_side_by_side():
    one, two = made(), made(name="survey_de")
    page = Page(
        html.render(
            dataclasses.replace(
                one, comparisons={**one.comparisons, **two.comparisons}, scores=one.scores
            )
        )
    )
    findings = [e for e in page.of("p") if e["attrs"].get("class") == "finding"]
    assert len(findings) == 2
    labels = [e["attrs"]["aria-label"] for e in page.of("div") if "role" in e["attrs"]]
    assert len(set(labels)) == len(labels)
    assert "The sentences of survey_de were not handed to this report." in page.text


def test_two_models_that_never_met_have_their_own_words():
    report = made(sides=("bertje", "robbert"), findings={"samples_de": ["They differ.", "So."]})
    page = Page(html.render(report))
    (finding,) = [e for e in page.of("p") if e["attrs"].get("class") == "finding"]
    assert finding["text"] == "They differ. So."
    assert "“before” is bertje, “after” is robbert" in page.text
    assert "“before” is" not in Page(html.render(made())).text


def test_cells_sort_by_their_numbers_not_by_their_letters():
    assert cells.change(-1234.5).order == "-1234.5"
    assert cells.change(-1234.5) == "−1234.5"
    assert cells.count(1234567) == "1,234,567"
    assert cells.count(1234567).order == "1234567"
    assert cells.p_value(1e-9).order == "1e-09"
    assert cells.level(float("nan"), why="one cluster") == "– (one cluster)"
    assert cells.level(float("nan")).order == ""  # last, whichever way
    assert cells.level(-0.156, 3) == "−0.156"
    assert cells.levels(1.0, 2.0) == "1.0 to 2.0"
    assert cells.text("12").order is None
    assert cells.verdict("not shown (only 3 stereotypes)").kind == "text mark unshown"
    assert cells.verdict("away from 50 (only 9 stereotypes)").kind == "text mark away"


# --- charts ---------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    st.sampled_from([None, 0.0, 50.0]),
)
def test_an_axis_holds_every_value_between_round_ticks(values, around):
    axis = chart.Axis.over([*values, float("nan")], around=around, least=5)
    held = values if around is None else [*values, around - 5, around + 5]
    room = 1e-6 * (axis.high - axis.low)
    assert axis.low <= min(held) + room
    assert axis.high >= max(held) - room
    assert all(0 <= axis.share(tick) <= 1 for tick in axis.ticks)
    assert 2 <= len(axis.ticks) <= 8
    steps = {round(b - a, 6) for a, b in itertools.pairwise(axis.ticks)}
    assert max(steps) - min(steps) <= room


def test_no_two_of_24_lines_look_alike_and_overall_is_the_strong_one():
    assert len({chart.look(number) for number in range(24)}) == 24
    assert all("strong" not in chart.look(number) for number in range(24))


def test_a_gap_in_a_line_stays_a_gap():
    lines = [chart.Line("a", [1.0, float("nan"), 3.0, 4.0], "c0 d0")]
    found = str(chart.plot("some", [0, 1, 2, 3], lines, list("abcd")))
    ElementTree.fromstring(found)
    assert found.count("<polyline") == 2
    assert found.count("<circle") == 3
    assert "NaN" not in found
    assert "nan" not in found


def test_a_heat_cell_tells_its_side_and_distance():
    assert [chart.shade(v) for v in (0, 25, 49, 50, 51, 75, 100)] == [
        *("under4", "under2", "even", "even", "even", "over2", "over4"),
    ]
    assert chart.shade(float("nan")) == "none"


# --- what only some runs have ----------------------------------------------------------------


@pytest.fixture(scope="module")
def full():
    report = pages.demo()
    return report, Page(html.render(report))


def test_each_evidence_stands_where_the_comparison_has_it(full, page):
    report, whole = full
    comparison = report.comparisons["samples_de"]
    heads = {
        "two_way": "Stereotype and name at once",
        "threshold": "Does it hang on tiny differences?",
        "harm": "Margin and harm",
        "erasure": "Did the words themselves fade?",
    }
    there = {e["text"] for e in whole.of("h3")}
    plain = {e["text"] for e in page.of("h3")}
    for field, head in heads.items():
        assert getattr(comparison, field) is not None, field
        assert head in there
        assert (head in plain) == (getattr(made().comparisons["samples_de"], field) is not None)
    assert comparison.erasure["term"].nunique() == 3
    assert sum(e["text"] == "identity words" for e in whole.of("td")) == (
        (comparison.erasure["term"] == "identity").sum()
    )


def test_the_curve_is_drawn_and_said(full):
    _, page = full
    assert "While it was trained" in [e["text"] for e in page.of("h2")]
    said = [e["text"] for e in page.of("title") if e["text"].startswith("update 200, bias")]
    assert len(said) == 1
    overall = pages.curve().query("scope == 'overall' and step == 200")["bias"].iloc[0]
    assert f"overall (W) {overall:.1f}" in said[0].splitlines()
    gap = [e["text"] for e in page.of("title") if e["text"].startswith("update 50, bias")]
    assert "gay – (not defined)" in gap[0]


def test_the_smallest_change_that_could_be_shown_is_told(full):
    report, page = full
    found = report.comparisons["samples_de"].headline
    assert f"a change of {found['smallest_shown']:.1f} points in the mean over groups" in page.text


def test_extremes_are_pages_too():
    source = html.render(pages.extreme())
    page = Page(source)
    words = re.sub(r"Overall bias went from nan to nan", "", page.text)
    assert not re.search(r"\bnan\b", words)
    assert "– (one cluster)" in page.text
    assert "only ties" in page.text


# --- many runs -------------------------------------------------------------------------------


def test_many_runs_stand_on_one_page(tmp_path):
    runs = pages.runs()
    path = write_runs(runs, tmp_path / "out")
    assert path == tmp_path / "out" / "report.html"
    assert sorted(p.name for p in (tmp_path / "out" / "figures").iterdir()) == [
        "heat.pdf",
        "heat.png",
        "heat.svg",
    ]
    page = Page(path.read_text("utf-8"))
    assert runs.claims[0] in page.text
    assert runs.notes[0] in page.text
    heads = [e["text"] for e in page.of("h2")]
    assert heads == [
        "What can be claimed",
        "The runs side by side",
        "Run by group",
        "Across models and languages",
        "How it was made",
        "What this does not show",
    ]
    marked = [e for e in page.of("td") if e["attrs"].get("class", "").startswith(("over", "under"))]
    assert all((float(e["text"]) > 50) == (e["attrs"]["class"] < "p") for e in marked)
    said = [e["text"] for e in page.of("title") if "recipe" in e["text"]]
    assert len(said) == len(runs.table)
    assert sum("(placebo)" in text for text in said) == runs.table["placebo"].sum()


def test_without_claims_heat_or_means_the_page_says_so(tmp_path):
    runs = dataclasses.replace(pages.runs(), claims=[], heat=pd.DataFrame(), across=None)
    page = Page(write_runs(runs, tmp_path).read_text("utf-8"))
    assert "Nothing is claimed of a method here" in page.text
    assert "Run by group" not in page.text
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_names_of_runs_are_shown_as_text():
    runs = pages.runs()
    runs.table["run"] = SCRIPT
    runs.table["more"] = SCRIPT
    runs.heat.index = [SCRIPT] * len(runs.heat)
    runs.heat.columns = [SCRIPT] * runs.heat.shape[1]
    across = runs.across.assign(scope=SCRIPT)
    changed = dataclasses.replace(
        runs, title=SCRIPT, command=SCRIPT, claims=[SCRIPT], notes=[SCRIPT], across=across
    )
    page = Page(html.render_runs(changed))
    (script,) = page.of("script")
    assert SCRIPT not in script["text"]
    assert page.text.count(SCRIPT) > 40


def test_no_run_or_a_missing_column_is_said(tmp_path):
    runs = pages.runs()
    with pytest.raises(RequestError, match="no run to set side by side"):
        write_runs(dataclasses.replace(runs, table=runs.table.iloc[:0]), tmp_path / "a")
    with pytest.raises(RequestError, match="no column bias_delta; there are: run"):
        write_runs(
            dataclasses.replace(runs, table=runs.table.drop(columns="bias_delta")), tmp_path / "a"
        )
    assert not (tmp_path / "a").exists()
