"""``trinity.common.workflows.step_wise_workflow``: an agent's steps, and one reward for all of them."""

from __future__ import annotations

from typing import Any

from trinity_compat.workflows.standin.workflows import Task, Workflow


class RewardPropagationWorkflow(Workflow):
    """``step`` until it says so or ``max_step_num``; ``reward`` is every step's."""

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

    def run(self) -> list[Any]:
        experiences: list[Any] = []
        for number in range(self.max_step_num):
            goes_on = self.step(step_num=number)
            experiences += self._of_step(number)
            if not goes_on:
                break
        return self._rewarded(experiences, self.reward(experiences))

    def _of_step(self, number: int) -> list[Any]:
        made: list[Any] = self.model.extract_experience_from_history()
        for experience in made:
            experience.eid.step = number
        return made

    def _rewarded(self, experiences: list[Any], reward: float) -> list[Any]:
        for experience in experiences:
            experience.reward = reward
        return experiences

    def step(self, step_num: int) -> bool:
        """Whether to go on."""
        raise NotImplementedError

    def reward(self, exps: list[Any]) -> float:
        """Of all steps."""
        raise NotImplementedError

    @property
    def max_step_num(self) -> int:
        """Steps at most."""
        raise NotImplementedError


class AsyncRewardPropagationWorkflow(RewardPropagationWorkflow):
    """The same with ``step_async`` and ``reward_async``."""

    is_async = True

    async def run_async(self) -> list[Any]:
        experiences: list[Any] = []
        for number in range(self.max_step_num):
            goes_on = await self.step_async(step_num=number)
            experiences += self._of_step(number)
            if not goes_on:
                break
        return self._rewarded(experiences, await self.reward_async(experiences))

    async def step_async(self, step_num: int) -> bool:
        """Whether to go on."""
        raise NotImplementedError

    async def reward_async(self, exps: list[Any]) -> float:
        """Of all steps."""
        raise NotImplementedError
