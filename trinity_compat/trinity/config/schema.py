"""The fields that a release of trinity-rft accepts, loaded from ``translators/generated/trinity/``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import TARGETS
from trinity_compat.common.resources import data_json


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type as upstream's dataclasses spell it.

    ``kind`` is str, int, float, bool, any, enum, list, dict or class. ``item`` is the type of the
    elements of a list or of the values of a dict, ``class_name`` the dataclass, ``values`` the spellings
    of an enum, ``aliases`` further ones with the value that each means.
    """

    kind: str
    optional: bool = False
    item: FieldType | None = None
    class_name: str = ""
    values: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()

    def meaning(self, text: str) -> str | None:
        """Return the value of an enum that ``text`` spells, in any case; None if it spells none."""
        low = text.lower()
        return low if low in self.values else dict(self.aliases).get(low)

    @property
    def free_form(self) -> bool:
        """True where upstream takes any keys: a dict of anything, or Any."""
        return self.kind == "any" or (
            self.kind == "dict" and self.item is not None and self.item.kind == "any"
        )


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a dataclass. ``default`` is None for nested dataclasses, whose fields have their own."""

    name: str
    type: FieldType
    default: object = None
    required: bool = False
    deprecated: str = ""


@dataclass(frozen=True, slots=True)
class Schema:
    """All dataclasses of one release by name; ``root`` is the name of the outermost."""

    version: str
    classes: Mapping[str, Mapping[str, SchemaField]]
    root: str = "Config"

    @property
    def fields(self) -> Mapping[str, SchemaField]:
        """The sections and top-level fields, in upstream's order."""
        return self.classes[self.root]

    def find(self, path: str) -> SchemaField | None:
        """Return the field at a dotted path; None when the release has none there.

        List positions and dict keys count as one part each. Inside a free-form place every path
        is found, with the type ``any``.
        """
        at = SchemaField("", FieldType("class", class_name=self.root))
        for part in path.split("."):
            kind, found = at.type, None
            if kind.free_form:
                found = SchemaField(part, FieldType("any", optional=True))
            elif kind.kind == "class":
                found = self.classes[kind.class_name].get(part)
            elif kind.kind in ("list", "dict") and kind.item is not None:
                found = SchemaField(part, kind.item)
            if found is None:
                return None
            at = found
        return at

    def default(self, path: str) -> object:
        """Return the default at a dotted path; KeyError when the release has no such field."""
        field = self.find(path)
        if field is None:
            raise KeyError(path)
        return field.default


@functools.cache
def schema(target: str) -> Schema:
    """Return the schema of a trinity-rft release.

    Raises UserError for a release that we have no schema of.
    """
    if target not in TARGETS:
        raise UserError(f"no schema of trinity-rft {target!r}", hint=f"the targets are {', '.join(TARGETS)}")
    data = data_json(f"translators/generated/trinity/{target}.json")
    classes = {
        name: {
            key: SchemaField(
                key, _type(form), form.get("default"), form.get("required", False), form.get("deprecated", "")
            )
            for key, form in fields.items()
        }
        for name, fields in data["classes"].items()
    }
    return Schema(version=data["version"], classes=classes, root=data["root"])


def _type(form: Mapping[str, Any]) -> FieldType:
    return FieldType(
        kind=form["type"],
        optional=form.get("optional", False),
        item=_type(form["item"]) if "item" in form else None,
        class_name=form.get("class", ""),
        values=tuple(form.get("values", ())),
        aliases=tuple(form.get("aliases", {}).items()),
    )
