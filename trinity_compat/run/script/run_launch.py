"""One launch that a script made, run where the script put it: in the process that bash waits for."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.run import run_source
from trinity_compat.run.script import hydra_flags, shared_folder, shim
from trinity_compat.run.script.invocation import Invocation
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.script.shared_folder import ScriptCall
from trinity_compat.run.supervise.children import die_of_ctrl_c, die_with_parent


def run_captured(found: Invocation) -> int:
    """Run a launch that the shim caught; returns its exit code.

    Changes the process: its environment, its folder.
    """
    folder = Path(os.environ[shim.SESSION])
    call = shared_folder.read_call(folder)
    env = {**shim.without(os.environ), **found.env}
    # The user's environment again: the run's processes are started with it, and must not be caught.
    os.environ.clear()
    os.environ.update(env)
    if found.cwd:
        os.chdir(found.cwd)
    die_with_parent()
    # What the outer process is told if anything but a UserError ends this launch.
    end = LaunchEnd(1, None)
    with shared_folder.announced(folder):
        try:
            end = _run(found, call)
        except UserError:
            end = LaunchEnd(2, None)
            raise
        finally:
            shared_folder.write_end(folder, end)
    return die_of_ctrl_c() if end.code == 128 + signal.SIGINT else end.code


def _run(found: Invocation, call: ScriptCall) -> LaunchEnd:
    if (code := hydra_flags.handle(found.module, found.arguments)) is not None:
        return LaunchEnd(code, None)
    return run_source(*source_of(found, call))
