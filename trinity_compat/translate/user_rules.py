"""A user's own rules (``--rules FILE``), checked before they are applied.

A YAML mapping of keys to rows. Five names are not keys: ``mains`` (module: the translated main that it stands
for), ``sections`` (a fork's section: veRL's), ``metrics`` (a fork's metric: veRL's), ``include`` (families of
forks whose rules are shipped under ``translators/by_hand/forks/`` or with a plugin, or files beside this
one), ``description``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from trinity_compat.common import limits, plugin_packages
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.plugin_packages import Plugin
from trinity_compat.common.readable_files import Roots, content, roots_of_named
from trinity_compat.common.resources import data_path
from trinity_compat.launch.entrypoints import TRANSLATED, as_module
from trinity_compat.translate.model import Status
from trinity_compat.verl_config.yaml_files import key_lines

CODE = "TC002"
FAMILIES = "translators/by_hand/forks"
_INCLUDED = 8  # files in each other
_TABLES = ("mains", "sections", "metrics")
_RESERVED = (*_TABLES, "include", "description")


@dataclass(frozen=True, slots=True)
class Rules:
    """The content of rule files.

    ``rows``: key → the row's fields, ``why`` and ``code`` filled in. ``renamed``: a fork's key → veRL's, of
    the same meaning. ``sources``: what plugins' families come from. The others are as in the file.
    """

    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    mains: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def over(self, below: Rules) -> Rules:
        """Return these rules merged over others: of two for the same name, these apply."""
        return Rules(
            {**below.rows, **self.rows},
            {**below.renamed, **self.renamed},
            {**below.mains, **self.mains},
            {**below.sections, **self.sections},
            {**below.metrics, **self.metrics},
            tuple(dict.fromkeys((*self.sources, *below.sources))),
        )


def read(name: str | None, hows: Mapping[str, Status]) -> Rules:
    """Return the rules of a file or a shipped family, none for None. ``hows``: valid values of ``how``.

    Raises UserError with file and line for a file that is unreadable or has anything but rules.
    """
    if name is None:
        return Rules()
    path, plugin = _path_of(name, Path())
    return _read(path, plugin, hows, roots_of_named(path), 0)


def families() -> dict[str, Path]:
    """Return the names of the families of forks whose rules are shipped."""
    return {path.stem: path for path in sorted(data_path(FAMILIES).glob("*.yaml"))}


def known_families() -> tuple[str, ...]:
    """Return the names of all families: those shipped, then those of plugins."""
    return tuple(dict.fromkeys((*families(), *(each.name for each in plugin_packages.of_kind("fork_rules")))))


def describe() -> list[str]:
    """Return one line per family: its name and description, for a plugin's also its distribution."""
    lines = [f"{name}: {_description(path)}" for name, path in families().items()]
    for plugin in plugin_packages.of_kind("fork_rules"):
        try:
            text = _description(_of_plugin(plugin.name) or Path())
        except UserError as error:
            text = str(error)
        lines.append(f"{plugin.name}: {text} ({plugin.source})")
    return lines


def _description(path: Path) -> str:
    import yaml

    from trinity_compat.common.bounded_yaml import safe_load

    try:
        found = safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read the rules: {_one_line(error)}", where=Where(str(path))) from None
    return str(found.get("description", "")) if isinstance(found, Mapping) else ""


def _of_plugin(name: str) -> Path | None:
    """Return the file of a plugin's family, None for another name. Raises UserError for one that is unfit."""
    plugin = plugin_packages.find("fork_rules", name, built_in=name in families())
    return plugin_packages.rules_file(plugin) if plugin else None


def _path_of(name: str, folder: Path) -> tuple[Path, Plugin | None]:
    """Return the path of a user's file, else of a family's with its plugin.

    The path does not exist if the name is neither's.
    """
    path = folder / name
    if path.exists():
        return path, None
    if found := _of_plugin(name):
        return found, plugin_packages.find("fork_rules", name)
    return families().get(name, path), None


def _read(path: Path, plugin: Plugin | None, hows: Mapping[str, Status], roots: Roots, depth: int) -> Rules:
    import yaml  # only here: the shipped rows are JSON because it loads forty times faster

    try:
        forms, lines = _parsed(content(path, roots, limits.SCRIPT).decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        hint = f"a file, or one of {', '.join(known_families())}" if isinstance(error, OSError) else None
        raise UserError(
            f"cannot read the rules: {_one_line(error)}", where=Where(str(path)), hint=hint
        ) from None
    if not isinstance(forms, Mapping):
        raise UserError("rules are a mapping of veRL keys to rows", where=Where(str(path)))
    for key, form in forms.items():
        is_table = key in _RESERVED
        if problem := _problem_of_table(str(key), form) if is_table else _problem(form, hows):
            message, hint = problem
            what = f"{key}" if is_table else f"rule for {str(key)!r}"
            raise UserError(f"{what} {message}", where=Where(str(path), lines.get(str(key), 0)), hint=hint)
    rules = _rules_of(forms, path.name, plugin)
    if depth >= _INCLUDED:
        raise UserError("the rules include each other", where=Where(str(path), lines.get("include", 0)))
    for name in reversed(paths_of(forms.get("include", ()))):
        included, owner = _path_of(name, path.parent)
        shipped = included != path.parent / name
        inner = roots_of_named(included) if shipped else [str(Path.cwd()), str(path.parent)]
        rules = rules.over(_read(included, owner, hows, inner, depth + 1))
    return rules


@lru_cache(maxsize=32)
def _parsed(text: str) -> tuple[object, Mapping[str, int]]:
    """Return (content, key → line) of a file's text, cached: each launch of an audit reads it."""
    from trinity_compat.common.bounded_yaml import safe_load

    return safe_load(text), key_lines(text)


def _problem_of_table(name: str, form: object) -> Problem | None:
    """Return what is wrong with the value of a name that is not a key."""
    if name == "description":
        return None if isinstance(form, str) else ("is not a text", None)
    if name == "include":
        return None if _is_paths(form) else ("is not a list of names", f"{name}: [verl-agent]")
    names = [item for pair in form.items() for item in pair] if isinstance(form, Mapping) else [form]
    if not isinstance(form, Mapping) or not all(map(_is_text, names)):
        return "is not a mapping of names to names", f"{name}: {{theirs: veRL's}}"
    wrong = [main for main in form.values() if name == "mains" and main not in TRANSLATED]
    return (f"names {wrong[0]}, which isn't translated", f"one of {', '.join(TRANSLATED)}") if wrong else None


def _rules_of(forms: Mapping[object, Any], file: str, plugin: Plugin | None) -> Rules:
    defaults = {"why": f"a rule of {file}", "code": CODE}
    rows = {str(key): {**defaults, **form} for key, form in forms.items() if key not in _RESERVED}
    if plugin:  # a finding says whose rule it is
        rows = {key: {**row, "why": f"{row['why']} ({plugin.source})"} for key, row in rows.items()}
    mains, sections, metrics = (dict(forms.get(name) or {}) for name in _TABLES)
    return Rules(
        rows={key: form for key, form in rows.items() if "as" not in form},
        renamed={key: form["as"] for key, form in rows.items() if "as" in form},
        mains={as_module(module): main for module, main in mains.items()},
        sections=sections,
        metrics=metrics,
        sources=(f"rules {plugin.name}: {plugin.source}",) if plugin else (),
    )


def _one_line(error: Exception) -> str:
    """Return an error's message on one line, without the place: the command line prints that."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else str(error)


Problem = tuple[str, str | None]


def _problem(form: object, hows: Mapping[str, Status]) -> Problem | None:
    """Return what is wrong with a row, and what to write instead."""
    if not isinstance(form, Mapping):
        return "is not a row", "how: copy, to: a.path.of.Trinity's, why: …"
    for name, value in form.items():
        if name not in _FIELDS:
            return f"has a field {name!r} that no row has", f"one of {', '.join(_FIELDS)}"
        accepts, expected = _FIELDS[name]
        if not accepts(value):
            return f"has {name}: {value!r}", f"{name} is {expected}"
    if "as" in form:
        return ("has 'as' and 'how'", "'as' alone: its row is that of veRL's key") if "how" in form else None
    how = form.get("how")
    if how not in hows:
        return "lacks a valid 'how'", f"one of {', '.join(hows)}"
    if how in ("copy", "scale") and not form.get("to"):
        return "lacks its target 'to'", None
    return _problem_of_place(form)


def _problem_of_place(form: Mapping[str, Any]) -> Problem | None:
    """Return what is wrong with a row's derivation, or with the fields of Trinity's that it names."""
    from trinity_compat.translate.sections import DERIVATIONS
    from trinity_compat.trinity.config import TARGETS, schema

    if form["how"] == "derive" and form.get("by") not in DERIVATIONS:
        return f"has no derivation {form.get('by')!r}", f"one of {', '.join(DERIVATIONS)}"
    for path in paths_of(form.get("to", ())) if form["how"] in ("copy", "scale") else ():
        if not any(schema(target).find(path) for target in TARGETS):
            return f"has a target that no trinity-rft has: {path}", None
    return None


def paths_of(paths: str | Iterable[str]) -> tuple[str, ...]:
    """Return a row's paths: it has one or a list."""
    return (paths,) if isinstance(paths, str) else tuple(paths)


def _is_paths(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


# field → (test of a value, expected value)
_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "how": (_is_text, "a word"),
    "as": (_is_text, "the key of veRL's that means the same"),
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
