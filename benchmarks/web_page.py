"""Time to the first YAML of the page that translates in a browser, cold, and to that of a changed text.

    make web && .venv/bin/python benchmarks/web_page.py

Each round opens the built page (.scratch/web/site) in a new context of Debian's chromium, so without a cache,
and gives it an example's text. Seconds count from the navigation, and from the change of the text, to the
YAML in the page. Printed are medians, and the bytes of all files: as they are, and each compressed with gzip.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import statistics
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".scratch" / "web" / "site"
sys.path[:0] = [str(ROOT / "tests")]
from browser import chromium  # noqa: E402

TEXT = (ROOT / "docs" / "try" / "examples" / "grpo.sh").read_text()


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    """Print sizes and times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if not (SITE / "index.html").is_file():
        raise SystemExit(f"{SITE}: no page; run make web")
    files = [path.read_bytes() for path in SITE.rglob("*") if path.is_file()]
    sent = sum(min(len(each), len(gzip.compress(each, 6))) for each in files)
    print(f"{len(files)} files, {sum(map(len, files)) / 1e6:.1f} MB; each compressed {sent / 1e6:.1f} MB")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    first, later = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for _ in range(rounds):
            context = browser.new_context()
            context.set_default_timeout(300_000)
            page = context.new_page()
            started = time.monotonic()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.evaluate("text => Translate.load('run.sh', text)", TEXT)
            page.locator("#right .cm-content", has_text="algorithm_type: grpo").wait_for()
            first.append(time.monotonic() - started)
            settle(page)
            for n in range(2, 7):
                started = time.monotonic()
                page.evaluate(
                    "text => Translate.load('run.sh', text)",
                    TEXT.replace("rollout.n=5", f"rollout.n={n + 8}"),
                )
                page.locator("#right .cm-content", has_text=f"repeat_times: {n + 8}").wait_for()
                later.append(time.monotonic() - started)
                settle(page)
            context.close()
        browser.close()
    print(f"first YAML {statistics.median(first):.1f} s, at most {max(first):.1f} s")
    print(f"a changed text's YAML {statistics.median(later):.2f} s, at most {max(later):.2f} s")


def settle(page: Page) -> None:
    """Wait for the audit, which follows the YAML."""
    page.wait_for_selector("#translate:not([data-waits])")


if __name__ == "__main__":
    main()
