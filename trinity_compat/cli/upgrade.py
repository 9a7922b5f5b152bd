"""`trinity-compat upgrade`: a veRL script in the spelling of a newer release."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    name_and_value,
    quiet_option,
    release_options,
    script_options,
)
from trinity_compat.common.atomic_write import replacing
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.reading_process import restart
from trinity_compat.common.releases import VERL
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.launch.script_files import files_of
from trinity_compat.rewrite.configuration import upgrade_configuration
from trinity_compat.rewrite.record import is_record, upgrade_record
from trinity_compat.rewrite.script import Upgraded, UpgradeOptions, upgrade_script
from trinity_compat.verl_config.releases import check_version


@click.command(name="upgrade", cls=WithScriptArguments)
@click.argument("sources", nargs=-1, required=True, type=NAMED_FILE, metavar="SOURCE…")
@click.option("--to", "target", default=VERL, show_default=True, help="veRL release to write for.")
@click.option("--write", "in_place", is_flag=True, help="Change the files themselves.")
@click.option("--diff", "as_diff", is_flag=True, help="Print the reasons and a unified diff; write nothing.")
@click.option("--check", is_flag=True, help="Print the reasons; exit 1 if anything would change.")
@quiet_option
@script_options
@release_options
@click.pass_obj
def command(
    arguments: tuple[str, ...],
    sources: tuple[str, ...],
    target: str,
    in_place: bool,
    as_diff: bool,
    check: bool,
    quiet: bool,
    cwd: Path | None,
    env: tuple[str, ...],
    verl_version: str | None,
    no_fork_config: bool,
) -> int:
    """Write a veRL launch script in the spelling of a newer veRL release.

    SOURCE is a shell script, a folder of them, a veRL YAML, or the record of a run (.hydra/overrides.yaml, a
    log, W&B's config.yaml), whose command is printed. Renamed keys are renamed, keys without an
    effect removed, and defaults that have changed since are written out. Everything else stays as it is.
    What follows -- are the script's own arguments. Nothing of a script is run.

    Without --write, --diff or --check the new script is printed; stderr has the release that the
    script is taken for, and a line with the reason of each change.

    Exit code: 0; 1 when something cannot be carried, which is named with its line, or when --check finds
    something to change; 2 when a SOURCE cannot be read or starts no training.
    """
    if check_version(target) != VERL:
        raise UserError(f"--to {target}: upgrade writes for veRL {VERL} only")
    if in_place and (as_diff or check):
        raise UserError("--write changes files, --diff and --check only tell what would change: give one")
    known = dict(name_and_value("--env", text) for text in env)
    options = UpgradeOptions(cwd, known, arguments, verl_version, not no_fork_config)
    files = list(files_of(sources))
    if len(files) > 1 and not (in_place or as_diff or check):
        raise UserError(
            f"{len(files)} files cannot be printed as one", hint="give --write, --diff or --check"
        )
    scripts = any(not is_configuration(path) for path, _ in files)
    options = replace(options, of_scripts=scripts)
    results: list[Upgraded] = []
    failed = False
    # first the configurations: a script that reads one is upgraded together with it
    for path, named in sorted(files, key=lambda file: not is_configuration(file[0])):
        restart(path)
        try:
            if in_place:
                _refuse_link(path)
            if is_record(path):
                _refuse_rewriting(path, in_place=in_place)
                result = upgrade_record(path, options)
            elif is_configuration(path):
                result = upgrade_configuration(path, options)
                places = (Path(path).absolute(), Path(path).resolve())  # under which a launch may read it
                new = {str(place): result.after.decode() for place in places}
                options = replace(options, files={**options.files, **new})
            else:
                result = upgrade_script(path, options)
            if named and not result.launches:
                raise UserError(f"{path} starts no veRL training" + (result.notes and f": {result.notes}"))
        except UserError as error:
            if named:
                raise
            failed = True
            click.echo(f"error: {error}", err=True)
        else:
            results.append(result)
    _print(results, in_place, as_diff, check, quiet)
    refused = any(result.refused for result in results)
    changed = check and any(result.changed for result in results)
    return 2 if failed else int(refused or changed)


def _refuse_rewriting(path: str, *, in_place: bool) -> None:
    """Raise UserError for --write over the record of a run."""
    if in_place:
        raise UserError(
            "is the record of a run, which stays as it is",
            where=Where(path),
            hint="without --write its command is printed in the newer spelling",
        )


def _refuse_link(path: str) -> None:
    """Raise UserError for a link: the file that it names may be another's."""
    if Path(path).is_symlink():
        raise UserError(
            f"is a link to {Path(path).readlink()}, and --write follows none",
            where=Where(path),
            hint="name the file itself",
        )


def _print(results: Sequence[Upgraded], in_place: bool, as_diff: bool, check: bool, quiet: bool) -> None:
    for result in results:
        if in_place and result.changed:
            with replacing(Path(result.path)) as file:
                file.write(result.after)
        if not quiet:
            if result.changes or result.refused or result.kept or not (in_place or check):
                _echo([str(remark) for remark in result.releases], err=not (as_diff or check))
            _echo([str(change) for change in result.changes], err=not (as_diff or check))
            _echo([str(remark) for remark in result.kept], err=not (as_diff or check))
        _echo([f"{remark} [no equivalent]" for remark in result.refused], err=True)
        if as_diff:
            for line in _diff(result):  # the files' own bytes, for patch
                click.echo(line if sys.stdout.isatty() else line.encode(errors="surrogateescape"))
    if not (in_place or as_diff or check):
        if sys.stdout.isatty():
            click.echo(results[0].after.decode(errors="surrogateescape"), nl=False)
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(results[0].after)
        sys.stdout.buffer.flush()


def _echo(lines: Sequence[str], *, err: bool) -> None:
    for line in lines:
        click.echo(line, err=err)


def _diff(result: Upgraded) -> list[str]:
    old, new = (
        text.decode(errors="surrogateescape").splitlines(keepends=True)
        for text in (result.before, result.after)
    )
    out = []
    for line in difflib.unified_diff(old, new, result.path, result.path):
        out.append(line.removesuffix("\n"))
        if not line.endswith("\n"):
            out.append("\\ No newline at end of file")
    return out
