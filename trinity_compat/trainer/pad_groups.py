"""Groups of unlike sizes in veRL's fit, which takes n rows of each task.

A run of a workflow may be several rows (trinity/workflows/run_rows.py), so that a group has n or more. All
groups of a step get the same number, a multiple of n, by fillers: rows of two tokens that count nowhere. An
answer that a pipeline dropped stays a row as well, and counts in no advantage. verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from verl import DataProto

from trinity_compat.buffer.model import DROPPED, Experience, Group
from trinity_compat.job.answer_info import OF_RUN, other_task

FILLER = "trainer/filler"  # in the metrics of a row that is none
Mask = npt.NDArray[np.bool_]


class PaddedGroups(DataProto):
    """Rows of a step whose tasks have different numbers of answers.

    ``fit`` truncates the batch to n rows for each task, a number that it read before the real one was known.
    """

    @classmethod
    def of(cls, data: DataProto) -> Self:
        """The same rows."""
        return cls(data.batch, data.non_tensor_batch, data.meta_info)

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> DataProto:
        """All of them."""
        return DataProto(self.batch, self.non_tensor_batch, self.meta_info)


def is_uneven(groups: Sequence[Group]) -> bool:
    """Return whether a run may have several rows."""
    return any(OF_RUN in part.info for group in groups for part in group.experiences)


def pad_to_equal(groups: Sequence[Group], n: int) -> tuple[list[Experience], int]:
    """All rows, group by group, and how many each group has now."""
    most = max(len(group.experiences) for group in groups)
    each = -(-most // n) * n
    rows = [row for group in groups for row in (*group.experiences, *_fillers(group, each))]
    return rows, each


def _fillers(group: Group, each: int) -> list[Experience]:
    like = group.experiences[0]
    filler = replace(
        like,
        prompt_ids=like.prompt_ids[:1],
        response_ids=like.response_ids[:1],
        response_mask=np.zeros(1, dtype=np.uint8),
        logprobs=np.zeros(1, dtype=np.float32),
        reward=0.0,
        metrics={**like.metrics, DROPPED: 1.0, FILLER: 1.0},
        info={},
        teacher_ids=None,
        teacher_logprobs=None,
    )
    return [filler] * (each - len(group.experiences))


def marks(experiences: Sequence[Experience]) -> dict[str, Mask]:
    """Columns [N] of the rows that are marked, none where no row is."""
    found = {name: [bool(row.metrics.get(name)) for row in experiences] for name in (DROPPED, FILLER)}
    return {name: np.array(marked) for name, marked in found.items() if any(marked)}


def without(name: str, data: DataProto) -> Mask | None:
    """[N]: the rows that are not marked as ``name``; None where all count."""
    marked = data.non_tensor_batch.get(name)
    return None if marked is None else ~marked.astype(bool)


def spread(values: torch.Tensor, kept: Mask) -> torch.Tensor:
    """Put ``values`` at the rows ``kept`` [N], zeros elsewhere."""
    out = values.new_zeros(len(kept), *values.shape[1:])
    out[torch.from_numpy(kept)] = values
    return out


def without_dropped_rows(compute: Callable[..., DataProto]) -> Callable[..., DataProto]:
    """Wrap ``compute_advantage`` (veRL's ray_trainer.py) so that it sees only rows that count.

    Dropped rows and fillers are part of no baseline and no deviation, and get no advantage.
    """

    def computed(data: DataProto, *args: Any, **kwargs: Any) -> DataProto:
        # Rows that their workflow gave another task are a group of their own.
        columns = data.non_tensor_batch
        for row, of_run in enumerate(columns.get(OF_RUN, ())):
            if other := other_task({OF_RUN: of_run}):
                columns["uid"][row] = f"{columns['uid'][row]}/{other}"
        kept = without(DROPPED, data)
        if kept is None or kwargs.get("adv_estimator") == "gae":  # each row by itself, by its mask
            return compute(data, *args, **kwargs)
        made = compute(data.select_idxs(kept), *args, **kwargs)
        for name in ("advantages", "returns"):
            data.batch[name] = spread(made.batch[name], kept)
        return data

    return computed


def without_fillers(compute: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
    """Wrap ``compute_data_metrics`` (veRL's metric_utils.py) so that it leaves out fillers."""

    def computed(batch: DataProto, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        kept = without(FILLER, batch)
        return compute(batch if kept is None else batch.select_idxs(kept), *args, **kwargs)

    return computed
