"""The experience store between explorer and trainer, over SQLite or PostgreSQL."""

from trinity_compat.buffer.errors import BufferError, BufferFull, BufferGone, HistoryChanged
from trinity_compat.buffer.store import open_buffer

__all__ = ["BufferError", "BufferFull", "BufferGone", "HistoryChanged", "open_buffer"]
