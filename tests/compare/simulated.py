"""Seeds and curves without a difference, drawn as training makes them: for the tests that count errors."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

# Mean 0 and standard deviation 1, as a shape's name → draw(generator, size).
SEEDS = {
    "normal": lambda g, size: g.normal(size=size),
    "Student's t, 5": lambda g, size: g.standard_t(5, size=size) / np.sqrt(5 / 3),
    "Student's t, 3": lambda g, size: g.standard_t(3, size=size) / np.sqrt(3),
    "gamma, skew 1": lambda g, size: (g.gamma(4, size=size) - 4) / 2,
    "exponential, skew 2": lambda g, size: g.exponential(size=size) - 1,
    # one seed in ten collapses
    "outliers": lambda g, size: g.normal(size=size) - 4 * (g.random(size) < 0.1) + 0.4,
}


def ar1(g, size, points, correlation):
    """Stationary AR(1) noise of standard deviation 1: (size, points)."""
    shocks = g.normal(size=(size, points)) * np.sqrt(1 - correlation**2)
    before = g.normal(size=(size, 1))
    return lfilter([1], [1, -correlation], shocks, axis=1, zi=correlation * before)[0]


# How the noise's standard deviation goes over the run (0 to 1).
SPREADS = {
    "even": lambda t: np.ones_like(t),
    "three times from the middle": lambda t: np.where(t < 0.5, 1, 3),
    "a third from the middle": lambda t: np.where(t < 0.5, 3, 1),
    "a burst": lambda t: np.where((t > 0.4) & (t < 0.6), 4, 1),
    "fading": lambda t: np.exp(-2.3 * t),
}


def learning(points):
    """A reward curve, 0.2 to 0.9."""
    return 0.2 + 0.7 * (1 - np.exp(-4 * np.arange(points) / points))


def two_runs(g, size, points, correlation, spread="even"):
    """(a, b) of ``size`` comparisons: the same trend, AR(1) noise of its own on each side."""
    scale = 0.03 * SPREADS[spread](np.arange(points) / points)
    trend = learning(points)
    return tuple(trend + scale * ar1(g, size, points, correlation) for _ in range(2))


def sides_of_curves(g, kind, seeds, points):
    """Curves of ``seeds`` runs without a trend: (seeds, points), in a manner of ``kind``."""
    t = np.arange(points) / points
    if kind == "white":
        return g.normal(size=(seeds, points))
    if kind == "correlated":
        return ar1(g, seeds, points, 0.95)
    offset = g.normal(size=(seeds, 1))
    if kind == "offset":
        return offset + 0.7 * g.normal(size=(seeds, points))
    return offset + 2 * g.normal(size=(seeds, 1)) * (t - 0.5) + 0.3 * ar1(g, seeds, points, 0.5)
