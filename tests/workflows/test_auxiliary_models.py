"""A judge served beside the policy, as workflows and operators are given it."""

import asyncio
from pathlib import Path

import pytest
from recorded_model import ANSWERS, Recorded, make_tokenizer

from trinity_compat.explorer.operators import prepared
from trinity_compat.pipelines.running import Pipeline
from trinity_compat.workflows import standin
from trinity_compat.workflows.auxiliary import Auxiliary
from trinity_compat.workflows.model import Model, Surroundings
from trinity_compat.workflows.openai_app import make_app, served
from trinity_compat.workflows.running import Limits, Workflows
from trinity_compat.workflows.standin.experience import Experience
from trinity_compat.workflows.standin.operators import EXPERIENCE_OPERATORS, ExperienceOperatorV1
from trinity_compat.workflows.tasksets import Taskset

standin.install()
ROW = {"prompt": "sort 21", "response": "12"}
SAMPLINGS = [{"temperature": 1.0, "seed": 7 + i} for i in range(3)]


def judge(writer):
    loop = asyncio.get_running_loop()
    around = Surroundings(writer, make_tokenizer(), Experience, loop, "judge", 512)
    return make_app({"EMPTY": Model(around, {"temperature": 0.0})}.get)


@pytest.mark.parametrize("workflow", ["judged_workflow", "async_judged_workflow"])
def test_a_workflow_asks_its_judge(workflow):
    asked = Recorded()

    async def judged():
        async with served(judge(asked)) as address:
            folder = str(Path(__file__).parent / "plugins")
            running = Workflows(Recorded(), make_tokenizer(), "toy", Limits(512, 64), folder)
            running.auxiliary.append(Auxiliary(address.split("/")[2], "judge"))
            return await running.run(Taskset("t", "t", "", workflow), ROW, SAMPLINGS)

    assert [each.reward for each in asyncio.run(judged())] == [12.0, 12.0, 12.0]
    answers = sorted(each["prompt"].split("\n")[1].removesuffix("<|im_end|>") for each in asked.asked)
    assert answers == sorted(ANSWERS)


@pytest.mark.parametrize(("name", "key"), [(None, 0), ("judge", "judge")])
def test_an_operator_is_given_clients_by_the_model_s_name(name, key):
    seen = []

    class Asking(ExperienceOperatorV1):
        async def prepare(self):
            (client,) = self.auxiliary_models[key]
            said = await client.chat.completions.create(
                model=client.model_path, messages=[{"role": "user", "content": "a"}]
            )
            seen.append(said.choices[0].message.content)

        async def process(self, exps):
            return exps, {}

    EXPERIENCE_OPERATORS.register_module("asking", Asking, force=True)
    verl = {
        "reward": {"reward_model": {"model_path": "judge"}},
        "data": {"experience_pipeline": {"auxiliary_name": name}},
    }

    async def all_of_it():
        async with (
            served(judge(Recorded())) as address,
            prepared(Pipeline([("asking", {})]), verl, address.split("/")[2]),
        ):
            pass

    asyncio.run(all_of_it())
    assert seen == ["12"]
