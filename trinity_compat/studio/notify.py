"""Telling of alerts outside the browser: a command, or a POST to an address."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import threading
import time
import urllib.request

import click

from trinity_compat.common.errors import UserError
from trinity_compat.common.redaction import shown
from trinity_compat.studio.jobs import Jobs
from trinity_compat.studio.summaries import Summaries

_LOOK_EVERY_S = 10.0
_AGAIN_S = 3600.0  # an alert of the same kind on the same run is told once in this time
_LIMIT_S = 30.0  # for the command, or the answer


class Notifier:
    """Tells each new alert of the running jobs to ``target``: a URL, or a command that gets the text."""

    def __init__(self, jobs: Jobs, summaries: Summaries, target: str) -> None:
        """Raises UserError for a command that is not there."""
        self._jobs, self._summaries, self._target = jobs, summaries, target
        self._told: dict[tuple[str, str], float] = {}
        self._command = [] if target.startswith(("http://", "https://")) else _command(target)

    def start(self) -> None:
        """Look every few seconds, in a thread that ends with the process."""

        def watch() -> None:
            while True:
                self.look()
                time.sleep(_LOOK_EVERY_S)

        threading.Thread(target=watch, daemon=True, name="studio-notify").start()

    def look(self) -> None:
        """Tell what is new."""
        for job in self._jobs.all().values():
            found = self._summaries.of(job)
            for alert in found.alerts if found.state == "running" else ():
                now, key = time.monotonic(), (job.name, alert.kind)
                if now - self._told.get(key, float("-inf")) > _AGAIN_S:
                    self._told[key] = now
                    self._tell(job.name, alert.kind, shown(alert.text))

    def _tell(self, job: str, kind: str, text: str) -> None:
        line = f"{job}: {text}"
        try:
            if self._command:
                subprocess.run(
                    [*self._command, "--", line],  # a job's name may begin with -
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    timeout=_LIMIT_S,
                    check=True,
                )
                return
            body = json.dumps({"text": line, "job": job, "kind": kind}).encode()
            request = urllib.request.Request(self._target, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=_LIMIT_S):
                pass
        except (OSError, subprocess.SubprocessError) as error:
            click.echo(f"notify     {line} was not told: {shown(str(error))}", err=True)


def _command(target: str) -> list[str]:
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise UserError(f"--notify {target!r} is not a command: {error}") from error
    if not words or shutil.which(words[0]) is None:
        raise UserError(
            f"--notify {target!r}: the command was not found",
            hint="give a program that takes the text as its last argument, behind --, or an http(s) address",
        )
    return words
