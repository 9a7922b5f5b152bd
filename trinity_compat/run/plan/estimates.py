"""Facts of a launch for the estimates of its speed and memory (`advise`, turns on shared GPUs)."""

from __future__ import annotations

import json
from pathlib import Path

from trinity_compat.advise import model_shape
from trinity_compat.advise.memory import ResidentParts, Training
from trinity_compat.advise.model_shape import ModelShape
from trinity_compat.advise.speeds import Passes
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.job.gpus import trainer_gpus
from trinity_compat.job.known_models import stand_in
from trinity_compat.job.lora import lora_rank
from trinity_compat.run.plan.verl_view import ACTOR, REF, VerlView
from trinity_compat.translate.sections.gpus import ENGINE_MEMORY

OFFLOADS = PARAMETERS, OPTIMIZER = "param_offload", "optimizer_offload"
_LARGEST_CONFIG = 1_000_000  # bytes of a config.json


def utilization(verl: Tree) -> float:
    """Return the engines' share of a card. Raises UserError."""
    found = value_at(verl, ENGINE_MEMORY.key)
    if not isinstance(found, int | float) or not 0 < found <= 1:
        raise UserError(f"{ENGINE_MEMORY.key}={found}: it should be above 0 and at most 1")
    return float(found)


def training_of(verl: Tree) -> tuple[Training | None, str]:
    """Return the sizes of an update with a sentence; None where the trainer's memory is not estimated."""
    if setting := "LoRA" if lora_rank(verl) else _unlike_adam_over_all(verl):
        return None, f"memory of the trainer is not estimated for {setting}"
    passes = passes_of(verl)
    shared = VerlView.of(verl).sharing(ACTOR)
    if value_at(verl, f"{ACTOR}.use_dynamic_bsz"):
        tokens, origin = size(verl, f"{ACTOR}.ppo_max_token_len_per_gpu"), "ppo_max_token_len_per_gpu"
    else:
        longest = size(verl, "data.max_prompt_length") + size(verl, "data.max_response_length")
        rows = size(verl, f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1)
        tokens, origin = rows * longest // shared, "the longest rows of ppo_micro_batch_size_per_gpu"
    critics = passes.forward - 1 - asks_reference(verl)
    fused = bool(value_at(verl, "actor_rollout_ref.model.use_fused_kernels"))
    sizes = Training(tokens, 1 + critics, int(asks_reference(verl)), passes.checkpointed, fused)
    return sizes, f"memory of the trainer: a micro-batch of {tokens} tokens a GPU, by {origin}; FSDP over all"


def _unlike_adam_over_all(verl: Tree) -> str:
    """Return the setting of a trainer that has not Adam in float32 over all of its GPUs; else ""."""
    usual: dict[str, tuple[object, ...]] = {
        "strategy": ("fsdp", "fsdp2"),
        "optim.optimizer": (None, "AdamW"),
        "fsdp_config.model_dtype": (None, "fp32", "float32"),
        "fsdp_config.offload_policy": (None, False),
    }
    for name, values in usual.items():
        if (value := value_at(verl, f"{ACTOR}.{name}")) not in values:
            return f"{ACTOR}.{name}={value}"
    shards = value_at(verl, f"{ACTOR}.fsdp_config.fsdp_size")
    is_part = type(shards) is int and 0 < shards < trainer_gpus(verl)
    return f"{ACTOR}.fsdp_config.fsdp_size={shards}" if is_part else ""


def resident_parts(verl: Tree, training: Training) -> ResidentParts:
    """Return what stays on the trainer's devices between its steps, by the roles' offload flags."""
    trained = (ACTOR, "critic")[: training.models]
    return ResidentParts(
        weights=sum(not _offloads(verl, role, PARAMETERS) for role in trained),
        optimizers=sum(not _offloads(verl, role, OPTIMIZER) for role in trained),
        references=0 if _offloads(verl, REF, PARAMETERS) else training.references,
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
        checkpointed=bool(value_at(verl, "actor_rollout_ref.model.enable_gradient_checkpointing")),
    )
