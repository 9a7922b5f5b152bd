"""Entry point of a job that ``remote_job`` submitted: `trinity-compat run` of the user's own entry point.

``python3 -m trinity_compat.run.script.cluster_job OPTIONS -- ENTRY``. It imports only Python's own library
before the cluster's packages are known to be there.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trinity_compat.common import optional_packages
from trinity_compat.common.python_command import leave_working_directory

_NAME = "ray_job.sh"  # in the messages of the run


def script_of(words: Sequence[str]) -> str:
    """Return the entry point as a script, with a line for each word of a launch. A single word is code."""
    if len(words) == 1:
        return f"{words[0]}\n"
    return " \\\n    ".join(map(shlex.quote, words)) + "\n"


def lacking() -> str | None:
    """Return a message with the packages that this Python lacks for a run, None where it has them."""
    if not (missing := optional_packages.missing_for_a_run()):
        return None
    listed = " ".join(map(shlex.quote, missing.values()))
    return (
        f"the cluster's Python ({sys.executable}, {platform.python_version()}, on {platform.node()}) lacks"
        f" {', '.join(missing)}\n"
        "  hint: where its machines reach a package index, add to the job's runtime_env:"
        f' "pip": {json.dumps(list(missing.values()))}\n'
        f"  otherwise to their image: RUN pip install {listed}"
    )


def main(argv: Sequence[str]) -> None:
    """Run the job and exit with its code."""
    at = argv.index("--")
    if told := lacking():
        print(f"error: {told}", file=sys.stderr)
        sys.exit(2)
    # Explorer and trainer add variables to the job's runtime environment.
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    with tempfile.TemporaryDirectory(prefix="trinity-compat-job-") as folder:
        script = Path(folder) / _NAME
        script.write_text(script_of(argv[at + 1 :]))
        sys.argv[1:] = ["run", *argv[:at], str(script)]
        runpy.run_module("trinity_compat", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    leave_working_directory()
    main(sys.argv[1:])
