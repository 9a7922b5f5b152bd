"""Which engines a plan makes of veRL's data-parallel ranks, and of experts that are spread over an engine."""

from pathlib import Path

import pytest
import yaml
from toy_plan import planned, source

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import value_at
from trinity_compat.run.plan import refusals
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions

ROLLOUT = "actor_rollout_ref.rollout"
TP, DP, EP, PP = (
    f"{ROLLOUT}.{name}_parallel_size" for name in ("tensor_model", "data", "expert", "pipeline_model")
)
ENGINES = "explorer.rollout_model.engine_num"
EIGHT = "trainer.n_gpus_per_node=8"


def sizes(made):
    """(the explorer's GPUs, tensor, data and expert parallel size of an engine, the trainer's GPUs)."""
    verl = made.spec.verl
    rollout = verl["actor_rollout_ref"]["rollout"]
    parallel = (rollout[f"{name}_parallel_size"] for name in ("tensor_model", "data", "expert"))
    return rollout["nnodes"] * rollout["n_gpus_per_node"], *parallel, verl["trainer"]["n_gpus_per_node"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([f"{TP}=1", f"{DP}=2"], (4, 1, 1, 1, 4)),
        ([f"{TP}=2", f"{DP}=2"], (4, 2, 1, 1, 4)),
        ([f"{TP}=4", f"{EP}=4"], (4, 4, 1, 4, 4)),
        ([f"{TP}=8", f"{EP}=8"], (4, 4, 1, 4, 4)),  # the share holds no more: the experts stay spread
        ([f"{TP}=2", f"{DP}=2", f"{EP}=4"], (4, 4, 1, 4, 4)),
        ([f"{TP}=2", f"{DP}=8", f"{EP}=16", "trainer.nnodes=4"], (16, 8, 1, 8, 8)),  # one machine's
        ([f"{TP}=4", f"{EP}=2", f"{ROLLOUT}.name=trtllm"], (4, 4, 1, 4, 4)),
    ],
)
def test_ranks_become_engines_and_experts_are_spread_over_one(words, expected):
    assert sizes(planned(EIGHT, *words, device="cuda", mode="both")) == expected


def test_gpus_of_the_rollout_s_own_hold_the_same_engines():
    own = (f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4")
    assert sizes(planned(EIGHT, *own, f"{TP}=2", f"{DP}=2", f"{EP}=4", device="cuda")) == (4, 4, 1, 4, 8)


def test_what_becomes_of_the_ranks_is_told():
    told = "\n".join(planned(EIGHT, f"{TP}=2", f"{DP}=2", device="cuda", mode="both").notes)
    assert f"{DP}=2: 2 engines of 2 GPU(s)" in told
    assert "4 for generation (2 engine(s) of 2)" in told
    told = "\n".join(planned(EIGHT, f"{TP}=2", f"{DP}=2", f"{EP}=4", device="cuda").notes)
    assert f"{EP}=4: an engine of 4 GPUs, the experts spread over them as under veRL" in told


def test_a_cpu_has_one_place_for_each_engine():
    made = planned(f"{TP}=2", f"{DP}=2", f"{EP}=4", device="cpu")
    rollout = made.spec.verl["actor_rollout_ref"]["rollout"]
    assert (rollout["data_parallel_size"], rollout["expert_parallel_size"]) == (1, 1)
    assert not any(DP in note for note in made.notes)


def test_an_engine_of_a_yaml_is_as_wide_as_its_ranks():
    """engine_num counts what Trinity counts: engines with all their ranks."""
    config = yaml.safe_load(source(EIGHT, f"{TP}=2", f"{DP}=2")[0].yaml_text)
    assert (config["explorer"]["rollout_model"] | {"engine_num": 1})["data_parallel_size"] == 2
    made = make_plan(config, RunOptions(sets=(f"{ENGINES}=1",)), cwd=Path("/work"), device="cuda")
    assert sizes(made) == (4, 2, 1, 1, 4)


def test_a_yaml_by_hand_spreads_the_experts_over_all_ranks():
    config = yaml.safe_load(HAND)
    ranks = {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True}
    config["explorer"]["rollout_model"] |= ranks
    made = make_plan(config, RunOptions(), cwd=Path("/work"), device="cuda")
    assert sizes(made) == (4, 4, 1, 4, 4)


@pytest.mark.parametrize("experts", [[], [f"{EP}=2"]])
def test_the_size_of_tensorrt_s_experts_goes_with_its_engine(experts):
    words = (f"{TP}=8", f"{ROLLOUT}.name=trtllm", f"+{ROLLOUT}.moe_tensor_parallel_size=4", *experts)
    made = planned(EIGHT, *words, device="cuda")
    assert value_at(made.spec.verl, f"{ROLLOUT}.moe_tensor_parallel_size") == 1
    (said,) = [note for note in made.notes if "runs vLLM in its place" in note]
    assert said.endswith("left out: moe_tensor_parallel_size=4")


def test_experts_that_tensorrt_cannot_split_are_refused(tmp_path):
    words = (f"{TP}=8", f"{ROLLOUT}.name=trtllm", f"+{ROLLOUT}.moe_tensor_parallel_size=4", f"{EP}=4")
    verl = planned(EIGHT, *words, device="cuda").spec.verl
    with pytest.raises(
        UserError, match=r"moe_tensor_parallel_size=4 cannot be run decoupled: veRL wants .* 16, to"
    ):
        refusals.check(verl, {}, cwd=tmp_path)


def test_a_size_that_no_engine_of_the_launch_takes_stays_for_verl_to_refuse():
    verl = planned(EIGHT, f"+{ROLLOUT}.moe_tensor_parallel_size=4", device="cuda").spec.verl
    assert value_at(verl, f"{ROLLOUT}.moe_tensor_parallel_size") == 4


def test_what_verl_refuses_is_left_for_the_refusals_to_name():
    assert sizes(planned(EIGHT, f"{TP}=2", f"{EP}=8", device="cuda"))[3] == 8
    assert (
        planned(EIGHT, f"{PP}=2", device="cuda").spec.verl["actor_rollout_ref"]["rollout"][
            "pipeline_model_parallel_size"
        ]
        == 2
    )


@pytest.mark.parametrize(
    ("word", "off"),
    [
        (f"{ROLLOUT}.disaggregation.enabled=True", False),
        (f"+{ROLLOUT}.checkpoint_manager_class=mine.M", None),
        ("skip.rollout.enable=True", False),
    ],
)
def test_what_is_left_out_reaches_no_process(word, off):
    verl = planned(EIGHT, word, device="cuda").spec.verl
    assert value_at(verl, word.lstrip("+").partition("=")[0]) is off


HAND = """
project: p
name: n
algorithm: {algorithm_type: grpo, repeat_times: 4}
model: {model_path: /m, max_prompt_tokens: 8, max_response_tokens: 8}
cluster: {node_num: 1, gpu_per_node: 8}
buffer:
  batch_size: 4
  total_steps: 2
  explorer_input:
    taskset: {path: /d.jsonl, storage_type: file, format: {prompt_key: q, response_key: a}}
explorer: {rollout_model: {engine_num: 1}}
"""
