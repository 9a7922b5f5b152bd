"""Requests of explorers for weights, and the trainer's answers: two values of the buffer's state for each.

An answer means that the newest weights are published: the explorer then takes them. A request that is not
read at once is answered later, once.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.buffer.store import Buffer
from trinity_compat.job.state_cell import StateCell


@dataclass(frozen=True, slots=True)
class WeightRequest:
    """An explorer's request; ``has``: the version that it holds, -1 for none."""

    id: str
    has: int


_REQUEST = StateCell("sync/ask", WeightRequest)  # an explorer's
_ANSWER = StateCell[str]("sync/answer")  # the id of the request


class WeightRequester:
    """The side of explorer ``index``."""

    def __init__(self, buffer: Buffer, index: int) -> None:
        self._buffer, self._index = buffer, index
        self._open: str | None = None

    def is_answered(self, has: int) -> bool:
        """Send a request unless one is open; return whether it is answered, which closes it.

        ``has``: the version that this explorer holds, -1 for none.
        """
        if self._open is None:
            self._open = uuid.uuid4().hex
            _REQUEST.at(self._index).set(self._buffer, WeightRequest(self._open, has))
        if _ANSWER.at(self._index).get(self._buffer) != self._open:
            return False
        self._open = None
        return True


class WeightRequests:
    """The trainer's side, for ``explorers`` explorers."""

    def __init__(self, buffer: Buffer, explorers: int) -> None:
        self._buffer, self._explorers = buffer, explorers

    def open(self) -> dict[int, WeightRequest]:
        """Return the open requests by explorer."""
        asks = {i: ask for i in range(self._explorers) if (ask := _REQUEST.at(i).get(self._buffer))}
        return {i: ask for i, ask in asks.items() if _ANSWER.at(i).get(self._buffer) != ask.id}

    def answer(self, asks: Mapping[int, WeightRequest]) -> None:
        """Answer requests. Call when the newest weights are published."""
        for index, ask in asks.items():
            _ANSWER.at(index).set(self._buffer, ask.id)
