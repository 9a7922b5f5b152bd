"""What a run makes of each field of a Trinity YAML by hand: reads it, has no use for it, or refuses it.

The table is data, ``translators/trinity_fields.json``: ``read``, ``no_effect`` with the reason, ``refused``
with the reason and what to write instead where the value is not upstream's default. A name may have ``*``
for any part. docs/reference/trinity.md is made of it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from trinity_compat.data import data_path
from trinity_compat.trinity_config.schema import Schema, Type

Kind = Literal["read", "no effect", "refused"]


@dataclass(frozen=True, slots=True)
class Fate:
    """``why`` and ``hint`` are empty for what is read."""

    kind: Kind
    why: str = ""
    hint: str = ""


@functools.cache
def table() -> Mapping[str, Fate]:
    """Pattern of a path → its fate."""
    data = json.loads(data_path("translators/trinity_fields.json").read_text(encoding="utf-8"))
    read = {path: Fate("read") for path in data["read"]}
    unread = {path: Fate("no effect", why) for path, why in data["no_effect"].items()}
    return read | unread | {path: Fate("refused", **row) for path, row in data["refused"].items()}


@functools.cache
def fate_of(path: str) -> Fate | None:
    """What becomes of a field; None where nobody has said. Of several patterns the longest counts."""
    matching = [pattern for pattern in table() if _matches(path, pattern)]
    return table()[max(matching, key=_weight)] if matching else None


def _matches(path: str, pattern: str) -> bool:
    # A section of any keys may be empty or null, and stands for what is in it.
    return fnmatchcase(path, pattern) or fnmatchcase(f"{path}.*", pattern)


def _weight(pattern: str) -> tuple[int, int]:
    return len(pattern.replace("*", "")), -pattern.count("*")


def fields(rules: Schema) -> Iterator[str]:
    """Every field of a release by its dotted path, ``*`` for a position in a list or a key of a dict."""
    yield from _fields(rules, Type("class", class_name=rules.root), "", ())


def _fields(rules: Schema, kind: Type, path: str, inside: tuple[str, ...]) -> Iterator[str]:
    if kind.kind == "class":
        for name, field in rules.classes[kind.class_name].items():
            if field.type.class_name not in inside or field.type.kind != "class":
                below = f"{path}.{name}" if path else name
                yield from _fields(rules, field.type, below, (*inside, kind.class_name))
    elif kind.item is not None and kind.item.kind == "class":
        yield from _fields(rules, kind.item, f"{path}.*", inside)
    else:
        yield path
