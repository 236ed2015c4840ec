import csv
import dataclasses
import io
import json
import re
import shutil
import subprocess
import types
import typing

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from eval.errors import RequestError
from eval.inference import (
    DELTA_COLUMNS,
    PUBLISHED_COLUMNS,
    TWO_WAY_COLUMNS,
    InferenceSettings,
    compare,
    holm,
    signed,
    stars,
)
from eval.inference.erasure import ERASURE_COLUMNS
from eval.inference.harm import HARM_COLUMNS
from eval.inference.threshold import THRESHOLD_COLUMNS
from eval.report import tables, terminal
from eval.report.tables import schema, tex
from eval.scores import TERM_COLUMNS
from tests.eval.scored import simulated, table

FAST = InferenceSettings(resamples=200)
NASTY = "a_b & 50% {x} #1 ~ ^ \\y $z$ <i> Grüße—łódź 愛 \"q\" --- ''"
LONG = "Donaudampfschifffahrtsgesellschaftskapitänsmützen_und_alle_anderen"


def compared(name="samples_de", groups=("gay", "lesbian", "transgender"), clusters=12, **changes):
    before, after = simulated(clusters, groups=groups, **changes)
    return compare(before, after, FAST, name=name)


@pytest.fixture(scope="module")
def one():
    return {"samples_de": compared()}


@pytest.fixture(scope="module")
def everything():
    """A comparison with every further table."""
    before, after = simulated(6)
    rng = np.random.default_rng(0)
    for scores in (before, after):
        rows = scores.table
        rows["name"] = [f"n{row % 4}" for row in range(len(rows))]
        rows["harm_mean"] = rows["stereotype_id"].str[1:].astype(float)
        for term in TERM_COLUMNS:
            rows[term] = rng.normal(-8, 1, len(rows))
    comparison = compare(before, after, FAST, name="all")
    for name in ("two_way", "threshold", "harm", "erasure"):
        assert getattr(comparison, name) is not None, name
    return comparison


# --- CSV and JSON ---------------------------------------------------------------------------


def test_csv_keeps_every_row_and_digit(one):
    table_ = one["samples_de"].table
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(one))))
    assert list(rows[0]) == ["benchmark", *DELTA_COLUMNS]
    assert len(rows) == len(table_)
    assert {row["benchmark"] for row in rows} == {"samples_de"}
    assert [float(row["delta"]) for row in rows] == table_["delta"].tolist()


def conforms(value, kind, path="file"):
    """Raise where a value read from JSON is not of a type of `eval.report.tables.schema`."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inside:
            return
        (kind,) = [each for each in inside if each is not type(None)]
        conforms(value, kind, path)
    elif origin is typing.NotRequired:
        conforms(value, inside[0], path)
    elif origin is typing.Literal:
        assert value in inside, f"{path}: {value!r} is none of {inside}"
    elif origin is list:
        assert isinstance(value, list), path
        for at, item in enumerate(value):
            conforms(item, inside[0], f"{path}[{at}]")
    elif origin is dict:
        assert isinstance(value, dict), path
        for key, item in value.items():
            conforms(item, inside[1], f"{path}.{key}")
    elif typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        assert set(value) <= set(hints), f"{path}: {set(value) - set(hints)} are not described"
        assert kind.__required_keys__ <= set(value), f"{path} lacks keys"
        for key, item in value.items():
            conforms(item, hints[key], f"{path}.{key}")
    elif kind is float:
        assert type(value) in (int, float), f"{path}: {value!r}"
    else:
        assert type(value) is kind, f"{path}: {value!r} is no {kind}"


def test_json_is_what_its_types_say(one, everything):
    tied = table([("gay", f"s{at % 3}", -1.0, -1.0) for at in range(9)])
    excluded = compare(tied, tied, dataclasses.replace(FAST, ties="exclude"))
    found = json.loads(tables.as_json({**one, "all": everything, "ties": excluded}))
    conforms(found, schema.Deltas)
    assert found["columns"] == DELTA_COLUMNS
    benchmark = found["benchmarks"]["all"]
    assert list(benchmark["deltas"][0]) == list(DELTA_COLUMNS)
    assert list(benchmark["published"][0]) == list(PUBLISHED_COLUMNS)
    assert list(benchmark["two_way"][0]) == list(TWO_WAY_COLUMNS)
    assert list(benchmark["threshold"][0]) == list(THRESHOLD_COLUMNS)
    assert [row["when"] for row in benchmark["harm"]] == ["before", "after", "change"]
    assert benchmark["harm"][0]["r"] == everything.harm["r"].iloc[0]
    assert benchmark["deltas"][0]["delta"] == everything.table["delta"].iloc[0]


def test_the_types_describe_every_column_and_setting():
    for kind, columns in (
        (schema.DeltaRow, DELTA_COLUMNS),
        (schema.PublishedRow, PUBLISHED_COLUMNS),
        (schema.TwoWayRow, TWO_WAY_COLUMNS),
        (schema.ThresholdRow, THRESHOLD_COLUMNS),
        (schema.HarmRow, HARM_COLUMNS),
        (schema.ErasureRow, ERASURE_COLUMNS),
        (schema.Settings, [each.name for each in dataclasses.fields(InferenceSettings)]),
    ):
        assert list(kind.__annotations__) == list(columns)


def test_a_wrong_file_does_not_conform(one):
    found = json.loads(tables.as_json(one))
    row = found["benchmarks"]["samples_de"]["deltas"][0]
    for key, value in (("p", "0.05"), ("metric", "biass"), ("n_pairs", 3.5), ("more", 1)):
        had = dict(row)
        row[key] = value
        with pytest.raises(AssertionError):
            conforms(found, schema.Deltas)
        row.clear()
        row.update(had)
    conforms(found, schema.Deltas)


def test_what_is_undefined_is_null():
    same = table([("gay", "s0", -1.0, -2.0), ("gay", "s0", -1.0, -2.0)])
    found = json.loads(tables.as_json({"one": compare(same, same, FAST)}))
    rows = found["benchmarks"]["one"]["deltas"]
    for row in rows:
        assert row["p"] is None
        assert row["ci_low"] is None
    assert rows[0]["before"] == 100
    assert rows[0]["moved_toward_50"] is False
    assert all(row["moved_toward_50"] is None for row in rows if row["metric"] == "ties")


# --- Markdown -------------------------------------------------------------------------------


def grid(lines):
    """The first Markdown table's rows as cells."""
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            break
    return rows


def test_markdown_rows_have_equal_cells_whatever_the_names():
    source = tables.as_markdown({"n\n|`": compared(groups=("c*d", "<i>", "[x](y)", "p|q"))})
    for part in source.split("\n\n"):
        if part.startswith("|"):
            assert len({len(row) for row in map(grid, [[line] for line in part.split("\n")])}) == 1
            assert len({len(grid([line])[0]) for line in part.split("\n")}) == 1
    assert "| &lt;i&gt; |" in source
    assert "c\\*d" in source
    assert "<i>" not in source
    assert "[x](y)" not in source


def test_markdown_shows_raw_and_adjusted_p(one):
    head, _, *rows = grid(tables.as_markdown(one).split("\n"))
    bias = one["samples_de"].rows("bias")
    for row, found in zip(rows, bias.to_dict("records"), strict=True):
        cells = dict(zip(head, row, strict=True))
        assert cells["p"] == tables.p_cell(found["p"])
        assert cells["p adj."] == tables.p_cell(found["p_adjusted"])
        assert cells["before"] == f"{found['before']:.1f}"
        assert cells["verdict"] == found["verdict"]


def test_markdown_tells_how_sure_and_what_else_there_is(everything):
    source = tables.as_markdown({"all": everything})
    row = everything.rows("bias").iloc[0]
    assert f"| overall (W) | {row['se']:.2f} | {row['df']:.1f} |" in source
    assert f"| {row['equivalence_margin']:.1f} | {tables.p_cell(row['p_equivalence'])} |" in source
    for words in ("clusters of two kinds", "Margin against harm", "words that differ"):
        assert words in source
    found = everything.erasure.set_index(["scope", "term"]).loc[("group:gay", "identity")]
    cells = ["gay", "identity", f"{found['n_pairs']:.0f}", "6", signed(found["before"], 2)]
    assert f"| {' | '.join(cells)} |" in source


def test_unknown_lengths_leave_the_sigmoid_out():
    scored = [each.table.assign(shared_tokens=0) for each in simulated()]
    pair = [dataclasses.replace(s, table=t) for s, t in zip(simulated(), scored, strict=True)]
    rows = tables.other_rows(compare(*pair, FAST))[1]
    assert {row[1] for row in rows} == {"soft score", "margin", "|bias−50|"}


# --- LaTeX ----------------------------------------------------------------------------------


def test_latex_escapes_names_and_states_units():
    source = tables.as_latex({"x": compared(name=NASTY), NASTY: compared(groups=(NASTY, LONG))})
    for text in (r"a\_b \& 50\% \{x\} \#1 \textasciitilde{}", r"\textasciicircum{}", r"\$z\$"):
        assert text in source
    assert r"Gr\"{u}\ss{}e" in source
    assert "[U+611B]" in source
    assert source.isascii()
    for caption in re.findall(r"\\caption\{(.*)\}\n", source):
        assert "percent" in caption or "points" in caption
    labels = re.findall(r"\\label\{(.*)\}", source)
    assert len(labels) == len(set(labels)) == 6


@given(st.text(max_size=60))
def test_any_text_escapes_to_ascii_and_keeps_its_letters(text):
    escaped = tex.escape(text)
    assert escaped.isascii()
    assert not re.search(
        r"(?<!\\)[&%$#_^~]", re.sub(r"\$[^$]*\$|\\[\"'`^~=.a-zA-Z]\{", "", escaped)
    )
    plain = re.sub(r"\\allowbreak\{\}", "", escaped)
    for word in re.findall(r"[a-zA-Z0-9]+", text):
        assert word in plain


def test_latex_rows_have_as_many_cells_as_columns(one):
    for body in re.findall(
        r"\\begin\{tabular\}\{p\{\d+pt\}(\w+)\}(.*?)\\end\{tabular\}", tables.as_latex(one), re.S
    ):
        rows = [
            line for line in body[1].split("\n") if line.endswith(r"\\") and "multi" not in line
        ]
        assert {line.count(" & ") for line in rows} == {len(body[0])}


def test_a_warning_of_few_clusters_stands_below_the_table():
    source = tables.as_latex({"few": compared(clusters=5)})
    assert "not shown$^{a}$" in source
    assert "$^{a}$ only 5 stereotypes: p cannot go below 0.0625." in source


def test_what_is_to_be_noted_stands_below_the_first_table():
    one = compared(clusters=5)
    noted = dataclasses.replace(one, notes=["5 % of it & more.", "Another."])
    bias, measures, _ = tables.as_latex({"few": noted}).split(r"\end{table*}")[:3]
    below = bias.split(r"\end{tabular}")[1].split(r"\par\smallskip ")
    assert below[1].startswith("$^{a}$ only 5 stereotypes")
    assert below[2].strip() == r"5 \% of it \& more. Another."
    assert "Another" not in measures
    assert r"\par\smallskip" not in tables.as_latex(
        {"x": dataclasses.replace(compared(clusters=40), notes=[])}
    )


def compiled(body, tmp_path):
    """Compile on A4 in two columns; the log."""
    pdflatex = shutil.which("pdflatex")
    if pdflatex is None:
        pytest.skip("no pdflatex: the tables were not compiled")
    head = (
        "\\documentclass[a4paper,twocolumn]{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    )
    (tmp_path / "all.tex").write_text(f"{head}{body}\\end{{document}}\n", "ascii")
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    for _ in range(2):  # the second knows the labels
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    return (tmp_path / "all.log").read_text("latin-1")


def test_every_table_compiles_and_fits_the_page(tmp_path):
    groups = ("LGBTQ", "queer", "transgender", "nonbinary", "bisexual", "pansexual", "lesbian")
    many = compared(name=NASTY, groups=(*groups, "asexual", "gay"), clusters=14)
    few = compared(clusters=5, groups=(NASTY, LONG, "group:odd"))
    names = ["bloom-560m", "german-bert", "gpt2", NASTY, LONG, "xlm-clm", "org/model_name-v1.0"]
    models = dict.fromkeys(names, many)
    rows, published = tables.paper_rows(models), tables.paper_rows(models, published=True)
    body = tables.as_latex({NASTY: many, "few": few})
    for layout in tables.LAYOUTS:
        body += tables.german_table(rows, layout, label=f"tab:{layout}")
    body += tables.german_table(published, "levels", label="tab:published")
    body += tables.dutch_table(rows, "both")
    body += tables.dutch_table(tables.paper_rows({"few": few}), label="tab:few")
    log = compiled(body, tmp_path)
    said = [
        line
        for line in log.splitlines()
        if re.search("Overfull|too large|undefined|multiply", line)
    ]
    assert not said


def test_a_long_table_goes_on_in_further_ones():
    rows = [[str(at), "x"] for at in range(130)]
    source = tex.floats("all", "tab:t", [tex.Tabular("lr", ["h"], rows, frozenset({1, 57}))])
    parts = source.split("\n\n")
    assert len(parts) == 3
    assert [part.count(r" & x \\") for part in parts] == [56, 56, 18]
    assert re.findall(r"^(\d+) & x", source, re.M) == [row[0] for row in rows]
    assert [part.count(r"\midrule") for part in parts] == [2, 2, 1]  # the head's, and the rules
    assert r"\caption{Table \ref{tab:t}, continued.}" in parts[1]
    assert r"\label{tab:t-part3}" in parts[2]


@given(st.lists(st.floats(5, 300), min_size=1, max_size=40))
def test_blocks_hold_every_column_once_and_fit(widths):
    blocks = tex.blocks(widths)
    assert [at for block in blocks for at in block] == list(range(len(widths)))
    for block in blocks:
        used = tex.NAME + sum(widths[at] + tex.GAP for at in block)
        assert used <= tex.TEXT_WIDTH + 1e-9 or len(block) == 1


# --- the papers' layouts --------------------------------------------------------------------


def plain(model, scope, metric, before, delta, p=0.5):
    return {
        "benchmark": "survey", "model": model, "scope": scope, "metric": metric, "before": before,
        "before_se": np.nan, "after": before + delta, "delta": delta, "p": p, "tested": "a test",
    }  # fmt: skip


PLAIN = pd.DataFrame(
    [
        plain("gpt2", "group:gay", "bias", 64.1, -22.0, 0.0009),
        plain("gpt2", "group:gay", "soft", 53.3, -4.7, 0.02),
        plain("gpt2", "group:pan", "bias", 71.0, 1.0),
        plain("gpt2", "group:pan", "soft", 52.0, 0.04),
        plain("gpt2", "overall", "bias", 66.0, -9.0, 0.004),
        plain("gpt2", "overall", "soft", 53.0, -2.0),
        plain("mbert", "group:gay", "bias", 56.1, 14.2, 0.04),
        plain("mbert", "group:gay", "soft", 50.3, -1.5),
        plain("mbert", "overall", "bias", 56.1, 14.2),
        plain("mbert", "overall", "soft", 50.3, -1.5),
    ]
)


def body_of(source):
    """The rows below the heads, as cells."""
    rows = [line.removesuffix(r" \\").split(" & ") for line in source.split("\n") if " & " in line]
    return {row[0].removeprefix(r"\raggedright "): row[1:] for row in rows if row[0]}


def test_the_german_layout_has_groups_down_models_across_and_stars():
    source = tables.german_table(PLAIN)
    assert (
        r"\multicolumn{2}{c}{gpt2} & \multicolumn{2}{c}{mbert} & \multicolumn{2}{c}{mean}" in source
    )
    rows = body_of(source)
    assert rows["gay"] == [
        "64.1/53.3", "$-22.0^{***}$/$-4.7^{*}$", "56.1/50.3", "$+14.2^{*}$/$-1.5$",
        "60.1/51.8", "$-3.9$/$-3.1$",
    ]  # fmt: skip
    assert rows["pan"][:4] == ["71.0/52.0", "$+1.0$/$0.0$", "--", "--"]
    assert list(rows)[-1] == "overall (W)"
    assert "percentage points" in source
    assert "$^{***}p<.001$" in source
    only = body_of(tables.german_table(PLAIN, "deltas"))
    assert only["overall (W)"] == ["$-9.0^{**}$/$-2.0$", "$+14.2$/$-1.5$", "$+2.6$/$-1.8$"]
    assert body_of(tables.german_table(PLAIN, "levels"))["gay"][0] == "64.1/53.3"


def test_the_dutch_layout_has_models_down_and_marks_the_extremes():
    both = pd.concat([PLAIN, pd.DataFrame([plain("gpt2", "group:queer", "bias", 64.1, -50.0)])])
    source = tables.dutch_table(both, "both")
    rows = [line for line in source.split("\n") if " & " in line]
    heads = [rf"\multicolumn{{1}}{{r}}{{{name}}}" for name in ("bias (W)", "Gay", "pan", "Queer")]
    assert rows[0] == " & ".join(["model", *heads]) + r" \\"
    assert (
        rows[1]
        == r"\raggedright gpt2 & 66.0 & \underline{64.1} & \textbf{71.0} & \underline{64.1} \\"
    )
    assert rows[2] == r"\quad after & 57.0 & 42.1 & \textbf{72.0} & \underline{14.1} \\"
    assert rows[3] == r"\raggedright mbert & 56.1 & 56.1 & -- & -- \\"
    assert rows[5].startswith(r"\raggedright mean & 61.0 & \underline{60.1} & \textbf{71.0}")
    with pytest.raises(RequestError, match="when=later"):
        tables.dutch_table(both, "later")
    with pytest.raises(RequestError, match="layout=wide"):
        tables.german_table(both, "wide")
    with pytest.raises(RequestError, match="lack the column p"):
        tables.german_table(both.drop(columns="p"))


def test_several_models_are_one_family():
    models = {name: compared(seed=seed) for name, seed in (("a", 0), ("b", 1), ("c", 2))}
    rows = tables.paper_rows(models)
    for metric in ("bias", "soft"):
        raw = [m.rows(metric, "group")["p"] for m in models.values()]
        some = rows[(rows["metric"] == metric) & rows["scope"].str.startswith("group:")]
        assert some["p"].tolist() == holm(np.concatenate(raw)).tolist()
        assert set(some["tested"]) == {
            "cluster tests, Holm over the 9 tests of each score by group and model"
        }
    printed = body_of(tables.german_table(rows, "deltas"))["gay"]
    first = rows[(rows["model"] == "a") & (rows["scope"] == "group:gay")].set_index("metric")
    expected = [
        f"${row['delta']:+.1f}^{{{stars(row['p'])}}}$".replace("^{}", "")
        for row in (first.loc["bias"], first.loc["soft"])
    ]
    assert printed[0] == "/".join(expected)


def test_as_published_the_numbers_are_the_papers(one):
    comparison = one["samples_de"]
    rows = tables.paper_rows({"m": comparison}, published=True)
    row = comparison.published.set_index(["scope", "metric"]).loc["group:gay"]
    cells = body_of(tables.german_table(rows))["gay"]
    assert cells[0] == "/".join(
        f"{row.loc[m, 'before']:.1f} ({row.loc[m, 'before_se']:.1f})" for m in ("bias", "soft")
    )
    assert cells[1].count("*") == sum(len(row.loc[m, "stars"]) for m in ("bias", "soft"))


def test_models_of_different_benchmarks_are_refused():
    with pytest.raises(RequestError, match="one table must share it"):
        tables.paper_rows({"a": compared("x"), "b": compared("y")})


# --- the terminal ---------------------------------------------------------------------------


def printed(comparisons, where, width=120):
    out = io.StringIO()
    terminal.show(comparisons, where, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def test_the_terminal_shows_a_table_and_two_lines(one, tmp_path):
    lines = printed(one, tmp_path / "report.html").splitlines()
    head = next(line for line in lines if "group" in line)
    for column in ("before", "after", "Δ pp", "95 % interval", " p ", "p adj.", "toward 50?"):
        assert column in head
    row = one["samples_de"].rows("bias").iloc[2]
    shown = next(line for line in lines if "gay" in line)
    assert f"{row['before']:.2f}" in shown
    assert f"{tables.p_cell(row['p'])}" in shown
    assert f"{tables.p_cell(row['p_adjusted'])}" in shown
    assert row["verdict"] in shown
    assert lines[-2] == one["samples_de"].sentences()[0]
    assert lines[-1] == f"Report: {tmp_path / 'report.html'}"


def test_names_are_no_markup_in_the_terminal(tmp_path):
    out = printed({"x": compared(name="[bold]x[/bold]", groups=("[red]gay", "b"))}, tmp_path)
    assert "[red]gay" in out
    assert "[bold]x[/bold]" in out


def test_eighty_columns_cut_nothing(tmp_path):
    """A name folds, numbers and the verdict's words stay whole."""
    comparison = compared(clusters=5, groups=(LONG, "gay"))
    lines = printed({"few": comparison}, tmp_path, 80).splitlines()
    shown = "\n".join(line for line in lines[: lines.index(comparison.sentences()[0])])
    assert "…" not in shown
    assert max(map(len, shown.split("\n"))) <= 80
    for row in comparison.rows("bias").to_dict("records"):
        assert tables.interval(row["ci_low"], row["ci_high"]) in shown
    folded = "".join(line[:12].strip() for line in shown.split("\n"))
    assert LONG in folded
    for word in ("not shown", "(only 5", "stereotypes:", "0.0625)"):
        assert word in shown
