"""The log of a process of a run: diagnostics of the package go to stdout, a line each, with the time.

A module logs to ``logging.getLogger(__name__)``; only the process's entry point calls ``configure``. Progress
and messages for people are printed by rich and click.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

_FORMAT = "%(asctime)s [trinity] %(message)s"
_WARNING_FORMAT = "%(asctime)s [trinity] %(levelname)s: %(message)s"


class _Formatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(_FORMAT, datefmt="%H:%M:%S")
        self._of_warnings = logging.Formatter(_WARNING_FORMAT, datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno < logging.WARNING:
            return super().format(record)
        return self._of_warnings.format(record).replace(record.levelname, record.levelname.lower(), 1)


class _StdoutHandler(logging.StreamHandler):  # generic since Python 3.11
    """Writes to the stdout of the moment: a process may replace it after the start."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Formatter())

    @property
    def stream(self) -> TextIO:
        return sys.stdout

    @stream.setter
    def stream(self, value: TextIO) -> None:
        raise AttributeError("the stream is sys.stdout")


def configure() -> None:
    """Send the package's diagnostics to stdout, and not through the root logger of other libraries."""
    log = logging.getLogger("trinity_compat")
    log.addHandler(_StdoutHandler())
    log.setLevel(logging.INFO)
    log.propagate = False
