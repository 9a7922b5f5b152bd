"""Measure the page of a group of long answers in a browser: first paint, bytes, nodes and memory.

    python benchmarks/studio_paint.py [--answers 8] [--tokens 16384] [--times 10]

Makes a job with one group, opens its page so many times in chromium, each time in a new context, and prints
the median of the first contentful paint and of the page's bytes. Then scrolls through the whole first answer
and prints the nodes and the JavaScript heap before and after.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "studio")]
from browser import chromium  # noqa: E402
from studio_browser import serving  # noqa: E402
from studio_jobs import large_group, make_job, make_tokenizer  # noqa: E402

from trinity_compat.buffer import open_buffer  # noqa: E402
from trinity_compat.studio.guard import Listener  # noqa: E402

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
BYTES = "performance.getEntriesByType('navigation')[0].decodedBodySize"
NODES = "document.querySelectorAll('*').length"


def make(root: Path, answers: int, tokens: int) -> None:
    make_job(root / "job", evil=False, steps=0, model=make_tokenizer(root / "model"))
    buffer = open_buffer(f"sqlite:///{root}/job/buffer/experiences.db")
    buffer.put_groups([large_group(answers, tokens)])
    buffer.close()


def opened(browser: Browser, listener: Listener) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(listener.address)
    page.goto(f"{listener.url}group/job?id=1")
    page.wait_for_function(f"() => {PAINT} !== undefined")
    return page


def heap(page: Page) -> float:
    """The heap after a collection, MB."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"] / 1e6


def scroll(page: Page) -> None:
    box = page.locator(".whole").first
    box.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)
    before, most = (page.evaluate(NODES), heap(page)), 0
    while True:
        box.evaluate("box => { box.scrollTop += box.clientHeight; }")
        page.wait_for_timeout(40)
        most = max(most, page.evaluate(NODES))
        if box.evaluate("box => box.scrollTop + box.clientHeight >= box.scrollHeight - 2"):
            break
    page.wait_for_timeout(1000)
    print(f"nodes: {before[0]} at first, {most} at most; heap: {before[1]:.1f} MB, then {heap(page):.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        make(Path(folder), given.answers, given.tokens)
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with serving(Path(folder)) as listener:
            opened(browser, listener).context.close()  # the index is made
            paints, sizes = [], []
            for _ in range(given.times):
                page = opened(browser, listener)
                paints.append(page.evaluate(PAINT))
                sizes.append(page.evaluate(BYTES))
                page.context.close()
            print(f"first contentful paint: {statistics.median(paints):.0f} ms, {max(paints):.0f} at most")
            print(f"page: {statistics.median(sizes):.0f} bytes")
            scroll(opened(browser, listener))
        browser.close()


if __name__ == "__main__":
    main()
