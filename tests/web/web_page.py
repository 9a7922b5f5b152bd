"""The page without a server, built from this checkout, behind a server that records what it is asked."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import needs

sys.path.append(str(needs.ROOT / "scripts" / "site"))
import make_web


def built(folder):
    """Build the page in a folder. Skips where what it is made of is not there."""
    needs.made(".pyodide", "pyodide/package-lock.json")
    needs.made(".wheels", "hashes/light.txt")
    if not (make_web.PARSER / "parser.wasm").is_file():
        needs.lacking(f"no shell parser in {make_web.PARSER}: make web-parser")
    make_web.build(folder, make_web.PARSER)
    return folder


def with_limit(site, folder, seconds):
    """Copy the page, with another limit of time for an answer."""
    shutil.copytree(site, folder)
    text = (folder / "index.html").read_text()
    assert text.count('data-limit="10"') == 1
    (folder / "index.html").write_text(text.replace('data-limit="10"', f'data-limit="{seconds}"'))
    return folder


@contextlib.contextmanager
def serving(folder):
    """A server of the folder's files: its address, and the lines and headers of requests that it was sent."""
    asked = []

    class Files(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(f"{self.requestline}\n{self.headers}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield SimpleNamespace(address=f"http://127.0.0.1:{server.server_port}/", asked=asked)
    server.shutdown()
    server.server_close()
    thread.join(60)
