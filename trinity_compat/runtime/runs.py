"""One run from its launch or YAML to its end: translate, plan, check, start, watch, tell."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from trinity_compat.errors import RunError
from trinity_compat.orphans import SUPERVISOR
from trinity_compat.placement import cpus_for
from trinity_compat.runtime import (
    bench,
    checkout,
    configs,
    hydra_flags,
    jobdir,
    micro_batches,
    plan,
    preflight,
    refusals,
    unread,
)
from trinity_compat.runtime.checks import start
from trinity_compat.runtime.checks.report import Report
from trinity_compat.runtime.cluster import Cluster, local_ray
from trinity_compat.runtime.intercept import Invocation
from trinity_compat.runtime.jobdir import JobDir
from trinity_compat.runtime.links import CheckpointLinks
from trinity_compat.runtime.plan import Options, Plan
from trinity_compat.runtime.processes import Command, survivors, sweep
from trinity_compat.runtime.progress import Progress, say
from trinity_compat.runtime.session import Ended, Request
from trinity_compat.runtime.source import Source
from trinity_compat.runtime.supervisor import Outcome, Stop, Supervision, catch_signals, supervise
from trinity_compat.spec import RunSpec
from trinity_compat.synchronizer import turns

_RAY_OF_USER = "RAY_ADDRESS"
_RUN_IDS = ("WANDB_RUN_ID", "MLFLOW_RUN_ID")
_FILE_LOGGER = "VERL_FILE_LOGGER_PATH"
_SURVIVE_S = 20.0  # what SIGTERM ends has so long, where its supervisor was killed


def run_invocation(found: Invocation, request: Request) -> Ended:
    """Run what the shim caught."""
    from trinity_compat.runtime.captured import source_of

    if (code := hydra_flags.handle(found.module, found.arguments)) is not None:
        return Ended(code, None)
    options = Options(
        **{
            **request.options,
            "profiles": tuple(request.options["profiles"]),
            "sets": tuple(request.options["sets"]),
        }
    )
    source, options = source_of(found, request, options)
    return run_source(source, options)


def run_source(source: Source, options: Options) -> Ended:
    """Plan and run; every message goes to stdout as it happens. Raises UserError and RunError."""
    made = unread.named(plan.make_plan(source.config, options, cwd=Path.cwd()), source, options.sets)
    refusals.check(made.spec.verl, source.record, cwd=made.cwd, explorers=made.spec.explorers)
    if made.spec.mode == "bench":
        return _bench(bench.planned(made, source.config, options.checkpoints), source)
    micro_batches.check(made.spec.verl, source.record)
    for line in (*source.notes, *made.notes, *plan.describe(made)):
        say(line)
    preflight.check(made)
    report = _checked(made, source)
    with catch_signals() as stop, _begun(made, source, options, report):
        outcome = _with_ray(made, stop, lambda cluster: _supervised(made, options, stop, cluster))
    return _tell(made, outcome)


def _checked(made: Plan, source: Source) -> Report:
    """veRL and vLLM have taken the configuration. Raises UserError."""
    say("checks the configuration on veRL's and vLLM's own objects …")
    report = start.check(made, source.record, execute=True)
    for line in start.lines(report):
        say(line)
    return report


@contextlib.contextmanager
def _begun(made: Plan, source: Source, options: Options, report: Report) -> Iterator[None]:
    """Hold the job, made ready or joined. One start at a time: of two sides that start at once the second
    finds what the first one wrote."""
    with contextlib.ExitStack() as held:
        with jobdir.starting(made.job):
            joined = held.enter_context(jobdir.locked(made.job, made.spec.mode, made.explorer))
            if not joined:
                _await_survivors(made.job)
            _prepare(made, source, options, report, joined=joined)
            if not joined:
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


def _bench(made: Plan, source: Source) -> Ended:
    """Evaluate checkpoints; the job itself, which may be training meanwhile, stays as it is."""
    steps = ", ".join(map(str, made.spec.checkpoints))
    for line in (*source.notes, *made.notes, f"bench     {made.job.root}, checkpoints of step {steps}"):
        say(line)
    preflight.check(made)
    _checked(made, source)
    with catch_signals() as stop, jobdir.locked(made.job, made.spec.mode):
        made.job.create()
        made.spec.save(made.job.spec_path.with_name("bench.json"))
        watch = bench.BenchWatch(made.spec.database_url, made.spec.checkpoints)
        watch.begin()
        try:
            outcome = _with_ray(made, stop, lambda cluster: _supervised_bench(made, watch, stop, cluster))
        finally:
            _forget_weights(made)
    if not outcome.code:
        for line in bench.table(watch.metrics()):
            say(line)
    return _tell(made, outcome, again="the same command goes on where it stopped")


def _supervised_bench(made: Plan, watch: bench.BenchWatch, stop: Stop, cluster: Cluster) -> Outcome:
    command = _command(made, bench.ROLE, bench.ROLE, ("--bench",), cluster.address)
    return supervise([command], Supervision(watch, stop, also_dead=cluster.dead, say=say))


def _forget_participants(made: Plan) -> None:
    """What an earlier start's sides said last ("failed") must not be taken for this one's."""
    from trinity_compat.buffer import open_buffer

    buffer = open_buffer(made.spec.database_url)
    try:
        buffer.forget_participants()
        turns.reset(buffer)
        if made.spec.mode != "explore":
            buffer.set_state("finished", False)  # an earlier trainer's mark: this one's has yet to begin
    finally:
        buffer.close()


def _forget_weights(made: Plan) -> None:
    """Shared memory is nobody's disk: what the trainer published there goes with it. A bench's versions
    serve nobody else wherever they lie."""
    folder = Path(made.spec.sync.directory)
    elsewhere = made.spec.mode != "explore" and not folder.is_relative_to(made.job.root)
    if elsewhere or made.spec.mode == "bench":
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(made: Plan, source: Source, options: Options, report: Report, *, joined: bool) -> None:
    """Make the job directory, or join the one whose other side is running."""
    job = made.job
    if joined:
        _must_agree(job, made)
        say(f"joins the run in {job.root}")
        return
    if job.exists() and not made.spec.resume:
        say(f"continue_from_checkpoint is false: the earlier job is now {jobdir.set_aside(job)}")
    elif job.exists():
        step = job.latest_checkpoint
        say(
            f"continues {job.root} "
            + (f"from step {step}" if step else "from the start: it has no checkpoint")
        )
    job.create()
    configs.write(made, source, options, report)


def _must_agree(job: JobDir, made: Plan) -> None:
    """Both sides of a split run need the same configuration."""
    theirs = job.load_spec()
    if others := ", ".join(_differing(theirs, made.spec)):
        raise RunError(
            f"the run in {job.root} was started with other settings: {others}",
            hint=f"see {job.root}/config/run.json; start both sides with the same script and options",
        )
    if made.spec.mode == "explore" and theirs.explorers != made.spec.explorers:
        raise RunError(
            f"the run in {job.root} was started with --explorers {theirs.explorers}",
            hint="give every command of the run the same --explorers",
        )


def _differing(theirs: RunSpec, ours: RunSpec) -> Iterator[str]:
    """What both sides must agree on and don't, as the user knows it. Where versions lie, and the path that
    Python searches, belong to a machine."""
    they, we = theirs.as_saved()[0], ours.as_saved()[0]  # another secret is no other run
    if they["verl"] != we["verl"]:
        yield "the veRL configuration"
    if theirs.database_url != ours.database_url:
        yield "the database"
    if replace(theirs.sync, directory="") != replace(ours.sync, directory=""):
        yield "synchronizer.*"
    if theirs.max_staleness != ours.max_staleness:
        yield "algorithm.sample_strategy_args.max_staleness"
    if theirs.replay != ours.replay:
        yield "the replay buffer"
    if _without_path(they["env"]) != _without_path(we["env"]):
        yield "explorer.env_vars"


def _without_path(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name != "PYTHONPATH"}


def _with_ray(made: Plan, stop: Stop, work: Callable[[Cluster], Outcome]) -> Outcome:
    """Everything from the start of Ray to the last process's end."""
    if address := os.environ.get(_RAY_OF_USER):
        say(f"uses the Ray at {_RAY_OF_USER}={address}")
        return work(Cluster(address))
    try:
        gpus = 0 if made.spec.device == "cpu" else None
        with local_ray(made.ray, gpus=gpus, cpus=cpus_for(made.spec)) as cluster:
            outcome = work(cluster)
    except RunError as error:
        outcome = Outcome(1, str(error)) if stop.number is None else Outcome(128 + stop.number)
    sweep()
    return outcome


def _supervised(made: Plan, options: Options, stop: Stop, cluster: Cluster) -> Outcome:
    from trinity_compat.buffer import open_buffer

    commands = commands_of(made, cluster.address)
    links = CheckpointLinks(made.job, made.local_dir, cwd=made.cwd, say=say)
    links.begin()
    with Progress(made.spec, lambda: open_buffer(made.spec.database_url)) as progress:
        return supervise(
            commands,
            Supervision(
                progress,
                stop,
                also_dead=cluster.dead,
                each_poll=links.update,
                say=say,
                restarts=options.restarts,
            ),
        )


def commands_of(made: Plan, ray_address: str) -> list[Command]:
    """The processes of a run, the explorers first: their engine takes longest to start."""
    spec = made.spec
    explorers = (
        [f"explorer_{index}" for index in range(spec.explorers)] if spec.explorers > 1 else ["explorer"]
    )
    out = []
    if spec.mode != "train":
        for index, name in enumerate(explorers):
            if made.explorer not in (None, index):
                continue
            out.append(_command(made, "explorer", name, ("--index", str(index)), ray_address))
    if spec.mode != "explore":
        out.append(_command(made, "trainer", "trainer", (), ray_address))
    return out


def _command(made: Plan, role: str, name: str, extra: tuple[str, ...], ray_address: str) -> Command:
    job = made.job
    env = {
        **os.environ,
        **made.env,
        **made.spec.as_saved()[1],
        **({} if role == "trainer" else made.spec.env),
        "RAY_ADDRESS": ray_address,
        "RAY_DEDUP_LOGS": "0",
        "TENSORBOARD_DIR": str(job.tensorboard(role if name == f"{role}_0" else name)),
        SUPERVISOR: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
    side = "trainer" if role == "trainer" else "explorer"
    if role != "trainer":
        _log_apart(env, name)
    argv = (sys.executable, "-m", f"trinity_compat.{side}", str(job.root), *extra)
    return Command(
        role,
        name,
        argv,
        checkout.python_path(env),
        job.log(f"{made.log_folder}/{name}".lstrip("/")),
        cwd=str(made.run_cwd),
    )


def _log_apart(env: dict[str, str], name: str) -> None:
    """A run or a file that the environment names is the trainer's; two writers would mix their steps."""
    for run in _RUN_IDS:
        env.pop(run, None)
    if path := env.get(_FILE_LOGGER):
        env[_FILE_LOGGER] = str(Path(path).with_stem(f"{Path(path).stem}_{name}"))


def _tell(made: Plan, outcome: Outcome, *, again: str = "") -> Ended:
    """Say how it ended. What a signal ended is said by the caller: `| tee` died of the same Ctrl-C."""
    job, step = made.job, made.job.latest_checkpoint
    again = again or (
        f"the same command continues from step {step}"
        if step
        else "no checkpoint yet: the same command starts over"
    )
    if outcome.failure:
        message = f"error: {outcome.failure}\n  log: {outcome.log or job.root / 'log'}\n  hint: {again}"
    elif outcome.code:
        message = f"stopped; {again}"
    else:
        message = "done"
    if outcome.failure or not outcome.code:
        say(message, sys.stderr if outcome.failure else sys.stdout)
    return Ended(outcome.code, str(job.root), message)
