"""Importance sampling without a clip: L = −ρ A (after Tinker). Columns: old log-probabilities."""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import Aggregation, Loss, Tokens, policy_loss


@policy_loss("importance_sampling", "policy_loss_fn/importance_sampling_policy_loss.py")
def importance_sampling_loss(tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """−ρ A, [N, T]."""
    return Loss(-tokens.advantages * tokens.log_ratio.clamp(-20.0, 20.0).exp())
