"""Trinity's algorithms in the trainer's process: three steps each, real veRL, a plain explorer."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_trainer_runs import train
from toy_job import PlainExplorer, job, toy
from toys import made_toy

from trinity_compat.common.nested import copied, put
from trinity_compat.job.run_spec import ExpertSpec, RowFormat, RowsSpec
from trinity_compat.run.toy import ToySpec
from trinity_compat.trinity.algorithms import ALGORITHMS
from trinity_compat.trinity.algorithms.selection import verl_keys

pytestmark = [pytest.mark.runtime, pytest.mark.whole]

# Each kind of function of ours once, and the ways in which veRL hands it old log-probabilities.
SECTIONS = {
    "opmd": {
        "algorithm_type": "opmd",
        "advantage_fn_args": {"opmd_baseline": "logavgexp", "tau": 0.5},
        "kl_loss_fn": "corrected_k3",
        "kl_loss_fn_args": {"kl_coef": 0.05},
    },
    "topr": {
        "algorithm_type": "topr",
        "advantage_fn": "clipb",
        "advantage_fn_args": {"mu": 0.1},
        "kl_penalty_fn": "k1",
        "kl_loss_fn": "none",
    },
    "rec": {
        "algorithm_type": "rec",
        "advantage_fn_args": {"std_normalize": True},
        "policy_loss_fn_args": {"clip_mode": "gspo-one-side", "weight": "gspo_importance_sampling"},
        "kl_loss_fn": "none",
        "entropy_loss_fn_args": {"entropy_coef": 0.01},
    },
}
BYPASSED = {"algorithm.rollout_correction.bypass_mode": True}  # a YAML's own way


@pytest.fixture(scope="module")
def toy_dir(tmp_path_factory):
    return toy(tmp_path_factory.mktemp("toy"))


def three_steps(spec, section, more=None):
    """Metrics of the three steps of ``spec``'s job with an ``algorithm`` section."""
    verl = copied(spec.verl)
    for key, value in {**verl_keys(section), **(more or {})}.items():
        put(verl, key, value)
    spec = replace(spec, verl=verl)
    spec.save(Path(spec.job_dir) / "config" / "run.json")
    explorer = PlainExplorer(spec)
    explorer.start()
    steps = [metrics for step, metrics in sorted(train(Path(spec.job_dir)).items()) if step > 0]
    explorer.stop.set()
    assert len(steps) == 3
    for metric in ("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl"):
        assert np.isfinite([metrics[metric] for metrics in steps]).all()
    assert len({metrics["actor/pg_loss"] for metrics in steps}) == 3
    assert all(metrics["actor/grad_norm"] > 0 for metrics in steps)
    return steps


@pytest.mark.parametrize("name", ["opmd", "topr", pytest.param("rec", marks=pytest.mark.nightly)])
def test_three_steps_are_finite_and_the_loss_moves(name, toy_dir, tmp_path):
    # Two micro-batches in each mini-batch.
    spec = job(toy_dir, tmp_path, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8")
    steps = three_steps(spec, SECTIONS[name], BYPASSED if name == "topr" else None)
    assert ("actor/kl_loss" in steps[0]) == (name == "opmd")
    if name == "opmd":
        assert steps[-1]["actor/kl_loss"] > 0
    if name == "topr":
        assert any(0 < metrics["algorithm/frac_clipped_neg"] < 1 for metrics in steps)


def with_experts(spec, toy_dir):
    rows = RowsSpec("sft", (f"{toy_dir}/data/sft.parquet",), format=RowFormat(messages_key="messages"))
    return replace(spec, experts=ExpertSpec(rows, EXPERTS))


def experts_in_ledger(job_dir):
    with sqlite3.connect(job_dir / "experiences.db") as database:
        return database.execute(
            "SELECT l.trainer_step, g.task_no FROM ledger_entries l JOIN task_groups g ON g.id = l.group_id"
            " WHERE g.kind = 'expert' ORDER BY 1, 2"
        ).fetchall()


EXPERTS = 8
MIX = {
    "algorithm_type": "mix",
    "policy_loss_fn_args": {"mu": 0.9, "clip_range": 0.2},
    "entropy_loss_fn_args": {"entropy_coef": 0.01},
}


@pytest.mark.parametrize(
    "section",
    [MIX, pytest.param({"algorithm_type": "mix_chord", "kl_loss_fn": "none"}, marks=pytest.mark.nightly)],
)
def test_an_experts_rows_are_learnt_beside_answers_and_entered_once(section, toy_dir, tmp_path):
    sizes = ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "trainer.balance_batch=True")
    spec = job(toy_dir, tmp_path, *sizes)
    ref = {"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8}
    steps = three_steps(with_experts(spec, toy_dir), section, {**BYPASSED, **ref})
    losses = [metrics["actor/expert_loss"] for metrics in steps]
    assert np.isfinite([metrics["actor/usual_loss"] for metrics in steps]).all()
    assert losses[-1] < losses[0] if section is MIX else np.isfinite(losses).all()
    assert ("actor/kl_loss" in steps[0]) == (section is MIX) == ("actor/mu" not in steps[0])
    assert experts_in_ledger(tmp_path) == [(1 + place // EXPERTS, place) for place in range(3 * EXPERTS)]
    # Of answers alone: an expert's rows have no reward.
    assert all(0 < metrics["critic/score/mean"] <= 1 for metrics in steps)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["on_policy_distill", "jsd"])
def test_a_teacher_of_other_weights_is_the_reference(name, toy_dir, tmp_path):
    teacher = made_toy(
        tmp_path / "teacher", ToySpec(train_rows=256, val_rows=16, warm_steps=120, warm_batch=64)
    )
    told = {
        "actor_rollout_ref.actor.policy_loss._target_": "trinity_compat.trainer.algorithms.PolicyLoss",
        "actor_rollout_ref.actor.policy_loss.trinity_teacher": str(teacher / "model"),
    }
    steps = three_steps(job(toy_dir, tmp_path), {"algorithm_type": name}, {**BYPASSED, **told})
    # The KL from the teacher's policy, which the student's own would not have before it has moved.
    assert all(metrics["actor/reward_kl_penalty"] > 0.01 for metrics in steps)
    assert all(metrics["critic/score/mean"] == metrics["critic/rewards/mean"] for metrics in steps)
    assert steps[0]["critic/advantages/max"] != steps[0]["critic/advantages/min"]


OTHERS = [
    each.name
    for each in ALGORITHMS.values()
    if not (
        each.schema != "experience" or each.lacks or each.sample_strategy == "mix" or each.name in SECTIONS
    )
    and each.name not in ("on_policy_distill", "jsd")
]


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
def test_three_steps_of_every_other_algorithm(name, toy_dir, tmp_path):
    three_steps(job(toy_dir, tmp_path), {"algorithm_type": name}, BYPASSED)
