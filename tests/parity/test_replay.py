"""Exact replay, PPO: the rollouts of a stock run through our buffer and trainer give stock's numbers.

GRPO with a KL loss is in ``tests/trainer/test_trainer_runs.py``; here a critic, GAE and an adaptive KL in
the reward, whose coefficient depends on the step before.
"""

import pytest
import torch
from test_trainer_runs import learnt, recorded, run_stock, toy_dir, train  # noqa: F401
from toy_job import job
from transformers import AutoModelForTokenClassification, AutoTokenizer

from trinity_compat.buffer import open_buffer

pytestmark = [pytest.mark.runtime, pytest.mark.nightly]


def critic_of(model, folder):
    """The toy model with a value head on disk: veRL would draw one anew in each run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        critic = AutoModelForTokenClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    critic.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


def test_ppo_with_a_critic_equals_stock_on_the_same_rollouts(toy_dir, tmp_path):  # noqa: F811
    options = [
        "trainer.total_training_steps=2",
        "algorithm.adv_estimator=gae",
        "algorithm.use_kl_in_reward=True",
        "algorithm.kl_ctrl.type=adaptive",
        f"critic.model.path={critic_of(toy_dir / 'model', tmp_path / 'critic')}",
    ]
    stock = run_stock(toy_dir, tmp_path, *options)
    buffer = open_buffer(job(toy_dir, tmp_path, *options).database_url)
    for step in (1, 2):
        buffer.put_groups(recorded(tmp_path / f"{step}.pt", step, runs=4))
    buffer.beat("explorer", "recorded", state="done")
    ours = train(tmp_path)
    assert stock[2]["critic/vf_loss"] > 0
    for step in (1, 2):
        assert set(stock[step]) <= set(ours[step]), "a metric of stock veRL is missing"
        for name, value in learnt(stock[step]).items():
            assert ours[step][name] == pytest.approx(value, rel=1e-5, abs=1e-7), f"{name} at step {step}"
