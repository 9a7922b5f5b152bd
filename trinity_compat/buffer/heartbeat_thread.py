"""A thread that says every second that this process lives, and what else is to be done as long as it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from trinity_compat.buffer.api import Buffer
from trinity_compat.common.watchdog import LONG, Watchdog

_TOLD = 4  # activities in a report's detail


class HeartbeatThread:
    """``state`` and ``detail`` are what it reports. ``beside`` and ``at_the_end`` are for subclasses."""

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Buffer]],
        role: str,
        name: str,
        *,
        period_s: float = 1.0,
        prefix: str = "",
        always: Mapping[str, object] | None = None,
        limit_s: float | None = None,
    ) -> None:
        """``opened`` gives the thread its buffer; ``prefix`` is what notes begin with on the screen;
        ``always`` goes with every report's detail. ``limit_s``: the watchdog's, None for none."""
        self.state, self.name = "starting", name
        self.detail: dict[str, Any] = {}
        self._always = dict(always or {})
        self._opened, self._role, self._period, self._prefix = opened, role, period_s, prefix
        self._stop, self._beating = threading.Event(), threading.Lock()
        self._trouble: BaseException | None = None
        self.watchdog = Watchdog(limit_s)
        self.main = self.watchdog.begin("starts", times=LONG)  # what its main thread does
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def beside(self, buffer: Buffer) -> None:
        """Done after each beat. What it raises ends the thread, and ``check`` raises it."""

    def at_the_end(self, buffer: Buffer) -> None:
        """Done before the last beat of a thread that was stopped."""

    def start(self) -> None:
        """Begin beating."""
        self._thread.start()

    def progress(self) -> tuple[int, list[str]]:
        """A count that grows with whatever is achieved, and what is under way with a limit of its own."""
        return self.watchdog.count, self.watchdog.told()

    def check(self) -> None:
        """Raise in the caller what went wrong in the thread."""
        if self._trouble is not None:
            raise self._trouble

    def note(self, text: str) -> None:
        """Something that the user should hear, while the state stays; "" when it is over."""
        if text:
            print(f"{self._prefix}{text}", flush=True)
        self.detail = {key: value for key, value in self.detail.items() if key != "note"}
        self.detail |= {"note": text} if text else {}

    def stop(self, state: str | None = None, **detail: object) -> None:
        """Report a last state (None: as it is) and end the thread."""
        self.state = state or self.state
        self.detail |= detail
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            with self._opened() as buffer:
                while not self._stop.is_set():
                    self._beat(buffer)
                    self.beside(buffer)
                    self._stop.wait(self._period)
                self.at_the_end(buffer)
                self._beat(buffer)
        except BaseException as error:  # shown to the caller by check()
            self._trouble = error

    def _beat(self, buffer: Buffer) -> None:
        with self._beating:  # or the thread's older word could land after another's newer one
            count, doing = self.progress()
            told = {"progress": count, **({"doing": "; ".join(doing[:_TOLD])} if doing else {})}
            buffer.beat(self._role, self.name, state=self.state, detail=self._always | self.detail | told)
