"""The veRL configuration as the trainer needs it: the run's own, less what the explorer does."""

from __future__ import annotations

import logging

from omegaconf import DictConfig, OmegaConf, open_dict
from verl.utils.config import omega_conf_to_dataclass

from trinity_compat.common.training_engines import engine_of
from trinity_compat.job.liveness import from_own_checkpoint
from trinity_compat.job.lora import is_handed_over, lora_rank
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.plugins.verl_checkpoint_engine import BROADCAST, DEVICE, FILE
from trinity_compat.synchronizer.adapters import beside_language_model
from trinity_compat.synchronizer.versions import recycles

_log = logging.getLogger(__name__)

ADAPTER = "trinity_compat.trainer.verl_v0.adapter"


def trainer_config(spec: RunSpec) -> DictConfig:
    """A resolved copy of ``spec.verl`` with veRL's own extension points pointed at us."""
    config = OmegaConf.create(dict(spec.verl))
    OmegaConf.resolve(config)
    with open_dict(config):
        _point_at_us(config, spec)
    return config


def _point_at_us(config: DictConfig, spec: RunSpec) -> None:
    rollout = config.actor_rollout_ref.rollout
    rollout.agent.agent_loop_manager_class = f"{ADAPTER}.StoredRollouts"
    rollout.checkpoint_manager_class = "trinity_compat.trainer.publisher.VersionPublisher"
    transport = rollout.checkpoint_engine
    transport.backend = BROADCAST if spec.sync.method == "nccl" else FILE
    if spec.handover == "device":
        transport.backend = DEVICE
    transport.custom_backend_module = "trinity_compat.plugins.verl_checkpoint_engine"
    # Every rank may write its part of a version if all ranks get the tensors in one order and see one folder:
    # shared memory is not seen by other nodes.
    ordered = engine_of(config.actor_rollout_ref.actor.strategy).ordered
    one_node = int(config.trainer.nnodes) == 1
    files = {
        "directory": spec.sync.directory,
        "recycle": recycles(spec.sync),
        "shared": ordered and (one_node or spec.sync.method == "checkpoint"),
    }
    transport.engine_kwargs = {FILE: files, BROADCAST: {}, DEVICE: files}
    config.trainer.use_v1 = spec.trainer == "v1"
    if config.trainer.use_v1:
        # An asynchronous mode would split a step, save TransferQueue and give its tasks out again.
        config.trainer.v1.trainer_mode, config.trainer.v1.sync = "sync", {}
        queue = config.transfer_queue
        queue.enable, queue.backend.storage_backend = True, "SimpleStorage"
        queue.backend.SimpleStorage.num_data_storage_units = int(config.trainer.nnodes)
    if spec.offloads:
        # Turn on veRL's offloading: models and optimizers are in host memory while others use the device.
        for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"):
            for section in (OmegaConf.select(config, role) or {}).values():
                # A role's sections for engines, whatever their names.
                if isinstance(section, DictConfig) and "param_offload" in section:
                    section.param_offload = section.optimizer_offload = True
    if not spec.resume:
        config.trainer.resume_mode = "disable"
    if from_own_checkpoint():
        config.trainer.resume_mode = "auto"
    # The explorer scores: a reward model of the trainer's would be started for nothing.
    config.reward.reward_model.enable = config.reward.reward_model.enable_resource_pool = False
    if lora_rank(spec.verl) and not is_handed_over(spec.verl):
        hand_over_whole(config)


def hand_over_whole(config: DictConfig) -> None:
    """Let veRL merge the adapter, so that the explorer's engine loads whole models."""
    model = config.actor_rollout_ref.model
    with open_dict(config):
        model.lora = OmegaConf.merge(model.get("lora") or {}, {"merge": True})


def send_whole_where_needed(config: DictConfig) -> None:
    """Send whole models instead of an adapter where the explorer's engines would ignore a part of it."""
    if not is_handed_over(dict(OmegaConf.to_container(config))):
        return
    if beside := beside_language_model(omega_conf_to_dataclass(config.actor_rollout_ref.model)):
        _log.info("LoRA: each version is a whole model, %s is adapted too", beside)
        hand_over_whole(config)
