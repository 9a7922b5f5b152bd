"""Power of a two-sided t-test at 5 %: detectable differences and numbers of seeds."""

from __future__ import annotations

import math

from scipy import special

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
