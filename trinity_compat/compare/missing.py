"""What a comparison could not look at, in words: values that are not finite, steps that one side lacks."""

from __future__ import annotations

from trinity_compat.compare.axes import Axis
from trinity_compat.compare.verdict import Broken, MetricVerdict

_UNITS: dict[Axis, str] = {
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


def _where(broken: Broken, axis: Axis) -> str:
    """``NaN from step 51 on``, ``infinite at step 7``, ``NaN at 3 points, first at step 7``."""
    at = f"{_UNITS[axis]} {number(broken.first)}"
    if broken.to_the_end:
        return f"{broken.kind} from {at} on"
    return f"{broken.kind} at {at if broken.count == 1 else f'{broken.count} points, first at {at}'}"


def number(x: float) -> str:
    """An x for a sentence: a step as a whole number, millions of tokens without an exponent."""
    return f"{x:.0f}" if abs(x) >= 1000 or x == round(x) else f"{x:.3g}"
