"""A user's plugin: workflows of every kind, as trinity-rft's documentation has them."""

from dataclasses import asdict

from trinity.common.experience import Experience
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Task, Workflow
from trinity.common.workflows.step_wise_workflow import (
    AsyncStepWiseRewardWorkflow,
    RewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)
from trinity.common.workflows.workflow import MultiTurnWorkflow, SimpleWorkflow


@REWARD_FUNCTIONS.register_module("sorted_reward")
class SortedReward(RewardFn):
    def __init__(self, worth=1.0):
        self.worth = worth

    def __call__(self, response, truth=None, **kwargs):
        return {"sorted": self.worth if response == truth else 0.0}


@WORKFLOWS.register_module("shouting_workflow")
class Shouting(SimpleWorkflow):
    """One request for all answers."""

    def format_messages(self):
        return [{"role": "user", "content": self.task_desc.upper()}]


@WORKFLOWS.register_module("async_once_workflow")
class AsyncOnce(Workflow):
    """One request an answer."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        arguments = {**asdict(self.task.rollout_args), "n": 1}
        answers = await self.model.chat_async([{"role": "user", "content": self.task.task_desc}], **arguments)
        answers[0].reward = float(answers[0].response_text == self.task.truth)
        return answers


@WORKFLOWS.register_module("second_thoughts_workflow")
class SecondThoughts(MultiTurnWorkflow):
    """Two turns in one experience."""

    def run(self) -> list[Experience]:
        messages = [{"role": "user", "content": self.task.task_desc}]
        for _ in range(2):
            answer = self.model.chat(messages, n=1, temperature=1.0)[0].response_text
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "sure?"}]
        return [self.process_messages_to_experience(messages[:-1], 0.5, {"turns": 2, "why": "text"})]


@WORKFLOWS.register_module("agent_workflow")
class Agent(RewardPropagationWorkflow):
    """An agent against the OpenAI client: its turns are one conversation."""

    max_step_num = 2

    def __init__(self, *, task: Task, model, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.messages = [{"role": "user", "content": task.task_desc}]

    def step(self, step_num):
        answer = self.client.chat.completions.create(
            model=self.client.model_path, messages=self.messages, temperature=0.7, max_tokens=6
        )
        self.messages += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "again"},
        ]
        return True

    def reward(self, exps):
        return float(len(exps))


class Graded:
    """A step is a turn, worth what it says, and knows the state that it began in. Ends with a 1."""

    max_step_num = 3

    def __init__(self, *, task: Task, model, auxiliary_models=None):
        super().__init__(
            task=task, model=model, auxiliary_models=auxiliary_models, use_openai_client=not self.is_async
        )
        self.messages = [{"role": "user", "content": task.task_desc}]

    def heard(self, answer):
        said = answer.choices[0].message.content
        self.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "again"}]
        return said != "1"

    def worth(self, exps, step_num):
        for exp in exps:
            exp.info = {"env_state_hash": f"after {step_num}", "step_reward": step_num / 10}
        return float(exps[-1].response_text)


@WORKFLOWS.register_module("graded_workflow")
class GradedSteps(Graded, StepWiseRewardWorkflow):
    def step(self, step_num):
        client = self.client
        return self.heard(
            client.chat.completions.create(model=client.model_path, messages=self.messages, seed=8 + step_num)
        )

    def reward(self, exps, step_num):
        return self.worth(exps, step_num)


@WORKFLOWS.register_module("async_graded_workflow")
class AsyncGradedSteps(Graded, AsyncStepWiseRewardWorkflow):
    async def step_async(self, step_num):
        client = self.model.get_openai_async_client()
        return self.heard(
            await client.chat.completions.create(
                model=client.model_path, messages=self.messages, seed=8 + step_num
            )
        )

    async def reward_async(self, exps, step_num):
        return self.worth(exps, step_num)


@WORKFLOWS.register_module("failing_workflow")
class Failing(Workflow):
    def run(self):
        raise ZeroDivisionError("the user's own fault")


@WORKFLOWS.register_module("unrewarded_workflow")
class Unrewarded(Workflow):
    def run(self):
        return self.model.generate(["sort 21"], n=1)


@WORKFLOWS.register_module("measuring_workflow")
class Measuring(Workflow):
    """For evaluations, as upstream's math_eval_workflow: metrics, and no reward."""

    def run(self):
        (answer,) = self.model.chat([{"role": "user", "content": self.task.task_desc}], n=1)
        answer.metrics = {"accuracy": float(answer.response_text == self.task.raw_task["response"])}
        return [answer]


@WORKFLOWS.register_module("stepwise_workflow")
class Stepwise(Workflow):
    """Two answers to two questions: no conversation, or two rewards."""

    def run(self):
        apart = self.task.workflow_args["apart"]
        messages = [{"role": "user", "content": "a"}]
        first = self.model.chat(messages, n=1)[0]
        said = {"role": "assistant", "content": first.response_text}
        after = {"role": "user", "content": "b"}
        second = self.model.chat([after] if apart else [*messages, said, after], n=1)[0]
        first.reward, second.reward = 0.0, 0.0 if apart else 1.0
        return [first, second]


@WORKFLOWS.register_module("window_workflow")
class Windowed(Workflow):
    """Sees its last answer alone, until that is 1: no conversation. A step is worth what it says."""

    def run(self) -> list[Experience]:
        steps: list[Experience] = []
        seen = self.task.task_desc
        while seen != "1":
            (answer,) = self.model.chat([{"role": "user", "content": seen}], n=1, seed=7 + len(steps))
            seen = answer.response_text
            answer.eid.step, answer.reward = len(steps), float(seen)
            answer.metrics, answer.info = {"steps": len(steps) + 1.0}, {"env_state_hash": seen}
            steps.append(answer)
        return steps


@WORKFLOWS.register_module("all_windows_workflow")
class AllWindows(Workflow):
    """All runs of a task in one call, each of two answers."""

    can_repeat = True

    def set_repeat_times(self, repeat_times, run_id_base):
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    def run(self) -> list[Experience]:
        made: list[Experience] = []
        for step, question in enumerate(("a", "b")):
            asked = [{"role": "user", "content": question}]
            for run, answer in enumerate(self.model.chat(asked, n=self.repeat_times)):
                answer.eid.run, answer.eid.step, answer.reward = self.run_id_base + run, step, float(step)
                if step and self.task.workflow_args.get(
                    "judges"
                ):  # of the answer before, by the policy itself
                    answer.eid.task = f"{self.task.task_id}-judge"
                made.append(answer)
        return made


@WORKFLOWS.register_module("judged_workflow")
class Judged(Workflow):
    """An auxiliary model is the judge, asked by the client that the class is given."""

    def run(self) -> list[Experience]:
        (answer,) = self.model.chat([{"role": "user", "content": self.task.task_desc}], n=1)
        (judge,) = self.auxiliary_models
        question = [{"role": "user", "content": answer.response_text}]
        said = judge.chat.completions.create(model=judge.model_path, messages=question)
        answer.reward = float(said.choices[0].message.content)
        return [answer]


@WORKFLOWS.register_module("async_judged_workflow")
class AsyncJudged(Workflow):
    is_async = True

    async def run_async(self) -> list[Experience]:
        (answer,) = await self.model.chat_async([{"role": "user", "content": self.task.task_desc}], n=1)
        (judge,) = self.auxiliary_models
        question = [{"role": "user", "content": answer.response_text}]
        said = await judge.chat.completions.create(model=judge.model_path, messages=question)
        answer.reward = float(said.choices[0].message.content)
        return [answer]


@WORKFLOWS.register_module("two_judges_workflow")
class TwoJudges(Workflow):
    """The second counts tens; the models' names are on their wrappers."""

    def run(self) -> list[Experience]:
        (answer,) = self.model.chat([{"role": "user", "content": self.task.task_desc}], n=1)
        question = [{"role": "user", "content": answer.response_text}]
        said = [
            judge.chat.completions.create(model=judge.model_path, messages=question)
            for judge in self.auxiliary_models
        ]
        ones, tens = (float(each.choices[0].message.content) for each in said)
        answer.reward = ones + 100 * tens
        answer.info = {"judges": " ".join(each.config.name for each in self.auxiliary_model_wrappers)}
        return [answer]
