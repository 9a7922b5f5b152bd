"""The real trinity-rft, each release in a venv of its own (`make install-tests`)."""

import json
import subprocess
from pathlib import Path

import needs
import pytest
from needs import ROOT  # noqa: F401


@pytest.fixture(scope="session")
def upstream():
    """Return a function: release → the interpreter that has it."""
    return needs.upstream


@pytest.fixture(scope="session")
def accept(upstream):
    """Return a function: {name: YAML text}, release → {name: (stage that refused it or None, error)}."""

    def judge(texts, version):
        rows = "".join(json.dumps({"name": name, "yaml": text}) + "\n" for name, text in texts.items())
        done = subprocess.run(
            [upstream(version), Path(__file__).parent / "accept.py"],
            input=rows,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        verdicts = map(json.loads, done.stdout.splitlines())
        return {v["name"]: (v["stage"], v["error"]) for v in verdicts}

    return judge
