"""A YAML whose updates hold an expert's rows: what is planned, and what is refused."""

import json
from dataclasses import asdict

import pytest
from trinity_files import LEAST, merged

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import put, value_at
from trinity_compat.job.run_spec import ExpertSpec, RowFormat, RowsSpec, RunSpec
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.run_plan import describe
from trinity_compat.run.plan.source import RunOptions

BUFFERS = "buffer.trainer_input.auxiliary_buffers"
RATIO = "algorithm.sample_strategy_args.expert_data_ratio"
SIZE = "buffer.train_batch_size"
SIZES = "algorithm.policy_loss_fn_args"
MIXED = merged(
    LEAST,
    {
        "project": "p",
        "name": "n",
        "algorithm": {
            "algorithm_type": "mix",
            "repeat_times": 2,
            "sample_strategy_args": {"expert_data_ratio": 0.25},
        },
        "cluster": {"node_num": 1, "gpu_per_node": 3},
        "buffer": {
            "train_batch_size": 16,
            "trainer_input": {
                "auxiliary_buffers": {
                    "sft_dataset": {
                        "storage_type": "file",
                        "path": "expert.jsonl",
                        "format": {"messages_key": "messages"},
                    }
                }
            },
        },
    },
)


def planned(cwd, values=(), **options):
    config = json.loads(json.dumps(MIXED))
    for path, value in dict(values).items():
        put(config, path, value)
    return make_plan(config, RunOptions(**options), cwd=cwd, device="cuda")


def test_an_update_holds_the_experts_part_and_fresh_answers_for_the_rest(tmp_path):
    made = planned(tmp_path)
    verl = made.spec.verl
    assert made.spec.experts == ExpertSpec(
        RowsSpec(
            "sft",
            (str(tmp_path / "expert.jsonl"),),
            format=RowFormat(messages_key="messages"),
            max_length=32,
        ),
        4,
    )
    # 16 rows less ⌈0.25 · 16⌉ are 12 answers, to 6 tasks.
    assert (value_at(verl, "data.train_batch_size"), value_at(verl, "actor_rollout_ref.rollout.n")) == (6, 2)
    assert value_at(verl, "actor_rollout_ref.actor.policy_loss.loss_mode") == "trinity_mix"
    assert any("4 rows of" in line for line in describe(made)) and not made.unread


def test_the_processes_are_told_of_the_experts(tmp_path):
    spec = planned(tmp_path).spec
    assert RunSpec.of_json(json.loads(json.dumps(asdict(spec)))).experts == spec.experts


def test_another_buffer_may_be_the_experts(tmp_path):
    values = {"algorithm.sample_strategy_args.sft_dataset_name": "gold", f"{BUFFERS}.gold.path": "gold.jsonl"}
    rows = planned(tmp_path, {**values, f"{BUFFERS}.gold.storage_type": "file"}).spec.experts.rows
    assert rows.paths == (str(tmp_path / "gold.jsonl"),)


def test_micro_batches_divide_the_whole_update(tmp_path):
    actor = "trainer.trainer_config.actor_rollout_ref.actor"
    values = {f"{actor}.ppo_micro_batch_size_per_gpu": 6, "trainer.use_dynamic_bsz": False}
    made = planned(tmp_path, {**values, "cluster.gpu_per_node": 3, "explorer.rollout_model.engine_num": 1})
    assert value_at(made.spec.verl, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu") == 4
    assert any("ppo_micro_batch_size_per_gpu=6: 4, which divides the 8 rows" in note for note in made.notes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({BUFFERS: None}, f"{BUFFERS}.sft_dataset is missing"),
        ({f"{BUFFERS}.sft_dataset.path": None}, "sft_dataset.path is missing"),
        ({f"{BUFFERS}.sft_dataset.storage_type": "sql"}, "storage_type=sql: sft reads rows of a file"),
        ({RATIO: 1.0}, "expert_data_ratio=1.0: write the expert's part"),
        ({RATIO: 0.99}, "leaves no fresh answer in buffer.train_batch_size=16"),
        ({RATIO: 0.3}, "5 rows are an expert's and 11 fresh answers; .* whole groups of 2"),
        ({SIZES: {"train_batch_size_expert": 8, "clip_range": 0.2}}, "train_batch_size_expert=8: .* has 4"),
        ({"algorithm.policy_loss_fn": "ppo", "algorithm.sample_strategy": "default"}, "takes none"),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed_is_refused(values, message, tmp_path):
    with pytest.raises(UserError, match=message):
        planned(tmp_path, values)
