"""A process for work on texts that others have written, killed at its limit of processor time or memory."""

from __future__ import annotations

import math
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import ParamSpec, TypeVar

from trinity_compat.common.errors import RunError, UserError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_END_S = 5  # for a killed process to be gone
_BUSY = 10  # times its limit: how long a call may take on a machine that does other things, too
_START_S = 60


class BoundedWorker:
    """A process that is started at its first call and again after a limit. Its calls wait for each other."""

    def __init__(self, seconds: int, memory: int) -> None:
        """``seconds`` of processor time are the limit of a call, ``memory`` bytes that of the process."""
        self._seconds = seconds
        self._memory = memory
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def call(self, function: Callable[_P, _T], *args: _P.args, **given: _P.kwargs) -> _T:
        """Return what a function of a module returns for picklable arguments.

        Raises what it raises, and UserError at a limit.
        """
        with self._lock:
            try:
                pipe = self._pipe()
                pipe.send((function, args, given))
                if not pipe.poll(self._seconds * _BUSY):
                    raise EOFError
                result, error = pipe.recv()
            except (EOFError, OSError):
                self._end()
                raise UserError(
                    f"this took more than {self._seconds} s or {self._memory >> 20} MiB, and was ended",
                    hint="shorten the text",
                ) from None
        if error is not None:
            raise error
        found: _T = result
        return found

    def _pipe(self) -> Connection:
        if self._running is None or self._running[0].poll() is not None:
            ours, theirs = Pipe()
            given = map(str, (theirs.fileno(), self._seconds, self._memory))
            # -P: no module of the working directory. multiprocessing's own start would run __main__ again.
            command = [sys.executable, "-P", "-m", __name__, *given]
            silent = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=silent, stdout=silent, pass_fds=(theirs.fileno(),))
            theirs.close()
            self._running = process, ours
            if not ours.poll(_START_S) or ours.recv() is not None:
                raise EOFError
        return self._running[1]

    def _end(self) -> None:
        if self._running is not None:
            process, pipe = self._running
            process.kill()
            process.wait(_END_S)
            pipe.close()
            self._running = None


def _serve(pipe: Connection, seconds: int, memory: int) -> None:
    """Answer calls until the studio ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the studio
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    pipe.send(None)  # it has started
    while True:
        try:
            function, args, given = pipe.recv()
        except EOFError:
            return
        used = math.ceil(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, resource.RLIM_INFINITY))
        pipe.send(_answer(function, args, given))


def _answer(
    function: Callable[..., object], args: tuple[object, ...], given: dict[str, object]
) -> tuple[object, Exception | None]:
    try:
        return function(*args, **given), None
    except (UserError, RunError) as error:
        return None, error
    except (MemoryError, RecursionError):
        return None, UserError("the text is too large or too deep", hint="shorten it")
    except Exception as error:  # of any kind: it belongs to the page that asked
        return None, UserError(f"cannot be read ({type(error).__name__}: {error})")


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
