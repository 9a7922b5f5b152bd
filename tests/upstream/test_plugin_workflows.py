"""A user's plugin makes the same of a recorded model with trinity-rft's classes as with our stand-ins."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKFLOWS = Path(__file__).parents[1] / "trinity" / "workflows"
sys.path.append(str(WORKFLOWS))

pytestmark = pytest.mark.upstream


def outcomes(python, script="plugin_outcomes.py"):
    done = subprocess.run([python, WORKFLOWS / script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_classes_of_trinity_run_unchanged(upstream):
    assert outcomes(upstream("0.6.0")) == outcomes(sys.executable)


def test_the_recorded_advantages_of_steps_are_trinitys(upstream):
    """The real package gives the advantages that test_step_rows.py expects of ours."""
    theirs = outcomes(upstream("0.6.0"), "upstream_steps.py")
    assert theirs == [
        pytest.approx(each, abs=1e-6) for each in json.loads((WORKFLOWS / "steps.json").read_text())
    ]
