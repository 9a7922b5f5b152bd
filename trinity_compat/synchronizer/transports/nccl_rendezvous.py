"""Rendezvous of trainer and explorers for a collective: an offer, answers, a meeting.

Each value is written by one side only. ``member`` changes with each start of an explorer, ``offer`` with each
attempt, so values of a dead process never count as an answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from trinity_compat.buffer.store import Buffer
from trinity_compat.job.state_cell import StateCell
from trinity_compat.synchronizer.transports.nccl import Rendezvous


@dataclass(frozen=True, slots=True)
class WeightOffer:
    """The trainer is ready to send ``version``."""

    id: str
    version: int


class _Ready(TypedDict):
    offer: str
    member: str
    ranks: int


class _Meeting(TypedDict):
    offer: str
    first: dict[str, int]
    meeting: dict[str, Any]


_OFFER = StateCell("weights/offer", WeightOffer)  # the trainer's, null without one
_READY = StateCell[_Ready]("weights/ready")  # an explorer's: ready to receive, with so many engine workers
_MEETING = StateCell[_Meeting]("weights/meeting")  # the trainer's: the address, each member's first rank


class OfferSender:
    """The trainer's side, to ``explorers`` explorers."""

    def __init__(self, buffer: Buffer, explorers: int) -> None:
        self._buffer, self._explorers = buffer, explorers

    def open(self, version: int) -> WeightOffer:
        """Replace the last offer by a new one."""
        offer = WeightOffer(uuid.uuid4().hex, version)
        _OFFER.set(self._buffer, offer)
        return offer

    def members(self, offer: WeightOffer) -> dict[str, int]:
        """Return the number of engine workers of each explorer that is ready for ``offer``."""
        answers = (_READY.at(index).get(self._buffer) for index in range(self._explorers))
        return {a["member"]: a["ranks"] for a in answers if a and a["offer"] == offer.id}

    def meet(self, offer: WeightOffer, meeting: Rendezvous, members: Mapping[str, int]) -> None:
        """Publish the address and each member's first rank; rank 0 is the trainer's."""
        first, rank = {}, 1
        for member, ranks in members.items():
            first[member], rank = rank, rank + ranks
        _MEETING.set(self._buffer, {"offer": offer.id, "first": first, "meeting": asdict(meeting)})

    def close(self) -> None:
        """Withdraw the offer."""
        _OFFER.set(self._buffer, None)


class OfferReceiver:
    """Explorer ``index``'s side; ``ranks``: its engine workers, all engines together."""

    def __init__(self, buffer: Buffer, index: int, ranks: int) -> None:
        self._buffer, self._index, self._ranks = buffer, index, ranks
        self._member = uuid.uuid4().hex

    def look(self) -> WeightOffer | None:
        """Return the current offer."""
        return _OFFER.get(self._buffer)

    def accept(self, offer: WeightOffer) -> None:
        """Report that this explorer generates nothing and waits for the meeting."""
        answer: _Ready = {"offer": offer.id, "member": self._member, "ranks": self._ranks}
        _READY.at(self._index).set(self._buffer, answer)

    def meeting(self, offer: WeightOffer) -> tuple[Rendezvous, int] | None:
        """Return the meeting and this explorer's first rank; None until the trainer publishes them.

        A meeting with members that have died fails; the trainer offers again.
        """
        found = _MEETING.get(self._buffer)
        if not found or found["offer"] != offer.id or self._member not in found["first"]:
            return None
        return Rendezvous(**found["meeting"]), found["first"][self._member]
