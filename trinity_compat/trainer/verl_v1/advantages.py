"""Columns that estimators read beyond the seven that veRL's v1 trainer hands them.

``_compute_advantage`` of verl 0.9.1 (v1/trainer_base.py) computes on the padded rows of seven columns. The
others of v0's train batch come from the answers, which are at hand, or from the actor's forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from verl import DataProto

from trinity_compat.buffer.model import DROPPED, Experience
from trinity_compat.trainer.algorithms import with_advantages
from trinity_compat.trainer.pad_groups import without_dropped_rows

_KEY = "key"
Estimator = Callable[..., DataProto]


class StoredColumns:
    """Columns of a step's answers by the key of their row; a row that veRL adds to fill a batch has none."""

    def __init__(self, answers: Mapping[str, Experience], baselines: Mapping[str, float]) -> None:
        """``baselines``: by row, the reward of its task's greedy answer; empty without such answers."""
        self._answers, self._baselines = answers, baselines

    def key_of(self, answer: Experience) -> str:
        """Return the key of an answer's row, '' for one that has none."""
        return next((key for key, it in self._answers.items() if it is answer), "")

    def add(self, data: DataProto, keys: Sequence[str]) -> None:
        """Add them to padded rows ``data``, which ``keys`` name."""
        answers = [self._answers.get(key) for key in keys]
        infos = [each.info if each else {} for each in answers]
        for name in dict.fromkeys(name for info in infos for name in info):
            values = [info.get(name) if each else 0.0 for each, info in zip(answers, infos, strict=True)]
            data.non_tensor_batch[name] = _objects(values)
        data.non_tensor_batch["reward_extra_info"] = _objects([dict(info) for info in infos])
        dropped = [bool(each and each.metrics.get(DROPPED)) for each in answers]
        if any(dropped):
            data.non_tensor_batch[DROPPED] = np.array(dropped)
        data.non_tensor_batch[_KEY] = _objects(keys)
        lengths = torch.tensor([len(each.response_ids) if each else 1 for each in answers])
        width = data.batch["response_mask"].shape[1]
        data.batch["prompts"] = torch.zeros(len(keys), 0, dtype=torch.int64)
        data.batch["attention_mask"] = (torch.arange(width) < lengths.unsqueeze(1)).long()
        if self._baselines:
            data.batch["reward_baselines"] = torch.tensor([self._baselines.get(key, 0.0) for key in keys])


def computed(
    verls: Estimator,
    columns: StoredColumns,
    of_actor: Mapping[str, torch.Tensor],
    metrics: dict[str, Any],
    write_mask: Callable[[torch.Tensor], object],
) -> Estimator:
    """Wrap veRL's ``compute_advantage_for_multi_trajectories`` to see more columns, and the rows that count.

    ``of_actor``: float [N, T] by name. ``write_mask`` gets the response mask, int64 [N, T], of an estimator
    of Trinity's that changes it. Changes ``metrics``.
    """

    def of_rows(data: DataProto, **given: Any) -> DataProto:
        return verls(data, batch_keys=list(data.non_tensor_batch[_KEY]), **given)

    def compute(data: DataProto, batch_keys: Sequence[str], config: DictConfig, **given: Any) -> DataProto:
        columns.add(data, batch_keys)
        data.batch.update(dict(of_actor))
        made = without_dropped_rows(of_rows)(data, config=config, **given)
        mask = made.batch["response_mask"]
        made, own = with_advantages(made, config)
        metrics.update(own)
        if not torch.equal(mask, made.batch["response_mask"]):
            write_mask(made.batch["response_mask"])
        return made

    return compute


def _objects(values: Sequence[object]) -> np.ndarray:
    return np.fromiter(values, object, len(values))
