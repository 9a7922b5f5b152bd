"""veRL's asynchronous mains: how far rollouts run ahead, on which GPUs, and in which units they count."""

import importlib.util
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import leaves
from trinity_compat.launch.entrypoints import FULLY_ASYNC, ONE_STEP_OFF
from trinity_compat.translate.rows import load_rows
from trinity_compat.translate.verl_from_trinity import (
    compat_of,
    sync_of,
    takes_turns,
    to_verl,
    total_steps_of,
)
from trinity_compat.verl_config.pinned import pinned_release

from .helpers import translated

ARR = "actor_rollout_ref"
MINI = f"{ARR}.actor.ppo_mini_batch_size"
RECIPE = "recipe.fully_async_policy.fully_async_main"
SAMPLES = "rollout.total_rollout_steps"
ASYNC = (
    "data.train_batch_size=0",
    f"{MINI}=32",
    f"{ARR}.rollout.n=16",
    f"{ARR}.hybrid_engine=False",
    f"{SAMPLES}=51200",
    "async_training.require_batches=4",
    "async_training.trigger_parameter_sync_step=3",
)


def fully_async(*arguments, module=FULLY_ASYNC, **options):
    return translated(*ASYNC, *arguments, module=module, **options)


def fates(translation):
    return {finding.key: finding for finding in translation.findings}


def test_one_step_off_is_one_step_ahead():
    _, config = translated("data.train_batch_size=64", f"{MINI}=16", module=ONE_STEP_OFF)
    sync = config["synchronizer"]
    assert (sync["sync_style"], sync["sync_interval"], sync["sync_offset"]) == ("fixed", 4, 4)
    told = sync_of(config)
    assert (told.style, told.interval, told.offset) == ("fixed", 1, 1)


def test_a_step_is_what_the_trainer_takes_at_once():
    _, config = fully_async()
    told, sync = to_verl(config), sync_of(config)
    assert config["buffer"]["batch_size"] == 32
    assert compat_of(config)["updates_per_step"] == 4
    assert told["data.train_batch_size"] == 128  # and not the launch's 0
    assert (sync.style, sync.interval, sync.offset) == ("fully_async", 3, 0)
    assert config["synchronizer"]["sync_interval"] == 12


def test_samples_of_the_whole_run_become_steps():
    _, config = fully_async()
    assert total_steps_of(config) == 51200 // 128
    assert to_verl(config)["trainer.total_training_steps"] == 400


def test_the_epochs_end_a_run_whose_samples_they_do_not_hold(tmp_path):
    pq.write_table(pa.table({"x": list(range(1000))}), tmp_path / "train.parquet")
    _, config = fully_async(f"data.train_files={tmp_path}/train.parquet", "trainer.total_epochs=2")
    assert total_steps_of(config) == 2000 // 128  # no batch is dropped between two epochs


def test_saving_and_testing_count_versions_of_the_weights():
    _, config = fully_async("trainer.save_freq=20", "trainer.test_freq=5")
    told = to_verl(config)
    assert (told["trainer.save_freq"], told["trainer.test_freq"]) == (60, 15)
    assert config["trainer"]["save_interval"] == 240


def test_the_notes_say_what_a_value_was_made_of():
    translation, _ = fully_async("trainer.save_freq=20")
    assert translation.provenance["trainer.save_interval"] == (
        "trainer.save_freq=20 × async_training.trigger_parameter_sync_step=3 × updates_per_step=4"
    )


def test_staleness_and_partial_rollout_are_our_own_settings():
    translation, config = fully_async(
        "async_training.staleness_threshold=0.5", "async_training.partial_rollout=False"
    )
    assert compat_of(config)["staleness_threshold"] == 0.5
    assert compat_of(config)["partial_rollout"] is False
    found = fates(translation)["async_training.staleness_threshold"]
    assert found.status.value == "unsupported_upstream"
    assert found.target == "trainer.trainer_config.trinity_compat.staleness_threshold"


def test_every_key_that_only_these_mains_have_is_accounted_for():
    translation, _ = fully_async(
        "rollout.nnodes=1",
        "rollout.n_gpus_per_node=4",
        "rollout.n=8",
        "data.gen_batch_size=1",
        "async_training.use_trainer_do_validate=True",
        "async_training.use_dynamic_resource_scheduling=True",
        "async_training.concurrent_samples_per_replica=8",
    )
    found = fates(translation)
    status = {key: found[key].status.value for key in found}
    assert (
        status["data.train_batch_size"] == status["data.gen_batch_size"] == status["rollout.n"] == "no_effect"
    )
    assert status["async_training.use_dynamic_resource_scheduling"] == "unsupported"
    assert "unknown" not in status.values()
    assert "now actor_rollout_ref.rollout.nnodes" in found["rollout.nnodes"].reason


def test_until_0_7_epochs_tests_and_old_log_probs_had_keys_of_their_own():
    translation, config = fully_async(
        "rollout.total_epochs=3",
        "rollout.test_freq=2",
        "trainer.test_freq=10",
        "async_training.compute_prox_log_prob=True",
        module=RECIPE,
    )
    told = to_verl(config)
    assert (told["trainer.total_epochs"], told["trainer.test_freq"]) == (3, 6)
    assert told["algorithm.rollout_correction.bypass_mode"] is False
    found = fates(translation)
    assert found["trainer.test_freq"].status.value == "no_effect"
    assert found["async_training.compute_prox_log_prob"].status.value == "approximated"


def test_the_rollout_s_log_probs_are_the_old_ones_unless_both_keys_say_otherwise():
    _, config = fully_async(module=RECIPE)
    assert to_verl(config)["algorithm.rollout_correction.bypass_mode"] is True


def test_memory_of_engines_of_their_own_counts():
    _, config = fully_async(f"{ARR}.rollout.standalone_gpu_memory_utilization=0.85")
    assert config["explorer"]["rollout_model"]["gpu_memory_utilization"] == 0.85


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("async_training.staleness_threshold=-1", "should be 0 or more"),
        ("async_training.trigger_parameter_sync_step=0", "should be 1 or more"),
        ("async_training.require_batches=0", "should be 1 or more"),
        (f"{MINI}=0", "should be 1 or more"),
        (
            f"{SAMPLES}=100",
            r"100 samples do not fill one batch of 128; veRL trains no step: total_train_steps = "
            r"int\(100 / \(128 \* 3\)\) = 0",
        ),
    ],
)
def test_what_verl_s_main_refuses_is_refused_at_its_line(argument, said):
    with pytest.raises(UserError, match=said) as error:
        fully_async(argument)
    assert error.value.where is not None and error.value.where.file == "run.sh"


def test_a_number_of_samples_that_the_launch_lost_is_refused_at_the_launch():
    with pytest.raises(UserError, match=f"{SAMPLES}=100: 100 samples do not fill") as error:
        translated(*(word for word in ASYNC if not word.startswith(SAMPLES)), module=FULLY_ASYNC)
    assert str(error.value.where) == "run.sh:1"
    assert error.value.hint.endswith("where the script has it, its command ends above (TP004)")


@pytest.mark.parametrize(
    ("trainer", "rollout", "cluster"),
    [
        ((1, 4), (1, 4), (1, 8)),  # beside each other on one node
        ((2, 6), (2, 2), (2, 8)),
        ((2, 8), (2, 8), (4, 8)),  # each on nodes of its own
        ((1, 8), (1, 4), (3, 4)),
    ],
)
def test_the_gpus_are_those_of_both_sides(trainer, rollout, cluster):
    _, config = translated(
        f"trainer.nnodes={trainer[0]}",
        f"trainer.n_gpus_per_node={trainer[1]}",
        f"rollout.nnodes={rollout[0]}",
        f"rollout.n_gpus_per_node={rollout[1]}",
        f"{ARR}.rollout.tensor_model_parallel_size=2",
        "data.train_batch_size=96",
        f"{MINI}=96",
        module=ONE_STEP_OFF,
    )
    assert (config["cluster"]["node_num"], config["cluster"]["gpu_per_node"]) == cluster
    assert config["explorer"]["rollout_model"]["engine_num"] == rollout[0] * rollout[1] // 2
    told = to_verl(config)
    assert (told["trainer.nnodes"], told["trainer.n_gpus_per_node"]) == trainer


def test_main_ppo_s_rollout_may_have_gpus_of_its_own_too():
    _, config = translated(
        "trainer.n_gpus_per_node=2", f"{ARR}.rollout.nnodes=1", f"{ARR}.rollout.n_gpus_per_node=6",
        f"{ARR}.rollout.tensor_model_parallel_size=2",
    )  # fmt: skip
    assert config["cluster"]["gpu_per_node"] == 8
    assert config["explorer"]["rollout_model"]["engine_num"] == 3


def test_without_nodes_the_rollout_s_gpus_mean_nothing():
    translation, config = translated("trainer.n_gpus_per_node=8", f"{ARR}.rollout.n_gpus_per_node=4")
    assert config["cluster"]["gpu_per_node"] == 8
    assert fates(translation)[f"{ARR}.rollout.n_gpus_per_node"].status.value == "no_effect"


def test_the_old_trinity_has_a_style_for_it():
    _, config = fully_async(target="0.4.1")
    assert config["synchronizer"]["sync_style"] == "dynamic_by_trainer"
    assert sync_of(config).style == "fully_async"
    assert compat_of(config)["staleness_threshold"] == 0.1


def test_a_test_after_every_sync_is_one_after_every_so_many_updates():
    _, config = fully_async("trainer.save_freq=-1", "trainer.test_freq=1")
    told = to_verl(config)
    assert (told["trainer.save_freq"], told["trainer.test_freq"]) == (-1, 3)


def test_a_name_says_between_which_releases_a_launch_is():
    translation, _ = fully_async(module=RECIPE)
    assert translation.facts["verl_version"] == "0.7.0"
    translation, _ = fully_async("rollout.test_freq=1")  # of the days between 0.7 and 0.8
    assert translation.facts["verl_version"] == "0.7.0"
    translation, _ = fully_async()
    assert translation.facts["verl_version"] == "0.9.1"


V1 = "trainer.v1"
SEPARATE = (
    f"{V1}.trainer_mode=separate_async",
    f"{V1}.separate_async.parameter_sync_step=4",
    f"{V1}.separate_async.num_warmup_batches=1.5",
    "data.train_batch_size=64",
    f"{MINI}=16",
    f"{ARR}.rollout.nnodes=1",
    f"{ARR}.rollout.n_gpus_per_node=4",
    "trainer.n_gpus_per_node=4",
    "trainer.save_freq=5",
)


def test_main_ppo_s_separate_mode_trains_a_batch_in_parts():
    _, config = translated(*SEPARATE)
    told, sync = to_verl(config), sync_of(config)
    assert (sync.style, sync.interval, sync.offset) == ("fully_async", 4, 0)
    assert (told["data.train_batch_size"], told["trainer.save_freq"]) == (16, 20)
    assert compat_of(config)["staleness_threshold"] == 1.5
    assert config["cluster"]["gpu_per_node"] == 8


@pytest.mark.parametrize(
    "batch, mini, fits", [(64, 32, f"{MINI}=16, or data.train_batch_size=128"), (64, 8, "=32")]
)
def test_a_part_of_a_batch_is_one_update(batch, mini, fits):
    with pytest.raises(
        UserError, match=rf"data\.train_batch_size={batch} should be .*=4 × .*={mini} = "
    ) as error:
        translated(*SEPARATE, f"data.train_batch_size={batch}", f"{MINI}={mini}")
    assert fits in error.value.hint and error.value.where.line


@pytest.mark.verl
def test_what_separate_asserts_of_a_part_stands_at_the_line_that_is_named():
    with pytest.raises(UserError) as error:
        translated(*SEPARATE, f"{MINI}=32")
    name, number = re.search(r"\(verl [\d.]+, (\S+):(\d+)\)", str(error.value)).groups()
    folder = Path(importlib.util.find_spec("verl").origin).parent
    line = (folder / name).read_text().splitlines()[int(number) - 1]
    assert "train_batch_size == parameter_sync_step * ppo_mini_batch_size" in line


def test_main_ppo_s_colocated_mode_runs_ahead_by_its_warm_up():
    _, config = translated(
        f"{V1}.trainer_mode=colocate_async",
        "data.train_batch_size=64",
        f"{MINI}=16",
        "trainer.n_gpus_per_node=8",
    )
    sync = sync_of(config)
    assert (sync.style, sync.interval, compat_of(config)["staleness_threshold"]) == ("fully_async", 1, 1)
    assert to_verl(config)["data.train_batch_size"] == 64
    assert takes_turns(config) and not takes_turns(translated(*SEPARATE)[1])


@pytest.mark.parametrize("drawn", [1, 64])
@pytest.mark.parametrize("mode", ["separate_async", "colocate_async"])
def test_main_ppo_s_asynchronous_modes_fetch_one_prompt_at_a_time(mode, drawn):
    given = (*SEPARATE, f"{V1}.trainer_mode={mode}", f"+data.gen_batch_size={drawn}")
    translation, config = translated(*given, verl_version="0.9.1")
    told = to_verl(config)
    assert told.get("data.gen_batch_size") is None
    assert told["data.train_batch_size"] == to_verl(translated(*given[:-1])[1])["data.train_batch_size"]
    found = fates(translation)["data.gen_batch_size"]
    assert (found.status.value, "one prompt at a time" in found.reason) == ("no_effect", True)


def test_what_filter_groups_draws_at_a_time_stays_in_the_asynchronous_modes():
    given = ("algorithm.filter_groups.enable=True", "+data.gen_batch_size=32")
    _, config = translated(*SEPARATE, *given, verl_version="0.9.1")
    assert to_verl(config)["data.gen_batch_size"] == 32


@pytest.mark.parametrize("argument", [f"{V1}.trainer_mode=sync", "trainer.use_v1=False"])
def test_a_mode_that_verl_does_not_run_in_means_nothing(argument):
    translation, config = translated(*SEPARATE[1:5], f"{V1}.trainer_mode=separate_async", argument)
    assert config["synchronizer"]["sync_style"] == "fixed"
    found = fates(translation)[f"{V1}.separate_async.parameter_sync_step"]
    assert found.status.value == "no_effect"


DRAWN = ("data.train_batch_size=16", f"{MINI}=16")
NOT_FILTERED = "algorithm.filter_groups.enable=False"


def test_until_0_8_a_step_trains_all_that_it_draws():
    translation, config = translated(
        *DRAWN, NOT_FILTERED, "data.gen_batch_size=32", module="recipe.dapo.main_dapo"
    )
    assert to_verl(config)["data.train_batch_size"] == 32
    found = fates(translation)
    assert found["data.gen_batch_size"].status.value == "derived"
    assert found["data.train_batch_size"].status.value == "no_effect"
    assert "data.gen_batch_size=32 prompts a step" in found["data.train_batch_size"].reason


def test_the_trainers_of_v1_only_fetch_so_many_at_a_time():
    translation, config = translated(*DRAWN, "+data.gen_batch_size=32", verl_version="0.9.1")
    told = to_verl(config)
    assert (told["data.train_batch_size"], told.get("data.gen_batch_size")) == (16, None)
    assert fates(translation)["data.gen_batch_size"].status.value == "no_effect"


def test_what_filter_groups_draws_at_a_time_stays():
    _, config = translated(
        *DRAWN,
        "algorithm.filter_groups.enable=True",
        "data.gen_batch_size=32",
        module="recipe.dapo.main_dapo",
    )
    told = to_verl(config)
    assert (told["data.train_batch_size"], told["data.gen_batch_size"]) == (16, 32)


@pytest.mark.parametrize(("use_v1", "steps"), [(False, 1), (True, 2)])
def test_the_epochs_of_a_filtered_run_end_by_the_count_of_its_trainer(tmp_path, use_v1, steps):
    pq.write_table(pa.table({"prompt": ["p"] * 40}), tmp_path / "train.parquet")
    filtered = ("algorithm.filter_groups.enable=True", "+data.gen_batch_size=32", f"trainer.use_v1={use_v1}")
    length = ("trainer.total_training_steps=5", "trainer.total_epochs=1")
    files = f"data.train_files={tmp_path}/train.parquet"
    _, config = translated(*DRAWN, *filtered, *length, files)
    assert total_steps_of(config) == steps


LENT, SAMPLER = f"{V1}.separate_async.hybrid_rollout", f"{V1}.sampler"
SYNC = ("trainer.use_v1=True", f"{V1}.trainer_mode=sync")
AHEAD = ("trainer.use_v1=True", *SEPARATE)
OFF = ("trainer.use_v1=False",)
OWN_BUFFER = (f"{SAMPLER}.custom_sampler.path=b.py", f"{SAMPLER}.custom_sampler.name=B")


@pytest.mark.parametrize(
    ("launch", "given", "status", "reason"),
    [
        (AHEAD, (f"{LENT}.enable_switch=True",), "unsupported", "wait with it"),
        (AHEAD, (f"{LENT}.switch_threshold_ratio=0.3", f"{LENT}.enable_switch=True"), "unsupported", "lends"),
        (AHEAD, (f"{LENT}.switch_threshold_step_up=0", f"{LENT}.enable_switch=True"), "unsupported", "lends"),
        (AHEAD, (f"{LENT}.switch_threshold_ratio=0.3",), "no_effect", "enable_switch is off"),
        (AHEAD, (f"{LENT}.enable_switch=True", f"{ARR}.hybrid_engine=False"), "no_effect", "no engine on"),
        (SYNC, (f"{LENT}.enable_switch=True",), "no_effect", "trainer_mode is not separate_async"),
        (SYNC, (f"{V1}.colocate_async.num_warmup_batches=2",), "no_effect", "is not colocate_async"),
        (SYNC, (f"{SAMPLER}.max_off_policy_threshold=3",), "no_effect", "answers of its own step"),
        (AHEAD, (f"{SAMPLER}.max_off_policy_threshold=3",), "unsupported", "no answer is dropped"),
        (AHEAD, (f"{SAMPLER}.max_off_policy_strategy=wait",), "unsupported", "no answer is dropped"),
        (SYNC, (f"{SAMPLER}.sync_refill_failed_groups=True",), "approximated", "tried again"),
        (AHEAD, (f"{SAMPLER}.sync_refill_failed_groups=True",), "no_effect", "in any case"),
        (SYNC, OWN_BUFFER, "unsupported", "replay buffer of your own"),
        (AHEAD, OWN_BUFFER, "unsupported", "replay buffer of your own"),
        (SYNC, OWN_BUFFER[:1], "no_effect", "both path and name"),
        (SYNC, (f"+{SAMPLER}.sampler_kwargs.a=1",), "no_effect", "reads nothing of it"),
        (
            SYNC,
            (f"+{V1}.sync.parameter_sync_step=2",),
            "unsupported",
            "neither Trinity-RFT nor trinity-compat reads",
        ),
        (OFF, OWN_BUFFER, "no_effect", "use_v1 is off"),
        (OFF, (f"{LENT}.enable_switch=True",), "no_effect", "use_v1 is off"),
    ],
)
def test_a_setting_of_v1_s_trainer_is_said_for_the_mode_that_reads_it(launch, given, status, reason):
    translation, config = translated(*launch, *given, verl_version="0.9.1")
    key = given[0].lstrip("+").partition("=")[0]
    found = fates(translation)[key]
    assert (found.status.value, reason in found.reason) == (status, True)
    kept = compat_of(config).get("verl", {}).get(key)  # for to-verl, unless stock reads nothing of v1
    assert (kept is not None) == ("use_v1 is off" not in reason)


def test_each_setting_of_v1_s_trainer_has_a_row_of_its_own():
    tree = pinned_release("ppo_trainer").tree
    keys = [key for key, value in leaves(tree) if key.startswith(f"{V1}.") and value != {}]
    assert len(keys) > 15
    assert [key for key in keys if load_rows().find(key).key == f"{V1}.*"] == []


# Each setting of the block: another value than its default, then what the audit says of it under the modes
# sync, separate_async (with enable_switch) and colocate_async. Off v1 none has an effect.
NO, OURS, LOST = "no_effect", "unsupported_upstream", "unsupported"
OF_MODES = {
    "trainer_mode": (None, "derived", "derived", "derived"),
    "sync": (None, NO, NO, NO),
    "colocate_async.num_warmup_batches": (2, NO, NO, OURS),
    "separate_async.num_warmup_batches": (2, NO, OURS, NO),
    "separate_async.parameter_sync_step": (4, NO, "derived", NO),
    "separate_async.hybrid_rollout.enable_switch": (True, NO, LOST, NO),
    "separate_async.hybrid_rollout.switch_threshold_ratio": (0.3, NO, LOST, NO),
    "separate_async.hybrid_rollout.adaptive_switch_threshold": (False, NO, LOST, NO),
    "separate_async.hybrid_rollout.switch_threshold_step_up": (0.1, NO, LOST, NO),
    "separate_async.hybrid_rollout.switch_threshold_step_down": (0.1, NO, LOST, NO),
    "separate_async.hybrid_rollout.switch_threshold_release_steps": (3, NO, LOST, NO),
    "separate_async.hybrid_rollout.switch_cost_window_size": (4, NO, LOST, NO),
    "sampler.max_off_policy_threshold": (3, NO, LOST, LOST),
    "sampler.max_off_policy_strategy": ("wait", NO, LOST, LOST),
    "sampler.sync_refill_failed_groups": (True, "approximated", NO, NO),
    "sampler.custom_sampler.path": ("b.py", LOST, LOST, LOST),
    "sampler.custom_sampler.name": ("B", LOST, LOST, LOST),
    "sampler.sampler_kwargs": (None, NO, NO, NO),
}
CHANGED = {f"{V1}.{name}": row[0] for name, row in OF_MODES.items() if row[0] is not None}


@pytest.mark.parametrize(("column", "mode"), enumerate(("sync", "separate_async", "colocate_async"), 1))
def test_every_setting_of_v1_s_block_has_its_verdict_in_each_mode(column, mode):
    words = (*AHEAD, *(f"{key}={value}" for key, value in CHANGED.items()), f"{V1}.trainer_mode={mode}")
    found = fates(translated(*words, verl_version="0.9.1")[0])
    said = {key.removeprefix(f"{V1}."): found[key].status.value for key in CHANGED}
    assert said == {key: row[column] for key, row in OF_MODES.items() if row[0] is not None}
    off = fates(translated(*words, "trainer.use_v1=False", verl_version="0.9.1")[0])
    assert {off[key].status.value for key in CHANGED} == {NO}


def test_the_table_of_v1_s_block_has_every_setting_of_the_pinned_release():
    tree = pinned_release("ppo_trainer").tree
    names = {key.removeprefix(f"{V1}.") for key, _ in leaves(tree) if key.startswith(f"{V1}.")}
    assert {name for name in names if not name.endswith("._target_")} == set(OF_MODES)
