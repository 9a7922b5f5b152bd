"""``trinity-compat audit``: what becomes of every key of every launch."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from trinity_compat.audit import FORMATS, AuditOptions, audit_sources, render
from trinity_compat.audit.phrases import errors
from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    main_option,
    name_and_value,
    quiet_option,
    release_options,
    rules_option,
    script_options,
    set_option,
    user_entrypoints,
    write,
)
from trinity_compat.translate.model import FAIL_ON, TranslateOptions
from trinity_compat.trinity.config import TARGETS


@click.command(name="audit", cls=WithScriptArguments)
@click.argument("sources", nargs=-1, required=True, type=NAMED_FILE, metavar="SOURCE…")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option(
    "--all", "every", is_flag=True, help="Also list the keys that keep their meaning (text and md)."
)
@click.option(
    "--fail-on", type=click.Choice(FAIL_ON), help="Exit 1 if any finding has this status or a worse one."
)
@script_options
@release_options
@click.option("--target", type=click.Choice(TARGETS), default=TARGETS[0], show_default=True)
@rules_option
@main_option
@set_option
@quiet_option
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write instead of stdout."
)
@click.pass_obj
def command(
    arguments: tuple[str, ...],
    sources: tuple[str, ...],
    form: str,
    every: bool,
    fail_on: str | None,
    cwd: Path | None,
    env: tuple[str, ...],
    verl_version: str | None,
    no_fork_config: bool,
    target: str,
    rules: str | None,
    mains: tuple[str, ...],
    assignments: tuple[str, ...],
    quiet: bool,
    output: Path | None,
) -> int:
    """Say what becomes of every key of a veRL launch, and why.

    SOURCE is a shell script, a veRL YAML, a folder of scripts, or - for stdin. What follows -- are the
    scripts' own arguments. Nothing of a script is run.

    Exit code: 0; 1 when a launch cannot be translated, or a finding reaches --fail-on; 2 when a
    SOURCE cannot be read, starts no veRL training, is a folder without scripts, or has a syntax
    error and no launch before it.
    """
    known = dict(name_and_value("--env", text) for text in env)
    options = TranslateOptions(
        target=target,
        verl_version=verl_version,
        fork_config=not no_fork_config,
        env=known,
        assignments=dict(name_and_value("--set", text) for text in assignments),
        rules=rules,
        mains=user_entrypoints(mains, rules),
    )
    audit = audit_sources(sources, AuditOptions(cwd, known, arguments, options, os.environ))
    read = [*sources, *(launch.source for launch in audit.launches), *audit.problems, *audit.empty]
    if quiet:
        for line in errors(audit):
            click.echo(line, err=True)
    if output or not quiet:
        write(render(replace(audit, every=every), form), output, sources=read)
    if any(source in audit.empty for source in sources):
        return 2
    return int(bool(audit.refused) or (fail_on is not None and audit.reaches(fail_on)))
