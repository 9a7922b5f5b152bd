"""The service: ``python -m trinity_compat.trinity.pipelines.juicer.server --port 5005``, on 127.0.0.1.

POST /create, /process_experience, /process_task, /close and GET /health, as trinity-rft's. Where a key is
in the environment (``KEY_VARIABLE``), a request has to bring it. One that a run started has its socket from
there, and ends when its standard input does, so that it never outlives the run.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import re
import socket
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from trinity_compat.common.network import LOOPBACK
from trinity_compat.common.process_limits import signal_group
from trinity_compat.trinity.pipelines.juicer import KEY_VARIABLE

if TYPE_CHECKING:
    from trinity_compat.trinity.pipelines.juicer.work import JuicerPipeline

HOST = LOOPBACK
_BOUNDARY = re.compile(r"boundary=\"?(?P<text>[^\";]+)")
_NAME = re.compile(rb"[; ]name=\"(?P<text>\w+)\"")


class RequestRefused(ValueError):
    """A request that is answered with ``status``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class JuicerService:
    """Sessions of the service by id; ``make`` creates the pipeline of a configuration."""

    def __init__(self, make: Callable[[Mapping[str, Any]], JuicerPipeline], key: str = "") -> None:
        self._make, self._key = make, key
        self._sessions: dict[str, JuicerPipeline] = {}

    def check(self, authorization: str) -> None:
        """Raise RequestRefused for a request without the key."""
        if self._key and not hmac.compare_digest(authorization, f"Bearer {self._key}"):
            raise RequestRefused(401, "the key of this service is missing")

    def create(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Create a session; return its id."""
        try:
            made = self._make(asked)
        except Exception as error:
            raise RequestRefused(400, f"Failed to parse config: {type(error).__name__}: {error}") from error
        session = str(uuid.uuid4())
        self._sessions[session] = made
        return {"session_id": session, "message": "Session created successfully."}

    def experiences(self, session: str, stream: bytes) -> bytes:
        """Process the table of an Arrow stream; return the resulting table as an Arrow stream."""
        import pyarrow as pa

        pipeline = self._session(session)
        with pa.ipc.open_stream(stream) as reader:
            made = pipeline.experiences(reader.read_all())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, made.schema) as writer:
            writer.write_table(made)
        return bytes(sink.getvalue().to_pybytes())

    def tasks(self, session: str) -> dict[str, Any]:
        """Process the tasks of a session; return their counts."""
        return {"metrics": dict(self._session(session).tasks())}

    def close(self, session: str) -> dict[str, Any]:
        """Close a session and remove it."""
        self._session(session).close()
        del self._sessions[session]
        return {"message": "Session closed successfully."}

    def _session(self, session: str) -> JuicerPipeline:
        if session not in self._sessions:
            raise RequestRefused(404, "Session ID not found.")
        return self._sessions[session]


class _Handler(BaseHTTPRequestHandler):
    service: JuicerService
    timeout = 60  # seconds for a request to arrive; no other is answered meanwhile

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Standard output has the port alone."""

    def _get(self) -> object:
        if self.path != "/health":
            raise RequestRefused(404, f"{self.path} is not served")
        return {"status": "ok"}

    def _post(self) -> object:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/process_experience":
            parts = form_parts(self.headers.get("content-type", ""), body)
            return self.service.experiences(parts["session_id"].decode(), parts["arrow_data"])
        asked = json.loads(body)
        if self.path == "/create":
            return self.service.create(asked)
        work = {"/process_task": self.service.tasks, "/close": self.service.close}.get(self.path)
        if work is None:
            raise RequestRefused(404, f"{self.path} is not served")
        return work(str(asked.get("session_id")))

    def _answer(self, work: Callable[[], object]) -> None:
        try:
            # No page in a browser is answered: operators may run code, and a key is not always required.
            host = (self.headers.get("host") or "").rpartition(":")[0]
            if self.headers.get("origin") or host not in (HOST, "localhost"):
                raise RequestRefused(403, "this service answers programs of its own machine")
            self.service.check(self.headers.get("authorization") or "")
            self._send(200, work())
        except RequestRefused as error:
            self._send(error.status, {"error": str(error)})
        except Exception as error:
            traceback.print_exc()
            self._send(500, {"error": f"{type(error).__name__}: {error}"})

    def _send(self, status: int, said: object) -> None:
        whole = isinstance(said, bytes)
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if whole else "application/json")
        self.send_header("Content-Length", str(len(body)))
        if whole:
            self.send_header("X-Metrics", "{}")
        self.end_headers()
        self.wfile.write(body)


def form_parts(content_type: str, body: bytes) -> dict[str, bytes]:
    """The parts of a multipart form by their names. Raises RequestRefused."""
    found: dict[str, bytes] = {}
    if boundary := _BOUNDARY.search(content_type):
        for part in body.split(b"--" + boundary["text"].encode())[1:-1]:
            head, _, content = part.partition(b"\r\n\r\n")
            if name := _NAME.search(head):
                found[name["text"].decode()] = content.removesuffix(b"\r\n")
    if missing := {"session_id", "arrow_data"} - found.keys():
        raise RequestRefused(400, f"the form lacks {', '.join(sorted(missing))}")
    return found


def make_server(service: JuicerService, listening: socket.socket) -> HTTPServer:
    """Server for ``listening``, whose requests run one after the other in the thread that serves.

    Data-Juicer forks, which is safe only while no other thread works.
    """
    handler = type("Handler", (_Handler,), {"service": service})
    server = HTTPServer((HOST, 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    return server


def _end_with_input() -> None:
    # Not by sys.stdin: a child that is forked while this thread holds its lock would wait for it for ever.
    while os.read(0, 1):
        pass
    signal_group(0)  # with Data-Juicer's own processes


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(description="Data-Juicer as a service of runs on this machine")
    parser.add_argument("--port", type=int, default=5005)
    parser.add_argument("--fd", type=int, help="listening socket, inherited from the parent process")
    asked = parser.parse_args()
    from trinity_compat.trinity.pipelines.juicer.work import JuicerPipeline, install_nothing

    install_nothing()
    if asked.fd is None:
        listening = socket.create_server((HOST, asked.port))
        print(f"http://{HOST}:{listening.getsockname()[1]}", flush=True)
    else:
        listening = socket.socket(fileno=asked.fd)
        threading.Thread(target=_end_with_input, daemon=True).start()
    make_server(JuicerService(JuicerPipeline, os.environ.get(KEY_VARIABLE, "")), listening).serve_forever()


if __name__ == "__main__":
    main()
