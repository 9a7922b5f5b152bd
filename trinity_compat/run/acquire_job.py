"""Acquire a job for a start of its run.

A start holds the job's locks, waits for earlier processes, creates the job or joins it, and resets what an
earlier start left in its database.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from trinity_compat.buffer import open_buffer
from trinity_compat.common import file_modes
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import Tree, section_at
from trinity_compat.job import fingerprint, stop_request
from trinity_compat.job.fingerprint import differences
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.state_cell import FINISHED
from trinity_compat.run import config_files
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.job_dir import job_dir
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.plan.source import RunOptions, Source
from trinity_compat.run.supervise.children import survivors
from trinity_compat.run.supervise.standalone import StandaloneWatch
from trinity_compat.synchronizer.device_turns import TURN

_GRACE_S = 20.0  # for the end of processes whose supervisor was killed


@contextlib.contextmanager
def acquire_job(plan: RunPlan, source: Source, options: RunOptions, report: StartReport) -> Iterator[None]:
    """Hold the job for the time of the block, after creating it or joining the run in it.

    Starts are serialized: of two sides that start at once, the second finds the files of the first.
    """
    with contextlib.ExitStack() as held:
        with job_dir.starting(plan.job):
            joined = held.enter_context(job_dir.locked(plan.job, plan.spec.mode, plan.explorer))
            # The processes and participants of a run that was joined are the other side's.
            if not joined:
                await_earlier_processes(plan.job)
            _prepare(plan, source, options, report, joined=joined)
            held.enter_context(job_dir.locked_folders(plan.job, plan.spec.mode, plan.explorer))
            if not joined:
                with file_modes.umask(plan.job.umask):
                    _reset_participants(plan)
        try:
            yield
        finally:
            _remove_weights(plan)


@contextlib.contextmanager
def acquire_standalone(plan: RunPlan, watch: StandaloneWatch) -> Iterator[None]:
    """Hold the lock of mode bench or serve, and write its own spec beside that of the run."""
    with contextlib.ExitStack() as held:
        held.enter_context(job_dir.locked(plan.job, plan.spec.mode))
        plan.job.create()
        held.enter_context(job_dir.locked_folders(plan.job, plan.spec.mode))
        with file_modes.umask(plan.job.umask):
            plan.spec.save(plan.job.spec_path.with_name(f"{plan.spec.mode}.json"))
            watch.begin()
        try:
            yield
        finally:
            _remove_weights(plan)


def await_earlier_processes(job: JobDir) -> None:
    """Wait for processes whose supervisor was killed: their last reports would count as this start's.

    Raises RunError for those that do not end.
    """
    until = time.monotonic() + _GRACE_S
    if remaining := survivors(job.root):
        say(f"waits for the end of an earlier start's processes ({', '.join(map(str, remaining))})")
    while remaining := survivors(job.root):
        if time.monotonic() > until:
            pids = " ".join(map(str, remaining))
            raise RunError(
                f"processes of an earlier start still use {job.root}: pids {pids}",
                hint=f"they were asked to end; `kill -9 {pids}`, then the same command again",
            )
        time.sleep(0.2)


def _prepare(
    plan: RunPlan, source: Source, options: RunOptions, report: StartReport, *, joined: bool
) -> None:
    """Create the job directory, or join the run whose other side has it."""
    job = plan.job
    spec = replace(plan.spec, fingerprint=fingerprint.made(plan.spec, cwd=plan.run_cwd))
    plan = replace(plan, spec=spec)
    if joined:
        other = check_agreement(job, plan.spec)
        say(f"joining the run in {job.root}")
        _save_own_spec(job, replace(spec, fingerprint=other.fingerprint))
        return
    if job.exists() and not plan.spec.resume:
        say(f"continue_from_checkpoint is false: the earlier job is now {job_dir.set_aside(job)}")
    elif job.exists():
        check_release(job, source, options)
        step = job.latest_checkpoint
        say(
            f"continues {job.root} "
            + (f"from step {step}" if step else "from the start: it has no checkpoint")
        )
    job.create()
    stop_request.path_of(job.root).unlink(missing_ok=True)  # of an earlier start
    with file_modes.umask(job.umask):
        config_files.write(plan, source, options, report)
        # Name what changed since the groups that wait for training were made; the trainer voids them.
        assert spec.fingerprint is not None
        with closing(open_buffer(spec.database_url)) as buffer:
            depth = buffer.depth()
            waiting = depth["ready"] + depth["claimed"]  # by a killed trainer, until its lease lapses
            for text in fingerprint.edits(buffer, spec.fingerprint) if waiting else ():
                say(f"{text}: {waiting} group{'s' * (waiting != 1)} will be generated again")
    _save_own_spec(job, spec)


def check_release(job: JobDir, source: Source, options: RunOptions) -> None:
    """Say that a resume has the defaults of another veRL release than the job.

    Raises UserError where the user did not ask for it: such a run would change in its middle, unseen.
    """
    before, now = job.recorded_release(), source.record.get("verl_version")
    if before is None or now is None or before == now:
        return
    if options.verl_version is None:
        raise UserError(
            f"{job.root} was started with the defaults of veRL {before}, and this start has those of {now}",
            hint=f"--verl-version {before} continues with the job's defaults, --verl-version {now} with"
            " the new ones",
        )
    say(f"--verl-version {now}: from here with its defaults; {job.root} was started with veRL {before}'s")


def _save_own_spec(job: JobDir, spec: RunSpec) -> None:
    """Save the file of a side on a cluster of its own; ``run.json`` is the first side's."""
    if spec.own_cluster:
        with file_modes.umask(job.umask):
            spec.save(job.spec_path.with_name(f"{spec.mode}.json"))


def _reset_participants(plan: RunPlan) -> None:
    """Delete the states of an earlier start's processes, so that "failed" is not taken for this start's."""
    with closing(open_buffer(plan.spec.database_url)) as buffer:
        buffer.forget_participants()
        TURN.set(buffer, "explorer")
        if plan.spec.mode != "explore":
            FINISHED.set(buffer, False)  # the mark of an earlier trainer


def _remove_weights(plan: RunPlan) -> None:
    """Remove published weights that nothing reads after the run.

    These are weights in shared memory, and the copies that mode bench or serve has written.
    """
    folder = Path(plan.spec.sync.directory)
    is_elsewhere = plan.spec.mode != "explore" and not folder.is_relative_to(plan.job.root)
    if is_elsewhere or plan.spec.mode in ("bench", "serve"):
        shutil.rmtree(folder, ignore_errors=True)


def check_agreement(job: JobDir, ours: RunSpec) -> RunSpec:
    """The spec of the run in ``job``.

    Raises RunError where it was started with other settings than ``ours``.
    """
    other = job.load_spec()
    if others := ", ".join(differing(other, ours)):
        raise RunError(
            f"the run in {job.root} was started with other settings: {others}",
            hint=f"see {job.root}/config/run.json; start both sides with the same script and options",
        )
    if ours.mode == "explore" and other.explorers != ours.explorers:
        raise RunError(
            f"the run in {job.root} was started with --explorers {other.explorers}",
            hint="give every command of the run the same --explorers",
        )
    return other


def differing(other: RunSpec, ours: RunSpec) -> Iterator[str]:
    """Yield the differences of two specs that both sides must share, in the words of the user.

    Where versions lie, and the path that Python searches, belong to a machine.
    """
    other_saved, our_saved = other.as_saved()[0], ours.as_saved()[0]  # a new secret does not make another run
    files_of_their_own = other.own_cluster and ours.own_cluster
    if not files_of_their_own and other_saved["verl"] != our_saved["verl"]:
        yield "the veRL configuration"
    if other.updates_per_step != ours.updates_per_step:
        yield "the optimizer updates of a step"
    if other.database_url != ours.database_url:
        yield "the database"
    if replace(other.sync, directory="") != replace(ours.sync, directory=""):
        yield "synchronizer.*"
    if other.max_staleness != ours.max_staleness:
        yield "algorithm.sample_strategy_args.max_staleness"
    if other.replay != ours.replay:
        yield "the replay buffer"
    if _without_path(other_saved) != _without_path(our_saved):
        yield "explorer.env_vars"
    if other.fingerprint and ours.fingerprint:  # of files too, which may lie elsewhere on another machine
        yield from differences(other.fingerprint.parts, ours.fingerprint)


def _without_path(saved: Tree) -> dict[str, object]:
    return {name: value for name, value in section_at(saved, "env").items() if name != "PYTHONPATH"}
