"""A policy learns what its teacher knows, in a run from the command line.

Stock's curve: docs/measurements/parity.md.
"""

import sys
from pathlib import Path
from statistics import fmean

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "parity"))

from toy_runs import make_toy, metrics, run, seeded, series
from toy_teacher import DISTILLED, TEACHER, make_teacher

STEPS = 30
pytestmark = [pytest.mark.runtime, pytest.mark.nightly]


def test_a_distilled_policy_comes_to_answer_as_its_teacher(tmp_path):
    toy = make_toy(tmp_path / "toy")
    lengths = (f"trainer.total_training_steps={STEPS}", "trainer.test_freq=-1", "trainer.save_freq=-1")
    words = [*lengths, *DISTILLED, f"{TEACHER}.model_path={make_teacher(toy)}", *seeded(1)]
    run("offset0", tmp_path / "run", toy, words, limit_s=3600)
    found = metrics(tmp_path / "run")
    reward, loss = (series(found, name).values for name in ("critic/score/mean", "actor/distillation/loss"))
    assert len(reward) == len(loss) == STEPS
    # Stock's: reward 0.17 to 0.88, divergence 0.82 to 0.03.
    assert reward[0] < 0.3 and fmean(reward[-5:]) > 0.8, reward
    assert fmean(loss[-5:]) < loss[0] / 8, loss
