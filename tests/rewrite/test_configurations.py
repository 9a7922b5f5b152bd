"""`upgrade` on YAML configurations: keys move with their values, comments and layout stay."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from trinity_compat.rewrite.configuration import upgrade_configuration
from trinity_compat.rewrite.script import Upgraded, UpgradeOptions
from trinity_compat.verl_config import VERSIONS, config_from_yaml
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.releases import release_tree

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "judge"))
from upgrade_corpus import unmeant

# Whatever it is upgraded from, no default is missing.
SAME = "algorithm: {adv_estimator: grpo}\ntrainer: {use_v1: false}\n"
ROLLOUT = "actor_rollout_ref:\n  rollout:\n    max_num_seqs: 64\n"


@pytest.fixture
def upgraded(tmp_path: Path):
    def upgrade_text(text: str, version: str | None = "0.8.0") -> Upgraded:
        (tmp_path / "conf.yaml").write_text(text)
        return upgrade_configuration(str(tmp_path / "conf.yaml"), UpgradeOptions(version=version))

    return upgrade_text


def after(result: Upgraded) -> str:
    """The new text, which a second upgrade leaves alone."""
    assert result.refused == []
    text = result.after.decode()
    Path(result.path).write_text(text)
    assert not upgrade_configuration(result.path, UpgradeOptions()).changed
    return text


CASES = [
    pytest.param(
        f"# mine\n{SAME}\n# scores\nreward_model:\n  # who\n  reward_manager: 'dapo'  # it\n\n{ROLLOUT}",
        f"# mine\n{SAME}\n# scores\n\n{ROLLOUT}"
        "reward:\n  reward_manager:\n    # who\n    name: 'dapo'  # it\n",
        id="a key goes into a new section, with its comments and quotes",
    ),
    pytest.param(
        f"{SAME}{ROLLOUT}reward:\n  num_workers: 2  # few\nreward_model:\n  reward_kwargs:\n"
        "    names:\n      - a\n      # then\n      - b\n",
        f"{SAME}{ROLLOUT}reward:\n  num_workers: 2  # few\n  reward_kwargs:\n"
        "    names:\n      - a\n      # then\n      - b\n",
        id="a list goes into a section that is there",
    ),
    pytest.param(
        f"{SAME}{ROLLOUT}    mode: sync  # slow\n    load_format: dummy_dtensor\n",
        f"{SAME}{ROLLOUT}    mode: async  # slow\n    load_format: dummy\n",
        id="a value changes in its place",
    ),
    pytest.param(
        f"{SAME}{ROLLOUT}  actor:\n    ppo_epochs: 1\n    load_weight: True\n"
        "    profile:\n      use_profile: False\n",
        f"{SAME}{ROLLOUT}  actor:\n    ppo_epochs: 1\n",
        id="what says nothing goes, and the section that it leaves empty",
    ),
    pytest.param(
        f"{SAME}{ROLLOUT}  actor: {{optim: {{warmup_style: cosine}}}}\n",
        f"{SAME}{ROLLOUT}  actor: {{optim: {{lr_scheduler_type: cosine}}}}\n",
        id="a key in braces gets another name",
    ),
    pytest.param(
        f"{SAME}{ROLLOUT}reward_model:\n  reward_kwargs:\n    text: |\n      two\n      lines\n",
        f"{SAME}{ROLLOUT}reward:\n  reward_kwargs:\n    text: |\n      two\n      lines\n",
        id="a block of text moves as a whole",
    ),
    pytest.param(
        f"{SAME}{ROLLOUT}  actor:\n    optim:\n"
        "      lr_scheduler_type: cosine  # how\n      warmup_style: constant\n",
        f"{SAME}{ROLLOUT}  actor:\n    optim:\n      lr_scheduler_type: constant\n",
        id="two keys that are one today become one, with the value that counted",
    ),
]


@pytest.mark.parametrize(("text", "meant"), CASES)
def test_keys_change_at_their_places(upgraded, text: str, meant: str) -> None:
    assert after(upgraded(text)) == meant


def test_each_change_has_its_place_and_its_reason(upgraded) -> None:
    result = upgraded(f"{SAME}{ROLLOUT}reward_model:\n  reward_manager: dapo\n")
    assert [str(change) for change in result.changes] == [
        f"{result.path}:7: reward_model.reward_manager becomes reward.reward_manager.name: "
        "moved below reward in 0.8"
    ]


def test_defaults_that_changed_are_written_into_their_sections(upgraded) -> None:
    text = "algorithm:\n  adv_estimator: grpo\nactor_rollout_ref:\n  rollout:\n    name: vllm\n"
    assert after(upgraded(text)) == text + "    max_num_seqs: 1024\ntrainer:\n  use_v1: false\n"


def test_a_key_in_braces_that_has_to_move_is_named(upgraded) -> None:
    text = f"{SAME}{ROLLOUT}reward_model: {{reward_manager: dapo}}\n"
    result = upgraded(text)
    assert result.after.decode() == text
    assert "it is written in braces" in result.refused[0].text


def test_a_key_whose_new_place_is_taken_is_named(upgraded) -> None:
    text = f"{SAME}{ROLLOUT}reward_model:\n  num_workers: 1\nreward:\n  num_workers: 2\n"
    result = upgraded(text)
    assert result.after.decode() == text
    assert "reward.num_workers is set already (line 9)" in result.refused[0].text


def test_windows_line_ends_are_named(upgraded, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_bytes(b"data:\r\n  seed: 1\r\n")
    result = upgrade_configuration(str(tmp_path / "conf.yaml"), UpgradeOptions())
    assert not result.changed
    assert "dos2unix" in result.refused[0].text


@pytest.mark.parametrize("version", VERSIONS)
def test_the_dump_of_a_release_means_under_the_target_what_is_carried(upgraded, version: str) -> None:
    tree = composed_as(release_tree(version), "ppo_trainer")
    tree["actor_rollout_ref"]["rollout"]["name"] = "vllm"
    result = upgraded(yaml.safe_dump(tree), version)
    assert result.refused == []
    Path(result.path).write_bytes(result.before)
    old = config_from_yaml(result.path, version)
    Path(result.path).write_bytes(result.after)
    assert list(unmeant(old, config_from_yaml(result.path, "0.9.1"), Counter())) == []
    if version == VERSIONS[-1]:
        assert not result.changed
