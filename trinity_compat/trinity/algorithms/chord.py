"""CHORD's two losses of supervised learning, which weigh a token by how likely it is already.

    sft_is:   L = −sg(π) log π
    sft_phi:  L = −sg(π (1 − π)) min(log π, log cutoff_prob)

arXiv 2508.11408. Columns: none.
"""

from __future__ import annotations

import math

from trinity_compat.trinity.algorithms.model import Aggregation, Loss, Tokens, policy_loss

_SOURCE = "policy_loss_fn/chord_policy_loss.py"


@policy_loss("sft_is", _SOURCE)
def sft_is_loss(tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """−π log π with the weight π held constant, [N, T]."""
    return Loss(-tokens.log_prob * tokens.log_prob.detach().exp())


@policy_loss(
    "sft_phi",
    _SOURCE,
    check=lambda arguments: (
        "" if 0 < arguments["cutoff_prob"] <= 1 else "cutoff_prob must be above 0, at most 1"
    ),
)
def sft_phi_loss(
    tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean", cutoff_prob: float = 1.0
) -> Loss:
    """−π (1 − π) log π with the weight held constant, [N, T]."""
    likely = tokens.log_prob.detach().exp()
    log_prob = tokens.log_prob if cutoff_prob == 1 else tokens.log_prob.clamp(max=math.log(cutoff_prob))
    return Loss(-log_prob * likely * (1 - likely))
