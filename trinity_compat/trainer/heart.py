"""A thread that says "I live" every second and keeps the lease of the claim in hand."""

from __future__ import annotations

import threading
import time
from typing import Self

from trinity_compat.buffer.api import Buffer
from trinity_compat.buffer.model import Claim

BEAT_S = 1.0
LEASE_S = 60.0


class Heart:
    """Use as a context manager. ``check`` raises in the caller what went wrong in the thread."""

    def __init__(
        self, buffer: Buffer, name: str, *, lease_s: float = LEASE_S, beat_s: float = BEAT_S
    ) -> None:
        self.name, self.lease_s = name, lease_s
        self._buffer, self._beat_s = buffer, beat_s
        self._state, self._detail = "starting", dict[str, object]()
        self._claim: Claim | None = None
        self._renewed = 0.0
        self._lock, self._beating = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="trinity-heart", daemon=True)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def say(self, state: str, **detail: object) -> None:
        """Change the state at once, not with the next beat."""
        self._state, self._detail = state, detail
        self._beat()

    def note(self, text: str) -> None:
        """Something that the user should hear, while the state stays; "" when it is over."""
        if text:
            print(f"[trinity] {text}", flush=True)
        detail = {key: value for key, value in self._detail.items() if key != "note"}
        self.say(self._state, **detail, **({"note": text} if text else {}))

    def keep(self, claim: Claim | None) -> None:
        """Renew ``claim`` from now on, or nothing."""
        with self._lock:
            self._claim, self._renewed = claim, time.monotonic()

    def check(self) -> None:
        """Raise what the thread died of: a lost claim, a database that is gone."""
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        while not self._stop.wait(self._beat_s):
            try:
                self._beat()
                self._renew()
            except BaseException as error:  # shown to the main thread by check()
                self._failed = error
                return

    def _beat(self) -> None:
        with self._beating:  # or the thread's older word could land after the last one
            self._buffer.beat("trainer", self.name, state=self._state, detail=self._detail)

    def _renew(self) -> None:
        # Under the lock, so that keep(None) after mark_trained never meets a renewal of the same claim.
        with self._lock:
            if self._claim is not None and time.monotonic() - self._renewed > self.lease_s / 4:
                self._buffer.renew(self._claim, lease_s=self.lease_s)
                self._renewed = time.monotonic()
