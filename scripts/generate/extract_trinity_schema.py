"""Write the configuration schema of the installed trinity-rft as JSON.

Run it with the interpreter that has the release in question:

    .venv-upstream-0.6.0/bin/python scripts/generate/extract_trinity_schema.py \
        translators/generated/trinity/0.6.0.json

The result is the only thing that the light side knows of upstream's dataclasses: every field with its
type, default and, where upstream's own comment says so, that it is deprecated.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import io
import json
import sys
import tokenize
import types
import typing
from pathlib import Path
from typing import Any

import trinity
from trinity.common.config import Config

_SCALARS = {str: "str", int: "int", float: "float", bool: "bool"}


def describe_type(hint: Any, classes: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a type hint and queue the dataclasses that it names."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [a for a in arguments if a is not type(None)]
        return {**describe_type(inner, classes), "optional": True}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if dataclasses.is_dataclass(hint):
        classes.setdefault(hint.__name__, hint)
        return {"type": "class", "class": hint.__name__}
    if inspect.isclass(hint) and issubclass(hint, enum.Enum):
        form = {"type": "enum", "values": [m.value for m in hint], "names": [m.name for m in hint]}
        aliases = aliases_of(hint)
        return {**form, "aliases": aliases} if aliases else form
    if origin is list:
        return {"type": "list", "item": describe_type(arguments[0], classes)}
    if hint is dict or origin is dict:
        item = describe_type(arguments[1], classes) if len(arguments) == 2 else {"type": "any"}
        return {"type": "dict", "item": item}
    if hint is Any:
        return {"type": "any"}
    raise TypeError(f"no JSON form for {hint!r}: teach describe_type about it")


def aliases_of(kind: type[enum.Enum]) -> dict[str, str]:
    """Further spellings that OmegaConf's look-up by name takes → the value that each means."""
    named: dict[str, str] = getattr(type(kind), "name_aliases", {})
    return {alias: kind[alias].value for alias in named}


def describe_default(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return {"default": …}, {} for a nested dataclass, or {"required": True}."""
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return {"required": True}
    if dataclasses.is_dataclass(value):
        return {}
    return {"default": value.value if isinstance(value, enum.Enum) else value}


def deprecations(cls: type) -> dict[str, str]:
    """Return field → upstream's own comment on it, for fields whose line says "deprecated"."""
    found: dict[str, str] = {}
    names: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(cls)).readline):
        if token.type == tokenize.NAME:
            names.append(token.string)
        elif token.type == tokenize.COMMENT and names and "deprecated" in token.string.lower():
            found[names[0]] = token.string.strip("# !")
        elif token.type == tokenize.NEWLINE:
            names = []
    return found


def describe_class(cls: type, classes: dict[str, Any]) -> dict[str, Any]:
    """Return field name → its JSON form, in upstream's order."""
    hints, old = typing.get_type_hints(cls), deprecations(cls)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        form = {**describe_type(hints[field.name], classes), **describe_default(field)}
        if field.name in old:
            form["deprecated"] = old[field.name]
        fields[field.name] = form
    return fields


def extract() -> dict[str, Any]:
    """Return the whole schema: every dataclass reachable from Config."""
    queued: dict[str, Any] = {"Config": Config}
    done: dict[str, Any] = {}
    while missing := [name for name in queued if name not in done]:
        for name in missing:
            done[name] = describe_class(queued[name], queued)
    return {"package": "trinity-rft", "version": trinity.__version__, "root": "Config", "classes": done}


def render(schema: dict[str, Any]) -> str:
    """Return the schema as JSON with one field per line, so that two releases can be diffed."""
    lines = [f'{{"package": "{schema["package"]}", "version": "{schema["version"]}", "root": "Config",']
    lines.append('"classes": {')
    for c, (name, fields) in enumerate(schema["classes"].items()):
        lines.append(f"{json.dumps(name)}: {{")
        rows = [f"  {json.dumps(key)}: {json.dumps(form)}" for key, form in fields.items()]
        lines.append(",\n".join(rows))
        lines.append("}," if c < len(schema["classes"]) - 1 else "}")
    return "\n".join([*lines, "}}", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(extract()), encoding="utf-8")
