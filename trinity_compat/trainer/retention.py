"""Removal of old steps' texts and tokens from the buffer during training (``keep_steps``)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from trinity_compat.buffer.database import Database
from trinity_compat.buffer.retention import ALL_TAKEN, Droppable, TextRetention, last_trained
from trinity_compat.common.nested import value_at
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.trainer.checkpoints import marked_step

_log = logging.getLogger(__name__)

PERIOD_S = 10.0
SPARE = 0.25  # part of the file kept as free pages, which the next steps fill


class RetentionThread:
    """Thread that runs while the ``with`` block lasts; no-op where ``keep_steps`` is not set."""

    def __init__(self, spec: RunSpec, *, period_s: float = PERIOD_S) -> None:
        self._spec, self._period = spec, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def __enter__(self) -> Self:
        if self._spec.keep_steps is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._period)

    def _run(self) -> None:
        """Drop until stopped. An error is printed and ends this thread only, not the run."""
        try:
            db = Database(self._spec.database_url, create=False)
            try:
                self._drop(db)
            finally:
                db.close()
        except Exception as error:
            _log.warning("keep_steps: %s; nothing more is dropped", error)

    def _drop(self, db: Database) -> None:
        retention = TextRetention(db, pause=self._stop.wait)
        while not self._stop.wait(self._period):
            if what := unneeded(self._spec, db.run(last_trained, write=False)):
                retention.drop(what, until=self._stop.is_set)
                retention.give_back(spare=SPARE, until=self._stop.is_set)


def unneeded(spec: RunSpec, last: int) -> Droppable | None:
    """Content that may be dropped after trainer step ``last``; None for nothing.

    It is ``keep_steps`` old, and older than the checkpoint from which a resume would start. A resume from an
    older checkpoint is possible: the missing groups are generated again.
    """
    if spec.keep_steps is None:
        return None
    upto = last - max(1, spec.keep_steps)  # the last step's evaluation may not have been read
    if int(value_at(spec.verl, "trainer.save_freq") or 0) > 0:
        upto = min(upto, marked_step(Path(spec.job_dir)))
    if value_at(spec.verl, "trainer.resume_mode") == "resume_path":
        upto = min(upto, int(str(value_at(spec.verl, "trainer.resume_from_path")).rsplit("_", 1)[-1]))
    oldest = last - spec.max_staleness if spec.max_staleness is not None else 0
    uses = spec.replay.max_uses if spec.replay else ALL_TAKEN
    return Droppable(upto, uses, max(0, oldest)) if upto > 0 else None
