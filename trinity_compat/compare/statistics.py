"""Levels, slopes, areas, and how sure a difference is. Plain Python: no numpy on the light side."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2000
_EXACT_LIMIT = 20_000
# Gaps that are one number but for the order of the additions, as a share of the largest level.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Summary:
    """One curve in four numbers. ``last`` is the mean of its last tenth (at least one point)."""

    level: float
    slope: float
    last: float
    points: int


@dataclass(frozen=True, slots=True)
class Difference:
    """B − A of one statistic, with a 95 % interval.

    ``p``: two-sided, of a permutation test (seeds) or None (one run each). ``effect``: Hedges' g over
    seeds, else the difference over the noise within a run. ``method`` says which was used.
    """

    value: float
    low: float
    high: float
    effect: float
    p: float | None
    method: str


def summarise(xs: Sequence[float], ys: Sequence[float]) -> Summary:
    """Mean, least-squares slope per unit of x, mean of the last tenth; NaN without points."""
    if not ys:
        return Summary(math.nan, math.nan, math.nan, 0)
    tail = ys[-max(1, len(ys) // 10) :]
    return Summary(statistics.fmean(ys), slope(xs, ys), statistics.fmean(tail), len(ys))


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Least-squares slope; 0 for fewer than two distinct x."""
    if len(xs) < 2:
        return 0.0
    mx, my = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - mx) ** 2 for x in xs)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0


def area_between(xs: Sequence[float], a: Sequence[float], b: Sequence[float]) -> float:
    """∫|b − a| dx over the range, divided by its length: the mean distance (trapezoids)."""
    if len(xs) < 2 or xs[-1] == xs[0]:
        return abs(b[0] - a[0]) if xs else math.nan
    gaps = [abs(q - p) for p, q in zip(a, b, strict=True)]
    total = sum((gaps[i] + gaps[i + 1]) / 2 * (xs[i + 1] - xs[i]) for i in range(len(xs) - 1))
    return total / (xs[-1] - xs[0])


def between_seeds(a: Sequence[float], b: Sequence[float], *, paired: bool) -> Difference:
    """One number per seed on each side: bootstrap interval of the mean difference (Efron 1979) and an
    exact permutation test where it is small enough (paired: sign flips). Needs ≥ 2 seeds a side."""
    value = statistics.fmean(b) - statistics.fmean(a)
    rng = random.Random(0)
    if paired:
        gaps = [q - p for p, q in zip(a, b, strict=True)]
        draws = sorted(statistics.fmean(rng.choices(gaps, k=len(gaps))) for _ in range(_RESAMPLES))
        p, method = _sign_flips(gaps, rng, _slack((*a, *b))), "paired bootstrap and sign-flip test over seeds"
    else:
        draws = sorted(
            statistics.fmean(rng.choices(b, k=len(b))) - statistics.fmean(rng.choices(a, k=len(a)))
            for _ in range(_RESAMPLES)
        )
        p, method = _permutation(a, b, rng), "bootstrap and permutation test over seeds"
    low, high = draws[int(_RESAMPLES * 0.025)], draws[int(_RESAMPLES * 0.975)]
    return Difference(value, low, high, _hedges(a, b), p, method)


def _hedges(a: Sequence[float], b: Sequence[float]) -> float:
    """Hedges' g: the mean difference in pooled standard deviations, corrected for few seeds (1981)."""
    freedom = len(a) + len(b) - 2
    pooled = ((len(a) - 1) * statistics.variance(a) + (len(b) - 1) * statistics.variance(b)) / freedom
    gap = statistics.fmean(b) - statistics.fmean(a)
    if pooled == 0:
        return 0.0 if gap == 0 else math.copysign(math.inf, gap)
    return gap / math.sqrt(pooled) * (1 - 3 / (4 * freedom - 1))


def _permutation(a: Sequence[float], b: Sequence[float], rng: random.Random) -> float:
    pool, size = [*a, *b], len(a)
    total, least = math.fsum(pool), abs(statistics.fmean(b) - statistics.fmean(a)) - _slack(pool)

    def is_as_far(first: Sequence[float]) -> bool:
        chosen = math.fsum(first)
        return abs((total - chosen) / len(b) - chosen / size) >= least

    if math.comb(len(pool), size) <= _EXACT_LIMIT:
        return statistics.fmean(map(is_as_far, itertools.combinations(pool, size)))
    return _sampled(sum(is_as_far(rng.sample(pool, size)) for _ in range(_RESAMPLES)))


def _sign_flips(gaps: Sequence[float], rng: random.Random, slack: float) -> float:
    least = abs(math.fsum(gaps)) - slack

    def is_as_far(signs: Sequence[int]) -> bool:
        return abs(math.fsum(sign * gap for sign, gap in zip(signs, gaps, strict=True))) >= least

    if 2 ** len(gaps) <= _EXACT_LIMIT:
        return statistics.fmean(map(is_as_far, itertools.product((1, -1), repeat=len(gaps))))
    return _sampled(sum(is_as_far(rng.choices((1, -1), k=len(gaps))) for _ in range(_RESAMPLES)))


def _slack(levels: Sequence[float]) -> float:
    """What counts as equally far. It grows with the levels: tokens are counted in thousands, a KL
    divergence in 1e-10, and the mirror image of the split at hand must count on both."""
    return _ROUNDING * max(map(abs, levels))


def _sampled(hits: int) -> float:
    """p from resamples; the split at hand is one of them (Phipson and Smyth 2010), so that p is never 0."""
    return (hits + 1) / (_RESAMPLES + 1)


def within_runs(a: Sequence[float], b: Sequence[float]) -> Difference:
    """One run a side: the noise is what is left of the pointwise difference b − a around its own trend.

    Neighbouring steps are correlated, so the interval uses blocks of √n points (moving-block bootstrap,
    Künsch 1989). Says nothing about other seeds: weak evidence.
    """
    gaps = [q - p for p, q in zip(a, b, strict=True)]
    value = statistics.fmean(gaps)
    if len(gaps) < 4:
        return Difference(value, math.nan, math.nan, math.nan, None, "too few points to say")
    size = max(2, round(math.sqrt(len(gaps))))
    starts = range(len(gaps) - size + 1)
    rng = random.Random(0)
    blocks = -(-len(gaps) // size)
    draws = sorted(
        statistics.fmean(x for s in rng.choices(starts, k=blocks) for x in gaps[s : s + size])
        for _ in range(500)
    )
    noise = statistics.stdev(gaps)
    effect = value / noise if noise else (0.0 if value == 0 else math.copysign(math.inf, value))
    return Difference(
        value, draws[12], draws[487], effect, None, "block bootstrap within one run (weak: one seed a side)"
    )
