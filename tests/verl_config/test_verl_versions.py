"""Which release a launch was written for, and when that matters."""

from __future__ import annotations

import pytest
from verl_samples import DAPO, make_launch

from trinity_compat.common.nested import leaves
from trinity_compat.verl_config import FLAVOURS, VERSIONS, effective_config, infer_version, version_sensitive
from trinity_compat.verl_config.compose import Choices, compose
from trinity_compat.verl_config.infer import MANDATORY
from trinity_compat.verl_config.releases import release_tree

NAME = "actor_rollout_ref.rollout.name=vllm"


@pytest.mark.parametrize(
    ("arguments", "version", "reason"),
    [
        (["trainer.total_epochs=1"], "0.9.1", "the newest is taken"),
        (["trainer.val_generations_to_log_to_wandb=1"], "0.3.0", "trainer.val_generations_to_log_to_wandb"),
        (["trainer.remove_previous_ckpt_in_save=True"], "0.2.0", "refused by 0.3.0"),
        (["critic.model.fsdp_config.param_offload=True", NAME], "0.7.0", "refused by 0.8.0"),
        (
            ["critic.model.fsdp_config.param_offload=True"],
            "0.5.0",
            "rollout.name has to be given since 0.6.1",
        ),
        (["reward.num_workers=4"], "0.9.1", "reward.num_workers"),
        (["model_engine=megatron"], "0.9.1", "model_engine"),
        (["actor_rollout_ref.rollout.mode=async", "ray_init.num_cpus=8"], "0.5.0", "ray_init.num_cpus"),
        # + on a key that the release already has with a value is refused, so it was written before it had it
        (
            ["+data.return_raw_chat=True", "+actor_rollout_ref.actor.use_kl_loss=True"],
            "0.9.1",
            "no release takes",
        ),
        (["no.such.key=1"], "0.9.1", "no release takes no.such.key"),
    ],
)
def test_the_release_is_the_newest_that_takes_every_key(arguments, version, reason) -> None:
    choice = infer_version(make_launch(*arguments))
    assert choice.value == version
    assert reason in choice.why


@pytest.mark.parametrize("version", VERSIONS)
def test_a_launch_that_sets_every_key_of_a_release_is_of_that_release(version: str) -> None:
    every = effective_config(make_launch(), version=version)
    plain = [key for key, setting in every.settings.items() if isinstance(setting.value, int | None)]
    assert infer_version(make_launch(*(f"{key}=1" for key in plain))).value == version


def test_a_recipe_is_of_a_release_that_has_it() -> None:
    assert infer_version(make_launch(module=DAPO)).value == "0.7.0"


@pytest.mark.parametrize(
    ("module", "arguments", "flavour", "version"),
    [
        ("verl.trainer.main_ppo", [], "ppo_trainer", "0.9.1"),
        ("verl.trainer.main_ppo", ["--config-name=ppo_megatron_trainer"], "ppo_megatron_trainer", "0.9.1"),
        ("verl.trainer.main_ppo", ["model_engine=megatron"], "ppo_megatron_trainer", "0.9.1"),
        ("verl.trainer.sft_trainer", [], "sft_trainer_engine", "0.9.1"),
        ("verl.trainer.fsdp_sft_trainer", [], "sft_trainer", "0.7.0"),
    ],
)
def test_a_main_has_the_configuration_of_its_trainer(module, arguments, flavour, version) -> None:
    config = effective_config(make_launch(*arguments, module=module))
    assert (config.flavour, config.version.value) == (flavour, version)


@pytest.mark.parametrize(
    ("arguments", "version", "why"),
    [
        (["engine.grad_offload=True"], "0.9.0", "engine.grad_offload is refused by 0.9.1"),
        (["optim.lr_decay_style=cosine"], "0.9.1", "every key fits 0.6.1, 0.7.0, 0.8.0, 0.9.0, 0.9.1"),
    ],
)
def test_the_sections_that_a_supervised_launch_chooses_tell_the_release(arguments, version, why) -> None:
    chosen = ("engine=megatron", "optim=megatron", *arguments)
    found = effective_config(make_launch(*chosen, module="verl.trainer.sft_trainer")).version
    assert found.value == version and why in found.why


def test_what_depends_on_the_release_is_told_with_its_values() -> None:
    launch = make_launch("algorithm.adv_estimator=grpo")
    told = dict(version_sensitive(launch, "0.9.1"))
    assert told["actor_rollout_ref.rollout.enforce_eager"]["0.5.0"] is True
    assert told["actor_rollout_ref.rollout.enforce_eager"]["0.9.1"] is False
    assert told["actor_rollout_ref.actor.entropy_coeff"]["0.2.0"] == 0.001
    assert "algorithm.adv_estimator" not in told


def test_nothing_depends_on_the_release_when_one_alone_fits() -> None:
    assert version_sensitive(make_launch("trainer.remove_previous_ckpt_in_save=True"), "0.2.0") == []


def test_a_set_key_is_not_told_as_depending_on_the_release() -> None:
    launch = make_launch("actor_rollout_ref.actor.entropy_coeff=0.01")
    assert "actor_rollout_ref.actor.entropy_coeff" not in dict(version_sensitive(launch, "0.9.1"))


OLD = "actor_rollout_ref.actor.megatron.grad_offload=True"  # until 0.9.0


@pytest.mark.parametrize(
    ("arguments", "version"),
    [
        ([OLD], "0.5.0"),  # 0.6.1 and later want a rollout.name
        ([OLD, NAME], "0.9.0"),
        (["trainer.total_epochs=1"], "0.9.1"),  # fits the newest: a piece of a launch, not an old one
    ],
)
def test_an_old_launch_is_of_no_release_that_demands_what_it_leaves_out(arguments, version) -> None:
    assert infer_version(make_launch("--config-name=ppo_megatron_trainer", *arguments)).value == version


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_what_a_release_demands_has_no_default_there(flavour) -> None:
    for key, since in MANDATORY.items():
        for version in VERSIONS:
            tree = compose(release_tree(version).find, flavour, Choices())
            demanded = VERSIONS.index(version) >= VERSIONS.index(since)
            assert (dict(leaves(tree))[key] == "???") is demanded, version
