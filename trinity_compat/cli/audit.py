"""``trinity-compat audit``: what becomes of every key of every launch."""

from __future__ import annotations

from pathlib import Path

import click

from trinity_compat.audit import FORMATS, Request, audit_sources, render
from trinity_compat.errors import UserError
from trinity_compat.translate.model import Status
from trinity_compat.translate.options import Options
from trinity_compat.trinity_config import TARGETS
from trinity_compat.verl_config import VERSIONS


class _WithScriptArguments(click.Command):
    """Keeps what follows -- apart: click would take it for further sources."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


@click.command(name="audit", cls=_WithScriptArguments)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option(
    "--fail-on", type=click.Choice([s.value for s in Status]), help="Exit 1 at this status or graver."
)
@click.option(
    "--cwd", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Where bash would start."
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable of the environment.")
@click.option("--verl-version", metavar="VERSION", help=f"Not inferred: one of {', '.join(VERSIONS)}.")
@click.option("--target", type=click.Choice(TARGETS), default=TARGETS[0], show_default=True)
@click.option(
    "--rules", type=click.Path(dir_okay=False), help="Rows of your own, laid over the shipped ones."
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here.")
@click.pass_obj
def command(
    arguments: tuple[str, ...],
    sources: tuple[str, ...],
    form: str,
    fail_on: str | None,
    cwd: Path | None,
    env: tuple[str, ...],
    verl_version: str | None,
    target: str,
    rules: str | None,
    output: Path | None,
) -> int:
    """Audit veRL launch scripts: one finding per key, what changes, and why.

    SOURCE is a shell script, a veRL YAML, a folder of scripts, or - for stdin. What follows -- are the
    scripts' own arguments. Nothing of a script is run.

    Exit code: 0, 1 when a finding reaches --fail-on, 2 when a SOURCE cannot be read.
    """
    known = dict(map(_variable, env))
    options = Options(target=target, verl_version=verl_version, env=known, rules=rules)
    audit = audit_sources(sources, Request(cwd, known, arguments, options))
    _print(render(audit, form), output)
    return int(fail_on is not None and audit.at_least(Status(fail_on)))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--env {text}: no value", hint=f"--env {name or 'NAME'}=VALUE")
    return name, value


def _print(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    beside = output.with_name(output.name + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.rename(output)
