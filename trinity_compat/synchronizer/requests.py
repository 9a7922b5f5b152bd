"""An explorer asks for weights; the trainer answers. Two values of the buffer's state for each explorer.

The answer says "published, or there is nothing newer than what is published": the explorer then takes the
newest. An ask that nobody reads does no harm: it is answered once, later.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from trinity_compat.buffer.api import Buffer


def _asked(index: int) -> str:
    return f"sync/ask/{index}"


def _answered(index: int) -> str:
    return f"sync/answer/{index}"


class Asking:
    """Explorer ``index``'s side."""

    def __init__(self, buffer: Buffer, index: int) -> None:
        self._buffer, self._index = buffer, index
        self._open: str | None = None

    def answered(self) -> bool:
        """Ask, unless that was done before; True once it is answered (the next call asks anew)."""
        if self._open is None:
            self._open = uuid.uuid4().hex
            self._buffer.set_state(_asked(self._index), self._open)
        if self._buffer.get_state(_answered(self._index)) != self._open:
            return False
        self._open = None
        return True


class Asked:
    """The trainer's side, for ``explorers`` explorers."""

    def __init__(self, buffer: Buffer, explorers: int) -> None:
        self._buffer, self._explorers = buffer, explorers

    def open(self) -> dict[int, str]:
        """Asks without an answer, by explorer."""
        pairs = (
            (index, self._buffer.get_state(_asked(index)), self._buffer.get_state(_answered(index)))
            for index in range(self._explorers)
        )
        return {index: str(asked) for index, asked, answer in pairs if asked and asked != answer}

    def answer(self, asks: Mapping[int, str]) -> None:
        """Call when the newest weights that there are have been published."""
        for index, asked in asks.items():
            self._buffer.set_state(_answered(index), asked)
