"""A run on rows of files: which they are, who takes part, and what is said of it.

Only the trainer starts, and every GPU of the launch is its own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree
from trinity_compat.common.paths import from_home
from trinity_compat.job.run_spec import ExpertSpec, RowsSpec
from trinity_compat.job.settings import SETTINGS
from trinity_compat.run.plan import micro_batches
from trinity_compat.run.plan.source import RunOptions
from trinity_compat.run.plan.verl_view import ACTOR, Step, VerlView
from trinity_compat.translate import supervised, verl_from_trinity
from trinity_compat.translate.supervised import experts_of


def training_rows(config: Tree, options: RunOptions, cwd: Path) -> RowsSpec | None:
    """The rows, with the places of local files written out; None for a run with an explorer.

    Raises UserError.
    """
    rows = supervised.rows_of(config)
    if rows is None:
        return None
    if options.mode not in (None, "train"):
        raise UserError(
            f"--mode {options.mode}: {rows.schema} trains on rows of a file, so only the trainer takes part",
            hint="leave out --mode",
        )
    if options.explorers > 1:
        raise UserError(
            f"--explorers {options.explorers}: a run of {rows.schema} has no explorer",
            hint="leave out --explorers",
        )
    given = verl_from_trinity.compat_of(config)
    for setting in SETTINGS.values():
        value = given.get(setting.name)
        if value not in (None, setting.default) and not setting.acts_on_rows:
            raise UserError(
                f"{setting.key}={value} has no effect in a run of {rows.schema}", hint="leave it out"
            )
    return _with_local_paths(rows, cwd)


def expert_rows(config: Tree, cwd: Path) -> ExpertSpec | None:
    """An expert's rows that are trained beside fresh answers, with their places written out.

    Raises UserError.
    """
    experts = experts_of(config)
    return replace(experts, rows=_with_local_paths(experts.rows, cwd)) if experts else None


def _with_local_paths(rows: RowsSpec, cwd: Path) -> RowsSpec:
    """Write paths out that are files or folders here; a name on a hub stays as it is."""

    def placed(path: str) -> str:
        here = cwd / from_home(path)
        is_local = here.exists() or path.startswith(("/", ".", "~")) or here.suffix in SUFFIXES
        return str(here) if is_local else path

    return replace(rows, paths=tuple(map(placed, rows.paths)), val_paths=tuple(map(placed, rows.val_paths)))


SUFFIXES = (".parquet", ".jsonl", ".json")


def cut_evenly(verl: VerlView, rows: RowsSpec | None, experts: ExpertSpec | None) -> Step:
    """Micro-batches that an update of rows divides into, as veRL's workers require, with notes.

    The loss is normalised over the whole update, so that a smaller micro-batch changes only the memory.
    Raises UserError for an update that its ranks cannot
    share.
    """
    if rows is None and experts is None:
        return micro_batches.of_answers(verl)
    if experts and verl.batches.train != verl.batches.mini:
        raise UserError(
            f"{ACTOR}.ppo_mini_batch_size={verl.batches.mini}: sample_strategy mix makes one update per"
            f" step, of all its {verl.batches.train} tasks",
            hint="leave it out",
        )
    group = verl.batches.group
    number = (verl.batches.train or 0) * group + (experts.each_step if experts else 0)
    unit = group if rows else 1
    share = number // (over := verl.ranks(ACTOR))
    if number % over or share % unit:
        what = f"{number // unit} pairs" if unit > 1 else f"{number} rows"
        raise UserError(
            f"buffer.train_batch_size: {over} GPUs cannot share the {what} of an update evenly",
            hint=f"write a multiple of {over}",
        )
    return micro_batches.cut(verl, share, _CUTS, unit=unit)


_CUTS = (*micro_batches.UPDATES, *micro_batches.LOG_PROBS)


def line(rows: RowsSpec) -> str:
    """Return the line about the rows in a plan's description."""
    return f"rows      {rows.schema} on {', '.join(rows.paths)}, {_order(rows)}"


def expert_line(experts: ExpertSpec | None) -> list[str]:
    """Return the line about an expert's rows in a plan's description, if there are any."""
    if experts is None:
        return []
    rows = experts.rows
    return [f"experts   {experts.each_step} rows of {', '.join(rows.paths)} in each update, {_order(rows)}"]


def _order(rows: RowsSpec) -> str:
    if rows.selector:
        return f"drawn by {rows.selector['type']}"
    return f"shuffled by seed {rows.seed}" if rows.shuffle else "in order"
