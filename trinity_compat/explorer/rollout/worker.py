"""Rollout worker, a Ray actor: one engine, and the code that turns tasks into token sequences.

Single-turn text tasks are sent to the engine as one request per group; everything else runs through veRL's
agent loops (``agents``).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig, OmegaConf

from trinity_compat.common.errors import UserError
from trinity_compat.common.gc_pause import gc_paused
from trinity_compat.common.hung_process import identity
from trinity_compat.explorer.agents.processes.wire import AgentLoopFailed
from trinity_compat.explorer.agents.time_limit import limited
from trinity_compat.explorer.engine.arguments import engine_arguments
from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.media_tokens import placeholders
from trinity_compat.explorer.engine.trajectory import (
    AGENT_FAILED,
    RolloutResult,
    RolloutTask,
    Trajectory,
    fault_of,
)
from trinity_compat.explorer.engine.vllm import (
    AsyncEngine,
    Completion,
    Engine,
    EngineConfig,
    EngineDied,
    GenerationRequest,
    InProcessEngine,
    LocalEngine,
)
from trinity_compat.job.fingerprint import ANSWERING, FilesEdited, check
from trinity_compat.job.lora import for_model
from trinity_compat.job.run_spec import Fingerprint
from trinity_compat.synchronizer.adapters import beside_language_model
from trinity_compat.synchronizer.engine_dtypes import Dtypes, merged
from trinity_compat.synchronizer.transports.files import WeightFile
from trinity_compat.trinity.workflows.tasksets import AGENT as WORKFLOW
from trinity_compat.trinity.workflows.tasksets import PLUGIN

if TYPE_CHECKING:
    from trinity_compat.explorer.agents.processes.pool import AgentProcessPool
    from trinity_compat.explorer.agents.user_workflows import EngineWriter, UserWorkflows
    from trinity_compat.trinity.workflows.model import GeneratedAnswer

SINGLE_TURN = "single_turn_agent"
SLOTS = 1024  # veRL's default of rollout.max_num_seqs
ENDED_S = 0.05  # between two looks at how many answers have ended
REPORT_S = 0.25  # after which that is reported
REPORTED = 1 / 16  # of an engine's slots: as soon as so many are free; it has more than that in its queue
PROGRESS_S = 2.0  # progress-report interval


class PromptTooLong(ValueError):
    """A prompt exceeds data.max_prompt_length under data.truncation=error."""


Future = asyncio.Future[RolloutResult]


class EngineSlots:
    """Engine slots of one group: each becomes free once, at the latest with the group."""

    def __init__(self, answers: int, free: Callable[[int], None]) -> None:
        self._taken, self._free = answers, free

    def free_one(self) -> None:
        """Free the slot of a finished answer; no-op for a repeated group's, whose slots are free already."""
        if self._taken:
            self._taken -= 1
            self._free(1)

    def free_all(self) -> None:
        """Free the remaining slots."""
        self._free(self._taken)
        self._taken = 0


class RolloutWorker:
    """Answers jobs with the weights that were loaded last."""

    def __init__(
        self,
        verl: Mapping[str, Any],
        device: str,
        index: int = 0,
        *,
        shared: bool = False,
        partial: bool = True,
        stale_cache: bool = False,
        agent_timeout_s: float | None = None,
        agent_workers: int = 1,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        """Configure a worker.

        ``partial``: answers in flight continue when the weights change; else they are restarted.
        ``stale_cache``: as EngineConfig's.
        ``agent_timeout_s``: as AgentLoops' limit; ``agent_workers``: number of agent loops' processes.
        ``fingerprint``: the run's, against which the files of agents are checked.
        """
        with gc_paused():
            from verl.utils.config import omega_conf_to_dataclass

        self._config = OmegaConf.create(dict(verl))
        self._model = omega_conf_to_dataclass(self._config.actor_rollout_ref.model)
        self._tokenizer = self._model.tokenizer
        self._vocabulary = _vocabulary(self._model)
        self._engine: Engine = make_engine(
            self._config, self._model, device, index, shared=shared, stale_cache=stale_cache
        )
        self._requests_in_flight = InflightRequests(self._engine, partial=partial)
        self._agent_timeout_s, self._agent_workers = agent_timeout_s, agent_workers
        self._fingerprint = fingerprint
        self._runs: dict[int, list[Future]] = {}
        self._agents: AgentProcessPool | None = None
        self._classes: AgentProcessPool | None = None
        self._workflows: UserWorkflows | None = None
        self._auxiliary: Sequence[str] = ()
        self._writer: EngineWriter | None = None
        self._count = 0
        self._version = 0
        self._ended = 0

    async def start(self) -> None:
        """Build the engine, with the weights of actor_rollout_ref.model.path."""
        await self._engine.start()

    async def identity(self) -> Mapping[str, object]:
        """Return this process's identity, needed to end it when it hangs."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return {**identity(), "node": node, "host": socket.gethostname()}

    async def progress(self) -> AsyncIterator[int]:
        """Yield a growing number, without end, while this process makes progress.

        It grows with each step of an engine that owes answers; else, while weights change or agent loops
        compute, with time.
        """
        count, steps, engine = 0, -1, cast(LocalEngine, self._engine)
        while True:
            if not engine.owed or self._requests_in_flight.changes or engine.steps != steps:
                count, steps = count + 1, engine.steps
                yield count
            await asyncio.sleep(PROGRESS_S)

    async def set_auxiliary_models(self, auxiliary: Sequence[str]) -> None:
        """Set the auxiliary models' addresses (host:port), for workflows. Call before the first job."""
        self._auxiliary = auxiliary

    async def load(self, file: WeightFile, version: int) -> Sequence[Mapping[str, Any]]:
        """Load published weights; see ``Engine.load``."""
        async with self._requests_in_flight.changing():
            answers = await self._engine.load(file)
            self._version = version
        return answers or ()

    async def dtypes(self) -> Dtypes:
        """Return the dtypes in which the engine's workers hold what they have loaded."""
        return merged(await cast(LocalEngine, self._engine).dtypes())

    async def receive(self, meeting: Mapping[str, Any], first_rank: int) -> Sequence[Mapping[str, Any]]:
        """Receive weights at a rendezvous; see ``LocalEngine.receive``."""
        async with self._requests_in_flight.changing():
            answers = await cast(LocalEngine, self._engine).receive(meeting, first_rank)
            self._version = int(meeting["version"])
        return answers

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Answer a prompt, as ``workflows.model.Writer`` does. Raises ValueError for what vLLM refuses."""
        from trinity_compat.explorer.agents.user_workflows import EngineWriter
        from trinity_compat.trinity.workflows.run_rows import Limits

        if self._writer is None:
            self._writer = EngineWriter(
                self._requests_in_flight, Limits.of(self._config.actor_rollout_ref.rollout)
            )
        return await self._writer.write(prompt_ids, sampling)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of every token after the first, at temperature 1."""
        self._count += 1
        sampling = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0.0}
        request = GenerationRequest(f"score-{self._count}", list(token_ids), sampling)
        (answer,) = await self._engine.submit([request])
        return (await answer)[0].prompt_logprobs

    async def sleep(self) -> None:
        """Free the device. The weights are lost; answers in flight go on when others are loaded."""
        self._requests_in_flight.hold()
        await cast(LocalEngine, self._engine).sleep()

    async def wake(self) -> None:
        """Return to the device. A version has to be loaded next."""
        await cast(LocalEngine, self._engine).wake()

    async def resume(self) -> None:
        """Take the rest of the memory; see ``LocalEngine.resume``."""
        await cast(LocalEngine, self._engine).resume()

    async def close(self) -> None:
        """Release the engine; end the agent loops and the user's agent programs."""
        for pool in (self._agents, self._classes):
            if pool:
                pool.close()
        if self._workflows:
            await self._workflows.close()
        await self._engine.close()

    async def ended(self) -> AsyncIterator[int]:
        """Yield the number of answers that have ended, without end.

        An explorer of many engines gets a report for each, so it comes when it frees a part of the slots, or
        after a while.
        """
        reported, last, slots = 0, time.monotonic(), slots_of(self._config.actor_rollout_ref.rollout)
        while True:
            new, now = self._ended - reported, time.monotonic()
            if new >= max(1, slots * REPORTED) or (new and now - last >= REPORT_S):
                reported, last = self._ended, now
                yield reported
            await asyncio.sleep(ENDED_S)

    def _count_ended(self, answers: int) -> None:
        self._ended += answers

    async def run(self, jobs: Sequence[RolloutTask], name: int = 0) -> AsyncIterator[RolloutResult]:
        """Yield rollouts in the order in which they finish; none after ``abort(name)``."""
        self._runs[name] = []
        if all(self._is_single_turn(job) for job in jobs):
            futures = await self._single_turns(jobs)
        else:
            futures = [asyncio.ensure_future(self._by_agent(job)) for job in jobs]
        if name not in self._runs:
            _cancel(futures)
        self._runs[name] = futures
        try:
            for finished in asyncio.as_completed(futures):
                yield await finished
        except asyncio.CancelledError:
            if name in self._runs:
                raise
        finally:
            _cancel(self._runs.pop(name, ()))

    async def abort(self, name: int) -> None:
        """Cancel the run of that name; the engine drops its requests."""
        _cancel(self._runs.pop(name, ()))

    def _is_single_turn(self, job: RolloutTask) -> bool:
        if job.task.get("agent_name") == WORKFLOW:
            return True
        agent = self._config.actor_rollout_ref.rollout.agent.default_agent_loop
        return job.task.get("agent_name", agent) == SINGLE_TURN and self._model.processor is None

    async def _single_turns(self, jobs: Sequence[RolloutTask]) -> list[Future]:
        prompts: dict[int, list[int]] = {}
        hopeless: list[Future] = []
        for job in jobs:
            try:
                prompts[job.task_no] = self._prompt(job.task)
            except PromptTooLong as error:
                self._ended += job.answers
                hopeless.append(_finished(RolloutResult(job.task_no, (), str(error), hopeless=True)))
        by_job = [(job, self._requests(job, prompts[job.task_no])) for job in jobs if job.task_no in prompts]
        every = [request for _, requests in by_job for request, _ in requests]
        answers = iter(await self._requests_in_flight.submit(every))
        first = self._version
        return hopeless + [
            asyncio.ensure_future(
                self._gather(job, [(request, next(answers), count) for request, count in requests], first)
            )
            for job, requests in by_job
        ]

    def _requests(self, job: RolloutTask, prompt: list[int]) -> list[tuple[GenerationRequest, int]]:
        """Build a job's requests, each with the number of answers that it makes; the baseline's comes last.

        One request makes all n answers; or one each, with the seed that vLLM would give it.
        """
        samplings: list[tuple[Mapping[str, Any], int]]
        if job.sampling.get("temperature") == 0:  # n equal answers: one request
            samplings = [({**job.sampling, "n": 1}, job.n)]
        elif not job.apart:
            samplings = [({**job.sampling, "n": job.n}, job.n)]
        else:
            samplings = [({**job.sampling_of(run), "n": 1}, 1) for run in range(job.n)]
        if job.baseline:
            samplings.append(({**job.sampling_of(job.n), "n": 1}, 1))
        length = self._config.actor_rollout_ref.rollout.response_length
        requests = []
        for each, count in samplings:
            self._count += 1
            sampling = {**each, "max_tokens": length}
            requests.append((GenerationRequest(f"{job.task_no}-{self._count}", prompt, sampling), count))
        return requests

    async def _gather(
        self,
        job: RolloutTask,
        answers: Sequence[tuple[GenerationRequest, asyncio.Future[list[Completion]], int]],
        first: int,
    ) -> RolloutResult:
        groups = await asyncio.gather(*(self._answer(*answer, first) for answer in answers))
        return RolloutResult(job.task_no, tuple(part for group in groups for part in group))

    async def _answer(
        self, request: GenerationRequest, answer: asyncio.Future[list[Completion]], count: int, first: int
    ) -> list[Trajectory]:
        """Return ``count`` answers of a request; a single answer stands for equal ones."""
        try:
            while (parts := await self._unless_interrupted(answer)) is None:
                self._count += 1
                (answer,) = await self._requests_in_flight.submit(
                    [replace(request, request_id=f"{request.request_id}-{self._count}")]
                )
                first = self._version
        finally:
            self._ended += count
        prompt = np.array(request.prompt_ids, np.int32)
        runs = [_trajectory(prompt, part, (first, self._version)) for part in parts]
        return runs if len(runs) == count else runs * count

    async def _unless_interrupted(self, answer: asyncio.Future[list[Completion]]) -> list[Completion] | None:
        try:
            return await answer
        except asyncio.CancelledError:
            await self._requests_in_flight.again()
            return None

    def _prompt(self, task: Mapping[str, Any]) -> list[int]:
        """Tokenize a task's prompt: a workflow's is a text (``prompt_text``), a launch's a chat."""
        if task.get("agent_name") == WORKFLOW:
            return self._truncated(self._tokenizer(task["prompt_text"]).input_ids)
        from verl.utils.tokenizer import normalize_token_ids
        from verl.utils.tokenizer.chat_template import apply_chat_template

        kwargs = self._config.data.get("apply_chat_template_kwargs", {}) or {}
        ids = apply_chat_template(
            self._tokenizer, list(task["raw_prompt"]), tokenize=True, add_generation_prompt=True, **kwargs
        )
        return self._truncated(normalize_token_ids(ids))

    def _truncated(self, ids: list[int]) -> list[int]:
        rollout = self._config.actor_rollout_ref.rollout
        return truncate(ids, rollout.prompt_length, self._config.data.truncation)

    async def _run_agent(self, job: RolloutTask, slots: EngineSlots) -> list[Trajectory]:
        if job.task.get("agent_name") == PLUGIN:
            if self._config.data.workflows[job.task["taskset"]].get("program"):
                running = self._programs().run(job, self._version, slots.free_one)
                parts = await limited(running, self._agent_timeout_s)
                self._check_files()  # each group starts the program again
                return parts
            self._classes = self._classes or self._pool(workflows=True, auxiliary=self._auxiliary)
            return await self._classes.run(job, self._version, slots.free_one)
        self._agents = self._agents or self._pool()
        return await self._agents.run(job, ended=slots.free_one)

    def _pool(self, **kind: Any) -> AgentProcessPool:
        from trinity_compat.explorer.agents.processes.pool import AgentProcessPool

        size, limit_s = self._agent_workers, self._agent_timeout_s
        loaded = self._check_files
        return AgentProcessPool(
            self._config, self._requests_in_flight, size=size, limit_s=limit_s, loaded=loaded, **kind
        )

    def _check_files(self) -> None:
        check(self._fingerprint, ANSWERING)

    def _programs(self) -> UserWorkflows:
        """Return the runner of programs, which are separate processes anyway."""
        from trinity_compat.explorer.agents.user_workflows import UserWorkflows

        self._workflows = self._workflows or UserWorkflows(
            self._config, self._model, self._requests_in_flight, self._auxiliary
        )
        return self._workflows

    async def _by_agent(self, job: RolloutTask) -> RolloutResult:
        first, slots = self._version, EngineSlots(job.answers, self._count_ended)
        try:
            parts = await self._run_agent(job, slots)
            for run, part in enumerate(parts):
                if fault := fault_of(part, self._vocabulary):
                    raise AgentLoopFailed(f"answer {run} cannot be trained: {fault}")
            versions = first, self._version
            return RolloutResult(job.task_no, tuple(part.packed(versions) for part in parts))
        except (EngineDied, FilesEdited):
            raise
        except AgentLoopFailed as error:
            return RolloutResult(job.task_no, (), str(error), instead=self._empty_answer(job, first))
        except Exception as error:
            return RolloutResult(job.task_no, (), f"{type(error).__name__}: {error}")
        finally:
            slots.free_all()

    def _empty_answer(self, job: RolloutTask, first: int) -> Trajectory | None:
        """Return the prompt and an end token, masked; None with images, whose tokens the processor makes."""
        if self._model.processor is not None:
            return None
        try:
            prompt = self._prompt(job.task)
        except (PromptTooLong, KeyError):
            return None
        metrics = {AGENT_FAILED: 1.0}
        end = [self._tokenizer.eos_token_id]
        return Trajectory(
            prompt, end, [0], [0.0], reward=0.0, metrics=metrics, versions=(first, self._version)
        )


def slots_of(rollout: Mapping[str, Any]) -> int:
    """Return the answers that an engine decodes at a time (veRL's rollout.max_num_seqs)."""
    return int(rollout.get("max_num_seqs") or SLOTS)


def _cancel(futures: Iterable[Future]) -> None:
    for future in futures:
        future.cancel()


def _finished(rollout: RolloutResult) -> Future:
    future: Future = asyncio.get_running_loop().create_future()
    future.set_result(rollout)
    return future


def _trajectory(prompt: npt.NDArray[np.int32], part: Completion, versions: tuple[int, int]) -> Trajectory:
    extra: dict[str, Any] = {"turn_scores": [], "tool_rewards": []}  # as veRL's single-turn loop does
    mask = np.ones(len(part.token_ids), np.uint8)
    cut = part.reason == "length"
    made = Trajectory(prompt, part.token_ids, mask, part.logprobs, extra=extra, truncated=cut)
    return made.packed(versions)


def _vocabulary(model: Any) -> int:
    """Return the number of a model's embeddings: some models have more than their tokenizer has tokens."""
    config = model.hf_config
    sizes = [getattr(each, "vocab_size", None) for each in (config, getattr(config, "text_config", None))]
    return max(len(model.tokenizer), *(size or 0 for size in sizes))


def truncate(ids: list[int], limit: int, how: str) -> list[int]:
    """Apply data.truncation: error, left (keep the end), right (keep the start) or middle (keep both)."""
    if len(ids) <= limit:
        return ids
    if how == "left":
        return ids[-limit:]
    if how == "right":
        return ids[:limit]
    if how == "middle":
        return ids[: limit // 2] + ids[len(ids) - (limit - limit // 2) :]
    raise PromptTooLong(
        f"a prompt of {len(ids)} tokens exceeds data.max_prompt_length={limit}: raise it, set "
        "data.filter_overlong_prompts=True, or data.truncation=left|right|middle"
    )


def make_engine(
    config: DictConfig,
    model: Any,
    device: str,
    index: int,
    *,
    shared: bool = False,
    stale_cache: bool = False,
) -> LocalEngine:
    """Create the engine for a device, from ``actor_rollout_ref.rollout`` as verl's vLLM server reads it.

    It can sleep where the device is ``shared`` and vLLM supports that (not on a CPU).
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != "vllm":
        raise UserError(
            f"actor_rollout_ref.rollout.name={rollout.name}: the explorer runs vllm only",
            hint="write rollout.name=vllm",
        )
    arguments = arguments_for(config, model, device, index, shared=shared)
    banned = tuple(placeholders(model.processor))
    settings = EngineConfig(arguments, len(model.tokenizer), banned, stale_cache)
    return InProcessEngine(settings) if device == "cpu" else AsyncEngine(settings)


def arguments_for(
    config: DictConfig, model: Any, device: str, index: int, *, shared: bool = False
) -> dict[str, Any]:
    """Return ``engine_arguments`` for an OmegaConf configuration and its veRL HFModelConfig."""
    from verl.workers.rollout.utils import get_max_position_embeddings

    verl: Any = OmegaConf.to_container(config, resolve=True)
    return engine_arguments(
        for_model(verl, lambda: beside_language_model(model) if model.processor is not None else ""),
        model_path=model.local_path,
        device=device,
        index=index,
        shared=shared,
        positions=get_max_position_embeddings(model.hf_config),
        layers=getattr(model.hf_config, "num_hidden_layers", 0),
    )
