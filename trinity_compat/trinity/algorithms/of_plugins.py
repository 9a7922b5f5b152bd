"""Advantages and policy losses of plugins (docs/plugins.md).

A plan knows their names alone: their arguments are checked where the function is loaded, in the start check
and in the trainer's processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from trinity_compat.common import plugin_packages
from trinity_compat.common.errors import UserError
from trinity_compat.common.plugin_packages import Plugin
from trinity_compat.trinity.algorithms import model
from trinity_compat.trinity.algorithms.model import Kind, RegisteredFunction

KIND_OF: Mapping[Kind, plugin_packages.Kind] = {"advantage_fn": "advantage", "policy_loss_fn": "policy_loss"}


def find(kind: Kind, name: str) -> Plugin | None:
    """Return the plugin of that name, None without one. Raises UserError as ``plugin_packages.find``."""
    return plugin_packages.find(KIND_OF[kind], name) if kind in KIND_OF else None


def named(kind: Kind, name: str) -> RegisteredFunction | None:
    """Return a plugin's function as a plan knows it, without its code and its arguments; None without one."""
    plugin = find(kind, name)
    return RegisteredFunction(kind, name, plugin.source, of_plugin=True) if plugin else None


@cache
def loaded(kind: Kind, name: str) -> RegisteredFunction:
    """Return a plugin's function with its code. Raises UserError for one that is missing or unfit."""
    plugin = find(kind, name)
    if plugin is None:
        raise UserError(f"no plugin has the {kind} {name} here", hint="install the plugin again")
    call = plugin_packages.load(plugin)
    try:
        signature = model.arguments_of(call)
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"{plugin.title} cannot be used: the types of its arguments: {error}") from error
    return RegisteredFunction(kind, name, plugin.source, call, signature, of_plugin=True)


def check_arguments(kind: Kind, name: str, given: Mapping[str, Any]) -> None:
    """Raise UserError for arguments that a plugin's function does not take, or lacks."""
    function = loaded(kind, name)
    if unknown := [each for each in given if each not in function.signature]:
        has = ", ".join(function.signature) or "no arguments"
        raise UserError(f"{name} of {function.source} has no argument {unknown[0]}", hint=f"it has {has}")
    for each, parameter in function.signature.items():
        if parameter.default is parameter.empty and each not in given:
            raise UserError(
                f"{name} of {function.source} needs the argument {each}",
                hint=f"write algorithm.{kind}_args.{each} in a Trinity YAML",
            )
