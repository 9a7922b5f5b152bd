"""The setting ``trinity_compat.trainer``: which of veRL's trainers a plan names, and what v1 does not do."""

from dataclasses import replace

import pytest
from test_plan import planned

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put
from trinity_compat.job.placement import cpus_for
from trinity_compat.job.run_spec import ExpertSpec, RowFormat, RowsSpec
from trinity_compat.run.plan import verl_trainer

V1 = "trinity_compat.trainer=v1"
ROWS = RowsSpec("sft", ("a.jsonl",), format=RowFormat())


@pytest.mark.parametrize(("sets", "trainer", "use_v1"), [((), "v0", False), ((V1,), "v1", True)])
def test_the_recorded_configuration_names_the_trainer_that_runs(sets, trainer, use_v1):
    spec = planned(sets=sets).spec
    assert (spec.trainer, spec.verl["trainer"]["use_v1"]) == (trainer, use_v1)


def test_a_run_of_v1_says_what_it_computes_otherwise_and_one_of_v0_nothing():
    said = "mini-batches hold other rows than v0's, and losses are divided by rejected tokens too"
    assert any(said in note for note in planned(sets=(V1,)).notes)
    assert not any("trinity_compat.trainer" in note for note in planned().notes)


def test_a_ray_of_the_runs_own_has_room_for_transfer_queue():
    v0, v1 = planned().spec, planned(sets=(V1,)).spec
    assert cpus_for(v1) - cpus_for(v0) == 2  # its controller, and a store on the one machine


KEYS = {
    "distillation.enabled": True,
    "algorithm.adv_estimator": "remax",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "trinity_sppo",
    "actor_rollout_ref.actor.policy_loss.trinity_kl": "k2",
    "data.gen_batch_size": 64,
    "data.workflows": {"tasksets": []},
    "data.experience_pipeline": {"operators": []},
}


@pytest.mark.parametrize("key", KEYS)
def test_what_v1_does_not_train_is_refused_before_anything_starts(key):
    spec = planned(sets=(V1,)).spec
    verl_trainer.check(spec)  # as it is it runs
    verl = dict(spec.verl)
    put(verl, key, KEYS[key])
    with pytest.raises(UserError, match=r"^trinity_compat\.trainer=v1: ") as caught:
        verl_trainer.check(replace(spec, verl=verl))
    assert caught.value.hint == "write trinity_compat.trainer=v0, or leave it out"
    verl_trainer.check(replace(spec, verl=verl, trainer="v0"))


@pytest.mark.parametrize("field", [{"rows": ROWS}, {"experts": ExpertSpec(ROWS, 2)}])
def test_rows_of_files_are_refused_too(field):
    spec = planned(sets=(V1,)).spec
    with pytest.raises(UserError, match="by v0 alone"):
        verl_trainer.check(replace(spec, **field))
