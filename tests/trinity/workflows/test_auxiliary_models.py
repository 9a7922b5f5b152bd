"""A judge served beside the policy, as workflows and operators are given it."""

import asyncio
from pathlib import Path

import pytest
from recorded_model import ANSWERS, Recorded, make_tokenizer

from trinity_compat.explorer.data.operators import prepared
from trinity_compat.job.gpus import reward_model_engines, reward_model_width, shares
from trinity_compat.job.served_models import configurations
from trinity_compat.trinity.pipelines.runner import OperatorPipeline
from trinity_compat.trinity.workflows import trinity_stubs
from trinity_compat.trinity.workflows.auxiliary import AuxiliaryModel, clients_of
from trinity_compat.trinity.workflows.model import RunContext, WorkflowModel
from trinity_compat.trinity.workflows.openai_app import make_app, served
from trinity_compat.trinity.workflows.run_rows import Limits
from trinity_compat.trinity.workflows.runner import Workflows
from trinity_compat.trinity.workflows.tasksets import Taskset
from trinity_compat.trinity.workflows.trinity_stubs.experience import Experience
from trinity_compat.trinity.workflows.trinity_stubs.operators import (
    EXPERIENCE_OPERATORS,
    ExperienceOperatorV1,
)

trinity_stubs.install()


class Only(Recorded):
    """Always says the same."""

    def __init__(self, answer):
        super().__init__()
        self._answer = answer

    async def write(self, prompt_ids, sampling):
        return [self._written(self._answer)]


ROW = {"prompt": "sort 21", "response": "12"}
SAMPLINGS = [{"temperature": 1.0, "seed": 7 + i} for i in range(3)]


def judge(writer):
    loop = asyncio.get_running_loop()
    around = RunContext(writer, make_tokenizer(), Experience, loop, "judge", 512)
    return make_app({"EMPTY": WorkflowModel(around, {"temperature": 0.0})}.get)


@pytest.mark.parametrize("workflow", ["judged_workflow", "async_judged_workflow"])
def test_a_workflow_asks_its_judge(workflow):
    asked = Recorded()

    async def judged():
        async with served(judge(asked)) as address:
            folder = str(Path(__file__).parent / "plugins")
            running = Workflows(Recorded(), make_tokenizer(), "toy", Limits(512, 64), folder)
            running.auxiliary.append(AuxiliaryModel(address.split("/")[2], "judge"))
            return await running.run(Taskset("t", "t", "", workflow), ROW, SAMPLINGS)

    assert [each.reward for each in asyncio.run(judged())] == [12.0, 12.0, 12.0]
    answers = sorted(each["prompt"].split("\n")[1].removesuffix("<|im_end|>") for each in asked.asked)
    assert answers == sorted(ANSWERS)


def verl_of(*models):
    served = [{"path": path, "name": name} for path, name in models]
    reward = {"enable": True, "model_path": models[0][0], "rollout": {"tensor_model_parallel_size": 2}}
    return {"reward": {"reward_model": reward}, "data": {"auxiliary_models": served}}


def test_several_judges_come_in_the_yaml_s_order_each_at_its_own_address():
    verl = verl_of(("judge", "small"), ("other", "large"))

    async def judged():
        async with served(judge(Recorded())) as one, served(judge(Only("3"))) as two:
            folder = str(Path(__file__).parent / "plugins")
            running = Workflows(Recorded(), make_tokenizer(), "toy", Limits(512, 64), folder)
            running.auxiliary += clients_of(verl, [address.split("/")[2] for address in (one, two)])
            return await running.run(Taskset("t", "t", "", "two_judges_workflow"), ROW, SAMPLINGS)

    runs = asyncio.run(judged())
    assert [each.reward for each in runs] == [312.0, 312.0, 312.0]
    assert {each.info["judges"] for each in runs} == {"small large"}


@pytest.mark.parametrize(("name", "key"), [(None, 1), ("judge", "judge")])
def test_an_operator_is_given_clients_by_the_model_s_name(name, key):
    seen = []

    class Asking(ExperienceOperatorV1):
        async def prepare(self):
            assert list(self.auxiliary_models) == ["first", key]
            (client,) = self.auxiliary_models[key]
            said = await client.chat.completions.create(
                model=client.model_path, messages=[{"role": "user", "content": "a"}]
            )
            seen.append((client.model_path, said.choices[0].message.content))

        async def process(self, exps):
            return exps, {}

    EXPERIENCE_OPERATORS.register_module("asking", Asking, force=True)

    async def all_of_it():
        async with (
            served(judge(Recorded())) as address,
            prepared(
                OperatorPipeline([("asking", {})]),
                verl_of(("other", "first"), ("judge", name)),
                ["127.0.0.1:1", address.split("/")[2]],
            ),
        ):
            pass

    asyncio.run(all_of_it())
    assert seen == [("judge", "12")]


def test_each_model_has_a_configuration_in_which_it_is_the_reward_model():
    verl = verl_of(("judge", None), ("other", None))
    verl["data"]["auxiliary_models"][1] |= {"engines": 3, "width": 4}
    first, second = configurations(verl)
    assert first is verl
    reward = second["reward"]["reward_model"]
    assert (reward["model_path"], reward["enable"]) == ("other", True)
    assert (reward_model_engines(second, "cuda"), reward_model_width(second, "cuda")) == (3, 4)
    verl |= {"trainer": {"nnodes": 1, "n_gpus_per_node": 4}}
    verl["reward"]["reward_model"] |= {"nnodes": 1, "n_gpus_per_node": 2}
    assert shares(verl, device="cuda", mode="colocate", explorers=1)["reward model"] == 2 + 12
