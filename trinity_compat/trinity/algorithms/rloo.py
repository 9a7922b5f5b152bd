"""RLOO: the baseline is the mean of the group's other rewards.

    A_i = r_i − mean_{j ≠ i} r_j; a single answer's advantage is its reward

arXiv 2402.14740. veRL's ``rloo`` has Trinity's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.trinity.algorithms.model import algorithm, of_verl

algorithm("rloo", "RLOO", paper="2402.14740", advantage_fn="rloo")


@of_verl("advantage_fn", "rloo", "advantage_fn/rloo_advantage.py")
def rloo() -> Mapping[str, object]:
    """Return veRL's keys."""
    return {"algorithm.adv_estimator": "rloo"}


@of_verl("advantage_fn", "remax", "advantage_fn/remax_advantage.py")
def remax() -> Mapping[str, object]:
    """The baseline is a greedy answer's reward (arXiv 2310.10505)."""
    return {"algorithm.adv_estimator": "remax"}
