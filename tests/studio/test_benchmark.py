"""The benchmark of the studio's pages writes its job past the store: it has to know the store's columns."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_page_is_asked_of_a_job_that_the_benchmark_made(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "studio.py", "--experiences", "2048"]
    ended = subprocess.run(
        [*command, "--times", "1", "--out", tmp_path], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "index: 2048 experiences" in ended.stdout
    assert "answers " in ended.stdout  # the last page


def test_the_benchmark_of_the_list_reads_its_jobs_without_and_with_the_index(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "studio_runs.py", "--jobs", "12", "--steps", "2"]
    ended = subprocess.run(
        [*command, "--out", tmp_path], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "no index, by reward" in ended.stdout and "with the index, by reward" in ended.stdout
    assert len(list((tmp_path / "12-2").rglob("run.json"))) == 12
