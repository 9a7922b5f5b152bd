"""Exact replay: the rollouts of a stock run through our buffer and trainer give stock's numbers.

GRPO with a KL loss on v0 is in ``tests/trainer/test_trainer_runs.py``; here v1, and on both trainers a
critic, GAE and an adaptive KL in the reward, whose coefficient depends on the step before.
"""

import pytest
import torch
from test_trainer_runs import every_figure_is_stock_s, replayed, toy_dir  # noqa: F401
from transformers import AutoModelForTokenClassification, AutoTokenizer

pytestmark = [pytest.mark.runtime, pytest.mark.nightly]


def critic_of(model, folder):
    """The toy model with a value head on disk: veRL would draw one anew in each run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        critic = AutoModelForTokenClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    critic.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("trainer", ["v0", "v1"])
def test_ppo_with_a_critic_equals_stock_on_the_same_rollouts(toy_dir, tmp_path, trainer):  # noqa: F811
    options = [
        "trainer.total_training_steps=2",
        "algorithm.adv_estimator=gae",
        "algorithm.use_kl_in_reward=True",
        "algorithm.kl_ctrl.type=adaptive",
        f"critic.model.path={critic_of(toy_dir / 'model', tmp_path / 'critic')}",
    ]
    stock, ours = replayed(toy_dir, tmp_path, *options, trainer=trainer)
    assert stock[2]["critic/vf_loss"] > 0
    every_figure_is_stock_s(stock, ours, rel=0, abs=0)


def test_v1_equals_stock_s_v1_on_the_same_rollouts(toy_dir, tmp_path):  # noqa: F811
    steps = ["trainer.total_training_steps=2", "actor_rollout_ref.actor.use_kl_loss=True"]
    every_figure_is_stock_s(*replayed(toy_dir, tmp_path, *steps, trainer="v1"), rel=0, abs=0)
