"""``trinity.utils.log``."""

from __future__ import annotations

import logging


def get_logger(name: str | None = None, **unused: object) -> logging.Logger:
    """A logger of that name."""
    return logging.getLogger(name or "trinity")
