"""Names, directories, logging, resuming, the environment."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common.nested import nested
from trinity_compat.common.redaction import is_secret
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.job import runtime_env
from trinity_compat.translate.env_references import marked_text
from trinity_compat.translate.launch_view import LaunchView, PathValue, Verdict
from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.sections import Derived, VerlSettings, derivation, way_back
from trinity_compat.translate.trinity_reader import TrinityReader
from trinity_compat.translate.verl_names import LOGGERS, misspelt

DIRECTORY, PROJECT, NAME = "trainer.default_local_dir", "trainer.project_name", "trainer.experiment_name"
LOGGER, RESUME, RESUME_PATH = "trainer.logger", "trainer.resume_mode", "trainer.resume_from_path"
ROOT, MONITOR, CONTINUE = "checkpoint_root_dir", "monitor.monitor_type", "continue_from_checkpoint"
MONITORS = {
    TRINITY: ("wandb", "tensorboard", "mlflow", "swanlab"),
    TRINITY_OLD: ("wandb", "tensorboard", "mlflow"),
}


@derivation
def directories(view: LaunchView) -> Derived:
    """checkpoint_root_dir: veRL's directory without the <project>/<name> that Trinity appends."""
    directory = str(view.text(DIRECTORY, "checkpoints"))
    project, name = view.text(PROJECT), view.text(NAME)
    own = f"/{project}/{name}"
    # Trinity appends <project>/<name> to what it is given, so that it must not stand there already.
    whole = not directory.endswith(own)
    root = _relative(directory if whole else directory[: -len(own)] or "/")
    yield PathValue(ROOT, root, (DIRECTORY,))
    yield from _experiences(f"{root}/{project}/{name}")
    if not whole:
        return
    reason = (
        "Trinity-RFT's checkpoints land in <checkpoint_root_dir>/<project>/<name>; trinity-compat also links "
        "them into the directory that the launch names"
    )
    yield Verdict(DIRECTORY, Status.APPROXIMATED, reason)


def _experiences(job: str) -> Iterator[PathValue]:
    """The buffer between explorer and trainer: SQL, in the job's directory."""
    buffer = "buffer.trainer_input.experience_buffer"
    yield PathValue(f"{buffer}.name", "experiences", note="groups, from explorer to trainer")
    yield PathValue(
        f"{buffer}.storage_type", "sql", note="outlives both processes, and serves any number of explorers"
    )
    yield PathValue(f"{buffer}.path", f"sqlite:///{job}/buffer/experiences.db", note="in the job's directory")


def _relative(path: str) -> str:
    # A mark (env_references.py) stands for a variable, which may hold an absolute path.
    if path.startswith(("/", "~", "TCmark", "./", "../")) or "://" in path or path == ".":
        return path
    return f"./{path}"


@derivation
def logger(view: LaunchView) -> Derived:
    """monitor.monitor_type: one of the launch's loggers; console is implied."""
    given = view.value(LOGGER, [])
    loggers = [str(name) for name in (given if isinstance(given, list) else [given])]
    for name in loggers:
        if name not in LOGGERS and (meant := misspelt(name, LOGGERS)):
            raise view.refused(
                LOGGER, f"{view.written(LOGGER)}: veRL has no logger {name!r}", f"write {meant}"
            )
    known = [name for name in loggers if name in MONITORS[view.options.trinity]]
    note = None if known else f"{LOGGER}={loggers}: Trinity always writes to a monitor besides the console"
    yield PathValue(MONITOR, known[0] if known else "tensorboard", (LOGGER,), note)
    lost = [name for name in loggers if name not in ("console", *known[:1])]
    if lost:
        reason = f"Trinity-RFT takes one; {', '.join(lost)} under trinity-compat only"
        yield Verdict(LOGGER, Status.UNSUPPORTED_UPSTREAM, reason)


@derivation
def resume(view: LaunchView) -> Derived:
    """continue_from_checkpoint."""
    mode = view.choice(RESUME, ("auto", "disable", "resume_path"))
    yield PathValue(CONTINUE, mode != "disable", (RESUME,))
    if mode != "resume_path":
        yield Verdict(RESUME_PATH, Status.NO_EFFECT, f"resume_mode is {mode}", "TC075")
        return
    reason = (
        "trinity-compat resumes from it; for Trinity-RFT copy or link the checkpoint to "
        "<checkpoint_root_dir>/<project>/<name>/global_step_N and write N into "
        "latest_checkpointed_iteration.txt there"
    )
    for key in (RESUME, RESUME_PATH):
        yield Verdict(key, Status.UNSUPPORTED_UPSTREAM, reason)


@derivation
def environment(view: LaunchView) -> Derived:
    """explorer.env_vars: what the script exports, secrets left out."""
    yield from _of_ray(view)
    secrets = []
    for name, word in view.launch.env.items():
        if is_secret(name):
            secrets.append(name)
        else:
            text = marked_text(word, view.symbols)
            yield PathValue(f"explorer.env_vars.{name}", text, note=f"exported ({word.where})")
    if secrets:
        yield Caution(
            "TW012",
            f"left out of explorer.env_vars because they look like secrets: {', '.join(sorted(secrets))}",
            view.launch.where,
            "set them in the environment of the Ray cluster",
        )


def _of_ray(view: LaunchView) -> Iterator[Verdict]:
    """Yield verdicts on what Ray's runtime environment has and the processes of a run would not get."""
    texts, symbols = view.below(runtime_env.KEY), view.symbols
    keys = {name: symbols.plain(text) for name, text in texts.items() if symbols.is_known(text)}
    for key, _, why, _ in runtime_env.faults(nested(keys), Path(view.launch.cwd).absolute()):
        reason = f"Trinity-RFT has no field for it, and trinity-compat refuses it: {why}"
        for name in (f"{runtime_env.KEY}.{each}" for each in keys):
            if f"{name}.".startswith(f"{key}."):
                yield Verdict(name, Status.UNSUPPORTED, reason)


@way_back
def names_and_places(reading: TrinityReader) -> VerlSettings:
    """Directories, the logger, resuming."""
    root, project, name = (reading.get(field) for field in (ROOT, "project", "name"))
    if root is not None and project is not None and name is not None:
        # Trinity's folder of a job is veRL's default_local_dir of the same launch.
        yield DIRECTORY, posixpath.join(posixpath.normpath(str(root)), str(project), str(name))
    monitor = reading.get(MONITOR)
    if monitor is not None:
        yield LOGGER, ["console", monitor]
    resumes = reading.get(CONTINUE)
    if resumes is not None:
        yield RESUME, "auto" if resumes else "disable"
