"""The setting ``trinity_compat.trainer``: which of veRL's trainers a plan names, and what v1 does not do."""

from dataclasses import replace
from pathlib import Path

import pytest
from toy_plan import planned, source

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put
from trinity_compat.job.placement import cpus_for
from trinity_compat.job.run_spec import ExpertSpec, RowFormat, RowsSpec
from trinity_compat.run.plan import verl_trainer
from trinity_compat.run.plan.plan_run import make_plan, plan_source
from trinity_compat.run.plan.source import RunOptions

V1 = "trinity_compat.trainer=v1"
ROWS = RowsSpec("sft", ("a.jsonl",), format=RowFormat())


@pytest.mark.parametrize(
    ("arguments", "sets", "trainer"),
    [
        ((), (), "v0"),
        ((), (V1,), "v1"),
        (("trainer.use_v1=True",), (), "v1"),
        (("trainer.use_v1=False",), (), "v0"),
        (("trainer.use_v1=True",), ("trinity_compat.trainer=v0",), "v0"),
        (("trainer.use_v1=False",), (V1,), "v1"),
        ((), ("trainer.use_v1=True",), "v1"),
        (("trainer.use_v1=True",), ("trainer.use_v1=False",), "v0"),
    ],
)
def test_the_launch_says_which_trainer_runs_and_a_set_wins_over_it(arguments, sets, trainer):
    spec = planned(*arguments, sets=sets).spec
    # The recorded configuration names the trainer that runs.
    assert (spec.trainer, spec.verl["trainer"]["use_v1"]) == (trainer, trainer == "v1")


@pytest.mark.parametrize(("value", "trainer"), [("True", "v1"), ("False", "v0")])
def test_verls_key_may_be_set_over_a_yaml_too(value, trainer):
    config, options = source()[0].config, RunOptions(sets=(f"trainer.use_v1={value}",))
    assert make_plan(config, options, cwd=Path("/work"), device="cpu").spec.trainer == trainer
    wrong = RunOptions(sets=("trainer.use_v1=v1",))
    with pytest.raises(UserError, match=r"--set trainer\.use_v1=v1: it may be True or False"):
        make_plan(config, wrong, cwd=Path("/work"), device="cpu")


@pytest.mark.parametrize("sets", [(), (V1,)])
def test_a_refusal_names_the_key_that_chose_v1_where_it_was_written(sets, monkeypatch):
    monkeypatch.setattr(verl_trainer, "_unfit", lambda spec: iter(["v1 does not train it"]))
    made, options = source("trainer.use_v1=True", sets=sets)
    with pytest.raises(UserError) as caught:
        plan_source(made, options, cwd=Path("/work"))
    key = "trinity_compat.trainer" if sets else "trainer.use_v1"
    assert caught.value.message == f"{key}: v1 does not train it"
    assert (caught.value.where is None) == bool(sets)


def test_a_run_of_v1_says_what_it_computes_otherwise_and_one_of_v0_nothing():
    said = "mini-batches hold other rows than v0's, and losses are divided by rejected tokens too"
    assert any(said in note for note in planned(sets=(V1,)).notes)
    assert not any("trinity_compat.trainer" in note for note in planned().notes)


def test_a_ray_of_the_runs_own_has_room_for_transfer_queue():
    v0, v1 = planned().spec, planned(sets=(V1,)).spec
    assert cpus_for(v1) - cpus_for(v0) == 2  # its controller, and a store on the one machine


TRAINED = {
    "algorithm.adv_estimator": "remax",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "trinity_sppo",
    "actor_rollout_ref.actor.policy_loss.trinity_kl": "k2",
    "data.gen_batch_size": 64,
    "distillation.enabled": True,
    "data.experience_pipeline": {"operators": []},
    "data.workflows": {"tasksets": []},
}


@pytest.mark.parametrize("key", TRAINED)
def test_what_v1_trains_is_planned(key):
    spec = planned(sets=(V1,)).spec
    verl = dict(spec.verl)
    put(verl, key, TRAINED[key])
    assert verl_trainer.check(replace(spec, verl=verl))  # with its notes


@pytest.mark.parametrize("field", [{"rows": ROWS}, {"experts": ExpertSpec(ROWS, 2)}])
def test_rows_of_files_are_refused_before_anything_starts(field):
    spec = replace(planned(sets=(V1,)).spec, **field)
    with pytest.raises(UserError, match=r"^trinity_compat\.trainer: v1 does not train ") as caught:
        verl_trainer.check(spec)
    assert caught.value.hint == "let veRL's v0 trainer train it: --set trinity_compat.trainer=v0"
    verl_trainer.check(replace(spec, trainer="v0"))
