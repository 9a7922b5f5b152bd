"""One rank of veRL's own engine under FSDP1, the GPU's default, on a CPU. torch refuses two things there that
have nothing to do with what is tested: to send a CPU's parameters from rank to rank, and a device "cpu:cpu".

Arguments of ``go``: the toy's model, a folder to write in, sizes of the world and of a group that shards.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist


def go(rank: int, model: str, folder: str, world: int, group: int, offload: bool) -> None:
    """Writes a checkpoint, a version's share (``share-RANK.json``), and the model's parameters as rank 0 has
    them whole (``whole.pt``), after one step of the optimizer."""
    warnings.simplefilter("ignore")
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    with (
        patch("torch.distributed.fsdp._init_utils._check_module_states_for_sync_module_states"),
        patch("verl.utils.fsdp_utils.get_device_id", lambda: 0),
    ):
        engine = engine_of(model, group, offload)
        with engine.train_mode():
            engine.module(torch.arange(8)[None]).logits.float().logsumexp(-1).sum().backward()
            assert engine.optimizer_step() > 0
        engine.save_checkpoint(f"{folder}/actor")
        share = sent(engine, folder)
        with engine.eval_mode(), FSDP.summon_full_params(engine.module, writeback=False):
            whole = {name: value.clone() for name, value in engine.module.named_parameters()}
    Path(folder, f"share-{rank}.json").write_text(json.dumps(share))
    if rank == 0:
        torch.save(whole, f"{folder}/whole.pt")
    dist.destroy_process_group()


def engine_of(model: str, group: int, offload: bool):
    """As veRL's worker makes it."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    settings = FSDPEngineConfig(
        strategy="fsdp",
        fsdp_size=group,
        param_offload=offload,
        optimizer_offload=offload,
        use_torch_compile=False,
    )
    model_config = HFModelConfig(path=model, use_remove_padding=False, override_config=EAGER)
    model_config.model_type = "language_model"
    engine = FSDPEngineWithLMHead(
        model_config, settings, FSDPOptimizerConfig(lr=0.1, total_training_steps=9), CheckpointConfig()
    )
    engine.initialize()
    return engine


EAGER = {"attn_implementation": "eager"}


def sent(engine, folder: str):
    """This rank's share of version 1, as our transport writes it."""
    from dataclasses import asdict

    from trinity_compat.plugins.verl_checkpoint_engine import FileCheckpointEngine

    weights, _ = engine.get_per_tensor_param()
    transport = FileCheckpointEngine(1, dist.get_rank() == 0, directory=f"{folder}/weights", shared=True)
    return asdict(asyncio.run(transport.send_weights(weights, global_steps=1))["share"])
