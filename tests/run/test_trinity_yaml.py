"""A Trinity YAML by hand runs as trinity-rft would run it: what it leaves out, and what it counts."""

from pathlib import Path

import pytest
from trinity_files import LEAST, merged

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import nested, value_at
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate.trinity_reader import NEVER

GPUS = {"cluster": {"node_num": 1, "gpu_per_node": 3}, "project": "p", "name": "n"}
GRPO = merged(LEAST, {**GPUS, "algorithm": {"algorithm_type": "grpo", "repeat_times": 8}})
PPO = merged(LEAST, {**GPUS, "algorithm": {"algorithm_type": "ppo"}})
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


def test_the_critic_has_trinity_rft_s_defaults():
    ppo = {"algorithm": {"algorithm_type": "ppo"}}
    assert verl("critic.optim.lr", ppo) == 1e-5
    assert verl("critic.shuffle", ppo) is True


def test_a_style_by_its_name_in_the_older_release_is_the_same_style():
    made = planned({"synchronizer": {"sync_style": "dynamic_by_trainer"}})
    assert made.spec.sync.style == "trainer_driven"


def test_gpus_that_the_file_leaves_open_are_the_machine_s(monkeypatch):
    base = {name: section for name, section in GRPO.items() if name != "cluster"}
    assert verl("trainer.n_gpus_per_node", base=base, gpus=3) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert verl("trainer.n_gpus_per_node", base=base) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match=r"cluster\.gpu_per_node is not set"):
        planned(base=base)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ACTOR}.kl_loss_coef", 0.5),
        (f"{ACTOR}.entropy_coeff", 0.3),
        (f"{ACTOR}.clip_ratio_high", 0.9),
        (f"{ACTOR}.policy_loss.loss_mode", "gspo"),
        (f"{ROLLOUT}.top_p", 0.5),
        (f"{ROLLOUT}.gpu_memory_utilization", 0.11),
        ("trainer.critic_warmup", 7),
    ],
)
def test_what_trinity_s_trainer_does_not_read_in_trainer_config_has_no_effect(key, value):
    path = f"trainer.trainer_config.{key}"
    made = planned(nested({path: value}))
    assert value_at(made.spec.verl, key) == verl(key) != value
    assert made.unread[path] == value  # so that the plan names it


def test_what_trinity_s_trainer_reads_in_trainer_config_holds():
    key = f"{ACTOR}.fsdp_config.fsdp_size"
    assert verl(key, nested({f"trainer.trainer_config.{key}": 2})) == 2


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
    assert any("explorer.eval_interval=5: every 4 steps" in note for note in made.notes)


@pytest.mark.parametrize("batch", [{"batch_size": 6}, {"batch_size": 12, "train_batch_size": 48}])
def test_a_step_trains_on_the_answers_that_the_file_says(batch):
    made = planned({"buffer": batch}).spec.verl
    assert value_at(made, "data.train_batch_size") == value_at(made, f"{ACTOR}.ppo_mini_batch_size") == 6


def test_the_plan_tells_both_sides_intervals_where_they_differ():
    made = planned(
        {"buffer": {"batch_size": 12, "train_batch_size": 48}, "synchronizer": {"sync_interval": 3}}
    )
    (line,) = [line for line in describe(made) if line.startswith("sync")]
    assert "published every 3 veRL steps" in line and "taken every 6 veRL steps" in line
    (line,) = [line for line in describe(planned({})) if line.startswith("sync")]
    assert "fixed: every veRL step = " in line


def test_what_was_read_at_another_place_is_not_named_as_unread():
    shuffled = {"taskset": {"task_selector": {"selector_type": "shuffle"}}}
    made = planned({"buffer": {"explorer_input": shuffled}, "synchronizer": {"sync_interval": 2}})
    assert value_at(made.spec.verl, "data.shuffle") is True
    read = ("selector_type", ".path", "sync_interval")
    assert [path for path in made.unread if path.endswith(read)] == []


EIGHT = {"cluster": {"gpu_per_node": 8}}
FOLDERS = {
    "tasksets": [{"name": "a", "path": "/d/a"}, {"name": "b", "path": "/d/b", "split": "half"}],
    "eval_tasksets": [{"path": "/d/a", "split": "test", "subset_name": "main"}],
}


def test_tasksets_are_handed_to_the_reader_of_trinity_s_rows_one_by_one():
    base = merged(PPO, EIGHT)
    base["buffer"] = {"batch_size": 6, "explorer_input": FOLDERS}
    data = planned(base=base).spec.verl["data"]
    assert (data["train_files"], data["val_files"]) == (["train/0", "train/1"], ["eval/0"])
    read = {
        name: (each["path"], each["split"], each["subset_name"]) for name, each in data["tasksets"].items()
    }
    assert read == {
        "train/0": ("/d/a", "train", None),
        "train/1": ("/d/b", "half", None),
        "eval/0": ("/d/a", "test", "main"),
    }
    assert data["custom_cls"]["name"] == "Tasksets"


def test_a_further_model_scores_on_gpus_of_its_own():
    model = {"model_path": "/reward", "engine_num": 2, "tensor_parallel_size": 1}
    explorer = {"auxiliary_models": [model], "rollout_model": {"engine_num": 3}}
    made = planned(merged(EIGHT, {"explorer": explorer}), base=PPO)
    assert value_at(made.spec.verl, "reward.reward_model.model_path") == "/reward"
    assert any("3 for generation" in note and "2 for the reward model" in note for note in made.notes)


def test_engine_count_moves_to_the_nearest_that_the_batch_divides_by():
    engine = {"explorer": {"rollout_model": {"engine_num": 1}}}
    made = planned(merged(EIGHT, engine))  # 48 answers over 7 ranks, with fillers
    assert value_at(made.spec.verl, f"{ROLLOUT}.n_gpus_per_node") == 1
    whole_groups = (f"{ACTOR}.use_prefix_grouper=True",)  # leave no place for fillers
    made = planned(merged(EIGHT, engine), sets=whole_groups)
    assert value_at(made.spec.verl, f"{ROLLOUT}.n_gpus_per_node") == 2
    assert any(
        "engine_num: 2, not 1: buffer.train_batch_size=48 does not divide" in note for note in made.notes
    )
    with pytest.raises(UserError, match="does not divide"):
        planned(merged(EIGHT, engine), sets=("explorer.rollout_model.engine_num=1", *whole_groups))


def test_a_run_saves_at_its_end_though_the_file_names_no_interval():
    assert verl("trainer.save_freq") == NEVER
    assert "hf_model" in verl(f"{ACTOR}.checkpoint.save_contents")
    (told,) = [note for note in planned().notes if "one checkpoint, at the end" in note]
    assert told.startswith("note: trainer.save_interval=0")


def test_turns_that_a_cpu_does_not_need_are_said_to_be_left_out():
    said = "mode: colocate is for a GPU; on a CPU both sides run at once (mode both)"
    asked = {"mode": "colocate", "cluster": {"node_num": 1, "gpu_per_node": 1}}
    made = planned(asked, device="cpu")
    assert made.spec.mode == "both" and said in made.notes
    assert said not in planned(device="cpu").notes


def test_engines_that_a_cpu_has_no_gpus_for_are_said_in_a_line():
    two = {"cluster": {"gpu_per_node": 8}, "explorer": {"rollout_model": {"engine_num": 4}}}
    (told,) = [note for note in planned(two, device="cpu").notes if "1 engine for generation" in note]
    assert "not explorer.rollout_model.engine_num=4; --set explorer.rollout_model.engine_num=N" in told
    of_two = {"explorer": {"rollout_model": {"tensor_parallel_size": 2}}}
    assert any("tensor_parallel_size=2;" in note for note in planned(of_two, device="cpu").notes)
    asked = planned(two, device="cpu", sets=("explorer.rollout_model.engine_num=2",))
    for made in (asked, planned(device="cpu"), planned(two)):
        assert not any("1 engine for generation" in note for note in made.notes)


@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp"])
def test_ppo_s_critic_has_the_trainer_s_strategy_and_tokens(strategy):
    ppo = {"algorithm": {"algorithm_type": "ppo"}}
    given = {**ppo, "trainer": {"trainer_strategy": strategy, "max_token_len_per_gpu": 16384}}
    told = {name: verl(f"critic.{name}", given) for name in ("strategy", "fsdp.strategy")}
    assert told == {"strategy": strategy, "fsdp.strategy": strategy}
    for name in ("ppo", "forward"):
        assert verl(f"critic.{name}_max_token_len_per_gpu", given) == 16384
