"""Checks of the explorer's start: vLLM's configuration, agent loops, tool parsers, reward managers, media.

No code of the user's runs: agent loops, tools and reward functions are found by name, not imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf
from verl.workers.config import HFModelConfig

from trinity_compat.common.nested import Tree
from trinity_compat.common.paths import from_home
from trinity_compat.explorer.engine.media_tokens import takes_audio
from trinity_compat.explorer.engine.vllm import engine_args
from trinity_compat.explorer.rewards.reward_model.models import reward_arguments, served_model
from trinity_compat.explorer.teachers.arguments import distillation, served_teacher
from trinity_compat.job.distillation import TeacherEntry
from trinity_compat.job.lora import MERGE
from trinity_compat.run.checks.trainer_side import Stage
from trinity_compat.run.plan.refusals import MediaKind, media_held
from trinity_compat.trinity.workflows.reasoning import KEY, ReasoningSplitter, parser_class, parser_in

if TYPE_CHECKING:
    from vllm.config import ModelConfig

_ROLLOUT = "actor_rollout_ref.rollout"
_CUDA_ONLY = ("enable_sleep_mode",)  # arguments that vLLM refuses on other devices


def engine_config(given: Tree, device: str, *, native: bool) -> None:
    """Build vLLM's configuration; raises vLLM's own error for an argument that it refuses.

    Where this machine lacks the device (not ``native``), arguments that vLLM refuses for that reason are left
    out.
    """
    taken = given if native else {name: value for name, value in given.items() if name not in _CUDA_ONLY}
    config = engine_args(taken, "uni" if device == "cpu" else "mp").create_engine_config()
    if config.lora_config and native:
        _check_adapters(config.model_config)


def _check_adapters(model: ModelConfig) -> None:
    """Refuse a model class without adapters, as vLLM does when its engine loads it. Raises ValueError."""
    from vllm.model_executor.model_loader.utils import get_model_cls
    from vllm.model_executor.models import supports_lora

    kind = get_model_cls(model)
    if not supports_lora(kind):
        raise ValueError(f"vLLM's {kind.__name__} takes no LoRA adapters; write {MERGE}=True")


def reward_engine(verl: Tree, device: str, folder: Path) -> Tree:
    """Return the arguments of the reward model's server. ``folder``: for a model that is made here."""
    path, positions = served_model(verl, folder / "reward_model")
    return reward_arguments(verl, model_path=path, device=device, positions=positions)


def teacher_engine(verl: Tree, entry: TeacherEntry, device: str) -> Tree:
    """Return the arguments of a teacher's server."""
    found = distillation(verl)
    assert found is not None  # it has entries
    (teacher,) = (each for each in found.teachers if entry.key in ("", each.key))
    return served_teacher(HFModelConfig(path=teacher.path), teacher.inference, device=device, top=found.top)


def stages(config: DictConfig, model: HFModelConfig, cwd: Path) -> Iterator[Stage]:
    """Yield the stages of the explorer's check, as ``trainer_side.stages`` does."""
    yield "reward.reward_manager", lambda: _reward_manager(config, model)
    yield f"{_ROLLOUT}.agent", lambda: _agent_loop(config, cwd)
    yield f"{_ROLLOUT}.multi_turn", lambda: _tool_parser(config)


def thoughts(config: DictConfig, model: HFModelConfig | None) -> Iterator[Stage]:
    """Yield the stage of the reasoning parser. ``model``: only for chats, with its own tokenizer."""
    if name := parser_in(config):
        yield KEY, lambda: ReasoningSplitter(name, model.tokenizer) if model else parser_class(name)


def _reward_manager(config: DictConfig, model: HFModelConfig) -> None:
    """Check the reward manager as verl/trainer/ppo/reward.py does (``load_reward_manager``).

    The user's function may register a manager, and their module may contain one; those are unknown until the
    code runs.
    """
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.reward import resolve_reward_manager_cls

    manager, reward = config.reward.reward_manager, config.reward
    if manager.source != "register":
        return
    if manager.name not in REWARD_MANAGER and not reward.custom_reward_function.path:
        raise ValueError(f"reward_manager.name={manager.name} is not among {', '.join(REWARD_MANAGER)}")
    if manager.name in REWARD_MANAGER:
        manager_class = resolve_reward_manager_cls(config)
        manager_class(config=config, tokenizer=model.tokenizer, compute_score=lambda **_: 0.0)


def _agent_loop(config: DictConfig, cwd: Path) -> None:
    from verl.experimental.agent_loop import agent_loop

    agent = config.actor_rollout_ref.rollout.agent
    known = set(agent_loop._agent_loop_registry)
    if agent.agent_loop_config_path:
        path = cwd / from_home(agent.agent_loop_config_path)
        if path.is_file():  # the preflight check reports a missing one
            known |= {str(each["name"]) for each in OmegaConf.to_container(OmegaConf.load(path))}
    if agent.default_agent_loop not in known:
        raise ValueError(
            f"default_agent_loop={agent.default_agent_loop} is not among {', '.join(sorted(known))}"
        )


def _tool_parser(config: DictConfig) -> None:
    from verl.experimental.agent_loop.tool_parser import ToolParser

    rollout = config.actor_rollout_ref.rollout
    known = ToolParser._registry
    if rollout.agent.default_agent_loop == "tool_agent" and rollout.multi_turn.format not in known:
        raise ValueError(f"multi_turn.format={rollout.multi_turn.format} is not among {', '.join(known)}")


_TRAIN_FILES = "data.train_files"
_SENSES: dict[MediaKind, str] = {"images": "see", "videos": "see", "audios": "hear"}


def media_stages(config: DictConfig, model: HFModelConfig, cwd: Path) -> Iterator[Stage]:
    """Yield a stage for each kind of media in the data; the model's own files must be here."""
    data = OmegaConf.to_container(OmegaConf.create({"data": config.data}), resolve=True)
    for kind, where in media_held(dict(data), cwd).items():
        yield _TRAIN_FILES, partial(_check_media, kind, where, model)


def _check_media(kind: MediaKind, where: str, model: HFModelConfig) -> None:
    """Raise ValueError for a model without a processor that veRL knows, or without a part for ``kind``."""
    if model.processor is None:
        raise ValueError(
            f"{where}, and {model.path} does not {_SENSES[kind]}: veRL's hf_processor finds no processor of"
            " it that it knows"
        )
    if kind == "audios" and not takes_audio(model.processor):
        raise ValueError(
            f"{where}, and {model.path} does not hear: of the processors that veRL knows only Gemma 4's takes"
            " sounds, of a model with an audio_config"
        )
