"""Text that users' code prints in a run's processes: each line is marked with its process in the log, as Ray
marks its workers' lines. By the mark ``run`` finds it there, and prints it too."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import FrameType
from typing import TextIO

from trinity_compat.common.python_command import USER_FOLDER
from trinity_compat.common.user_frames import is_users

REWARD, LOOP, WORKFLOW = "RewardFunction", "AgentLoop", "Workflow"  # processes that users' code may break
EXPLORER, TRAINER, WORKER = "Explorer", "Trainer", "Worker"  # the sides, and the workers of their Ray
_NAMES = "|".join((REWARD, LOOP, WORKFLOW, EXPLORER, TRAINER, WORKER))
# Not at a line's beginning only: Ray puts its own mark before what its workers' processes print.
_MARKED = re.compile(rf"\((?:{_NAMES}) pid=(?:\d+|all)\) .*")

_SPEAKS_ITSELF = re.compile(r"site-packages/(?:verl|vllm|ray)/")


def mark(name: str, pid: int | None) -> str:
    """The prefix of each line that process ``pid`` prints; None: of all processes of that name."""
    return f"({name} pid={'all' if pid is None else pid}) "


def found(line: str) -> str | None:
    """The marked text in a line of a log; None where there is none."""
    match = _MARKED.search(line)
    return match[0] if match else None


def mark_users(name: str) -> None:
    """From now on what users' code prints in this process is marked; other text goes out as it is."""
    sys.stdout = _Marking(sys.stdout, name)


def mark_users_of_worker() -> None:
    """The same in a Ray worker of a run, where a loss of the user's is computed. Elsewhere nothing."""
    if USER_FOLDER in os.environ and Path(sys.argv[0]).name == "default_worker.py":
        mark_users(WORKER)


class _Marking:
    """A text stream before ``out``.

    A write is the user's where a function of the user's prints, or lets a library do so; a line that veRL
    prints within such a function is veRL's.
    """

    def __init__(self, out: TextIO, name: str) -> None:
        self._out, self._name = out, name
        self._open = ""

    def __getattr__(self, name: str) -> object:
        return getattr(self._out, name)

    def write(self, text: str) -> int:
        """As a stream's."""
        if not _called_by_user():
            return self._out.write(text)
        *lines, self._open = (self._open + text).split("\n")
        before = mark(self._name, os.getpid())
        if lines:
            self._out.write("".join(f"{before}{line}\n" for line in lines))
            self._out.flush()
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """As a stream's."""
        for line in lines:
            self.write(line)


def _called_by_user() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame and not _SPEAKS_ITSELF.search(file := frame.f_code.co_filename):
        if is_users(file):
            return True
        frame = frame.f_back
    return False
