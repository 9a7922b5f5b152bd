"""The guided tour in a real browser: two clicks from an empty studio to a run."""

import os
import signal

import pytest
from browser import is_whole, launched, new_pages
from playwright.sync_api import expect
from start_commands import MADE, Toys
from studio_browser import serving

pytestmark = pytest.mark.browser
UNTIL = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.1)"


@pytest.fixture
def toys(monkeypatch):
    found = Toys(monkeypatch)
    yield found
    for process in found.started():
        os.killpg(process, signal.SIGKILL)


def test_two_clicks_lead_from_an_empty_studio_to_a_run(tmp_path, toys):
    toys.make = "import sys; sys.exit('error: no space is left')"
    with serving(tmp_path) as listener, launched() as browser, new_pages(browser, listener) as new_page:
        page = new_page()
        is_whole(page)
        page.get_by_role("button", name="Make the toy").click()
        expect(page.get_by_role("alert").filter(has_text="no space is left")).to_be_visible()
        is_whole(page)
        toys.make = f"{MADE}\n{UNTIL.format(str(tmp_path / 'go'))}"
        page.get_by_role("button", name="Make the toy").click()
        expect(page.get_by_label("Output")).to_contain_text("300 steps")
        is_whole(page)
        (tmp_path / "go").touch()
        page.get_by_role("button", name="Start it").click()
        page.wait_for_url("**/run/toy-grpo")
        page.wait_for_selector("#live[data-ready]")
