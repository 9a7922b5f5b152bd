"""Report of an explorer step: metrics by veRL's names where it has one, else by Trinity's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.buffer.store import Buffer
from trinity_compat.explorer.engine.trajectory import AGENT_FAILED
from trinity_compat.explorer.rewards.scoring import FAILED, RETRIES, TIMED_OUT
from trinity_compat.explorer.scheduling.group_builder import TEACHER_S
from trinity_compat.explorer.trackers import Trackers
from trinity_compat.job.answer_info import OF_RUN, other_task, run_of
from trinity_compat.trinity.workflows.run_rows import TRUNCATED_ROWS

COUNTED = (FAILED, TIMED_OUT, RETRIES, AGENT_FAILED, TRUNCATED_ROWS)


class StepTimes:
    """Seconds by phase."""

    def __init__(self, wait: float) -> None:
        self.seconds = {"wait": wait}
        self._begin = time.monotonic()

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Measure the seconds of a block as those of ``phase``."""
        begin = time.monotonic()
        yield
        self.seconds[phase] = time.monotonic() - begin

    def copy(self) -> StepTimes:
        """Copy them for another step that began together with this one."""
        other = StepTimes(0.0)
        other.seconds, other._begin = dict(self.seconds), self._begin
        return other

    def reach(self, phase: str) -> None:
        """End a phase that began with the step, or at the end of the phases measured so far."""
        before = sum(seconds for name, seconds in self.seconds.items() if name not in ("wait", phase))
        self.seconds[phase] = time.monotonic() - self._begin - before

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def total(self) -> float:
        """Return the seconds since the step began, without waiting."""
        return time.monotonic() - self._begin


class StepReporter:
    """Writes metrics to the buffer, to the launch's loggers and, as a line, to the log."""

    def __init__(self, buffer: Buffer, role: str, trackers: Trackers | None = None) -> None:
        self._buffer, self._role, self._trackers = buffer, role, trackers

    def step(
        self,
        step: int,
        version: int,
        groups: Sequence[Group],
        times: StepTimes,
        extra: Mapping[str, float],
    ) -> None:
        """Report one explorer step; ``extra`` joins its metrics."""
        metrics = step_metrics(step, version, groups, times) | dict(extra)
        self._buffer.log_metrics(self._role, step, metrics)
        if self._trackers:
            self._trackers.log(step, metrics)
        print(_line(step, metrics), flush=True)

    def close(self) -> None:
        """Flush the loggers."""
        if self._trackers:
            self._trackers.close()


def step_metrics(step: int, version: int, groups: Sequence[Group], times: StepTimes) -> dict[str, float]:
    """Compute a step's metrics: means over its responses; seconds; tokens per second of rollout."""
    parts: list[Experience] = [part for group in groups for part in group.experiences]
    rewards = np.array([part.reward for part in parts])
    lengths = np.array([len(part.response_ids) for part in parts])
    spread = np.array([np.std([part.reward for part in group.experiences]) for group in groups])
    tokens = int(lengths.sum())
    return {
        "critic/score/mean": float(rewards.mean()),
        "critic/score/max": float(rewards.max()),
        "critic/score/min": float(rewards.min()),
        "response_length/mean": float(lengths.mean()),
        "response_length/max": float(lengths.max()),
        "response_length/min": float(lengths.min()),
        "prompt_length/mean": float(np.mean([len(part.prompt_ids) for part in parts])),
        "rollout/model_version": float(version),
        "rollout/lag": float(step - 1 - version),
        "rollout/solved_none_or_all": float((spread == 0).mean()),
        "experience_count": float(len(parts)),
        **_run_metrics(groups),
        **{name: sum(part.metrics.get(name, 0.0) for part in parts) for name in COUNTED},
        **_teacher_seconds(parts),
        "perf/rollout_tokens_per_second": tokens / max(times.seconds.get("rollout", 0.0), 1e-9),
        **{f"time/{phase}": seconds for phase, seconds in times.seconds.items()},
        "time/step": times.total(),
    }


def _teacher_seconds(parts: Sequence[Experience]) -> dict[str, float]:
    """Compute the seconds that an answer waited for its teacher's rows; empty without teachers."""
    taken = [part.metrics[TEACHER_S] for part in parts if TEACHER_S in part.metrics]
    return {f"{TEACHER_S}/mean": float(np.mean(taken)), f"{TEACHER_S}/max": max(taken)} if taken else {}


def _run_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Compute metrics by run, where a run may be several responses (the steps of a workflow).

    The reward of a run is that of its last response; the other metrics count each response.
    """
    if not any(OF_RUN in part.info for group in groups for part in group.experiences):
        return {}
    last = {
        (group.key, run_of(part.info, place)): part.reward
        for group in groups
        for place, part in enumerate(group.experiences)
        if not other_task(part.info)
    }
    rows = sum(len(group.experiences) for group in groups)
    return {
        "rollout/runs": float(len(last)),
        "rollout/rows_per_run": rows / len(last),
        "rollout/run_reward/mean": float(np.mean(list(last.values()))),
    }


def _line(step: int, metrics: Mapping[str, float]) -> str:
    return f"step:{step} - " + " - ".join(f"{name}:{value:.5g}" for name, value in metrics.items())
