"""One run a side: how sure the mean of b − a over the steps is, when neighbouring steps are alike.

Two estimates of the noise, and the wider decides. AR(1): the lag-1 correlation φ, corrected for the bias of
short series (Kendall 1954), makes n points worth n (1 − φ) / (1 + φ). Blocks: the means of eight equal parts
of the run, which also see a slow drift under white noise, whose φ is small. Where the points are worth fewer
than eight, neither can be trusted, and a difference is told only from what a random walk with the same step
could have done. Says nothing about other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trinity_compat.compare.inference.estimate import Estimate

FEWEST = 16  # points: two for each block
_BLOCKS = 8
_WORTH = 8  # independent points, below which neither estimate holds what it promises
_WALK_BLOCKS = 16
_STEADIEST = 0.95  # the largest φ for which false alarms are counted

Array = NDArray[np.float64]
Error = tuple[float, float]  # standard error, degrees of freedom


def within_runs(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """B − A of the curves' means, from at least FEWEST points each on the same x."""
    gaps = np.asarray(b) - np.asarray(a)
    value, noise = float(gaps.mean()), float(gaps.std(ddof=1))
    effect = value / noise if noise else (math.copysign(math.inf, value) if value else 0.0)
    worth = effective_points(gaps)
    if worth >= _WORTH:
        variance = float(gaps.var()) / (1 - 1 / worth)  # without the factor too small, by the mean's share
        means = block_means(gaps, _BLOCKS)
        errors = (
            (math.sqrt(variance / worth), worth - 1),
            (float(means.std(ddof=1)) / math.sqrt(_BLOCKS), _BLOCKS - 1),
        )
        return Estimate(value, errors, effect, "AR(1) and blocks within one run (weak: one seed a side)")
    doubt = (
        f"neighbouring steps are so correlated that {len(gaps)} points count as {worth:.2g} independent "
        "ones: only a difference that a random walk cannot produce is detected"
    )
    method = "random walk within one run (weak: one seed a side)"
    return Estimate(value, (_walk(gaps),), effect, method, doubt)


def effective_points(gaps: Array) -> float:
    """Return the number of independent points whose mean is as certain; at most their number."""
    n, centred = len(gaps), gaps - gaps.mean()
    total = float(centred @ centred)
    if not total:
        return float(n)
    lagged = float(centred[1:] @ centred[:-1]) / total * n / (n - 1)
    correlation = min(max((n * lagged + 1) / (n - 4), 0.0), 0.9999)
    return n * (1 - correlation) / (1 + correlation)


def _walk(gaps: Array) -> Error:
    """The error of the mean of a random walk that begins at 0, from its steps between at most 16 blocks.

    A step moves all that comes after it, so that early ones count most. A drift, the mean of the steps, is
    what may be told, not noise. Means of L points step less than the walk itself: 3L² / (2L² + 1) makes up
    for it. Of a run too short for blocks of two, never less than the error of an AR(1) of 0.95 at rest.
    """
    count = min(len(gaps), _WALK_BLOCKS)
    means, size = block_means(gaps, count), len(gaps) / count
    steps = np.diff(means)
    reach = (1 - np.arange(1, count) / count) ** 2
    spread = float((reach * (steps - steps.mean()) ** 2).sum()) * (count - 1) / (count - 2)
    squares = float(means[0]) ** 2 + spread * 3 * size**2 / (2 * size**2 + 1)
    if size < 2:
        squares = max(squares, float(np.diff(gaps).var()) / (1 - _STEADIEST**2))
    return math.sqrt(squares), float(reach.sum() ** 2 / (reach**2).sum()) - 1


def block_means(values: Array, count: int) -> Array:
    """The means of ``count`` parts of equal length (± 1) along the last axis."""
    edges = block_edges(values.shape[-1], count)
    return np.add.reduceat(values, edges[:-1], axis=-1) / np.diff(edges)


def block_edges(points: int, count: int) -> NDArray[np.int64]:
    """Return the starts of the blocks, and the end: ``count`` + 1 numbers."""
    return np.round(np.linspace(0, points, count + 1)).astype(np.int64)
