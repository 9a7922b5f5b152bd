"""Reward functions that hang, crash, exit, print, fork: each costs its own answer, never the run."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from explorer_job import ROOT, verl_config
from omegaconf import OmegaConf
from processes import lives
from test_scoring import TASK, function, score, trajectory

from trinity_compat.common.errors import RunError
from trinity_compat.common.user_output import REWARD
from trinity_compat.explorer.rewards.processes import pool as pools
from trinity_compat.explorer.rewards.processes.pool import make_scorer
from trinity_compat.explorer.rewards.scoring import failure_metrics
from trinity_compat.explorer.sandbox.output import RateLimitedOutput
from trinity_compat.job.fingerprint import SCORING, FilesEdited, check, made
from trinity_compat.job.run_spec import RunSpec, ScoringSpec, SyncSpec

GOOD, BAD = "1234", "4321"
LIMITS = ScoringSpec(timeout_s=8.0, on_error="zero", memory_gb=1.0)

# What the function does with the bad answer; and how that shows.
FAULTS = {
    "sleeps": ("time.sleep(1e6)", "timeout"),
    "spins": ("while True: pass", "timeout"),
    "spins in C": ("re.match(r'(a+)+b', 'a' * 64)", "timeout"),
    "segfaults": ("ctypes.string_at(0)", "died"),
    "exits": ("sys.exit(3)", "error"),
    "exits at once": ("os._exit(3)", "died"),
    "allocates": ("x = [bytes(1 << 24) for _ in range(1 << 20)]", "error"),
    "raises": ("raise ValueError('bad')", "error"),
    "returns NaN": ("return float('nan')", "error"),
    "returns nothing": ("return None", "error"),
    "returns a dict without a score": ("return {'acc': 1.0}", "error"),
    "returns what cannot be stored": ("return {'score': 1.0, 'lock': threading.Lock()}", "error"),
    "returns too much": ("return {'score': 1.0, 'text': 'x' * (65 << 20)}", "error"),
    "kills its group": ("os.killpg(0, 9)", "died"),
    "closes every file": ("os.closerange(3, 256); time.sleep(1e6)", "died"),
}


def faulty(tmp_path, fault):
    body = f"""if solution_str.startswith({BAD!r}):
        {fault}
    return 0.5"""
    words = function(tmp_path, body)
    path = tmp_path / "mine.py"
    imports = "import ctypes, multiprocessing, os, re, subprocess, sys, threading, time\n"
    path.write_text(imports + path.read_text())
    return words


@pytest.mark.parametrize("manager", ["naive", "prime"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_its_own_answer(toy, tmp_path, name, manager):
    fault, kind = FAULTS[name]
    words = (*faulty(tmp_path, fault), f"reward.reward_manager.name={manager}")
    # a busy machine may take seconds for a good answer, and each answer that hangs takes the limit
    limits = LIMITS if kind == "timeout" else replace(LIMITS, timeout_s=300.0)
    scores = score(toy, [GOOD, BAD, GOOD], *words, limits=limits)
    assert [(each.reward, each.failure) for each in scores] == [(0.5, ""), (0.0, kind), (0.5, "")]
    assert failure_metrics(scores[1])["reward/failed"] == 1.0
    assert failure_metrics(scores[0]) == {}


def test_an_answer_that_hangs_is_waited_for_once(toy, tmp_path):
    seen = tmp_path / "seen"
    fault = f"open({str(seen)!r}, 'a').write('x'); time.sleep(1e6)"
    scores = score(toy, [GOOD, BAD, GOOD], *faulty(tmp_path, fault), limits=LIMITS)
    assert scores[1].failure == "timeout"
    assert seen.read_text() == "x"


def test_columns_stay_whole_where_an_answer_failed(toy, tmp_path):
    body = f"""if solution_str.startswith({BAD!r}):
        time.sleep(1e6)
    return {{'score': 0.5, 'ok': True, 'why': 'x'}}"""
    words = function(tmp_path, body)
    path = tmp_path / "mine.py"
    path.write_text("import time\n" + path.read_text())
    good, bad = score(toy, [GOOD, BAD], *words, limits=LIMITS)
    assert good.info == {"score": 0.5, "ok": True, "why": "x"}
    assert bad.info == {"score": 0.0, "ok": False, "why": None}


def test_an_error_ends_the_run_where_nothing_else_is_asked_for(toy, tmp_path):
    with pytest.raises(RunError, match="ValueError: bad"):
        score(toy, [GOOD, BAD], *faulty(tmp_path, "raise ValueError('bad')"))


@pytest.mark.parametrize("fault", ["time.sleep(1e6)", "os._exit(3)"])
def test_a_fault_may_end_the_run(toy, tmp_path, fault):
    limits = ScoringSpec(timeout_s=1.0, on_hang="raise")
    with pytest.raises(RunError, match=r"compute_score of .*mine.py (gave no score|ended its process)"):
        score(toy, [BAD], *faulty(tmp_path, fault), limits=limits)


def test_a_fault_that_passes_is_tried_again(toy, tmp_path):
    seen = tmp_path / "seen"
    fault = f"""
        if os.path.exists({str(seen)!r}): return 0.25
        open({str(seen)!r}, 'w').close(); os._exit(3)"""
    limits = ScoringSpec(timeout_s=300.0, on_hang="retry")
    (bad,) = score(toy, [BAD], *faulty(tmp_path, fault), limits=limits)
    assert (bad.reward, bad.failure, bad.retries) == (0.25, "", 1)
    assert failure_metrics(bad) == {"reward/retries": 1.0}


def test_retries_have_an_end(toy, tmp_path):
    limits = ScoringSpec(timeout_s=300.0, on_hang="retry")
    with pytest.raises(RunError, match="ended its process"):
        score(toy, [BAD], *faulty(tmp_path, "os._exit(3)"), limits=limits)


def test_consecutive_failures_end_a_run_that_scores_them_zero(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "IN_A_ROW", 4)
    limits = ScoringSpec(timeout_s=300.0, on_hang="zero")
    with pytest.raises(RunError, match="without a score in between"):
        score(toy, [BAD] * 4, *faulty(tmp_path, "os._exit(3)"), limits=limits)


def test_what_is_printed_fills_neither_memory_nor_disk(toy, tmp_path, capfd):
    fault = "line = 'x' * 1023; [print(line) for _ in range(1 << 20)]"
    scores = score(toy, [BAD], *faulty(tmp_path, fault), limits=ScoringSpec(timeout_s=300.0))
    assert [each.reward for each in scores] == [0.5]
    out = capfd.readouterr().out
    assert len(out) < 2 << 20
    assert "bytes more, left out" in out


def test_each_printed_line_reaches_the_log_with_the_mark_of_its_process(toy, tmp_path, capfd):
    fault = "print('hello'); print('two\\nlines', file=sys.stderr); print('pid', os.getpid(), end='')"
    score(toy, [BAD], *faulty(tmp_path, fault))
    lines = [line for line in capfd.readouterr().out.splitlines() if "RewardFunction" in line]
    pid = lines[-1].split()[-1]
    assert lines == [f"(RewardFunction pid={pid}) {text}" for text in ("hello", "two", "lines", f"pid {pid}")]


def test_each_minute_has_its_own_room(monkeypatch):
    written, now = [], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    printed = RateLimitedOutput(REWARD, written.append, per_minute=4)
    printed.add(b"123456")
    now[0] = 61.0
    printed.add(b"78")
    assert written == [b"1234", b"\n(RewardFunction pid=all) [2 bytes more, left out]\n", b"78"]


FORKS = {
    "a copy of the process": "note(os.fork())",
    "a process of multiprocessing": "p = multiprocessing.Process(target=lambda: time.sleep(1e6));"
    " p.start(); note(p.pid)",
    "a program": "note(subprocess.Popen(['sleep', '1000000']).pid)",
}


@pytest.mark.parametrize("name", FORKS)
def test_what_a_function_starts_ends_with_its_process(toy, tmp_path, name):
    pids = tmp_path / "pids"
    note = f"note = lambda pid: open({str(pids)!r}, 'a').write(f'{{pid}}\\n' if pid else ''); "
    scores = score(toy, [BAD, GOOD], *faulty(tmp_path, note + FORKS[name]))
    assert [each.reward for each in scores] == [0.5, 0.5]
    (pid,) = map(int, pids.read_text().split())
    _wait_for_the_end_of({pid})


def test_a_function_that_is_waited_for_no_longer_blocks_nobody_else_s_clock(toy, tmp_path):
    words = faulty(tmp_path, "time.sleep(6)")
    config = OmegaConf.create(verl_config(toy, "reward.num_workers=1", *words))
    config.reward.reward_manager.name = "prime"

    async def go():
        with closing(make_scorer(config, ScoringSpec(timeout_s=10.0))) as scorer:
            await scorer.group(TASK, [trajectory(GOOD)])
            dropped = asyncio.ensure_future(scorer.group(TASK, [trajectory(BAD)]))
            await asyncio.sleep(0.2)
            dropped.cancel()
            return await scorer.group(TASK, [trajectory(BAD)])

    assert [each.reward for each in asyncio.run(go())] == [0.5]


def test_batch_gets_the_answers_of_a_group_in_one_call(toy, tmp_path):
    words = function(
        tmp_path,
        "assert list(data_sources) == ['toy/sort'] * 3 and extra_infos[0]['index'] == 17\n"
        "    return [len(solution_strs) + index for index in range(len(solution_strs))]",
        signature="data_sources, solution_strs, ground_truths, extra_infos",
    )
    scores = score(toy, [GOOD, BAD, GOOD], *words, "reward.reward_manager.name=batch")
    assert [each.reward for each in scores] == [3.0, 4.0, 5.0]


def test_batch_that_fails_costs_its_group(toy, tmp_path):
    words = function(
        tmp_path, "return 1 / 0", signature="data_sources, solution_strs, ground_truths, extra_infos"
    )
    scores = score(toy, [GOOD, BAD], *words, "reward.reward_manager.name=batch", limits=LIMITS)
    assert [(each.reward, each.failure) for each in scores] == [(0.0, "error"), (0.0, "error")]


def test_prime_calls_by_position_in_the_main_thread_and_takes_a_tuple(toy, tmp_path):
    body = """
    assert threading.current_thread() is threading.main_thread()
    return (0.75, 'why')"""
    words = function(tmp_path, body, signature="task, completion, reference, extra")
    path = tmp_path / "mine.py"
    path.write_text("import threading\n" + path.read_text())
    scores = score(toy, [GOOD], *words, "reward.reward_manager.name=prime")
    assert [each.reward for each in scores] == [0.75]


def test_async_functions_wait_side_by_side(toy, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent(
            """\
            import asyncio
            here = 0
            async def compute_score(solution_str, **kw):
                global here
                here += 1
                while here < 40:
                    await asyncio.sleep(0.01)
                if solution_str.startswith('4321'):
                    await asyncio.sleep(1e6)
                return 0.5
            """
        )
    )
    words = (f"reward.custom_reward_function.path={path}", "reward.num_workers=1")
    scores = score(toy, [GOOD] * 39 + [BAD], *words, limits=ScoringSpec(timeout_s=20.0))
    assert [each.failure for each in scores] == [""] * 39 + ["timeout"]


def test_a_module_that_cannot_be_imported_ends_the_run(toy, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit('no licence')\n")
    with pytest.raises(RunError, match="the process for it cannot work: SystemExit: no licence"):
        score(toy, [GOOD], f"reward.custom_reward_function.path={path}")


def test_a_process_that_replaces_another_does_not_score_by_an_edited_file(toy, tmp_path):
    """What lives scores on by the file that the run started with."""
    words = faulty(tmp_path, "os._exit(3)")
    path = tmp_path / "mine.py"
    verl = verl_config(toy, "reward.num_workers=1", *words)
    mine = made(RunSpec("", "", verl, 1, None, SyncSpec()), cwd=tmp_path)

    async def go():
        loaded = partial(check, mine, SCORING)
        with closing(make_scorer(OmegaConf.create(verl), LIMITS, None, loaded)) as scorer:
            await scorer.group(TASK, [trajectory(GOOD)])
            path.write_text(path.read_text().replace("return 0.5", "return -7.0"))
            (kept,) = await scorer.group(TASK, [trajectory(GOOD)])
            (died,) = await scorer.group(TASK, [trajectory(BAD)])
            for _ in range(2):
                with pytest.raises(
                    FilesEdited, match=f"reward function {path} was edited since the run started"
                ):
                    await scorer.group(TASK, [trajectory(GOOD)])
            return kept.reward, died.failure

    assert asyncio.run(go()) == (0.5, "died")


def test_a_killed_explorer_leaves_no_scoring_process(toy, tmp_path):
    words = faulty(tmp_path, "while True: pass")
    code = f"""
import asyncio, sys
from multiprocessing import forkserver
sys.path[:0] = [{str(ROOT / "tests/explorer")!r}]
from explorer_job import verl_config
from omegaconf import OmegaConf
from test_scoring import TASK, trajectory
from trinity_compat.explorer.rewards.processes.pool import make_scorer
from trinity_compat.job.run_spec import ScoringSpec
async def go():
    config = OmegaConf.create(verl_config({str(toy)!r}, *{words!r}))
    scorer = make_scorer(config, ScoringSpec())
    await scorer.group(TASK, [trajectory({GOOD!r})])
    workers = (each.process._process.pid for each in scorer._pool._places)
    print(forkserver._forkserver._forkserver_pid, *workers, flush=True)
    await scorer.group(TASK, [trajectory({BAD!r})])
asyncio.run(go())
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    pids = set(map(int, process.stdout.readline().split()))
    assert len(pids) > 1
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _wait_for_the_end_of(pids)


def _wait_for_the_end_of(pids):
    deadline = time.monotonic() + 60
    while left := {pid for pid in pids if lives(pid)}:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
