"""Machines in network namespaces, on this one."""

import contextlib
import os
import re
import subprocess
from pathlib import Path


class Machine:
    """A network namespace with one link to here, or, without the right to make one, this machine itself.

    ``server``: the address at which this machine is reached from there; ``address``: its own.
    """

    def __init__(self, number):
        self.name, self.prefix = f"tc-{os.getpid()}-{number}", []
        self.server = self.address = "127.0.0.1"
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            self._link(f"10.77.{number}.")

    def _link(self, net):
        ip(f"netns add {self.name}")
        ip(f"link add {self.name} type veth peer name eth0 netns {self.name}")
        ip(f"addr add {net}1/30 dev {self.name}")
        ip(f"link set {self.name} up")
        for words in (f"addr add {net}2/30 dev eth0", "link set eth0 up", "link set lo up"):
            ip(f"-n {self.name} {words}")
        ip(f"-n {self.name} route add default via {net}1")
        self.prefix = ["ip", "netns", "exec", self.name]
        self.server, self.address = f"{net}1", f"{net}2"

    def close(self):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            ip(f"netns del {self.name}")  # the link goes with it


def ip(words):
    return subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True).stdout


def take_away_what_killed_tests_left():
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        for name in ip("netns list").split():
            if (found := re.fullmatch(r"tc-(\d+)-\d", name)) and not Path("/proc", found[1]).exists():
                ip(f"netns del {name}")
