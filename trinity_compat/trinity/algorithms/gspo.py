"""GSPO: the ratio of the whole answer, clipped for all its tokens at once.

    s = exp(mean_t log ρ_t);   L = −min(s A, clip(s, 1 − low, 1 + high) A)

arXiv 2507.18071. veRL's ``gspo`` has Trinity's numbers while s ≤ e^10, where veRL stops. Columns: old
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.trinity.algorithms.model import Aggregation, algorithm, of_verl
from trinity_compat.trinity.algorithms.ratios import clip_range as verl_clip_range
from trinity_compat.trinity.algorithms.ratios import ranges_given

algorithm("gspo", "GSPO", paper="2507.18071", advantage_fn="grpo", policy_loss_fn="gspo")


@of_verl(
    "policy_loss_fn",
    "gspo",
    "policy_loss_fn/gspo_policy_loss.py",
    without_arguments={"clip_range_low": 0.0003, "clip_range_high": 0.0004},
    check=ranges_given,
)
def gspo(
    *,
    clip_range: float | None = None,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    loss_agg_mode: Aggregation = "seq-mean-token-mean",
) -> Mapping[str, object]:
    """Return veRL's keys."""
    ranges = verl_clip_range(clip_range, clip_range_low, clip_range_high)
    return {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo", **ranges}
