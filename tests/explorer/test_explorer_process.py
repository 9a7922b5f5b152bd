"""The explorer as a process: real Ray, real vLLM, real veRL; and how it ends."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from explorer_job import BATCH, job, publish, start

from trinity_compat.synchronizer import weight_sync_check

pytestmark = [pytest.mark.runtime, pytest.mark.whole]


def wait(condition, process, limit_s=600):
    begin = time.monotonic()
    while not condition():
        assert process.poll() is None, log_of(process)
        assert time.monotonic() - begin < limit_s, log_of(process)
        time.sleep(0.1)


def log_of(process):
    return Path(process.args[3], "explorer.log").read_text()[-3000:]


def contents(buffer):
    return [
        (g.task_no, e.run, e.response_ids.tolist(), [round(float(x), 5) for x in e.logprobs], e.reward)
        for g in buffer.groups("train")
        for e in g.experiences
    ]


def test_fills_the_buffer_evaluates_and_ends_and_a_second_run_makes_the_same(tmp_path, toy):
    runs = []
    for name, ends in (("one", by_the_trainer_s_mark), ("two", by_the_trainer_s_silence)):
        spec, buffer = job(tmp_path / name, toy, steps=2)
        publish(spec, buffer, toy, 0, 1)
        request = buffer.request_eval(step=0, version=0)
        process = start(spec)
        wait(lambda b=buffer, r=request: b.depth()["ready"] == 2 * BATCH and b.eval_done(r), process)
        ends(buffer, process)
        assert [len(g.experiences) for g in buffer.groups(f"eval:{request.request_id}")] == [1] * 6
        metrics = dict(buffer.read_metrics("explorer"))
        assert sorted(metrics) == [1, 2]
        assert {"critic/score/mean", "response_length/mean", "rollout/model_version"} <= set(metrics[1])
        runs.append(contents(buffer))
    assert runs[0] == runs[1]


def by_the_trainer_s_mark(buffer, process):
    buffer.set_state("finished", True)
    assert process.wait(120) == 0, log_of(process)
    assert {one.state for one in buffer.participants()} == {"done"}


def by_the_trainer_s_silence(buffer, process):
    buffer.beat("trainer", "trainer", state="running")
    assert process.wait(120) == 3, log_of(process)
    assert "has been silent for" in log_of(process)
    assert not buffer.get_state("finished")


def ending(spec, limit_s=600):
    process = start(spec)
    code = process.wait(limit_s)
    return code, Path(spec.job_dir, "explorer.log").read_text()


def test_a_reward_function_that_fails_ends_the_run_with_its_line(tmp_path, toy):
    reward = tmp_path / "mine.py"
    reward.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    raise KeyError('x')\n"
    )
    spec, buffer = job(tmp_path / "job", toy, f"reward.custom_reward_function.path={reward}")
    publish(spec, buffer, toy, 0)
    code, log = ending(spec)
    assert code == 1
    assert f"error: reward function compute_score of {reward} failed" in log
    assert "mine.py:2" in log
    assert buffer.depth()["ready"] == 0
    (me,) = buffer.participants()
    assert me.state == "failed"
    assert "mine.py" in me.detail["reason"]


def test_an_engine_further_apart_than_the_bound_ends_it_with_both_numbers(tmp_path, toy, monkeypatch):
    """No rounding is as small as this bound: what stops here is what other weights would stop."""
    monkeypatch.setenv(weight_sync_check.BOUND, "1e-12")
    spec, buffer = job(tmp_path / "job", toy)
    publish(spec, buffer, toy, 0, 1)
    weight_sync_check.SCORED_ANSWER.set(
        buffer, weight_sync_check.ScoredAnswer(1, [5, 6, 7], [8, 9], [-0.5, -1.5])
    )
    code, log = ending(spec)
    assert code == 1
    assert "error: the engine does not hold the weights that the trainer sent: version 1: mean log-" in log
    assert "in the engine, -1.0000 in the trainer over 2 tokens" in log
    assert buffer.depth()["ready"] == BATCH  # of version 0


def test_bad_input_ends_with_2_before_anything_starts(tmp_path, toy):
    spec, _ = job(tmp_path / "job", toy, "actor_rollout_ref.model.path=/nowhere/model")
    code, log = ending(spec)
    assert code == 2
    assert "error: actor_rollout_ref.model.path=/nowhere/model: no model there" in log


@pytest.mark.nightly  # the run of tests/faults/test_explorer_or_trainer_killed.py loses one too
def test_a_killed_engine_is_noticed(tmp_path, toy):
    spec, buffer = job(tmp_path / "job", toy, steps=2)
    publish(spec, buffer, toy, 0)
    process = start(spec)
    wait(lambda: buffer.depth()["ready"] == BATCH, process)
    engines = [
        p
        for p in psutil.Process(process.pid).children(recursive=True)
        if "RolloutWorker" in " ".join(p.cmdline())
    ]
    (engine,) = engines
    engine.send_signal(signal.SIGKILL)
    publish(spec, buffer, toy, 1)
    assert process.wait(120) == 1, log_of(process)
    assert "error: the explorer's engine failed" in log_of(process)
    end = time.monotonic() + 120  # its fork server ends when it finds the explorer gone
    while left := alive_in_session(process.pid):
        assert time.monotonic() < end, left
        time.sleep(0.1)


def alive_in_session(leader):
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:80])
        except (psutil.Error, ProcessLookupError):
            continue
    return found
