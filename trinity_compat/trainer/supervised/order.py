"""Rows of a step: a pure function of the step, so that a resume needs no further state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from trinity_compat.job.run_spec import RowsSpec
from trinity_compat.trainer.supervised.files import FileRows
from trinity_compat.trinity.selectors import Selector, check_columns, selector_of


class RowOrder:
    """Rows of each step, ``batch`` of ``count``. ``rows``: the values that a selector reads."""

    def __init__(self, spec: RowsSpec, count: int, batch: int, rows: FileRows = ()) -> None:
        """Create the order. Raises UserError for rows that the spec's selector cannot compare."""
        self._spec, self.batch = spec, batch
        self._selector = _selector(spec.selector, count, rows, ", ".join(spec.paths))
        self._epoch_rows = count // batch * batch if spec.whole_epochs else count
        self._permuted = lru_cache(maxsize=2)(lambda epoch: permutation(spec, count, epoch))

    @property
    def steps(self) -> int:
        """Whole steps of all epochs."""
        return self._epoch_rows * self._spec.epochs // self.batch

    def rows_of(self, step: int) -> list[int]:
        """Numbers of the rows of ``step``, counted from 1."""
        first = (step - 1) * self.batch
        if self._selector:
            return [*self._selector.rows(first, self.batch)]
        places = (divmod(place, self._epoch_rows) for place in range(first, first + self.batch))
        return [int(self._permuted(epoch)[within]) for epoch, within in places]


def _selector(settings: Mapping[str, Any] | None, count: int, rows: FileRows, path: str) -> Selector | None:
    if settings is None:
        return None
    keys = settings.get("feature_keys", ())
    check_columns(settings, list(rows[0]) if keys else [], path)
    columns = {key: [rows[number][key] for number in range(count)] for key in keys}
    return selector_of(settings, count, columns, path)


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
