"""Workers of the training processes, and their resource pools."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import ray
from omegaconf import DictConfig, OmegaConf
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup, ResourcePoolManager
from verl.trainer.ppo.utils import Role
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_torch_device, set_expandable_segments
from verl.utils.memory_utils import aggressive_empty_cache
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, TrainingWorkerConfig

from trinity_compat.common.hung_process import HungProcess, identity, stopped_first, suspect
from trinity_compat.common.training_engines import engine_of
from trinity_compat.common.watchdog import Suspects
from trinity_compat.job import placement
from trinity_compat.job.lora import is_handed_over
from trinity_compat.plugins import lora_merge, rank_metrics
from trinity_compat.synchronizer.adapters import as_version
from trinity_compat.trainer.algorithms import LossFunction, loss_function
from trinity_compat.trainer.rank_fillers import loss_of_rows


class TrainingOnlyWorker(ActorRolloutRefWorker):
    """veRL's actor (and reference) worker without a rollout engine, which the explorer has.

    Its transport (``checkpoint_engine``) and all methods that veRL's trainer calls stay.
    """

    role: str
    ref_worker_cls: Callable[..., TrainingWorker]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.role = self.role.replace("actor_rollout", "actor")
        self._is_rollout = False

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the models as veRL does; then wrap the loss, for further columns and Trinity's KL terms."""
        teacher = self.config.actor.policy_loss.get("trinity_teacher")
        if teacher:
            self.ref_worker_cls = partial(_teacher_worker, self.ref_worker_cls, self.config.model, teacher)
        lora_merge.apply()
        super().init_model()
        if self.actor is not None:
            rank_metrics.apply()
            loss = loss_function(self.loss_fn, self.loss_fn.keywords["config"])
            self.set_loss_fn(partial(loss_of_rows, loss))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int = 0, mode: str = "auto") -> object:
        """Send the weights as veRL does, but the adapter alone where the explorer's engines apply it.

        As in veRL's handover to its own rollout, CUDA's allocator has no expandable segments meanwhile, since
        they cannot be registered with NCCL or shared, and has them from then on: training needs less memory.
        """
        set_expandable_segments(False)
        get_torch_device().empty_cache()
        try:
            if not is_handed_over({"actor_rollout_ref": OmegaConf.to_container(self.config)}):
                return await super().update_weights(global_steps=global_steps, mode=mode)
            adapter, peft = self.actor.engine.get_per_tensor_param(
                layered_summon=self.config.rollout.get("layered_summon", False), base_sync_done=True
            )
            version = as_version(adapter, peft)
            return await self.checkpoint_engine.send_weights(version, global_steps=global_steps)
        finally:
            # Not every engine does it at the end of get_per_tensor_param, and veRL's update_weights returns
            # before it where weights are sent to another process (engine_workers.py).
            if self.actor.engine.is_param_offload_enabled:
                self.actor.engine.to("cpu", model=True, optimizer=False, grad=False)
            get_torch_device().synchronize()
            get_torch_device().empty_cache()
            set_expandable_segments(True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self,
        local_path: str,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        """Save as veRL does, into the folder that it names whatever engine trains."""
        super().save_checkpoint(self._inside(local_path), hdfs_path, global_step, max_ckpt_to_keep)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load what ``save_checkpoint`` wrote, or a checkpoint of stock veRL's."""
        stored = local_path and any(Path(local_path).glob("step-*"))
        path = self._inside(local_path) if stored else local_path
        super().load_checkpoint(path, hdfs_path, del_local_after_load)

    def _inside(self, local_path: str) -> str:
        """Return a path inside of ``local_path`` for an engine that writes beside the path it is given.

        torchtitan's writes ``step-N`` beside it (``save_checkpoint``); in ``actor`` it is found and deleted
        as any other engine's.
        """
        if not engine_of(self.config.actor.strategy).beside:
            return local_path
        Path(local_path).mkdir(parents=True, exist_ok=True)
        return str(Path(local_path) / "model")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def leave_device(self) -> None:
        """Free the memory that torch caches, before another process uses the device."""
        aggressive_empty_cache(force_sync=True)


class CriticWorker(TrainingWorker):
    """veRL's critic worker, whose loss leaves out fillers."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss_fn(self, loss_fn: LossFunction) -> None:
        """Set veRL's loss for the rows that are no fillers."""
        rank_metrics.apply()
        super().set_loss_fn(partial(loss_of_rows, loss_fn))


def _teacher_worker(
    kind: Callable[..., TrainingWorker], model: DictConfig, teacher: str, config: TrainingWorkerConfig
) -> TrainingWorker:
    """Worker of the reference policy with the teacher's weights."""
    named = OmegaConf.merge(model, {"path": teacher, "hf_config_path": None})
    return kind(config=replace(config, model_config=omega_conf_to_dataclass(named)))


class CallObserver(Protocol):
    """Function called with each method that the trainer calls, and a way to find hung processes."""

    def __call__(self, method: str, suspects: Suspects) -> object:
        """Observe a call of ``method``."""


def observe_calls(kind: type[RayWorkerGroup], observer: CallObserver) -> type[RayWorkerGroup]:
    """Subclass of ``kind`` that reports each call to ``observer``: veRL waits for calls without a limit."""
    processes: dict[Any, ray.ObjectRef] = {}  # by actor, its identity and host, once it has answered
    node = ray.get_runtime_context().get_node_id()

    def suspects() -> list[HungProcess]:
        known = [
            (rank, pair) for rank, pair in enumerate(processes.items()) if ray.wait([pair[1]], timeout=0)[0]
        ]
        return stopped_first(
            suspect(f"training process {rank}", ray.get(where), node=node, kill=partial(ray.kill, actor))
            for rank, (actor, where) in known
        )

    class ObservedGroup(kind):
        def _execute_remote_single_worker(
            self, worker: Any, method_name: str, *args: Any, **kwargs: Any
        ) -> Any:
            if worker not in processes:
                processes[worker] = worker.__ray_call__.remote(_where)
            observer(method_name, suspects)
            return super()._execute_remote_single_worker(worker, method_name, *args, **kwargs)

    return ObservedGroup


def _where(worker: object) -> Mapping[str, object]:
    node = ray.get_runtime_context().get_node_id()
    return {**identity(), "node": node, "host": socket.gethostname()}


def reserve_pool(config: DictConfig, tag: str) -> RayResourcePool:
    """Reserve the trainer's resource pool before any process of it starts. Waits for Ray.

    Engines that share its devices start first, and find them by ``tag``
    (``explorer/engine/trainer_devices.py``).
    """
    sizes = [int(config.trainer.n_gpus_per_node)] * int(config.trainer.nnodes)
    pool = RayResourcePool(sizes, name_prefix=f"{tag}pool", max_colocate_count=placement.CPUS_PER_GPU)
    pool.get_placement_groups(device_name=config.trainer.device)
    return pool


def training_pools(
    pools: ResourcePoolManager, device: str, pool: RayResourcePool | None = None
) -> ResourcePoolManager:
    """Pools of the trainer alone, of veRL's ``pools``; the teachers' is the explorer's side's.

    veRL looks up the teachers' pool all the same, and gets the trainer's, in which it starts none.
    ``pool``: the trainer's, where it is reserved already.
    """
    if pools.resource_pool_spec.pop("teacher_pool", None):
        pools.mapping[Role.TeacherModel] = "global_pool"
    if pool is not None:
        return PresetPools(pools.resource_pool_spec, pools.mapping, resource_pool_dict={"global_pool": pool})
    if device == "cpu":
        return CpuPools(resource_pool_spec=pools.resource_pool_spec, mapping=pools.mapping)
    return pools


class PresetPools(ResourcePoolManager):
    """Pools that are reserved already, in ``resource_pool_dict``."""

    def create_resource_pool(self) -> None:
        """No-op: the pools exist."""


class CpuPools(ResourcePoolManager):
    """Pools of one process for each configured "GPU", without GPUs of Ray."""

    def create_resource_pool(self) -> None:
        """Create the pools without GPUs."""
        for name, processes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = RayResourcePool(
                processes, use_gpu=False, max_colocate_count=1, name_prefix=name
            )
