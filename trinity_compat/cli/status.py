"""`trinity-compat status`: a job's state."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from trinity_compat.cli._shared import format_option
from trinity_compat.common.errors import UserError
from trinity_compat.studio import address


@click.command("status")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--watch/--once",
    default=None,
    help="Follow the job, or print its state once.  [default: follow a running job on a terminal]",
)
@format_option
def command(job: Path, watch: bool | None, form: str) -> None:
    """Print the state of a job: its steps, sides and buffer.

    JOB is a job directory.

    On a terminal a running job is followed until it ends, or Ctrl-C; the job itself does not notice.
    """
    from trinity_compat.run.job_dir import stages, status

    if form == "json" and watch:
        raise UserError("--watch is for a terminal", hint="leave out --format json")
    states = stages.read(job)
    at_work = stages.at_work(job, states)
    if form == "json":
        data: dict[str, object] = {"version": 1, "stages": [asdict(each) for each in states], "job": None}
        if at_work is not None or not states:
            data["job"] = status.record(*status.read_job(at_work.root if at_work else job))
        click.echo(json.dumps(data, indent=1))
        return
    if states:
        for line in stages.lines(job, states):
            click.echo(line)
        if at_work is None:
            return
        job = at_work.root
    found, snapshot = status.read_job(job)
    if watch or (watch is None and sys.stdout.isatty() and status.is_live(snapshot.participants)):
        click.echo(f"job        {found.root}")
        status.follow(found)
        found, snapshot = status.read_job(job)
    for line in status.lines(found, snapshot):
        click.echo(line)
    if url := address.of_job(found.root):
        click.echo(f"studio     {url}")
