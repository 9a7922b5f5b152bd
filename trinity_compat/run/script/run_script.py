"""The run of a script: real bash, with the shim's programs in front of PATH.

The outer process (``trinity-compat run``) starts bash and waits. Each launch of the script runs in the
intercepting process (``run_launch``), with the script's environment, folder and pipes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.launch.job_files import is_job
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.script import intercept_check, shared_folder, shim, slurm_job
from trinity_compat.run.script.shared_folder import ScriptCall
from trinity_compat.run.supervise import children


def run_script(script: str, arguments: Sequence[str], options: RunOptions) -> tuple[int, list[LaunchEnd]]:
    """Run ``script`` with bash under the shim. Returns its exit status and how its launches ended.

    The status is bash's own; when bash says 0 although a launch failed (``… | tee`` without pipefail)
    it is the launch's.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise UserError("bash is not on PATH: a script needs it")
    check_script(Path(script))
    # A script that runs `trinity-compat run` itself must not find the outer one's programs.
    environ = shim.without(os.environ)
    launches = intercept_check.check(script, arguments, environ, options.mains)
    slurm_job.refuse_outside(script, launches, environ)
    text = Path(script).read_text(errors="replace")
    if told := slurm_job.note_outside(script, text, environ):
        print(f"note: {told}", file=sys.stderr)
    if not launches or not all(map(intercept_check.submitted_to, launches)):
        optional_packages.need_for_a_run()  # before the script's own downloads
    with shared_folder.folder_of(
        ScriptCall(script, tuple(arguments), options, str(Path.cwd()), environ),
        slurm_job.shared_place(text, environ),
    ) as folder:
        env = shim.install(
            folder / "bin",
            script_text=text,
            env=environ,
            script=script,
            programs=intercept_check.programs_of(launches),
            mains=options.mains,
        )
        env[shim.SESSION] = str(folder)
        # The script ends with this process, however that ends: nothing else watches the run.
        running = subprocess.Popen([bash, script, *arguments], env=env, preexec_fn=children.die_with_parent)
        status = _wait(running, folder)
        if optional_packages.version("psutil"):
            from trinity_compat.run.script import background_jobs

            if note := background_jobs.running_note(folder, script):
                print(f"note: {note}", file=sys.stderr)
        ended = [*shared_folder.ends_of(folder), *shared_folder.killed_launches(folder)]
    # The first failure may have caused the later ones.
    failed = [launch.code for launch in ended if launch.code]
    return status or (failed[0] if failed else 0), ended


def check_script(path: Path) -> None:
    """Raise UserError for a path that is not a shell script, or an empty one."""
    if path.is_dir():
        raise UserError(
            f"{path} is a folder", hint="name a veRL shell script or a Trinity YAML (x.yaml) in it"
        )
    if path.suffix in (".py", ".ipynb") or is_job(str(path)):
        raise UserError(
            f"{path} is not a shell script",
            hint=f"put the command that it starts into one; trinity-compat parse {path} shows it",
        )
    if not path.is_file():
        raise UserError(f"no such script: {path}", hint="name a veRL shell script or a Trinity YAML (x.yaml)")
    try:
        empty = not path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if empty:
        raise UserError(f"{path} is empty", hint="it should start veRL: python3 -m verl.trainer.main_ppo …")


def _wait(bash: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait for bash. A terminal sends Ctrl-C to bash and the launch; SIGTERM is forwarded."""

    def forward(number: int, frame: object) -> None:
        for pid in [*shared_folder.running_pids(folder), bash.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda number, frame: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
        signal.SIGHUP: signal.signal(signal.SIGHUP, forward),
    }
    try:
        code = bash.wait()
        if -code in (signal.SIGTERM, signal.SIGHUP):  # a launch may have begun after it was forwarded
            shared_folder.end_by_signal(folder, -code)
        # Launches may still clean up, or write a checkpoint: bash may die of a signal before them.
        for pid in shared_folder.running_pids(folder):
            shared_folder.has_ended(pid, within_s=None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code
