"""Kinds of configuration values (a section, a text, a number, …), compared between two trees."""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.common.releases import VERL

_ALIKE = ({"a text", "a list"}, {"true or false", "a number"})  # one may stand for the other
_SECTION = "a section"
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "a text"),
    (list, "a list"),
)


def misfit(tree: Mapping[str, object], key: str, value: object) -> str:
    """Describe how the kind of ``value`` differs from that of ``key`` in the pinned release's ``tree``.

    ``a text where …``; "" where it does not. Null fits every kind but a section.
    """
    there, above = _in_place_of(tree, key)
    mine = _SECTION if above else _kind(value)
    no_section = value is None and there == _SECTION
    alike = not mine or not there or mine == there or {mine, there} in _ALIKE
    if no_section or not alike:
        return f"{mine or 'null'} where veRL {VERL} has {there}"
    return ""


def _in_place_of(tree: Mapping[str, object], key: str) -> tuple[str, bool]:
    """(kind of what ``tree`` has at ``key``, whether it has it above it). "" for what takes any value."""
    node: object = tree
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return _kind(node), True
        if part not in node:
            return "", False
        node = node[part]
    return _kind(node), False


def _kind(value: object) -> str:
    """Return the kind of a value; "" for null, an empty section and a reference, which may be anything."""
    if isinstance(value, Mapping):
        return _SECTION if value else ""
    if value is None or (isinstance(value, str) and "${" in value):
        return ""
    return next((named for kinds, named in _KINDS if isinstance(value, kinds)), "")
