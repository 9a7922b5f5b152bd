"""OmegaConf's interpolations on plain containers: ``${a.b}``, ``${.x}``, ``${oc.select:key,default}``.

What only the machine of the run knows stays as it is written: ``${oc.env:NAME}`` of a variable
that the launch doesn't set, and resolvers that the training code registers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import Any

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.limits import DEPTH, KEYS, Budget, BudgetExceeded
from trinity_compat.common.nested import sections_above
from trinity_compat.launch.model import Word
from trinity_compat.verl_config.grammar import OverrideSyntaxError, parse_value
from trinity_compat.verl_config.yaml_files import MISSING

Path = tuple[str | int, ...]
_SIMPLE = re.compile(r"\$\{(\.*)([\w-]+(?:\.[\w-]+|\[[\w-]+\])*)\}", re.A)
_NAME = re.compile(r"[A-Za-z_][\w.]*", re.A)
_WITH_DEFAULT = re.compile(r"\$\{oc\.env:\s*(\w+)\s*,\s*(?=((?:[^{}]|\{[^{}]*\})*)\})")
_PLAIN = frozenset({bool, int, float, type(None)})
_KNOWN = 4096  # texts whose reading is remembered: veRL's own some hundred, and those of a launch


class InterpolationError(ValueError):
    """An interpolation that OmegaConf cannot resolve: a key that isn't there, a cycle."""


class TooManyReferences(UserError):
    """Following the references of ``key`` costs more than a launch may."""

    def __init__(self, key: str, why: object) -> None:
        super().__init__(f"{key}: its references are not followed to their end: {why}")
        self.key = key

    def place(self, places: Mapping[str, Where | None]) -> Where | None:
        """Return the place of the key, or of the section or list that it stands in."""
        return next(filter(None, map(places.get, (self.key, *sections_above(self.key)))), None)


class _Symbolic(Exception):
    """The interpolation stays as written."""


def is_interpolated(value: object) -> bool:
    """Return whether ``value`` is or holds a text with ``${…}``."""
    if isinstance(value, str):
        return "${" in value
    if isinstance(value, list):
        return any(is_interpolated(item) for item in value)
    return isinstance(value, dict) and any(is_interpolated(item) for item in value.values())


def defaults_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that a text reads with a default, each with that as it is written."""
    for found in _WITH_DEFAULT.finditer(text):
        yield found[1], found[2].strip("'\"")


def resolved_alone(value: object, env: Mapping[str, str] | None = None) -> object:
    """``value`` with what it interpolates from ``env``; what refers to other keys stays as written."""
    return Resolver({"it": value}, env).resolve()["it"]


class Resolver:
    """Resolves the interpolations of one tree.

    ``env`` holds the variables that the user gave, ``exported`` those that the launch sets; ``lacks`` says
    of which it is known that it hasn't them. Those of ``assigned`` (see `Launch`) are taken to be there where
    nothing stands for them: stock veRL refuses the launch otherwise.
    """

    def __init__(
        self,
        tree: Mapping[str, object],
        env: Mapping[str, str] | None = None,
        exported: Mapping[str, Word] | None = None,
        lacks: Callable[[str], bool] = lambda name: False,
        assigned: Mapping[str, Word] = MappingProxyType({}),
    ) -> None:
        self._tree = tree
        self._env = env or {}
        self._exported = exported or {}
        self._lacks = lacks
        self._assigned = assigned
        self._done: dict[Path, object] = {}
        self._busy: set[Path] = set()
        self._budget = Budget(seconds=inf, steps=10 * KEYS)
        self.errors: dict[Path, str] = {}

    def resolve(self) -> dict[str, object]:
        """The tree with every interpolation filled in; failures go to ``errors`` and stay as text.

        Raises TooManyReferences.
        """
        return self._section((), self._tree)

    def _section(self, path: Path, section: Mapping[str, Any]) -> dict[str, Any]:
        out: dict[str, object] = {}
        for key, value in section.items():
            kind = value.__class__
            if kind in _PLAIN or (kind is str and "${" not in value):
                out[key] = value
            elif kind is dict:
                out[key] = self._section((*path, key), value)
            else:
                out[key] = self._tolerant((*path, key), value)
        return out

    def _tolerant(self, path: Path, value: object) -> object:
        try:
            return self.value(path, value)
        except InterpolationError as error:
            self.errors[path] = str(error)
            return value
        except RecursionError:
            self.errors[path] = f"'{value}' refers to itself"
            return value

    def value(self, path: Path, raw: object) -> object:
        """The resolved value of node ``raw`` at ``path``. Raises InterpolationError, TooManyReferences."""
        try:
            return self._value(path, raw)
        except BudgetExceeded as error:
            raise TooManyReferences(".".join(map(str, path)), error) from None

    def _value(self, path: Path, raw: object) -> object:
        self._budget.step()
        if isinstance(raw, dict):
            return {key: self.value((*path, key), item) for key, item in raw.items()}
        if isinstance(raw, list):
            return [self.value((*path, index), item) for index, item in enumerate(raw)]
        if not isinstance(raw, str) or "${" not in raw:
            return raw
        if path in self._done:
            self._pay(self._done[path])
            return self._done[path]
        # It is being resolved further up: the reference leads back to itself.
        if path in self._busy:
            raise InterpolationError(f"'{raw}' refers to itself")
        if len(self._busy) > DEPTH:
            raise InterpolationError(f"'{raw}' is reached through more than {DEPTH} references")
        self._busy.add(path)
        try:
            found = self._text(raw, path[:-1])
            self._pay(found)
            self._done[path] = found
        finally:
            self._busy.discard(path)
        return self._done[path]

    def _pay(self, value: object) -> None:
        """Pay for a value that stands at one more place, where it will be read again."""
        self._budget.step()
        if isinstance(value, str):
            self._budget.make(len(value))
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                self._pay(item)

    def target(self, raw: str, parent: Path) -> Path | None:
        """The path that ``raw`` points to when it is one plain reference to a node, else None."""
        match = _SIMPLE.fullmatch(raw)
        if match:
            return _join(match.group(1), match.group(2), parent)
        if raw.startswith("${oc.select:") and _closing(raw, 1) == len(raw) - 1:
            key = _arguments(raw[len("${oc.select:") : -1])[0]
            dots = len(key) - len(key.lstrip("."))
            return _join(key[:dots], key[dots:], parent)
        return None

    def _text(self, raw: str, parent: Path) -> object:
        whole = _closing(raw, 1) == len(raw) - 1 if raw.startswith("${") else False
        try:
            if whole:
                return self._reference(raw[2:-1], parent)
            return self._joined(raw, parent)
        except _Symbolic:
            return raw

    def _joined(self, raw: str, parent: Path) -> str:
        out, at = [], 0
        while True:
            start = raw.find("${", at)
            if start < 0:
                out.append(raw[at:])
                return "".join(out)
            # As OmegaConf: an odd number of backslashes escapes the $, and two of them are one.
            slashes = len(raw[:start]) - len(raw[:start].rstrip("\\"))
            if slashes % 2:
                out.append(raw[at : start - 1 - slashes // 2] + "${")
                at = start + 2
                continue
            end = _closing(raw, start + 1)
            out.append(raw[at : start - slashes // 2])
            out.append(str(self._reference(raw[start + 2 : end], parent)))
            at = end + 1

    def _reference(self, inner: str, parent: Path) -> object:
        """The value of ``${inner}``."""
        name, colon, rest = inner.partition(":")
        if colon and _NAME.fullmatch(name.strip()):
            function = _RESOLVERS.get(name.strip())
            if function is None:
                raise _Symbolic
            return function(self, _arguments(rest), parent)
        if "${" in inner:
            inner = self._joined(inner, parent)
        dots = len(inner) - len(inner.lstrip("."))
        target = _join(inner[:dots], inner[dots:].strip(), parent)
        if target is None:
            raise InterpolationError(f"'${{{inner}}}' goes above the root")
        value = self._node(target, f"${{{inner}}}")
        if isinstance(value, str) and value == MISSING:
            raise InterpolationError(f"'${{{inner}}}' names a key whose value is missing (???)")
        return value

    def _node(self, target: Path, shown: str) -> object:
        node: object = self._tree
        path: Path = ()
        for part in target:
            if isinstance(node, str) and "${" in node:
                node, path = self._follow(node, path)
            if isinstance(node, dict) and part in node:
                node, path = node[part], (*path, part)
            elif isinstance(node, list) and str(part).isdigit() and int(part) < len(node):
                node, path = node[int(part)], (*path, int(part))
            else:
                raise InterpolationError(f"'{shown}' names a key that isn't there")
        return self.value(path, node)

    def _follow(self, raw: str, path: Path) -> tuple[object, Path]:
        """The container behind an interpolation in the middle of a path."""
        target = self.target(raw, path[:-1])
        if target is None:
            return self.value(path, raw), path
        node: object = self._tree
        for part in target:
            node = node.get(part) if isinstance(node, dict) else None
        return (self.value(path, raw), path) if node is None else (node, target)

    def _argument(self, text: str, parent: Path) -> object:
        if "${" in text and not text.startswith(("'", '"')):
            return self._text(text, parent)
        try:
            value = _literal(text)
            return parse_value(text) if isinstance(value, dict | list) else value
        except OverrideSyntaxError as error:
            raise InterpolationError(str(error)) from None

    def _select(self, arguments: tuple[str, ...], parent: Path) -> object:
        """oc.select: a missing key, or one set to ``???``, gives the default."""
        key = str(self._argument(arguments[0], parent))
        default = self._argument(arguments[1], parent) if len(arguments) > 1 else None
        dots = len(key) - len(key.lstrip("."))
        target = _join(key[:dots], key[dots:], parent)
        if target is None:
            return default
        try:
            value = self._node(target, key)
        except InterpolationError:
            return default
        return default if isinstance(value, str) and value == MISSING else value

    def _environment(self, arguments: tuple[str, ...], parent: Path) -> object:
        """oc.env: a variable that the launch sets, else the default, else it stays symbolic."""
        name = str(self._argument(arguments[0], parent))
        word = self._exported.get(name)
        if word is None and len(arguments) < 2:
            word = self._assigned.get(name)
        is_unset = word is None and self._lacks(name)
        if is_unset and len(arguments) < 2:
            raise InterpolationError(f"${name} is unset by the script: give the key's value with --set")
        if word is None and not is_unset and name in self._env:
            return self._env[name]
        if len(arguments) < 2 and (word is None or word.open or word.env_refs):
            raise _Symbolic
        if word is not None:
            if word.open:
                why = f"{word.open[0].expression}, which is known only at run time"
                raise InterpolationError(f"${name} is {why}: give the key's value with --set")
            return word.text
        default = self._argument(arguments[1], parent)
        return default if default is None else str(default)

    def _decode(self, arguments: tuple[str, ...], parent: Path) -> object:
        text = self._argument(arguments[0], parent)
        return text if text is None else self._argument(str(text), parent)


_RESOLVERS: dict[str, Callable[[Resolver, tuple[str, ...], Path], object]] = {
    "oc.select": Resolver._select,
    "oc.env": Resolver._environment,
    "oc.decode": Resolver._decode,
}


def _join(dots: str, name: str, parent: Path) -> Path | None:
    """The absolute path of a reference: one dot is the node's own parent, each further one a level up."""
    parts = _parts(name)
    if not dots:
        return parts
    up = len(dots) - 1
    return None if up > len(parent) else (*parent[: len(parent) - up], *parts)


@lru_cache(maxsize=_KNOWN)
def _literal(text: str) -> object:
    return parse_value(text)


@lru_cache(maxsize=_KNOWN)
def _parts(name: str) -> Path:
    return tuple(part for part in re.split(r"[.\[\]]+", name) if part)


@lru_cache(maxsize=_KNOWN)
def _closing(text: str, opening: int) -> int:
    """Index of the brace that closes the one at ``opening``. Raises InterpolationError."""
    depth = 0
    for index in range(opening, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0:
            return index
    raise InterpolationError(f"'{text}' lacks a closing brace")


@lru_cache(maxsize=_KNOWN)
def _arguments(text: str) -> tuple[str, ...]:
    """A resolver's arguments, split at the commas outside of brackets and quotes."""
    out, depth, quote, start = [], 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            out.append(text[start:index].strip())
            start = index + 1
    return (*out, text[start:].strip())
