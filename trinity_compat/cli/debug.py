"""`trinity-compat debug`: a run's model in one terminal, a task in another; its rewards on stored answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from trinity_compat.cli._shared import NAMED_FILE, check_planned_source, verl_version_option, write
from trinity_compat.common import python_command
from trinity_compat.common.errors import UserError
from trinity_compat.run.plan.source import RunOptions

if TYPE_CHECKING:
    from trinity_compat.explorer.modes.debug import TaskOutcome
    from trinity_compat.explorer.modes.debug_reward import RewardOutcome

_OF_A_LAUNCH = ("plugin_dir", "profiles", "sets", "verl_version")
# Options that only some modules use.
_OPTIONS = {
    "inference_model": ("port", "step", *_OF_A_LAUNCH),
    "workflow": ("port", "task", "data", "count", "output_file", *_OF_A_LAUNCH),
    "reward": ("task", "data", "answer", "output_file"),
}


@click.command("debug")
@click.argument("source", type=NAMED_FILE, required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--config", "-c", type=NAMED_FILE, metavar="SOURCE", help="SOURCE, in Trinity's spelling.")
@click.option("--module", "-m", type=click.Choice(list(_OPTIONS)), required=True, help="Part to start.")
@click.option("--port", default=8600, show_default=True, type=click.IntRange(1, 65535))
@click.option(
    "--step", type=click.IntRange(1), help="Serve this checkpoint of the job instead of the model path."
)
@click.option("--task", default=0, show_default=True, metavar="N", help="Row of the dataset, counted from 0.")
@click.option("--data", type=click.Choice(["train", "val"]), default="train", show_default=True)
@click.option("--answer", type=click.IntRange(0), metavar="N", help="Stored answer to score.  [default: all]")
@click.option("-n", "count", type=click.IntRange(1), help="Number of answers.  [default: the run's]")
@click.option(
    "--output-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write the result to, as JSON.",
)
@click.option(
    "--plugin-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder whose Python files are imported first: agent loops and tools, or workflows, rewards and"
    " operators.",
)
@click.option("--profile", "profiles", multiple=True, metavar="NAME")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE")
@verl_version_option
def command(source: str | None, arguments: tuple[str, ...], **given: object) -> None:
    """Try the workflow or the rewards of a run without starting the run.

    SOURCE is a job directory, a Trinity YAML or a veRL script (which is read, not executed). In one
    terminal `debug --module inference_model SOURCE` serves its model; in another `debug --module workflow
    SOURCE` takes one task through agent loop, tools and reward function, and shows all that came of it. The
    model stays loaded while you change your code.

    `debug --module reward JOB` scores the answers that a job has stored to one task with the reward function
    as its file is now, beside the stored scores.
    """
    config = given.pop("config")
    context, module = click.get_current_context(), str(given["module"])
    for name in {name for names in _OPTIONS.values() for name in names} - set(_OPTIONS[module]):
        if context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            option = next(each.opts[0] for each in context.command.params if each.name == name)
            raise UserError(f"{option} has no effect with --module {module}")
    _go(source or config, arguments, given)


def _go(source: object, arguments: tuple[str, ...], given: dict[str, object]) -> None:
    python_command.share_cores(os.environ)
    from trinity_compat.run import debug

    if not source:
        raise UserError("debug needs a job directory, a Trinity YAML or a veRL script")
    output: Path | None = given["output_file"]  # type: ignore[assignment]
    if given["module"] == "reward":
        from trinity_compat.explorer.modes.debug_reward import StoredAnswer

        stored = StoredAnswer(given["task"], given["data"], given["answer"])  # type: ignore[arg-type]
        _show(debug.score_again(str(source), stored), output)
        return
    folders = (str(given["plugin_dir"]),) if given["plugin_dir"] else ()
    release: str | None = given["verl_version"]  # type: ignore[assignment]
    check_planned_source(str(source), release)
    options = RunOptions(
        profiles=given["profiles"],  # type: ignore[arg-type]
        sets=given["sets"],  # type: ignore[arg-type]
        plugin_dirs=folders,
        verl_version=release,
    )
    spec = debug.spec_of(str(source), arguments, options)
    port: int = given["port"]  # type: ignore[assignment]
    if given["module"] == "inference_model":
        debug.serve(spec, port, given["step"])  # type: ignore[arg-type]
        return
    from trinity_compat.explorer.modes.debug import DebugTask

    ask = DebugTask(given["task"], given["data"], given["count"])  # type: ignore[arg-type]
    plugins: Path | None = given["plugin_dir"]  # type: ignore[assignment]
    _show(debug.run_task(spec, port, ask, plugins=plugins), output)


def _show(shown: TaskOutcome | RewardOutcome, output: Path | None) -> None:
    if output:
        write(json.dumps(shown.record(), indent=1) + "\n", output)
    for line in shown.lines():
        click.echo(line)
