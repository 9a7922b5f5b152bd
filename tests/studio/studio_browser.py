"""Debian's chromium, driven by playwright, and a studio on a port of its own."""

from __future__ import annotations

import contextlib
import threading
import time
from importlib import resources
from pathlib import Path

import needs
import uvicorn
from playwright.sync_api import expect, sync_playwright

from trinity_compat.studio.app import create_app
from trinity_compat.studio.guard import Listener
from trinity_compat.studio.serving import listening

WAIT_MS = 240_000
expect.set_options(timeout=WAIT_MS)


SIZES = {"wide": (1280, 900, "light"), "narrow": (390, 844, "dark")}


def chromium() -> str:
    """The browser's path."""
    return needs.program("chromium", "chromium")


@contextlib.contextmanager
def launched():
    """Chromium, without a window."""
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield made
        made.close()


@contextlib.contextmanager
def new_pages(browser, listener):
    """A function from a size, and what a context takes, to a page that may see the studio.

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


@contextlib.contextmanager
def serving(folder: Path, port: int = 0, **given):
    """A studio over ``folder`` in a thread; where it listens."""
    with listening("127.0.0.1", port) as taken:
        listener = Listener("127.0.0.1", taken.getsockname()[1], **given)
        server = uvicorn.Server(
            uvicorn.Config(create_app(folder, listener), log_level="warning", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield listener
        server.should_exit = True
        thread.join(60)


_AXE = """axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
    .filter(each => ['serious', 'critical'].includes(each.impact))
    .map(each => [each.id, each.nodes.map(node => node.html)]))"""


def accessible(page) -> bool:
    """Whether axe-core finds nothing serious. Raises AssertionError with what it finds."""
    page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
    assert page.evaluate(_AXE) == []
    return True
