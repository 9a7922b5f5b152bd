"""sPPO, softened PPO: the logarithm of the ratio, cut off outside a range.

    L = −A log ρ where 1/(1 + ε) ≤ ρ ≤ 1 + ε, else 0

arXiv 2108.05828. Columns: old log-probabilities.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import Aggregation, Loss, Tokens, algorithm, policy_loss
from trinity_compat.trinity.algorithms.ratios import ratio

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
