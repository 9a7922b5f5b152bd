"""Reads a Trinity YAML safely: no tags, no duplicate keys, no bombs; every error has file and line.

Numbers are read as OmegaConf reads them (``1e-6`` is a float), because upstream reads the same file so.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trinity_compat.common.bounded_yaml import FastBoundedLoader
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.limits import SCRIPT
from trinity_compat.common.nested import joined
from trinity_compat.common.readable_files import content
from trinity_compat.common.releases import TRINITY, TRINITY_OLD
from trinity_compat.trinity.config.schema import TARGETS
from trinity_compat.trinity.config.validate import converted, validate

_MAX_TOLD = 10
_VERLS = ("actor_rollout_ref", "data")  # sections that Trinity has not
_NEWER = f"a newer trinity-rft may have it; here {' and '.join(TARGETS)} are known"
_OLDER = f"this is trinity-rft {TRINITY_OLD}'s: write it for {TRINITY}, or translate the launch again"

# The float syntax of omegaconf._utils.get_yaml_loader (2.3.1), in which a dot is not required.
_FLOAT = re.compile(
    r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


class _Loader(FastBoundedLoader):
    """The safe loader with OmegaConf's numbers, and dates left as the strings they were."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_STRING = _Loader.yaml_constructors["tag:yaml.org,2002:str"]
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _STRING)


def load(path: str | Path, target: str = TARGETS[0]) -> dict[str, object]:
    """Read a Trinity YAML and check it against a release's schema.

    Raises UserError, with file and line, when the file cannot be read, is not YAML, holds a key twice,
    has fields that the release doesn't know, or uses ``trainer.trainer_config_path``.
    """
    try:
        data = content(path, None, SCRIPT)  # a job's folder may lie anywhere
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    name = str(path)
    # PyYAML reads UTF-16, later readers don't.
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError("is UTF-16: save it as UTF-8", where=Where(name))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError("is not UTF-8: save it as UTF-8", where=Where(name, line)) from error
    return parse(text, name, target)


def parse(data: bytes | str, name: str, target: str = TARGETS[0]) -> dict[str, object]:
    """Read Trinity YAML text; ``name`` stands for the file in messages. Raises as ``load`` does."""
    if len(data) > SCRIPT:
        raise UserError(f"larger than {SCRIPT} bytes: not a configuration", where=Where(name))
    loader, node = _compose(data, name)
    if not isinstance(node, yaml.MappingNode):
        raise UserError("a mapping of sections is expected at the top", where=Where(name, 1))
    lines = dict(_lines(node, "", name))
    config: dict[str, object] = _construct(loader, node, name)
    _refuse(config, lines, name, target)
    return converted(config, target)


def lines_of(text: str) -> dict[str, int]:
    """Return dotted path → line, from 1, of every key of a YAML text that ``parse`` takes."""
    _, node = _compose(text, "")
    return dict(_lines(node, "", "")) if node is not None else {}


def load_value(text: str, name: str) -> object:
    """Read one value in YAML, as ``parse`` reads a file's. Raises UserError with the line in ``text``."""
    if len(text) > SCRIPT:
        raise UserError(f"larger than {SCRIPT} bytes: not a configuration", where=Where(name))
    loader, node = _compose(text, name)
    if node is None:
        return None
    list(_lines(node, "", name))  # refuses keys that stand twice
    return _construct(loader, node, name)


def _compose(data: bytes | str, name: str) -> tuple[_Loader, yaml.Node | None]:
    try:
        loader = _Loader(data)
        return loader, loader.get_single_node()
    except yaml.YAMLError as error:
        raise _user_error(error, name) from error


def _construct(loader: _Loader, node: yaml.Node, name: str) -> Any:
    try:
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise _user_error(error, name) from error


def _user_error(error: yaml.YAMLError, name: str) -> UserError:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return UserError(f"not YAML: {error}", where=Where(name))
    return UserError(f"not YAML: {getattr(error, 'problem', error)}", where=Where(name, mark.line + 1))


def _lines(root: yaml.Node, prefix: str, name: str) -> Iterator[tuple[str, int]]:
    """Yield (dotted path, line from 1) of every node; refuse duplicate keys."""
    pending: list[tuple[yaml.Node, str]] = [(root, prefix)]
    while pending:
        node, path = pending.pop()
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                inner = joined(path, _key(key, keys, name))
                yield inner, key.start_mark.line + 1
                pending.append((value, inner))
        elif isinstance(node, yaml.SequenceNode):
            for position, value in enumerate(node.value):
                inner = joined(path, str(position))
                yield inner, value.start_mark.line + 1
                pending.append((value, inner))


def _key(key: yaml.Node, keys: set[str], name: str) -> str:
    if not isinstance(key, yaml.ScalarNode):
        raise UserError("a key must be a plain word", where=_place(key, name))
    if key.value in keys and key.value != "<<":
        raise UserError(f"the key {key.value!r} appears twice in one section", where=_place(key, name))
    keys.add(key.value)
    return str(key.value)


def _place(node: yaml.Node, name: str) -> Where:
    return Where(name, node.start_mark.line + 1)


def _refuse(config: dict[str, object], lines: dict[str, int], name: str, target: str) -> None:
    if verls := next((name for name in _VERLS if name in config), None):
        raise UserError(
            "this is a veRL configuration, not a Trinity one",
            where=Where(name, _line(verls, lines)),
            hint=f"trinity-compat translate {name}",
        )
    problems = validate(config, target)
    if problems:
        first = problems[0]
        told = "".join(f"\n  {Where(name, _line(p.path, lines))}: {p}" for p in problems[1:_MAX_TOLD])
        more = f"\n  … and {len(problems) - _MAX_TOLD} more" if len(problems) > _MAX_TOLD else ""
        where = Where(name, _line(first.path, lines))
        hint = first.hint or (_NEWER if "no such field" in first.message else None)
        if target == TRINITY and not validate(config, TRINITY_OLD):
            hint = _OLDER
        raise UserError(f"{first.path}: {first.message}{told}{more}", where=where, hint=hint)
    trainer = config.get("trainer")
    if isinstance(trainer, dict) and trainer.get("trainer_config_path"):
        raise UserError(
            "trainer.trainer_config_path is deprecated in Trinity-RFT and not read here",
            where=Where(name, _line("trainer.trainer_config_path", lines)),
            hint="put the content of that file under trainer.trainer_config",
        )


def _line(path: str, lines: dict[str, int]) -> int:
    """Return the line of a path; of its nearest parent if the file does not have the path."""
    while path and path not in lines:
        path = path.rpartition(".")[0]
    return lines.get(path, 0)
