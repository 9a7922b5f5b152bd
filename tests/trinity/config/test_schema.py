"""The schema data answers what upstream's dataclasses say."""

import pytest

from trinity_compat.common.errors import UserError
from trinity_compat.trinity.config import TARGETS, schema, validate


@pytest.mark.parametrize(
    "target, path, default",
    [
        ("0.6.0", "trainer.trainer_strategy", "fsdp2"),
        ("0.6.0", "trainer.use_dynamic_bsz", True),
        ("0.6.0", "algorithm.optimizer.min_lr_ratio", 0.01),
        ("0.6.0", "algorithm.bypass_old_logprobs", True),
        ("0.6.0", "synchronizer.sync_method", "nccl"),
        ("0.6.0", "buffer.explorer_input.taskset.data_selector.seed", 42),
        ("0.4.1", "buffer.explorer_input.taskset.task_selector.seed", 42),
    ],
)
def test_a_release_s_schema_has_its_defaults(target, path, default):
    assert schema(target).default(path) == default


def test_releases_spell_the_selector_differently():
    assert schema("0.4.1").find("buffer.explorer_input.taskset.data_selector") is None
    assert schema("0.6.0").find("buffer.explorer_input.taskset.task_selector").deprecated


def test_free_form_places_take_any_path():
    rules = schema("0.6.0")
    assert rules.find("trainer.trainer_config.actor_rollout_ref.actor.optim.lr").type.kind == "any"
    assert rules.find("explorer.env_vars.HOME").type.kind == "any"
    assert rules.find("trainer.grad_clap") is None


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_configuration_is_valid(target):
    assert validate({}, target) == []


@pytest.mark.parametrize(
    "value, fits",
    [(1, True), ("5", True), ("${oc.env:N}", True), (True, False), (1.5, False), ("x", False), ([], False)],
)
def test_what_an_integer_takes(value, fits):
    assert (validate({"buffer": {"batch_size": value}}, "0.6.0") == []) is fits


def test_enums_are_case_insensitive():
    assert validate({"synchronizer": {"sync_method": "NCCL", "sync_style": "fixed"}}, "0.6.0") == []


def test_an_unknown_target_is_a_user_error():
    with pytest.raises(UserError, match=r"the targets are 0\.6\.0, 0\.4\.1"):
        schema("9.9.9")
