"""Treatment of each field of a hand-written Trinity YAML: read, without effect, or refused.

The table is data, ``translators/by_hand/trinity_fields.json``. ``read`` lists the fields that are read,
``no_effect`` those without effect, each with the reason. A field in ``refused`` is refused unless it has
upstream's default; its entry has the reason and what to write instead. In a name, ``*`` stands for any part.
docs/reference/trinity.md is generated from this table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from trinity_compat.common.resources import data_json
from trinity_compat.trinity.config.schema import FieldType, Schema

Kind = Literal["read", "no effect", "refused"]


@dataclass(frozen=True, slots=True)
class FieldTreatment:
    """The treatment of a field; ``why`` and ``hint`` are empty for a field that is read."""

    kind: Kind
    why: str = ""
    hint: str = ""


@functools.cache
def table() -> Mapping[str, FieldTreatment]:
    """Return pattern of a path → its treatment."""
    data = data_json("translators/by_hand/trinity_fields.json")
    read = {path: FieldTreatment("read") for path in data["read"]}
    unread = {path: FieldTreatment("no effect", why) for path, why in data["no_effect"].items()}
    return read | unread | {path: FieldTreatment("refused", **row) for path, row in data["refused"].items()}


@functools.cache
def fate_of(path: str) -> FieldTreatment | None:
    """Return the treatment of a field; None if the table has none. Of several patterns the longest counts."""
    # A section of any keys may be empty or null, and stands for what is in it.
    matching = [
        pattern for pattern in table() if fnmatchcase(path, pattern) or fnmatchcase(f"{path}.*", pattern)
    ]
    return table()[max(matching, key=_weight)] if matching else None


def _weight(pattern: str) -> tuple[int, int]:
    return len(pattern.replace("*", "")), -pattern.count("*")


def fields(rules: Schema) -> Iterator[str]:
    """Return every field of a release by its dotted path, ``*`` for a list position or a key of a dict."""
    yield from _fields(rules, FieldType("class", class_name=rules.root), "", ())


def _fields(rules: Schema, kind: FieldType, path: str, inside: tuple[str, ...]) -> Iterator[str]:
    if kind.kind == "class":
        for name, field in rules.classes[kind.class_name].items():
            if field.type.class_name not in inside or field.type.kind != "class":
                below = f"{path}.{name}" if path else name
                yield from _fields(rules, field.type, below, (*inside, kind.class_name))
    elif kind.item is not None and kind.item.kind == "class":
        yield from _fields(rules, kind.item, f"{path}.*", inside)
    else:
        yield path
