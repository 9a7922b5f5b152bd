"""``trinity-compat upgrade``: what it prints and writes, and its exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from trinity_compat.cli.upgrade import command
from trinity_compat.common.errors import UserError

SCRIPT = """\
#!/bin/bash
python3 -m verl.trainer.main_ppo \\
    reward_model.reward_manager=dapo \\
    data.train_batch_size=8 \\
    actor_rollout_ref.rollout.name=vllm "$@"
"""
NEW = SCRIPT.replace("reward_model.reward_manager", "reward.reward_manager.name")
REFUSED = SCRIPT.replace("data.train_batch_size=8", "actor_rollout_ref.actor.optim.lr_warmup_steps=$STEPS")


def upgrade(*arguments: object) -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) as the entry point would have them."""
    result = CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.stdout, result.stderr


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    file.chmod(0o750)
    return file


def test_the_new_script_is_printed_with_the_reasons_apart(script: Path) -> None:
    code, out, err = upgrade(script)
    assert (code, out) == (0, NEW)
    first, second = err.splitlines()
    assert first.startswith(f"{script}:2: taken for veRL 0.9.1: every key fits 0.2.0, ")
    assert second.startswith(
        f"{script}:3: reward_model.reward_manager becomes reward.reward_manager.name: moved"
    )
    assert script.read_text() == SCRIPT


def test_the_release_that_a_script_is_taken_for_is_said_though_nothing_changes(script: Path) -> None:
    script.write_text(NEW)
    assert upgrade(script)[2].startswith(f"{script}:2: taken for veRL 0.9.1: ")
    asked = upgrade(script, "--verl-version", "0.8.0", "--diff")[1]
    assert asked.startswith(f"{script}:2: taken for veRL 0.8.0: requested (0.8.0)\n")


def test_quiet_prints_no_reasons(script: Path) -> None:
    assert upgrade(script, "-q") == (0, NEW, "")


def test_a_diff_is_one_that_patch_takes_reasons_and_all(script: Path) -> None:
    code, out, _ = upgrade(script, "--diff")
    assert code == 0
    assert f"\n{script}:3: reward_model.reward_manager becomes" in out.partition("\n---")[0]
    subprocess.run(["git", "apply", "-p0", "--unsafe-paths", "-"], input=out.encode(), check=True, cwd="/")
    assert script.read_text() == NEW


def test_check_tells_a_script_that_would_change(script: Path) -> None:
    code, out, _ = upgrade(script, "--check")
    assert code == 1
    assert [line.split(": ")[1][:9] for line in out.splitlines()] == ["taken for", "reward_mo"]
    assert script.read_text() == SCRIPT
    script.write_text(NEW)
    assert upgrade(script, "--check") == (0, "", "")


def test_write_changes_the_file_and_keeps_its_mode(script: Path) -> None:
    code, out, err = upgrade(script, "--write")
    assert (code, out) == (0, "")
    assert err.count(" becomes ") == 1
    assert script.read_text() == NEW
    assert script.stat().st_mode & 0o777 == 0o750
    before = script.stat()
    assert upgrade(script, "--write") == (0, "", "")
    assert (script.stat().st_ino, script.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_write_follows_no_link(script: Path, tmp_path: Path) -> None:
    (tmp_path / "link.sh").symlink_to(script)
    with pytest.raises(UserError, match="is a link to"):
        upgrade(tmp_path / "link.sh", "--write")
    assert script.read_text() == SCRIPT
    assert upgrade(tmp_path / "link.sh")[1] == NEW


def test_a_folder_is_upgraded_at_once(script: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.sh").write_text(SCRIPT)
    (tmp_path / "setup.sh").write_text("pip install verl\n")
    code, _, err = upgrade(tmp_path, "--write")
    assert code == 0
    assert err.count(" becomes ") == err.count(" taken for ") == 2
    assert script.read_text() == (tmp_path / "sub" / "more.sh").read_text() == NEW


def test_a_folder_s_scripts_go_on_after_one_that_cannot_be_read(script: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.sh").write_bytes(b"\0\1\2")
    code, _, err = upgrade(tmp_path, "--write")
    assert code == 2
    assert "broken.sh is not a text file" in err
    assert script.read_text() == NEW


def test_several_scripts_are_not_printed_as_one(script: Path) -> None:
    with pytest.raises(UserError, match="cannot be printed as one"):
        upgrade(script, script)


def test_a_script_and_the_configuration_that_it_reads(tmp_path: Path) -> None:
    script, config = tmp_path / "run.sh", tmp_path / "conf" / "mine.yaml"
    config.parent.mkdir()
    head = "hydra:\n  searchpath: [pkg://verl.trainer.config]\ndefaults:\n  - ppo_trainer\n  - _self_\n"
    config.write_text(f"{head}reward_model:\n  reward_manager: dapo\n")
    script.write_text(
        'python3 -m verl.trainer.main_ppo --config-path="$PWD/conf" --config-name=mine \\\n'
        "  algorithm.adv_estimator=grpo\n"
    )
    how = ("--verl-version", "0.8.0", "--cwd", tmp_path)
    code, out, err = upgrade(script, *how)
    assert code == 1
    assert f"{config}:7: reward_model.reward_manager: became reward.reward_manager.name" in err
    assert "reward_manager" not in out
    assert upgrade(script, config, *how, "--write")[0] == 0
    assert config.read_text() == f"{head}reward:\n  reward_manager:\n    name: dapo\n"
    assert "max_num_seqs=1024" in script.read_text()
    assert upgrade(script, config, "--cwd", tmp_path, "--check") == (0, "", "")


def test_a_configuration_by_itself_gets_the_defaults(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    head = "hydra:\n  searchpath: [pkg://verl.trainer.config]\ndefaults:\n  - ppo_trainer\n  - _self_\n"
    config.write_text(f"{head}algorithm:\n  adv_estimator: grpo\n")
    assert upgrade(config, "--verl-version", "0.8.0", "-q")[1] == (
        f"{head}algorithm:\n  adv_estimator: grpo\n"
        "actor_rollout_ref:\n  rollout:\n    max_num_seqs: 1024\ntrainer:\n  use_v1: false\n"
    )


def test_what_cannot_be_carried_exits_1_with_its_line(script: Path) -> None:
    script.write_text("STEPS=null\necho $STEPS\n" + REFUSED)
    code, out, err = upgrade(script, "--verl-version", "0.8", "-q")
    assert code == 1
    assert "reward.reward_manager.name=dapo" in out
    assert err.startswith(f"{script}:6: actor_rollout_ref.actor.optim.lr_warmup_steps: ")
    assert err.endswith("[no equivalent]\n")


def test_a_key_that_no_release_has_exits_1_though_nothing_changes(script: Path) -> None:
    script.write_text(NEW.replace("data.train_batch_size", "data.train_bach_size"))
    code, _, err = upgrade(script, "--check")
    assert code == 1
    assert "did you mean data.train_batch_size? (its own release refuses it, too)" in err


def test_secrets_are_not_shown(script: Path) -> None:
    script.write_text(SCRIPT.replace("reward_manager=dapo", "sandbox_fusion.url=http://me:hidden@host"))
    code, out, _ = upgrade(script, "--check")
    assert code == 1
    assert "hidden" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{script}", "--to", "0.8.0"], "writes for veRL 0.9.1 only"),
        (["{script}", "--to", "1.0"], "not a release"),
        (["{script}", "--verl-version", "nope"], "not a release"),
        (["{script}", "--write", "--check"], "give one"),
        (["{folder}/none.sh"], "no such script"),
        (["{folder}/empty"], "no script below"),
        (["{folder}/idle.sh"], "starts no veRL training"),
        (["{folder}/main.py"], "shell scripts and YAML configurations only"),
        ([""], "a SOURCE is an empty text"),
    ],
)
def test_bad_input_is_an_error(script: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "idle.sh").write_text("echo\n")
    (tmp_path / "main.py").write_text("print()\n")
    with pytest.raises(UserError, match=message):
        upgrade(*(word.format(script=script, folder=tmp_path) for word in arguments))


def test_the_entry_point_knows_the_command(script: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trinity_compat", "upgrade", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == NEW
