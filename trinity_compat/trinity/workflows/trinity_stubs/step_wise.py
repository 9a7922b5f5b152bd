"""``trinity.common.workflows.step_wise_workflow``: an agent's steps, each with a reward or all with one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from trinity_compat.trinity.workflows.trinity_stubs.workflows import Task, Workflow


class _Steps(Workflow):
    """Workflow that calls ``step`` until it returns False or ``max_step_num``.

    The model's calls in a step are its experiences.
    """

    def __init__(
        self,
        *,
        task: Task,
        model: Any,
        auxiliary_models: list[Any] | None = None,
        use_openai_client: bool = True,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.client = model.get_openai_client() if use_openai_client else None

    def _steps(self) -> Iterator[list[Any]]:
        for number in range(self.max_step_num):
            goes_on = self.step(step_num=number)
            yield self._of_step(number)
            if not goes_on:
                return

    async def _steps_async(self) -> AsyncIterator[list[Any]]:
        for number in range(self.max_step_num):
            goes_on = await self.step_async(step_num=number)
            yield self._of_step(number)
            if not goes_on:
                return

    def _of_step(self, number: int) -> list[Any]:
        made: list[Any] = self.model.extract_experience_from_history()
        for experience in made:
            experience.eid.step = number
        return made

    def step(self, step_num: int) -> bool:
        raise NotImplementedError

    async def step_async(self, step_num: int) -> bool:
        raise NotImplementedError

    @property
    def max_step_num(self) -> int:
        raise NotImplementedError


class StepWiseRewardWorkflow(_Steps):
    """``reward`` is that of one step's experiences."""

    def run(self) -> list[Any]:
        experiences: list[Any] = []
        for number, made in enumerate(self._steps()):
            experiences += _rewarded(made, self.reward(made, step_num=number))
        return experiences

    def reward(self, exps: list[Any], step_num: int) -> float:
        raise NotImplementedError


class AsyncStepWiseRewardWorkflow(StepWiseRewardWorkflow):
    """The same with ``step_async`` and ``reward_async``."""

    is_async = True

    async def run_async(self) -> list[Any]:
        experiences: list[Any] = []
        number = 0
        async for made in self._steps_async():
            experiences += _rewarded(made, await self.reward_async(made, step_num=number))
            number += 1
        return experiences

    async def reward_async(self, exps: list[Any], step_num: int) -> float:
        raise NotImplementedError


class RewardPropagationWorkflow(_Steps):
    """``reward`` is every step's."""

    def run(self) -> list[Any]:
        parts = list(self._steps())
        experiences = [experience for part in parts for experience in part]
        return _counted(_rewarded(experiences, self.reward(experiences)), len(parts))

    def reward(self, exps: list[Any]) -> float:
        raise NotImplementedError


class AsyncRewardPropagationWorkflow(RewardPropagationWorkflow):
    """The same with ``step_async`` and ``reward_async``."""

    is_async = True

    async def run_async(self) -> list[Any]:
        parts = [part async for part in self._steps_async()]
        experiences = [experience for part in parts for experience in part]
        return _counted(_rewarded(experiences, await self.reward_async(experiences)), len(parts))

    async def reward_async(self, exps: list[Any]) -> float:
        raise NotImplementedError


def _rewarded(experiences: list[Any], reward: float) -> list[Any]:
    for experience in experiences:
        experience.reward = reward
    return experiences


def _counted(experiences: list[Any], steps: int) -> list[Any]:
    for experience in experiences:
        experience.metrics = {**(experience.metrics or {}), "actual_env_steps": steps}
    return experiences
