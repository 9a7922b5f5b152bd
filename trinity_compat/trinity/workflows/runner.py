"""Runs the workflows that plugins, or trinity-rft, register: a task's n runs, each on a model of its own.

What a run returns becomes rows: ``runs``.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from trinity_compat.trinity.workflows import plugins, trinity_stubs
from trinity_compat.trinity.workflows.agents import AgentFailed, AgentProgram, Agents, rewarded
from trinity_compat.trinity.workflows.auxiliary import AuxiliaryModel
from trinity_compat.trinity.workflows.model import GeneratedAnswer, RunContext, WorkflowModel, Writer
from trinity_compat.trinity.workflows.openai_api import client_of
from trinity_compat.trinity.workflows.reasoning import ReasoningSplitter
from trinity_compat.trinity.workflows.registry import PROGRAM
from trinity_compat.trinity.workflows.run_rows import Limits, TrainableRow, rows_of
from trinity_compat.trinity.workflows.tasksets import Taskset

T = TypeVar("T")


def nobody() -> None:
    """No-op callback."""


class PerAnswerWriter:
    """``Writer`` that sends a request for each of a group's ``answers``, with the seeds of a joint request.

    So the engine gives the slot of the first finished answer to another group. ``ended`` is called after each
    answer. Other requests are passed unchanged.
    """

    def __init__(self, writer: Writer, answers: int, ended: Callable[[], None]) -> None:
        self._writer, self._answers, self._ended = writer, answers, ended

    async def write(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> list[GeneratedAnswer]:
        """Generate like ``Writer.write``."""
        greedy = sampling.get("temperature") == 0  # equal answers: the engine makes one of them
        if greedy or self._answers == 1 or int(sampling.get("n") or 1) != self._answers:
            return await self._writer.write(prompt_ids, sampling)
        # Each with the seed of a joint request: vLLM adds an answer's position to it (vllm 0.28,
        # v1/engine/parallel_sampling.py).
        seed = sampling.get("seed")
        asked = [
            self._writer.write(
                prompt_ids, {**sampling, "n": 1, **({} if seed is None else {"seed": seed + place})}
            )
            for place in range(self._answers)
        ]
        return [written for (written,) in await together(asked, self._ended)]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Score like ``Writer.score``."""
        return await self._writer.score(token_ids)


async def together(runs: Sequence[Coroutine[Any, Any, T]], ended: Callable[[], None] = nobody) -> list[T]:
    """Results in order; the first failure cancels the others. ``ended`` is called as each ends."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    for task in tasks:
        task.add_done_callback(lambda _: ended())
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


_THREADS = 64  # of synchronous workflows; what a user's code blocks, it blocks here


class Workflows:
    """The registered workflows of one process."""

    def __init__(
        self,
        writer: Writer,
        tokenizer: Any,
        path: str,
        limits: Limits,
        folders: str,
        agents: Agents | None = None,
        thoughts: ReasoningSplitter | None = None,
    ) -> None:
        """``folders``: plugins, as ``plugins.VARIABLE`` has them. Raises RunError for one that fails."""
        self._agents = agents or Agents()
        self.auxiliary: list[AuxiliaryModel] = []
        trinity_stubs.install()
        plugins.load(plugins.folders(folders))
        self._trinity = importlib.import_module("trinity.common.workflows")
        self._rewards = importlib.import_module("trinity.common.rewards")
        self._config = importlib.import_module("trinity.common.config")
        self._experience = importlib.import_module("trinity.common.experience").Experience
        self._writer, self._tokenizer, self._path, self._limits = writer, tokenizer, path, limits
        self._threads = ThreadPoolExecutor(_THREADS, "workflow")
        self._thoughts = thoughts

    async def run(
        self,
        taskset: Taskset,
        row: Mapping[str, Any],
        samplings: Sequence[Mapping[str, Any]],
        *,
        number: int = 0,
        version: int = 0,
        evaluates: bool = False,
        tool_format: str | None = None,
        apart: bool = False,
        ended: Callable[[], None] = nobody,
    ) -> list[TrainableRow]:
        """Generate the rows of ``len(samplings)`` runs, each with its own sampling.

        ``ended`` is called as each is complete; for a class that generates all in one call only if ``apart``
        requests them one by one. Raises exceptions of the workflow, and ValueError for experiences that
        cannot be trained.
        """
        around = self._around(taskset, tool_format)
        models = [WorkflowModel(around, dict(sampling), version) for sampling in samplings]
        # A plugin's class comes before what is built in.
        registered = getattr(self._trinity.WORKFLOWS, "modules", {})
        if taskset.workflow == PROGRAM and PROGRAM not in registered:
            made = await together([self._of_program(taskset, row, model) for model in models], ended)
            return self._rows(made, taskset, number, evaluates=evaluates)
        found = self._trinity.WORKFLOWS.get(taskset.workflow)

        def task(count: int, sampling: Mapping[str, Any]) -> Any:
            made = self._task(taskset, found, row, count, sampling)
            made.task_id, made.is_eval = number, evaluates
            return made

        if found.can_repeat:
            if apart:
                models[0].around = replace(around, writer=PerAnswerWriter(self._writer, len(models), ended))
            workflow = task(len(models), samplings[0]).to_workflow(models[0], [*self.auxiliary])
            workflow.set_repeat_times(len(models), 0)
            made = _split_by_run(await self._outcome(workflow), len(models), taskset)
        else:
            pairs = zip(models, samplings, strict=True)
            workflows = [task(1, sampling).to_workflow(model, [*self.auxiliary]) for model, sampling in pairs]
            made = await together([self._outcome(workflow) for workflow in workflows], ended)
        return self._rows(made, taskset, number, evaluates=evaluates)

    async def _of_program(self, taskset: Taskset, row: Mapping[str, Any], model: WorkflowModel) -> list[Any]:
        given = await self._agents.run(AgentProgram.of(taskset.workflow_args), row, model)
        experiences = model.extract_experience_from_history()
        if not experiences:
            raise AgentFailed("the agent asked the model nothing")
        scored = partial(rewarded, given, self._scorer(taskset, row), experiences)
        reward, metrics = await asyncio.get_running_loop().run_in_executor(self._threads, scored)
        for experience in experiences:
            experience.reward = reward
        experiences[-1].metrics = {**(experiences[-1].metrics or {}), **metrics}
        return list(experiences)

    def _scorer(
        self, taskset: Taskset, row: Mapping[str, Any]
    ) -> Callable[[str], Mapping[str, float]] | None:
        if not taskset.reward:
            return None
        reward = self._rewards.REWARD_FUNCTIONS.get(taskset.reward)(**taskset.reward_fn_args)
        return lambda text: reward(response=text, truth=row.get(taskset.response_key))

    async def close(self) -> None:
        """Ends the agents' processes."""
        await self._agents.close()

    async def _outcome(self, workflow: Any) -> list[Any]:
        if workflow.asynchronous:
            return list(await workflow.run_async())
        loop = asyncio.get_running_loop()
        # With the context: waiting for the engine does not count in its time (explorer/agents/time_limit.py).
        return list(await loop.run_in_executor(self._threads, contextvars.copy_context().run, workflow.run))

    def _around(self, taskset: Taskset, tool_format: str | None) -> RunContext:
        return RunContext(
            writer=self._writer,
            tokenizer=self._tokenizer,
            experience=self._experience,
            loop=asyncio.get_running_loop(),
            path=self._path,
            max_model_len=self._limits.whole,
            chat_template=taskset.chat_template,
            enable_thinking=taskset.enable_thinking,
            tool_format=tool_format,
            thoughts=self._thoughts,
            open_client=client_of,
        )

    def _task(
        self,
        taskset: Taskset,
        workflow: Any,
        row: Mapping[str, Any],
        count: int,
        sampling: Mapping[str, Any],
    ) -> Any:
        given = {name: sampling[name] for name in ("temperature", "top_p", "top_k") if name in sampling}
        known = {each.name for each in fields(self._config.FormatConfig)}
        return self._trinity.Task(
            workflow=workflow,
            reward_fn=self._rewards.REWARD_FUNCTIONS.get(taskset.reward),
            format_args=self._config.FormatConfig(
                **{name: value for name, value in taskset.format.items() if name in known}
            ),
            repeat_times=count,
            rollout_args=self._config.GenerationConfig(
                **given, max_tokens=sampling.get("max_tokens"), n=count
            ),
            workflow_args=dict(taskset.workflow_args),
            reward_fn_args=dict(taskset.reward_fn_args),
            raw_task=dict(row),
        )

    def _rows(
        self, made: Sequence[Sequence[Any]], taskset: Taskset, number: int, *, evaluates: bool
    ) -> list[TrainableRow]:
        """Rows of task ``number``; ``made``: experiences by run."""
        for experience in (each for of_run in made for each in of_run):
            experience.eid.task = experience.eid.task or str(number)
        how = partial(rows_of, parting=taskset.parting, by_step=taskset.by_step, evaluates=evaluates)
        as_rows = partial(how, task=str(number))
        parted = enumerate(as_rows(experiences, self._limits) for experiences in made)
        return [replace(row, run=run) for run, rows in parted for row in rows]


def _split_by_run(experiences: Sequence[Any], runs: int, taskset: Taskset) -> list[list[Any]]:
    """Experiences of one call, split by run: one each, or by their eid.run.

    Raises ValueError.
    """
    if len(experiences) == runs:
        return [[each] for each in experiences]
    told = sorted({each.eid.run for each in experiences})
    if taskset.parting == "joined" or len(told) != runs:
        raise ValueError(
            f"{taskset.workflow} returned {len(experiences)} experiences, {runs} were asked for; with"
            " trinity_compat.steps_as_rows: true a run may have several, whose eid.run says which it is"
        )
    return [[each for each in experiences if each.eid.run == run] for run in told]
