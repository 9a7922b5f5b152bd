"""Chat completions over HTTP for agents in their own processes: an ASGI app over models.

``make_app`` finds models by the key of a request (``Authorization: Bearer``), so that the key is both the
permission and the recorded session. ``served`` runs an app on a port of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trinity_compat.common.network import LOOPBACK
from trinity_compat.trinity.workflows.model import WorkflowModel
from trinity_compat.trinity.workflows.openai_api import chunks, completion

Find = Callable[[str], WorkflowModel | None]


def make_app(find: Find) -> Starlette:
    """Create the application.

    ``find`` returns the model of a key, None for an unknown or expired one; a request without a key has "".
    """

    async def models(request: Request) -> Response:
        if (model := _model(request, find)) is None:
            return _refused()
        return JSONResponse({"object": "list", "data": [{"id": model.model_path, "object": "model"}]})

    async def chat(request: Request) -> Response:
        if (model := _model(request, find)) is None:
            return _refused()
        return await _chat(model, await request.body())

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ]
    )


def _model(request: Request, find: Find) -> WorkflowModel | None:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return find(key if kind.lower() == "bearer" else "")


def _refused() -> Response:
    return _error(401, "this key is not valid here, or its run has ended")


def _error(status: int, message: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind}}, status_code=status)


async def _chat(model: WorkflowModel, text: bytes) -> Response:
    try:
        body = json.loads(text)
        # In the context of the run: what it waits for the engine is not its own time.
        asked = completion(model, body)
        said = await asyncio.get_running_loop().create_task(asked, context=model.context)
    except (ValueError, KeyError, TypeError) as error:
        return _error(
            400, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        )
    if body.get("stream"):
        return StreamingResponse(_events(said), media_type="text/event-stream")
    return JSONResponse(said)


def _events(said: Mapping[str, Any]) -> Iterator[str]:
    for chunk in chunks(said):
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the process that serves keeps its own."""
        yield


@contextlib.asynccontextmanager
async def served(app: Starlette, host: str = LOOPBACK, port: int = 0) -> AsyncIterator[str]:
    """Serve ``app`` while the block runs; yield its address (http://host:port/v1).

    ``port`` 0: a free one. Raises OSError where it is taken.
    """
    place = socket.create_server((host, port), backlog=2048)
    server = _Server(uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False, ws="none"))
    running = asyncio.ensure_future(server.serve(sockets=[place]))
    try:
        while not server.started:
            if running.done():
                running.result()
            await asyncio.sleep(0.01)
        yield f"http://{host}:{place.getsockname()[1]}/v1"
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait({running}, timeout=5.0)
        place.close()
