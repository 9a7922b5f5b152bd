"""Replacement for veRL's checkpoint manager: a version of the weights where veRL updates its rollouts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol, TypedDict

import ray
from omegaconf import DictConfig, OmegaConf
from verl.single_controller.ray import RayWorkerGroup

from trinity_compat.buffer.model import Experience
from trinity_compat.common.errors import RunError
from trinity_compat.plugins.verl_checkpoint_engine import FILE
from trinity_compat.synchronizer.transports.files import WeightFile, WriterShare, assemble
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed
from trinity_compat.trainer.adapter import Exchange


class PublishingTrainer(Protocol):
    """The parts of a trainer that a publisher uses."""

    config: DictConfig
    exchange: Exchange
    processor: Any

    def response_logprobs(self, experience: Experience) -> list[float]:
        """Log-probabilities of the current policy, float [R]."""


class VersionPublisher:
    """Replacement for the checkpoint manager; publishes a version where veRL updates rollouts."""

    trainer: PublishingTrainer

    def __init__(self, config: object, actor_wg: RayWorkerGroup, replicas: object) -> None:
        self._actors = actor_wg

    def sleep_replicas(self) -> None:
        """No-op: there are no replicas."""

    def update_weights(self, step: int) -> None:
        """Publish version ``step``, with log-probabilities for a check where tokens are the only input."""
        can_score = self.trainer.processor is None and not _replays_routing(self.trainer.config)
        self.trainer.exchange.publish(step, self.send, self.trainer.response_logprobs if can_score else None)

    def send(
        self, version: int, meeting: Rendezvous | None = None, check: Callable[[], None] = lambda: None
    ) -> WeightFile:
        """Let all ranks write their shares; at ``meeting``, let rank 0 or each one send the version.

        Raises TransferFailed.
        """
        ranks, until = self._actors.world_size, math.inf
        if meeting is not None:
            until = time.monotonic() + meeting.over_s
            where = {"method": ["meet"] * ranks, "meeting": [meeting] * ranks}
            _answers(self._actors.execute_checkpoint_engine(**where), check, until)
        expected = {"method": ["expect"] * ranks, "dtypes": [self.trainer.exchange.engine_dtypes()] * ranks}
        _answers(self._actors.execute_checkpoint_engine(**expected), check, until)
        waiting = self._actors.update_weights(global_steps=version, mode="auto")
        done = [answer for answer in _answers(waiting, check, until) if answer]
        if meeting is None:
            shares = [answer["share"] for answer in done]
            options = self.trainer.config.actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs[FILE]
            return assemble(options.directory, version, shares, recycle=options.recycle)
        if len(done) != (ranks if meeting.on_devices else 1) or len({each["digest"] for each in done}) != 1:
            raise RunError(
                f"{len(done)} of {ranks} training processes sent version {version}, or not the same"
            )
        return WeightFile(done[0]["path"], done[0]["digest"], done[0]["nbytes"])


class _Answer(TypedDict, total=False):
    """Result of one training process: its share of the files, or the broadcast version."""

    share: WriterShare
    path: str
    digest: str
    nbytes: int


def _replays_routing(config: DictConfig) -> bool:
    """Return whether a forward pass needs the routing of the rollout, which a single example lacks."""
    actor = config.actor_rollout_ref.actor
    mode = OmegaConf.select(actor, f"{actor.strategy}.router_replay.mode")
    return mode not in (None, "disabled")


def _answers(waiting: list[ray.ObjectRef], check: Callable[[], None], until: float) -> list[_Answer]:
    """Results of all ranks. Raises TransferFailed when some hang past their own limits."""
    while len(done := ray.wait(waiting, num_returns=len(waiting), timeout=0.5)[0]) < len(waiting):
        check()
        if time.monotonic() > until:
            missing = f"{len(waiting) - len(done)} of {len(waiting)} training processes"
            raise TransferFailed(f"{missing} did not finish sending the weights")
    answers: list[_Answer] = ray.get(waiting)
    return answers
