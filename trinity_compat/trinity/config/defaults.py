"""The defaults of trinity-rft's fields and of its algorithms.

Both are data, extracted from the real package (``scripts/generate/extract_trinity_schema.py``,
``scripts/generate/extract_trinity_defaults.py``) and held against it by tests/upstream.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from trinity_compat.common.nested import copied
from trinity_compat.common.resources import data_json
from trinity_compat.trinity.config.schema import FieldType, Schema, schema


@dataclass(frozen=True, slots=True)
class AlgorithmDefaults:
    """The defaults that an algorithm sets.

    ``algorithms``: algorithm_type → field → value, ``use_critic`` among them. ``functions``: field → function
    → the arguments used if its ``_args`` is missing.
    """

    algorithms: Mapping[str, Mapping[str, object]]
    functions: Mapping[str, Mapping[str, Mapping[str, object]]]


@functools.cache
def algorithm_defaults(target: str) -> AlgorithmDefaults:
    """Return the defaults of trinity-rft ``target``. Raises UserError for a release without data."""
    schema(target)
    data = data_json(f"translators/generated/trinity_defaults/{target}.json")
    return AlgorithmDefaults(data["algorithms"], data["functions"])


def with_defaults(given: Mapping[str, object], class_name: str, target: str) -> dict[str, object]:
    """Return ``given`` with the dataclass's defaults for missing fields, in nested sections too.

    A section that is null by default stays away; a default of null is not written.
    """
    return _filled(given, class_name, schema(target))


def _filled(given: Mapping[str, object], class_name: str, rules: Schema) -> dict[str, object]:
    out = dict(given)
    for name, field in rules.classes[class_name].items():
        value = out.get(name)
        if value is None:
            default = _default(field.type, field.default, rules)
            if default is not None:
                out[name] = default
        elif field.type.kind == "class" and isinstance(value, Mapping):
            out[name] = _filled(value, field.type.class_name, rules)
    return out


def _default(kind: FieldType, value: object, rules: Schema) -> object:
    if kind.kind == "class":
        return None if kind.optional else _filled({}, kind.class_name, rules)
    return copied({"": value})[""] if isinstance(value, dict | list) else value
