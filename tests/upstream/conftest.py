"""The real trinity-rft, each release in a venv of its own (`make install-tests`)."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

import needs
import pytest
from needs import ROOT  # noqa: F401

from trinity_compat.trinity.config import dump


@pytest.fixture(scope="session")
def upstream():
    """Return a function: release → the interpreter that has it."""
    return needs.upstream


@pytest.fixture(scope="session")
def answers(upstream):
    """Return a function: script of this folder, release, rows → the script's answer to each row.

    Each script is started once a release: to import trinity takes eight CPU seconds.
    """
    with contextlib.ExitStack() as ends:
        started = {}

        def ask(script, version, rows):
            if (script, version) not in started:
                started[script, version] = ends.enter_context(answering(upstream(version), script))
            return [started[script, version](row) for row in rows]

        yield ask


@contextlib.contextmanager
def answering(interpreter, script):
    """Yield a function: a row for the script's stdin → the row that it prints then."""
    pipe = subprocess.PIPE
    command = [interpreter, Path(__file__).parent / script]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True) as process,
    ):

        def ask(row):
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(row), file=process.stdin, flush=True)
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                pytest.fail(f"{script} has ended: {errors.read()[-3000:]}")
            return json.loads(line)

        yield ask


@pytest.fixture(scope="session")
def accept(answers):
    """Return a function: {name: YAML text}, release → {name: (stage that refused it or None, error)}."""

    def judge(texts, version):
        rows = [{"name": name, "yaml": text} for name, text in texts.items()]
        return {v["name"]: (v["stage"], v["error"]) for v in answers("accept.py", version, rows)}

    return judge


@pytest.fixture(scope="session")
def made_by(answers):
    """Return a function: {name: configuration or YAML text}, release → {name: what the package makes of it}.

    Of one that the package refuses, its error.
    """

    def make(given, version):
        rows = [
            {"name": name, "yaml": file if isinstance(file, str) else dump(file)}
            for name, file in given.items()
        ]
        return {
            row["name"]: row.get("config", row.get("error")) for row in answers("complete.py", version, rows)
        }

    return make
