"""Supervised learning on rows of a file: sft on answers, cpt (continued pre-training) on whole texts.

    L = −log π

Neither needs an explorer, a critic or a reference. Columns: none. The advantage counts for nothing; Trinity's
default for it is ppo, which would ask for a critic here.
"""

from __future__ import annotations

from trinity_compat.trinity.algorithms.model import Aggregation, Loss, Tokens, algorithm, policy_loss


def _of_rows(name: str, title: str) -> None:
    algorithm(
        name,
        title,
        advantage_fn="reinforce",
        policy_loss_fn="sft",
        kl_loss_fn="none",
        entropy_loss_fn="none",
        schema=name,
    )


_of_rows("sft", "supervised fine-tuning")
_of_rows("cpt", "continued pre-training")


@policy_loss("sft", "policy_loss_fn/sft_loss.py")
def sft_loss(tokens: Tokens, *, loss_agg_mode: Aggregation = "token-mean") -> Loss:
    """−log π, [N, T]."""
    return Loss(-tokens.log_prob)
