"""Writes a Trinity configuration as YAML, with the reason for each value as a trailing comment.

Written by hand because no YAML library for Python puts comments behind values at the speed that
``translate`` needs. Strings are quoted unless they are words that every YAML 1.1 and 1.2 reader takes
for a string; floats always carry a dot, since ``1e-6`` is a string to PyYAML and a number to OmegaConf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity_compat.common.output_text import plain, visible
from trinity_compat.trinity.config.schema import TARGETS, FieldType, Schema, schema

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_WORDS_THAT_MEAN_SOMETHING_ELSE = frozenset(
    {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"}
)
_SAFE_IN_DOUBLE_QUOTES = re.compile(
    r"[\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_NAMED_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def dump(
    config: Mapping[str, object],
    provenance: Mapping[str, str] | None = None,
    *,
    header: Sequence[str] = (),
    comments: bool = True,
) -> str:
    """Return ``config`` as YAML text, ending in a newline.

    ``provenance`` maps dotted paths (list positions as ``.0`` or ``[0]``) to a comment that goes behind
    that line; ``header`` lines become comments on top. ``comments=False`` leaves both out. The sections
    and fields come in the schema's order, what the schema doesn't know after them in the given order.

    Raises TypeError for a value that YAML has no plain form for (anything but None, bool, int, float,
    str, lists and mappings of them).
    """
    told = (provenance or {}) if comments else {}
    notes = {re.sub(r"\[(\d+)\]", r".\1", path): _one_line(text) for path, text in told.items()}
    rules = schema(TARGETS[0])
    emitter = _Emitter(notes, rules)
    lines = [f"# {_one_line(text)}".rstrip() for text in header] if comments else []
    for name, value, kind in emitter.ordered(config, FieldType("class", class_name=rules.root)):
        if lines and isinstance(value, Mapping) and value:
            lines.append("")
        lines += emitter.entry(name, value, kind, path=str(name), indent="")
    if not config:
        lines.append("{}")
    return "\n".join(lines) + "\n"


class _Emitter:
    def __init__(self, notes: Mapping[str, str], rules: Schema) -> None:
        self._notes = notes
        self._rules = rules

    def ordered(
        self, mapping: Mapping[Any, object], kind: FieldType
    ) -> Iterator[tuple[object, object, FieldType]]:
        """Yield (key, value, type) of a mapping: the schema's fields first, in its order."""
        fields = self._rules.classes.get(kind.class_name, {})
        for name in (*fields, *(key for key in mapping if key not in fields)):
            if name in mapping:
                field = fields.get(name)
                inner = field.type if field else (kind.item or FieldType("any"))
                yield name, mapping[name], inner

    def entry(self, key: object, value: object, kind: FieldType, *, path: str, indent: str) -> Iterator[str]:
        """Yield the lines of ``key: value``."""
        head = f"{indent}{scalar(key)}:"
        flow = _flow(value)
        if flow is not None:
            yield f"{head} {flow}{self._note(path)}"
            return
        yield f"{head}{self._note(path)}"
        yield from self._block(value, kind, path=path, indent=indent + "  ")

    def _block(self, value: object, kind: FieldType, *, path: str, indent: str) -> Iterator[str]:
        if isinstance(value, Mapping):
            for key, inner, inner_kind in self.ordered(value, kind):
                yield from self.entry(key, inner, inner_kind, path=f"{path}.{key}", indent=indent)
            return
        assert isinstance(value, list | tuple)  # what _flow leaves
        for position, item in enumerate(value):
            yield from self._item(
                item, kind.item or FieldType("any"), path=f"{path}.{position}", indent=indent
            )

    def _item(self, value: object, kind: FieldType, *, path: str, indent: str) -> Iterator[str]:
        flow = _flow(value)
        if flow is not None:
            yield f"{indent}- {flow}{self._note(path)}"
            return
        if note := self._note(path):
            yield f"{indent}{note.strip()}"
        lines = self._block(value, kind, path=path, indent=indent + "  ")
        first = next(lines)
        while first.lstrip().startswith("#"):  # a nested list's own note stays above its dash
            yield f"{indent}{first.strip()}"
            first = next(lines)
        yield f"{indent}- {first[len(indent) + 2 :]}"
        yield from lines

    def _note(self, path: str) -> str:
        text = self._notes.get(path)
        return f"  # {text}" if text else ""


def scalar(value: object) -> str:
    """Return one scalar as YAML; the same value under yaml.safe_load and OmegaConf's loader."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS_THAT_MEAN_SOMETHING_ELSE:
            return value
        if "\\" not in value and all(0x20 <= ord(c) < 0x7F for c in value) and plain(value) == value:
            return "'" + value.replace("'", "''") + "'"
        return '"' + "".join(map(_escaped, value)).replace("##[", "#\\x23[") + '"'
    raise TypeError(f"no YAML form for {value!r} of type {type(value).__name__}")


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}.0e{exponent}" if mark and "." not in mantissa else text


def _escaped(char: str) -> str:
    if char in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[char]
    if _SAFE_IN_DOUBLE_QUOTES.match(char) and visible(char) == char:
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _flow(value: object) -> str | None:
    """Return the one-line form of a scalar, an empty container or a list of scalars, else None."""
    if isinstance(value, Mapping):
        return None if value else "{}"
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (Mapping, list, tuple)) for item in value):
            return None
        return "[" + ", ".join(map(scalar, value)) + "]"
    return scalar(value)


def _one_line(text: str) -> str:
    """Collapse white space and drop what is not printable: a comment must not end its line early."""
    return plain(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
