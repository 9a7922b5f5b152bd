"""Fingerprint of everything on which a stored answer depends.

Groups of another fingerprint are not trained. ``fingerprint_rules`` lists the settings. The command that
starts a run computes its fingerprint once and writes it to ``run.json`` (``RunSpec.fingerprint``); both sides
use that one at every restart. A process that loads a user's file later checks that the file is unchanged
(``check``). The buffer keeps the fingerprints of its groups.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from trinity_compat.common.bounded_yaml import safe_load
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, leaves, section_at, value_at
from trinity_compat.common.paths import from_home
from trinity_compat.common.redaction import without_passwords
from trinity_compat.job import fingerprint_files as files
from trinity_compat.job.distillation import stores_top_tokens, teacher_entries
from trinity_compat.job.fingerprint_rules import (
    AGENT,
    DATA,
    MANAGER,
    PACKAGES,
    PLUGINS,
    REWARD,
    WORKFLOWS,
    Rule,
    is_whole,
    rule_of,
)
from trinity_compat.job.run_spec import Fingerprint, RunSpec, has_baseline
from trinity_compat.job.state_cell import StateCell, StateStore

SCORING = (REWARD, MANAGER, WORKFLOWS, PLUGINS, PACKAGES)  # parts that a scoring process loads
ANSWERING = (AGENT, WORKFLOWS, PLUGINS, PACKAGES)  # … a process of agent loops
_ANSWER_PLUGINS = ("workflow", "reward", "operator")  # the other kinds are the trainer's
_PLUGIN_DIRS = "TRINITY_PLUGIN_DIRS"
# Settings of a teacher's engine on which its log-probabilities depend.
_OF_A_TEACHER = ("dtype", "load_format", "logprobs_mode", "engine_kwargs")
_SHOWN_CHARACTERS = 60  # a longer value is kept as a digest
_SHOWN = 4  # differences that are named of one part
_CONFIG_BYTES = 4 << 20


# -- making it ------------------------------------------------------------------------------------------

_NOT_IN_ROWS = ("place", "limit_s", "workflow_args.directory")  # of a taskset: no part of what it makes


def fingerprint_of(spec: RunSpec, *, cwd: Path | None = None) -> Fingerprint:
    """Return the run's fingerprint, or compute it from the files as they are now.

    ``cwd``: the working directory of the run's processes.
    """
    return spec.fingerprint or made(spec, cwd=cwd or Path.cwd())


def made(spec: RunSpec, *, cwd: Path) -> Fingerprint:
    """Compute the fingerprint of ``spec`` and of the files that it names; secrets are left out."""
    saved = spec.as_saved()[0]
    env = section_at(saved, "env")
    reading = _Reading(cwd, str(env.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")))
    variables = ((f"explorer.env_vars.{name}", value) for name, value in env.items())
    for key, value in (*_nodes(section_at(saved, "verl")), *_own(spec), *variables):
        reading.add(rule_of(key), key, value)
    return Fingerprint(reading.parts, reading.files)


def _nodes(tree: Tree, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield leaves; a section that is read as one is yielded whole."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and not is_whole(key):
            yield from _nodes(value, f"{key}.")
        else:
            yield key, value


def _own(spec: RunSpec) -> Iterator[tuple[str, object]]:
    """Yield the run's own settings on which an answer depends."""
    scoring = spec.scoring
    yield "trinity_compat.reward_timeout", scoring.timeout_s
    yield "trinity_compat.reward_failure", [scoring.on_error, scoring.on_hang]
    yield "trinity_compat.reward_memory", scoring.memory_gb
    yield "trinity_compat.seeded_requests", spec.seeded_requests or None
    if folders := spec.env.get(_PLUGIN_DIRS):
        yield "trinity_compat.plugin_dirs", folders.split(os.pathsep)
    yield "trinity_compat.plugins", [each for each in spec.plugins if each.kind in _ANSWER_PLUGINS]


class _Reading:
    """Collects items and the files behind them.

    Relative paths start at ``cwd``; modules are searched there and in the folders of ``python_path``.
    """

    def __init__(self, cwd: Path, python_path: str) -> None:
        self._cwd = cwd
        self._roots = (cwd, *(cwd / part for part in python_path.split(os.pathsep) if part))
        self.parts: dict[str, dict[str, str]] = {}
        self.files: dict[str, dict[str, str]] = {}
        self._left: dict[str, int] = {}  # bytes that may still be read of whole files

    def add(self, rule: Rule, key: str, value: object) -> None:
        """Add a setting by its rule. A null or empty one counts as missing."""
        if not rule.part or value is None or value in ("", [], {}):
            return
        getattr(self, f"_{rule.read}")(rule.part, key, value)

    def _put(self, part: str, item: str, text: str) -> None:
        self.parts.setdefault(part, {})[item] = text

    def _put_files(self, part: str, key: str, named: Mapping[str, Path]) -> None:
        for name, path in named.items():
            budget = self._left.get(part, files.TOTAL_BYTES)
            digest = files.of_file(path, whole=budget)
            self._left[part] = max(0, budget - files.size_of(path))
            self._put(part, f"{key}: {name}", digest)
            self.files.setdefault(part, {})[str(path)] = digest

    # -- readers, by the name that a rule has

    def _value(self, part: str, key: str, value: object) -> None:
        text = without_passwords(json.dumps(_plain(value), sort_keys=True, default=str))
        self._put(part, key, text if len(text) <= _SHOWN_CHARACTERS else f"#{files.digest(text.encode())}")

    def _flag(self, part: str, key: str, value: object) -> None:
        self._value(part, key, bool(value))

    def _baseline(self, part: str, key: str, value: object) -> None:
        if has_baseline({"algorithm": {"adv_estimator": value}}):
            self._value(part, key, value)

    def _code(self, part: str, key: str, value: object) -> None:
        for number, text in enumerate(_texts(value)):
            item = key if isinstance(value, str) else f"{key}.{number}"
            if entries := self._entries(text):
                self._put_files(part, item, files.of_code(entries, self._roots))
            else:
                self._value(part, item, text)

    def _entries(self, text: str) -> dict[str, Path]:
        """Return the files of a path, a folder of plugins or a module; empty for what is not here."""
        path = self._path(text.removeprefix("file://"))
        if path is not None and path.is_dir():
            return {file.name: file for file in sorted(path.glob("*.py"))}
        if path is not None and path.exists():
            return {path.name: path}
        return files.of_module(text.removeprefix("pkg://").replace("/", "."), self._roots)

    def _installed(self, part: str, key: str, value: object) -> None:
        """Add plugins by their distributions' versions and their packages' files."""
        for plugin in value if isinstance(value, list) else ():
            item = f"{key}.{plugin.kind}.{plugin.name}"
            self._value(part, item, f"{plugin.value} of {plugin.source}")
            self._put_files(part, item, files.of_installed(plugin.value.partition(":")[0]))

    def _model(self, part: str, key: str, value: object) -> None:
        self._folder(part, key, str(value), weights=True)

    def _tokenizer(self, part: str, key: str, value: object) -> None:
        self._folder(part, key, str(value), weights=False)

    def _folder(self, part: str, key: str, text: str, *, weights: bool) -> None:
        path = self._path(text)
        if path is None or not path.exists():
            self._value(part, key, text)  # a name on a hub
        elif path.is_dir():
            self._put_files(part, key, files.in_folder(path, weights=weights))
        else:
            self._put_files(part, key, {path.name: path})

    def _data(self, part: str, key: str, value: object) -> None:
        for number, text in enumerate(_texts(value)):
            self._folder(part, f"{key}.{number}", text, weights=True)

    def _config(self, part: str, key: str, value: object) -> None:
        """Add a YAML or JSON file with the classes and files that it names."""
        path = self._path(str(value))
        if path is None or not path.is_file():
            self._value(part, key, value)
            return
        self._put_files(part, key, {path.name: path})
        entries: dict[str, Path] = {}
        for text in _texts(_read(path)):
            # veRL's ``_target_`` and ``class_name`` are dotted names of classes.
            entries |= files.of_module(text, self._roots) if "." in text else {}
            if (named := self._path(text)) is not None and named.is_file():
                entries[named.name] = named
        self._put_files(part, key, files.of_code(entries, self._roots))

    def _operators(self, part: str, key: str, value: object) -> None:
        for name, each in leaves({"": value} if not isinstance(value, Mapping) else value):
            self._value(part, f"{key}.{name}".rstrip("."), each)
        for text in _texts(value):
            if (path := self._path(text)) is not None and path.is_file():
                self._put_files(part, key, {path.name: path})

    def _tasksets(self, part: str, key: str, value: object) -> None:
        for name, taskset in value.items() if isinstance(value, Mapping) else ():
            if name.startswith("train/"):
                self._taskset(part, f"{key}.{name}", taskset)

    _workflows = _tasksets

    def _taskset(self, part: str, key: str, taskset: Tree) -> None:
        """Add a taskset: rows by content, its program too, all else by value."""
        for name, value in leaves(taskset):
            if name == "path":
                self._data(DATA, f"{key}.{name}", value)
            elif name == "workflow_args.function":
                self._code(part, f"{key}.{name}", str(value).rpartition(":")[0])
                self._value(part, f"{key}.{name}", str(value).rpartition(":")[2])
            elif name in ("workflow", "reward") and "." in str(value):  # a class by its path
                self._value(part, f"{key}.{name}", value)
                entries = files.of_module(str(value), self._roots)
                self._put_files(part, f"{key}.{name}", files.of_code(entries, self._roots))
            elif name == "workflow_args.command":
                self._operators(part, f"{key}.{name}", value)
            elif name not in _NOT_IN_ROWS and value not in (None, "", [], {}):
                self._value(part, f"{key}.{name}", value)

    def _served(self, part: str, key: str, value: object) -> None:
        for number, model in enumerate(value if isinstance(value, Sequence) else ()):
            self._model(part, f"{key}.{number}.path", model["path"])
            for name, setting in leaves({"name": model.get("name"), **(model.get("settings") or {})}):
                rule = rule_of(f"reward.reward_model.rollout.{name}")
                if rule.part and setting is not None:
                    self._value(part, f"{key}.{number}.{name}", setting)

    def _distillation(self, part: str, key: str, value: object) -> None:
        verl = {key: value}
        entries = teacher_entries(verl)
        if not entries:
            return
        top = value_at(value, "distillation_loss.topk") if stores_top_tokens(verl) else None
        self._value(part, f"{key}.distillation_loss.topk", top or "of the answer's tokens alone")
        if len(entries) > 1:
            self._value(part, f"{key}.teacher_key", value_at(value, "teacher_key"))
        for entry in entries:
            self._model(part, f"{entry.section}.model_path", entry.path)
            self._value(part, f"{entry.section}.key", entry.key)
            for name, setting in leaves(section_at(verl, f"{entry.section}.inference")):
                if name.partition(".")[0] in _OF_A_TEACHER and setting not in (None, {}, []):
                    self._value(part, f"{entry.section}.inference.{name}", setting)

    def _path(self, text: str) -> Path | None:
        """Return the path, or None if ``text`` cannot be one."""
        if not text or len(text) > 1024 or "\n" in text or "\0" in text or "://" in text:
            return None
        return self._cwd / from_home(text)


def _plain(value: object) -> object:
    """Write 1.0 as 1: YAML files and command lines use either."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _texts(value: object) -> Iterator[str]:
    """Yield every text in nested containers."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _read(path: Path) -> object:
    try:
        return safe_load(path.read_text()) if path.stat().st_size <= _CONFIG_BYTES else None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None


# -- comparing two --------------------------------------------------------------------------------------


def differences(before: Mapping[str, Mapping[str, str]], now: Fingerprint) -> list[str]:
    """Describe each part of ``before`` (the parts of a fingerprint) that differs from ``now``."""
    texts: list[str] = []
    for part in dict.fromkeys((*now.parts, *before)):
        old, new, paths = before.get(part, {}), now.parts.get(part, {}), now.files.get(part, {})
        items = [item for item in dict.fromkeys((*new, *old)) if old.get(item) != new.get(item)]
        texts += [_change(part, item, old.get(item), new.get(item), paths) for item in items[:_SHOWN]]
        if len(items) > _SHOWN:
            texts.append(f"{part}: {len(items) - _SHOWN} further differences")
    return texts


def _change(part: str, item: str, before: str | None, after: str | None, paths: Collection[str]) -> str:
    key, is_file, name = item.partition(": ")
    if is_file:
        path = next((path for path in paths if path == name or path.endswith(f"/{name}")), name)
        how = "was edited" if before and after else "was added" if after else "is not used any more"
        return f"{part} {path} {how}"
    texts = ["not set" if text is None else text for text in (before, after)]
    if any(text.startswith("#") for text in texts):
        return f"{part}: {key} was changed"
    return f"{part}: {key} was {texts[0]}, is {texts[1]}"


# -- what the buffer's groups were made with --------------------------------------------------------------


_MADE_WITH = StateCell[list[Mapping[str, Mapping[str, str]]] | str]("made with")


def sign(buffer: StateStore, mine: Fingerprint, *, keep_earlier: bool = True) -> None:
    """Record in the buffer that groups are made with ``mine`` from now on.

    ``keep_earlier``: earlier records stay, as groups that were made with them may still wait.
    """
    known = (_MADE_WITH.get(buffer) or []) if keep_earlier else []
    if isinstance(known, list) and mine.parts not in known:
        _MADE_WITH.set(buffer, [*known, mine.parts])


def edits(buffer: StateStore, mine: Fingerprint) -> list[str]:
    """Return the reasons why waiting groups cannot be trained with ``mine``; none where they can."""
    known = _MADE_WITH.get(buffer)
    records = known if isinstance(known, list) else ()  # a text in jobs of earlier releases
    return list(dict.fromkeys(text for parts in records for text in differences(parts, mine)))


# -- files that are loaded later ----------------------------------------------------------------------------


class FilesEdited(UserError):
    """A process has loaded a file that changed since the run started."""


def check(mine: Fingerprint | None, parts: Collection[str] | None = None) -> None:
    """Raise FilesEdited where a file of ``parts`` (None: of all) changed since the run started.

    Call after loading the file.
    """
    for part, paths in (mine.files if mine else {}).items():
        for path, digest in paths.items():
            if (parts is None or part in parts) and not files.is_as_before(Path(path), digest):
                raise FilesEdited(
                    f"{part} {path} was edited since the run started: its answers would be mixed with others",
                    hint="the same command again goes on with the edited file; groups that wait are generated"
                    " again",
                )


__all__ = [
    "ANSWERING",
    "DATA",
    "SCORING",
    "FilesEdited",
    "check",
    "differences",
    "edits",
    "fingerprint_of",
    "made",
    "sign",
]
