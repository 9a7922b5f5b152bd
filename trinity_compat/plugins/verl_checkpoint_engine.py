"""veRL's weight transports: into files (``rollout.checkpoint_engine.backend=trinity_file``) and by broadcast
to processes that veRL doesn't know (``trinity_broadcast``), with ``custom_backend_module`` set to this
module. An extension point of verl 0.9.1 (``CheckpointEngineRegistry``), no patch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict

import torch
import torch.distributed as dist
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry

from trinity_compat.synchronizer.transports.files import WriterShare, write_share
from trinity_compat.synchronizer.transports.nccl import HandoverFailed, Rendezvous, WeightGroup
from trinity_compat.synchronizer.transports.safetensors_io import Named, PartWriter

FILE, BROADCAST = "trinity_file", "trinity_broadcast"


class RankZeroEngine(CheckpointEngine):
    """What both have in common: rank 0 of the actor sends, with floats as ``dtype``; the explorer's engines
    receive without veRL's help, so veRL's process groups and topologies stay unused."""

    def __init__(
        self, bucket_size: int, is_master: bool = False, *, dtype: str = "bfloat16", **_: object
    ) -> None:
        self.bucket_size, self.is_master = bucket_size, is_master
        self.dtype: torch.dtype = getattr(torch, dtype)

    def prepare(self) -> dict[str, object]:
        return {}

    def init_process_group(self, **kwargs: object) -> None:
        """There is none that veRL could form."""

    def finalize(self) -> None:
        """Nothing has to be undone between versions."""

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, object]]
    ) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
        return {}, {}

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self.dtype) if tensor.is_floating_point() else tensor.detach()

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Named]:
        raise NotImplementedError("the explorer's engines receive without veRL's checkpoint engine")
        yield


@CheckpointEngineRegistry.register(FILE)
class FileCheckpointEngine(RankZeroEngine):
    """Writes its share of each version into ``directory``: rank 0 all of it, or every rank some (``shared``);
    ``recycle`` as ``write_share``'s."""

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        directory: str,
        shared: bool = False,
        recycle: bool = False,
        dtype: str = "bfloat16",
        **_: object,
    ) -> None:
        super().__init__(bucket_size, is_master, dtype=dtype)
        self.directory, self.shared, self.recycle = directory, shared, recycle
        self._writer = PartWriter()

    async def send_weights(
        self, weights: Iterator[Named], global_steps: int | None = None
    ) -> dict[str, WriterShare]:
        """Write ``weights`` of version ``global_steps``.

        Every rank must walk through them: each item is an all-gather. Returns {"share": Share}; {} where
        nothing is written. Raises as ``write_share``.
        """
        cast = ((name, self._cast(tensor)) for name, tensor in weights)
        try:
            if not (self.shared or self.is_master):
                return {}
            writer, writers = _place() if self.shared else (0, 1)
            share = write_share(
                self.directory,
                int(global_steps or 0),
                cast,
                writer=writer,
                writers=writers,
                recycle=self.recycle,
                by=self._writer,
            )
            return {"share": share}
        finally:  # or the others would wait for this rank in the all-gather of what it has not drawn
            for _ in cast:
                pass


def _place() -> tuple[int, int]:
    """This rank, and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@CheckpointEngineRegistry.register(BROADCAST)
class BroadcastCheckpointEngine(RankZeroEngine):
    """Broadcasts each version to the group of the meeting that was named last."""

    def __init__(
        self, bucket_size: int, is_master: bool = False, *, dtype: str = "bfloat16", **_: object
    ) -> None:
        super().__init__(bucket_size, is_master, dtype=dtype)
        self._meeting: Rendezvous | None = None
        self._group: WeightGroup | None = None

    def meet(self, meeting: Rendezvous) -> None:
        """Where the next version is handed over."""
        self._meeting = meeting

    async def send_weights(
        self, weights: Iterator[Named], global_steps: int | None = None
    ) -> dict[str, str | int]:
        """Hand ``weights`` over as version ``global_steps``; returns as above.

        Raises HandoverFailed, WeightsDamaged.
        """
        if not self.is_master:
            for _ in weights:
                pass
            return {}
        meeting = self._meeting
        if meeting is None or meeting.version != global_steps:
            raise RuntimeError(f"nobody was told where version {global_steps} is handed over")
        cast = ((name, self._cast(tensor)) for name, tensor in weights)
        try:
            return asdict(self._joined(meeting).send(meeting, cast, self.bucket_size))
        except HandoverFailed:
            self._leave()
            raise
        finally:
            for _ in cast:  # a group that never formed has taken none
                pass

    def _joined(self, meeting: Rendezvous) -> WeightGroup:
        if self._group is None or self._group.name != meeting.group:
            self._leave()
            self._group = WeightGroup(meeting, 0, _device())
        return self._group

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None


def _device() -> torch.device:
    """Where rank 0 trains: its buckets go from there."""
    cuda = torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
