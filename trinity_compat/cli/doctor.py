"""`trinity-compat doctor`: what of this machine would stop a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from trinity_compat.run.checks.doctor import Check

_MARKS = {"ok": "ok  ", "note": "note", "problem": "BAD "}


@click.command("doctor")
@click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option(
    "--report",
    is_flag=True,
    help="Print a report to paste into an issue: versions, environment and checks, with secrets masked.",
)
def command(folder: Path, report: bool) -> int:
    """Check that this machine can run jobs.

    Checks Ray, devices, packages, keys, ports, memory and disk, and prints how to fix each problem.

    Exit code 1 when something would stop a run.
    """
    from trinity_compat.run.checks import doctor, issue_report

    checks = []
    for check in doctor.examine(folder):
        checks.append(check)
        if not report:
            for line in _lines(check):
                click.echo(line)
    if report:
        for line in issue_report.lines([line for check in checks for line in _lines(check)]):
            click.echo(line)
    return int(any(check.state == "problem" for check in checks))


def _lines(check: Check) -> Iterator[str]:
    yield f"{_MARKS[check.state]} {check.name:14} {check.found}"
    if check.fix and check.state != "ok":
        yield f"     {'':14} → {check.fix}"
