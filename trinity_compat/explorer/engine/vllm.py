"""The inference engine behind one small interface: answer requests, load weights.

``InProcessEngine`` runs vLLM inside its caller's process (CPU: no spawned interpreters, starts in two
seconds); ``AsyncEngine`` is vLLM's own asynchronous engine (GPU: overlapped scheduling, tensor
parallelism). Both give log-probabilities of the chosen tokens and never a token that the tokenizer
doesn't know.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.gc_pause import gc_paused
from trinity_compat.synchronizer.engine_dtypes import Dtypes
from trinity_compat.synchronizer.transports.files import WeightFile, WeightsDamaged


def compact(bound: Mapping[str, Any]) -> dict[str, Any]:
    """Apply ``disable_any_whitespace`` of a request's ``structured_outputs``.

    The schema becomes a grammar with only ``json.dumps``'s spaces. A schema without a grammar in xgrammar
    stays, for the backend that vLLM then uses.
    """
    if not bound.get("disable_any_whitespace") or not isinstance(bound.get("json"), Mapping):
        return dict(bound)
    grammar = _grammar(json.dumps(bound["json"]))
    return {"grammar": grammar} if grammar else dict(bound)


@lru_cache(256)
def _grammar(schema: str) -> str | None:
    import xgrammar
    from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features

    if has_xgrammar_unsupported_json_features(json.loads(schema)):
        return None
    try:
        return str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=False))
    except RuntimeError:  # a schema that it cannot read
        return None


_EXTENSION = "trinity_compat.plugins.vllm_weights.WeightReceiver"
_T = TypeVar("_T")


def request_faults() -> tuple[type[Exception], ...]:
    """Return the exceptions of a request at fault: vLLM 0.28 has classes for it, 0.24 a ValueError's."""
    from vllm import exceptions

    return ValueError, getattr(exceptions, "VLLMClientError", ValueError)


class EngineDied(RuntimeError):
    """vLLM has stopped; its pending requests will not be answered."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request.

    ``prompt_ids`` int [P]; ``sampling`` holds vLLM's SamplingParams by name (n, seed, max_tokens, …).

    ``media`` is vLLM's ``multi_modal_data``; ``prompt_ids`` then have one placeholder for each image. Its
    processor gets ``processor_kwargs``. ``prompt_rows``: number of the prompt's last tokens of which a
    ``PromptTop`` is returned, with as many tokens as ``sampling``'s ``prompt_logprobs`` requests.
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: Mapping[str, Any]
    media: Mapping[str, Any] = field(default_factory=dict)
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prompt_rows: int = 0

    @property
    def prompt(self) -> dict[str, Any]:
        """Prompt in vLLM's form (veRL's vllm_async_server.py: ``generate``, 0.9.1)."""
        prompt: dict[str, Any] = {"prompt_token_ids": list(self.prompt_ids)}
        if self.media:
            prompt["multi_modal_data"] = dict(self.media)
        if self.media and self.processor_kwargs:
            prompt["mm_processor_kwargs"] = dict(self.processor_kwargs)
        return prompt


@dataclass(frozen=True, slots=True, eq=False)
class PromptTop:
    """The K most probable tokens in place of each of a prompt's last R tokens.

    ``ids`` int32 [R, K] and ``logprobs`` float32 [R, K], most probable first, at temperature 1. K is 1 where
    ``prompt_logprobs`` was 0: then they are of the prompt's own tokens.
    """

    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Completion:
    """``token_ids`` int [R] and ``logprobs`` float [R] of one response; ``reason``: stop, length or abort.

    ``prompt_logprobs`` float [P - 1], of every prompt token after the first, where they were requested;
    ``prompt_top`` where the request has ``prompt_rows``.
    """

    token_ids: list[int]
    logprobs: list[float]
    reason: str
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_top: PromptTop | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine.

    ``arguments`` are vLLM's EngineArgs by name; ``vocabulary`` the number of tokens that exist; ``banned``
    those that are never sampled. ``stale_cache``: requests in flight keep their key-value caches over a load.
    """

    arguments: Mapping[str, Any]
    vocabulary: int
    banned: tuple[int, ...] = field(default=())
    stale_cache: bool = False

    @property
    def begins_empty(self) -> bool:
        """Return whether vLLM starts with random weights, and the model's are loaded afterwards."""
        return self.arguments.get("load_format") == "dummy"

    @property
    def adapts(self) -> bool:
        """Return whether versions are LoRA adapters of the model that vLLM starts with."""
        return bool(self.arguments.get("enable_lora"))

    @property
    def holds_more(self) -> bool:
        """Return whether the engine has weights that no version brings: an adapter's base, a drafter's.

        veRL's rule (vllm_async_server.py: ``_resolve_sleep_level``, 0.9.1).
        """
        return self.adapts or bool(self.arguments.get("speculative_config"))

    @property
    def adapter(self) -> dict[str, Any]:
        """Argument of vLLM for answering a request with the loaded adapter; empty without adapters."""
        if not self.adapts:
            return {}
        from trinity_compat.plugins.vllm_weights import adapter_request

        return {"lora_request": adapter_request()}

    def prompt(self, request: GenerationRequest, loads: int) -> dict[str, Any]:
        """Return a request's prompt, with no other caches than those of prompts since the last of ``loads``.

        vLLM forgets caches of prompts only while no request holds any.
        """
        return request.prompt | ({"cache_salt": str(loads)} if self.stale_cache else {})


class Engine(Protocol):
    """An inference engine; all methods run on one asyncio loop."""

    async def start(self) -> None:
        """Build the engine, with the weights of the model path."""

    async def submit(self, requests: Sequence[GenerationRequest]) -> list[asyncio.Future[list[Completion]]]:
        """Admit all requests before the next decoding step, so that the same requests make the same batches.

        Each future gives a request's n completions, in order, or raises EngineDied. Cancelling it aborts the
        request: its slots are free at the next step.
        """

    async def load(self, file: WeightFile) -> Sequence[Mapping[str, Any]] | None:
        """Load a version's weights; return each worker's answer, that of ``WeightReceiver.receive_file``.

        Requests in flight continue with them: their tokens stay; their caches are recomputed without
        ``stale_cache``. Raises WeightsDamaged for a file that differs from what was published, RunError when
        vLLM can't load it.
        """

    async def close(self) -> None:
        """Release processes and memory."""


class LocalEngine(Engine, Protocol):
    """An engine in processes of this run, which can receive weights directly from the trainer.

    ``steps`` grows with each step that gives tokens; ``owed``: requests without an answer.
    """

    steps: int

    @property
    def owed(self) -> int:
        """Number of requests without an answer."""

    async def receive(self, meeting: Mapping[str, Any], first_rank: int) -> Sequence[Mapping[str, Any]]:
        """Receive weights at a ``Rendezvous`` (as a dict), with ranks from ``first_rank``.

        Otherwise as ``load``. Returns each worker's answer, that of ``WeightReceiver.receive_broadcast``.
        """

    async def dtypes(self) -> Sequence[Dtypes]:
        """Return each worker's answer, that of ``WeightReceiver.dtypes``."""

    async def sleep(self) -> None:
        """Free the device's memory. The weights are lost; answers in flight stop, and their tokens stay."""

    async def wake(self) -> None:
        """Take the memory of the weights again.

        A version has to be loaded next: then the answers go on; or received, and they go on with ``resume``.
        """

    async def resume(self) -> None:
        """Take the rest of the memory, after weights were received by an engine that slept."""


class _Waiting(NamedTuple):
    """A request's answer to come."""

    future: asyncio.Future[list[Completion]]
    prompt_rows: int

    def answer(self, output: Any) -> None:
        """Set the completions, or the exception of converting them."""
        try:
            self.future.set_result(completions(output, self.prompt_rows))
        except Exception as error:
            self.future.set_exception(error)


class InProcessEngine:
    """vLLM's synchronous engine, in a thread that builds it, steps it and loads its weights."""

    def __init__(self, config: EngineConfig) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vllm")
        self._config = config
        self._waiting: dict[str, _Waiting] = {}
        self._driver: asyncio.Task[None] | None = None
        self._engine: Any = None
        self._loads = 0
        self.steps = 0

    @property
    def owed(self) -> int:
        """Number of requests without an answer."""
        return len(self._waiting)

    async def start(self) -> None:
        """Build the engine with the model's weights."""
        self._engine = await self._call(self._build)

    def _build(self) -> Any:
        with gc_paused():
            from vllm.v1.engine.llm_engine import LLMEngine

        engine = LLMEngine.from_engine_args(engine_args(self._config.arguments, "uni"))
        engine.collective_rpc("mask_vocabulary", args=(self._config.vocabulary, self._config.banned))
        if self._config.begins_empty:
            check_loaded(engine.collective_rpc("receive_model"))
        if self._config.adapts:
            engine.collective_rpc("begin_unadapted")
        return engine

    async def submit(self, requests: Sequence[GenerationRequest]) -> list[asyncio.Future[list[Completion]]]:
        """Admit all requests before the next step; see Engine."""
        loop = asyncio.get_running_loop()
        futures = {request.request_id: loop.create_future() for request in requests}
        self._waiting |= {
            request.request_id: _Waiting(futures[request.request_id], request.prompt_rows)
            for request in requests
        }
        try:
            await self._call(self._admit, requests)
        except Exception:  # else the refused request is owed forever, and the driver steps without end
            for request_id in futures:
                self._waiting.pop(request_id, None)
            await self._call(self._engine.abort_request, list(futures))
            raise
        for request_id, future in futures.items():
            future.add_done_callback(functools.partial(self._abort_if_cancelled, request_id))
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
        return list(futures.values())

    def _abort_if_cancelled(self, request_id: str, future: asyncio.Future[list[Completion]]) -> None:
        if future.cancelled() and request_id in self._waiting:
            del self._waiting[request_id]
            self._thread.submit(self._engine.abort_request, [request_id])

    def _admit(self, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            prompt, params = self._config.prompt(request, self._loads), sampling_params(request.sampling)
            self._engine.add_request(request.request_id, prompt, params, **self._config.adapter)

    async def _drive(self) -> None:
        try:
            while self._waiting:
                outputs = await self._call(self._engine.step)
                self.steps += 1
                for output in outputs:
                    waiting = self._waiting.pop(output.request_id, None) if output.finished else None
                    if waiting and not waiting.future.done():
                        waiting.answer(output)
        except Exception as error:
            for future in [each.future for each in self._waiting.values() if not each.future.done()]:
                future.set_exception(EngineDied(f"vLLM: {error!r}"))
            self._waiting.clear()

    async def load(self, file: WeightFile) -> Sequence[Mapping[str, Any]]:
        """Load a file between two steps; see Engine."""
        return await self._call(self._load, file)

    def _load(self, file: WeightFile) -> Sequence[Mapping[str, Any]]:
        answers = self._engine.collective_rpc("receive_file", args=(file.path, file.digest, file.nbytes))
        self._reset_caches()
        check_loaded(answers)
        return list(answers)

    async def receive(self, meeting: Mapping[str, Any], first_rank: int) -> Sequence[Mapping[str, Any]]:
        """Receive weights between two steps; see LocalEngine."""
        return await self._call(self._receive, meeting, first_rank)

    async def dtypes(self) -> Sequence[Dtypes]:
        """Return the workers' dtypes; see LocalEngine."""
        return list(await self._call(self._engine.collective_rpc, "dtypes"))

    def _receive(self, meeting: Mapping[str, Any], first_rank: int) -> Sequence[Mapping[str, Any]]:
        answers = self._engine.collective_rpc("receive_broadcast", args=(meeting, first_rank))
        self._reset_caches()
        return list(answers)

    def _reset_caches(self) -> None:
        """Discard what former weights computed; ``stale_cache`` keeps keys and values."""
        self._loads += 1
        if not self._config.stale_cache:
            self._engine.reset_prefix_cache(reset_running_requests=True)
        self._engine.reset_encoder_cache()

    async def sleep(self) -> None:
        """No-op: vLLM has no sleep mode on a CPU, where there is no device memory to free."""

    async def wake(self) -> None:
        """No-op, as ``sleep``."""

    async def resume(self) -> None:
        """No-op, as ``sleep``."""

    async def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


class AsyncEngine:
    """vLLM's AsyncLLM with its own processes; one per tensor-parallel group."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._engine: Any = None
        self._has_cache = True
        self._loads = 0
        self.steps = self.owed = 0

    async def start(self) -> None:
        """Start vLLM's processes with the model's weights."""
        with gc_paused():
            from vllm.v1.engine.async_llm import AsyncLLM

        self._engine = AsyncLLM.from_engine_args(engine_args(self._config.arguments, "mp"))
        self._count_steps(self._engine.output_processor)
        await self._engine.collective_rpc(
            "mask_vocabulary", args=(self._config.vocabulary, self._config.banned)
        )
        if self._config.begins_empty:
            check_loaded(await self._exchange("receive_model"))
        if self._config.adapts:
            await self._engine.collective_rpc("begin_unadapted")

    async def submit(self, requests: Sequence[GenerationRequest]) -> list[asyncio.Future[list[Completion]]]:
        """Admit requests; see Engine."""
        return [asyncio.ensure_future(self._answer(request)) for request in requests]

    def _count_steps(self, outputs: Any) -> None:
        """Count the steps of vLLM's processes, whose outputs are whole answers only."""
        process = outputs.process_outputs

        def counted(found: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self.steps += bool(found)
            return process(found, *args, **kwargs)

        outputs.process_outputs = counted

    @contextlib.contextmanager
    def _death_is_told(self) -> Iterator[None]:
        """Raise EngineDied for an error of a block in which vLLM's processes have died."""
        try:
            yield
        except Exception as error:
            if self._engine.errored:
                raise EngineDied(f"vLLM: {error!r}") from error
            raise

    async def _answer(self, request: GenerationRequest) -> list[Completion]:
        final: Any = None
        self.owed += 1
        try:
            prompt, params = self._config.prompt(request, self._loads), sampling_params(request.sampling)
            answering = self._engine.generate(prompt, params, request.request_id, **self._config.adapter)
            with self._death_is_told():
                async for output in answering:
                    final = output
        finally:
            self.owed -= 1
        return completions(final, request.prompt_rows)

    async def load(self, file: WeightFile) -> Sequence[Mapping[str, Any]]:
        """Load a file with generation paused; see Engine."""
        answers = await self._exchange("receive_file", file.path, file.digest, file.nbytes)
        check_loaded(answers)
        return list(answers)

    async def receive(self, meeting: Mapping[str, Any], first_rank: int) -> Sequence[Mapping[str, Any]]:
        """Receive weights with generation paused, which it stays after a sleep; see LocalEngine."""
        return list(await self._exchange("receive_broadcast", meeting, first_rank, resumes=self._has_cache))

    async def dtypes(self) -> Sequence[Dtypes]:
        """Return the workers' dtypes; see LocalEngine."""
        with self._death_is_told():
            return list(await self._engine.collective_rpc("dtypes"))

    async def _exchange(self, method: str, *args: Any, resumes: bool = True) -> Any:
        with self._death_is_told():
            await self._engine.pause_generation(mode="keep", clear_cache=False)
            try:
                answers = await self._engine.collective_rpc(method, args=args)
                self._loads += 1
                if not (self._config.stale_cache and self._has_cache):
                    await self._engine.reset_prefix_cache(reset_running_requests=True)
                await self._engine.reset_encoder_cache()  # the vision tower's outputs
            finally:  # else requests in flight would never be answered, nor fail
                if resumes:
                    await self.resume()
        return answers

    async def resume(self) -> None:
        """Go on with the answers; after a sleep vLLM does when the cache has its memory again."""
        if self._has_cache:
            await self._engine.resume_generation()
        else:
            await self._engine.wake_up(["kv_cache"])
            self._has_cache = True

    async def sleep(self) -> None:
        """Free the device's memory (vLLM's level 2; level 1 where more is held); see LocalEngine."""
        self._has_cache = False
        with self._death_is_told():
            await self._engine.collective_rpc("forget_held")
            await self._engine.sleep(level=1 if self._config.holds_more else 2, mode="keep")

    async def wake(self) -> None:
        """Take the memory of the weights again; see LocalEngine."""
        with self._death_is_told():
            await self._engine.wake_up(["weights"])

    async def close(self) -> None:
        """End vLLM's processes."""
        self._engine.shutdown()


def engine_args(arguments: Mapping[str, Any], executor: str) -> Any:
    """Build vLLM's AsyncEngineArgs as from the command line that veRL's server writes.

    Texts, numbers and JSON mean what they mean there. Raises UserError for a value that vLLM's parser
    refuses.
    """
    from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
    from vllm import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
    parser.error = _refuse
    words = build_cli_args_from_config(
        {**arguments, "distributed_executor_backend": executor, "worker_extension_cls": _EXTENSION}
    )
    try:
        return AsyncEngineArgs.from_cli_args(parser.parse_args(words))
    except argparse.ArgumentError as error:
        raise UserError(f"vLLM does not take {error}") from error


def _refuse(message: str) -> NoReturn:
    raise UserError(f"vLLM does not take its arguments: {message}")


def check_loaded(answers: Sequence[Mapping[str, Any]]) -> None:
    """Raise for the first of the workers' answers to ``receive_file`` that reports a failure."""
    for answer in answers:
        if "damaged" in answer:
            raise WeightsDamaged(answer["damaged"])
        if "failed" in answer:
            raise RunError(f"vLLM could not load the weights: {answer['failed']}")


def sampling_params(values: Mapping[str, Any]) -> Any:
    """Build vLLM's SamplingParams: whole answers only (else n children come one by one), chosen log-probs.

    The log-probs are the model's also where ``structured_outputs`` allows only some tokens.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    if bound := values.get("structured_outputs"):
        values = {**values, "structured_outputs": StructuredOutputsParams(**compact(bound))}
    fixed = {"logprobs": 0, "output_kind": RequestOutputKind.FINAL_ONLY, "flat_logprobs": True}
    return SamplingParams(**{"detokenize": bool(values.get("stop")), **values, **fixed})


def completions(output: Any, prompt_rows: int = 0) -> list[Completion]:
    """Convert a finished RequestOutput to its completions, ordered by index.

    ``prompt_rows``: as a GenerationRequest's.
    """
    flat = output.prompt_logprobs  # vLLM's FlatLogprobs; the first token has none
    prompt_logprobs = [flat.logprobs[start] for start in flat.start_indices[1:]] if flat is not None else []
    top = prompt_top(flat, prompt_rows) if prompt_rows else None
    return [
        Completion(
            token_ids=list(part.token_ids),
            logprobs=[part.logprobs.logprobs[start] for start in part.logprobs.start_indices],
            reason=part.finish_reason or "abort",
            prompt_logprobs=prompt_logprobs,
            prompt_top=top,
        )
        for part in sorted(output.outputs, key=lambda part: part.index)
    ]


def prompt_top(flat: Any, rows: int) -> PromptTop:
    """Return the last ``rows`` rows of a prompt's FlatLogprobs.

    A position has its own token first, then the K most probable ones, among which its own may be again
    (vLLM's logprobs.py, ``append_logprobs_for_next_position``). Raises RunError where the prompt has fewer
    rows, or none were requested.
    """
    found = 0 if flat is None else len(flat.start_indices) - 1
    if found < rows:
        raise RunError(f"vLLM returned log-probabilities of {found} prompt tokens instead of {rows}")
    width = flat.end_indices[-1] - flat.start_indices[-1]
    kept = slice(-rows * width, None)
    ids = np.array(flat.token_ids[kept], np.int32).reshape(rows, width)
    logprobs = np.array(flat.logprobs[kept], np.float32).reshape(rows, width)
    return PromptTop(ids, logprobs) if width == 1 else PromptTop(ids[:, 1:], logprobs[:, 1:])
