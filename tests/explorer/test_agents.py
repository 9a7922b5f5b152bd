"""veRL's tool agent loop on our engine: the turns, the mask, the seeds. The engine here is a script."""

import asyncio
import json

import pytest
from explorer_job import tool_config
from omegaconf import OmegaConf

from trinity_compat.explorer.agents.verl_loops import AgentLoops
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.vllm import Completion
from trinity_compat.run.toy import make_tokenizer

TOOLS = '''
from verl.tools.function_tool import function_tool

@function_tool
def smallest(digits: str) -> str:
    """Return the smallest digit.

    Args:
        digits: some digits
    """
    return min(digits)
'''


class Scripted:
    """Answers the k-th request of a dialogue with the k-th line."""

    def __init__(self, *lines):
        self.tokenizer, self.lines, self.requests = make_tokenizer(), lines, []

    async def submit(self, requests):
        (request,) = requests
        self.requests.append(request)
        text = self.tokenizer.decode(list(request.prompt_ids))
        turn = text.count("<|im_start|>assistant") - 1
        ids = self.tokenizer.encode(self.lines[turn] + "<|im_end|>")
        future = asyncio.get_running_loop().create_future()
        future.set_result([Completion(ids, [-0.5] * len(ids), "stop")])
        return [future]


def tool_call(**arguments):
    return f"<tool_call>\n{json.dumps({'name': 'smallest', 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def loops(toy, tmp_path_factory):
    tools = tmp_path_factory.mktemp("tools") / "tools.py"  # one file: veRL registers a tool's name once
    tools.write_text(TOOLS)

    def make(engine):
        return AgentLoops(OmegaConf.create(tool_config(toy, tools)), engine)

    return make


def job(n=2):
    task = {
        "raw_prompt": [{"role": "user", "content": "sort 4213"}],
        "data_source": "toy/sort",
        "reward_model": {"ground_truth": "1234"},
        "extra_info": {"index": 0},
        "index": 0,
        "tools_kwargs": {},
        "interaction_kwargs": {},
    }
    return RolloutTask(0, task, n, {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 100})


def run(loops, engine, job_):
    async def go():
        return await loops(engine).run(job_)

    return asyncio.run(go())


def test_a_tools_answer_stands_in_the_response_and_is_masked(loops):
    engine = Scripted(tool_call(digits="4213"), "1234")
    first, second = run(loops, engine, job())
    text = engine.tokenizer.decode(first.response_ids)
    written = [t for t, own in zip(first.response_ids, first.response_mask, strict=True) if own]
    assert "1234<|im_end|>" in text
    assert "<|im_start|>tool\n1" in text
    assert "<|im_start|>tool" not in engine.tokenizer.decode(written)
    assert first.num_turns == 4
    assert len(first.logprobs) == len(first.response_ids)
    assert {lp for lp, own in zip(first.logprobs, first.response_mask, strict=True) if own} == {-0.5}
    assert second.response_ids == first.response_ids


def test_each_turn_and_each_run_has_a_seed_of_its_own(loops):
    engine = Scripted(tool_call(digits="4213"), "1234")
    run(loops, engine, job())
    seeds = [request.sampling["seed"] for request in engine.requests]
    assert len(set(seeds)) == 4
    again = Scripted(tool_call(digits="4213"), "1234")
    run(loops, again, job())
    assert sorted(seeds) == sorted(request.sampling["seed"] for request in again.requests)


def test_without_a_tool_call_there_is_one_turn(loops):
    (only,) = run(loops, Scripted("1234"), job(n=1))
    assert only.num_turns == 2
    assert set(only.response_mask) == {1}
