"""Pictures of the studio for docs/studio.md: ``scripts/site/pictures.py JOBS OUT``. JOBS is the folder of
the demo's job (``toy/grpo``). Needs what the tests of the pages need: playwright, a chromium."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "studio")]
from browser import chromium  # noqa: E402
from studio_browser import serving  # noqa: E402

SIZE = {"width": 1280, "height": 1000}
JOB = "toy/grpo"
CURVES_MS = 1500  # to draw them


def main(jobs: Path, out: Path) -> None:
    """Write one PNG of 256 colours a page."""
    out.mkdir(parents=True, exist_ok=True)
    with serving(jobs) as door, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(door.address)
        page.goto(f"{door.url}run/{JOB}")
        page.wait_for_selector("#live[data-ready]")
        page.wait_for_timeout(CURVES_MS)
        _keep(page, out / "run.png")
        _go_indexed(page, f"{door.url}groups/{JOB}?step=2&outcome=mixed")
        page.locator(".groups a.name").first.click()
        page.wait_for_load_state()
        page.evaluate("scrollTo(0, 0)")
        _keep(page, out / "group.png")
        browser.close()


def _go_indexed(page: Page, address: str) -> None:
    """The index is filled beside the page; it says how far it is."""
    page.goto(address)
    while page.locator("[data-indexing]").count():
        page.wait_for_timeout(500)
        page.reload()


def _keep(page: Page, file: Path) -> None:
    # the place of the jobs on somebody's disk is nobody's business
    page.evaluate("document.querySelector('footer')?.remove()")
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
