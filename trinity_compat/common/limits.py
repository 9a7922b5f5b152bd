"""Limits on the cost of reading a launch.

Reading must end in two seconds and 500 MB whatever the script says, so every loop of the evaluator pays here.
Real scripts stay a hundred times below each limit.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf

# of processor time, so that a busy machine doesn't change a reading; as WebAssembly Python is slower by far
SECONDS = 8.0 if sys.platform == "emscripten" else 0.8
PARSER_SECONDS = 0.9  # of the parser's processor time, in total
PARSER_WAIT = 10.0  # for one answer of the parser, however busy the machine is
STEPS = 150_000
TEXT = 16 << 20  # characters made in total
VALUE = 1 << 20  # characters of one value
FIELDS = 20_000  # words of one command, elements of one array
SCRIPT = 1 << 20  # bytes of one script or file
TREE = 24 << 20  # bytes of one syntax tree
PARSES = 50  # starts of the parser
KEYS = 5_000  # of one configuration; a whole one of veRL's has some two thousand
ARGUMENTS = 2_000  # of one launch; the longest public one has some two hundred
LEVELS = 100  # of containers in each other
DIGITS = 400  # of one number: one step beyond the largest float
DEPTH = 60  # functions, sourced files, substitutions in each other
LOOP = 10_000  # rounds of one loop
LAUNCHES = 512
DIAGNOSTICS = 500  # warnings, and as many errors
RECURSION = 6000  # Python frames; the evaluator of shells uses about fifteen per level of a script
OVERLAY = 4 << 20  # characters of the files that the script writes for itself


class BudgetExceeded(Exception):
    """The script costs more than a launch script may; what was read so far is kept."""


@dataclass(slots=True)
class Budget:
    """The limits of one reading, counted down."""

    seconds: float = SECONDS
    parser_seconds: float = PARSER_SECONDS
    steps: int = STEPS
    text: int = TEXT
    parses: int = PARSES
    started: float = field(default_factory=time.process_time)

    def step(self, cost: int = 1) -> None:
        """Pay for one command, one expansion, one round of a loop."""
        self.steps -= cost
        if self.steps < 0:
            raise BudgetExceeded("too many steps")
        self.check_clock()

    def check_clock(self) -> None:
        """Stop when the time is up."""
        if self.seconds < inf and time.process_time() - self.started > self.seconds:
            raise BudgetExceeded(f"more than {self.seconds:g} s")

    def make(self, length: int) -> None:
        """Pay for a text of this length."""
        self.text -= length
        if length > VALUE or self.text < 0:
            raise BudgetExceeded("too much text")

    def fields(self, count: int) -> None:
        """Refuse a list of too many words."""
        if count > FIELDS:
            raise BudgetExceeded(f"more than {FIELDS} words in one list")

    @contextmanager
    def parser(self) -> Iterator[None]:
        """Around one start of the parser, which is over before this ends."""
        self.parses -= 1
        if self.parses < 0 or self.parser_seconds <= 0:
            raise BudgetExceeded("too many pieces of code made by eval or bash -c")
        self.check_clock()
        before = _children_seconds()
        try:
            yield
        finally:
            self.parser_seconds -= _children_seconds() - before


def _children_seconds() -> float:
    """Processor time of the child processes that have ended; 0 on Windows, which doesn't count it."""
    used = os.times()
    return used.children_user + used.children_system
