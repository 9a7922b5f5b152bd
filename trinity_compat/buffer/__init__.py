"""The experience store between explorer and trainer, over SQLite or PostgreSQL."""

from trinity_compat.buffer.errors import BufferError, BufferFull, HistoryChanged
from trinity_compat.buffer.store import open_buffer

__all__ = ["BufferError", "BufferFull", "HistoryChanged", "open_buffer"]
