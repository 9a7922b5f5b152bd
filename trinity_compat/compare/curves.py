"""The two sides' curves of one metric on a common x, and their NaN and infinite points."""

from __future__ import annotations

import math
import statistics as stdlib
from collections.abc import Sequence
from dataclasses import dataclass

from trinity_compat.compare.axes import Curve, align, curve
from trinity_compat.compare.model import RunMetrics, Series
from trinity_compat.compare.options import CompareOptions
from trinity_compat.compare.statistics import CurveSummary, summarise

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

    @property
    def levels(self) -> list[float]:
        """Each seed's mean over the common x."""
        return [stdlib.fmean(seed) for seed in self.seeds]


def both_sides(
    name: str, a: Renamed, b: Renamed, options: CompareOptions
) -> tuple[list[float], SideCurves, SideCurves]:
    """Return the common x (empty if the sides share no range) and both sides on it."""
    curves = [curve_of(series[name], run, options) for run, series in (*a, *b)]
    xs, values = align([one.finite() for one in curves])
    low, high = _common(curves)
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


def _common(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the range of x in which every curve has points, finite or not; low > high for an empty range."""
    if not all(one.xs for one in curves):
        return math.inf, -math.inf
    return max(one.xs[0] for one in curves), min(one.xs[-1] for one in curves)


def _side(
    xs: list[float], seeds: list[list[float]], curves: Sequence[Curve], inside: Sequence[Curve]
) -> SideCurves:
    mean = [sum(column) / len(seeds) for column in zip(*seeds, strict=True)]
    ranges = [(one.xs[0], one.xs[-1]) if one.xs else (math.nan, math.nan) for one in curves]
    counts = [len(one.xs) for one in curves]
    return SideCurves(mean, seeds, summarise(xs, mean), ranges, counts, _broken(inside))


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
