"""The handover's self-test: one answer's log-probabilities, the trainer's beside the engine's.

With a run's first update the trainer leaves an answer that it has just trained on, and what the updated
policy gives its tokens. An explorer that puts that version in place asks each of its engines the same. A
layout that was mixed up on the way costs several nats a token; rounding (bfloat16, FP8, another kernel) a few
hundredths. One value in the buffer's state, written by the trainer alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from trinity_compat.buffer.api import Buffer
from trinity_compat.common.errors import RunError, UserError

BOUND = "TRINITY_COMPAT_HANDOVER_BOUND"
_DEFAULT_BOUND = 0.5  # nats a token, in the mean
_KEY = "handover/probe"


@dataclass(frozen=True, slots=True)
class Probe:
    """Token ids int [P] and [R] (R > 0), and under ``version`` the log-probability of each response token at
    temperature 1, float [R]."""

    version: int
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    logprobs: Sequence[float]

    def difference(self, answered: Sequence[float]) -> float:
        """Mean absolute difference to ``answered`` [R]."""
        pairs = zip(self.logprobs, answered, strict=True)
        return sum(abs(mine - theirs) for mine, theirs in pairs) / len(self.logprobs)

    def told(self, answered: Sequence[float]) -> str:
        """Both numbers, for people."""
        return (
            f"version {self.version}: mean log-probability {_mean(answered):.4f} in the engine,"
            f" {_mean(self.logprobs):.4f} in the trainer over {len(answered)} tokens,"
            f" {self.difference(answered):.4f} apart in the mean"
        )

    def check(self, answered: Sequence[float], bound: float) -> str:
        """What was found. Raises RunError when engine and trainer are more than ``bound`` apart."""
        found = self.told(answered)
        if self.difference(answered) <= bound:  # not for nan
            return found
        raise RunError(
            f"the engine does not hold the weights that the trainer sent: {found} (bound {bound:g})",
            hint=f"{BOUND}=N allows N, {BOUND}=0 leaves the test out; please report model and versions",
        )


def leave(buffer: Buffer, probe: Probe | None) -> None:
    """The trainer's part; None takes an earlier start's away."""
    buffer.set_state(_KEY, asdict(probe) if probe else None)


def find(buffer: Buffer, version: int) -> Probe | None:
    """What the trainer left for ``version``."""
    found = buffer.get_state(_KEY)
    return Probe(**found) if found and found["version"] == version else None


def bound() -> float:
    """As the environment says; 0: no test. Raises UserError for what is not a number."""
    text = os.environ.get(BOUND) or str(_DEFAULT_BOUND)
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{BOUND}={text} is not a number", hint="nats a token; 0 leaves the test out"
        ) from None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
