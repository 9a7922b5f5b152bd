"""trainer.* and algorithm.optimizer.*: how the weights are updated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.view import ARR, Put, Verdict, View

ACTOR = f"{ARR}.actor"
OPTIM = f"{ACTOR}.optim"
TC = "trainer.trainer_config"
OPTIMIZERS = {"AdamW": "adam", "Adam": "adam", "adam": "adam", "adamw": "adam", "SGD": "sgd", "sgd": "sgd"}
PARALLEL = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
)


def optimizer(view: View) -> Iterator[Put | Verdict | Caution]:
    """The parts of algorithm.optimizer that are not plain copies."""
    target = "algorithm.optimizer"
    warmup = view.integer(f"{OPTIM}.lr_warmup_steps", -1)
    note = f"{OPTIM}.lr_warmup_steps={warmup} × r={view.step}" if warmup > 0 and view.step > 1 else None
    yield Put(f"{target}.lr_warmup_steps", _steps(view, warmup), (f"{OPTIM}.lr_warmup_steps",), note)
    kind, source = _first(view, "lr_scheduler_type", "lr_decay_style", default="constant")
    yield Put(f"{target}.lr_scheduler_type", kind, (source,))
    if kind not in ("constant", "cosine"):
        yield Verdict(source, Status.UNSUPPORTED_UPSTREAM, f"upstream's scheduler has no {kind!r}")
    yield from _floor(view, target)
    name = str(view.value(f"{OPTIM}.optimizer", "AdamW"))
    yield Put(f"{target}.optimizer_type", OPTIMIZERS.get(name, name), (f"{OPTIM}.optimizer",))
    if name not in OPTIMIZERS:
        reason = f"upstream knows adam, adamw and sgd; {name} is handed on as it is"
        yield Verdict(f"{OPTIM}.optimizer", Status.APPROXIMATED, reason)


def _steps(view: View, steps: int) -> int:
    return steps * view.step if steps > 0 else steps


def _first(view: View, *names: str, default: str) -> tuple[str, str]:
    for name in names:
        if view.value(f"{OPTIM}.{name}") is not None:
            return str(view.value(f"{OPTIM}.{name}")), f"{OPTIM}.{name}"
    return default, f"{OPTIM}.{names[0]}"


def _floor(view: View, target: str) -> Iterator[Put]:
    """min_lr_ratio; megatron's optimizer gives the floor as a learning rate."""
    ratio, source = view.value(f"{OPTIM}.min_lr_ratio"), f"{OPTIM}.min_lr_ratio"
    if ratio is None and view.value(f"{OPTIM}.min_lr"):
        source = f"{OPTIM}.min_lr"
        ratio = view.number(source) / (view.number(f"{OPTIM}.lr") or 1.0)
    yield Put(f"{target}.min_lr_ratio", ratio or 0.0, (source,))


def critic_warmup_steps(view: View) -> Iterator[Put | Verdict | Caution]:
    """The critic's warm-up, counted in updates as the actor's."""
    key = "critic.optim.lr_warmup_steps"
    steps = view.integer(key, -1)
    if not view.critic:
        yield Verdict(key, Status.NO_EFFECT, "there is no critic")
    elif steps > 0:
        note = f"{key}={steps} × r={view.step}" if view.step > 1 else None
        yield Put(f"{TC}.{key}", _steps(view, steps), (key,), note)


def grad_clip(view: View) -> Iterator[Put | Verdict | Caution]:
    """Gradient clipping, in both places that upstream reads."""
    key, older = f"{OPTIM}.clip_grad", f"{ACTOR}.grad_clip"
    clip = view.number(key, 1.0)
    sources = (older, key) if view.value(older) == clip else (key,)
    yield Put("trainer.grad_clip", clip, sources)
    yield Put("algorithm.optimizer.clip_grad", clip, sources)
    if view.value(older) not in (None, clip):
        reason = f"veRL 0.8 and later clip by optim.clip_grad, which is {clip}"
        yield Verdict(older, Status.NO_EFFECT, reason)


def strategy(view: View) -> Iterator[Put | Verdict | Caution]:
    """fsdp, fsdp2 or megatron."""
    key = f"{ACTOR}.strategy"
    name = str(view.value(key, "fsdp"))
    if name in ("fsdp", "fsdp2", "megatron"):
        yield Put("trainer.trainer_strategy", name, (key,))
        return
    reason = f"Trinity has no strategy {name!r}; the YAML says fsdp2 for upstream"
    yield Put("trainer.trainer_strategy", "fsdp2", (key,), note=reason)
    yield Verdict(key, Status.UNSUPPORTED_UPSTREAM, reason)


def offload(view: View) -> Iterator[Put | Verdict | Caution]:
    """Offloading: one value in Trinity for all models; the others' where they differ."""
    old = view.options.trinity == "0.4.1"
    engine = "megatron" if view.megatron else "fsdp_config"
    for name in ("param_offload", "optimizer_offload", "grad_offload" if view.megatron else "offload_policy"):
        key = f"{ACTOR}.{engine}.{name}"
        actor = view.flag(key)
        if old:
            yield Put(f"{TC}.{key}", actor, (key,))
        else:
            yield Put(f"trainer.{name}", actor, (key,))
        yield from _others(view, engine, name, None if old else actor)
    yield from _inactive(view)


def _others(view: View, engine: str, name: str, actor: bool | None) -> Iterator[Put | Verdict]:
    keys = {f"{ARR}.ref.{engine}.{name}": True, _critic_key(view, name): view.critic}
    for key, used in keys.items():
        if not view.has(key):
            continue
        path = f"{TC}.{_old_critic(key) if view.options.trinity == '0.4.1' else key}"
        if not used:
            yield Verdict(key, Status.NO_EFFECT, "there is no critic")
        elif view.flag(key) != actor:
            yield Put(path, view.flag(key), (key,))
        elif view.is_set(key):
            yield Verdict(key, Status.MAPPED, "the same as the actor's", target=f"trainer.{name}")


def _critic_key(view: View, name: str) -> str:
    return f"critic.{'megatron' if view.megatron else 'fsdp'}.{name}"


def _old_critic(key: str) -> str:
    return key.replace("critic.fsdp.", "critic.model.fsdp_config.")


def _inactive(view: View) -> Iterator[Verdict]:
    """Settings of the engine that this strategy doesn't use."""
    idle = "fsdp_config" if view.megatron else "megatron"
    for key in view.config.settings:
        if f".{idle}." in key or (idle == "fsdp_config" and key.startswith("critic.fsdp.")):
            reason = f"the strategy is {view.value(f'{ACTOR}.strategy', 'fsdp')}"
            yield Verdict(key, Status.NO_EFFECT, reason, "TC034")


def megatron(view: View) -> Iterator[Put | Verdict | Caution]:
    """Megatron's parallel sizes."""
    if not view.megatron:
        return
    for name in PARALLEL:
        key = f"{ACTOR}.megatron.{name}"
        value = view.value(key)
        if value is None:
            continue
        if view.options.trinity == "0.4.1":
            yield Put(f"{TC}.{key}", value, (key,))
        else:
            yield Put(f"trainer.megatron.{name}", value, (key,))


def lora(view: View) -> Iterator[Put | Verdict | Caution]:
    """model.lora_configs: one adapter."""
    prefix = f"{ARR}.model"
    names = ("lora_rank", "lora_alpha", "target_modules", "exclude_modules", "lora_adapter_path")
    if not view.value(f"{prefix}.lora_rank", 0):
        for name in names[1:]:
            yield Verdict(f"{prefix}.{name}", Status.NO_EFFECT, "lora_rank is 0", "TC036")
        return
    entry: dict[str, Any] = {
        "name": "lora",
        "lora_rank": view.integer(f"{prefix}.lora_rank"),
        "lora_alpha": view.integer(f"{prefix}.lora_alpha", 16),
        "target_modules": view.value(f"{prefix}.target_modules", "all-linear"),
    }
    if not isinstance(entry["target_modules"], str):
        entry["target_modules"] = ",".join(view.texts(f"{prefix}.target_modules"))
        reason = "upstream takes one text; the list is joined with commas"
        yield Verdict(f"{prefix}.target_modules", Status.APPROXIMATED, reason)
    if view.value(f"{prefix}.exclude_modules") is not None:
        entry["exclude_modules"] = str(view.value(f"{prefix}.exclude_modules"))
    if path := view.text(f"{prefix}.lora_adapter_path"):
        entry["path"] = path
    yield Put("model.lora_configs", [entry], tuple(f"{prefix}.{name}" for name in names[:3]))
