"""Rewards: veRL's managers, the user's functions, and what happens when those fail."""

import asyncio
import dataclasses
import datetime
import json
import math
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from explorer_job import verl_config
from omegaconf import OmegaConf

from trinity_compat.common.errors import RunError
from trinity_compat.explorer.engine.trajectory import Trajectory
from trinity_compat.explorer.rewards.processes.pool import make_scorer
from trinity_compat.job.run_spec import ScoringSpec
from trinity_compat.run.toy import make_tokenizer

LIMITS = ScoringSpec(timeout_s=300)

TASK = {
    "raw_prompt": [{"role": "user", "content": "sort 4213"}],
    "data_source": "toy/sort",
    "reward_model": {"style": "rule", "ground_truth": "1234"},
    "extra_info": {"index": 17},
    "index": 17,
}


def trajectory(text):
    ids = make_tokenizer().encode(text)
    return Trajectory([1, 2, 3], ids, [1] * len(ids), [0.0] * len(ids), extra={"turn_scores": []})


def score(toy, answers, *overrides, task=TASK, limits=LIMITS):
    async def go():
        config = OmegaConf.create(verl_config(toy, "reward.num_workers=2", *overrides))
        with closing(make_scorer(config, limits)) as scorer:
            return await scorer.group(task, [trajectory(text) for text in answers])

    return asyncio.run(go())


def function(
    tmp_path, body, name="compute_score", signature="data_source, solution_str, ground_truth, extra_info"
):
    path = tmp_path / "mine.py"
    path.write_text(f"def {name}({signature}, **kw):\n    {body}\n")
    return f"reward.custom_reward_function.path={path}", f"reward.custom_reward_function.name={name}"


@pytest.mark.parametrize("manager", ["naive", "dapo", "prime"])
def test_each_manager_calls_the_function_per_response(toy, manager):
    scores = score(toy, ["1234<|im_end|>", "4321<|im_end|>"], f"reward.reward_manager.name={manager}")
    assert [s.reward for s in scores] == [1.0, 0.0]
    assert [s.info for s in scores] == [{"acc": 1.0}, {"acc": 0.0}]


def test_batch_hands_over_lists(toy, tmp_path):
    mine = function(
        tmp_path,
        "return [float(len(s)) for s in solution_strs]",
        signature="data_sources, solution_strs, ground_truths, extra_infos",
    )
    scores = score(toy, ["12", "1234"], *mine, "reward.reward_manager.name=batch")
    assert [s.reward for s in scores] == [2.0, 4.0]


@pytest.fixture
def judge():
    """A model behind HTTP, as `vllm serve` puts it there: it likes answers that are in order. Yields its URL
    and the prompts that it was sent."""
    asked = []

    class Judge(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            (message,) = body["messages"]
            asked.append(message["content"])
            good = message["content"] == "".join(sorted(message["content"]))
            content = json.dumps({"choices": [{"message": {"content": str(float(good))}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


ASKS = """
import json, urllib.request

def compute_score(data_source, solution_str, ground_truth, extra_info):
    body = json.dumps({"model": "judge", "messages": [{"role": "user", "content": solution_str}]}).encode()
    url = "JUDGE_URL/v1/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return float(json.load(answer)["choices"][0]["message"]["content"])
"""


def test_a_function_may_ask_a_model_that_the_launch_serves_itself(toy, tmp_path, judge):
    url, asked = judge
    (tmp_path / "mine.py").write_text(ASKS.replace("JUDGE_URL", url))
    mine = f"reward.custom_reward_function.path={tmp_path / 'mine.py'}"
    name = "reward.custom_reward_function.name=compute_score"
    assert [s.reward for s in score(toy, ["1234", "4321"], mine, name)] == [1.0, 0.0]
    assert sorted(asked) == ["1234", "4321"]


def test_verls_default_score_goes_by_data_source(toy):
    task = {**TASK, "data_source": "openai/gsm8k", "reward_model": {"ground_truth": "72"}}
    none = "reward.custom_reward_function.path=null"
    assert [s.reward for s in score(toy, ["so #### 72", "so #### 7"], none, task=task)] == [1.0, 0.0]


def test_further_values_are_kept_as_info(toy, tmp_path):
    mine = function(tmp_path, "return {'score': 0.5, 'format': True, 'why': 'close'}")
    (result,) = score(toy, ["12"], *mine)
    assert result.reward == 0.5
    assert result.info == {"score": 0.5, "format": True, "why": "close"}


def test_the_function_gets_index_turns_and_kwargs(toy, tmp_path):
    mine = function(tmp_path, "return extra_info['index'] + extra_info['num_turns'] + kw['bonus']")
    (result,) = score(toy, ["12"], *mine, "+reward.custom_reward_function.reward_kwargs.bonus=0.5")
    assert result.reward == 17 + 2 + 0.5


def test_dapos_overlong_buffer_takes_away(toy, tmp_path):
    overlong = "{enable: true, len: 4, penalty_factor: 1.0, log: true}"
    words = [
        "reward.reward_manager.name=dapo",
        f"+reward.reward_kwargs.overlong_buffer_cfg={overlong}",
        "+reward.reward_kwargs.max_resp_len=8",
    ]
    short, long = score(toy, ["12", "1234567"], *function(tmp_path, "return 1.0"), *words)
    assert (short.reward, long.reward) == (1.0, 0.25)


def test_a_failing_function_is_named_with_its_line_and_the_task(toy, tmp_path):
    mine = function(tmp_path, "return 1 / 0")
    with pytest.raises(RunError) as caught:
        score(toy, ["12"], *mine)
    message = str(caught.value)
    assert f"compute_score of {tmp_path}/mine.py failed" in message
    assert "index 17 of data_source 'toy/sort'" in message
    assert "ZeroDivisionError" in message
    assert "mine.py:2" in message


@pytest.mark.parametrize("value", ["None", "float('nan')", "'good'", "float('inf')", "-10**400"])
def test_what_is_not_a_number_is_refused(toy, tmp_path, value):
    with pytest.raises(RunError, match="a finite number is needed"):
        score(toy, ["12"], *function(tmp_path, f"return {value}"))


def test_scoring_leaves_the_task_as_it_was(toy):
    score(toy, ["12"])
    assert TASK["extra_info"] == {"index": 17}


def test_a_reward_of_an_agent_loop_s_own_is_checked_too(toy):
    config = OmegaConf.create(verl_config(toy))
    for reward in (math.nan, -math.inf):
        part = dataclasses.replace(trajectory("1"), reward=reward)
        with pytest.raises(RunError, match=f"the agent loop returned {reward} for the task"):
            asyncio.run(make_scorer(config, LIMITS).group(TASK, [part]))


@pytest.mark.parametrize("value", ["object()", "{1: print}"])
def test_what_cannot_be_stored_beside_a_score_is_named(toy, tmp_path, value):
    mine = function(tmp_path, f"return {{'score': 1.0, 'about': {value}}}")
    with pytest.raises(RunError, match=r"index 17 .* reward_extra_info\['about'\].* holds a"):
        score(toy, ["12"], *mine)


def test_dates_numpy_and_nan_beside_a_score_are_kept(toy, tmp_path):
    said = (
        "{'score': 1, 'when': __import__('datetime').date(2020, 1, 1), 'far': float('inf'), 'of': {1: (2,)}}"
    )
    (result,) = score(toy, ["12"], *function(tmp_path, f"return {said}"))
    assert result.info == {"score": 1, "when": datetime.date(2020, 1, 1), "far": math.inf, "of": {1: [2]}}


def test_what_a_workflow_says_beside_its_reward_stays(toy):
    """Operators and advantages by step read it."""
    config = OmegaConf.create(verl_config(toy))
    said = {"reward_extra_info": {"steps": [{"step": 0, "reward": 1.0}], "by": "a judge"}}
    part = dataclasses.replace(trajectory("1"), reward=1.0, extra=said)
    (score,) = asyncio.run(make_scorer(config, LIMITS).group(TASK, [part]))
    assert dict(score.info) == said["reward_extra_info"]
