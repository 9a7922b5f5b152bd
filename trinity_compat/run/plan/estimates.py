"""Facts of a launch for the estimates of its speed and memory (`advise`, turns on shared GPUs)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import mul
from pathlib import Path

from trinity_compat.advise import model_shape
from trinity_compat.advise.memory import WEIGHT_BYTES, ResidentParts, Spread, Training
from trinity_compat.advise.model_shape import BYTES, ModelShape
from trinity_compat.advise.speeds import Passes
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.job.gpus import trainer_gpus
from trinity_compat.job.known_models import stand_in
from trinity_compat.job.lora import lora_rank
from trinity_compat.run.plan.verl_view import ACTOR, REF, ROLLOUT, VerlView
from trinity_compat.translate.sections.gpus import ENGINE_MEMORY

OFFLOADS = PARAMETERS, OPTIMIZER = "param_offload", "optimizer_offload"
_LARGEST_CONFIG = 1_000_000  # bytes of a config.json
_MODEL = "actor_rollout_ref.model"
_DTYPES: dict[object, int] = {
    **dict.fromkeys(("fp32", "float32", None), WEIGHT_BYTES),
    **dict.fromkeys(("bf16", "bfloat16", "fp16", "float16"), BYTES),
}


def utilization(verl: Tree) -> float:
    """Return the engines' share of a card. Raises UserError."""
    found = value_at(verl, ENGINE_MEMORY.key)
    if not isinstance(found, int | float) or not 0 < found <= 1:
        raise UserError(f"{ENGINE_MEMORY.key}={found}: it should be above 0 and at most 1")
    return float(found)


def training_of(verl: Tree, tokens_of: Callable[[int], float] | None = None) -> tuple[Training | None, str]:
    """Return the sizes of an update with a sentence; None where the trainer's memory is not estimated.

    ``tokens_of``: tokens of so many rows, which count where padding is left out; else each is the longest.
    """
    if setting := _not_estimated(verl):
        return None, f"memory of the trainer is not estimated for {setting}"
    passes, view = passes_of(verl), VerlView.of(verl)
    engine = view.engine.strategy
    section = section_at(verl, view.engine.key(ACTOR, "{}"))
    longest = size(verl, "data.max_prompt_length") + size(verl, "data.max_response_length")
    if tokens_of is None or not value_at(verl, f"{_MODEL}.use_remove_padding"):
        tokens_of = partial(mul, longest)
    answers, rows = size(verl, f"{ROLLOUT}.n", 1), size(verl, "data.train_batch_size", 1)
    update = size(verl, f"{ACTOR}.ppo_mini_batch_size", rows)
    of_rank = _Rows(verl, tokens_of, view.spread(ACTOR))
    tokens, origin = of_rank.micro_batch(f"{ACTOR}.ppo", f"{ACTOR}.use_dynamic_bsz")
    scored, _ = of_rank.micro_batch(f"{ROLLOUT}.log_prob", f"{ROLLOUT}.log_prob_use_dynamic_bsz")
    rank = lora_rank(verl)
    critics = passes.forward - 1 - asks_reference(verl)
    references = int(asks_reference(verl) and not rank)
    sizes = Training(
        tokens,
        1 + critics,
        references,
        passes.checkpointed,
        bool(value_at(verl, f"{_MODEL}.use_fused_kernels")),
        engine=engine,
        spread=_spread(view, section, trainer_gpus(verl)),
        update=tokens_of(update * answers),
        scored=scored,
        batch=tokens_of(rows * answers),
        lora=rank,
        weight_bytes=_DTYPES.get(section.get("model_dtype"), BYTES) if engine != "megatron" else BYTES,
        kept_on_gpu=view.engine.is_megatron or not value_at(verl, f"{_MODEL}.enable_activation_offload"),
        entropy=bool(value_at(verl, f"{ACTOR}.entropy_coeff")),
        chunked=any(section.get(name) for name in ("entropy_from_logits_with_chunking", "use_torch_compile")),
        on_cpu=_on_cpu(verl),
        all_on_cpu=engine == "fsdp2" and bool(section.get("offload_policy")),
    )
    trained = (ACTOR, "critic")[: sizes.models]
    sizes = replace(
        sizes,
        stays=_resident_parts(verl, trained, sizes),
        beside=_resident_parts(verl, trained[1:], sizes),
    )
    how = "FSDP" if engine != "megatron" else "Megatron"
    adapter = f", an adapter of rank {rank}" if rank else ""
    return (
        sizes,
        f"memory of the trainer: a micro-batch of {tokens} tokens a GPU, by {origin}; {how}{adapter}",
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a launch: the tokens of so many, each spread over ``spread`` GPUs."""

    verl: Tree
    tokens_of: Callable[[int], float]
    spread: int

    def micro_batch(self, prefix: str, dynamic: str) -> tuple[int, str]:
        """Return the tokens of a micro-batch on one GPU, and the key that says so."""
        if value_at(self.verl, dynamic):
            key = f"{prefix}_max_token_len_per_gpu"
            return size(self.verl, key), key.rpartition(".")[2]
        key = f"{prefix}_micro_batch_size_per_gpu"
        tokens = self.tokens_of(size(self.verl, key, 1)) / self.spread
        return math.ceil(tokens), f"the rows of {key.rpartition('.')[2]}"


def _spread(view: VerlView, section: Tree, gpus: int) -> Spread:
    """Return how the actor's weights are spread over ``gpus``."""
    if not view.engine.is_megatron:
        shards = section.get("fsdp_size")
        return Spread(shards=shards if type(shards) is int and 0 < shards < gpus else 0)
    tensor, pipeline, expert, of_experts = (
        view.size(view.engine.key(ACTOR, f"{{}}.{name}_parallel_size"))
        for name in ("tensor_model", "pipeline_model", "expert_model", "expert_tensor")
    )
    if section.get("expert_tensor_parallel_size") is None:
        of_experts = tensor  # Megatron's own default
    return Spread(
        tensor=tensor,
        pipeline=pipeline,
        expert=expert,
        expert_tensor=of_experts,
        distributed=section.get("use_distributed_optimizer") is not False,
    )


def _on_cpu(verl: Tree) -> float:
    """Return the share of the optimizer's state that Megatron keeps and steps on the CPU."""
    chosen = section_at(verl, f"{ACTOR}.optim.override_optimizer_config")
    share = chosen.get("optimizer_offload_fraction", 1.0)
    return float(share) if chosen.get("optimizer_cpu_offload") and isinstance(share, int | float) else 0.0


def _not_estimated(verl: Tree) -> str:
    """Return the setting of a trainer whose state is another than Adam's; else ""."""
    strategy = value_at(verl, f"{ACTOR}.strategy")
    usual: dict[str, tuple[object, ...]] = {
        "strategy": ("fsdp", "fsdp2", "megatron"),
        "optim.optimizer": (None, "AdamW", "adam"),
    }
    if strategy in ("fsdp", "fsdp2"):
        usual["fsdp_config.model_dtype"] = (None, *_DTYPES)
    for name, values in usual.items():
        if (value := value_at(verl, f"{ACTOR}.{name}")) not in values:
            return f"{ACTOR}.{name}={value}"
    return ""


def _resident_parts(verl: Tree, trained: tuple[str, ...], training: Training) -> ResidentParts:
    """Return what of ``trained`` and of a reference stays on the trainer's devices, by their offload flags.

    FSDP always has a reference's weights in host memory (verl/workers/engine/fsdp/transformer_impl.py:
    ``CPUOffload`` where the engine is ``forward_only``).
    """
    held = training.is_megatron and not _offloads(verl, REF, PARAMETERS)
    return ResidentParts(
        weights=sum(not _offloads(verl, role, PARAMETERS) for role in trained),
        optimizers=sum(not _offloads(verl, role, OPTIMIZER) for role in trained),
        references=training.references if held else 0,
    )


def _offloads(verl: Tree, role: str, name: str) -> bool:
    return bool(value_at(verl, VerlView.of(verl).engine.key(role, f"{{}}.{name}")))


def offloads(verl: Tree) -> bool:
    """Return whether the actor's state moves to host memory, all of it or a part, between its steps."""
    return any(_offloads(verl, ACTOR, name) for name in OFFLOADS)


def asks_reference(verl: Tree) -> bool:
    """Return whether log-probabilities of a reference are asked for."""
    return bool(value_at(verl, "algorithm.use_kl_in_reward") or value_at(verl, f"{ACTOR}.use_kl_loss"))


def shape_of(verl: Tree, cwd: Path, parameters: float | None = None) -> tuple[ModelShape, str]:
    """Return the model's sizes: of its config.json, else of the model of the same name, else assumed.

    ``parameters``: their number, where the user gives it.
    """
    if (file := _config_file(verl, cwd)).is_file():
        shape, origin = model_shape.of_config(_config(file)), f"by {file}"
    else:
        named = stand_in(_path(verl))
        shape = model_shape.of_config(named.config)
        origin = "assumed; --model-size gives another" if named.generic else "by its name"
        origin = f"{named.name}'s sizes, {origin}"
    if parameters:
        shape = model_shape.scaled(shape, parameters)
        origin = "by --model-size"
    return shape, f"model: {shape.weights / 1e9:.3g} billion parameters, {origin}"


def is_known(verl: Tree, cwd: Path) -> bool:
    """Return whether the model's sizes are known, by its folder or its name."""
    return _config_file(verl, cwd).is_file() or not stand_in(_path(verl)).generic


def _path(verl: Tree) -> str:
    return str(value_at(verl, "actor_rollout_ref.model.path") or "")


def _config_file(verl: Tree, cwd: Path) -> Path:
    return cwd / from_home(_path(verl)) / "config.json"


def _config(file: Path) -> dict[str, object]:
    """Read a config.json. Raises UserError for one that is too large, or holds no object."""
    try:
        if file.stat().st_size > _LARGEST_CONFIG:
            raise ValueError("too large for a model's configuration")
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} cannot be read ({error})", hint="--model-size gives the sizes instead"
        ) from None
    return found


def size(verl: Tree, key: str, default: int | None = None) -> int:
    """Return a number of the launch. Raises UserError for another value."""
    found = value_at(verl, key)
    if found is None and default is not None:
        return default
    number = VerlView.of(verl).size(key)
    if found is None or number < 1:
        raise UserError(f"{key}={found}: advise needs a number of 1 or more")
    return number


def passes_of(verl: Tree) -> Passes:
    """Return the passes that a step's training makes over its tokens, for each model that is trained."""
    algorithm = section_at(verl, "algorithm")
    critic = value_at(verl, "critic.enable") or (
        value_at(verl, "critic.enable") is None and algorithm.get("adv_estimator") == "gae"
    )
    epochs = size(verl, f"{ACTOR}.ppo_epochs", 1)
    return Passes(
        forward=1 + asks_reference(verl) + bool(critic),
        backward=epochs * (1 + bool(critic)),
        checkpointed=_is_checkpointed(verl),
    )


def _is_checkpointed(verl: Tree) -> bool:
    """Return whether layers are computed again in the backward pass; Megatron has a setting of its own."""
    if value_at(verl, f"{ACTOR}.strategy") == "megatron":
        key = f"{ACTOR}.megatron.override_transformer_config.recompute_granularity"
        return value_at(verl, key) == "full"
    return bool(value_at(verl, f"{_MODEL}.enable_gradient_checkpointing"))
