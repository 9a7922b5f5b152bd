"""What an explorer and a scoring process say to each other: pickles, each after its length in four bytes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.scoring import Score
from trinity_compat.explorer.sandbox.wire import framed

Kind = Literal["error", "timeout", "died"]
LARGEST = 64 << 20  # bytes of a reply: what a reward function says of an answer goes into the database


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """Answers to a task that are scored in one go: a single one, or a group (``batch``)."""

    number: int
    task: Mapping[str, Any]
    parts: Sequence[Trajectory]


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """Scores in the order of the call's parts, or what went wrong: ``kind`` and ``message``."""

    number: int
    scores: Sequence[Score] = ()
    kind: Kind | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class RewardProcessReady:
    """First word of a process.

    ``lanes``: calls that it takes at once; ``whole``: a call is a group. ``has_limit``: its manager has a
    time limit of its own, which begins later than ours would (veRL's rate limits: after the wait for them).
    ``broken``: why it cannot score at all.
    """

    lanes: int = 1
    whole: bool = False
    has_limit: bool = False
    broken: str = ""


def packed(message: ScoreCall | ScoreReply | RewardProcessReady) -> bytes:
    """As bytes. A reply over LARGEST becomes the failure of its call."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(data) > LARGEST and isinstance(message, ScoreReply):
        what = f"it returned {len(data) >> 20} MB; {LARGEST >> 20} MB are the most"
        return packed(ScoreReply(message.number, kind="error", message=what))
    return framed(data)
