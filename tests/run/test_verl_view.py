"""The typed view of veRL's configuration: read with checks, and never changed by a step."""

import copy
from pathlib import Path

import pytest
from toy_plan import source

from trinity_compat.common.errors import UserError
from trinity_compat.run.plan import micro_batches, verl_checkout
from trinity_compat.run.plan.gpu_split import split_gpus
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.verl_view import VerlView
from trinity_compat.verl_config import compose_pinned

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def view(**values):
    return VerlView.of(compose_pinned({key.replace("__", "."): value for key, value in values.items()}))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("trainer.nnodes", "two", "trainer.nnodes='two': it should be a whole number"),
        ("trainer.n_gpus_per_node", 2.5, "trainer.n_gpus_per_node=2.5: it should be a whole number"),
        ("trainer.n_gpus_per_node", None, "trainer.n_gpus_per_node is not set"),
        ("trainer.total_training_steps", True, "trainer.total_training_steps=True: it should be a whole"),
        ("trainer.default_local_dir", 3, "trainer.default_local_dir=3: it must be a string"),
        (f"{ROLLOUT}.n", [4], rf"{ROLLOUT}.n=\[4\]: it should be a whole number"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_key(key, value, words):
    with pytest.raises(UserError, match=words):
        VerlView.of(compose_pinned({key: value}))


def test_a_launch_with_such_a_value_is_refused_and_not_a_traceback():
    with pytest.raises(UserError, match=r"trainer.save_freq='often': it should be a whole number"):
        make_plan(source()[0].config, RunOptions(sets=("trainer.save_freq=often",)), cwd=Path("/work"))


def test_a_quoted_number_counts():
    assert view(trainer__nnodes="2", trainer__n_gpus_per_node=4).trainer.gpus == 8


def test_a_step_leaves_what_it_was_given_as_it_was(tmp_path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    (tmp_path / "data.parquet").touch()
    given = {
        f"{ACTOR}.ppo_micro_batch_size": 64,
        f"{ACTOR}.ulysses_sequence_parallel_size": 8,
        f"{ROLLOUT}.tensor_model_parallel_size": 8,
        "data.train_files": "data.parquet",
    }
    before = VerlView.of(compose_pinned(given))
    kept = copy.deepcopy(before.tree)
    divided, _ = micro_batches.divided(before)
    outside, _ = verl_checkout.without_checkout(divided, tmp_path)
    shared, notes = split_gpus(outside, {}, mode="both", explorers=1, device="cuda")
    assert before.tree == kept
    assert notes and shared.trainer.gpus == 4 and shared.rollout.tensor_parallel == 4
    assert shared.tree["data"]["train_files"] == str(Path(tmp_path) / "data.parquet")


def test_a_changed_view_is_read_again_and_keeps_the_order_of_keys():
    before = view()
    after = before.changed({"trainer.nnodes": 3, "reward.new.section": 1})
    assert (before.trainer.nodes, after.trainer.nodes) == (1, 3)
    assert list(after.tree["trainer"]) == list(before.tree["trainer"])
    assert after.tree["reward"]["new"] == {"section": 1} and "new" not in before.tree["reward"]
