"""``stages.json`` of a run in stages: the state of each, and the model that it left for the next.

The stages' own jobs are folders beside it, by their names. The file is replaced atomically. A stage that
ended just before the file was written continues from its own job, which is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from trinity_compat.common import regular_files
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
    """Return the stages in the YAML's order, [] without the file. Raises UserError for a bad file."""
    path = root / FILE
    try:
        return [StageState(**each) for each in json.loads(regular_files.followed_text(path))["stages"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path} is not a list of stages ({error})") from error


def write(root: Path, states: Sequence[StageState]) -> None:
    """Write the file atomically."""
    root.mkdir(parents=True, exist_ok=True)
    write_text(root / FILE, json.dumps({"stages": [asdict(each) for each in states]}, indent=1) + "\n")


def at_work(root: Path, states: Sequence[StageState]) -> JobDir | None:
    """Return the job of the running stage, or of the last one; None before it has written anything."""
    begun = [JobDir(root / each.name) for each in states if each.state != "waiting"]
    return begun[-1] if begun and begun[-1].spec_path.exists() else None


def lines(root: Path, states: Sequence[StageState]) -> Iterator[str]:
    """Yield the lines of ``status``, one per stage."""
    width = max(len(each.name) for each in states)
    yield f"stages     {root}"
    for number, each in enumerate(states, 1):
        step = JobDir(root / each.name).latest_checkpoint
        reached = f", checkpoint of step {step}" if step else ""
        yield f"  {number} {each.name:{width}}  {each.state}{reached}"
