"""The Trinity-RFT configuration: its schema per release, checking, writing with provenance, reading.

The schema is data (``translators/generated/trinity/<release>.json``), extracted from the real package;
nothing here imports it. What this package writes is read back to the same values by ``yaml.safe_load`` and by
OmegaConf, which is what upstream uses.
"""

from __future__ import annotations

from trinity_compat.trinity.config.emit import dump
from trinity_compat.trinity.config.schema import TARGETS, Schema, schema
from trinity_compat.trinity.config.validate import Problem, validate

__all__ = ["TARGETS", "Problem", "Schema", "dump", "load", "parse", "schema", "validate"]


def __getattr__(name: str) -> object:
    # Reading needs PyYAML, which costs more than everything else here together.
    if name in ("load", "parse"):
        from trinity_compat.trinity.config import read

        return getattr(read, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
