"""Dataset classes of the user's (``data.custom_cls``) that change while they are trained on.

veRL's trainer calls their ``on_batch_end`` after each step (``fit`` in trainer/ppo/ray_trainer.py, 0.9.1).
Here the trainer keeps each batch in the buffer, and both sides call the method on copies of their own: the
state of the data at a step follows from the batches before it, whoever asks and how often. Nothing of torch
or veRL is imported before a batch is read.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trinity_compat.common.containers import Tree, section_at
from trinity_compat.common.errors import RunError, UserError, Where
from trinity_compat.common.nested import value_at
from trinity_compat.common.paths import from_home
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.trinity.pipelines import SECTION as PIPELINE

CHANGES = "on_batch_end"


# -- which runs can have one ------------------------------------------------------------------------


def check(spec: RunSpec, dataset: object) -> None:
    """Of a dataset that has been opened. Raises UserError where the run can't have one that changes."""
    if changes(dataset) and (why := _unfit(spec)):
        raise _refused(type(dataset).__name__, why)


def changes(dataset: object) -> bool:
    """Whether it has the method."""
    return hasattr(dataset, CHANGES)


def check_text(spec: RunSpec, *, cwd: Path) -> None:
    """The same by the class's own text, with the line of the method, before anything is started."""
    if (why := _unfit(spec)) and (found := _method_of(spec.verl, cwd)):
        raise _refused(found.kind, why, found.where)


def note(spec: RunSpec, *, cwd: Path) -> list[str]:
    """What the plan says of a class that has the method."""
    if not (found := _named(spec, cwd)):
        return []
    data = section_at(spec.verl, "data")
    when = "an epoch begins" if data.get("dataloader_num_workers") else "a step begins"
    return [
        f"data.custom_cls.name={found.kind}: {CHANGES} runs in the trainer and the explorer; tasks are read"
        f" when {when}, as it left the data after the step of their weights; every batch stays in the buffer,"
        " some 10 bytes for each token of an answer"
    ]


def is_named(spec: RunSpec, *, cwd: Path) -> bool:
    """Whether the run's dataset is a class that has the method, as far as its file's text tells."""
    return _named(spec, cwd) is not None


def _named(spec: RunSpec, cwd: Path) -> _Method | None:
    return None if spec.rows or spec.serve else _method_of(spec.verl, cwd)


def _unfit(spec: RunSpec) -> str | None:
    """Why which data a task is made of could not be told; None where it can."""
    if spec.sync.style != "fixed":
        return f"under sync_style {spec.sync.style} the explorer is not ahead by a fixed number of steps"
    if value_at(spec.verl, "algorithm.filter_groups.enable"):
        return "with algorithm.filter_groups a step takes as many tasks as it needs"
    if value_at(spec.verl, PIPELINE):
        return "with an experience pipeline a step takes as many tasks as it needs"
    return "with a replay buffer a step trains tasks of other steps" if spec.replay else None


def _refused(kind: str, why: str, where: Where | None = None) -> UserError:
    return UserError(
        f"data.custom_cls.name={kind}: its {CHANGES} changes the data after each step, and {why}",
        where=where,
        hint="write sync_style fixed, no filter_groups, no experience pipeline and no replay buffer; or leave"
        f" {CHANGES} out",
    )


@dataclass(frozen=True, slots=True)
class _Method:
    kind: str
    where: Where


def _method_of(verl: Tree, cwd: Path) -> _Method | None:
    """As far as the file's text tells: a class may have it from another."""
    custom = section_at(verl, "data.custom_cls")
    path, name = str(custom.get("path") or ""), custom.get("name")
    if not path or "://" in path or path.startswith("pkg:"):
        return None
    # Who loads it says what is wrong, also where it is nested too deeply to parse.
    file = cwd / from_home(path)
    with contextlib.suppress(OSError, SyntaxError, ValueError, RuntimeError, MemoryError):
        for node in ast.walk(ast.parse(file.read_bytes())):  # its first line may name an encoding
            if isinstance(node, ast.ClassDef) and node.name == name:
                return next((_Method(node.name, Where(str(file), line)) for line in _lines(node)), None)
    return None


def _lines(kind: ast.ClassDef) -> Iterator[int]:
    for part in kind.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name == CHANGES:
            yield part.lineno


# -- its state at a step ----------------------------------------------------------------------------


class StoredBatches(Protocol):
    """What is read of the buffer."""

    def kept_batch(self, step: int) -> bytes | None: ...

    def batch_history(self, step: int) -> int | None: ...


class NotKept(RunError):
    """The buffer lacks a batch that was asked for."""


class Replayed:
    """``dataset`` as the batches of the first ``applied`` steps left it. ``again`` opens it anew."""

    def __init__(self, dataset: Any, again: Callable[[], Any], batches: StoredBatches) -> None:
        self._again, self._batches = again, batches
        self._begin(dataset)

    def _begin(self, dataset: Any) -> None:
        self.dataset = dataset
        self.applied = 0
        self._history: int | None = None
        self._lengths = [len(self.dataset)]

    def forget_lost(self) -> bool:
        """Begin again where a resume has taken back a batch that was applied; whether it had."""
        lost = self.applied > 0 and self._batches.batch_history(self.applied) != self._history
        if lost:
            self._begin(self._again())
        return lost

    def at(self, steps: int) -> Any:
        """The dataset after so many steps. Raises NotKept, and what the method raises."""
        if self.applied > steps:
            self._begin(self._again())
        while self.applied < steps:
            self._apply(self.applied + 1)
        return self.dataset

    def length(self, steps: int) -> int:
        """Rows after so many steps."""
        if steps >= len(self._lengths):
            self.at(steps)
        return self._lengths[steps]

    def _apply(self, step: int) -> None:
        history, data = self._batches.batch_history(step), self._batches.kept_batch(step)
        if data is None:
            raise NotKept(f"the buffer lacks the batch of step {step}, by which {CHANGES} changed the data")
        self.dataset.on_batch_end(batch=_decoded(data, step))
        self.applied, self._history = step, history
        self._lengths.append(len(self.dataset))


def _decoded(data: bytes, step: int) -> Any:
    from trinity_compat.buffer.batch_codec import Damaged, decode

    try:
        return decode(data)
    except Damaged as error:
        raise RunError(
            f"the buffer's batch of step {step}, by which {CHANGES} changed the data, is damaged ({error})",
            hint=f"resume a checkpoint before step {step} (trainer.resume_from_path), or write --job DIR",
        ) from error


@dataclass(frozen=True, slots=True)
class Epoch:
    """``number`` from 0; ``first`` of its ``steps``, from 1; ``rows`` and ``state`` of the data when it
    begins: after so many steps."""

    number: int
    first: int
    steps: int
    rows: int
    state: int


class Epochs:
    """Which steps an epoch has: whole batches of the rows that there are when it begins, as veRL's loader
    counts them. ``state_of``: after how many steps a step sees the data; ``length``: rows after so many."""

    def __init__(
        self, batch: int, count: int, state_of: Callable[[int], int], length: Callable[[int], int]
    ) -> None:
        self._batch, self._count = batch, count
        self._state_of, self._length = state_of, length
        self._known: list[Epoch] = []

    def epoch(self, number: int) -> Epoch:
        """Asks for the state that its first step sees."""
        while len(self._known) <= number:
            last = self._known[-1] if self._known else None
            first = last.first + last.steps if last else 1
            state = self._state_of(first)
            rows = self._length(state)
            self._known.append(Epoch(len(self._known), first, rows // self._batch, rows, state))
        return self._known[number]

    def of_step(self, step: int) -> Epoch | None:
        """None for a step after the last epoch's. Asks for no state that the step does not see."""
        for number in range(self._count):
            epoch = self.epoch(number)
            if step < epoch.first + epoch.steps:
                return epoch
        return None
