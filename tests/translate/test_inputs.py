"""What the commands refuse to read or to write: one sentence, exit code 2, and the files as they were."""

import sys

import pytest

from trinity_compat.cli import main

SCRIPT = """python3 -m verl.trainer.main_ppo \\
  data.train_files=/d/train.parquet data.val_files=/d/test.parquet \\
  actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Return (exit code, stdout, stderr) of a command line, run in a folder that has ``run.sh``."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["trinity-compat", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        told = capsys.readouterr()
        return done.value.code, told.out, told.err

    return run


@pytest.mark.parametrize("command", [["translate"], ["audit"], ["rules", "init"]])
@pytest.mark.parametrize("output", ["run.sh", "link.sh", "hard.sh"])
def test_no_command_overwrites_what_it_reads(call, tmp_path, command, output):
    (tmp_path / "link.sh").symlink_to("run.sh")
    (tmp_path / "hard.sh").hardlink_to("run.sh")
    code, _, err = call(*command, "run.sh", "-o", output)
    assert code == 2
    assert f"error: {output}: this is the file that is read" in err
    assert (tmp_path / "run.sh").read_text() == SCRIPT


def test_an_audit_of_a_folder_does_not_overwrite_a_script_in_it(call, tmp_path):
    code, _, err = call("audit", ".", "-o", "run.sh")
    assert (code, (tmp_path / "run.sh").read_text()) == (2, SCRIPT)
    assert "this is the file that is read" in err


def test_a_file_that_is_not_read_is_overwritten(call, tmp_path):
    (tmp_path / "out.yaml").write_text("what was there")
    assert call("translate", "run.sh", "-o", "out.yaml")[0] == 0
    assert "what was there" not in (tmp_path / "out.yaml").read_text()
