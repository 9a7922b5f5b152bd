"""A head of a Ray cluster with a dashboard, whose Python has veRL and vLLM and no trinity-compat."""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import uuid
import venv
from pathlib import Path

import psutil

from trinity_compat.common.parent_watch import die_with_parent


class Head:
    """The head of a cluster on ``machine``; ``url``: its dashboard. ``ports``: for others than Ray's own."""

    def __init__(self, machine, folder, ports=None):
        self.mark, self.temp = uuid.uuid4().hex, tempfile.mkdtemp(prefix="tc-rh-")  # sockets' names are short
        ports = ports or {"dashboard-port": 8265}
        self.url = f"http://{machine.address}:{ports['dashboard-port']}"
        bin_ = without_trinity_compat(folder)
        self.ray = [str(bin_ / "python3"), "-m", "ray.scripts.scripts"]
        env = {
            "PATH": f"{bin_}:/usr/bin:/bin:/usr/sbin:/sbin",
            "TC_TEST_MARK": self.mark,
            "HOME": str(folder),
        }
        words = ["--head", "--block", "--disable-usage-stats", "--num-cpus=16", "--num-gpus=0"]
        words += [f"--node-ip-address={machine.address}", f"--dashboard-host={machine.address}"]
        words += [f"--temp-dir={self.temp}", "--object-store-memory=300000000"]
        words += [f"--{name}={port}" for name, port in ports.items()]
        with (folder / "ray.log").open("w") as log:
            self.process = subprocess.Popen(
                [*machine.prefix, *self.ray, "start", *words],
                env=env,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def wait(self):
        for _ in range(120):
            try:
                return urllib.request.urlopen(f"{self.url}/api/jobs/", timeout=5)
            except OSError:
                assert self.process.poll() is None
                time.sleep(1)
        raise AssertionError("no dashboard in two minutes")

    def close(self):
        for process in psutil.process_iter():
            try:
                if process.environ().get("TC_TEST_MARK") == self.mark:
                    process.kill()
            except psutil.Error:
                continue
        self.process.wait()
        shutil.rmtree(self.temp, ignore_errors=True)


def without_trinity_compat(folder):
    """A Python with every package of this one but ours; returns its folder of programs."""
    place = folder / "cluster"
    venv.create(place, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        there = place / "lib" / version / "site-packages" / package.name
        if "trinity_compat" not in package.name and package.name != "__pycache__":
            there.symlink_to(package)
    (place / "bin" / "shfmt").symlink_to(Path(sys.executable).with_name("shfmt"))
    return place / "bin"
