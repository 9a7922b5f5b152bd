"""What an update holds of answers and of an expert's rows, told to each of its rows: however the update is
cut, a loss of one kind is then normalised over that kind."""

from __future__ import annotations

import torch


def counts_of(mask: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """int64 [N, 2], for each row the tokens and the rows of its kind. ``mask``: [N, T], the tokens that
    count; ``experts``: bool [N]."""
    tokens = mask.long().sum(-1)
    kinds = {kind: (tokens[experts == kind].sum(), (experts == kind).sum()) for kind in (False, True)}
    return torch.tensor([[int(count) for count in kinds[bool(expert)]] for expert in experts])
