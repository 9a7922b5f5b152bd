"""The runtime's configuration is one that the pinned veRL takes."""

from __future__ import annotations

import pytest
from verl_samples import make_launch

from trinity_compat.common.errors import UserError
from trinity_compat.verl_config import FLAVOURS, VERSIONS, as_tree, compose_pinned, effective_config, upgrade

ENOUGH = {
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4,
    "critic.ppo_micro_batch_size_per_gpu": 4,
    "reward.reward_model.rollout.name": "vllm",
}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_it_is_the_pinned_default_where_nothing_is_asked(flavour: str) -> None:
    launch = make_launch(f"--config-name={flavour}")
    assert compose_pinned({}, flavour) == as_tree(effective_config(launch, version="0.9.1"))


def test_values_are_set_added_and_merged_and_interpolations_follow() -> None:
    config = compose_pinned(
        {
            "data.max_prompt_length": 99,
            "new.section.key": [1],
            "actor_rollout_ref.model.override_config": {"attn_implementation": "sdpa"},
            "trainer.default_local_dir": "/ckpt/${trainer.project_name}",
        }
    )
    assert config["actor_rollout_ref"]["rollout"]["prompt_length"] == 99
    assert config["new"]["section"]["key"] == [1]
    assert config["actor_rollout_ref"]["model"]["override_config"] == {"attn_implementation": "sdpa"}
    assert config["trainer"]["default_local_dir"] == "/ckpt/verl_examples"


def test_two_configurations_share_nothing() -> None:
    compose_pinned({})["trainer"]["logger"].append("x")
    assert "x" not in compose_pinned({})["trainer"]["logger"]


@pytest.mark.parametrize(
    ("overrides", "flavour"), [({}, "ppo_other"), ({"data.seed": "${no.such}"}, "ppo_trainer")]
)
def test_what_cannot_be_composed_is_refused(overrides: dict, flavour: str) -> None:
    with pytest.raises(UserError):
        compose_pinned(overrides, flavour)


@pytest.mark.verl
@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_s_defaults_carried_forward_pass_verl_s_own_validation(version: str) -> None:
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    arguments = ("data.train_batch_size=256", "actor_rollout_ref.actor.ppo_mini_batch_size=64")
    config = upgrade(effective_config(make_launch(*arguments), version=version)).config
    given = {key: item.value for key, item in config.settings.items() if key not in ENOUGH}
    whole = OmegaConf.create(compose_pinned(given | ENOUGH))
    validate_config(whole, use_reference_policy=True, use_critic=False)
    # The critic's whole section would load its model.
    assert omega_conf_to_dataclass(whole.critic.optim).lr == whole.critic.optim.lr
    assert omega_conf_to_dataclass(whole.critic.fsdp).param_offload is False
    rollout = omega_conf_to_dataclass(whole.actor_rollout_ref.rollout)
    assert rollout.name == "vllm"
    assert omega_conf_to_dataclass(whole.algorithm).use_kl_in_reward is (version in ("0.2.0", "0.3.0"))
