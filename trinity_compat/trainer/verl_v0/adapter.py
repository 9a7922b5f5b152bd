"""Adapter of ``RayPPOTrainer`` (veRL's v0 trainer) of verl 0.9.1.

``fit`` stays as veRL wrote it. Three objects that it uses are ours: ``PlaceholderDataLoader`` (the
dataloader), ``StoredRollouts`` (the rollout manager) and ``VersionPublisher`` (the checkpoint manager).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Self
from unittest.mock import patch

import ray
import torch
from omegaconf import DictConfig, OmegaConf
from verl import DataProto
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup, ResourcePoolManager
from verl.trainer.main_ppo_v0 import BaseTaskRunner
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.utils import Role
from verl.utils import tracking
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.debug import metrics as debug_metrics

from trinity_compat.buffer.model import Experience, Group
from trinity_compat.common.crash_points import point
from trinity_compat.trainer.adapter import Exchange
from trinity_compat.trainer.algorithms import ENTROPY, reads_entropy, with_advantages
from trinity_compat.trainer.batch import BatchShape, drift_by_lag, scores_of, task_columns, to_dataproto
from trinity_compat.trainer.config import send_whole_where_needed
from trinity_compat.trainer.datasets import TASK_NO, TrainerData
from trinity_compat.trainer.multi_modal import MultiModal
from trinity_compat.trainer.pad_groups import (
    PaddedGroups,
    is_uneven,
    pad_to_equal,
    without_dropped_rows,
    without_fillers,
)
from trinity_compat.trainer.rank_fillers import RankRows, arranged
from trinity_compat.trainer.stand_ins import NoRewardLoop, NoServers, NoTeachers
from trinity_compat.trainer.stored_run import StoredRun
from trinity_compat.trainer.tracking import logged_through
from trinity_compat.trainer.training_processes import (
    CallObserver,
    CriticWorker,
    TrainingOnlyWorker,
    observe_calls,
    training_pools,
)
from trinity_compat.trinity.workflows.tasksets import SECTION, have_classes


class PlaceholderDataLoader:
    """Replacement for the train dataloader, with a placeholder row for each group of a step.

    The tasks are known once the groups are claimed, inside veRL's timer for generation.
    """

    def __init__(self, trainer: TrinityRayPPOTrainer, length: int) -> None:
        self._trainer, self._length = trainer, length

    def __len__(self) -> int:
        """Steps of one epoch."""
        return self._length

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        done = self._trainer.global_steps - 1
        # A run that was trained to its end and is started again makes no step: veRL would begin one more, for
        # which no explorer has tasks.
        remaining = max(0, self._trainer.total_training_steps - done)
        for _ in range(min(remaining, self._length - done % self._length)):
            size = self._trainer.config.data.train_batch_size
            yield {"dummy_tensor": torch.zeros(size, 1, dtype=torch.uint8)}

    def state_dict(self) -> dict[str, int]:
        """Empty state: the buffer has the position in the task stream, and veRL the step."""
        point("inside checkpoint")  # veRL calls it after it has written the models, before data.pt
        return {}

    def load_state_dict(self, state: object) -> None:
        """No-op: the sampler's state in a checkpoint of stock veRL follows from the step."""


class StoredRollouts:
    """Replacement for the rollout manager, which returns stored answers."""

    trainer: TrinityRayPPOTrainer

    @classmethod
    def create(cls, *_: object, **__: object) -> Self:
        """Create an instance; all arguments are ignored."""
        return cls()

    def generate_sequences(self, batch: DataProto) -> DataProto:
        """Answers of the claimed groups, in the order of ``batch``'s placeholders.

        For validation the stored answers to its rows; each row of a task gets that task's next answer.
        """
        if batch.meta_info.get("validate"):
            answers = self.trainer.validation_answers()
            taken: Counter[int] = Counter()
            chosen = []
            for task_no in map(int, batch.non_tensor_batch[TASK_NO]):
                of_task = answers[task_no].experiences
                chosen.append(of_task[taken[task_no] % len(of_task)])
                taken[task_no] += 1
            out = to_dataproto(chosen, self.trainer.widths(chosen))
            out.meta_info.pop("timing")
            return out
        groups = self.trainer.claimed(int(batch.meta_info["global_steps"])).groups
        n = self.trainer.runs
        if is_uneven(groups):
            experiences, n = pad_to_equal(groups, n)
            self.trainer.set_rows_per_task(n)
            return PaddedGroups.of(self._batch(experiences, _repeated(groups, n)))
        self.trainer.set_rows_per_task(n)
        sampled = [e for group in groups for e in group.experiences[:n]]
        # remax: fit expects the greedy baselines after all sampled answers, one for each task
        greedy = [e for group in groups for e in group.experiences[n:]]
        return self._batch([*sampled, *greedy], [*_repeated(groups, n), *(groups if greedy else ())])

    def _batch(self, experiences: Sequence[Experience], groups: Sequence[Group]) -> DataProto:
        """Batch of experiences; ``groups`` has the group of each."""
        out = to_dataproto(experiences, self.trainer.widths(experiences))
        self.trainer.multi_modal.add(out, [group.task for group in groups])
        out.non_tensor_batch |= task_columns(groups)
        return out


def _repeated(groups: Sequence[Group], times: int) -> list[Group]:
    return [group for group in groups for _ in range(times)]


class TrinityRayPPOTrainer(StoredRun, ray_trainer.RayPPOTrainer):
    """veRL's trainer on stored rollouts. ``exchange`` is its only access to the run."""

    defined_in = ray_trainer
    train_dataloader: Sized

    def __init__(self, *args: object, exchange: Exchange, **kwargs: object) -> None:
        self.exchange = exchange
        self.global_steps = 0
        super().__init__(*args, **kwargs)
        self._take_over_checkpoints()
        rollout = self.config.actor_rollout_ref.rollout
        self.runs = int(rollout.n)  # of each task
        self.shape = BatchShape(rollout.prompt_length, rollout.response_length, self.tokenizer.pad_token_id)
        self.longer = have_classes(OmegaConf.select(self.config, SECTION) or {})
        self.multi_modal = MultiModal(self.config, self.tokenizer, self.processor)

    def _create_dataloader(self, *args: object) -> None:
        super()._create_dataloader(*args)
        self.train_dataloader = PlaceholderDataLoader(self, len(self.train_dataloader))
        self.exchange.started()

    def init_workers(self) -> None:
        """Start the workers as veRL does, but without rollout servers, reward workers and teachers."""
        with (
            patch.object(ray_trainer, "LLMServerManager", NoServers),
            patch("verl.experimental.reward_loop.RewardLoopManager", NoRewardLoop),
            patch("verl.experimental.teacher_loop.MultiTeacherModelManager", NoTeachers),
        ):
            super().init_workers()
        self.async_rollout_manager.trainer = self.checkpoint_manager.trainer = self
        self.exchange.before_leaving(self.actor_rollout_wg.leave_device)

    def _update_actor(self, batch: DataProto) -> DataProto:
        # Log-probabilities were not recomputed.
        if reads_entropy(self.config.algorithm) and ENTROPY not in batch.batch:
            batch.batch[ENTROPY] = self._compute_old_log_prob(batch)[0].batch[ENTROPY]
        batch, metrics = with_advantages(batch, self.config.algorithm)
        updated = self._updated(batch)
        updated.meta_info["metrics"] |= metrics
        return updated

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        """Compute as veRL does, and store entropies for estimators under a name that veRL keeps."""
        rows = self._rows_of_ranks(batch, "actor_rollout_ref.rollout.log_prob")
        output, mfu = super()._compute_old_log_prob(rows.filled(batch))
        output = rows.unfilled(output)
        self.exchange.keep_scores(lambda answers: scores_of(answers, batch, output))
        if reads_entropy(self.config.algorithm):
            output.batch[ENTROPY] = output.batch["entropys"]
        return output, mfu

    def _compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        scorer = "rollout" if self.ref_in_actor else "ref"
        rows = self._rows_of_ranks(batch, f"actor_rollout_ref.{scorer}.log_prob")
        return rows.unfilled(super()._compute_ref_log_prob(rows.filled(batch)))

    def _compute_values(self, batch: DataProto) -> DataProto:
        rows = self._rows_of_ranks(batch)
        return rows.unfilled(super()._compute_values(rows.filled(batch)))

    def _update_critic(self, batch: DataProto) -> DataProto:
        critic = self.config.critic
        rows = self._rows_of_ranks(batch, tasks=critic.ppo_mini_batch_size)
        with rows.counted(self.config, critic):
            return super()._update_critic(rows.filled(batch))

    def _updated(self, batch: DataProto) -> DataProto:
        """Update the policy on a batch with advantages, as veRL does."""
        actor = self.config.actor_rollout_ref.actor
        rows = self._rows_of_ranks(batch, "actor_rollout_ref.actor.ppo", tasks=actor.ppo_mini_batch_size)
        with rows.counted(self.config, actor):
            return super()._update_actor(rows.filled(batch))

    def _balance_batch(self, batch: DataProto, metrics: dict[str, Any], **given: Any) -> None:
        """Sort rows by ranks as veRL does; where ranks do not divide them, each call does it with fillers."""
        if len(batch) % self.ranks == 0:
            super()._balance_batch(batch, metrics, **given)

    def _rows_of_ranks(self, batch: DataProto, micro_batches: str = "", tasks: int | None = None) -> RankRows:
        """Rows of a call of the workers. ``tasks``: of an update; ``micro_batches``: the keys of their size.

        The critic's engine cuts micro-batches by tokens.
        """
        count = len(batch)
        of_update = tasks * self.config.actor_rollout_ref.rollout.n if tasks else count
        if of_update % self.ranks == 0:
            return RankRows(None, of_update)
        section, _, name = micro_batches.rpartition(".")
        sizes = OmegaConf.select(self.config, section) if section else {}
        dynamic = sizes.get("use_dynamic_bsz" if name == "ppo" else f"{name}_use_dynamic_bsz", True)
        rows = arranged(
            batch.batch["attention_mask"].sum(-1),
            updates=count // of_update,
            ranks=self.ranks,
            micro=1 if dynamic else sizes[f"{name}_micro_batch_size_per_gpu"],
            is_balanced=bool(self.config.trainer.balance_batch),
        )
        return RankRows(rows, of_update)

    def fit(self) -> None:
        """Run veRL's ``fit``, with its logger and three of its functions wrapped."""
        compute_advantage = without_dropped_rows(ray_trainer.compute_advantage)
        compute_data_metrics = without_fillers(ray_trainer.compute_data_metrics)
        measured = drift_by_lag(debug_metrics.calculate_debug_metrics, lambda: self.global_steps)
        with (
            logged_through(self._log, tracking, self._stop_if_asked),
            patch.object(ray_trainer, "compute_advantage", compute_advantage),
            patch.object(ray_trainer, "compute_data_metrics", compute_data_metrics),
            patch.object(debug_metrics, "calculate_debug_metrics", measured),
        ):
            super().fit()

    @property
    def ranks(self) -> int:
        """The actor's data-parallel ranks, as its engine says."""
        return int(self._get_dp_size(self.actor_rollout_wg, "actor"))

    def response_logprobs(self, experience: Experience) -> list[float]:
        """Log-probabilities of the current policy, float [R], computed on one row for each rank."""
        copies = [experience] * self.ranks
        rows = to_dataproto(copies, self.widths(copies))
        rows.meta_info = {
            "temperature": 1.0,
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": 1,
            "global_token_num": rows.batch["attention_mask"].sum(-1).tolist(),
            "images_seqlens": [],
        }
        answered, _ = self._compute_old_log_prob(rows)
        return [float(x) for x in answered.batch["old_log_probs"][0, : len(experience.response_ids)]]

    def _save_checkpoint(self) -> None:
        self._save(super()._save_checkpoint)

    def _load_checkpoint(self) -> None:
        self._load(super()._load_checkpoint)


class _Roles(BaseTaskRunner):
    """veRL's choice of roles and resource pools, with ``TrainingOnlyWorker`` as the actor."""

    def build(
        self, config: DictConfig, device: str, pool: RayResourcePool | None = None
    ) -> tuple[dict[Role, type], ResourcePoolManager, type[RayWorkerGroup]]:
        """Workers by role, resource pools, and the class of worker groups."""
        _, group_class = self.add_actor_rollout_worker(config)
        self.add_critic_worker(config)
        for role in (Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(TrainingOnlyWorker)
        if Role.Critic in self.role_worker_mapping:
            self.role_worker_mapping[Role.Critic] = ray.remote(CriticWorker)
        pools = training_pools(self.init_resource_pool_mgr(config), device, pool)
        return self.role_worker_mapping, pools, group_class


def build(
    config: DictConfig,
    exchange: Exchange,
    datasets: TrainerData,
    device: str,
    kind: type[TrinityRayPPOTrainer] = TrinityRayPPOTrainer,
    pool: RayResourcePool | None = None,
    observer: CallObserver = lambda method, suspects: None,
) -> TrinityRayPPOTrainer:
    """Build a trainer, start its workers and load its models.

    ``pool``: its resource pool, where it is reserved already. ``observer`` is called before each call to its
    processes.
    """
    if datasets.processor is not None:
        send_whole_where_needed(config)
    roles, pools, group_class = _Roles().build(config, device, pool)
    trainer = kind(
        config=config,
        tokenizer=datasets.tokenizer,
        processor=datasets.processor,
        role_worker_mapping=roles,
        resource_pool_manager=pools,
        ray_worker_group_cls=observe_calls(group_class, observer),
        train_dataset=datasets.train,
        val_dataset=datasets.val,
        collate_fn=collate_fn,
        exchange=exchange,
    )
    trainer.init_workers()
    return trainer
