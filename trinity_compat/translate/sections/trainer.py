"""trainer.* and algorithm.optimizer.*: how the weights are updated."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.common.releases import TRINITY, VERL_RELEASES
from trinity_compat.common.training_engines import TrainingEngine, engine_of
from trinity_compat.translate.launch_view import ARR, LaunchView, PathValue, Verdict, is_finite
from trinity_compat.translate.model import Status
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.sections.gpus import ULYSSES
from trinity_compat.translate.trinity_reader import FieldPair, NameTable, TrinityReader
from trinity_compat.trinity.config.schema import schema
from trinity_compat.verl_config.releases import OTHER_FLAVOURS

ACTOR = f"{ARR}.actor"
OPTIM = f"{ACTOR}.optim"
TC = "trainer.trainer_config"
TARGET = "algorithm.optimizer"
OPTIMIZERS = NameTable.of(
    (("AdamW", "Adam", "adam", "adamw"), ("adam", "adamw")),
    (("SGD", "sgd"), "sgd"),
)
WARMUP = FieldPair(f"{TARGET}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps")
CRITIC_WARMUP = FieldPair(f"{TC}.critic.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps")
SCHEDULES = ("lr_scheduler_type", "lr_decay_style")  # FSDP's, Megatron's
CLIP = FieldPair("trainer.grad_clip", f"{OPTIM}.clip_grad")
OLDER_CLIP = f"{ACTOR}.grad_clip"  # of FSDP's actor; veRL 0.8 and later clip by the optimizer's
CRITIC_CLIP, OLDER_CRITIC_CLIP = "critic.optim.clip_grad", "critic.grad_clip"
_LAST_CRITIC_CLIP = "0.7.0"  # the last release whose critic clips by the older key
STRATEGIES = ("fsdp", "fsdp2", "megatron")  # Trinity's
STRATEGY = FieldPair("trainer.trainer_strategy", f"{ACTOR}.strategy")
OFFLOADS = ("param_offload", "optimizer_offload")
MEGATRON = "trainer.megatron"
LORA, MODEL = "model.lora_configs", f"{ARR}.model"
LORA_NAMES = {
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "target_modules": "target_modules",
    "exclude_modules": "exclude_modules",
    "path": "lora_adapter_path",
}
PARALLEL = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
)


@derivation
def optimizer(view: LaunchView) -> Derived:
    """The parts of algorithm.optimizer that are not plain copies."""
    warmup = view.integer(WARMUP.key, -1)
    note = f"{WARMUP.key}={warmup} × updates_per_step={view.step}" if warmup > 0 and view.step > 1 else None
    yield WARMUP.put(_steps(view, warmup), note)
    kind, source = _first(view, *SCHEDULES, default="constant")
    yield PathValue(f"{TARGET}.lr_scheduler_type", kind, (source,))
    if kind not in ("constant", "cosine"):
        yield Verdict(source, Status.UNSUPPORTED_UPSTREAM, f"Trinity-RFT's scheduler has no {kind!r}")
    yield from _floor(view)
    name = str(view.value(f"{OPTIM}.optimizer", "AdamW"))
    yield PathValue(f"{TARGET}.optimizer_type", OPTIMIZERS.forth.get(name, name), (f"{OPTIM}.optimizer",))
    if name not in OPTIMIZERS.forth:
        reason = f"Trinity-RFT has adam, adamw and sgd; {name} is passed on unchanged"
        yield Verdict(f"{OPTIM}.optimizer", Status.APPROXIMATED, reason)


@way_back
def schedule(reading: TrinityReader) -> VerlSettings:
    """Warm-up, schedule and floor; megatron's optimizer has names of its own."""
    megatron = _is_megatron(reading)
    warmup = reading.steps(WARMUP.path)
    if warmup is not None:
        yield WARMUP.key, warmup
    yield from reading.verl_values(FieldPair(f"{TARGET}.lr_scheduler_type", f"{OPTIM}.{SCHEDULES[megatron]}"))
    ratio, rate = reading.get(f"{TARGET}.min_lr_ratio"), reading.get(f"{TARGET}.lr", 1e-6)
    if ratio is not None and not megatron:
        yield f"{OPTIM}.min_lr_ratio", ratio
    elif is_finite(ratio) and is_finite(rate):  # a rate may be a text that nobody knows yet
        yield f"{OPTIM}.min_lr", ratio * rate
    name = reading.get(f"{TARGET}.optimizer_type")
    if name is not None:
        yield f"{OPTIM}.optimizer", name if megatron else OPTIMIZERS.back.get(name, name)


def _is_megatron(reading: TrinityReader) -> bool:
    return bool(reading.get(STRATEGY.path) == "megatron")


def _engine(reading: TrinityReader) -> TrainingEngine:
    """Return the engine of the launch, whose name Trinity may lack."""
    if _is_megatron(reading):
        return engine_of("megatron")
    return engine_of(OTHER_FLAVOURS.get(str(reading.get(f"{TC}.trinity_compat.flavour"))))


def _steps(view: LaunchView, steps: int) -> int:
    return steps * view.step if steps > 0 else steps


def _first(view: LaunchView, *names: str, default: str) -> tuple[str, str]:
    for name in names:
        if view.value(f"{OPTIM}.{name}") is not None:
            return str(view.value(f"{OPTIM}.{name}")), f"{OPTIM}.{name}"
    return default, f"{OPTIM}.{names[0]}"


def _floor(view: LaunchView) -> Iterator[PathValue]:
    """min_lr_ratio; megatron's optimizer gives the floor as a learning rate."""
    ratio, source = view.value(f"{OPTIM}.min_lr_ratio"), f"{OPTIM}.min_lr_ratio"
    if ratio is None and view.value(f"{OPTIM}.min_lr"):
        source = f"{OPTIM}.min_lr"
        ratio = view.number(source) / (view.number(f"{OPTIM}.lr") or 1.0)
    yield PathValue(f"{TARGET}.min_lr_ratio", ratio or 0.0, (source,))


@derivation
def critic_warmup_steps(view: LaunchView) -> Derived:
    """The critic's warm-up, counted in updates as the actor's."""
    key = CRITIC_WARMUP.key
    steps = view.integer(key, -1)
    if not view.critic:
        yield Verdict(key, Status.NO_EFFECT, "there is no critic")
    elif steps > 0:
        note = f"{key}={steps} × updates_per_step={view.step}" if view.step > 1 else None
        yield CRITIC_WARMUP.put(_steps(view, steps), note)


@derivation
def grad_clip(view: LaunchView) -> Derived:
    """Gradient clipping, in both places that upstream reads."""
    clip = view.number(CLIP.key, 1.0)
    sources = (OLDER_CLIP, CLIP.key) if view.value(OLDER_CLIP) == clip else (CLIP.key,)
    yield PathValue(CLIP.path, clip, sources)
    yield PathValue(f"{TARGET}.clip_grad", clip, sources)
    if view.value(OLDER_CLIP) not in (None, clip):
        reason = f"veRL 0.8 and later clip by optim.clip_grad, which is {clip}"
        yield Verdict(OLDER_CLIP, Status.NO_EFFECT, reason)
    clips = VERL_RELEASES.index(view.origin.version.value) <= VERL_RELEASES.index(_LAST_CRITIC_CLIP)
    if clips and view.critic and view.value(OLDER_CRITIC_CLIP) is not None:
        reason = f"until 0.7 FSDP's critic clipped by it; written as {CRITIC_CLIP}"
        yield Verdict(OLDER_CRITIC_CLIP, Status.DERIVED, reason, target=f"{TC}.{CRITIC_CLIP}")


@derivation
def strategy(view: LaunchView) -> Derived:
    """fsdp, fsdp2 or megatron."""
    name = str(view.value(STRATEGY.key, "fsdp"))
    if name in STRATEGIES:
        yield STRATEGY.put(name)
        return
    reason = f"Trinity has no strategy {name!r}; the YAML says fsdp2 for Trinity-RFT"
    yield STRATEGY.put("fsdp2", reason)
    for key in (STRATEGY.key, "model_engine"):
        yield Verdict(key, Status.UNSUPPORTED_UPSTREAM, f"{reason}; kept for trinity-compat")


@way_back
def of_the_strategy(reading: TrinityReader) -> VerlSettings:
    """Strategy, clipping, sequence parallelism, offloading: what the strategy's dataclasses have.

    Source: verl, workers/config (actor.py, engine.py). All engines clip by their optimizer's field;
    Megatron has no gradients to offload by themselves, and splits sequences by context_parallel_size.
    """
    megatron, engine = _is_megatron(reading), _engine(reading)
    yield from reading.verl_values(STRATEGY, CLIP)
    if not megatron:
        yield from reading.verl_values(FieldPair(CLIP.path, OLDER_CLIP), ULYSSES)
    models = [engine.key(role, "{}") for role in (ACTOR, f"{ARR}.ref")]
    if reading.get("algorithm.algorithm_type") == "ppo":
        models.append(engine.key("critic", "{}"))
    for name in OFFLOADS if megatron else (*OFFLOADS, "offload_policy"):
        value = reading.get(f"trainer.{name}")
        if value is not None:
            yield from ((f"{model}.{name}", value) for model in models)
    if megatron:
        for name, value in (reading.get(MEGATRON) or {}).items():
            yield f"{ACTOR}.megatron.{name}", value


@derivation
def offload(view: LaunchView) -> Derived:
    """Offloading: one value in Trinity for all models; the others' where they differ."""
    old = view.old_trinity
    for name in (*OFFLOADS, "grad_offload" if view.megatron else "offload_policy"):
        key = view.engine.key(ACTOR, f"{{}}.{name}")
        actor = view.flag(key)
        if old:
            yield PathValue(f"{TC}.{key}", actor, (key,))
        else:
            yield PathValue(f"trainer.{name}", actor, (key,))
        if str(view.value(STRATEGY.key, "fsdp")) in STRATEGIES:  # else upstream has no such section
            yield from _others(view, name, None if old else actor)
    yield from _inactive(view)


def _others(view: LaunchView, name: str, actor: bool | None) -> Iterator[PathValue | Verdict]:
    ref, critic = (view.engine.key(role, f"{{}}.{name}") for role in (f"{ARR}.ref", "critic"))
    keys = {ref: True, critic: view.critic}
    for key, used in keys.items():
        if not view.has(key):
            continue
        path = f"{TC}.{_old_critic(key) if view.old_trinity else key}"
        if not used:
            yield Verdict(key, Status.NO_EFFECT, "there is no critic")
        elif view.flag(key) != actor:
            yield PathValue(path, view.flag(key), (key,))
        elif view.is_set(key):
            yield Verdict(key, Status.MAPPED, "the same as the actor's", target=f"trainer.{name}")


def _old_critic(key: str) -> str:
    return key.replace("critic.fsdp.", "critic.model.fsdp_config.")


def _inactive(view: LaunchView) -> Iterator[Verdict]:
    """Settings of the engine that this strategy doesn't use."""
    strategy = str(view.value(STRATEGY.key, "fsdp"))
    megatron = view.megatron
    idle = [".fsdp_config."] if megatron else [".megatron.", *idle_of_fsdp(strategy)]
    for key in view.config.settings:
        if any(name in f"{key}." for name in idle) or (megatron and key.startswith("critic.fsdp.")):
            yield Verdict(key, Status.NO_EFFECT, f"the strategy is {strategy}", "TC034")


def idle_of_fsdp(strategy: str) -> tuple[str, ...]:
    """Return parts of keys of FSDP's section that no engine of this strategy reads.

    fsdp_turbo shards the model itself: its ``_build_fsdp_module`` reads none of FSDP's settings for that.
    """
    if strategy == "fsdp_turbo":
        names = ("reshard_after_forward", "wrap_policy", "forward_prefetch", "use_orig_params")
        return tuple(f".fsdp_config.{name}." for name in names)
    return (".turbo_config.",) if strategy in ("fsdp", "fsdp2") else ()


@derivation
def megatron(view: LaunchView) -> Derived:
    """Megatron's parallel sizes."""
    if not view.megatron:
        return
    for name in PARALLEL:
        key = f"{ACTOR}.megatron.{name}"
        value = view.value(key)
        if value is None:
            continue
        if view.old_trinity:
            yield PathValue(f"{TC}.{key}", value, (key,))
        else:
            yield PathValue(f"{MEGATRON}.{name}", value, (key,))


@derivation
def lora(view: LaunchView) -> Derived:
    """model.lora_configs: one adapter."""
    names = tuple(LORA_NAMES.values())
    if not view.value(f"{MODEL}.lora_rank", 0):
        for name in names[1:]:
            yield Verdict(f"{MODEL}.{name}", Status.NO_EFFECT, "lora_rank is 0", "TC036")
        return
    entry: dict[str, object] = {
        "name": "lora",
        "lora_rank": view.integer(f"{MODEL}.lora_rank"),
        "lora_alpha": view.integer(f"{MODEL}.lora_alpha", 16),
        "target_modules": view.value(f"{MODEL}.target_modules", "all-linear"),
    }
    if not isinstance(entry["target_modules"], str):
        entry["target_modules"] = ",".join(view.texts(f"{MODEL}.target_modules"))
        reason = "Trinity-RFT takes one text; the list is joined with commas"
        yield Verdict(f"{MODEL}.target_modules", Status.APPROXIMATED, reason)
    if view.value(f"{MODEL}.exclude_modules") is not None:
        entry["exclude_modules"] = str(view.value(f"{MODEL}.exclude_modules"))
    if path := view.text(f"{MODEL}.lora_adapter_path"):
        entry["path"] = path
    yield PathValue(LORA, [entry], tuple(f"{MODEL}.{name}" for name in names[:3]))


@way_back
def adapter(reading: TrinityReader) -> VerlSettings:
    """LoRA's one adapter: where the file has one without a size, trinity-rft's counts."""
    if reading.get(f"{LORA}.0") is not None:
        for field in ("lora_rank", "lora_alpha"):
            yield f"{MODEL}.{field}", schema(TRINITY).default(f"{LORA}.0.{field}")
    yield from reading.verl_values(
        *(FieldPair(f"{LORA}.0.{field}", f"{MODEL}.{name}") for field, name in LORA_NAMES.items())
    )
