"""Where a run keeps its things: the job, its database, the weights between its two sides."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trinity_compat import database_url
from trinity_compat.containers import Tree
from trinity_compat.errors import UserError
from trinity_compat.runtime.job import jobdir
from trinity_compat.runtime.job.jobdir import JobDir
from trinity_compat.runtime.plan.options import RunOptions
from trinity_compat.spec import RunSpec, SyncSpec
from trinity_compat.translate.trinity_reader import TrinityReader

_SHARED_MEMORY = Path("/dev/shm")
_DATABASE = "buffer.trainer_input.experience_buffer.path"


def job_root(config: Tree, options: RunOptions, cwd: Path) -> Path:
    """``--job``, else Trinity's own place: checkpoint_root_dir/project/group/name. Links are followed.

    Raises UserError where that would be called by the text of a command (``run_$(hostname)``)."""
    if options.job:
        return jobdir.resolved(options.job, cwd)
    root = str(config.get("checkpoint_root_dir") or "checkpoints")
    group = str(config.get("group") or "")
    for path in ("checkpoint_root_dir", "project", "group", "name"):
        if "$(" in (text := str(config.get(path) or "")) or "`" in text:
            raise UserError(
                f"{path}: {text} holds a command, whose output only the script knows",
                hint=f"write its value into the YAML, or give it: --set {path}=VALUE",
            )
    return jobdir.resolved(Path(root, str(config["project"]), group, str(config["name"])), cwd)


def weights_folder(job: JobDir, sync: SyncSpec) -> Path:
    """Shared memory for the method of that name, where there is any; else the job directory."""
    if sync.method != "memory" or not _SHARED_MEMORY.is_dir():
        return job.root / "weights"
    # By the job's path, so that a side that is started on its own finds the same folder.
    tag = hashlib.sha256(str(job.root).encode()).hexdigest()[:12]
    return _SHARED_MEMORY / f"trinity-compat-{os.getuid()}-{tag}"


def database_of(config: Tree, job: JobDir, options: RunOptions, cwd: Path) -> str:
    """``--database``, else the YAML's database when it names a server; a file of its own stays in the job
    directory. Raises UserError."""
    if options.database:
        return database_url.asked_for(options.database, cwd)
    path = _named_database(config)
    return path if path.startswith("postgresql") else job.default_database_url


def database_note(config: Tree, spec: RunSpec, options: RunOptions, cwd: Path) -> list[str]:
    """A file that the YAML names itself: a rerun or a reset of the job must find its database with it."""
    path, ours = _named_database(config), spec.database_url
    if spec.rows is None and path and "://" not in path:
        return [
            f"{_DATABASE}={path}: no copy is written there; the run's database keeps the experiences, and"
            " `trinity-compat buffer export JOB` writes them as JSON lines"
        ]
    file = path.removeprefix("sqlite:///")
    if options.job or options.database or file == path:
        return []
    here = jobdir.resolved(file, cwd) == database_url.file_of(ours)
    return [] if here else [f"{_DATABASE}={path}: the run's database is {ours}"]


def _named_database(config: Tree) -> str:
    return str(TrinityReader(config).get(_DATABASE) or "")
