"""Finds out what a path holds and reads it: one run, or several (seeds) below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

from trinity_compat.common.errors import UserError, Where
from trinity_compat.compare.model import RunMetrics, Side
from trinity_compat.compare.sources import console, job, mlflow, tables, tensorboard, wandb


def read_runs(path: Path) -> list[RunMetrics]:
    """Every run at ``path``. Raises UserError when there is none."""
    if not path.exists():
        raise UserError("no such file or directory", where=Where(str(path)))
    if not path.is_file() and not path.is_dir():
        raise UserError("neither a file nor a directory", where=Where(str(path)))
    try:
        runs = _read_file(path) if path.is_file() else _read_directory(path)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=Where(str(path))) from error
    if not any(run.series for run in runs):
        odd = "; ".join(note for run in runs for note in run.notes)
        raise UserError(
            "nothing to compare here: no event files, W&B run, mlflow store, job or log with metrics"
            + (f" ({odd})" if odd else ""),
            where=Where(str(path)),
        )
    return runs


def read_side(paths: Sequence[Path], label: str) -> Side:
    """The runs of all paths as the seeds of one side. Raises UserError where a path holds none."""
    if not paths:
        raise UserError(f"side {label!r} names no path", hint="LABEL=PATH[,PATH…]")
    return Side(label, [run for path in paths for run in read_runs(path)])


def same_runs(sides: Sequence[Side]) -> Iterator[str]:
    """A warning for each two sides that are the same runs: they are equal whatever was trained."""
    for one, other in combinations(sides, 2):
        if _places(one) == _places(other):
            both = f"{one.label} and {other.label}"
            yield f"warning: {both} are the same run, {one.runs[0].source}: it equals itself"


def _places(side: Side) -> list[tuple[str, str]]:
    return sorted((str(Path(run.source).resolve()), run.name) for run in side.runs)


def _read_file(path: Path) -> list[RunMetrics]:
    suffix = path.suffix.lower()
    if suffix == ".wandb":
        return [wandb.read(path)]
    if suffix == ".csv":
        return [tables.read_csv(path)]
    if suffix in (".json", ".jsonl"):
        return [tables.read_json(path)]
    if suffix in (".db", ".sqlite"):
        return mlflow.read_database(path)
    if path.name.startswith("events.out.tfevents"):
        return [tensorboard.read(path.parent)]
    return [console.read(path)]


def _read_directory(directory: Path) -> list[RunMetrics]:
    """A directory that is a run itself, else all runs below it (event files decide before logs)."""
    if job.is_job(directory):
        return [job.read(directory)]
    if any(directory.glob("events.out.tfevents*")):
        return [tensorboard.read(directory)]
    if any(directory.glob("*.wandb")):
        return [wandb.read(directory)]
    if mlflow.is_run(directory):
        return [mlflow.read_run(directory)]
    if (directory / "mlflow.db").is_file():
        return mlflow.read_database(directory / "mlflow.db")
    # wandb's latest-run is a link to a run that is listed under its own name
    children = [c for c in sorted(directory.iterdir()) if c.is_dir() and not c.is_symlink()]
    found = [run for child in children for run in _read_directory(child)]
    if found:
        return found
    logs = [p for p in sorted(directory.iterdir()) if p.suffix in (".jsonl", ".csv") and p.is_file()]
    return [run for log in logs for run in _read_file(log)]
