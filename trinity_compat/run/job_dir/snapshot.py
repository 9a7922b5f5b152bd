"""State of a run, read from its database, for the live display and for ``status``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trinity_compat.buffer.model import Participant
from trinity_compat.buffer.store import Buffer
from trinity_compat.job.run_spec import RunSpec

Metrics = tuple[int, Mapping[str, float]]  # step, what a side logged of it

REWARD = ("critic/score/mean", "critic/rewards/mean")
_STALENESS = "training/model_version_lag/mean"
_THROUGHPUT = ("perf/tokens_per_second", "perf/throughput")  # veRL's own figure is per device


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One finished veRL step as the display shows it. Unknown figures are None."""

    step: int
    reward: float | None = None
    loss: float | None = None  # of a run on rows, which has no rewards
    staleness: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment of a run. ``total`` in veRL steps, None when it isn't known beforehand."""

    total: int | None
    updates_per_step: int
    rows: Sequence[StepFigures]
    depth: Mapping[str, int]
    participants: Sequence[Participant]
    version: int | None
    history: int
    validation: Mapping[str, float] = field(default_factory=dict)
    quiet_s: float | None = None  # since a group was stored; None before the first

    @property
    def step(self) -> int:
        """The last finished veRL step; 0 before the first."""
        return self.rows[-1].step if self.rows else 0

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step at the pace of the latest few; None while that is unknown."""
        # The latest few: the first steps compile kernels, and answers grow longer.
        pace = [row.step_s for row in self.rows[-8:] if row.step_s is not None]
        if self.total is None or not pace or self.step >= self.total:
            return None
        return (self.total - self.step) * sum(pace) / len(pace)


def read_snapshot(buffer: Buffer, spec: RunSpec, *, after_step: int = -1) -> Snapshot:
    """Read the current history's state; trainer rows later than ``after_step`` only."""
    return snapshot_of(buffer, spec, buffer.read_metrics("trainer", after_step=after_step))


def snapshot_of(buffer: Buffer, spec: RunSpec, metrics: Sequence[Metrics]) -> Snapshot:
    """The current history's state, with trainer rows that the caller has read."""
    latest = buffer.latest_version()
    return Snapshot(
        total=spec.total_steps,
        updates_per_step=spec.updates_per_step,
        rows=training_rows(metrics),
        depth=buffer.depth(),
        participants=buffer.participants(),
        version=latest.version if latest else None,
        history=buffer.history(),
        validation=_last_validation(metrics),
        quiet_s=buffer.newest_group_age_s(),
    )


def training_rows(metrics: Iterable[Metrics]) -> list[StepFigures]:
    """The finished veRL steps among the trainer's rows, in their order.

    Step 0 and rows of an evaluation's figures alone are no training step.
    """
    return [
        StepFigures(
            step=step,
            reward=_first(values, REWARD),
            loss=values.get("train/loss"),
            staleness=values.get(_STALENESS),
            step_s=values.get("timing_s/step"),
            tokens_per_s=_first(values, _THROUGHPUT),
            metrics=values,
        )
        for step, values in metrics
        if step > 0 and any(not name.startswith("val-") for name in values)
    ]


def _first(values: Mapping[str, float], names: Sequence[str]) -> float | None:
    return next((values[name] for name in names if name in values), None)


def _last_validation(metrics: Sequence[Metrics]) -> dict[str, float]:
    for _, values in reversed(metrics):
        if found := {name: value for name, value in values.items() if name.startswith("val-core")}:
            return found
    return {}


def age(seconds: float) -> str:
    """``7 s``, ``3 min``, ``2 h``."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.0f} h"


def now_line(snapshot: Snapshot) -> str:
    """One plain line: step, updates, reward, staleness, depth, tokens/s, both sides' state."""
    r = snapshot.updates_per_step
    total = "?" if snapshot.total is None else str(snapshot.total)
    updates = "?" if snapshot.total is None else str(snapshot.total * r)
    last = snapshot.rows[-1] if snapshot.rows else StepFigures(0)
    parts = [
        time.strftime("%H:%M:%S"),
        f"step {last.step}/{total} (updates {last.step * r}/{updates})",
        _figure("reward", last.reward, ".3f"),
        _figure("loss", last.loss, ".4f"),
        _figure("staleness", last.staleness, ".2g"),
        "" if last.loss is not None else f"ready {snapshot.depth.get('ready', 0)}",
        _figure("tokens/s", last.tokens_per_s, ".0f"),
        _figure("s/step", last.step_s, ".2f"),
        *(f"{label(who)} {who.state}" for who in snapshot.participants),
    ]
    return "  ".join(part for part in parts if part)


def label(who: Participant) -> str:
    """A participant's name for the user: its role, or its name where that is more specific."""
    return who.name if who.name.startswith(who.role) else who.role


def phases(snapshot: Snapshot) -> dict[str, str]:
    """Each participant's state, where waiting for the other side counts as running."""
    return {label(who): who.state.replace("waiting", "running") for who in snapshot.participants}


def _figure(name: str, value: float | None, form: str) -> str:
    return "" if value is None else f"{name} {value:{form}}"
