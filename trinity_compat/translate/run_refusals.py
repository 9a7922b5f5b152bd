"""Settings that veRL supports and our decoupled run does not: the audit names them, a run refuses them.

Each entry names the key, the values that mean "off", the reason, and what to write instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trinity_compat.common import plugin_packages
from trinity_compat.common.plugin_packages import Kind
from trinity_compat.common.releases import VERL
from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.common.training_engines import engine_of
from trinity_compat.job.vllm_arguments import SECTION, set_by_verl
from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.micro_batch_sizes import Value, has_critic
from trinity_compat.translate.model import Status
from trinity_compat.translate.verl_names import REWARD_MANAGERS, misspelt

_ROLLOUT = "actor_rollout_ref.rollout"
STOCK = "leave it out, or run on stock veRL"
ESTIMATOR = "algorithm.adv_estimator"
MODEL, STRATEGY = "actor_rollout_ref.model", "actor_rollout_ref.actor.strategy"
_ORDER = f"veRL {VERL} no longer has this key; the explorer draws rows in veRL's default order"
_TURNS = f"veRL {VERL} no longer has such classes; an agent loop of your own (rollout.agent.*) replaces them"
_TOKENS = (
    f"veRL {VERL} no longer has its builder of tokens; each turn's messages are encoded by the chat template"
)
# Keys that older releases have and the pinned veRL lacks, with the reason; only the launch has their values.
GONE = {
    "data.sampler.class_path": _ORDER,
    "data.datagen.path": _ORDER,
    "data.continuous_token.enable": _TOKENS,
    f"{_ROLLOUT}.multi_turn.interaction_config_path": _TURNS,
    f"{_ROLLOUT}.multi_turn.completion_callback": _TURNS,
    f"{_ROLLOUT}.chat_scheduler": _TURNS,
}
_OLD_MANAGERS = ("collabllm",)  # of veRL's own recipes, on the interface of 0.6 and older
_MANAGER = "reward.reward_manager.name"

QUANTIZATION = f"{_ROLLOUT}.quantization"
_PARALLEL = f"{_ROLLOUT}.{{}}_parallel_size"
_TENSOR_PARALLEL, DATA_PARALLEL, EXPERT_PARALLEL, _STAGES = (
    _PARALLEL.format(name) for name in ("tensor_model", "data", "expert", "pipeline_model")
)

# A size of TensorRT-LLM's engines alone (RolloutConfig).
MOE_TENSOR_PARALLEL = "moe_tensor_parallel_size"

# Engines of veRL's releases that generate from the same weights and sampling parameters as vLLM.
OTHER_ENGINES = ("sglang", "sglang_async", "trtllm", "hf")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One setting that a run refuses.

    ``off``: the values that leave the feature off. ``also``: the key's names in older veRL releases.
    ``below``: the section that only this feature uses.
    """

    key: str
    why: str
    hint: str = STOCK
    off: tuple[object, ...] = (None, False, "", 0)
    also: tuple[str, ...] = ()
    below: str = ""


# Arguments of vLLM that the explorer gives itself.
_ENGINE_OWN = (
    (("model", "tokenizer"), "the engine serves the policy's model", "write actor_rollout_ref.model.path"),
    (
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes"),
        "the GPUs are allocated before the engine starts",
        f"write {_ROLLOUT}.tensor_model_parallel_size",
    ),
    (
        ("worker_cls", "worker_extension_cls", "distributed_executor_backend"),
        "a worker class of the explorer's receives the weights",
        STOCK,
    ),
    (("quantization",), "the explorer receives its weights in the trainer's precision", STOCK),
)
_ALWAYS = (
    Refusal(
        f"{_ROLLOUT}.name",
        "veRL has no rollout of that name; the explorer runs vLLM",
        f"write {_ROLLOUT}.name=vllm",
        off=("vllm", *OTHER_ENGINES),
    ),
    Refusal(
        QUANTIZATION,
        "the explorer's engines quantize the weights that they receive to fp8 only",
        f"write {QUANTIZATION}=fp8, or run on stock veRL",
        off=(None, "", "fp8"),
    ),
    *(
        Refusal(f"{section}.qat.enable", "the explorer's engines quantize nothing", below=f"{section}.qat.")
        for section in ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.actor.megatron", _ROLLOUT)
    ),
    Refusal(f"{_ROLLOUT}.agent.agent_loop_manager_class", "the trainer takes its rollouts out of the buffer"),
    *(Refusal(f"{SECTION}.{name}", why, hint) for names, why, hint in _ENGINE_OWN for name in names),
    Refusal(
        _STAGES,
        "no engine of veRL's rollout has pipeline stages either",
        f"write {_TENSOR_PARALLEL}",
        off=(None, 0, 1),
    ),
)

# Settings of a teacher's engine, below its ``inference``: name, values that leave it off, reason, hint.
_OF_TEACHERS = (
    (
        "quantization",
        (None, ""),
        "a teacher is served in the precision of its files",
        "leave it out, or write the path of a model that is quantized",
    ),
    (
        "pipeline_model_parallel_size",
        (None, 0, 1),
        "veRL's own engines have no pipeline stages either",
        "write tensor_model_parallel_size",
    ),
    ("disaggregation.enabled", (None, False), "a teacher's engine is one process group", STOCK),
    *(
        (f"engine_kwargs.vllm.{name}", (None,), why, hint)
        for names, why, hint in (
            (("model", "tokenizer"), "the engine serves the teacher's model", "write its model_path"),
            (
                ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes"),
                "the GPUs are allocated before the engine starts",
                "write tensor_model_parallel_size and num_replicas",
            ),
        )
        for name in names
    ),
)


def refused_of_teacher(value: Value, entry: str) -> Iterator[tuple[str, object, str, str]]:
    """Yield (key, value, reason, hint) of what a run refuses of the teacher at ``entry``."""
    for name, off, why, hint in _OF_TEACHERS:
        if (given := value(key := f"{entry}.inference.{name}")) not in off:
            yield key, given, why, hint


def refusals(value: Value) -> Iterator[Refusal]:
    """Yield what a run refuses of a launch with these values."""
    for refusal in (*_ALWAYS, *_conditional(value)):
        if value(refusal.key) not in refusal.off:
            yield refusal


def why_refused(value: Value, key: str) -> str | None:
    """Return the reason why a run refuses the value of ``key``; None if it accepts it."""
    return next((refusal.why for refusal in refusals(value) if refusal.key == key), None)


def _of_the_engine(value: Value) -> Iterator[Refusal]:
    """Yield the settings for which the engine that trains has no implementation in veRL."""
    engine = engine_of(value(STRATEGY))
    if not engine.critic and has_critic(value):
        why = f"veRL's registry has no value model of strategy={engine.strategy}"
        yield Refusal(ESTIMATOR, why, "train with fsdp2, megatron or veomni, or write another estimator")
    if not engine.lora:
        why = f"veRL's engine {engine.strategy} trains no adapters"
        for key in (f"{MODEL}.lora_rank", f"{MODEL}.lora.rank"):
            yield Refusal(key, why, "write 0, or train with fsdp2 or megatron")


def _of_routes(value: Value) -> Iterator[Refusal]:
    """Yield the replay of the rollout's routes, which the trainer's engine would miss at its first step.

    Of veRL's engines Megatron and VeOmni replay routes; R2 are those of the trainer's own forward pass.
    """
    routes, strategy = f"{_ROLLOUT}.enable_rollout_routing_replay", value(STRATEGY)
    if strategy not in ("megatron", "veomni"):
        yield Refusal(routes, "the buffer does not store expert routes")
        return
    mode = f"actor_rollout_ref.actor.{strategy}.router_replay.mode"
    own = f"{mode}=R2, which replays the routes of the trainer's own forward pass"
    yield Refusal(routes, "the buffer does not store expert routes", f"leave it out, and write {own}")
    why = "R3 replays the rollout's expert routes, which the buffer does not store"
    yield Refusal(mode, why, f"write {own}", off=(None, "", "disabled", "R2"))


def _conditional(value: Value) -> Iterator[Refusal]:
    yield from _of_the_engine(value)
    yield from _of_routes(value)
    if "enable_lora" not in set_by_verl(value):
        why = "the explorer's engines take adapters where the trainer trains one"
        yield Refusal(f"{SECTION}.enable_lora", why, f"write {MODEL}.lora_rank")
    if value(ESTIMATOR) == "remax" and value("algorithm.filter_groups.enable"):
        why = "a group that holds a greedy answer cannot be filtered by the standard deviation of its rewards"
        yield Refusal(ESTIMATOR, why, "leave out algorithm.filter_groups, or use another estimator")
    if unknown_manager(value):
        why = f"veRL {VERL}'s reward loop has no reward manager of that name"
        hint = f"use one of {', '.join(REWARD_MANAGERS)}; source=importlib loads one of your own"
        yield Refusal(_MANAGER, why, hint, off=(None,), also=("reward_model.reward_manager",))
    if (ranks := _ranks(value)) is not None:
        why = f"veRL wants tensor_model_parallel_size × data_parallel_size there, which is {ranks}"
        yield Refusal(EXPERT_PARALLEL, why, f"write {EXPERT_PARALLEL}={ranks}", off=(None, 0, 1, ranks))
    if split := uneven_experts(value, _ROLLOUT):
        why = f"veRL wants this size × expert_parallel_size, {split}, to be tensor_model_parallel_size"
        yield Refusal(f"{_ROLLOUT}.{MOE_TENSOR_PARALLEL}", why, "leave one of the two out", off=(None, 1))
    metric = "algorithm.filter_groups.metric"
    if value("algorithm.filter_groups.enable"):
        if value(metric) == "seq_final_reward" and value("algorithm.use_kl_in_reward"):
            why = "the KL penalty is added in the trainer, after the filter"
            yield Refusal(metric, why, f"write {metric}=reward")
    else:
        why = "without algorithm.filter_groups a step generates exactly data.train_batch_size prompts"
        same = (None, value("data.train_batch_size"))
        yield Refusal("data.gen_batch_size", why, "write the number as data.train_batch_size", off=same)


def _ranks(value: Value) -> int | None:
    """Return the number of workers that an engine's experts are spread over.

    None if a size is not a number, or for an engine that can split experts in other ways.
    """
    sizes = [value(key) or 1 for key in (_TENSOR_PARALLEL, DATA_PARALLEL)]
    if value(f"{_ROLLOUT}.name") == "trtllm" or not all(isinstance(size, int) for size in sizes):
        return None
    return math.prod(size for size in sizes if isinstance(size, int))


def uneven_experts(value: Value, section: str) -> int:
    """Return the workers over which TensorRT-LLM would split experts in both ways, 0 where veRL takes them.

    Source: ``RolloutConfig.__post_init__`` (workers/config/rollout.py).
    """
    if value(f"{section}.name") != "trtllm":
        return 0
    sizes = [value(f"{section}.{name}") for name in (MOE_TENSOR_PARALLEL, "expert_parallel_size")]
    given = [size for size in sizes if isinstance(size, int) and size > 1]
    workers = math.prod(given) if len(given) == len(sizes) else 0
    return workers if workers != value(f"{section}.tensor_model_parallel_size") else 0


def unknown_manager(value: Value) -> bool:
    """Return True for a manager that nothing registers.

    The custom reward function's file may register one: the preflight check reads it.
    """
    name = value(_MANAGER)
    if name in (None, *REWARD_MANAGERS) or value("reward.reward_manager.source") not in (None, "register"):
        return False
    return name in _OLD_MANAGERS or not value("reward.custom_reward_function.path")


def runs_here(
    view: LaunchView, key: str, name: str, known: Sequence[str], kind: Kind | None = None
) -> tuple[Status, str]:
    """Return the status of ``name``, the value of ``key``, and the reason: whether our runtime runs it.

    ``known``: the names that veRL itself has. ``kind``: of plugins that may have the name.

    Raises KeyRefused for a misspelt one of these.
    """
    plugin = plugin_packages.find(kind, name) if kind and name not in known else None
    if plugin:
        return Status.UNSUPPORTED_UPSTREAM, f"trinity-compat runs the plugin {name!r} of {plugin.source}"
    if name not in known and (typo := misspelt(name, known)):
        written = view.spelling(key)
        raise view.refused(key, f"{view.written(key)}: veRL has no {name!r}", f"write {written}={typo}")
    if (why := why_refused(view.value, key)) is not None:
        return Status.UNSUPPORTED, f"trinity-compat refuses it: {why}"
    if name in known:
        return Status.UNSUPPORTED_UPSTREAM, f"trinity-compat runs {name!r}"
    near = did_you_mean(name.lower(), known)
    hint = f"; did you mean {near}?" if near else ""
    return Status.UNSUPPORTED, f"veRL has none either unless code of yours registers it{hint}"
