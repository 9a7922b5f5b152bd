"""Several seeds a side: Welch's t over one level per seed (paired: Student's t over the differences)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from trinity_compat.compare.inference.estimate import Estimate

Array = NDArray[np.float64]


def between_seeds(a: Sequence[float], b: Sequence[float], *, paired: bool) -> Estimate:
    """Estimate B − A of the means over seeds, ≥ 2 on each side (paired: the same number).

    Welch (1947): the sides may have unequal variances and numbers. Effect: Hedges' g (1981), of unpaired
    sides also where they are paired.
    """
    return _estimate(np.asarray(a), np.asarray(b), paired)


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of A / B > 0: every r at which Welch's t finds A − r · B to be no difference.

    It excludes 1 exactly if p of B − A is below 0.05 (Fieller 1954). A limit of 0 or infinity means that
    the data set none.
    """
    first, second = np.asarray(a), np.asarray(b)
    ratio = float(first.mean() / second.mean())

    def end(of: int, r: float) -> float:
        return _estimate(second * r, first, paired=False).interval()[of]

    far = 1e6 * ratio
    low = optimize.brentq(lambda r: end(0, r), 0.0, ratio) if end(0, 0.0) > 0 else 0.0
    high = optimize.brentq(lambda r: end(1, r), ratio, far) if end(1, far) < 0 else math.inf
    return float(low), float(high)


def within_share(a: Sequence[float], b: Sequence[float], share: float, *, paired: bool) -> float:
    """Return p of the two one-sided tests that B's level is within ± ``share`` of A's.

    A's level is uncertain like B's (Sasabuchi 1988), so the bounds are tested as B − (1 ± s) A.
    """
    first, second = np.asarray(a), np.asarray(b)
    if first.mean() < 0:
        first, second = -first, -second
    below = _estimate(first * (1 + share), second, paired).p_below(0.0)
    above = _estimate(first * (1 - share), second, paired).p_above(0.0)
    return max(below, above)


def _estimate(a: Array, b: Array, paired: bool) -> Estimate:
    value = float(b.mean() - a.mean())
    squares, freedom = squared_error(a, b, paired)
    error = math.sqrt(squares)
    method = "Student's t over the pairs of seeds" if paired else "Welch's t over seeds"
    return Estimate(value, ((error, freedom),), _hedges(a, b), method)


def squared_error(a: Array, b: Array, paired: bool) -> tuple[Array, float]:
    """Return the squared standard error of B − A along the first axis (seeds), and its degrees of freedom.

    The degrees of freedom are common to all columns, since a single column's error may be small by chance.
    """
    if paired:
        gaps = b - a
        return gaps.var(axis=0, ddof=1) / len(gaps), float(len(gaps) - 1)
    of_a, of_b = a.var(axis=0, ddof=1) / len(a), b.var(axis=0, ddof=1) / len(b)
    mean_a, total = of_a.mean(), (of_a + of_b).mean()
    share = mean_a / total if total else 0.5  # of A in the error: squares of tiny errors would underflow
    below = share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1)
    return of_a + of_b, float(1 / below)


def pooled_spread(a: Sequence[float] | Array, b: Sequence[float] | Array) -> float:
    """Return the pooled standard deviation between seeds of both sides."""
    first, second = np.asarray(a), np.asarray(b)
    freedom = len(first) + len(second) - 2
    total = ((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum()
    return math.sqrt(total / freedom)


def _hedges(a: Array, b: Array) -> float:
    """Return the mean difference in pooled standard deviations, with the exact correction for few seeds."""
    freedom, spread, gap = len(a) + len(b) - 2, pooled_spread(a, b), float(b.mean() - a.mean())
    if not spread:
        return math.copysign(math.inf, gap) if gap else 0.0
    log_correction = special.gammaln(freedom / 2) - special.gammaln((freedom - 1) / 2)
    return gap / spread * math.exp(log_correction) / math.sqrt(freedom / 2)
