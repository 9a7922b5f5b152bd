"""What several commands take and do the same way."""

from __future__ import annotations

from pathlib import Path

import click

from trinity_compat.errors import UserError, Where


class WithScriptArguments(click.Command):
    """Keeps what follows -- apart, as ``ctx.obj``: click would drop the dashes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


def name_and_value(option: str, text: str) -> tuple[str, str]:
    """``NAME=VALUE`` in two. Raises UserError that names the option."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"{option} {text}: not of the form NAME=VALUE")
    return name, value


def write(text: str, output: Path | None) -> None:
    """To stdout, or to a file that is whole or not there. Raises UserError where it can't be written.
    Bytes of a script that are no UTF-8 are shown as ``\\udce9``."""
    text = text.encode(errors="backslashreplace").decode()
    if output is None:
        click.echo(text, nl=False)
        return
    part = output.with_name(f"{output.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(output)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=Where(str(output))) from None
