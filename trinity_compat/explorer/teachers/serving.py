"""The process that serves the teachers: it places their servers, watches them, stores their addresses.

Invariants: a teacher's addresses are stored once its servers answer; a server that ends, or whose actor is
lost, ends this process with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.served.serving import LOOK_S, ModelServers
from trinity_compat.explorer.teachers import address
from trinity_compat.explorer.teachers.arguments import Teacher, distillation
from trinity_compat.job.gpus import reward_model_sizes
from trinity_compat.job.run_spec import RunSpec

_log = logging.getLogger(__name__)


class TeacherServers(ModelServers):
    """The servers of one teacher."""

    module = "trinity_compat.explorer.teachers.child"

    def __init__(
        self, spec: RunSpec, teacher: Teacher, top: int, count: int, beside: Sequence[tuple[int, int]] = ()
    ) -> None:
        super().__init__(spec, count, beside)
        self.secrets = {address.TOKEN: address.key()}
        self.model = f"the teacher {teacher.key}"
        self._teacher, self._top = teacher, top

    @property
    def width(self) -> int:
        """Number of a server's GPUs."""
        return self._teacher.width

    async def start(self, heart: Heartbeat, before: Sequence[str]) -> list[str]:
        """Start the servers; return their addresses once all answer.

        ``before``: addresses of earlier servers of this run, whose ports are used again. Raises RunError
        with the reason of a server that ends.
        """
        ports = [int(each.rpartition(":")[2]) for each in before]
        ports = (ports + [0] * self._count)[: self._count]
        arguments = [self._arguments(index) for index in range(self._count)]
        return await self.start_servers(arguments, ports, heart)

    def _arguments(self, index: int) -> Mapping[str, Any]:
        teacher = self._teacher
        return {"path": teacher.path, "inference": teacher.inference, "index": index, "top": self._top}


async def serve(spec: RunSpec, buffer: Buffer, heart: Heartbeat, *, parts: int) -> None:
    """Serve until cancelled.

    ``parts``: number of commands that start explorers; each serves a part. Raises RunError when a server
    cannot start, or ends.
    """
    found = distillation(spec.verl)
    if found is None:
        raise RunError("distillation.enabled is not set, so that there are no teachers to serve")
    served: list[TeacherServers] = []
    # The reward model's process does not count the teachers: it chooses first, whichever starts first.
    sizes = [(max(1, count // parts), width) for count, width in reward_model_sizes(spec.verl, spec.device)]
    for place, teacher in enumerate(found.teachers):
        count = max(1, teacher.servers // parts)
        servers = TeacherServers(spec, teacher, found.top, count, sizes)
        addresses = await servers.start(heart, address.load_addresses(buffer, place))
        address.store_addresses(buffer, addresses, place)
        _log.info("serves the teacher %s (%s) at %s", teacher.key, teacher.path, ", ".join(addresses))
        served.append(servers)
        sizes = [*sizes, (count, teacher.width)]
    heart.state = "running"
    while True:
        for servers in served:
            await servers.states()
        await asyncio.sleep(LOOK_S)
