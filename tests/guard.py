"""What a pytest that was killed has started ends with it, however deep below: runs, Rays, engines, pools.

A pytest marks its environment, which all that it starts inherits, and starts this file as a process of its
own at the other end of a pipe. Where the pipe closes without a goodbye, whoever has the mark is asked to end,
and killed ``GRACE_S`` later. Not PostgreSQL, whose processes write their titles over their environment: the
kernel ends it (buffer_postgres.py).
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "TRINITY_COMPAT_TESTS"
GRACE_S = 20.0  # a run gives its sides ten seconds, and takes Ray's folder away
_guard = None


def pytest_configure():
    global _guard
    if MARK in os.environ:  # a worker of xdist: its controller's guard sees to it
        return
    os.environ[MARK] = uuid.uuid4().hex
    command = [sys.executable, "-I", "-S", __file__, os.environ[MARK]]
    _guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def pytest_unconfigure():
    if _guard:
        _guard.communicate(b"goodbye")


def _marked(mark):
    """The pids of all that have it, this process apart."""
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found = wanted in (process / "environ").read_bytes().split(b"\0")
            ended = (process / "stat").read_text().rpartition(") ")[2][0] == "Z"
        except OSError:  # it has ended, or is somebody else's
            continue
        if found and not ended and int(process.name) != os.getpid():
            yield int(process.name)


def _send(number, mark):
    for pid in _marked(mark):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _end(mark):
    _send(signal.SIGTERM, mark)
    until = time.monotonic() + GRACE_S
    while any(_marked(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    _send(signal.SIGKILL, mark)


if __name__ == "__main__":
    if not sys.stdin.buffer.read():
        _end(sys.argv[1])
