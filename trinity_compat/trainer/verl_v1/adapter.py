"""Adapter of ``PPOTrainerSync`` (veRL's v1 trainer, mode ``sync``) of verl 0.9.1.

``fit`` and ``step`` stay as veRL wrote them. Four objects that they use are ours: ``NoTasks`` (the
dataloader), ``StoredGroups`` (the replay buffer), ``AskedTasks`` (the agent loops) and ``VersionPublisher``
(the checkpoint manager).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import ray
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta, kv_batch_get
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup, ResourcePoolManager
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.crash_points import point
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.trainer.adapter import Exchange
from trinity_compat.trainer.batch import BatchShape
from trinity_compat.trainer.datasets import TASK_NO, TrainerData
from trinity_compat.trainer.pad_groups import is_uneven
from trinity_compat.trainer.publisher import VersionPublisher
from trinity_compat.trainer.stand_ins import NoRewardLoop, NoServers, NoTeachers
from trinity_compat.trainer.stored_run import StoredRun
from trinity_compat.trainer.tracking import logged_through
from trinity_compat.trainer.training_processes import (
    TrainingOnlyWorker,
    training_pools,
)
from trinity_compat.trainer.verl_v1 import queue
from trinity_compat.trainer.verl_v1.rows import row_of

_TRAIN, _VALIDATION, _CHECK = "train", "val", "check"


class NoTasks:
    """Replacement for the train dataloader: no task is dispatched from here."""

    def state_dict(self) -> dict[str, int]:
        """Empty state: the buffer has the position in the task stream, and veRL the step."""
        point("inside checkpoint")  # veRL calls it after it has written the models, before data.pt
        return {}

    def load_state_dict(self, state: object) -> None:
        """No-op: the sampler's state in a checkpoint of stock veRL follows from the step."""


class AskedTasks:
    """Replacement for the agent loops: keeps the validation rows that they would answer."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, int]] = []

    def generate_sequences(self, batch: TensorDict) -> None:
        """Keep the rows' uids and positions in the validation set."""
        self._asked = list(zip(list(batch["uid"]), map(int, batch[TASK_NO]), strict=True))

    def taken(self) -> list[tuple[str, int]]:
        """Uid and position of each row that was asked for since the last call."""
        asked, self._asked = self._asked, []
        return asked


class StoredGroups:
    """Replacement for the replay buffer, which puts stored answers into TransferQueue."""

    def __init__(self, trainer: TrinityPPOTrainer) -> None:
        self._trainer = trainer

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, float]]:
        """Answers of the claimed groups of step ``global_steps``, or to the validation rows asked for."""
        if partition_id == _VALIDATION:
            return self._validation(global_steps), {}
        groups = self._trainer.exchange.claim(global_steps).groups
        if is_uneven(groups):
            raise RunError(
                "a run of a workflow has several rows, which the adapter of veRL's v1 trainer does not take",
                hint="write trinity_compat.trainer=v0",
            )
        uids = [f"{global_steps}-{place}" for place in range(len(groups))]
        return queue.put(self._rows(groups, uids), _TRAIN), {}

    def _rows(self, groups: Sequence[Group], uids: Sequence[str]) -> list[queue.QueueRow]:
        step, shape = self._trainer.global_steps, self._trainer.shape
        return [
            row_of(experience, uid, session, step, shape, group.task)
            for uid, group in zip(uids, groups, strict=True)
            for session, experience in enumerate(group.experiences)
        ]

    def _validation(self, step: int) -> KVBatchMeta:
        asked, answers = self._trainer.agent_loop_manager.taken(), self._trainer.validation_answers()
        uids = [uid for uid, _ in asked]
        queue.clear(uids, _VALIDATION)  # veRL has entered them as tasks that wait for answers
        return queue.put(self._rows([answers[place] for _, place in asked], uids), _VALIDATION)


class TrinityPPOTrainer(StoredRun, PPOTrainerSync):
    """veRL's trainer on stored groups. ``exchange`` is its only access to the run."""

    defined_in = trainer_base
    resource_pool_manager: ResourcePoolManager

    def __init__(
        self,
        config: DictConfig,
        exchange: Exchange,
        datasets: TrainerData,
        device: str,
        group_class: type[RayWorkerGroup],
        pool: RayResourcePool | None = None,
    ) -> None:
        if datasets.processor is not None:
            raise UserError(
                "trinity_compat.trainer=v1 trains text alone, and this model takes images too",
                hint="write trinity_compat.trainer=v0, or leave it out",
            )
        self.exchange, self._datasets = exchange, datasets
        self._device, self._pool, self._group_class = device, pool, group_class
        self.global_steps = 0
        super().__init__(config)
        self._take_over_checkpoints()
        rollout = config.actor_rollout_ref.rollout
        pad = datasets.tokenizer.pad_token_id
        self.shape = BatchShape(rollout.prompt_length, rollout.response_length, pad)

    def _build_replay_buffer(self) -> StoredGroups:
        return StoredGroups(self)

    def _setup(self) -> None:
        """Start the workers as veRL does, but without rollout servers, reward workers and teachers."""
        with (
            patch.object(trainer_base, "RayWorkerGroup", self._group_class),
            patch.object(trainer_base, "LLMServerManager", NoServers),
            patch.object(trainer_base, "RewardLoopManager", NoRewardLoop),
            patch.object(trainer_base, "MultiTeacherModelManager", NoTeachers),
            patch.object(trainer_base, "CheckpointEngineManager", self._publisher),
        ):
            super()._setup()
        self.exchange.before_leaving(self.actor_rollout_wg.leave_device)

    def _publisher(self, **given: Any) -> VersionPublisher:
        publisher = VersionPublisher(**given)
        publisher.trainer = self
        return publisher

    def _init_dataloader(self) -> None:
        """Count steps as veRL does, on the data sets that are open already."""
        with patch.object(trainer_base, "create_rl_dataset", self._dataset):
            super()._init_dataloader()
        self.train_dataloader = NoTasks()
        # fit ends with its epochs, even where total_training_steps, which sets the schedules, is larger.
        of_epochs = self.steps_per_epoch * self.config.trainer.total_epochs
        self.exchange.started(min(self.total_training_steps, of_epochs))

    def _dataset(self, *_: object, is_train: bool, **__: object) -> Any:
        return self._datasets.train if is_train else self._datasets.val

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(TrainingOnlyWorker)
        self.resource_pool_manager = training_pools(self.resource_pool_manager, self._device, self._pool)

    def _add_batch_to_generate(self) -> None:
        """No-op: the explorer has its tasks from the buffer."""

    def train(self) -> None:
        """Run veRL's ``fit`` with its logger wrapped."""
        with logged_through(self._log, trainer_base):
            self.fit(AskedTasks())
        self.logger.finish()

    def _save_checkpoint(self) -> None:
        self._save(super()._save_checkpoint)

    def _publish_marker(self) -> None:
        if self._saved:
            queue.check_empty()
        super()._publish_marker()

    def _load_checkpoint(self) -> None:
        self._load(super()._load_checkpoint)

    def response_logprobs(self, experience: Experience) -> list[float]:
        """Log-probabilities of the current policy, float [R], computed on one row for each rank."""
        ranks = max(self.actor_rollout_wg._query_dispatch_info("actor")) + 1
        rows = [row_of(experience, _CHECK, rank, self.global_steps, self.shape) for rank in range(ranks)]
        batch = queue.put(rows, _CHECK)
        batch.extra_info.update(
            calculate_entropy=False,
            compute_loss=False,
            temperature=1.0,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=1,
        )
        self.actor_rollout_wg.compute_log_prob(batch)
        first, column = batch.keys[:1], "log_probs"
        found = kv_batch_get(keys=first, partition_id=_CHECK, select_fields=[column])[column]
        queue.clear(batch.keys, _CHECK)
        prompt, response = len(experience.prompt_ids), len(experience.response_ids)
        # veRL's model gives a value for each token: the one before a token has its log-probability.
        return [float(x) for x in found[0][prompt - 1 : prompt - 1 + response]]
