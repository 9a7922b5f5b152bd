"""TOPR: bad answers count by how likely they still are, good ones in full.

    L = −sg(α) A log π;   α = min(ρ, 1) where A ≤ threshold, else 1;   ρ = π / μ
    A = r: TOPR's advantage is the reward itself (``reinforce``)

arXiv 2503.14286. Columns: old log-probabilities; μ is the policy that answered where
``bypass_old_logprobs`` is set.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import (
    AdvantageInput,
    Aggregation,
    Loss,
    Tensor,
    Tokens,
    advantage,
    algorithm,
    policy_loss,
)
from trinity_compat.trinity.algorithms.ratios import ratio

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
