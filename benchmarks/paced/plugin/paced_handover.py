"""Stock veRL's way of weights for separate_async on a CPU: a file in memory. veRL's own need NCCL or RDMA."""

import os
from pathlib import Path

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("paced_file")
class FileHandover(CheckpointEngine):
    """One trainer, any number of engines, one machine."""

    def __init__(self, bucket_size, **_):
        self._file = Path(os.environ["PACED_LOG"]) / "weights.pt"

    def prepare(self):
        return {}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        return {"index": list(range(actor_wg_world_size))}, {"index": list(range(rollout_world_size))}

    def init_process_group(self, index):
        pass

    def finalize(self):
        pass

    async def send_weights(self, weights, global_steps=None):
        part = self._file.with_suffix(".part")
        torch.save({name: tensor.detach().clone() for name, tensor in weights} | {"": global_steps}, part)
        part.replace(self._file)

    async def receive_weights(self, global_steps=None):
        import asyncio

        while True:  # the senders and the receivers are told at the same time
            if self._file.exists():
                weights = torch.load(self._file)
                if weights.pop("") == global_steps:
                    break
            await asyncio.sleep(0.01)
        for name, tensor in weights.items():
            yield name, tensor
