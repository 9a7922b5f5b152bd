"""``ray_kwargs.ray_init.runtime_env``: what a launch adds to the environment of its processes.

veRL merges it into its own and gives both to ``ray.init``, so that all of its processes have it
(verl/trainer/main_ppo.py, run_ppo). A run's explorer and trainer are processes of their own, each with a job
of Ray's: the variables are in their environment too, and reward functions, agents and engines inherit them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trinity_compat.common.nested import Tree, value_at

KEY = "ray_kwargs.ray_init.runtime_env"
# The run's processes have the launch's folder (`run/plan/refusals.py` refuses another) and their own Python.
_OTHER_INSTALLATION = ("pip", "uv", "conda", "container", "image_uri")
_OF_FILES = ("working_dir", "py_modules", "excludes", "py_executable")


def of_launch(verl: Tree) -> dict[str, Any]:
    """Return what the launch sets of it."""
    given = value_at(verl, KEY)
    items = given.items() if isinstance(given, Mapping) else ()
    return {str(name): value for name, value in items if value not in (None, "", {}, [])}


def variables(verl: Tree) -> dict[str, str]:
    """Return its environment variables; their values are texts, which Ray demands."""
    given = of_launch(verl).get("env_vars", {})
    return {str(name): str(value) for name, value in given.items() if value is not None}


def faults(given: Mapping[str, Any], cwd: Path) -> Iterator[tuple[str, object, str, str]]:
    """Yield (key, value, reason, hint) of what no process of a run gets. ``cwd``: the launch's folder."""
    for name, value in given.items():
        key = f"{KEY}.{name}"
        if name in _OTHER_INSTALLATION and value not in (None, "", {}, []):
            why = "all processes of a run share this Python and its packages"
            yield key, value, why, "install the packages here and leave it out, or run on stock veRL"
        elif name in ("working_dir", "py_modules") and value and _leads_elsewhere(name, value, cwd):
            why = f"a run's processes work in the launch's folder, {cwd}"
            yield (
                key,
                value,
                why,
                "put the folder into PYTHONPATH and leave it out, or start the launch in it",
            )
        elif name == "env_vars" and isinstance(value, Mapping):
            for one, text in value.items():
                if not isinstance(text, str | None):
                    hint = f"write '{key}.{one}=\"{text}\"'"
                    yield f"{key}.{one}", text, "Ray takes texts only", hint


def _leads_elsewhere(name: str, value: object, cwd: Path) -> bool:
    """Return whether Ray would give its workers another folder than the launch's for modules and files."""
    paths = [cwd / str(path) for path in (value if isinstance(value, list | tuple) else [value])]
    folders = paths if name == "working_dir" else [path.parent for path in paths]  # a module is found there
    return any(folder.resolve() != cwd.resolve() for folder in folders)


def merged(own: Mapping[str, Any], verl: Tree) -> dict[str, Any]:
    """Return the runtime environment ``own`` of a process of ours with the launch's, which wins."""
    given = {name: value for name, value in of_launch(verl).items() if name not in _OF_FILES}
    return {**own, **given, "env_vars": {**own.get("env_vars", {}), **variables(verl)}}
