"""Trinity's algorithms in the trainer's process: three steps each, real veRL, a plain explorer."""

from dataclasses import replace

import numpy as np
import pytest
from test_trainer_runs import train
from toy_job import PlainExplorer, job, toy

from trinity_compat.algorithms.chosen import verl_keys
from trinity_compat.dotted import copied, put

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(600)]

# Each kind of function of ours once, and the ways in which veRL hands it old log-probabilities.
SECTIONS = {
    "opmd": {
        "algorithm_type": "opmd",
        "advantage_fn_args": {"opmd_baseline": "logavgexp", "tau": 0.5},
        "kl_loss_fn": "corrected_k3",
        "kl_loss_fn_args": {"kl_coef": 0.05},
    },
    "topr": {"algorithm_type": "topr", "kl_penalty_fn": "k1", "kl_loss_fn": "none"},
    "rec": {
        "algorithm_type": "rec",
        "advantage_fn_args": {"std_normalize": True},
        "policy_loss_fn_args": {"clip_mode": "gspo-one-side", "weight": "gspo_importance_sampling"},
        "kl_loss_fn": "none",
        "entropy_loss_fn_args": {"entropy_coef": 0.01},
    },
}
BYPASSED = {"topr": {"algorithm.rollout_correction.bypass_mode": True}}


@pytest.fixture(scope="module")
def toy_dir(tmp_path_factory):
    return toy(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("name", SECTIONS)
def test_three_steps_are_finite_and_the_loss_moves(name, toy_dir, tmp_path):
    # Two micro-batches in each mini-batch.
    spec = job(toy_dir, tmp_path, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8")
    verl = copied(spec.verl)
    for key, value in {**verl_keys(SECTIONS[name]), **BYPASSED.get(name, {})}.items():
        put(verl, key, value)
    spec = replace(spec, verl=verl)
    spec.save(tmp_path / "config" / "run.json")
    explorer = PlainExplorer(spec)
    explorer.start()
    steps = [metrics for step, metrics in sorted(train(tmp_path).items()) if step > 0]
    explorer.stop.set()
    assert len(steps) == 3
    for metric in ("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl"):
        assert np.isfinite([metrics[metric] for metrics in steps]).all()
    assert len({metrics["actor/pg_loss"] for metrics in steps}) == 3
    assert all(metrics["actor/grad_norm"] > 0 for metrics in steps)
    assert ("actor/kl_loss" in steps[0]) == (name == "opmd")
    if name == "opmd":
        assert steps[-1]["actor/kl_loss"] > 0
