"""`trinity-compat status`: a job's state."""

from __future__ import annotations

import time
from pathlib import Path

import click


@click.command("status")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
def command(job: Path, watch: bool) -> None:
    """Show what JOB (a job directory) is doing: steps, both sides, buffer, checkpoint."""
    from trinity_compat.runtime import status

    while True:
        if watch:
            click.clear()
        for line in status.lines(*status.read_job(job)):
            click.echo(line)
        if not watch:
            return
        time.sleep(2.0)
