"""One run as server-sent events: ``now`` (figures), ``rows`` (new metrics), ``log`` (new lines).

Each look is a few short reads, once a second, of which nothing stays open; a browser that goes away ends it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse

from trinity_compat.common.redaction import shown
from trinity_compat.compare.breakdown import step_parts
from trinity_compat.studio import logs, run_state
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import job_of, studio_of, to_json, whole_number
from trinity_compat.studio.series import Metrics, Row, Seen, SeriesCache, public

LOOK_EVERY_S = 1.0
_SILENT_LOOKS = 15  # after as many a comment keeps the connection open
Rows = Mapping[str, Sequence[tuple[int, Row]]]


@dataclass
class PageState:
    """The state that one open page has received."""

    job: Job
    store: SeriesCache
    history: int
    seen: dict[str, Seen]
    logs_at: dict[str, int] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)

    def look(self) -> list[tuple[str, object]]:
        """(event, data) of all that is new since the last look."""
        try:
            with self.job.database().at_once():
                metrics = self.store.of(self.job)
                now = run_state.now(self.job, metrics)
                events = [("now", now), *self._rows(metrics)]
                if self.job.resumed:
                    events.append(("resumed", self.job.resumed.message(running=now["state"] == "running")))
            self.told.pop("problem", None)
        except Exception as error:  # the next look may do better
            events = [("problem", shown(str(error)))]
            self.told.pop("now", None)
        fresh = [(name, data) for name, data in events if self.told.get(name) != data]
        self.told |= {name: data for name, data in fresh if name != "rows"}
        return [
            *fresh,
            *(("log", [name, text]) for name, text in logs.follow(self.job.dir, self.logs_at).items()),
        ]

    def _rows(self, metrics: Metrics) -> list[tuple[str, object]]:
        if metrics.history != self.history:
            self.history, self.seen = metrics.history, metrics.last()
            return [("again", metrics.history)]
        new = metrics.after(self.seen)
        self.seen |= metrics.last()
        trainer = {name for row in metrics.rows.get("trainer", {}).values() for name in row}
        return [("rows", {"rows": _named(new, trainer), "seconds": seconds(new)})] if new else []


def _named(rows: Rows, trainer: set[str]) -> list[tuple[int, Row]]:
    return [
        (step, {public(role, name, trainer): value for name, value in row.items()})
        for role, found in rows.items()
        for step, row in found
    ]


def seconds(rows: Rows, *, most: int | None = None) -> dict[str, object]:
    """Side → [(step, part → seconds)] of rows that have a clock, the last ``most`` of them."""
    found = {}
    for role, of_role in rows.items():
        read: Callable[[Mapping[str, float]], dict[str, float]]
        read = trainer_seconds if role == "trainer" else explorer_seconds
        clocks = [(step, parts) for step, row in of_role if (parts := read(row))]
        found[role] = clocks[-most:] if most else clocks
    return {"sides": found}


def events(request: Request) -> StreamingResponse:
    """``?history=H&last=ROLE:STEP:FIGURES…``: what the page has already."""
    seen = {}
    for text in request.query_params.getlist("last"):
        role, *newest = text.rsplit(":", 2)
        if len(newest) != 2:
            raise HTTPException(400, "last is ROLE:STEP:FIGURES.")
        seen[role] = (whole_number(newest[0], "last"), whole_number(newest[1], "last"))
    history = whole_number(request.query_params.get("history", "0"), "history")
    watch = PageState(job_of(request), studio_of(request).store, history, seen)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_stream(request, watch), media_type="text/event-stream", headers=headers)


async def _stream(request: Request, watch: PageState) -> AsyncIterator[str]:
    silent = 0
    while not await request.is_disconnected():
        found = await run_in_threadpool(watch.look)
        silent = 0 if found else silent + 1
        for name, data in found:
            yield f"event: {name}\ndata: {to_json(data)}\n\n"
        if silent % _SILENT_LOOKS == _SILENT_LOOKS - 1:
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_EVERY_S)


WAITING = ("waiting for the buffer", "waiting")
_EXPLORER_PARTS = {"rollout": "rollout", "write": "write", "sync_weight": "weights", "wait": "waiting"}


def trainer_seconds(row: Mapping[str, float]) -> dict[str, float]:
    """Part → seconds of one veRL step, in order; {} for a row without a step's clock."""
    clock = _clocks(row, "timing_s/")
    return {part: s for part, s in step_parts(clock).items() if s > 0} if "step" in clock else {}


def explorer_seconds(row: Mapping[str, float]) -> dict[str, float]:
    """Part → seconds of one explorer step."""
    clock = _clocks(row, "time/")
    return {part: clock[name] for name, part in _EXPLORER_PARTS.items() if clock.get(name, 0) > 0}


def _clocks(row: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): value
        for name, value in row.items()
        if name.startswith(prefix) and math.isfinite(value)
    }
