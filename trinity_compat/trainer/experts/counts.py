"""What an update holds of answers and of an expert's rows, told to each of its rows: however the update is
cut, a loss of one kind is then normalised over that kind."""

from __future__ import annotations

import torch


def counts_of(mask: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """int64 [N, 2], for each row the tokens and the rows of its kind.

    ``mask``: [N, T], the tokens that count; ``experts``: bool [N].
    """
    tokens = mask.long().sum(-1)
    of_experts, of_answers = (torch.stack([tokens[kind].sum(), kind.sum()]) for kind in (experts, ~experts))
    return torch.where(experts.unsqueeze(-1), of_experts, of_answers)
