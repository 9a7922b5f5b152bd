"""``trinity.common.workflows``: the task, the base classes, the registry with workflows of our table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from trinity_compat.trinity.workflows import registry
from trinity_compat.trinity.workflows.tasksets import Taskset
from trinity_compat.trinity.workflows.trinity_stubs.base import (
    FormatConfig,
    GenerationConfig,
    Registry,
    get_logger,
)
from trinity_compat.trinity.workflows.trinity_stubs.experience import Experience
from trinity_compat.trinity.workflows.trinity_stubs.rewards import REWARD_FUNCTIONS

WORKFLOWS = Registry("workflows")


@dataclass
class Task:
    """A row, and what becomes of it."""

    workflow: Any = None
    repeat_times: int | None = None
    format_args: Any = field(default_factory=FormatConfig)
    rollout_args: Any = field(default_factory=GenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: Any = None
    raw_task: dict[str, Any] = field(default_factory=dict)
    batch_id: int | str = ""
    task_id: int | str = ""
    index: dict[str, Any] = field(default_factory=dict)

    def to_workflow(self, model: Any, auxiliary_models: list[Any] | None = None) -> Any:
        return self.workflow(model=model, task=self, auxiliary_models=auxiliary_models)

    @property
    def task_desc(self) -> Any:
        """The question; None where the row has none."""
        return self.raw_task.get(self.format_args.prompt_key)

    @property
    def truth(self) -> Any:
        """Truth of the row; None where it has none."""
        return self.raw_task.get(self.format_args.response_key)

    def to_dict(self) -> dict[str, Any]:
        return self.raw_task


class Workflow:
    """Makes experiences of a task: ``run``, or ``run_async`` where ``is_async``.

    With ``can_repeat`` all answers in one call, else one call an answer.
    """

    can_reset = False
    can_repeat = False
    is_async = False

    def __init__(self, *, task: Task, model: Any, auxiliary_models: list[Any] | None = None) -> None:
        self.task, self.model = task, model
        self.auxiliary_model_wrappers = auxiliary_models
        self.auxiliary_models: list[Any] | None = None
        if auxiliary_models:
            kind = "get_openai_async_client" if type(self).is_async else "get_openai_client"
            self.auxiliary_models = [getattr(each, kind)() for each in auxiliary_models]
        self.run_id_base = 0
        self.logger = get_logger(__name__)

    resettable = property(lambda self: type(self).can_reset)
    repeatable = property(lambda self: type(self).can_repeat)
    asynchronous = property(lambda self: type(self).is_async)

    def reset(self, task: Task) -> None:
        raise NotImplementedError

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        raise NotImplementedError

    def run(self) -> list[Experience]:
        raise NotImplementedError

    async def run_async(self) -> list[Experience]:
        raise NotImplementedError


class MultiTurnWorkflow(Workflow):
    """Turns that become one experience each run."""

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    def process_messages_to_experience(
        self, messages: list[Any], reward: float, info: Any = None, truncate_status: str | None = None
    ) -> Experience:
        """A conversation as an experience; one that had to be cut has reward 0."""
        made = self.model.convert_messages_to_experience(messages)
        return self._rewarded(made, reward, dict(info or {}), truncate_status)

    async def process_messages_to_experience_async(
        self, messages: list[Any], reward: float, info: Any = None, truncate_status: str | None = None
    ) -> Experience:
        made = await self.model.convert_messages_to_experience_async(messages)
        return self._rewarded(made, reward, dict(info or {}), truncate_status)

    def _rewarded(self, made: Any, reward: float, info: dict[str, Any], status: str | None) -> Experience:
        made.reward = 0.0 if made.truncate_status == "response_truncated" else reward
        made.truncate_status = made.truncate_status or status
        made.logprobs = made.logprobs * made.action_mask
        made.info = info
        made.metrics = {name: float(value) for name, value in info.items() if isinstance(value, int | float)}
        experience: Experience = made
        return experience


class BaseSimpleWorkflow(Workflow):
    """One question, one answer, a reward function."""

    _name = "simple_workflow"

    def __init__(self, *, task: Task, model: Any, auxiliary_models: list[Any] | None = None) -> None:
        self.reset(task)
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)

    def reset(self, task: Task) -> None:
        self.task = task
        self.format_args, self.reward_fn_args = task.format_args, task.reward_fn_args
        self.system_prompt, self.reply_prefix = task.format_args.system_prompt, task.format_args.reply_prefix
        self.raw_task, self.task_desc, self.truth = task.raw_task, task.task_desc, task.truth
        own = "math_reward" if self._name == "math_workflow" else None
        reward = task.reward_fn or REWARD_FUNCTIONS.get(own)
        if reward is None:
            raise ValueError(f"{type(self).__name__} needs a default_reward_fn_type")
        self.reward_fn = reward(**self.reward_fn_args)

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        self.repeat_times, self.run_id_base = repeat_times, run_id_base
        self.task.rollout_args.n = repeat_times

    @property
    def rollout_args(self) -> dict[str, Any]:
        return asdict(self.task.rollout_args)

    def format_messages(self) -> list[dict[str, str]]:
        fields = {"system_prompt": self.system_prompt, "reply_prefix": self.reply_prefix}
        maths = self.task.reward_fn in (None, REWARD_FUNCTIONS.get("math_reward"))
        reward = "math_reward" if maths else "of its own"
        taskset = Taskset("the task", "", "", self._name, format=fields)
        return registry.WORKFLOWS[self._name](taskset, self.task_desc, reward).messages

    def _scored(self, answers: list[Any]) -> list[Any]:
        for run, answer in enumerate(answers):
            parts = self.reward_fn(response=answer.response_text, truth=self.truth)
            answer.metrics = {**(answer.metrics or {}), **parts}
            answer.reward = sum(parts.values())
            answer.eid.run = run + self.run_id_base
        return answers


class SimpleWorkflow(BaseSimpleWorkflow):
    """``simple_workflow``."""

    can_reset = can_repeat = True

    def run(self) -> list[Any]:
        return self._scored(self.model.chat(self.format_messages(), **self.rollout_args))


class AsyncSimpleWorkflow(BaseSimpleWorkflow):
    """``async_simple_workflow``."""

    is_async = True

    async def run_async(self) -> list[Any]:
        return self._scored(await self.model.chat_async(self.format_messages(), **self.rollout_args))


class MathWorkflow(SimpleWorkflow):
    """``math_workflow``."""

    _name = "math_workflow"


class AsyncMathWorkflow(AsyncSimpleWorkflow):
    """``async_math_workflow``."""

    _name = "math_workflow"


for _name, _cls in (
    ("simple_workflow", SimpleWorkflow),
    ("async_simple_workflow", AsyncSimpleWorkflow),
    ("math_workflow", MathWorkflow),
    ("async_math_workflow", AsyncMathWorkflow),
):
    WORKFLOWS.register_module(_name, _cls)
