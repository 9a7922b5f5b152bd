"""Messages between an explorer and a scoring process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.scoring import Score
from trinity_compat.explorer.sandbox.wire import Pickled, Ready

Kind = Literal["error", "timeout", "died"]
LARGEST = 64 << 20  # bytes of a reply: what a reward function returns about an answer goes into the database


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """Answers to a task that are scored in one call: a single one, or a group (``batch``)."""

    number: int
    task: Mapping[str, Any]
    parts: Sequence[Trajectory]


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """Scores in the order of the call's parts, or the failure: ``kind`` and ``message``."""

    number: int
    scores: Sequence[Score] = ()
    kind: Kind | None = None
    message: str = ""

    def pickled(self) -> Pickled:
        """Encode it; over LARGEST, as the failure of its call."""
        data = pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        if len(data) <= LARGEST:
            return Pickled(data)
        what = f"it returned {len(data) >> 20} MB; {LARGEST >> 20} MB are the most"
        return ScoreReply(self.number, kind="error", message=what).pickled()


@dataclass(frozen=True, slots=True)
class RewardProcessReady(Ready):
    """First message of a scoring process.

    ``lanes``: calls that it takes at once; ``whole``: a call is a group. ``has_limit``: its manager has a
    time limit, which begins later than ours would (veRL's rate limits: after the wait for them).
    """

    lanes: int = 1
    whole: bool = False
    has_limit: bool = False
