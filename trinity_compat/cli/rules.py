"""``trinity-compat rules``: files that teach what becomes of keys, mains and metrics that aren't veRL's."""

from __future__ import annotations

from pathlib import Path

import click

from trinity_compat.audit import AuditOptions, audit_sources
from trinity_compat.audit.decisions import rules_for
from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    main_option,
    name_and_value,
    script_options,
    user_entrypoints,
    write,
)
from trinity_compat.translate.model import TranslateOptions
from trinity_compat.translate.user_rules import describe


@click.group("rules")
def command() -> None:
    """Write your own rules for keys, mains and metrics.

    `--rules` of translate, audit, parse, run, explain and compare takes them.
    """


@command.command("init", cls=WithScriptArguments)
@click.argument("source", type=NAMED_FILE)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
@script_options
@main_option
@click.pass_obj
def init(
    arguments: tuple[str, ...],
    source: str,
    output: Path | None,
    cwd: Path | None,
    env: tuple[str, ...],
    mains: tuple[str, ...],
) -> None:
    """Write a commented file of rules for SOURCE: every key and main of it that needs a decision.

    As it is written the file changes nothing: each rule is to be chosen and uncommented.
    """
    known = dict(name_and_value("--env", text) for text in env)
    options = TranslateOptions(env=known, mains=user_entrypoints(mains))
    audit = audit_sources([source], AuditOptions(cwd, known, arguments, options))
    write(rules_for(source, audit), output, sources=[source])


@command.command("families")
def families() -> None:
    """The families of forks whose rules are shipped: names for `--rules` and `include`."""
    click.echo("\n".join(describe()))
