"""What the buffer raises besides ``UserError`` and ``ClaimLost``."""

from __future__ import annotations

from trinity_compat.common.errors import RunError


class BufferError(RunError):
    """The database stayed out of reach, or answered what it must not."""


class BufferFull(BufferError):
    """The disk under the database is full. The transaction was rolled back: nothing is half-written."""


class InvalidGroup(BufferError, ValueError):
    """A group that cannot be stored, with the reason and the task. Nothing of it was written."""


class BufferGone(BufferError):
    """The database's file was deleted, moved or replaced while it was used: nothing can be stored for the
    run."""


class HistoryChanged(BufferError):
    """A resume started a new history: what was made in the old one must not be stored."""
