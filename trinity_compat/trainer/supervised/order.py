"""Which rows a step takes: a pure function of the step, so that a resume needs to know nothing else."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from trinity_compat.spec import RowsSpec


class Order:
    """The rows of each step, of ``count`` in all, ``batch`` at a time."""

    def __init__(self, spec: RowsSpec, count: int, batch: int) -> None:
        self._spec, self.batch = spec, batch
        self._epoch_rows = count // batch * batch if spec.whole_epochs else count
        self._permuted = lru_cache(maxsize=2)(lambda epoch: permutation(spec, count, epoch))

    @property
    def steps(self) -> int:
        """Whole steps of all epochs."""
        return self._epoch_rows * self._spec.epochs // self.batch

    def rows_of(self, step: int) -> list[int]:
        """Numbers of the rows of ``step``, counted from 1."""
        first = (step - 1) * self.batch
        return [self._row_at(place) for place in range(first, first + self.batch)]

    def _row_at(self, place: int) -> int:
        epoch, within = divmod(place, self._epoch_rows)
        return int(self._permuted(epoch)[within])


def permutation(spec: RowsSpec, count: int, epoch: int) -> np.ndarray:
    """int64 [count]: the order of one epoch, from 0.

    trinity-rft 0.6.0's ShuffleSelector (buffer/selector/selector.py), or veRL's DistributedSampler of the
    SFT trainers (torch.utils.data.distributed), whose ranks together take the same rows.
    """
    if not spec.shuffle:
        return np.arange(count)
    if spec.sampler == "trinity":
        return np.random.default_rng(spec.seed + epoch).permutation(count)
    generator = torch.Generator().manual_seed(spec.seed + epoch)
    order: np.ndarray = torch.randperm(count, generator=generator).numpy()
    return order
