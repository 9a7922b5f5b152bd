"""Checkpoints on disk: the marker names a whole one at any moment, whenever the process dies."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TextIO, TypedDict

from omegaconf import DictConfig, open_dict

from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.containers import Tree

STATE = "trinity.json"
MARKER = "latest_checkpointed_iteration.txt"
_LAST = "data.pt"  # of a checkpoint's files, the last that veRL writes
_STEP = re.compile(r"global_step_(\d+)")


Mode = Literal["r", "w"]


class CheckpointState(TypedDict, total=False):
    """What lies beside a checkpoint of ours: its step, the adaptive KL coefficient, the task stream's
    position (``buffer.position``)."""

    step: int
    kl_coef: float | None
    position: Tree


def mend_marker(directory: Path) -> None:
    """Rewrite a marker that was being written when the process died.

    veRL truncates the file and then writes the step, after ``data.pt``, the checkpoint's last file. So an
    empty marker means that the folder with the youngest ``data.pt`` is whole: a higher number may be left
    over from steps that a resume took back.
    """
    marker = directory / MARKER
    if marker.exists() and not marker.read_text().strip().isdigit():
        _name_youngest(marker)


def release_marker(directory: Path, step: int) -> None:
    """Before ``step`` is written: where the marker names it already, by a branch that a resume left, that
    checkpoint is about to be no whole one. The youngest other one takes its place."""
    marker = directory / MARKER
    if marker.exists() and marker.read_text().strip() == str(step):
        (directory / f"global_step_{step}" / _LAST).unlink(missing_ok=True)
        _name_youngest(marker)


def marked_step(directory: Path) -> int:
    """The step of the checkpoint that a resume would start from, 0 for none."""
    marker = directory / MARKER
    text = marker.read_text().strip() if marker.exists() else ""
    return int(text) if text.isdigit() else 0


def _name_youngest(marker: Path) -> None:
    ages = {
        step: (folder / _LAST).stat().st_mtime_ns
        for step, folder in _folders(marker.parent).items()
        if (folder / _LAST).exists() and (folder / "actor").is_dir()
    }
    if not ages:
        marker.unlink()
        return
    write_text(marker, str(max(ages, key=lambda step: (ages[step], step))))


class HeldMarker:
    """The marker of a checkpoint that is written but not counted yet: first its step's metrics are logged.

    A process that dies between the two then makes the step again, instead of leaving it without metrics.
    """

    def __init__(self, directory: Path) -> None:
        self._marker = directory / MARKER
        self._held = self._marker.with_suffix(".held")

    def open(self, path: str | Path, mode: Mode = "r") -> TextIO:
        """The builtin, for veRL to write with: what it writes into the marker is held."""
        held = Path(path).name == MARKER and "w" in mode
        return (self._held if held else Path(path)).open(mode)

    def let_go(self) -> None:
        """Now it counts, at once and whole. veRL writes none where checkpoints are saved asynchronously."""
        if self._held.exists():
            self._held.replace(self._marker)


def _folders(directory: Path) -> dict[int, Path]:
    found = ((_STEP.fullmatch(path.name), path) for path in directory.glob("global_step_*"))
    return {int(match[1]): path for match, path in found if match}


def write_state(folder: Path, state: CheckpointState) -> None:
    """Keep ``state`` beside the checkpoint that will be written in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / STATE, json.dumps(state) + "\n")


def read_state(folder: Path) -> CheckpointState:
    """What ``write_state`` kept; empty beside a checkpoint of stock veRL."""
    path = folder / STATE
    kept: CheckpointState = json.loads(path.read_text()) if path.exists() else {}
    return kept


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """``max_actor_ckpt_to_keep`` and ``max_critic_ckpt_to_keep``, applied once the marker stands.

    veRL's own manager deletes the previous actor as soon as the new one is written, before the critic,
    ``data.pt`` and the marker: a process that dies between leaves a marker without its checkpoint.
    ``keep``: newest checkpoints to keep by role, None for all; ``spared`` is never deleted.
    """

    keep: Mapping[str, int | None]
    spared: Path | None = None

    @classmethod
    def take_over(cls, trainer: DictConfig) -> Self:
        """Read veRL's ``trainer`` section and tell veRL to delete nothing itself."""
        one = trainer.get("remove_previous_ckpt_in_save", False)
        keep = {role: 1 if one else trainer.get(f"max_{role}_ckpt_to_keep") for role in ("actor", "critic")}
        with open_dict(trainer):
            trainer.remove_previous_ckpt_in_save = False
            trainer.max_actor_ckpt_to_keep = trainer.max_critic_ckpt_to_keep = None
        # Whatever the mode: a trainer that was started again goes on from its own checkpoint, and the next
        # command from this one.
        named = trainer.get("resume_from_path")
        return cls(keep, Path(named).resolve() if named else None)

    def prune(self, directory: Path, step: int) -> None:
        """Delete what lies before the newest ones up to ``step``, also those that an earlier start wrote.

        Folders keep their small files, as veRL leaves them.
        """
        older = [folder for number, folder in sorted(_folders(directory).items()) if number <= step]
        for role, keep in self.keep.items():
            holds = [folder for folder in older if (folder / role).is_dir()]
            for folder in holds[:-keep] if keep and keep > 0 else []:
                if folder.resolve() != self.spared:
                    shutil.rmtree(folder / role, ignore_errors=True)
