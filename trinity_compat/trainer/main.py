"""The trainer's process: connect, check, build, train, and report the end."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import ray
import verl  # noqa: F401  loads the plugins, which choose the platform
from omegaconf import DictConfig
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from trinity_compat.buffer import BufferError, open_buffer
from trinity_compat.buffer.store import Buffer
from trinity_compat.common import file_modes, python_command
from trinity_compat.common.errors import RunError
from trinity_compat.common.network import LOOPBACK, keep_ray_here
from trinity_compat.common.watchdog import WatchdogThread
from trinity_compat.job import disk_full, dynamic_dataset, machines, placement, runtime_env, stop_request
from trinity_compat.job.gpus import check_gpus
from trinity_compat.job.run_spec import RunSpec, has_baseline
from trinity_compat.job.state_cell import FINISHED
from trinity_compat.plugins.verl_entry import assert_platform
from trinity_compat.trainer.adapter import Exchange
from trinity_compat.trainer.config import send_whole_where_needed, trainer_config
from trinity_compat.trainer.datasets import Datasets, TrainerData
from trinity_compat.trainer.exchange import BufferExchange
from trinity_compat.trainer.experts.claims import Experts
from trinity_compat.trainer.experts.trainer import MixTrainer
from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat
from trinity_compat.trainer.rank_fillers import in_whole_rows
from trinity_compat.trainer.retention import RetentionThread
from trinity_compat.trainer.supervised.trainer import RowsData, SupervisedTrainer
from trinity_compat.trainer.training_processes import observe_calls, reserve_pool
from trinity_compat.trainer.verl_v0.adapter import TrinityRayPPOTrainer, build


def run(spec: RunSpec) -> None:
    """Train until veRL's own loop ends.

    Raises UserError for a configuration that can't be trained, PeerGone when no explorer is left,
    RunError otherwise; SystemExit(143) on SIGTERM, with the claim given back.
    """
    buffer = open_buffer(spec.database_url)
    name, limit_s = f"{socket.gethostname()}-{os.getpid()}", spec.stall_timeout_s
    with (
        _on_sigterm(spec.job_dir),
        LeaseHeartbeat(buffer, name, limit_s=limit_s) as heart,
        WatchdogThread(heart.watchdog, last_word=lambda reason: heart.say("failed", reason=reason)) as guard,
    ):
        try:
            _train(spec, buffer, heart)
        except BaseException as error:
            stopped = _is_stop(error)
            known: RunError | None = None if stopped else disk_full.explained(error, spec)
            if guard.reason:  # the watchdog ended a process; its reason is the cause
                known = RunError(guard.reason)
            after_step = isinstance(error, stop_request.StoppedAfterStep)
            how = "after its step, with a checkpoint" if after_step else "by a signal"
            cause = known or error
            reason = how if stopped else str(cause) or type(cause).__name__
            again = {"restarts": 1} if isinstance(error, machines.MachineLost) else {}
            with suppress(BufferError):  # the disk may be full there too
                heart.say("stopped" if stopped else "failed", reason=reason, **again)
            if known:
                raise known from error
            raise
        heart.say("done")


def _train(spec: RunSpec, buffer: Buffer, heart: LeaseHeartbeat) -> None:
    assert_platform(spec.device)
    config = trainer_config(spec)
    validate_config(
        config=in_whole_rows(config),
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )
    if spec.rows:
        rows = RowsData(config, spec.rows)
        supervised = rows.exchange(buffer, heart)
        with _ray(spec, config):
            _build(config, supervised, rows, spec, heart, SupervisedTrainer).fit()
    else:
        _train_on_answers(spec, config, buffer, heart)
    FINISHED.set(buffer, True)


def _train_on_answers(spec: RunSpec, config: DictConfig, buffer: Buffer, heart: LeaseHeartbeat) -> None:
    datasets = Datasets(config)
    dynamic_dataset.check_instance(datasets.train)
    experts = Experts.of(buffer, spec.experts, datasets.tokenizer) if spec.experts else None
    exchange = BufferExchange(
        buffer,
        spec,
        heart,
        batch_size=config.data.train_batch_size,
        group_size=config.actor_rollout_ref.rollout.n + has_baseline(spec.verl),
        val_size=len(datasets.val),
        experts=experts,
    )
    with _ray(spec, config):
        try:
            pool = None
            if placement.follows_trainer(spec):  # engines in turns look its devices up before the first turn
                with placement.report_when_pending(placement.TRAINER, heart.note):
                    pool = reserve_pool(config, placement.tag_of(spec.job_dir))
            exchange.wait_for_device()
            if config.trainer.use_v1:
                _train_with_v1(config, exchange, datasets, spec, heart, pool)
            else:
                kind = MixTrainer if experts else TrinityRayPPOTrainer
                trainer = _build(config, exchange, datasets, spec, heart, kind, pool)
                with RetentionThread(spec):
                    trainer.fit()
        finally:
            exchange.release()


def _build(
    config: DictConfig,
    exchange: Exchange,
    datasets: TrainerData,
    spec: RunSpec,
    heart: LeaseHeartbeat,
    kind: type[TrinityRayPPOTrainer] = TrinityRayPPOTrainer,
    pool: RayResourcePool | None = None,
) -> TrinityRayPPOTrainer:
    with placement.report_when_pending(placement.TRAINER, heart.note):
        return build(config, exchange, datasets, spec.device, kind, pool, heart.record_call)


def _train_with_v1(
    config: DictConfig,
    exchange: Exchange,
    datasets: TrainerData,
    spec: RunSpec,
    heart: LeaseHeartbeat,
    pool: RayResourcePool | None,
) -> None:
    from trinity_compat.trainer.verl_v1 import adapter, queue  # they import TransferQueue

    nodes = machines.living()

    def leave(reason: str, error: Exception) -> None:
        gone = machines.lost(nodes, error)
        reason = f"{gone}: {reason}" if gone else reason
        heart.say("failed", reason=reason, **({"restarts": 1} if gone else {}))
        print(f"error: {reason}", file=sys.stderr, flush=True)
        os._exit(machines.MACHINE_LOST if gone else 1)  # the main thread may wait for it

    if datasets.processor is not None:
        send_whole_where_needed(config)
    with queue.opened(config, leave):
        group_class = observe_calls(RayWorkerGroup, heart.record_call)
        trainer = adapter.TrinityPPOTrainer(config, exchange, datasets, spec.device, group_class, pool)
        with placement.report_when_pending(placement.TRAINER, heart.note):
            trainer.init()
        with RetentionThread(spec):
            trainer.train()


@contextmanager
def _ray(spec: RunSpec, config: DictConfig) -> Iterator[None]:
    """Connect to the supervisor's Ray (RAY_ADDRESS), or start one that ends with this process.

    Raises UserError when it has too few GPUs.
    """
    address = os.environ.get("RAY_ADDRESS")
    own = runtime_env.merged(get_ppo_ray_runtime_env(config), spec.verl)
    environment = python_command.ray_environment(own)
    if address:
        with python_command.outside_user_folder():
            ray.init(address=address, runtime_env=environment)
    else:
        keep_ray_here()
        cpus = max(placement.cpus_for(spec), os.cpu_count() or 1)
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            runtime_env=environment,
            _temp_dir=str(file_modes.ray_folder()),
            _node_ip_address=LOOPBACK,
        )
    try:
        check_gpus(spec, "trainer", ray.cluster_resources().get("GPU", 0.0))
        with _on_sigterm(spec.job_dir), machines.watched():  # ray.init has replaced the handler
            yield
    finally:
        ray.shutdown()


@contextmanager
def _on_sigterm(job_dir: str) -> Iterator[None]:
    caught: list[int] = []

    def end(signum: int, frame: FrameType | None) -> None:
        if stop_request.outlasts_sigterm(job_dir):
            return
        caught.append(128 + signum)
        raise SystemExit(caught[0])

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException as error:
        # A call that waits in Ray's own code ends with SystemExit(1) instead.
        if caught and not _is_stop(error):
            raise SystemExit(caught[0]) from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_stop(error: BaseException) -> bool:
    """Return whether a signal ended the process.

    Ray replaces our handler of SIGTERM by one that exits with 15.
    """
    if isinstance(error, SystemExit):
        return error.code in (signal.SIGTERM, 128 + signal.SIGTERM)
    return isinstance(error, KeyboardInterrupt)
