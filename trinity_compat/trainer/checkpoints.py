"""Checkpoints on disk. The marker names a complete one at any moment, whenever the process dies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TextIO

from omegaconf import DictConfig, open_dict

from trinity_compat.common.atomic_write import write_text
from trinity_compat.job.checkpoints import (
    HELD,
    LAST,
    MARKER,
    STATE,
    CheckpointState,
    folders,
    last_step,
    newest_finished,
)

Mode = Literal["r", "w"]


def repair_marker(directory: Path) -> None:
    """Rewrite a marker whose write was interrupted by the process's death.

    veRL truncates the file and then writes the step, after ``data.pt``, the checkpoint's last file. So an
    empty marker means that the folder with the newest ``data.pt`` is complete; a folder of a higher step may
    be one that a resume has voided.
    """
    marker = directory / MARKER
    if marker.exists() and last_step(directory) is None:
        _write_newest(marker)


def release_marker(directory: Path, step: int) -> None:
    """Point the marker to the newest other checkpoint before ``step`` is written over.

    The marker names ``step`` already where a resume has left a branch with a checkpoint of that step.
    """
    marker = directory / MARKER
    if last_step(directory) == step:
        (directory / f"global_step_{step}" / LAST).unlink(missing_ok=True)
        _write_newest(marker)


def _write_newest(marker: Path) -> None:
    step = newest_finished(marker.parent)
    if step is None:
        marker.unlink()
        return
    write_text(marker, str(step))


class HeldMarker:
    """Marker of a checkpoint that is written but does not count until its step's metrics are logged.

    After a death between the two the step is repeated, instead of being left without metrics.
    """

    def __init__(self, directory: Path) -> None:
        self._marker = directory / MARKER
        self._held = directory / HELD

    def open(self, path: str | Path, mode: Mode = "r") -> TextIO:
        """Open a file as the builtin does, but write the marker to a held file. veRL calls it."""
        held = Path(path).name == MARKER and "w" in mode
        return (self._held if held else Path(path)).open(mode)

    def publish(self) -> None:
        """Put the held marker in place atomically. No-op where veRL wrote none (asynchronous checkpoints)."""
        if self._held.exists():
            self._held.replace(self._marker)


def write_state(folder: Path, state: CheckpointState) -> None:
    """Write ``state`` beside the checkpoint that will be written in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / STATE, json.dumps(state) + "\n")


@dataclass(frozen=True, slots=True)
class CheckpointRetention:
    """``max_actor_ckpt_to_keep`` and ``max_critic_ckpt_to_keep``, applied after the marker is written.

    veRL's own manager deletes the previous actor as soon as the new one is written, before the critic,
    ``data.pt`` and the marker: after a death in between the marker would name a deleted checkpoint.
    ``keep``: number of newest checkpoints to keep by role, None for all; ``spared`` is never deleted.
    """

    keep: Mapping[str, int | None]
    spared: Path | None = None

    @classmethod
    def take_over(cls, trainer: DictConfig) -> Self:
        """Read veRL's ``trainer`` section, and set it so that veRL deletes nothing itself."""
        one = trainer.get("remove_previous_ckpt_in_save", False)
        keep = {role: 1 if one else trainer.get(f"max_{role}_ckpt_to_keep") for role in ("actor", "critic")}
        with open_dict(trainer):
            trainer.remove_previous_ckpt_in_save = False
            trainer.max_actor_ckpt_to_keep = trainer.max_critic_ckpt_to_keep = None
        # Whatever the mode: a restarted trainer resumes from its own checkpoint, but the next command from
        # this one.
        named = trainer.get("resume_from_path")
        return cls(keep, Path(named).resolve() if named else None)

    def prune(self, directory: Path, step: int) -> None:
        """Delete models of checkpoints up to ``step`` but the newest, also those of earlier starts.

        Small files stay in the folders, as with veRL.
        """
        older = [folder for number, folder in sorted(folders(directory).items()) if number <= step]
        for role, keep in self.keep.items():
            holds = [folder for folder in older if (folder / role).is_dir()]
            for folder in holds[:-keep] if keep and keep > 0 else []:
                if folder.resolve() != self.spared:
                    shutil.rmtree(folder / role, ignore_errors=True)
