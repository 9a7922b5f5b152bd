"""Watchdogs: anything that a process waits for must progress within a limit, or it is named and killed.

Progress means tokens, answers, calls that returned; a live process alone does not count. A ``Watchdog``
keeps the activities of a process, each with a limit; ``tick`` passes time and ``look`` judges. A
``WatchdogThread`` looks, names what hangs in the log, ends it, and at last its own process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from trinity_compat.common.hung_process import HungProcess, describe, kill, stack

GAP_S = 5.0  # time between two ticks counts up to this: a paused machine or container is no hang
LONG = 6.0  # times the limit, for what is slow by nature: a call to a training process, reading the data
FAILED = 1  # exit code
_LOOK_S = 1.0
_LEAVE_S = 30.0  # for a process that was told what hangs, to end by itself
_DUMPED = 4  # processes whose stacks go to the log
SETTING = "trinity_compat.stall_timeout"

Text = str | Callable[[], str]
Suspects = Callable[[], Sequence[HungProcess]]


@dataclass(frozen=True, slots=True)
class Stalled:
    """An activity without progress: its name, the time, and the processes that it waits for.

    Without ``suspects`` this process itself hangs.
    """

    what: str
    idle_s: float
    limit_s: float
    suspects: Sequence[HungProcess] = ()

    def __str__(self) -> str:
        who = f" ({', '.join(describe(each) for each in self.suspects)})" if self.suspects else ""
        return f"no progress for {self.idle_s:.0f} s: {self.what}{who}; {SETTING} sets the limit"


class Activity:
    """An activity that should make progress.

    It may take ``times`` the watchdog's limit and ``extra_s`` seconds without progress. ``times`` None means
    no limit here, because another component limits it.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        what: Text,
        *,
        times: float | None = 1.0,
        extra_s: float = 0.0,
        suspects: Suspects = tuple,
    ) -> None:
        self._watchdog, self._suspects = watchdog, suspects
        self._what, self._times, self._extra_s = what, times, extra_s
        self._since = watchdog.seconds

    def progress(self) -> None:
        """Record progress."""
        self._since = self._watchdog.seconds
        self._watchdog.count += 1

    def now(
        self,
        what: Text,
        *,
        times: float | None = 1.0,
        extra_s: float = 0.0,
        suspects: Suspects | None = None,
    ) -> None:
        """Replace the activity by the next one; ``suspects`` None keeps the processes."""
        self._what, self._times, self._extra_s = what, times, extra_s
        self._suspects = suspects or self._suspects
        self.progress()

    @property
    def what(self) -> str:
        """The activity's name for messages."""
        return self._what if isinstance(self._what, str) else self._what()

    def over(self, limit_s: float) -> float:
        """Return the seconds past the limit, negative before it."""
        if self._times is None:
            return -1.0
        return self._watchdog.seconds - self._since - (limit_s * self._times + self._extra_s)

    def stalled(self, limit_s: float) -> Stalled:
        """Return the report of this activity's stall."""
        idle_s = self._watchdog.seconds - self._since
        allowed_s = limit_s * (self._times or 1.0) + self._extra_s
        suspects: Sequence[HungProcess] = ()
        with suppress(Exception):  # of processes that Ray has lost nobody knows where they are
            suspects = self._suspects()
        return Stalled(self.what, idle_s, allowed_s, tuple(suspects))


class Watchdog:
    """The activities of one process or event loop. Any thread may use it. ``limit_s`` None: no limit."""

    def __init__(self, limit_s: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s, self._clock = limit_s, clock
        self.seconds, self.count = 0.0, 0  # time in sight; how often anything made progress
        self.found_a_stall = False  # what hangs is killed, and this process will end
        self._last = clock()
        self._open: dict[int, Activity] = {}

    def tick(self) -> None:
        """Advance time. The waiting thread calls this, so time does not pass while it cannot see progress."""
        now = self._clock()
        self.seconds += min(max(now - self._last, 0.0), GAP_S)
        self._last = now

    def begin(
        self, what: Text, *, times: float | None = 1.0, extra_s: float = 0.0, suspects: Suspects = tuple
    ) -> Activity:
        """Start an activity that lasts until ``end``; arguments as ``Activity``'s."""
        activity = Activity(self, what, times=times, extra_s=extra_s, suspects=suspects)
        self._open[id(activity)] = activity
        self.count += 1
        return activity

    def end(self, activity: Activity) -> None:
        """End the activity, which is progress too."""
        self._open.pop(id(activity), None)
        self.count += 1

    @contextmanager
    def doing(
        self, what: Text, *, times: float | None = 1.0, extra_s: float = 0.0, suspects: Suspects = tuple
    ) -> Iterator[Activity]:
        """Run the block as an activity."""
        activity = self.begin(what, times=times, extra_s=extra_s, suspects=suspects)
        try:
            yield activity
        finally:
            self.end(activity)

    def look(self) -> Stalled | None:
        """Return a report of the activity furthest past its limit, None within all limits."""
        if self.limit_s is None:
            return None
        limit_s = self.limit_s
        worst = max(self._activities(), key=lambda each: each.over(limit_s), default=None)
        return worst.stalled(limit_s) if worst and worst.over(limit_s) > 0 else None

    def told(self) -> list[str]:
        """Return the names of all current activities."""
        return [each.what for each in self._activities()]

    def _activities(self) -> list[Activity]:
        return list(self._open.values())


class WatchdogThread:
    """A thread that checks ``watchdogs`` every second.

    A stalled process is logged with its stacks and killed. Its waiting callers then get an error, and read
    ``reason``. A process that has not ended ``leave_s`` later, or that hangs itself,
    ends with exit code 1 after ``last_word(reason)``.

    Use as a context manager. ``own``: the watchdog that passes time by these looks; others tick themselves.
    """

    def __init__(
        self,
        own: Watchdog,
        *others: Watchdog,
        last_word: Callable[[str], object],
        leave_s: float = _LEAVE_S,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._own, self._watchdogs = own, (own, *others)
        self._last_word, self._leave_s, self._leave = last_word, leave_s, leave
        self.reason: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> WatchdogThread:
        if self._own.limit_s is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            if found := self.look():
                self.act(found)
                return

    def look(self) -> Stalled | None:
        """Check all watchdogs once."""
        self._own.tick()
        return next((found for each in self._watchdogs if (found := each.look())), None)

    def act(self, found: Stalled) -> None:
        """Log the stall with stacks, then kill the processes."""
        self.reason = str(found)
        for each in self._watchdogs:
            each.found_a_stall = True
        print(f"watchdog: {self.reason}", file=sys.stderr, flush=True)
        with suppress(Exception):  # the process must end even if this fails
            for suspect in found.suspects[:_DUMPED]:
                print(stack(suspect), file=sys.stderr, flush=True)
        for suspect in found.suspects:
            with suppress(Exception):
                kill(suspect)
        if found.suspects and self._over.wait(self._leave_s):
            return
        with suppress(Exception):  # the database may be away
            faulthandler.dump_traceback(file=sys.stderr)
            # For the supervisor, which reads the log where the database did not take the last word.
            print(f"error: {self.reason}", file=sys.stderr, flush=True)
            self._last_word(self.reason)
        self._leave(FAILED)
