"""Counts of answers and expert rows in an update, attached to each row.

By them the loss of one kind is normalised over that kind, however the update is split.
"""

from __future__ import annotations

import torch


def counts_of(mask: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """int64 [N, 2], for each row the tokens and the rows of its kind.

    ``mask``: [N, T], the tokens that count; ``experts``: bool [N].
    """
    tokens = mask.long().sum(-1)
    of_experts, of_answers = (torch.stack([tokens[kind].sum(), kind.sum()]) for kind in (experts, ~experts))
    return torch.where(experts.unsqueeze(-1), of_experts, of_answers)
