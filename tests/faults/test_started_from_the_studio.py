"""A run by the studio's pages alone: checked, started, watched, read and stopped, in a real browser."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from browser import accessible, launched, new_pages
from playwright.sync_api import expect

from trinity_compat.run.job_dir.start_record import RecordedStart

sys.path.append(str(Path(__file__).parents[1] / "studio"))
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
    for place in ("run_index.cache_folder", "start_drafts.cache_folder"):
        monkeypatch.setattr(f"trinity_compat.studio.{place}", lambda: tmp_path / ".own")


@pytest.mark.runtime
@pytest.mark.whole
def test_a_run_is_checked_started_watched_read_and_stopped(run, tmp_path, toy):
    for name in ("run_toy_grpo.sh", "toy_reward.py"):
        shutil.copy(ROOT / "examples" / "verl_scripts" / name, tmp_path)
    one = run()  # which the page starts
    one.job = tmp_path / "grpo"
    with serving(tmp_path) as listener, launched() as browser, new_pages(browser, listener) as new_page:
        page = new_page()
        page.goto(f"{listener.url}start?file=run_toy_grpo.sh")
        page.get_by_label("Name").fill("grpo")
        given = {"TOY_DIR": toy, "TRAIN_PROMPTS": 8, "MINI_PROMPTS": 4, "TC_TEST_MARK": one.mark}
        page.get_by_label("Environment").fill("\n".join(f"{name}={value}" for name, value in given.items()))
        page.get_by_text("More", exact=True).click()
        page.get_by_label("Set", exact=True).fill(SHORT)
        page.get_by_role("button", name="Check", exact=True).click()
        expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled(timeout=TRAINS_MS)
        expect(page.get_by_label("Plan")).to_contain_text(f"job       {tmp_path}/grpo")
        page.get_by_text("This machine: ").click()
        expect(page.get_by_role("row", name=re.compile("^memory"))).to_contain_text("GiB free")
        assert not one.job.exists()
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/run/grpo", timeout=TRAINS_MS)

        expect(page.get_by_role("heading", name="launcher")).to_be_visible()
        expect(page.locator("#t-step")).to_have_text(re.compile("[2-9]|..+"), timeout=TRAINS_MS)
        expect(page.locator("#charts .chart").first).to_be_visible()
        expect(page.get_by_label("log of trainer", exact=True)).to_contain_text("step:1 ")
        assert accessible(page)

        page.goto(f"{listener.url}experiences/grpo?sort=reward")
        page.locator(".answers a").first.click()
        # Of answers that are the same one is shown, with the places of the others.
        expect(page.locator("article.answer, article.answer .facts span[id]")).to_have_count(8)
        expect(page.locator("article.answer .tokens .t").first).to_be_visible()
        assert accessible(page)

        page.goto(f"{listener.url}run/grpo")
        page.get_by_role("link", name="Stop…").click()
        page.get_by_role("button", name="Stop after this step").click()
        expect(page.locator("#state")).to_have_text("stopped")
    one.wait_until_all_have_ended()
    assert RecordedStart.of_text((one.job / "log" / "phases.json").read_text()).end.code == 128 + 15
    one.nothing_is_left_and_nothing_lost()
