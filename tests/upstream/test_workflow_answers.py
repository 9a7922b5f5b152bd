"""What workflows and rewards are held against is the real trinity-rft's."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.upstream


@pytest.mark.parametrize(
    ("script", "recorded"),
    [
        ("tests/trinity/workflows/upstream_answers.py", "tests/trinity/workflows/answers.json"),
        ("tests/trinity/pipelines/upstream_operators.py", "tests/trinity/pipelines/operators.json"),
        ("scripts/generate/make_workflow_texts.py", "translators/generated/workflows/texts.json"),
        ("scripts/generate/make_workflow_names.py", "translators/generated/workflows/names.json"),
    ],
)
def test_the_recorded_answers_are_what_trinity_gives(upstream, script, recorded):
    done = subprocess.run([upstream("0.6.0"), ROOT / script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == json.loads((ROOT / recorded).read_text())
