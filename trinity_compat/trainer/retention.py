"""Removal of old steps' content from the buffer during training: ``keep_steps``, and teachers' arrays."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from trinity_compat.buffer.database import Database
from trinity_compat.buffer.retention import ALL_TAKEN, Droppable, TextRetention, last_trained
from trinity_compat.common.nested import value_at
from trinity_compat.job.checkpoints import last_step
from trinity_compat.job.distillation import stores_top_tokens
from trinity_compat.job.run_spec import RunSpec

_log = logging.getLogger(__name__)

PERIOD_S = 10.0
SPARE = 0.25  # part of the file kept as free pages, which the next steps fill


class RetentionThread:
    """Thread that runs while the ``with`` block lasts.

    No-op where ``keep_steps`` is not set and no teacher's top tokens are stored.
    """

    def __init__(self, spec: RunSpec, *, period_s: float = PERIOD_S) -> None:
        self._spec, self._period = spec, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def __enter__(self) -> Self:
        if self._spec.keep_steps is not None or stores_top_tokens(self._spec.verl):
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
                retention = TextRetention(db, pause=self._stop.wait)
                while not self._stop.wait(self._period):
                    last = db.run(last_trained, write=False)
                    teachers, content = unneeded_teachers(self._spec, last), unneeded(self._spec, last)
                    for what in filter(None, (teachers, content)):
                        retention.drop(what, until=self._stop.is_set)
                    if content:  # what teachers leave free is filled by the next steps
                        retention.give_back(spare=SPARE, until=self._stop.is_set)
            finally:
                db.close()
        except Exception as error:
            setting = "distillation" if self._spec.keep_steps is None else "keep_steps"
            _log.warning("%s: %s; nothing more is dropped", setting, error)


def unneeded(spec: RunSpec, last: int) -> Droppable | None:
    """Content that may be dropped after trainer step ``last``; None for nothing.

    It is ``keep_steps`` old, and older than the checkpoint from which a resume would start. A resume from an
    older checkpoint is possible: the missing groups are generated again.
    """
    if spec.keep_steps is None:
        return None
    return _older_than(
        spec, last, max(1, spec.keep_steps)
    )  # the last step's evaluation may not have been read


def unneeded_teachers(spec: RunSpec, last: int) -> Droppable | None:
    """Teachers' top tokens that may be dropped after trainer step ``last``, whatever ``keep_steps`` is.

    A step of 128 answers of 2048 tokens at K = 64 has 134 MB of them.
    """
    if not stores_top_tokens(spec.verl):
        return None
    found = _older_than(spec, last, 1)
    return replace(found, teachers_only=True) if found else None


def _older_than(spec: RunSpec, last: int, kept: int) -> Droppable | None:
    upto = last - kept
    if int(value_at(spec.verl, "trainer.save_freq") or 0) > 0:
        upto = min(upto, last_step(Path(spec.job_dir)) or 0)
    if value_at(spec.verl, "trainer.resume_mode") == "resume_path":
        upto = min(upto, int(str(value_at(spec.verl, "trainer.resume_from_path")).rsplit("_", 1)[-1]))
    oldest = last - spec.max_staleness if spec.max_staleness is not None else 0
    uses = spec.replay.max_uses if spec.replay else ALL_TAKEN
    return Droppable(upto, uses, max(0, oldest)) if upto > 0 else None
