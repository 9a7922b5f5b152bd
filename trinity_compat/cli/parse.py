"""`trinity-compat parse`: what a script launches, without running it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trinity_compat.cli._shared import (
    NAMED_FILE,
    main_option,
    name_and_value,
    script_options,
    user_entrypoints,
)
from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import hidden, shown
from trinity_compat.launch import EnvRef, Launch, Reading, Word, merged, read_argv, read_script, read_text
from trinity_compat.launch.bash.traced_text import open_source
from trinity_compat.launch.environment import unused_variables
from trinity_compat.verl_config import settled


@click.command()
@click.argument("script", type=NAMED_FILE, required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@script_options
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@main_option
@click.option(
    "--rules",
    type=NAMED_FILE,
    metavar="FILE|FAMILY",
    help="Your own rules, whose mains are recognized (docs/rules.md).",
)
@click.option(
    "--argv", is_flag=True, help="Read the words after -- as a command line, not as a script's arguments."
)
def command(
    script: str | None,
    args: tuple[str, ...],
    cwd: Path | None,
    env: tuple[str, ...],
    form: str,
    mains: tuple[str, ...],
    rules: str | None,
    argv: bool,
) -> int:
    """Print the launches of a script without running it.

    Reads SCRIPT (- is stdin) and prints every training main that it launches.
    ARGS after -- are the script's own arguments. Exit code: 0, 2 when there is no launch.
    """
    environment = dict(name_and_value("--env", pair) for pair in env)
    known_mains = user_entrypoints(mains, rules)
    if argv:
        reading = read_argv([*([script] if script else []), *args], env=environment, mains=known_mains)
    elif script is None:
        raise UserError("no script is given", hint="trinity-compat parse run.sh, or - for stdin")
    elif script == "-":
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
        reading = read_text(text, name="<stdin>", cwd=cwd, env=environment, args=args, mains=known_mains)
    else:
        reading = read_script(script, cwd=cwd, env=environment, args=args, mains=known_mains)
    unused = unused_variables(reading, os.environ, environment)
    launches = tuple(settled(launch, cwd) for launch in reading.launches)
    reading = replace(reading, launches=launches, diagnostics=(*reading.diagnostics, *unused))
    if form == "json":
        click.echo(json.dumps(as_json(reading)))
    else:
        click.echo(as_text(reading))
    return 0 if reading.launches else 2


def as_json(reading: Reading) -> dict[str, Any]:
    """The reading as `parse --format json` prints it; secrets as ``***``."""
    return {
        "version": 1,
        "launches": [_launch(launch) for launch in reading.launches],
        "diagnostics": [
            {
                "code": d.code,
                "severity": d.severity,
                "message": d.message,
                "file": d.where.file,
                "line": d.where.line,
            }
            for d in reading.diagnostics
        ],
    }


def _launch(launch: Launch) -> dict[str, Any]:
    places: list[tuple[dict[str, Any], Word]] = [
        *(({"arg": index}, word) for index, word in enumerate(launch.arguments)),
        *(({"arg": None, "env": name}, word) for name, word in launch.env.items()),
    ]
    return {
        "module": launch.module,
        **({"taken_for": launch.main} if launch.main else {}),
        "args": [shown(word.text) for word in launch.arguments],
        "line": launch.where.line,
        "env": {name: hidden(name, word.text) for name, word in launch.env.items()},
        "unresolved": [
            {**place, "expression": expression, "line": word.where.line, "variable": variable}
            for place, word in places
            for expression, variable in _open_pieces(word)
        ],
    }


def _open_pieces(word: Word) -> list[tuple[str, str]]:
    """Return each open expression of a word, and the variable with which --env gives it, '' for none."""
    found: list[tuple[str, str]] = []
    for part in word.parts:
        source = open_source(part)
        if source is not None:
            found.append(
                (f"${{{source.name}}}", source.name)
                if isinstance(source, EnvRef)
                else (source.expression, source.variable)
            )
    return found


def _still_open(word: Word) -> str:
    still = [expression for expression, _ in _open_pieces(word)]
    return f"   [known only at run time: {', '.join(still)}]" if still else ""


def as_text(reading: Reading) -> str:
    """The reading for a person: each argument with the line it was written on."""
    lines: list[str] = []
    for launch in reading.launches:
        wrapped = f" (through {', '.join(launch.wrapper)})" if launch.wrapper else ""
        taken = f", taken for {launch.main}" if launch.main else ""
        lines.append(f"{launch.where}: {launch.module}{taken}{wrapped}, {len(launch.arguments)} arguments")
        lines += [
            f"  {name}={_on_one_line(str(hidden(name, word.text)))}{_still_open(word)}"
            for name, word in launch.env.items()
        ]
        for word in launch.arguments:
            lines.append(f"  {word.where.line:>5}  {_on_one_line(shown(word.text))}{_still_open(word)}")
    if not reading.launches:
        lines.append(f"{reading.source}: no veRL training is started")
    lines += map(str, merged(reading.diagnostics))
    return "\n".join(lines)


def _on_one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
