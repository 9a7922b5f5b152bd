"""Settings that a launch can change for less memory, each with its effect by the same estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from trinity_compat.advise.memory import ModeMemory, Saving
from trinity_compat.advise.model import Schedule
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.run.advice.facts import Facts
from trinity_compat.run.plan import estimates
from trinity_compat.run.plan.verl_view import ACTOR, REF, ROLLOUT, VerlView
from trinity_compat.translate.sections.gpus import ENGINE_MEMORY

_MODEL = "actor_rollout_ref.model"
_LEAST_GIB = 0.1  # of an effect that is named
_BESIDE = ", with recompute_method=uniform and recompute_num_layers=1"  # Megatron asks for these
_RECOMPUTE = f"{ACTOR}.megatron.override_transformer_config.recompute_granularity"

_Change: TypeAlias = tuple[str, object]
_Choice: TypeAlias = tuple[str, Callable[[object], object]]  # a key, and what becomes of its value


def _on(_value: object) -> object:
    return True


def _half(value: object) -> object:
    return max(1, int(value) // 2) if isinstance(value, int | float) else value


def _double(value: object) -> object:
    return 2 * int(value) if isinstance(value, int) else value


def _less(value: object) -> object:
    return round(value * 0.8, 2) if isinstance(value, int | float) else value


# Settings of memory and speed that leave what is learned. ``{}`` is the engine's section of a role.
_CHOICES: tuple[_Choice, ...] = (
    *((f"{role}.{{}}.{name}_offload", _on) for role in (ACTOR, "critic") for name in ("param", "optimizer")),
    (f"{REF}.{{}}.param_offload", _on),
    (f"{ACTOR}.{{}}.offload_policy", _on),
    (f"{ACTOR}.{{}}.entropy_from_logits_with_chunking", _on),
    (f"{ACTOR}.{{}}.use_distributed_optimizer", _on),
    *((f"{ACTOR}.{{}}.{name}_parallel_size", _double) for name in ("tensor_model", "expert_model")),
    (f"{ACTOR}.ppo_max_token_len_per_gpu", _half),
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu", _half),
    (f"{ROLLOUT}.log_prob_max_token_len_per_gpu", _half),
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", _half),
    (f"{_MODEL}.enable_gradient_checkpointing", _on),
    (f"{_MODEL}.enable_activation_offload", _on),
    (f"{_MODEL}.use_fused_kernels", _on),
    (_RECOMPUTE, lambda _value: "full"),
    (f"{ROLLOUT}.free_cache_engine", _on),
    (ENGINE_MEMORY.key, _less),
)


def saving(facts: Facts, schedule: Schedule, verl: Tree, *, keeps: bool = False) -> ModeMemory | None:
    """Return the memory of a mode under ``verl``, with the settings that need less, by their effect."""
    now = facts.memory(schedule, verl, keeps=keeps)
    if now is None:
        return None
    found = sorted(_savings(facts, schedule, verl, now, keeps=keeps), key=lambda each: -each.gib)
    return replace(now, savings=tuple(found))


def _savings(
    facts: Facts, schedule: Schedule, verl: Tree, now: ModeMemory, *, keeps: bool
) -> Iterator[Saving]:
    view = VerlView.of(verl)
    for template, changed in _CHOICES:
        role = next((each for each in (ACTOR, REF, "critic") if template.startswith(each)), "")
        key = view.engine.key(role, template.removeprefix(f"{role}.")) if role else template
        value = value_at(verl, key)
        if (new := changed(value)) == value or not _is_taken(key, view):
            continue
        other = view.changed({key: new}).tree
        then = facts.memory(schedule, other, keeps=keeps) if _divides(facts, schedule, other) else None
        for side, need in now.needs.items():
            if then and (less := need - then.needs.get(side, need)) > _LEAST_GIB:
                yield Saving(side, key, f"{new}{_BESIDE}" if key == _RECOMPUTE else new, less)


def _divides(facts: Facts, schedule: Schedule, verl: Tree) -> bool:
    """Return whether Megatron's sizes divide the trainer's GPUs, and its ranks share the heads evenly."""
    training, _ = estimates.training_of(verl)
    if training is None or not training.is_megatron:
        return True
    of, context = training.spread, VerlView.of(verl).spread(ACTOR)
    ranks = of.tensor * of.pipeline * context, of.expert * of.expert_tensor * of.pipeline
    return not (facts.shape.kv_heads % of.tensor or any(schedule.trainer % size for size in ranks))


def _is_taken(key: str, view: VerlView) -> bool:
    """Return whether the launch's training engine has the key, and can take it."""
    rows = value_at(view.tree, "data.max_prompt_length"), value_at(view.tree, "data.max_response_length")
    if key.endswith("max_token_len_per_gpu"):  # a micro-batch has to hold the longest row
        longest = sum(each for each in rows if isinstance(each, int)) / view.spread(ACTOR)
        return (value_at(view.tree, key) or 0) >= 2 * longest
    if key.endswith("offload_policy"):
        return view.engine.strategy == "fsdp2"
    if key in (f"{_MODEL}.enable_gradient_checkpointing", f"{_MODEL}.enable_activation_offload"):
        return not view.engine.is_megatron
    return key == _RECOMPUTE or value_at(view.tree, key) is not None
