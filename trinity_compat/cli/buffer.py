"""``trinity-compat buffer``: look into the experience store, export it, thin it out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trinity_compat.cli._shared import NAMED_FILE, refuse_overwriting, writing
from trinity_compat.common import database_url
from trinity_compat.common.errors import UserError, Where
from trinity_compat.job.run_spec import RunSpec

if TYPE_CHECKING:
    from trinity_compat.buffer.report import BufferReport

_SOURCE = click.argument("source", type=NAMED_FILE, metavar="JOB_DIR|FILE|URL")
_STATES = ("ready", "claimed", "trained", "stale", "void")


@click.group(name="buffer")
def command() -> None:
    """Inspect, export and prune the buffer of a run.

    The store is named by the job directory, by its SQLite file, or by a database URL.
    """


@contextmanager
def _opened(source: str) -> Iterator[BufferReport]:
    from trinity_compat.buffer.report import BufferReport

    report = BufferReport(_url(source))
    try:
        yield report
    finally:
        report.close()


def _url(source: str) -> str:
    """A job directory's database, unless the job says that it uses another."""
    if "://" in source:
        return source
    path = Path(source).resolve()
    spec = path / "config" / "run.json"
    if spec.is_file():
        return RunSpec.load(spec).database_url
    return database_url.of_file(path / "buffer" / "experiences.db" if path.is_dir() else path)


@command.command()
@_SOURCE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stats(source: str, as_json: bool) -> None:
    """Groups by state, the ledger's totals, the staleness of answers."""
    with _opened(source) as report:
        found = report.stats()
    if as_json:
        click.echo(json.dumps(asdict(found), indent=1))
        return
    reward = "–" if found.mean_reward is None else f"{found.mean_reward:.4f}"
    lines = [
        f"database           {found.url}  (schema {found.schema}, {found.nbytes / 2**20:.1f} MiB)",
        f"history            {found.history}",
        f"experiences        {found.experiences}, mean reward {reward}",
        f"weights            version {found.latest_version}",
        f"ledger             {found.ledger_uses} uses in {found.ledger_steps} steps, last {found.last_step}",
        f"used twice         {found.used_twice}",
    ]
    for kind, states in found.states.items():
        lines.append(f"groups {kind:<12}" + ", ".join(f"{count} {state}" for state, count in states.items()))
    lags = ", ".join(f"{lag}: {count}" for lag, count in found.lag.items())
    click.echo("\n".join([*lines, f"staleness           {lags or '–'}"]))


@command.command()
@_SOURCE
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Number of groups to show, newest first.",
)
@click.option(
    "--kind",
    default="train",
    show_default=True,
    help="Kind of groups, as `stats` lists them: train, eval:N or bench:STEP:….",
)
@click.option("--state", type=click.Choice(_STATES), help="Show only groups in this state.  [default: any]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def show(source: str, limit: int, kind: str, state: str | None, as_json: bool) -> None:
    """The newest groups: prompt, number of images, responses, rewards."""
    from trinity_compat.buffer.media import image_count

    with _opened(source) as report:
        for group in report.recent(limit, kind=kind, state=state or ""):
            if as_json:
                click.echo(json.dumps(group))
                continue
            versions = f"{group['min_model_version']}–{group['max_model_version']}"
            click.echo(f"task {group['task_no']}  {group['state']}  version {versions}  key {group['key']}")
            if images := image_count(group["task"].get("raw_prompt")):
                click.echo(f"  images   {images}")
            for response in group["responses"]:
                click.echo(f"  prompt   {response['prompt_text']!r}") if response["run"] == 0 else None
                click.echo(f"  {response['reward']:8.3f} {response['response_text']!r}")


@command.command()
@_SOURCE
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
def export(source: str, output: Path | None) -> None:
    """Every experience as one JSON object per line, token ids and log-probs included."""
    if output is not None:
        # Opening it would empty it: the job's own files and the store's are refused first.
        place, job = output.resolve(), Path(source).resolve()
        store = database_url.file_of(_url(source))
        refuse_overwriting(output, [store, f"{store}-wal", f"{store}-shm"] if store else [])
        if "://" not in source and job.is_dir() and place.is_relative_to(job) and place.is_file():
            raise UserError(
                "this is a file of the job, and would be overwritten",
                where=Where(str(output)),
                hint="name a new file with -o",
            )
    with _opened(source) as report, writing(output) as file:
        for experience in report.export():
            file.write(json.dumps(experience).encode() + b"\n")


@command.command()
@_SOURCE
@click.option(
    "--keep-steps",
    required=True,
    type=click.IntRange(0),
    help="Number of newest trainer steps to keep whole.",
)
def prune(source: str, keep_steps: int) -> None:
    """Drop texts and tokens that are no longer needed; rewards, versions and the ledger stay.

    Take at least the distance to the oldest checkpoint that you may resume from.
    """
    with _opened(source) as report:
        pruned = report.prune(keep_steps=keep_steps)
    freed = f", {pruned.nbytes / 1e6:.1f} MB given back" if pruned.nbytes >= 50_000 else ""
    click.echo(f"pruned {pruned.experiences} experiences{freed}")
