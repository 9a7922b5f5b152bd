"""The last line of defence: a reading command ends at its limits with exit code 2 and the source's name."""

import os
import subprocess
import sys

import pytest

from trinity_compat.cli import main

LAUNCH = "python3 -m verl.trainer.main_ppo data.train_batch_size=8\n"
COMMAND = """
import os, resource, signal, sys
{before}
sys.argv = ["trinity-compat", {command}, "x.sh", *["x.sh"][: {command} == "diff"]]
from trinity_compat.cli import program, {module} as module, _READING
_READING[{command}] = 0.5
def bomb(*_, **__):
    {bomb}
module.{reader} = bomb
program()
"""


def ended(tmp_path, bomb, command="parse", reader="read_script", before=""):
    """(exit code, stderr) of a command whose reader is replaced by ``bomb``."""
    (tmp_path / "x.sh").write_text(LAUNCH)
    module = command.replace("-", "_")
    code = COMMAND.format(bomb=bomb, command=repr(command), module=module, reader=reader, before=before)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    "bomb, said",
    [
        ("while True: pass", "x.sh: reading takes more than 0.5 s of processor time"),
        ("sum(range(10**13))", "x.sh: reading takes too much processor time"),
        ("return [bytes(1 << 20) for _ in range(4000)]", "x.sh: reading takes more than 512 MiB of memory"),
        ("bomb()", "x.sh: nested too deeply"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "x.sh: reading was ended by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "x.sh: reading was ended by SIGKILL"),
        ("try:\n        while True: pass\n    except Exception: pass", "x.sh: reading takes more than 0.5 s"),
    ],
)
def test_each_limit_is_told_with_the_source(tmp_path, bomb, said):
    code, err = ended(tmp_path, bomb)
    assert code == 2 and err.startswith(f"error: {said}") and len(err.splitlines()) == 1, err


@pytest.mark.parametrize(
    "command, reader",
    [
        ("translate", "read_script"),
        ("audit", "audit_sources"),
        ("to-verl", "load"),
        ("diff", "differences"),
        ("ignored", "composed"),
        ("sizes", "composed"),
        ("upgrade", "upgrade_script"),
    ],
)
def test_each_reading_command_is_limited(tmp_path, command, reader):
    code, err = ended(tmp_path, "while True: pass", command, reader)
    assert code == 2 and err == "error: x.sh: reading takes more than 0.5 s of processor time"


def test_a_users_own_limits_are_kept(tmp_path):
    before = "resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 2 << 30))"
    code, err = ended(tmp_path, "print(resource.getrlimit(resource.RLIMIT_DATA)); sys.exit(7)", before=before)
    assert (code, err) == (7, "")
    code, err = ended(tmp_path, "return [bytes(1 << 20) for _ in range(400)]", before=before)
    assert code == 2 and "of memory" in err


def test_the_time_counts_anew_for_each_launch(tmp_path):
    """Five launches of 0.3 s each are read, though all of them take more than the limit."""
    bomb = """
    from trinity_compat.common.reading_process import reading
    for name in "abcde":
        with reading(name):
            start = time.process_time()
            while time.process_time() - start < 0.3: pass
    sys.exit(7)"""
    assert ended(tmp_path, bomb, before="import time") == (7, "")


def test_a_folder_goes_on_after_a_script_that_took_too_much(tmp_path):
    bomb = """
    from trinity_compat.common.errors import UserError
    from trinity_compat.common.reading_process import reading
    for name in "ab":
        try:
            with reading(name):
                while name == "a": pass
        except UserError as error:
            print(error, file=sys.stderr)
    sys.exit(7)"""
    assert ended(tmp_path, bomb) == (7, "a: reading takes more than 0.5 s of processor time")


def test_a_signal_to_the_command_ends_what_it_started(tmp_path):
    before = "import time, threading"
    bomb = "os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    assert ended(tmp_path, bomb, before=before) == (-15, "")


def test_a_caller_of_main_keeps_its_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text(LAUNCH)
    monkeypatch.setattr(sys, "argv", ["trinity-compat", "parse", "x.sh"])
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("main forked the process of its caller"))
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 0
