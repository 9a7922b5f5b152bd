"""Messages of commits: `scripts/ci/check_commits.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts" / "ci"))
import check_commits  # noqa: E402

BODY = "\n\nUsers could not tell."


@pytest.mark.parametrize(
    "message",
    [
        f"Pass a word on{BODY}",
        f"Embed a picture{BODY}\n\n    a command {'of many words ' * 4}",
        f"{'Say ' * 18}".rstrip() + BODY,
        f"Focus a field{BODY}",
        "Name the last landed commit",
    ],
)
def test_a_message_in_the_house_s_form_passes(message):
    assert list(check_commits.problems(message)) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("Say why", "no body"),
        ("Say why\nat once", "not blank"),
        (f"Added a word{BODY}", "'Added'"),
        (f"Adding a word{BODY}", "'Adding'"),
        (f"Fixes a word{BODY}", "'Fixes'"),
        (f"add a word{BODY}", "capital letter"),
        (f"Add a word.{BODY}", "full stop"),
        (f"Say {'more ' * 14}{BODY}", "characters"),
    ],
)
def test_another_message_is_told_with_its_fault(message, problem):
    (told,) = check_commits.problems(message)
    assert problem in told


def test_commits_since_the_landed_one_are_read_that_have_the_check(tmp_path, monkeypatch, capsys):
    def git(*words):
        words = ("-c", "user.name=a", "-c", "user.email=a@b", *words)
        return subprocess.run(
            ["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "Before the landed one")
    landed = git("rev-parse", "HEAD").strip()
    git("commit", "-q", "--allow-empty", "-m", "Before the check")
    (tmp_path / "scripts" / "ci").mkdir(parents=True)
    (tmp_path / "scripts/ci/check_commits.py").write_text("")
    git("add", ".")
    git("commit", "-q", "-m", f"Add the check{BODY}")
    git("commit", "-q", "--allow-empty", "-m", "Forget the reason")
    monkeypatch.setattr(check_commits, "ROOT", tmp_path)
    monkeypatch.setattr(check_commits, "landed", lambda: landed)
    assert check_commits.main() == 1
    told = capsys.readouterr().out
    assert "Forget the reason" in told and "no body says why" in told and "Before" not in told
    git("commit", "-q", "--amend", "--allow-empty", "-m", f"Forget the reason{BODY}")
    assert check_commits.main() == 0
