"""`trinity-compat report`: proof of what a run trained."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trinity_compat.cli._shared import NAMED_FILE


@click.command("report")
@click.argument("source", type=NAMED_FILE, metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(source: str, as_json: bool) -> int:
    """Report what a run trained, from its records.

    The report has what ran, which prompts were trained, skipped and repeated, the digests of the weights
    at the trainer and the engines, the drift between rollout and trainer, and the cost of restarts.

    JOB is a job directory.

    Exit code: 0; 1 where something was lost, trained twice, or loaded otherwise than it was sent; 2 when JOB
    is no job.
    """
    from trinity_compat.common import optional_packages

    optional_packages.need_for_a_run()
    from trinity_compat.report.build import report_of
    from trinity_compat.report.text import as_text

    report = report_of(Path(source))
    click.echo(json.dumps(report.as_json(), indent=1) if as_json else as_text(report))
    return int(bool(report.broken))
