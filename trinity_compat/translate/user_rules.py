"""A user's own rows (``--rules FILE``): a YAML mapping of veRL keys to rows, checked before it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trinity_compat.errors import UserError, Where
from trinity_compat.translate.model import Status
from trinity_compat.verl_config.yaml_files import key_lines

CODE = "TC002"


def read(path: Path, hows: Mapping[str, Status]) -> dict[str, dict[str, object]]:
    """key → the row's fields, ``why`` and ``code`` filled in. ``hows``: what a row's ``how`` may be.

    Raises UserError with file and line for what can't be read or is no row.
    """
    import yaml  # only here: the shipped rows are JSON because it loads forty times faster

    try:
        text = path.read_text(encoding="utf-8")
        lines = key_lines(text)
        forms = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read the rules: {_told(error)}", where=Where(str(path))) from None
    if not isinstance(forms, Mapping):
        raise UserError("rules are a mapping of veRL keys to rows", where=Where(str(path)))
    for key, form in forms.items():
        problem = _problem(form, hows)
        if problem:
            message, hint = problem
            where = Where(str(path), lines.get(str(key), 0))
            raise UserError(f"rule for {str(key)!r} {message}", where=where, hint=hint)
    defaults = {"why": f"a rule of {path.name}", "code": CODE}
    return {str(key): {**defaults, **form} for key, form in forms.items()}


def _told(error: Exception) -> str:
    """One line: the command line shows the place already."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else str(error)


Problem = tuple[str, str | None]


def _problem(form: object, hows: Mapping[str, Status]) -> Problem | None:
    """What is wrong with a row, and what to write instead."""
    if not isinstance(form, Mapping):
        return "is no row", "how: copy, to: a.path.of.Trinity's, why: …"
    for name, value in form.items():
        if name not in _FIELDS:
            return f"has a field {name!r} that no row has", f"one of {', '.join(_FIELDS)}"
        accepts, asked = _FIELDS[name]
        if not accepts(value):
            return f"has {name}: {value!r}", f"{name} is {asked}"
    how = form.get("how")
    if how not in hows:
        return "lacks a valid 'how'", f"one of {', '.join(hows)}"
    if how in ("copy", "scale") and not form.get("to"):
        return "lacks its target 'to'", None
    return _derivation(form) or _target(form)


def _derivation(form: Mapping[str, object]) -> Problem | None:
    from trinity_compat.translate.sections import DERIVATIONS

    if form["how"] == "derive" and form.get("by") not in DERIVATIONS:
        return f"has no derivation {form.get('by')!r}", f"one of {', '.join(DERIVATIONS)}"
    return None


def _target(form: Mapping[str, Any]) -> Problem | None:
    """``copy`` and ``scale`` write to fields of Trinity's that must be there."""
    from trinity_compat.trinity_config import TARGETS, schema

    for path in paths_of(form.get("to", ())) if form["how"] in ("copy", "scale") else ():
        if not any(schema(target).find(path) for target in TARGETS):
            return f"has a target that no trinity-rft has: {path}", None
    return None


def paths_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """One path, or several, as a row writes them."""
    return (given,) if isinstance(given, str) else tuple(given)


def _is_paths(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


# field → whether a value fits, and what is asked for
_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "how": (_is_text, "a word"),
    "why": (_is_text, "a text"),
    "code": (_is_text, "a code such as TC002"),
    "to": (_is_paths, "a path, or a list of paths, of the Trinity configuration"),
    "by": (_is_text, "the name of a derivation"),
    "status": (lambda value: value in list(Status), f"one of {', '.join(Status)}"),
    "targets": (
        lambda value: isinstance(value, Mapping) and all(map(_is_paths, value.values())),
        "a mapping of trinity-rft releases to paths",
    ),
    "same": (lambda value: True, "a value"),
    "free": (lambda value: isinstance(value, bool), "true or false"),
    "passed": (_is_paths, "a list of trinity-rft releases"),
}
