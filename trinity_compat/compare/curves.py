"""The two sides' curves of one metric on a common x: levels, slopes, areas, NaN and infinite points.

Plain Python: it works without numpy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import mul, sub

from trinity_compat.compare.axes import Curve, align, curve
from trinity_compat.compare.margins import CompareOptions
from trinity_compat.compare.model import RunMetrics, Series


@dataclass(frozen=True, slots=True)
class CurveSummary:
    """One curve in four numbers. ``last`` is the mean of its last tenth (at least one point)."""

    level: float
    slope: float
    last: float
    points: int


def summarise(xs: Sequence[float], ys: Sequence[float]) -> CurveSummary:
    """Return mean, least-squares slope per unit of x, mean of the last tenth; NaN without points."""
    if not ys:
        return CurveSummary(math.nan, math.nan, math.nan, 0)
    tail = ys[-max(1, len(ys) // 10) :]
    return CurveSummary(statistics.fmean(ys), slope(xs, ys), statistics.fmean(tail), len(ys))


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Least-squares slope; 0 for fewer than two distinct x."""
    if len(xs) < 2:
        return 0.0
    middle = statistics.fmean(xs)
    offsets = [x - middle for x in xs]
    spread = sum(map(mul, offsets, offsets))
    mean = statistics.fmean(ys)
    return sum(map(mul, offsets, [y - mean for y in ys])) / spread if spread else 0.0


def area_between(xs: Sequence[float], a: Sequence[float], b: Sequence[float]) -> float:
    """∫|b − a| dx over the range, divided by its length: the mean distance (trapezoids)."""
    if len(xs) < 2 or xs[-1] == xs[0]:
        return abs(b[0] - a[0]) if xs else math.nan
    gaps = list(map(abs, map(sub, b, a)))
    widths = [after - before for before, after in pairwise(xs)]
    total = sum(map(mul, widths, map(sum, pairwise(gaps)))) / 2
    return total / (xs[-1] - xs[0])


# The runs of a side, each with its series under canonical names.
Renamed = list[tuple[RunMetrics, dict[str, Series]]]


@dataclass(frozen=True, slots=True)
class NonFinitePoints:
    """A side's NaN and infinite values in the range where both sides have points.

    ``count`` is over all seeds, ``first`` the first such x, ``to_the_end`` True if no finite value follows
    it.
    """

    kind: str  # NaN | infinite | NaN or infinite
    count: int
    first: float
    to_the_end: bool


@dataclass(frozen=True, slots=True)
class SideCurves:
    """One side of one metric on the common x: its mean over seeds, and each seed's values."""

    mean: list[float]
    seeds: list[list[float]]
    summary: CurveSummary
    ranges: list[tuple[float, float]]  # each seed's first and last x, also outside the common range
    counts: list[int]  # each seed's points, also those
    broken: NonFinitePoints | None = None
    lost: list[list[tuple[float, float]]] = field(default_factory=list)  # each seed's NaN and infinite points

    @property
    def levels(self) -> list[float]:
        """Each seed's mean over the common x, [] where there is none."""
        return [statistics.fmean(seed) for seed in self.seeds if seed]


def both_sides(
    name: str, a: Renamed, b: Renamed, options: CompareOptions
) -> tuple[list[float], SideCurves, SideCurves]:
    """Return the common x (empty if the sides share no range) and both sides on it."""
    curves = [curve_of(series[name], run, options) for run, series in (*a, *b)]
    xs, values = align([one.finite() for one in curves])
    # the range in which every curve has points, finite or not; empty where one has none
    low = max(one.xs[0] if one.xs else math.inf for one in curves)
    high = min(one.xs[-1] if one.xs else -math.inf for one in curves)
    inside = [one.inside(low, high) for one in curves]
    count = len(a)
    first = _side(xs, values[:count], curves[:count], inside[:count])
    return xs, first, _side(xs, values[count:], curves[count:], inside[count:])


def curve_of(series: Series, run: RunMetrics, options: CompareOptions) -> Curve:
    """Return one run's series on the axis of the options."""
    return curve(
        series,
        run,
        options.axis,
        r=updates_of(run) or options.updates_per_step,
        samples_per_step=options.samples_per_step or samples_of(run),
    )


def updates_of(run: RunMetrics) -> int | None:
    """Return r, the mini-batches per veRL step, None if the source does not record it.

    It is the source's own value, else computed from its configuration (actor.ppo_mini_batch_size counts
    prompts). A mini-batch is one step of Trinity's, whatever ppo_epochs is.
    """
    if run.updates_per_step:
        return run.updates_per_step
    verl = run.meta.get("verl") or {}
    actor = verl.get("actor_rollout_ref", {}).get("actor", {})
    batch, mini = verl.get("data", {}).get("train_batch_size"), actor.get("ppo_mini_batch_size")
    return int(batch) // int(mini) if batch and mini else None


def samples_of(run: RunMetrics) -> int | None:
    """Return the responses per veRL step from the run's configuration, None without one."""
    verl = run.meta.get("verl") or {}
    batch = verl.get("data", {}).get("train_batch_size")
    n = verl.get("actor_rollout_ref", {}).get("rollout", {}).get("n")
    return int(batch) * int(n) if batch and n else None


def _side(
    xs: list[float], seeds: list[list[float]], curves: Sequence[Curve], inside: Sequence[Curve]
) -> SideCurves:
    mean = [sum(column) / len(seeds) for column in zip(*seeds, strict=True)]
    ranges = [(one.xs[0], one.xs[-1]) if one.xs else (math.nan, math.nan) for one in curves]
    counts = [len(one.xs) for one in curves]
    lost = [[(x, y) for x, y in zip(one.xs, one.ys, strict=True) if not math.isfinite(y)] for one in inside]
    return SideCurves(mean, seeds, summarise(xs, mean), ranges, counts, _broken(inside), lost)


def _broken(curves: Sequence[Curve]) -> NonFinitePoints | None:
    touched = [one for one in curves if one.finite() is not one]
    if not touched:
        return None
    lost = [
        (x, value)
        for one in touched
        for x, value in zip(one.xs, one.ys, strict=True)
        if not math.isfinite(value)
    ]
    kinds = {"NaN" if math.isnan(value) else "infinite" for _, value in lost}
    first, _ = min(lost, key=lambda point: point[0])
    diverged = (one for one in touched if first in one.xs and not math.isfinite(one.at(first)))
    to_the_end = not any(x > first for one in diverged for x in one.finite().xs)
    return NonFinitePoints(" or ".join(sorted(kinds)), len(lost), first, to_the_end)
