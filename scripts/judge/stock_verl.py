"""Stock veRL's answer to a launch, the installed release's: by its own Hydra, then by its own objects.

Nothing of our reading counts but the arguments. Models are stand-ins, as in the start check of ``run``. It
changes the process, its working directory too: call it in a fork (scripts/judge/start_corpus.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NO_STEP, ENDS_AT_UPDATE = "stock trains no step", "stock ends at its first update"
# What stands for a path or name that the user has to fill in.
PLACEHOLDER = re.compile(r"^$|[<>]|YOUR_|^/?path/to|^(ref_)?model_path$|^null$", re.IGNORECASE)
# What veRL looks up by name at its first update, as checks/trainer_side.py names it.
ALGORITHM = re.compile(r"^algorithm\.|policy_loss|kl_loss_type")
# Of images, in scripts of older releases; veRL 0.9.1's hf_processor knows no such processor.
UNSEEN = re.compile(r"minicpm-o", re.IGNORECASE)
UNSEEN_WHY = "prompts with images, and veRL has no processor for the model"
_HYDRA_MAIN = re.compile(r"@hydra\.main\((.*?)\)", re.DOTALL)
_ARGUMENT = r'{}\s*=\s*"([^"]*)"'
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def says(module: str, words: Sequence[str], cwd: Path, folder: Path) -> tuple[str, dict[str, Any]]:
    """(why the launch does not start, "" where it does; its configuration, empty where there is none)."""
    from omegaconf import OmegaConf
    from verl.experimental.reward_loop.reward_loop import migrate_legacy_reward_impl
    from verl.utils.config import omega_conf_to_dataclass

    from trinity_compat.common.errors import UserError
    from trinity_compat.run.checks import error_keys

    if importlib.util.find_spec(module) is None:
        return f"a main that 0.9.1 does not have: {module}", {}
    os.chdir(cwd)  # Hydra's search paths are relative to it
    try:
        config = composed(module, words)
    except Exception as error:
        return f"Hydra: {' '.join(str(error).split())}", {}
    try:
        if "actor_rollout_ref" not in config:
            for section in ("engine", "optim", "checkpoint"):
                omega_conf_to_dataclass(config[section])
            return "", {}
        config = migrate_legacy_reward_impl(config)
        tree: Any = OmegaConf.to_container(config, resolve=True)
        return to_fill_in(tree) or objects(tree, module, folder), tree
    except UserError as error:
        return error.message, {}
    except Exception as error:
        return error_keys.words_of(error), {}


def composed(module: str, words: Sequence[str]) -> Any:
    """The configuration of a main's command line. Raises what Hydra raises."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    spec = importlib.util.find_spec(module)
    assert spec and spec.origin
    declared = _HYDRA_MAIN.search(Path(spec.origin).read_text())
    given = {key: _declared(declared, key) for key in ("config_path", "config_name")}
    overrides = []
    for flag, word in _flags(words):
        if flag:
            given[flag] = word
        else:
            overrides.append(word)
    GlobalHydra.instance().clear()
    found = Path(spec.origin).parent / (given["config_path"] or "config")
    with initialize_config_dir(str(found.resolve()), version_base=None):
        return compose((given["config_name"] or "").removesuffix(".yaml"), overrides=overrides)


def _declared(found: re.Match[str] | None, argument: str) -> str | None:
    """An argument of @hydra.main's own."""
    value = re.search(_ARGUMENT.format(argument), found[1]) if found else None
    return value and value[1]


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(flag or "", its value or the override) of each argument."""
    flags = {"-cn": "config_name", "--config-name": "config_name"}
    flags |= {"-cp": "config_path", "--config-path": "config_path"}
    rest = iter(words)
    for word in rest:
        flag, equal, value = word.partition("=")
        if flag in flags:
            yield flags[flag], value if equal else next(rest, "")
        else:
            yield "", word


def to_fill_in(tree: dict[str, Any]) -> str:
    """A value that the user has to fill in first, or that no release trains; "" for other launches."""
    path = str(tree["actor_rollout_ref"]["model"].get("path"))
    if PLACEHOLDER.search(path):
        return f"actor_rollout_ref.model.path={path}: to be filled in"
    if UNSEEN.search(path):
        return UNSEEN_WHY
    return "data.train_files=: to be filled in" if tree["data"].get("train_files") == "" else ""


def objects(given: dict[str, Any], module: str, folder: Path) -> str:
    """Build veRL's objects up to its first update. Raises what they raise.

    Returns what veRL would only find later: a name that it lacks, teachers without GPUs.
    """
    from omegaconf import OmegaConf

    from trinity_compat.explorer.rewards.reward_managers import register_legacy
    from trinity_compat.run.checks import models, trainer_side

    tree = as_main_ppo(given, module)
    critic = tree["algorithm"]["adv_estimator"] == "gae"
    list(models.localise(tree, folder / "models", cwd=folder, execute=False, critic=critic))
    tree["actor_rollout_ref"]["model"]["external_lib"] = None
    register_legacy()
    config = OmegaConf.create(tree)
    OmegaConf.to_container(config, resolve=True)  # as veRL prints it, before anything else
    stages = list(trainer_side.stages(config, is_stock=True))
    # Up to the trainer; what follows looks engines up, which this machine need not have.
    for _, stage in [*stages[:4], *(stage for stage in stages[4:] if ALGORITHM.search(stage[0]))]:
        stage()
    return _unknown_manager(config) or _unknown_loop(config) or _idle_teachers(config)


def as_main_ppo(given: dict[str, Any], module: str) -> dict[str, Any]:
    """veRL's asynchronous mains demand what main_ppo refuses: no hybrid engine, and a train batch of 0."""
    from trinity_compat.common.nested import copied
    from trinity_compat.launch import entrypoints

    tree: dict[str, Any] = copied(given)
    if entrypoints.canonical(module) in (entrypoints.ONE_STEP_OFF, entrypoints.FULLY_ASYNC):
        tree["actor_rollout_ref"]["hybrid_engine"] = True
    if entrypoints.canonical(module) == entrypoints.FULLY_ASYNC:
        tree["data"]["train_batch_size"] = tree["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"]
    return tree


def _unknown_manager(config: Any) -> str:
    """A reward manager that veRL lacks, and that no function of the user's may register; "" for others."""
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER

    manager, function = config.reward.reward_manager, config.reward.custom_reward_function
    own = manager.source != "register" or function.path
    return "" if own or manager.name in REWARD_MANAGER else f"no reward manager is named {manager.name}"


def _unknown_loop(config: Any) -> str:
    """An agent loop, or a class of veRL's that manages them, which veRL lacks; "" for others."""
    from verl.experimental.agent_loop import agent_loop

    agent = config.actor_rollout_ref.rollout.agent
    module = (agent.get("agent_loop_manager_class") or "").rpartition(".")[0]
    try:
        if module.startswith("verl.") and importlib.util.find_spec(module) is None:
            return f"veRL has no module {module}"
    except ModuleNotFoundError as error:
        return str(error)
    own = agent.agent_loop_config_path or agent.default_agent_loop in agent_loop._agent_loop_registry
    return "" if own else f"no agent loop is named {agent.default_agent_loop}"


def _idle_teachers(config: Any) -> str:
    """Return what ``init_resource_pool_mgr`` of trainer/main_ppo.py says of teachers, "" where they fit."""
    teachers = config.get("distillation") or {}
    off = not teachers.get("enabled") or teachers.nnodes > 0
    return "" if off else "config.distillation.nnodes must be greater than 0"


def trains_nothing(tree: dict[str, Any], module: str) -> tuple[str, str]:
    """(NO_STEP or ENDS_AT_UPDATE, veRL's numbers) of a launch that starts and trains nothing, else ("", "").

    Sources: ``set_max_required_samples`` in experimental/fully_async_policy/fully_async_rollouter.py,
    ``train_mini_batch`` in workers/engine_workers.py, of 0.9.1.
    """
    from trinity_compat.launch import entrypoints

    if not tree:
        return "", ""
    actor, trainer = tree["actor_rollout_ref"]["actor"], tree["trainer"]
    if entrypoints.canonical(module) == entrypoints.FULLY_ASYNC and (
        own := tree["rollout"]["total_rollout_steps"]
    ):
        taken, trigger = tree["async_training"], tree["async_training"]["trigger_parameter_sync_step"]
        required = taken["require_batches"] * actor["ppo_mini_batch_size"]
        if not int(own / (required * trigger)):
            return NO_STEP, f"total_train_steps = int({own} / ({required} * {trigger})) = 0"
    ranks = _ranks(actor, trainer["nnodes"] * trainer["n_gpus_per_node"])
    mini = actor["ppo_mini_batch_size"] * tree["actor_rollout_ref"]["rollout"]["n"]
    if ranks and mini % ranks:
        return ENDS_AT_UPDATE, f"Got mini_batch_size={mini} and self.engine.get_data_parallel_size()={ranks}"
    return "", ""


def _ranks(actor: dict[str, Any], gpus: int) -> int:
    """The trainer's data-parallel ranks under FSDP and Megatron; 0 for other engines, and where none fit."""
    if actor["strategy"] in ("fsdp", "fsdp2"):
        share = actor.get("ulysses_sequence_parallel_size") or 1
    elif actor["strategy"] == "megatron":
        share = 1
        for size in _SIZES:
            share *= actor["megatron"].get(size) or 1
    else:
        return 0
    return 0 if gpus % share else gpus // share
