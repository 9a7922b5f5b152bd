"""A Trinity YAML by hand runs as trinity-rft would run it: what it leaves out, and what it counts."""

from pathlib import Path

import pytest
from trinity_files import LEAST, merged

from trinity_compat.dotted import value_at
from trinity_compat.runtime.plan.options import RunOptions
from trinity_compat.runtime.plan.planning import make_plan

GPUS = {"cluster": {"node_num": 1, "gpu_per_node": 3}, "project": "p", "name": "n"}
GRPO = merged(LEAST, {**GPUS, "algorithm": {"algorithm_type": "grpo", "repeat_times": 8}})
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def planned(change=None, *, base=GRPO, device="cuda", **options):
    return make_plan(merged(base, change or {}), RunOptions(**options), cwd=Path("/work"), device=device)


def verl(key, change=None, **options):
    return value_at(planned(change, **options).spec.verl, key)


def test_a_plain_grpo_file_gets_trinity_s_defaults():
    eight = {"cluster": {"gpu_per_node": 8}, "explorer": {"rollout_model": {"engine_num": 4}}}
    made = planned(eight).spec.verl
    expected = {
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_type": "mse",  # k2
        f"{ACTOR}.kl_loss_coef": 0.001,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.strategy": "fsdp2",
        f"{ACTOR}.ppo_max_token_len_per_gpu": 64,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ROLLOUT}.n_gpus_per_node": 4,
        f"{ROLLOUT}.gpu_memory_utilization": 0.9,
        f"{ROLLOUT}.n": 8,
        "trainer.n_gpus_per_node": 4,
        "data.shuffle": False,
        "algorithm.rollout_correction.bypass_mode": True,
        "trainer.logger": ["console", "tensorboard"],
    }
    assert {key: value_at(made, key) for key in expected} == expected


def test_an_algorithm_that_is_not_named_is_trinity_s():
    assert (
        verl("algorithm.adv_estimator", {"algorithm": {"algorithm_type": None, "repeat_times": 1}}) == "gae"
    )


def test_the_older_release_has_defaults_of_its_own():
    ppo = {"algorithm": {"algorithm_type": "ppo"}}
    assert verl(f"{ACTOR}.strategy", ppo, target="0.4.1") == "fsdp"
    assert verl("critic.optim.lr", ppo, target="0.4.1") == 1e-6
    assert verl("critic.optim.lr", ppo) == 1e-5
    assert verl("critic.shuffle", ppo) is True


def test_what_the_file_says_itself_holds():
    said = {"trainer": {"use_dynamic_bsz": False}, "algorithm": {"kl_loss_fn": "none"}}
    made = planned(said).spec.verl
    assert (value_at(made, f"{ACTOR}.use_dynamic_bsz"), value_at(made, f"{ACTOR}.use_kl_loss")) == (
        False,
        False,
    )


def test_intervals_need_not_be_multiples_of_the_sync_interval():
    made = planned(
        {
            "synchronizer": {"sync_interval": 4, "sync_offset": 1},
            "explorer": {"eval_interval": 5},
            "trainer": {"save_interval": 7},
            "buffer": {"total_steps": 9, "explorer_input": {"eval_tasksets": [{"path": "/d/v.parquet"}]}},
        }
    )
    assert (made.spec.updates_per_step, made.spec.total_steps) == (1, 9)
    assert (made.spec.sync.interval, made.spec.sync.offset) == (4, 1)
    keys = ("trainer.save_freq", "trainer.test_freq", "data.train_batch_size")
    assert [value_at(made.spec.verl, key) for key in keys] == [7, 4, 6]
    assert any("explorer.eval_interval=5: every 4 updates" in note for note in made.notes)


@pytest.mark.parametrize("batch", [{"batch_size": 6}, {"batch_size": 12, "train_batch_size": 48}])
def test_a_step_trains_on_the_answers_that_the_file_says(batch):
    made = planned({"buffer": batch}).spec.verl
    assert value_at(made, "data.train_batch_size") == value_at(made, f"{ACTOR}.ppo_mini_batch_size") == 6


def test_what_was_read_at_another_place_is_not_named_as_unread():
    shuffled = {"taskset": {"task_selector": {"selector_type": "shuffle"}}}
    made = planned({"buffer": {"explorer_input": shuffled}, "synchronizer": {"sync_interval": 2}})
    assert value_at(made.spec.verl, "data.shuffle") is True
    read = ("selector_type", ".path", "sync_interval")
    assert [path for path in made.unread if path.endswith(read)] == []
