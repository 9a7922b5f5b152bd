"""The display of a running job: a live panel on a terminal, one line per step elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trinity_compat.buffer.store import Buffer
from trinity_compat.common.output_text import console
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run.job_dir.heartbeats import Heartbeats, LastHeartbeat
from trinity_compat.run.job_dir.snapshot import (
    Snapshot,
    StepFigures,
    age,
    label,
    now_line,
    phases,
    read_snapshot,
)

_EVERY_S = 1.0
_SHOWN = 12  # steps of the panel
_QUIET_S = 30.0  # between two lines of plain output without news


class Progress:
    """Shows a run from its database. Implements ``supervisor.ProgressWatch``.

    ``open_database`` is called at the first update: the database belongs to the run, and may be made
    by another host's side. A database that cannot be read just now never ends the run.
    """

    def __init__(
        self, spec: RunSpec, open_database: Callable[[], Buffer], *, out: TextIO | None = None
    ) -> None:
        self._spec = spec
        self._open = open_database
        self._out = out or sys.stdout
        self._buffer: Buffer | None = None
        self._rows: dict[int, StepFigures] = {}
        self._seen: Snapshot | None = None
        self._next = 0.0
        self._spoken = time.monotonic()
        self._complain = 0.0
        self._states: dict[str, str] = {}
        self._notes: dict[str, str | None] = {}
        self._live: Live | None = None
        self._heartbeats = Heartbeats()

    def __enter__(self) -> Progress:
        shown_on = console(file=self._out)
        if shown_on.is_terminal:
            self._live = Live(
                console=shown_on, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._next = 0.0
        self.update()
        if self._live:
            self._live.stop()

    @property
    def last(self) -> Snapshot | None:
        """The newest snapshot that was read."""
        return self._seen

    def update(self) -> None:
        """Read and show what is new, at most once a second."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        try:
            self._buffer = self._buffer or self._open()
            snapshot = read_snapshot(self._buffer, self._spec, after_step=max(self._rows, default=-1))
        except Exception as error:
            if time.monotonic() > self._complain:
                self._complain = time.monotonic() + _QUIET_S
                self._say(f"(the database cannot be read just now: {error})")
            return
        fresh = [row for row in snapshot.rows if row.step not in self._rows]
        self._rows.update({row.step: row for row in fresh})
        merged = _with_rows(snapshot, list(self._rows.values()))
        if self._seen and not merged.validation:  # read from the new rows only
            merged = replace(merged, validation=self._seen.validation)
        self._seen = merged
        if self._live:
            self._live.update(panel(merged), refresh=True)
            return
        for row in fresh:
            self._say(now_line(_with_rows(snapshot, [row])))
        for who in merged.participants:
            note = str(who.detail.get("note") or "")
            if note and note != self._notes.get(who.name):
                self._say(f"{label(who)} {note}")
            self._notes[who.name] = note
        states = phases(merged)
        if states != self._states or time.monotonic() - self._spoken > _QUIET_S:
            self._states = states
            self._say(now_line(merged))

    def heard(self, role: str, pid: int) -> LastHeartbeat | None:
        """Return the last heartbeat of a participant on this machine."""
        if self._buffer:
            self._heartbeats.read(self._buffer)
        return self._heartbeats.of(role, pid)

    def reason(self, role: str, pid: int) -> str | None:
        """Return ``detail.reason`` of a participant that reported failure; an earlier run's is ignored."""
        try:
            self._buffer = self._buffer or self._open()
            everybody = self._buffer.participants()
        except Exception:
            return None
        failed = [who for who in everybody if (who.state, who.role, who.pid) == ("failed", role, pid)]
        reasons = [str(who.detail["reason"]) for who in failed if who.detail.get("reason")]
        return reasons[-1] if reasons else None

    def aside(self, text: str) -> None:
        """Print a line that is not about the run's progress: above the panel, where there is one."""
        if self._live:
            _copy(text)
            self._live.console.print(Text.from_ansi(text), soft_wrap=True)
        else:
            say(text, self._out)

    def _say(self, text: str) -> None:
        self._spoken = time.monotonic()
        if self._live is None:
            say(text, self._out)


_copies: list[Callable[[str], None]] = []


@contextlib.contextmanager
def copied_to(sink: Callable[[str], None]) -> Iterator[None]:
    """Give each text that is said in the block to ``sink`` too."""
    _copies.append(sink)
    try:
        yield
    finally:
        _copies.remove(sink)


def _copy(text: str) -> None:
    for sink in _copies:
        sink(text)


def say(text: str, out: TextIO | None = None) -> None:
    """Print a line and flush. A closed pipe (``| tee`` after Ctrl-C) does not fail the run."""
    _copy(text)
    try:
        print(text, file=out or sys.stdout, flush=True)
    except BrokenPipeError:
        sys.stdout = sys.stderr


def panel(snapshot: Snapshot) -> RenderableType:
    """The live display: a bar, the two sides, the latest steps."""
    validation = Text("  ".join(f"{name} {value:.3f}" for name, value in snapshot.validation.items()))
    grid = Table.grid(padding=(0, 2))
    r, total = snapshot.updates_per_step, snapshot.total
    updates = f"{snapshot.step * r}/{total * r if total else '?'}"
    remaining = "" if snapshot.left_s is None else f"   about {age(snapshot.left_s)} left"
    done = f"veRL step {snapshot.step}/{total or '?'}   Trinity updates {updates}{remaining}"
    grid.add_row(ProgressBar(total=total or 1, completed=snapshot.step, width=40), done)
    return Group(grid, _sides(snapshot), _steps(snapshot), validation)


def _sides(snapshot: Snapshot) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for who in snapshot.participants:
        detail = " ".join(f"{key}={value}" for key, value in list(who.detail.items())[:4])
        grid.add_row(label(who), who.state, f"seen {age(who.age_s)} ago", detail)
    depth = ", ".join(f"{state} {count}" for state, count in snapshot.depth.items() if count)
    grid.add_row("buffer", depth or "empty", "", f"weights of step {snapshot.version}")
    return grid


def _steps(snapshot: Snapshot) -> RenderableType:
    # A run on rows of files has a loss and no rewards.
    has_loss = any(row.loss is not None for row in snapshot.rows)
    goal, form = ("loss", ".4f") if has_loss else ("reward", ".3f")
    table = Table("step", goal, "staleness", "tokens/s", "s/step", box=None, pad_edge=False)
    for row in snapshot.rows[-_SHOWN:]:
        reached = row.reward if row.loss is None else row.loss
        cells = [(reached, form), (row.staleness, ".2g"), (row.tokens_per_s, ".0f"), (row.step_s, ".2f")]
        table.add_row(
            str(row.step), *("-" if value is None else f"{value:{written}}" for value, written in cells)
        )
    return table


def _with_rows(snapshot: Snapshot, rows: list[StepFigures]) -> Snapshot:
    return replace(snapshot, rows=rows)
