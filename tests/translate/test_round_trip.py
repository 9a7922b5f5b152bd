"""launch → YAML → the veRL configuration of our trainer: the same on every trainer-side key."""

import os

import pytest
import yaml
from facts import public_scripts

from trinity_compat.common.errors import UserError
from trinity_compat.launch import entrypoints
from trinity_compat.translate import (
    TranslateOptions,
    flavour_of,
    sync_of,
    to_verl,
    total_steps_of,
    translate_config,
    updates_per_step,
)
from trinity_compat.translate.defaults import same
from trinity_compat.translate.env_references import EnvReferences
from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.rows import means_nothing
from trinity_compat.translate.sections.asynchronous import as_main_ppo
from trinity_compat.trinity.config import validate
from trinity_compat.verl_config import compose_pinned, effective_config, upgrade

from .helpers import flat, launch_of, translated

EVERY = int(os.environ.get("TRINITY_COMPAT_CORPUS_EVERY", "8"))  # 1: all of them, a minute


def public_launches():
    found = [(entry["path"], launch) for entry in public_scripts() for launch in entry["launches"]]
    return [(path, launch) for path, launch in found if launch["module"] in entrypoints.TRANSLATED]


def our_settings(effective):
    """The settings that a run of ours is to have: of veRL's asynchronous mains as main_ppo has them."""
    config = upgrade(effective).config
    view = LaunchView(config, config.settings, EnvReferences(), TranslateOptions(), effective)
    return as_main_ppo(view)[0].config.settings


# Follows rollout.name, which has no default and which a YAML always has.
FOLLOWS_ROLLOUT = "distillation.teacher_models.teacher_model.inference.name"


def differences(effective, config):
    """Keys of the launch, carried to the pinned veRL, that the way back tells otherwise."""
    back = compose_pinned(to_verl(config), flavour_of(config))
    told = flat(back)
    for key, setting in our_settings(effective).items():
        if key.endswith("_target_") or means_nothing(key) or setting.value == "???":
            continue
        if key == FOLLOWS_ROLLOUT and setting.value is None:
            continue
        wanted = flat({key: setting.value}) if isinstance(setting.value, dict) else {key: setting.value}
        for path, value in wanted.items():
            if not (path in told and same(told[path], value)) and not (value == {} and path not in told):
                yield path, value, told.get(path)


@pytest.mark.parametrize("target", ["0.6.0", "0.4.1"])
def test_public_launches_come_back_exactly(target):
    launches = public_launches()[::EVERY]
    done = 0
    for path, given in launches:
        launch = launch_of(given["args"], given["module"], path)
        try:
            effective = effective_config(launch)
            translation, text = translate_config(effective, TranslateOptions(target=target))
        except UserError:
            continue
        config = yaml.safe_load(text)
        assert list(differences(effective, config)) == [], path
        assert validate(config, target) == [], path
        own = [finding.key for finding in translation.findings if finding.where is not None]
        others = [other.key for other in effective.others]
        assert own == [*dict.fromkeys(effective.set_keys), *others], path
        done += 1
    assert done >= (0.9 if EVERY == 1 else 0.8) * len(launches)  # the others are refused, each with a reason


def test_an_edit_of_the_yaml_wins_over_what_was_carried():
    _, config = translated("algorithm.adv_estimator=remax")
    assert to_verl(config)["algorithm.adv_estimator"] == "remax"
    config["algorithm"]["advantage_fn"] = "rloo"
    config["algorithm"]["optimizer"]["lr"] = 3e-6
    assert to_verl(config)["algorithm.adv_estimator"] == "rloo"
    assert to_verl(config)["actor_rollout_ref.actor.optim.lr"] == 3e-6


def test_steps_are_divided_by_r_on_the_way_back():
    _, config = translated(
        "data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "trainer.save_freq=20",
        "trainer.total_training_steps=7", sync_offset=2,
    )  # fmt: skip
    assert to_verl(config)["trainer.save_freq"] == 20
    assert to_verl(config)["data.train_batch_size"] == 64
    assert total_steps_of(config) == 7
    assert (sync_of(config).interval, sync_of(config).offset) == (1, 2)


def test_a_step_of_a_yaml_by_hand_is_one_update_however_often_weights_move():
    config = {
        "synchronizer": {"sync_interval": 4, "sync_offset": 1},
        "trainer": {"save_interval": 9, "critic_warmup": 12},
        "buffer": {"total_steps": 401, "batch_size": 8},
    }
    assert updates_per_step(config) == (1, "")
    told = to_verl(config)
    assert told["data.train_batch_size"] == told["actor_rollout_ref.actor.ppo_mini_batch_size"] == 8
    steps = ("trainer.save_freq", "trainer.critic_warmup", "trainer.total_training_steps")
    assert [told[key] for key in steps] == [9, 12, 401]
    assert (sync_of(config).interval, sync_of(config).offset) == (4, 1)


def test_what_the_way_back_tells_is_not_carried_a_second_time():
    _, config = translated(
        "data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "trainer.save_freq=20",
        "actor_rollout_ref.actor.kl_loss_type=mse", "actor_rollout_ref.actor.use_kl_loss=True",
    )  # fmt: skip
    carried = config["trainer"]["trainer_config"]["trinity_compat"]
    both = {**carried.get("verl", {}), **carried.get("stands_for", {})}
    assert both.keys().isdisjoint({"trainer.save_freq", "actor_rollout_ref.actor.kl_loss_type"})


def test_a_count_that_r_does_not_divide_is_refused_with_one_that_it_does():
    compat = {"trainer_config": {"trinity_compat": {"updates_per_step": 4}}}
    config = {"trainer": {"save_interval": 10, **compat}}
    with pytest.raises(UserError) as error:
        to_verl(config)
    assert "write 8" in str(error.value)
