"""The inverse of each derivation: what a section of the YAML says about veRL's keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trinity_compat.translate.reading import NEVER, Reading
from trinity_compat.translate.sections.run import job_of
from trinity_compat.translate.view import is_finite

ACTOR = "actor_rollout_ref.actor"
OPTIM = f"{ACTOR}.optim"
ROLLOUT = "actor_rollout_ref.rollout"
ESTIMATORS = {
    "ppo": "gae",
    "grpo": "grpo",
    "dapo": "grpo",
    "reinforceplusplus": "reinforce_plus_plus",
    "rloo": "rloo",
}
KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs", "low_var_kl": "low_var_kl"}
LOSSES = {"ppo": "vanilla", "gspo": "gspo"}
CLIPS = {
    "clip_range": "clip_ratio",
    "clip_range_low": "clip_ratio_low",
    "clip_range_high": "clip_ratio_high",
    "clip_ratio_c": "clip_ratio_c",
}
# What Trinity calls by name: veRL's key for it, and the names that veRL has something for.
NAMED: dict[str, tuple[str, tuple[str, ...]]] = {
    "algorithm.algorithm_type": ("algorithm.adv_estimator", tuple(ESTIMATORS)),
    "algorithm.kl_penalty_fn": ("algorithm.kl_penalty", ("none", *KL)),
    "algorithm.kl_loss_fn": (f"{ACTOR}.kl_loss_type", ("none", *KL)),
    "algorithm.policy_loss_fn": (f"{ACTOR}.policy_loss.loss_mode", tuple(LOSSES)),
}
# What a strategy takes. Source: verl 0.9.1, workers/config (actor.py, engine.py). All engines
# clip by their optimizer's field; Megatron has no gradients to offload by themselves, and splits sequences by
# context_parallel_size.
_OF_ANY = {"trainer.trainer_strategy": f"{ACTOR}.strategy", "trainer.grad_clip": f"{OPTIM}.clip_grad"}
_OF_FSDP = {
    "trainer.grad_clip": f"{ACTOR}.grad_clip",
    "trainer.ulysses_sequence_parallel_size": f"{ACTOR}.ulysses_sequence_parallel_size",
}
_OFFLOADS = ("param_offload", "optimizer_offload")
Told = Iterator[tuple[str, Any]]


def _given(reading: Reading, pairs: dict[str, str]) -> Told:
    """(veRL key, value) of every path that the YAML has."""
    for path, key in pairs.items():
        value = reading.get(path)
        if value is not None:
            yield key, value


def batch(reading: Reading) -> Told:
    """Batch sizes, and how long the run is."""
    size = reading.get("buffer.batch_size")
    if size is not None:
        yield f"{ACTOR}.ppo_mini_batch_size", size
        yield "data.train_batch_size", size * reading.r
    yield from _given(reading, {"algorithm.repeat_times": f"{ROLLOUT}.n"})
    total = reading.steps("buffer.total_steps")
    if total is not None:
        yield "trainer.total_training_steps", total


def intervals(reading: Reading) -> Told:
    """Everything that happens every so many steps."""
    save = reading.steps("trainer.save_interval")
    if save is not None:
        yield "trainer.save_freq", save or -1
    test = reading.steps("explorer.eval_interval")
    never = test is None or test >= NEVER or not reading.get("buffer.explorer_input.eval_tasksets")
    yield "trainer.test_freq", -1 if never else test
    for path in ("trainer.critic_warmup", "trainer.trainer_config.trainer.critic_warmup"):
        warmup = reading.steps(path)
        if warmup is not None:
            yield "trainer.critic_warmup", warmup
    kept = reading.get("trainer.max_checkpoints_to_keep")
    if kept:
        yield "trainer.max_actor_ckpt_to_keep", kept
        yield "trainer.max_critic_ckpt_to_keep", kept


def algorithm(reading: Reading) -> Told:
    """Estimator, discounts, old log-probabilities."""
    kind = reading.get("algorithm.algorithm_type")
    if kind in ESTIMATORS:
        yield "algorithm.adv_estimator", ESTIMATORS[kind]
    yield from _given(
        reading,
        {
            "algorithm.advantage_fn_args.gamma": "algorithm.gamma",
            "algorithm.advantage_fn_args.lam": "algorithm.lam",
            "algorithm.bypass_old_logprobs": "algorithm.rollout_correction.bypass_mode",
            "algorithm.entropy_loss_fn_args.entropy_coef": f"{ACTOR}.entropy_coeff",
        },
    )
    for name, value in (reading.get("algorithm.rollout_correction") or {}).items():
        yield f"algorithm.rollout_correction.{name}", value


def kl(reading: Reading) -> Told:
    """KL in the reward and KL in the loss."""
    penalty, loss = reading.get("algorithm.kl_penalty_fn"), reading.get("algorithm.kl_loss_fn")
    if penalty is not None:
        yield "algorithm.use_kl_in_reward", penalty != "none"
    if penalty in KL:
        yield "algorithm.kl_penalty", KL[penalty]
        yield from _given(reading, {"algorithm.kl_penalty_fn_args.kl_coef": "algorithm.kl_ctrl.kl_coef"})
    if loss is not None:
        yield f"{ACTOR}.use_kl_loss", loss != "none"
    if loss in KL:
        yield f"{ACTOR}.kl_loss_type", KL[loss]
        yield from _given(reading, {"algorithm.kl_loss_fn_args.kl_coef": f"{ACTOR}.kl_loss_coef"})


def policy_loss(reading: Reading) -> Told:
    """The policy loss and its clipping."""
    function = reading.get("algorithm.policy_loss_fn")
    if function in LOSSES:
        yield f"{ACTOR}.policy_loss.loss_mode", LOSSES[function]
    yield from _given(
        reading, {f"algorithm.policy_loss_fn_args.{ours}": f"{ACTOR}.{key}" for ours, key in CLIPS.items()}
    )
    yield from _given(reading, {"algorithm.loss_agg_mode": f"{ACTOR}.loss_agg_mode"})


def optimizer(reading: Reading) -> Told:
    """Warm-up, schedule and floor; megatron's optimizer has names of its own."""
    megatron = reading.get("trainer.trainer_strategy") == "megatron"
    for path, key in (
        ("algorithm.optimizer.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps"),
        ("trainer.trainer_config.critic.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps"),
    ):
        warmup = reading.steps(path)
        if warmup is not None:
            yield key, warmup
    schedule = "lr_decay_style" if megatron else "lr_scheduler_type"
    yield from _given(reading, {"algorithm.optimizer.lr_scheduler_type": f"{OPTIM}.{schedule}"})
    ratio, rate = reading.get("algorithm.optimizer.min_lr_ratio"), reading.get("algorithm.optimizer.lr", 1e-6)
    if ratio is not None and not megatron:
        yield f"{OPTIM}.min_lr_ratio", ratio
    elif is_finite(ratio) and is_finite(rate):  # a rate may be a text that nobody knows yet
        yield f"{OPTIM}.min_lr", ratio * rate
    name = reading.get("algorithm.optimizer.optimizer_type")
    if name is not None:
        yield (
            f"{OPTIM}.optimizer",
            name if megatron else {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD"}.get(name, name),
        )


def trainer(reading: Reading) -> Told:
    """Strategy, clipping, sequence parallelism, offloading: what the strategy's dataclasses have."""
    megatron = reading.get("trainer.trainer_strategy") == "megatron"
    yield from _given(reading, _OF_ANY)
    if not megatron:
        yield from _given(reading, _OF_FSDP)
    engine, critic = ("megatron", "critic.megatron") if megatron else ("fsdp_config", "critic.fsdp")
    models = [f"{ACTOR}.{engine}", f"actor_rollout_ref.ref.{engine}"]
    if reading.get("algorithm.algorithm_type") == "ppo":
        models.append(critic)
    for name in _OFFLOADS if megatron else (*_OFFLOADS, "offload_policy"):
        value = reading.get(f"trainer.{name}")
        if value is not None:
            yield from ((f"{model}.{name}", value) for model in models)
    if megatron:
        for name, value in (reading.get("trainer.megatron") or {}).items():
            yield f"{ACTOR}.megatron.{name}", value


def model(reading: Reading) -> Told:
    """Lengths, the critic's path, LoRA."""
    yield from _given(
        reading,
        {
            "model.max_prompt_tokens": "data.max_prompt_length",
            "model.max_response_tokens": "data.max_response_length",
            "model.critic_model_path": "critic.model.path",
        },
    )
    adapter = "model.lora_configs.0"
    yield from _given(
        reading,
        {
            f"{adapter}.lora_rank": "actor_rollout_ref.model.lora_rank",
            f"{adapter}.lora_alpha": "actor_rollout_ref.model.lora_alpha",
            f"{adapter}.target_modules": "actor_rollout_ref.model.target_modules",
            f"{adapter}.exclude_modules": "actor_rollout_ref.model.exclude_modules",
            f"{adapter}.path": "actor_rollout_ref.model.lora_adapter_path",
        },
    )


def rollout(reading: Reading) -> Told:
    """The engine, and the GPUs of the cluster."""
    ours = "explorer.rollout_model"
    yield from _given(
        reading,
        {
            f"{ours}.engine_type": f"{ROLLOUT}.name",
            f"{ours}.tensor_parallel_size": f"{ROLLOUT}.tensor_model_parallel_size",
            f"{ours}.data_parallel_size": f"{ROLLOUT}.data_parallel_size",
            f"{ours}.pipeline_parallel_size": f"{ROLLOUT}.pipeline_model_parallel_size",
            f"{ours}.max_model_len": f"{ROLLOUT}.max_model_len",
            f"{ours}.extra_engine_args.max_num_batched_tokens": f"{ROLLOUT}.max_num_batched_tokens",
            f"{ours}.extra_engine_args.max_num_seqs": f"{ROLLOUT}.max_num_seqs",
            "cluster.node_num": "trainer.nnodes",
            "cluster.gpu_per_node": "trainer.n_gpus_per_node",
        },
    )


def data(reading: Reading) -> Told:
    """The training taskset."""
    taskset = "buffer.explorer_input.tasksets.0"
    if reading.get(taskset) is None:
        taskset = "buffer.explorer_input.taskset"
    files = reading.get(f"{taskset}.workflow_args.files") or reading.get(f"{taskset}.path")
    if files is not None:
        yield "data.train_files", files
    yield from _given(
        reading,
        {
            f"{taskset}.format.prompt_key": "data.prompt_key",
            f"{taskset}.workflow_args.filter_overlong_prompts": "data.filter_overlong_prompts",
            f"{taskset}.workflow_args.truncation": "data.truncation",
        },
    )
    for selector in ("data_selector", "task_selector"):
        order = reading.get(f"{taskset}.{selector}") or {}
        if "selector_type" in order:
            yield "data.shuffle", order["selector_type"] == "shuffle"
        if order.get("seed", 1) != 1:  # 1 is what veRL's sampler takes for null
            yield "data.seed", order["seed"]


def evaluation(reading: Reading) -> Told:
    """The eval tasksets, and how they are sampled."""
    tasksets = reading.get("buffer.explorer_input.eval_tasksets") or []
    if not tasksets:
        return
    files = [taskset.get("path") for taskset in tasksets]
    yield "data.val_files", files[0] if len(files) == 1 else files
    first = Reading(tasksets[0])
    yield from _given(
        first,
        {
            "repeat_times": f"{ROLLOUT}.val_kwargs.n",
            "rollout_args.temperature": f"{ROLLOUT}.val_kwargs.temperature",
            "rollout_args.top_p": f"{ROLLOUT}.val_kwargs.top_p",
            "rollout_args.top_k": f"{ROLLOUT}.val_kwargs.top_k",
        },
    )
    temperature = first.get("rollout_args.temperature")
    if temperature is not None:
        yield f"{ROLLOUT}.val_kwargs.do_sample", temperature > 0


def reward(reading: Reading) -> Told:
    """veRL's scoring, and the reward model."""
    arguments = "buffer.explorer_input.tasksets.0.reward_fn_args"
    function = f"{arguments}.custom_reward_function"
    yield from _given(
        reading,
        {
            f"{arguments}.reward_fn_key": "data.reward_fn_key",
            f"{arguments}.reward_manager": "reward.reward_manager.name",
            f"{function}.path": "reward.custom_reward_function.path",
            f"{function}.name": "reward.custom_reward_function.name",
            "explorer.auxiliary_models.0.model_path": "reward.reward_model.model_path",
        },
    )
    if reading.get("explorer.auxiliary_models"):
        yield "reward.reward_model.enable", True


def run(reading: Reading) -> Told:
    """Directories, the logger, resuming."""
    root, project, name = (reading.get(key) for key in ("checkpoint_root_dir", "project", "name"))
    if root is not None and project is not None and name is not None:
        yield "trainer.default_local_dir", job_of(str(root), str(project), str(name))
    monitor = reading.get("monitor.monitor_type")
    if monitor is not None:
        yield "trainer.logger", ["console", monitor]
    resumes = reading.get("continue_from_checkpoint")
    if resumes is not None:
        yield "trainer.resume_mode", "auto" if resumes else "disable"
