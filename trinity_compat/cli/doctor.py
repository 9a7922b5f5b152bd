"""`trinity-compat doctor`: what of this machine would stop a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trinity_compat.cli._shared import format_option
from trinity_compat.common.errors import UserError

if TYPE_CHECKING:
    from trinity_compat.run.checks.doctor import Check

_MARKS = {"ok": "ok  ", "note": "note", "problem": "BAD "}


@click.command("doctor")
@click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option(
    "--cluster",
    is_flag=True,
    help="Ask each machine of RAY_ADDRESS's cluster instead: packages, the folder, /dev/shm, GPUs, clock.",
)
@click.option(
    "--report",
    is_flag=True,
    help="Print a report to paste into an issue: versions, environment and checks, with secrets masked.",
)
@format_option
@click.argument("source", required=False)
def command(folder: Path, cluster: bool, report: bool, form: str, source: str | None) -> int:
    """Check that this machine can run jobs.

    Checks Ray, devices, packages, keys, ports, memory and disk, and prints how to fix each problem.

    With --cluster, SOURCE is a script or YAML whose GPUs the cluster must have.

    Exit code 1 when something would stop a run.
    """
    from trinity_compat.run.checks import doctor, issue_report

    if report and form == "json":
        raise UserError("--report is text, to paste into an issue", hint="leave out --format json")
    if source and not cluster:
        raise UserError(
            f"doctor {source}: only --cluster takes a script", hint="`run --dry-run` checks it here"
        )
    of_cluster = _of_cluster(folder, source) if cluster else []
    width = max((len(check.node) + 2 for check in of_cluster), default=0)
    checks = []
    for check in of_cluster if cluster else doctor.examine(folder):
        checks.append(check)
        if not report and form == "text":
            for line in _lines(check, width):
                click.echo(line)
    if report:
        for line in issue_report.lines([line for check in checks for line in _lines(check, width)]):
            click.echo(line)
    if form == "json":
        click.echo(json.dumps({"version": 1, "checks": [asdict(check) for check in checks]}, indent=1))
    return int(any(check.state == "problem" for check in checks))


def _of_cluster(folder: Path, source: str | None) -> list[Check]:
    from trinity_compat.run import dry_run
    from trinity_compat.run.checks import cluster

    return cluster.examine(folder, dry_run.spec_of(source) if source else None)


def _lines(check: Check, width: int) -> Iterator[str]:
    """Yield a check's row, and a second one with the remedy. ``width``: of the column of machines, or 0."""
    yield f"{_MARKS[check.state]} {check.node:{width}}{check.name:14} {check.found}"
    if check.fix and check.state != "ok":
        yield f"     {'':{width}}{'':14} → {check.fix}"
