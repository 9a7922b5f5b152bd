"""The page Start in a real browser: from a script, or from another page's text, to the run's page."""

import os
import re
import signal
import time

import pytest
from browser import is_whole, new_pages
from playwright.sync_api import expect
from start_commands import FULL_DISK, NO_DATA, Commands
from studio_browser import serving
from studio_jobs import SECRET

from trinity_compat.translate.form import made_from

pytestmark = pytest.mark.browser
SCRIPT = """#!/bin/bash
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
  actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.experiment_name=$RUN
"""


@pytest.fixture
def commands(monkeypatch):
    return Commands(monkeypatch)


@pytest.fixture
def opened(browser, tmp_path, commands):
    """Opens a page of a studio over a folder with a script; ends the runs that it starts."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    with serving(tmp_path) as listener, new_pages(browser, listener) as new_page:

        def go(path, size="wide", **given):
            page = new_page(size, **given)
            page.goto(listener.url.rstrip("/") + path)
            return page

        yield go
    for found in commands.started():
        os.killpg(found, signal.SIGKILL)


def check(page):
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("Ready: nothing is missing.")).to_be_visible()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()


def test_a_script_is_chosen_checked_and_started_and_its_run_s_page_opens(opened, tmp_path):
    page = opened("/start")
    is_whole(page)
    page.get_by_label("Script or YAML").fill("run.sh")
    page.get_by_label("Name").fill("toy/grpo")
    page.get_by_label("Environment").fill(f"RUN=one\nHF_TOKEN={SECRET}")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Set", exact=True).fill("trainer.nnodes=1")
    is_whole(page)
    check(page)
    assert SECRET not in page.content()
    expect(page.locator("#t-command")).to_contain_text("RUN=one")
    is_whole(page, "start-green")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/run/toy/grpo")
    page.wait_for_selector("#live[data-ready]")
    expect(page.locator("h1")).to_contain_text("running")


def test_a_refused_launch_is_shown_changed_and_checked_again(opened, commands):
    commands.dry_run = "import sys; print('error: run.sh:3: RUN is not set', file=sys.stderr); sys.exit(2)"
    page = opened("/start?file=run.sh")
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="RUN is not set")).to_be_visible()
    expect(page.get_by_text("1 of 1 checks passed")).to_be_visible()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()
    is_whole(page, "start-refused")
    page.get_by_role("link", name="Change it").click()
    page.get_by_label("Environment").fill("RUN=one")
    commands.dry_run = Commands.PLANNED
    check(page)


def test_a_launch_that_ends_with_2_shows_its_error_and_no_run(opened, commands, tmp_path):
    commands.run = "import sys; print('error: no GPU <b>here</b>', file=sys.stderr); sys.exit(2)"
    page = opened("/start?file=run.sh")
    check(page)
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="nothing was started")).to_be_visible()
    expect(page.locator("#state pre.file").first).to_have_text("error: no GPU <b>here</b>")
    is_whole(page)
    assert not (tmp_path / "run" / "config").exists()


def test_blockers_stand_above_a_start_that_is_off(opened, commands):
    commands.doctor, commands.dry_run = FULL_DISK, NO_DATA
    page = opened("/start?file=run.sh")
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("2 points would stop this run.")).to_be_visible()
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_disabled()
    is_whole(page, "start-red")


def test_a_file_of_the_user_s_computer_is_opened(opened):
    page = opened("/start")
    page.set_input_files("#file", {"name": "my run.sh", "mimeType": "text/plain", "buffer": SCRIPT.encode()})
    expect(page.locator("#f-text")).to_have_value(SCRIPT)
    expect(page.get_by_label("Name")).to_have_value("my_run")


def test_the_command_is_copied(opened):
    page = opened("/start?file=run.sh", permissions=["clipboard-read", "clipboard-write"])
    check(page)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#t-command").text_content()


def test_a_configured_run_comes_here(opened):
    page = opened("/configure")
    page.get_by_role("link", name="Start…").first.click()
    expect(page.locator("#f-text")).to_have_value(made_from({}).script)
    check(page)
    page = opened("/configure/expert?epochs=7")
    page.get_by_role("button", name="Start…").last.click()
    expect(page.locator("#f-text")).to_have_value(re.compile("total_epochs: 7"))
    check(page)


def test_a_translated_script_comes_here_with_the_page_s_options(opened):
    page = opened("/translate")
    page.wait_for_selector("#translate[data-ready]")
    payload = {"name": "mine.sh", "mimeType": "text/plain", "buffer": SCRIPT.encode()}
    page.set_input_files("#file", payload)
    page.get_by_label("RUN").fill("one")
    page.get_by_label("GPUs a node").fill("4")
    page.wait_for_selector("#translate:not([data-waits])")
    page.get_by_role("button", name="Start…").click()
    expect(page.locator("#f-text")).to_have_value(SCRIPT)
    expect(page.get_by_label("Environment")).to_have_value("RUN=one")
    expect(page.get_by_label("Set", exact=True)).to_have_value("trainer.n_gpus_per_node=4")
    check(page)


def test_without_a_script_the_links_lead_to_the_run(opened):
    page = opened("/start?file=run.sh", java_script_enabled=False)
    page.get_by_role("button", name="Check", exact=True).click()
    until(page, lambda: page.locator("button:enabled", has_text=re.compile("^Start$")).count())
    page.get_by_role("button", name="Start", exact=True).click()
    until(page, lambda: page.url.endswith("/run/run"))


def until(page, true):
    """Looks again as long as the test may take."""
    while not true():
        time.sleep(0.1)
        page.reload()
