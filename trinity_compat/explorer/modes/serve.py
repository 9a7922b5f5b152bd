"""Mode ``serve``: the newest weights of a job behind an OpenAI-compatible endpoint.

The newest are the version that the job's trainer published last, while its files exist, else the last
checkpoint, else the model that the job began with. Answers in flight continue over a change of weights.
Requests to the endpoint are neither recorded nor trained on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from trinity_compat.buffer.model import WeightVersion
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.engine.sampling import make_job
from trinity_compat.explorer.heartbeat import Heartbeat
from trinity_compat.explorer.modes.bench import checkpoint_version
from trinity_compat.explorer.rollout.worker_group import RolloutWorkers
from trinity_compat.job.checkpoints import whole_steps
from trinity_compat.job.run_spec import SERVE_KEY, RunSpec
from trinity_compat.synchronizer.transports.files import WeightsDamaged
from trinity_compat.trinity.workflows.model import GeneratedAnswer, RunContext, WorkflowModel
from trinity_compat.trinity.workflows.openai_app import make_app, served
from trinity_compat.trinity.workflows.reasoning import ReasoningSplitter
from trinity_compat.trinity.workflows.run_rows import Limits

_log = logging.getLogger(__name__)

ROLE = "serve"
_LOCAL_NAMES = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True, order=True)
class ServedVersion:
    """Step and history of weights, ordered by time."""

    history: int
    step: int


@dataclass(slots=True)
class Endpoint:
    """Serves ``engines``, and loads newer weights as they come."""

    spec: RunSpec
    buffer: Buffer
    engines: RolloutWorkers
    heart: Heartbeat
    _now: ServedVersion = ServedVersion(0, 0)
    _requests: int = 0
    _broken: asyncio.Event = field(default_factory=asyncio.Event)
    _why: RunError | None = None

    async def serve(self, tokenizer: Any, config: DictConfig) -> None:
        """Serve until cancelled. Raises RunError when an engine died, UserError for a port in use."""
        at = self.spec.serve
        assert at is not None
        await self._load_newest()
        async with self._listening(self.app(tokenizer, config)) as address:
            _log.info("serves at %s", address)
            while True:
                self._report(address=address)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._broken.wait(), at.look_every_s)
                if self._why:
                    raise self._why
                self.heart.check()
                await self._load_newest()

    @contextlib.asynccontextmanager
    async def _listening(self, app: Starlette) -> AsyncIterator[str]:
        at = self.spec.serve
        assert at is not None
        async with contextlib.AsyncExitStack() as open_:
            try:
                address = await open_.enter_async_context(served(app, at.host, at.port))
            except OSError as error:
                raise UserError(
                    f"explorer.proxy_port={at.port}: nothing can listen there ({error})"
                ) from error
            yield address

    def app(self, tokenizer: Any, config: DictConfig) -> Starlette:
        """Create the application: chat completions, and trinity-rft's /health and /metrics.

        Without a key requests must name this machine, so that a page in a browser cannot send any by its own
        host name.
        """
        key = os.environ.get(SERVE_KEY, "")
        new = self._models(tokenizer, config)
        app = make_app(lambda token: new() if _is_authorized(token, key) else None)
        app.add_route("/health", _healthy)
        app.add_route("/metrics", self._metrics)
        if not key:
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*_LOCAL_NAMES])
        return app

    def _models(self, tokenizer: Any, config: DictConfig) -> Callable[[], WorkflowModel]:
        """Return a factory of models: one for each request, since requests are independent."""
        rollout, data = config.actor_rollout_ref.rollout, config.data
        context = RunContext(
            writer=self,
            tokenizer=tokenizer,
            experience=None,
            loop=asyncio.get_running_loop(),
            path=str(config.actor_rollout_ref.model.path),
            max_model_len=Limits.of(rollout).whole,
            chat_template=config.actor_rollout_ref.model.get("custom_chat_template"),
            enable_thinking=(data.get("apply_chat_template_kwargs") or {}).get("enable_thinking"),
            tool_format=rollout.multi_turn.get("format"),
            thoughts=ReasoningSplitter.of(config, tokenizer),
        )
        sampling = make_job(self.spec.verl, "train", 0, {}, seeded=False).sampling
        return lambda: WorkflowModel(context, sampling, self._now.step, enable_history=False)

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Implements ``Writer``: an engine that died ends the endpoint too."""
        self._requests += 1
        try:
            return await self.engines.write(prompt_ids, sampling)
        except RunError as error:
            self._why = error
            self._broken.set()
            raise

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Not available over HTTP."""
        raise NotImplementedError

    async def _load_newest(self) -> None:
        """Load the newest weights if they are newer than the present ones.

        Missing or damaged ones are reported, and the next check tries again.
        """
        history, published = self.buffer.history(), self.buffer.latest_version()
        with contextlib.ExitStack() as stack:
            try:
                # In a thread: a large checkpoint takes minutes to read, and requests are answered meanwhile.
                newest = self._newest(history, published)
                version = await asyncio.to_thread(stack.enter_context, newest)
                if version:
                    await self.engines.load(version)
                    self._now = ServedVersion(history, version.version)
                    _log.info("serves the weights of step %d", version.version)
                self.heart.note("")
            except (WeightsDamaged, UserError, OSError) as error:
                self.heart.note(f"newer weights could not be read, and the former stay: {error}")

    @contextlib.contextmanager
    def _newest(self, history: int, published: WeightVersion | None) -> Iterator[WeightVersion | None]:
        """Yield the newest weights, None if they are loaded already."""
        last = max(whole_steps(Path(self.spec.job_dir)), default=0)
        exists = published and published.path and Path(published.path).exists()
        if published and exists and published.version >= last:
            yield published if ServedVersion(history, published.version) > self._now else None
        elif last and ServedVersion(history, last) > self._now:
            with checkpoint_version(self.spec, last) as version:
                yield version
        else:
            yield None

    def _report(self, **more: object) -> None:
        self.heart.state = "running"
        self.heart.detail = {**self.heart.detail, "step": self._now.step, **more}

    async def _metrics(self, request: Request) -> Response:
        """Return metrics by trinity-rft's names; its versions count optimizer updates."""
        version = self._now.step * self.spec.updates_per_step
        return JSONResponse(
            {"rollout/model_0/total_request_count": self._requests, "rollout/model_0/model_version": version}
        )


async def _healthy(request: Request) -> Response:
    return Response(status_code=200)


def _is_authorized(token: str, key: str) -> bool:
    """Return whether a request has the key; without a key, every request is authorized."""
    return not key or hmac.compare_digest(token.encode(), key.encode())
