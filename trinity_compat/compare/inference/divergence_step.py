"""The step from which two sides differ, by a simultaneous 95 % band of B − A over windows of steps.

In each of at most 16 windows Welch's t over the seeds' means there; the band is so wide that it leaves 0
anywhere in 5 % of the comparisons without a difference. Its width is the smaller of two bounds: Bonferroni's,
and the Kac-Rice formula for a t-process (Liebl and Reimherr 2023), which knows that windows of one curve are
alike, from the angle between the seeds' deviations in neighbouring windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from trinity_compat.compare.inference.seeds import Array, squared_error
from trinity_compat.compare.inference.within import block_edges, block_means

_WINDOWS = 16
_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Band:
    """The band over windows: ``starts`` and ``ends`` in x, ``low`` and ``high`` of B − A.

    ``p``: of no difference in any window. ``first``: the window in which the band first leaves 0, None
    where it never does; ``outside``: in how many windows it does.
    """

    starts: list[float]
    ends: list[float]
    low: list[float]
    high: list[float]
    p: float
    first: int | None
    outside: int


def band(
    xs: Sequence[float],
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    *,
    paired: bool,
    least: float,
) -> Band:
    """Compute the band of two sides with ≥ 2 seeds each on common ``xs`` (at least 2).

    A gap below ``least`` is rounding and counts as 0.
    """
    count = min(len(xs), _WINDOWS)
    first, second = (block_means(np.asarray(side, dtype=np.float64), count) for side in (a, b))
    squares, freedom = squared_error(first, second, paired)
    gaps, errors = second.mean(axis=0) - first.mean(axis=0), np.sqrt(squares)
    angle = _total_angle(first, second, paired)
    seen = np.where(np.abs(gaps) <= least, 0.0, np.abs(gaps))
    with np.errstate(divide="ignore", invalid="ignore"):
        highest = float(np.nan_to_num(seen / errors, nan=0.0, posinf=np.inf).max())
    # The |t| exceeded in any window with 5 %, by bisection between one test's and Bonferroni's.
    low, high = (float(special.stdtrit(freedom, 1 - _ALPHA / 2 / tests)) for tests in (1, count))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _exceeds(middle, count, freedom, angle) > _ALPHA else (low, middle)
    half = high * errors
    outside = np.flatnonzero(seen > half)
    edges = block_edges(len(xs), count)
    return Band(
        [xs[i] for i in edges[:-1]],
        [xs[i - 1] for i in edges[1:]],
        (gaps - half).tolist(),
        (gaps + half).tolist(),
        min(1.0, _exceeds(highest, count, freedom, angle)),
        int(outside[0]) if len(outside) else None,
        len(outside),
    )


def _total_angle(a: Array, b: Array, paired: bool) -> float:
    """Return the summed angles between the seeds' deviations in neighbouring windows.

    This is the length of their curve on a sphere. A window without deviation counts as orthogonal to its
    neighbours.
    """
    sides = (b - a,) if paired else (a, b)
    deviations = np.concatenate([side - side.mean(axis=0) for side in sides])
    norms = np.sqrt((deviations**2).sum(axis=0))
    directions = deviations / np.where(norms, norms, 1.0)
    likeness = (directions[:, 1:] * directions[:, :-1]).sum(axis=0)
    return float(np.arccos(np.clip(likeness, -1.0, 1.0)).sum())


def _exceeds(t: float, count: int, freedom: float, angle: float) -> float:
    """Return an upper bound of the probability that |t| is exceeded in any window."""
    if math.isinf(t):
        return 0.0
    once = 2 * float(special.stdtr(freedom, -t))
    return min(count * once, once + angle / math.pi * (1 + t * t / freedom) ** (-freedom / 2))
