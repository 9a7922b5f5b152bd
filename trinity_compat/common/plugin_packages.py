"""Plugins of other distributions, found by their entry points (docs/plugins.md).

The metadata of the installed distributions name them; ``load`` alone imports code, in a process that uses it.
Fork rules are data: their file is found without an import of the package.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from trinity_compat.common.errors import UserError

Kind = Literal["workflow", "reward", "operator", "advantage", "policy_loss", "logger", "fork_rules"]
KINDS: tuple[Kind, ...] = get_args(Kind)
GROUPS: Mapping[Kind, str] = {
    "workflow": "trinity_compat.workflows",
    "reward": "trinity_compat.rewards",
    "operator": "trinity_compat.operators",
    "advantage": "trinity_compat.advantages",
    "policy_loss": "trinity_compat.policy_losses",
    "logger": "trinity_compat.loggers",
    "fork_rules": "trinity_compat.fork_rules",
}
# The name of a distribution's entry point in this group is the interface for which it was written.
INTERFACE_GROUP, INTERFACE = "trinity_compat.interface", 1
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*")
_SECTION = "[trinity_compat."  # in the file of entry points of a distribution that has any
_KIND_OF = {group: kind for kind, group in GROUPS.items()}


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of an installed distribution. ``value``: the object, as ``module:attribute``."""

    kind: Kind
    name: str
    value: str
    distribution: str
    version: str
    interface: str = str(INTERFACE)

    @property
    def source(self) -> str:
        """Return the distribution with its version."""
        return f"{self.distribution} {self.version}"

    @property
    def title(self) -> str:
        """Return the words that name the plugin in a message."""
        return f"the entry point {self.name} ({GROUPS[self.kind]}) of {self.source}"


def installed() -> tuple[Plugin, ...]:
    """Return the plugins of all distributions, by kind and name, whether they can be used or not."""
    return _installed(tuple(sys.path))


@lru_cache(maxsize=4)
def _installed(_path: tuple[str, ...]) -> tuple[Plugin, ...]:
    found: dict[str, list[Plugin]] = {}
    for distribution in importlib.metadata.distributions():
        if _SECTION in (distribution.read_text("entry_points.txt") or ""):
            name = str(distribution.name or "of no name")
            normal = re.sub(r"[-_.]+", "-", name).lower()
            found.setdefault(normal, list(_plugins(distribution, name)))  # the first is the one imported
    made = dict.fromkeys(plugin for plugins in found.values() for plugin in plugins)
    return tuple(sorted(made, key=lambda each: (KINDS.index(each.kind), each.name, each.distribution)))


def _plugins(distribution: importlib.metadata.Distribution, name: str) -> Iterator[Plugin]:
    entries = distribution.entry_points
    interface = max((each.name for each in entries if each.group == INTERFACE_GROUP), default=str(INTERFACE))
    for each in entries:
        if kind := _KIND_OF.get(each.group):
            yield Plugin(kind, each.name, each.value, name, str(distribution.version or ""), interface)


def of_kind(kind: Kind) -> tuple[Plugin, ...]:
    """Return the plugins of one kind."""
    return tuple(plugin for plugin in installed() if plugin.kind == kind)


def find(kind: Kind, name: str, *, built_in: bool = False) -> Plugin | None:
    """Return the plugin of that name, None without one.

    ``built_in``: whether this package has the name too. Raises UserError for a name that is not one plugin's
    alone, and for a plugin of a later interface.
    """
    found = [plugin for plugin in of_kind(kind) if plugin.name == name]
    if found and (error := misuse(found[0], built_in=built_in)):
        raise error
    return found[0] if found else None


def misuse(plugin: Plugin, *, built_in: bool) -> UserError | None:
    """Return the error for a plugin that cannot be used, by its metadata; None for one that can."""
    others = [
        each for each in of_kind(plugin.kind) if each.name == plugin.name and each.value != plugin.value
    ]
    if built_in:
        why, hint = "trinity-compat has that name itself", f"pip uninstall {plugin.distribution}"
    elif others:
        why = f"{others[0].source} has that name too"
        hint = f"pip uninstall {plugin.distribution}, or {others[0].distribution}"
    elif not _NAME.fullmatch(plugin.name):
        why, hint = "its name is not valid", "letters, digits, _, - and . make a name"
    elif plugin.interface != str(INTERFACE):
        why = f"it is written for interface {plugin.interface}, and this release has {INTERFACE}"
        hint = f"install a release of trinity-compat that has it, or another one of {plugin.distribution}"
    else:
        return None
    return UserError(f"{plugin.title} cannot be used: {why}", hint=hint)


def load(plugin: Plugin) -> Any:
    """Import a plugin's object. Raises UserError for one that fails, or has not the type of its kind."""
    module, _, attribute = plugin.value.partition(":")
    try:
        found: Any = importlib.import_module(module.strip())
        for part in filter(None, attribute.strip().split(".")):
            found = getattr(found, part)
        why = _WRONG[plugin.kind](found)
    except (Exception, SystemExit) as error:  # a module may leave by sys.exit
        raise UserError(
            f"{plugin.title} failed to load: {plugin.value}: {type(error).__name__}: {error}",
            hint=f"repair or update {plugin.distribution}, or leave {plugin.name} out",
        ) from error
    if why:
        raise UserError(f"{plugin.title} cannot be used: {plugin.value} {why}", hint="docs/plugins.md")
    return found


def rules_file(plugin: Plugin) -> Path:
    """Return the file of fork rules in the plugin's package, ``NAME.yaml``, without importing it.

    Raises UserError for a package without it.
    """
    top, *below = plugin.value.strip().split(".")
    try:
        spec = importlib.util.find_spec(top)  # of a package's name without a dot nothing is run
    except (ImportError, ValueError):
        spec = None
    folders = [Path(folder, *below) for folder in (spec and spec.submodule_search_locations) or ()]
    path = next((path for folder in folders if (path := folder / f"{plugin.name}.yaml").is_file()), None)
    if path is None:
        raise UserError(
            f"{plugin.title} cannot be used: the package {plugin.value} has no file {plugin.name}.yaml",
            hint=f"repair or update {plugin.distribution}",
        )
    return path


def _no_class(method: str, *others: str) -> Callable[[Any], str]:
    """Return a function that tells what an object lacks to be a class with one of these methods."""
    names = (method, *others)

    def wrong(found: Any) -> str:
        own = isinstance(found, type) and any(name in vars(base) for base in found.__mro__ for name in names)
        return "" if own else f"is not a class with a method {' or '.join(names)}"

    return wrong


def _no_function(found: Any) -> str:
    """Return what an object lacks to be a function of one value with keyword arguments."""
    if not inspect.isroutine(found):
        return "is not a function"
    first, *others = inspect.signature(found).parameters.values() or (None,)
    keyword = all(each is not None and each.kind is each.KEYWORD_ONLY for each in others)
    if first is None or first.kind is first.KEYWORD_ONLY or not keyword:
        return "has to take one value, and its arguments by keyword"
    return ""


_WRONG: Mapping[Kind, Callable[[Any], str]] = {
    "workflow": _no_class("run", "run_async"),
    "reward": _no_class("__call__"),
    "operator": _no_class("process"),
    "logger": _no_class("log"),
    "advantage": _no_function,
    "policy_loss": _no_function,
    "fork_rules": lambda found: "",
}
