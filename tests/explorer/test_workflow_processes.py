"""Workflows of a plugin in processes of their own: what they make, and what one costs that hangs or dies."""

import asyncio
from dataclasses import asdict, replace

import pytest
from explorer_job import verl_config
from omegaconf import OmegaConf
from toys import made_toy

from trinity_compat.explorer.agents.processes import process
from trinity_compat.explorer.agents.processes.pool import AgentProcessPool
from trinity_compat.explorer.agents.processes.wire import AgentLoopFailed
from trinity_compat.explorer.agents.user_workflows import UserWorkflows
from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.vllm import Completion
from trinity_compat.run.toy import ToySpec, make_tokenizer
from trinity_compat.trinity.workflows.tasksets import PLUGIN, Taskset

FILE = """
import asyncio, os, time
from trinity.common.workflows import WORKFLOWS, Workflow

def trouble(task):
    if task.raw_task["fault"]:
        exec(task.raw_task["fault"])

@WORKFLOWS.register_module("in_a_thread")
class InAThread(Workflow):
    def run(self):
        (answer,) = self.model.chat([{"role": "user", "content": "sort 21"}], n=1)
        said = self.model.get_openai_client().chat.completions.create(
            model="toy",
            messages=[
                {"role": "user", "content": "sort 21"},
                {"role": "assistant", "content": answer.response_text},
                {"role": "user", "content": "again"},
            ],
        )
        trouble(self.task)
        answer.reward = float(self.model.model_version) + float(said.choices[0].message.content)
        return [answer]

@WORKFLOWS.register_module("on_the_loop")
class OnTheLoop(Workflow):
    is_async = True

    async def run_async(self):
        (answer,) = await self.model.chat_async([{"role": "user", "content": "sort 21"}], n=1)
        trouble(self.task)
        answer.reward = 1.0
        return [answer]

@WORKFLOWS.register_module("all_in_one_call")
class AllInOneCall(Workflow):
    can_repeat = True

    def set_repeat_times(self, repeat_times, run_id_base):
        self.repeat_times = repeat_times

    def run(self):
        answers = self.model.chat([{"role": "user", "content": "sort 21"}], n=self.repeat_times)
        for answer in answers:
            answer.reward = 1.0
        return answers
"""


KINDS = ("in_a_thread", "on_the_loop", "all_in_one_call")


class Engine:
    """Says 12. Holds back its first ``held`` answers."""

    def __init__(self, held=0):
        self.requests, self._held = [], held
        self._answer = make_tokenizer()("12<|im_end|>", add_special_tokens=False).input_ids

    async def submit(self, requests):
        (request,) = requests
        self.requests.append(request)
        future = asyncio.get_running_loop().create_future()
        if len(self.requests) > self._held:
            future.set_result([Completion(self._answer, [-0.5] * len(self._answer), "stop")])
        return [future]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=16, val_rows=8, warm_steps=1))


@pytest.fixture
def config(toy, tmp_path, monkeypatch):
    """Of a run with a plugin of both kinds."""
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path))
    made = OmegaConf.create(verl_config(toy))
    sets = {name: asdict(Taskset("t", "t", "", name, plugin=True)) for name in KINDS}
    OmegaConf.update(made, "data.workflows", sets, force_add=True)
    return made


def job(number, workflow, fault=None, n=2):
    row = {"prompt": "sort 21", "fault": fault}
    task = {"agent_name": PLUGIN, "taskset": workflow, "raw_task": row, "index": number, "data_source": "t"}
    return RolloutTask(number, task, n, {"temperature": 1.0, "seed": 100})


def run(config, jobs, engine=None, *, size=1, limit_s=None):
    """What each group came to, in order, with version 3 of the weights."""

    async def go():
        pool = AgentProcessPool(
            config, InflightRequests(engine or Engine()), size=size, limit_s=limit_s, workflows=True
        )
        try:
            return await asyncio.gather(*(pool.run(each, 3) for each in jobs), return_exceptions=True)
        finally:
            pool.close()

    return asyncio.run(go())


@pytest.mark.parametrize(("workflow", "reward"), [("in_a_thread", 15.0), ("on_the_loop", 1.0)])
def test_a_process_makes_what_this_one_would(config, workflow, reward):
    from verl.utils.config import omega_conf_to_dataclass

    own, other = Engine(), Engine()
    (there,) = run(config, [job(0, workflow)], other)
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)

    async def here():
        return await UserWorkflows(config, model, InflightRequests(own)).run(job(0, workflow), 3)

    assert [asdict(one) for one in there] == [asdict(one) for one in asyncio.run(here())]
    assert [part.reward for part in there] == [reward, reward]
    asked = [sorted(request.sampling["seed"] for request in each.requests) for each in (own, other)]
    assert asked[0] == asked[1]
    names = [request.request_id for request in other.requests]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("workflow", "fault", "said"),
    [
        ("in_a_thread", "while True: pass", "took longer than 10 s, the engine's time left out"),
        ("in_a_thread", "time.sleep(600)", "took longer than 10 s, the engine's time left out"),
        (
            "on_the_loop",
            "while True: pass",
            "workflow ended its process (it computed for 11 s without an end)",
        ),
        ("on_the_loop", "os._exit(3)", "workflow ended its process (exit code 3)"),
        ("in_a_thread", "1 / 0", "ZeroDivisionError: division by zero ("),
    ],
)
def test_one_that_hangs_dies_or_raises_costs_its_own_group(config, monkeypatch, workflow, fault, said):
    monkeypatch.setattr(process, "GRACE_S", 1.0)
    limit_s = 10.0 if " s" in said else 300.0  # a good one on a busy machine may take seconds
    jobs = [job(0, workflow), job(1, workflow, fault), job(2, workflow)]
    first, bad, last = run(config, jobs, limit_s=limit_s)
    assert [len(group) if isinstance(group, list) else group for group in (first, last)] == [2, 2]
    assert isinstance(bad, AgentLoopFailed) and said in str(bad)


@pytest.mark.parametrize("workflow", ["in_a_thread", "on_the_loop"])
def test_what_a_change_of_weights_cuts_off_is_asked_again(config, workflow):
    engine = Engine(held=1)

    async def go():
        asked = InflightRequests(engine, partial=False)
        pool = AgentProcessPool(config, asked, size=1, workflows=True)
        try:
            made = asyncio.ensure_future(pool.run(job(0, workflow, n=1), 3))
            while not engine.requests:
                await asyncio.sleep(0.05)
            async with asked.changing():
                pass
            return await made
        finally:
            pool.close()

    (only,) = asyncio.run(go())
    assert only.reward
    assert len(engine.requests) == (3 if workflow == "in_a_thread" else 2)


@pytest.mark.parametrize("workflow", ["on_the_loop", "all_in_one_call"])
def test_an_answer_is_told_of_when_it_is_there(config, workflow):
    """Its place on the engine is free: a group's longest answer does not keep those of the others."""
    engine = Engine(held=1)

    async def go():
        told = []
        pool = AgentProcessPool(config, InflightRequests(engine), size=1, workflows=True)
        try:
            asked = replace(job(0, workflow, n=3), apart=True)
            made = asyncio.ensure_future(pool.run(asked, 3, lambda: told.append(1)))
            async with asyncio.timeout(300):
                while len(told) < 2 and not made.done():
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)
            return len(told), made.done()
        finally:
            made.cancel()
            pool.close()

    assert asyncio.run(go()) == (2, False)


def test_answers_that_are_asked_for_apart_have_the_seeds_of_one_request(config):
    one, three = Engine(), Engine()
    (together,) = run(config, [job(0, "all_in_one_call", n=1)], one)
    (apart,) = run(config, [replace(job(0, "all_in_one_call", n=3), apart=True)], three)
    assert isinstance(together, list), together
    first = one.requests[0].sampling["seed"]
    assert [(r.sampling["seed"], r.sampling["n"]) for r in three.requests] == [
        (first + place, 1) for place in range(3)
    ]
    assert [len(together), len(apart)] == [1, 3]


def test_a_plugin_that_cannot_be_imported_says_so(config, tmp_path):
    (tmp_path / "worse.py").write_text("raise OSError('no such device')")
    (found,) = run(config, [job(0, "on_the_loop")])
    assert isinstance(found, AgentLoopFailed)
    assert "worse.py failed: OSError: no such device" in str(found)
