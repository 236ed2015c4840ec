"""The report opened in a real browser (Debian's Chromium), as a reader would.

AXE_PATH names axe-core's axe.min.js (`npm pack axe-core`); without it, or without Chromium or
playwright, the tests that need them are skipped and say so.
"""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval.inference import compare
from eval.report import html
from tests.eval import pages
from tests.eval.pages import FAST
from tests.eval.scored import simulated

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
NAMES = ("demo", "extreme", "runs", "script")
SCRIPT = "<script>document.title = 'taken'; alert('x')</script>"
PHONE = {"width": 390, "height": 844}


def _scripted() -> str:
    """A report whose group, sentences, names and notes are scripts."""
    before, after = simulated(clusters=4, groups=(SCRIPT, "gay"))
    for scores in (before, after):
        scores.table["sent_more"] = SCRIPT
    comparison = compare(before, after, FAST)
    report = dataclasses.replace(
        pages.demo(),
        title=SCRIPT,
        command=SCRIPT,
        recipe_yaml=SCRIPT,
        manifest={"version": {SCRIPT: SCRIPT}},
        comparisons={SCRIPT: comparison},
        scores={SCRIPT: (before, after)},
        notes=[SCRIPT],
        curve=pages.curve((SCRIPT,)).assign(benchmark=SCRIPT),
    )
    return html.render(report)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    sources = {
        "demo": html.render(pages.demo()),
        "extreme": html.render(pages.extreme()),
        "runs": html.render_runs(pages.runs()),
        "script": _scripted(),
    }
    found = {}
    for name, source in sources.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(source, encoding="utf-8", newline="\n")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM)
        yield found
        found.close()


@dataclasses.dataclass
class Opened:
    """An open page, and what went wrong in it."""

    page: Any
    told: list[str]  # console messages, errors, dialogs
    asked: list[str]  # addresses asked for


@pytest.fixture
def open_page(browser: Any, files: dict[str, Path]) -> Iterator[Any]:
    contexts = []

    def opened(name: str, **how: Any) -> Opened:
        context = browser.new_context(
            **({"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | how)
        )
        contexts.append(context)
        page = context.new_page()
        found = Opened(page, [], [])
        page.on("console", lambda message: found.told.append(message.text))
        page.on("pageerror", lambda error: found.told.append(str(error)))
        page.on("request", lambda request: found.asked.append(request.url))

        def dialog(shown: Any) -> None:
            found.told.append(f"dialog: {shown.message}")
            shown.dismiss()

        page.on("dialog", dialog)
        page.goto(files[name].as_uri())
        return found

    yield opened
    for context in contexts:
        context.close()


def column(page: Any, table: str, number: int) -> list[str]:
    """A column's texts in the last body of the table in the region of that name."""
    rows = page.locator(f'[aria-label="{table}"] tbody').last.locator("tr:not([hidden])")
    return rows.locator(f"xpath=./*[{number}]").all_inner_texts()


@pytest.mark.parametrize("name", NAMES)
def test_no_error_and_no_request(name, open_page, files):
    opened = open_page(name)
    for folded in opened.page.locator("details > summary").all():
        folded.click()
    opened.page.mouse.wheel(0, 20_000)
    assert opened.told == []
    assert opened.asked == [files[name].as_uri()]
    assert opened.page.title() != "taken"


def test_the_policy_stops_what_is_not_ours(open_page):
    """The browser keeps to the policy: neither a script nor a style nor a picture gets in."""
    opened = open_page("demo")
    opened.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "document.title = 'taken'";
            const style = document.createElement("style");
            style.textContent = "body { display: none }";
            const image = document.createElement("img");
            image.src = "https://example.org/x.png";
            document.body.append(script, style, image);
        }"""
    )
    opened.page.wait_for_timeout(100)
    assert opened.page.title() != "taken"
    assert opened.page.locator("h1").is_visible()
    assert len([line for line in opened.told if "Content Security Policy" in line]) == 3


def test_a_table_sorts_by_keyboard(open_page):
    page = open_page("demo").page
    table = "Bias by group, samples_de"
    head = page.locator(f'[aria-label="{table}"] thead th').nth(3)  # the change
    first = column(page, table, 4)
    assert head.get_attribute("aria-sort") == "none"
    head.locator("button").focus()

    def numbers() -> list[float]:
        return [float(text.replace("−", "-")) for text in column(page, table, 4)]

    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert numbers() == sorted(numbers())
    assert len(numbers()) == len(pages.GROUPS)  # overall and macro stay above
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers() == sorted(numbers(), reverse=True)
    assert page.get_by_role("status").filter(has_text="sorted by Δ, descending").count() == 1
    page.keyboard.press("Enter")
    assert column(page, table, 4) == first
    whole = page.locator(f'[aria-label="{table}"] tbody.whole th').all_inner_texts()
    assert whole == ["overall (W)", "macro (M)"]


def test_what_is_not_defined_sorts_last_either_way(open_page):
    page = open_page("runs").page
    table = "Runs side by side"
    heads = page.locator(f'[aria-label="{table}"] thead th').all_inner_texts()
    at = next(n for n, head in enumerate(heads) if head.startswith("Δ perplexity"))
    button = page.locator(f'[aria-label="{table}"] thead button').nth(at)
    for _ in range(2):
        button.click()
        assert column(page, table, at + 1)[-2:] == ["– (not measured)"] * 2


def test_a_table_filters_and_counts(open_page):
    page = open_page("demo").page
    field = page.get_by_label("Filter rows of Bias by group, samples_de")
    field.fill("SEXUAL")
    found = column(page, "Bias by group, samples_de", 1)
    assert found == ["asexual", "bisexual", "pansexual"]
    count = page.locator(".filter output").first
    assert count.inner_text() == "3 of 8 rows"
    field.fill("sexual no such")
    assert count.inner_text() == "0 of 8 rows"
    field.fill("")
    assert len(column(page, "Bias by group, samples_de", 1)) == 8


def test_sentences_stay_hidden_until_the_click(open_page):
    page = open_page("demo").page
    sentence = page.get_by_text("more 1", exact=False).first
    shown = page.locator("td.wrap").filter(has_text="more ").first
    assert not shown.is_visible()
    assert not sentence.is_visible()
    assert not page.get_by_text("a left-out sentence").is_visible()
    page.get_by_text("Show the 20 pairs of samples_de").click()
    assert shown.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # printing opens the rest only
    assert not page.get_by_text("a left-out sentence").is_visible()
    assert page.locator('[aria-label="Published tests, samples_de"]').is_visible()


def test_values_show_on_hover_and_on_focus(open_page):
    opened = open_page("demo")
    page = opened.page
    chart = page.locator("figure").first
    rows = chart.locator(".track")
    assert rows.count() == 2 + len(pages.GROUPS)
    stops = [row.get_attribute("tabindex") for row in rows.all()]
    assert stops == ["0"] + ["-1"] * (len(stops) - 1)  # one stop of the Tab key
    tip = chart.locator(".tip")
    assert not tip.is_visible()
    rows.nth(3).hover()
    assert tip.is_visible()
    group = rows.nth(3).get_attribute("aria-label").partition(";")[0]
    assert tip.inner_text().startswith(group)
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    rows.first.focus()
    assert tip.inner_text().startswith("overall (W)\nbefore ")
    page.keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("macro (M)")
    page.keyboard.press("End")
    assert rows.last.evaluate("node => node === document.activeElement")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    last = page.locator("figure").last
    last.locator(".stop").last.hover()
    assert last.locator(".tip").inner_text().startswith("beyond ")
    assert opened.told == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_a_phone_scrolls_down_only(name, scheme, open_page):
    page = open_page(name, viewport=PHONE, color_scheme=scheme).page
    for folded in page.locator("details").all():
        folded.evaluate("node => { node.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.evaluate("scrollTo(500, 0)")
    assert page.evaluate("scrollX") == 0
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_table_of_a_phone_scrolls_by_itself_and_keeps_its_names(open_page):
    page = open_page("demo", viewport=PHONE).page
    wide = page.locator('[aria-label="Bias by group, samples_de"]')
    assert wide.evaluate("node => node.scrollWidth > node.clientWidth")
    name = wide.locator("tbody th").last
    before = name.bounding_box()["x"]
    wide.evaluate("node => { node.scrollLeft = 200; }")
    assert name.bounding_box()["x"] == before


def test_all_of_it_stands_there_without_script(open_page):
    page = open_page("demo", java_script_enabled=False).page
    assert page.locator("table.data").count() > 8
    assert page.locator(".filter").count() == 0
    assert page.locator("thead button").count() == 0
    assert page.locator(".track > title").count() == 2 + len(pages.GROUPS)  # a browser's own tip
    page.get_by_text("Show the 20 pairs of samples_de").click()
    assert page.locator("td.wrap").filter(has_text="more ").first.is_visible()


def test_print_is_light_and_whole(open_page):
    page = open_page("demo", color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(0, 0, 0)"
    assert not page.locator("nav").is_visible()
    assert not page.locator(".filter").first.is_visible()


def test_script_of_data_is_shown_as_text(open_page):
    opened = open_page("script")
    page = opened.page
    assert page.locator("h1").inner_text() == SCRIPT
    assert page.evaluate("document.scripts.length") == 1
    page.get_by_text("whose margin changed most").click()
    assert page.locator("td.wrap").filter(has_text=SCRIPT).first.is_visible()
    page.locator(".track").nth(2).hover()
    assert page.locator(".tip").first.inner_text().startswith((SCRIPT, "gay"))
    page.locator("thead button").first.click()
    assert opened.told == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["demo", "extreme", "runs"])
def test_axe_finds_no_serious_violation(name, scheme, open_page):
    path = os.environ.get("AXE_PATH")
    if not path:
        pytest.skip("AXE_PATH names no axe.min.js (npm pack axe-core)")
    # axe is put in from outside, past the page's own policy
    page = open_page(name, color_scheme=scheme, bypass_csp=True).page
    for folded in page.locator("details").all():
        folded.evaluate("node => { node.open = true; }")
    page.evaluate(Path(path).read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    bad = [
        (each["id"], each["impact"], each["nodes"][0]["html"][:200], each["nodes"][0]["any"][:1])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert bad == []
