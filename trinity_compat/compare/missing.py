"""What a comparison could not look at, in words: values that are not finite, steps that one side lacks."""

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
    """Where a metric is NaN or infinite, and on which side. It must be so on one."""
    a, b = metric.a.broken, metric.b.broken
    if a and b:
        return f"{metric.name} is {_where(a, axis)} in A and {_where(b, axis)} in B"
    broken, letter, other = (a, "A", "B") if a else (b, "B", "A")
    assert broken is not None
    return f"{metric.name} is {_where(broken, axis)} in {letter}, finite in {other}"


def _where(broken: NonFinitePoints, axis: Axis) -> str:
    """``NaN from step 51 on``, ``infinite at step 7``, ``NaN at 3 points, first at step 7``."""
    at = f"{UNITS[axis]} {number(broken.first)}"
    if broken.to_the_end:
        return f"{broken.kind} from {at} on"
    return f"{broken.kind} at {at if broken.count == 1 else f'{broken.count} points, first at {at}'}"


def shortened(comparison: Comparison) -> str | None:
    """That one run starts later or ends earlier than another, and what is compared then; None where all cover
    the same range. A metric that is logged rarely (validation) has no say: most of the metrics decide."""
    ranges = Counter((*m.a.ranges, *m.b.ranges) for m in comparison.metrics)
    points = {(*m.a.ranges, *m.b.ranges): m.a.summary.points for m in comparison.metrics}
    common = max(ranges, key=lambda found: (ranges[found], points[found]))
    unit, spacing = UNITS[comparison.options.axis], _spacing(common, comparison)
    starts, ends = ([found[end] for found in common] for end in (0, 1))
    low, high = max(starts), min(ends)
    said = []
    for verb, at, late, early in (("begins", starts, low, min(starts)), ("ends", ends, high, max(ends))):
        if abs(late - early) >= spacing:
            who, other = (_who(comparison, at, at.index(x)) for x in (late, early))
            said.append(f"{who} {verb} at {unit} {number(late)}, {other} at {number(early)}")
    whole = f"only {unit}s {number(low)} to {number(high)} are compared."
    return f"{'; '.join(said)}: {whole}" if said else None


def _spacing(ranges: tuple[tuple[float, float], ...], comparison: Comparison) -> float:
    """The x between two points of the sparsest run: Trinity logs each update, and so begins before veRL's
    first whole step, and ends after its last."""
    metric = next(m for m in comparison.metrics if (*m.a.ranges, *m.b.ranges) == ranges)
    counts = (*metric.a.counts, *metric.b.counts)
    gaps = [(last - first) / (n - 1) for (first, last), n in zip(ranges, counts, strict=True) if n > 1]
    return max(gaps, default=1.0) * (1 - 1e-9)


def _who(comparison: Comparison, at: list[float], index: int) -> str:
    """A side's letter, with the run's name where the side's runs don't agree."""
    runs = [("A", run) for run in comparison.a.runs] + [("B", run) for run in comparison.b.runs]
    letter, run = runs[index]
    agree = len({x for (side, _), x in zip(runs, at, strict=True) if side == letter}) == 1
    return letter if agree else f"{run.name} of {letter}"


def number(x: float) -> str:
    """An x for a sentence: a step as a whole number, millions of tokens without an exponent."""
    return f"{x:.0f}" if abs(x) >= 1000 or x == round(x) else f"{x:.3g}"
