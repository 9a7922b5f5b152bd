"""Descriptions of incomplete data: NaN and infinite values, steps that one side lacks."""

from __future__ import annotations

from collections import Counter

from trinity_compat.compare.axes import Axis
from trinity_compat.compare.curves import NonFinitePoints
from trinity_compat.compare.verdict import Comparison, MetricVerdict

UNITS: dict[Axis, str] = {
    "step": "step",
    "update": "update",
    "samples": "sample",
    "tokens": "token",
    "time": "second",
}


def divergence(metric: MetricVerdict, axis: Axis) -> str:
    """Return where and on which side a metric is NaN or infinite; at least one side must have such points."""
    a, b = metric.a.broken, metric.b.broken
    if a and b:
        return f"{metric.name} is {_where(a, axis)} in A and {_where(b, axis)} in B"
    broken, letter, other = (a, "A", "B") if a else (b, "B", "A")
    assert broken is not None
    return f"{metric.name} is {_where(broken, axis)} in {letter}, finite in {other}"


def _where(broken: NonFinitePoints, axis: Axis) -> str:
    """Return ``NaN from step 51 on``, ``infinite at step 7`` or ``NaN at 3 points, first at step 7``."""
    at = f"{UNITS[axis]} {number(broken.first)}"
    if broken.to_the_end:
        return f"{broken.kind} from {at} on"
    return f"{broken.kind} at {at if broken.count == 1 else f'{broken.count} points, first at {at}'}"


def shortened(comparison: Comparison) -> str | None:
    """Return which run starts later or ends earlier and which range is compared, None for equal ranges.

    The range of most metrics decides, so a rarely logged metric (validation) has no influence.
    """
    ranges = Counter((*m.a.ranges, *m.b.ranges) for m in comparison.metrics)
    points = {(*m.a.ranges, *m.b.ranges): m.a.summary.points for m in comparison.metrics}
    common = max(ranges, key=lambda found: (ranges[found], points[found]))
    unit, spacing = UNITS[comparison.options.axis], _spacing(common, comparison)
    starts, ends = ([found[end] for found in common] for end in (0, 1))
    low, high = max(starts), min(ends)
    parts = []
    for verb, at, late, early in (("begins", starts, low, min(starts)), ("ends", ends, high, max(ends))):
        if abs(late - early) >= spacing:
            late_run, other = (_run_name(comparison, at, at.index(x)) for x in (late, early))
            parts.append(f"{late_run} {verb} at {unit} {number(late)}, {other} at {number(early)}")
    whole = f"only {unit}s {number(low)} to {number(high)} are compared."
    return f"{'; '.join(parts)}: {whole}" if parts else None


def _spacing(ranges: tuple[tuple[float, float], ...], comparison: Comparison) -> float:
    """Return the x between two points of the sparsest run.

    Trinity logs each update, so its range begins before veRL's first whole step and ends after its last.
    """
    metric = next(m for m in comparison.metrics if (*m.a.ranges, *m.b.ranges) == ranges)
    counts = (*metric.a.counts, *metric.b.counts)
    gaps = [(last - first) / (n - 1) for (first, last), n in zip(ranges, counts, strict=True) if n > 1]
    return max(gaps, default=1.0) * (1 - 1e-9)


def _run_name(comparison: Comparison, at: list[float], index: int) -> str:
    """Return a side's letter, with the run's name if the side's runs differ."""
    runs = [("A", run) for run in comparison.a.runs] + [("B", run) for run in comparison.b.runs]
    letter, run = runs[index]
    agree = len({x for (side, _), x in zip(runs, at, strict=True) if side == letter}) == 1
    return letter if agree else f"{run.name} of {letter}"


def number(x: float) -> str:
    """Format an x: a step as a whole number, millions of tokens without an exponent."""
    return f"{x:.0f}" if abs(x) >= 1000 or x == round(x) else f"{x:.3g}"
