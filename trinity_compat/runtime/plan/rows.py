"""A run on rows of files: which they are, who takes part, and what is said of it.

Only the trainer starts, and every GPU of the launch is its own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trinity_compat.containers import Tree
from trinity_compat.errors import UserError
from trinity_compat.runtime.plan.options import RunOptions
from trinity_compat.spec import RowsSpec
from trinity_compat.translate import supervised


def of_run(config: Tree, options: RunOptions, cwd: Path) -> RowsSpec | None:
    """The rows, with the places of local files written out; None for a run with an explorer. Raises
    UserError."""
    rows = supervised.rows_of(config)
    if rows is None:
        return None
    if options.mode not in (None, "train"):
        raise UserError(
            f"--mode {options.mode}: {rows.schema} trains on rows of a file, only the trainer takes part",
            hint="leave out --mode",
        )
    if options.explorers > 1:
        raise UserError(
            f"--explorers {options.explorers}: a run of {rows.schema} has no explorer",
            hint="leave out --explorers",
        )
    return replace(rows, paths=_placed(rows.paths, cwd), val_paths=_placed(rows.val_paths, cwd))


def _placed(paths: tuple[str, ...], cwd: Path) -> tuple[str, ...]:
    return tuple(_place(path, cwd) for path in paths)


def _place(path: str, cwd: Path) -> str:
    """Whole where it is a file or folder here; a name on a hub as it is."""
    here = cwd / Path(path).expanduser()
    return str(here) if here.exists() or path.startswith(("/", ".", "~")) or here.suffix in SUFFIXES else path


SUFFIXES = (".parquet", ".jsonl", ".json")


def line(rows: RowsSpec) -> str:
    """For the description of a plan."""
    order = f"shuffled by seed {rows.seed}" if rows.shuffle else "in order"
    return f"rows      {rows.schema} on {', '.join(rows.paths)}, {order}"
