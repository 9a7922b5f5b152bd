"""Lengths and speeds of a job: read from its database, which stays as it is."""

import hashlib

import numpy as np
import pytest
from advise_launch import advised, told

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.model import Experience, Group
from trinity_compat.run import dry_run
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions

ANSWER, PROMPT = 100, 10
GENERATION_S, STEP_S = 12.0, 20.0
TOKENS = 64 * 4 * (ANSWER + PROMPT)  # of a step


def job(folder, name, *sets, answers=True, steps=5):
    """A job of the script, with 4 + 4 GPUs; returns its folder."""
    options = RunOptions(sets=sets, dry_run=True, device="cuda", job=str(folder / "job"), mode="both")
    ((source, rest),) = dry_run.sources(name, (), options)
    spec = make_plan(source.config, rest, cwd=folder, device="cuda").spec
    (folder / "job" / "config").mkdir(parents=True)
    (folder / "job" / "buffer").mkdir()
    spec.save(folder / "job" / "config" / "run.json")
    buffer = open_buffer(spec.database_url)
    history = buffer.history()
    if answers:
        buffer.put_groups([group(number) for number in range(20)], history=history)
    for step in range(1, steps + 1):
        trained = {"timing_s/step": STEP_S, "timing_s/gen": GENERATION_S, "perf/total_num_tokens": TOKENS}
        buffer.log_metrics("trainer", step, trained)
        buffer.log_metrics("explorer", step, {"time/rollout": GENERATION_S})
    buffer.close()
    return folder / "job"


def group(number):
    experience = Experience(
        0,
        np.zeros(PROMPT, np.int32),
        np.zeros(ANSWER, np.int32),
        np.ones(ANSWER, np.uint8),
        np.zeros(ANSWER, np.float32),
        0.0,
        0,
        0,
    )
    return Group(str(number), number, {"i": number}, 1, (experience,))


def at_the_job_s_split(found, mode):
    (split,) = (split for split in found["splits"] if split["explorer_gpus"] == 4)
    return split["step_s"][mode]


def test_a_job_of_style_fixed_predicts_itself_and_the_others(tmp_path, script):
    folder = job(tmp_path, script())
    found = advised("run.sh", "--job", folder)
    assert found["workload"]["answer_tokens_mean"] == ANSWER
    assert found["workload"]["prompt_tokens"] == PROMPT
    # what the trainer did not wait for, on its four GPUs
    assert found["speeds"]["training"] == pytest.approx(TOKENS / (STEP_S - GENERATION_S) / 4)
    handover = found["speeds"]["handover_s"]
    assert at_the_job_s_split(found, "split, offset 0") == pytest.approx(STEP_S + handover, rel=0.01)
    assert at_the_job_s_split(found, "split, offset 1") == pytest.approx(GENERATION_S + handover, rel=0.01)
    assert any("fitted to the job's 12 s of generation" in line for line in found["assumptions"])


def test_a_fully_async_job_predicts_its_own_step(tmp_path, script):
    sets = ("synchronizer.sync_style=fully_async", "algorithm.sample_strategy=staleness_control")
    folder = job(tmp_path, script(), *sets, "algorithm.sample_strategy_args.max_staleness=2")  # r = 2
    found = advised("run.sh", "--job", folder)
    own = at_the_job_s_split(found, "fully_async, staleness 1")
    assert own == pytest.approx(STEP_S, rel=0.1)
    assert any("fitted to the job's 20 s a step" in line for line in found["assumptions"])


def test_a_job_is_only_read(tmp_path, script):
    folder = job(tmp_path, script())
    files = {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}
    advised("run.sh", "--job", folder)
    database = folder / "buffer" / "experiences.db"
    assert hashlib.sha256(database.read_bytes()).digest() == files[database]
    assert all(path.read_bytes() for path in files if path.suffix == ".json")


def test_a_job_without_a_step_gives_lengths_alone(tmp_path, script):
    found = advised("run.sh", "--job", job(tmp_path, script(), steps=0))
    assert found["workload"]["answer_tokens_mean"] == ANSWER
    assert any("--tokens-per-s gives it" in line for line in found["assumptions"])


def test_a_job_without_an_answer_is_refused(tmp_path, script):
    assert "this job has no answers yet" in told(
        "run.sh", "--job", job(tmp_path, script(), answers=False), code=2
    )
