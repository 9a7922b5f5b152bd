"""Hydra's override grammar, read and written: ``key=value``, ``+key=value``, ``++key=value``, ``~key``.

The forms that nearly every launch uses are read here; anything else goes to hydra-core's own
parser (importing it costs more than translating a script). Both give the same result for what
is read here: tests/verl_config/test_verl_grammar.py compares them on generated input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.common.limits import DIGITS, LEVELS

SET, ADD, FORCE, DELETE = "", "+", "++", "~"

_MAX_BRACKETS = 500  # far beyond any configuration; deeper nesting overflows Hydra's parser
_KEY = re.compile(
    r"(\+\+?|~)?([A-Za-z_][\w-]*(?:\.(?:[A-Za-z_][\w-]*|0|[1-9][0-9]*))*)(?:@([\w.]+))?(=|$)", re.A
)
_UINT = r"(?:0|[1-9](?:_?[0-9])*)"
_INT = re.compile(rf"[+-]?{_UINT}")
_POINT = rf"(?:{_UINT}?\.[0-9](?:_?[0-9])*|{_UINT}\.)"
_FLOAT = re.compile(rf"[+-]?(?:{_POINT}|(?:{_POINT}|{_UINT})[eE][+-]?[0-9](?:_?[0-9])*|inf|nan)", re.I)
_PLAIN = re.compile(r"[\w/.:+@%*?|-]+(?: +[\w/.:+@%*?|-]+)*", re.A)
_INTERPOLATED = re.compile(r"[\w/.:+@%*?|-]*(?:\$\{[\w.:,/ -]+\}[\w/.:+@%*?|-]*)+", re.A)
_QUOTED = re.compile(r"'([^'\\\n]*)'|\"([^\"\\\n]*)\"")
_SPACE = re.compile(r"[ \t]*")
_ITEM = re.compile(r"[\w/.+@%*?|-]+", re.A)
_BRACKET = re.compile(r"[][{}]")
_LONG_NUMBER = re.compile(rf"(?<![\w.])[+-]?[0-9][0-9_]{{{DIGITS},}}(?![\w.])", re.A)
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None}


class OverrideSyntaxError(ValueError):
    """Hydra cannot read this argument; the message is for the user."""


class SweepError(OverrideSyntaxError):
    """The argument asks for several runs (``key=1,2``), which only --multirun understands."""


@dataclass(frozen=True, slots=True)
class Override:
    """One argument as Hydra understands it. ``value`` is None for ``~key`` and for ``null``."""

    line: str
    op: str  # SET | ADD | FORCE | DELETE
    key: str
    value: Any
    package: str | None = None  # of ``group@package=choice``
    has_value: bool = True


class _NotPlain(Exception):
    """The text needs hydra's own parser."""


def parse_override(line: str) -> Override:
    """Read one argument. Raises OverrideSyntaxError, SweepError for a sweep."""
    if line.count("[") + line.count("{") > _MAX_BRACKETS or _levels(line) > LEVELS:
        raise OverrideSyntaxError(f"more than {_MAX_BRACKETS} brackets, or {LEVELS} in each other")
    if line.partition("=")[0].count(".") > LEVELS:
        raise OverrideSyntaxError(f"a key of more than {LEVELS} parts")
    if _LONG_NUMBER.search(line):
        raise OverrideSyntaxError(f"a number of more than {DIGITS} digits")
    try:
        return _parse(line)
    except RecursionError:
        raise OverrideSyntaxError("nested too deeply") from None
    except ValueError as error:
        if isinstance(error, OverrideSyntaxError):
            raise
        raise OverrideSyntaxError("a number with too many digits") from None


def _levels(line: str) -> int:
    """Return how many brackets are open at once, quoted ones too."""
    level = deepest = 0
    for bracket in _BRACKET.findall(line):
        level += 1 if bracket in "[{" else -1
        deepest = max(deepest, level)
    return deepest


def _parse(line: str) -> Override:
    match = _KEY.match(line)
    if match is None:
        return _by_hydra(line)
    op, key, package, equals = match.groups()
    if not equals and op != DELETE:
        return _by_hydra(line)
    try:
        value = _plain_value(line[match.end() :]) if equals else None
    except _NotPlain:
        return _by_hydra(line)
    return Override(line, op or SET, key, value, package, bool(equals))


def parse_value(text: str) -> Any:
    """Read a value by the override grammar (OmegaConf's resolver arguments share it)."""
    return parse_override(f"x={text}").value


def split_key(line: str) -> tuple[str, str, str | None]:
    """(operator, key, value text) of an argument by its looks; the text is None without a ``=``."""
    head, equals, text = line.partition("=")
    op = next((prefix for prefix in (FORCE, ADD, DELETE) if head.startswith(prefix)), SET)
    return op, head[len(op) :], text if equals else None


def _plain_value(text: str) -> object:
    if not text:
        return ""
    if text[0] in "[{'\"":
        value, end = _element(text, 0)
        if end != len(text):
            raise _NotPlain
        return value
    if _PLAIN.fullmatch(text) or _INTERPOLATED.fullmatch(text):
        return _primitive(text)
    raise _NotPlain


def _primitive(text: str) -> object:
    lowered = text.lower()
    if lowered in _WORDS:
        return _WORDS[lowered]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _element(text: str, at: int) -> tuple[object, int]:
    """A quoted string, list, dict or bare item starting at ``at``, and where it ends."""
    first = text[at : at + 1]
    if first == "[":
        return _list(text, at + 1)
    if first == "{":
        return _dict(text, at + 1)
    quoted = _QUOTED.match(text, at)
    if quoted:
        return quoted.group(1) if quoted.group(1) is not None else quoted.group(2), quoted.end()
    item = _ITEM.match(text, at)
    if item is None:
        raise _NotPlain
    return _primitive(item.group()), item.end()


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _list(text: str, at: int) -> tuple[list[object], int]:
    out: list[object] = []
    at = _skip(text, at)
    if text[at : at + 1] == "]":
        return out, at + 1
    while True:
        value, at = _element(text, at)
        out.append(value)
        at = _skip(text, at)
        if text[at : at + 1] == "]":
            return out, at + 1
        if text[at : at + 1] != ",":
            raise _NotPlain
        at = _skip(text, at + 1)


def _dict(text: str, at: int) -> tuple[dict[object, object], int]:
    out: dict[object, object] = {}
    at = _skip(text, at)
    if text[at : at + 1] == "}":
        return out, at + 1
    while True:
        key, at = _dict_key(text, at)
        out[key], at = _element(text, at)
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return out, at + 1
        if text[at : at + 1] != ",":
            raise _NotPlain
        at = _skip(text, at + 1)


def _dict_key(text: str, at: int) -> tuple[object, int]:
    key = _ITEM.match(text, at)
    if key is None:
        raise _NotPlain
    colon = _skip(text, key.end())
    if text[colon : colon + 1] != ":":
        raise _NotPlain
    return _primitive(key.group()), _skip(text, colon + 1)


def _by_hydra(line: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(line)
    except HydraException as error:
        raise OverrideSyntaxError((str(error).splitlines() or [""])[0]) from None
    if parsed.is_sweep_override():
        raise SweepError(f"'{line}' names several values")
    ops = {
        OverrideType.CHANGE: SET,
        OverrideType.ADD: ADD,
        OverrideType.FORCE_ADD: FORCE,
        OverrideType.DEL: DELETE,
    }
    value = parsed.value()
    has_value = "=" in line
    return Override(line, ops[parsed.type], parsed.key_or_group, value, parsed.package, has_value)


def hydra_text(value: object) -> str | None:
    """Return the text that Hydra reads as ``value``, None where its grammar has none."""
    try:
        text = _text(value)
    except ValueError:
        return None
    return text if _reads_as(text, value) else None


def _text(value: object) -> str:
    """Raises ValueError for a text that has no spelling."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return _of_string(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_item_text(key)}:{_item_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_item_text, value)) + "]"
    return str(value)


def _item_text(value: object) -> str:
    """An element of a list or a dictionary, where a text with a comma or a bracket needs quotes."""
    text = _text(value)
    if isinstance(value, str) and not _reads_as(f"[{text}]", [value]):
        return _of_string(value, quoted=True)
    return text


def _of_string(value: str, *, quoted: bool = False) -> str:
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (found[2] and "\\'"), value)
    for spelled in (value, f"'{escaped}'", f'"{value}"'):
        if not (quoted and spelled is value) and _reads_as(spelled, value):
            return spelled
    raise ValueError(value)


def _reads_as(text: str, value: object) -> bool:
    try:
        read = parse_value(text)
    except OverrideSyntaxError:
        return False
    return type(read) is type(value) and bool(read == value)
