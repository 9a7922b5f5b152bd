"""Evidence on one metric: the difference and its interval, the margin, the detectable difference."""

from __future__ import annotations

import math
import statistics as stdlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trinity_compat.compare import inference
from trinity_compat.compare.curves import SideCurves
from trinity_compat.compare.margins import DEFAULT, MarginAmount

if TYPE_CHECKING:
    from trinity_compat.compare.inference.divergence_step import Band
    from trinity_compat.compare.inference.estimate import Estimate

# A difference below this share of the level is rounding, wherever it was done.
_ROUNDED = 1e-5


@dataclass(frozen=True, slots=True)
class Difference:
    """B − A of the level, with a 95 % interval (NaN where the data carry none).

    ``p``: two-sided, of no difference; below 0.05 where the interval excludes 0. ``q``: p as it counts among
    the metrics of its kind (Benjamini-Hochberg). ``effect``: Hedges' g over seeds, else the difference over
    the noise of a step.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    effect: float = math.nan
    p: float | None = None
    method: str = ""
    q: float | None = None


@dataclass(frozen=True, slots=True)
class Margin:
    """The largest difference that counts as the same. ``origin`` describes how it was determined."""

    size: float
    origin: str
    is_given: bool = False
    is_of_spread: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """The tests of one metric by itself, before the correction for many metrics.

    ``p_same``: of the equivalence test (two one-sided tests against the margin). ``least``: the difference
    that data like these show with 80 % power. ``seeds``: how many a side would show the margin so, None where
    seed noise is unknown or it would take more than ``estimate.MOST_SEEDS``. ``lacks``: why nothing can be
    tested; ``doubt``: why the points count as fewer independent ones. ``exceeds_rounding``: B − A
    is more than rounding.
    """

    difference: Difference
    margin: Margin
    exceeds_rounding: bool = True
    p_same: float | None = None
    least: float | None = None
    seeds: int | None = None
    band: Band | None = None
    lacks: str = ""
    doubt: str = ""


def gather(
    xs: Sequence[float],
    a: SideCurves,
    b: SideCurves,
    *,
    given: MarginAmount | None,
    paired: bool,
    resolution: float,
) -> Evidence:
    """Compute the evidence on one metric from its curves on ``xs``.

    ``given``: the user's margin; ``resolution``: the last digit that a source prints.
    """
    over_seeds = min(len(a.seeds), len(b.seeds)) >= 2
    margin = _margin(a, b, given, over_seeds)
    value = b.summary.level - a.summary.level
    rounding = max(resolution, _ROUNDED * max(abs(a.summary.level), abs(b.summary.level)))
    if lacks := _lacks(a, over_seeds):
        evidence = Evidence(Difference(value), margin, lacks=lacks)
    elif over_seeds:
        band = _band(xs, a, b, paired, rounding)
        evidence = replace(_over_seeds(a.levels, b.levels, margin, given or DEFAULT, paired), band=band)
    else:
        evidence = _within_runs(a, b, margin)
    return replace(evidence, exceeds_rounding=abs(value) > rounding)


def _over_seeds(
    a: Sequence[float], b: Sequence[float], margin: Margin, amount: MarginAmount, paired: bool
) -> Evidence:
    """Compute evidence from one level per seed; ``amount`` is the margin as given."""
    from trinity_compat.compare.inference import estimate as estimates
    from trinity_compat.compare.inference import seeds

    estimate = seeds.between_seeds(a, b, paired=paired)
    if amount.is_share and not margin.is_of_spread:
        p_same = seeds.within_share(a, b, amount.value, paired=paired)
    else:
        p_same = _p_within(estimate, margin)
    gaps = [q - p for p, q in zip(a, b, strict=True)] if paired else []
    spread = stdlib.stdev(gaps) if paired else seeds.pooled_spread(a, b)
    needed = estimates.seeds_needed(spread, margin.size, paired=paired)
    return Evidence(_difference(estimate), margin, p_same=p_same, least=estimate.least(), seeds=needed)


def _band(xs: Sequence[float], a: SideCurves, b: SideCurves, paired: bool, rounding: float) -> Band | None:
    if len(xs) < 2:
        return None
    from trinity_compat.compare.inference.divergence_step import band

    return band(xs, a.seeds, b.seeds, paired=paired, least=rounding)


def _within_runs(a: SideCurves, b: SideCurves, margin: Margin) -> Evidence:
    from trinity_compat.compare.inference.within import within_runs

    estimate = within_runs(a.mean, b.mean)
    p_same, least = _p_within(estimate, margin), estimate.least()
    return Evidence(_difference(estimate), margin, p_same=p_same, least=least, doubt=estimate.doubt)


def _lacks(a: SideCurves, over_seeds: bool) -> str:
    if not a.mean:
        return "no finite point on both sides"
    if (missing := inference.missing()) or over_seeds:
        return missing
    from trinity_compat.compare.inference.within import FEWEST

    points = len(a.mean)
    are = "is 1" if points == 1 else f"are {points}"
    needed = f"with one run on a side at least {FEWEST} points in common are needed, and there {are}"
    return needed if points < FEWEST else ""


def _difference(estimate: Estimate) -> Difference:
    low, high = estimate.interval()
    return Difference(estimate.value, low, high, estimate.effect, estimate.p, estimate.method)


def _p_within(estimate: Estimate, margin: Margin) -> float:
    """Return p of the two one-sided tests against ± the margin (Schuirmann 1987)."""
    return max(estimate.p_below(margin.size), estimate.p_above(-margin.size))


def _margin(a: SideCurves, b: SideCurves, given: MarginAmount | None, over_seeds: bool) -> Margin:
    """Return the user's margin, else a tenth of A's level.

    If the spread between seeds (one run per side: of the points) exceeds the level, it is a tenth of the
    spread.
    """
    level = abs(a.summary.level)
    if given is not None:
        size = given.value * level if given.is_share else given.value
        return Margin(size, f"given: {given}" if given.is_share else "given", is_given=True)
    spread = _spread(a.levels, b.levels) if over_seeds else _spread(a.mean, b.mean)
    if spread > level:
        whose = "between seeds" if over_seeds else "of the points"
        return Margin(DEFAULT.value * spread, f"a tenth of the standard deviation {whose}", is_of_spread=True)
    return Margin(DEFAULT.value * level, "a tenth of A's level")


def _spread(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the pooled standard deviation within the sides, 0 for fewer than two values."""
    if len(a) < 2 or len(b) < 2:
        return 0.0
    return math.sqrt((_variance(a) + _variance(b)) / 2)


def _variance(values: Sequence[float]) -> float:
    """Return the variance; statistics.variance computes in fractions, 2 ms for 2,000 points."""
    mean = stdlib.fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
