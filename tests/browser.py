"""Debian's chromium without its windows, driven by playwright, for every page of ours."""

from __future__ import annotations

import contextlib
import os
import time
from importlib import resources
from pathlib import Path

import needs
from playwright.sync_api import expect, sync_playwright

WAIT_MS = 240_000
expect.set_options(timeout=WAIT_MS)


SIZES = {"wide": (1280, 900, "light"), "narrow": (390, 844, "dark")}


def chromium() -> str:
    """The browser's path."""
    return needs.program("chromium-headless-shell", "chromium-headless-shell")


@contextlib.contextmanager
def launched():
    """Chromium, without a window."""
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield made
        made.close()


@contextlib.contextmanager
def new_pages(browser, listener):
    """A function from a size, and what a context takes, to a page at the listener's address.

    At the end no page has had an error or a warning in its console.
    """
    contexts, said = [], []

    def new_page(size="wide", **given):
        width, height, scheme = SIZES[size]
        viewport = {"width": width, "height": height}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, **given)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda each: said.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(listener.address)
        return page

    yield new_page
    for context in contexts:
        context.close()
    assert said == []


def at_each_size(page):
    """Give the page each size in turn, ``wide`` at last, and yield the size's name: one load for all."""
    for size, (width, height, scheme) in reversed(SIZES.items()):
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        yield size


def fits(page) -> None:
    """Wait until nothing is wider than the window: charts are drawn again a frame after its size changes.

    The page's policy forbids the text that ``wait_for_function`` would evaluate there again.
    """
    until = time.monotonic() + 30
    while not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
        assert time.monotonic() < until, "something is wider than the window"
        page.wait_for_timeout(50)


def is_whole(page, picture="") -> None:
    """Check a page at each size: it fits, axe-core finds nothing serious, and no text of a run has acted.

    ``picture``: name of the page's pictures in the folder ``STUDIO_SCREENSHOTS``, where that is set.
    """
    for size in at_each_size(page):
        fits(page)
        assert accessible(page)
        assert page.evaluate("window.stolen") is None  # which the tests' hostile texts would set
        if picture and (folder := os.environ.get("STUDIO_SCREENSHOTS")):
            page.screenshot(path=Path(folder) / f"{picture}-{size}.png", full_page=True)


_AXE = """axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
    .filter(each => ['serious', 'critical'].includes(each.impact))
    .map(each => [each.id, each.nodes.map(node => node.html)]))"""


def accessible(page) -> bool:
    """Return True where axe-core finds nothing serious. Raises AssertionError with what it finds."""
    page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found = page.evaluate(_AXE)
    assert found == [], found
    return True
