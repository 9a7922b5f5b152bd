"""Databases that an attacker made: each page ends within its limits and says what is wrong, and the pages of
other jobs answer."""

import subprocess
import sys
import time
from pathlib import Path

import hostile_databases
import pytest
from hostile_databases import SPOILED
from studio_jobs import client_of, make_job

from trinity_compat.common.untrusted_sqlite import ReadLimits
from trinity_compat.studio import read_only_database, run_state

PAGES = [
    *("/", "/run/bad", "/metrics/bad?name=actor/entropy", "/seconds/bad", "/look/bad", "/configuration/bad"),
    *("/experiences/bad", "/groups/bad", "/group/bad?id=1", "/tokens/bad?id=1&from=0"),
    *("/tokens/bad?id=1&whole", "/selection/bad", "/overlay?run=bad&run=good", "/compare?a=bad&b=good"),
    "/answers?a=bad&b=good&task=toy/sort 1",
]
SAID = {
    "endless_view": "metrics is a view",
    "other_ledger": "is a view",
    "forged_view": "damaged",
    "virtual_table": "participants is a virtual table",
    "computed_column": "metrics of metrics is computed",
    "lacking_column": "table participants has no column detail",
    "large_text": "a value of more than",
    "damaged_pages": "damaged",
    "cut_short": "damaged",
    "no_database": "damaged",
    "pages_in_circles": "of processor time",
    "other_types": "a value that no run writes",
    "no_rows": "a value that no run writes",
}
LIMIT_S = 1.0


@pytest.fixture
def spoiled(tmp_path, request):
    """A good job, and one that the parameter has spoiled."""
    make_job(tmp_path / "good", evil=False)
    request.param(make_job(tmp_path / "bad", evil=False) / "buffer" / "experiences.db")
    return tmp_path


@pytest.mark.parametrize("spoiled", SPOILED, indirect=True, ids=lambda one: one.__name__)
def test_each_page_ends_and_says_what_is_wrong(spoiled, request, monkeypatch):
    monkeypatch.setattr(read_only_database.ReadOnlyDatabase, "limits", ReadLimits(cpu_s=LIMIT_S))
    studio, name = client_of(spoiled), request.node.callspec.id
    for page in PAGES:
        began = time.process_time()
        answer = studio.get(page)
        assert answer.status_code in (200, 404, 503), (page, answer.text)
        assert time.process_time() - began < 10 * LIMIT_S, page
        assert "Traceback" not in answer.text and "sqlalche.me" not in answer.text, page
    if name in SAID:
        assert SAID[name] in studio.get("/run/bad").text
    assert studio.get("/run/good").status_code == 200
    runs = studio.get("/").text
    assert ">good</a>" in runs and "0.6" in runs


@pytest.mark.parametrize("spoiled", [hostile_databases.pages_in_circles], indirect=True)
def test_a_job_that_takes_long_to_read_is_not_read_for_each_look_at_the_runs(spoiled, monkeypatch):
    monkeypatch.setattr(read_only_database.ReadOnlyDatabase, "limits", ReadLimits(cpu_s=LIMIT_S))
    read = []
    whole = run_state.summary_of
    monkeypatch.setattr(run_state, "summary_of", lambda job: [read.append(job.name), whole(job)][1])
    studio = client_of(spoiled)
    for _ in range(4):
        (spoiled / "bad" / "log" / "x").write_text(str(read))  # a change does not make it due
        assert "of processor time" in studio.get("/").text
    assert read.count("bad") == 1


MEMORY = """
import resource, sys
from pathlib import Path
from studio_jobs import client_of
studio = client_of(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
for page in sys.argv[3:]:
    assert studio.get(page).status_code in (200, 404, 503), page
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10)
"""


@pytest.mark.parametrize(
    "spoiled", [hostile_databases.large_text, hostile_databases.large_blob], indirect=True
)
def test_a_value_of_hundreds_of_megabytes_is_not_held(spoiled):
    most = 700 << 20
    ended = subprocess.run(
        [sys.executable, "-c", MEMORY, str(spoiled), str(most), *PAGES],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        env={"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}", "PATH": "/usr/bin:/bin"},
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 450 << 20


def test_views_of_a_user_s_own_are_not_expanded(tmp_path):
    hostile_databases.doubled_views(make_job(tmp_path / "own", evil=False) / "buffer" / "experiences.db")
    began = time.process_time()
    assert client_of(tmp_path).get("/run/own").status_code == 200
    assert time.process_time() - began < 10
