"""A script within a Slurm job.

`srun` takes the environment along, and with it PATH and BASH_ENV: a launch that it starts on this machine is
caught there. It looks up programs here, for the other machines too, so that they must see the shim's folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.launch import Launch

_JOB, _NODE, _TASK = "SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_PROCID"
_RAY = "RAY_ADDRESS"
_SRUN = re.compile(r"\bsrun\b")
_DIRECTIVE = re.compile(r"(?m)^#SBATCH\b")


def refuse_outside(script: str, launches: Iterable[Launch], environ: Mapping[str, str]) -> None:
    """Raise UserError for a launch by ``srun`` on a machine that no Slurm job has."""
    for launch in launches:
        if launch.start and launch.start.travels and not environ.get(_NODE):
            raise UserError(
                f"{launch.start.elsewhere} starts {launch.module} on a machine of a Slurm job, and this is"
                " none; nothing of the script was executed",
                where=launch.where,
                hint=f"{_submitted(script)}; in a job that you have, `srun --overlap --pty bash` leads there",
            )


def note_outside(script: str, text: str, environ: Mapping[str, str]) -> str:
    """Return how a script with #SBATCH lines that runs outside of a job becomes one; "" for other scripts."""
    is_job = _DIRECTIVE.search(text) and not environ.get(_JOB) and shutil.which("sbatch")
    return (
        f"{script} has #SBATCH lines and runs on this machine; as a job: {_submitted(script)}"
        if is_job
        else ""
    )


def _submitted(script: str) -> str:
    return f"`trinity-compat export {script} --to slurm -o job.sbatch`, then `sbatch job.sbatch`"


def shared_place(text: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder for the shim of a script that calls ``srun`` in a job; None: the machine's own."""
    here = Path.cwd()
    return here if environ.get(_JOB) and _SRUN.search(text) and os.access(here, os.W_OK) else None


def check_task(environ: Mapping[str, str]) -> None:
    """Raise UserError where this process is not the one launch on the script's machine.

    ``environ`` is the script's.
    """
    here, there = environ.get(_NODE), os.environ.get(_NODE)
    if here and there and here != there:
        raise UserError(
            f"srun starts this launch on {there}, and `trinity-compat run` is on {here}",
            hint=f"write srun --nodelist={here} --nodes=1 --ntasks=1 for it",
        )
    if os.environ.get(_TASK, "0") != "0":
        raise UserError(
            f"srun starts this launch several times; this is task {os.environ[_TASK]}",
            hint="write srun --nodes=1 --ntasks=1 for it: Ray reaches the other machines",
        )


def join_ray() -> None:
    """Set RAY_ADDRESS to the Ray that this job has started on this machine, as veRL would join it.

    Not by Ray's own note of the last one: on a machine that jobs share it may be another job's.
    """
    job = os.environ.get(_JOB)
    if not job or os.environ.get(_RAY):
        return
    import psutil

    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):
            if process.info["name"] == "raylet" and process.environ().get(_JOB) == job:
                words = [word.partition("=") for word in process.cmdline()]
                for value in (value for name, _, value in words if name == "--gcs-address"):
                    os.environ[_RAY] = value
                    return
