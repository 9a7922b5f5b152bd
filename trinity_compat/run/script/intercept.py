"""Interceptor that the shim calls for a command that could start a veRL training main.

``python -m trinity_compat.run.script.intercept REAL NAME WORDS…``: NAME is the program as it was called, REAL
the path of the real program ("" without one). A training main is run by us; for others REAL is executed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trinity_compat.common import python_command
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.output_text import plain_streams
from trinity_compat.launch import entrypoints, ray_submit
from trinity_compat.run.script import shim
from trinity_compat.run.script.invocation import Invocation, RaySubmission, find_main, read_submission
from trinity_compat.run.supervise.children import die_of_ctrl_c

_RAY = "ray.scripts.scripts"  # the program ``ray``, where PATH has none


def _submitted(words: Sequence[str]) -> Invocation | RaySubmission | None:
    """Turn a ``ray job submit`` into a launch or a local submission; None for any other command."""
    if list(words[:2]) != ["job", "submit"]:
        return None
    submission = read_submission(words, os.environ)
    entry = submission.entrypoint
    found = find_main(entry) if entry else None
    scripts = [word for word in entry if word.endswith((".sh", ".bash"))]
    places = dict.fromkeys((submission.cwd or ".", "."))  # the job's folder may be a URL
    files = [Path(place, word) for word in scripts for place in places]
    texts = [path.read_text(errors="replace") for path in files if path.is_file()]
    # No training main, and no script that could start one: this is Ray's.
    if not found and not any(map(entrypoints.names_training_main, (*texts, *entry))):
        return None
    if found is None or not ray_submit.is_local(submission.address):
        return submission
    where = submission.cwd if submission.cwd and Path(submission.cwd).is_dir() else None
    return replace(found, wrapper=("ray job submit", *found.wrapper), env=submission.env, cwd=where)


def _run_captured(found: Invocation) -> int:
    # Imported here: most commands are passed on, and should not wait for translate, SQLAlchemy and rich.
    from trinity_compat.run.script.run_launch import run_captured

    return run_captured(found)


def main(argv: Sequence[str], run: Callable[[Invocation], int] = _run_captured) -> int:
    """Run the launch that the words make, or execute the real program."""
    real, name, *words = argv
    if entrypoints.PYTHON.fullmatch(name) and words and Path(words[0]).name == "ray":
        found = _submitted(words[1:])  # a program of Python's, started by its interpreter
    else:
        found = _submitted(words) if name == "ray" else find_main([name, *words])
    if isinstance(found, RaySubmission) and not ray_submit.is_local(found.address):
        from trinity_compat.run.script import remote_job

        ray = [real, *words[: words.index("job")]] if real else python_command.of_module(_RAY)
        return remote_job.submit(ray, found)
    if isinstance(found, RaySubmission):
        os.environ.update(found.env)
        os.execvp(found.entrypoint[0], list(found.entrypoint))
    if isinstance(found, Invocation):
        return run(found)
    if not real:
        print(f"{name}: command not found", file=sys.stderr)
        return 127
    os.environ[shim.ASKED] = str(os.getpid())  # a Python that this becomes need not ask again
    return os.execv(real, [real, *words])


@plain_streams()
def _guarded(argv: Sequence[str]) -> int:
    try:
        return main(argv)
    except (UserError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return die_of_ctrl_c()


if __name__ == "__main__":
    sys.exit(_guarded(sys.argv[1:]))
