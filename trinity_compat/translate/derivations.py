"""The functions that a row's ``by`` names. Each sees the launch and yields what it writes and says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trinity_compat.translate.model import Caution
from trinity_compat.translate.sections import (
    algorithm,
    batch,
    data,
    gpus,
    micro_batches,
    model,
    reward,
    run,
    trainer,
)
from trinity_compat.translate.view import Put, Verdict, View

Derivation = Callable[[View], Iterator[Put | Verdict | Caution]]

NAMES: Mapping[str, Derivation] = {
    "batch": batch.batch,
    "intervals": batch.intervals,
    "total_steps": batch.total_steps,
    "advantage": algorithm.advantage,
    "kl_reward": algorithm.kl_reward,
    "kl_loss": algorithm.kl_loss,
    "policy_loss": algorithm.policy_loss,
    "entropy": algorithm.entropy,
    "old_log_probs": algorithm.old_log_probs,
    "optimizer": trainer.optimizer,
    "critic_warmup_steps": trainer.critic_warmup_steps,
    "grad_clip": trainer.grad_clip,
    "strategy": trainer.strategy,
    "offload": trainer.offload,
    "megatron": trainer.megatron,
    "lora": trainer.lora,
    "lengths": model.lengths,
    "critic_path": model.critic_path,
    "engine": model.engine,
    "tasksets": data.tasksets,
    "reward": reward.reward,
    "reward_model": reward.reward_model,
    "gpus": gpus.gpus,
    "micro_batches": micro_batches.micro_batches,
    "directories": run.directories,
    "logger": run.logger,
    "resume": run.resume,
    "environment": run.environment,
}
