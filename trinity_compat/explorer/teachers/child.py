"""``python -m … ARGUMENTS DEVICE HOST PORT``: a teacher's server, with its arguments as one JSON text.

``GET /health`` answers once the engine has its weights; ``POST /score`` takes and returns bodies of ``wire``,
for clients with the key of ``address``. A request that vLLM refuses is answered 400, in vLLM's words. The
process ends when its engine does.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import web

from trinity_compat.common.errors import RunError
from trinity_compat.common.parent_watch import end_with_parent
from trinity_compat.explorer.engine.media_tokens import collapse_placeholders, placeholders
from trinity_compat.explorer.engine.vllm import (
    AsyncEngine,
    Engine,
    EngineConfig,
    EngineDied,
    GenerationRequest,
    InProcessEngine,
    PromptTop,
    request_faults,
)
from trinity_compat.explorer.teachers import address
from trinity_compat.explorer.teachers.arguments import served_teacher
from trinity_compat.explorer.teachers.wire import ScoreRequest, TeacherRows

if TYPE_CHECKING:
    from verl.workers.config import HFModelConfig

_LARGEST = 1 << 30  # bytes of a request


class TeacherServer:
    """HTTP application around a started engine.

    ``key``: requests without it are answered 401. ``processor``: the teacher's, by which the placeholders of
    media are known. ``ended`` gets the exception with which the engine died.
    """

    def __init__(self, engine: Engine, key: str, processor: Any = None) -> None:
        self._engine, self._processor = engine, processor
        self._authorization = f"Bearer {key}".encode()
        self._count = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.app = web.Application(client_max_size=_LARGEST)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_post("/score", self._score)

    async def _health(self, call: web.Request) -> web.Response:
        return web.Response()

    async def _score(self, call: web.Request) -> web.Response:
        given = call.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, self._authorization):
            return web.Response(status=401, text="the key of this server is missing")
        try:
            request = ScoreRequest.decode(await call.read())
            found = await self._top(request)
            if request.top:
                rows = TeacherRows(found.ids, found.logprobs)
            else:
                if not np.array_equal(found.ids[:, 0], request.token_ids[-request.rows :]):
                    raise RunError("vLLM returned log-probabilities of other tokens than the sequence's last")
                rows = TeacherRows(None, found.logprobs)
        except request_faults() as error:
            return web.Response(status=400, text=str(error))
        except EngineDied as error:
            if not self.ended.done():
                self.ended.set_exception(error)
            return web.Response(status=503, text=str(error))
        except RunError as error:
            return web.Response(status=500, text=str(error))
        return web.Response(body=rows.encode())

    async def _top(self, request: ScoreRequest) -> PromptTop:
        """Request log-probabilities as veRL does of its teachers (0.9.1, teacher_manager.py)."""
        given = await asyncio.to_thread(request.media.decode) if request.media else ({}, {})
        self._count += 1
        asked = GenerationRequest(
            f"score-{self._count}",
            collapse_placeholders(request.token_ids.tolist(), self._processor),
            {"prompt_logprobs": request.top, "max_tokens": 1, "temperature": 1.0},
            *given,
            request.rows,
        )
        (answer,) = await self._engine.submit([asked])
        (completion,) = await answer
        if completion.prompt_top is None:
            raise RunError("vLLM returned no log-probabilities of the prompt")
        return completion.prompt_top


def make_engine(model: HFModelConfig, given: Mapping[str, Any], device: str) -> Engine:
    """Create a teacher's engine.

    ``given``: inference, index and top, as for ``teacher_arguments``. Its vocabulary is that of the teacher's
    tokenizer, without placeholders of media (verl 0.9.1, vllm_async_server.py, ``run_server``).
    """
    arguments = served_teacher(
        model, given["inference"], device=device, index=given["index"], top=given["top"]
    )
    config = EngineConfig(arguments, len(model.tokenizer), tuple(placeholders(model.processor)))
    return InProcessEngine(config) if device == "cpu" else AsyncEngine(config)


async def serve(given: Mapping[str, Any], device: str, host: str, port: int) -> None:
    """Serve until cancelled. Raises EngineDied when the engine ends.

    ``given``: path of the model, and as for ``make_engine``.
    """
    from verl.workers.config import HFModelConfig

    key = address.key()
    model = HFModelConfig(path=given["path"])
    engine = make_engine(model, given, device)
    await engine.start()
    server = TeacherServer(engine, key, model.processor)
    # A request whose client has gone away is aborted in the engine.
    runner = web.AppRunner(server.app, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await server.ended
    finally:
        await runner.cleanup()
        await engine.close()


def main(arguments: str, device: str, host: str, port: str) -> None:
    """Serve until SIGTERM."""
    end_with_parent()
    asyncio.run(serve(json.loads(arguments), device, host, int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
