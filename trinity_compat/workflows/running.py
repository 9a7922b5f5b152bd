"""Runs the workflows that plugins, or trinity-rft, register: a task's n runs, each on a model of its own.

What a run returns becomes one trajectory. Several experiences of a run (an agent's turns or steps) are joined
where each prompt begins with all that came before; others are refused, since a group here has n answers.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from trinity_compat.algorithms.model import STEPS
from trinity_compat.workflows import plugins, standin
from trinity_compat.workflows.agents import AgentFailed, Agents, Program, rewarded
from trinity_compat.workflows.auxiliary import Auxiliary
from trinity_compat.workflows.model import Model, Surroundings, Writer
from trinity_compat.workflows.table import PROGRAM
from trinity_compat.workflows.tasksets import Taskset

T = TypeVar("T")
_THREADS = 64  # of synchronous workflows; what a user's code blocks, it blocks here


@dataclass(frozen=True, slots=True)
class Step:
    """What an experience of a run said: its ``eid.step``, its reward, its ``info``; ``turns``: how often the
    model spoke in it."""

    step: int
    reward: float
    turns: int
    info: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Run:
    """One answer: token ids of prompt [P] and response [R], mask and log-probabilities [R]. ``info``: what
    the workflow tells operators of it, numbers and texts alone. ``truncated``: its end was cut. ``steps``:
    the experiences that it was joined from, of which the last gives the reward."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float
    turns: int
    metrics: Mapping[str, float]
    info: Mapping[str, float | str] = field(default_factory=dict)
    truncated: bool = False
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens of a prompt and of a response that a trajectory may have."""

    prompt: int
    response: int

    @classmethod
    def of(cls, rollout: Any) -> Limits:
        """Those of veRL's rollout section."""
        return cls(int(rollout.prompt_length), int(rollout.response_length))


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
    ) -> None:
        """``folders``: plugins, as ``plugins.VARIABLE`` has them. Raises RunError for one that fails."""
        self._agents = agents or Agents()
        self.auxiliary: list[Auxiliary] = []
        standin.install()
        plugins.load(plugins.folders(folders))
        self._trinity = importlib.import_module("trinity.common.workflows")
        self._rewards = importlib.import_module("trinity.common.rewards")
        self._config = importlib.import_module("trinity.common.config")
        self._experience = importlib.import_module("trinity.common.experience").Experience
        self._writer, self._tokenizer, self._path, self._limits = writer, tokenizer, path, limits
        self._threads = ThreadPoolExecutor(_THREADS, "workflow")

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
    ) -> list[Run]:
        """``len(samplings)`` answers, each sampled by its own. Raises what the workflow raises, and
        ValueError for experiences that cannot be trained on."""
        around = self._around(taskset, tool_format)
        models = [Model(around, dict(sampling), version) for sampling in samplings]
        if taskset.workflow == PROGRAM and not self._registers(PROGRAM):
            return await _together([self._of_program(taskset, row, model) for model in models])
        found = self._trinity.WORKFLOWS.get(taskset.workflow)

        def task(count: int, sampling: Mapping[str, Any]) -> Any:
            made = self._task(taskset, found, row, count, sampling)
            made.task_id, made.is_eval = number, evaluates
            return made

        if found.can_repeat:
            workflow = task(len(models), samplings[0]).to_workflow(models[0], [*self.auxiliary])
            workflow.set_repeat_times(len(models), 0)
            experiences = await self._outcome(workflow)
            return [
                self._joined([each], taskset, evaluates=evaluates)
                for each in _counted(experiences, len(models), taskset.workflow)
            ]
        pairs = zip(models, samplings, strict=True)
        workflows = [task(1, sampling).to_workflow(model, [*self.auxiliary]) for model, sampling in pairs]
        outcomes = await _together([self._outcome(workflow) for workflow in workflows])
        return [self._joined(made, taskset, evaluates=evaluates) for made in outcomes]

    def _registers(self, name: str) -> bool:
        """A plugin's class comes before what is built in."""
        return name in getattr(self._trinity.WORKFLOWS, "modules", {})

    async def _of_program(self, taskset: Taskset, row: Mapping[str, Any], model: Model) -> Run:
        given = await self._agents.run(Program.of(taskset.workflow_args), row, model)
        experiences = model.extract_experience_from_history()
        if not experiences:
            raise AgentFailed("the agent asked the model nothing")
        scored = partial(rewarded, given, self._scorer(taskset, row), experiences)
        reward, metrics = await asyncio.get_running_loop().run_in_executor(self._threads, scored)
        for experience in experiences:
            experience.reward = reward
        experiences[-1].metrics = {**(experiences[-1].metrics or {}), **metrics}
        return self._joined(experiences, taskset)

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
        # With the context: what a thread waits for the engine is left out of its time (explorer/own_time.py).
        return list(await loop.run_in_executor(self._threads, contextvars.copy_context().run, workflow.run))

    def _around(self, taskset: Taskset, tool_format: str | None) -> Surroundings:
        return Surroundings(
            writer=self._writer,
            tokenizer=self._tokenizer,
            experience=self._experience,
            loop=asyncio.get_running_loop(),
            path=self._path,
            max_model_len=self._limits.prompt + self._limits.response,
            chat_template=taskset.chat_template,
            enable_thinking=taskset.enable_thinking,
            tool_format=tool_format,
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

    def _joined(self, experiences: Sequence[Any], taskset: Taskset, *, evaluates: bool = False) -> Run:
        """A run's experiences as one."""
        if not experiences:
            raise ValueError("the workflow returned no experience")
        runs = [_read(experience, evaluates=evaluates) for experience in experiences]
        if not (taskset.by_step or evaluates):
            _check_one_reward(runs)
        whole = runs[0]
        for after in runs[1:]:
            whole = _appended(whole, after)
        if len(whole.prompt_ids) > self._limits.prompt:
            raise ValueError(
                f"a prompt of {len(whole.prompt_ids)} tokens exceeds max_prompt_tokens={self._limits.prompt}"
            )
        return _cut(whole, self._limits.response)


async def _together(runs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What they return, in order; of a group that failed none goes on."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _counted(experiences: list[Any], wanted: int, workflow: str) -> list[Any]:
    if len(experiences) != wanted:
        raise ValueError(f"{workflow} returned {len(experiences)} experiences, {wanted} were asked for")
    return experiences


def _check_one_reward(runs: Sequence[Run]) -> None:
    if len(rewards := dict.fromkeys(run.reward for run in runs)) > 1:
        told = ", ".join(f"{reward:g}" for reward in rewards)
        raise ValueError(
            f"a run's experiences have different rewards ({told}), and the algorithm takes one reward for a"
            " run: write algorithm_type: multi_step_grpo (the last one's) or gigpo"
        )


def _read(experience: Any, *, evaluates: bool) -> Run:
    metrics = {name: float(value) for name, value in (experience.metrics or {}).items()}
    reward = experience.reward
    if reward is None and evaluates:  # upstream's math_eval_workflow measures, and gives no reward
        reward = metrics.get("accuracy")
    if reward is None:
        raise ValueError("an experience has no reward: the workflow sets it")
    tokens = [int(token) for token in experience.tokens]
    length = int(experience.prompt_length)
    response = tokens[length:]
    mask = experience.action_mask
    given = experience.logprobs
    run = Run(
        tokens[:length],
        response,
        [1] * len(response) if mask is None else [int(own) for own in mask],
        [0.0] * len(response) if given is None else [float(value) for value in given],
        float(reward),
        2,
        metrics,
        {
            name: value
            for name, value in (experience.info or {}).items()
            if isinstance(value, int | float | str)
        },
        getattr(experience, "truncate_status", None) == "response_truncated",
    )
    run = replace(run, steps=(Step(int(experience.eid.step), run.reward, _turns(run.mask), run.info),))
    if not len(run.response_ids) == len(run.mask) == len(run.logprobs):
        raise ValueError(
            f"an experience has {len(response)} response tokens, {len(run.mask)} in its mask and"
            f" {len(run.logprobs)} log-probabilities"
        )
    return run


def _appended(whole: Run, after: Run) -> Run:
    """A turn and the next, whose prompt goes on from it; what lies between is no token of the model's."""
    before = [*whole.prompt_ids, *whole.response_ids]
    if after.prompt_ids[: len(before)] != before:
        raise ValueError(
            "a run's experiences are no one conversation: the prompt of the later does not begin with the"
            " earlier's tokens. Let the run return one experience (process_messages_to_experience)"
        )
    between = after.prompt_ids[len(before) :]
    silent: list[float] = [0.0] * len(between)
    return Run(
        whole.prompt_ids,
        [*whole.response_ids, *between, *after.response_ids],
        [*whole.mask, *(0 for _ in between), *after.mask],
        [*whole.logprobs, *silent, *after.logprobs],
        after.reward,
        whole.turns + 2,
        {**whole.metrics, **after.metrics},
        {**whole.info, **after.info},
        whole.truncated or after.truncated,
        (*whole.steps, *after.steps),
    )


def _turns(mask: Sequence[int]) -> int:
    """Stretches of ones."""
    return sum(own > before for own, before in zip(mask, [0, *mask], strict=False))


def by_step(run: Run) -> dict[str, Any]:
    """What a run's experiences said, for advantages that read it: ``steps``, and each value of their ``info``
    as a list with one for every turn of the model's that is left, None where none was said. An experience of
    several turns says it of its first."""
    names = dict.fromkeys(name for step in run.steps for name in step.info)
    first = [step if turn == 0 else None for step in run.steps for turn in range(step.turns)]
    left = first[: _turns(run.mask)]
    told = {name: [step and step.info.get(name) for step in left] for name in names}
    return {**told, STEPS: [{"step": step.step, "reward": step.reward} for step in run.steps]}


def _cut(run: Run, limit: int) -> Run:
    if len(run.response_ids) <= limit:
        return run
    return replace(
        run,
        response_ids=run.response_ids[:limit],
        mask=run.mask[:limit],
        logprobs=run.logprobs[:limit],
        truncated=True,
    )
