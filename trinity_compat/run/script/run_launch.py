"""The run of one launch of a script, in the process that bash waits for."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from trinity_compat.common.errors import UserError
from trinity_compat.launch import read_argv
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.run import run_source
from trinity_compat.run.script import shared_folder, shim, slurm_job
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.supervise.children import die_of_ctrl_c, die_with_parent
from trinity_compat.verl_config.effective import as_tree, effective_config


def run_captured(found: Invocation) -> int:
    """Run a launch that the shim caught; returns its exit code.

    Changes the environment and the working directory of this process.
    """
    folder = Path(os.environ[shim.SESSION])
    call = shared_folder.read_call(folder)
    env = {**shim.without(os.environ), **found.env}
    # Restore the user's environment: the run's own processes must not be caught.
    os.environ.clear()
    os.environ.update(env)
    found = in_its_folder(found)
    die_with_parent()
    # The result for the outer process where another error than UserError ends this launch.
    end = LaunchEnd(1, None)
    with shared_folder.announced(folder):
        try:
            slurm_job.check_task(call.environ)
            slurm_job.join_ray()
            version = call.options.verl_version
            if (code := _handle_hydra_flags(found.module, found.arguments, version)) is not None:
                end = LaunchEnd(code, None)
            else:
                end = run_source(*source_of(found, call))
        except UserError:
            end = LaunchEnd(2, None)
            raise
        finally:
            shared_folder.write_end(folder, end)
    return die_of_ctrl_c() if end.code == 128 + signal.SIGINT else end.code


def in_its_folder(found: Invocation) -> Invocation:
    """Change to the folder of ``ray job submit``, if it names one; return the launch as one of the folder."""
    if found.cwd:
        os.chdir(found.cwd)
    return replace(found, cwd=str(Path.cwd()))


def _handle_hydra_flags(module: str, arguments: Sequence[str], version: str | None) -> int | None:
    """Print the configuration for ``--cfg``, refuse ``--multirun``; returns None for a launch to run."""
    if any(word in ("--multirun", "-m") for word in arguments):
        raise UserError(
            "--multirun starts one job per combination in one process; a decoupled run is several processes"
            " with one job directory",
            hint="call the script once per combination: trinity-compat run SCRIPT -- key=value",
        )
    shown = next((word for word in arguments if word in ("--cfg", "-c") or word.startswith("--cfg=")), None)
    if shown is None:
        return None
    # Composed by our own reading: Hydra would import the training main, and with it torch.
    flags = ("--cfg", "-c", "job", "all", "hydra", "--resolve")
    words = [word for word in arguments if word not in flags and not word.startswith("--cfg=")]
    launch = read_argv(["python3", "-m", module, *words]).launches[0]
    tree = as_tree(effective_config(launch, version=version))
    print(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), end="")
    return 0
