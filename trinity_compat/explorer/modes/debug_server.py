"""One engine behind HTTP on this machine, for debugging.

``debug --module inference_model`` serves it; ``HttpEngine`` is its client in the process of
``debug --module workflow``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from trinity_compat.common.browser_requests import is_loopback_name, is_same_origin
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.engine.vllm import Completion, Engine, GenerationRequest
from trinity_compat.synchronizer.transports.files import WeightFile

HOST = "127.0.0.1"  # this machine only, since the port gives access to the model
_LOADING = "loading"


@dataclass(slots=True)
class EngineServer:
    """Answers ``GET /`` with ``about`` and ``POST /submit`` with the engine's completions."""

    engine: Engine
    about: Mapping[str, Any]
    _ready: bool = False
    _count: int = 0

    async def serve(self, port: int, weights: WeightFile | None = None) -> None:
        """Listen, start the engine, load ``weights``, then serve until cancelled.

        Raises UserError when the port is in use, before anything is loaded.
        """
        application = web.Application(client_max_size=2**30, middlewares=[_refuse_pages])
        application.router.add_get("/", self._describe)
        application.router.add_post("/submit", self._submit)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.SockSite(runner, bound(port)).start()
            await self.engine.start()
            if weights:
                await self.engine.load(weights)
            self._ready = True
            print(f"serving {self.about['model']} at {address(port)}; Ctrl-C ends it", flush=True)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
            await self.engine.close()

    async def _describe(self, _: web.Request) -> web.Response:
        return web.json_response({**self.about, "state": "ready" if self._ready else _LOADING})

    async def _submit(self, call: web.Request) -> web.Response:
        requests = [GenerationRequest(**each) for each in (await call.json())["requests"]]
        self._count += 1
        named = [
            GenerationRequest(f"{self._count}/{one.request_id}", one.prompt_ids, one.sampling)
            for one in requests
        ]
        try:
            answers = [await future for future in await self.engine.submit(named)]
        except Exception as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=500)
        return web.json_response({"answers": [[asdict(part) for part in parts] for parts in answers]})


@web.middleware
async def _refuse_pages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what another site's page has a browser send, as the studio does."""
    if not is_loopback_name(request.host):
        raise web.HTTPMisdirectedRequest(text="The model is not served under this host name.")
    if not is_same_origin(request.headers.get):
        raise web.HTTPForbidden(text="The request came from another site.")
    return await handler(request)


class HttpEngine:
    """Client of the engine at ``port``. Implements ``Engine``, except loading."""

    def __init__(self, port: int, model: str) -> None:
        self._port, self._model = port, model

    async def start(self) -> None:
        """Check the server. Raises UserError when it is absent, still loading, or serves another model."""
        about = await self._about()
        if about.get("state") == _LOADING:
            raise UserError(
                f"the model at {address(self._port)} is still being loaded", hint="try again in a moment"
            )
        if about.get("model") != self._model:
            raise UserError(
                f"{address(self._port)} serves {about.get('model')}, not {self._model}",
                hint="end that one, or use another --port on both sides",
            )

    async def _about(self) -> Mapping[str, Any]:
        try:
            async with aiohttp.ClientSession() as session, session.get(address(self._port)) as reply:
                return dict(await reply.json())
        except (aiohttp.ClientConnectionError, OSError):
            raise UserError(
                f"no model is served at {address(self._port)}",
                hint="start it in another terminal with the same source: trinity-compat debug --module"
                f" inference_model --port {self._port} …",
            ) from None
        except (aiohttp.ClientError, ValueError):
            raise UserError(
                f"the server at {address(self._port)} is not `debug --module inference_model`",
                hint="use another --port on both sides",
            ) from None

    async def submit(self, requests: Sequence[GenerationRequest]) -> list[asyncio.Future[list[Completion]]]:
        """Submit requests; see Engine."""
        every = asyncio.ensure_future(self._post(requests))
        return [asyncio.ensure_future(_nth(every, place)) for place in range(len(requests))]

    async def _post(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        body = {"requests": [asdict(one) for one in requests]}
        whole = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=whole) as session,
            session.post(f"{address(self._port)}/submit", json=body) as reply,
        ):
            answer = await reply.json()
        if "error" in answer:
            raise RunError(f"the served model failed: {answer['error']}", hint="see the serving terminal")
        return [[Completion(**part) for part in parts] for parts in answer["answers"]]

    async def load(self, file: WeightFile) -> None:
        """Raise NotImplementedError: the serving process loads the weights."""
        raise NotImplementedError

    async def close(self) -> None:
        """No-op."""


async def _nth(every: asyncio.Future[list[list[Completion]]], place: int) -> list[Completion]:
    return (await every)[place]


def address(port: int) -> str:
    """Return the URL of a served model."""
    return f"http://{HOST}:{port}"


def bound(port: int) -> socket.socket:
    """Return a socket that listens at ``port``. Raises UserError when it is in use."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((HOST, port))
        holder.listen()
    except OSError as error:
        holder.close()
        raise UserError(f"port {port}: {error.strerror}", hint="use another --port on both sides") from None
    return holder
