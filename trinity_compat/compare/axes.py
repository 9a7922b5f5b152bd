"""The common x axis: veRL steps, optimizer updates, samples, tokens or wall-clock seconds."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from trinity_compat.common.errors import UserError
from trinity_compat.compare.model import RunMetrics, Series
from trinity_compat.compare.names import is_trinity

Axis = Literal["step", "update", "samples", "tokens", "time"]
AXES: tuple[Axis, ...] = ("step", "update", "samples", "tokens", "time")
_TOKENS = "perf/total_num_tokens"
_STEP_SECONDS = ("timing_s/step", "perf/time_per_step", "time/train_step")


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's metric on an axis: ascending ``xs`` and their ``ys``, which may be NaN or infinite."""

    xs: Sequence[float]
    ys: Sequence[float]

    def finite(self) -> Curve:
        """Return the curve without NaN and infinite values."""
        if all(map(math.isfinite, self.ys)):
            return self
        kept = [point for point in zip(self.xs, self.ys, strict=True) if math.isfinite(point[1])]
        return Curve([x for x, _ in kept], [y for _, y in kept])

    def inside(self, low: float, high: float) -> Curve:
        """Return the part with low ≤ x ≤ high."""
        start, end = bisect_left(self.xs, low), bisect_right(self.xs, high)
        return self if (start, end) == (0, len(self.xs)) else Curve(self.xs[start:end], self.ys[start:end])

    def at(self, x: float) -> float:
        """Return the value at ``x``, linear between two points, constant beyond the ends."""
        index = bisect_right(self.xs, x)
        if index == 0:
            return self.ys[0]
        x0, y0 = self.xs[index - 1], self.ys[index - 1]
        if x0 == x or index == len(self.xs):
            return y0
        x1, y1 = self.xs[index], self.ys[index]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def curve(
    series: Series, run: RunMetrics, axis: Axis, *, r: int | None, samples_per_step: int | None
) -> Curve:
    """Put one series on ``axis``.

    ``r``: optimizer updates per veRL step. Trinity's step is one update, veRL's is r of them.
    Raises UserError where the run lacks what the axis needs.
    """
    ordered = series.latest()
    if axis == "time":
        return _on_clock(ordered, run)
    if axis == "tokens":
        if _TOKENS not in run.series:
            raise UserError(f"{run.source}: axis 'tokens' needs the metric {_TOKENS}")
        return _cumulative(ordered, run.series[_TOKENS].sorted())
    per_update = is_trinity(run)
    if per_update != (axis == "update") and r is None:
        raise UserError(
            f"{run.source}: putting it on axis {axis!r} needs r, the optimizer updates per veRL step",
            hint="give --updates-per-step R (train_batch_size / ppo_mini_batch_size)",
        )
    scale = 1.0
    if axis == "update":
        scale = 1.0 if per_update else float(r or 1)
    elif per_update:
        scale = 1.0 / float(r or 1)
    if axis == "samples":
        if samples_per_step is None:
            raise UserError(
                f"{run.source}: axis 'samples' needs the responses per veRL step",
                hint="give --samples-per-step N (train_batch_size × rollout.n)",
            )
        scale *= samples_per_step
    return Curve([step * scale for step in ordered.steps], ordered.values.tolist())


def _on_clock(series: Series, run: RunMetrics) -> Curve:
    """Put a series on seconds since the run's first point; without a clock, on cumulated step times."""
    if all(wall == wall for wall in series.walls):
        walls = (w for s in run.series.values() for w in s.walls if w == w)
        start = min(walls, default=0.0)
        order = sorted(range(len(series)), key=series.walls.__getitem__)
        return Curve([series.walls[i] - start for i in order], [series.values[i] for i in order])
    seconds = next((run.series[name].sorted() for name in _STEP_SECONDS if name in run.series), None)
    if seconds is None:
        raise UserError(f"{run.source}: axis 'time' needs a clock or a timing_s/step series")
    return _cumulative(series, seconds)


def _cumulative(series: Series, amounts: Series) -> Curve:
    """Put a series on the cumulated ``amounts``; steps before the first amount are at 0."""
    totals = list(accumulate(amounts.values, initial=0.0))
    xs = [totals[bisect_right(amounts.steps, step)] for step in series.steps]
    return Curve(xs, series.values.tolist())


def align(curves: Sequence[Curve]) -> tuple[list[float], list[list[float]]]:
    """Return the first curve's x in the range that all share, and every curve there.

    Curves are linear between their points. Without a common range the result is empty.
    """
    if not all(c.xs for c in curves):
        return [], [[] for _ in curves]
    if all(c.xs == curves[0].xs for c in curves):
        return list(curves[0].xs), [list(c.ys) for c in curves]
    low, high = max(c.xs[0] for c in curves), min(c.xs[-1] for c in curves)
    xs = list(curves[0].inside(low, high).xs)
    return xs, [[c.at(x) for x in xs] for c in curves]
