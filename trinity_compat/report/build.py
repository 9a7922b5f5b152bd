"""The report of a job, or of the logs of another run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from trinity_compat.buffer.reading import open_for_reading
from trinity_compat.common import optional_packages
from trinity_compat.common.nested import read_section
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.report.coverage import coverage
from trinity_compat.report.drift import drift
from trinity_compat.report.logs import baseline, report_of_log
from trinity_compat.report.model import RunReport, Section
from trinity_compat.report.ran import ran
from trinity_compat.report.restarts import restarts
from trinity_compat.report.weights import weights
from trinity_compat.run.job_dir.job_dir import JobDir


def report_of(source: Path, against: Path | None = None) -> RunReport:
    """Return the report of a job, or of a run whose logs ``compare`` can read.

    ``against``: a baseline. Raises UserError for anything else, and for a job that has no database yet.
    """
    job = JobDir.at(source)
    if source.exists() and not job.spec_path.exists():
        found = report_of_log(source)
    else:
        optional_packages.need_for_a_run()
        spec = job.load_started_spec()
        record, start = (read_section(job.root / "config" / f"{name}.json") for name in ("launch", "start"))
        with closing(open_for_reading(spec.database_url)) as database:
            of_job = database.run(lambda conn: sections(conn, spec, record, start), write=False)
        found = RunReport(str(source), of_job)
    if against is None:
        return found
    return RunReport(found.source, [*found.sections, baseline(source, against)])


def sections(
    conn: sa.Connection, spec: RunSpec, record: Mapping[str, Any], start: Mapping[str, Any]
) -> list[Section]:
    """Return the sections of a job, from its database and records; arguments as ``ran``'s."""
    return [ran(spec, record, start), coverage(conn, spec), weights(conn), drift(conn), restarts(conn)]
