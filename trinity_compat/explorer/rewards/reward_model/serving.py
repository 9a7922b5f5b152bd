"""The process that serves the reward model: it places servers, watches them, stores their address.

Invariants: the address is stored once every server answers; a server that ends, or whose actor is lost, ends
this process with the reason, and the run with it (or ``--restarts`` starts it again at the same address).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.common.nested import value_at
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.rewards.reward_model import address
from trinity_compat.explorer.rewards.reward_model.models import SECTION, reward_arguments, served_model
from trinity_compat.explorer.served.server import free_port
from trinity_compat.explorer.served.serving import LOOK_S, ModelServers
from trinity_compat.job.gpus import reward_model_engines, reward_model_width
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.served_models import configurations

_log = logging.getLogger(__name__)


class RewardServers(ModelServers):
    """The reward model's servers, or those of an auxiliary model."""

    model = "the reward model"
    module = "trinity_compat.explorer.rewards.reward_model.vllm_server"

    @property
    def width(self) -> int:
        """Number of a server's GPUs."""
        return reward_model_width(self._spec.verl, self._spec.device)

    async def start(self, heart: Heartbeat, before: str | None) -> list[str]:
        """Start the servers; return their addresses once all answer.

        ``before``: the address of an earlier server of this run. Raises RunError with vLLM's reason.
        """
        folder = Path(self._spec.job_dir) / "reward_model"
        path, positions = await asyncio.to_thread(served_model, self._spec.verl, folder)
        port = int(before.rpartition(":")[2]) if before and self._count == 1 else 0
        arguments = [
            reward_arguments(
                self._spec.verl,
                model_path=path,
                device=self._spec.device,
                index=index,
                positions=positions,
            )
            for index in range(self._count)
        ]
        return await self.start_servers(arguments, [port] * self._count, heart)


async def serve(spec: RunSpec, buffer: Buffer, heart: Heartbeat, *, parts: int) -> None:
    """Serve until cancelled.

    ``parts``: number of commands that start explorers; each serves a part. Raises RunError when a server
    cannot start, or ends.
    """
    served: list[RewardServers] = []
    sizes: list[tuple[int, int]] = []
    async with contextlib.AsyncExitStack() as fronts:
        for place, verl in enumerate(configurations(spec.verl)):
            count = max(1, reward_model_engines(verl, spec.device) // parts)
            servers = RewardServers(replace(spec, verl=verl), count, sizes)
            before = address.address_cell(place).get(buffer)
            addresses = await servers.start(heart, before)
            front = await fronts.enter_async_context(_one_address(addresses, before))
            address.address_cell(place).set(buffer, front)
            model = value_at(verl, f"{SECTION}.model_path")
            _log.info("serves %s at %s, with %d server(s)", model, front, len(addresses))
            served.append(servers)
            sizes = [*sizes, (count, reward_model_width(verl, spec.device))]
        heart.state = "running"
        while True:
            for servers in served:
                await servers.states()
            await asyncio.sleep(LOOK_S)


@contextlib.asynccontextmanager
async def _one_address(servers: Sequence[str], before: str | None) -> AsyncIterator[str]:
    """Yield one address for all servers: veRL's router, where there are several."""
    if len(servers) == 1:
        yield servers[0]
        return
    import uvicorn
    from verl.experimental.reward_loop.router.naive_router import NaiveRouter

    host = servers[0].rpartition(":")[0]
    port = free_port(host, int(before.rpartition(":")[2]) if before else 0)
    app = NaiveRouter(worker_urls=[f"http://{each}" for each in servers]).app
    server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
    # In another thread: in the main one it would intercept SIGTERM.
    routing = asyncio.ensure_future(asyncio.to_thread(server.run))
    try:
        while not server.started:
            await asyncio.sleep(0.05)
            if routing.done():
                raise RunError(f"the reward model's router does not start at {host}:{port}")
        yield f"{host}:{port}"
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await routing
