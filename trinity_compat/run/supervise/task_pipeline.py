"""A YAML's task pipeline, before a run's sides start: files of tasks through Data-Juicer into the taskset.

The taskset's folder appears whole, with its request in ``.task_pipeline.json``: a rerun with the same request
processes nothing. Dropped tasks are in ``FOLDER.dropped.jsonl`` beside it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from trinity_compat.common.atomic_write import write_text
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, read_section, section_at
from trinity_compat.trinity.pipelines.juicer import SECTION
from trinity_compat.trinity.pipelines.juicer.client import Client

_MARK = ".task_pipeline.json"  # hidden: datasets reads all other files of a folder


def run(verl: Tree) -> Iterator[str]:
    """Run the pipeline; yields lines for the user.

    Raises UserError for an existing folder of another origin, RunError for a service that fails.
    """
    section = section_at(verl, SECTION)
    if not section:
        return
    request = section_at(section, "asked")
    folder = Path(str(request["output_dir"]))
    if folder.exists():
        mark = read_section(folder / _MARK)
        if mark.get("asked") != json.loads(json.dumps(request)):
            raise UserError(
                f"data_processor.task_pipeline writes {folder}, which exists and was not made by this"
                " pipeline",
                hint="name another path in the taskset, or remove the folder",
            )
        yield _summary(section_at(mark, "counts"), folder)
        return
    yield f"processes the tasks of {folder} by Data-Juicer …"
    yield _summary(_process(section_at(section, "service"), request, folder), folder)


def _process(service: Tree, request: Tree, folder: Path) -> Tree:
    making = folder.with_name(f".{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    where = {"output_dir": str(making), "dropped_path": str(_dropped(folder))}
    client = Client(service, {**request, **where})
    try:
        counts = client.tasks()
    finally:
        client.close()
    write_text(making / _MARK, json.dumps({"asked": request, "counts": counts}, indent=1))
    making.rename(folder)
    return counts


def _dropped(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.dropped.jsonl")


def _summary(counts: Tree, folder: Path) -> str:
    summary = f"{counts.get('sample_num')} tasks in {folder}"
    if "input_num" not in counts:  # trinity-rft's own service counts no others
        return summary
    return f"{summary}, of {counts['input_num']}; {counts['dropped_num']} dropped, in {_dropped(folder)}"
