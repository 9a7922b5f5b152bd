"""What could have been seen, and how many seeds it would take: the power of a two-sided t-test at 5 %."""

from __future__ import annotations

import math

from scipy import special

POWER = 0.8
MOST_SEEDS = 10_000


def least_difference(error: float, freedom: float) -> float:
    """The true difference that a t-test with this standard error finds with 80 % power."""
    critical = special.stdtrit(freedom, 0.975)
    return error * float(special.nctdtrinc(freedom, 1 - POWER, critical))


def seeds_needed(spread: float, difference: float, *, paired: bool = False) -> int | None:
    """The fewest seeds a side that tell ``difference`` apart with 80 % power; None above MOST_SEEDS.

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
    """Of N seeds a side (noncentral t; the far tail, which adds nothing at this power, is left out)."""
    if not spread:
        return 1.0
    freedom = seeds - 1 if paired else 2 * seeds - 2
    shift = difference / spread * math.sqrt(seeds if paired else seeds / 2)
    if shift > 30:  # certain, and beyond what scipy's series for the noncentral t is made for
        return 1.0
    return 1 - float(special.nctdtr(freedom, shift, special.stdtrit(freedom, 0.975)))


def spread_at_most(spread: float, freedom: int, sureness: float = 0.8) -> float:
    """The upper limit of a standard deviation that was estimated with ``freedom`` degrees of freedom: few
    seeds tell their own spread only roughly (chi-squared limit; Browne 1995 takes 80 % to plan by)."""
    return spread * math.sqrt(freedom / float(special.chdtri(freedom, sureness)))
