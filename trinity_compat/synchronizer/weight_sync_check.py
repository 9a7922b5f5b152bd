"""Weight-sync check: each engine's weights are compared with those that the trainer sent.

With every version: the digests of what the engines' workers have received and of what they hold
(``LoadedWeights``). With the first update: the log-probabilities of one answer.

With a run's first update the trainer stores an answer that it has just trained on, and the updated policy's
log-probabilities of its tokens. An explorer that loads that version has each of its engines score the same
answer. A wrong layout costs several nats a token; rounding (bfloat16, FP8, another kernel) a few hundredths.
It is one value in the buffer's state, written by the trainer alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trinity_compat.buffer.model import LoadedVersion, WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.job.state_cell import StateCell

BOUND = "TRINITY_COMPAT_HANDOVER_BOUND"
_DEFAULT_BOUND = 0.5  # nats a token, in the mean


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """One scored answer.

    Token ids int [P] and [R] (R > 0), and under ``version`` the log-probability of each response token at
    temperature 1, float [R].
    """

    version: int
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    logprobs: Sequence[float]

    def difference(self, scored: Sequence[float]) -> float:
        """Return the mean absolute difference to ``scored`` [R]."""
        pairs = zip(self.logprobs, scored, strict=True)
        return sum(abs(ours - theirs) for ours, theirs in pairs) / len(self.logprobs)

    def describe(self, scored: Sequence[float]) -> str:
        """Return both means as a sentence."""
        return (
            f"version {self.version}: mean log-probability {_mean(scored):.4f} in the engine,"
            f" {_mean(self.logprobs):.4f} in the trainer over {len(scored)} tokens,"
            f" {self.difference(scored):.4f} apart in the mean"
        )

    def check(self, scored: Sequence[float], bound: float) -> str:
        """Return the result. Raises RunError when engine and trainer are more than ``bound`` apart."""
        result = self.describe(scored)
        if self.difference(scored) <= bound:  # False for NaN
            return result
        raise RunError(
            f"the engine does not hold the weights that the trainer sent: {result} (bound {bound:g})",
            hint=f"{BOUND}=N allows N, {BOUND}=0 leaves the test out; please report model and versions",
        )


SCORED_ANSWER = StateCell("handover/probe", ScoredAnswer)


class LoadedWeights:
    """Records what the workers of an explorer's engines have loaded. ``explorer``: its index."""

    def __init__(self, buffer: Buffer, explorer: int) -> None:
        self._buffer, self._explorer = buffer, explorer

    def arrived(self, version: WeightVersion, engine: int, answers: Sequence[Mapping[str, Any]]) -> None:
        """Record the workers' answers to a load.

        Raises RunError where a worker has received something else than was published, or holds something
        else than another one that received the same.
        """
        for rank, answer in enumerate(answers):
            worker = f"explorer {self._explorer} engine {engine} rank {rank}"
            received, proof = str(answer.get("digest", "")), str(answer.get("proof", ""))
            loaded = LoadedVersion(version.version, worker, received, str(answer.get("held", "")), proof)
            others = self._buffer.note_loaded(loaded)
            what = f"version {version.version} of the weights at {worker}"
            if version.digest and received and received != version.digest:
                raise RunError(f"{what} is not the trainer's: digest {received}, sent {version.digest}")
            if others and proof != "recorded":
                raise RunError(
                    f"{what} is held otherwise than at {others[0]}, which received the same",
                    hint="one of them was changed, or not loaded whole; please report the model",
                )


def bound() -> float:
    """Read the bound from the environment; 0 disables the check. Raises UserError for a non-number."""
    text = os.environ.get(BOUND) or str(_DEFAULT_BOUND)
    try:
        return float(text)
    except ValueError:
        raise UserError(
            f"{BOUND}={text} is not a number", hint="nats a token; 0 leaves the test out"
        ) from None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
