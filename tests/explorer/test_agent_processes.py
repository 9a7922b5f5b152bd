"""Agent loops in processes of their own: what they make, and what one costs that hangs or dies."""

import asyncio
import json
import re
from functools import partial

import psutil
import pytest
from explorer_job import tool_config
from omegaconf import OmegaConf
from toys import made_toy

from trinity_compat.explorer.agents.processes import process
from trinity_compat.explorer.agents.processes.pool import AgentProcessPool
from trinity_compat.explorer.agents.processes.wire import AgentLoopFailed
from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.vllm import Completion, EngineDied
from trinity_compat.job.fingerprint import ANSWERING, FilesEdited, check, made
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.toy import ToySpec, make_tokenizer

TOOL = '''
import ctypes, os, sys, time
from verl.tools.function_tool import function_tool

@function_tool
{how}def least_of_all(digits: str) -> str:
    """Return the least_of_all digit.

    Args:
        digits: some digits
    """
    if digits.startswith("9"):
        {fault}
    return min(digits)
'''
GOOD, BAD = "4213", "9213"


class Engine:
    """Calls the tool with the prompt's digits, then says "1234". Holds back its first ``held`` answers."""

    def __init__(self, *, held=0, dies=False):
        self.tokenizer, self.requests = make_tokenizer(), []
        self.held, self.dies = held, dies

    async def submit(self, requests):
        (request,) = requests
        self.requests.append(request)
        future = asyncio.get_running_loop().create_future()
        if self.dies:
            future.set_exception(EngineDied("no memory"))
        elif len(self.requests) > self.held:
            future.set_result([self.answer(self.tokenizer.decode(list(request.prompt_ids)))])
        return [future]

    def answer(self, text):
        call = {"name": "least_of_all", "arguments": {"digits": re.search(r"sort (\d+)", text)[1]}}
        asked = text.count("<|im_start|>assistant") == 1
        line = f"<tool_call>\n{json.dumps(call)}\n</tool_call>" if asked else "1234"
        ids = self.tokenizer.encode(line + "<|im_end|>")
        return Completion(ids, [-0.5] * len(ids), "stop")


def job(number, digits=GOOD, n=2):
    task = {
        "raw_prompt": [{"role": "user", "content": f"sort {digits}"}],
        "data_source": "toy/sort",
        "reward_model": {"ground_truth": "1234"},
        "extra_info": {"index": number},
        "index": number,
        "tools_kwargs": {},
        "interaction_kwargs": {},
    }
    return RolloutTask(number, task, n, {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 100})


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """One that has learned nothing: its engine is a script."""
    return made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=16, val_rows=8, warm_steps=1))


@pytest.fixture
def config(toy, tmp_path):
    """With a tool that does ``fault`` with the bad digits."""

    def make(fault="pass", how=""):
        tools = tmp_path / "tools.py"
        tools.write_text(TOOL.format(fault=fault, how=how))
        return OmegaConf.create(tool_config(toy, tools))

    return make


def run(config, jobs, engine=None, *, size=1, limit_s=None):
    """What each group came to, in order."""

    async def go():
        pool = AgentProcessPool(config, InflightRequests(engine or Engine()), size=size, limit_s=limit_s)
        try:
            return await asyncio.gather(*map(pool.run, jobs), return_exceptions=True)
        finally:
            pool.close()

    return asyncio.run(go())


def test_a_process_makes_what_this_one_would(config):
    own, other = Engine(), Engine()
    made = config()
    (there,) = run(made, [job(0)], other)
    here = asyncio.run(AgentLoops(made, InflightRequests(own)).run(job(0)))
    same = ("prompt_ids", "response_ids", "response_mask", "logprobs", "num_turns", "reward", "extra")
    for one, two in zip(there, here, strict=True):
        assert [getattr(one, name) for name in same] == [getattr(two, name) for name in same]
        assert one.metrics.keys() == two.metrics.keys()
    asked = [sorted(request.sampling["seed"] for request in each.requests) for each in (own, other)]
    assert asked[0] == asked[1]


def test_requests_of_several_processes_have_names_of_their_own(config):
    engine = Engine()
    made = run(config(), [job(number) for number in range(3)], engine, size=2)
    assert [len(group) for group in made] == [2, 2, 2]
    names = [request.request_id for request in engine.requests]
    assert len(names) == len(set(names)) == 12


@pytest.mark.parametrize(
    ("how", "fault", "said"),
    [
        ("", "while True: pass", "took longer than 10 s, the engine's time left out"),
        ("async ", "while True: pass", "ended its process (it computed for 11 s without an end)"),
        ("", "ctypes.string_at(0)", "ended its process (SIGSEGV)"),
        ("", "os._exit(3)", "ended its process (exit code 3)"),
    ],
)
def test_one_that_hangs_or_dies_costs_its_own_group(config, monkeypatch, how, fault, said):
    # One that the process itself can end has a long time to say so on a busy machine.
    monkeypatch.setattr(process, "GRACE_S", 1.0 if "11 s" in said else 60.0)
    limit_s = 10.0 if " s" in said else 300.0  # a good one on a busy machine may take seconds
    first, bad, last = run(config(fault, how), [job(0), job(1, BAD), job(2)], limit_s=limit_s)
    assert [len(group) if isinstance(group, list) else group for group in (first, last)] == [2, 2]
    assert isinstance(bad, AgentLoopFailed) and said in str(bad)


def test_a_process_that_replaces_another_does_not_run_an_edited_tool(config, tmp_path):
    """What lives goes on with the tool that the run started with."""
    given = config("os._exit(3)")
    verl = OmegaConf.to_container(given, resolve=True)
    mine = made(RunSpec("", "", verl, 1, None, SyncSpec()), cwd=tmp_path)
    assert mine.files["agent loop and tools"]

    async def go():
        loaded = partial(check, mine, ANSWERING)
        pool = AgentProcessPool(given, InflightRequests(Engine()), size=1, loaded=loaded)
        try:
            await pool.run(job(0))
            config("pass")
            await pool.run(job(1))
            with pytest.raises(AgentLoopFailed):
                await pool.run(job(2, BAD))
            with pytest.raises(FilesEdited, match=r"agent loop and tools .*tools.py was edited"):
                await pool.run(job(3))
        finally:
            pool.close()

    asyncio.run(go())


def test_a_process_in_which_a_loop_took_too_long_ends_with_its_last_group(config):
    """The tool's thread may compute on."""

    async def go():
        pool = AgentProcessPool(config("while True: pass"), InflightRequests(Engine()), size=1, limit_s=10.0)
        try:
            with pytest.raises(AgentLoopFailed, match="took longer than 10 s"):
                await pool.run(job(0, BAD))
            return pool._pool._places[0].process.dead
        finally:
            pool.close()

    assert asyncio.run(go())


def test_what_a_change_of_weights_cuts_off_is_asked_again(config):
    engine = Engine(held=1)

    async def go():
        asked = InflightRequests(engine, partial=False)
        pool = AgentProcessPool(config(), asked, size=1)
        try:
            made = asyncio.ensure_future(pool.run(job(0, n=1)))
            while not engine.requests:
                await asyncio.sleep(0.05)
            async with asked.changing():
                assert asked.interrupted == 0 or not made.done()
            return await made
        finally:
            pool.close()

    (only,) = asyncio.run(go())
    assert only.num_turns == 4
    assert len(engine.requests) == 3


def test_an_answer_is_told_of_while_others_of_its_group_are_made(config):
    """Its place on the engine is free: a group's longest answer does not keep those of the others."""

    async def go():
        ended = asyncio.Event()
        pool = AgentProcessPool(config(), InflightRequests(Engine(held=1)), size=1)
        try:
            made = asyncio.ensure_future(pool.run(job(0, n=2), ended=ended.set))
            await asyncio.wait_for(ended.wait(), 300)
            return made.done()
        finally:
            made.cancel()
            pool.close()

    assert not asyncio.run(go())


def test_an_engine_that_died_is_told_as_such(config):
    (found,) = run(config(), [job(0)], Engine(dies=True))
    assert isinstance(found, EngineDied)


def test_groups_nobody_wants_and_processes_of_a_closed_pool_are_gone(config):
    engine = Engine(held=99)

    async def go():
        pool = AgentProcessPool(config(), InflightRequests(engine), size=2)
        groups = [asyncio.ensure_future(pool.run(job(number))) for number in range(2)]
        while len(engine.requests) < 4:
            await asyncio.sleep(0.05)
        processes = [place.process for place in pool._pool._places]
        pids = [each._process.pid for each in processes]
        answers = [task for each in processes for task in each._requests.values()]
        for group in groups:
            group.cancel()
        await asyncio.wait(groups)
        await asyncio.wait(answers)  # the loops were ended, and with them what they had asked
        pool.close()
        return pids

    pids = asyncio.run(go())
    assert len(pids) == 2
    running = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    left = psutil.wait_procs(running, timeout=60)[1]
    assert [each for each in left if each.status() != psutil.STATUS_ZOMBIE] == []
