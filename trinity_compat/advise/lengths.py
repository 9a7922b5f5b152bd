"""Lengths of answers: lognormal by mean and 99th percentile, or drawn from measured ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from trinity_compat.common.errors import UserError

_NORMAL = NormalDist()
_Z99 = _NORMAL.inv_cdf(0.99)
_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """A distribution of lengths in tokens, at most ``limit``.

    Lognormal with ``mu`` and ``sigma`` of the logarithm, or ``measured`` ones where there are any.
    """

    limit: int
    mu: float = 0.0
    sigma: float = 0.0
    measured: tuple[int, ...] = ()

    def draw(self, source: random.Random) -> int:
        """Return the length of one answer."""
        if self.measured:
            return max(1, min(self.limit, source.choice(self.measured)))
        return max(1, min(self.limit, round(math.exp(self.mu + self.sigma * source.gauss(0.0, 1.0)))))

    @property
    def mean(self) -> float:
        """Mean length, the cut at ``limit`` included."""
        if self.measured:
            return sum(min(self.limit, length) for length in self.measured) / len(self.measured)
        return _cut_mean(self.mu, self.sigma, self.limit)

    @property
    def p99(self) -> float:
        """99th percentile of the lengths."""
        if self.measured:
            return float(min(self.limit, sorted(self.measured)[int(0.99 * (len(self.measured) - 1))]))
        return min(float(self.limit), math.exp(self.mu + _Z99 * self.sigma))


def by_mean_and_p99(mean: float, p99: float, limit: int) -> AnswerLengths:
    """Return lognormal lengths with the given mean, after the cut at ``limit``, and 99th percentile.

    Where ``p99`` is the limit itself, one answer in a hundred is cut. Raises UserError for numbers that no
    such distribution has.
    """
    if not 0 < mean <= p99:
        raise UserError(
            f"--answer-length {mean:g},{p99:g}: the mean must be above 0 and at most the 99th percentile",
            hint="write MEAN,P99 in tokens, as 900,6000",
        )
    if p99 > limit:
        raise UserError(
            f"--answer-length {mean:g},{p99:g}: the launch cuts answers at {limit} tokens"
            " (data.max_response_length)",
            hint=f"write a 99th percentile of at most {limit}",
        )
    low, high = 0.0, _Z99  # the mean falls from p99 to its least value in between
    if _cut_mean(math.log(p99) - _Z99 * high, high, limit) > mean:
        raise UserError(
            f"--answer-length {mean:g},{p99:g}: no lognormal distribution is that wide",
            hint=f"write a 99th percentile of at most {math.exp(_Z99**2 / 2):.0f} times the mean",
        )
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _cut_mean(math.log(p99) - _Z99 * middle, middle, limit) > mean:
            low = middle
        else:
            high = middle
    return AnswerLengths(limit, math.log(p99) - _Z99 * high, high)


def of_measured(lengths: Sequence[int], limit: int) -> AnswerLengths:
    """Return the distribution of measured lengths."""
    return AnswerLengths(limit, measured=tuple(lengths))


def _cut_mean(mu: float, sigma: float, limit: int) -> float:
    """Return the mean of a lognormal variable that is cut at ``limit``."""
    if sigma < 1e-9:
        return min(math.exp(mu), float(limit))
    at = (math.log(limit) - mu) / sigma
    below = math.exp(mu + sigma**2 / 2) * _NORMAL.cdf(at - sigma)
    return below + limit * (1.0 - _NORMAL.cdf(at))
