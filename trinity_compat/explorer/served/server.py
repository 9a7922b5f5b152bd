"""A served model's server: a child process of a Ray actor, which has its GPUs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.common import python_command
from trinity_compat.common.error_text import last_error
from trinity_compat.common.errors import RunError
from trinity_compat.common.network import LOOPBACK
from trinity_compat.common.parent_watch import SUPERVISOR, die_with_parent

_KEPT = 200  # lines of output, to report its last error
_HEALTH_S = 5.0


@dataclass(frozen=True, slots=True)
class ServerState:
    """State of a server. ``why``: its last error, where it has ended."""

    ready: bool
    code: int | None = None  # None while it runs
    why: str = ""


class ServerActor:
    """Body of the actor. Every method returns at once.

    ``module``: the server's, which is run with its arguments as one JSON text, DEVICE, HOST and PORT, and
    answers ``/health`` once it is ready.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self._output: deque[str] = deque(maxlen=_KEPT)
        self._address = ""

    def start(
        self,
        arguments: Mapping[str, Any],
        device: str,
        port: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Start the server; return its address (host:port), at which it does not listen yet.

        ``port``: used if it is free, since after a restart its clients have that address. ``env``: more of
        its environment, where a secret is not seen by other users as in its arguments.
        """
        host = _host()
        self._address = f"{host}:{free_port(host, port)}"
        # With this actor's environment, in which Ray has set its GPUs. SUPERVISOR: vLLM's processes watch the
        # server by it, and would else survive its kill (plugins/vllm_entry.py).
        self._process = subprocess.Popen(
            python_command.of_module(
                self._module, json.dumps(arguments), device, *self._address.rsplit(":", 1)
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {}), SUPERVISOR: str(os.getpid())},
            preexec_fn=die_with_parent,
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        return self._address

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self._output.append(line)
            print(line, end="", flush=True)

    def state(self) -> ServerState:
        """Return whether it answers, and how it ended if it did."""
        if self._process is None:
            raise RunError(f"{self._module} was not started")
        code = self._process.poll()
        if code is not None:
            # A killed process had no time to say a word about it.
            why = "" if code == -signal.SIGKILL else last_error("".join(self._output)) or ""
            return ServerState(ready=False, code=code, why=why)
        return ServerState(ready=_healthy(self._address))


def _host() -> str:
    """Return this machine's address for the explorers: loopback where Ray has no other machine."""
    import ray

    alone = sum(bool(node["Alive"]) for node in ray.nodes()) == 1
    return LOOPBACK if alone else str(ray.util.get_node_ip_address().strip("[]"))


def _healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=_HEALTH_S) as reply:
            return bool(reply.status == 200)
    except OSError:  # urllib's own errors among them
        return False


def free_port(host: str, wanted: int = 0) -> int:
    """Return ``wanted`` if it is free, else another free port."""
    for port in dict.fromkeys((wanted, 0)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    raise RunError(f"no port of {host} is free")
