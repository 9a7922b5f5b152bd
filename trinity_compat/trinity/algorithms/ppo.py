"""PPO, and the policy losses that bound the ratio in another way: GSPO, CISPO, SAPO, sPPO.

    L = −min(ρ A, clip(ρ, 1 − low, 1 + high) A), for A < 0 at least c A (dual clip);  ρ = π / π_old

arXiv 1707.06347; GAE: 1506.02438; dual clip: 1912.09729. veRL's ``gae`` and ``vanilla`` compute the same
numbers as Trinity. Only Trinity has ``enable_sequence_masking`` (DeepSeek-V3.2) and
``fallback_to_policy_gradient``. The advantage needs the column of values, the losses that of the old
log-probabilities.
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

_ACTOR = "actor_rollout_ref.actor"
_RANGES = ("clip_range", "clip_range_low", "clip_range_high")


def mean_of_rows(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's true tokens, [N, 1]; 0 where there are none."""
    return values.where(mask, 0.0).sum(-1, keepdim=True) / (mask.sum(-1, keepdim=True) + 1e-8)


def bounds(
    clip_range: float | None, clip_range_low: float | None, clip_range_high: float | None
) -> tuple[float | None, float | None]:
    """Return the distances that a ratio may go below and above 1; a missing side has the common range."""
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high
    return low, high


def ranges_given(arguments: Arguments) -> str:
    """Return the error if a side has no range, else ""."""
    if None not in bounds(*(arguments[name] for name in _RANGES)):
        return ""
    return "clip_range, or clip_range_low and clip_range_high, must be given with the other arguments"


def _clip_keys(
    clip_range: float | None, clip_range_low: float | None, clip_range_high: float | None
) -> dict[str, object]:
    """Return veRL's keys for a clip range."""
    low, high = bounds(clip_range, clip_range_low, clip_range_high)
    ranges = {"clip_ratio": clip_range, "clip_ratio_low": low, "clip_ratio_high": high}
    return {f"{_ACTOR}.{key}": value for key, value in ranges.items() if value is not None}


def ratio(tokens: Tokens) -> Tensor:
    """π / π_old of each token."""
    return tokens.log_ratio.exp()


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
    return {
        f"{_ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{_ACTOR}.clip_ratio_c": arguments["clip_ratio_c"],
        **_clip_keys(*(arguments[name] for name in _RANGES)),
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
    """PPO's loss [N, T]; with ``fallback_to_policy_gradient`` ρ is 1 and has the gradient of log π alone."""
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
        # Bad tokens of answers whose mean KL from the old policy exceeds the limit do not count.
        away = (-log_ratio.where(tokens.mask, 0.0)).sum(-1, keepdim=True) / (
            tokens.mask.sum(-1, keepdim=True) + 1e-10
        )
        values = values * ~((tokens.advantages < 0) & (away > delta_sequence_masking))
    return Loss(values, clipped=bounded > plain)


# GSPO: the ratio of the whole answer, clipped for all its tokens at once.
#     s = exp(mean_t log ρ_t);   L = −min(s A, clip(s, 1 − low, 1 + high) A)
# veRL's has Trinity's numbers while s ≤ e^10, where veRL stops.
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
    ranges = _clip_keys(clip_range, clip_range_low, clip_range_high)
    return {f"{_ACTOR}.policy_loss.loss_mode": "gspo", **ranges}


# CISPO: the importance weight is clipped, the gradient of log π is not.
#     L = −sg(clip(ρ, 1 − low, 1 + high)) A log π
# veRL's has Trinity's numbers; ``enable_mask_clip``, which drops tokens beyond a second range that are pushed
# further out, is Trinity's alone.
algorithm("cispo", "CISPO", paper="2506.13585", advantage_fn="grpo", policy_loss_fn="cispo")


def _verl_cispo(arguments: Arguments) -> Mapping[str, object] | None:
    if arguments["enable_mask_clip"]:
        return None
    ranges = _clip_keys(None, arguments["clip_range_low"], arguments["clip_range_high"])
    return {f"{_ACTOR}.policy_loss.loss_mode": "cispo", **ranges}


@policy_loss("cispo", "policy_loss_fn/cispo_policy_loss.py", verl=_verl_cispo)
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


# SAPO: a soft gate in place of the clip.
#     L = −sg(4/τ σ(τ (ρ − 1))) A log π;   τ = tau_pos where A > 0, else tau_neg
# Trinity holds the gate fixed; veRL's ``sapo`` differentiates it, which is another gradient; ours holds it.
algorithm("sapo", "SAPO", paper="2511.20347", advantage_fn="grpo", policy_loss_fn="sapo")


def _check_temperatures(arguments: Arguments) -> str:
    if arguments["tau_pos"] <= 0:
        return "tau_pos must be positive"
    return "" if arguments["tau_neg"] >= arguments["tau_pos"] else "tau_neg must be tau_pos or more"


@policy_loss("sapo", "policy_loss_fn/sapo_policy_loss.py", check=_check_temperatures)
def sapo_loss(
    tokens: Tokens,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    loss_agg_mode: Aggregation = "token-mean",
) -> Loss:
    """SAPO's loss [N, T]."""
    good = (tokens.advantages > 0).to(tokens.log_prob.dtype)
    tau = tau_pos * good + tau_neg * (1 - good)
    gate = (tau * (ratio(tokens).detach() - 1)).sigmoid() * (4.0 / tau)
    return Loss(-tokens.advantages * gate * tokens.log_prob)


# Softened PPO, without the tokens outside a range: L = −A log ρ where 1/(1 + ε) ≤ ρ ≤ 1 + ε, else 0.
algorithm(
    "sppo",
    "sPPO",
    paper="2108.05828",
    advantage_fn="opmd",
    policy_loss_fn="sppo",
    kl_loss_fn="none",
    entropy_loss_fn="none",
)


@policy_loss(
    "sppo",
    "policy_loss_fn/sppo_loss_fn.py",
    check=lambda arguments: "" if arguments["epsilon"] > -1 else "epsilon must be greater than -1",
)
def sppo_loss(tokens: Tokens, *, epsilon: float = 0.3, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """SPPO's loss [N, T]."""
    weights = ratio(tokens).detach()
    inside = (weights >= 1 / (1 + epsilon)) & (weights <= 1 + epsilon)
    return Loss(-tokens.advantages * tokens.log_ratio * inside, clipped=~inside)


@policy_loss("importance_sampling", "policy_loss_fn/importance_sampling_policy_loss.py")
def importance_sampling_loss(tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """Importance sampling without a clip: −ρ A, [N, T] (after Tinker)."""
    return Loss(-tokens.advantages * tokens.log_ratio.clamp(-20.0, 20.0).exp())
