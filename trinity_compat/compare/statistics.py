"""Levels, slopes and areas of curves, in plain Python: they are there without numpy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import mul, sub


@dataclass(frozen=True, slots=True)
class CurveSummary:
    """One curve in four numbers. ``last`` is the mean of its last tenth (at least one point)."""

    level: float
    slope: float
    last: float
    points: int


def summarise(xs: Sequence[float], ys: Sequence[float]) -> CurveSummary:
    """Mean, least-squares slope per unit of x, mean of the last tenth; NaN without points."""
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
