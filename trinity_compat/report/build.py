"""The report of a job."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from trinity_compat.buffer.reading import open_for_reading
from trinity_compat.report.coverage import coverage
from trinity_compat.report.drift import drift
from trinity_compat.report.model import RunReport, Section
from trinity_compat.report.ran import ran
from trinity_compat.report.restarts import restarts
from trinity_compat.report.weights import weights
from trinity_compat.run.job_dir.job_dir import JobDir


def report_of(source: str | Path) -> RunReport:
    """Return the report of a job. Raises UserError for a folder that is not a job, or has no database yet."""
    job = JobDir.at(source)
    spec = job.load_started_spec()

    def read(conn: sa.Connection) -> list[Section]:
        return [ran(job, spec), coverage(conn, spec), weights(conn, spec), drift(conn), restarts(conn)]

    with closing(open_for_reading(spec.database_url)) as database:
        return RunReport(str(source), database.run(read, write=False))
