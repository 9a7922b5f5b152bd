"""A workflow and a reward of your own, as trinity-rft has them: an agent on the OpenAI client."""

from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Task
from trinity.common.workflows.step_wise_workflow import RewardPropagationWorkflow


@REWARD_FUNCTIONS.register_module("digits_in_order")
class DigitsInOrder(RewardFn):
    """1 where the answer is the truth."""

    def __init__(self) -> None:
        pass

    def __call__(self, response: str, truth: str) -> dict[str, float]:
        return {"right": float(response.strip() == truth)}


@WORKFLOWS.register_module("openai_agent")
class OpenAIAgent(RewardPropagationWorkflow):
    """Asks once; with more steps each prompt would go on from the answer before."""

    max_step_num = 1

    def __init__(self, *, task: Task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.task_desc, self.truth = task.task_desc, task.truth
        self.score = task.reward_fn(**task.reward_fn_args)
        self.messages = []

    def step(self, step_num: int) -> bool:
        self.messages.append({"role": "user", "content": self.task_desc})
        answer = self.client.chat.completions.create(
            model=self.client.model_path, messages=self.messages, max_tokens=8
        )
        self.messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        return True

    def reward(self, exps) -> float:
        return sum(self.score(response=self.messages[-1]["content"], truth=self.truth).values())
