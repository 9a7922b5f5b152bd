"""Memory that engines with GPUs of their own take."""

from pathlib import Path

import pytest
import toy_plan
import yaml
from toy_plan import planned, source

from trinity_compat.common.nested import value_at
from trinity_compat.explorer.engine.arguments import engine_arguments
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions

ROLLOUT = "actor_rollout_ref.rollout"
MEMORY, ENGINES = f"{ROLLOUT}.gpu_memory_utilization", "explorer.rollout_model.engine_num"
EIGHT, OWN = "trainer.n_gpus_per_node=8", (f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4")


@pytest.fixture(autouse=True)
def script_that_says_nothing(tmp_path, monkeypatch):
    """The toy script without its gpu_memory_utilization."""
    lines = toy_plan.SCRIPT.read_text().splitlines(keepends=True)
    path = tmp_path / "run.sh"
    path.write_text("".join(line for line in lines if "gpu_memory_utilization" not in line))
    monkeypatch.setattr(toy_plan, "SCRIPT", path)


def memory(made):
    return value_at(made.spec.verl, MEMORY)


def told(made, words):
    return [note for note in made.notes if words in note]


@pytest.mark.parametrize(
    ("words", "options", "taken"),
    [
        # Nothing is given: veRL's default of 0.5 leaves room for a trainer on the same GPUs.
        ((EIGHT,), {}, 0.5),
        ((EIGHT,), {"mode": "both"}, 0.8),
        ((EIGHT,), {"mode": "explore"}, 0.8),
        ((), {}, 0.5),
        ((EIGHT, *OWN), {}, 0.5),
        ((EIGHT,), {"device": "cpu"}, 0.5),
        # What is given is kept, by whom and however low.
        ((EIGHT, f"{MEMORY}=0.4"), {}, 0.4),
        ((EIGHT, f"{MEMORY}=0.5"), {}, 0.5),
        ((EIGHT, f"{MEMORY}=0.4"), {"mode": "explore"}, 0.4),
        ((EIGHT, f"{MEMORY}=0.9"), {}, 0.9),
        ((f"{MEMORY}=0.4",), {"mode": "both"}, 0.4),
        ((EIGHT, f"{MEMORY}=0.4"), {"mode": "colocate"}, 0.4),
        ((EIGHT, *OWN, f"{MEMORY}=0.4"), {}, 0.4),
        ((EIGHT,), {"sets": (f"{MEMORY}=0.4",)}, 0.4),
        ((EIGHT,), {"sets": ("explorer.rollout_model.gpu_memory_utilization=0.4",)}, 0.4),
    ],
)
def test_engines_on_own_devices_take_more_memory_only_by_default(words, options, taken):
    made = planned(*words, **{"device": "cuda", **options})
    assert memory(made) == taken


def test_the_yaml_says_what_the_engine_is_given():
    config = source(EIGHT)[0].config
    made = make_plan(config, RunOptions(mode="both"), cwd=Path("/work"), device="cuda")
    assert config["explorer"]["rollout_model"]["gpu_memory_utilization"] == memory(made) == 0.8
    assert engine_arguments(made.spec.verl, model_path="/m", device="cuda")["gpu_memory_utilization"] == 0.8


def test_an_edit_of_the_yaml_wins():
    config = source(EIGHT)[0].config
    config["explorer"]["rollout_model"]["gpu_memory_utilization"] = 0.6
    assert memory(make_plan(config, RunOptions(), cwd=Path("/work"), device="cuda")) == 0.6


def test_sides_in_turns_are_told_that_the_yaml_s_default_is_for_a_split():
    (line,) = told(planned(EIGHT, device="cuda"), f"{MEMORY} = 0.5: ")
    assert "gpu_memory_utilization=0.8 is for a split" in line


def test_a_yaml_by_hand_means_what_it_says():
    config = yaml.safe_load(HAND)
    made = make_plan(config, RunOptions(), cwd=Path("/work"), device="cuda")
    assert memory(made) == 0.3


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
explorer: {rollout_model: {engine_num: 1, gpu_memory_utilization: 0.3}}
"""
