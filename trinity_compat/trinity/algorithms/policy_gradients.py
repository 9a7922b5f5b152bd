"""Policy gradients: REINFORCE and its descendants (TOPR, REINFORCE++, RLOO, ReMax), OPMD, AsymRE and REC."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from trinity_compat.trinity.algorithms.grouped import above_baseline
from trinity_compat.trinity.algorithms.model import (
    AdvantageInput,
    Aggregation,
    Arguments,
    Loss,
    Tensor,
    Tokens,
    advantage,
    algorithm,
    of_verl,
    policy_loss,
)
from trinity_compat.trinity.algorithms.ppo import mean_of_rows, ratio

_OPMD, _ASYMRE = "advantage_fn/opmd_advantage.py", "advantage_fn/asymre_advantage.py"
Clip = Literal["none", "one-side", "gspo-one-side", "two-side", "ring"]
Weight = Literal["none", "importance_sampling", "gspo_importance_sampling", "advantage"]

# TOPR: bad answers count by how likely they still are, good ones in full.
#     L = −sg(α) A log π;   α = min(ρ, 1) where A ≤ threshold, else 1;   ρ = π / μ
# Columns: old log-probabilities; μ is the policy that answered where ``bypass_old_logprobs`` is set.
algorithm("topr", "TOPR", paper="2503.14286", advantage_fn="reinforce", policy_loss_fn="topr")


@advantage("reinforce", "advantage_fn/reinforce_advantage.py")
def reinforce(answers: AdvantageInput) -> Tensor:
    """The reward itself, [N]."""
    return answers.rewards.clone()


@policy_loss("topr", "policy_loss_fn/topr_policy_loss.py")
def topr_loss(
    tokens: Tokens, *, advantage_threshold: float = 0.0, loss_agg_mode: Aggregation = "token-mean"
) -> Loss:
    """TOPR's loss [N, T]."""
    weights, bad = ratio(tokens).detach(), tokens.advantages <= advantage_threshold
    alpha = weights.clamp(0.0, 1.0).where(bad, 1.0)
    return Loss(-alpha * tokens.advantages * tokens.log_prob, clipped=bad & (weights > 1))


# Discounted returns, whitened over the batch, with PPO's loss: A_t = whiten(Σ_{k ≥ t} γ^(k−t) r_k). veRL's
# has Trinity's numbers where an answer is one block of tokens; over a tool's tokens veRL carries the return
# through, Trinity discounts it. Ours follows veRL.
algorithm("reinforceplusplus", "REINFORCE++", paper="2501.03262", advantage_fn="reinforceplusplus")


@of_verl("advantage_fn", "reinforceplusplus", "advantage_fn/reinforce_plus_plus_advantage.py")
def reinforce_plus_plus(*, gamma: float = 1.0) -> Mapping[str, object]:
    """Return veRL's keys."""
    return {"algorithm.adv_estimator": "reinforce_plus_plus", "algorithm.gamma": gamma}


# The baseline is the mean of the group's other rewards; a single answer's advantage is its reward.
algorithm("rloo", "RLOO", paper="2402.14740", advantage_fn="rloo")


@of_verl("advantage_fn", "rloo", "advantage_fn/rloo_advantage.py")
def rloo() -> Mapping[str, object]:
    """Return veRL's keys."""
    return {"algorithm.adv_estimator": "rloo"}


@of_verl("advantage_fn", "remax", "advantage_fn/remax_advantage.py")
def remax() -> Mapping[str, object]:
    """Return veRL's keys; the baseline is a greedy answer's reward (arXiv 2310.10505)."""
    return {"algorithm.adv_estimator": "remax"}


# OPMD (online policy mirror descent): a policy gradient regularised towards the current policy.
#     A = r − b;   b = mean(group), or with logavgexp  τ log mean exp(r / τ)
#     L = −A log π / (1 + τ)
# arXiv 2509.24203 (section 2.2). The two τ are arguments of their own: ``advantage_fn_args.tau``
# counts with logavgexp only. Columns: none beyond rewards and the task's id; no old log-probabilities.
algorithm("opmd", "OPMD", paper="2509.24203", advantage_fn="opmd", policy_loss_fn="opmd")


def _positive_tau(arguments: Arguments) -> str:
    return "" if arguments["tau"] > 0 else "tau must be positive"


@advantage("opmd", _OPMD, check=_positive_tau)
@advantage("opmd_verl", _OPMD, check=_positive_tau)
def opmd_advantage(
    answers: AdvantageInput, *, opmd_baseline: Literal["mean", "logavgexp"] = "mean", tau: float = 1.0
) -> Tensor:
    """OPMD's advantage [N]."""
    if opmd_baseline == "mean":
        return above_baseline(answers, lambda rewards: rewards.mean())
    return above_baseline(
        answers, lambda rewards: tau * ((rewards / tau).logsumexp(-1) - math.log(len(rewards)))
    )


@policy_loss(
    "opmd",
    "policy_loss_fn/opmd_policy_loss.py",
    check=lambda arguments: "" if arguments["tau"] > -1 else "tau must be greater than -1",
)
def opmd_loss(tokens: Tokens, *, tau: float = 1.0, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """OPMD's loss [N, T]."""
    return Loss(-tokens.advantages * tokens.log_prob / (1.0 + tau))


# AsymRE: OPMD's loss over a baseline shifted below the group's mean, so that good answers weigh more.
algorithm(
    "asymre",
    "AsymRE",
    paper="2506.20520",
    advantage_fn="asymre",
    policy_loss_fn="opmd",
    kl_loss_fn="none",
    entropy_loss_fn="none",
)


@advantage("asymre", _ASYMRE)
@advantage("asymre_verl", _ASYMRE)
def asymre(answers: AdvantageInput, *, baseline_shift: float = -0.1) -> Tensor:
    """r − (mean(group) + δ), δ < 0; a single answer: r. [N]."""
    return above_baseline(answers, lambda rewards: rewards.mean() + baseline_shift)


# REC: REINFORCE with a choice of clip, weight and regulariser.
#     A = r − mean(group), ÷ (std + ε) with std_normalize (without Bessel's correction)
#     L = −w A log π [inside the clip], + c (log ρ)² (k2) or − c log π (forward-kl)
# arXiv 2509.24203. ``drop: balance`` gives random bad answers no advantage until as many good ones are left.
# A single answer's advantage is its reward, where trinity-rft 0.6.0 raises UnboundLocalError. Columns: old
# log-probabilities.
algorithm("rec", "REC", paper="2509.24203", advantage_fn="rec", policy_loss_fn="rec")


@advantage("rec", "advantage_fn/rec_advantage.py")
def rec_advantage(
    answers: AdvantageInput,
    *,
    epsilon: float = 1e-6,
    std_normalize: bool = False,
    drop: Literal["balance"] | None = None,
) -> Tensor:
    """REC's advantage [N]."""
    out = answers.rewards.new_zeros(len(answers.rewards))
    for group in answers.groups:
        places = list(group)
        kept = [places[i] for i in _balanced(answers.rewards[places])] if drop else places
        rewards = answers.rewards[kept]
        alone = len(kept) <= 1
        above = rewards if alone else rewards - rewards.mean()
        deviation = 1.0 if alone else rewards.std(correction=0)
        out[kept] = above / (deviation + epsilon) if std_normalize else above
    return out


def _balanced(rewards: Tensor) -> list[int]:
    """Positions of all rewards of the mean or more, and of as many of the others, drawn at random."""
    good = rewards >= rewards.mean()
    bad = (~good).nonzero().flatten()
    drawn = bad[rewards.new_empty(len(bad)).uniform_().argsort()]
    return [*good.nonzero().flatten().tolist(), *drawn[: int(good.sum())].tolist()]


def _check_rec(arguments: Arguments) -> str:
    for name in ("epsilon_low", "epsilon_low_prime"):
        if not 0 < arguments[name] <= 1:
            return f"{name} must be above 0, at most 1"
    for name in ("epsilon_high", "epsilon_high_prime", "temp"):
        if not arguments[name] > 0:
            return f"{name} must be positive"
    if arguments["regularizer_coef"] < 0:
        return "regularizer_coef must be 0 or more"
    if arguments["weight"] == "gspo_importance_sampling" and arguments["clip_mode"] != "gspo-one-side":
        return "weight gspo_importance_sampling needs clip_mode gspo-one-side"
    return ""


@policy_loss(
    "rec",
    "policy_loss_fn/rec_policy_loss.py",
    without_arguments={"epsilon_low_prime": 0.6, "epsilon_high_prime": 2.0},
    check=_check_rec,
)
def rec_loss(
    tokens: Tokens,
    *,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    epsilon_low_prime: float = 0.4,
    epsilon_high_prime: float = 0.4,
    clip_mode: Clip = "none",
    weight: Weight = "none",
    regularizer: Literal["none", "k2", "forward-kl"] = "none",
    regularizer_coef: float = 0.0,
    temp: float = 1.0,
) -> Loss:
    """REC's loss [N, T]."""
    outer = (epsilon_low_prime, epsilon_high_prime) if clip_mode == "ring" else None
    outside = _clipped(tokens, clip_mode, (epsilon_low, epsilon_high), outer)
    values = -_weighted(tokens, weight, temp) * tokens.log_prob
    if outside is not None:
        values = values * ~outside
    if regularizer == "k2":
        values = values + regularizer_coef * tokens.log_ratio.square()
    elif regularizer == "forward-kl":
        values = values - regularizer_coef * tokens.log_prob
    of_answers = clip_mode == "gspo-one-side"
    return Loss(values, outside, "seq-mean-token-mean" if of_answers else "token-mean")


def _ratio_of_answers(tokens: Tokens) -> Tensor:
    return mean_of_rows(tokens.log_ratio, tokens.mask).detach().exp()


def _clipped(
    tokens: Tokens, mode: Clip, inner: tuple[float, float], outer: tuple[float, float] | None
) -> Tensor | None:
    if mode == "none":
        return None
    weights = _ratio_of_answers(tokens) if mode == "gspo-one-side" else ratio(tokens).detach()
    below, above = weights >= 1 - inner[0], weights <= 1 + inner[1]
    good, bad = tokens.advantages >= 0, tokens.advantages <= 0
    if mode.endswith("one-side"):
        return ~((above & good) | (below & bad))
    inside = below & above
    if outer is not None:
        inside = inside | (good & (weights <= 1 - outer[0])) | (bad & (weights >= 1 + outer[1]))
    return ~inside


def _weighted(tokens: Tokens, weight: Weight, temp: float) -> Tensor:
    advantages = tokens.advantages
    if weight == "importance_sampling":
        return advantages * ratio(tokens).detach()
    if weight == "gspo_importance_sampling":
        return advantages * _ratio_of_answers(tokens)
    return advantages * (advantages / temp).exp() if weight == "advantage" else advantages
