"""Launches that train with an engine Trinity has no name for: the YAML keeps all of it for our run."""

import pytest

from trinity_compat.translate import Status, flavour_of, to_verl
from trinity_compat.verl_config import compose_pinned, effective_config

from .helpers import BASICS, launch_of, translated
from .test_round_trip import differences

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
CONFIG = "verl.workers.config"
ENGINES = {
    "veomni": [
        "model_engine=veomni",
        f"{ACTOR}.veomni.ulysses_parallel_size=2",
        f"{ACTOR}.veomni.param_offload=True",
        f"{REF}.veomni.optimizer_offload=True",
        f"{ACTOR}.veomni.moe_implementation=eager",
        f"{ACTOR}.optim.lr_min=1e-7",
    ],
    "torchtitan": [
        "model_engine=torchtitan",
        f"{ACTOR}.torchtitan.data_parallel_shard_size=4",
        f"{ACTOR}.torchtitan.attn_type=varlen",
        f"{REF}.torchtitan.use_torch_compile=False",
        f"{ACTOR}.optim.min_lr_factor=0.5",
    ],
    "fsdp_turbo": [
        f"{ACTOR}.strategy=fsdp_turbo",
        f"{REF}.strategy=fsdp_turbo",
        f"{ACTOR}.fsdp_config.turbo_config.distributed.ulysses_parallel_size=2",
        f"+{ACTOR}.fsdp_config.turbo_config.memory.recompute=True",
        f"{ACTOR}.fsdp_config.offload_policy=True",
    ],
}
CLASSES = {"veomni": "VeOmni", "torchtitan": "TorchTitan", "fsdp_turbo": "FSDP"}
GPUS = "trainer.n_gpus_per_node=8"


@pytest.mark.parametrize("target", ["0.6.0", "0.4.1"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_setting_comes_back_under_the_engine_s_own_classes(engine, target):
    _, config = translated(GPUS, *ENGINES[engine], target=target)
    effective = effective_config(launch_of([*BASICS, GPUS, *ENGINES[engine]]))
    assert list(differences(effective, config)) == []
    back = compose_pinned(to_verl(config), flavour_of(config))
    actor, ref = back["actor_rollout_ref"]["actor"], back["actor_rollout_ref"]["ref"]
    assert actor["_target_"] == ref["_target_"] == f"{CONFIG}.{CLASSES[engine]}ActorConfig"
    assert actor["strategy"] == ref["strategy"] == engine
    # Trinity's field; veRL's other optimizers have no such setting and would not start with it.
    assert ("min_lr_ratio" in actor["optim"]) is (engine == "fsdp_turbo")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_audit_says_that_trinity_lacks_the_engine(engine):
    translation, config = translated(GPUS, *ENGINES[engine])
    assert config["trainer"]["trainer_strategy"] == "fsdp2"
    found = {each.key: each for each in translation.findings}
    key = "model_engine" if engine != "fsdp_turbo" else f"{ACTOR}.strategy"
    assert found[key].status is Status.UNSUPPORTED_UPSTREAM
    assert found[key].reason.startswith(f"Trinity has no strategy '{engine}'")


def test_offloading_of_the_engine_s_own_section_is_trinity_s():
    _, config = translated(GPUS, *ENGINES["veomni"])
    trainer = config["trainer"]
    assert (trainer["param_offload"], trainer["optimizer_offload"]) == (True, False)
    assert "veomni" not in trainer["trainer_config"]["actor_rollout_ref"].get("ref", {})


def test_ulysses_size_of_the_engine_s_own_section_is_trinity_s():
    _, config = translated(GPUS, *ENGINES["veomni"])
    assert config["trainer"]["ulysses_sequence_parallel_size"] == 2
    _, small = translated("trainer.n_gpus_per_node=2", *ENGINES["veomni"])
    assert small["trainer"]["ulysses_sequence_parallel_size"] == 1


@pytest.mark.parametrize(
    ("strategy", "key", "status"),
    [
        ("fsdp2", "turbo_config.distributed.ulysses_parallel_size=2", Status.NO_EFFECT),
        ("fsdp_turbo", "turbo_config.distributed.ulysses_parallel_size=2", Status.UNSUPPORTED_UPSTREAM),
        ("mine", "turbo_config.distributed.ulysses_parallel_size=2", Status.UNSUPPORTED_UPSTREAM),
        ("fsdp_turbo", "reshard_after_forward=False", Status.NO_EFFECT),
        ("fsdp_turbo", "wrap_policy.min_num_params=2", Status.NO_EFFECT),
        ("fsdp2", "reshard_after_forward=False", Status.PASSED_THROUGH),
    ],
)
def test_settings_that_the_strategy_s_engine_does_not_read_are_without_effect(strategy, key, status):
    given = f"{ACTOR}.fsdp_config.{key}"
    translation, _ = translated(GPUS, f"{ACTOR}.strategy={strategy}", given)
    (found,) = (each for each in translation.findings if each.key == given.partition("=")[0])
    assert found.status is status
    if status is Status.NO_EFFECT:
        assert found.reason == f"the strategy is {strategy}"
