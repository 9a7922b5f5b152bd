"""TW018: several veRL releases fit, and a default that the launch relies on differs between them."""

import json
import runpy
from pathlib import Path

import pytest

from trinity_compat.translate import TranslateOptions, translate
from trinity_compat.verl_config import FLAVOURS, effective_config

from .helpers import BASICS, launch_of

ROOT = Path(__file__).parents[2]
OLD = ("algorithm.adv_estimator=grpo",)  # every release takes these


def told(*arguments, version=None):
    launch = launch_of([*BASICS, *arguments])
    translation = translate(effective_config(launch, version=version), TranslateOptions(verl_version=version))
    return " ".join(f"{w.message} ({w.hint})" for w in translation.warnings if w.code == "TW018")


def test_keys_releases_and_the_cure_are_named_in_two_lines():
    said = told(*OLD, "actor_rollout_ref.actor.clip_ratio=0.3")
    assert said == (
        "the keys fit veRL 0.2.0 to 0.9.1, and 0.9.1 is taken; defaults differ: actor.clip_ratio_low,"
        " actor.clip_ratio_high (0.3 until 0.3.0, 0.2 since 0.4.1), actor.clip_ratio_c, actor.entropy_coeff,"
        " algorithm.use_kl_in_reward, data.filter_overlong_prompts"
        " (--verl-version 0.2.0 if the script is for that release)"
    )
    many = told(*OLD, "--config-name=ppo_megatron_trainer")
    assert " more (--verl-version 0." in many and len(many) < len(said)


@pytest.mark.parametrize(("version", "ends"), [("0.5.0", False), ("0.6.1", True), ("0.9.1", True)])
def test_a_launch_that_names_no_engine_is_told_that_its_release_ends_there(version, ends):
    unnamed = [word for word in BASICS if "rollout.name" not in word]
    for words, expected in ((unnamed, ends), ([*unnamed, "actor_rollout_ref.rollout.name=vllm"], False)):
        effective = effective_config(launch_of([*words, *OLD]), version=version)
        translation = translate(effective, TranslateOptions(verl_version=version))
        said = [w.message for w in translation.warnings if w.code == "TW027"]
        assert bool(said) is expected
        assert all(f"veRL {version} ends without it (Missing mandatory value: " in each for each in said)
        assert translation.config["explorer"]["rollout_model"]["engine_type"] == "vllm"


@pytest.mark.parametrize("version", ["0.3.0", "0.9.1"])
def test_nothing_is_told_when_the_release_is_given(version):
    assert told(*OLD, version=version) == ""


def test_nothing_is_told_when_one_release_alone_fits():
    assert told(*OLD, "trainer.remove_previous_ckpt_in_save=True") == ""


def test_what_the_launch_sets_is_not_told():
    assert "entropy_coeff" not in told(*OLD, "actor_rollout_ref.actor.entropy_coeff=0.01")


def test_releases_without_a_difference_are_not_told():
    assert told(*OLD, "actor_rollout_ref.actor.loss_agg_mode=token-mean") == ""


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("actor_rollout_ref.actor.use_kl_loss=True", False),
        ("algorithm.kl_ctrl.kl_coef=0", False),
        ("algorithm.kl_ctrl.kl_coef=0.01", True),
    ],
)
def test_kl_in_the_reward_differs_only_where_early_releases_had_it(setting, expected):
    assert ("use_kl_in_reward" in told(*OLD, setting)) is expected


def test_the_table_is_current():
    changed = runpy.run_path(str(ROOT / "scripts/generate/make_changed_defaults.py"))["changed"]
    stored = json.loads((ROOT / "translators/generated/verl/changed_defaults.json").read_text())
    assert stored == {flavour: changed(flavour) for flavour in FLAVOURS}
