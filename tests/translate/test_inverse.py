"""The way back from single fields of a Trinity YAML."""

import pytest

from trinity_compat.translate.inverse_sections import optimizer
from trinity_compat.translate.reading import Reading

MIN_LR = "actor_rollout_ref.actor.optim.min_lr"


@pytest.mark.parametrize(
    ("strategy", "rate", "told"),
    [
        ("megatron", 2e-6, {MIN_LR: 2e-7}),
        ("megatron", "${oc.env:LR}", {}),  # found by fuzzing
        ("fsdp", "${oc.env:LR}", {f"{MIN_LR}_ratio": 0.1}),
    ],
)
def test_the_floor_of_a_rate_that_is_no_number_yet_is_left_out(strategy, rate, told):
    config = {
        "trainer": {"trainer_strategy": strategy},
        "algorithm": {"optimizer": {"lr": rate, "min_lr_ratio": 0.1}},
    }
    assert dict(optimizer(Reading(config))) == pytest.approx(told)
