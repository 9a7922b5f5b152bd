"""Order in which training draws the rows of Trinity's tasksets.

Source: trinity-rft 0.6.0, ``buffer/task_scheduler.py``: the tasksets take turns by their sizes, and the
selector of each says which of its rows are next. What a selector draws depends on how many it draws at once:
here as there, those of one explorer step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig

from trinity_compat.common.errors import RunError
from trinity_compat.trinity.selectors import ByDifficulty, Selector, selector_of

T = TypeVar("T")
_Turns = npt.NDArray[np.int32]
_DRAWS, _EPOCHS = 64, 3  # that are kept; others are drawn again


@dataclass(slots=True)
class TasksetOrder:
    """Order of the rows of tasksets, which follow each other in the dataset.

    ``draw_size``: tasks that are drawn together. Epochs follow each other without a gap: a batch may span
    two of them. A row is a pure function of the task's number, and of the results passed to ``learn``.
    """

    selectors: Sequence[Selector]
    batch_size: int
    draw_size: int
    _draws: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    _epochs: dict[int, _Turns] = field(default_factory=dict, init=False, repr=False)

    @property
    def sizes(self) -> list[int]:
        """Rows of each taskset."""
        return [each.size for each in self.selectors]

    @property
    def rows(self) -> int:
        """Rows of all tasksets."""
        return sum(self.sizes)

    def steps(self, epochs: int) -> int:
        """Return the whole batches of ``epochs`` epochs together."""
        return self.rows * epochs // self.batch_size

    def row(self, task_no: int) -> int:
        """The dataset row of a task number (from 0). Raises RunError."""
        draw, place = divmod(task_no, self.draw_size)
        if draw not in self._draws:
            first = draw * self.draw_size
            turns = [self._turn(number) for number in range(first, first + self.draw_size)]
            starts = np.cumsum([0, *self.sizes]).tolist()
            rows = {
                taskset: iter(self.selectors[taskset].rows(self._before(taskset, first), count))
                for taskset, count in Counter(turns).items()
            }
            _add(self._draws, draw, [starts[taskset] + next(rows[taskset]) for taskset in turns], most=_DRAWS)
        return self._draws[draw][place]

    @property
    def learns(self) -> bool:
        """Return whether the order depends on results."""
        return any(isinstance(each, ByDifficulty) for each in self.selectors)

    def forget(self) -> None:
        """Discard all results."""
        self._draws.clear()
        for each in self.selectors:
            if isinstance(each, ByDifficulty):
                each.forget()

    def learn(self, taskset: int, rows: Sequence[int], rates: Sequence[float]) -> None:
        """Take in the results of one draw: the mean rewards of a taskset's ``rows``.

        Raises RunError for nonexistent rows.
        """
        selector = self.selectors[taskset] if 0 <= taskset < len(self.selectors) else None
        if selector is None or not all(0 <= row < selector.size for row in rows):
            raise RunError(f"an operator's selector_metric names rows that taskset {taskset} does not have")
        if isinstance(selector, ByDifficulty) and rows:
            selector.learn(rows, rates)
            self._draws.clear()

    def _turn(self, number: int) -> int:
        """The taskset of a task."""
        epoch, place = divmod(number, self.rows)
        return int(self._turns(epoch)[place])

    def _before(self, taskset: int, number: int) -> int:
        """Return the number of tasks of a taskset before that one."""
        epoch, place = divmod(number, self.rows)
        of_this = np.count_nonzero(self._turns(epoch)[:place] == taskset)
        return epoch * self.selectors[taskset].size + int(of_this)

    def _turns(self, epoch: int) -> _Turns:
        """The taskset of each place of an epoch, int32 [rows]."""
        if epoch not in self._epochs:
            turns = np.repeat(np.arange(len(self.sizes)), self.sizes).tolist()
            if len(self.selectors) > 1:
                np.random.default_rng(epoch).shuffle(turns)
            _add(self._epochs, epoch, np.array(turns, dtype=np.int32), most=_EPOCHS)
        return self._epochs[epoch]


def _add(kept: dict[int, T], number: int, value: T, *, most: int) -> None:
    """Add a value, and drop the oldest ones beyond ``most``."""
    kept[number] = value
    while len(kept) > most:
        del kept[next(iter(kept))]


def order_of(dataset: Any, data: DictConfig) -> TasksetOrder:
    """Return the order of veRL's ``data`` section; ``dataset`` has the ``sizes`` and ``columns``.

    Raises UserError.
    """
    tasksets = [data.tasksets[name] for name in data.train_files]
    selectors = [
        selector_of(each["selector"], size, columns, each["place"])
        for each, size, columns in zip(tasksets, dataset.sizes, dataset.columns, strict=True)
    ]
    batch = int(data.train_batch_size)
    return TasksetOrder(selectors, batch, int(data.get("gen_batch_size") or batch))
