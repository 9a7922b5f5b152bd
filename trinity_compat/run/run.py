"""One run from its launch or YAML to its end: translate, plan, check, start, watch, tell."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from trinity_compat.buffer import open_buffer
from trinity_compat.common import file_modes
from trinity_compat.common.errors import RunError
from trinity_compat.job import disk_full, fingerprint
from trinity_compat.job.placement import cpus_for
from trinity_compat.job.restarts import OWN_CHECKPOINT
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.run import config_files
from trinity_compat.run.checks import disk_space, preflight, start_check
from trinity_compat.run.checks.report import StartReport
from trinity_compat.run.job_dir import agreement, job_dir
from trinity_compat.run.job_dir.checkpoint_links import CheckpointLinks
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.job_dir.progress import Progress, say
from trinity_compat.run.plan import error_locations, ignored_keys
from trinity_compat.run.plan.options import RunOptions
from trinity_compat.run.plan.run_plan import RunPlan, describe
from trinity_compat.run.plan.source import Source
from trinity_compat.run.supervise import bench, serve, task_pipeline
from trinity_compat.run.supervise.children import survivors, sweep
from trinity_compat.run.supervise.cluster import Cluster, local_ray
from trinity_compat.run.supervise.commands import commands_of, lone_commands
from trinity_compat.run.supervise.standalone import StandaloneWatch
from trinity_compat.run.supervise.supervisor import (
    RunOutcome,
    StopSignal,
    Supervision,
    catch_signals,
    supervise,
)
from trinity_compat.run.supervise.user_output import UserOutput
from trinity_compat.synchronizer import device_turns

_RAY_OF_USER = "RAY_ADDRESS"
_SURVIVE_S = 20.0  # what SIGTERM ends has so long, where its supervisor was killed


def run_source(source: Source, options: RunOptions) -> LaunchEnd:
    """Plan and run; every message goes to stdout as it happens. Raises UserError and RunError."""
    made = ignored_keys.plan_source(source, options, cwd=Path.cwd())
    if made.spec.mode == "bench":
        return _bench(bench.planned(made, source.config, options.checkpoints), source)
    if made.spec.mode == "serve":
        return _serve(made, source)
    for line in (*source.notes, *made.notes, *describe(made), *preflight.remarks(made)):
        say(line)
    for line in disk_space.remarks(made.spec, made.job.root):
        say(line)
    # Before the start check: what is a missing file should not be told in vLLM's words.
    links = _links(made)
    with error_locations.relocate_errors(source, options.sets):
        preflight.check(made)
        disk_space.check_shared_memory(made.spec)
        links.check()
    for line in task_pipeline.run(made.spec.verl):
        say(line)
    report = _checked(made, source)
    try:
        with catch_signals() as stop, _acquire_job(made, source, options, report):
            links.begin()
            outcome = _with_ray(made, stop, lambda cluster: _supervised(made, options, links, stop, cluster))
    except OSError as error:
        raise disk_full.explained(error, made.spec) or error from None
    return _tell(made, outcome)


def _checked(made: RunPlan, source: Source) -> StartReport:
    """veRL and vLLM have taken the configuration. Raises UserError."""
    say("checks the configuration on veRL's and vLLM's own objects …")
    with error_locations.relocate_errors(source):
        report = start_check.check(made, source.record, execute=True)
    for line in start_check.lines(report):
        say(line)
    return report


@contextlib.contextmanager
def _acquire_job(made: RunPlan, source: Source, options: RunOptions, report: StartReport) -> Iterator[None]:
    """Hold the job, made ready or joined.

    One start at a time: of two sides that start at once the second finds what the first one wrote.
    """
    with contextlib.ExitStack() as held:
        with job_dir.starting(made.job):
            joined = held.enter_context(job_dir.locked(made.job, made.spec.mode, made.explorer))
            # In a run that was joined they are the other side's, and its supervisor lives.
            if not joined:
                _await_survivors(made.job)
            _prepare(made, source, options, report, joined=joined)
            if not joined:
                with file_modes.umask(made.job.umask):
                    _forget_participants(made)
        try:
            yield
        finally:
            _forget_weights(made)


def _await_survivors(job: JobDir) -> None:
    """Sides whose supervisor was killed are ending by themselves; their last words would be taken for those
    of this start's."""
    until = time.monotonic() + _SURVIVE_S
    if left := survivors(job.root):
        say(f"waits for the end of an earlier start's processes ({', '.join(map(str, left))})")
    while left := survivors(job.root):
        if time.monotonic() > until:
            pids = " ".join(map(str, left))
            raise RunError(
                f"processes of an earlier start still use {job.root}: pids {pids}",
                hint=f"they were asked to end; `kill -9 {pids}`, then the same command again",
            )
        time.sleep(0.2)


def _bench(made: RunPlan, source: Source) -> LaunchEnd:
    """Evaluate checkpoints."""
    steps = ", ".join(map(str, made.spec.checkpoints))
    watch = bench.BenchWatch(made.spec.database_url, made.spec.checkpoints)
    outcome = _run_standalone(
        made, source, watch, [f"bench     {made.job.root}, checkpoints of step {steps}"]
    )
    if not outcome.code:
        for line in bench.table(watch.metrics()):
            say(line)
    return _tell(made, outcome, again="the same command goes on where it stopped")


def _serve(made: RunPlan, source: Source) -> LaunchEnd:
    """Answer until a signal comes."""
    outcome = _run_standalone(made, source, serve.ServeWatch(made.spec.database_url), describe(made))
    return _tell(made, outcome, again="the same command serves again")


def _run_standalone(made: RunPlan, source: Source, watch: StandaloneWatch, told: Sequence[str]) -> RunOutcome:
    """Run a process that leaves the job itself, which may be training meanwhile, as it is."""
    for line in (*source.notes, *made.notes, *told):
        say(line)
    with error_locations.relocate_errors(source):
        preflight.check(made)
    _checked(made, source)
    with catch_signals() as stop, job_dir.locked(made.job, made.spec.mode):
        made.job.create()
        with file_modes.umask(made.job.umask):
            made.spec.save(made.job.spec_path.with_name(f"{made.spec.mode}.json"))
            watch.begin()
        try:
            return _with_ray(made, stop, lambda cluster: _supervised_alone(made, watch, stop, cluster))
        finally:
            _forget_weights(made)


def _supervised_alone(
    made: RunPlan, watch: StandaloneWatch, stop: StopSignal, cluster: Cluster
) -> RunOutcome:
    commands = lone_commands(made, cluster.address)
    with closing(UserOutput([command.log for command in commands], say)) as prints:
        return supervise(
            commands,
            Supervision(
                watch,
                stop,
                also_dead=cluster.dead,
                each_poll=prints.update,
                say=say,
                stall_s=made.spec.stall_timeout_s,
            ),
        )


def _forget_participants(made: RunPlan) -> None:
    """What an earlier start's sides said last ("failed") must not be taken for this one's."""
    buffer = open_buffer(made.spec.database_url)
    try:
        buffer.forget_participants()
        device_turns.reset(buffer)
        if made.spec.mode != "explore":
            buffer.set_state("finished", False)  # an earlier trainer's mark: this one's has yet to begin
    finally:
        buffer.close()


def _forget_weights(made: RunPlan) -> None:
    """Shared memory is nobody's disk: what the trainer published there goes with it.

    What a bench or an endpoint has written serves nobody else wherever it lies.
    """
    folder = Path(made.spec.sync.directory)
    elsewhere = made.spec.mode != "explore" and not folder.is_relative_to(made.job.root)
    if elsewhere or made.spec.mode in ("bench", "serve"):
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(
    made: RunPlan, source: Source, options: RunOptions, report: StartReport, *, joined: bool
) -> None:
    """Make the job directory, or join the one whose other side is running."""
    job = made.job
    spec = replace(made.spec, fingerprint=fingerprint.made(made.spec, cwd=made.run_cwd))
    made = replace(made, spec=spec)
    if joined:
        theirs = agreement.check(job, made.spec)
        say(f"joins the run in {job.root}")
        _save_own(job, replace(spec, fingerprint=theirs.fingerprint))
        return
    if job.exists() and not made.spec.resume:
        say(f"continue_from_checkpoint is false: the earlier job is now {job_dir.set_aside(job)}")
    elif job.exists():
        step = job.latest_checkpoint
        say(
            f"continues {job.root} "
            + (f"from step {step}" if step else "from the start: it has no checkpoint")
        )
    job.create()
    with file_modes.umask(job.umask):
        config_files.write(made, source, options, report)
        _tell_edits(spec)
    _save_own(job, spec)


def _save_own(job: JobDir, spec: RunSpec) -> None:
    """For the processes of a side that has a file of its own (`commands.py`); ``run.json`` is that of the
    side that came first."""
    if spec.own_cluster:
        with file_modes.umask(job.umask):
            spec.save(job.spec_path.with_name(f"{spec.mode}.json"))


def _tell_edits(spec: RunSpec) -> None:
    """Name what was edited since the groups that wait for training were made. The trainer voids them."""
    assert spec.fingerprint is not None
    with closing(open_buffer(spec.database_url)) as buffer:
        waiting = buffer.depth()["ready"]
        for text in fingerprint.edits(buffer, spec.fingerprint) if waiting else ():
            say(f"{text}: {waiting} group{'s' * (waiting != 1)} will be generated again")


def _with_ray(made: RunPlan, stop: StopSignal, work: Callable[[Cluster], RunOutcome]) -> RunOutcome:
    """Everything from the start of Ray to the last process's end."""
    if address := os.environ.get(_RAY_OF_USER):
        say(f"uses the Ray at {_RAY_OF_USER}={address}")
        return work(Cluster(address))
    try:
        # A CPU run on a machine with GPUs: Ray must not count them.
        gpus = 0 if made.spec.device == "cpu" else None
        with local_ray(made.ray, gpus=gpus, cpus=cpus_for(made.spec), umask=made.job.umask) as cluster:
            outcome = work(cluster)
    except RunError as error:
        outcome = RunOutcome(1, str(error)) if stop.number is None else RunOutcome(128 + stop.number)
    # Also after a signal: what Ray left behind would hold the devices of the next start.
    sweep()
    return outcome


def _links(made: RunPlan) -> CheckpointLinks:
    """Checkpoints are the trainer's: an explorer of another command has a job directory without any."""
    wanted = None if made.spec.mode == "explore" else made.local_dir
    return CheckpointLinks(made.job, wanted, cwd=made.cwd, say=say)


def _supervised(
    made: RunPlan, options: RunOptions, links: CheckpointLinks, stop: StopSignal, cluster: Cluster
) -> RunOutcome:
    commands = commands_of(made, cluster.address)
    with (
        Progress(made.spec, lambda: open_buffer(made.spec.database_url)) as progress,
        closing(UserOutput([command.log for command in commands], progress.aside)) as prints,
    ):
        return supervise(
            commands,
            Supervision(
                progress,
                stop,
                also_dead=cluster.dead,
                each_poll=lambda: _look(links, prints),
                say=progress.aside,
                restarts=options.restarts,
                again=_from_own_checkpoint(made.job),
                all_needed=made.spec.sync.method == "nccl",
                stall_s=made.spec.stall_timeout_s,
            ),
        )


def _look(links: CheckpointLinks, prints: UserOutput) -> None:
    links.update()
    prints.update()


def _from_own_checkpoint(job: JobDir) -> Callable[[], dict[str, str]]:
    """A trainer that is started again goes on from what this run has trained, also where the launch says
    ``disable`` or ``resume_path``: that was for the first start."""
    before = job.checkpoint_mark
    return lambda: {OWN_CHECKPOINT: "1"} if job.checkpoint_mark != before else {}


def _no_space(made: RunPlan, failure: str) -> str:
    """A side that could write nowhere that the disk is full has said nothing of use."""
    folder = disk_full.full_folder(made.spec)
    return f"; {disk_full.told(folder)}" if folder and disk_full.TOLD not in failure else ""


def _tell(made: RunPlan, outcome: RunOutcome, *, again: str = "") -> LaunchEnd:
    """Say how it ended. What a signal ended is said by the caller: `| tee` died of the same Ctrl-C."""
    job, step = made.job, made.job.latest_checkpoint
    again = again or (
        f"the same command continues from step {step}"
        if step
        else "no checkpoint yet: the same command starts over"
    )
    if outcome.failure:
        failure = outcome.failure + _no_space(made, outcome.failure)
        again = f"free some space, then {again}" if disk_full.TOLD in failure else again
        message = f"error: {failure}\n  log: {outcome.log or job.root / 'log'}\n  hint: {again}"
    elif outcome.code:
        message = f"stopped; {again}"
    else:
        message = "done"
    if outcome.failure or not outcome.code:
        say(message, sys.stderr if outcome.failure else sys.stdout)
    return LaunchEnd(outcome.code, str(job.root), message)
