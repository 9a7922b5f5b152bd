"""The way back from single fields of a Trinity YAML."""

from collections import Counter

import pytest

from trinity_compat.translate.hand_written_yaml import settings_by_hand
from trinity_compat.translate.sections import WAYS_BACK
from trinity_compat.translate.sections.trainer import of_the_strategy, schedule
from trinity_compat.translate.trinity_reader import NEVER, TrinityReader

from .helpers import translated

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
    assert dict(schedule(TrinityReader(config))) == pytest.approx(told)


ACTOR = "actor_rollout_ref.actor"
OF_A_STRATEGY = {
    "grad_clip": 0.5,
    "ulysses_sequence_parallel_size": 2,
    "param_offload": True,
    "grad_offload": True,
    "offload_policy": True,
    "megatron": {"tensor_model_parallel_size": 4},
}


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (
            "megatron",
            {
                f"{ACTOR}.optim.clip_grad": 0.5,
                f"{ACTOR}.megatron.param_offload": True,
                "actor_rollout_ref.ref.megatron.param_offload": True,
                f"{ACTOR}.megatron.tensor_model_parallel_size": 4,
            },
        ),
        (
            "fsdp2",
            {
                f"{ACTOR}.optim.clip_grad": 0.5,
                f"{ACTOR}.grad_clip": 0.5,
                f"{ACTOR}.ulysses_sequence_parallel_size": 2,
                **{
                    f"{model}.fsdp_config.{name}": True
                    for model in (ACTOR, "actor_rollout_ref.ref")
                    for name in ("param_offload", "offload_policy")
                },
            },
        ),
    ],
)
def test_a_strategy_gets_only_the_fields_that_its_dataclasses_have(strategy, told):
    config = {"trainer": {"trainer_strategy": strategy, **OF_A_STRATEGY}}
    assert dict(of_the_strategy(TrinityReader(config))) == {f"{ACTOR}.strategy": strategy, **told}


@pytest.mark.parametrize(
    "arguments",
    [
        ["algorithm.adv_estimator=grpo", "actor_rollout_ref.model.lora_rank=8", "data.seed=3"],
        ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=True", "trainer.n_gpus_per_node=1"],
        ["model_engine=megatron", "algorithm.adv_estimator=rloo", "trainer.total_training_steps=8"],
    ],
)
def test_no_two_ways_back_tell_the_same_key(arguments):
    _, config = translated(*arguments)
    told = Counter(key for way in WAYS_BACK for key in dict(way(TrinityReader(config))))
    assert len(told) > 40 and set(told.values()) == {1}


@pytest.mark.parametrize(("given", "told"), [({"save_interval": 20}, 20), ({}, NEVER)])
def test_how_often_a_yaml_by_hand_saves(given, told):
    assert dict(settings_by_hand({"trainer": given}))["trainer.save_freq"] == told
