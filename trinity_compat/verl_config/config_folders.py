"""Folders of Hydra config files in a user's tree, and the limits on reading them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from trinity_compat.common import limits
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.readable_files import Roots, content, named_content, real_path
from trinity_compat.launch.bash.files import changed_by
from trinity_compat.launch.job_files import printed_in
from trinity_compat.launch.model import Launch, UnknownPiece
from trinity_compat.verl_config.yaml_files import ConfigFile, parse_config_file

_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_LONGEST_COMMENT = 120
_WANDBS = frozenset({"wandb_version", "_wandb"})
_VALUE = re.compile(r"^([^.]+)\.value(?=\.|$)")  # of a dotted key


@dataclass(frozen=True, eq=False)
class ConfigFolder:
    """A folder of config files. Nothing outside ``root`` is read, links followed.

    ``defaults``: its files hold the defaults of a fork of veRL and not settings of the user. ``shown``: its
    name in messages. ``written``: files that the script writes before its launch, by absolute path; they come
    before those on the disk. ``unread``: files that a program which isn't read wrote, or may have changed.
    """

    path: Path
    root: Path
    defaults: bool = False
    shown: str = ""
    written: Mapping[str, str] = field(default_factory=dict, repr=False)
    unread: Mapping[str, UnknownPiece | None] = field(default_factory=dict, repr=False)
    _read: dict[str, ConfigFile | None] = field(default_factory=dict, repr=False)

    def find(self, name: str) -> ConfigFile | None:
        """The config file at ``name``, with or without its suffix. Raises UserError on broken YAML."""
        if name not in self._read:
            path = self.path / (name if name.endswith(".yaml") else f"{name}.yaml")
            self._read[name] = self._found(path)
        return self._read[name]

    def has_group(self, group: str) -> bool:
        """Return whether ``group`` is a folder in it (Hydra then takes it as a config group)."""
        if "." in group or not group.strip("/"):
            return False
        folder = self.path / group
        return readable_folder(folder, self.root) or is_written(folder, self.written)

    def _found(self, path: Path) -> ConfigFile | None:
        refuse_changed(path, self.unread)
        if (text := self.written.get(_normal(path))) is not None:
            return _parsed_text(text, str(path))
        return self._file(path) if readable_file(path, self.root) else None

    def _file(self, path: Path) -> ConfigFile:
        shown = f"{self.shown}/{path.relative_to(self.path).as_posix()}" if self.shown else str(path)
        try:
            text = content(path, (self.root,), limits.SCRIPT).decode()
        except (UnicodeDecodeError, OSError) as error:
            raise _not_a_config(shown, error) from None
        return replace(_parsed_text(text, shown), default=self.defaults)


def refuse_changed(path: Path, unread: Mapping[str, UnknownPiece | None]) -> None:
    """Raise UserError for a file that a program wrote, or may have changed, before the launch."""
    if (why := changed_by(_normal(path), unread)) is not None:
        raise UserError(
            f"{path.name}: {why.expression} writes or changes it before the launch, so that its content"
            " is known only at run time",
            where=why.where,
            hint="run that command first, and translate without its line; trinity-compat run reads the"
            " file when the launch begins",
        )


def is_changed(path: Path, unread: Mapping[str, UnknownPiece | None]) -> bool:
    """Return whether a program wrote a file, or may have changed it, before the launch."""
    return changed_by(_normal(path), unread) is not None


def is_written(folder: Path, written: Iterable[str]) -> bool:
    """Return whether one of the files that a script writes lies below ``folder``."""
    below = _normal(folder) + os.sep
    return any(path.startswith(below) for path in written)


def _normal(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - Path keeps the dots


def readable_folder(path: Path, *roots: str | Path) -> bool:
    """Return whether ``path`` is a folder inside one of ``roots``; a name that cannot be one is none."""
    return _is(Path.is_dir, path, roots)


def readable_file(path: Path, *roots: str | Path) -> bool:
    """Return whether ``path`` is a file inside one of ``roots``; a name that cannot be one is none."""
    return _is(Path.is_file, path, roots)


def _is(kind: Callable[[Path], bool], path: Path, roots: Roots) -> bool:
    try:
        return kind(Path(real_path(path, roots)))
    except (OSError, ValueError):
        return False


def starts_out_of_reach(launch: Launch) -> bool:
    """Return whether a launch that is read from a script starts in a folder that is here and is not read."""
    there = os.path.exists(launch.cwd)  # noqa: PTH110 - Path raises for a name that is too long
    return bool(launch.roots) and there and not readable_folder(Path(launch.cwd), *launch.roots)


def shown_below(path: Path, root: Path) -> str:
    """A path as messages name it: below ``root``; ``root`` itself by where it is."""
    here, above = path.resolve(), root.resolve()
    if here == above:
        above = Path.cwd()
    return (here.relative_to(above) if here.is_relative_to(above) else path).as_posix()


def read_config(path: Path) -> ConfigFile:
    """A config file that the command line names: YAML, the one of a W&B run, or a log with a printed one.

    Raises UserError with the place when it isn't a mapping in YAML.
    """
    if printed := printed_in(str(path)):
        return ConfigFile(config=printed.config, source=str(path), lines=printed.lines)
    try:
        file = _parsed_text(named_content(path, limits.SCRIPT).decode(), str(path))
    except UnicodeDecodeError as error:
        raise _not_a_config(str(path), error) from None
    # A run's `files/config.yaml` has a level of W&B's, `desc` and `value`, below each key.
    own = {key: each for key, each in file.config.items() if key not in _WANDBS}
    if len(own) == len(file.config) or not own or not all(map(_is_wandbs, own.values())):
        return file
    config = {key: each["value"] for key, each in own.items() if isinstance(each, Mapping)}
    lines = {_VALUE.sub(r"\1", key): line for key, line in file.lines.items()}
    return replace(file, config=config, lines=lines)


def _is_wandbs(each: object) -> bool:
    return isinstance(each, Mapping) and "value" in each and each.keys() <= {"desc", "value"}


def _not_a_config(shown: str, error: Exception) -> UserError:
    why = error.strerror if isinstance(error, OSError) else error
    return UserError(f"not a Hydra config file: {why}", where=Where(shown))


@lru_cache(maxsize=512)
def _parsed_text(text: str, shown: str) -> ConfigFile:
    """Parse a file's text, once for all launches of a tree."""
    import yaml

    try:
        return parse_config_file(text, shown)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = Where(shown, mark.line + 1 if mark else 0)
        what = "configuration" if isinstance(error, yaml.composer.ComposerError) else "YAML file"
        raise UserError(f"not a {what}: {getattr(error, 'problem', error)}", where=where) from None
    except (TypeError, RecursionError) as error:
        raise UserError(f"not a Hydra config file: {error}", where=Where(shown)) from None


def comment_at(file: ConfigFile, line: int) -> str:
    """Return the comment on the key of ``line`` (from 1): behind it, else the one above it."""
    lines = file.text.splitlines()
    if not 0 < line <= len(lines):
        return ""
    _, mark, behind = _QUOTED.sub(lambda quoted: "-" * len(quoted[0]), lines[line - 1]).partition(" #")
    comment = lines[line - 1][-len(behind) :] if mark and behind else _above(lines[: line - 1])
    comment = " ".join(comment.split()).lstrip("# ")
    return comment if len(comment) <= _LONGEST_COMMENT else comment[: _LONGEST_COMMENT - 1] + "…"


def _above(lines: list[str]) -> str:
    comment: list[str] = []
    while lines and lines[-1].lstrip().startswith("#"):
        comment.insert(0, lines.pop().strip().lstrip("#"))
    return " ".join(comment)
