"""The page Which mode in a real browser: its pictures, its tables, at both sizes."""

import pytest
from browser import is_whole, new_pages
from playwright.sync_api import expect
from test_advise_page import SCRIPT

pytestmark = pytest.mark.browser


def test_a_file_that_is_opened_gets_a_picture_of_each_mode(browser, listener):
    with new_pages(browser, listener) as new_page:
        page = new_page()
        page.goto(f"{listener.url}advise")
        is_whole(page)
        page.set_input_files("#file", {"name": "run.sh", "mimeType": "text/plain", "buffer": SCRIPT.encode()})
        expect(page.get_by_label("A launch script")).to_have_value(SCRIPT)
        page.get_by_label("GPUs", exact=True).fill("8")
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_text("stock veRL, lockstep; turns on all GPUs")).to_be_visible()
        expect(page.locator("svg.timeline")).to_have_count(9)  # modes of the same figures are one
        page.get_by_text("7 other modes").click()
        expect(page.get_by_label("GPUs", exact=True)).to_have_value("8")
        picture = page.get_by_role("img", name="split, offset 1:")
        idle, drawn = (picture.locator(name).first.bounding_box() for name in (".idle", ".training .whole"))
        assert idle["x"] < drawn["x"] < drawn["x"] + drawn["width"] <= idle["x"] + idle["width"] + 1
        page.locator("article", has=picture).locator("summary").click()
        expect(page.locator("article[aria-label='split, offset 1'] tbody tr").first).to_contain_text(
            "explorer"
        )
        is_whole(page, "advise")
