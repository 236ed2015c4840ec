import dataclasses
import itertools
import warnings

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib import _pylab_helpers
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from eval.inference import InferenceSettings, compare, plain_verdict
from eval.report import figures, tables
from eval.report.figures import heat, margins, style
from tests.eval.scored import simulated, table

FAST = InferenceSettings(resamples=200)
NAMES = ("$\\alpha", "<script>", "transgender")
LONG = "people whom a label names that goes on and on, far beyond the width of any figure"
ONE = table([("gay", "s0", -1.0, -2.0), ("gay", "s0", -2.0, -1.0)])


def with_threshold(comparison):
    """A made-up curve: what B computes is not what is tested here."""
    steps = np.linspace(0, 2, 5)
    rows = pd.DataFrame({"scope": "overall", "threshold": steps})
    for at, when in enumerate(("before", "after")):
        rows[when] = 80 - 20 * at - 10 * steps
        rows[f"{when}_low"], rows[f"{when}_high"] = rows[when] - 4, rows[when] + 5
        rows[f"decided_{when}"] = 100 - 30 * steps - at
    other = rows.assign(scope="macro", before=1.0, after=2.0)
    return dataclasses.replace(comparison, threshold=pd.concat([rows, other], ignore_index=True))


def made(groups=NAMES, name="samples_de", clusters=12, **changes):
    scores = simulated(clusters, groups=groups, **changes)
    return scores, with_threshold(compare(*scores, FAST, name=name))


@pytest.fixture(scope="module")
def demo():
    return made()


def texts(figure):
    """Every text that is drawn."""
    figure.canvas.draw()
    return [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text()]


def lines(axes, zorder):
    return [line for line in axes.lines if line.get_zorder() == zorder]


def is_whole(figure):
    """Whether nothing that is drawn reaches over the figure's edge, inches."""
    figure.canvas.draw()
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    return min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.02


@pytest.fixture(scope="module")
def written(demo, tmp_path_factory):
    """The folder with every figure of one benchmark, and the map."""
    scores, comparison = demo
    folder = tmp_path_factory.mktemp("figures")
    figures.write({"samples_de": comparison}, folder)
    figures.write_details({"samples_de": comparison}, {"samples_de": scores}, folder)
    figures.write_heat(HEAT, folder)
    return folder


# --- levels ---------------------------------------------------------------------------------


def test_the_levels_drawn_are_those_of_the_table(demo):
    _, comparison = demo
    axes = figures.draw(comparison).axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    rows = {tables.scope_label(row["scope"]): row for _, row in comparison.rows("bias").iterrows()}
    marks, spans = lines(axes, 4), lines(axes, 3)
    assert len(marks) == len(spans) == 2 * len(rows)
    for line, ends in zip(marks, spans, strict=True):
        y = line.get_ydata()[0]
        row, when = rows[labels[round(y)]], "before" if y > round(y) else "after"
        assert line.get_xdata()[0] == row[when]
        assert list(ends.get_xdata()) == [row[f"{when}_low"], row[f"{when}_high"]]
    assert labels[-2:] == ["macro (M)", "overall (W)"]
    groups = [rows[label]["before"] for label in labels[:-2]]
    assert groups == sorted(groups)
    assert 50 in [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    low, high = axes.get_xlim()
    assert low <= 30
    assert high >= 70


def test_one_cluster_draws_marks_without_intervals():
    comparison = compare(ONE, ONE, FAST)
    assert not lines(figures.draw(comparison).axes[0], 3)
    forest = figures.draw_forest(comparison)
    assert not lines(forest.axes[0], 3)
    assert texts(forest).count("one cluster") == 3


def test_only_ties_are_said():
    tied = table([("gay", f"s{at}", -1.0, -1.0) for at in range(4)])
    comparison = compare(tied, tied, dataclasses.replace(FAST, ties="exclude"))
    assert texts(figures.draw(comparison)).count(" only ties") == 3
    assert texts(figures.draw_forest(comparison)).count("only ties") == 3


# --- the forest -----------------------------------------------------------------------------


def test_the_forest_shows_changes_intervals_and_adjusted_p(demo):
    _, comparison = demo
    figure = figures.draw_forest(comparison)
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    rows = {tables.scope_label(row["scope"]): row for _, row in comparison.rows("bias").iterrows()}
    said = texts(figure)
    for line, ends in zip(lines(axes, 4), lines(axes, 3), strict=True):
        row = rows[labels[round(line.get_ydata()[0])]]
        assert line.get_xdata()[0] == row["delta"]
        assert list(ends.get_xdata()) == [row["ci_low"], row["ci_high"]]
        hollow = line.get_markerfacecolor() == "white"
        assert hollow == (plain_verdict(row["verdict"]) == "not shown")
        assert tables.p_cell(row["p_adjusted"]) in said
        assert tables.interval(row["ci_low"], row["ci_high"]) in said
    ordered = [rows[label]["delta"] for label in labels[:-2]]
    assert ordered == sorted(ordered)
    zone = FAST.equivalence_points
    spans = [patch for patch in axes.patches if patch.get_width() == pytest.approx(2 * zone)]
    assert [patch.get_x() for patch in spans] == [-zone]


def test_the_verdicts_of_a_forest_differ_in_grey():
    looks = figures.forest._LOOKS
    assert len({(mark, filled) for _, mark, filled in looks.values()}) == len(looks)
    _, comparison = made(groups=("gay",), effect=0.0, run_noise=0.0)
    changed = comparison.table.copy()
    bias = changed["metric"] == "bias"
    changed.loc[bias, "verdict"] = ["unchanged", "away from 50", "crossed over (only 3)"]
    figure = figures.draw_forest(dataclasses.replace(comparison, table=changed))
    marks = {line.get_marker() for line in lines(figure.axes[0], 4)}
    assert marks == {"|", "D", "s"}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:3] == ["away from 50", "crossed over", "unchanged"]


# --- margins --------------------------------------------------------------------------------


def test_margins_are_means_by_cluster_in_any_order(demo):
    (before, after), comparison = demo
    mixed = dataclasses.replace(
        after, table=after.table.sample(frac=1, random_state=3).reset_index(drop=True)
    )
    x, y = margins.cluster_margins(before, mixed)
    names = sorted(before.table["stereotype_id"].unique())
    for at, name in enumerate(names):
        rows = np.flatnonzero(before.table["stereotype_id"] == name)
        assert x[at] == pytest.approx(before.margin[rows].mean(), rel=1e-12)
        assert y[at] == pytest.approx(after.margin[rows].mean(), rel=1e-12)
    axes = figures.draw_margins(before, mixed, comparison).axes[0]
    drawn = np.concatenate([part.get_offsets() for part in axes.collections])
    assert sorted(map(tuple, drawn.tolist())) == sorted(zip(x.tolist(), y.tolist(), strict=True))
    crossed = [part for part in axes.collections if part.get_label() == "changed sides"]
    assert all(a * b < 0 for a, b in crossed[0].get_offsets())
    counts = [int(text.get_text()) for text in axes.texts]
    assert counts == [
        int(((x < 0) & (y > 0)).sum()),
        int(((x > 0) & (y > 0)).sum()),
        int(((x < 0) & (y < 0)).sum()),
        int(((x > 0) & (y < 0)).sum()),
    ]


def test_margins_show_no_sentence(demo, written):
    scores, _ = demo
    source = (written / "samples_de-margins.svg").read_text("utf-8")
    for column in ("sent_more", "sent_less"):
        assert not any(f">{text}<" in source for text in scores[0].table[column])


def test_many_clusters_become_hexagons():
    rng = np.random.default_rng(0)
    rows = [("gay", f"s{at}", *rng.normal(-20, 1, 2)) for at in range(1600)]
    before = table(rows)
    comparison = compare(before, before, dataclasses.replace(FAST, resamples=100))
    figure = figures.draw_margins(before, before, comparison)
    (drawn,) = figure.axes[0].collections
    assert drawn.get_array().sum() == len(rows)
    assert "pairs" in texts(figure)


# --- the threshold --------------------------------------------------------------------------


def test_the_threshold_curve_is_the_overall_one_with_its_band(demo):
    _, comparison = demo
    of = comparison.threshold[comparison.threshold["scope"] == "overall"]
    upper, lower = figures.draw_threshold(comparison).axes
    for when in ("before", "after"):
        drawn = [line for line in upper.lines if line.get_label() == f"{when}, 95 % band"]
        assert drawn[0].get_ydata().tolist() == of[when].tolist()
    bands = [part.get_paths()[0].vertices[:, 1] for part in upper.collections]
    assert [(band.min(), band.max()) for band in bands] == [
        (of["before_low"].min(), of["before_high"].max()),
        (of["after_low"].min(), of["after_high"].max()),
    ]
    assert [line.get_ydata().tolist() for line in lower.lines] == [
        of["decided_before"].tolist(),
        of["decided_after"].tolist(),
    ]
    with pytest.raises(ValueError, match="no threshold table"):
        figures.draw_threshold(dataclasses.replace(comparison, threshold=None))


# --- the curve ------------------------------------------------------------------------------


def curve(loss=(3.5, np.nan, 3.0)):
    return pd.DataFrame(
        [
            {
                "step": step, "epoch": step / 10, "benchmark": name, "scope": scope, "n_pairs": 40,
                "bias": 80.0 - step, "margin": 1.0 - step / 50, "valid_loss": found,
            }
            for name in ("samples_de", "two")
            for step, found in zip((0, 10, 20), loss, strict=True)
            for scope in ("overall", "macro", "group:gay")
        ]
    )  # fmt: skip


def test_the_curve_shows_the_loss_where_it_was_evaluated_and_as_perplexity():
    figure = figures.draw_curve(curve())
    *panels, below = figure.axes
    assert len(panels) == 4
    (line,) = below.lines
    assert line.get_xdata().tolist() == [0, 20]
    assert line.get_ydata().tolist() == [3.5, 3.0]
    figure.canvas.draw()
    (beside,) = below.child_axes
    assert np.allclose(beside.get_ylim(), np.exp(below.get_ylim()))
    assert len(figures.draw_curve(curve((np.nan,) * 3)).axes) == 4
    assert len(figures.draw_curve(curve().drop(columns="valid_loss")).axes) == 4


# --- the heat map ---------------------------------------------------------------------------

HEAT = pd.DataFrame(
    {"group:gay": [3.25, 50.0], "overall": [96.8, np.nan], "$x_$": [49.96, 71.0]},
    index=["gpt2", "<b>"],
)


def test_the_map_prints_each_number_and_marks_its_side():
    figure = figures.draw_heat(HEAT)
    axes = figure.axes[0]
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    for (y, x), value in np.ndenumerate(HEAT.to_numpy()):
        assert shown[x, y] == ("–" if np.isnan(value) else f"{value:.1f}")
    assert np.array_equal(axes.images[0].get_array().filled(np.nan), HEAT, equal_nan=True)
    assert [t.get_text() for t in axes.get_xticklabels()] == ["gay", "overall (W)", "$x_$"]
    corners = {}
    for patch in axes.patches:
        centre = patch.get_xy()[:3].mean(axis=0)
        x, y = round(centre[0] - 0.2), round(centre[1])
        corners[HEAT.iloc[y, x]] = "above" if centre[1] < y else "below"
    assert corners == {3.25: "below", 96.8: "above", 71.0: "above"}  # 50.0 and what prints so: none


def test_fifty_is_the_middle_and_every_number_can_be_read():
    assert heat._MAP(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.01)
    for value in np.linspace(0, 100, 201):
        colour = heat._MAP(value / 100)[:3]
        assert heat.contrast(heat.ink_on(colour), colour) >= 4.5  # WCAG AA
    assert heat.contrast("black", "white") == pytest.approx(21)


def test_many_groups_go_down_the_page():
    wide = pd.DataFrame(np.full((2, 20), 60.0), index=["a", "b"])
    wide.columns = [f"g{at}" for at in range(20)]
    axes = figures.draw_heat(wide).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["a", "b"]
    assert axes.images[0].get_array().shape == (20, 2)


# --- what all share -------------------------------------------------------------------------


def of_one(scores, comparison):
    return {
        "levels": figures.draw(comparison),
        "forest": figures.draw_forest(comparison),
        "margins": figures.draw_margins(*scores, comparison),
        "threshold": figures.draw_threshold(comparison),
    }


def of_many():
    return {"curve": figures.draw_curve(curve()), "heat": figures.draw_heat(HEAT)}


@pytest.mark.parametrize("groups", [NAMES, (LONG, "gay"), tuple(f"group {at}" for at in range(20))])
def test_no_text_is_cut_and_no_layout_fails(groups):
    scores, comparison = made(groups=groups, clusters=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a layout that has no room
        for name, figure in of_one(scores, comparison).items():
            assert is_whole(figure), name


def test_one_pair_and_many_models_are_drawn_whole():
    one = table([("gay", "s0", -1.0, -2.0)])
    few = with_threshold(compare(one, one, FAST))
    long = HEAT.rename(columns={"overall": LONG}, index={"gpt2": LONG})
    several = of_one((one, one), few) | of_many() | {"long": figures.draw_heat(long)}
    for name, figure in several.items():
        assert is_whole(figure), name


def test_scope_names_do_not_overlap():
    _, comparison = made(groups=(LONG, LONG[::-1], "gay"))
    for figure in (figures.draw(comparison), figures.draw_forest(comparison)):
        figure.canvas.draw()
        boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        assert all(low.y1 <= high.y0 + 1 for low, high in itertools.pairwise(boxes))


def test_what_names_hold_is_shown_as_text(written):
    sources = {path.stem: path.read_text("utf-8") for path in written.glob("*.svg")}
    assert len(sources) == 5
    for source in sources.values():
        assert "<script" not in source
        assert "<b>" not in source
    for stem in ("samples_de", "samples_de-forest"):
        for label in ("$\\alpha", "&lt;script&gt;", "transgender", "overall (W)", "macro (M)"):
            assert label in sources[stem], label
    assert "$x_$" in sources["heat"]


def test_long_names_keep_their_beginning_and_end():
    assert style.wrapped("gay") == "gay"
    assert style.wrapped("two lines of a name, no more") == "two lines of a name, no\nmore"
    short = style.wrapped(LONG)
    assert short.startswith("people whom a label")
    assert short.endswith("the width of any figure")
    assert short.count("\n") == 1
    assert max(map(len, short.split("\n"))) <= 27


def test_figures_are_named_by_benchmark_and_never_share_a_file(demo, tmp_path, monkeypatch):
    scores, comparison = demo
    names = (
        "samples_de",
        "samples/de",
        "samples de",
        "../up",
        "curve",
        "heat",
        "samples_de-forest",
    )
    stems = {figures.stem(name) for name in names}
    details = {f"{stem}-{kind}" for stem in stems for kind in ("forest", "margins", "threshold")}
    assert len(stems) == len(names)
    assert not stems & (details | {"curve", "heat"})
    monkeypatch.setattr(style, "FORMATS", ("svg",))
    few = dict.fromkeys(("samples_de", "../up"), comparison)
    paths = figures.write(few, tmp_path)
    paths += figures.write_details(few, {"samples_de": scores}, tmp_path)
    assert [path.stem.removeprefix(figures.stem("../up")) for path in paths] == [
        *("samples_de", "", "samples_de-forest", "samples_de-margins", "samples_de-threshold"),
        *("-forest", "-threshold"),  # no scores, no margins
    ]
    assert {path.parent for path in paths} == {tmp_path}
    assert all(path.is_file() for path in paths)


def test_the_same_numbers_give_the_same_files(demo, written, tmp_path, monkeypatch):
    scores, comparison = demo
    paths = figures.write({"samples_de": comparison}, tmp_path)
    monkeypatch.setattr(style, "FORMATS", ("svg",))
    paths += figures.write_details({"samples_de": comparison}, {"samples_de": scores}, tmp_path)
    paths += figures.write_heat(HEAT, tmp_path)
    assert len(paths) == 3 + 4
    for path in paths:
        assert path.read_bytes() == (written / path.name).read_bytes(), path.name
    ends = [path.name.removeprefix("samples_de") for path in written.iterdir()]
    assert len(ends) == 15
    assert {f".{each}" for each in figures.FORMATS} <= set(ends)


def test_drawing_leaves_no_global_state(demo):
    before = dict(matplotlib.rcParams)
    of_one(*demo)
    of_many()
    assert dict(matplotlib.rcParams) == before
    assert not _pylab_helpers.Gcf.figs


def test_before_and_after_differ_in_grey_by_more_than_colour(demo):
    axes = figures.draw(demo[1]).axes[0]
    faces = {line.get_markerfacecolor() for line in lines(axes, 4)}
    assert faces == {"white", style.AFTER}
    lightness = [sum(to_rgb(colour)) for colour in (style.INK, style.FAINT)]
    assert lightness[1] - lightness[0] > 1
