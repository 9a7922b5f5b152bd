"""Hydra's config files as plain data: OmegaConf's YAML and merge, the package header, the defaults list."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml

MISSING = "???"


def merge(into: dict[str, object], source: Mapping[str, object]) -> dict[str, object]:
    """``source`` over ``into`` in place: dicts merge, all else replaces; ``???`` never replaces a value."""
    for key, value in source.items():
        if isinstance(value, (dict, Mapping)):
            here = into.get(key)
            into[key] = merge(here if isinstance(here, dict) else {}, value)
        elif value != MISSING or key not in into:
            into[key] = list(value) if isinstance(value, list) else value
    return into


_PACKAGE_LINE = re.compile(r"^#\s*@package\s+(\S+)\s*$")
# OmegaConf reads 1e-6 as a float, YAML 1.1 as a string (omegaconf._utils.get_yaml_loader).
_FLOAT = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.X,
)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One config file: ``defaults`` as written, ``config`` the rest, ``package`` its header or None.

    ``source`` is the path of a user's own file, "" for veRL's; ``lines`` its dotted keys' lines, ``text``
    what it holds. ``default``: it belongs to a fork's own tree, so that its values are defaults. ``items``:
    what a file holds that is a list, the whole value of a config group; its ``config`` is empty.
    """

    defaults: tuple[object, ...] = ()
    config: Mapping[str, object] = field(default_factory=dict)
    package: str | None = None
    source: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)
    text: str = field(default="", repr=False)
    default: bool = False
    items: tuple[object, ...] | None = None


@lru_cache(maxsize=1)
def _loader() -> type:
    import yaml

    from trinity_compat.common.bounded_yaml import BoundedLoader

    class Loader(BoundedLoader):
        """Safe YAML as OmegaConf reads it: floats without a dot, no dates, no duplicate keys."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
            seen = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:str" and key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"found duplicate key {key.value}", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    return Loader


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the nodes of one YAML document, with their places. Raises yaml.YAMLError."""
    import yaml

    return yaml.compose(text, Loader=_loader())


def load_yaml(text: str) -> object:
    """Parse one YAML document by OmegaConf's rules. Raises yaml.YAMLError."""
    import yaml

    return yaml.load(text, Loader=_loader())  # noqa: S506 - a safe loader


def parse_config_file(text: str, source: str = "") -> ConfigFile:
    """Read a Hydra config file; the lines of its keys are kept when it has a ``source``.

    Raises yaml.YAMLError; TypeError when it is neither a mapping nor a list.
    """
    content = load_yaml(text)
    if content is None:
        content = {}
    shown = text if source else ""
    if isinstance(content, list):
        return ConfigFile(package=_package_header(text), source=source, text=shown, items=tuple(content))
    if not isinstance(content, dict):
        raise TypeError("a Hydra config file holds a mapping of keys to values")
    defaults = content.pop("defaults", None) or ()
    if not isinstance(defaults, list | tuple):
        raise TypeError("'defaults' holds a list")
    lines = key_lines(text) if source else {}
    return ConfigFile(tuple(defaults), content, _package_header(text), source, lines, shown)


def key_lines(text: str) -> dict[str, int]:
    """Dotted key → line, counted from 1. ``text`` is YAML that can be read."""
    import yaml

    out: dict[str, int] = {}

    def walk(node: yaml.MappingNode, prefix: str) -> None:
        for key, value in node.value:
            out[prefix + str(key.value)] = key.start_mark.line + 1
            if isinstance(value, yaml.MappingNode):
                walk(value, f"{prefix}{key.value}.")

    root = compose_yaml(text)
    if isinstance(root, yaml.MappingNode):
        walk(root, "")
    return out


def _package_header(text: str) -> str | None:
    """The ``# @package x`` line; Hydra looks for it in the comment lines before the first key."""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            return None
        found = _PACKAGE_LINE.match(stripped)
        if found:
            return found.group(1)
    return None
