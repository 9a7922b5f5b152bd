"""The line between a veRL trainer and the rest of the run.

A veRL trainer (``verl_v0`` today; v1 is drawn for too) talks to the run through ``Exchange`` alone and
shows itself to ``main`` as ``Adapter``. Where each base calls:

| Exchange | v0: RayPPOTrainer.fit | v1: PPOTrainer |
|---|---|---|
| resumed | end of ``_load_checkpoint`` | ``on_init_end`` |
| publish | ``checkpoint_manager.update_weights`` | ``on_init_end``, ``on_step_end`` |
| claim | ``async_rollout_manager.generate_sequences`` | ``ReplayBuffer.sample(partition="train")`` |
| commit | before ``_save_checkpoint``, and after the update | ``on_step_end``, before ``_save_checkpoint`` |
| evaluate | ``generate_sequences`` with meta_info["validate"] | ``ReplayBuffer.sample(partition="val")`` |
| log | ``Tracking.log`` | ``Tracking.log`` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.containers import Tree
from trinity_compat.synchronizer.transports.files import WeightFile
from trinity_compat.synchronizer.transports.nccl import Rendezvous


class SendWeights(Protocol):
    """Writes the current policy as ``version``, or hands it over at ``meeting``.

    A collective call: all ranks take part. ``check`` is called while it lasts; what it raises ends it.
    """

    def __call__(
        self, version: int, meeting: Rendezvous | None = None, check: Callable[[], None] = lambda: None
    ) -> WeightFile: ...


class LogProbScorer(Protocol):
    """The current policy's log-probability of each response token at temperature 1, float [R].

    A collective call: one forward pass on every rank.
    """

    def __call__(self, experience: Experience) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one step trains on: whole groups, first in first out, and how long they were waited for;
    ``experts``: an expert's rows beside them, a group each."""

    groups: tuple[Group, ...]
    waited_s: float
    experts: tuple[Group, ...] = ()


class Exchange(Protocol):
    """What a veRL trainer may ask of the run. Steps are veRL's, counted from 1."""

    def started(self, total_steps: int) -> None:
        """The trainer knows how many steps it will make; the explorer may plan."""

    def position(self, step: int) -> Tree:
        """What the checkpoint of ``step`` has to keep for ``resumed``, as JSON. After ``commit``."""

    def resumed(self, step: int, position: Tree | None = None, *, afresh: bool = False) -> None:
        """The checkpoint of ``step`` is loaded (0: there was none), and ``position`` lay in it (None: it is
        stock veRL's). ``afresh``: whatever the buffer holds is to be left. Before the first ``publish``."""

    def publish(self, step: int, send: SendWeights, scores: LogProbScorer | None = None) -> None:
        """Version ``step`` is complete: send it if the style says so.

        With the first update ``scores`` is asked for what the explorers' engines must answer too
        (``synchronizer.probe``).
        """

    def before_leaving(self, leave_device: Callable[[], None]) -> None:
        """``leave_device`` empties the training processes' caches: called before others use the device."""

    def claim(self, step: int) -> Claimed:
        """Wait for the train batch of ``step``. Raises PeerGone when nobody is left to make it."""

    def commit(self, step: int) -> None:
        """The claimed groups took effect in ``step``: enter them in the ledger; a second call changes
        nothing. Call before the checkpoint of ``step``. Raises ClaimLost."""

    def evaluate(self, step: int, send: SendWeights) -> list[Group]:
        """Validation with the weights after ``step``: the groups by position in the validation set."""

    def log(self, step: int, metrics: Tree) -> dict[str, object]:
        """Keep the metrics of ``step``; returns them with what the run itself knows added."""


class TrainerAdapter(Protocol):
    """A veRL trainer, ready to run."""

    def fit(self) -> None:
        """Train until veRL's own loop ends."""
