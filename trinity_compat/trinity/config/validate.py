"""Checks of a Trinity configuration against a release's schema, as upstream's OmegaConf merge would.

The merge accepts what converts: an int for a float, a number for a string, "true" for a bool. A value
that holds an interpolation (``${oc.env:…}``) is only known when upstream resolves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trinity_compat.common.nested import joined, value_at
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.common.suggestions import nearest, question
from trinity_compat.trinity.config.schema import FieldType, Schema, schema


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one place. ``path`` is dotted, list positions as numbers: ``eval_tasksets.0.path``."""

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" + (f" ({self.hint})" if self.hint else "")


_OF_OLDER = "buffer.explorer_input.tasksets.0.workflow_args.trinity_compat"
_TRUE, _FALSE = ("yes", "y", "on", "true", "1"), ("no", "n", "off", "false", "0")  # OmegaConf's BooleanNode


def validate(config: Mapping[str, object], target: str) -> list[Problem]:
    """Return everything that trinity-rft ``target`` would refuse when it merges ``config``.

    Unknown fields carry the nearest known spelling, wrong types what is expected. Empty when the merge
    succeeds. Raises UserError for an unknown target.
    """
    rules = schema(target)
    problems = list(_check(config, FieldType("class", class_name=rules.root), "", rules))
    if target == TRINITY and value_at(config, _OF_OLDER) is not None:
        problems.append(Problem(_OF_OLDER, f"translate writes this for trinity-rft {TRINITY_OLD} alone"))
    return problems


def problems_at(path: str, value: object, target: str) -> list[Problem]:
    """Validate one value at a dotted path, like ``validate``. Empty if the release has no such field."""
    rules = schema(target)
    field = rules.find(path)
    return [] if field is None else list(_check(value, field.type, path, rules))


def _check(value: object, kind: FieldType, path: str, rules: Schema) -> Iterator[Problem]:
    if value is None:
        if not kind.optional and kind.kind != "any":
            yield Problem(
                path, f"null where {_wanted(kind)} is expected", "leave the field out for its default"
            )
    elif _interpolated(value) or kind.kind == "any":
        return
    elif kind.kind == "class":
        yield from _check_class(value, kind, path, rules)
    elif kind.kind == "list" and not isinstance(value, (list, tuple)):
        yield Problem(path, f"{value!r} where a list is expected")
    elif kind.kind == "dict" and not isinstance(value, Mapping):
        yield Problem(path, f"{value!r} where a mapping is expected")
    elif kind.kind in ("list", "dict") and isinstance(value, (list, tuple, Mapping)):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _check(inner, kind.item or FieldType("any"), joined(path, key), rules)
    elif not _fits(value, kind):
        yield Problem(path, f"{value!r} where {_wanted(kind)} is expected")


def _check_class(value: object, kind: FieldType, path: str, rules: Schema) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(path, f"{value!r} where a section is expected")
        return
    fields = rules.classes[kind.class_name]
    for key, inner in value.items():
        field = fields.get(key)
        if field is None:
            hint = question(nearest(str(key), fields))
            yield Problem(joined(path, key), f"trinity-rft {rules.version} has no such field", hint)
        else:
            yield from _check(inner, field.type, joined(path, key), rules)
    for name, field in fields.items():
        if field.required and name not in value:
            yield Problem(joined(path, name), "is required")


def converted(config: Mapping[str, object], target: str) -> dict[str, object]:
    """Return a ``config`` that has no problem, each text in the type of its field, as the merge makes it."""
    rules = schema(target)
    merged: dict[str, object] = _converted(config, FieldType("class", class_name=rules.root), rules)
    return merged


def _converted(value: Any, kind: FieldType, rules: Schema) -> Any:
    if value is None or _interpolated(value):
        return value
    if kind.kind == "class":
        fields = rules.classes[kind.class_name]
        return {key: _converted(inner, fields[key].type, rules) for key, inner in value.items()}
    if kind.kind == "list":
        return [_converted(inner, kind.item or FieldType("any"), rules) for inner in value]
    if kind.kind == "dict":
        return {key: _converted(inner, kind.item or FieldType("any"), rules) for key, inner in value.items()}
    if kind.kind == "bool":
        return value.lower() in _TRUE if isinstance(value, str) else bool(value)
    if kind.kind in ("int", "float") and isinstance(value, str):
        return int(value) if kind.kind == "int" else float(value)
    return value


def _interpolated(value: object) -> bool:
    return isinstance(value, str) and "${" in value


def _wanted(kind: FieldType) -> str:
    names = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a string"}
    if kind.kind == "enum":
        return "one of " + ", ".join(kind.values)
    return names.get(kind.kind, f"a {kind.kind}")


def _fits(value: object, kind: FieldType) -> bool:
    """Return whether the merge takes a scalar: one of the type, or one that converts."""
    if kind.kind == "enum":
        return isinstance(value, str) and kind.meaning(value) is not None
    if kind.kind == "str":
        return isinstance(value, (str, int, float))
    if kind.kind == "bool":
        return (
            value.lower() in (*_TRUE, *_FALSE) if isinstance(value, str) else isinstance(value, (bool, int))
        )
    to = int if kind.kind == "int" else float
    if not isinstance(value, str):
        return isinstance(value, (int, to)) and not isinstance(value, bool)
    try:
        to(value)
    except ValueError:
        return False
    return True
