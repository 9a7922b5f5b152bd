"""A user's plugin makes the same of a recorded model with trinity-rft's classes as with our stand-ins."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from upstream_steps import ARGUMENTS, RUNS

from trinity_compat.algorithms.model import FUNCTIONS, Answers

WORKFLOWS = Path(__file__).parents[1] / "workflows"
sys.path.append(str(WORKFLOWS))

pytestmark = pytest.mark.upstream


def outcomes(python, script="plugin_outcomes.py"):
    done = subprocess.run([python, WORKFLOWS / script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_classes_of_trinity_run_unchanged(upstream):
    assert outcomes(upstream("0.6.0")) == outcomes(sys.executable)


def test_a_run_s_steps_joined_have_the_advantage_that_trinity_gives_each_of_them(upstream):
    """One sequence here, an experience a step there: the last step's reward decides, for all tokens."""
    theirs = outcomes(upstream("0.6.0"), "upstream_steps.py")
    runs = [run for task in RUNS for run in task]
    info = [{"steps": [{"step": step, "reward": each} for step, each in enumerate(run)]} for run in runs]
    tasks = [task for task, its_runs in enumerate(RUNS) for _ in its_runs]
    groups = [[place for place, task in enumerate(tasks) if task == own] for own in range(len(RUNS))]
    answers = Answers(torch.tensor([run[-1] for run in runs]), groups, info=info)
    step_wise = FUNCTIONS["advantage_fn"]["step_wise_grpo"].call
    ours = [step_wise(answers, **arguments).tolist() for arguments in ARGUMENTS]
    assert [pytest.approx(each, abs=1e-6) for each in theirs] == ours
