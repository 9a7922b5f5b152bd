"""Commands and functions over a page's texts, in processes of their own that end at their limits.

``trinity_compat.cli._text_server`` imports them once and forks for each. It starts with the first page that
needs it, is started again where it has died, and ends with the studio.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.python_command import of_module
from trinity_compat.translate.form.answers import ARGUMENTS

_SERVER = "trinity_compat.cli._text_server"
_WAIT_S = 90  # for an answer: the server's own limits end each command before
_CHUNK = 1 << 20
_LARGEST = 64 << 20  # bytes of an answer
_END_S = 5  # for a server that is asked to end
_MOST_AT_ONCE = 4  # requests that wait: each holds one of the studio's threads


@dataclass(frozen=True, slots=True)
class Result:
    """A command's exit code and output. ``limit``: the limit that ended it, '' for none."""

    code: int
    out: str
    err: str
    limit: str


class TextServer:
    """The server, one request at a time."""

    def __init__(self, wait_s: float = _WAIT_S) -> None:
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._waiting = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def warm(self) -> None:
        """Start the server, so that it has imported everything when the first text comes."""
        with self._lock:
            self._started()

    def run(self, files: Mapping[str, str], commands: Sequence[Sequence[str]]) -> list[Result]:
        """Run the commands in a folder of these files, side by side; return a result for each.

        A command without an answer, since the server died or is too late, has the limit ``no answer``. One
        that comes while too many wait has ``busy``.
        """
        if not self._waiting.acquire(blocking=False):
            return [Result(1, "", "", "busy") for _ in commands]
        try:
            return self._answered(files, commands)
        finally:
            self._waiting.release()

    def call(self, function: str, *arguments: object) -> dict[str, Any]:
        """Return the answer of a function of ``translate.form.answers``.

        Raises UserError with what it says, or with the limit that ended it.
        """
        (result,) = self.run({ARGUMENTS: json.dumps(arguments)}, [[function]])
        if result.limit:
            raise UserError(f"this was ended: {result.limit}", hint="shorten the text, or try again")
        if result.code != 0:
            raise UserError(f"cannot be read ({result.err.strip().removeprefix('error: ')})")
        answer: dict[str, Any] = json.loads(result.out)
        if error := answer.get("error"):
            place = Where(error["place"]) if error["place"] else None
            raise UserError(error["message"], where=place, hint=error["hint"] or None)
        return answer

    def _answered(self, files: Mapping[str, str], commands: Sequence[Sequence[str]]) -> list[Result]:
        request = json.dumps({"files": dict(files), "commands": [list(words) for words in commands]}).encode()
        with self._lock:
            try:
                answer = self._ask(self._started(), request + b"\n")
                return [Result(**one) for one in json.loads(answer)]
            except (OSError, ValueError, TypeError):
                self._end()
                return [Result(1, "", "", "no answer") for _ in commands]

    def close(self) -> None:
        """End the server and whatever it runs, for good."""
        self._closed = True
        if (process := self._process) is not None:
            process.terminate()  # whoever waits for it learns that it ended
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        """Return a server that runs. Raises OSError once it is closed."""
        if self._closed:
            raise OSError("the studio ends")
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                of_module(_SERVER),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], request: bytes) -> bytes:
        """Return a line of JSON. Raises OSError where the server ends, is late or says too much."""
        if process.stdin is None or process.stdout is None:
            raise OSError("no pipe")
        process.stdin.write(request)
        process.stdin.flush()
        end, size = time.monotonic() + self._wait_s, 0
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError(f"no answer in {self._wait_s} s")
            part = process.stdout.read1(_CHUNK)  # type: ignore[attr-defined]
            size += len(part)
            if not part or size > _LARGEST:
                raise OSError("the server ended" if not part else "an answer that is too large")
            parts.append(part)
        return b"".join(parts)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what a server that died has not read
                        pipe.close()
