"""``trinity-compat ignored``: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli.ignored import command
from trinity_compat.common.errors import UserError

ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
SCRIPT = """\
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=8 \\
    data.truncation=left \\
    critic.ppo_micro_batch_size_per_gpu=$SIZE \\
    actor_rollout_ref.actor.grad_clip=1.0 "$@"
"""


def ignored(*arguments: object) -> tuple[int, str]:
    """Return (exit code, stdout) as the entry point would have them."""
    result = CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.stdout


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "run.sh").write_text(SCRIPT)
    return tmp_path / "run.sh"


def test_each_setting_is_named_with_its_line_and_the_place_in_verl(script: Path) -> None:
    code, text = ignored(script, "--verl-version", "0.9.1", "--env", "SIZE=4")
    assert code == 1
    first, why, *lines = text.splitlines()
    assert first.endswith(": under verl 0.9.1 2 settings have no effect")
    assert why == "  (verl 0.9.1: requested (0.9.1))"
    assert lines[0].startswith(f"  {script}:3: data.truncation=left: veRL 0.9.1 ")
    assert lines[1].startswith(f"  {script}:4: critic.ppo_micro_batch_size_per_gpu=4: veRL 0.9.1 ")
    assert "verl/workers/config/critic.py:108" in lines[1]
    assert len(lines) == 2  # grad_clip has its default


def test_json_has_the_same(script: Path) -> None:
    code, text = ignored(script, "--verl-version", "0.9", "--env", "SIZE=4", "--format", "json")
    assert code == 1
    (launch,) = json.loads(text)["launches"]
    assert launch["verl_version"]["value"] == "0.9.1"
    found = {each["key"]: each for each in launch["ignored"]}
    assert set(found) == {"data.truncation", "critic.ppo_micro_batch_size_per_gpu"}
    assert found["critic.ppo_micro_batch_size_per_gpu"]["value"] == 4
    assert found["data.truncation"]["source"] == f"{script}:3"


def test_a_release_that_uses_them_all(script: Path) -> None:
    uses_it = script.with_name("uses_it.sh")
    uses_it.write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.grad_clip=0.3\n")
    code, text = ignored(uses_it, "--verl-version", "0.7.0")
    assert code == 0
    assert "no setting without effect is known" in text


def test_of_a_release_whose_code_was_not_followed_nothing_is_known(script: Path) -> None:
    with pytest.raises(UserError, match=r"what veRL 0\.6\.1 does with its keys is not known") as raised:
        ignored(script, "--verl-version", "0.6.1", "--env", "SIZE=4")
    assert "--verl-version 0.9.1" in raised.value.hint


def test_the_script_s_own_arguments_count(script: Path) -> None:
    given = ("--verl-version", "0.9.1", "--env", "SIZE=4")
    _, text = ignored(script, *given, "--", "actor_rollout_ref.actor.grad_clip=0.3")
    assert "actor_rollout_ref.actor.grad_clip=0.3: veRL 0.9.1 does not read it (read until 0.7.0)" in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo nothing\n", "starts no veRL training"),
        (f"python3 -m {ASYNC} data.train_batch_size=0\n", "is not verl.trainer.main_ppo"),
        ("python3 -m verl.trainer.main_ppo no.such.key=1\n", "no.such.key"),
    ],
)
def test_a_source_of_which_nothing_is_known_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(UserError, match=why):
        ignored(tmp_path / "run.sh", "--verl-version", "0.9.1")


def test_a_release_that_there_is_not_is_an_error(script: Path) -> None:
    with pytest.raises(UserError, match=r"1\.0"):
        ignored(script, "--verl-version", "1.0")


@pytest.mark.parametrize(
    ("key", "ignored_by"),
    [("algorithm.filter_groups.enable=True", "False"), ("critic.ppo_max_token_len_per_gpu=100", "True")],
)
@pytest.mark.parametrize("v1", ["True", "False"])
def test_a_key_of_one_trainer_has_no_effect_under_the_other(tmp_path, key, ignored_by, v1) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"python3 -m verl.trainer.main_ppo {key} trainer.use_v1={v1}\n")
    code, text = ignored(path, "--verl-version", "0.9.1")
    assert code == int(v1 == ignored_by)
    assert (f"; here trainer.use_v1={v1}" in text) == (v1 == ignored_by)


@pytest.fixture
def folder(tmp_path: Path, script: Path) -> Path:
    """A folder with a script that has such settings, one of another main, and one without a launch."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "async.sh").write_text(f"python3 -m {ASYNC} data.train_batch_size=8\n")
    (tmp_path / "more" / "helper.sh").write_text("echo done\n")
    return tmp_path


def test_the_scripts_of_a_folder_are_checked_and_the_others_named(folder: Path) -> None:
    code, text = ignored(folder, "--verl-version", "0.9.1", "--env", "SIZE=4")
    assert code == 1
    assert f"{folder}/run.sh:1: under verl 0.9.1 2 settings have no effect\n" in text
    last = text.splitlines()[-2:]
    assert last[0].startswith(f"{folder}/more/async.sh: not checked: ")
    assert last[1].startswith(f"{folder}/more/helper.sh: not checked: ")
    assert "starts no veRL training" in last[1]


def test_json_of_a_folder_has_the_problems(folder: Path) -> None:
    _, text = ignored(folder, "--verl-version", "0.9.1", "--env", "SIZE=4", "--format", "json")
    told = json.loads(text)
    assert len(told["launches"]) == 1
    assert sorted(told["problems"]) == [f"{folder}/more/async.sh", f"{folder}/more/helper.sh"]


def test_a_folder_of_which_nothing_can_be_checked_is_an_error(folder: Path) -> None:
    (folder / "run.sh").unlink()
    with pytest.raises(UserError, match=r"async\.sh"):
        ignored(folder)
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="no script below this folder"):
        ignored(folder / "empty")
