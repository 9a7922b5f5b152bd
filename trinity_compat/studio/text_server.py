"""Commands and functions over a page's texts, in processes of their own that end at their limits.

``trinity_compat.cli._text_server`` imports them once and forks for each request, which comes by a socket of
its own. It starts with the first page that needs it, is started again where it has died, and ends with the
studio.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity_compat.common.bounded_process import ProcessResult
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.python_command import of_module
from trinity_compat.translate.form.answers import ARGUMENTS

_SERVER = "trinity_compat.cli._text_server"
# All that the server has of the studio's environment: texts may be others', and keys are in it.
_VARIABLES = (
    *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME"),
    "SOURCE_DATE_EPOCH",
)
_WAIT_S = 330  # for an answer: the server's own limits end each command before
_CHUNK = 1 << 20
_LARGEST = 64 << 20  # bytes of an answer
_END_S = 5  # for a server that is asked to end
_AT_ONCE = 3  # requests that are answered at the same time: the server's limits are for one
_AT_ONCE_OF_PAGE = 2  # of one page: its texts leave room for another's
_MOST_WAITING = 8  # requests, answered ones too: each holds one of the studio's threads


class TextServer:
    """The server, a few requests at a time."""

    def __init__(self, wait_s: float = _WAIT_S) -> None:
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False
        self._waiting = threading.BoundedSemaphore(_MOST_WAITING)
        self._running = Counter[str]()
        self._turns = threading.Condition()

    def warm(self) -> None:
        """Start the server, so that it has imported everything when the first text comes."""
        with self._lock:
            self._started()

    def run(
        self, files: Mapping[str, str], commands: Sequence[Sequence[str]], page: str = "translate"
    ) -> list[ProcessResult]:
        """Run the commands in a folder of these files, side by side; return a result for each.

        ``page`` is the page that asks. A command without an answer, since the server died or is too late, has
        the limit ``no answer``. One that comes while too many wait has ``busy``.
        """
        if not self._waiting.acquire(blocking=False):
            return [ProcessResult(1, "", "", "busy") for _ in commands]
        try:
            with self._turn(page):
                return self._answered(files, commands)
        finally:
            self._waiting.release()

    def call(self, function: str, *arguments: object) -> dict[str, Any]:
        """Return the answer of a function of ``translate.form.answers``.

        Raises UserError with what it says, or with the limit that ended it.
        """
        (result,) = self.run({ARGUMENTS: json.dumps(arguments)}, [[function]], "configure")
        if result.limit:
            raise UserError(f"this was ended: {result.limit}", hint="shorten the text, or try again")
        if result.code != 0:
            raise UserError(f"cannot be read ({result.err.strip().removeprefix('error: ')})")
        answer: dict[str, Any] = json.loads(result.out)
        if error := answer.get("error"):
            place = Where(error["place"]) if error["place"] else None
            raise UserError(error["message"], where=place, hint=error["hint"] or None)
        return answer

    @contextlib.contextmanager
    def _turn(self, page: str) -> Iterator[None]:
        """Wait until a request of the page may be answered."""
        with self._turns:
            self._turns.wait_for(
                lambda: self._running.total() < _AT_ONCE and self._running[page] < _AT_ONCE_OF_PAGE
            )
            self._running[page] += 1
        try:
            yield
        finally:
            with self._turns:
                self._running[page] -= 1
                self._turns.notify_all()

    def _answered(self, files: Mapping[str, str], commands: Sequence[Sequence[str]]) -> list[ProcessResult]:
        request = json.dumps({"files": dict(files), "commands": [list(words) for words in commands]}).encode()
        ours, theirs = socket.socketpair()
        try:
            with ours:
                with theirs:
                    process = self._hand_over(theirs)
                return [ProcessResult(**one) for one in json.loads(self._ask(ours, request))]
        except TimeoutError:
            # The server ends, unless another one has taken its place.
            with self._lock:
                if process is self._process:
                    self._ended()
        except (OSError, ValueError, TypeError):
            pass  # the request's own fault, or the server's that has ended: the next one starts another
        return [ProcessResult(1, "", "", "no answer") for _ in commands]

    def _hand_over(self, asked: socket.socket) -> subprocess.Popen[bytes]:
        """Give a request's socket to the server. Raises OSError where that does not take it, and ends it."""
        with self._lock:
            process, control = self._started()
            try:
                socket.send_fds(control, [b"r"], [asked.fileno()])
            except OSError as error:
                self._ended()
                raise OSError("the server takes no request") from error
            return process

    def close(self) -> None:
        """End the server and whatever it runs, for good."""
        self._closed = True
        if (process := self._process) is not None:
            process.terminate()  # those who wait for it learn that it ended
        with self._lock:
            self._ended()

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Return a server that runs, and the socket that it takes requests by. Raises OSError once closed."""
        if self._closed:
            raise OSError("the studio ends")
        if self._process is None or self._control is None or self._process.poll() is not None:
            self._ended()
            self._control, theirs = socket.socketpair()
            self._control.settimeout(self._wait_s)
            with theirs:
                self._process = subprocess.Popen(
                    of_module(_SERVER),
                    env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        return self._process, self._control

    def _ask(self, asked: socket.socket, request: bytes) -> bytes:
        """Return a line of JSON. Raises OSError where the server ends, is late or says too much."""
        end, size = time.monotonic() + self._wait_s, 0
        asked.settimeout(self._wait_s)
        asked.sendall(request)
        asked.shutdown(socket.SHUT_WR)
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([asked], [], [], left)[0]:
                raise TimeoutError(f"no answer in {self._wait_s} s")
            part = asked.recv(_CHUNK)
            size += len(part)
            if not part or size > _LARGEST:
                raise OSError("the server ended" if not part else "an answer that is too large")
            parts.append(part)
        return b"".join(parts)

    def _ended(self) -> None:
        """End the server that there is; the caller has the lock."""
        process, self._process = self._process, None
        control, self._control = self._control, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if control is not None:
            control.close()
