"""A YAML without lines that repeat a default: ``translate --minimal``.

A line is left out if the launch does not set it, trinity-rft has the same value as its default, and the way
back finds the same value in the pinned veRL's defaults. So the file means the same to both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import copied, leaves, value_at
from trinity_compat.translate.defaults import pinned_defaults, same
from trinity_compat.translate.model import Translation
from trinity_compat.translate.sections.data import EVAL_TASKSETS, TASKSETS
from trinity_compat.translate.verl_from_trinity import (
    COMPAT,
    flavour_of,
    max_staleness_of,
    sync_of,
    to_verl,
    total_steps_of,
)
from trinity_compat.trinity.config.complete import completed
from trinity_compat.trinity.config.defaults import algorithm_defaults

_NONE = object()


def minimal(made: Translation) -> Translation:
    """Return ``made`` with as few lines as mean the same.

    A configuration that cannot be completed, because a number in it is a variable, stays whole.
    """
    try:
        whole = _Meaning(made.config, str(made.facts["target"]))
    except UserError:
        return made
    config = dict(made.config)
    for path in _candidates(made):
        shorter = _without(config, path)
        if whole.is_kept_by(shorter):
            config = shorter
    kept = {path: note for path, note in made.provenance.items() if value_at(config, path) is not None}
    # The names of what only our runtime reads hold dots, so that no path leads to them.
    ours = {path: note for path, note in made.provenance.items() if f".{COMPAT}." in path}
    return replace(made, config=config, provenance=kept | ours)


def _candidates(made: Translation) -> Iterator[str]:
    for path in made.provenance:
        if path not in made.given and f".{COMPAT}." not in path and value_at(made.config, path) is not None:
            yield path
    # A taskset is written for its files, and says much that no key does.
    for listed in (TASKSETS, EVAL_TASKSETS):
        for position, taskset in enumerate(value_at(made.config, listed) or ()):
            yield from (f"{listed}.{position}.{name}" for name, _ in leaves(taskset) if COMPAT not in name)


class _Meaning:
    """A configuration as trinity-rft ``target`` and a run here complete it. Raises UserError."""

    def __init__(self, config: Mapping[str, object], target: str) -> None:
        self._target = target
        self._upstream = _in_full(config, target)
        self._keys = to_verl(config)
        self._apart = _read_apart(config)

    def is_kept_by(self, config: Mapping[str, object]) -> bool:
        try:
            return (
                _in_full(config, self._target) == self._upstream
                and _read_apart(config) == self._apart
                and self._means_the_same(to_verl(config), flavour_of(config))
            )
        except UserError:
            return False

    def _means_the_same(self, keys: Mapping[str, object], flavour: str) -> bool:
        """Return True if ``keys`` means the same, or leaves out only keys with veRL's default."""
        if any(value != self._keys.get(key, _NONE) for key, value in keys.items()):
            return False
        defaults = pinned_defaults(flavour)
        return all(
            same(defaults.get(key, _NONE), value) for key, value in self._keys.items() if key not in keys
        )


def _in_full(config: Mapping[str, object], target: str) -> dict[str, object]:
    """Return the configuration as trinity-rft completes it, with its algorithm's own defaults."""
    full = completed(config, target).config
    section, defaults = dict(value_at(full, "algorithm")), algorithm_defaults(target)
    for name, value in defaults.algorithms.get(section["algorithm_type"], {}).items():
        if section.get(name) is None and name != "use_critic":
            section[name] = value
    for name, functions in defaults.functions.items():
        if section.get(f"{name}_args") is None and section.get(name) in functions:
            section[f"{name}_args"] = functions[section[name]]
    return {**full, "algorithm": section}


def _read_apart(config: Mapping[str, object]) -> tuple[object, ...]:
    """Return the values that a run reads from the file beside veRL's keys."""
    return flavour_of(config), sync_of(config), max_staleness_of(config), total_steps_of(config)


def _without(config: Mapping[str, object], path: str) -> dict[str, Any]:
    """Return a copy without the value at ``path``, and without the sections that it leaves empty."""
    out = copied(config)
    *above, name = path.split(".")
    sections: list[Any] = [out]
    for part in above:
        section = sections[-1]
        sections.append(section[int(part)] if isinstance(section, list) else section[part])
    del sections[-1][name]
    for section, part in reversed(list(zip(sections, above, strict=False))):
        if isinstance(section, dict) and not section[part]:
            del section[part]
    return out
