"""``scripts/judge/mutate.py``: what a mutant is, and that a fork of its warm process sees today's code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from loaded_scripts import loaded

ROOT = Path(__file__).resolve().parents[2]
CODE = "def more(number):\n    return number + 1\n"
TESTS = """
import time
import pytest
from trinity_compat.sums import more

def test_more():
    assert more(1) == 2

def test_ends():
    while more(1) == 3:
        time.sleep(0.01)

@pytest.mark.runtime
def test_left_out():
    raise AssertionError
"""


@pytest.fixture
def mutate(monkeypatch):
    return loaded("mutate", monkeypatch)


def test_a_mutant_changes_what_runs_and_nothing_else(mutate, tmp_path, monkeypatch):
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    file = tmp_path / "trinity_compat" / "toy" / "sums.py"
    file.parent.mkdir(parents=True)
    file.write_text('"""Sums."""\n\n\ndef more(number: int = 2) -> "int":\n    return number + 1\n')
    found = {(m.kind, m.diff(tmp_path).splitlines()[-1].strip("+ ")) for m in mutate.mutants_of(file)}
    assert found == {
        ("constant", 'def more(number: int = (3)) -> "int":'),
        ("constant", 'def more(number: int = (1)) -> "int":'),
        ("arithmetic", "return (number - 1)"),
        ("constant", "return number + (2)"),
        ("constant", "return number + (0)"),
        ("return", "return (None)"),
    }


def test_a_sample_is_the_same_for_the_same_seed(mutate):
    files = mutate.files_of("audit")
    first, again, other = (mutate.sample(files, 12, seed) for seed in ("1 audit", "1 audit", "2 audit"))
    assert first == again and first != other and len(first) == 12
    assert len({mutant.kind for mutant in first}) > 5


@pytest.fixture
def warm(tmp_path):
    (tmp_path / "trinity_compat").mkdir()
    (tmp_path / "trinity_compat/__init__.py").touch()
    (tmp_path / "trinity_compat/sums.py").write_text(CODE)
    (tmp_path / "test_sums.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = runtime\n")
    words = [sys.executable, str(ROOT / "scripts/judge/warm_pytest.py"), str(tmp_path), "trinity_compat.sums"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline()) == {"ready": True}

        def asked(limit_s, *words, times=""):
            log = str(tmp_path / "log")
            words = ["-x", "-p", "no:cacheprovider", *words]
            request = {"words": words, "limit_s": limit_s, "times": times, "log": log}
            print(json.dumps(request), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield asked
        process.stdin.close()


def test_a_fork_sees_the_code_as_it_stands_and_leaves_out_what_is_heavy(warm, tmp_path):
    times = tmp_path / "times.json"
    answer = warm(None, times=str(times))
    assert (answer["code"], answer["timed_out"]) == (0, False)
    assert set(json.loads(times.read_text())) == {"test_sums.py::test_more", "test_sums.py::test_ends"}
    (tmp_path / "trinity_compat/sums.py").write_text(CODE.replace("+", "-"))
    assert warm(None)["code"] == 1
    (tmp_path / "trinity_compat/sums.py").write_text(CODE)
    assert warm(None)["code"] == 0


def test_one_that_hangs_is_killed_at_its_limit(warm, tmp_path):
    (tmp_path / "trinity_compat/sums.py").write_text(CODE.replace("1", "2"))
    answer = warm(3, "test_sums.py::test_ends")
    assert answer["timed_out"] and answer["code"] != 0
