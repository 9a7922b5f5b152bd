"""The pinned release as it is installed: its own files, its own command line."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from test_verl_hydra import ours, theirs
from verl_samples import PPO, corpus_launches, make_launch

from trinity_compat.translate import verl_names
from trinity_compat.translate.sections import algorithm
from trinity_compat.verl_config import as_tree, effective_config


@pytest.fixture(scope="module")
def installed() -> Path:
    """The folder that holds the installed ``verl``; nothing of it is imported."""
    found = importlib.util.find_spec("verl")
    if found is None or not found.submodule_search_locations:
        pytest.skip("verl is not installed")
    return Path(found.submodule_search_locations[0]).parent


def test_launches_of_verl_s_main_branch_compose_as_under_the_installed_release(installed: Path) -> None:
    compared = 0
    for tag, launch in corpus_launches(PPO):
        if tag == "HEAD" and "--config-path=/" not in " ".join(word.text for word in launch.arguments):
            assert ours(launch, "0.9.1", installed) == theirs(launch, installed), launch.where
            compared += 1
    assert compared >= 10


@pytest.mark.verl
def test_verl_s_own_command_prints_the_configuration_that_we_compose(installed: Path) -> None:
    arguments = [
        "algorithm.adv_estimator=grpo",
        "data.train_files=['/d/a.parquet','/d/b.parquet']",
        "data.max_prompt_length=1024",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "+actor_rollout_ref.model.override_config={attn_implementation:sdpa}",
        "reward.reward_model.rollout.name=vllm",
        "trainer.experiment_name=a b",
    ]
    command = [sys.executable, "-m", PPO, "--cfg", "job", "--resolve", *arguments]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True).stdout
    text = printed[printed.index("model_engine:") :] if "model_engine:" in printed else printed
    config = effective_config(make_launch(*arguments), version="0.9.1")
    assert as_tree(config) == yaml.safe_load(text)


def test_estimators_and_losses_are_those_that_the_installed_release_registers(installed: Path) -> None:
    source = (installed / "verl" / "trainer" / "ppo" / "core_algos.py").read_text()
    names = re.search(r"class AdvantageEstimator\(.*?\n\n\n", source, re.DOTALL)
    assert names is not None
    assert set(verl_names.ESTIMATORS) == set(re.findall(r'^    [A-Z_]+ = "(\w+)"', names[0], re.MULTILINE))
    assert set(verl_names.POLICY_LOSSES) == set(
        re.findall(r'^@register_policy_loss\("(\w+)"\)', source, re.M)
    )
    actor = (installed / "verl" / "workers" / "config" / "actor.py").read_text()
    modes = re.search(r"valid_loss_agg_modes = \[(.*?)\]", actor, re.DOTALL)
    assert modes is not None
    assert set(algorithm.AGGREGATIONS) == set(re.findall(r'"([\w-]+)"', modes[1]))
