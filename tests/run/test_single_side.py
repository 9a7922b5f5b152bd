"""``mode: train`` and ``mode: explore`` in two files: the GPUs of each are its own, and both are one run."""

from dataclasses import replace
from pathlib import Path

import pytest
from trinity_files import LEAST, merged

from trinity_compat.common.errors import UserError
from trinity_compat.explorer.main import main as explore
from trinity_compat.job import fingerprint
from trinity_compat.job.gpus import check_gpus, engine_count
from trinity_compat.run import acquire_job
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.supervise.sides import commands_of

BOTH = merged(
    LEAST,
    {
        "project": "p",
        "name": "n",
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 8},
        "cluster": {"node_num": 1, "gpu_per_node": 4},
        "synchronizer": {"sync_method": "checkpoint"},
    },
)
EXPLORE = merged(BOTH, {"mode": "explore", "explorer": {"rollout_model": {"engine_num": 4}}})
TRAIN = merged(BOTH, {"mode": "train", "algorithm": {"optimizer": {"lr": 0.5}}})
AUXILIARY = {"auxiliary_models": [{"model_path": "/rm", "engine_num": 1}]}


def planned(config, change=None, *, device="cuda", **options):
    return make_plan(merged(config, change or {}), RunOptions(**options), cwd=Path("/work"), device=device)


def split(made):
    """(the trainer's GPUs, engines, GPUs of one)."""
    verl = made.spec.verl
    rollout, trainer = verl["actor_rollout_ref"]["rollout"], verl["trainer"]
    return (
        trainer["nnodes"] * trainer["n_gpus_per_node"],
        engine_count(rollout, made.spec.device),
        rollout["tensor_model_parallel_size"],
    )


def engines(number, width=1):
    return {"explorer": {"rollout_model": {"engine_num": number, "tensor_parallel_size": width}}}


@pytest.mark.parametrize("change", [{}, engines(2), engines(2, 2), engines(1, 4), engines(3)])
def test_an_explorer_s_file_gives_its_engines_all_that_they_ask_for(change):
    made = planned(EXPLORE, change)
    wanted = merged(EXPLORE, change)["explorer"]["rollout_model"]
    width = wanted.get("tensor_parallel_size", 1)
    assert split(made)[1:] == (wanted["engine_num"], width)
    check_gpus(made.spec, "explorer", wanted["engine_num"] * width)
    assert any(f"{wanted['engine_num'] * width} for generation" in note for note in made.notes)


def test_a_trainer_s_file_trains_on_all_its_gpus_whatever_it_says_of_engines():
    for change in ({}, engines(4), engines(9, 2)):
        made = planned(TRAIN, change)
        assert split(made)[0] == 4
        check_gpus(made.spec, "trainer", 4)
    assert split(planned(TRAIN, {"cluster": {"gpu_per_node": 1}}))[0] == 1


def test_the_sides_of_one_file_share_its_gpus():
    for mode in ("explore", "train"):
        assert split(planned(EXPLORE, engines(2), mode=mode)) == (2, 2, 1)


def test_a_cluster_that_is_too_small_is_refused():
    with pytest.raises(UserError, match="5 GPUs for generation, and the file's cluster has 4") as told:
        planned(EXPLORE, engines(5))
    assert told.value.hint == "write explorer.rollout_model.engine_num: 4 or less"
    five = {"cluster": {"gpu_per_node": 5}}
    assert split(planned(TRAIN, five))[0] == 5  # with fillers
    with pytest.raises(
        UserError, match=r"batch_size=48 does not divide by 5 ranks, and .*use_prefix_grouper"
    ):
        planned(TRAIN, five, sets=("actor_rollout_ref.actor.use_prefix_grouper=True",))


def test_further_models_are_the_explorer_s():
    scored = merged(EXPLORE, {"explorer": AUXILIARY})
    with pytest.raises(UserError, match="4 GPUs for generation beside 1 for the reward model"):
        planned(scored, {"buffer": {"explorer_input": {"default_reward_fn_type": "verl_reward"}}})
    assert split(planned(scored, engines(3)))[1] == 3
    assert split(planned(merged(TRAIN, {"explorer": AUXILIARY})))[0] == 4


def test_a_file_without_eval_tasksets_evaluates_nothing():
    """veRL's trainer asks for rows of both kinds (verl 0.9.1, ray_trainer.py: ``_create_dataloader``)."""
    verl = planned(TRAIN).spec.verl
    assert (verl["data"]["val_files"], verl["data"]["val_max_samples"]) == (["train/0"], 1)
    assert (verl["trainer"]["test_freq"], verl["trainer"]["val_before_train"]) == (-1, False)


def with_fingerprint(made):
    return replace(made.spec, fingerprint=fingerprint.made(made.spec, cwd=Path("/")))


def test_two_yamls_may_differ_in_their_own_side_only():
    theirs, ours = (with_fingerprint(planned(each)) for each in (EXPLORE, TRAIN))
    assert theirs.verl != ours.verl
    assert list(acquire_job.differing(theirs, ours)) == []
    hotter = with_fingerprint(planned(TRAIN, {"model": {"temperature": 0.5}}))
    assert any("temperature" in text for text in acquire_job.differing(theirs, hotter))
    longer = with_fingerprint(planned(TRAIN, {"buffer": {"batch_size": 3}}))
    assert any("train_batch_size" in text for text in acquire_job.differing(theirs, longer))
    # The sides of one file have one configuration.
    shared = with_fingerprint(planned(TRAIN, mode="train"))
    assert next(iter(acquire_job.differing(theirs, shared))) == "the veRL configuration"


def test_each_side_runs_by_its_own_file(tmp_path, monkeypatch):
    first, second = (planned(each, job=str(tmp_path), device="cpu") for each in (EXPLORE, TRAIN))
    monkeypatch.setattr(
        acquire_job.config_files, "write", lambda plan, *_: plan.spec.save(plan.job.spec_path)
    )
    acquire_job._prepare(first, None, None, None, joined=False)
    acquire_job._prepare(second, None, None, None, joined=True)
    shared, own = (
        type(first.spec).load(tmp_path / "config" / name) for name in ("explore.json", "train.json")
    )
    assert (shared.mode, own.mode) == ("explore", "train")
    assert own.verl["actor_rollout_ref"]["actor"]["optim"]["lr"] == 0.5
    assert own.fingerprint == shared.fingerprint
    assert [each.argv[-1] for made in (first, second) for each in commands_of(made, "ray")] == [
        "--explore",
        "--train",
    ]
    assert commands_of(planned(EXPLORE, mode="explore", device="cpu"), "ray")[0].argv[-1] != "--explore"


def test_an_explorer_with_a_file_of_its_own_reads_that(tmp_path, capsys):
    assert explore([str(tmp_path), "--explore"]) == 2
    assert str(tmp_path / "config" / "explore.json") in capsys.readouterr().err
