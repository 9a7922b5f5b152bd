"""PPO: a clipped ratio, advantages from a critic (GAE).

    L = −min(ρ A, clip(ρ, 1 − low, 1 + high) A), for A < 0 at least c A (dual clip);  ρ = π / π_old

arXiv 1707.06347; GAE: 1506.02438; dual clip: 1912.09729. veRL's ``gae`` and ``vanilla`` have Trinity's
numbers. ``enable_sequence_masking`` (DeepSeek-V3.2) and ``fallback_to_policy_gradient`` are Trinity's
alone. Columns: values for the advantage, old log-probabilities for the loss.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.trinity.algorithms.model import (
    Aggregation,
    Arguments,
    Loss,
    Tensor,
    Tokens,
    algorithm,
    of_verl,
    policy_loss,
)
from trinity_compat.trinity.algorithms.ratios import bounds, ranges_given
from trinity_compat.trinity.algorithms.ratios import clip_range as verl_clip_range

_ACTOR = "actor_rollout_ref.actor"

algorithm("ppo", "PPO with a critic", paper="1707.06347", advantage_fn="ppo", policy_loss_fn="ppo")


@of_verl("advantage_fn", "ppo", "advantage_fn/ppo_advantage.py")
def gae(*, gamma: float = 1.0, lam: float = 1.0) -> Mapping[str, object]:
    """Return veRL's keys."""
    return {"algorithm.adv_estimator": "gae", "algorithm.gamma": gamma, "algorithm.lam": lam}


def _check(arguments: Arguments) -> str:
    if wrong := ranges_given(arguments):
        return wrong
    return "" if arguments["clip_ratio_c"] > 1 else "clip_ratio_c must be greater than 1"


def _verl(arguments: Arguments) -> Mapping[str, object] | None:
    if arguments["enable_sequence_masking"] or arguments["fallback_to_policy_gradient"]:
        return None
    ranges = (arguments[name] for name in ("clip_range", "clip_range_low", "clip_range_high"))
    return {
        f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{_ACTOR}.clip_ratio_c": arguments["clip_ratio_c"],
        **verl_clip_range(*ranges),
    }


@policy_loss(
    "ppo",
    "policy_loss_fn/ppo_policy_loss.py",
    without_arguments={"clip_range": 0.2},
    verl=_verl,
    check=_check,
)
def ppo_loss(
    tokens: Tokens,
    *,
    clip_range: float | None = None,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: Aggregation = "token-mean",
    enable_sequence_masking: bool = False,
    delta_sequence_masking: float = 0.1,
    fallback_to_policy_gradient: bool = False,
) -> Loss:
    """With ``fallback_to_policy_gradient`` ρ is 1 and has the gradient of log π alone."""
    log_ratio = tokens.log_ratio
    if fallback_to_policy_gradient:
        log_ratio = tokens.log_prob - tokens.log_prob.detach()
    log_ratio = log_ratio.clamp(-20.0, 20.0)
    low, high = bounds(clip_range, clip_range_low, clip_range_high)
    assert low is not None and high is not None  # _check
    ratio, advantages = log_ratio.exp(), tokens.advantages
    plain, bounded = -advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high)
    upper = plain.maximum(bounded)
    values = upper.where(advantages >= 0, upper.minimum(-advantages * clip_ratio_c))
    if enable_sequence_masking:
        values = values * ~_strayed(log_ratio, tokens, delta_sequence_masking)
    return Loss(values, clipped=bounded > plain)


def _strayed(log_ratio: Tensor, tokens: Tokens, delta: float) -> Tensor:
    """Bad tokens of answers whose mean KL from the old policy exceeds ``delta``."""
    away = (-log_ratio.where(tokens.mask, 0.0)).sum(-1, keepdim=True) / (
        tokens.mask.sum(-1, keepdim=True) + 1e-10
    )
    return (tokens.advantages < 0) & (away > delta)
