"""From a script or a YAML to the plan: both units, overlays, and one way for both."""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from toy_plan import ENV, SCRIPT, planned, source

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.job import runtime_env
from trinity_compat.job.gpus import engine_count, engine_width, shares, trainer_gpus
from trinity_compat.job.run_spec import ReplaySpec, RunSpec, ScoringSpec
from trinity_compat.job.vllm_arguments import CPU, GPU
from trinity_compat.launch import read_script
from trinity_compat.run.checks import preflight
from trinity_compat.run.config_files import as_record
from trinity_compat.run.plan import devices, profiles
from trinity_compat.run.plan.overlay import Overlay, apply
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.read_settings import scoring_of
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.launch_source import launch_of, source_of
from trinity_compat.run.script.shared_folder import ScriptCall
from trinity_compat.run.supervise.sides import commands_of
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.pipeline import translate_launch


def test_without_progress_a_run_waits_ten_minutes_or_as_long_as_is_written():
    assert asking("fixed").stall_timeout_s == 600.0
    assert asking("fixed", stall_timeout=45).stall_timeout_s == 45.0
    assert asking("fully_async", stall_timeout=0).stall_timeout_s is None
    for wrong in ("long", -1, True, None):
        with pytest.raises(UserError, match=f"stall_timeout is {wrong!r}: write a number of seconds, or 0"):
            asking("fixed", stall_timeout=wrong)


PENALTY = "actor_rollout_ref.rollout.repetition_penalty"


def test_a_penalty_that_stock_verl_ignores_is_said_with_the_way_back():
    (told,) = [note for note in planned(f"+{PENALTY}=1.05").notes if PENALTY in note]
    assert told.startswith(f"{PENALTY}=1.05 acts here, though stock veRL samples with 1.0")
    way = told.split("--set ")[1]
    for words, sets in (((), ()), ((f"+{PENALTY}=1",), ()), ((f"+{PENALTY}=1.05",), (way,))):
        made = planned(*words, sets=sets)
        assert not [note for note in made.notes if "acts here" in note]
        assert made.spec.verl["actor_rollout_ref"]["rollout"].get("repetition_penalty", 1.0) == 1.0


def test_steps_are_verl_s_inside_and_shown_in_both_units():
    made = planned("trainer.total_training_steps=40")
    assert (made.spec.updates_per_step, made.spec.total_steps) == (2, 40)
    assert (made.spec.sync.interval, made.spec.sync.offset) == (1, 0)
    assert "steps     40 veRL steps = 80 Trinity steps (optimizer updates)" in describe(made)


def test_a_yaml_may_ask_for_a_seed_in_each_request():
    config = json.loads(json.dumps(source()[0].config))
    for asked in (False, True):
        config["trainer"]["trainer_config"]["trinity_compat"]["seeded_requests"] = asked
        made = make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")
        assert made.spec.seeded_requests is asked


def asking(style, **compat):
    """The spec of a YAML with these settings of its own."""
    config = json.loads(json.dumps(source()[0].config))
    config["synchronizer"]["sync_style"] = style
    config["trainer"]["trainer_config"]["trinity_compat"] |= compat
    return make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu").spec


def test_what_becomes_of_answers_that_take_long_is_asked_for():
    spec = asking("fully_async", over_sample_rate=0.25, partial_rollout=False, group_timeout=600)
    assert (spec.partial_rollout, spec.over_sample_rate, spec.group_timeout_s) == (False, 0.25, 600.0)
    spec = asking("fixed")
    assert (spec.partial_rollout, spec.over_sample_rate, spec.group_timeout_s) == (True, 0.0, None)


def test_stale_caches_are_refused_where_no_answer_meets_new_weights():
    assert not asking("fully_async").stale_cache
    assert asking("fully_async", stale_cache=True).stale_cache
    with pytest.raises(UserError, match="stale_cache=True has no effect: under sync_style fixed no answer"):
        asking("fixed", stale_cache=True)
    with pytest.raises(UserError, match=r"partial_rollout=False ends the answers in flight"):
        asking("fully_async", stale_cache=True, partial_rollout=False)
    asked = ("synchronizer.sync_style=fully_async", "trinity_compat.stale_cache=true")
    with pytest.raises(UserError, match="in turns engines that sleep lose their caches"):
        planned(sets=asked, mode="colocate")


def test_scoring_has_limits_of_verls_and_the_user_s_own():
    assert asking("fixed").scoring == ScoringSpec(300.0, "raise", "zero", None)
    spec = asking("fixed", reward_timeout=20, reward_failure="retry", reward_memory=4)
    assert spec.scoring == ScoringSpec(20.0, "retry", "retry", 4.0)
    assert asking("fixed", reward_timeout=None).scoring.timeout_s is None
    with pytest.raises(UserError, match="reward_timeout is 'long': write a number of seconds"):
        asking("fixed", reward_timeout="long")
    with pytest.raises(UserError, match="reward_failure is 'zeros': it may be zero, retry or raise"):
        asking("fixed", reward_failure="zeros")


@pytest.mark.parametrize(
    ("words", "scoring"),
    [
        (["reward.reward_manager.name=prime"], ScoringSpec(300.0, "zero", "zero")),
        (
            ["reward.reward_model.enable=True", "reward.custom_reward_function.path=null"],
            ScoringSpec(1800.0, "raise", "raise"),
        ),
        (["trinity_compat.reward_timeout=7"], ScoringSpec(7.0)),
    ],
)
def test_scoring_follows_what_the_launch_scores_with(words, scoring):
    verl = {"reward": {"reward_manager": {"name": "naive"}, "custom_reward_function": {"path": "x.py"}}}
    overlay = Overlay.of_sets(tuple(words))
    apply(overlay.verl, verl)
    config = {}
    apply(overlay.trinity, config)
    assert scoring_of(config, verl) == scoring


def test_an_agent_loop_has_a_limit_of_its_own():
    assert asking("fixed").agent_timeout_s == 1800.0
    assert asking("fixed", agent_timeout=3600).agent_timeout_s == 3600.0
    assert asking("fixed", agent_timeout=None).agent_timeout_s is None
    with pytest.raises(UserError, match="agent_timeout is 0: write a number of seconds"):
        asking("fixed", agent_timeout=0)
    assert asking("fixed").agent_failure == "raise"
    assert asking("fixed", agent_failure="zero").agent_failure == "zero"
    with pytest.raises(UserError, match="agent_failure is 'retry': it may be raise or zero"):
        asking("fixed", agent_failure="retry")


def test_how_many_steps_keep_their_texts_is_asked_for():
    assert asking("fixed").keep_steps is None
    assert asking("fixed", keep_steps=20).keep_steps == 20
    with pytest.raises(UserError, match="keep_steps is 'all': write a number of trainer steps"):
        asking("fixed", keep_steps="all")


def test_an_unknown_setting_of_the_run_names_the_nearest():
    with pytest.raises(UserError, match=r"--set trinity_compat.reward_timeot: unknown setting") as caught:
        Overlay.of_sets(("trinity_compat.reward_timeot=3",))
    assert caught.value.hint == "did you mean 'reward_timeout'?"


def test_a_step_that_trains_its_own_groups_ends_none_of_them():
    with pytest.raises(UserError, match=r"over_sample_rate: 0\.25: under sync_style fixed a step trains all"):
        asking("fixed", over_sample_rate=0.25)
    with pytest.raises(UserError, match=r"over_sample_rate is 1\.5: write a part"):
        asking("fully_async", over_sample_rate=1.5)
    with pytest.raises(UserError, match="group_timeout is 'long': write a number of seconds"):
        asking("fully_async", group_timeout="long")


def test_staleness_in_samples_is_for_styles_that_have_a_choice():
    assert asking("fully_async", staleness_threshold=0.5).staleness_threshold == 0.5
    assert asking("fully_async").staleness_threshold is None
    with pytest.raises(UserError, match="the interval and the offset say"):
        asking("fixed", staleness_threshold=0.5)
    with pytest.raises(UserError, match="staleness_threshold is -1: write a number"):
        asking("fully_async", staleness_threshold=-1)


def test_a_broadcast_without_a_gpu_is_said_to_go_over_gloo():
    asked = ("synchronizer.sync_method=nccl",)
    assert "over gloo, as NCCL would" in "\n".join(describe(planned(sets=asked)))
    assert "every veRL step = " in "\n".join(describe(planned(sets=asked)))
    assert "gloo" not in "\n".join(describe(planned(sets=asked, device="cuda", mode="both")))


def test_a_handover_on_the_devices_is_said_and_refused_where_there_are_no_turns_for_it():
    asked = ("trinity_compat.handover=device",)
    made = planned(sets=asked, mode="colocate")
    assert made.spec.handover == "device"
    assert "on the GPUs that both sides share, else by memory" in "\n".join(describe(made))
    assert planned(mode="colocate").spec.handover == "files"
    with pytest.raises(UserError, match="handover=device: in mode both the two sides take no turns") as no:
        planned(sets=asked)
    assert "--mode colocate" in no.value.hint


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (("synchronizer.sync_offset=2",), "interval 1 and offset 0"),
        (("synchronizer.sync_interval=4",), "interval 1 and offset 0"),
        (("synchronizer.sync_style=fully_async",), "interval 1 and offset 0"),
        (("actor_rollout_ref.model.lora_rank=8",), "a LoRA adapter goes by files"),
        (("trinity_compat.handover=disk",), "it may be files or device"),
    ],
)
def test_what_the_engines_would_not_wait_for_goes_by_files(sets, why):
    with pytest.raises(UserError, match=why):
        planned(sets=("trinity_compat.handover=device", *sets), mode="colocate")


def test_the_job_lies_where_trinity_puts_it_and_the_trainer_writes_there():
    made = planned()
    assert str(made.job.root) == "/work/checkpoints/toy/grpo"
    assert made.spec.verl["trainer"]["default_local_dir"] == "/work/checkpoints/toy/grpo"
    assert made.spec.database_url == "sqlite:////work/checkpoints/toy/grpo/buffer/experiences.db"


def test_the_way_back_gives_what_the_script_said():
    verl = planned(device="cuda").spec.verl
    assert verl["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-4
    assert verl["data"]["train_files"] == "/toy/data/train.parquet"
    assert verl["reward"]["custom_reward_function"]["path"].endswith("toy_reward.py")
    assert verl["trainer"]["save_freq"] == 20
    assert verl["actor_rollout_ref"]["model"]["use_remove_padding"] is True


def test_without_an_accelerator_the_cpu_profile_is_applied_and_told():
    made = planned()
    assert made.spec.verl["actor_rollout_ref"]["model"]["use_remove_padding"] is False
    assert made.env["TORCH_COMPILE_DISABLE"] == "1"
    (told,) = [line for line in made.notes if "profile cpu" in line]
    assert re.search(r"\(3\d settings: `trinity-compat profile cpu` lists them\)", told)
    listed = list(profiles.announce(profiles.load("cpu")))
    assert any("use_remove_padding = False" in line and "# sdpa is quadratic" in line for line in listed)
    assert any(line.startswith("  TORCH_COMPILE_DISABLE=1  # ") for line in listed)
    assert not any("profile cpu" in line for line in planned(device="cuda").notes)


STRATEGIES = [f"{role}.strategy" for role in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")]


@pytest.mark.parametrize(
    ("words", "trained"),
    [
        ((), ("fsdp2", "fsdp2", "fsdp2")),
        (("actor_rollout_ref.ref.strategy=fsdp",), ("fsdp2", "fsdp2", "fsdp2")),
        (("actor_rollout_ref.actor.strategy=mine",), ("mine", "mine", "fsdp2")),
        (("critic.strategy=mine",), ("fsdp2", "fsdp2", "mine")),
    ],
)
def test_a_cpu_has_fsdp2_in_place_of_fsdp_and_of_no_other_engine(words, trained):
    made = planned(*words)
    assert tuple(value_at(made.spec.verl, key) for key in STRATEGIES) == trained
    for key, strategy in zip(STRATEGIES, trained, strict=True):
        assert strategy == "fsdp2" or not any(line.startswith(f"  {key} =") for line in made.notes)


def test_a_set_in_verl_s_spelling_moves_what_is_derived_from_it():
    made = planned(sets=("actor_rollout_ref.actor.ppo_mini_batch_size=8", "trainer.total_training_steps=6"))
    assert (made.spec.updates_per_step, made.spec.total_steps, made.spec.sync.interval) == (4, 6, 1)


def test_a_set_in_trinity_s_spelling():
    made = planned(sets=("synchronizer.sync_style=explorer_driven", "synchronizer.sync_interval=4"))
    assert (made.spec.sync.style, made.spec.sync.interval) == ("explorer_driven", 2)


@pytest.mark.parametrize(
    ("said", "near"),
    [
        ("synchronizer.sync_interval=1", "write 2"),
        ("synchronizer.sync_interval=3", "write 2 or 4"),
        ("synchronizer.sync_offset=1", "write 0 or 2"),
        ("synchronizer.explorer_sync_interval=5", "write 4 or 6"),
        ("synchronizer.trainer_sync_interval=5", "write 4 or 6"),
        ("buffer.total_steps=41", "write 40 or 42"),
    ],
)
def test_a_count_of_updates_that_is_not_a_whole_number_of_verl_steps_is_an_error(said, near):
    path, _, count = said.partition("=")
    with pytest.raises(UserError, match=rf"{path}={count} is not a whole number of veRL steps") as error:
        planned("trainer.total_training_steps=null", sets=(said,))
    assert error.value.hint == near


@pytest.mark.parametrize(
    "said", ["sync_interval=0", "sync_interval=two", "sync_offset=-2", "sync_offset=true"]
)
def test_an_interval_or_offset_that_is_not_a_count_is_an_error(said):
    with pytest.raises(UserError, match=r"synchronizer\.\w+ is .*: write a whole number of steps"):
        planned(sets=(f"synchronizer.{said}",))


def test_an_offset_of_one_update_counts_as_a_step_with_a_note():
    config = json.loads(json.dumps(source("trainer.total_training_steps=null")[0].config))
    config["trainer"]["trainer_config"]["trinity_compat"]["steps"] = "verl"
    config["synchronizer"]["sync_offset"] = 1
    made = make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")
    assert made.spec.sync.offset == 1
    assert any("sync_offset=1, as the published guide has it, counts as 2" in note for note in made.notes)


STALE = ("algorithm.sample_strategy=staleness_control", "algorithm.sample_strategy_args.max_staleness=5")


def test_trinity_s_staleness_control_counts_updates_and_ours_verl_steps():
    assert planned().spec.max_staleness is None
    assert planned(sets=STALE[:1]).spec.max_staleness is None
    assert planned(sets=STALE).spec.max_staleness == 2


def test_a_staleness_limit_that_the_style_itself_breaks_is_refused():
    assert planned(sets=(*STALE, "synchronizer.sync_offset=4")).spec.max_staleness == 2
    with pytest.raises(UserError, match=r"allows 2 veRL steps; .* make it 3") as error:
        planned(sets=(*STALE, "synchronizer.sync_offset=6"))
    assert "at least 6" in error.value.hint
    free = (*STALE, "synchronizer.sync_offset=6", "synchronizer.sync_style=trainer_driven")
    assert planned(sets=free).spec.max_staleness == 2


@pytest.mark.parametrize("style", ["trainer_driven", "fully_async"])
def test_a_staleness_limit_below_the_trainer_s_interval_is_refused(style):
    sets = (*STALE, f"synchronizer.sync_style={style}")
    assert planned(sets=(*sets, "synchronizer.sync_interval=6")).spec.max_staleness == 2
    with pytest.raises(UserError, match=rf"under sync_style {style} .* make it 3") as error:
        planned(sets=(*sets, "synchronizer.sync_interval=8"))
    assert "at least 6" in error.value.hint


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("algorithm.sample_strategy=mix",), "algorithm.sample_strategy=mix: the sizes of this file"),
        (
            ("algorithm.sample_strategy=lifo",),
            "algorithm.sample_strategy=lifo: the trainer takes whole groups",
        ),
        ((STALE[0], "algorithm.sample_strategy_args.max_staleness=-1"), "max_staleness=-1: write a number"),
        ((STALE[0], "algorithm.sample_strategy_args.max_staleness=two"), "max_staleness=two: write a number"),
    ],
)
def test_a_sample_strategy_that_ours_lacks_is_refused(sets, said):
    with pytest.raises(UserError, match=said):
        planned(sets=sets)


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        ("algorithm_type=rlooo", "algorithm_type=rlooo: no release of trinity-rft has it", "mean 'rloo'?"),
        ("kl_penalty_fn=opmd", "kl_penalty_fn=opmd: no release of trinity-rft has it", "k1, k2"),
        ("kl_loss_fn=k4", "kl_loss_fn=k4: no release of trinity-rft has it", "k1, k2"),
        ("advantage_fn=clipv", "advantage_fn=clipv cannot be trained here: .* necs", "opmd"),
        ("policy_loss_fn=opmd", "policy_loss_fn_args.clip_range: opmd of policy_loss_fn has", "it has tau"),
    ],
)
def test_an_algorithm_that_cannot_be_trained_is_refused_not_replaced_by_a_default(said, message, hint):
    with pytest.raises(UserError, match=f"algorithm.{message}") as error:
        planned(sets=(f"algorithm.{said}",))
    assert hint in error.value.hint


def test_an_algorithm_of_rows_is_refused_where_answers_are_generated():
    with pytest.raises(UserError, match=r"dpo trains on rows of a file") as error:
        planned(sets=("algorithm.algorithm_type=dpo",))
    assert error.value.hint == "write mode: train"


REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
DRIVEN = ("synchronizer.sync_style=trainer_driven", f"{REPLAY}.enable=true")
LIMITED = f"{REPLAY}.priority_fn=decay_limit_randomization"
COOLDOWN = f"{REPLAY}.reuse_cooldown_time=2.5"
ARGS = f"{REPLAY}.priority_fn_args"
ALWAYS = 2**31 - 1
SHORT = ("buffer.trainer_input.experience_buffer.capacity=3", "trainer.total_training_steps=4")


@pytest.mark.parametrize(
    ("sets", "expected", "said"),
    [
        ((*DRIVEN, *SHORT), ReplaySpec(1), "each is trained once"),
        (DRIVEN, ReplaySpec(1), "each is trained once, as reuse_cooldown_time is not set"),
        ((*DRIVEN, COOLDOWN), ReplaySpec(ALWAYS, 2.5), "2.5 s after its last use, any number of times"),
        ((*DRIVEN, COOLDOWN, LIMITED), ReplaySpec(3, 2.5), "at most 3 times in all"),
        ((*DRIVEN, COOLDOWN, LIMITED, f"{ARGS}.use_count_limit=5"), ReplaySpec(5, 2.5), "at most 5"),
        ((*DRIVEN, COOLDOWN, LIMITED, f"{ARGS}.use_count_limit=-1"), ReplaySpec(ALWAYS, 2.5), "any number"),
        (
            (*DRIVEN, COOLDOWN, f"{ARGS}.decay=0.5"),
            ReplaySpec(ALWAYS, 2.5, decay=0.5),
            "less 0.5 for each use;",
        ),
        (
            (*DRIVEN, COOLDOWN, LIMITED, f"{ARGS}.sigma=0.25", "data.seed=7"),
            ReplaySpec(3, 2.5, sigma=0.25, seed=7),
            "less 2 for each use and normal noise of standard deviation 0.25;",
        ),
    ],
)
def test_trinity_s_replay_buffer_is_followed(sets, expected, said, tmp_path):
    made = planned(sets=sets)
    updates = made.spec.updates_per_step
    assert made.spec.replay == replace(expected, updates_per_version=updates, seed=expected.seed or 1)
    assert any(said in note for note in made.notes)
    made.spec.save(tmp_path / "spec.json")
    assert RunSpec.load(tmp_path / "spec.json").replay == made.spec.replay


def test_without_a_replay_buffer_each_group_is_trained_once():
    made = planned(sets=(f"{REPLAY}.enable=false", COOLDOWN))
    assert made.spec.replay is None
    assert not any(note.startswith("replay buffer:") for note in made.notes)


@pytest.mark.parametrize("more", [(), (f"{ARGS}.decay=0.1",), (LIMITED, f"{ARGS}.use_count_limit=1")])
def test_a_replay_buffer_of_one_version_under_fixed_keeps_the_order(more):
    made = planned(sets=(*DRIVEN[1:], *more))
    assert made.spec.replay is None
    assert any("one version and are trained once each" in note for note in made.notes)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((*DRIVEN[1:], COOLDOWN), f"{REPLAY}.enable=true: under sync_style fixed"),
        ((*DRIVEN[1:], "synchronizer.sync_offset=2"), f"{REPLAY}.enable=true: under sync_style fixed"),
        ((*DRIVEN[1:], SHORT[0]), f"{REPLAY}.enable=true: under sync_style fixed"),
        ((*DRIVEN[1:], "synchronizer.trainer_sync_interval=4"), "enable=true: under sync_style fixed"),
        ((*DRIVEN[1:], LIMITED, f"{ARGS}.sigma=0.5"), f"{REPLAY}.enable=true: under sync_style fixed"),
        ((*DRIVEN[1:], f"{ARGS}.decay=fast"), "priority_fn_args.decay=fast: write a number"),
        ((*DRIVEN, f"{REPLAY}.priority_fn=mine"), "priority_fn=mine: it may be linear_decay or decay_limit"),
        ((*DRIVEN, f"{REPLAY}.reuse_cooldown_time=-1"), "reuse_cooldown_time=-1: write a number of seconds"),
        (
            (*DRIVEN, COOLDOWN, *SHORT),
            "experience_buffer.capacity=3: groups that may be trained again are",
        ),
        ((*DRIVEN, f"{ARGS}.sigma=0.5"), "priority_fn_args.sigma=0.5: linear_decay has no such argument"),
        ((*DRIVEN, f"{ARGS}.use_count_limit=2"), "use_count_limit=2: linear_decay has no such argument"),
        ((*DRIVEN, LIMITED, f"{ARGS}.decai=2"), "decai=2: decay_limit_randomization has no such argument"),
        ((*DRIVEN, LIMITED, f"{ARGS}.use_count_limit=two"), "use_count_limit=two: write a whole number"),
        ((*DRIVEN, LIMITED, f"{ARGS}.use_count_limit=2.5"), "use_count_limit=2.5: write a whole number"),
        ((*DRIVEN, f"{ARGS}.decay=fast"), "priority_fn_args.decay=fast: write a number"),
    ],
)
def test_a_replay_buffer_that_ours_cannot_follow_is_refused(sets, said):
    with pytest.raises(UserError, match=said):
        planned(sets=sets)


def test_a_shared_device_takes_no_replay():
    with pytest.raises(UserError, match="never frees the device for the explorer"):
        planned(sets=(*DRIVEN, COOLDOWN), mode="colocate")


def test_a_set_that_nobody_knows_names_the_nearest_key():
    with pytest.raises(UserError, match=r"did you mean 'trainer\.save_freq'"):
        make_plan(source()[0].config, RunOptions(sets=("trainer.save_frek=1",)), cwd=Path("/work"))


def test_no_checkpoints_is_warned_about_with_an_offer():
    made = planned("trainer.save_freq=-1", "trainer.total_training_steps=40")
    assert any("--set trainer.save_freq=4" in line for line in made.notes)
    assert not any("save_freq" in line for line in planned().notes)


def test_a_yaml_gives_the_same_plan_as_the_script_it_came_from(tmp_path):
    from trinity_compat.run.plan.source import from_yaml

    made, _ = source()
    (tmp_path / "x.yaml").write_text(made.yaml_text)
    again = make_plan(from_yaml(tmp_path / "x.yaml").config, RunOptions(), cwd=Path("/work"), device="cpu")
    assert again.spec == planned().spec


def length_of(config, *sets):
    made = make_plan(config, RunOptions(sets=sets), cwd=Path("/work"), device="cpu")
    return made.spec.total_steps, made.spec.verl["trainer"]["total_epochs"]


@pytest.mark.parametrize(
    ("sets", "length"),
    [
        (("trainer.total_training_steps=7",), (7, 1)),
        (("trainer.total_steps=10",), (5, 1)),
        (("buffer.total_steps=10",), (5, 1)),
        (("trainer.total_training_steps=null", "trainer.total_epochs=3"), (None, 3)),
    ],
)
def test_a_set_of_the_length_takes_effect_on_a_yaml(sets, length):
    assert length_of(source("trainer.total_training_steps=40")[0].config, *sets) == length


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("trainer.total_epochs=3",), "the run ends after 40 veRL steps"),
        (("buffer.total_epochs=3",), "the run ends after 40 veRL steps"),
        (("trainer.total_steps=200",), "buffer.total_steps=80 ends the run before"),
        (("trainer.total_steps=11",), "trainer.total_steps=11 is not a whole number of veRL steps"),
    ],
)
def test_a_set_of_the_length_that_would_do_nothing_is_refused(sets, said):
    with pytest.raises(UserError, match=said):
        length_of(source("trainer.total_training_steps=40")[0].config, *sets)


def test_so_is_one_over_a_script_that_counts_its_steps():
    with pytest.raises(UserError, match=r"the run ends after 40 veRL steps"):
        source("trainer.total_training_steps=40", sets=("trainer.total_epochs=3",))
    planned("trainer.total_training_steps=null", sets=("trainer.total_epochs=3",))


def test_total_steps_of_a_native_yaml_limit_the_run():
    config = json.loads(json.dumps(source("trainer.total_training_steps=null")[0].config))
    config["trainer"]["total_steps"] = 20
    assert length_of(config) == (10, 1)  # added to a file of translate's, which counts r = 2 updates
    del config["trainer"]["trainer_config"]["trinity_compat"]
    config["synchronizer"]["sync_interval"] = 2
    assert length_of(config) == (20, 1)


@pytest.mark.parametrize("path", ["name", "project", "checkpoint_root_dir"])
def test_a_name_that_holds_a_command_is_not_run(path):
    config = json.loads(json.dumps(source()[0].config)) | {path: "run_$(hostname)"}
    with pytest.raises(UserError, match=rf"{path}: run_\$\(hostname\) holds a command") as error:
        make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")
    assert f"--set {path}=VALUE" in error.value.hint
    assert make_plan(config, RunOptions(job="/j"), cwd=Path("/work"), device="cpu").job.root == Path("/j")


def test_a_run_says_that_stock_verl_loses_the_reward_keys_of_before_0_8():
    (note,) = (note for note in source("custom_reward_function.path=r.py")[0].notes if "stock veRL" in note)
    assert note.startswith(f"{SCRIPT}:") and "TW021" in note and "reward.custom_reward_function.path" in note
    assert "--as-overrides --for SCRIPT" in note
    assert not [note for note in source()[0].notes if "stock veRL" in note]


def test_the_smoke_profile_lies_over_the_script():
    assert planned(profiles=("smoke",)).spec.total_steps == 2


def test_the_yaml_is_translate_s_to_the_byte(tmp_path):
    command = [
        sys.executable,
        "-m",
        "trinity_compat",
        "translate",
        "--resolve",
        str(SCRIPT),
        "--",
        "data.seed=7",
    ]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True)
    assert source("data.seed=7")[0].yaml_text == done.stdout


def test_the_yaml_is_translate_s_where_the_script_computes_from_a_variable(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "n=${MINI:-16}\nexport LOGS=$HOME/logs\n"
        "python3 -m verl.trainer.main_ppo data.train_files=/d/a.parquet "
        "data.val_files=/d/a.parquet actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$((n*8))\n"
    )
    environ = {**ENV, "MINI": "4"}
    command = [sys.executable, "-m", "trinity_compat", "translate", "--resolve", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    caught = [word.text for word in read_script(script, env=environ).launches[0].arguments]
    assert caught[-1].endswith("=32")
    call = ScriptCall(str(script), (), RunOptions(), str(Path.cwd()), environ)
    found = Invocation("verl.trainer.main_ppo", tuple(caught))
    assert source_of(found, call)[0].yaml_text == done.stdout


def test_line_numbers_need_the_words_of_the_script_to_be_the_caught_ones():
    call = ScriptCall(str(SCRIPT), (), RunOptions(), str(Path.cwd()), ENV)
    static = read_script(SCRIPT, env=ENV).launches[0]
    words = tuple(word.text for word in static.arguments)
    same, _ = launch_of(Invocation(static.module, words), call)
    assert same.arguments[0].where.line > 1
    other, _ = launch_of(Invocation(static.module, (*words, "data.seed=9")), call)
    assert other.arguments[-1].text == "data.seed=9"
    assert str(other.arguments[0].where).startswith("argv")


def test_the_exported_environment_goes_to_the_explorer_without_secrets(monkeypatch):
    monkeypatch.setenv("VLLM_USE_V1", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    words = tuple(word.text for word in read_script(SCRIPT, env=ENV).launches[0].arguments)
    call = ScriptCall(str(SCRIPT), (), RunOptions(), str(Path.cwd()), ENV)
    launch, environ = launch_of(Invocation("verl.trainer.main_ppo", (*words, "data.seed=9")), call)
    assert launch.env["VLLM_USE_V1"].text == "1"
    translation, text = translate_launch(launch, TranslateOptions(resolve=True, environ=environ))
    assert translation.config["explorer"]["env_vars"]["VLLM_USE_V1"] == "1"
    assert "hf_secret" not in text


def test_the_audit_accounts_for_every_key_of_the_launch():
    audit = json.loads(source()[0].audit)
    keys = {finding["key"] for finding in audit["launches"][0]["findings"]}
    assert {"data.train_batch_size", "trainer.save_freq", "actor_rollout_ref.rollout.n"} <= keys


def test_each_process_of_several_explorers_has_a_log_and_curves_of_its_own():
    started = commands_of(planned(explorers=2), "127.0.0.1:1")
    assert [command.name for command in started] == ["explorer_0", "explorer_1", "trainer"]
    curves = [command.env["TENSORBOARD_DIR"].rpartition("/")[2] for command in started]
    assert curves == ["explorer", "explorer_1", "trainer"]
    assert len({command.log for command in started}) == 3


def test_an_rl_run_without_a_device_is_a_cpu_run(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.detect_device() == "cpu"


@pytest.mark.parametrize("password", ["secret", "sec@ret", "sec/ret:"])
def test_a_password_is_used_but_not_shown_and_not_readable_by_others(tmp_path, password):
    url = f"postgresql+psycopg://me:{password}@db/x"
    path = f"buffer.trainer_input.experience_buffer.path={url}"
    options = RunOptions(database=url, job=str(tmp_path / "job"), sets=(path,))
    made = make_plan(source()[0].config, options, cwd=tmp_path, device="cpu")
    shown = [*describe(made), *made.notes, json.dumps(as_record(made, options))]
    assert password not in "\n".join(shown)
    assert "postgresql+psycopg://me:***@db/x" in "\n".join(shown)
    made.job.create()
    made.spec.save(made.job.spec_path)
    made.job.write_config({"trinity.yaml": f"path: {url}\n", "launch.json": "{}\n"})
    assert made.job.load_spec().database_url == url
    others = {path.name: path.stat().st_mode & 0o077 for path in (made.job.root / "config").iterdir()}
    assert others["run.json"] == others["trinity.yaml"] == 0 and others["launch.json"] != 0


def test_a_url_without_a_password_is_shown_whole():
    assert "database  postgresql+psycopg://me@db/x" in describe(
        planned(database="postgresql+psycopg://me@db/x")
    )


def test_a_verl_checkout_in_the_working_directory_is_not_what_runs(tmp_path, monkeypatch):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.parquet").touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:/elsewhere")
    made, _ = source("data.train_files=data/x.parquet", "actor_rollout_ref.model.path=org/name")
    laid = make_plan(made.config, RunOptions(), cwd=tmp_path, device="cpu")
    assert laid.spec.verl["data"]["train_files"] == str(tmp_path / "data" / "x.parquet")
    assert laid.spec.verl["actor_rollout_ref"]["model"]["path"] == "org/name"
    trainer = commands_of(laid, "127.0.0.1:1")[-1]
    assert trainer.env["PYTHONPATH"] == "/elsewhere"
    assert trainer.cwd == str(laid.job.root)
    assert any("are not used" in line for line in laid.notes)


def test_a_verl_that_pip_installed_into_a_folder_of_pythonpath_is_what_runs(tmp_path, monkeypatch):
    installed, sources = tmp_path / "site", tmp_path / "sources"
    for folder in (installed, sources):
        (folder / "verl").mkdir(parents=True)
        (folder / "verl" / "__init__.py").touch()
    (installed / "verl-0.9.1.dist-info").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{sources}:{installed}")
    made = planned()
    assert commands_of(made, "127.0.0.1:1")[-1].env["PYTHONPATH"] == str(installed)
    assert [line for line in made.notes if "are not used" in line] == [
        f"veRL's sources in {sources} are not used: the run needs the installed veRL"
    ]


def test_log_level_and_group_by_node_reach_every_process():
    made = planned(sets=("log.level=debug", "log.group_by_node=true"))
    commands = commands_of(made, "ray:1")
    assert {command.env["VERL_LOGGING_LEVEL"] for command in commands} == {"DEBUG"}
    assert {command.env["VLLM_LOGGING_LEVEL"] for command in commands} == {"DEBUG"}
    folders = {command.log.parent for command in commands}
    assert len(folders) == 1 and folders.pop().parent == made.job.root / "log"


def test_a_folder_for_temporary_files_that_cannot_be_used_is_not_passed_on(monkeypatch):
    """/proc may be entered and written to, by its rights, and takes no file."""
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", None)
    made = planned()
    assert {command.env["TMPDIR"] for command in commands_of(made, "127.0.0.1:1")} == {tempfile.gettempdir()}
    (line,) = [line for line in preflight.remarks(made) if "TMPDIR" in line]
    assert line == f"warning: TMPDIR=/proc cannot be written to: {tempfile.gettempdir()} is used"
    assert Path(tempfile.gettempdir()) != Path("/proc")


def test_a_job_folder_in_ray_s_copy_of_the_working_directory_is_named(tmp_path):
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1" / "ck"
    for job, lines in ((tmp_path / "ck", 0), (copy, 1)):
        told = [line for line in preflight.remarks(planned(job=str(job))) if "--job DIR" in line]
        assert len(told) == lines


def test_an_unknown_log_level_is_refused():
    with pytest.raises(UserError, match=r"log\.level=loud"):
        planned(sets=("log.level=loud",))


@pytest.mark.parametrize("users", [False, True])
def test_both_sides_are_told_whose_ray_they_join(monkeypatch, users):
    """On a user's, engines in turns look up the devices that Ray gives the trainer."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if users:
        monkeypatch.setenv("RAY_ADDRESS", "ray:1")
    told = ["TRINITY_COMPAT_USERS_RAY" in command.env for command in commands_of(planned(), "ray:1")]
    assert told == [users] * 2


def test_a_log_that_the_environment_names_has_one_writer(monkeypatch):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "/x/metrics.jsonl")
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    commands = commands_of(planned(), "ray:1")
    paths = {command.name: command.env["VERL_FILE_LOGGER_PATH"] for command in commands}
    assert paths == {"trainer": "/x/metrics.jsonl", "explorer": "/x/metrics_explorer.jsonl"}
    runs = {command.name: command.env.get("WANDB_RUN_ID") for command in commands}
    assert runs == {"trainer": "abc", "explorer": None}


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [("explore", None, "explore"), ("explore", "train", "train"), ("both", None, "both")],
)
def test_the_yaml_s_mode_holds_unless_the_command_line_says_another(mode, given, expected):
    made, _ = source()
    config = {**made.config, "mode": mode}
    plan_ = make_plan(config, RunOptions(mode=given), cwd=Path("/work"), device="cpu")
    assert plan_.spec.mode == expected


def test_a_mode_that_is_not_there_is_refused():
    made, _ = source()
    with pytest.raises(UserError, match="mode: tests"):
        make_plan({**made.config, "mode": "tests"}, RunOptions(), cwd=Path("/work"), device="cpu")


def test_a_database_file_that_the_yaml_names_itself_is_not_passed_over_in_silence():
    made, _ = source()
    config = json.loads(json.dumps(made.config))
    assert not [note for note in planned().notes if "experience_buffer" in note]
    config["buffer"]["trainer_input"]["experience_buffer"]["path"] = "sqlite:///mine.db"
    notes = make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu").notes
    assert any("mine.db: the run's database is sqlite:////work/checkpoints" in note for note in notes)


def test_one_explorer_of_several_is_a_command_of_its_own():
    made = planned(mode="explore", explorers=3, explorer=1)
    assert [command.name for command in commands_of(made, "ray:1")] == ["explorer_1"]
    assert made.spec.explorers == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "explore", "explorer": 2, "explorers": 2}, "numbers start at 0"),
        ({"explorer": 0}, "--mode explore"),
    ],
)
def test_an_explorer_number_beyond_the_count_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        planned(**options)


def test_one_accelerator_is_shared_in_turns_and_a_cpu_is_not():
    assert planned(device="cuda").spec.mode == "colocate"  # the script's one GPU
    assert planned(device="cpu").spec.mode == "both"
    assert planned(device="cpu", mode="colocate").spec.mode == "colocate"
    # translate wrote the mode, so that a CPU's user has nothing to be told of it
    assert not [note for note in planned(device="cpu").notes if note.startswith("mode: colocate")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explorers": 2}, "one explorer"),
        ({"sets": ["synchronizer.sync_method=nccl"]}, "which NCCL refuses"),
    ],
)
def test_what_one_device_cannot_hold_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        planned(mode="colocate", **options)


def test_turns_on_several_machines_hand_weights_over_where_all_of_them_look():
    sets = ("trainer.nnodes=2",)
    assert planned(mode="colocate", sets=sets, device="cuda").spec.sync.method == "checkpoint"
    assert planned(mode="colocate", sets=sets).spec.sync.method == "memory"  # a CPU is one, for all processes


@pytest.mark.parametrize(("width", "used"), [(1, 1), (2, 2), (3, 1), (8, 8), (16, 8)])
def test_in_turns_both_sides_have_every_gpu_of_the_machine(width, used):
    sets = (
        "trainer.n_gpus_per_node=8",
        f"actor_rollout_ref.rollout.tensor_model_parallel_size={width}",
    )
    made = planned("trainer.n_gpus_per_node=8", mode="colocate", sets=sets, device="cuda")
    assert made.spec.sync.method == "memory"  # and not nccl, as the YAML of 8 GPUs has it
    assert trainer_gpus(made.spec.verl) == 8
    rollout = made.spec.verl["actor_rollout_ref"]["rollout"]
    assert (engine_width(rollout, "cuda"), engine_count(rollout, "cuda")) == (used, 8 // used)
    assert shares(made.spec.verl, device="cuda", mode="colocate", explorers=1) == {"trainer": 8}
    assert any(f"8 GPUs in turns: {8 // used} engine(s) of {used}" in note for note in made.notes)


def test_what_a_run_leaves_out_is_told_with_its_place():
    made, _ = source("actor_rollout_ref.rollout.prometheus.enable=True")
    (told,) = [note for note in made.notes if "is left out" in note]
    assert (
        "actor_rollout_ref.rollout.prometheus.enable=True is left out: neither Trinity-RFT's engines" in told
    )
    assert not [note for note in source()[0].notes if "is left out" in note]


def test_an_argument_that_vllm_has_renamed_is_told():
    key = "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache"
    for device, release in (("cpu", CPU), ("cuda", GPU)):
        notes = planned(f"+{key}=True", device=device).notes
        assert any(f"{key}=True: vLLM {release} gets mm_processor_cache_gb=0" in note for note in notes)


def test_what_a_yaml_leaves_to_the_environment_is_taken_from_it(monkeypatch):
    config = json.loads(json.dumps(source()[0].config))
    config["model"]["model_path"] = "${oc.env:MODEL,/models/small}"
    config["checkpoint_root_dir"] = "${oc.env:WHERE,${oc.env:HOME}}/here"
    config["cluster"]["node_num"] = "${oc.env:NODES,1}"
    for name in ("MODEL", "NODES", "WHERE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    unset = make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")
    assert unset.spec.verl["actor_rollout_ref"]["model"]["path"] == "/models/small"
    assert str(unset.job.root).startswith("/home/me/here/")
    monkeypatch.setenv("MODEL", "/models/large")
    monkeypatch.setenv("WHERE", "/scratch")
    made = make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")
    assert made.spec.verl["actor_rollout_ref"]["model"]["path"] == "/models/large"
    assert str(made.job.root).startswith("/scratch/here/")
    monkeypatch.setenv("NODES", "two")
    with pytest.raises(
        UserError, match=r"cluster.node_num: \$\{oc.env:NODES,1\} is 'two' here, not a whole number"
    ):
        make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")


def test_a_secret_that_a_yaml_names_stays_named_in_what_is_written(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "s3cr3t")
    config = json.loads(json.dumps(source()[0].config))
    config["trainer"]["trainer_config"]["trinity_compat"].setdefault("verl", {})
    config["explorer"].setdefault("env_vars", {})["MY_API_KEY"] = "${oc.env:MY_API_KEY}"
    made = make_plan(config, RunOptions(), cwd=Path("/work"), device="cpu")
    assert "s3cr3t" not in json.dumps(made.spec.as_saved()[0])
    assert "s3cr3t" not in "\n".join(made.notes)


def test_a_plan_says_the_steps_that_veRL_s_loop_really_runs(tmp_path):
    """Its fit ends with its epochs, and total_training_steps beyond them is what schedules go by."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "train.parquet")
    data = f"data.train_files={tmp_path}/train.parquet"
    words = (data, "data.train_batch_size=32", "trainer.total_training_steps=1000", "trainer.total_epochs=2")
    made = planned(*words)
    assert made.spec.total_steps == 6
    assert made.spec.verl["trainer"]["total_training_steps"] == 1000
    assert any(line.startswith("steps     6 veRL steps") for line in describe(made))
    assert planned(*words, sets=("trainer.total_epochs=3",)).spec.total_steps == 9
    with pytest.raises(UserError, match="changes nothing"):
        planned(*words, sets=("trainer.total_epochs=999",))


def test_a_launch_s_runtime_environment_reaches_both_sides_and_ray_s_workers():
    key = "ray_kwargs.ray_init.runtime_env"
    made = planned(f"+{key}.env_vars.MY_FLAG=on", f"+{key}.worker_process_setup_hook=mine.setup")
    assert {command.name: command.env["MY_FLAG"] for command in commands_of(made, "127.0.0.1:6379")} == {
        "explorer": "on",
        "trainer": "on",
    }
    own = {"env_vars": {"MY_FLAG": "off", "NCCL_DEBUG": "WARN"}, "py_executable": "python -P"}
    assert runtime_env.merged(own, made.spec.verl) == {
        "env_vars": {"MY_FLAG": "on", "NCCL_DEBUG": "WARN"},
        "py_executable": "python -P",
        "worker_process_setup_hook": "mine.setup",
    }
    assert "runtime_env" not in made.ray  # the run's own Ray is none of the launch's jobs


@pytest.mark.parametrize("word", ["working_dir=.", "py_modules=[./mine]", "py_executable='uv run'"])
def test_a_runtime_environment_that_is_the_run_s_own_is_no_obstacle(word):
    assert planned(f"++ray_kwargs.ray_init.runtime_env.{word}").spec.job_dir
