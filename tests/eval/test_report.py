import base64
import csv
import dataclasses
import hashlib
import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from eval.errors import RequestError
from eval.inference import DELTA_COLUMNS, PUBLISHED_COLUMNS, InferenceSettings, compare
from eval.report import ReportInput, figures, html, tables, terminal, write
from eval.scores import Scores
from tests.eval.scored import simulated, table

FAST = InferenceSettings(resamples=200)
SCRIPT = "<script>alert('x')</script>"
RETENTION = {
    "neutral": {
        "kind": "pseudo-perplexity",
        "before": 12.31,
        "after": 12.93,
        "change_percent": 5.04,
        "texts": 200,
        "tokens": 3456,
    }
}
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


def test_a_report_is_all_its_files_and_nothing_else(tmp_path):
    drawn = write(made(), tmp_path / "run")
    assert drawn == {"samples_de": tmp_path / "run" / "figures" / "samples_de.png"}
    found = sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*"))
    assert found == [
        "deltas.csv",
        "deltas.json",
        "deltas.md",
        "deltas.tex",
        "figures",
        *(
            f"figures/samples_de-{kind}.{end}"
            for kind in ("forest", "margins", "threshold")
            for end in ("pdf", "png", "svg")
        ),
        "figures/samples_de.pdf",
        "figures/samples_de.png",
        "figures/samples_de.svg",
        "report.html",
    ]


def test_a_report_can_be_written_again_and_is_the_same(tmp_path):
    write(made(), tmp_path)
    names = [p for p in tmp_path.rglob("*") if p.is_file()]
    first = {p: p.read_bytes() for p in names}
    write(made(), tmp_path)
    assert {p: p.read_bytes() for p in names} == first


def test_a_report_that_fails_leaves_what_was_there(tmp_path):
    write(made(), tmp_path)
    before = (tmp_path / "report.html").read_bytes()
    broken = made(title="another", retention={"neutral": {"kind": "perplexity"}})
    with pytest.raises(KeyError):
        write(broken, tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_nothing_to_report_is_said(tmp_path):
    with pytest.raises(RequestError, match="no benchmark was compared"):
        write(made(comparisons={}), tmp_path)


# --- tables ---------------------------------------------------------------------------------


def test_csv_has_the_benchmark_first_and_keeps_every_digit():
    report = made()
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(report.comparisons))))
    table_ = report.comparisons["samples_de"].table
    assert list(rows[0]) == ["benchmark", *DELTA_COLUMNS]
    assert len(rows) == len(table_)
    assert {row["benchmark"] for row in rows} == {"samples_de"}
    assert [float(row["delta"]) for row in rows] == table_["delta"].tolist()


def test_json_follows_its_schema_and_undefined_is_null():
    one = table([("gay", "s0", -1.0, -2.0), ("gay", "s0", -1.0, -2.0)])
    found = json.loads(tables.as_json({"one": compare(one, one, FAST)}))
    assert found["schema"] == tables.SCHEMA
    assert list(found["columns"]) == list(DELTA_COLUMNS)
    assert list(found["published_columns"]) == list(PUBLISHED_COLUMNS)
    benchmark = found["benchmarks"]["one"]
    assert set(benchmark) == {
        "headline",
        "sentences",
        "notes",
        "settings",
        "unit",
        "deltas",
        "published",
    }
    for row in benchmark["deltas"]:
        assert list(row) == list(DELTA_COLUMNS)
        assert row["p"] is None
        assert row["ci_low"] is None
    assert benchmark["deltas"][0]["before"] == 100
    assert benchmark["deltas"][0]["moved_toward_50"] is False
    ties = [row for row in benchmark["deltas"] if row["metric"] == "ties"]
    assert all(row["moved_toward_50"] is None for row in ties)


def test_latex_escapes_names_and_states_units():
    report = made(name="a_b & 50% {x} #1 ~ ^ \\y $z$")
    source = tables.as_latex(report.comparisons)
    assert r"a\_b \& 50\% \{x\} \#1 \textasciitilde{}" in source
    assert r"\textasciicircum{} \textbackslash{}y \$z\$" in source
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert source.count(rule) == 1
    caption = source[source.index(r"\caption") : source.index(r"\label")]
    assert "percentage points" in caption
    assert "nats" in caption
    assert source.isascii()  # pdflatex compiles it without further packages
    body = source[source.index(r"\midrule") : source.index(r"\bottomrule")].splitlines()[1:]
    columns = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", source)[1])
    assert len(body) == 5  # overall, macro, three groups
    assert all(line.count(" & ") == columns - 1 and line.endswith(r"\\") for line in body)


def test_markdown_rows_have_equal_cells_whatever_the_names():
    report = made(groups=("a|b", "c*d", "<i>"))  # a|b is two groups
    source = tables.as_markdown(report.comparisons)
    rows = [line for line in source.splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
    assert len(cells) == 1
    assert "| &lt;i&gt; |" in source
    assert "c\\*d" in source
    assert "<i>" not in source


# --- the figure -----------------------------------------------------------------------------


def test_figures_are_named_by_benchmark_and_never_share_a_file(tmp_path):
    comparison = made().comparisons["samples_de"]
    several = dict.fromkeys(("samples_de", "samples/de", "samples de", "../up"), comparison)
    paths = figures.write(several, tmp_path)
    assert len(set(paths)) == 3 * len(several)
    assert {path.parent for path in paths} == {tmp_path}
    assert tmp_path / "samples_de.png" in paths
    assert all(path.stat().st_size > 1000 for path in paths)


def test_the_figure_shows_every_scope_the_line_and_what_names_hold(tmp_path):
    report = made(groups=("$\\alpha", "<script>", "transgender"))
    figures.write(report.comparisons, tmp_path)
    source = (tmp_path / "samples_de.svg").read_text("utf-8")
    assert "<script" not in source
    for label in ("$\\alpha", "&lt;script&gt;", "transgender", "overall (W)", "macro (M)"):
        assert label in source, label
    axes = figures.draw(report.comparisons["samples_de"]).axes[0]
    assert 50 in [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    low, high = axes.get_xlim()
    assert low <= 30
    assert high >= 70


def test_one_cluster_draws_marks_without_intervals():
    one = table([("gay", "s0", -1.0, -2.0), ("gay", "s0", -2.0, -1.0)])
    axes = figures.draw(compare(one, one, FAST)).axes[0]
    assert not [
        line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_zorder() == 3
    ]


def test_drawing_leaves_no_global_state():
    import matplotlib
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    figures.draw(made().comparisons["samples_de"])
    assert dict(matplotlib.rcParams) == before
    assert not _pylab_helpers.Gcf.figs


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
    assert rows == [["neutralpseudo-perplexity12.3112.93+5.02003,456"]]
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
    claims, limits = page.text.split("What this does not show")
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
    assert "The sentences of survey_de were not handed to this report." in page.text


# --- the terminal ---------------------------------------------------------------------------


def printed(comparisons, where):
    out = io.StringIO()
    terminal.show(comparisons, where, Console(file=out, width=120, force_terminal=False))
    return out.getvalue()


def test_the_terminal_shows_a_table_and_two_lines(tmp_path):
    comparisons = made().comparisons
    lines = printed(comparisons, tmp_path / "report.html").splitlines()
    head = next(line for line in lines if "group" in line)
    for column in ("before", "after", "Δ pp", "95 % interval", "p adjusted", "toward 50?"):
        assert column in head
    row = comparisons["samples_de"].rows("bias").iloc[2]
    shown = next(line for line in lines if "gay" in line)
    assert f"{row['before']:.1f}" in shown
    assert row["verdict"] in shown
    assert lines[-2] == comparisons["samples_de"].sentences()[0]
    assert lines[-1] == f"Report: {tmp_path / 'report.html'}"


def test_names_are_no_markup_in_the_terminal(tmp_path):
    report = made(name="[bold]x[/bold]", groups=("[red]gay", "b"))
    out = printed(report.comparisons, tmp_path)
    assert "[red]gay" in out
    assert "[bold]x[/bold]" in out
