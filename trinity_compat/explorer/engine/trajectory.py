"""Rollout tasks and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from trinity_compat.buffer.codec import id_fault

AGENT_FAILED = "rollout/agent_failed"  # in an experience's metrics, and summed over a step's


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """A task to answer n times.

    ``sampling`` names vLLM's SamplingParams, seed included unless greedy. ``apart``: n requests instead of
    one for n answers, so that each has its own end (and model version). ``baseline``: a greedy answer comes
    after the n (ReMax, arXiv 2310.10505).
    """

    task_no: int
    task: Mapping[str, Any]
    n: int
    sampling: Mapping[str, Any]
    validate: bool = False
    apart: bool = False
    baseline: bool = False

    @property
    def answers(self) -> int:
        """Number of answers, the baseline included."""
        return self.n + self.baseline

    def sampling_of(self, run: int) -> Mapping[str, Any]:
        """Return the sampling of answer ``run``. The greedy one is as in veRL 0.9.1's agent loop."""
        if run == self.n:
            greedy = {name: value for name, value in self.sampling.items() if name != "seed"}
            return greedy | {"temperature": 0, "top_p": 1.0, "top_k": -1}
        seed = self.sampling.get("seed")
        return {**self.sampling} if seed is None else {**self.sampling, "seed": seed + run}


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One response: ``response_mask`` [R] is 1 where the policy wrote; ``logprobs`` [R], 0.0 elsewhere.

    Lists are as an agent loop gives them; an engine's process sends them ``packed``. ``truncated``: its last
    answer was cut. ``versions``: the weights that were loaded when the engine received it, and when it
    finished.
    """

    prompt_ids: Sequence[int] | npt.NDArray[np.int32]
    response_ids: Sequence[int] | npt.NDArray[np.int32]
    response_mask: Sequence[int] | npt.NDArray[np.uint8]
    logprobs: Sequence[float] | npt.NDArray[np.float32]
    num_turns: int = 2
    reward: float | None = None  # set by agent loops that score themselves
    metrics: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    truncated: bool = False
    versions: tuple[int, int] = (0, 0)

    def packed(self, versions: tuple[int, int]) -> Self:
        """Return it with these versions and arrays, of which a process reads a token in a nanosecond."""
        return replace(
            self,
            prompt_ids=np.asarray(self.prompt_ids, np.int32),
            response_ids=np.asarray(self.response_ids, np.int32),
            response_mask=np.asarray(self.response_mask, np.uint8),
            logprobs=np.asarray(self.logprobs, np.float32),
            versions=versions,
        )


def fault_of(part: Trajectory, vocabulary: int) -> str:
    """Return why an agent loop's or a workflow's answer cannot be trained; "" where it can.

    ``vocabulary``: number of tokens with embeddings.
    """
    for name in ("prompt_ids", "response_ids"):
        if fault := id_fault(getattr(part, name), vocabulary):
            return f"{fault} of {name}"
    length = len(part.response_ids)
    if not length == len(part.response_mask) == len(part.logprobs):
        others = f"{len(part.response_mask)} in response_mask and {len(part.logprobs)} log-probabilities"
        return f"{length} tokens in response_ids, {others}"
    return ""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """A finished job: n trajectories, or an error (``hopeless``: a retry would fail too).

    ``instead``: a masked substitute for each of them, where the run is to go on without.
    """

    task_no: int
    trajectories: tuple[Trajectory, ...]
    error: str = ""
    hopeless: bool = False
    instead: Trajectory | None = None
