"""The task stream over a dataset whose ``on_batch_end`` changes it (``own_dataset``).

A task is made of the data as the batches left it after the step of the weights that make it: the last step
that is surely trained then. At offset 0 and interval 1 that is the step before, as in veRL. Where the loader
has workers, veRL forks them as an epoch begins, with the data as it is then: all of its tasks are of that.
The order follows the length that the data has when an epoch begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trinity_compat.buffer.api import Buffer
from trinity_compat.common.errors import UserError
from trinity_compat.explorer.data.tasks import TaskOrder, TaskStream, drawn
from trinity_compat.job import dynamic_dataset
from trinity_compat.job.dynamic_dataset import Epoch, Epochs, NotKept, Replayed
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.policy import required_version


def followed(train: TaskStream, spec: RunSpec, buffer: Buffer, again: Callable[[], Any]) -> TaskStream:
    """``train``, or where its dataset changes a stream that follows it; ``again`` opens the dataset anew.

    Raises UserError where the run can't follow.
    """
    if not dynamic_dataset.changes(train.dataset):
        return train
    dynamic_dataset.check(spec, train.dataset)
    assert isinstance(train.order, TaskOrder)
    return ChangingStream(train.order, Replayed(train.dataset, again, buffer), spec)


class ChangingStream(TaskStream):
    """Tasks by number; asks for batches of steps that are done when the weights of the task are there."""

    changes = True

    def __init__(self, order: TaskOrder, data: Replayed, spec: RunSpec) -> None:
        """``order``: at the begin."""
        super().__init__(data.dataset, order)
        self._order, self._data, self._spec = order, data, spec
        self._begin()

    def _begin(self) -> None:
        count = int(self._spec.verl["trainer"]["total_epochs"])
        self._epochs = Epochs(self._order.batch_size, count, self._state, self._data.length)
        self._generator = self._order.generator()
        self._drawn: list[list[int]] = []

    def _state(self, step: int) -> int:
        """After how many steps a step sees the data, its epoch apart."""
        return required_version(self._spec.sync, step) or 0

    def has(self, step: int) -> bool:
        """Whether its tasks can be told: not of a step that there is not (a dataset that shrinks makes the
        epochs shorter), nor while a batch is on its way. Call before ``task``; its weights are there."""
        if self._data.forget_lost():
            self._begin()
        try:
            epoch = self._epochs.of_step(step)
            if epoch:
                self._data.at(self._seen(epoch, step))
        except NotKept:
            return False
        return epoch is not None

    def _seen(self, epoch: Epoch, step: int) -> int:
        """After how many steps a step of that epoch sees the data."""
        return epoch.state if self._order.draws > 1 else self._state(step)

    def task(self, task_no: int) -> dict[str, Any]:
        """Raises UserError where the row is gone, RunError for a batch that is not kept."""
        epoch, row = self._found(task_no)
        step = task_no // self._order.batch_size + 1
        self._dataset = self._data.at(self._seen(epoch, step))
        if row >= len(self._dataset):
            raise UserError(
                f"step {step} reads row {row}; on_batch_end has left {len(self._dataset)} rows",
                hint="write data.dataloader_num_workers=1: an epoch is read as it was when it began",
            )
        return self.row(row)

    def place(self, task_no: int) -> tuple[int, int]:
        return 0, self._found(task_no)[1]

    def _found(self, task_no: int) -> tuple[Epoch, int]:
        step, place = divmod(task_no, self._order.batch_size)
        epoch = self._epochs.of_step(step + 1)
        if epoch is None:
            raise IndexError(f"no epoch has a step {step + 1}")
        return epoch, self._rows(epoch)[(step + 1 - epoch.first) * self._order.batch_size + place]

    def _rows(self, epoch: Epoch) -> list[int]:
        if not self._order.shuffle:
            return list(range(epoch.rows))
        while len(self._drawn) <= epoch.number:
            rows = self._epochs.epoch(len(self._drawn)).rows
            self._drawn.append(drawn(rows, self._generator, self._order.draws))
        return self._drawn[epoch.number]
