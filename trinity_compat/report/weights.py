"""Weights: of each version its digest at the trainer and at each engine."""

from __future__ import annotations

import sqlalchemy as sa

from trinity_compat.buffer import queries
from trinity_compat.buffer.report import rows
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.report.model import Section, counted

_VERSION = ("version", "history", "digest", "bytes", "method")


def weights(conn: sa.Connection, spec: RunSpec) -> Section:
    """Return the section."""
    versions = [dict(zip(_VERSION, row, strict=True)) for row in rows(conn, queries.VERSIONS)]
    first = f"{counted(len(versions), 'version')} published"
    why = ["which weights each engine loaded: this run's release did not record it"] if versions else []
    return Section("Weights", "open", first, {"versions": versions}, why)
