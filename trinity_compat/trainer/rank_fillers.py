"""Fillers for ranks that do not divide the rows of a batch.

veRL's workers take equally many rows each (verl 0.9.1, workers/engine_workers.py: ``train_mini_batch``). The
trainer's process adds fillers to a batch on its way to them, and takes them out of what comes back. In a
worker the loss sees the other rows alone, and divides by their number (docs/decisions/fillers-of-ranks.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from trinity_compat.job.rank_fillers import no_fillers
from trinity_compat.trainer.algorithms import LossFunction, Metrics
from trinity_compat.trinity.algorithms.model import PREFIX

FILLER = f"{PREFIX}filler"  # bool [N]
ROWS = f"{PREFIX}rows"  # of a batch's meta information: rows of an update, without fillers


def arranged(
    lengths: torch.Tensor, *, updates: int, ranks: int, micro: int = 1, is_balanced: bool = True
) -> list[int]:
    """Rows in the order in which ``ranks`` take them, -1 for a filler.

    ``lengths``: tokens [N]. Each rank has equally many rows of each of the ``updates``, in whole
    micro-batches of ``micro``; each update has N / ``updates`` rows that are no fillers, and each rank one of
    them at least if these are as many as the ranks. ``is_balanced``: by tokens, as ``_balance_batch`` of
    veRL's trainer does; else in the given order.
    """
    count = len(lengths)
    of_update = count // updates
    share = -(-of_update // ranks)
    share += -share % micro
    empty = updates * (share * ranks - of_update)
    if is_balanced:
        workloads = calculate_workload(lengths.long()).tolist()
        parts = get_seqlen_balanced_partitions([*workloads, *[0] * empty], ranks, equal_size=True)
        ordered = [sorted((row for row in part if row < count), key=workloads.__getitem__) for part in parts]
        of_ranks = [part[::2] + part[1::2][::-1] for part in ordered]
    else:
        of_ranks = [part.tolist() for part in np.array_split(np.arange(count), ranks)]
    rows: list[int] = []
    dealt = 0  # fillers; one after the other to each update, so that each gets equally many
    for own in of_ranks:
        left = iter(own)
        fillers = updates * share - len(own)
        for update in range(updates):
            taken = sum((dealt + filler) % updates == update for filler in range(fillers))
            rows += [*(next(left) for _ in range(share - taken)), *[-1] * taken]
        dealt += fillers
    return rows


@dataclass(frozen=True, slots=True)
class RankRows:
    """The rows of ``arranged`` for one call of the workers; None where ranks divide the batch."""

    rows: Sequence[int] | None
    of_update: int  # rows of an update that are no fillers

    def filled(self, batch: DataProto) -> DataProto:
        """Return the batch in the ranks' order, with fillers.

        A filler has two tokens, one of them the answer's, unless its row has images: then the model takes
        all of it, as of the other rows.
        """
        if self.rows is None:
            return batch
        out = batch.select_idxs(np.array(self.rows))
        is_filler = torch.tensor(self.rows) < 0
        out.batch[FILLER] = is_filler
        out.batch["response_mask"][is_filler] = 0
        if not any(batch.non_tensor_batch.get("multi_modal_inputs", ())):
            prompt = batch.batch["prompts"].shape[1]
            kept = torch.zeros_like(out.batch["attention_mask"][:1])
            kept[:, prompt - 1 : prompt + 1] = 1
            out.batch["attention_mask"][is_filler] = kept
        out.meta_info = {**batch.meta_info, ROWS: self.of_update}
        return out

    def unfilled(self, found: DataProto) -> DataProto:
        """Return the workers' rows in the batch's own order, without fillers."""
        if self.rows is None:
            return found
        rows = np.array(self.rows)
        return found.select_idxs(np.argsort(rows, kind="stable")[(rows < 0).sum() :])

    @contextmanager
    def counted(self, config: DictConfig, role: DictConfig) -> Iterator[None]:
        """Let veRL's trainer cut the batch into updates of ``role`` with their fillers, inside the block."""
        if self.rows is None:
            yield
            return
        updates = sum(row >= 0 for row in self.rows) // self.of_update
        with mini_batch(config, role, len(self.rows) // updates):
            yield


@contextmanager
def mini_batch(config: DictConfig, role: DictConfig, rows: int) -> Iterator[None]:
    """Set the mini-batch of ``role`` to ``rows`` inside the block; veRL counts it in tasks of n answers."""
    rollout = config.actor_rollout_ref.rollout
    before = role.ppo_mini_batch_size, rollout.n
    with open_dict(config):
        role.ppo_mini_batch_size, rollout.n = rows, 1
        try:
            yield
        finally:
            role.ppo_mini_batch_size, rollout.n = before


def loss_of_rows(inner: LossFunction, *, data: TensorDict, **given: Any) -> tuple[torch.Tensor, Metrics]:
    """Compute a loss of veRL's workers for the rows of a micro-batch that are no fillers.

    A micro-batch of fillers alone has a loss of zero, with a gradient, and no metrics.
    """
    of_update = tu.get_non_tensor_data(data, ROWS, None)
    if of_update is None or "model_output" not in given:  # the engine may ask for a teacher's part alone
        return inner(data=data, **given)
    tu.assign_non_tensor(data, global_batch_size=of_update)
    kept = (~data[FILLER]).nonzero().flatten().tolist()
    output: Mapping[str, Any] = given["model_output"]
    if not kept:
        found = [each.values() if each.is_nested else each for each in output.values()]
        return torch.stack([each.float().sum() for each in found if each.requires_grad]).sum() * 0.0, {}
    if len(kept) < len(data):
        data = tu.index_select_tensor_dict(data, kept)
        given["model_output"] = {name: _rows_of(each, kept) for name, each in output.items()}
    return inner(data=data, **given)


def _rows_of(values: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    if not values.is_nested:
        return values[list(rows)]
    parts = values.unbind()
    return tu.nested_tensor_from_tensor_list([parts[row] for row in rows])


def in_whole_rows(config: DictConfig) -> DictConfig:
    """Return a configuration for ``validate_config``, which wants a train batch that all GPUs divide.

    That of the launch itself where no fillers are possible.
    """
    if no_fillers(lambda key: OmegaConf.select(config, key)):
        return config
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    out = config.copy()
    with open_dict(out):
        out.data.train_batch_size += -out.data.train_batch_size % gpus
    return out
