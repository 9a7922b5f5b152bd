"""Interpolation of variables and fields in a Trinity YAML.

Variables are ``${oc.env:NAME,default}``; a native YAML may also name its own fields, ``${model.model_path}``.
Upstream resolves both when it loads the file, a run when it is planned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trinity_compat.common.bounded_yaml import safe_load
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree
from trinity_compat.common.redaction import is_secret
from trinity_compat.translate.verl_from_trinity import from_launch
from trinity_compat.trinity.config import TARGETS
from trinity_compat.trinity.config.schema import schema
from trinity_compat.verl_config.interpolate import InterpolationError, Path, Resolver, resolved_alone

_VERL_OWN: Path = ("trainer", "trainer_config")  # what its keys name beyond the file is veRL's to resolve
_NAMED = re.compile(r"\$\{oc\.env:(\w+)")
_ANY = re.compile(r"\\?\$\{(oc\.env:(\w+))?")
# kind in the schema → the types that it takes, and how it is called
_NUMBERS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


def filled(config: Tree, environ: Mapping[str, str]) -> dict[str, object]:
    """Fill in variables that ``environ`` has, or their defaults, and fields that other fields name.

    A variable without either stays unresolved, and so does one that holds a secret: ``redaction.resolved``
    fills it in where nothing is written any more. Raises UserError for a text where upstream's schema has a
    number, and for an unknown field.
    """
    env = {name: value for name, value in environ.items() if not is_secret(name)}
    fields = None if from_launch(config) else Resolver(config, env)
    return {key: _filled(value, (key,), env, fields) for key, value in config.items()}


def _filled(value: object, path: Path, env: Mapping[str, str], fields: Resolver | None) -> object:
    if isinstance(value, Mapping):
        return {key: _filled(part, (*path, key), env, fields) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, (*path, position), env, fields) for position, part in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    dotted = ".".join(map(str, path))
    names = [match[2] for match in _ANY.finditer(value)]
    # Interpolations that name no variable are veRL's own, or name fields of the file.
    if names and all(name and not is_secret(name) for name in names):
        text = resolved_alone(value, env)
    elif fields and not any(map(is_secret, _NAMED.findall(value))):
        try:
            text = fields.value(path, value)
        except InterpolationError as error:
            if path[:2] == _VERL_OWN:
                return value
            raise UserError(
                f"{dotted}: {value} cannot be resolved ({error})",
                hint="write a field of this file with its sections, as ${model.model_path}",
            ) from None
    else:
        return value
    return _typed(text, value, dotted) if isinstance(text, str) and "${" not in text else text


def _typed(text: str, written: str, path: str) -> object:
    """A variable is a text; where the schema has a number or a truth value it is read as one."""
    field = schema(TARGETS[0]).find(path)
    if field is None or field.type.kind not in _NUMBERS:
        return text
    types, called = _NUMBERS[field.type.kind]
    value = safe_load(text) if re.fullmatch(r"[\w.+-]*", text) else text
    if (value is None and field.type.optional) or type(value) in types:
        return value
    raise UserError(f"{path}: {written} is {text!r} here, not {called}", hint="set the variable to one")
