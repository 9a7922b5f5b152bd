"""Our schema data and our validate say what the real package says."""

import subprocess

import pytest

from trinity_compat.trinity.config import TARGETS, dump, validate

from .conftest import ROOT

pytestmark = pytest.mark.upstream

BASE = {
    "checkpoint_root_dir": "/tmp/none",
    "model": {"model_path": "/none", "max_prompt_tokens": 8, "max_response_tokens": 8, "max_model_len": 16},
    "cluster": {"node_num": 1, "gpu_per_node": 8},
    "buffer": {"batch_size": 6, "explorer_input": {"taskset": {"path": "/none"}}},
}

VARIATIONS = {
    "as it is": {},
    "int for float": {"algorithm": {"optimizer": {"lr": 1}}},
    "text for int": {"buffer": {"batch_size": "6"}},
    "word for int": {"buffer": {"batch_size": "six"}},
    "float for int": {"buffer": {"batch_size": 1.5}},
    "bool for int": {"buffer": {"batch_size": True}},
    "bool for float": {"algorithm": {"optimizer": {"lr": True}}},
    "word for bool": {"continue_from_checkpoint": "off"},
    "number for bool": {"continue_from_checkpoint": 0},
    "float for bool": {"continue_from_checkpoint": 0.5},
    "other word for bool": {"continue_from_checkpoint": "maybe"},
    "int for text": {"name": 5},
    "list for text": {"name": ["a"]},
    "mapping for text": {"name": {"a": 1}},
    "null for text": {"name": None},
    "null for optional": {"model": {"max_model_len": None}},
    "null section": {"buffer": None},
    "text for a section": {"buffer": "x"},
    "list for a section": {"buffer": []},
    "text for a list": {"buffer": {"explorer_input": {"eval_tasksets": "x"}}},
    "mapping for a list": {"buffer": {"explorer_input": {"eval_tasksets": {}}}},
    "wrong element": {"buffer": {"explorer_input": {"eval_tasksets": [1]}}},
    "unknown in an element": {"buffer": {"explorer_input": {"eval_tasksets": [{"pth": "a"}]}}},
    "list for a dict": {"explorer": {"env_vars": []}},
    "deep free form": {"trainer": {"trainer_config": {"trinity_compat": {"updates_per_step": 4}}}},
    "enum by value": {"synchronizer": {"sync_method": "checkpoint"}},
    "enum by name": {"synchronizer": {"sync_method": "CHECKPOINT"}},
    "enum by wrong name": {"synchronizer": {"sync_method": "pigeon"}},
    "enum by number": {"synchronizer": {"sync_method": 1}},
    "unknown section": {"bufer": {}},
    "a selector of 0.6.0": {"buffer": {"explorer_input": {"taskset": {"data_selector": {"seed": 1}}}}},
    "a selector of 0.4.1": {"buffer": {"explorer_input": {"taskset": {"task_selector": {"seed": 1}}}}},
    "stage without a name": {"stages": [{"mode": "both"}]},
    "betas": {"algorithm": {"optimizer": {"betas": [0.9, "x"]}}},
    "mapping of sections": {"buffer": {"trainer_input": {"auxiliary_buffers": {"a": {"nam": "x"}}}}},
}


def merged(base, change):
    both = {key: merged(base[key], value) for key, value in change.items() if both_mappings(base, key, value)}
    return {**base, **change, **both}


def both_mappings(base, key, value):
    return isinstance(base.get(key), dict) and isinstance(value, dict)


@pytest.mark.parametrize("target", TARGETS)
def test_the_schema_data_is_what_the_package_says(upstream, target, tmp_path):
    out = tmp_path / "schema.json"
    script = ROOT / "scripts" / "generate" / "extract_trinity_schema.py"
    subprocess.run([upstream(target), script, out], check=True, capture_output=True, timeout=600)
    assert out.read_text() == (ROOT / "translators" / "generated" / "trinity" / f"{target}.json").read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_validate_refuses_exactly_what_the_real_merge_refuses(accept, target):
    configs = {name: merged(BASE, change) for name, change in VARIATIONS.items()}
    verdicts = accept({name: dump(config) for name, config in configs.items()}, target)
    ours = {name for name, config in configs.items() if validate(config, target)}
    theirs = {name for name, (stage, error) in verdicts.items() if refused_by_merge(stage, error)}
    assert ours == theirs


def refused_by_merge(stage, error):
    """By the merge itself, or by load_config's to_object, which misses what is required."""
    return stage == "schema" or (error is not None and "Invalid configuration" in error)
