"""Rewards: veRL's scoring through our plugin; a reward model as an auxiliary model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves, nested
from trinity_compat.translate.launch_view import LaunchView, PathValue, Verdict
from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.run_refusals import runs_here, unknown_manager
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.trinity_reader import FieldPair, TrinityReader
from trinity_compat.translate.verl_names import REWARD_MANAGERS
from trinity_compat.trinity.algorithms.model import CLASSES
from trinity_compat.trinity.algorithms.selection import choose, needs_teacher

MODEL = "reward.reward_model"
ENABLE = f"{MODEL}.enable"
POOL = f"{MODEL}.enable_resource_pool"
TENSOR_PARALLEL = f"{MODEL}.rollout.tensor_model_parallel_size"
FUNCTION = "reward.custom_reward_function"
MANAGER = "reward.reward_manager.name"
MANAGERS = ("naive", "dapo", "prime", "batch")
# Trinity's name of an engine's setting → veRL's in the section of its rollout.
ENGINE_SETTINGS = {
    **{
        name: name
        for name in (
            *("dtype", "enable_chunked_prefill", "enable_prefix_caching", "enforce_eager"),
            *("gpu_memory_utilization", "max_model_len", "seed", "temperature", "top_k", "top_p"),
        )
    },
    "max_response_tokens": "response_length",
}
SAME_IN_VERL = ("max_num_batched_tokens", "max_num_seqs")  # of extra_engine_args
_UPSTREAM = (
    "Trinity-RFT serves auxiliary models as chat models, and none of its workflows asks this one for"
    " scores; trinity-compat serves it with vLLM and scores as veRL does"
)


def reward_arguments(view: LaunchView) -> dict[str, object]:
    """reward_fn_args of every taskset: what veRL's reward manager is built with."""
    arguments: dict[str, object] = {"reward_fn_key": view.value("data.reward_fn_key", "data_source")}
    arguments["reward_manager"] = str(view.value(MANAGER, "naive"))
    if path := view.text(f"{FUNCTION}.path"):
        function = {"path": path, "name": view.text(f"{FUNCTION}.name", "compute_score")}
        if kwargs := nested(view.below(f"{FUNCTION}.reward_kwargs")):
            function["reward_kwargs"] = kwargs
        arguments["custom_reward_function"] = function
    arguments["max_resp_len"] = view.size("data.max_response_length", 512)
    # After max_resp_len, which a launch may give among them.
    arguments |= nested(view.below("reward.reward_kwargs"))
    if view.value("reward.sandbox_fusion.url"):
        arguments["sandbox_fusion"] = view.below("reward.sandbox_fusion")
    return arguments


@way_back
def scoring(reading: TrinityReader) -> VerlSettings:
    """Yield veRL's keys for scoring and for the reward model."""
    arguments = "buffer.explorer_input.tasksets.0.reward_fn_args"
    yield from reading.verl_values(
        FieldPair(f"{arguments}.reward_fn_key", "data.reward_fn_key"),
        FieldPair(f"{arguments}.reward_manager", MANAGER),
        FieldPair(f"{arguments}.custom_reward_function.path", f"{FUNCTION}.path"),
        FieldPair(f"{arguments}.custom_reward_function.name", f"{FUNCTION}.name"),
    )
    if is_taught(reading):  # then the further model is the teacher: algorithm.py
        return
    yield from reading.verl_values(
        FieldPair(f"{AUXILIARY}.0.model_path", f"{MODEL}.model_path"),
        FieldPair(f"{AUXILIARY}.0.tensor_parallel_size", TENSOR_PARALLEL),
    )
    if reading.get(AUXILIARY):
        yield ENABLE, True
        settings = leaves(engine_settings(reading, 0))
        yield from ((f"{MODEL}.rollout.{name}", value) for name, value in settings)


def engine_settings(reading: TrinityReader, place: int) -> dict[str, object]:
    """Return the settings of a further model's engine, by veRL's names."""
    at = f"{AUXILIARY}.{place}"
    said = dict(
        reading.verl_values(*(FieldPair(f"{at}.{theirs}", ours) for theirs, ours in ENGINE_SETTINGS.items()))
    )
    own = reading.get(f"{at}.extra_engine_args") or {}
    same = {name: own[name] for name in own if name in SAME_IN_VERL}
    rest = {name: own[name] for name in own if name not in SAME_IN_VERL}
    return {**said, **same, **({"engine_kwargs": {"vllm": rest}} if rest else {})}


@derivation
def reward(view: LaunchView) -> Derived:
    """Yield verdicts on the reward's keys; their values travel with the tasksets."""
    name = str(view.value(MANAGER, "naive"))
    if name not in MANAGERS:
        status, ours = Status.UNSUPPORTED_UPSTREAM, "code of yours registers it for trinity-compat"
        if name in REWARD_MANAGERS or unknown_manager(view.value):
            status, ours = runs_here(view, MANAGER, name, REWARD_MANAGERS)
        yield Verdict(MANAGER, status, f"in Trinity-RFT the plugin has {', '.join(MANAGERS)}; {ours}")
    if not view.value(f"{FUNCTION}.path"):
        yield Verdict(f"{FUNCTION}.name", Status.NO_EFFECT, "no custom reward function is given", "TC060")
    if not view.value("reward.sandbox_fusion.url"):
        for key in view.below("reward.sandbox_fusion"):
            yield Verdict(f"reward.sandbox_fusion.{key}", Status.NO_EFFECT, "no sandbox is given", "TC060")


@derivation
def reward_model(view: LaunchView) -> Derived:
    """explorer.auxiliary_models."""
    if not view.flag(ENABLE):
        for key in view.below(MODEL):
            yield Verdict(f"{MODEL}.{key}", Status.NO_EFFECT, "there is no reward model", "TC061")
        return
    size = _tensor_parallel(view)
    entry = {
        "model_path": view.text(f"{MODEL}.model_path", ""),
        "engine_num": reward_model_gpus(view) // size,
        "tensor_parallel_size": size,
    }
    yield PathValue(AUXILIARY, [entry], (f"{MODEL}.model_path",))
    for key in ("enable", "model_path"):
        yield Verdict(f"{MODEL}.{key}", Status.UNSUPPORTED_UPSTREAM, _UPSTREAM)
    yield Caution("TW016", f"a reward model: {_UPSTREAM}", view.where(ENABLE))


def reward_model_gpus(view: LaunchView) -> int:
    """Return the GPUs of the cluster for the reward model: its own pool, else a share of the launch's."""
    if not view.flag(ENABLE):
        return 0
    total = math.prod(view.cluster)
    return pool_gpus(view) or (share_of(total, _tensor_parallel(view)) if total > 1 else 0)


def pool_gpus(view: LaunchView) -> int:
    """Return the GPUs that a launch gives its reward model beside the trainer's."""
    if not view.flag(ENABLE) or not view.flag(POOL):
        return 0
    return view.size(f"{MODEL}.nnodes") * view.size(f"{MODEL}.n_gpus_per_node")


def share_of(total: int, width: int) -> int:
    """Return the GPUs of a reward model among ``total``: a quarter, at least one engine of ``width``."""
    return max(width, total // 4 // width * width)


def _tensor_parallel(view: LaunchView) -> int:
    """Return the launch's size; veRL's default if each side keeps a GPU; 1 in the published guide."""
    if view.published and not view.is_set(TENSOR_PARALLEL):
        return 1
    size = view.size(TENSOR_PARALLEL)
    while size > max(1, pool_gpus(view) or math.prod(view.cluster) - 2):
        size //= 2
    return size


AUXILIARY = "explorer.auxiliary_models"
TEACHER = "actor_rollout_ref.actor.policy_loss.trinity_teacher"
_MODEL = f"{AUXILIARY}.0.model_path"
_TEMPERATURE = "buffer.explorer_input.tasksets.0.workflow_args.temperature"


def is_taught(reading: TrinityReader) -> bool:
    """Return True if the algorithm learns from a teacher. Raises UserError for an unknown algorithm."""
    section = reading.get("algorithm")
    return isinstance(section, Mapping) and bool(section) and needs_teacher(choose(section))


@way_back
def teacher(reading: TrinityReader) -> VerlSettings:
    """Return the reference's weights.

    Raises UserError for a teacher that is missing or cannot be the reference.
    """
    if not is_taught(reading):
        return
    name = reading.get("algorithm.algorithm_type")
    path = reading.get(_MODEL)
    if not path:
        raise UserError(
            f"{_MODEL} is missing: {name} learns from a teacher",
            hint="write the teacher's folder or name; it is loaded as the trainer's reference model",
        )
    if reading.get("model.lora_configs"):
        raise UserError(
            f"model.lora_configs: with LoRA the reference is the policy without it, and {name} needs the"
            " teacher in its place",
            hint="leave it out",
        )
    asked, sampled = reading.get(_TEMPERATURE, 1.0), reading.get("model.temperature", 1.0)
    if asked != sampled:
        raise UserError(
            f"{_TEMPERATURE}={asked}: the teacher must use the answers' temperature, {sampled}",
            hint=f"write {sampled} there and in model.temperature",
        )
    yield TEACHER, path
    yield "actor_rollout_ref.actor.policy_loss._target_", f"{CLASSES}.PolicyLoss"
