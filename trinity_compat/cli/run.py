"""`trinity-compat run`: a veRL script or a Trinity YAML, decoupled."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trinity_compat.cli._shared import (
    NAMED_FILE,
    also_read_option,
    check_planned_source,
    format_option,
    main_option,
    rules_option,
    user_entrypoints,
    verl_version_option,
)
from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_script, refuse_lost_arguments
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.run.plan.source import RunOptions

if TYPE_CHECKING:
    from trinity_compat.run.job_dir.launch_end import LaunchEnd


# A positional parameter, what goes through them without naming one, or another file's code.
_TAKES_ARGUMENTS = re.compile(
    r"\$\{?[!#]?[@*1-9#]|\b(?:getopts|shift|source|BASH_ARGV)\b|^\s*\.\s|\bfor\s+\w+\s*(?:;|do\b|$)",
    re.MULTILINE,
)


@click.command("run", context_settings={"ignore_unknown_options": False})
@click.argument("source", type=NAMED_FILE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAME",
    help="Apply a profile (see `trinity-compat profile`).",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a veRL key or a path of the Trinity configuration.",
)
@click.option(
    "--mode",
    type=click.Choice(["both", "train", "explore", "bench", "serve", "colocate"]),
    help="Part of the job to run here: bench evaluates checkpoints; serve answers OpenAI clients with the"
    " job's newest weights; colocate lets both sides use the same devices in turns.  [default: the"
    " YAML's mode, else both]",
)
@click.option(
    "--checkpoints",
    metavar="all|latest|N,N",
    help="Checkpoints that bench evaluates; 0 is the model before training.  [default: all, and 0 as the"
    " launch evaluates before training]",
)
@click.option(
    "--job", metavar="DIR", help="Job directory, instead of <checkpoint_root_dir>/<project>/<name>."
)
@click.option(
    "--database", metavar="URL", help="Database of the buffer, instead of SQLite in the job directory."
)
@click.option(
    "--explorers", type=click.IntRange(1), default=1, show_default=True, help="Number of explorers to start."
)
@click.option(
    "--explorer",
    type=click.IntRange(0),
    metavar="I",
    help="With --mode explore: start only explorer I, counted from 0; other commands start the others.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of times that a process that ended is restarted (a trainer: from its checkpoint).",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Device to run on.  [default: what this machine has]",
)
@click.option(
    "--allow-fork-keys",
    is_flag=True,
    help="Run a script of a veRL fork, and drop the keys that only the fork knows.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the plan, checked by veRL and vLLM; start and execute nothing. With --job DIR, write what a"
    " run would use to DIR/config.",
)
@click.option("--show-yaml", is_flag=True, help="With --dry-run: print the YAML too, below the plan.")
@click.option(
    "--plugin-dir",
    "plugin_dirs",
    multiple=True,
    metavar="DIR",
    help="With a YAML: folder whose Python files register workflows and rewards (docs/workflows.md).",
)
@verl_version_option
@also_read_option
@rules_option
@main_option
@click.option(
    "--gpus",
    type=click.IntRange(0),
    metavar="N",
    help="With --dry-run --device cuda: number of GPUs of the cluster.",
)
@format_option
def command(
    source: str,
    arguments: tuple[str, ...],
    mains: tuple[str, ...],
    rules: str | None,
    form: str,
    show_yaml: bool,
    **given: object,
) -> int:
    """Run a veRL shell script, unchanged, or a Trinity YAML.

    Words after -- go to the script as its arguments.
    """
    check_planned_source(source, given["verl_version"])  # type: ignore[arg-type]
    # The script may start its launches in another folder.
    named = str(Path(rules).absolute()) if rules and Path(rules).exists() else rules
    options = RunOptions(mains=user_entrypoints(mains, rules), rules=named, **given)  # type: ignore[arg-type]
    if options.gpus is not None and not options.dry_run:
        raise UserError(
            "--gpus N is for --dry-run", hint="a run asks its Ray; CUDA_VISIBLE_DEVICES limits it"
        )
    if show_yaml and (form == "json" or not options.dry_run):
        raise UserError(
            "--show-yaml is for the text of --dry-run",
            hint="the JSON has the YAML, and so has config/trinity.yaml of a run's job",
        )
    if form == "json" and not options.dry_run:
        raise UserError(
            "--format json is for --dry-run",
            hint="`trinity-compat status JOB --format json` has the state of a job",
        )
    if options.dry_run:
        from trinity_compat.run import dry_run

        if form == "json":
            found = [asdict(one) for one in dry_run.launches(source, arguments, options)]
            click.echo(json.dumps({"version": 1, "launches": found}, indent=1, default=str))
            return 0
        for line in dry_run.lines(source, arguments, options, show_yaml=show_yaml):
            click.echo(line)
        return 0
    code, ended = _run(source, arguments, options)
    for launch in ended:
        if launch.code > 128 and launch.message:
            click.echo(launch.message)
    for job in [launch.job for launch in ended if launch.job][-1:]:
        click.echo(job)
    return code


def _run(source: str, arguments: tuple[str, ...], options: RunOptions) -> tuple[int, list[LaunchEnd]]:
    if arguments and not is_configuration(source) and Path(source).is_file():
        # What the script's commands read is not known before they run: any trace of a parameter will do.
        data = Path(source).read_bytes()
        if not _TAKES_ARGUMENTS.search(data.decode(errors="replace")):
            refuse_lost_arguments(read_script(source, args=arguments, mains=options.mains, content=data))
    if is_configuration(source):
        optional_packages.need_for_a_run()
        from trinity_compat.run.staged_run import run_yaml

        ended = [run_yaml(Path(source), options)]
        code = ended[0].code
    elif options.plugin_dirs:
        raise UserError("--plugin-dir is for a Trinity YAML: a veRL script names its own reward function")
    else:
        from trinity_compat.run.script.run_script import run_script

        code, ended = run_script(source, arguments, options)
        if not ended and code == 0:
            raise UserError(
                f"{source} ended without starting a veRL training main",
                hint=f"`trinity-compat parse {source}` shows what it starts and under which conditions",
            )
        if not ended:
            click.echo(f"note: {source} ended without starting a veRL training main", err=True)
    return code, ended
