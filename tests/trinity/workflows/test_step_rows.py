"""Steps of a run as rows: the advantage of each is what trinity-rft gives it, however many of them a row
joins, and in whatever order veRL has put the rows."""

import json
from pathlib import Path

import pytest
import torch
from step_cases import CASES, RUNS, steps

from trinity_compat.trinity.algorithms.model import BY_STEP, FUNCTIONS, AdvantageInput

THEIRS = json.loads((Path(__file__).parent / "steps.json").read_text())
NAMES, RECORDED = (
    ("name", "arguments", "theirs"),
    [(*case, each) for case, each in zip(CASES, THEIRS, strict=True)],
)
KEYS = ("step_reward", "env_state_hash")


def row(run, place, told):
    """What a row of these steps has in its ``info``: user_workflows.py."""
    info = {
        key: [each.get(key) for _, _, each in told] for key in KEYS if any(key in each for *_, each in told)
    }
    steps = [{"step": step, "reward": reward} for step, reward, _ in told]
    return told[-1][1], {**info, "steps": steps, "of_run": {"run": run, "row": place}}


def ours(name, arguments, rows):
    """The advantage of each step, in order. ``rows``: (task, reward, info) of each."""
    order = [place for place in range(len(rows)) if place % 2] + [
        place for place in range(len(rows)) if not place % 2
    ]
    tasks, rewards, infos = zip(*(rows[place] for place in order), strict=True)
    groups = [[at for at, task in enumerate(tasks) if task == own] for own in range(len(RUNS))]
    turns = [len(info["steps"]) for info in infos]
    width = 2 * max(turns)
    mask = torch.tensor([[token % 2 == 0 and token < 2 * count for token in range(width)] for count in turns])
    made = FUNCTIONS["advantage_fn"][name].call(
        AdvantageInput(torch.tensor(rewards), groups, mask=mask, info=infos), **arguments
    )
    each = (made.unsqueeze(-1) if made.dim() == 1 else made).expand(len(rows), width)
    by_row = {place: each[at][mask[at]].tolist() for at, place in enumerate(order)}
    return [value for place in range(len(rows)) for value in by_row[place]]


@pytest.mark.parametrize(NAMES, RECORDED)
def test_each_step_is_a_row(name, arguments, theirs):
    rows = [(task, *row(run, step, [(step, reward, info)])) for task, run, step, reward, info in steps()]
    assert ours(name, arguments, rows) == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize(NAMES, [each for each in RECORDED if each[0] in BY_STEP])
@pytest.mark.parametrize("joined", [2, 3])
def test_steps_that_go_on_from_each_other_are_one_row(name, arguments, theirs, joined):
    rows = []
    for task, runs in enumerate(RUNS):
        for run, of_run in enumerate(runs):
            told = [(step, reward, info) for step, (reward, info) in enumerate(of_run)]
            parts = [told[at : at + joined] for at in range(0, len(told), joined)]
            rows += [(task, *row(run, place, part)) for place, part in enumerate(parts)]
    assert ours(name, arguments, rows) == pytest.approx(theirs, abs=1e-5)
