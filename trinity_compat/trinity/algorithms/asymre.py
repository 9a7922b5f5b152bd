"""AsymRE: OPMD's loss over a baseline shifted below the group's mean, so that good answers weigh more.

    A = r − (mean(group) + δ), δ < 0;  a single answer: A = r
    L = −A log π / (1 + τ)

arXiv 2506.20520. Columns: none beyond rewards and the task's id.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.grouped import above_baseline
from trinity_compat.trinity.algorithms.model import AdvantageInput, Tensor, advantage, algorithm

_SOURCE = "advantage_fn/asymre_advantage.py"

algorithm(
    "asymre",
    "AsymRE",
    paper="2506.20520",
    advantage_fn="asymre",
    policy_loss_fn="opmd",
    kl_loss_fn="none",
    entropy_loss_fn="none",
)


@advantage("asymre", _SOURCE)
@advantage("asymre_verl", _SOURCE)
def asymre(answers: AdvantageInput, *, baseline_shift: float = -0.1) -> Tensor:
    """AsymRE's advantage [N]."""
    return above_baseline(answers, lambda rewards: rewards.mean() + baseline_shift)
