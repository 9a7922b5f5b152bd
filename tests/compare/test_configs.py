"""Two launches by their effect: moved keys, flipped defaults, the way through a Trinity YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli.compare import command
from trinity_compat.common.errors import UserError
from trinity_compat.compare.configs import difference, read_in_effect
from trinity_compat.launch import read_script
from trinity_compat.translate import TranslateOptions, translate_launch

BASE = """python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=/d/train.parquet \\
    data.val_files=/d/test.parquet \\
    data.train_batch_size=64 \\
    data.max_prompt_length=512 \\
    data.max_response_length=256 \\
    actor_rollout_ref.model.path=/m \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.n_gpus_per_node=8 {more}
"""


def script(tmp_path: Path, name: str, more: str = "") -> str:
    path = tmp_path / name
    path.write_text(BASE.format(more=more))
    return str(path)


def changed(a: str, b: str) -> dict[str, tuple[object, object]]:
    return {d.key: (d.a, d.b) for d in difference(read_in_effect(a), read_in_effect(b))}


def test_a_changed_override_is_one_row_with_its_line(tmp_path):
    a = script(tmp_path, "a.sh", "actor_rollout_ref.actor.clip_ratio_high=0.28")
    (row,) = difference(read_in_effect(script(tmp_path, "b.sh")), read_in_effect(a))
    assert (row.key, row.a, row.b) == ("actor_rollout_ref.actor.clip_ratio_high", 0.2, 0.28)
    assert row.b_place.endswith("a.sh:14")


def test_the_same_in_other_words_is_no_difference(tmp_path):
    a = script(tmp_path, "a.sh", "actor_rollout_ref.actor.clip_ratio_high=0.28")
    b = tmp_path / "b.sh"
    b.write_text("HIGH=0.28\n" + BASE.format(more='"actor_rollout_ref.actor.clip_ratio_high=${HIGH}"'))
    assert changed(a, str(b)) == {}


def test_a_key_that_moved_between_releases_is_compared_at_its_new_place(tmp_path):
    old = script(tmp_path, "old.sh", "custom_reward_function.path=/r.py +trainer.ref_log_prob_x=1")
    new = script(tmp_path, "new.sh", "reward.custom_reward_function.path=/r.py")
    assert "reward.custom_reward_function.path" not in changed(old, new)


def test_a_script_equals_its_translation(tmp_path):
    path = Path(script(tmp_path, "a.sh"))
    (launch,) = read_script(path).launches
    _, text = translate_launch(launch, TranslateOptions(resolve=True))
    (tmp_path / "a.yaml").write_text(text)
    assert changed(str(path), str(tmp_path / "a.yaml")) == {}


def test_the_command_gives_json(tmp_path):
    a, b = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "algorithm.gamma=0.9")
    result = CliRunner().invoke(command, ["--configs", a, b, "--format", "json"], standalone_mode=False)
    (row,) = json.loads(result.output)["comparisons"][0]["differences"]
    assert (row["key"], row["a"], row["b"]) == ("algorithm.gamma", 1.0, 0.9)


def test_a_script_without_a_launch_is_named(tmp_path):
    path = tmp_path / "x.sh"
    path.write_text("echo hello\n")
    with pytest.raises(UserError, match="no veRL launch"):
        read_in_effect(str(path))


def test_a_launch_that_hydra_refuses_is_no_equal(tmp_path):
    good, bad = script(tmp_path, "a.sh"), script(tmp_path, "b.sh", "trainer.total_epoch=3")
    with pytest.raises(UserError, match=r"b\.sh:14: Hydra would refuse trainer\.total_epoch"):
        changed(good, bad)


def test_an_unset_variable_is_the_same_in_script_and_translation(tmp_path):
    path = Path(
        script(tmp_path, "a.sh", "trainer.experiment_name=${RUN:-one} data.custom_cls.path=$HERE/d.py")
    )
    (launch,) = read_script(path).launches
    (tmp_path / "a.yaml").write_text(translate_launch(launch, TranslateOptions())[1])
    assert changed(str(path), str(tmp_path / "a.yaml")) == {}
    assert read_in_effect(str(path)).values["data.custom_cls.path"] == "${oc.env:HERE}/d.py"


def test_where_a_value_comes_from(tmp_path):
    path = script(tmp_path, "a.sh")
    Path(path).write_text(BASE.format(more="") * 2)
    found = read_in_effect(path)
    assert found.why.startswith("the first of 2 launches, line 1; veRL ")
    assert found.places["actor_rollout_ref.actor.rollout_n"].startswith("follows ${")
    (launch, _) = read_script(path).launches
    (tmp_path / "a.yaml").write_text(translate_launch(launch, TranslateOptions(resolve=True))[1])
    assert read_in_effect(str(tmp_path / "a.yaml")).places["data.train_batch_size"].endswith("a.yaml")


@pytest.mark.parametrize("content", [b"{{", b"a: \xff", b"- a"])
def test_a_yaml_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.yaml"):
        read_in_effect(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--assert", "a('x') < 1"], "--assert is about runs"),
        (["-r", "2"], "--updates-per-step is about runs"),
        (["--paired"], "--paired is about runs"),
        (["--format", "html"], "--configs has no HTML"),
    ],
)
def test_an_option_that_would_not_be_heard_is_refused(tmp_path, option, said):
    a = script(tmp_path, "a.sh")
    with pytest.raises(UserError, match=said):
        CliRunner().invoke(
            command, ["--configs", a, a, *option], standalone_mode=False, catch_exceptions=False
        )
