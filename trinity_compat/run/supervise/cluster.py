"""The run's own small Ray: it starts before the run's processes and ends after them."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import resource
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from trinity_compat.common import file_modes
from trinity_compat.common.errors import RunError
from trinity_compat.common.file_modes import PRIVATE
from trinity_compat.common.nested import Tree
from trinity_compat.common.network import LOOPBACK, keep_ray_here
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.job.liveness import SIDE_SILENT_S
from trinity_compat.job.placement import cpus_for
from trinity_compat.run.job_dir.progress import say
from trinity_compat.run.plan.run_plan import RunPlan
from trinity_compat.run.supervise.children import sweep
from trinity_compat.run.supervise.supervisor import RunOutcome, StopSignal

_CPU_OBJECT_STORE = 256 * 2**20  # bytes; batches of a CPU run are a few MB, those of a GPU run would spill
_TOO_SLOW = "timed out during startup"  # Ray's message after 30 s, a fixed limit
_FILES = 1024  # the usual soft limit
_RAY_OF_USER = "RAY_ADDRESS"
_TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_PLACEMENT_CPUS = 16  # veRL asks for CPUs as slots of placement groups, not as cores


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running Ray. ``address`` goes to the run's processes as RAY_ADDRESS.

    ``watchdog`` limits the time for which one of ``daemons``, Ray's own processes, may be stopped.
    """

    address: str
    daemons: tuple[psutil.Process, ...] = ()
    watchdog: Watchdog = field(default_factory=Watchdog)
    _stopped: dict[int, float] = field(default_factory=dict)

    def dead(self) -> str | None:
        """Return a message once one of Ray's own processes has ended or stays stopped; None while all run."""
        self.watchdog.tick()
        return next((why for process in self.daemons if (why := self._trouble(process))), None)

    def _trouble(self, process: psutil.Process) -> str | None:
        """Return why the run ends; a stopped process is killed, since Ray's own end would wait for it."""
        state = process.status() if process.is_running() else psutil.STATUS_ZOMBIE
        if state == psutil.STATUS_ZOMBIE:
            # A low limit on open files may be the cause: with 64 Ray starts, and dies later.
            allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            few = f"; a process may have only {allowed} files open here: `ulimit -n 4096`"
            return f"Ray itself died (its raylet or control store ended){few if allowed < _FILES else ''}"
        if state != psutil.STATUS_STOPPED:
            self._stopped.pop(process.pid, None)
            return None
        now, limit_s = self.watchdog.seconds, self.watchdog.limit_s
        stopped_s = now - self._stopped.setdefault(process.pid, now)
        if limit_s is None or stopped_s <= limit_s:
            return None
        why = f"Ray's {process.name()} (pid {process.pid}) was stopped for {stopped_s:.0f} s; it was killed"
        process.kill()
        return why


def with_ray(plan: RunPlan, stop: StopSignal, work: Callable[[Cluster], RunOutcome]) -> RunOutcome:
    """Start Ray, do ``work`` on it and end it; a Ray of the user's environment is used as it is."""
    if address := os.environ.get(_RAY_OF_USER):
        say(f"using the Ray cluster at {_RAY_OF_USER}={address}")
        return work(Cluster(address))
    try:
        # A CPU run on a machine with GPUs: Ray must not count them.
        gpus = 0 if plan.spec.device == "cpu" else None
        with local_ray(plan.ray, gpus=gpus, cpus=cpus_for(plan.spec), umask=plan.job.umask) as cluster:
            cluster.watchdog.limit_s = SIDE_SILENT_S if plan.spec.stall_timeout_s else None
            outcome = work(cluster)
    except RunError as error:
        outcome = RunOutcome(1, str(error)) if stop.number is None else RunOutcome(128 + stop.number)
    # Also after a signal: remaining processes of Ray would occupy the devices of the next start.
    sweep()
    return outcome


@contextlib.contextmanager
def local_ray(
    options: Tree, *, gpus: int | None = None, cpus: int = 0, umask: int = PRIVATE
) -> Iterator[Cluster]:
    """Start Ray on this machine for the time of the block; ``options``: veRL's ``ray_kwargs.ray_init``.

    ``gpus`` None lets Ray count them; ``cpus``: slots that it must have; ``umask``: of its workers' files.
    Raises RunError with Ray's own reason when it does not start.
    """
    if not options.get("_node_ip_address"):
        keep_ray_here()
    import ray

    with _own_token(), _folder(options.get("_temp_dir")) as folder:
        try:
            with file_modes.umask(umask):
                address = _started(options, folder, gpus, cpus)
            below = psutil.Process().children(recursive=True)
            daemons = [process for process in below if process.name() in ("raylet", "gcs_server")]
            yield Cluster(address, tuple(daemons))
        finally:
            with contextlib.suppress(Exception):
                ray.shutdown()


@contextlib.contextmanager
def _own_token() -> Iterator[None]:
    """Give this Ray and the processes of the run a token, in a private folder.

    Ray keeps one in the home folder, which may not be writable. A token that the user names is used.
    """
    if any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", _TOKEN_PATH)):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tc-ray-", dir="/tmp") as folder:
        path = Path(folder, "token")
        path.write_text(_token())
        os.environ[_TOKEN_PATH] = str(path)
        try:
            yield
        finally:
            os.environ.pop(_TOKEN_PATH, None)


@functools.cache
def _token() -> str:
    """One for all Rays of this process, whose driver reads it once."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _folder(named: object) -> Iterator[Path]:
    """The folder of Ray's session.

    A folder that the user named stays with its content: other sessions may use it, and Ray itself keeps a
    session's logs in it.
    """
    if named:
        yield Path(str(named))
        return
    own = file_modes.ray_folder()
    try:
        yield own
    finally:
        shutil.rmtree(own.parent, ignore_errors=True)


def _started(options: Tree, folder: Path, gpus: int | None, cpus: int, *, again: bool = True) -> str:
    """Start Ray and return its address; on a time-out of Ray's own start, try once more."""
    import ray

    try:
        with _quiet(), _own_signals():
            context = ray.init(**_init_arguments(options, folder, gpus, cpus))
    except Exception as error:
        if again and _TOO_SLOW in str(error):
            with contextlib.suppress(Exception):
                ray.shutdown()
            return _started(options, folder, gpus, cpus, again=False)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = ": ".join([type(error).__name__, *lines[:1]])
        lie = "lie in" if options.get("_temp_dir") else "lay in"
        raise RunError(
            f"Ray does not start: {reason}",
            hint="`trinity-compat doctor` checks ports, disk, memory and Ray itself;"
            f" Ray's logs {lie} {folder}",
        ) from error
    return str(context.address_info["gcs_address"])


def _init_arguments(options: Tree, folder: Path, gpus: int | None, cpus: int = 0) -> dict[str, object]:
    settings = {name: value for name, value in options.items() if value is not None and name != "address"}
    cores = psutil.cpu_count() or 1
    return {
        # A dashboard costs seconds and a port, and our own display reads the database.
        "include_dashboard": False,
        **({"object_store_memory": _CPU_OBJECT_STORE} if gpus == 0 else {}),
        # The sides write logs of their own; here Ray's workers would write into the display.
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        # Ray would start a worker on each core for this process, which gives it no task.
        "_system_config": {"prestart_worker_first_driver": False},
        # Calls need Ray's token (docs/security.md). Bound to this address, only this machine can try.
        "_node_ip_address": LOOPBACK,
        # The launch's settings win over the lines above; those below win over the launch.
        **settings,
        "address": "local",
        "num_cpus": settings.get("num_cpus") or max(cores, _PLACEMENT_CPUS, cpus),
        "_temp_dir": str(folder),
        **({} if gpus is None else {"num_gpus": gpus}),
    }


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore this process's signal handlers after ``ray.init``.

    Ray puts a handler of its C++ side under Python's, which aborts the process on SIGTERM.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ours = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in ours.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discard Ray's report of its start on stderr; errors arrive as exceptions.

    RAY_ADDRESS would override address="local".
    """
    held = os.environ.pop("RAY_ADDRESS", None)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if held is not None:
            os.environ["RAY_ADDRESS"] = held
