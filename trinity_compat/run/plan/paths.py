"""Paths of a run: the job, its database, the weights between its two sides."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trinity_compat.common import database_url
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree
from trinity_compat.job.run_spec import RunSpec, SyncSpec
from trinity_compat.run.job_dir import job_dir
from trinity_compat.run.job_dir.job_dir import JobDir
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.translate.verl_from_trinity import compat_of, from_launch

_SHARED_MEMORY = Path("/dev/shm")
_DATABASE = "buffer.trainer_input.experience_buffer.path"


_FIELDS = ("checkpoint_root_dir", "project", "group", "name")  # of Trinity's, which name a job's folder
# veRL's keys that name a job's folder, and Trinity's fields for them.
_NAMES = {
    "trainer.default_local_dir": "checkpoint_root_dir",
    "trainer.project_name": "project",
    "trainer.experiment_name": "name",
}


def named_by(verl: Tree) -> dict[str, object]:
    """The fields that name the job's folder, of an overlay in veRL's spelling, as of a script's words."""
    return {field: verl[key] for key, field in _NAMES.items() if key in verl}


def job_root(config: Tree, options: RunOptions, cwd: Path) -> Path:
    """``--job``, else Trinity's own place: checkpoint_root_dir/project/group/name. Links are followed.

    Of a launch a checkpoint_root_dir that ends in project/name is that place itself: only the environment
    tells whether ``${CKPTS_DIR:-…}`` does, and the script and its YAML have one job.

    Raises UserError where that would be called by the text of a command (``run_$(hostname)``).
    """
    if options.job:
        return job_dir.resolved(options.job, cwd)
    root, own = _root_and_names(config)
    # The files of translate, also those for a supervised trainer, whose launches name the folder.
    compat = compat_of(config)
    kept = (*(compat.get("verl") or {}), *(compat.get("stands_for") or {}))
    is_of_launch = from_launch(config) or "trainer.default_local_dir" in kept
    is_place = is_of_launch and root.parts[-len(own.parts) :] == own.parts
    return job_dir.resolved(root if is_place else root / own, cwd)


def job_that_set_renames(config: Tree, file: Tree, options: RunOptions, cwd: Path) -> list[str]:
    """Return a line about the job of the configuration without ``--set``, where that has another place.

    ``file``: the configuration without ``--set``.
    """
    place = job_root(config, options, cwd)
    unnamed = job_root({**{field: config.get(field) for field in _FIELDS}, **file}, options, cwd)
    if unnamed == place or JobDir(place).exists() or not JobDir(unnamed).exists():
        return []
    return [f"note: --set names another job than {unnamed}: `--job {unnamed}` goes on with that one"]


def _root_and_names(config: Tree) -> tuple[Path, Path]:
    """checkpoint_root_dir and project/group/name. Raises UserError for a command in one of them."""
    for path in _FIELDS:
        if "$(" in (text := str(config.get(path) or "")) or "`" in text:
            raise UserError(
                f"{path}: {text} holds a command, whose output is known only when the script runs",
                hint=f"write its value into the YAML, or give it: --set {path}=VALUE",
            )
    own = Path(str(config["project"]), str(config.get("group") or ""), str(config["name"]))
    return Path(str(config.get("checkpoint_root_dir") or "checkpoints")), own


def weights_folder(job: JobDir, sync: SyncSpec) -> Path:
    """Shared memory for the method of that name, where there is any; else the job directory."""
    if sync.method != "memory" or not _SHARED_MEMORY.is_dir():
        return job.root / "weights"
    # By the job's path, so that a side that is started on its own finds the same folder.
    tag = hashlib.sha256(str(job.root).encode()).hexdigest()[:12]
    return _SHARED_MEMORY / f"trinity-compat-{os.getuid()}-{tag}"


def database_of(config: Tree, job: JobDir, options: RunOptions, cwd: Path) -> str:
    """The URL of the buffer: ``--database``, else a server that the YAML names, else a file in the job.

    Raises UserError.
    """
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
    here = job_root(config, options, cwd) / "buffer" / "experiences.db"
    return (
        [] if job_dir.resolved(file, cwd) == here else [f"{_DATABASE}={path}: the run's database is {ours}"]
    )


def _named_database(config: Tree) -> str:
    return str(TrinityReader(config).get(_DATABASE) or "")
