"""Variables that a Trinity YAML names, ``${oc.env:NAME,default}``: upstream resolves them when it loads the
file, a run when it is planned."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

from trinity_compat.containers import Tree
from trinity_compat.errors import UserError
from trinity_compat.secret import is_secret
from trinity_compat.trinity_config import TARGETS
from trinity_compat.trinity_config.schema import schema
from trinity_compat.verl_config.interpolate import resolved_alone

_ANY = re.compile(r"\\?\$\{(oc\.env:(\w+))?")
# kind in the schema → the types that it takes, and how it is called
_NUMBERS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


def filled(config: Tree, environ: Mapping[str, str]) -> dict[str, object]:
    """``config`` with the value of each variable that ``environ`` has, else its default.

    A variable without either stays named, and so does one that holds a secret: ``secret.resolved`` fills it
    in where nothing is written any more. Raises UserError for a text where upstream's schema has a number.
    """
    env = {name: value for name, value in environ.items() if not is_secret(name)}
    return {key: _filled(value, key, env) for key, value in config.items()}


def _filled(value: object, path: str, env: Mapping[str, str]) -> object:
    if isinstance(value, Mapping):
        return {key: _filled(part, f"{path}.{key}", env) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, f"{path}.{position}", env) for position, part in enumerate(value)]
    if not isinstance(value, str) or not _names_variables(value):
        return value
    text = resolved_alone(value, env)
    return _typed(text, value, path) if isinstance(text, str) and "${" not in text else text


def _names_variables(text: str) -> bool:
    """Whether ``text`` has interpolations, and all of them are variables that hold no secret. Others are
    veRL's own, of keys that are carried for it."""
    names = [match[2] for match in _ANY.finditer(text)]
    return bool(names) and all(name and not is_secret(name) for name in names)


def _typed(text: str, written: str, path: str) -> object:
    """A variable is a text; where the schema has a number or a truth value it is read as one."""
    field = schema(TARGETS[0]).find(path)
    if field is None or field.type.kind not in _NUMBERS:
        return text
    types, called = _NUMBERS[field.type.kind]
    value = yaml.safe_load(text) if re.fullmatch(r"[\w.+-]*", text) else text
    if (value is None and field.type.optional) or type(value) in types:
        return value
    raise UserError(f"{path}: {written} is {text!r} here, not {called}", hint="set the variable to one")
