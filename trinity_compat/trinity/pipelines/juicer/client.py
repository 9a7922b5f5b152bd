"""Client of Data-Juicer's service: starts and ends its own, or connects to one that is running."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trinity_compat.common import python_command
from trinity_compat.common.errors import RunError
from trinity_compat.common.network import LOOPBACK
from trinity_compat.common.process_limits import signal_group
from trinity_compat.trinity.pipelines.juicer import KEY_VARIABLE

START_S = 300.0  # Data-Juicer's imports, on a busy machine
CONNECT_S = 60.0  # to one that runs already; it answers one after the other
LIMIT_S = 1800.0  # for one batch of experiences, or all tasks
_MOST = 500  # characters of what went wrong
_SERVER = "trinity_compat.trinity.pipelines.juicer.server"


class Client:
    """A session of a service. ``close`` ends the session, and the service if this client started it."""

    def __init__(
        self,
        service: Mapping[str, Any],
        asked: Mapping[str, Any],
        *,
        limit_s: float = LIMIT_S,
        connect_s: float = CONNECT_S,
    ) -> None:
        """Connect to a service and open a session.

        ``service``: ``server_url``, else ``port`` (0: a free one) of one to start. ``asked``: the session's
        configuration. ``limit_s``: for each request; ``connect_s``: for a running service. Raises RunError
        for a service that does not answer, or rejects the configuration.
        """
        import requests

        self._http = requests.Session()
        self._http.trust_env = False  # a proxy of the environment is not for this machine
        self._process: subprocess.Popen[bytes] | None = None
        self._session, self._limit_s = "", limit_s
        self._url = str(service.get("server_url") or "").rstrip("/")
        try:
            if not self._url:
                self._start(int(service.get("port") or 0))
            self._await_health(START_S if self._process else connect_s)
            self._session = self._asked("create", json=dict(asked)).json()["session_id"]
        except BaseException:
            self.close()
            raise

    def experiences(self, table: Any) -> Any:
        """Return the rows of an Arrow table that pass the operators. Raises RunError."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        files = {"arrow_data": ("dataset.arrow", sink.getvalue().to_pybytes(), "application/octet-stream")}
        answer = self._asked("process_experience", data={"session_id": self._session}, files=files)
        with pa.ipc.open_stream(answer.content) as reader:
            return reader.read_all()

    def tasks(self) -> dict[str, Any]:
        """Process the tasks; return the counts of tasks before and after. Raises RunError."""
        made = self._asked("process_task", json={"session_id": self._session}).json()["metrics"]
        return dict(made)

    def close(self) -> None:
        """End the session and the service; a second call is a no-op."""
        with suppress(RunError):
            if self._session:
                self._asked("close", json={"session_id": self._session})
        self._session = ""
        self._http.close()
        if self._process:
            signal_group(self._process.pid)
            self._process.wait()
            self._process = None

    def _start(self, port: int) -> None:
        key = secrets.token_hex(32)
        self._http.headers["Authorization"] = f"Bearer {key}"
        try:
            place = socket.create_server((LOOPBACK, port))
        except OSError:  # it is in use: another one, as upstream
            place = socket.create_server((LOOPBACK, 0))
        with place:
            self._url = f"http://{LOOPBACK}:{place.getsockname()[1]}"
            self._process = subprocess.Popen(
                python_command.of_module(_SERVER, "--fd", str(place.fileno())),
                stdin=subprocess.PIPE,  # ends when this process does, and the service with it
                pass_fds=[place.fileno()],
                env={**os.environ, KEY_VARIABLE: key},
                start_new_session=True,
            )

    def _await_health(self, limit_s: float) -> None:
        import requests

        until = time.monotonic() + limit_s
        while True:
            if self._process and self._process.poll() is not None:
                code = self._process.returncode
                raise RunError(f"Data-Juicer's service ended with code {code} before it answered")
            try:
                self._http.get(f"{self._url}/health", timeout=5.0).raise_for_status()
                return
            except requests.RequestException as error:
                if time.monotonic() > until:
                    raise RunError(
                        f"Data-Juicer's service at {self._url} does not answer: {error}"
                    ) from error
                time.sleep(0.2)

    def _asked(self, work: str, **what: Any) -> Any:
        import requests

        try:
            answer = self._http.post(f"{self._url}/{work}", timeout=self._limit_s, **what)
        except requests.RequestException as error:
            raise RunError(f"Data-Juicer's service at {self._url} failed: {error}") from error
        if answer.status_code == 200:
            return answer
        try:
            lines = str(answer.json()["error"]).strip().splitlines()
        except (ValueError, KeyError, TypeError):
            lines = str(answer.text).strip().splitlines()
        if any(line.startswith("Traceback") for line in lines):  # trinity-rft's service sends one
            lines = lines[-1:]
        said = " ".join(line.strip() for line in lines)[:_MOST] or f"status {answer.status_code}"
        raise RunError(f"Data-Juicer's service: {said}")
