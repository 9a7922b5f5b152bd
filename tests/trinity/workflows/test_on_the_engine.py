"""Plugins' workflows on the explorer's engine: requests, seeds, changes of weights, trajectories."""

import asyncio
import importlib.metadata
import logging
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from recorded_model import make_tokenizer

from trinity_compat.explorer.agents.time_limit import AgentTimeout
from trinity_compat.explorer.agents.user_workflows import EngineWriter, UserWorkflows
from trinity_compat.explorer.engine.arguments import worker_env
from trinity_compat.explorer.engine.inflight_requests import InflightRequests
from trinity_compat.explorer.engine.trajectory import RolloutTask
from trinity_compat.explorer.engine.vllm import Completion, sampling_params
from trinity_compat.explorer.rewards.scoring import checked
from trinity_compat.explorer.scheduling.group_builder import experience_of
from trinity_compat.trinity.algorithms.model import FUNCTIONS, AdvantageInput
from trinity_compat.trinity.workflows.run_rows import Limits
from trinity_compat.trinity.workflows.tasksets import Taskset

ANSWER = make_tokenizer()("12<|im_end|>").input_ids


class Engine:
    """Answers at once; ``cancelled`` requests are aborted first, as by a change of weights."""

    def __init__(self, cancelled=0):
        self.requests, self._cancelled = [], cancelled

    async def submit(self, requests):
        self.requests += requests
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        future = asyncio.get_running_loop().create_future()
        if self._cancelled:
            self._cancelled -= 1
            future.cancel()
            return future
        count = request.sampling.get("n", 1)
        scores = [-1.0] * (len(request.prompt_ids) - 1)
        future.set_result([Completion(ANSWER, [-0.5] * len(ANSWER), "stop", scores)] * count)
        return future


def written(engine, prompt=(1, 2), **sampling):
    return asyncio.run(EngineWriter(InflightRequests(engine), Limits(8, 16)).write(prompt, sampling))


class Checking(Engine):
    """Refuses what vLLM's own sampling parameters refuse, with their exception."""

    def _answer(self, request):
        future = super()._answer(request)
        try:
            sampling_params(request.sampling)
        except Exception as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        return future


@pytest.mark.verl
def test_what_vllm_refuses_of_a_request_is_a_value_error_under_any_of_its_releases():
    with pytest.raises(ValueError, match="top_p must be in"):  # an endpoint answers 400 to it
        written(Checking(), top_p=2.0)


def test_equal_answers_are_asked_for_once():
    engine = Engine()
    assert len(written(engine, n=3, temperature=0)) == 3
    assert engine.requests[0].sampling["n"] == 1
    assert len(written(engine, n=3, temperature=1)) == 3
    assert engine.requests[1].sampling["n"] == 3


def test_an_answer_has_no_more_room_than_the_model():
    engine = Engine()
    written(engine, range(20), max_tokens=100)
    assert engine.requests[0].sampling["max_tokens"] == 4
    with pytest.raises(ValueError, match="24 tokens leaves no room"):
        written(engine, range(24))


def test_a_later_call_gets_the_tokens_left_by_max_model_len_and_the_answer():
    engine = Engine()
    writer = EngineWriter(InflightRequests(engine), Limits(8, 16, 64))
    for length in (8, 40, 60):
        asyncio.run(writer.write(range(length), {}))
    assert [request.sampling["max_tokens"] for request in engine.requests] == [16, 16, 4]


def test_a_group_that_takes_longer_than_max_timeout_is_ended(monkeypatch):
    with pytest.raises(AgentTimeout, match=r"took longer than explorer\.max_timeout=0 s"):
        ran(monkeypatch, "async_once_workflow", limit_s=0.0)


def test_what_is_cut_is_told_with_its_task(caplog):
    caplog.set_level(logging.WARNING, logger="trinity_compat")  # verl may leave the root at ERROR
    workflows = object.__new__(UserWorkflows)
    workflows._limits = Limits(8, 16, 64)
    rows = [SimpleNamespace(truncated=cut) for cut in (True, False)]
    taskset = Taskset("t", "sums", "", "w")
    workflows._warn_of_cut_rows(rows, taskset, 7)
    assert "task 7 of sums: 1 of 2 rows were longer than model.max_model_len=64" in caplog.text
    caplog.clear()
    workflows._warn_of_cut_rows(rows[1:], taskset, 7)
    assert caplog.text == ""


def test_what_a_change_of_weights_ends_is_asked_again():
    engine = Engine(cancelled=2)
    assert len(written(engine)) == 1
    assert len({request.request_id for request in engine.requests}) == 3


def ran(monkeypatch, workflow, parting="joined", limit_s=60.0, engine_kwargs=None, **job):
    """Trajectories of a job, and what the engine was asked for them."""
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(Path(__file__).parent / "plugins"))
    by_step = "graded" in workflow
    made = Taskset("t", "t", "", workflow, plugin=True, by_step=by_step, parting=parting, limit_s=limit_s)
    taskset = asdict(made)
    rollout = {"prompt_length": 64, "response_length": 64, "multi_turn": {"format": "hermes"}}
    rollout["engine_kwargs"] = engine_kwargs
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": rollout, "model": {"path": "toy"}},
            "data": {"workflows": {"train/0": taskset}},
        }
    )
    task = {"taskset": "train/0", "raw_task": {"prompt": "sort 21", "response": "12"}}
    engine = Engine()

    async def run():
        workflows = UserWorkflows(
            config, SimpleNamespace(tokenizer=make_tokenizer()), InflightRequests(engine)
        )
        return await workflows.run(RolloutTask(3, task, 2, {"temperature": 1.0, "seed": 11}, **job))

    return asyncio.run(run()), engine.requests


def test_a_job_becomes_trajectories_with_their_rewards(monkeypatch):
    parts, requests = ran(monkeypatch, "async_once_workflow")
    assert [part.reward for part in parts] == [1.0, 1.0]
    assert [part.response_ids for part in parts] == [ANSWER, ANSWER]
    assert [request.sampling["seed"] for request in requests] == [11, 12]
    assert {request.sampling["max_tokens"] for request in requests} == {64}


@pytest.mark.verl
@pytest.mark.parametrize(("parser", "said"), [(None, True), ("qwen3", False)])
def test_a_workflow_s_openai_client_parts_thoughts_by_the_engine_s_parser(monkeypatch, parser, said):
    kwargs = {"vllm": {"reasoning_parser": parser}}
    _, requests = ran(monkeypatch, "agent_workflow", parting="each", engine_kwargs=kwargs)
    prompts = [make_tokenizer().decode(request.prompt_ids) for request in requests]
    again = [prompt for prompt in prompts if "again" in prompt]  # with the content of the answer before it
    assert again and all(("12" in prompt) == said for prompt in again)


def test_the_store_is_told_of_each_step_where_the_algorithm_reads_it(monkeypatch):
    parts, _ = ran(monkeypatch, "graded_workflow")
    task = {"index": 3, "data_source": "t"}
    stored = [
        experience_of(run, part, checked(scored(part), "the workflow", task))
        for run, part in enumerate(parts)
    ]
    assert [each.reward for each in stored] == [12.0, 12.0]
    steps = [{"step": step, "reward": 12.0} for step in range(3)]
    assert [each.info["steps"] for each in stored] == [steps, steps]
    assert stored[0].info["env_state_hash"] == ["after 0", "after 1", "after 2"]
    step_wise = FUNCTIONS["advantage_fn"]["step_wise_grpo"].call
    answers = AdvantageInput(torch.tensor([12.0, 0.0]), [[0, 1]], info=[stored[0].info, {}])
    plain, normed = (step_wise(answers, enable_step_norm=norm) for norm in (False, True))
    assert torch.allclose(normed, plain / torch.tensor([3.0, 1.0]))
    gigpo = FUNCTIONS["advantage_fn"]["gigpo"].call
    width = len(stored[0].response_mask)
    mask = torch.tensor(stored[0].response_mask).bool().expand(2, width)
    gigpo(AdvantageInput(answers.rewards, [[0, 1]], mask=mask, info=[stored[0].info, stored[1].info]))


def test_rows_of_a_run_tell_the_store_which_they_are(monkeypatch):
    parts, requests = ran(monkeypatch, "all_windows_workflow", parting="each")
    told = [part.extra["reward_extra_info"] for part in parts]
    assert told == [{"of_run": {"run": run, "row": row}} for run in range(2) for row in range(2)]
    assert [part.reward for part in parts] == [0.0, 1.0, 0.0, 1.0]
    assert [request.sampling["n"] for request in requests] == [2, 2]


@pytest.mark.parametrize(
    ("workflow", "parting"), [("graded_workflow", "joined"), ("all_windows_workflow", "each")]
)
def test_an_evaluation_says_nothing_of_steps(monkeypatch, workflow, parting):
    parts, _ = ran(monkeypatch, workflow, parting, validate=True)
    assert [part.extra for part in parts] == [{}, {}]


def scored(part):
    return {"reward_score": part.reward, **part.extra}


@pytest.mark.parametrize(("installed", "expected"), [("0.6.0", "trinity_compat"), (None, None)])
def test_trinitys_vllm_plugin_stays_off(monkeypatch, installed, expected):
    def version(package):
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert worker_env("cpu", {}).get("VLLM_PLUGINS") == expected
