"""What the run's own Ray is told, and what is left of it. Ray itself is not started."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from trinity_compat.common import file_modes
from trinity_compat.common.errors import RunError
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.run.supervise.cluster import Cluster, local_ray


class FakeRay:
    """Writes a session as Ray does, or refuses to."""

    def __init__(self, monkeypatch, refuses=False):
        self.told, self.refuses = {}, refuses
        module = SimpleNamespace(init=self.init, shutdown=lambda: None)
        monkeypatch.setitem(sys.modules, "ray", module)

    def init(self, **arguments):
        self.told = arguments
        Path(arguments["_temp_dir"], "session_1", "logs").mkdir(parents=True)
        if self.refuses:
            raise ValueError("no memory\nand more")
        return SimpleNamespace(address_info={"gcs_address": "127.0.0.1:1"})


def started(options, gpus=None):
    with local_ray(options, gpus=gpus) as cluster:
        assert cluster.address == "127.0.0.1:1"


def test_a_folder_of_the_user_s_is_left_as_it_is(monkeypatch, tmp_path):
    FakeRay(monkeypatch)
    (tmp_path / "session_of_somebody_else").mkdir()
    started({"_temp_dir": str(tmp_path)})
    assert {path.name for path in tmp_path.iterdir()} == {"session_1", "session_of_somebody_else"}


def test_a_ray_that_does_not_start_takes_nothing_of_the_user_s_along(monkeypatch, tmp_path):
    FakeRay(monkeypatch, refuses=True)
    (tmp_path / "session_of_somebody_else").mkdir()
    with pytest.raises(RunError, match=f"no memory\n.*logs lie in {tmp_path}"):
        started({"_temp_dir": str(tmp_path)})
    assert (tmp_path / "session_of_somebody_else").is_dir()


@pytest.mark.parametrize("slow", [1, 2])
def test_a_machine_too_busy_for_ray_s_own_limit_is_given_another_try(monkeypatch, slow):
    ray, starts = FakeRay(monkeypatch), []

    def init(**arguments):
        starts.append(arguments)
        if len(starts) <= slow:
            raise RuntimeError("The current node timed out during startup. This could happen")
        return ray.init(**arguments)

    monkeypatch.setattr(sys.modules["ray"], "init", init)
    if slow == 2:
        with pytest.raises(RunError, match="timed out during startup"):
            started({})
    else:
        started({})
    assert len(starts) == 2


@pytest.mark.parametrize("refuses", [False, True])
def test_a_folder_of_our_own_goes(monkeypatch, refuses):
    ray = FakeRay(monkeypatch, refuses=refuses)
    if refuses:
        with pytest.raises(RunError):
            started({})
    else:
        started({})
    folder = Path(ray.told["_temp_dir"]).parent
    assert folder.parent == Path("/tmp")
    assert folder.name.startswith("tc-ray-")
    assert not folder.exists()


@pytest.mark.parametrize("limit_s", [30.0, None])
def test_a_stopped_process_of_ray_is_named_and_killed_after_the_limit(limit_s):
    now = [0.0]
    with subprocess.Popen(["sleep", "600"]) as daemon:
        watchdog = Watchdog(limit_s, clock=lambda: now[0])
        cluster = Cluster("127.0.0.1:1", (psutil.Process(daemon.pid),), watchdog)

        def dead(*, seconds):
            for _ in range(seconds):
                now[0] += 1
                found = cluster.dead()
            return found

        daemon.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.pid, os.WSTOPPED)
        assert dead(seconds=20) is None
        daemon.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, daemon.pid, os.WCONTINUED)
        assert dead(seconds=1) is None
        daemon.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.pid, os.WSTOPPED)
        assert dead(seconds=30) is None
        told = f"Ray's sleep (pid {daemon.pid}) was stopped for 31 s; it was killed"
        assert dead(seconds=2) == (told if limit_s else None)
        if limit_s is None:
            daemon.kill()
        assert daemon.wait() == -signal.SIGKILL
        assert dead(seconds=1) == "Ray itself died (its raylet or control store ended)"


@pytest.mark.parametrize(("allowed", "told"), [(64, "only 64 files open here: `ulimit -n"), (1024, None)])
def test_a_ray_that_died_under_a_low_limit_on_open_files_names_it(monkeypatch, allowed, told):
    monkeypatch.setattr("resource.getrlimit", lambda what: (allowed, allowed))
    with subprocess.Popen(["true"]) as daemon:
        os.waitid(os.P_PID, daemon.pid, os.WEXITED | os.WNOWAIT)
        found = Cluster("127.0.0.1:1", (psutil.Process(daemon.pid),)).dead()
    assert "Ray itself died" in found
    assert told in found if told else "files" not in found


def test_others_come_to_nothing_that_ray_opens_to_everybody(monkeypatch):
    ray, seen = FakeRay(monkeypatch), {}

    def init(**arguments):
        folder = Path(arguments["_temp_dir"])
        folder.mkdir(mode=0o777, exist_ok=True)
        folder.chmod(0o777)  # as ray._common.utils.try_make_directory_shared
        seen["outer"] = stat.S_IMODE(folder.parent.stat().st_mode)
        seen["umask"] = os.umask(0o022)
        os.umask(seen["umask"])
        return ray.init(**arguments)

    monkeypatch.setattr(sys.modules["ray"], "init", init)
    with file_modes.umask(0o022):
        started({})
    assert seen == {"outer": 0o700, "umask": 0o077}, "Ray's workers write the checkpoints"


@pytest.mark.parametrize(
    ("options", "gpus", "store"),
    [
        ({}, 0, 256 * 2**20),
        ({}, None, None),  # batches of a GPU run would spill: Ray takes its share of the memory
        ({"object_store_memory": 9 * 2**30}, 0, 9 * 2**30),
        ({"object_store_memory": 9 * 2**30}, None, 9 * 2**30),
        ({"object_store_memory": None}, 0, 256 * 2**20),
    ],
)
def test_the_object_store_is_small_without_gpus_only(monkeypatch, options, gpus, store):
    ray = FakeRay(monkeypatch)
    started(options, gpus)
    assert ray.told.get("object_store_memory") == store


def test_ray_s_folder_has_a_short_path_whatever_tmpdir_says(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ray = FakeRay(monkeypatch)
    started({})
    folder = Path(ray.told["_temp_dir"])
    assert folder.parents[1] == Path("/tmp")
    assert len(str(folder)) < 25


LISTENERS = """
import ipaddress, psutil, ray
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.run.supervise.cluster import Cluster, local_ray

@ray.remote
def of_a_worker():
    return 1

with local_ray({}, gpus=0):
    ray.get(of_a_worker.remote())
    own = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [each for process in own for each in process.net_connections("tcp")]
    print(*sorted({each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}))
"""


@pytest.mark.runtime
def test_nothing_of_a_run_s_own_ray_listens_outside_this_machine():
    done = subprocess.run([sys.executable, "-c", LISTENERS], capture_output=True, text=True, timeout=600)
    addresses = {address.removeprefix("::ffff:") for address in done.stdout.split()}
    assert addresses == {"127.0.0.1"}, done.stderr[-2000:]


@pytest.mark.runtime
def test_a_sigterm_reaches_whoever_caught_it_before_ray_started():
    program = """
import os, signal, time
from trinity_compat.common.watchdog import Watchdog
from trinity_compat.run.supervise.cluster import Cluster, local_ray
from trinity_compat.run.supervise.supervisor import catch_signals

with catch_signals() as stop, local_ray({}):
    os.kill(os.getpid(), signal.SIGTERM)
    until = time.monotonic() + 60
    while stop.number is None and time.monotonic() < until:
        time.sleep(0.01)
    print("heard", stop.number)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.returncode, "heard 15" in done.stdout) == (0, True), done.stderr
