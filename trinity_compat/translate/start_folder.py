"""Relative paths of a launch that starts in another folder than its reader: ``cd sub``, then ``./ckpt``.

A run changes to the script's own folder before it reads the launch. A YAML has no such folder: its paths are
written as the folder of ``--cwd`` sees them, or in full where the script goes to another place altogether.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trinity_compat.launch.bash.files import absolute
from trinity_compat.translate.env_references import EnvReferences, recomposed
from trinity_compat.verl_config.model import EffectiveConfig, Setting

_JOB = "trainer.default_local_dir"  # the one key with a relative default where something is written
_PATH = re.compile(r"(.*_)?(path|dir|file|files)")
_OR_A_NAME = re.compile(r"model|tokenizer|hf_config|adapter|_files$")  # keys that take names of the hub, too
_DATA = (".parquet", ".json", ".jsonl", ".csv", ".arrow")
_NOT_RELATIVE = re.compile(r"$|[/~]|\$\{|\w+://")
_LONGEST = 1024


def seen_from(
    config: EffectiveConfig, folder: str | None, symbols: EnvReferences | None = None
) -> EffectiveConfig:
    """Return the configuration with its relative paths as ``folder`` sees them; None: the reader's.

    ``symbols``: of the marks in it. The launch of the result starts in ``folder``.
    """
    way = _way(config, folder)
    if way is None:
        return config
    moving = _told_paths(config)
    settings = {
        key: replace(setting, value=way.moved(key, setting.value, symbols or EnvReferences()))
        if _is_among(setting, moving)
        else setting
        for key, setting in config.settings.items()
    }
    return replace(config, settings=settings, launch=replace(config.launch, cwd=way.reader))


def recomposed_seen_from(
    effective: EffectiveConfig, symbols: EnvReferences, root: Path | None, folder: str | None
) -> EffectiveConfig | None:
    """Return what `recomposed` does, seen from ``folder``.

    A variable with which a relative path begins is frozen: another value of it may be an absolute path,
    before which no folder can stand.
    """
    while (marked := recomposed(effective, symbols, root)) is not None:
        way, moving = _way(marked, folder), _told_paths(marked)
        leading = {
            name
            for key, setting in marked.settings.items()
            if way and _is_among(setting, moving)
            for text in _texts(setting.value)
            if way.is_relative(key, symbols.plain(text))
            for name in symbols.variables(symbols.leading(text))
        }
        if leading <= symbols.frozen:
            return seen_from(marked, folder, symbols)
        symbols.frozen.update(leading)
    return None


@dataclass(frozen=True, slots=True)
class _Way:
    """The way from the reader's folder to the one where the launch starts; ``prefix`` is its relative path.

    Or its absolute one, where the two have nothing in common.
    """

    start: str
    reader: str
    prefix: str

    def is_relative(self, key: str, text: str) -> bool:
        """Return whether a value is a path that begins where the launch starts."""
        if _NOT_RELATIVE.match(text) or len(text) > _LONGEST or "\0" in text:
            return False
        if not _OR_A_NAME.search(key) or text.startswith(".") or text.endswith(_DATA):
            return True
        return os.path.exists(absolute(self.start, text))  # noqa: PTH110 - Path raises for a long name

    def moved(self, key: str, value: object, symbols: EnvReferences) -> object:
        if isinstance(value, list):
            return [self.moved(key, item, symbols) for item in value]
        if not isinstance(value, str) or symbols.leading(value):
            return value
        if not self.is_relative(key, symbols.plain(value)):
            return value
        up, rest = re.fullmatch(r"(?:\./+)*((?:\.\.(?:/+|$))*)(.*)", value, re.DOTALL).groups()  # type: ignore[union-attr]
        folder = f"{self.prefix}/{up}"
        if os.path.realpath(self.start) == self.start:  # `..` of a link is not the folder above it
            folder = os.path.normpath(folder)
        return rest if folder == "." and rest else os.path.join(folder, rest)  # noqa: PTH118 - keeps the dots


def _way(config: EffectiveConfig, folder: str | None) -> _Way | None:
    """Return the way; None where the launch starts in ``folder``, or in one that only a run knows."""
    launch = config.launch
    reader = folder or next(iter(launch.roots), None)
    if reader is None or absolute("/", launch.cwd) in launch.created:
        return None
    if os.path.realpath(launch.cwd) == os.path.realpath(reader):
        return None
    start, reader = absolute(str(Path.cwd()), launch.cwd), absolute(str(Path.cwd()), reader)
    prefix = os.path.relpath(start, reader)
    is_near = not prefix.startswith("..") or set(Path(prefix).parts) == {".."}
    return _Way(start, reader, prefix if is_near and start != "/" else start)


def _told_paths(config: EffectiveConfig) -> set[str]:
    """Return the paths that the launch sets, which other keys may interpolate, and the job's folder."""
    return {
        text
        for key, setting in config.settings.items()
        if _is_path(key) and (setting.where is not None or key == _JOB)
        for text in _texts(setting.value)
    }


def _is_among(setting: Setting, paths: set[str]) -> bool:
    return _is_path(setting.key) and any(text in paths for text in _texts(setting.value))


def _is_path(key: str) -> bool:
    name = key.rpartition(".")[2]
    return bool(_PATH.fullmatch(name)) and "hdfs" not in name


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
