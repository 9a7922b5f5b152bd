"""Failed tests run once more, alone; what CI has no time for is named: `scripts/ci/run_tests.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each fails in a worker of xdist; the second run has no workers.
ALONE = {"PYTEST_ARGS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take seconds to import
BESIDE = "def beside(config):\n    return hasattr(config, 'workerinput')\n\n\n"
FAILS = "def test_beside(pytestconfig):\n    assert not beside(pytestconfig)\n"
CRASHES = "import os\n\n\ndef test_crash(pytestconfig):\n    beside(pytestconfig) and os._exit(9)\n"
SKIPS = (
    "import pytest\n\n\ndef test_skip(pytestconfig):\n"
    "    assert not beside(pytestconfig)\n    pytest.skip('no server')\n"
)


@pytest.fixture
def part(tmp_path):
    """Runs a part that has the given text as its only file; (exit code, output, names in flaky.txt)."""

    def run(text, *arguments, **env):
        (tmp_path / "test_it.py").write_text(BESIDE + text)
        words = [str(tmp_path / "test_it.py"), "-c", "/dev/null", "--rootdir", str(tmp_path)]
        words += ["-p", "xdist", "-n", "1"]
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "ci" / "run_tests.py"), "light", *words, *arguments],
            env={**os.environ, **ALONE, "CI_OUT": str(tmp_path / "out"), **env},
            capture_output=True,
            text=True,
        )
        flaky = tmp_path / "out" / "flaky.txt"
        return done.returncode, done.stdout, flaky.read_text().split() if flaky.exists() else []

    return run


@pytest.mark.parametrize(("text", "name"), [(FAILS, "test_beside"), (CRASHES, "test_crash")])
def test_one_that_fails_beside_others_and_passes_alone_is_named(part, tmp_path, text, name):
    code, out, flaky = part(text + "\n\ndef test_good():\n    pass\n")
    assert code == 0
    assert flaky == [f"test_it.py::{name}"]
    assert f"FLAKY: test_it.py::{name} (failed beside others, passed alone)" in out
    assert (tmp_path / "out" / "light.xml").exists() and (tmp_path / "out" / "light-again.xml").exists()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def test_red():\n    assert False\n", 1),
        (SKIPS, 1),
        (FAILS + "\n\ndef test_red():\n    assert False\n", 1),
        ("assert False\n", 2),
        ("def helper():\n    pass\n", 5),
        ("".join(FAILS.replace("test_beside", f"test_{number}") for number in range(21)), 1),
    ],
    ids=["red", "skipped when alone", "one of two red", "not collected", "no test", "too many to be chance"],
)
def test_what_does_not_pass_alone_fails_the_part(part, text, code):
    found, _, flaky = part(text)
    assert (found, flaky) == (code, [])


def test_words_of_the_user_s_own_may_leave_a_part_without_tests(part):
    assert part("def test_good():\n    pass\n", "-m", "nothing", PYTEST_ARGS="tests/launch")[0] == 0


def test_a_heavy_test_that_has_not_begun_in_time_is_left_out_and_counted(part, tmp_path):
    text = """import pytest, time


@pytest.fixture
def server():
    assert 0, "started"


@pytest.mark.runtime
def test_engine(server):
    pass


def test_light():
    pass
"""
    words = ["-p", "conftest", "-W", "ignore"]
    env = {"PYTHONPATH": str(ROOT / "tests")}
    assert part(text, *words, TESTS_LAST_START="1", **env)[0] == 0
    assert (tmp_path / "out" / "left_out.txt").read_text() == "test_it.py: 1\n"
    assert part(text, *words, **env)[0] == 1  # in time


def test_what_failed_runs_once_more_however_late_it_is(part):
    text = "import os\n\n\n" + FAILS + "    assert 'TESTS_LAST_START' not in os.environ\n"
    assert part(text, TESTS_LAST_START="4e9")[0] == 0
