"""A studio on a port of its own, for a browser."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import uvicorn

from trinity_compat.studio.app import create_app
from trinity_compat.studio.guard import Listener
from trinity_compat.studio.serving import listening


@contextlib.contextmanager
def serving(folder: Path, port: int = 0, **given):
    """A studio over ``folder`` in a thread; where it listens."""
    with listening("127.0.0.1", port) as taken:
        listener = Listener("127.0.0.1", taken.getsockname()[1], **given)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(folder, listener),
                log_level="warning",
                timeout_graceful_shutdown=1,
                timeout_keep_alive=600,  # seconds; a test may be slow
                http=listener.connections.protocol,
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield listener
        server.should_exit = True
        thread.join(60)
