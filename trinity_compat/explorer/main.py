"""Body of an explorer process: assemble the parts, explore, end with a reason."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig

from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.database import RETRY_S
from trinity_compat.buffer.store import Buffer
from trinity_compat.common import file_modes, python_command
from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.network import LOOPBACK, keep_ray_here
from trinity_compat.common.parent_watch import end_with_parent
from trinity_compat.common.watchdog import WatchdogThread
from trinity_compat.explorer.configuration import configuration
from trinity_compat.explorer.data.operators import pipeline_of, prepared
from trinity_compat.explorer.data.tasks import TaskStream, eval_stream, train_stream
from trinity_compat.explorer.data.tasks import check as check_rows
from trinity_compat.explorer.engine.arguments import START_S
from trinity_compat.explorer.engine.media_tokens import placeholders
from trinity_compat.explorer.engine.sampling import eval_jobs
from trinity_compat.explorer.engine.weights import DtypesReport, SharedDevice, WeightSyncCheck
from trinity_compat.explorer.heartbeat import Heartbeat, TrainerGone
from trinity_compat.explorer.modes.bench import ROLE, Bench
from trinity_compat.explorer.modes.serve import ROLE as SERVE
from trinity_compat.explorer.modes.serve import Endpoint
from trinity_compat.explorer.rewards.processes.pool import ScoringPool, make_scorer
from trinity_compat.explorer.rewards.processes.worker import warm
from trinity_compat.explorer.rewards.reward_model import address
from trinity_compat.explorer.rewards.reward_model.address import ROLE as REWARD_MODEL
from trinity_compat.explorer.rollout.nccl_receiver import Receiver
from trinity_compat.explorer.rollout.worker_group import EnginePlacement, RolloutWorkers
from trinity_compat.explorer.scheduling.group_builder import GroupBuilder
from trinity_compat.explorer.scheduling.loop import Explorer
from trinity_compat.explorer.scheduling.report import StepReporter
from trinity_compat.explorer.scheduling.scheduler import Scheduler, TrainerFinished
from trinity_compat.explorer.teachers.address import ROLE as TEACHERS
from trinity_compat.explorer.teachers.client import TeacherClient, connected
from trinity_compat.explorer.teachers.media import PromptReader
from trinity_compat.explorer.trackers import Trackers
from trinity_compat.job import (
    disk_full,
    dynamic_dataset,
    fingerprint,
    machines,
    placement,
    runtime_env,
    stop_request,
)
from trinity_compat.job.fingerprint import SCORING, fingerprint_of, sign
from trinity_compat.job.gpus import check_gpus
from trinity_compat.job.liveness import promised
from trinity_compat.job.lora import lora_rank, merged
from trinity_compat.job.machines import MACHINE_LOST, MachineLost
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.job.served_models import served_models
from trinity_compat.synchronizer import weight_sync_check
from trinity_compat.synchronizer.device_turns import DeviceTurn
from trinity_compat.synchronizer.transports.nccl_rendezvous import OfferReceiver

DONE, FAILED, BAD_INPUT, PEER_DIED = 0, 1, 2, 3  # and machines.MACHINE_LOST
STOPPED = 128 + signal.SIGTERM
TICK_S = 1.0
_SERVED = {"--reward-model": REWARD_MODEL, "--teachers": TEACHERS}  # option → role of what it serves
USAGE = "python -m trinity_compat.explorer JOB_DIR [--index I] [--explore | --bench | --serve]"
EXPLORE = "explore"  # an explorer with a separate specification


def main(argv: list[str]) -> int:
    """Run the explorer of `USAGE`; return the exit code.

    With ``--reward-model NAME --parts N`` it is the process that serves the reward model, with ``--teachers
    NAME --parts N`` the one that serves the teachers.
    """
    if not argv or argv[0].startswith("-"):
        print(f"usage: {USAGE}", file=sys.stderr)
        return BAD_INPUT
    signal.signal(signal.SIGTERM, _interrupt)
    end_with_parent()
    job_dir = Path(argv[0])
    file = next((mode for mode in (ROLE, SERVE, EXPLORE) if f"--{mode}" in argv), "run")
    try:
        spec = RunSpec.load(job_dir / "config" / f"{file}.json")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    for option, role in _SERVED.items():
        if name := _option_value(option, argv):
            return _run_server(spec, role, name, parts=int(_option_value("--parts", argv) or 1))
    return run(spec, int(_option_value("--index", argv) or 0))


def _run_server(spec: RunSpec, role: str, name: str, *, parts: int) -> int:
    heart = _heartbeat(spec, name, role)
    return _run_to_end(spec, heart, lambda: _serve(spec, role, heart, parts=parts))


def _option_value(option: str, argv: list[str]) -> str | None:
    return argv[argv.index(option) + 1] if option in argv else None


def run(spec: RunSpec, index: int = 0) -> int:
    """Explore until the run is finished.

    Returns 0 done, 1 failed, 2 bad input, 3 the trainer died, 4 a machine vanished, 143 stopped, as is a
    trainer that was asked.
    """
    other_mode = {ROLE: _bench, SERVE: _answer_clients}.get(spec.mode)
    role = spec.mode if other_mode else "explorer"
    name = role if spec.explorers == 1 or other_mode else f"explorer_{index}"
    heart = _heartbeat(spec, name, role)
    if other_mode:  # it loads checkpoints, which are read as whole models
        whole = replace(spec, verl=merged(spec.verl)) if lora_rank(spec.verl) else spec
        return _run_to_end(spec, heart, lambda: other_mode(whole, heart))
    return _run_to_end(spec, heart, lambda: _async_run(spec, index, name, heart))


def _heartbeat(spec: RunSpec, name: str, role: str) -> Heartbeat:
    return Heartbeat(lambda: open_buffer(spec.database_url), name, role=role, limit_s=spec.stall_timeout_s)


def _run_to_end(spec: RunSpec, heart: Heartbeat, work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run the work, report its end in the database and the log, and return the exit code."""
    heart.start()
    guard = WatchdogThread(
        heart.watchdog, heart.engines, last_word=lambda reason: heart.stop("failed", reason=reason)
    )
    with guard:
        code, reason = _outcome(spec, lambda: _with_ticks(work(), heart))
    if guard.reason:  # else the error of what the watchdog ended would be reported
        code, reason = FAILED, guard.reason
    state = {DONE: "done", STOPPED: "stopped"}.get(code, "failed")
    again = {"restarts": 1} if code == MACHINE_LOST else {}
    heart.stop(state, **({"reason": reason} if reason else {}), **again)
    if reason:
        print(f"{'stopped' if code == STOPPED else 'error:'} {reason}", file=sys.stderr, flush=True)
    return code


async def _with_ticks(work: Coroutine[Any, Any, None], heart: Heartbeat) -> None:
    """Run the work, and advance the engines' watchdog with this event loop.

    While the loop is blocked it sees no progress of the engines, and the loop is what is late.
    """

    async def tick() -> None:
        while True:
            heart.main.progress()
            heart.engines.tick()
            await asyncio.sleep(TICK_S)

    ticking = asyncio.ensure_future(tick())
    try:
        await work
    finally:
        ticking.cancel()


def _outcome(spec: RunSpec, work: Callable[[], Coroutine[Any, Any, None]]) -> tuple[int, str]:
    try:
        asyncio.run(_until_stopped(work()))
    except TrainerGone as error:
        return STOPPED if stop_request.read(spec.job_dir) else PEER_DIED, str(error)
    except UserError as error:
        return BAD_INPUT, str(error)
    except MachineLost as error:
        return MACHINE_LOST, str(error)
    except RunError as error:
        return FAILED, str(error)
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        return STOPPED, "by a signal"
    except Exception as error:
        if explanation := disk_full.explained(error, spec):
            return FAILED, str(explanation)
        traceback.print_exc()
        return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run the work; SIGTERM cancels it, so that engines and connections are released."""
    task = asyncio.ensure_future(work)
    _cancel_on_sigterm(task)
    await task


def _cancel_on_sigterm(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


async def _async_run(spec: RunSpec, index: int, name: str, heart: Heartbeat) -> None:
    finished = _trainer_finished(spec)
    warm()
    config, tokenizer, processor = configuration(spec)
    train, evaluation = _streams(config, tokenizer, processor)
    dynamic_dataset.check_instance(train.dataset)
    _join(spec)
    with machines.watched(), ExitStack() as closed_at_end:
        buffer = closed_at_end.enter_context(closing(open_buffer(spec.database_url)))
        sign(buffer, fingerprint_of(spec))
        report = closed_at_end.enter_context(closing(StepReporter(buffer, name, Trackers(spec.verl, name))))
        loaded = weight_sync_check.LoadedWeights(buffer, index)
        workers = closed_at_end.enter_context(closing(_workers(spec, index, heart, loaded)))
        device = SharedDevice(DeviceTurn(buffer, "explorer"), workers) if spec.mode == "colocate" else None
        scheduler = Scheduler(spec, buffer, train, evaluation, index=index, ended=finished)
        heart.holder = lambda: scheduler.holder
        dtypes = DtypesReport(buffer, index, workers)
        await _start(spec, workers, device, heart)
        await dtypes.started()
        fingerprint.check(spec.fingerprint)  # the data and the model are loaded
        receiver = None
        if scheduler.versions.receives:
            offered = OfferReceiver(buffer, index, workers.ranks)
            receiver = Receiver(offered, workers, heart.check)
        sync_check = WeightSyncCheck(buffer, workers, weight_sync_check.bound())
        routers = await _auxiliary_models(spec, buffer, workers, heart)
        scorer = closed_at_end.enter_context(closing(_scorer(spec, config, routers)))
        pipeline = pipeline_of(spec.verl, train)
        reader = PromptReader(config.data, processor)
        async with _teachers(spec, buffer, heart, reader) as teachers, prepared(pipeline, spec.verl, routers):
            builder = _group_builder(spec, workers, scorer, tokenizer, processor, teachers)
            explorer = Explorer(
                buffer, scheduler, builder, report, heart, receiver, device, sync_check, pipeline, dtypes
            )
            heart.main.now("the explorer's event loop", extra_s=RETRY_S)
            await explorer.explore()


def _workers(
    spec: RunSpec, index: int, heart: Heartbeat, loaded: weight_sync_check.LoadedWeights
) -> RolloutWorkers:
    return RolloutWorkers(
        spec.verl,
        spec.device,
        spec.env,
        place=EnginePlacement.of(spec, index),
        agent_timeout_s=spec.agent_timeout_s,
        shared=spec.mode == "colocate",
        by_load=spec.sync.style != "fixed",
        partial=spec.partial_rollout,
        stale_cache=spec.stale_cache,
        fingerprint=spec.fingerprint,
        watchdog=heart.engines,
        restarts=promised().get("restarts", 0),
        note=heart.note,
        arrived=loaded.arrived,
    )


async def _start(
    spec: RunSpec, workers: RolloutWorkers, device: SharedDevice | None, heart: Heartbeat
) -> None:
    if device:
        await device.wait(heart.check)
    with placement.report_when_pending(placement.ENGINES, heart.note):
        await workers.start(heart.check, timeout_s=spec.sync.timeout_s)


def _group_builder(
    spec: RunSpec,
    workers: RolloutWorkers,
    scorer: ScoringPool,
    tokenizer: Any,
    processor: Any,
    teachers: TeacherClient | None,
) -> GroupBuilder:
    return GroupBuilder(
        workers,
        scorer,
        tokenizer,
        placeholders=placeholders(processor),
        retries=spec.agent_retries,
        agent_failure=spec.agent_failure,
        teachers=teachers,
    )


def _teachers(
    spec: RunSpec, buffer: Buffer, heart: Heartbeat, reader: PromptReader
) -> AbstractAsyncContextManager[TeacherClient | None]:
    limit_s = max(spec.sync.timeout_s, START_S)
    return connected(spec.verl, buffer, heart.check, timeout_s=limit_s, reader=reader, watchdog=heart.engines)


def _trainer_finished(spec: RunSpec) -> TrainerFinished:
    """Read, before anything is loaded, whether the trainer has finished."""
    with closing(open_buffer(spec.database_url)) as buffer:
        return TrainerFinished(fresh=not buffer.glance().finished)


async def _bench(spec: RunSpec, heart: Heartbeat) -> None:
    warm()
    config, tokenizer, processor = configuration(spec)
    rows = eval_stream(config, tokenizer, processor) if config.data.val_files else None
    if rows:
        check_rows(rows, "data.val_files")
    jobs = eval_jobs(spec, rows)
    _join(spec)
    buffer = open_buffer(spec.database_url)
    trackers = Trackers(spec.verl, ROLE)
    workers = RolloutWorkers(
        spec.verl, spec.device, spec.env, agent_timeout_s=spec.agent_timeout_s, watchdog=heart.engines
    )
    try:
        await workers.start(heart.check, timeout_s=spec.sync.timeout_s)
        routers = await _auxiliary_models(spec, buffer, workers, heart)
        with closing(_scorer(spec, config, routers)) as scorer:
            builder = GroupBuilder(
                workers,
                scorer,
                tokenizer,
                placeholders=placeholders(processor),
                retries=spec.agent_retries,
            )
            await Bench(spec, buffer, builder, jobs, trackers, heart).run()
    finally:
        workers.close()
        trackers.close()
        buffer.close()


async def _answer_clients(spec: RunSpec, heart: Heartbeat) -> None:
    config, tokenizer, _ = configuration(spec)
    _join(spec)
    buffer = open_buffer(spec.database_url)
    workers = RolloutWorkers(spec.verl, spec.device, spec.env, watchdog=heart.engines)
    try:
        await workers.start(heart.check, timeout_s=spec.sync.timeout_s)
        await Endpoint(spec, buffer, workers, heart).serve(tokenizer, config)
    finally:
        workers.close()
        buffer.close()


async def _auxiliary_models(
    spec: RunSpec, buffer: Buffer, workers: RolloutWorkers, heart: Heartbeat
) -> list[str]:
    """Return the addresses of the models that the run serves beside its policy, the reward model first.

    The workers get them too.
    """
    limit_s = max(spec.sync.timeout_s, START_S)
    routers = [
        await address.wait_for_address(buffer, heart.check, timeout_s=limit_s, place=place)
        for place in range(len(served_models(spec.verl)))
    ]
    if routers:
        await workers.set_auxiliary_models(routers)
    return routers


def _scorer(spec: RunSpec, config: DictConfig, routers: Sequence[str]) -> ScoringPool:
    loaded = partial(fingerprint.check, spec.fingerprint, SCORING)
    return make_scorer(config, spec.scoring, next(iter(routers), None), loaded)


async def _serve(spec: RunSpec, role: str, heart: Heartbeat, *, parts: int) -> None:
    if role == TEACHERS:
        from trinity_compat.explorer.teachers.serving import serve
    else:
        from trinity_compat.explorer.rewards.reward_model.serving import serve

    _join(spec)
    buffer = open_buffer(spec.database_url)
    try:
        with machines.watched():
            await serve(spec, buffer, heart, parts=parts)
    finally:
        buffer.close()


def _streams(config: DictConfig, tokenizer: Any, processor: Any) -> tuple[TaskStream, TaskStream | None]:
    train = train_stream(config, tokenizer, processor)
    evaluation = eval_stream(config, tokenizer, processor) if config.data.val_files else None
    check_rows(train, "data.train_files")
    if evaluation:
        check_rows(evaluation, "data.val_files")
    return train, evaluation


def _join(spec: RunSpec) -> None:
    """Join Ray, and let SIGTERM cancel again: Ray replaces the handler."""
    _join_ray(spec)
    _cancel_on_sigterm(asyncio.current_task())


def _join_ray(spec: RunSpec) -> None:
    """Join the supervisor's Ray ($RAY_ADDRESS), else start one that ends with this process.

    Raises UserError when it has too few GPUs.
    """
    import ray

    environment = python_command.ray_environment(runtime_env.merged({}, spec.verl))
    if address := os.environ.get("RAY_ADDRESS"):
        with python_command.outside_user_folder():
            ray.init(address=address, log_to_driver=True, runtime_env=environment)
    else:
        keep_ray_here()
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=True,
            runtime_env=environment,
            _temp_dir=str(file_modes.ray_folder()),
            _node_ip_address=LOOPBACK,
        )
    check_gpus(spec, "explorer", ray.cluster_resources().get("GPU", 0.0))
