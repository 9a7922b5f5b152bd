"""``python -m trinity_compat.trainer JOB_DIR``, whose exit codes are those of an explorer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trinity_compat.common import process_log
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.gc_pause import gc_paused
from trinity_compat.common.parent_watch import end_with_parent
from trinity_compat.common.python_command import add_user_folder
from trinity_compat.common.user_output import TRAINER, mark_users
from trinity_compat.job.machines import MACHINE_LOST, MachineLost
from trinity_compat.job.run_spec import RunSpec

_OWN_FILE = "--train"  # a trainer whose configuration is not the explorer's


def main(argv: list[str]) -> int:
    """Run the trainer of JOB_DIR; returns the exit code."""
    if not argv or argv[0].startswith("-") or argv[1:] not in ([], [_OWN_FILE]):
        print(f"usage: python -m trinity_compat.trainer JOB_DIR [{_OWN_FILE}]", file=sys.stderr)
        return 2
    file = "train" if argv[1:] else "run"
    add_user_folder()
    with gc_paused():
        from trinity_compat.trainer.explorer_liveness import PeerGone
        from trinity_compat.trainer.main import run

    try:
        run(RunSpec.load(Path(argv[0]) / "config" / f"{file}.json"))
    except UserError as error:
        return _say(error, 2)
    except PeerGone as error:
        return _say(error, 3)
    except RunError as error:
        return _say(error, MACHINE_LOST if isinstance(error, MachineLost) else 1)
    return 0


def _say(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


def leave(argv: list[str]) -> None:
    """Exit with the code, after a signal without the interpreter's teardown.

    Threads of gloo and Ray that still run would abort it (-6) although everything is released.
    """
    try:
        end_with_parent()
        mark_users(TRAINER)
        code = main(argv)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    process_log.configure()
    leave(sys.argv[1:])
