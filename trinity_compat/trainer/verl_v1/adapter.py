"""Adapter of ``PPOTrainerSync`` (veRL's v1 trainer, mode ``sync``) of verl 0.9.1.

``fit`` and ``step`` stay as veRL wrote them. Four objects that they use are ours: ``NoTasks`` (the
dataloader), ``StoredGroups`` (the replay buffer), ``AskedTasks`` (the agent loops) and ``VersionPublisher``
(the checkpoint manager).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import ray
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta, kv_batch_get, kv_batch_put
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup, ResourcePoolManager
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_from_nested, response_to_nested

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.crash_points import point
from trinity_compat.job.run_spec import has_baseline
from trinity_compat.trainer.adapter import Exchange, FoundScores
from trinity_compat.trainer.algorithms import ENTROPY, reads_entropy
from trinity_compat.trainer.batch import BatchShape, teacher_size
from trinity_compat.trainer.datasets import TASK_NO, TrainerData
from trinity_compat.trainer.multi_modal import MultiModal
from trinity_compat.trainer.pad_groups import is_uneven, pad_to_equal
from trinity_compat.trainer.publisher import VersionPublisher
from trinity_compat.trainer.stand_ins import NoRewardLoop, NoServers, NoTeachers
from trinity_compat.trainer.stored_run import StoredRun
from trinity_compat.trainer.tracking import logged_through
from trinity_compat.trainer.training_processes import (
    TrainingOnlyWorker,
    training_pools,
)
from trinity_compat.trainer.verl_v1 import queue
from trinity_compat.trainer.verl_v1.advantages import StoredColumns, computed
from trinity_compat.trainer.verl_v1.rows import row_of, tokens_of
from trinity_compat.trinity.workflows.tasksets import SECTION, have_classes

_TRAIN, _VALIDATION, _CHECK = "train", "val", "check"
_SUM = "sum_pi_squared"
_SQUARES = f"calculate_{_SUM}"


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
        groups = self._trainer.claimed(global_steps).groups
        uids = [f"{global_steps}-{place}" for place in range(len(groups))]
        n = self._trainer.runs
        sampled = [replace(group, experiences=group.experiences[:n]) for group in groups]
        if is_uneven(groups):
            levelled, n = pad_to_equal(groups, n)
            sampled = [
                replace(group, experiences=tuple(levelled[place * n : (place + 1) * n]))
                for place, group in enumerate(groups)
            ]
        self._trainer.set_rows_per_task(n)
        rows = self._rows(sampled, uids, self._trainer.multi_modal)
        answers = [experience for group in sampled for experience in group.experiences]
        keys = [row.key for row in rows]
        # remax: a group's last answer is its greedy one, which is not a row of the batch
        has_greedy = has_baseline(self._trainer.config)
        greedy = [group.experiences[-1].reward for group in groups for _ in range(n) if has_greedy]
        self._trainer.columns = StoredColumns(
            dict(zip(keys, answers, strict=True)), dict(zip(keys, greedy, strict=False))
        )
        return queue.put(rows, _TRAIN), {}

    def _rows(
        self, groups: Sequence[Group], uids: Sequence[str], multi_modal: MultiModal
    ) -> list[queue.QueueRow]:
        step = self._trainer.global_steps
        shape = self._trainer.widths([each for group in groups for each in group.experiences])
        answers = [
            (experience, uid, session, group.task)
            for uid, group in zip(uids, groups, strict=True)
            for session, experience in enumerate(group.experiences)
        ]
        size = teacher_size([experience for experience, *_ in answers])
        tokens = (tokens_of(experience) for experience, *_ in answers)
        media = multi_modal.inputs_of(tokens, [task for *_, task in answers])
        return [
            row_of(experience, uid, session, step, shape, task, inputs, size)
            for (experience, uid, session, task), inputs in zip(answers, media, strict=True)
        ]

    def _validation(self, step: int) -> KVBatchMeta:
        asked, answers = self._trainer.agent_loop_manager.taken(), self._trainer.validation_answers()
        uids = [uid for uid, _ in asked]
        queue.clear(uids, _VALIDATION)  # veRL has entered them as tasks that wait for answers
        groups = [answers[place] for _, place in asked]
        return queue.put(self._rows(groups, uids, MultiModal.none()), _VALIDATION)  # no model reads them


class TrinityPPOTrainer(StoredRun, PPOTrainerSync):
    """veRL's trainer on stored groups. ``exchange`` is its only access to the run."""

    defined_in = trainer_base
    resource_pool_manager: ResourcePoolManager
    columns: StoredColumns

    def __init__(
        self,
        config: DictConfig,
        exchange: Exchange,
        datasets: TrainerData,
        device: str,
        group_class: type[RayWorkerGroup],
        pool: RayResourcePool | None = None,
    ) -> None:
        self.exchange, self._datasets = exchange, datasets
        self._device, self._pool, self._group_class = device, pool, group_class
        self.global_steps = 0
        super().__init__(config)
        self._take_over_checkpoints()
        rollout = config.actor_rollout_ref.rollout
        self.runs = int(rollout.n)  # of each task
        pad = datasets.tokenizer.pad_token_id
        self.shape = BatchShape(rollout.prompt_length, rollout.response_length, pad)
        self.longer = have_classes(OmegaConf.select(config, SECTION) or {})
        self.multi_modal = MultiModal(config, datasets.tokenizer, datasets.processor)

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
        self.exchange.started()

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

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute as veRL does, with the sums of squared probabilities, which v0 asks its actor for.

        With ``bypass_mode`` veRL runs no forward pass here; an estimator that reads entropies needs one.
        """
        batch.extra_info[_SQUARES] = self._asks_for_squares()
        made = super()._compute_old_log_prob(batch, metrics)
        if self._bypasses() and reads_entropy(self.config.algorithm):
            temperature = self.config.actor_rollout_ref.rollout.temperature
            made.extra_info.update(calculate_entropy=True, compute_loss=False, temperature=temperature)
            self.actor_rollout_wg.compute_log_prob(made)
        for each in (batch, made):
            each.extra_info.pop(_SQUARES, None)
        if not self._bypasses():
            self.exchange.keep_scores(partial(self._scores_of, made.partition_id))
        return made

    def _scores_of(self, partition: str, answers: Sequence[Experience]) -> list[FoundScores | None]:
        keys = [self.columns.key_of(answer) for answer in answers]
        names = ["old_log_probs", "entropy"]
        known = [key for key in keys if key]
        rows = kv_batch_get(keys=known, partition_id=partition, select_fields=names) if known else {}
        columns = [[row.float().numpy() for row in rows[name].unbind()] for name in names if known]
        found = dict(zip(known, zip(*columns, strict=True), strict=True))
        return [found.get(key) for key in keys]

    def _bypasses(self) -> bool:
        return bool(OmegaConf.select(self.config, "algorithm.rollout_correction.bypass_mode"))

    def _asks_for_squares(self) -> bool:
        return bool(self.config.actor_rollout_ref.actor.get(_SQUARES, False))

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute as veRL does, with the columns that v0's batch has."""
        compute = computed(
            trainer_base.compute_advantage_for_multi_trajectories,
            self.columns,
            self._of_actor(batch),
            metrics,
            partial(self._write_mask, batch),
        )
        with patch.object(trainer_base, "compute_advantage_for_multi_trajectories", compute):
            return super()._compute_advantage(batch, metrics)

    def _of_actor(self, batch: KVBatchMeta) -> dict[str, torch.Tensor]:
        """Columns [N, T] of the actor's forward pass that only some estimators read."""
        wanted = {ENTROPY: "entropy"} if reads_entropy(self.config.algorithm) else {}
        wanted |= {_SUM: _SUM} if self._asks_for_squares() and not self._bypasses() else {}
        if not wanted:
            return {}
        columns = ["response_mask", *wanted.values()]
        found = kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=columns)
        # The model's own output is of prompt and response; entropies that veRL asked for are cut already.
        for column in wanted.values():
            if column == _SUM or self._bypasses():
                found[column] = response_from_nested(found[column], found["response_mask"])
        return {name: found[column].to_padded_tensor(0.0).float() for name, column in wanted.items()}

    def _write_mask(self, batch: KVBatchMeta, mask: torch.Tensor) -> None:
        rows: dict[str, Any] = {"keys": batch.keys, "partition_id": batch.partition_id}
        before = kv_batch_get(**rows, select_fields=["response_mask"])["response_mask"]
        made = response_to_nested(mask, before)
        fields = TensorDict({"response_mask": made, "loss_mask": made}, batch_size=len(batch))
        kv_batch_put(**rows, fields=fields)

    def train(self) -> None:
        """Run veRL's ``fit`` with its logger wrapped."""
        with logged_through(self._log, trainer_base, self._stop_if_asked):
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
