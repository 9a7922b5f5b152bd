"""A YAML that trains on rows of a file: what is planned, and what is refused."""

import copy
import json
from dataclasses import asdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.job.run_spec import RowFormat, RowsSpec, RunSpec
from trinity_compat.job.settings import SETTINGS
from trinity_compat.run.checks import preflight
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions

BUFFER = "buffer.trainer_input.experience_buffer"
YAML = {
    "mode": "train",
    "project": "p",
    "name": "n",
    "algorithm": {"algorithm_type": "sft"},
    "model": {"model_path": "m", "max_model_len": 64},
    "cluster": {"node_num": 1, "gpu_per_node": 4},
    "buffer": {
        "train_batch_size": 8,
        "total_epochs": 3,
        "trainer_input": {
            "experience_buffer": {
                "storage_type": "file",
                "path": "rows.parquet",
                "format": {"messages_key": "messages"},
            }
        },
    },
    "synchronizer": {"sync_interval": 10},
    "trainer": {"save_interval": 10},
}


def planned(cwd, options=None, device="cuda", **values):
    config = copy.deepcopy(YAML)
    for path, value in values.items():
        put(config, path.replace("__", "."), value)
    return make_plan(config, options or RunOptions(), cwd=cwd, device=device)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_setting_that_has_no_effect_on_rows_is_refused(tmp_path, setting):
    own = f"trainer__trainer_config__trinity_compat__{setting.name}"
    planned(tmp_path, **{own: setting.default})
    if setting.name in ("stall_timeout", "termination_grace"):
        planned(tmp_path, **{own: setting.example})
        return
    with pytest.raises(UserError, match=rf"trinity_compat\.{setting.name}"):
        planned(tmp_path, **{own: setting.example})


def test_the_trainer_alone_has_all_the_gpus_and_a_step_is_an_update(tmp_path):
    made = planned(tmp_path)
    spec, verl = made.spec, made.spec.verl
    assert (spec.mode, spec.updates_per_step) == ("train", 1)
    assert (verl["trainer"]["n_gpus_per_node"], verl["data"]["train_batch_size"]) == (4, 8)
    assert (verl["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"], verl["trainer"]["save_freq"]) == (
        8,
        10,
    )
    assert spec.rows == RowsSpec(
        "sft",
        (str(tmp_path / "rows.parquet"),),
        format=RowFormat(messages_key="messages"),
        epochs=3,
        max_length=64,
    )
    assert any("no explorer" in line for line in describe(made)) and not made.unread


def test_the_processes_are_told_of_the_rows(tmp_path):
    spec = planned(tmp_path).spec
    assert RunSpec.of_json(json.loads(json.dumps(asdict(spec)))).rows == spec.rows


def test_dpo_keeps_pairs_together_and_its_reference_model(tmp_path):
    told = {"algorithm__algorithm_type": "dpo", "algorithm__kl_loss_fn": "none"}
    actor = planned(tmp_path, **told).spec.verl["actor_rollout_ref"]["actor"]
    assert actor["use_kl_loss"] and actor["policy_loss"]["loss_mode"] == "trinity_dpo"
    assert not actor["use_dynamic_bsz"] and actor["ppo_micro_batch_size_per_gpu"] % 2 == 0


ACTOR = "actor_rollout_ref.actor"
MICRO = f"trainer.trainer_config.{ACTOR}.ppo_micro_batch_size_per_gpu"


@pytest.mark.parametrize(
    ("values", "micro"),
    [
        ({"algorithm.algorithm_type": "dpo", "buffer.train_batch_size": 12, MICRO: 4}, 2),  # 3 pairs a GPU
        ({"algorithm.algorithm_type": "dpo", "buffer.train_batch_size": 8, MICRO: 64}, 4),
        ({"buffer.train_batch_size": 24, MICRO: 4, "trainer.use_dynamic_bsz": False}, 3),
        ({"buffer.train_batch_size": 24, MICRO: 4, "trainer.use_dynamic_bsz": True}, 4),  # cut by tokens
    ],
)
def test_an_update_that_no_micro_batch_divides_is_cut_smaller(values, micro, tmp_path):
    made = planned(tmp_path, **values)
    assert value_at(made.spec.verl, f"{ACTOR}.ppo_micro_batch_size_per_gpu") == micro
    assert any("which divides the" in note for note in made.notes) == (micro not in (values[MICRO],))


@pytest.mark.parametrize("name", ["dpo", "sft"])
def test_an_update_that_the_gpus_cannot_share_is_refused(name, tmp_path):
    what = "6 pairs" if name == "dpo" else "6 rows"
    with pytest.raises(UserError, match=f"4 GPUs cannot share the {what} of an update evenly"):
        planned(tmp_path, **{"algorithm.algorithm_type": name, "buffer.train_batch_size": 6})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "both"}, "mode: both: sft trains on rows of a file"),
        ({f"{BUFFER}.storage_type": "queue"}, "storage_type=queue: sft reads rows of a file"),
        ({f"{BUFFER}.path": None}, "experience_buffer.path is missing"),
        ({f"{BUFFER}.format.image_key": "image"}, "format.image_key=image: .* as text only"),
        (
            {f"{BUFFER}.data_selector.selector_type": "randm"},
            "selector_type=randm: .* no selector of that name",
        ),
        ({"algorithm__algorithm_type": "cpt"}, "prompt_type=messages: cpt takes plaintext"),
        (
            {
                "algorithm__algorithm_type": "dpo",
                "trainer__trainer_config": {
                    "actor_rollout_ref": {"actor": {"ppo_micro_batch_size_per_gpu": 3}}
                },
            },
            "ppo_micro_batch_size_per_gpu=3: dpo compares two rows",
        ),
    ],
)
def test_what_rows_cannot_be_trained_on_is_refused(values, message, tmp_path):
    with pytest.raises(UserError, match=message):
        planned(tmp_path, **values)


@pytest.mark.parametrize("options", [RunOptions(mode="explore"), RunOptions(explorers=2)])
def test_there_is_nobody_else_to_start(options, tmp_path):
    with pytest.raises(UserError, match="sft"):
        planned(tmp_path, options)


def test_a_column_that_a_file_lacks_is_named_before_anything_starts(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"message": [], "prompt": "a"}]), path)
    preflight.check_file_rows(RowsSpec("sft", (str(path),)))
    preflight.check_file_rows(RowsSpec("cpt", (str(path),), format=RowFormat(prompt_type="plaintext")))
    with pytest.raises(UserError, match="no column 'response'; it has message, prompt"):
        preflight.check_file_rows(RowsSpec("sft", (str(path),), format=RowFormat(prompt_type="plaintext")))
    with pytest.raises(UserError, match="no column 'chosen'"):
        preflight.check_file_rows(RowsSpec("dpo", (str(path),)))
    with pytest.raises(UserError, match="does not exist"):
        preflight.check_file_rows(RowsSpec("sft", (str(tmp_path / "other.jsonl"),)))


def test_a_profile_or_a_set_still_reaches_the_trainer(tmp_path):
    made = planned(tmp_path, RunOptions(sets=("actor_rollout_ref.actor.optim.lr=0.5",)), device="cpu")
    assert value_at(made.spec.verl, "actor_rollout_ref.actor.optim.lr") == 0.5
