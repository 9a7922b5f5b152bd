"""A veRL YAML as input: a composed dump (``--cfg job``, .hydra/config.yaml) or a config of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from trinity_compat.common.errors import UserError, Where
from trinity_compat.common.nested import copied, leaves, nested, nodes, sections_above, value_at
from trinity_compat.common.redaction import remember
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.launch.model import Launch, Word, WordPart
from trinity_compat.verl_config.arguments import GivenOverride, HydraFlags, LaunchArguments
from trinity_compat.verl_config.config_folders import read_config
from trinity_compat.verl_config.effective import (
    ReadLaunch,
    as_tree,
    asked_for,
    compose_as,
    compose_best,
    settings_of,
)
from trinity_compat.verl_config.grammar import SET, Override
from trinity_compat.verl_config.infer import keys_of
from trinity_compat.verl_config.interpolate import Resolver, TooManyReferences, is_interpolated
from trinity_compat.verl_config.model import EffectiveConfig, VersionChoice
from trinity_compat.verl_config.releases import (
    ENGINE_FLAVOURS,
    FLAVOURS,
    MODEL_ENGINE,
    flavour_with,
    key_index,
)
from trinity_compat.verl_config.source_tree import find_checkout
from trinity_compat.verl_config.yaml_files import ConfigFile, merge

_TRINITYS = frozenset({"buffer", "explorer", "synchronizer", "cluster"})
_COMPOSED = Launch("verl.trainer.main_ppo", (), Where("veRL configuration"))
_COMPLETE = 0.8  # share of common keys from which a file is a dump of a whole configuration


def config_from_yaml(
    path: Path | str,
    version: str | None = None,
    *,
    fork_config: bool = True,
    environ: Mapping[str, str] | None = None,
) -> EffectiveConfig:
    """The configuration that a veRL YAML stands for, as if ``main_ppo`` were called with it.

    A file with ``defaults`` is composed as Hydra would with --config-path/--config-name; other files
    of its folder may be named there, and those of the veRL that its repository holds, as
    ``effective_config`` has it. A file without is taken as the end of the composition: what it
    lacks has the default of ``version``, or of the release that its keys fit best. In a dump of
    a whole configuration only what differs from the release's defaults counts as set. ``environ`` are the
    variables that ``${oc.env:NAME}`` may take.
    Raises UserError for a file that cannot be read or is no configuration of PPO training.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    file = read_config(path)
    if file.items is not None:
        raise UserError("a list, not the configuration of a training", where=Where(file.source))
    _refuse_trinitys(file)
    _check_sections(file)
    for name, value in (environ or {}).items():
        remember(name, value)
    where, cwd = Where(str(path)), str(path.parent)
    launch = Launch("verl.trainer.main_ppo", (), where, cwd=cwd, environ=environ or {})
    if file.defaults:
        words = {"config_path": str(path.parent.resolve()), "config_name": path.stem}
        flags = HydraFlags(
            words, {name: Word((WordPart(text),), launch.where) for name, text in words.items()}
        )
        checkout = find_checkout(launch, path.parent) if (fork_config and version is None) else None
        read = ReadLaunch(launch, LaunchArguments(flags, (), (), ()), path.parent, checkout)
        return compose_best(read, asked_for(version))
    return _standing_alone(launch, file, version)


def config_from_tree(tree: Mapping[str, object], version: str) -> EffectiveConfig:
    """As ``config_from_yaml`` for a configuration of ``version`` that is composed already."""
    return _standing_alone(_COMPOSED, ConfigFile(config=tree), version)


def _refuse_trinitys(file: ConfigFile) -> None:
    """Raise UserError for a configuration of Trinity's: its sections are none of veRL's."""
    content, algorithm = file.config, file.config.get("algorithm")
    of_algorithm = isinstance(algorithm, Mapping) and "algorithm_type" in algorithm
    if "actor_rollout_ref" in content or not (of_algorithm or _TRINITYS & set(content)):
        return
    raise UserError(
        "this is a Trinity configuration already",
        where=Where(file.source),
        hint=f"trinity-compat run {file.source}",
    )


def _check_sections(file: ConfigFile) -> None:
    """Raise UserError where a value stands in a section's place.

    A null may, below the top; and so may an interpolation, which can stand for a section.
    """
    for key, value in nodes(file.config).items():
        inner_null = value is None and "." in key
        if isinstance(value, Mapping) or inner_null or is_interpolated(value) or key not in _sections():
            continue
        raise UserError(
            f"{key}: {'null' if value is None else value} where the section {key} should be a mapping",
            where=Where(file.source, file.lines.get(key, 0)),
            hint=f"its keys stand below it; without {key} at all it has veRL's defaults",
        )


@cache
def _sections() -> frozenset[str]:
    """The keys that are a filled section in every release that has them."""
    found = set()
    for flavour in FLAVOURS:
        index = key_index()[flavour]
        filled: dict[str, int] = {}
        for key, (has, _) in index.items():
            above = key.rpartition(".")[0]
            filled[above] = filled.get(above, 0) | has
        found |= {key for key, below in filled.items() if key and below == index.get(key, (below, 0))[0]}
    return frozenset(found)


def _standing_alone(launch: Launch, file: ConfigFile, version: str | None) -> EffectiveConfig:
    content = {key: value for key, value in file.config.items() if key != "hydra"}
    if isinstance(content.get("worker"), Mapping) and "actor_rollout_ref" not in content:
        raise UserError(
            "this is a configuration of EasyR1, whose format (data, algorithm, worker, trainer) differs from "
            "veRL's and is not translated",
            where=Where(file.source, file.lines.get("worker", 0)),
        )
    if not {"actor_rollout_ref", "data", "trainer", "algorithm"} & set(content):
        raise UserError(
            "not a configuration of veRL's PPO training (no actor_rollout_ref, data, algorithm or trainer)",
            where=launch.where,
        )
    names = (content.get(MODEL_ENGINE), value_at(content, "actor_rollout_ref.actor.strategy"))
    flavour = next((found for name in names if (found := flavour_with(name)) != FLAVOURS[0]), FLAVOURS[0])
    choice, likeness = _closest(content, flavour)
    choice = asked_for(version) or choice
    composed = launch is _COMPOSED
    base = _kept_defaults(flavour, choice) if composed else _defaults(launch, flavour, choice)
    try:
        return _over(base, file, content, complete=likeness >= _COMPLETE)
    except TooManyReferences as error:
        places = {key: Where(file.source, line) for key, line in file.lines.items()}
        error.where = error.place(places) or Where(file.source)
        raise


def _defaults(launch: Launch, flavour: str, choice: VersionChoice) -> EffectiveConfig:
    # The arguments that choose `flavour` and nothing else.
    engine = ENGINE_FLAVOURS.get(flavour)
    primary = FLAVOURS[0] if engine else flavour
    flags = HydraFlags({"config_name": primary}, {"config_name": Word((WordPart(primary),), launch.where)})
    line = f"{MODEL_ENGINE}={engine}"
    chosen = GivenOverride(Override(line, SET, MODEL_ENGINE, engine), Word((WordPart(line),), launch.where))
    arguments = LaunchArguments(flags, (chosen,) if engine else (), (), ())
    return compose_as(ReadLaunch(launch, arguments, Path(launch.cwd)), choice)


@cache
def _kept_defaults(flavour: str, choice: VersionChoice) -> EffectiveConfig:
    """Return the defaults behind a configuration that is composed already; a run's plan needs them often."""
    return _defaults(_COMPOSED, flavour, choice)


def _closest(content: Mapping[str, object], flavour: str) -> tuple[VersionChoice, float]:
    """Return the release closest to a dump, and its share of common keys.

    For a file with some keys only, the newest release that has most of them.
    """
    own = set(nodes(content))
    common: dict[str, int] = {}
    share: dict[str, float] = {}
    for version in VERL_RELEASES:
        theirs = _keys_of_release(flavour, version)
        common[version] = len(own & theirs)
        share[version] = common[version] / len(own | theirs)
    alike = max(reversed(VERL_RELEASES), key=lambda version: share[version])
    counted = f"of the file's {len(own)} keys are keys of"
    if share[alike] >= _COMPLETE:
        why = f"{common[alike]} {counted} this release, more alike than any other"
        return VersionChoice(alike, why), share[alike]
    fits = tuple(version for version in VERL_RELEASES if common[version] == max(common.values()))
    why = f"{common[fits[-1]]} {counted} {', '.join(fits)}" + ("; the newest is taken" if fits[1:] else "")
    return VersionChoice(fits[-1], why, fits), share[fits[-1]]


@cache
def _keys_of_release(flavour: str, version: str) -> frozenset[str]:
    bit = VERL_RELEASES.index(version)
    return frozenset(key for key, (has, _) in keys_of(flavour).items() if has >> bit & 1)


def _over(
    base: EffectiveConfig, file: ConfigFile, content: Mapping[str, object], *, complete: bool
) -> EffectiveConfig:
    """``content`` over the release's defaults ``base``."""
    # Copied, as the empty sections are filled below.
    raw = copied(nested({key: found.interpolation or found.value for key, found in base.settings.items()}))
    set_here = dict(content)
    if complete:
        set_here = _differing(content, raw, as_tree(base), written_only=True)
        merged = merge(merge({}, raw), set_here)
        rest = _differing(content, merged, Resolver(merged).resolve(), written_only=False)
        set_here = merge(set_here, rest)
    raw = merge(raw, set_here)
    origins = {key: Where(file.source, file.lines.get(key, 0)) for key, _ in leaves(set_here)}
    notes = list(base.diagnostics)
    settings = settings_of(raw, origins, base.launch, notes)
    set_keys = tuple(key for key, setting in settings.items() if setting.where is not None)
    unknown = tuple(key for key in set_keys if key not in base.settings and not _free(key, base))
    return replace(base, settings=settings, set_keys=set_keys, unknown=unknown, diagnostics=tuple(notes))


def _differing(
    content: Mapping[str, object],
    raw: Mapping[str, object],
    resolved: Mapping[str, Any],
    *,
    written_only: bool,
) -> dict[str, object]:
    """Return the values of a dump that differ from the release's defaults.

    ``written_only`` leaves interpolated defaults out. One that follows a changed value is still the default,
    so the caller checks those again after applying the rest.
    """
    out: dict[str, object] = {}
    for key, value in content.items():
        default = raw.get(key)
        if key in resolved and resolved[key] == value:
            continue
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default:
            below = _differing(value, default, resolved[key], written_only=written_only)
            if below:
                out[key] = below
        elif not (written_only and is_interpolated(default)):
            out[key] = value
    return out


def _free(key: str, base: EffectiveConfig) -> bool:
    """Return whether ``key`` lies below an empty dict of the release, which takes any key."""
    above = sections_above(key)
    return any(parent in base.settings and base.settings[parent].value in ({}, None) for parent in above)
