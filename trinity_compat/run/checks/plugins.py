"""Checks of plugins: those of a run before it starts, and every installed one for ``doctor``.

``python -m trinity_compat.run.checks.plugins DISTRIBUTION`` loads the plugins of one distribution, and prints
a line for each: its number and the error, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from trinity_compat.common import plugin_packages, python_command
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, section_at
from trinity_compat.common.plugin_packages import Kind, Plugin
from trinity_compat.run.plan.plugin_uses import built_in
from trinity_compat.trinity.algorithms import of_plugins
from trinity_compat.trinity.algorithms.model import PREFIX
from trinity_compat.trinity.workflows import trinity_stubs

_LIMIT_S = 120.0
_OF_TRINITY = ("workflow", "reward", "operator")


def check(plugin: Plugin, verl: Tree) -> None:
    """Load a plugin that a run names, and check its arguments. Raises UserError."""
    if plugin.kind == "advantage":
        of_plugins.check_arguments("advantage_fn", plugin.name, section_at(verl, f"algorithm.{PREFIX}args"))
    elif plugin.kind == "policy_loss":
        section = f"actor_rollout_ref.actor.policy_loss.{PREFIX}args"
        of_plugins.check_arguments("policy_loss_fn", plugin.name, section_at(verl, section))
    else:
        _loaded(plugin)


def check_in_one_line(plugin: Plugin, verl: Tree) -> None:
    """Check like ``check``, with the hint in the message: a report of the start check has no other place."""
    try:
        check(plugin, verl)
    except UserError as error:
        raise UserError(_one_line(error)) from error


def _loaded(plugin: Plugin) -> object:
    if plugin.kind == "fork_rules":
        return plugin_packages.rules_file(plugin)
    if plugin.kind in _OF_TRINITY:
        trinity_stubs.install()
    return plugin_packages.load(plugin)


def problems() -> list[tuple[Plugin, str]]:
    """Return every installed plugin with what is wrong with it, "" for nothing.

    The code of each distribution is loaded in a process of its own, which may fail or hang.
    """
    found = plugin_packages.installed()
    with ThreadPoolExecutor() as pool:
        names = list(dict.fromkeys(plugin.distribution for plugin in found))
        errors = {key: error for each in pool.map(_errors, names) for key, error in each.items()}
    return [
        (plugin, _misuse(plugin) or errors.get((plugin.kind, plugin.name, plugin.value), ""))
        for plugin in found
    ]


def _misuse(plugin: Plugin) -> str:
    error = plugin_packages.misuse(plugin, built_in=plugin.name in built_in(plugin.kind))
    return _one_line(error) if error else ""


def _one_line(error: UserError) -> str:
    return "; ".join(filter(None, [error.message, error.hint]))


def _errors(distribution: str) -> dict[tuple[Kind, str, str], str]:
    plugins = _of(distribution)
    try:
        command = python_command.of_module(__name__, distribution)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        lines, end = done.stdout.splitlines(), f"its process ended with exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        lines, end = [], f"it did not load in {_LIMIT_S:g} s"
    # A plugin may print other lines.
    told = dict(json.loads(line.removeprefix(_MARK)) for line in lines if line.startswith(_MARK))
    return {
        (each.kind, each.name, each.value): told.get(number, f"{each.title} failed to load: {end}")
        for number, each in enumerate(plugins)
    }


def _of(distribution: str) -> list[Plugin]:
    return [plugin for plugin in plugin_packages.installed() if plugin.distribution == distribution]


_MARK = "trinity-compat-plugin "


def main(distribution: str) -> None:
    """Load the plugins of a distribution, and print what each raises."""
    for number, plugin in enumerate(_of(distribution)):
        error = ""
        try:
            _loaded(plugin)
        except UserError as found:
            error = _one_line(found)
        print(f"\n{_MARK}{json.dumps([number, error])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
