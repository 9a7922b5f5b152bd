"""One toy job under fire: the command as a user gives it, killed, and given again until it ends."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from checks import Found, Standing, check, standing

from trinity_compat.common.parent_watch import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "verl_scripts" / "run_toy_grpo.sh"
MARKER = "latest_checkpointed_iteration.txt"
ANSWERS = 8  # the script's, in a group
LIMIT_S = 240.0
STALL_S = 20.0  # the jobs' trinity_compat.stall_timeout
# By victim, seconds until a stopped one must have been named, a minute of them for a busy machine. A call to
# a training process has six times the limit.
NAMED_S = {"explorer": 60.0, "trainer": 60.0, "engine": STALL_S + 60, "worker": 6 * STALL_S + 60}
NAMED = re.compile(r"no progress for|has been silent|was last heard of")
EMPTY: Mapping[str, str] = {}
LOOK_S = 0.4  # a look at all processes takes 50 ms
_MARK = "TC_CHAOS_RUN"

# How a victim is known among the job's processes.
WORDS = {
    "explorer": "trinity_compat.explorer",
    "trainer": "trinity_compat.trainer",
    "engine": "ray::RolloutWorker",
    "worker": "ray::WorkerDict",
}


class Stuck(Exception):
    """A job that neither went on nor ended."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Kill ``victim`` (a key of WORDS, command, job; self: who stopped at the point) at the ``count``-th
    passing of ``point``, or ``after`` seconds without one. Restart the database ``restarts`` times before.
    ``again``: under ``--restarts 1``, so that the command starts the victim again and goes to its end.
    ``stops``: SIGSTOP in place of SIGKILL, so that the command itself has to see it and end it."""

    victim: str
    point: str = ""
    count: int = 1
    after: float = 0.0
    restarts: int = 0
    again: bool = False
    stops: bool = False

    @property
    def name(self) -> str:
        return f"{self.victim} {self.point or 'at random'}"


@dataclass(slots=True)
class Report:
    """Record of one job under kills. ``kills``: one row per kill that struck."""

    found: Found
    kills: list[dict[str, object]]
    starts: int
    restarts: list[str]  # of the database, by signal
    left: int  # processes that outlived a kill by more than 20 s


@dataclass(slots=True, eq=False)
class Job:
    """The job in ``folder``. ``server`` is the PostgreSQL that ``url`` names, None for SQLite."""

    folder: Path
    toy: Path
    words: tuple[str, ...]
    steps: int
    rng: random.Random
    server: Any = None
    url: str = ""
    batch: int = 32  # groups in a step; half of them in an update
    trainer: str = "v0"
    place: Path | None = None  # where the job's folder is, if not in ``folder``
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None
    restarts: list[str] = field(default_factory=list)
    left: int = 0
    ended: bool = False

    @property
    def root(self) -> Path:
        return (self.place or self.folder) / "job"

    @property
    def notes(self) -> Path:
        return self.folder / "struck.json"

    @property
    def database(self) -> str:
        return self.url or f"sqlite:///{self.root}/buffer/experiences.db"

    @property
    def checkpoint(self) -> int:
        marker = self.root / MARKER
        return int(marker.read_text() or 0) if marker.exists() else 0

    def run(self, strikes: list[Strike]) -> Report:
        """Strike after strike, each in a start of its own; then to the end. Raises Stuck.

        One whose victim the command starts again is the last: that start goes to its end.
        What was struck is kept in the folder: a job whose benchmark was ended goes on behind it.
        """
        before, kills = self.struck()
        strikes = sorted(strikes, key=lambda strike: strike.again)
        for strike in strikes[len(kills) :]:
            kill = self.strike(strike, before)
            if kill is None:  # it reached its end first
                break
            kills.append(kill)
            self.note(before, kills)
            if strike.again:
                break
        else:
            self.start("")
            self.shake(3)
            self.wait_for_end()
        if self.process is None or self.process.returncode != 0:
            raise Stuck(f"the last start ended with {self.process and self.process.returncode}")
        found = check(self.database, before, steps=self.steps, batch=self.batch, answers=ANSWERS)
        starts = len(kills) + (not kills or not kills[-1]["again"])
        return Report(found, kills, starts, self.restarts, self.left)

    def struck(self) -> tuple[list[Standing], list[dict[str, object]]]:
        if not self.notes.exists():
            return [], []
        data = json.loads(self.notes.read_text())
        return [Standing.of(one) for one in data["before"]], data["kills"]

    def note(self, before: list[Standing], kills: list[dict[str, object]]) -> None:
        part = self.notes.with_suffix(".part")
        part.write_text(json.dumps({"before": [one.as_json() for one in before], "kills": kills}))
        part.replace(self.notes)

    # -- the command --------------------------------------------------------------------------------

    def start(
        self, stop_at: str, *, again: bool = False, prefix: Sequence[str] = (), env: Mapping[str, str] = EMPTY
    ) -> None:
        """Give the command; ``prefix`` are words before it."""
        if self.ended:
            raise Stuck("the benchmark was ended")
        self.folder.mkdir(parents=True, exist_ok=True)
        database = ["--database", self.url] if self.url else []
        command = [*prefix, str(Path(sys.executable).parent / "trinity-compat"), "run", str(SCRIPT)]
        command += ["--restarts", "1"] if again else []
        command += ["--set", f"trinity_compat.stall_timeout={STALL_S:g}"]
        command += ["--set", f"trinity_compat.trainer={self.trainer}"]
        command += ["--job", str(self.root), *database, "--", *self.words]
        env = {**os.environ, **env, "TOY_DIR": str(self.toy), _MARK: self.mark}
        env |= {"TRINITY_COMPAT_STOP_AT": stop_at}
        env |= {"TRAIN_PROMPTS": str(self.batch), "MINI_PROMPTS": str(self.batch // 2)}
        with (self.folder / "output.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def wait_until_named(self, victim: str, before: int) -> float:
        """Seconds until the command, or a side's log, has said once more than ``before`` times what hangs.
        Raises Stuck past the limit."""
        began = time.monotonic()
        while self.named() <= before:
            if self.ended_within(LOOK_S) and self.named() <= before:
                raise Stuck(f"it ended without a word on the {victim} that was stopped")
            if time.monotonic() - began > NAMED_S[victim]:
                raise Stuck(f"no word on the {victim} that was stopped after {NAMED_S[victim]:.0f} s")
        return time.monotonic() - began

    def named(self) -> int:
        """Number of times that the command and both sides have reported a hanging process."""
        logs = [self.folder / "output.log", *(self.root / "log").glob("*.log")]
        said = (log.read_text(errors="replace") for log in logs if log.exists())
        return sum(len(NAMED.findall(text)) for text in said)

    def wait_for_end(self) -> None:
        """Wait for the job's end; let every process that stops at the point go on, a restarted side too."""
        deadline = time.monotonic() + LIMIT_S
        while not self.ended_within(LOOK_S):
            if time.monotonic() > deadline:
                raise Stuck(f"no end after {LIMIT_S:.0f} s")
            for process in self.alive():
                if _is_stopped(process):
                    with suppress(psutil.Error):
                        process.resume()

    def alive(self) -> list[psutil.Process]:
        """Every process of this job: all inherit the environment."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end(self) -> None:
        """End the job for good: no start follows."""
        self.ended = True
        self.sweep()

    def sweep(self) -> None:
        for process in self.alive():
            with suppress(psutil.Error):
                process.kill()
        if self.process is not None:
            self.process.wait()

    # -- a kill -------------------------------------------------------------------------------------

    def strike(self, strike: Strike, before: list[Standing]) -> dict[str, object] | None:
        """Start, strike, and wait until nothing runs. None when the command ended before."""
        made = self.groups()
        self.start(f"{strike.point}:{strike.count}" if strike.point else "", again=strike.again)
        self.shake(strike.restarts)
        # A stop is named within its limit once answers are made; a start has a limit of its own.
        victims = self.at_point() if strike.point else self.at_random(strike, made if strike.stops else -1)
        if victims is None:
            return None
        struck, named = time.monotonic(), None
        if strike.stops:
            before_it = self.named()
            for process in victims:
                with suppress(psutil.Error):
                    process.suspend()
            named = self.wait_until_named(strike.victim, before_it)
        else:
            self.kill(strike.victim, victims)
        then = self.standing() if strike.again else None
        self.wait_for_end()
        self.until_gone()
        then = then or self.standing()
        if then is not None:
            before.append(then)
        return {
            "victim": strike.victim,
            "point": strike.point,
            "again": strike.again,
            "named_after_s": named and round(named, 1),
            "step": then.step if then else 0,
            "checkpoint": then.checkpoint if then else self.checkpoint,
            "code": self.process.returncode if self.process else None,
            "ended_after_s": round(time.monotonic() - struck, 1),
        }

    def standing(self) -> Standing | None:
        there = self.url or (self.root / "buffer" / "experiences.db").exists()
        return standing(self.database, self.checkpoint) if there else None

    def groups(self) -> int:
        """Number of groups in the database."""
        there = self.standing()
        return len(there.groups) if there else 0

    def shake(self, times: int) -> None:
        """Restart the database under the running job, if it has a server."""
        for _ in range(times if self.server else 0):
            if self.ended_within(self.rng.uniform(4, 14)):
                return
            how = self.rng.choice([signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
            self.server.restart(how)
            self.restarts.append(how.name)

    def ended_within(self, seconds: float) -> bool:
        assert self.process is not None
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            return True
        return False

    def at_point(self) -> list[psutil.Process] | None:
        """Wait until somebody has stopped at the point. None when the command ended first."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            stopped = [p for p in self.alive() if _is_stopped(p)]
            if stopped:
                return stopped
            if self.ended_within(LOOK_S):
                return None
        raise Stuck("the point was not reached")

    def at_random(self, strike: Strike, made: int) -> list[psutil.Process] | None:
        """The victims, once the time is up and there are more than ``made`` groups."""
        if self.ended_within(strike.after):
            return None
        while self.groups() <= made:
            if self.ended_within(LOOK_S):
                return None
        word = WORDS.get(strike.victim)
        while word:
            found = [p for p in self.alive() if word in _command(p)]
            if found:
                return found
            if self.ended_within(LOOK_S):
                return None
        return []

    def kill(self, victim: str, found: list[psutil.Process]) -> None:
        assert self.process is not None
        if (
            victim == "command"
        ):  # what `kill -9` of the shell's job reaches: the two sides have groups of their own
            os.killpg(self.process.pid, signal.SIGKILL)
            return
        for process in self.alive() if victim == "job" else found:
            with suppress(psutil.Error):
                process.kill()

    def until_gone(self) -> None:
        """Nothing may outlive the command for long."""
        deadline = time.monotonic() + 20
        while (running := self.alive()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        self.left += len(running)
        for process in running:
            print(f"{self.folder.name}: outlived a kill by 20 s: {_command(process)[:150]}", flush=True)
        self.sweep()


def _is_stopped(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
