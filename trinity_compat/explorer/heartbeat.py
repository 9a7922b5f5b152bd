"""Says every second that this explorer lives, and notices when the trainer no longer does."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import Holder
from trinity_compat.buffer.sight import Sight
from trinity_compat.explorer.sharing import LEASE_S

SILENCE_S = 10.0
RESTARTS = "TRINITY_COMPAT_RESTARTS"  # set by the supervisor: how often it will start this explorer again


class TrainerGone(RuntimeError):
    """The trainer was there and has not been heard of for SILENCE_S seconds, or says that it failed."""


class Heartbeat:
    """A thread with a buffer of its own; ``state`` and ``detail`` are what it reports. Only an explorer
    needs a trainer that lives, and tells it when its own death would not be the end."""

    def __init__(
        self,
        open_own: Callable[[], Buffer],
        name: str,
        *,
        role: str = "explorer",
        period_s: float = 1.0,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.state = "starting"
        restarts = int(os.environ.get(RESTARTS) or 0) if role == "explorer" else 0
        self.detail: dict[str, object] = {"restarts": restarts} if restarts else {}
        self.holder: Callable[[], Holder | None] = lambda: None  # whose tasks are kept as long as it beats
        self._open = open_own
        self._name, self._role = name, role
        self._period, self._silence = period_s, silence_s
        self._stop = threading.Event()
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin beating."""
        self._thread.start()

    def check(self) -> None:
        """Raises TrainerGone with the reason, or what kept this thread from beating."""
        if self._trouble:
            raise self._trouble

    def note(self, text: str) -> None:
        """Something that the user should hear; "" when it is over."""
        if text:
            print(text, flush=True)
        self.detail = {key: value for key, value in self.detail.items() if key != "note"}
        self.detail |= {"note": text} if text else {}

    def stop(self, state: str, **detail: object) -> None:
        """Report a last state and end the thread."""
        self.state = state
        self.detail |= detail
        self._stop.set()
        self._thread.join(timeout=10.0)

    def _beat(self) -> None:
        try:
            buffer = self._open()
            try:
                self._beat_until_stopped(buffer)
            finally:
                buffer.close()
        except Exception as error:
            self._trouble = error

    def _beat_until_stopped(self, buffer: Buffer) -> None:
        sight = Sight()
        while not self._stop.is_set():
            buffer.beat(self._role, self._name, state=self.state, detail=self.detail)
            if holder := self.holder():
                buffer.keep(holder, lease_s=LEASE_S)
            reason = self._trainer_trouble(buffer, sight.look())
            if reason and not self._trouble:
                self._trouble = TrainerGone(reason)
            self._stop.wait(self._period)
        if holder := self.holder():
            buffer.leave(holder)
        buffer.beat(self._role, self._name, state=self.state, detail=self.detail)

    def _trainer_trouble(self, buffer: Buffer, seen_s: float) -> str | None:
        if self._role != "explorer":
            return None
        return trainer_trouble(buffer, seen_s=seen_s, silence_s=self._silence)


def trainer_trouble(buffer: Buffer, *, seen_s: float = math.inf, silence_s: float = SILENCE_S) -> str | None:
    """Why the trainer can't be waited for any longer; None while it lives, is done, or never came. Its
    silence counts no further back than the ``seen_s`` seconds for which the database was in sight."""
    trainers = [p for p in buffer.participants() if p.role == "trainer"]
    for trainer in trainers:
        if trainer.state == "failed":
            return f"the trainer failed: {trainer.detail.get('reason', 'see its log')}"
        if trainer.state == "stopped":
            return "the trainer was stopped by a signal"
        if trainer.state != "done" and min(trainer.age_s, seen_s) > silence_s:
            return (
                f"the trainer (pid {trainer.pid} on {trainer.host}) has been silent for {trainer.age_s:.0f} s"
            )
    return None
