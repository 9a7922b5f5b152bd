"""The studio's pages of a real run, from its first second to a stop by the page, in a real browser."""

import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

sys.path.append(str(Path(__file__).parents[1] / "studio"))
from browser import WAIT_MS, accessible, chromium
from studio_browser import serving


@pytest.fixture
def page():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        made = browser.new_page()
        made.set_default_timeout(WAIT_MS)
        yield made
        browser.close()


@pytest.mark.runtime
@pytest.mark.whole
def test_a_run_is_watched_read_and_stopped(run, page):
    one = run("trainer.total_training_steps=1000").start()
    one.wait_for(lambda: (one.job / "buffer" / "experiences.db").exists())
    name = str(one.job.relative_to(one.cwd))
    with serving(one.cwd) as door:
        address = door.url.rstrip("/")
        page.goto(door.address)
        page.goto(f"{address}/run/{name}")
        expect(page.locator("#t-step")).to_have_text(re.compile("[2-9]|..+"))
        expect(page.locator("#charts .chart").first).to_be_visible()
        expect(page.get_by_label("log of trainer", exact=True)).to_contain_text("step:1 ")
        assert accessible(page)
        page.goto(f"{address}/experiences/{name}?sort=reward")
        page.locator(".answers a").first.click()
        # Of answers that are the same one is shown, with the places of the others.
        expect(page.locator("article.answer, article.answer .facts span[id]")).to_have_count(8)
        expect(page.locator("article.answer .tokens .t").first).to_be_visible()
        assert accessible(page)
        page.goto(f"{address}/stop/{name}")
        page.get_by_role("button", name="Stop the run").click()
        one.ends()
        expect(page.locator("h1")).to_contain_text("grpo")
    assert one.code == 128 + 15
    one.nothing_is_left_and_nothing_lost()
