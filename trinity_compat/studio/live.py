"""News of one run for an open page: ``now`` (figures), ``rows`` (new metrics), ``log`` (new lines).

A page asks once a second: a browser has six connections to a host, which a stream for each page would use up.
Each look is a few short reads; the page, not the studio, keeps how far it has got.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from trinity_compat.common.redaction import shown
from trinity_compat.studio import logs, run_state, step_time
from trinity_compat.studio.jobs import Job
from trinity_compat.studio.pages import as_json, job_of, studio_of, whole_number
from trinity_compat.studio.series import Metrics, Seen, SeriesCache, public

_SOON_S, _LATER_S = 1, 5  # until the next look at a run that goes on, at another
_SHARE = 20  # a page waits at least so many times as long as a look took of a core


@dataclass
class PageState:
    """The state that one open page has received."""

    job: Job
    store: SeriesCache
    history: int
    seen: dict[str, Seen]
    logs_at: dict[str, int] = field(default_factory=dict)
    wait_s: float = _LATER_S

    def look(self) -> list[tuple[str, object]]:
        """(event, data) of all that is new since the last look."""
        self.wait_s, began = _SOON_S, time.thread_time()
        try:
            with self.job.database().at_once():
                metrics = self.store.of(self.job)
                now = run_state.now(self.job, metrics)
                found = [("now", now), *self._rows(metrics)]
            running = now["state"] in run_state.GOES_ON
            if self.job.resumed:
                found.append(("resumed", self.job.resumed.message(running=running)))
            if not running and not (self.job.resumed and self.job.resumed.lives):
                self.wait_s = _LATER_S
        except Exception as error:  # the next look may do better
            found = [("problem", shown(str(error)))]
        self.wait_s = max(self.wait_s, round(_SHARE * (time.thread_time() - began), 1))
        lines = logs.follow(self.job.dir, self.logs_at)
        return [*found, *(("log", [name, text]) for name, text in lines.items())]

    @property
    def query(self) -> str:
        """The query of its next look: how far the page has got."""
        last = [("last", f"{role}:{step}:{figures}") for role, (step, figures) in self.seen.items()]
        at = [("log", f"{name}:{byte}") for name, byte in self.logs_at.items()]
        return urlencode([("history", self.history), *last, *at], errors="replace")

    def _rows(self, metrics: Metrics) -> list[tuple[str, object]]:
        if metrics.history != self.history:
            self.history, self.seen = metrics.history, metrics.last()
            return [("again", metrics.history)]
        new = metrics.after(self.seen)
        self.seen |= metrics.last()
        trainer = {name for row in metrics.rows.get("trainer", {}).values() for name in row}
        rows = [
            (step, {public(role, name, trainer): value for name, value in row.items()})
            for role, found in new.items()
            for step, row in found
        ]
        return [("rows", {"rows": rows, "seconds": step_time.seconds(new)})] if new else []


def look(request: Request) -> Response:
    """``?history=H&last=ROLE:STEP:FIGURES…&log=NAME:BYTE…``: what the page has (``PageState.query``)."""
    given = request.query_params
    seen = {}
    for text in given.getlist("last"):
        role, *newest = text.rsplit(":", 2)
        if len(newest) != 2:
            raise HTTPException(400, "last is ROLE:STEP:FIGURES.")
        seen[role] = (whole_number(newest[0], "last"), whole_number(newest[1], "last"))
    logs_at = {}
    for text in given.getlist("log"):
        name, _, byte = text.rpartition(":")
        logs_at[name] = whole_number(byte, "log")
    history = whole_number(given.get("history", "0"), "history")
    page = PageState(job_of(request), studio_of(request).store, history, seen, logs_at)
    events = page.look()
    if "rows" in given:  # for a page of several runs
        events = [event for event in events if event[0] in ("rows", "again")]
    return as_json({"events": events, "next": page.query, "wait_s": page.wait_s})
