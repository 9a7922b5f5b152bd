"""A YAML that distils: its further model is the trainer's reference model, and not a judge."""

import json

import pytest
from trinity_files import LEAST, merged

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions

TEACHER = "explorer.auxiliary_models.0.model_path"
TAUGHT = merged(
    LEAST,
    {
        "project": "p",
        "name": "n",
        "algorithm": {"algorithm_type": "on_policy_distill", "repeat_times": 2},
        "cluster": {"node_num": 1, "gpu_per_node": 2},
        "explorer": {"auxiliary_models": [{"model_path": "/teacher"}]},
    },
)


def planned(cwd, values=()):
    config = json.loads(json.dumps(TAUGHT))
    for path, value in dict(values).items():
        put(config, path, value)
    return make_plan(config, RunOptions(), cwd=cwd, device="cuda")


@pytest.mark.parametrize("name", ["on_policy_distill", "jsd"])
def test_the_teacher_is_the_reference_model(name, tmp_path):
    made = planned(tmp_path, {"algorithm.algorithm_type": name})
    verl = made.spec.verl
    assert value_at(verl, "actor_rollout_ref.actor.policy_loss.trinity_teacher") == "/teacher"
    assert value_at(verl, "algorithm.adv_estimator") == f"trinity_{name}"
    assert value_at(verl, "algorithm.use_kl_in_reward") is True
    assert not value_at(verl, "reward.reward_model.enable")
    assert "teacher   /teacher, in place of the trainer's reference model" in describe(made)
    assert value_at(verl, "trainer.n_gpus_per_node") == 1  # none is kept for a judge


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"explorer.auxiliary_models": None}, f"{TEACHER} is missing: on_policy_distill learns"),
        ({"model.lora_configs": [{"name": "a"}]}, "lora_configs: with LoRA the reference is"),
        ({"model.temperature": 0.5}, "workflow_args.temperature=1.0: the teacher must use .* 0.5"),
        ({"algorithm.kl_loss_fn": "k2"}, "kl_loss_fn=k2: the reference model is the teacher"),
    ],
)  # fmt: skip
def test_a_teacher_that_cannot_be_asked_is_refused(values, message, tmp_path):
    with pytest.raises(UserError, match=message):
        planned(tmp_path, values)
