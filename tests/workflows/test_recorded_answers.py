"""What a workflow asks, and what an answer is worth, are what trinity-rft 0.6.0 gives (answers.json)."""

import json
from pathlib import Path

import pytest
from workflow_cases import ANSWERS, REWARDS, ROW, WORKFLOWS

from trinity_compat.workflows.dataset import asked_of
from trinity_compat.workflows.scoring import compute_score
from trinity_compat.workflows.table import make_reward
from trinity_compat.workflows.tasksets import Taskset

RECORDED = json.loads((Path(__file__).parent / "answers.json").read_text())


@pytest.mark.parametrize(("case", "expected"), [*zip(REWARDS, RECORDED["rewards"], strict=True)])
def test_a_reward_is_upstreams(case, expected):
    name, arguments, response, truth, about = case
    assert make_reward(name, arguments)(response, truth or "", **about) == expected


@pytest.mark.parametrize(("case", "expected"), [*zip(WORKFLOWS, RECORDED["workflows"], strict=True)])
def test_a_workflow_asks_and_scores_as_upstream(case, expected):
    name, fields = case
    taskset = Taskset("taskset", "t", "rows.jsonl", name, **fields)
    asked, truth = asked_of(taskset, ROW)
    told = {"text": asked.text} if asked.text is not None else {"messages": asked.messages}
    assert told == expected["asked"]
    reward = {"name": asked.reward, "args": fields.get("reward_fn_args", {}), "about": asked.about}
    scores = [compute_score("t", answer, truth, {"reward_fn": reward}) for answer in ANSWERS]
    assert [score["score"] for score in scores] == [each["reward"] for each in expected["scores"]]
    for score, each in zip(scores, expected["scores"], strict=True):
        assert {**score, **each["parts"]} == score
