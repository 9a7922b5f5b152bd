"""Draw the diagrams of docs/architecture.md: ``make_architecture.py [--check]``.

The first shows the rooms of the package, by the layers of the contract in pyproject.toml. A room's text is
the first line of its docstring; an arrow that other arrows imply is left out. The second shows the processes
of a run and the data between them; each arrow names the module that reads or writes, which must exist and
import the room of the data. ``--check`` writes nothing and exits 1 where the page differs.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grimp
import networkx

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = "trinity_compat"
CONTRACT = "Rooms of the package, from the top floor down"


@dataclass(frozen=True)
class Flow:
    """``source`` → ``target``, labelled ``data``, done by ``module``, which imports ``room``."""

    source: str
    target: str
    data: str
    module: str
    room: str


PROCESSES = {
    "supervisor": "supervisor<br/>trinity-compat run",
    "explorer": "explorer × N<br/>python -m trinity_compat.explorer",
    "trainer": "trainer<br/>python -m trinity_compat.trainer",
    "engines": "vLLM engines<br/>Ray actors of an explorer",
    "buffer": "buffer<br/>SQLite or PostgreSQL",
    "weights": "weights<br/>files or NCCL",
    "job": "job directory",
}
FLOWS = (
    Flow("supervisor", "job", "RunSpec", "run.run", "job"),
    Flow("supervisor", "explorer", "starts, watches", "run.supervise.sides", "run"),
    Flow("supervisor", "trainer", "starts, watches", "run.supervise.sides", "run"),
    Flow("job", "explorer", "RunSpec", "explorer.main", "job"),
    Flow("job", "trainer", "RunSpec", "trainer.main", "job"),
    Flow("explorer", "engines", "tasks", "explorer.rollout.worker_group", "explorer.rollout"),
    Flow("engines", "explorer", "trajectories", "explorer.rollout.worker", "explorer.engine"),
    Flow(
        "explorer", "buffer", "scored groups, leases of tasks", "explorer.scheduling.commit_queue", "buffer"
    ),
    Flow("buffer", "trainer", "claimed groups", "trainer.exchange", "buffer"),
    Flow("trainer", "buffer", "ledger of trained steps", "trainer.exchange", "buffer"),
    Flow("trainer", "weights", "a version per sync", "trainer.exchange", "synchronizer"),
    Flow("weights", "engines", "a version per sync", "explorer.rollout.worker", "synchronizer"),
)


def layers() -> list[list[str]]:
    """Rooms by floor, the top one first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (contract for contract in contracts if contract["name"] == CONTRACT)
    return [floor.split(" | ") for floor in found["layers"]]


def rooms_diagram(graph: Any) -> str:
    """A mermaid flowchart of the rooms."""
    floors = [[room for room in floor if room != "__main__"] for floor in layers()]
    rooms = [room for floor in floors for room in floor]
    arrows = networkx.DiGraph()
    arrows.add_nodes_from(rooms)
    for room in rooms:
        for other in rooms:
            if room != other and graph.direct_import_exists(
                importer=f"{PACKAGE}.{room}", imported=f"{PACKAGE}.{other}", as_packages=True
            ):
                arrows.add_edge(room, other)
    if not networkx.is_directed_acyclic_graph(arrows):
        sys.exit(f"make_architecture: rooms import each other: {networkx.find_cycle(arrows)}")
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {room}["<b>{room}</b><br/>{summary_of(room)}"]' for room in rooms]
    lines += [f"    {a} --> {b}" for a, b in sorted(networkx.transitive_reduction(arrows).edges)]
    return "\n".join([*lines, "```"])


def summary_of(room: str) -> str:
    """First line of the room's docstring, in lines of some 40 characters."""
    text = (ROOT / PACKAGE / room / "__init__.py").read_text()
    first = text.split('"""')[1].strip().splitlines()[0].rstrip(".")
    words, lines = re.sub(r"[`\"]", "", first).split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 40:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br/>".join(lines)


def processes_diagram(graph: Any) -> str:
    """A mermaid flowchart of a run's processes and data."""
    for flow in FLOWS:
        module, room = f"{PACKAGE}.{flow.module}", f"{PACKAGE}.{flow.room}"
        if module not in graph.modules:
            sys.exit(f"make_architecture: {module} does not exist")
        imports = graph.find_modules_directly_imported_by(module)
        if not any(f"{name}.".startswith(f"{room}.") for name in imports) and not module.startswith(room):
            sys.exit(f"make_architecture: {module} does not import {room}")
    shapes = {"buffer": ("[(", ")]"), "weights": ("[(", ")]"), "job": ("[/", "/]")}
    lines = ["```mermaid", "flowchart LR"]
    for name, text in PROCESSES.items():
        left, right = shapes.get(name, ("[", "]"))
        lines.append(f'    {name}{left}"{text}"{right}')
    lines += [f'    {flow.source} -- "{flow.data}" --> {flow.target}' for flow in FLOWS]
    return "\n".join([*lines, "```"])


def page(text: str) -> str:
    """``text`` with both diagrams, between the markers ``<!-- made: NAME -->`` and ``<!-- end -->``."""
    graph = grimp.build_graph(PACKAGE)
    for name, made in (("rooms", rooms_diagram(graph)), ("processes", processes_diagram(graph))):
        text, count = re.subn(
            rf"(<!-- made: {name} -->\n).*?(<!-- end -->)",
            lambda m, made=made: f"{m[1]}{made}\n{m[2]}",
            text,
            flags=re.S,
        )
        if count != 1:
            sys.exit(f"make_architecture: {PAGE} has {count} places for the diagram {name!r}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where the page differs")
    before = PAGE.read_text()
    after = page(before)
    if parser.parse_args().check:
        sys.exit(f"make_architecture: {PAGE.name} is not up to date" if after != before else 0)
    PAGE.write_text(after)


if __name__ == "__main__":
    main()
