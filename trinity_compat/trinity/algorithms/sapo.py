"""SAPO: a soft gate in place of the clip.

    L = −sg(4/τ σ(τ (ρ − 1))) A log π;   τ = tau_pos where A > 0, else tau_neg

arXiv 2511.20347. Trinity holds the gate fixed and lets log π carry the gradient; veRL's ``sapo``
differentiates the gate itself, which is another gradient, so Trinity's is ours. Columns: old
log-probabilities.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import (
    Aggregation,
    Arguments,
    Loss,
    Tokens,
    algorithm,
    policy_loss,
)
from trinity_compat.trinity.algorithms.ratios import ratio

algorithm("sapo", "SAPO", paper="2511.20347", advantage_fn="grpo", policy_loss_fn="sapo")


def _check(arguments: Arguments) -> str:
    if arguments["tau_pos"] <= 0:
        return "tau_pos must be positive"
    return "" if arguments["tau_neg"] >= arguments["tau_pos"] else "tau_neg must be tau_pos or more"


@policy_loss("sapo", "policy_loss_fn/sapo_policy_loss.py", check=_check)
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
