"""A job's checkpoints as veRL writes them: ``global_step_N/actor``, and a marker with the last step."""

from __future__ import annotations

import re
from pathlib import Path

MARKER = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")


def last_step(job: Path) -> int | None:
    """Return the step of the marker, from which a resume continues; None without a marker."""
    try:
        return int((job / MARKER).read_text().strip())
    except (OSError, ValueError):
        return None


def actor_of(job: Path, step: int) -> Path:
    """Return the folder of a step's actor."""
    return job / f"global_step_{step}" / "actor"


def whole_steps(job: Path) -> tuple[int, ...]:
    """Return the steps whose checkpoint is complete.

    veRL writes the marker last, so a folder of a later step is half a checkpoint.
    """
    last = last_step(job)
    found = [int(m[1]) for path in job.glob("global_step_*") if (m := _STEP.fullmatch(path.name))]
    whole = [step for step in found if any(actor_of(job, step).glob("*"))]
    return tuple(sorted(step for step in whole if last is None or step <= last))
