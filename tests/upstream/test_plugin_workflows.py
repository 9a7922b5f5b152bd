"""A user's plugin makes the same of a recorded model with trinity-rft's classes as with our stand-ins."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

OUTCOMES = Path(__file__).parents[1] / "workflows" / "plugin_outcomes.py"

pytestmark = pytest.mark.upstream


def outcomes(python):
    done = subprocess.run([python, OUTCOMES], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_classes_of_trinity_run_unchanged(upstream):
    assert outcomes(upstream("0.6.0")) == outcomes(sys.executable)
