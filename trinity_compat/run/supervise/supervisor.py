"""The supervisor: starts the two sides, watches them, and ends both when one dies or a signal comes.

Invariants: a side's death is noticed within a poll (0.2 s); ``supervise`` returns with none of its
children alive; the database is only read here.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Protocol

from trinity_compat.common.error_text import last_error
from trinity_compat.common.parent_watch import STOPPED
from trinity_compat.common.watchdog import LONG
from trinity_compat.job.liveness import PEER_SILENT_S, RESTARTS, SIDE_SILENT_S
from trinity_compat.job.machines import MACHINE_LOST
from trinity_compat.run.job_dir.heartbeats import LastHeartbeat
from trinity_compat.run.supervise.children import Child, ProcessCommand, adopt_orphans, end, kill_hung, start

BAD_INPUT = 2  # exit code of a side that was given what cannot be run
PEER_DIED = 3  # exit code of a side that ended because the other one had
POLL_S = 0.2
_SAME_S = 2.0  # a script's launch gets a SIGTERM from its command, from its group, and at bash's death
_LAST_SIDE_S = 60.0  # limit for the explorer's own end after the trainer is done
_BLAME_S = 1.0  # wait for the exit code of the peer that a side reports dead
_ENDING_S = 30.0  # the same where that peer has said why it fails, and has not ended yet
_SERVED_S = 5.0  # limit for a served model's process to notice that its server is gone


class ProgressWatch(Protocol):
    """The progress of a run, as the supervisor polls it."""

    def update(self) -> None:
        """Show what is new; called at every poll."""

    def heard(self, role: str, pid: int) -> LastHeartbeat | None:
        """Return the last heartbeat of a participant; None when there was none."""

    def reason(self, role: str, pid: int) -> str | None:
        """Return the reason that a participant reported for its failure, None without one."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """End of a run. ``code``: the exit code; ``failure``: one message, None unless it failed."""

    code: int
    failure: str | None = None
    log: str | None = None


@dataclass(slots=True)
class StopSignal:
    """The first signal that asked the run to end.

    ``again``: another one came, by more than the time in which a group or a script hands on the same one.
    """

    number: int | None = None
    at: float = 0.0
    again: bool = False
    is_told: bool = False  # that the end waits for a checkpoint

    def note(self, number: int) -> None:
        """Note a signal."""
        if self.number is None:
            self.number, self.at = number, time.monotonic()
        elif number != signal.SIGTERM or time.monotonic() - self.at > _SAME_S:
            self.again = True


@contextlib.contextmanager
def catch_signals() -> Iterator[StopSignal]:
    """Turn SIGINT, SIGTERM and SIGHUP into a flag for the duration."""
    stop = StopSignal()

    def note(number: int, frame: FrameType | None) -> None:
        stop.note(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class Supervision:
    """Arguments of ``supervise`` besides the commands.

    ``also_dead`` returns the reason why Ray is gone, ``no_job`` why the job's folder is. ``asked``: whether
    the user asked the sides to end. ``checkpoint`` asks the trainer, at SIGTERM, to end after its step with a
    checkpoint, within ``checkpoint_s``; False where that cannot be. ``before_end`` is called before processes
    are ended after a signal. ``each_poll`` is called at every poll and at the end.
    ``restarts``: the number of restarts that are left, each with the environment of ``again`` added.
    ``all_needed``: the run can't continue without one of its explorers; else the others take the tasks of a
    dead one. ``stall_s``: limit for the end of a process after its last report, and LONG times that for its
    first report; None for no limit.
    """

    watch: ProgressWatch
    stop: StopSignal
    also_dead: Callable[[], str | None] = lambda: None
    no_job: Callable[[], str | None] = lambda: None
    asked: Callable[[], bool] = lambda: False
    checkpoint: Callable[[], bool] = lambda: False
    checkpoint_s: float = 0.0
    before_end: Callable[[], None] = lambda: None
    each_poll: Callable[[], None] = lambda: None
    say: Callable[[str], None] = print
    restarts: int = 0
    again: Callable[[], Mapping[str, str]] = dict
    all_needed: bool = False
    stall_s: float | None = None
    grace_s: float = 10.0


def supervise(commands: Sequence[ProcessCommand], by: Supervision) -> RunOutcome:
    """Run ``commands`` until all are done but those that serve the others, one dies, or a signal comes.

    Never raises for a child.
    """
    adopt_orphans()
    if by.stop.number is not None:
        return RunOutcome(128 + by.stop.number)
    children: list[Child] = []
    outcome: RunOutcome | None = None
    try:
        for command in commands:
            children.append(_start(command, by))
        while outcome is None:
            time.sleep(POLL_S)
            by.watch.update()
            by.each_poll()
            outcome = _judge(children, by)
    finally:
        if by.stop.number is not None:
            by.before_end()
        end(children, grace_s=by.grace_s)
    by.watch.update()
    by.each_poll()
    return outcome


def _start(command: ProcessCommand, by: Supervision, also: Mapping[str, str] | None = None) -> Child:
    """Start a side; its heartbeat has the restarts that are left, so that the other side waits for it."""
    return start(replace(command, env={**command.env, RESTARTS: str(by.restarts), **(also or {})}))


def _judge(children: list[Child], by: Supervision) -> RunOutcome | None:
    """Return the outcome of the run, None while it goes on."""
    if by.stop.number is not None:
        return None if _writes_checkpoint(children, by) else RunOutcome(128 + by.stop.number)
    if reason := by.no_job():  # before a restart, which would make the folder again
        return RunOutcome(1, reason)
    ended = {child.returncode for child in children} - {None}
    if STOPPED in ended <= {0, STOPPED} and by.asked():  # a side that failed meanwhile is a failure
        return RunOutcome(STOPPED)
    for child in children:
        if child.returncode is None and (why := _hangs(child, by)):
            kill_hung(child, why)
    # Before Ray: if both are gone, the side's own message says more than "Ray died".
    if any(child.returncode not in (None, 0) for child in children):
        return _after_death(children, by)
    if reason := by.also_dead():
        return RunOutcome(1, reason)
    sides = [child for child in children if not child.command.serves]
    if all(child.returncode == 0 for child in sides) or _trainer_done_for(children) > _LAST_SIDE_S:
        return RunOutcome(0)
    return None


def _writes_checkpoint(children: list[Child], by: Supervision) -> bool:
    """Return whether the end waits for the step that is being trained: after SIGTERM, in its time.

    A trainer that has not begun holds nothing that is not in a checkpoint.
    """
    stop = by.stop
    left_s = stop.at + by.checkpoint_s - time.monotonic()
    # An explorer that got the same signal has ended too.
    failed = any(child.returncode not in (None, 0, STOPPED) for child in children) or by.also_dead()
    if stop.number != signal.SIGTERM or stop.again or left_s <= 0 or failed:
        return False
    trainers = [child for child in children if child.command.role == "trainer" and child.returncode is None]
    heard = [by.watch.heard("trainer", child.process.pid) for child in trainers]
    if not any(each and each.state in ("running", "waiting") for each in heard) or not by.checkpoint():
        return False
    if not stop.is_told:
        by.say(
            f"SIGTERM: ends after the step in training, with a checkpoint, in at most {left_s:.0f} s;"
            " a second SIGTERM ends it at once"
        )
        stop.is_told = True
    return True


def _hangs(child: Child, by: Supervision) -> str | None:
    """Describe a child that neither makes progress nor ends; its own watchdog covers what it waits for."""
    if by.stall_s is None:
        return None
    heard = by.watch.heard(child.command.role, child.process.pid)
    if heard is None:
        waited_s = time.monotonic() - child.started
        return f"has sent no heartbeat for {waited_s:.0f} s" if waited_s > by.stall_s * LONG else None
    if heard.has_ended:
        return f"was {heard.state}, and did not end" if heard.silent_s > by.stall_s else None
    return _silent(heard) if heard.silent_s > SIDE_SILENT_S else None


def _silent(heard: LastHeartbeat) -> str:
    last = f" while {heard.doing}" if heard.doing else ""
    return f"has been silent for {heard.silent_s:.0f} s{last}"


def _kill_silent_peers(children: list[Child], by: Supervision) -> None:
    """Kill silent processes once another one has ended because of their silence.

    They are stopped (SIGSTOP), and would stay so.
    """
    if all(child.returncode != PEER_DIED for child in children):
        return
    for child in [child for child in children if child.returncode is None]:
        heard = by.watch.heard(child.command.role, child.process.pid)
        if heard and not heard.has_ended and heard.silent_s > PEER_SILENT_S:
            kill_hung(child, _silent(heard))


def _trainer_done_for(children: list[Child]) -> float:
    """Seconds since the last trainer ended well; 0.0 while one runs or there is none."""
    trainers = [child for child in children if child.command.role == "trainer"]
    if not trainers or any(child.returncode != 0 for child in trainers):
        return 0.0
    now = time.monotonic()
    for child in trainers:
        child.ended = child.ended or now
    return now - max(child.ended or now for child in trainers)


def _after_death(children: list[Child], by: Supervision) -> RunOutcome | None:
    """Restart a process if that is allowed, else return an outcome that names the first failure.

    A process that only lost its peer, or its served model, is not the first failure.
    """
    _kill_silent_peers(children, by)
    if _restart(children, by):
        return None
    if not by.all_needed and _go_on_without(children, by):
        return None
    serves = any(child.command.serves and child.returncode is None for child in children)
    began, patience_s = time.monotonic(), _SERVED_S if serves else _BLAME_S
    while True:
        dead = [child for child in children if child.returncode not in (None, 0)]
        culprits = [child for child in dead if child.returncode != PEER_DIED]
        serving = [child for child in culprits if child.command.serves]
        waited_s = time.monotonic() - began
        if serving or (culprits and not serves):
            break
        if waited_s > patience_s and (culprits or waited_s > _ENDING_S or not _is_ending(children, by)):
            break
        time.sleep(0.05)
    hung = [child for child in culprits if child.hung]
    culprit = (hung or serving or culprits or dead)[0]
    code = BAD_INPUT if culprit.returncode == BAD_INPUT else 1
    return RunOutcome(code, _failure(culprit, by.watch), str(culprit.command.log))


def _is_ending(children: list[Child], by: Supervision) -> bool:
    """Return whether a process that lives has said why it fails: its exit code is the run's."""
    alive = [child for child in children if child.returncode is None]
    return any(by.watch.reason(child.command.role, child.process.pid) for child in alive)


def _restart(children: list[Child], by: Supervision) -> bool:
    """Restart dead processes, except after bad input; the loss of a machine needs no restart of the user's.

    The tasks of explorers are in the database, a trainer resumes from its checkpoint, and reward functions
    retry while the reward model is away, and explorers while the teachers are.
    """
    dead = [child for child in children if child.returncode not in (None, 0)]
    counted = [child for child in dead if child.returncode != MACHINE_LOST]
    if any(child.returncode == BAD_INPUT for child in dead) or len(counted) > by.restarts:
        return False
    end(dead, grace_s=by.grace_s)  # what they left in their groups
    for child in dead:
        # Counted per start and not per explorer: a fault that every start meets must end the run.
        by.restarts -= child in counted
        left = f" ({by.restarts} restarts left)" if child in counted else ""
        by.say(f"{_failure(child, by.watch)}; started again{left}")
        children[children.index(child)] = _start(child.command, by, by.again())
    return True


def _go_on_without(children: list[Child], by: Supervision) -> bool:
    """Leave dead explorers behind while another lives and nothing else died."""
    dead = [child for child in children if child.returncode not in (None, 0)]
    lives = any(child.command.role == "explorer" and child.returncode is None for child in children)
    if not lives or any(
        child.command.role != "explorer" or child.returncode in (BAD_INPUT, PEER_DIED) for child in dead
    ):
        return False
    for child in dead:
        by.say(f"{_failure(child, by.watch)}; the other explorers take its tasks")
        children.remove(child)
    end(dead, grace_s=by.grace_s)
    return True


def _failure(child: Child, watch: ProgressWatch) -> str:
    if child.hung:
        return f"the {child.command.name} (pid {child.process.pid}) {child.hung}; it was killed"
    code = child.returncode or 0
    how = f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        how = "was killed by SIGKILL (often: out of memory)"
    elif code < 0:
        known = -code in signal.valid_signals()
        how = f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
    reason = watch.reason(child.command.role, child.process.pid)
    if not reason and code != -signal.SIGKILL:  # which it had no time to say a word about
        reason = last_error(child.output())
    return f"the {child.command.name} {how}" + (f": {reason}" if reason else "")
