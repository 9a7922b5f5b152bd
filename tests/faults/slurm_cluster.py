"""Debian's Slurm with two machines, which are this one, for a test: its own munge, controller and daemons."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import needs

from trinity_compat.common.parent_watch import die_with_parent

_PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
_CONFIG = """\
ClusterName=test
SlurmctldHost=localhost
SlurmUser=root
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait=60
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster of two machines with eight CPUs each, as its configuration says."""

    def __init__(self):
        found = {name: needs.program(name, package) for name, package in _PROGRAMS.items()}
        if os.geteuid() != 0:
            needs.lacking("not root: Slurm's daemons start jobs as other users")
        self.folder = Path(tempfile.mkdtemp(prefix="tc-slurm-"))
        self.folder.chmod(0o755)  # munge's socket is reached through it
        for name in ("state", "spool.n1", "spool.n2"):
            (self.folder / name).mkdir()
        config = _CONFIG.format(folder=self.folder, host=socket.gethostname(), ports=_free_ports(3))
        (self.folder / "slurm.conf").write_text(config)
        (self.folder / "key").write_bytes(secrets.token_bytes(128))
        (self.folder / "key").chmod(0o600)
        self.env = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        munge = [
            f"--{name}={self.folder / 'munge'}.{name[:4]}" for name in ("pid-file", "log-file", "seed-file")
        ]
        munge += [
            f"--socket={self.folder}/munge.sock",
            f"--key-file={self.folder}/key",
            "--force",
            "--foreground",
        ]
        self.daemons = [self._start(found["munged"], *munge)]
        self._wait((self.folder / "munge.sock").exists)
        self.daemons.append(self._start(found["slurmctld"], "-D"))
        self.daemons += [self._start(found["slurmd"], "-D", "-N", name) for name in ("n1", "n2")]
        self._wait(lambda: self.say("sinfo", "--noheader", "--format=%t %D") == "idle 2")

    def _start(self, *words):
        log = (self.folder / f"{Path(words[0]).name}.log").open("a")
        return subprocess.Popen(words, env=self.env, stdout=log, stderr=log, preexec_fn=die_with_parent)

    def _wait(self, there):
        for _ in range(300):
            if there():
                return
            assert all(daemon.poll() is None for daemon in self.daemons)
            time.sleep(0.2)
        raise AssertionError("no cluster in a minute")

    def say(self, *words, **options):
        """Run one of Slurm's programs; returns all that it prints."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, **options)
        return (done.stdout + done.stderr).strip()

    def state(self, job):
        return self.say("squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%T")

    def close(self):
        self.say("scancel", "--user=root")
        for _ in range(150):
            if not self.say("squeue", "--noheader"):
                break
            time.sleep(1)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
        shutil.rmtree(self.folder)


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
