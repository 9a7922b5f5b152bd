"""Supervision, seen from outside: small real processes, no Ray, no database."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest

from trinity_compat.common.error_text import last_error
from trinity_compat.run.job_dir.heartbeats import LastHeartbeat
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.supervise import sides, supervisor
from trinity_compat.run.supervise.children import ProcessCommand, survivors
from trinity_compat.run.supervise.cluster import Cluster
from trinity_compat.run.supervise.supervisor import StopSignal, Supervision, supervise


class Silent:
    """A display that shows nothing; ``reasons`` are what participants left in the database."""

    def __init__(self, reasons=None):
        self.reasons = reasons or {}

    def update(self):
        pass

    def reason(self, role, pid):
        return self.reasons.get(role)

    def heard(self, role, pid):
        return None


class Hears(Silent):
    """``words``: by role what is heard of the first process of it; of another, nothing that is wrong."""

    def __init__(self, **words):
        super().__init__()
        self.words, self.first = words, {}

    def heard(self, role, pid):
        fine = LastHeartbeat("running", 0.0)
        return self.words.get(role, fine) if self.first.setdefault(role, pid) == pid else fine


class HearsOnceStopped(Hears):
    """Nothing is wrong until the process is stopped: before, it has no stacks of its code."""

    def heard(self, role, pid):
        if psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            return LastHeartbeat("running", 0.0)
        return super().heard(role, pid)


def until_there(path, then=""):
    """Code of a side that waits for a file."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}):\n    time.sleep(0.05)\n{then}"


@pytest.fixture
def side(tmp_path):
    def make(role, code, name=None):
        log = tmp_path / f"{name or role}.log"
        argv = [sys.executable, "-c", textwrap.dedent(code)]
        return ProcessCommand(role, name or role, argv, dict(os.environ), log)

    return make


def run(*commands, reasons=None, stop=None, **more):
    return supervise(commands, Supervision(Silent(reasons), stop or StopSignal(), grace_s=2.0, **more))


FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)"


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No child of a test outlives it. What earlier tests of this process left is not its doing."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) - before == set()


def test_both_sides_done_is_success(side):
    assert run(side("explorer", "pass"), side("trainer", "pass")).code == 0


def test_bad_input_that_a_side_finds_is_bad_input_of_the_run(side):
    outcome = run(
        side("explorer", "print('error: no such column'); raise SystemExit(2)"), side("trainer", FOREVER)
    )
    assert (outcome.code, "no such column" in outcome.failure) == (2, True)


def test_an_explorer_that_is_done_early_does_not_end_the_trainer(side, tmp_path):
    mark = tmp_path / "mark"
    outcome = run(
        side("explorer", "pass"), side("trainer", f"import time; time.sleep(1); open({str(mark)!r}, 'w')")
    )
    assert outcome.code == 0 and mark.exists()


@pytest.mark.parametrize("asked", [True, False])
def test_a_trainer_that_ends_as_the_user_asked_is_no_failure_and_is_not_started_again(side, asked):
    stopped = side("trainer", "raise SystemExit(143)")
    outcome = run(side("explorer", FOREVER), stopped, asked=lambda: asked, restarts=1)
    assert (outcome.code, outcome.failure is None) == ((143, True) if asked else (1, False))
    assert stopped.log.exists()


def test_a_trainer_that_fails_after_the_user_asked_for_a_stop_is_a_failure(side):
    failed = side("trainer", "raise ValueError('out of memory')")
    outcome = run(side("explorer", "raise SystemExit(143)"), failed, asked=lambda: True)
    assert outcome.code == 1 and outcome.failure is not None


def test_a_death_ends_the_other_side_at_once_and_says_why(side):
    began = time.monotonic()
    outcome = run(side("explorer", "raise ValueError('no such token')"), side("trainer", FOREVER))
    assert outcome.code == 1
    assert outcome.failure == "the explorer ended with exit code 1: ValueError: no such token"
    assert outcome.log.endswith("explorer.log")
    assert time.monotonic() - began < 60


def test_the_reason_in_the_database_is_better_than_the_log(side):
    outcome = run(side("trainer", "raise SystemExit(1)"), reasons={"trainer": "loss is NaN at step 3"})
    assert outcome.failure == "the trainer ended with exit code 1: loss is NaN at step 3"


@pytest.fixture
def patient(monkeypatch):
    """The time that another's exit may take, which a busy machine makes long."""
    monkeypatch.setattr(supervisor, "_BLAME_S", 120.0)
    monkeypatch.setattr(supervisor, "_SERVED_S", 120.0)


def test_the_one_that_lost_its_peer_is_not_blamed(side, patient):
    outcome = run(
        side("explorer", "import os, signal, time; time.sleep(.5); os.kill(os.getpid(), signal.SIGKILL)"),
        side("trainer", "raise SystemExit(3)"),
    )
    assert "explorer was killed by SIGKILL" in outcome.failure


def test_one_that_has_said_why_it_fails_may_take_its_time_to_end(side, monkeypatch):
    monkeypatch.setattr(supervisor, "_BLAME_S", 0.0)
    monkeypatch.setattr(supervisor, "_ENDING_S", 120.0)
    outcome = run(
        side("explorer", "import time; time.sleep(2); raise SystemExit(2)"),
        side("trainer", "raise SystemExit(3)"),
        reasons={"explorer": "r.py was edited"},
    )
    assert (outcome.code, outcome.failure) == (2, "the explorer ended with exit code 2: r.py was edited")


def test_what_a_killed_side_wrote_last_is_not_given_as_the_reason(side):
    killed = "import os; print('step:2 - reward:0', flush=True); os.kill(os.getpid(), 9)"
    outcome = run(side("explorer", killed), side("trainer", FOREVER))
    assert outcome.failure == "the explorer was killed by SIGKILL (often: out of memory)"


def test_a_side_that_ignores_sigterm_and_its_children_are_killed(side):
    stubborn = """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
        time.sleep(600)
    """
    outcome = run(
        side("explorer", stubborn), side("trainer", "import time; time.sleep(1); raise SystemExit(1)")
    )
    assert outcome.code == 1


def serving(side, code=FOREVER):
    return replace(side("reward_model", code), serves=True)


def test_a_run_is_done_when_only_what_serves_it_is_left(side):
    assert run(serving(side), side("explorer", "pass"), side("trainer", "pass")).code == 0


def test_a_reward_model_that_dies_ends_the_run_by_its_name(side):
    dies = "import time; time.sleep(.5); raise MemoryError('no room for the reward model')"
    outcome = run(serving(side, dies), side("explorer", FOREVER), side("trainer", FOREVER))
    assert outcome.failure == (
        "the reward_model ended with exit code 1: MemoryError: no room for the reward model"
    )
    assert outcome.log.endswith("reward_model.log")


def test_an_explorer_that_found_the_reward_model_gone_is_not_blamed(side, patient):
    """Its reward function fails at once; who serves sees a second later that the server is gone."""
    late = "import time; time.sleep(1.5); raise SystemExit('error: the server was killed')"
    lost = side("explorer", "raise SystemExit('error: connection refused')")
    outcome = run(lost, side("trainer", FOREVER), serving(side, late))
    assert outcome.failure.startswith("the reward_model ended with exit code 1: the server was killed")


def test_a_reward_model_is_started_again_where_restarts_are_left(side, tmp_path):
    mark = tmp_path / "mark"
    once = f"""
        import os, time
        if not os.path.exists({str(mark)!r}):
            open({str(mark)!r}, "w").close()
            raise SystemExit(1)
        time.sleep(600)
    """
    slow = "import time; time.sleep(2)"
    outcome = run(serving(side, once), side("explorer", slow), side("trainer", slow), restarts=1)
    assert outcome.code == 0


def hears(*commands, limit_s=60.0, **words):
    return supervise(commands, Supervision(Hears(**words), StopSignal(), grace_s=2.0, stall_s=limit_s))


def test_a_side_that_is_stopped_is_named_shown_in_its_log_and_killed(side):
    silent = LastHeartbeat("running", 31.0, "running step 3, update_actor in the training processes")
    stops = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    watch = HearsOnceStopped(trainer=silent)
    command = [side("trainer", stops), side("explorer", FOREVER)]
    outcome = supervise(command, Supervision(watch, StopSignal(), grace_s=2.0, stall_s=60.0))
    assert outcome.code == 1
    assert re.fullmatch(
        r"the trainer \(pid \d+\) has been silent for 31 s while running step 3, update_actor in the training"
        r" processes; it was killed",
        outcome.failure,
    )
    log = Path(outcome.log).read_text()
    assert "watchdog: the trainer has been silent for 31 s" in log
    assert "<module>" in log, "its stacks"


@pytest.mark.parametrize(
    ("heard", "said"),
    [
        (LastHeartbeat("done", 61.0), "was done, and did not end"),
        (LastHeartbeat("failed", 61.0), "was failed, and did not end"),
        (None, "has sent no heartbeat for"),
    ],
)
def test_so_is_one_that_does_not_end_or_never_says_a_word(side, heard, said):
    limit_s = 60.0 if heard else 0.05
    outcome = hears(side("trainer", FOREVER), side("explorer", FOREVER), trainer=heard, limit_s=limit_s)
    assert outcome.code == 1 and said in outcome.failure


@pytest.mark.parametrize(
    ("heard", "limit_s"),
    [
        (LastHeartbeat("running", 29.0), 60.0),
        (LastHeartbeat("done", 59.0), 60.0),
        (None, 60.0),
        (LastHeartbeat("running", 9999.0), None),
    ],
)
def test_one_that_may_only_be_slow_is_left_alone(side, heard, limit_s):
    slow = side("trainer", "import time; time.sleep(1)")
    assert hears(slow, trainer=heard, limit_s=limit_s).code == 0


def test_a_side_that_was_stopped_is_started_again_where_restarts_are_left(side, tmp_path):
    said, second = [], tmp_path / "second"
    stops_once = f"""
        import os, time
        if os.path.exists({str(tmp_path / "first")!r}):
            open({str(second)!r}, "w").close()
            raise SystemExit
        open({str(tmp_path / "first")!r}, "w").close()
        time.sleep(600)
    """
    outcome = supervise(
        [side("explorer", stops_once), side("trainer", until_there(second))],
        Supervision(
            Hears(explorer=LastHeartbeat("waiting", 31.0)),
            StopSignal(),
            restarts=1,
            stall_s=60.0,
            say=said.append,
        ),
    )
    assert outcome.code == 0
    assert "silent for 31 s; it was killed; started again (0 restarts left)" in said[0]


def test_a_stopped_explorer_is_blamed_and_not_the_trainer_that_missed_it(side):
    """The trainer knows after 10 s, long before the supervisor would."""
    outcome = hears(
        side("explorer", FOREVER),
        side("trainer", "raise SystemExit(3)"),
        explorer=LastHeartbeat("running", 9.0),
    )
    assert outcome.code == 1 and re.search(
        r"the explorer \(pid \d+\) has been silent for 9 s", outcome.failure
    )


def test_a_run_s_supervision_has_the_run_s_limit(monkeypatch):
    given = []
    monkeypatch.setattr(sides, "supervise", lambda commands, by: given.append(by.stall_s))
    monkeypatch.setattr(sides, "commands_of", lambda made, address: [])
    monkeypatch.setattr(sides, "standalone_commands", lambda made, address: [])
    monkeypatch.setattr(sides, "Progress", MagicMock())
    made, cluster = MagicMock(), Cluster("here")
    made.spec.stall_timeout_s = 45.0
    sides.supervise_sides(made, MagicMock(), StopSignal(), cluster, MagicMock(), restarts=0)
    sides.supervise_standalone(made, Silent(), StopSignal(), cluster)
    assert given == [45.0, 45.0]


@pytest.mark.parametrize("alone", [False, True])
def test_a_run_prints_what_users_code_prints_in_its_sides(side, monkeypatch, capsys, alone):
    command = side(
        "explorer", "print('noise of an engine'); print('(RewardFunction pid=7) hello', end='\\n')"
    )
    command.log.write_text("(RewardFunction pid=6) of an earlier start\n")
    monkeypatch.setattr(sides, "commands_of", lambda made, address: [command])
    monkeypatch.setattr(sides, "standalone_commands", lambda made, address: [command])
    made, cluster = MagicMock(), Cluster("here")
    made.spec.stall_timeout_s = None
    monkeypatch.setattr(Cluster, "dead", lambda self: None)
    monkeypatch.setattr(sides, "Progress", lambda spec, opens: Shows())
    if alone:
        outcome = sides.supervise_standalone(made, Silent(), StopSignal(), cluster)
    else:
        outcome = sides.supervise_sides(made, MagicMock(), StopSignal(), cluster, MagicMock(), restarts=0)
    assert outcome.code == 0
    assert capsys.readouterr().out == "(RewardFunction pid=7) hello\n"


class Shows(Silent):
    """A display without a terminal."""

    last = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def aside(self, text):
        print(text)


def test_one_that_lives_is_not_killed_for_what_the_other_says(side):
    outcome = hears(
        side("explorer", FOREVER), side("trainer", "print('error: it waited'); raise SystemExit(3)")
    )
    assert outcome.failure == "the trainer ended with exit code 3: it waited"


def test_a_signal_ends_the_run_with_its_number(side):
    stop = StopSignal()
    threading.Timer(1.0, lambda: setattr(stop, "number", signal.SIGINT)).start()
    outcome = run(side("explorer", FOREVER), side("trainer", FOREVER), stop=stop)
    assert (outcome.code, outcome.failure) == (130, None)


class Asked:
    """A stop request in a file, which a trainer reads; ``now``: the end at once was asked for before."""

    def __init__(self, folder, *, now=False):
        self.file, self.now, self.said = folder / "asked", now, []

    def ask(self):
        if not self.now:
            self.file.touch()
        return not self.now

    def end(self, trainer, explorer, *numbers, state="running", ray_dies=False, **more):
        """Send ``numbers`` to a run whose trainer is in ``state``; returns its outcome."""
        stop = StopSignal()
        for number in numbers:
            stop.note(number)
        stop.at = more.pop("at", stop.at)
        watch = Hears(trainer=LastHeartbeat(state, 0.0))
        more = {"checkpoint": self.ask, "checkpoint_s": 300.0, "grace_s": 2.0} | more
        started = threading.Event()
        watch.update = started.set
        held = StopSignal()
        if ray_dies:
            more["also_dead"] = lambda: "Ray itself died" if held.is_told else None

        def deliver():
            started.wait()
            held.at, held.again, held.number = stop.at, stop.again, stop.number

        threading.Thread(target=deliver).start()
        return supervise([explorer, trainer], Supervision(watch, held, say=self.said.append, **more))


@pytest.fixture
def saving(side, tmp_path):
    """A trainer that ends its step where it is asked, and writes ``saved``; SIGTERM kills it before."""
    return side(
        "trainer",
        f"""
        import pathlib, sys, time
        while not pathlib.Path({str(tmp_path)!r}, "asked").exists():
            time.sleep(0.05)
        time.sleep(1)
        pathlib.Path({str(tmp_path)!r}, "saved").touch()
        sys.exit(143)
        """,
    )


@pytest.mark.parametrize("state", ["running", "waiting"])
def test_at_sigterm_the_trainer_ends_its_step_with_a_checkpoint(side, saving, tmp_path, state):
    asked = Asked(tmp_path)
    outcome = asked.end(saving, side("explorer", FOREVER), signal.SIGTERM, signal.SIGTERM, state=state)
    assert (outcome.code, outcome.failure) == (143, None)
    assert (tmp_path / "saved").exists()
    (line,) = asked.said
    assert re.fullmatch(r"SIGTERM: ends after the step in training, .* at most (300|2[5-9]\d) s; .*", line)


def test_a_sigterm_that_the_explorer_gets_too_leaves_the_trainer_its_step(side, saving, tmp_path):
    asked, ends = Asked(tmp_path), []
    explorer = side("explorer", until_there(asked.file, "raise SystemExit(143)"))
    outcome = asked.end(saving, explorer, signal.SIGTERM, before_end=lambda: ends.append("noted"))
    assert (outcome.code, outcome.failure, ends) == (143, None, ["noted"])
    assert (tmp_path / "saved").exists()


AT_ONCE = {
    "Ctrl-C": ((signal.SIGINT,), {}),
    "Ctrl-C after SIGTERM": ((signal.SIGTERM, signal.SIGINT), {}),
    "SIGHUP": ((signal.SIGHUP,), {}),
    "no time is given": ((signal.SIGTERM,), {"checkpoint_s": 0.0}),
    "its time is over": ((signal.SIGTERM,), {"at": -1e6}),
    "a trainer that has not begun": ((signal.SIGTERM,), {"state": "starting"}),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_the_run_ends_at_once_without_asking_for_a_checkpoint(side, tmp_path, case):
    numbers, more = AT_ONCE[case]
    asked = Asked(tmp_path)
    outcome = asked.end(side("trainer", FOREVER), side("explorer", FOREVER), *numbers, **more)
    assert (outcome.code, outcome.failure) == (128 + numbers[0], None)
    assert not asked.file.exists() and not asked.said


def test_a_run_that_was_told_to_end_at_once_does_not_wait_for_a_checkpoint(side, tmp_path):
    asked = Asked(tmp_path, now=True)
    outcome = asked.end(side("trainer", FOREVER), side("explorer", FOREVER), signal.SIGTERM)
    assert (outcome.code, asked.said) == (143, [])


def test_the_wait_for_a_checkpoint_ends_with_ray_and_that_is_no_failure(side, tmp_path):
    asked = Asked(tmp_path)
    outcome = asked.end(side("trainer", FOREVER), side("explorer", FOREVER), signal.SIGTERM, ray_dies=True)
    assert (outcome.code, outcome.failure, len(asked.said)) == (143, None, 1)


def test_a_later_sigterm_ends_it_at_once_and_one_of_the_same_moment_does_not(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock.now)
    stop = StopSignal()
    for now, again in ((100.0, False), (100.5, False), (110.0, True)):
        clock.now = now
        stop.note(signal.SIGTERM)
        assert (stop.number, stop.again) == (signal.SIGTERM, again)


def test_a_side_whose_machine_vanished_is_started_again_without_a_restart_of_the_user_s(side, tmp_path):
    mark, said = tmp_path / "mark", []
    lost = f"""
        import pathlib, sys
        mark = pathlib.Path({str(mark)!r})
        if len(mark.read_text()) < 3:
            mark.open("a").write("x")
            print("error: Ray has lost the machine 10.0.0.3: its node died")
            sys.exit(4)
    """
    mark.touch()
    outcome = run(side("explorer", "import time; time.sleep(2)"), side("trainer", lost), say=said.append)
    assert outcome.code == 0
    again = (
        "the trainer ended with exit code 4: Ray has lost the machine 10.0.0.3: its node died; started again"
    )
    assert said == [again] * 3


def test_a_dead_explorer_is_started_again_when_asked(side, tmp_path):
    mark = tmp_path / "mark"
    flaky = f"""
        import pathlib, sys
        mark = pathlib.Path({str(mark)!r})
        if not mark.exists():
            mark.touch()
            sys.exit("first time")
    """
    said = []
    outcome = run(
        side("explorer", flaky), side("trainer", "import time; time.sleep(2)"), restarts=1, say=said.append
    )
    assert outcome.code == 0
    assert "first time" in said[0] and "0 restarts left" in said[0]


def test_an_explorer_knows_how_often_it_will_be_started_again(side, tmp_path):
    told = tmp_path / "told"
    code = f"""
        import os, sys
        left = os.environ["TRINITY_COMPAT_RESTARTS"]
        print(left, file=open({str(told)!r}, "a"))
        sys.exit(left != "0")
    """
    assert run(side("explorer", code), restarts=2).code == 0
    assert told.read_text().split() == ["2", "1", "0"]


def test_a_dead_trainer_is_started_again_and_told_where_to_go_on(side, tmp_path):
    told = tmp_path / "told"
    code = f"""
        import os, signal
        own = os.environ.get("TRINITY_COMPAT_OWN_CHECKPOINT", "-")
        print(own, file=open({str(told)!r}, "a"))
        if own == "-":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    said = []
    outcome = run(
        side("explorer", "import time; time.sleep(1)"),
        side("trainer", code),
        restarts=1,
        again=lambda: {"TRINITY_COMPAT_OWN_CHECKPOINT": "1"},
        say=said.append,
    )
    assert (outcome.code, told.read_text().split()) == (0, ["-", "1"])
    assert "the trainer was killed by SIGKILL" in said[0]


def test_bad_input_is_not_started_again(side):
    said = []
    trainer = side("trainer", "raise SystemExit(2)")
    assert run(side("explorer", FOREVER), trainer, restarts=5, say=said.append).code == 2
    assert said == []


def test_what_a_dead_side_left_in_its_group_is_gone_before_it_starts_again(side, tmp_path):
    mark = tmp_path / "mark"
    code = f"""
        import os, pathlib, subprocess, sys, time
        mark = pathlib.Path({str(mark)!r})
        if mark.exists():
            sys.exit(os.path.exists("/proc/" + mark.read_text()))
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        mark.write_text(str(left.pid))
        sys.exit(1)
    """
    assert run(side("trainer", code), restarts=1).code == 0


def test_something_else_that_died_ends_the_run(side):
    outcome = run(side("trainer", FOREVER), also_dead=lambda: "Ray itself died")
    assert (outcome.code, outcome.failure) == (1, "Ray itself died")


def test_a_job_that_is_renamed_ends_the_run_and_is_not_made_again(tmp_path):
    job = JobDir(tmp_path / "job")
    job.create()
    code = f"import os; os.rename({str(job.root)!r}, {str(tmp_path / 'moved')!r}); 1 / 0"
    command = ProcessCommand(
        "trainer", "trainer", [sys.executable, "-c", code], dict(os.environ), job.log("trainer")
    )
    outcome = run(command, restarts=5, no_job=sides.moved_job(job))
    assert outcome.failure == f"the job's folder {job.root} was renamed or deleted while the run used it"
    assert not job.root.exists()


def test_a_side_whose_log_is_gone_is_judged_by_its_code(tmp_path):
    log = tmp_path / "log" / "trainer.log"
    code = f"import shutil; shutil.rmtree({str(log.parent)!r}); 1 / 0"
    outcome = run(ProcessCommand("trainer", "trainer", [sys.executable, "-c", code], dict(os.environ), log))
    assert outcome.failure.startswith("the trainer ended with exit code 1")


def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "trainer.log")
    with pytest.raises(OSError, match=r"No such device|not a regular file"):
        run(ProcessCommand("trainer", "trainer", ["true"], dict(os.environ), tmp_path / "trainer.log"))


def test_the_sides_end_when_the_supervisor_is_killed(tmp_path):
    """SIGKILL leaves it no time to clean up."""
    program = f"""
import os, sys
from pathlib import Path
from trinity_compat.run.supervise import supervisor
from trinity_compat.run.supervise.children import ProcessCommand, start
import time
argv = [sys.executable, "-c", "import time; time.sleep(600)"]
child = start(ProcessCommand("trainer", "t", argv, dict(os.environ), Path({str(tmp_path / "log")!r})))
print(child.process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=60)
    assert not alive


@pytest.fixture
def orphan(tmp_path):
    """A process that looks like a job's trainer; its parent is this test, which supervises nothing."""
    started = []

    def start(*words, env=None):
        argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", *words]
        process = subprocess.Popen(argv, env=os.environ | (env or {}), stdout=subprocess.PIPE)
        process.stdout.readline()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_sides_that_outlive_their_supervisor_are_found_and_no_others(orphan, tmp_path):
    job, env = str(tmp_path / "job"), {"TRINITY_COMPAT_SUPERVISOR": "1"}
    left = orphan("-m", "trinity_compat.trainer", job, env=env)
    orphan("-m", "trinity_compat.trainer", job)  # by hand
    orphan("-m", "trinity_compat.trainer", f"{job}2", env=env)
    orphan("-m", "trinity_compat.explorer", job, "--bench", env=env)
    assert survivors(tmp_path / "job") == [left.pid]
    left.kill()
    left.wait()
    assert survivors(tmp_path / "job") == []


def test_a_side_under_its_supervisor_is_none_of_them(tmp_path):
    code = "import time; time.sleep(600)"
    program = f"""
import subprocess, sys
argv = [sys.executable, "-c", {code!r}, "trinity_compat.trainer", {str(tmp_path)!r}]
print(subprocess.Popen(argv, stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", program, "trinity_compat"],
        env=os.environ | {"TRINITY_COMPAT_SUPERVISOR": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    side = psutil.Process(int(supervisor.stdout.readline()))
    try:
        assert survivors(tmp_path) == []
        supervisor.communicate()
        assert survivors(tmp_path) == [side.pid]
    finally:
        side.kill()
        side.wait()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", None),
        ("a\nb\n", "b"),
        ("Traceback:\nValueError: bad\nshutting down\n", "ValueError: bad"),
        ("error: no model\nbye\n", "no model"),
        ("(A pid=3) (B pid=4) ValueError: bad\nbye\n", "(A pid=3) (B pid=4) ValueError: bad"),
        (
            "(Worker pid=3) ray.exceptions.RayActorError: gone\n",
            "(Worker pid=3) ray.exceptions.RayActorError: gone",
        ),
        (
            "Training:  12%|█▏  | 7/60 [00:06<01:28,  1.66s/it]error: the database was deleted\n"
            "Training:  12%|█▏  | 7/60 [00:07<02:07,  2.41s/it]\nnanobind: leaked 4 instances!",
            "the database was deleted",
        ),
    ],
)
def test_the_last_error_of_an_output(output, said):
    assert last_error(output) == said


def test_the_other_explorers_take_the_tasks_of_one_that_was_killed(side, tmp_path):
    killed = side("explorer", "import os\nos.kill(os.getpid(), 9)", "explorer_1")
    said, known = [], tmp_path / "known"

    def say(text):
        said.append(text)
        known.touch()

    others = (side("explorer", until_there(known), "explorer_0"), side("trainer", until_there(known)))
    assert run(killed, *others, say=say).code == 0
    assert said == [
        "the explorer_1 was killed by SIGKILL (often: out of memory); the other explorers take its tasks"
    ]


@pytest.mark.parametrize(
    ("code", "more"), [("raise SystemExit(2)", {}), ("raise SystemExit(1)", {"all_needed": True})]
)
def test_one_of_several_explorers_ends_the_run_where_the_others_cannot_go_on(side, code, more):
    others = (side("explorer", FOREVER, "explorer_0"), side("trainer", FOREVER))
    ended = run(side("explorer", code, "explorer_1"), *others, **more)
    assert ended.code != 0 and "the explorer_1 ended with exit code" in ended.failure


def test_the_last_explorer_that_dies_ends_the_run(side, tmp_path):
    known = tmp_path / "known"
    dying = [
        side("explorer", "raise SystemExit(1)", "explorer_0"),
        side("explorer", until_there(known, "raise SystemExit(1)"), "explorer_1"),
    ]
    ended = run(*dying, side("trainer", FOREVER), say=lambda text: known.touch())
    assert ended.code == 1 and "the explorer_1 ended" in ended.failure


def test_explorers_have_as_long_as_since_the_last_trainer_ended_well(monkeypatch):
    def side(role, returncode):
        return SimpleNamespace(command=SimpleNamespace(role=role), returncode=returncode, ended=None)

    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(supervisor, "time", clock)
    first, second, explorer = side("trainer", 0), side("trainer", None), side("explorer", 0)
    assert supervisor._trainer_done_for([explorer]) == 0.0
    assert supervisor._trainer_done_for([first, second, explorer]) == 0.0
    second.returncode = 0
    assert supervisor._trainer_done_for([first, second, explorer]) == 0.0
    clock.now = 130.0
    assert supervisor._trainer_done_for([first, second, explorer]) == 30.0
    first.returncode = 1
    assert supervisor._trainer_done_for([first, second]) == 0.0
