"""The way of one run from its source to its end, read from top to bottom.

plan → announce → preflight check → start check → acquire the job → start Ray → supervise → report
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from trinity_compat.common.errors import RunError
from trinity_compat.job import disk_full
from trinity_compat.run.acquire_job import acquire_job, acquire_standalone
from trinity_compat.run.advice import against_stock
from trinity_compat.run.checks import disk_space, host_memory, preflight, start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.job_dir import resume_point
from trinity_compat.run.job_dir.checkpoint_links import CheckpointLinks
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.job_dir.start_record import StartRecorder
from trinity_compat.run.plan import error_locations
from trinity_compat.run.plan.run_plan import RunPlan, describe
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.run.supervise import bench, standalone, task_pipeline
from trinity_compat.run.supervise.cluster import with_ray
from trinity_compat.run.supervise.sides import supervise_sides, supervise_standalone
from trinity_compat.run.supervise.standalone import StandaloneWatch
from trinity_compat.run.supervise.supervisor import RunOutcome, catch_signals


def run_source(source: Source, options: RunOptions) -> LaunchEnd:
    """Run a launch or a YAML; messages go to stdout as they arise. Raises UserError and RunError."""
    plan = against_stock.plan_and_compare(source, options, cwd=Path.cwd())
    if plan.spec.mode == "bench":
        return _run_bench(bench.with_checkpoints(plan, source.config, options.checkpoints), source)
    if plan.spec.mode == "serve":
        outcome = _run_standalone(plan, source, standalone.ServeWatch(plan.spec.database_url), describe(plan))
        return report_end(plan, outcome, resume_hint="the same command serves again")
    with StartRecorder(plan.job, plan.spec, plan.explorer).recording() as start:
        outcome = _run_sides(plan, source, options, start)
    return report_end(plan, outcome)


def _run_sides(plan: RunPlan, source: Source, options: RunOptions, start: StartRecorder) -> RunOutcome:
    _announce(plan, source, (*describe(plan), *preflight.remarks(plan)))
    for line in (*disk_space.remarks(plan.spec, plan.job.root), *host_memory.remarks(plan.spec, plan.cwd)):
        say(line)
    links = _checkpoint_links(plan)
    # Before the start check, in which a missing file would be reported in vLLM's words.
    with error_locations.relocate_errors(source, options.sets):
        preflight.check(plan)
        disk_space.check_shared_memory(plan.spec)
        links.check()
        for line in task_pipeline.run(plan.spec.verl):
            say(line)
        report = _start_check(plan, source)
    try:
        with catch_signals() as stop, acquire_job(plan, source, options, report), start.hold():
            links.begin()
            supervised = partial(supervise_sides, plan, links, stop, start=start, restarts=options.restarts)
            outcome = with_ray(plan, stop, supervised)
            start.finish(outcome.code, _full_failure(plan, outcome), outcome.log or "")
    except OSError as error:
        raise disk_full.explained(error, plan.spec) or _about_job(error, plan) or error from None
    return outcome


def _about_job(error: OSError, plan: RunPlan) -> RunError | None:
    """Return a message for an error about a file of the job, None for another one."""
    if error.filename is None or not Path(os.fsdecode(error.filename)).is_relative_to(plan.job.root):
        return None
    reason = f"{os.fsdecode(error.filename)}: {error.strerror}"
    if not plan.job.root.exists():
        reason = f"the job's folder {plan.job.root} was renamed or deleted while the run used it"
    return RunError(reason, hint=_how_to_continue(plan))


def _run_bench(plan: RunPlan, source: Source) -> LaunchEnd:
    """Evaluate checkpoints of a job."""
    steps = ", ".join(map(str, plan.spec.checkpoints))
    watch = bench.BenchWatch(plan.spec.database_url, plan.spec.checkpoints)
    outcome = _run_standalone(
        plan, source, watch, [f"bench     {plan.job.root}, checkpoints of step {steps}"]
    )
    if not outcome.code:
        for line in bench.table(watch.metrics()):
            say(line)
    return report_end(plan, outcome, resume_hint="the same command goes on where it stopped")


def _run_standalone(
    plan: RunPlan, source: Source, watch: StandaloneWatch, lines: Sequence[str]
) -> RunOutcome:
    """Run an explorer without a trainer; the job itself, which may be training, stays as it is."""
    _announce(plan, source, lines)
    with error_locations.relocate_errors(source):
        preflight.check(plan)
        _start_check(plan, source)
    with catch_signals() as stop, acquire_standalone(plan, watch):
        return with_ray(plan, stop, partial(supervise_standalone, plan, watch, stop))


def _announce(plan: RunPlan, source: Source, lines: Sequence[str]) -> None:
    for line in (*source.notes, *plan.notes, *lines):
        say(line)


def _checkpoint_links(plan: RunPlan) -> CheckpointLinks:
    """The links to the job's checkpoints; an explorer of another command has none to show."""
    wanted = None if plan.spec.mode == "explore" else plan.local_dir
    return CheckpointLinks(plan.job, wanted, cwd=plan.cwd, say=say)


def _start_check(plan: RunPlan, source: Source) -> StartReport:
    """Let veRL and vLLM take the configuration. Raises UserError."""
    say("checking the configuration with veRL's and vLLM's own objects …")
    report = start_check.check(plan, source.record, execute=True)
    for line in start_check.lines(report):
        say(line)
    return report


def report_end(plan: RunPlan, outcome: RunOutcome, *, resume_hint: str = "") -> LaunchEnd:
    """Print how the run ended.

    The message of a run that a signal ended is left to the caller: `| tee` died of the same Ctrl-C.
    """
    job = plan.job
    resume_hint = resume_hint or _how_to_continue(plan)
    if failure := _full_failure(plan, outcome):
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


def _how_to_continue(plan: RunPlan) -> str:
    if not plan.job.spec_path.exists():
        return f"put {plan.job.root} back, and the same command continues from its newest checkpoint"
    point = resume_point.of(plan.job.root, plan.spec)
    if point.problem:
        return f"{point.problem}: {point.hint}"
    if point.step:
        return f"the same command continues from step {point.step}"
    return "no checkpoint yet: the same command starts over"


def _full_failure(plan: RunPlan, outcome: RunOutcome) -> str:
    return outcome.failure + disk_full_note(plan, outcome.failure) if outcome.failure else ""


def disk_full_note(plan: RunPlan, failure: str) -> str:
    """Name a full disk that ``failure`` does not: a process that could write nothing reported no reason."""
    folder = disk_full.full_folder(plan.spec)
    return f"; {disk_full.told(folder)}" if folder and disk_full.TOLD not in failure else ""
