"""``ray_kwargs.ray_init.runtime_env``: what a launch adds to the environment of its processes.

veRL merges it into its own and gives both to ``ray.init``, so that all of its processes have it
(verl/trainer/main_ppo.py, run_ppo). A run's explorer and trainer are processes of their own, each with a job
of Ray's: the variables are in their environment too, and reward functions, agents and engines inherit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.common.nested import Tree, value_at

KEY = "ray_kwargs.ray_init.runtime_env"
# The run's processes have the launch's folder (`run/plan/refusals.py` refuses another) and their own Python.
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


def merged(own: Mapping[str, Any], verl: Tree) -> dict[str, Any]:
    """Return the runtime environment ``own`` of a process of ours with the launch's, which wins."""
    given = {name: value for name, value in of_launch(verl).items() if name not in _OF_FILES}
    return {**own, **given, "env_vars": {**own.get("env_vars", {}), **variables(verl)}}
