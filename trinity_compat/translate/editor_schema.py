"""JSON Schema of the Trinity YAML, for editors: upstream's fields, with what becomes of each here.

Made from ``translators/generated/trinity/RELEASE.json`` and ``translators/by_hand/trinity_fields.json``. An
editor then completes fields, shows where one has no effect, and marks misspelt ones. Interpolations pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from trinity_compat.translate.trinity_fields import fate_of
from trinity_compat.trinity.config.schema import FieldType, Schema, SchemaField, schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Mapping[str, str | list[str]] = {
    "str": ["string", "number", "boolean"],  # OmegaConf makes text of them
    "int": "integer",
    "float": "number",
    "bool": "boolean",
}
# Numbers that YAML 1.1 reads as text, and OmegaConf as numbers; interpolations.
_TEXT_FOR: Mapping[str, str] = {
    "int": r"^\s*[-+]?[0-9_]+\s*$|\$\{",
    "float": r"^\s*[-+]?([0-9_.]+([eE][-+]?[0-9]+)?|\.?inf|\.?nan)\s*$|\$\{",
    "bool": r"^\s*([Tt]rue|[Ff]alse|TRUE|FALSE|[Yy]es|[Nn]o|[Oo]n|[Oo]ff)\s*$|\$\{",
}
Json = dict[str, object]


def editor_schema(target: str) -> Json:
    """Return the schema of a YAML for trinity-rft ``target``. Raises UserError for an unknown release."""
    rules = schema(target)
    return {
        "$schema": DRAFT,
        "title": f"YAML for trinity-rft {target}",
        "description": "A configuration of Trinity-RFT, as `translate` writes it and `run` takes it.",
        **_class(rules, rules.root, ""),
    }


def _class(rules: Schema, name: str, path: str) -> Json:
    """Return the schema of a dataclass at ``path``, written out at each place: fates differ by place."""
    fields = {
        key: _field(rules, field, f"{path}.{key}".lstrip(".")) for key, field in rules.classes[name].items()
    }
    return {"type": ["object", "null"], "properties": fields, "additionalProperties": False}


def _field(rules: Schema, field: SchemaField, path: str) -> Json:
    found = _type(rules, field.type, path)
    fate = fate_of(path)
    parts = [f"deprecated: {field.deprecated}"] if field.deprecated else []
    if fate is not None and fate.kind == "no effect":
        parts.append(f"No effect in `trinity-compat run`: {fate.why}.")
    if fate is not None and fate.kind == "refused":
        parts.append(f"`trinity-compat run` takes the default only: {fate.why}; {fate.hint}.")
    told = " ".join(parts)
    if told:
        found["description"] = told
    if field.default is not None:
        found["default"] = field.default
    if field.deprecated:
        found["deprecated"] = True
    return found


def _type(rules: Schema, kind: FieldType, path: str) -> Json:
    """Return the schema of a type. Null passes everywhere: upstream fills it with the default."""
    if kind.free_form or kind.kind == "any":
        return {"type": ["object", "null"]} if kind.kind == "dict" else {}
    if kind.kind == "class":
        return _class(rules, kind.class_name, path)
    if kind.kind == "enum":
        known = [*kind.values, *(alias for alias, _ in kind.aliases)]
        return {"anyOf": [{"enum": [*known, *(each.upper() for each in known), None]}, {"pattern": r"\$\{"}]}
    if kind.kind in ("list", "dict") and kind.item is not None:
        inner = _type(rules, kind.item, f"{path}.*")
        if kind.kind == "list":
            return {"type": ["array", "null"], "items": inner}
        return {"type": ["object", "null"], "additionalProperties": inner}
    plain: Json = {"type": _listed(_TYPES[kind.kind])}
    if kind.kind not in _TEXT_FOR:
        return plain
    return {"anyOf": [plain, {"type": "string", "pattern": _TEXT_FOR[kind.kind]}]}


def _listed(kinds: str | list[str]) -> list[str]:
    return [*([kinds] if isinstance(kinds, str) else kinds), "null"]
