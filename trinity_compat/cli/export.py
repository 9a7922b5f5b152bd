"""`trinity-compat export`: a scheduler's file for a launch script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from trinity_compat.cli._configurations import ComposeOptions, composed
from trinity_compat.cli._shared import (
    NAMED_FILE,
    WithScriptArguments,
    release_options,
    script_options,
    write,
)
from trinity_compat.common.errors import UserError
from trinity_compat.common.reading_process import reading
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.run.cluster_file import TEMPLATES, ClusterRequest, cluster_file
from trinity_compat.translate.start_folder import seen_from
from trinity_compat.verl_config.model import EffectiveConfig

_Size = click.IntRange(1)


@click.command(name="export", cls=WithScriptArguments)
@click.argument("script", type=NAMED_FILE)
@click.option(
    "--to",
    "scheduler",
    type=click.Choice(list(TEMPLATES)),
    required=True,
    help="Slurm's sbatch, KubeRay's RayJob, or SkyPilot.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.  [default: stdout]")
@click.option("--nodes", type=_Size, metavar="N", help="Machines.  [default: trainer.nnodes of the launch]")
@click.option(
    "--gpus-per-node",
    "gpus",
    type=_Size,
    metavar="N",
    help="GPUs of a machine.  [default: trainer.n_gpus_per_node of the launch]",
)
@click.option(
    "--image",
    default="",
    metavar="IMAGE",
    help="Container image with trinity-compat (docker/README.md). For Slurm: Pyxis's, or Apptainer's x.sif.",
)
@click.option(
    "--shared",
    default="",
    metavar="DIR",
    help="Folder that all machines see, for the job.  [default: /shared; for Slurm as the launch has it]",
)
@click.option(
    "--volume",
    default="",
    metavar="NAME",
    help="The claim of Kubernetes, or volume of SkyPilot, that is mounted there.  [default: shared]",
)
@click.option("--gpu-type", default="", metavar="NAME", help="SkyPilot's accelerator.  [default: H100]")
@script_options
@release_options
@click.pass_obj
def command(
    arguments: tuple[str, ...],
    script: str,
    output: Path | None,
    cwd: Path | None,
    env: tuple[str, ...],
    verl_version: str | None,
    no_fork_config: bool,
    **given: str | int | None,
) -> int:
    """Write a scheduler's file that starts Ray on the machines and runs SCRIPT on them.

    What follows -- are the script's own arguments. The script's #SBATCH lines are kept. The run gets SIGTERM
    before its machines are taken away, and the same job continues from the last checkpoint. Nothing of the
    script is run.

    Exit code: 0; 2 when SCRIPT cannot be read, or is not for this scheduler.
    """
    if script == "-" or is_configuration(script):
        raise UserError(f"{script} is not a shell script", hint="name the script that the job is to run")
    how = ComposeOptions.of(cwd, env, arguments, verl_version, fork_config=not no_fork_config)
    request = ClusterRequest(script=script, arguments=arguments, **given)  # type: ignore[arg-type]
    with reading(script):
        config, *others = composed(script, how)
        named = request.shared or request.scheduler != "slurm"  # the file names a --job in any case
        job = "" if named else _dated_folder(config, script, how)
        if others and (named or job):
            raise UserError(
                f"{script} has {1 + len(others)} launches, and the file names one --job",
                where=others[0].launch.where,
                hint="put each into a script of its own",
            )
        text = cluster_file(config, Path(script).read_text(errors="replace"), request, job)
    write(text, output, sources=[script])
    return 0


def _dated_folder(config: EffectiveConfig, script: str, how: ComposeOptions) -> str:
    """Return the job's folder as of now where a start on another day would have another one, else ""."""
    long_ago = replace(how, env=how.env | {"SOURCE_DATE_EPOCH": "0"})
    folder, then = (
        str(seen_from(each, None).get("trainer.default_local_dir"))
        for each in (config, composed(script, long_ago)[0])
    )
    return folder if folder != then else ""
