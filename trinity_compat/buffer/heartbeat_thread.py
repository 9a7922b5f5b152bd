"""Thread that writes a heartbeat every second, and does further periodic work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from trinity_compat.buffer.api import Buffer
from trinity_compat.common.watchdog import LONG, Watchdog

_log = logging.getLogger(__name__)

_TOLD = 4  # activities in a report's detail


class HeartbeatThread:
    """Heartbeat of this process, with ``state`` and ``detail``.

    Subclasses override ``after_beat`` and ``before_last_beat``.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Buffer]],
        role: str,
        name: str,
        *,
        period_s: float = 1.0,
        always: Mapping[str, object] | None = None,
        limit_s: float | None = None,
    ) -> None:
        """Create the thread; ``start`` starts it.

        ``opened`` opens the thread's buffer; ``always`` is part of
        every heartbeat's detail; ``limit_s`` is the watchdog's, None for none.
        """
        self.state, self.name = "starting", name
        self.detail: dict[str, Any] = {}
        self._always = dict(always or {})
        self._opened, self._role, self._period = opened, role, period_s
        self._stop, self._beating = threading.Event(), threading.Lock()
        self._trouble: BaseException | None = None
        self.watchdog = Watchdog(limit_s)
        self.main = self.watchdog.begin("starts", times=LONG)  # what its main thread does
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def after_beat(self, buffer: Buffer) -> None:
        """Work after each heartbeat. An exception ends the thread, and ``check`` raises it."""

    def before_last_beat(self, buffer: Buffer) -> None:
        """Work before the last heartbeat of a stopped thread."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def progress(self) -> tuple[int, list[str]]:
        """Count of progress, and activities that have a limit of their own."""
        return self.watchdog.count, self.watchdog.told()

    def check(self) -> None:
        """Raise an exception of the thread in the caller."""
        if self._trouble is not None:
            raise self._trouble

    def note(self, text: str) -> None:
        """Print ``text`` and report it in the detail, until a note "" removes it."""
        if text:
            _log.warning(text)
        self.detail = {key: value for key, value in self.detail.items() if key != "note"}
        self.detail |= {"note": text} if text else {}

    def stop(self, state: str | None = None, **detail: object) -> None:
        """Write a last heartbeat (``state`` None: unchanged) and end the thread."""
        self.state = state or self.state
        self.detail |= detail
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        try:
            with self._opened() as buffer:
                while not self._stop.is_set():
                    self._beat(buffer)
                    self.after_beat(buffer)
                    self._stop.wait(self._period)
                self.before_last_beat(buffer)
                self._beat(buffer)
        except BaseException as error:  # shown to the caller by check()
            self._trouble = error

    def _beat(self, buffer: Buffer) -> None:
        with self._beating:  # or the thread's older word could land after another's newer one
            count, doing = self.progress()
            told = {"progress": count, **({"doing": "; ".join(doing[:_TOLD])} if doing else {})}
            buffer.beat(self._role, self.name, state=self.state, detail=self._always | self.detail | told)
