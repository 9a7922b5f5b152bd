"""Interface between a veRL trainer and the rest of the run.

A veRL trainer calls the run through ``Exchange`` alone, and ``main`` calls its ``fit``. The table shows where
the adapters ``verl_v0`` and ``verl_v1`` call:

| Exchange | v0: RayPPOTrainer.fit | v1: PPOTrainerSync.fit |
|---|---|---|
| started | ``_create_dataloader`` | ``_init_dataloader`` |
| resumed | end of ``_load_checkpoint`` | end of ``_load_checkpoint`` |
| publish | ``checkpoint_manager.update_weights`` | the same, in ``on_init_end`` and ``on_step_end`` |
| claim | ``async_rollout_manager.generate_sequences`` | ``replay_buffer.sample(partition_id="train")`` |
| keep_scores | ``_compute_old_log_prob`` | ``_compute_old_log_prob`` |
| commit | before ``_save_checkpoint``, and in ``publish`` | before ``_save_checkpoint``, and in ``publish`` |
| evaluate | ``generate_sequences`` of ``validate`` | ``replay_buffer.sample(partition_id="val")`` |
| log | ``Tracking.log`` | ``Tracking.log`` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.nested import Tree
from trinity_compat.synchronizer.engine_dtypes import Dtypes
from trinity_compat.synchronizer.transports.files import WeightFile
from trinity_compat.synchronizer.transports.nccl import Rendezvous

# The trainer's log-probabilities and entropies of an answer's tokens, float32 [R] each.
FoundScores = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
FindScores = Callable[[Sequence[Experience]], Sequence[FoundScores | None]]  # None: not scored


class SendWeights(Protocol):
    """Write the current policy as ``version``, or broadcast it at ``meeting``.

    A collective call of all ranks. ``check`` is called meanwhile; an exception of it ends the call.
    """

    def __call__(
        self, version: int, meeting: Rendezvous | None = None, check: Callable[[], None] = lambda: None
    ) -> WeightFile:
        """Send the weights. Raises TransferFailed."""


class LogProbScorer(Protocol):
    """The current policy's log-probability of each response token at temperature 1, float [R].

    A collective call: one forward pass on every rank.
    """

    def __call__(self, experience: Experience) -> list[float]:
        """Compute them for one experience."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The train batch of one step: whole groups in task order, and the time of the wait for them.

    ``experts``: rows of an expert to train with them, a group each.
    """

    groups: tuple[Group, ...]
    waited_s: float
    experts: tuple[Group, ...] = ()


class Exchange(Protocol):
    """Operations of the run that a veRL trainer calls. Steps are veRL's, counted from 1."""

    def started(self) -> None:
        """Report that training begins."""

    def position(self, step: int) -> Tree:
        """State that the checkpoint of ``step`` keeps for ``resumed``, as JSON. Call after ``commit``."""

    def resumed(self, step: int, position: Tree | None = None, *, afresh: bool = False) -> None:
        """Continue the run from the checkpoint of ``step`` (0: from the start). Call before ``publish``.

        ``position``: the state that the checkpoint keeps, None for one of stock veRL. ``afresh``: use no
        earlier content of the buffer.
        """

    def publish(self, step: int, send: SendWeights, scores: LogProbScorer | None = None) -> None:
        """Send version ``step``, which is complete, if the synchronization style requires it.

        After the first update ``scores`` computes the values that the explorers' engines must reproduce
        (``synchronizer.weight_sync_check``).
        """

    def engine_dtypes(self) -> Dtypes:
        """Return the dtypes in which the explorers' engines hold the tensors of a version."""

    def before_leaving(self, leave_device: Callable[[], None]) -> None:
        """Register ``leave_device``, called before others use the device: it empties the caches."""

    def claim(self, step: int) -> Claimed:
        """Wait for the train batch of ``step``.

        Raises PeerGone when no explorer is left to generate it, StopBeforeStep when the user asked for the
        end.
        """

    def keep_scores(self, find: FindScores) -> None:
        """Keep what ``find`` knows of the claimed answers' sample, with ``commit``."""

    def commit(self, step: int) -> None:
        """Enter the claimed groups in the ledger under ``step``; a second call is a no-op.

        Call after the update and before the checkpoint of ``step``. Raises ClaimLost.
        """

    def evaluate(self, step: int, send: SendWeights) -> list[Group]:
        """Validate with the weights after ``step``; returns groups by position in the validation set."""

    def log(self, step: int, metrics: Tree) -> dict[str, object]:
        """Store the metrics of ``step``; returns them with the run's own metrics added."""
