"""``debug``: a run's model in one terminal, one of its tasks in another. Nothing of the run itself starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_compat.common import optional_packages
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import value_at
from trinity_compat.common.path_ownership import check_job
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run import dry_run
from trinity_compat.run.checks import preflight
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan import refusals
from trinity_compat.run.plan.plan_run import make_plan
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.trinity.workflows.tasksets import SECTION

if TYPE_CHECKING:
    from trinity_compat.explorer.modes.debug import DebugTask, TaskOutcome
    from trinity_compat.explorer.modes.debug_reward import RewardOutcome, StoredAnswer


def spec_of(source: str, arguments: Sequence[str], options: RunOptions) -> RunSpec:
    """Return the RunSpec of a job directory, a YAML or a script (read, not executed).

    Sets the environment of the profiles. Raises UserError for what cannot be run.
    """
    # A job keeps the spec of its run, whatever became of the script since.
    if Path(source).is_dir():
        if options.sets or options.profiles or options.verl_version or arguments:
            raise UserError(
                f"{source} is a job: its settings are those of its run",
                hint="leave out --set, --profile, --verl-version and overrides, or name the script",
            )
        return _spec_in(source)
    found, rest = next(dry_run.sources(source, arguments, options))
    if found.release:
        print(found.release, file=sys.stderr)
    plan = make_plan(found.config, rest, cwd=Path.cwd())
    refusals.check(plan.spec.verl, found.record, cwd=plan.cwd)
    optional_packages.need_for_a_run()
    preflight.check_models(plan.spec.verl, cwd=plan.cwd)
    preflight.check_data(plan.spec.verl, cwd=plan.cwd)
    preflight.check_reward_function(plan.spec.verl, cwd=plan.cwd)
    os.environ.update(plan.env)
    return plan.spec


def _spec_in(source: str) -> RunSpec:
    """Return the spec of a job, which names the code that will run. Raises UserError for another user's."""
    job = JobDir.at(source)
    check_job(job.root)
    return job.load_spec()


def serve(spec: RunSpec, port: int, step: int | None) -> None:
    """Serve until Ctrl-C. ``step``: the checkpoint of the job instead of the model path. Raises UserError."""
    preflight_port(port)
    checkpoint = None
    if step is not None:
        checkpoint = Path(spec.job_dir) / f"global_step_{step}" / "actor"
        if not checkpoint.is_dir():
            have = sorted(path.name for path in Path(spec.job_dir).glob("global_step_*"))
            raise UserError(f"{checkpoint} does not exist", hint=f"there are: {', '.join(have) or 'none'}")
    from trinity_compat.explorer.modes import debug

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(debug.serve(spec, port, checkpoint))


def _as_run_error(error: Exception) -> RunError:
    """Print the traceback of the user's code; returns the error for the last line."""
    run_error = (
        error if isinstance(error, RunError) else RunError(f"the workflow: {type(error).__name__}: {error}")
    )
    cause = error.__cause__ if run_error is error else error
    if cause is not None:
        traceback.print_exception(cause)
    return run_error


def preflight_port(port: int) -> None:
    """Raise UserError with the process that listens on ``port``."""
    if not preflight.is_free(port):
        raise UserError(
            f"port {port} is taken{preflight.holder(port)}",
            hint="end that process, or use another --port on both sides",
        )


def run_task(spec: RunSpec, port: int, ask: DebugTask, *, plugins: Path | None) -> TaskOutcome:
    """One task through its workflow.

    Raises UserError, and RunError for what agent loop, tool or reward function raise, after printing its
    traceback.
    """
    from trinity_compat.explorer.modes import debug

    try:
        if plugins and not value_at(spec.verl, SECTION):  # a YAML's workflows load them themselves
            debug.load_plugins(plugins)
        return asyncio.run(debug.run_task(spec, port, ask))
    except UserError:
        raise
    except Exception as error:
        raise _as_run_error(error) from error


def score_again(source: str, ask: StoredAnswer) -> RewardOutcome:
    """Score stored answers of a job directory with its reward function as the file is now.

    Raises UserError, and RunError for what the reward function raises, after printing its traceback.
    """
    if not Path(source).is_dir():
        raise UserError(
            f"{source} is not a job directory", hint="--module reward scores stored answers of a job"
        )
    spec = _spec_in(source)
    preflight.check_reward_function(spec.verl, cwd=Path.cwd())
    from trinity_compat.explorer.modes import debug_reward

    try:
        return asyncio.run(debug_reward.score_again(spec, ask))
    except UserError:
        raise
    except Exception as error:
        raise _as_run_error(error) from error
