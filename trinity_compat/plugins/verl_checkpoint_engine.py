"""Weight transports for veRL: into files, by broadcast and on a device, to processes outside veRL.

They are ``rollout.checkpoint_engine.backend=trinity_file``, ``trinity_broadcast`` and ``trinity_device``,
with ``custom_backend_module`` set to this module: an extension point of verl 0.9.1
(``CheckpointEngineRegistry``), not a patch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_id, get_device_name

from trinity_compat.synchronizer.engine_dtypes import Dtypes, rounded
from trinity_compat.synchronizer.transports.files import write_share
from trinity_compat.synchronizer.transports.nccl import Rendezvous, TransferFailed, WeightGroup, room_on
from trinity_compat.synchronizer.transports.safetensors_io import Named, PartWriter

FILE, BROADCAST, DEVICE = "trinity_file", "trinity_broadcast", "trinity_device"


class RankZeroEngine(CheckpointEngine):
    """Base of them: rank 0 of the actor sends, in the ``dtypes`` that the explorers' engines hold.

    The explorer's engines receive without veRL, so veRL's process groups and topologies stay unused.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, **_: object) -> None:
        self.bucket_size, self.is_master = bucket_size, is_master
        self.dtypes: Dtypes = {}

    def expect(self, dtypes: Dtypes) -> None:
        """Set the engines' dtypes for the next version, the same at all ranks."""
        self.dtypes = dtypes

    def prepare(self) -> dict[str, object]:
        """Return no metadata."""
        return {}

    def init_process_group(self, **kwargs: object) -> None:
        """No-op: veRL forms no process group."""

    def finalize(self) -> None:
        """No-op."""

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, object]]
    ) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
        """Return no topology."""
        return {}, {}

    def _rounded(self, weights: Iterator[Named]) -> Iterator[Named]:
        return (rounded(named, self.dtypes) for named in weights)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Named]:
        """Not available."""
        raise NotImplementedError("the explorer's engines receive without veRL's checkpoint engine")
        yield


@CheckpointEngineRegistry.register(FILE)
class FileCheckpointEngine(RankZeroEngine):
    """Writes its share of each version into ``directory``.

    Rank 0 writes all of it, or every rank a part (``shared``); ``recycle`` as in ``write_share``.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        directory: str,
        shared: bool = False,
        recycle: bool = False,
        **_: object,
    ) -> None:
        super().__init__(bucket_size, is_master)
        self.directory, self.shared, self.recycle = directory, shared, recycle
        self._writer = PartWriter()

    async def send_weights(self, weights: Iterator[Named], global_steps: int | None = None) -> dict[str, Any]:
        """Write ``weights`` of version ``global_steps``.

        Every rank must iterate over them: each item is an all-gather. Returns {"share": Share}; {} where
        nothing is written. Raises as ``write_share``.
        """
        sent = self._rounded(weights)
        try:
            if not (self.shared or self.is_master):
                return {}
            writer, writers = _place() if self.shared else (0, 1)
            share = write_share(
                self.directory,
                int(global_steps or 0),
                sent,
                writer=writer,
                writers=writers,
                recycle=self.recycle,
                by=self._writer,
            )
            return {"share": share}
        finally:  # else the others would wait for this rank in the all-gather of the remaining items
            for _ in sent:
                pass


def _place() -> tuple[int, int]:
    """Return this rank and the number of ranks."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@CheckpointEngineRegistry.register(BROADCAST)
class BroadcastCheckpointEngine(RankZeroEngine):
    """Broadcasts each version to the group of the latest rendezvous."""

    def __init__(self, bucket_size: int, is_master: bool = False, **_: object) -> None:
        super().__init__(bucket_size, is_master)
        self._meeting: Rendezvous | None = None
        self._group: WeightGroup | None = None

    def meet(self, meeting: Rendezvous) -> None:
        """Set the rendezvous of the next version."""
        self._meeting = meeting

    async def send_weights(
        self, weights: Iterator[Named], global_steps: int | None = None
    ) -> dict[str, str | int]:
        """Broadcast ``weights`` as version ``global_steps``; return digest and size at rank 0.

        Raises TransferFailed, WeightsDamaged.
        """
        if not self.is_master:
            for _ in weights:
                pass
            return {}
        meeting = self._meeting
        if meeting is None or meeting.version != global_steps:
            raise RuntimeError(f"version {global_steps} has no rendezvous")
        sent = self._rounded(weights)
        try:
            if self._group is None or self._group.name != meeting.group:
                self._leave()
                self._group = WeightGroup(meeting, 0, _device())
            return asdict(self._group.send(meeting, sent, self.bucket_size))
        except TransferFailed:
            self._leave()
            raise
        finally:
            for _ in sent:  # a group that never formed has drawn none
                pass

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None


@CheckpointEngineRegistry.register(DEVICE)
class DeviceCheckpointEngine(FileCheckpointEngine):
    """Each rank sends each version to the engine's worker on its device; writes those without a meeting."""

    def __init__(self, bucket_size: int, is_master: bool = False, **options: Any) -> None:
        super().__init__(bucket_size, is_master, **options)
        from trinity_compat.plugins.device_transfer import DeviceSender  # vLLM's import takes a while

        self._sender = DeviceSender
        self._meeting: Rendezvous | None = None

    def meet(self, meeting: Rendezvous) -> None:
        """Set the rendezvous of the next version."""
        self._meeting = meeting

    async def send_weights(self, weights: Iterator[Named], global_steps: int | None = None) -> dict[str, Any]:
        """Send ``weights``; return digest and size. Raises TransferFailed, when all were drawn."""
        meeting, self._meeting = self._meeting, None
        if meeting is None:
            return await super().send_weights(weights, global_steps)
        sent, device = self._rounded(weights), _device()
        try:
            bucket = min(self.bucket_size, room_on(device))
            return asdict(await self._sender(meeting, _place()[0], device, bucket).send(sent))
        finally:
            for _ in sent:
                pass


def _device() -> torch.device:
    """Return the device of this rank, from which its buckets are sent."""
    name = get_device_name()
    return torch.device(name) if name == "cpu" else torch.device(name, get_device_id())
