"""The studio's process: a socket, its address for people and for ``status``, uvicorn."""

from __future__ import annotations

import socket
from pathlib import Path

import click
import uvicorn

from trinity_compat.errors import UserError
from trinity_compat.studio import address
from trinity_compat.studio.app import create_app
from trinity_compat.studio.guard import Door

_GOODBYE_S = 1  # for open event streams


def serve(folder: Path, host: str, port: int) -> None:
    """Until Ctrl-C or SIGTERM. Raises UserError where the folder is not there or the port is taken."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", hint="give a job directory, or the folder above several")
    with listening(host, port) as taken:
        door = Door.at(host, taken.getsockname()[1])
        app = create_app(folder, door)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GOODBYE_S,
            server_header=False,
        )
        click.echo(f"studio     {door.url}{f'?token={door.token}' if door.token else ''}")
        click.echo(f"           over {folder.absolute()}; Ctrl-C ends it, no run notices")
        with address.told(door.url, folder.absolute()):
            uvicorn.Server(config).run(sockets=[taken])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises UserError where it can't."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="--port 0 takes a free one"
        ) from error
