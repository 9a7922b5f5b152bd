"""Checks of the trainer's start by veRL's own code: roles, dataloaders, worker configurations, engine names.

veRL's trainer that the run uses is built and starts its workers; where it would ask Ray for processes a
recorder ends it. The actor's worker then runs its own ``init_model`` up to the engines, which are looked up
and not built.
Source: verl 0.9.1, trainer/ppo/ray_trainer.py, workers/engine_workers.py.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from verl.trainer.distillation import is_distillation_enabled
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.config import HFModelConfig, TrainingWorkerConfig
from verl.workers.engine import EngineRegistry

from trinity_compat.common.errors import UserError
from trinity_compat.common.training_engines import engine_of
from trinity_compat.run.checks import distillation
from trinity_compat.trainer.rank_fillers import in_whole_rows
from trinity_compat.trainer.step_count import PlaceholderDataset
from trinity_compat.trainer.training_processes import TrainingOnlyWorker
from trinity_compat.trainer.verl_v0.adapter import TrinityRayPPOTrainer, _Roles

_ACTOR = "actor_rollout_ref.actor"
_FSDP = ("fsdp", "fsdp2")
_ULYSSES = ("ulysses_sequence_parallel_size", "fsdp_config.ulysses_sequence_parallel_size")
Stage = tuple[str, Callable[[], object]]  # (the section it is about, what to call)


def stages(config: DictConfig, *, registers: bool = False, is_stock: bool = False) -> Iterator[Stage]:
    """Return the stages of the check in order; each raises what veRL raises, and needs those before it.

    ``registers``: whether a module of the user's that is not run may register engines. ``is_stock``: of stock
    veRL, which has no fillers.
    """
    built = SimpleNamespace(registers=registers)
    yield "", lambda: _validated(config if is_stock else in_whole_rows(config))
    yield "actor_rollout_ref.rollout", lambda: omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    yield "actor_rollout_ref.model", lambda: _model(config, built)
    # The last that needs no engine: scripts/judge/stock_verl.py ends with it.
    yield "", lambda: (_v1_trainer if config.trainer.use_v1 else _v0_trainer)(config, built)
    # The engine that each role names.
    roles = {_ACTOR: "language_model"}
    roles |= {"actor_rollout_ref.ref": "language_model"} if need_reference_policy(config) else {}
    roles |= {"critic": "value_model"} if need_critic(config) else {}
    for role, kind in roles.items():
        name = OmegaConf.select(config, f"{role}.strategy")
        yield f"{role}.strategy", partial(_find_engine, kind, name, registers=registers)
    yield "critic" if need_critic(config) else "", lambda: _workers(built)
    yield from distillation.stages(config)
    yield "actor_rollout_ref", lambda: _actor(config, registers=registers)
    # The names that veRL looks up at its first update.
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    mode = actor.policy_loss.get("loss_mode", "vanilla")
    yield "algorithm.adv_estimator", lambda: _estimator(algorithm)
    yield f"{_ACTOR}.policy_loss.loss_mode", lambda: core_algos.get_policy_loss_fn(mode)
    if algorithm.use_kl_in_reward:
        yield "algorithm.kl_penalty", lambda: _kl_penalty(algorithm.kl_penalty)
    if actor.use_kl_loss:
        yield f"{_ACTOR}.kl_loss_type", lambda: _kl_penalty(actor.kl_loss_type)
    if engine_of(actor.strategy).torch_optim:
        yield f"{_ACTOR}.optim", lambda: _optimizer(actor)
    yield "actor_rollout_ref.model", lambda: _architecture(config, built.model)


def _validated(config: DictConfig) -> None:
    validate_config(
        config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
    )


def _model(config: DictConfig, built: SimpleNamespace) -> None:
    if config.actor_rollout_ref.model.path == "":  # of an unset variable; veRL raises an IndexError
        raise UserError("actor_rollout_ref.model.path is empty: write the model's folder or its hub's name")
    built.model = omega_conf_to_dataclass(config.actor_rollout_ref.model)


class _Reached(Exception):
    """Raised where veRL would start processes or build a model."""


class _NoProcesses:
    """Substitute of RayWorkerGroup that starts no process."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def spawn(self, prefix_set: object) -> None:
        raise _Reached


def _v1_trainer(config: DictConfig, built: SimpleNamespace) -> None:
    from trinity_compat.trainer.verl_v1.adapter import TrinityPPOTrainer  # it imports TransferQueue

    datasets = SimpleNamespace(
        tokenizer=built.model.tokenizer,
        processor=built.model.processor,
        train=PlaceholderDataset(config.data.train_batch_size),
        val=PlaceholderDataset(1),
    )
    exchange = SimpleNamespace(started=lambda: None)
    built.trainer = TrinityPPOTrainer(config, exchange, datasets, "cpu", _NoProcesses)
    built.start = built.trainer._setup


def _v0_trainer(config: DictConfig, built: SimpleNamespace) -> None:
    mapping, pools, _ = _Roles().build(config, "cpu")  # pools that ask Ray for nothing, whatever the device
    rows = max(config.data.train_batch_size, config.data.get("gen_batch_size") or 0)
    built.roles = mapping
    built.trainer = TrinityRayPPOTrainer(
        config=config,
        tokenizer=built.model.tokenizer,
        processor=built.model.processor,
        role_worker_mapping=mapping,
        resource_pool_manager=pools,
        ray_worker_group_cls=_NoProcesses,
        train_dataset=PlaceholderDataset(rows),
        val_dataset=PlaceholderDataset(1),
        exchange=SimpleNamespace(started=lambda: None),
    )
    built.start = built.trainer.init_workers


def _workers(built: SimpleNamespace) -> None:
    with contextlib.suppress(_Reached):
        built.start()
    for group in built.trainer.resource_pool_to_cls.values():
        for role in group.values():
            if not isinstance(wanted := role.kwargs.get("config"), DictConfig):
                _find_engine(wanted.model_type, wanted.engine_config.strategy, registers=built.registers)


def _find_engine(model_type: str, strategy: str, *, registers: bool) -> None:
    """Look the engine up, unless its package is missing: veRL calls such an engine unknown."""
    engine = engine_of(strategy)
    if engine.missing() or (registers and not engine.is_known):
        return  # the plan has refused that where this machine trains
    EngineRegistry.get_engine_cls(model_type, strategy)


class _NoEngine:
    """Substitute of TrainingWorker: checks that the engine of its configuration exists."""

    def __init__(self, config: TrainingWorkerConfig, *, registers: bool) -> None:
        _find_engine(config.model_type, config.engine_config.strategy, registers=registers)

    def reset(self) -> None:
        pass

    def set_loss_fn(self, loss: object) -> None:
        pass

    def get_dispatch_collect(self) -> dict[str, object]:
        return {}


class _Actor(TrainingOnlyWorker):
    """The actor's worker outside a process of its own."""

    def __init__(
        self, config: DictConfig, role: str, teachers: DictConfig | None, *, registers: bool
    ) -> None:
        self.config, self.role = config, role
        self.actor_worker_cls = self.ref_worker_cls = partial(_NoEngine, registers=registers)
        self.distillation_enabled, self.distillation_config = is_distillation_enabled(teachers), teachers
        self._omega_profiler_config = config.actor.get("profiler", {})

    def set_dispatch_collect(self, mesh_name: str, **_: object) -> None:
        if mesh_name == "actor":  # next are the weights' transport and a process group
            raise _Reached


def _actor(config: DictConfig, *, registers: bool) -> None:
    role = "actor_ref" if need_reference_policy(config) else "actor"
    with contextlib.suppress(_Reached):
        teachers = copy.deepcopy(config.get("distillation"))
        actor = copy.deepcopy(config.actor_rollout_ref)
        _Actor(actor, role, teachers, registers=registers).init_model()


def _estimator(algorithm: DictConfig) -> None:
    """Look up the estimator; call gdpo as well, which reads the names of its rewards at each step."""
    core_algos.get_adv_estimator_fn(algorithm.adv_estimator)
    if algorithm.adv_estimator != core_algos.AdvantageEstimator.GDPO:
        return
    rewards = algorithm.get("gdpo_reward_keys") or ()
    core_algos.compute_gdpo_outcome_advantage(
        torch.zeros(2, 1),
        torch.ones(2, 1),
        np.array(["group", "group"]),
        config=algorithm,
        non_tensor_batch={name: np.zeros(2) for name in rewards},
        batch={"prompts": torch.zeros(2, 1), "attention_mask": torch.ones(2, 2, dtype=torch.long)},
    )


def _kl_penalty(name: str) -> None:
    core_algos.kl_penalty(torch.zeros(1, 1), torch.zeros(1, 1), name)


def _optimizer(actor: DictConfig) -> None:
    from verl.workers.config.optimizer import build_optimizer

    build_optimizer([torch.nn.Parameter(torch.zeros(1))], omega_conf_to_dataclass(actor.optim))


def _architecture(config: DictConfig, model: HFModelConfig) -> None:
    """Check the model's class, on one layer without storage.

    The head counts are those that Ulysses needs (monkey_patch.py).
    """
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.utils.model import get_hf_auto_model_class

    actor = config.actor_rollout_ref.actor
    if actor.strategy not in _FSDP:
        return
    shape = copy.deepcopy(model.hf_config)
    (getattr(shape, "text_config", None) or shape).num_hidden_layers = 1
    with torch.device("meta"):
        module = get_hf_auto_model_class(hf_config=shape).from_config(shape, attn_implementation="eager")
    apply_monkey_patch(
        model=module,
        use_remove_padding=model.use_remove_padding,
        ulysses_sp_size=max(int(OmegaConf.select(actor, key) or 1) for key in _ULYSSES),
        use_fused_kernels=model.use_fused_kernels,
        fused_kernels_backend=(model.fused_kernel_options or {}).get("impl_backend"),
    )
