"""``trinity-compat studio``: watch runs, read their experiences, compare, in the browser."""

from __future__ import annotations

import re
from pathlib import Path

import click

from trinity_compat.cli._shared import name_and_value
from trinity_compat.common import optional_packages


def _base(context: click.Context, parameter: click.Parameter, value: str) -> str:
    base = value.removesuffix("/")
    if re.fullmatch(r"(/[\w.~-]+)*", base, re.ASCII):
        return base
    raise click.BadParameter(f"{value!r} is not a path such as /user/me/studio")


@click.command(name="studio")
@click.argument("folder", metavar="[DIR|JOB]", type=click.Path(path_type=Path), default=".")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port; 0 takes any free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Name or address of this machine to listen on. There is no TLS.",
)
@click.option(
    "--root-path",
    metavar="PATH",
    default="",
    callback=_base,
    help="Path at which a proxy shows the studio, such as /user/me/studio.",
)
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="NAME=PATH",
    help="Offer PATH, anything that `compare` reads but a database, in Compare as NAME; may be repeated.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Refuse every change: start, stop, resume, pins, panels.",
)
def command(
    folder: Path,
    port: int,
    host: str,
    root_path: str,
    baselines: tuple[str, ...],
    read_only: bool,
) -> None:
    """Serve a web page of jobs: live curves, logs, experiences.

    Shows the jobs below DIR, or one JOB.

    It prints its address with an access token (TRINITY_COMPAT_STUDIO_TOKEN sets it).
    Jobs are read, not written; stopping it does not stop any run. Ctrl-C ends it.
    """
    optional_packages.need("starlette", "uvicorn", "python-multipart", "SQLAlchemy", "numpy")
    from trinity_compat.studio.serving import serve

    named = dict(name_and_value("--baseline", text) for text in baselines)
    given = {name: Path(path) for name, path in named.items()}
    serve(folder, host, port, root_path, given, read_only)
