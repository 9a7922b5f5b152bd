"""Every page in a real browser: nothing of a run's text acts, nothing is refused by the policy, no serious
finding of axe-core, nothing wider than the window, and what happens in a run arrives."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright
from studio_browser import axe, chromium, serving
from studio_jobs import STEPS, make_job, train_step

from trinity_compat.buffer import open_buffer

pytestmark = pytest.mark.runtime
PAGES = {
    "runs": "/",
    "run": "/run/toy/grpo",
    "finished": "/run/done",
    "configuration": "/configuration/toy/grpo",
    "experiences": "/experiences/toy/grpo?text=sort",
    "group": "/group/toy/grpo?id=2",
    "choose": "/compare",
    "compare": "/compare?a=done&b=other",
    "answers": "/answers?a=done&b=other&task=toy/sort 1",
    "stop": "/stop/toy/grpo",
    "resume": "/resume/done",
}
SIZES = {"wide": (1280, 900, "light"), "narrow": (390, 844, "dark")}
_AXE = """axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
    .filter(each => ['serious', 'critical'].includes(each.impact))
    .map(each => [each.id, each.nodes.map(node => node.html)]))"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs")
    make_job(root / "toy" / "grpo", state="running")
    make_job(root / "done")
    make_job(root / "other", evil=False)
    return root


@pytest.fixture(scope="module")
def address(jobs):
    with serving(jobs) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def opened(browser, address):
    """Opens a page; at the end, nothing was refused or failed in any."""
    contexts, said = [], []

    def go(path, size="wide"):
        width, height, scheme = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda each: said.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address + path)
        if page.locator("#charts[data-address]").count():
            page.wait_for_selector("#charts[data-ready]")
        if page.locator("#live").count():
            page.wait_for_selector("#live[data-ready]")
            expect(page.locator(".log pre")).to_have_count(2)
        return page

    yield go
    for context in contexts:
        context.close()
    assert said == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_safe_and_accessible(opened, name, size):
    page = opened(PAGES[name], size)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.stolen") is None
    page.evaluate(axe())
    assert page.evaluate(_AXE) == []
    if folder := os.environ.get("STUDIO_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}-{size}.png", full_page=True)


def test_a_step_that_ends_arrives_in_an_open_page(opened, jobs):
    page = opened("/run/toy/grpo")
    assert page.locator("#t-step").inner_text() == str(STEPS)
    buffer = open_buffer(f"sqlite:///{jobs}/toy/grpo/buffer/experiences.db")
    train_step(buffer, STEPS + 1)
    expect(page.locator("#t-step")).to_have_text(str(STEPS + 1))
    expect(page.locator(".chart .value").first).to_have_text("0.7")
    with (jobs / "toy" / "grpo" / "log" / "trainer.log").open("a") as log:
        log.write("a new line <b>of text</b>\n")
    expect(page.locator(".log pre").first).to_contain_text("a new line <b>of text</b>")


def test_a_metric_is_added_smoothed_kept_and_taken_away(opened):
    page = opened("/run/done")
    first = page.locator("#charts .chart").count()
    page.fill("#add", "perf/tokens_per_second")
    page.fill("#add", "timing_s/step")
    page.keyboard.press("Enter")
    expect(page.locator("#charts .chart")).to_have_count(first + 1)
    page.check("#log")
    page.locator("#smooth").press("End")
    page.reload()
    page.wait_for_selector("#live[data-ready]")
    assert page.locator("#charts .chart").count() == first + 1
    page.get_by_role("button", name="Remove timing_s/step").click()
    assert page.locator("#charts .chart").count() == first


def test_the_keyboard_reaches_everything_and_the_theme_stays(opened):
    page = opened("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.id"))
    assert {"/", "/compare", "theme", "/run/done", "/run/toy/grpo"} <= set(seen)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_an_answer_is_found_pinned_and_found_again(opened):
    page = opened("/experiences/done")
    page.fill("[name=text]", "answer5x2x1")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(1)
    page.locator("a.reward-tag").click()
    chosen = page.locator(".answer:target")
    chosen.get_by_label("pin").check()
    chosen.get_by_placeholder("a note").fill("look at <b>this</b>")
    chosen.get_by_role("button", name="Keep").click()
    expect(chosen.get_by_label("pin")).to_be_checked()
    page.goto(page.url.partition("/group")[0] + "/experiences/done?pinned=on")
    expect(page.locator(".answer")).to_have_count(1)
    expect(page.locator(".note")).to_have_text("look at <b>this</b>")


def test_the_configuration_is_filtered_as_one_types(opened):
    page = opened("/configuration/done")
    page.fill("#filter", "nothing like it")
    assert page.locator("#filtered tbody tr:visible").count() == 0
    page.fill("#filter", "LR run.sh:7")
    assert page.locator("#filtered tbody tr:visible").count() == 1
