"""Hydra's override rules on a composed tree in struct mode.

Follows ``ConfigLoaderImpl._apply_overrides_to_config`` and ``OmegaConf.update``. A refused override is
reported and applied all the same, so that every key of a launch has a value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common.nested import nodes
from trinity_compat.common.releases import VERL
from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.launch.model import Diagnostic
from trinity_compat.verl_config.arguments import GivenOverride
from trinity_compat.verl_config.grammar import ADD, DELETE, SET
from trinity_compat.verl_config.interpolate import Path, Resolver
from trinity_compat.verl_config.pinned import takes
from trinity_compat.verl_config.releases import is_in_no_release
from trinity_compat.verl_config.upgrade import row_for
from trinity_compat.verl_config.yaml_files import merge

_ABSENT = object()


@dataclass
class AppliedOverrides:
    """A tree with overrides.

    ``known`` are the keys that it had without them; ``origins``: dotted leaf → the override that set it, in
    that order.
    """

    tree: dict[str, object]
    known: Collection[str]
    origins: dict[str, GivenOverride] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    added: list[GivenOverride] = field(
        default_factory=list
    )  # by + or ++, where the section has no use for it
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def refuse(self, code: str, given: GivenOverride, message: str) -> None:
        """Report ``given`` as an error with ``code``."""
        self.diagnostics.append(Diagnostic(code, message, given.where, "error"))


def apply_overrides(
    tree: dict[str, object], overrides: tuple[GivenOverride, ...], release: str
) -> AppliedOverrides:
    """Set ``overrides`` on ``tree`` in their order. ``release`` names the release in messages."""
    done = AppliedOverrides(tree, nodes(tree).keys())
    for given in overrides:
        _note_repeat(done, given)
        try:
            _apply(done, given, release)
        # Two keys may refer to each other; OmegaConf fails then as well.
        except RecursionError:
            message = (
                f"Hydra would refuse '{given.override.line}': it leads through a reference that"
                " refers to itself"
            )
            done.refuse("TP211", given, message)
    return done


def _apply(done: AppliedOverrides, given: GivenOverride, release: str) -> None:
    if given.override.op == DELETE:
        _delete(done, given)
    else:
        _set(done, given, release)


def _note_repeat(done: AppliedOverrides, given: GivenOverride) -> None:
    key = given.override.key
    before = done.origins.get(key)
    if before is None or given.override.op == DELETE:
        return
    message = f"{key} is given twice ({before.where}: {before.override.line}); the last one wins"
    done.diagnostics.append(Diagnostic("TP205", message, given.where))


def lookup(tree: Mapping[str, object], key: str) -> object:
    """The raw node at a dotted key; interpolations on the way are followed. ``_ABSENT`` if none."""
    node: object = tree
    path: Path = ()
    for part in key.split("."):
        node, path = _step(tree, node, path, part)
        if node is _ABSENT:
            return _ABSENT
    return node


def _step(tree: Mapping[str, object], node: object, path: Path, part: str) -> tuple[object, Path]:
    if isinstance(node, str) and "${" in node:
        target = Resolver(tree).target(node, path[:-1])
        node = _ABSENT if target is None else lookup(tree, ".".join(map(str, target)))
        path = target or path
    if isinstance(node, Mapping) and part in node:
        return node[part], (*path, part)
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return node[int(part)], (*path, int(part))
    return _ABSENT, path


def _set(done: AppliedOverrides, given: GivenOverride, release: str) -> None:
    key, value, op = given.override.key, given.override.value, given.override.op
    here = lookup(done.tree, key)
    if given.override.package is not None:
        done.refuse("TP207", given, f"'{given.override.line}' looks like a config group, but {key} is none")
        return
    if here is _ABSENT and isinstance(lookup(done.tree, key.rpartition(".")[0]), list):
        _refuse_item(done, given)
        return
    if op == SET and here is _ABSENT:
        _unknown(done, given, release)
    elif op == SET and isinstance(value, dict) and isinstance(here, dict):
        _check_nested(done, given, here, value, release)
    elif op == ADD and here not in (_ABSENT, None, "???") and not isinstance(value, dict | list):
        message = f"{given.spelling} adds a key that {release} already has; write {key}= or ++{key}="
        done.refuse("TP202", given, message)
    elif here is _ABSENT and not takes(done.tree, key):
        done.added.append(given)
    if (isinstance(here, dict) and isinstance(value, list)) or (
        isinstance(here, list) and isinstance(value, dict)
    ):
        kinds = (
            "the key is a section, and a list cannot replace it"
            if isinstance(value, list)
            else "the key is a list, and a list has no keys"
        )
        done.refuse("TP206", given, f"Hydra would refuse '{given.override.line}': {kinds}")
        return
    _store(done, given, here)


_OF_A_FORK = (
    "a fork's key is read in the fork's checkout, or by a rule of your own (`trinity-compat rules init`)"
)


def _unknown(done: AppliedOverrides, given: GivenOverride, release: str) -> None:
    key = given.override.key
    hint = _instead(key) if release == f"verl {VERL}" else ""
    if not hint:
        near = did_you_mean(key, done.known)
        if near and isinstance(lookup(done.tree, near), dict) != isinstance(given.override.value, dict):
            near = ""  # a section is not what a value was meant for
        hint = f"did you mean {near}?" if near else _added(done, given)
    done.unknown.append(key)
    if not key:
        done.refuse(
            "TP201", given, f"Hydra would refuse '{given.override.line}': no key stands before the '='"
        )
        return
    done.refuse("TP201", given, f"Hydra would refuse {given.spelling}: {release} has no such key; {hint}")


def _added(done: AppliedOverrides, given: GivenOverride) -> str:
    """Return what is to be done with a key that no other one resembles."""
    key, add = given.override.key, f"+{given.override.line}"
    if takes(done.tree, key) or takes(done.tree, f"{key}."):
        return f"to add it, write {add}"
    if not is_in_no_release(key):
        return f"another release of veRL has it: name that one with --verl-version, or write {add}"
    fork = f"no release of veRL has it, so the script may be for a fork: {_OF_A_FORK}"
    return fork if takes(done.tree, key) is False else f"{fork}; where your own code reads it, write {add}"


def _instead(key: str) -> str:
    """Return advice on a key of an older release that the pinned one lacks, "" for other keys.

    A launch of veRL's main may set it beside keys of the pinned release.
    """
    row = row_for(key, "")
    if row is None or row.old != key:
        return ""
    if not row.new:
        return f"an older release has it; leave it out ({row.why})"
    new = ("+" + key,) if row.new == (key,) else row.new
    return f"an older release has it; write {' and '.join(new)} ({row.why})"


def _check_nested(
    done: AppliedOverrides,
    given: GivenOverride,
    here: dict[str, Any],
    value: dict[object, object],
    release: str,
) -> None:
    """A plain ``key={…}`` merges into a dict, whose keys are fixed in struct mode."""
    for name, item in value.items():
        key = f"{given.override.key}.{name}"
        if name not in here:
            done.unknown.append(key)
            message = (
                f"Hydra would refuse {given.spelling}: {release} has no {key}; write +{given.override.line}"
            )
            done.refuse("TP201", given, message)
        elif isinstance(item, dict) and isinstance(here[name], dict):
            _check_nested(done, given, here[name], item, release)


def _store(done: AppliedOverrides, given: GivenOverride, here: object) -> None:
    """OmegaConf.update with force_add: containers merge into dicts, a scalar on the way is replaced."""
    key, value = given.override.key, given.override.value
    *path, last = key.split(".")
    node: object = done.tree
    place: Path = ()
    for part in path:
        below, place = _step(done.tree, node, place, part)
        if isinstance(below, str) and "${" in below:
            below = lookup(done.tree, ".".join(map(str, place)))
        if not isinstance(below, dict | list):
            below = {}
            _put(done, given, node, part, below)
        node = below
    if isinstance(value, dict) and isinstance(here, dict):
        merge(here, value)
        _mark(done, given, key, value)
        return
    if isinstance(value, dict):
        value = merge({}, value)
    if _put(done, given, node, last, value):
        _forget(done, given)
        _mark(done, given, key, value)


def _put(done: AppliedOverrides, given: GivenOverride, node: object, part: str, value: object) -> bool:
    if isinstance(node, dict):
        node[part] = value
        return True
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        node[int(part)] = value
        return True
    _refuse_item(done, given)
    return False


def _refuse_item(done: AppliedOverrides, given: GivenOverride) -> None:
    part = given.override.key.rpartition(".")[2]
    done.refuse(
        "TP206", given, f"Hydra would refuse '{given.override.line}': '{part}' is not a position in a list"
    )


def _mark(done: AppliedOverrides, given: GivenOverride, key: str, value: object) -> None:
    """Note the origin of each leaf below ``key``; a leaf set again moves to the end."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            _mark(done, given, f"{key}.{name}", item)
        return
    # A dict keeps the place of a key that is written again; the last word on it counts as the later one.
    done.origins.pop(key, None)
    done.origins[key] = given


def _forget(done: AppliedOverrides, given: GivenOverride) -> None:
    """Drop the overrides at and below a key that is set or deleted as a whole."""
    key = given.override.key
    for old in [old for old in done.origins if old == key or old.startswith(key + ".")]:
        before = done.origins.pop(old)
        if old != key:
            message = f"{old} ({before.where}) has no effect: '{given.override.line}' replaces all of {key}"
            done.diagnostics.append(Diagnostic("TP205", message, given.where))


def _delete(done: AppliedOverrides, given: GivenOverride) -> None:
    key, value = given.override.key, given.override.value
    here = lookup(done.tree, key)
    if here is None:
        message = (
            f"Hydra would refuse {given.spelling}: {key} is null, and Hydra cannot delete a key that is null"
        )
        done.refuse("TP203", given, f"{message}; leave this argument out")
        return
    if here is _ABSENT:
        near = did_you_mean(key, nodes(done.tree))
        hint = f"; did you mean ~{near}?" if near else ""
        done.refuse("TP203", given, f"Hydra would refuse {given.spelling}: there is no {key} to delete{hint}")
        return
    if value is not None and value != here:
        done.refuse("TP203", given, f"Hydra would refuse '{given.override.line}': {key} is {here!r}")
        return
    parent, _, last = key.rpartition(".")
    holder = lookup(done.tree, parent) if parent else done.tree
    if not isinstance(holder, dict):
        done.refuse(
            "TP206", given, f"Hydra would refuse {given.spelling}: it cannot delete an item of a list"
        )
        return
    del holder[last]
    _forget(done, given)
