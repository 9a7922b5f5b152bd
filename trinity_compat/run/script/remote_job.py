"""``ray job submit`` to another machine's cluster: Ray submits it, and there it starts `trinity-compat run`.

The cluster needs no trinity-compat: the package is uploaded as Ray uploads a ``working_dir``, and the job's
``py_modules`` name it. Not as a wheel, which Ray's nodes install with an index, and not as a folder, of which
Ray leaves out what the job's ``excludes`` name.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trinity_compat
from trinity_compat.common import optional_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.parent_watch import die_with_parent
from trinity_compat.common.resources import data_path
from trinity_compat.launch import entrypoints, ray_submit
from trinity_compat.run.job_dir.launch_end import LaunchEnd
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.script import shared_folder, shim
from trinity_compat.run.script.invocation import RaySubmission, find_main
from trinity_compat.run.script.launch_source import source_of
from trinity_compat.run.script.shared_folder import ScriptCall

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_ENTRY = "trinity_compat.run.script.cluster_job"
_DATA = ("translators", "overrides")  # beside the package in a checkout
_ONE_DATE = (1980, 1, 1, 0, 0, 0)  # the same files are the same archive, which is uploaded once
_CONFIG = ("--config", "-cp", "-cn", "-cd")  # Hydra's options for other configuration files
_STOPPED = 128 + signal.SIGTERM


def submit(ray: Sequence[str], job: RaySubmission) -> int:
    """Submit the job with ``ray``, the words of Ray's own program; returns the job's exit code.

    With ``--no-wait`` it is that of the submission, as Ray's.
    """
    folder = Path(os.environ[shim.SESSION])
    call = shared_folder.read_call(folder)
    # Ray packs the working directory's files and reads its own variables: not those of the shim.
    env = shim.without(os.environ)
    end = LaunchEnd(1, None)
    with shared_folder.announced(folder):
        try:
            _check_launch(job, call)
            client = _client(job)
            name = job.options.get("--submission-id") or job.options.get("--job-id")
            name = name or f"raysubmit_{secrets.token_hex(8)}"
            # The words for `ray`. The runtime environment may hold secrets: it goes by a file.
            file = folder / f"runtime-env-{os.getpid()}.yaml"
            file.write_text(json.dumps(_with_package(job.runtime, client), default=str))
            kept = {key: value for key, value in job.options.items() if key not in ray_submit.RUNTIME}
            given = ray_submit.words_of({**kept, "--submission-id": name, "--runtime-env": str(file)})
            first = job.entrypoint[0]
            python = first if entrypoints.PYTHON.fullmatch(Path(first).name) else "python3"
            entry = [python, "-m", _ENTRY, *_run_words(call.options), "--", *job.entry_words]
            words = ["job", "submit", *given, "--", *entry]
            end = LaunchEnd(_wait([*ray, *words], env, client, job, name), None)
        except UserError:
            end = LaunchEnd(2, None)
            raise
        finally:
            shared_folder.write_end(folder, end)
    return end.code


def _check_launch(job: RaySubmission, call: ScriptCall) -> None:
    """Raise UserError for what the run would refuse wherever it starts, with the script's line.

    Raises it for a password, too, that would be seen there.
    """
    if call.options.database and urlsplit(call.options.database).password:
        raise UserError(
            "--database: its password would be in the job's entry point, which the cluster's dashboard shows",
            hint="leave it out of the URL, and set PGPASSWORD in env_vars of the job's runtime environment",
        )
    found = find_main(job.entrypoint)
    # A file or a variable that the launch names may exist only there.
    if found and not any(word.startswith(_CONFIG) or "${" in word for word in found.arguments):
        source_of(replace(found, env=job.env), call)


def _client(job: RaySubmission) -> JobSubmissionClient:
    """Connect to the dashboard, by Ray's own rules for the address, its headers and certificates."""
    optional_packages.need("ray")
    from ray.job_submission import JobSubmissionClient

    verify = job.options.get("--verify", "true")
    headers = job.options.get("--headers", os.environ.get("RAY_JOB_HEADERS"))
    try:
        return JobSubmissionClient(
            job.address,
            headers=json.loads(headers) if headers else None,
            verify={"true": True, "1": True, "false": False, "0": False}.get(verify.lower(), verify),
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"ray job submit --address {job.address}: {error}",
            hint="the address is that of the cluster's dashboard: http://HEAD:8265",
        ) from None


def _run_words(options: RunOptions) -> Iterator[str]:
    """Yield the options of `trinity-compat run` for the command that runs there."""
    for name, texts in (("profile", options.profiles), ("set", options.sets)):
        yield from (f"--{name}={text}" for text in texts)
    yield from (f"--main={module}={main}" for module, main in options.mains.items())
    for name in ("mode", "checkpoints", "job", "database", "explorer", "device", "rules", "verl_version"):
        if (value := getattr(options, name)) is not None:
            yield f"--{name.replace('_', '-')}={value}"
    yield f"--explorers={options.explorers}"
    yield f"--restarts={options.restarts}"
    if options.allow_fork_keys:
        yield "--allow-fork-keys"


def _with_package(runtime: Mapping[str, object], client: JobSubmissionClient) -> dict[str, object]:
    """Upload this package, if the cluster lacks it, and return ``runtime`` with it."""
    archive = _archive()
    name = f"_ray_pkg_{hashlib.sha256(archive).hexdigest()[:32]}.zip"
    try:
        if not client._package_exists(f"gcs://{name}"):
            answer = client._do_request("PUT", f"/api/packages/gcs/{name}", data=archive)
            if answer.status_code != 200:
                raise RuntimeError(answer.text)
    except (RuntimeError, OSError) as error:  # of a connection, too
        raise UserError(f"the cluster does not take trinity-compat's files: {error}") from None
    given = runtime.get("py_modules")
    return {**runtime, "py_modules": [*(given if isinstance(given, list) else ()), f"gcs://{name}"]}


def _archive() -> bytes:
    """Return a zip of the package, its data and its metadata, in which verl and vLLM find our plugins."""
    package = Path(trinity_compat.__file__).parent
    roots = {package.name: package}
    if not (package / "_data").exists():
        roots |= {f"{package.name}/_data/{name}": data_path(name) for name in _DATA}
    about = importlib.metadata.distribution("trinity-compat")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes | str) -> None:
            entry = zipfile.ZipInfo(name, _ONE_DATE)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)

        for name, root in roots.items():
            for path in sorted(root.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    add(f"{name}/{path.relative_to(root).as_posix()}", path.read_bytes())
        for name in ("METADATA", "entry_points.txt"):
            add(f"trinity_compat-{about.version}.dist-info/{name}", about.read_text(name) or "")
    return made.getvalue()


def _wait(
    command: Sequence[str], env: Mapping[str, str], client: JobSubmissionClient, job: RaySubmission, name: str
) -> int:
    """Run Ray's own command; returns the job's exit code where it waited for the job."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        code = subprocess.run(command, env=env, preexec_fn=die_with_parent).returncode
    except KeyboardInterrupt:
        print(
            f"note: the job {name} runs on; `ray job stop --address {job.address} {name}` ends it",
            file=sys.stderr,
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if "--no-wait" in job.options:
        return code
    # Ray's own exit code is 1 for any failure, and 0 for a job that was stopped.
    try:
        found = client.get_job_info(name)
    except (RuntimeError, OSError):  # Ray refused to submit it, or its head is gone
        return code
    if found.status == "STOPPED":
        return _STOPPED
    ended = found.driver_exit_code
    if ended is None or not found.status.is_terminal():
        return code
    return 128 - ended if ended < 0 else ended
