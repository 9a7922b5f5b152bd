"""The last message of a run: how it ended, and how to go on."""

from __future__ import annotations

import sys

from trinity_compat.job import disk_full
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.supervise.supervisor import RunOutcome


def report_end(plan: RunPlan, outcome: RunOutcome, *, resume_hint: str = "") -> LaunchEnd:
    """Print how the run ended.

    The message of a run that a signal ended is left to the caller: `| tee` died of the same Ctrl-C.
    """
    job, step = plan.job, plan.job.latest_checkpoint
    resume_hint = resume_hint or (
        f"the same command continues from step {step}"
        if step
        else "no checkpoint yet: the same command starts over"
    )
    if outcome.failure:
        failure = outcome.failure + disk_full_note(plan, outcome.failure)
        if disk_full.TOLD in failure:
            resume_hint = f"free some space, then {resume_hint}"
        message = f"error: {failure}\n  log: {outcome.log or job.root / 'log'}\n  hint: {resume_hint}"
        say(message, sys.stderr)
    elif outcome.code:
        message = f"stopped; {resume_hint}"
    else:
        message = "done"
        say(message)
    return LaunchEnd(outcome.code, str(job.root), message)


def disk_full_note(plan: RunPlan, failure: str) -> str:
    """Name a full disk that ``failure`` does not: a process that could write nothing reported no reason."""
    folder = disk_full.full_folder(plan.spec)
    return f"; {disk_full.told(folder)}" if folder and disk_full.TOLD not in failure else ""
