"""Effective settings of a source: a script, a YAML of veRL or Trinity, a release of veRL, a job directory.

Each source is first upgraded to the pinned veRL, so a script of veRL 0.4 and a Trinity YAML are comparable: a
key that moved is one row, and a default that changed between releases is a difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trinity_compat.common.bounded_yaml import safe_load
from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import leaves, put, read_section, value_at
from trinity_compat.common.redaction import referred
from trinity_compat.common.releases import TRINITY, VERL_RELEASES
from trinity_compat.launch import Launch, read_script
from trinity_compat.launch.entrypoints import PPO, refuse
from trinity_compat.launch.environment import unused_variables
from trinity_compat.launch.job_files import is_configuration
from trinity_compat.launch.model import Diagnostic, Word, WordPart
from trinity_compat.translate import TranslateOptions, flavour_of, refuse_errors, translate
from trinity_compat.translate.edited_launch import is_verl_key
from trinity_compat.translate.env_references import EnvReferences, named
from trinity_compat.translate.frozen_variables import not_read_by_hydra, set_without_effect
from trinity_compat.translate.start_folder import seen_from
from trinity_compat.translate.translator import symbolic_settings
from trinity_compat.translate.verl_from_trinity import (
    completed_config,
    from_launch,
    verl_settings,
)
from trinity_compat.trinity.config.complete import CompletedConfig, completed
from trinity_compat.trinity.config.read import load
from trinity_compat.verl_config import compose_pinned, effective_config, upgrade
from trinity_compat.verl_config.config_folders import read_config
from trinity_compat.verl_config.from_yaml import config_from_yaml
from trinity_compat.verl_config.grammar import split_key
from trinity_compat.verl_config.model import EffectiveConfig, Setting
from trinity_compat.verl_config.pinned import pinned_tree
from trinity_compat.verl_config.releases import FLAVOURS, MODEL_ENGINE, flavour_with

_TRINITY_SECTIONS = {"algorithm", "buffer", "explorer", "synchronizer", "cluster"}
_RELEASE = re.compile(r"verl\s*==\s*(.*)")
_USE_V1 = "trainer.use_v1"
_RUN_JSON = "config/run.json"
# Of a job's record: its places, what any start of it may change, and what other rows show.
_OF_THE_START = frozenset({"job_dir", "database_url", "verl", "env", "fingerprint", "resume", "mode"})


@dataclass(frozen=True, slots=True)
class DroppedSetting:
    """A setting of an older release without a counterpart in the pinned one, and why."""

    value: object
    why: str
    given: bool  # the source sets it; False for a default
    place: str


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """Every leaf of a source under the pinned veRL's keys, and the places where keys were set.

    ``unset``: the place of the other keys. ``follows``: key → the interpolation that gives its value.
    ``trinity``: the configuration of a Trinity YAML or a job. ``run``: a job's settings in config/run.json
    that are not veRL's.
    """

    source: str
    values: Mapping[str, object]
    places: Mapping[str, str]
    why: str  # the veRL release as which it was read, or Trinity
    flavour: str = FLAVOURS[0]
    unset: str = "default"
    follows: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, DroppedSetting] = field(default_factory=dict)
    trinity: CompletedConfig | None = None
    run: Mapping[str, object] = field(default_factory=dict)
    config: EffectiveConfig | None = None  # of a veRL source
    unused: tuple[Diagnostic, ...] = ()  # about variables of this process that have no effect on it


def read_in_effect(
    source: str,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    version: str | None = None,
) -> EffectiveSettings:
    """Read a script, a YAML of veRL or Trinity, a release (``verl==0.8.0``) or a job directory.

    ``cwd`` and ``env`` are the directory and the environment that a script is read for, ``version`` the
    release that a script or a YAML of veRL's is written for, None to infer it. Raises UserError.
    """
    if found := _RELEASE.fullmatch(source):
        return of_release(source, found[1], FLAVOURS[0])
    path = Path(source)
    if path.is_dir():
        return _of_job(source, path)
    if not path.is_file():
        raise UserError(
            "no such file",
            where=Where(source),
            hint="name a script, a YAML, a job directory, or a release of veRL (verl==0.8.0)",
        )
    if not is_configuration(source):
        reading = read_script(path, cwd=cwd, env=env)
        if not reading.launches:
            raise UserError("no veRL launch in this script", where=Where(source))
        launch, *others = reading.launches
        side = _of_verl(source, effective_config(launch, root=cwd, version=version))
        first = f"the first of {1 + len(others)} launches, line {launch.where.line}; " if others else ""
        unused = (*unused_variables(reading, os.environ, env or {}), *side.unused)
        return replace(side, why=first + side.why, unused=unused)
    data = read_config(path).config
    if len(_TRINITY_SECTIONS & set(data)) >= 2 and "actor_rollout_ref" not in data:
        trinity = load(path)
        unread = tuple(set_without_effect(trinity, os.environ, Where(source)))
        return replace(of_trinity(source, trinity), unused=unread)
    return _of_verl(source, config_from_yaml(path, version, environ=env))


def read_sides(
    sources: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> list[EffectiveSettings]:
    """Read each source. Raises UserError.

    Scripts whose releases are inferred have the newest that fits all of them, so that one key of an older
    release in one of them doesn't change every default. A release has the engine of the first other source.
    """
    read = [read_in_effect(source, cwd=cwd, env=env) for source in sources]
    fitting = [side.config.version.candidates for side in read if side.config]
    common = set(VERL_RELEASES).intersection(*filter(None, fitting))
    if version := max(common, key=VERL_RELEASES.index, default=""):
        for place, side in enumerate(read):
            if side.config and side.config.version.candidates and side.config.version.value != version:
                side = read_in_effect(side.source, cwd=cwd, env=env, version=version)
                why = side.why.replace(f"requested ({version})", "the newest release that fits all sources")
                read[place] = replace(side, why=why)
    flavour = next((side.flavour for side in read if not _RELEASE.fullmatch(side.source)), FLAVOURS[0])
    if flavour not in FLAVOURS:
        return read
    return [
        of_release(side.source, found[1], flavour) if (found := _RELEASE.fullmatch(side.source)) else side
        for side in read
    ]


def of_release(source: str, version: str, flavour: str) -> EffectiveSettings:
    """Read the defaults of a release of veRL. Raises UserError for an unknown one."""
    where = Where(source)
    words = (Word((WordPart(f"--config-name={flavour}"),), where),) if flavour != FLAVOURS[0] else ()
    config = effective_config(Launch(PPO, words, where), version=version)
    return replace(_of_verl(source, config), why=f"the defaults of {flavour}, {config.version.why}")


def of_trinity(source: str, config: Mapping[str, object]) -> EffectiveSettings:
    """Read a Trinity configuration. Raises UserError as the way back does."""
    full = completed_config(config)
    flavour = flavour_of(full.config)
    told = named(verl_settings(full))
    raw = leaves(pinned_tree(flavour))
    follows = {
        key: value for key, value in raw if key not in told and isinstance(value, str) and "${" in value
    }
    return EffectiveSettings(
        source,
        dict(leaves(compose_pinned(told, flavour))),
        dict.fromkeys(told, source),
        "a Trinity configuration, translated back to veRL",
        flavour,
        follows=follows,
        trinity=_as_completed(full),
    )


def _as_completed(full: CompletedConfig) -> CompletedConfig:
    """Return a translated file with trinity-rft's defaults, so that it is comparable with any other."""
    if not from_launch(full.config):
        return full
    try:
        return completed(full.config, full.target)
    except UserError:  # a number in it is a variable
        return full


def by_way_of_trinity(side: EffectiveSettings, target: str) -> EffectiveSettings:
    """Return a veRL source as its translation for ``target`` says it; itself if it cannot be translated."""
    if side.config is None:
        return side
    try:
        written, _ = referred(translate(side.config, TranslateOptions(target=target)).config)
        found = of_trinity(side.source, written)
    except UserError:
        return side
    own = {name: getattr(side, name) for name in ("places", "why", "follows", "dropped", "config", "unused")}
    return replace(found, **own)


def _of_job(source: str, directory: Path) -> EffectiveSettings:
    spec = read_section(directory / _RUN_JSON)
    verl = spec.get("verl")
    if not isinstance(verl, Mapping):
        raise UserError(
            f"a folder without {_RUN_JSON}: not a job directory",
            where=Where(source),
            hint="name a job directory, or a script or YAML in the folder",
        )
    launched: Mapping[str, Any] = read_section(directory / "config" / "launch.json")
    words = {split_key(word["text"])[1]: word["where"] for word in launched.get("arguments", ())}
    sets = (split_key(text)[1] for text in _sets(launched))
    run = {key: value for key, value in spec.items() if key not in _OF_THE_START}
    names = (verl.get(MODEL_ENGINE), value_at(verl, "actor_rollout_ref.actor.strategy"))
    return EffectiveSettings(
        source,
        dict(leaves(verl)),
        words | dict.fromkeys(sets, "--set"),
        "a job, as it ran",
        next((found for name in names if (found := flavour_with(name)) != FLAVOURS[0]), FLAVOURS[0]),
        "the run's plan",
        trinity=_trinity_of_job(directory, launched),
        run={key: value for key, value in leaves(run) if key != "sync.directory"},
    )


def _sets(launched: Mapping[str, Any]) -> Sequence[str]:
    options = launched.get("options") or {}
    return (*options.get("joined", ()), *options.get("sets", ()))


def _trinity_of_job(directory: Path, launched: Mapping[str, Any]) -> CompletedConfig | None:
    """Return the job's Trinity YAML with the paths of its ``--set``; None without the file."""
    path = directory / "config" / "trinity.yaml"
    if not path.is_file():
        return None
    config = load(path)
    for text in _sets(launched):
        key, _, value = text.partition("=")
        if not key.startswith("trinity_compat.") and not is_verl_key(key, TRINITY):
            put(config, key, safe_load(value))
    return _as_completed(completed_config(config))


def _of_verl(source: str, config: EffectiveConfig) -> EffectiveSettings:
    """Read a veRL configuration. Raises UserError for one that Hydra would refuse, since it has no effect."""
    refuse(config.launch.module, config.launch.where, config.launch.main)
    refuse_errors(config)
    upgraded = upgrade(seen_from(config, None))
    settings = upgraded.config.settings
    values = dict(leaves({key: setting.value for key, setting in settings.items()}))
    # A run here has v0's trainer where nothing is said, stock veRL that of its release.
    values[_USE_V1] = config.get(_USE_V1, False)
    return EffectiveSettings(
        source,
        values | _unknown_texts(config),
        {key: place for key, setting in settings.items() if (place := _place(setting))},
        f"veRL {config.version.value}: {config.version.why}",
        config.flavour,
        follows={
            key: setting.interpolation
            for key, setting in settings.items()
            if setting.interpolation and setting.where is None
        },
        dropped={
            gone.key: DroppedSetting(config.get(gone.key), gone.why, gone.given, _place_of(config, gone.key))
            for gone in upgraded.dropped
        },
        config=config,
        unused=tuple(not_read_by_hydra(config.frozen(), os.environ)),
    )


def _place(setting: Setting) -> str:
    return str(setting.where) if setting.where is not None else ""


def _place_of(config: EffectiveConfig, key: str) -> str:
    setting = config.settings.get(key)
    return (_place(setting) if setting else "") or "default"


def _unknown_texts(config: EffectiveConfig) -> dict[str, object]:
    """Return values that contain an unset variable or unknown output, with its name as a reference.

    A Trinity YAML also has ``${oc.env:HOME}`` there.
    """
    symbols = EnvReferences()
    marked = symbolic_settings(config, symbols, None) or {}
    values = leaves({key: setting.value for key, setting in marked.items()})
    return {key: symbols.in_effect(value) for key, value in values if not symbols.is_known(value)}
