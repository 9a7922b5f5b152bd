"""``trinity-compat trial``: one launch at several offsets, and what each gains and costs."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import click

from trinity_compat.cli import run
from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    check_planned_source,
    user_entrypoints,
)
from trinity_compat.cli.compare import given_margins
from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.run.plan.source import RunOptions

_NUMBERS = re.compile(r"[-+]?[\d.,][-\d.,]*")
# Options of `run` that are every job's.
_JOBS = (
    *("profiles", "sets", "explorers", "restarts", "device", "allow_fork_keys", "plugin_dirs"),
    *("verl_version", "also_read", "rules", "mains"),
)


class _WithOffsets(WithScriptArguments):
    """Takes ``--offsets 0 1 2`` as ``--offsets 0,1,2``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        at = args.index("--") if "--" in args else len(args)
        for word in args[:at]:
            if words[-2:-1] == ["--offsets"] and _NUMBERS.fullmatch(word):
                words[-1] += f",{word}"
            else:
                words.append(word)
        return super().parse_args(ctx, words + args[at:])


@click.command("trial", cls=_WithOffsets)
@click.argument("source", type=NAMED_FILE)
@click.option(
    "--offsets",
    default="0,1,2",
    metavar="O O…",
    help="Steps that the explorer is ahead of the trainer; 0 is veRL's order.  [default: 0 1 2]",
)
@click.option("--seeds", type=int, default=3, show_default=True, help="Number of seeds of each offset.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Folder of the trial, with a folder for each job.  [default: trials/NAME of the source]",
)
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="NAME=VALUE",
    help="Count metric (or group) NAME as the same within VALUE, as of `compare`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    context: click.Context,
    source: str,
    offsets: str,
    seeds: int,
    out: Path | None,
    margins: tuple[str, ...],
    as_json: bool,
    **given: object,
) -> int:
    """Run a launch at several offsets, with several seeds each, and compare them.

    SOURCE is a veRL script or a Trinity YAML; words after -- go to the script. A mode whose reward `compare`
    finds to be worse is stopped early. The same command goes on where it was cut.

    Exit code: 0, 1 when a mode is worse or a job failed, 2 when the input is wrong.
    """
    optional_packages.need_for_a_run()
    from trinity_compat.compare import inference
    from trinity_compat.compare.mode_answer import why_worse
    from trinity_compat.run import trial

    if missing := inference.missing():
        raise UserError(f"trial: {missing}")
    check_planned_source(source, given["verl_version"])  # type: ignore[arg-type]
    words = _words(context)
    given.pop("also_read")
    mains = user_entrypoints(given.pop("mains"), given["rules"])  # type: ignore[arg-type]
    asked = trial.Trial(
        source,
        context.obj,
        _offsets(offsets),
        seeds,
        words,
        (out or Path("trials", Path(source).stem)).absolute(),
        given_margins(margins, None),
    )
    r = trial.updates_per_step(asked, RunOptions(mains=mains, **given))  # type: ignore[arg-type]
    stopped = trial.begin(asked)
    if code := trial.TrialRun(asked, r, stopped).to_the_end():
        click.echo("stopped; the same command goes on", err=True)
        return code
    found = trial.answers(asked)
    if as_json:
        click.echo(json.dumps(trial.record(asked, stopped, found), indent=1))
    else:
        for line in trial.lines(asked, stopped, found):
            click.echo(line)
    return 1 if stopped or any(map(why_worse, found.values())) else 0


def _offsets(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted(int(number) for number in text.split(",")))
    except ValueError:
        raise UserError(
            f"--offsets {text}: not whole numbers of steps", hint="write --offsets 0 1 2"
        ) from None


def _words(context: click.Context) -> tuple[str, ...]:
    """Return the given options of `run`, as its command line has them."""
    words: list[str] = []
    for option in _OPTIONS:
        if context.get_parameter_source(str(option.name)) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = context.params[str(option.name)]
        for each in value if isinstance(value, tuple) else (value,):
            words += [option.opts[0]] if each is True else [option.opts[0], str(each)]
    return tuple(words)


def _option(name: str) -> click.Parameter:
    option = copy.copy(next(option for option in run.command.params if option.name == name))
    option.expose_value = True
    return option


_OPTIONS = [_option(name) for name in _JOBS]
command.params += _OPTIONS
