"""An explorer asks for weights; the trainer answers. Two values of the buffer's state for each explorer.

The answer says "published, or there is nothing newer than what is published": the explorer then takes the
newest. An ask that nobody reads does no harm: it is answered once, later.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.buffer.api import Buffer


def _asked(index: int) -> str:
    return f"sync/ask/{index}"


def _answered(index: int) -> str:
    return f"sync/answer/{index}"


@dataclass(frozen=True, slots=True)
class WeightRequest:
    """``has``: the version that the asking explorer holds, -1 for none."""

    id: str
    has: int


class WeightRequester:
    """Explorer ``index``'s side."""

    def __init__(self, buffer: Buffer, index: int) -> None:
        self._buffer, self._index = buffer, index
        self._open: str | None = None

    def answered(self, has: int) -> bool:
        """Ask, unless that was done before; True once it is answered (the next call asks anew).

        ``has``: the version that this explorer holds, -1 for none.
        """
        if self._open is None:
            self._open = uuid.uuid4().hex
            self._buffer.set_state(_asked(self._index), {"id": self._open, "has": has})
        if self._buffer.get_state(_answered(self._index)) != self._open:
            return False
        self._open = None
        return True


class WeightRequests:
    """The trainer's side, for ``explorers`` explorers."""

    def __init__(self, buffer: Buffer, explorers: int) -> None:
        self._buffer, self._explorers = buffer, explorers

    def open(self) -> dict[int, WeightRequest]:
        """Asks without an answer, by explorer."""
        found = {index: self._buffer.get_state(_asked(index)) for index in range(self._explorers)}
        asks = {index: WeightRequest(**ask) for index, ask in found.items() if ask}
        return {i: ask for i, ask in asks.items() if self._buffer.get_state(_answered(i)) != ask.id}

    def answer(self, asks: Mapping[int, WeightRequest]) -> None:
        """Call when the newest weights that there are have been published."""
        for index, ask in asks.items():
            self._buffer.set_state(_answered(index), ask.id)
