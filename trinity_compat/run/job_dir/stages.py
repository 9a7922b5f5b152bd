"""``stages.json`` of a run in stages: which of them are done, and the model that each left for the next.

The stages' own jobs are folders beside it, by their names. The file changes whole; what it does not say yet
(a stage that ended just before its word was written) the stage's own job tells when it is started again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import UserError
from trinity_compat.run.job_dir.job_dir import JobDir

FILE = "stages.json"


@dataclass(frozen=True, slots=True)
class StageState:
    """State of a stage.

    ``model`` is the folder in Hugging Face's form that a finished stage leaves for the next; None for the
    last.
    """

    name: str
    state: Literal["waiting", "running", "done"] = "waiting"
    model: str | None = None


def read(root: Path) -> list[StageState]:
    """In the order of the YAML; empty where no run in stages lies.

    Raises UserError for another file of that name.
    """
    path = root / FILE
    if not path.exists():
        return []
    try:
        return [StageState(**each) for each in json.loads(path.read_text(encoding="utf-8"))["stages"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is not a list of stages ({error})") from error


def write(root: Path, states: Sequence[StageState]) -> None:
    """Whole or not at all."""
    root.mkdir(parents=True, exist_ok=True)
    write_text(root / FILE, json.dumps({"stages": [asdict(each) for each in states]}, indent=1) + "\n")


def at_work(root: Path, states: Sequence[StageState]) -> JobDir | None:
    """The job of the stage at work, or of the last one; None before it has written anything."""
    begun = [JobDir(root / each.name) for each in states if each.state != "waiting"]
    return begun[-1] if begun and begun[-1].spec_path.exists() else None


def lines(root: Path, states: Sequence[StageState]) -> Iterator[str]:
    """For ``status``: one line a stage."""
    width = max(len(each.name) for each in states)
    yield f"stages     {root}"
    for number, each in enumerate(states, 1):
        step = JobDir(root / each.name).latest_checkpoint
        reached = f", checkpoint of step {step}" if step else ""
        yield f"  {number} {each.name:{width}}  {each.state}{reached}"
