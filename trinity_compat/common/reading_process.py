"""A process that only reads: the kernel ends it at its limits, whatever the readers' own limits missed.

The command line goes on in a fork, so that its parent can say what ended it. Limits start again with each
source and each launch, so that a folder of thousands is read as one script is. Without `guard` (a run, the
studio, a library's caller) nothing is limited here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.process_limits import data_bytes

if TYPE_CHECKING:
    import mmap

SECONDS = 10.0  # of processor time
MEMORY = 512 << 20  # bytes of data beyond those at the start
_GRACE = 2.0  # seconds after which the kernel ends what does not hear the signal
_NAME = 4096  # bytes of the source's name
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGINT", "SIGPIPE")  # the user's own end of a command


class _TimeIsUp(BaseException):
    """Not an Exception, so that no reader takes it for a fault of the text."""


class _Guard:
    """Limits of this process, the fork."""

    def __init__(self, note: mmap.mmap, seconds: float) -> None:
        import resource  # here: not every platform has it

        self.note, self.seconds, self.source = note, seconds, ""
        self.soft, self.hard = resource.getrlimit(resource.RLIMIT_DATA)

    def restart(self, source: str) -> None:
        """Start the limits again, for ``source``."""
        import resource

        self.source = source
        self.note[:] = source.encode(errors="backslashreplace")[:_NAME].ljust(_NAME, b"\0")
        self.clock(self.seconds)
        if (used := data_bytes()) is not None:
            allowed = used + MEMORY
            soft = allowed if self.soft == resource.RLIM_INFINITY else min(allowed, self.soft)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, self.hard))

    def clock(self, seconds: float) -> None:
        """Raise _TimeIsUp after so much processor time, and end the process a little later; 0: never."""
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _GRACE / 4)
        signal.setitimer(signal.ITIMER_PROF, seconds and seconds + _GRACE)


_guard: _Guard | None = None


def guard(seconds: float = SECONDS) -> None:
    """Go on in a fork within limits. The parent says what ended it, and has its exit code."""
    global _guard
    if not hasattr(os, "fork"):
        return
    import mmap  # here: not every platform has it

    note = mmap.mmap(-1, _NAME)
    if fork := os.fork():
        _wait(fork, note)
    _guard = _Guard(note, seconds)
    signal.signal(signal.SIGVTALRM, _ring)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def _ring(signum: int, frame: object) -> None:
    raise _TimeIsUp


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Around the reading of ``source``. Raises UserError that names it at a limit."""
    outer, why = _guard.source if _guard else "", ""
    restart(source)
    try:
        yield
    except _TimeIsUp:
        why = f"reading takes more than {_guard.seconds if _guard else 0:g} s of processor time"
    except MemoryError:
        if _guard is None:
            raise
        why = f"reading takes more than {MEMORY >> 20} MiB of memory"
    except RecursionError:
        why = "nested too deeply"
    finally:
        restart(outer)
    if why:  # only here, where the frames that held the memory are gone
        raise UserError(why, where=Where(source))


def restart(source: str) -> None:
    """Start the limits again for the next launch, of ``source``."""
    if _guard is not None:
        _guard.restart(source)


def stop_clock() -> None:
    """Stop counting time: all is read, and what is left takes as long as there are launches."""
    if _guard is not None:
        _guard.clock(0)


def _wait(fork: int, note: mmap.mmap) -> None:
    """End as the fork ends: with its exit code, by the user's signal, or with words on the source."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the fork too
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda signum, _: os.kill(fork, signum))
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    if code >= 0:
        sys.exit(code)
    ended = signal.Signals(-code)
    if ended.name in _PASSED_ON:
        signal.signal(ended, signal.SIG_DFL)
        os.kill(os.getpid(), ended)
    source = note[:].rstrip(b"\0").decode(errors="replace")
    why = "takes too much processor time" if ended is signal.SIGPROF else f"was ended by {ended.name}"
    print(f"error: {source}: reading {why}", file=sys.stderr)
    sys.exit(2)
