"""Correction for many metrics by the false discovery rate (Benjamini, Hochberg 1995)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def discoveries(ps: Sequence[float]) -> list[float]:
    """Return q of each p: the least false discovery rate at which it is a discovery."""
    order = np.argsort(ps)[::-1]
    ranks = np.arange(len(ps), 0, -1)
    scaled = np.minimum.accumulate(np.asarray(ps)[order] * len(ps) / ranks)
    found = np.empty(len(ps))
    found[order] = np.minimum(scaled, 1.0)
    return [float(q) for q in found]
