"""The task stream: veRL's dataset in veRL's order, addressed by one integer.

Invariant: the row of a task number depends on (rows, batch size, shuffle, seed) only, so a position needs no
state of a dataloader and a lost group can be made again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from omegaconf import DictConfig

from trinity_compat.buffer.images import kept
from trinity_compat.buffer.row_fields import WRITE, carried
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.paths import from_home
from trinity_compat.explorer.data.taskset_order import TasksetOrder, order_of

_log = logging.getLogger(__name__)
FIRST = 16  # rows that are checked before engines start, and as many more of the rest


@dataclass(slots=True)
class TaskOrder:
    """The rows that veRL's dataloader draws: ``create_rl_sampler`` and drop_last, epoch after epoch.

    ``seed`` None gives torch.Generator's default seed, as in veRL (trainer/ppo/utils.py, 0.9.1). ``draws``:
    ``draws_of``.
    """

    rows: int
    batch_size: int
    shuffle: bool
    seed: int | None
    draws: int = 1
    _epochs: list[list[int]] = field(default_factory=list, init=False, repr=False)
    _generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._generator = torch.Generator()
        if self.seed is not None:
            self._generator.manual_seed(self.seed)

    def steps(self, epochs: int) -> int:
        """Return the steps of ``epochs`` epochs, each of whole batches only."""
        return epochs * (self.rows // self.batch_size)

    def row(self, task_no: int) -> int:
        """Return the dataset row of a task number (from 0)."""
        epoch, place = divmod(task_no, self.rows // self.batch_size * self.batch_size)
        if not self.shuffle:
            return place
        # One generator serves all epochs, as veRL's sampler keeps one.
        while len(self._epochs) <= epoch:
            draws = [torch.randperm(self.rows, generator=self._generator) for _ in range(self.draws)]
            self._epochs.append(draws[-1].tolist())
        return self._epochs[epoch][place]


def draws_of(data: DictConfig) -> int:
    """Return how often the loader of veRL's ``data`` section draws an order when an epoch begins.

    A loader with workers does so twice, and uses the second: torchdata 0.11's StatefulDataLoader makes the
    sampler's iterator in its base class and again as it resets itself, and the iterator draws as it is made.
    """
    return 2 if data.get("dataloader_num_workers", 0) else 1


class TaskStream:
    """Tasks by number: rows of ``dataset``, with ``Media`` for images, videos, sounds and bytes."""

    def __init__(self, dataset: Any, order: TaskOrder | TasksetOrder) -> None:
        self._dataset = dataset
        self.order = order
        self._reported: set[tuple[str, str]] = set()

    @property
    def dataset(self) -> Any:
        """Dataset of veRL, or the user's."""
        return self._dataset

    def task(self, task_no: int) -> dict[str, Any]:
        """Return the row of a task number (veRL's fields: raw_prompt, data_source, reward_model, …)."""
        return self.row(self.order.row(task_no))

    def row(self, index: int) -> dict[str, Any]:
        """Return a row by its place in the dataset.

        A value that cannot be stored is named in the log, once for a field, and becomes an ``UnstoredValue``.
        Raises UserError for media without a processor.
        """
        return self._carried(index)[0]

    def notes(self, index: int) -> list[tuple[str, str, str]]:
        """Return the values of a row that are replaced: place, type, and replacement ("": none)."""
        return self._carried(index)[1]

    def _carried(self, index: int) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
        try:
            found = self._dataset[index]
        except AssertionError as error:  # veRL's own words (RLHFDataset._build_messages, 0.9.1)
            if "processor is needed" not in str(error):
                raise
            raise UserError(
                f"row {index} of the data has images, videos or audio; veRL found no processor for the model",
                hint="its log has the reason (hf_processor); train a model of Qwen2-VL's or GLM-4V's kind",
            ) from error
        notes: list[tuple[str, str, str]] = []
        # Tensors at the top are veRL's own to stack; no reward function and no agent loop gets them.
        fields = {name: value for name, value in found.items() if not isinstance(value, torch.Tensor)}
        row = {
            name: kept(carried(value, name, lambda *each: notes.append(each)))
            for name, value in fields.items()
        }
        for place, kind, instead in notes:
            field = place.partition("[")[0]
            if (field, kind) not in self._reported:
                self._reported.add((field, kind))
                fate = f"arrives as a {instead}" if instead else "is left out, and raises when it is used"
                _log.warning("row %d of the data: %s, a %s, %s", index, place, kind, fate)
        return row, notes

    def place(self, task_no: int) -> tuple[int, int]:
        """Return the taskset of a task, from 0, and its row there."""
        return self.taskset_of(self.order.row(task_no))

    def taskset_of(self, row: int) -> tuple[int, int]:
        """Return the taskset of a row of the dataset, from 0, and its row there."""
        taskset = 0
        sizes = getattr(self._dataset, "sizes", ())
        while taskset < len(sizes) - 1 and row >= sizes[taskset]:
            row -= sizes[taskset]
            taskset += 1
        return taskset, row

    def __len__(self) -> int:
        return int(self.order.rows)


def train_stream(config: DictConfig, tokenizer: Any, processor: Any) -> TaskStream:
    """Open the training tasks of a veRL configuration. Raises UserError for unusable files."""
    data = config.data
    dataset = _dataset(data.train_files, data, tokenizer, processor, train=True)
    if data.get("tasksets"):
        order: TaskOrder | TasksetOrder = order_of(dataset, data)
    else:
        seed, draws = data.get("seed"), draws_of(data)
        order = TaskOrder(len(dataset), data.train_batch_size, bool(data.shuffle), seed, draws)
    trainer = config.get("trainer") or {}
    # Tasksets begin again within a step: any rows are enough where the steps are counted.
    counted = data.get("tasksets") and trainer.get("total_training_steps") and len(dataset)
    if not (counted or order.steps(int(trainer.get("total_epochs", 1)))):
        raise UserError(
            f"data.train_batch_size={order.batch_size}, but only {len(dataset)} prompts are left in"
            " data.train_files",
            hint="lower data.train_batch_size, or raise data.max_prompt_length (longer prompts are dropped)",
        )
    return TaskStream(dataset, order)


def eval_stream(config: DictConfig, tokenizer: Any, processor: Any) -> TaskStream:
    """Open the validation tasks, in the files' order (veRL keeps the last batch here)."""
    dataset = _dataset(config.data.val_files, config.data, tokenizer, processor, train=False)
    return TaskStream(dataset, TaskOrder(len(dataset), max(1, len(dataset)), False, None))


def _dataset(files: Any, data: DictConfig, tokenizer: Any, processor: Any, *, train: bool) -> Any:
    from verl.trainer.ppo.utils import create_rl_dataset

    paths = [files] if isinstance(files, str) else list(files)
    if not data.custom_cls.get("path"):  # such a class reads what it likes
        for path in paths:
            _check_file(path, data.get("prompt_key", "prompt"))
    limit = data.get("train_max_samples" if train else "val_max_samples", -1)
    return create_rl_dataset(paths, data, tokenizer, processor, is_train=train, max_samples=limit)


def _check_file(path: str, prompt_key: str) -> None:
    """Raise UserError for a file that is missing, or lacks columns: veRL would drop all its rows."""
    if "://" in path:
        return
    local = from_home(path)
    if not local.exists():
        raise UserError(
            "no such data file", where=Where(path), hint="check data.train_files and data.val_files"
        )
    if local.suffix != ".parquet":
        return
    import pyarrow.parquet as pq

    columns = pq.read_schema(local).names
    missing = [name for name in (prompt_key, "data_source", "reward_model") if name not in columns]
    if missing:
        raise UserError(
            f"no column {missing[0]!r}; the file has {', '.join(columns)}",
            where=Where(path),
            hint="write the file in veRL's format, or name the column with data.prompt_key",
        )


def check(stream: TaskStream, files: str) -> None:
    """Read the first rows of a stream, and some spread over the others.

    ``files``: the key that names them. Raises UserError for a value that cannot be stored or handed to reward
    functions.
    """
    count = len(stream.dataset)
    spread = range(FIRST, count, max(1, (count - FIRST) // FIRST))
    for index in (*range(min(FIRST, count)), *spread):
        for place, kind, instead in stream.notes(index):
            if not instead:
                raise UserError(
                    f"{files}: row {index} (from 0): {place} holds a {kind}, which cannot be stored or handed"
                    " to agent loops and reward functions",
                    hint=f"{WRITE}, in the data or in the class of data.custom_cls",
                )


def sampling_seed(base: int, kind: str, task_no: int) -> int:
    """Return the seed of a group's first response; the i-th takes seed + i."""
    digest = blake2b(f"{base}/{kind}/{task_no}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")
