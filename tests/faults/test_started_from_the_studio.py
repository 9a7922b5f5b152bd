"""A real start from the page: checked by doctor and the dry run, it trains, and is stopped from its page."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

sys.path.append(str(Path(__file__).parents[1] / "studio"))  # its browser
from browser import launched, new_pages
from studio_browser import serving

ROOT = Path(__file__).parents[2]

TRAINS_MS = 900_000  # beside another heavy test
SHORT = """trainer.test_freq=-1
trainer.val_before_train=False
trainer.total_training_steps=1000
"""


@pytest.fixture(autouse=True)
def own_files(monkeypatch, tmp_path):
    """The studio's files of its user are the test's."""
    for place in ("run_index.cache_folder", "start_drafts.cache_folder", "run_notes.data_folder"):
        monkeypatch.setattr(f"trinity_compat.studio.{place}", lambda: tmp_path / ".own")


@pytest.mark.whole
def test_the_toy_is_started_from_the_page_and_trains(tmp_path, toy):
    for name in ("run_toy_grpo.sh", "toy_reward.py"):
        shutil.copy(ROOT / "examples" / "verl_scripts" / name, tmp_path)
    with serving(tmp_path) as listener, launched() as browser, new_pages(browser, listener) as new_page:
        page = new_page()
        page.goto(f"{listener.url}start?file=run_toy_grpo.sh")
        page.get_by_label("Name").fill("grpo")
        page.get_by_label("Environment").fill(f"TOY_DIR={toy}\nTRAIN_PROMPTS=8\nMINI_PROMPTS=4")
        page.get_by_text("More", exact=True).click()
        page.get_by_label("Set", exact=True).fill(SHORT)
        page.get_by_role("button", name="Check", exact=True).click()
        expect(page.get_by_role("button", name="Start", exact=True)).to_be_visible()
        expect(page.get_by_label("Plan")).to_contain_text(f"job       {tmp_path}/grpo")
        expect(page.get_by_role("row", name=re.compile("^memory"))).to_contain_text("GiB free")
        assert not (tmp_path / "grpo").exists()
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/run/grpo", timeout=TRAINS_MS)
        try:
            expect(page.get_by_role("heading", name="launcher")).to_be_visible()
            expect(page.locator("#t-step")).not_to_have_text("0", timeout=TRAINS_MS)
            expect(page.locator("#charts .chart").first).to_be_visible()
        finally:
            page.get_by_role("link", name="Stop…").click()
            page.get_by_role("button", name="Stop the run").click()
            expect(page.locator("#stop")).to_be_hidden()
