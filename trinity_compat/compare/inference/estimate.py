"""A difference with its standard error, the power of a t-test at 5 %, and the correction for many tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special


@dataclass(frozen=True, slots=True)
class Estimate:
    """B − A of a level.

    ``errors``: (standard error, degrees of freedom) of each way in which its noise was estimated; the one
    that leaves most doubt decides, so that p and interval agree whatever the level.

    ``effect``: Hedges' g over seeds, the difference over the noise of a step within runs. ``doubt``: why
    the data carry less than their number of points, "" where they don't.
    """

    value: float
    errors: tuple[tuple[float, float], ...]
    effect: float
    method: str
    doubt: str = ""

    @property
    def p(self) -> float:
        """Two-sided: of a true difference of 0."""
        return 2 * (self.p_below(0.0) if self.value < 0 else self.p_above(0.0))

    def p_below(self, bound: float) -> float:
        """One-sided: of a true difference of ``bound`` or more, against a smaller one."""
        return max(float(special.stdtr(df, _ratio(self.value - bound, se))) for se, df in self.errors)

    def p_above(self, bound: float) -> float:
        """One-sided: of a true difference of ``bound`` or less, against a larger one."""
        return max(float(special.stdtr(df, _ratio(bound - self.value, se))) for se, df in self.errors)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The differences that a two-sided test at 1 − ``confidence`` does not refuse."""
        half = max(se * float(special.stdtrit(df, (1 + confidence) / 2)) for se, df in self.errors)
        return self.value - half, self.value + half

    def least(self) -> float:
        """The smallest true difference that data like these show with 80 % power."""
        return max(least_difference(se, df) for se, df in self.errors)


def _ratio(distance: float, error: float) -> float:
    if error:
        return distance / error
    return math.copysign(math.inf, distance) if distance else 0.0


POWER = 0.8
MOST_SEEDS = 10_000


def least_difference(error: float, freedom: float) -> float:
    """Return the true difference that a t-test with this standard error detects with 80 % power."""
    critical = special.stdtrit(freedom, 0.975)
    return error * float(special.nctdtrinc(freedom, 1 - POWER, critical))


def seeds_needed(spread: float, difference: float, *, paired: bool = False) -> int | None:
    """Return the fewest seeds per side that detect ``difference`` with 80 % power; None above MOST_SEEDS.

    ``spread``: standard deviation between the seeds of a side, the same on both; of the pairs' differences
    where ``paired``.
    """
    if difference <= 0:
        return None
    low, high = 1, 2  # too few; enough, once the loop has found it
    while _power(high, spread, difference, paired) < POWER:
        low, high = high, 2 * high
        if low >= MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if _power(middle, spread, difference, paired) < POWER:
            low = middle
        else:
            high = middle
    return high if high <= MOST_SEEDS else None


def _power(seeds: int, spread: float, difference: float, paired: bool) -> float:
    """Return the power of N seeds per side (noncentral t without the far tail, negligible at this power)."""
    if not spread:
        return 1.0
    freedom = seeds - 1 if paired else 2 * seeds - 2
    shift = difference / spread * math.sqrt(seeds if paired else seeds / 2)
    if shift > 30:  # power 1, and outside the range of scipy's series for the noncentral t
        return 1.0
    return 1 - float(special.nctdtr(freedom, shift, special.stdtrit(freedom, 0.975)))


def spread_at_most(spread: float, freedom: int, sureness: float = 0.8) -> float:
    """Return the upper limit of a standard deviation estimated with ``freedom`` degrees of freedom.

    Few seeds estimate their spread only roughly (chi-squared limit; Browne 1995 plans with 80 %).
    """
    return spread * math.sqrt(freedom / float(special.chdtri(freedom, sureness)))


def discoveries(ps: Sequence[float]) -> list[float]:
    """Return q of each p: the least false discovery rate at which it is a discovery."""
    order = np.argsort(ps)[::-1]
    ranks = np.arange(len(ps), 0, -1)
    scaled = np.minimum.accumulate(np.asarray(ps)[order] * len(ps) / ranks)
    found = np.empty(len(ps))
    found[order] = np.minimum(scaled, 1.0)
    return [float(q) for q in found]
