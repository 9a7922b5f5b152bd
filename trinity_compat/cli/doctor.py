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
    "--report",
    is_flag=True,
    help="Print a report to paste into an issue: versions, environment and checks, with secrets masked.",
)
@format_option
def command(folder: Path, report: bool, form: str) -> int:
    """Check that this machine can run jobs.

    Checks Ray, devices, packages, keys, ports, memory and disk, and prints how to fix each problem.

    Exit code 1 when something would stop a run.
    """
    from trinity_compat.run.checks import doctor, issue_report

    if report and form == "json":
        raise UserError("--report is text, to paste into an issue", hint="leave out --format json")
    checks = []
    for check in doctor.examine(folder):
        checks.append(check)
        if not report and form == "text":
            for line in _lines(check):
                click.echo(line)
    if report:
        for line in issue_report.lines([line for check in checks for line in _lines(check)]):
            click.echo(line)
    if form == "json":
        click.echo(json.dumps({"version": 1, "checks": [asdict(check) for check in checks]}, indent=1))
    return int(any(check.state == "problem" for check in checks))


def _lines(check: Check) -> Iterator[str]:
    yield f"{_MARKS[check.state]} {check.name:14} {check.found}"
    if check.fix and check.state != "ok":
        yield f"     {'':14} → {check.fix}"
