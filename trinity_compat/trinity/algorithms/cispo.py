"""CISPO: the importance weight is clipped, the gradient of log π is not.

    L = −sg(clip(ρ, 1 − low, 1 + high)) A log π

arXiv 2506.13585. veRL's ``cispo`` has Trinity's numbers; ``enable_mask_clip`` (tokens beyond the second
range that are pushed further out are left out) is Trinity's alone. Columns: old log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.trinity.algorithms.model import (
    Aggregation,
    Arguments,
    Loss,
    Tokens,
    algorithm,
    policy_loss,
)
from trinity_compat.trinity.algorithms.ratios import clip_range, ratio

algorithm("cispo", "CISPO", paper="2506.13585", advantage_fn="grpo", policy_loss_fn="cispo")


def _verl(arguments: Arguments) -> Mapping[str, object] | None:
    if arguments["enable_mask_clip"]:
        return None
    ranges = clip_range(None, arguments["clip_range_low"], arguments["clip_range_high"])
    return {"actor_rollout_ref.actor.policy_loss.loss_mode": "cispo", **ranges}


@policy_loss("cispo", "policy_loss_fn/cispo_policy_loss.py", verl=_verl)
def cispo_loss(
    tokens: Tokens,
    *,
    clip_range_low: float = 1.0,
    clip_range_high: float = 0.28,
    enable_mask_clip: bool = False,
    mask_clip_range_low: float = 1.0,
    mask_clip_range_high: float = 0.28,
    loss_agg_mode: Aggregation = "token-mean",
) -> Loss:
    """CISPO's loss [N, T]."""
    weights, advantages = ratio(tokens).detach(), tokens.advantages
    values = -advantages * weights.clamp(1.0 - clip_range_low, 1.0 + clip_range_high) * tokens.log_prob
    if not enable_mask_clip:
        return Loss(values)
    above = (weights > 1.0 + mask_clip_range_high) & (advantages > 0)
    below = (weights < 1.0 - mask_clip_range_low) & (advantages < 0)
    return Loss(values * ~(above | below), clipped=above | below)
