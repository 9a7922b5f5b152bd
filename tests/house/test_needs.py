"""A test without what it needs is skipped with a reason and fails in CI; Debian packages come by a script."""

import shutil
import subprocess
from pathlib import Path

import needs
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "ci" / "install_system.sh"
PROGRAMS = [
    line.split()[1] for line in (needs.ROOT / "requirements" / "debian.txt").read_text().splitlines()[1:]
]


@pytest.mark.parametrize(
    "wanted",
    [
        lambda: needs.program("no-such-program", "no-package"),
        lambda: needs.made(".no-such-folder", "light.txt"),
    ],
)
def test_a_missing_need_is_a_skip_with_its_reason_and_a_failure_in_ci(monkeypatch, wanted):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make install-"):
        wanted()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"make install-.*as CI is set"):
        wanted()


def test_a_folder_made_from_an_older_list_counts_as_missing(monkeypatch, tmp_path):
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "x.txt").write_text("a==2\n")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "requirements.txt").write_text("a==1\n")
    monkeypatch.setattr(needs, "ROOT", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"not made from requirements/x\.txt"):
        needs.made("made", "x.txt")
    (tmp_path / "made" / "requirements.txt").write_text("a==2\n")
    assert needs.made("made", "x.txt") == tmp_path / "made"


@pytest.fixture
def install(tmp_path):
    """Runs it where only ``programs`` exist and apt-get is ``apt``; (exit code, output, apt's calls)."""

    def run(apt, programs=(), uid=0):
        (tmp_path / "bin").mkdir()
        for name in ("grep", "dirname"):
            (tmp_path / "bin" / name).symlink_to(shutil.which(name))
        calls = tmp_path / "calls"
        texts = {"apt-get": f'echo "$@" >>{calls}\n{apt}', "id": f"echo {uid}"}
        for name, text in {**dict.fromkeys(programs, ""), **texts}.items():
            path = tmp_path / "bin" / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        env = {"PATH": str(tmp_path / "bin")}
        done = subprocess.run([SCRIPT], env=env, capture_output=True, text=True)
        return done.returncode, done.stderr, calls.read_text() if calls.exists() else ""

    return run


def test_nothing_is_asked_of_apt_where_all_is_there(install):
    assert install("exit 1", PROGRAMS) == (0, "", "")


def test_what_is_missing_is_installed_and_must_be_there_then(install, tmp_path):
    files = " ".join(f"{tmp_path}/bin/{name}" for name in PROGRAMS)
    makes = f"for file in {files}; do : >$file; done; /bin/chmod 755 {files}"
    code, told, calls = install(makes)
    assert (code, told) == (0, "")
    assert calls.splitlines()[0].startswith("update") and "chromium" in calls.splitlines()[1]


@pytest.mark.parametrize(
    ("apt", "told"), [("exit 100", ""), ("exit 0", "installed, but without the program of:")]
)
def test_an_installation_that_fails_fails_the_script(install, apt, told):
    code, said, _ = install(apt)
    assert code != 0 and told in said


def test_who_is_not_root_gets_the_command(install):
    code, said, calls = install("exit 1", uid=1000)
    assert code == 1 and calls == ""
    assert "run: sudo apt-get install" in said and "chromium" in said
