"""Runs to break: the real command line on a tiny job, and what must hold after any fault."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from pathlib import Path

import needs
import psutil
import pytest
from cluster_head import Head
from namespaced import Machine, take_away_what_killed_tests_left

from trinity_compat.common.parent_watch import die_with_parent

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "buffer"))  # its PostgreSQL server
SCRIPT = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
# Beside another heavy test everything takes several times as long as alone. What these end is a hang.
RUNS_S, ENDS_S = 900, 120


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A toy without its warm start: nothing here looks at the reward."""
    from toys import made_toy

    from trinity_compat.run.toy import ToySpec

    return made_toy(tmp_path_factory.mktemp("toy"), ToySpec(train_rows=256, val_rows=8, warm_steps=1))


class Run:
    """One `trinity-compat run` of ``script``, which takes the toy script's words. ``mark`` finds every
    process of it."""

    def __init__(self, cwd, toy, *arguments, options=(), env=None, name="run", yaml=None, script=SCRIPT):
        self.name = name
        self.cwd, self.mark = cwd, uuid.uuid4().hex
        self.job = cwd / "checkpoints" / "toy" / "grpo"
        self.env = {
            **os.environ,
            "TOY_DIR": str(toy),
            "TRAIN_PROMPTS": "8",
            "MINI_PROMPTS": "4",
            "TC_TEST_MARK": self.mark,
            **(env or {}),
        }
        words = ["trainer.test_freq=-1", "trainer.val_before_train=False", "trainer.save_freq=2", *arguments]
        source = [str(yaml)] if yaml else [str(script), "--", *words]
        self.command = [sys.executable, "-m", "trinity_compat", "run", *options, *source]
        self.process = None

    def start(self):
        out, err = ((self.cwd / f"{self.name}.{end}").open("w") for end in ("out", "err"))
        # A session of its own, as a terminal gives: Ctrl-C then reaches the whole group.
        self.process = subprocess.Popen(
            self.command,
            cwd=self.cwd,
            env=self.env,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=die_with_parent,  # a pytest that is killed leaves no run
        )
        return self

    def finish(self, timeout=RUNS_S):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} did not end in {timeout} s\n{self.out[-3000:]}\n{self.err[-3000:]}")
        return self

    def ends(self):
        """Finish, where something has just ended the run."""
        return self.finish(ENDS_S)

    def wait_until_all_have_ended(self):
        """Wait for the end of a run that another process has started."""
        deadline = time.monotonic() + ENDS_S
        while self.alive():
            assert time.monotonic() < deadline, self.alive()
            time.sleep(0.1)

    def ctrl_c(self):
        os.killpg(self.process.pid, signal.SIGINT)

    @property
    def code(self):
        return self.process.returncode

    @property
    def out(self):
        return (self.cwd / f"{self.name}.out").read_text()

    @property
    def err(self):
        return (self.cwd / f"{self.name}.err").read_text()

    @property
    def errors(self):
        return [line for line in self.err.splitlines() if line.startswith("error:")]

    def wait_for(self, condition, timeout=RUNS_S):
        """Wait until ``condition()`` is true; fails with the run's output."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"the run ended early\n{self.out[-3000:]}\n{self.err[-3000:]}"
            assert time.monotonic() < deadline, f"waited in vain\n{self.out[-3000:]}\n{self.err[-3000:]}"
            time.sleep(0.1)

    def side(self, role):
        """The process of one side, None while there is none."""
        return next(iter(self.processes(f"-m trinity_compat.{role} ")), None)

    def processes(self, words):
        """Those of this run that have ``words`` in their command line."""
        found = []
        for process in self.alive():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if words in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def alive(self):
        """Every process of this run, zombies apart."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get("TC_TEST_MARK") == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def sql(self, statement):
        connection = sqlite3.connect(f"file:{self.job}/buffer/experiences.db?mode=ro", uri=True)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def trained_steps(self):
        file = self.job / "buffer" / "experiences.db"
        try:
            return self.sql("select count(distinct trainer_step) from ledger")[0][0] if file.exists() else 0
        except sqlite3.OperationalError:
            return 0

    def nothing_is_left_and_nothing_lost(self, runs=8):
        """No process, a sound database, only whole groups of ``runs`` answers in it."""
        assert self.alive() == []
        assert self.sql("pragma integrity_check") == [("ok",)]
        sizes = self.sql(
            f"select group_id, count(*) from experiences group by group_id having count(*) <> {runs}"
        )
        assert sizes == []

    def kill_all(self):
        """Kill every process at once; one may have ended with its parent."""
        for process in self.alive():
            try:
                process.kill()
            except psutil.Error:
                continue
        if self.process:
            self.process.wait()


@pytest.fixture
def run(tmp_path, toy):
    """Makes a Run in a folder of its own; whatever a test leaves behind is killed after it."""
    made = []

    def make(*arguments, **more):
        made.append(Run(tmp_path, toy, *arguments, **more))
        return made[-1]

    yield make
    for one in made:
        one.kill_all()


@pytest.fixture
def small_disk(tmp_path):
    """A command prefix under which ``tmp_path/small`` is a disk of 3 MB with 1 MB of ballast on it."""
    small = tmp_path / "small"
    small.mkdir()
    inside = (
        f'mount -t tmpfs -o size=3m tmpfs {small} && head -c 1000000 /dev/zero > {small}/ballast && exec "$@"'
    )
    prefix = [shutil.which("unshare") or "unshare", "-rm", "sh", "-c", inside, "sh"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted in a namespace here: {error}")
    return prefix, small


@pytest.fixture
def head(tmp_path):
    """A Ray's head on another machine, whose dashboard alone is reached from here."""
    needs.program("ip", "iproute2")
    take_away_what_killed_tests_left()
    machine = Machine(3)
    if not machine.prefix:
        needs.lacking("no right to make a network namespace")
    made = Head(machine, tmp_path)
    try:
        made.wait()
        yield made
    finally:
        made.close()
        machine.close()
