"""A difference with its standard error: one value that answers every question by Student's t."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from trinity_compat.compare.inference.power import least_difference


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
