"""The two sides as commands, without a job directory: a sentence and exit code 2."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("side", "words", "said"),
    [
        ("explorer", [], "usage: python -m trinity_compat.explorer JOB_DIR"),
        ("explorer", ["--help"], "usage: python -m trinity_compat.explorer JOB_DIR"),
        ("explorer", ["/nowhere"], "/nowhere is not a job directory"),
        ("trainer", ["--help"], "usage: python -m trinity_compat.trainer JOB_DIR"),
        ("trainer", ["/nowhere"], "/nowhere is not a job directory"),
        ("trainer", ["/nowhere", "--train"], "/nowhere/config/train.json is missing"),
        ("trainer", ["/nowhere", "--explore"], "usage: python -m trinity_compat.trainer JOB_DIR [--train]"),
    ],
)
def test_a_side_without_a_job_says_so(side: str, words: list[str], said: str) -> None:
    command = [sys.executable, "-m", f"trinity_compat.{side}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
