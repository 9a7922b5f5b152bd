"""`trinity-compat report`: proof of what a run trained."""

from __future__ import annotations

import json
from pathlib import Path

import click

from trinity_compat.cli._shared import NAMED_FILE, write


@click.command("report")
@click.argument("source", type=NAMED_FILE, metavar="JOB")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write one HTML file, which needs no network.",
)
@click.option(
    "--baseline",
    type=click.Path(exists=True, path_type=Path),
    metavar="OTHER",
    help="Compare with another run, as `compare OTHER JOB` does.",
)
def command(source: str, as_json: bool, html: Path | None, baseline: Path | None) -> int:
    """Report what a run trained, from its records.

    The report has what ran, which prompts were trained, skipped and repeated, the digests of the weights
    at the trainer and the engines, the drift between rollout and trainer, and the cost of restarts.

    JOB is a job directory, or the log of a stock run, as `compare` reads it: the report then has what such a
    log allows.

    Exit code: 0; 1 where something was lost, trained twice, or loaded otherwise than it was sent; 2 when JOB
    is not a run.
    """
    from trinity_compat.report.build import report_of
    from trinity_compat.report.page import as_html
    from trinity_compat.report.text import as_text

    report = report_of(Path(source), baseline)
    if html is not None:
        write(as_html(report), html)
        click.echo(f"wrote {html}", err=True)
    if as_json or html is None:
        click.echo(json.dumps(report.as_json(), indent=1) if as_json else as_text(report))
    return int(bool(report.broken))
