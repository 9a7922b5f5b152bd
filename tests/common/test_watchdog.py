"""Watchdogs on a clock that tests turn, and the end of processes that are really stopped."""

import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from trinity_compat.common import hung_process
from trinity_compat.common.error_text import last_error
from trinity_compat.common.hung_process import (
    HungProcess,
    describe,
    identity,
    kill,
    stack,
    stopped_first,
    suspect,
)
from trinity_compat.common.watchdog import FAILED, GAP_S, LONG, Watchdog, WatchdogThread


class Clock:
    """``passes``: in ticks that a watchdog takes for unbroken time."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def passes(self, seconds, *watchdogs):
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 1.0, until)
            for each in watchdogs:
                each.tick()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watchdog(clock):
    return Watchdog(60.0, clock=clock)


def test_what_makes_no_progress_within_its_limit_is_named(clock, watchdog):
    with watchdog.doing(
        "engine 0 owes 8 answers", suspects=lambda: [HungProcess("engine 0", 0, host="node7")]
    ):
        clock.passes(60, watchdog)
        assert watchdog.look() is None
        clock.passes(1, watchdog)
        found = watchdog.look()
    assert str(found) == (
        "no progress for 61 s: engine 0 owes 8 answers (engine 0, pid 0 on node7);"
        " trinity_compat.stall_timeout sets the limit"
    )
    assert watchdog.look() is None, "it is over"


def test_progress_however_slow_is_enough(clock, watchdog):
    with watchdog.doing("engine 0") as activity:
        for _ in range(10):
            clock.passes(59, watchdog)
            assert watchdog.look() is None
            activity.progress()
    assert watchdog.count == 12  # the begin and the end too


def test_what_is_slow_by_nature_has_longer_and_what_others_limit_has_for_ever(clock, watchdog):
    watchdog.begin("loading version 3", extra_s=30.0)
    step = watchdog.begin("step 1")
    step.now("update_actor", times=LONG)
    watchdog.begin("starting the engines", times=None)
    clock.passes(90, watchdog)
    assert watchdog.look() is None
    clock.passes(1, watchdog)
    assert watchdog.look().what == "loading version 3"
    step.now("update_actor", times=LONG, extra_s=30.0)
    clock.passes(60 * LONG + 30, watchdog)
    assert watchdog.look().what == "loading version 3"
    clock.passes(1, watchdog)
    for activity in list(watchdog._activities()):
        if activity.what.startswith("loading"):
            watchdog.end(activity)
    assert watchdog.look().what == "update_actor"
    assert watchdog.told() == ["update_actor", "starting the engines"]


def test_without_a_limit_a_watchdog_never_fires(clock):
    never = Watchdog(None, clock=clock)
    never.begin("engine 0")
    clock.passes(10_000, never)
    assert never.look() is None


def test_time_in_which_nobody_looked_is_no_hang(clock, watchdog):
    """A container that was paused for an hour comes back to engines that were paused too."""
    watchdog.begin("engine 0")
    clock.now += 3600
    watchdog.tick()
    assert watchdog.look() is None
    clock.passes(60 - GAP_S, watchdog)
    assert watchdog.look() is None
    clock.passes(1, watchdog)
    assert watchdog.look()


class Left(Exception):
    """In place of the process's end."""


def leaving(code):
    raise Left(code)


def test_a_guard_judges_others_only_while_they_pass_time_themselves(clock):
    """An event loop that stands still cannot see what its engines do: it is the loop that is named."""
    loop, engines = Watchdog(60.0, clock=clock), Watchdog(60.0, clock=clock)
    guard = WatchdogThread(loop, engines, last_word=lambda reason: None)
    loop.begin("the event loop goes round")
    engines.begin("engine 0")
    for _ in range(59):
        clock.now += 1
        assert guard.look() is None
    for _ in range(2):
        clock.now += 1
        found = guard.look()
    assert found.what == "the event loop goes round"


def test_a_process_that_hangs_itself_says_why_and_ends(clock, watchdog, capfd):
    said = []
    guard = WatchdogThread(watchdog, last_word=said.append, leave=leaving)
    watchdog.begin("step 3")
    clock.passes(61, watchdog)
    with pytest.raises(Left) as left:
        guard.act(guard.look())
    assert left.value.args == (FAILED,)
    assert said == [guard.reason] and guard.reason.startswith("no progress for 61 s: step 3;")
    err = capfd.readouterr().err
    assert "watchdog: no progress for 61 s: step 3" in err
    assert "test_a_process_that_hangs_itself" in err, "its own stacks"
    assert last_error(err) == guard.reason, "for a supervisor whose database is out of reach"


def test_it_ends_also_where_nobody_can_be_told(clock, watchdog):
    def unknown():
        raise RuntimeError("Ray has lost it")

    def away(reason):
        raise OSError("the database is away")

    watchdog.begin("step 3", suspects=unknown)
    clock.passes(61, watchdog)
    guard = WatchdogThread(watchdog, last_word=away, leave=leaving)
    with pytest.raises(Left):
        guard.act(guard.look())


@pytest.fixture
def stopped():
    """A process that was stopped (SIGSTOP) in a function of its own, and one below it."""
    code = """
        import subprocess, sys, time
        below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        def loads_weights():
            print(below.pid, flush=True)
            time.sleep(600)
        loads_weights()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    below = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.below = below
    yield process
    for pid in (process.pid, below):
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_what_hangs_is_named_shown_and_killed(stopped, clock, watchdog, capfd):
    said = []
    guard = WatchdogThread(watchdog, last_word=said.append, leave=leaving)
    watchdog.begin("loading version 3", suspects=lambda: [HungProcess("engine 0", stopped.pid)])
    clock.passes(61, watchdog)
    guard.__exit__()  # whoever waited for it has ended by itself
    guard.act(guard.look())
    assert f"(engine 0, pid {stopped.pid}, stopped)" in guard.reason
    assert said == [] and stopped.wait() == -signal.SIGKILL
    assert watchdog.found_a_stall, "an explorer does not start its engine again"
    err = capfd.readouterr().err
    assert "loads_weights" in err, "py-spy's stacks of a process that is stopped"
    assert f"Process {stopped.below}" in err, "and of those below it"


def test_a_process_whose_waiting_thread_does_not_end_is_ended(stopped, clock, watchdog):
    said = []
    guard = WatchdogThread(watchdog, last_word=said.append, leave_s=0.01, leave=leaving)
    watchdog.begin("step 3", suspects=lambda: [HungProcess("training process 0", stopped.pid)])
    clock.passes(61, watchdog)
    with pytest.raises(Left):
        guard.act(guard.look())
    assert said == [guard.reason]


def test_what_runs_below_it_is_killed_too(stopped):
    below = psutil.Process(stopped.below)
    kill(HungProcess("engine 0", stopped.pid))
    _, alive = psutil.wait_procs([below], timeout=30)
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in alive)  # its new parent may be late


def test_no_other_process_is_taken_for_one_that_has_ended(stopped):
    started = psutil.Process(stopped.pid).create_time()
    other = HungProcess("engine 0", stopped.pid, started=started - 100)
    kill(other)
    assert psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED
    assert describe(other) == f"engine 0, pid {stopped.pid}, ended"
    assert stack(other).endswith("it has ended")
    assert describe(HungProcess("engine 0", stopped.pid, started=started)).endswith(", stopped")


def test_without_py_spy_the_log_says_so(stopped, monkeypatch):
    monkeypatch.setattr(hung_process.shutil, "which", lambda name, path: None)
    assert "py-spy is not installed" in stack(HungProcess("engine 0", stopped.pid))


def test_a_process_of_another_machine_is_ended_by_whoever_can(stopped):
    killed = []
    where = {**identity(), "pid": stopped.pid, "node": "b", "host": "node7"}
    other = suspect("engine 1", where, node="a", kill=lambda: killed.append(1))
    kill(other)
    assert killed == [1] and psutil.pid_exists(stopped.pid)
    assert describe(other) == f"engine 1, pid {stopped.pid} on node7"
    assert "on node7 only" in stack(other)


def test_the_stopped_one_comes_before_those_that_wait_for_it(stopped):
    here = HungProcess("training process 0", os.getpid())
    there = HungProcess("training process 1", stopped.pid)
    assert stopped_first([here, there]) == [there, here]
