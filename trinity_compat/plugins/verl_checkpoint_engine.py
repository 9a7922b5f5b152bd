"""veRL's weight transport into files: ``rollout.checkpoint_engine.backend=trinity_file`` with
``custom_backend_module=trinity_compat.plugins.verl_checkpoint_engine``. An extension point of verl 0.9.1
(``CheckpointEngineRegistry``), no patch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from trinity_compat.synchronizer.files import write_file

BACKEND = "trinity_file"


@CheckpointEngineRegistry.register(BACKEND)
class FileCheckpointEngine(CheckpointEngine):
    """Rank 0 of the actor writes each version into ``directory``; floats are stored as ``dtype``."""

    def __init__(
        self, bucket_size: int, is_master: bool = False, *, directory: str, dtype: str = "bfloat16", **_: Any
    ) -> None:
        self.is_master = is_master
        self.directory = directory
        self.dtype: torch.dtype = getattr(torch, dtype)

    def prepare(self) -> dict[str, Any]:
        return {}

    def init_process_group(self, **kwargs: Any) -> None:
        """Files need no group."""

    def finalize(self) -> None:
        """Nothing is held between versions."""

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {}, {}

    async def send_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, Any]:
        """Write ``weights`` as version ``global_steps``. Every rank must walk through them: each item
        is an all-gather. Returns WeightFile's fields on rank 0, {} elsewhere."""
        if not self.is_master:
            for _ in weights:
                pass
            return {}
        on_cpu = ((name, self._store(tensor)) for name, tensor in weights)
        return asdict(write_file(self.directory, int(global_steps or 0), on_cpu))

    def _store(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cpu", self.dtype if tensor.is_floating_point() else tensor.dtype)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Any]:
        """The explorer reads the files itself (``synchronizer.store.read_version``)."""
        raise NotImplementedError("trinity_file is written by the trainer and read through the buffer")
        yield
