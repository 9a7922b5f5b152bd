"""Workflows of plugins and of trinity-rft, on our engine."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from trinity_compat.buffer.images import opened
from trinity_compat.explorer.agents.time_limit import AgentTimeout, waiting_for_engine
from trinity_compat.explorer.engine.inflight_requests import GenerationClient
from trinity_compat.explorer.engine.trajectory import RolloutTask, Trajectory
from trinity_compat.explorer.engine.vllm import Completion, GenerationRequest, request_faults
from trinity_compat.job.answer_info import OF_RUN
from trinity_compat.trinity.workflows import plugins
from trinity_compat.trinity.workflows.agents import Agents
from trinity_compat.trinity.workflows.auxiliary import clients_of
from trinity_compat.trinity.workflows.model import GeneratedAnswer
from trinity_compat.trinity.workflows.plugins import VARIABLE
from trinity_compat.trinity.workflows.reasoning import ReasoningSplitter
from trinity_compat.trinity.workflows.registry import REWARDS, WORKFLOWS
from trinity_compat.trinity.workflows.run_rows import TRUNCATED_ROWS, Limits, TrainableRow, by_step
from trinity_compat.trinity.workflows.runner import Workflows, nobody
from trinity_compat.trinity.workflows.tasksets import SECTION, Taskset, referred

_log = logging.getLogger(__name__)


class EngineWriter:
    """Implements ``workflows.model.Writer``; ``limits``: of an answer, and of a prompt with its answer."""

    def __init__(self, engine: GenerationClient, limits: Limits) -> None:
        self._engine, self._limits = engine, limits
        self._count = 0

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Answer a prompt; see Writer. Raises ValueError for what vLLM refuses, under any release."""
        room = self._limits.whole - len(prompt_ids)
        if room < 1:
            raise ValueError(f"a prompt of {len(prompt_ids)} tokens leaves no room to answer")
        count = int(sampling.get("n") or 1)
        greedy = sampling.get("temperature") == 0  # n equal answers: one is requested
        wanted = min(int(sampling.get("max_tokens") or self._limits.response), room)
        parts = await self._generate(
            prompt_ids, {**sampling, "n": 1 if greedy else count, "max_tokens": wanted}
        )
        answers = [GeneratedAnswer(list(part.token_ids), list(part.logprobs), part.reason) for part in parts]
        return answers * count if greedy else answers

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of every token after the first, at temperature 1."""
        sampling = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0.0}
        return (await self._generate(token_ids, sampling))[0].prompt_logprobs

    async def _generate(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[Completion]:
        while True:
            self._count += 1
            request = GenerationRequest(f"workflow-{self._count}", list(prompt_ids), sampling)
            with waiting_for_engine():
                try:
                    (answer,) = await self._engine.submit([request])
                    return await answer
                except asyncio.CancelledError:  # by a change of weights
                    await self._engine.again()
                except request_faults() as error:
                    raise ValueError(str(error)) from error


class UserWorkflows:
    """Runs jobs whose taskset names a workflow that plugins or trinity-rft register."""

    def __init__(
        self, config: DictConfig, model: Any, engine: GenerationClient, auxiliary: Sequence[str] = ()
    ) -> None:
        """Set up workflows; ``auxiliary``: the auxiliary models' addresses (host:port)."""
        rollout = config.actor_rollout_ref.rollout
        limits = Limits.of(rollout)
        writer, folders = EngineWriter(engine, limits), os.environ.get(VARIABLE, "")
        self._workflows = Workflows(
            writer,
            model.tokenizer,
            config.actor_rollout_ref.model.path,
            limits,
            folders,
            Agents(waiting_for_engine),
            ReasoningSplitter.of(config, model.tokenizer),
        )
        if auxiliary:
            self._workflows.auxiliary += clients_of(OmegaConf.to_container(config, resolve=True), auxiliary)
        self._tasksets = OmegaConf.to_container(OmegaConf.select(config, SECTION), resolve=True)
        plugins.register("workflow", (each["workflow"] for each in self._tasksets.values()), known=WORKFLOWS)
        plugins.register("reward", (each["reward"] for each in self._tasksets.values()), known=REWARDS)
        self._limits = limits
        self._tool_format = rollout.multi_turn.get("format")

    async def close(self) -> None:
        """End the agents' processes."""
        await self._workflows.close()

    async def run(
        self, job: RolloutTask, version: int = 0, ended: Callable[[], None] = nobody
    ) -> list[Trajectory]:
        """Return the trajectories of n runs by seed, with rewards; ``ended`` is called as each finishes.

        Raises what the workflow raises, and AgentTimeout.
        """
        taskset = referred(job.task["taskset"], self._tasksets)
        length = {"max_tokens": self._limits.response}
        try:
            async with asyncio.timeout(taskset.limit_s) as limit:
                rows = await self._workflows.run(
                    taskset,
                    opened(job.task["raw_task"]),
                    [{**job.sampling_of(run), **length} for run in range(job.answers)],
                    number=job.task_no,
                    version=version,
                    evaluates=job.validate,
                    tool_format=self._tool_format,
                    apart=job.apart,
                    ended=ended,
                )
        except TimeoutError as error:
            if not limit.expired():  # the workflow raised it
                raise
            message = (
                f"a group of {taskset.workflow} took longer than explorer.max_timeout={taskset.limit_s:g} s"
            )
            raise AgentTimeout(message) from error
        self._warn_of_cut_rows(rows, taskset, job.task_no)
        return [_trajectory(row, _extra_info(row, taskset, validates=job.validate)) for row in rows]

    def _warn_of_cut_rows(self, rows: Sequence[TrainableRow], taskset: Taskset, number: int) -> None:
        if cut := sum(row.truncated for row in rows):
            message = (
                "task %d of %s: %d of %d rows were longer than model.max_model_len=%d and were cut there (%s)"
            )
            _log.warning(message, number, taskset.name, cut, len(rows), self._limits.whole, TRUNCATED_ROWS)


def _extra_info(row: TrainableRow, taskset: Taskset, *, validates: bool) -> dict[str, Any]:
    # veRL's validation averages every value that it receives, and all answers need to have it.
    if validates:
        return {}
    info = by_step(row) if taskset.by_step else dict(row.info)
    other = {"task": row.task} if row.task else {}
    of_run = {} if taskset.parting == "joined" else {OF_RUN: {"run": row.run, "row": row.place, **other}}
    return {"reward_extra_info": {**info, **of_run}}


def _trajectory(row: TrainableRow, extra: Mapping[str, Any]) -> Trajectory:
    return Trajectory(
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        response_mask=row.mask,
        logprobs=row.logprobs,
        num_turns=row.turns,
        reward=row.reward,
        metrics=row.metrics,
        extra=extra,
        truncated=row.truncated,
    )
