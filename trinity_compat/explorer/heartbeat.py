"""Says every second that this explorer lives, and notices when the trainer no longer does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trinity_compat.buffer.api import Buffer

SILENCE_S = 10.0


class TrainerGone(RuntimeError):
    """The trainer was there and has not been heard of for SILENCE_S seconds, or says that it failed."""


class Heartbeat:
    """A thread with a buffer of its own; ``state`` and ``detail`` are what it reports."""

    def __init__(self, open_own: Callable[[], Buffer], name: str, *, period_s: float = 1.0) -> None:
        self.state = "starting"
        self.detail: dict[str, Any] = {}
        self._open = open_own
        self._name = name
        self._period = period_s
        self._stop = threading.Event()
        self._gone: str | None = None
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin beating."""
        self._thread.start()

    def check(self) -> None:
        """Raises TrainerGone with the reason."""
        if self._gone:
            raise TrainerGone(self._gone)

    def stop(self, state: str, **detail: Any) -> None:
        """Report a last state and end the thread."""
        self.state = state
        self.detail |= detail
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _beat(self) -> None:
        buffer = self._open()
        try:
            while not self._stop.is_set():
                buffer.beat("explorer", self._name, state=self.state, detail=self.detail)
                self._gone = self._gone or trainer_trouble(buffer)
                self._stop.wait(self._period)
            buffer.beat("explorer", self._name, state=self.state, detail=self.detail)
        finally:
            buffer.close()


def trainer_trouble(buffer: Buffer) -> str | None:
    """Why the trainer can't be waited for any longer; None while it lives, is done, or never came."""
    trainers = [p for p in buffer.participants() if p.role == "trainer"]
    for trainer in trainers:
        if trainer.state == "failed":
            return f"the trainer failed: {trainer.detail.get('reason', 'see its log')}"
        if trainer.state != "done" and trainer.age_s > SILENCE_S:
            return (
                f"the trainer (pid {trainer.pid} on {trainer.host}) has been silent for {trainer.age_s:.0f} s"
            )
    return None
