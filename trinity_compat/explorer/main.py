"""One explorer process: put the parts together, explore, end with a reason."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from trinity_compat import file_modes, full_disk, own_python, placement, settings_fingerprint
from trinity_compat.addresses import LOOPBACK, keep_ray_here
from trinity_compat.buffer import open_buffer
from trinity_compat.buffer.api import Buffer
from trinity_compat.collector import resting
from trinity_compat.errors import RunError, UserError
from trinity_compat.explorer.bench import ROLE, Bench
from trinity_compat.explorer.changing import followed
from trinity_compat.explorer.colocate import SharedDevice
from trinity_compat.explorer.endpoint import ROLE as SERVE
from trinity_compat.explorer.endpoint import Endpoint
from trinity_compat.explorer.heartbeat import Heartbeat, TrainerGone
from trinity_compat.explorer.jobs import eval_jobs
from trinity_compat.explorer.loop import Explorer
from trinity_compat.explorer.maker import GroupMaker
from trinity_compat.explorer.media_tokens import placeholders
from trinity_compat.explorer.operators import pipeline_of, prepared
from trinity_compat.explorer.plan import Ended, Plan
from trinity_compat.explorer.receiving import Receiver
from trinity_compat.explorer.report import Report
from trinity_compat.explorer.reward_model import address
from trinity_compat.explorer.reward_model.address import ROLE as REWARD_MODEL
from trinity_compat.explorer.scorers.pool import ScoringPool, make_scorer
from trinity_compat.explorer.scorers.worker import warm
from trinity_compat.explorer.scoring import Scorer
from trinity_compat.explorer.selftest import HandoverTest
from trinity_compat.explorer.tasks import TaskStream, eval_stream, train_dataset, train_stream
from trinity_compat.explorer.tasks import check as check_rows
from trinity_compat.explorer.trackers import Trackers
from trinity_compat.explorer.workers import START_S, Place, Workers
from trinity_compat.gpus import check_gpus
from trinity_compat.home import from_home
from trinity_compat.lora import lora_rank, merged
from trinity_compat.parent_watch import end_with_parent
from trinity_compat.served_models import served_models
from trinity_compat.settings_fingerprint import SCORING, fingerprint_of, sign
from trinity_compat.spec import RunSpec
from trinity_compat.synchronizer import probe
from trinity_compat.synchronizer.offers import Offered
from trinity_compat.synchronizer.turns import Turn
from trinity_compat.watchdog import Guard, Watchdog

DONE, FAILED, BAD_INPUT, PEER_DIED = 0, 1, 2, 3
STOPPED = 128 + signal.SIGTERM
TICK_S = 1.0
USAGE = "python -m trinity_compat.explorer JOB_DIR [--index I] [--explore | --bench | --serve]"
EXPLORE = "explore"  # an explorer with a file of its own


def main(argv: list[str]) -> int:
    """`USAGE`; with ``--reward-model NAME --parts N`` it is the process that serves the reward model. Returns
    the exit code."""
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
    if name := _after("--reward-model", argv):
        heart = _heart(spec, name, REWARD_MODEL)
        return _ended(spec, heart, lambda: _serve(spec, heart, parts=int(_after("--parts", argv) or 1)))
    return run(spec, int(_after("--index", argv) or 0))


def _after(option: str, argv: list[str]) -> str | None:
    return argv[argv.index(option) + 1] if option in argv else None


def run(spec: RunSpec, index: int = 0) -> int:
    """Explore until the run is finished. 0 done, 1 failed, 2 bad input, 3 the trainer died, 143 stopped."""
    alone = {ROLE: _bench, SERVE: _answer_clients}.get(spec.mode)
    role = spec.mode if alone else "explorer"
    name = role if spec.explorers == 1 or alone else f"explorer_{index}"
    heart = _heart(spec, name, role)
    if alone:  # what it loads are checkpoints, which are read as whole models
        whole = replace(spec, verl=merged(spec.verl)) if lora_rank(spec.verl) else spec
        return _ended(spec, heart, lambda: alone(whole, heart))
    return _ended(spec, heart, lambda: _async_run(spec, index, name, heart))


def _heart(spec: RunSpec, name: str, role: str) -> Heartbeat:
    return Heartbeat(lambda: open_buffer(spec.database_url), name, role=role, limit_s=spec.stall_timeout_s)


def _ended(spec: RunSpec, heart: Heartbeat, work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Do the work to its end, and say in the database and in the log how it ended; the exit code."""
    heart.start()
    guard = Guard(heart.watchdog, heart.engines, last_word=lambda reason: heart.stop("failed", reason=reason))
    with guard:
        code, reason = _outcome(spec, lambda: _in_time(work(), heart))
    if guard.reason:  # else it would be what was ended that is blamed
        code, reason = FAILED, guard.reason
    state = {DONE: "done", STOPPED: "stopped"}.get(code, "failed")
    heart.stop(state, **({"reason": reason} if reason else {}))
    if reason:
        print(f"{'stopped' if code == STOPPED else 'error:'} {reason}", file=sys.stderr, flush=True)
    return code


async def _in_time(work: Coroutine[Any, Any, None], heart: Heartbeat) -> None:
    """Time passes for the engines as far as this event loop goes round: else it could not see their progress,
    and it is the loop that is late."""

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
        return PEER_DIED, str(error)
    except UserError as error:
        return BAD_INPUT, str(error)
    except RunError as error:
        return FAILED, str(error)
    except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
        return STOPPED, "by a signal"
    except Exception as error:
        if told := full_disk.explained(error, spec):
            return FAILED, str(told)
        traceback.print_exc()
        return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM cancels, so that engines and connections are given back."""
    task = asyncio.ensure_future(work)
    _cancel_on_sigterm(task)
    await task


def _cancel_on_sigterm(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


async def _async_run(spec: RunSpec, index: int, name: str, heart: Heartbeat) -> None:
    ended = _look(spec)
    warm()
    config, tokenizer, processor = configuration(spec)
    train, evaluation = _streams(config, tokenizer, processor)
    _join(spec)
    with ExitStack() as given_back:
        buffer = given_back.enter_context(closing(open_buffer(spec.database_url)))
        train = followed(train, spec, buffer, lambda: train_dataset(config, tokenizer, processor))
        sign(buffer, fingerprint_of(spec))
        report = given_back.enter_context(closing(Report(buffer, name, Trackers(spec.verl, name))))
        workers = given_back.enter_context(closing(_workers(spec, index, heart.engines)))
        device = SharedDevice(Turn(buffer, "explorer"), workers) if spec.mode == "colocate" else None
        plan = Plan(spec, buffer, train, evaluation, index=index, ended=ended)
        heart.holder = lambda: plan.sharing.holder
        await _start(spec, workers, device, heart)
        settings_fingerprint.check(spec.fingerprint)  # the data and the model are loaded
        receiver = _receiver(spec, buffer, workers, heart, index) if plan.takes_over else None
        test = HandoverTest(buffer, workers, probe.bound())
        routers = await _served(spec, buffer, workers, heart)
        scorer = given_back.enter_context(closing(_scorer(spec, config, routers)))
        maker = _maker(spec, workers, scorer, tokenizer, processor)
        pipeline = pipeline_of(spec.verl, train)
        explorer = Explorer(buffer, plan, maker, report, heart, receiver, device, test, pipeline)
        async with prepared(pipeline, spec.verl, routers):
            heart.main.now("the explorer's event loop")
            await explorer.explore()


def _workers(spec: RunSpec, index: int, watchdog: Watchdog) -> Workers:
    return Workers(
        spec.verl,
        spec.device,
        spec.env,
        place=Place.of(spec, index),
        agent_timeout_s=spec.agent_timeout_s,
        shared=spec.mode == "colocate",
        by_load=spec.sync.style != "fixed",
        partial=spec.partial_rollout,
        fingerprint=spec.fingerprint,
        watchdog=watchdog,
    )


async def _start(spec: RunSpec, workers: Workers, device: SharedDevice | None, heart: Heartbeat) -> None:
    if device:
        await device.wait(heart.check)
    with placement.told_when_pending(placement.ENGINES, heart.note):
        await workers.start(heart.check, timeout_s=spec.sync.timeout_s)


def _maker(spec: RunSpec, workers: Workers, scorer: Scorer, tokenizer: Any, processor: Any) -> GroupMaker:
    return GroupMaker(
        workers,
        scorer,
        tokenizer,
        placeholders=placeholders(processor),
        retries=spec.agent_retries,
        agent_failure=spec.agent_failure,
    )


def _look(spec: RunSpec) -> Ended:
    """Before anything is loaded: whether the trainer has finished already."""
    with closing(open_buffer(spec.database_url)) as buffer:
        return Ended(fresh=not buffer.glance().finished)


def _receiver(spec: RunSpec, buffer: Buffer, workers: Workers, heart: Heartbeat, index: int) -> Receiver:
    offered = Offered(buffer, index, workers.ranks)
    return Receiver(offered, workers, heart.check, timeout_s=spec.sync.timeout_s)


async def _bench(spec: RunSpec, heart: Heartbeat) -> None:
    warm()
    config, tokenizer, processor = configuration(spec)
    rows = eval_stream(config, tokenizer, processor) if config.data.val_files else None
    if rows:
        check_rows(rows, "data.val_files")
    jobs = eval_jobs(spec.verl, rows)
    _join(spec)
    buffer = open_buffer(spec.database_url)
    trackers = Trackers(spec.verl, ROLE)
    workers = Workers(
        spec.verl, spec.device, spec.env, agent_timeout_s=spec.agent_timeout_s, watchdog=heart.engines
    )
    try:
        await workers.start(heart.check, timeout_s=spec.sync.timeout_s)
        routers = await _served(spec, buffer, workers, heart)
        with closing(_scorer(spec, config, routers)) as scorer:
            maker = GroupMaker(
                workers,
                scorer,
                tokenizer,
                placeholders=placeholders(processor),
                retries=spec.agent_retries,
            )
            await Bench(spec, buffer, maker, jobs, trackers, heart).run()
    finally:
        workers.close()
        trackers.close()
        buffer.close()


async def _answer_clients(spec: RunSpec, heart: Heartbeat) -> None:
    config, tokenizer, _ = configuration(spec)
    _join(spec)
    buffer = open_buffer(spec.database_url)
    workers = Workers(spec.verl, spec.device, spec.env, watchdog=heart.engines)
    try:
        await workers.start(heart.check, timeout_s=spec.sync.timeout_s)
        await Endpoint(spec, buffer, workers, heart).serve(tokenizer, config)
    finally:
        workers.close()
        buffer.close()


async def _served(spec: RunSpec, buffer: Buffer, workers: Workers, heart: Heartbeat) -> list[str]:
    """Where the models answer that the run serves beside its policy, the reward model first; the workers know
    it too."""
    limit_s = max(spec.sync.timeout_s, START_S)
    routers = [
        await address.awaited(buffer, heart.check, timeout_s=limit_s, place=place)
        for place in range(len(served_models(spec.verl)))
    ]
    if routers:
        await workers.know(routers)
    return routers


def _scorer(spec: RunSpec, config: Any, routers: Sequence[str]) -> ScoringPool:
    loaded = partial(settings_fingerprint.check, spec.fingerprint, SCORING)
    return make_scorer(config, spec.scoring, next(iter(routers), None), loaded)


async def _serve(spec: RunSpec, heart: Heartbeat, *, parts: int) -> None:
    from trinity_compat.explorer.reward_model.serving import serve

    _join(spec)
    buffer = open_buffer(spec.database_url)
    try:
        await serve(spec, buffer, heart, parts=parts)
    finally:
        buffer.close()


def _streams(config: Any, tokenizer: Any, processor: Any) -> tuple[TaskStream, TaskStream | None]:
    train = train_stream(config, tokenizer, processor)
    evaluation = eval_stream(config, tokenizer, processor) if config.data.val_files else None
    check_rows(train, "data.train_files")
    if evaluation:
        check_rows(evaluation, "data.val_files")
    return train, evaluation


def configuration(spec: RunSpec) -> tuple[Any, Any, Any]:
    """veRL's configuration, tokenizer and processor, as its main_ppo makes them."""
    with resting():
        from omegaconf import OmegaConf
        from verl.utils import hf_processor, hf_tokenizer
        from verl.utils.fs import copy_to_local

    config = OmegaConf.create(dict(spec.verl))
    model = config.actor_rollout_ref.model
    _check_model(model.path)
    path = copy_to_local(model.get("tokenizer_path") or model.path)
    trust = bool(config.data.get("trust_remote_code", False))
    return config, hf_tokenizer(path, trust_remote_code=trust), hf_processor(path, trust_remote_code=trust)


def _check_model(path: str) -> None:
    looks_local = path.startswith(("/", "./", "../", "~"))
    if looks_local and not (from_home(path) / "config.json").exists():
        raise UserError(
            f"actor_rollout_ref.model.path={path}: no model there (config.json is missing)",
            hint="download the model first, or write its Hugging Face name",
        )


def _join(spec: RunSpec) -> None:
    """The supervisor's Ray, and let SIGTERM cancel again: Ray puts a handler of its own in place."""
    _join_ray(spec)
    _cancel_on_sigterm(asyncio.current_task())


def _join_ray(spec: RunSpec) -> None:
    """The supervisor's Ray ($RAY_ADDRESS), else one of our own that ends with this process. Raises UserError
    when it has too few GPUs."""
    import ray

    if address := os.environ.get("RAY_ADDRESS"):
        with own_python.outside_user_folder():
            ray.init(address=address, log_to_driver=True, runtime_env=own_python.ray_environment({}))
    else:
        keep_ray_here()
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=True,
            runtime_env=own_python.ray_environment({}),
            _temp_dir=str(file_modes.ray_folder()),
            _node_ip_address=LOOPBACK,
        )
    check_gpus(spec, "explorer", ray.cluster_resources().get("GPU", 0.0))
