"""Our data of Trinity's defaults, and what we make of them, are what the real package makes."""

import subprocess

import pytest
from trinity_files import CASES, LEAST, merged

from trinity_compat.common.nested import value_at
from trinity_compat.trinity.config import TARGETS
from trinity_compat.trinity.config.complete import completed
from trinity_compat.trinity.config.defaults import with_defaults
from trinity_compat.trinity.config.read_tracking import values_of
from trinity_compat.trinity.config.stages import stages_of
from trinity_compat.trinity.config.validate import validate

from .conftest import ROOT

pytestmark = pytest.mark.upstream

CLUSTER = {"cluster": {"node_num": 1, "gpu_per_node": 3}}  # two for the trainer, which every batch divides by
# Upstream asks Ray for it, or names a thing of this machine.
MACHINE = (
    "checkpoint_root_dir",
    "checkpoint_job_dir",
    "ray_namespace",
    "cluster.",
    "log.save_dir",
    "monitor.",
)
# What upstream writes for itself alone: its workers, its readers, its trainer.
THEIRS = (
    "explorer.rollout_model.",
    "buffer.trainer_input.",
    "buffer.explorer_input.default_",
    "buffer.cache_dir",
    "trainer.trainer_config",
    "data_processor.",
    "synchronizer.explorer_world_size",
    "synchronizer.ray_namespace",
    "ignore_validator_suggestions",
)
OF_A_TASKSET = (
    "name",
    "batch_size",
    "is_eval",
    "total_steps",
    "total_epochs",
    "ray_namespace",
    "repeat_times",
)
# The way back reads training's sampling there; 0.4.1 has no field for what it does.
HERE = ("model.temperature", "model.top_p", "model.top_k", "algorithm.bypass_old_logprobs")
NEVER = "trainer.save_interval"  # 0 saves at the end alone: NEVER here
NOT_ASKED = {"0 GPUs are the machine's", "LoRA has none", "colocate has none", "an interval of 0"}


@pytest.mark.parametrize("target", TARGETS)
def test_the_data_of_defaults_is_what_the_package_says(upstream, target, tmp_path):
    out = tmp_path / "defaults.json"
    script = ROOT / "scripts" / "generate" / "extract_trinity_defaults.py"
    subprocess.run([upstream(target), script, out], check=True, capture_output=True, timeout=600)
    kept = ROOT / "translators" / "generated" / "trinity_defaults" / f"{target}.json"
    assert out.read_text() == kept.read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_is_completed_as_the_package_completes_it(made_by, target):
    given = {name: merged({**LEAST, **CLUSTER}, change) for name, (change, _) in CASES.items()}
    given = {
        name: file for name, file in given.items() if not validate(file, target) and name not in NOT_ASKED
    }
    theirs = made_by(given, target)
    assert len(given) > 20
    wrong = {name: differing(completed(file, target).config, theirs[name]) for name, file in given.items()}
    assert not {name: found for name, found in wrong.items() if found}


OUTSIDE = (*MACHINE, "ignore_validator_suggestions", "data_processor.")
STAGED = {
    "name": "n",
    "algorithm": {"algorithm_type": "grpo", "optimizer": {"lr": 1e-4}},
    "trainer": {"save_interval": 5},
    "stages": [
        {
            "stage_name": "warm",
            "mode": "train",
            "algorithm": {"algorithm_type": "sft"},
            "buffer": {"batch_size": 3},
        },
        {"stage_name": "rft"},
    ],
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_stage_inherits_what_it_inherits_there(made_by, target):
    given = merged({**LEAST, **CLUSTER}, STAGED)
    theirs = made_by({"staged": given}, target)["staged"]
    ours = {each.config["name"]: with_defaults(each.config, "Config", target) for each in stages_of(given)}
    assert list(theirs) == list(ours) == ["n/warm", "n/rft"]
    for name, stage in ours.items():
        assert values_of(stage).items() & {("trainer.save_hf_checkpoint", "last")}
        wanted = {path: value for path, value in theirs[name].items() if not path.startswith(OUTSIDE)}
        assert {path: value_at(stage, path) or value for path, value in wanted.items()} == wanted


def differing(ours, theirs):
    """Path → (ours, theirs) of what both say and not alike, or only theirs though it is not null."""
    assert isinstance(theirs, dict), theirs
    return {
        path: (value, theirs[path])
        for path, value in values_of(ours).items()
        if path in theirs and value != theirs[path] and not left_out(path)
    }


def left_out(path):
    if path.startswith((*MACHINE, *THEIRS)) or path in (*HERE, NEVER):
        return True
    return path.startswith("buffer.explorer_input.") and path.endswith(OF_A_TASKSET)
