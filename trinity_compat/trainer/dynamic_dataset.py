"""The trainer's side of a dataset whose ``on_batch_end`` changes it (``own_dataset``).

Invariant: the batch of a step is in the buffer before the step's checkpoint, ledger entry and weights.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset
from verl import DataProto

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.batch_codec import encode
from trinity_compat.common.errors import UserError
from trinity_compat.job import dynamic_dataset
from trinity_compat.job.dynamic_dataset import Epoch, Epochs, Replayed
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.synchronizer.policy import required_version


def kept(dataset: Any, spec: RunSpec, buffer: Buffer) -> Any:
    """``dataset``, or what stands for one that changes. Raises UserError where the run can't have it."""
    dynamic_dataset.check(spec, dataset)
    return ChangingData(dataset, spec, buffer) if dynamic_dataset.changes(dataset) else dataset


def of(dataset: object) -> ChangingData | None:
    """What stands for a trainer's data, where it changes."""
    return dataset if isinstance(dataset, ChangingData) else None


class ChangingData(Dataset[Any]):
    """In the place of veRL's ``train_dataset``: changes as the explorer's copy does, by the kept batches."""

    def __init__(self, dataset: Any, spec: RunSpec, buffer: Buffer) -> None:
        self._buffer, self._sync = buffer, spec.sync
        self._data = Replayed(dataset, _cannot_go_back, buffer)
        self._now = self._kept = 0  # steps: the one under way, the last whose batch is in the buffer
        self._history: int | None = None  # that of this trainer, from its resume on
        self._told = False
        batch, count = int(spec.verl["data"]["train_batch_size"]), int(spec.verl["trainer"]["total_epochs"])
        self._epochs = Epochs(batch, count, self._state, self._data.length)

    def __len__(self) -> int:
        return len(self._data.dataset)

    def __getitem__(self, item: int) -> Any:
        return self._data.dataset[item]

    def begins(self, step: int) -> None:
        """The next batch is of this step."""
        self._now = step

    def keep(self, batch: DataProto) -> None:
        """Before anything says that the step is trained.

        Raises BufferFull, and HistoryChanged where another trainer has resumed the run meanwhile.
        """
        data, left = encode(batch)
        if left and not self._told:
            print(
                f"warning: on_batch_end gets batches without {', '.join(left)}: those are not kept",
                flush=True,
            )
        self._told, self._kept = True, self._now
        self._buffer.keep_batch(self._now, data, history=self._history)

    def on_batch_end(self, batch: DataProto) -> None:
        """veRL's trainer calls it when the step is over. One that updated nothing is not kept before."""
        if self._kept < self._now:
            self.keep(batch)
        self._data.at(self._now)

    def resumed(self, step: int) -> None:
        """Be as it was after ``step``. Raises UserError where the buffer has not kept what is needed."""
        self._history = self._buffer.history()
        steps = range(1, step + 1)
        missing = next((each for each in steps if self._buffer.batch_history(each) is None), None)
        if missing is not None:
            raise UserError(
                f"the checkpoint of step {step} is of data that on_batch_end changed, and this database lacks"
                f" the batch of step {missing}",
                hint="go on with the database of that run, or begin one of its own with --job DIR",
            )
        self._data.at(step)
        self._kept = step

    def epoch(self, number: int) -> Epoch:
        """Which steps it has, as the explorer counts them. Call after the step before its first."""
        return self._epochs.epoch(number)

    def _state(self, step: int) -> int:
        return required_version(self._sync, step) or 0


def _cannot_go_back() -> Any:
    raise RuntimeError("a trainer's data only goes on")
