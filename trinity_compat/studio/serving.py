"""The studio's process: a socket, its address for people and for ``status``, uvicorn."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import uvicorn

from trinity_compat.common.errors import UserError
from trinity_compat.studio import address
from trinity_compat.studio.app import create_app
from trinity_compat.studio.baselines import FORMATS
from trinity_compat.studio.guard import Listener

_GOODBYE_S = 1  # for requests that are being answered


TOKEN = "TRINITY_COMPAT_STUDIO_TOKEN"  # in the environment: for scripts that cannot read what is printed
_TOKEN = re.compile(r"[\w.~-]{22,}", re.ASCII)  # 128 bits, as URLs hold them unchanged


def serve(
    folder: Path,
    host: str,
    port: int,
    base: str = "",
    baselines: Mapping[str, Path] | None = None,
    read_only: bool = False,
) -> None:
    """Until Ctrl-C or SIGTERM. ``base`` is the path at which a proxy shows the studio.

    Raises UserError where the folder or a baseline is not there, the port is taken, or the environment's
    token is too short.
    """
    token = _given_token()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", hint="give a job directory, or the folder above several")
    given = dict[str, Path]()
    for name, path in (baselines or {}).items():
        if not path.exists():
            raise UserError(
                f"--baseline {name}={path}: no such file or directory", hint=f"it takes {FORMATS}"
            )
        given[name] = path.resolve()
    with listening(host, port) as taken:
        at = taken.getsockname()[1]
        listener = Listener(host, at, base=base, read_only=read_only)
        if token:
            listener = replace(listener, token=token)
        app = create_app(folder, listener, given)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GOODBYE_S,
            server_header=False,
            http=listener.connections.protocol,
        )
        click.echo(f"studio     {listener.address}")
        click.echo(f"           shows {folder.absolute()}; Ctrl-C stops the studio, not the runs")
        click.echo("           anyone with this address can act as you: keep it private")
        with address.announced(listener.url, folder.absolute()):
            # uvicorn raises the signal that ended it once more: Python would end before the file is removed.
            before = signal.signal(signal.SIGTERM, _end)
            try:
                uvicorn.Server(config).run(sockets=[taken])
            finally:
                signal.signal(signal.SIGTERM, before)


def _end(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


def _given_token() -> str | None:
    """Taken out of the environment, which a resumed run gets."""
    token = os.environ.pop(TOKEN, None)
    if token is not None and not _TOKEN.fullmatch(token):
        raise UserError(
            f"{TOKEN} has to be 22 or more of A-Z a-z 0-9 - _ . ~",
            hint="python -c 'import secrets; print(secrets.token_urlsafe())' makes one",
        )
    return token


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises UserError where it can't."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="--port 0 takes a free one"
        ) from error
