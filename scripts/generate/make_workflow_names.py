"""Write names.json of workflows: what trinity-rft registers, and the packages of each environment.

    <venv of trinity-rft 0.6.0>/bin/python scripts/generate/make_workflow_names.py > …/names.json

A workflow's packages are those that its module imports, or one of trinity-rft's workflows that it imports
from, and that trinity-rft itself does without.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

RESULT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # trinity logs to stdout

import trinity  # noqa: E402
from trinity.common.rewards import REWARD_FUNCTIONS  # noqa: E402
from trinity.common.workflows import WORKFLOWS  # noqa: E402

ROOT = Path(trinity.__file__).parents[1]
HOME = "trinity.common.workflows"
EVERYWHERE = {
    *("datasets", "jinja2", "math_verify", "numpy", "openai", "PIL", "pydantic", "ray", "torch", "tqdm"),
    *("transformers", "trinity"),
}


def file_of(module: str) -> Path | None:
    """Path of one of trinity-rft's modules."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(module: str) -> Iterator[str]:
    """The modules that a module's text imports, wherever it does."""
    file = file_of(module)
    package = module if file and file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            yield ".".join(part for part in (above, node.module) if part)


def packages(module: str, seen: set[str]) -> Iterator[str]:
    """Packages that the module and the workflows in its imports need."""
    if module in seen:
        return
    seen.add(module)
    for name in imported(module):
        top = name.partition(".")[0]
        if name.startswith(f"{HOME}.") and find_spec(name):
            yield from packages(name, seen)
        elif top not in sys.stdlib_module_names | EVERYWHERE:
            yield top


def main() -> int:
    """Returns the exit code."""
    workflows = {
        name: sorted(set(packages(path.rpartition(".")[0], {HOME})))
        for name, path in WORKFLOWS._default_mapping.items()
    }
    names = {"workflows": workflows, "rewards": list(REWARD_FUNCTIONS._default_mapping)}
    RESULT.write(json.dumps(names, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
