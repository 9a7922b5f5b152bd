"""scripts/judge/weekly_proof.py: verdicts on other people's scripts, and the table of them."""

from __future__ import annotations

import subprocess

import needs
import pytest
from loaded_scripts import loaded

PPO = "verl.trainer.main_ppo"


@pytest.fixture
def weekly_proof(monkeypatch):
    return loaded("weekly_proof", monkeypatch)


def launch(*args, module=PPO, unresolved=()):
    return {"module": module, "args": list(args), "unresolved": [{"arg": number} for number in unresolved]}


@pytest.mark.parametrize(
    ("ours", "bashs", "verdict"),
    [
        ([launch("a=1")], [launch("a=1")], "exact"),
        ([launch("a=1", module="/repo/x/main_ppo.py")], [launch("a=1", module="x.main_ppo")], "exact"),
        ([launch("a=?", "b=2", unresolved=[0])], [launch("a=1", "b=2")], "open"),
        ([launch("a=?", unresolved=[0])], [launch("c=1")], "wrong"),
        ([launch("a=2")], [launch("a=1")], "wrong"),
        ([launch("a=1", "b=2")], [launch("a=1")], "wrong"),
        ([], [launch("a=1")], "wrong"),
        ([launch("a=1"), launch("b=1")], [launch("a=1")], "bash ends before a launch"),
        ([], [], "no launch"),
    ],
)
def test_a_reading_is_judged_by_what_bash_starts(weekly_proof, ours, bashs, verdict):
    assert weekly_proof.reading_verdict(ours, bashs)[0] == verdict


def test_a_script_of_a_folder_is_read_audited_and_run_by_bash(weekly_proof, tmp_path):
    needs.program("bwrap", "bubblewrap")
    folder = tmp_path / "repo" / "project"
    folder.mkdir(parents=True)
    (folder / "sizes.sh").write_text("N=4\n")
    (folder / "run.sh").write_text(
        f". ./sizes.sh\npython3 -m {PPO} data.train_batch_size=$((N * 64)) a=$PWD\n"
    )
    script = weekly_proof.Script("me/mine", "run.sh", tmp_path / "repo", "project")
    stubs = weekly_proof.verl_clone.write_stubs(tmp_path / "stubs")
    found = weekly_proof.read_and_audit(script, stubs)
    assert (found.read, found.why, found.audit != "") == ("exact", "", True)
    lines = list(weekly_proof.table([found], missing=3))
    assert lines[0] == "1 scripts of 1 repositories; 3 without a clone"
    assert "| read: exact | 1 | 1 |" in lines


def test_a_commit_that_the_mirror_lacks_is_fetched(weekly_proof, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: calls.append(command))
    weekly_proof.fetch("me/mine", "abc", tmp_path)
    assert calls[1][-2:] == ["https://github.com/me/mine", "abc"]
