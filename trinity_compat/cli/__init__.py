"""The command line. One file per command in this folder; each defines ``command``.

A command's module is imported only when it is asked for, so that `translate` starts without
what `run` needs.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import pkgutil
import sys
from typing import Any

import click

from trinity_compat import __version__
from trinity_compat.common import optional_packages, reading_process
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.output_text import plain_streams
from trinity_compat.common.redaction import shown_message
from trinity_compat.common.suggestions import nearest

# Commands that only read, and the processor time that one source or launch may take.
_READING = dict.fromkeys(
    ("audit", "diff", "export", "ignored", "parse", "sizes", "to-verl", "translate", "upgrade"),
    reading_process.SECONDS,
) | {"advise": 60.0}  # simulates thousands of answers
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
        return sorted(name.replace("_", "-") for name in names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            near = nearest(args[0], known)
            ctx.fail(
                f"no command {args[0]!r}."
                + (f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}.")
            )
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="trinity-compat")
def cli() -> None:
    """Keep your veRL scripts: translate, audit, run decoupled, compare."""


def program() -> None:
    """Run the program ``trinity-compat``: `main`, and for a command that reads the kernel's limits around it.

    A caller of `main` keeps its own process, which a fork would double.
    """
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in _READING:
        with plain_streams():  # for what the parent says of its fork
            reading_process.guard(_READING[name])
    main()


@plain_streams()
def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit.

    Errors of ours, missing packages of an extra, and files that the system refuses become a message and an
    exit code.
    """
    try:
        code: Any = _run(argv)
        sys.stdout.flush()  # at the interpreter's end a full disk would be a traceback
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (UserError, ModuleNotFoundError) as error:
        problem = error if isinstance(error, UserError) else optional_packages.explained(error)
        if problem is None:
            raise
        click.echo(f"error: {shown_message(str(problem))}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None and error.errno not in _FULL:
            raise
        # Drop the buffered output that cannot be written; Python would try again at exit.
        if error.errno in _FULL:
            with contextlib.suppress(OSError, ValueError):  # a stdout that isn't a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        named = "cannot write" if error.filename is None else os.fsdecode(error.filename)
        click.echo(f"error: {named}: {error.strerror}", err=True)
        sys.exit(2)
    except RunError as error:
        click.echo(f"error: {shown_message(str(error))}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _run(argv: list[str] | None) -> object:
    words = sys.argv[1:] if argv is None else argv
    name = words[0] if words else ""
    if name not in _READING:
        return cli.main(args=argv, standalone_mode=False)
    source = next((word for word in words[1:] if os.path.exists(word)), name)  # noqa: PTH110 - any text
    with reading_process.reading(source):
        return cli.main(args=argv, standalone_mode=False)


if __name__ == "__main__":
    program()
