"""Keys that only the script's fork of veRL has, and the differences of that fork from veRL.

A section whose switch is off asks for nothing. Other switches that veRL's own tree had between two releases,
and that no release has, are data: translators/by_hand/verl/between_releases.json, each with the values that
leave it off. The file holds all such keys of veRL's history until 2026-08 whose default is off, but for those
that are carried forward (upgrade.jsonl).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from trinity_compat.common.nested import sections_above
from trinity_compat.common.releases import VERL
from trinity_compat.common.resources import data_path
from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.model import Caution, Status
from trinity_compat.translate.rows import MappingTable
from trinity_compat.translate.unknown import USER_RULE, is_unknown
from trinity_compat.verl_config.model import EffectiveConfig, Fork
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.upgrade import loses_default, misfit_of
from trinity_compat.verl_config.yaml_files import MISSING

CODE = "TC090"
_SHOWN = 4
_SWITCHES = ("enable", "enabled")  # of a section, in veRL and its forks


def is_fork_key(key: str, config: EffectiveConfig, rows: MappingTable) -> bool:
    """Return True if only ``config``'s fork has ``key``, and no rule of the user's covers it."""
    if _is_misfit(key, config):
        row = rows.find(key)
        return row is None or row.code != USER_RULE
    return config.fork is not None and config.fork.key(key) is not None and is_unknown(key, (key,), rows)


def _is_misfit(key: str, config: EffectiveConfig) -> bool:
    """Return True if the value of ``key`` is a default of the fork's that veRL cannot take."""
    setting = config.settings.get(key)
    return bool(config.fork and setting and setting.where is None and key in config.fork.misfits)


def by_default(config: EffectiveConfig) -> Iterator[str]:
    """Return the fork's keys that the launch doesn't set and whose default switches something on."""
    fork = config.fork
    if fork is None:
        return
    lost = [key for key in (*fork.added, *fork.changed) if loses_default(config, key)]
    for key in dict.fromkeys((*fork.keys, *fork.misfits, *lost)):
        setting = config.settings.get(key)
        if setting is None or setting.where is not None or says_nothing(setting.value):
            continue
        if not _is_off(key, config):
            yield key


def _is_off(key: str, config: EffectiveConfig) -> bool:
    """Return True if ``key`` belongs to a feature that is switched off, or is its switch."""
    if config.get(key) in _between_releases().get(key, ()):
        return True
    above = sections_above(key)
    return any(config.get(f"{section}.{name}") is False for section in above for name in _SWITCHES)


@lru_cache(maxsize=1)
def _between_releases() -> Mapping[str, Sequence[object]]:
    """Return a switch → its values that leave it off."""
    stored: Mapping[str, Sequence[object]] = json.loads(
        data_path("translators/by_hand/verl/between_releases.json").read_text(encoding="utf-8")
    )
    return stored


def says_nothing(value: object) -> bool:
    """Return True if a value switches nothing on.

    False is not such a value (``shuffle_train_dataloader``); ``???`` is not given.
    """
    return value is None or value in ("", MISSING, {}, [])


def idle(view: LaunchView, key: str) -> bool:
    """Return True if ``key`` is a fork's that the YAML does not carry.

    It is a default, or a key that the pinned veRL would pass to a dataclass without that field.
    """
    fork = view.origin.fork
    if fork is None or fork.key(key) is None:
        return False
    return view.where(key) is None or pinned_release(view.config.flavour).takes(key) is False


def fate(key: str, config: EffectiveConfig) -> tuple[Status, str]:
    """Return (status, reason) of a fork key."""
    setting = config.settings.get(key)
    if setting is not None and says_nothing(setting.value):
        return Status.NO_EFFECT, f"null or empty; {_reason(key, config)}"
    return Status.FORK_KEY, _reason(key, config)


def _reason(key: str, config: EffectiveConfig) -> str:
    """Return the place where the fork defines ``key``, and the comment there."""
    assert config.fork is not None
    misfits = _is_misfit(key, config)
    place = config.fork.misfits[key] if misfits else config.fork.key(key)
    assert place is not None
    comment = f" (\u201c{place.comment}\u201d)" if place.comment else ""
    if misfits:
        kinds = misfit_of(key, config.get(key), config.flavour)
        return f"the fork's default is {kinds}, defined at {place.where}{comment}; {VERL}'s own applies"
    verb = "defined" if key in config.fork.added else "found"
    return f"only the fork knows it, {verb} at {place.where}{comment}"


def caution(config: EffectiveConfig) -> Iterator[Caution]:
    """Warn that the script starts from a fork, and name the differences of its configuration from veRL's."""
    fork = config.fork
    if fork is None:
        return
    if not (fork.added or fork.removed or fork.changed):
        yield Caution(
            "TW019",
            f"the script starts from a fork of veRL: its configuration in {fork.folder} equals that of"
            f" veRL {config.version.value}, but its code reads keys that veRL does not: {_listed_keys(fork)}",
            config.launch.where,
            "--rules FILE says what becomes of them",
        )
        return
    differences = [
        _listed("adds", list(fork.added)),
        _listed("lacks", list(fork.removed)),
        _listed("has other defaults for", [_changed(fork, key) for key in fork.changed]),
    ]
    yield Caution(
        "TW019",
        f"the script starts from a fork of veRL, whose configuration in {fork.folder} is composed; against "
        f"{config.version.value}, the nearest release, it {'; '.join(filter(None, differences))}. Only the "
        "fork's configuration is read, not its code",
        config.launch.where,
        "audit lists the fork's own keys; --no-fork-config or --verl-version X composes a release's instead",
    )


def _listed_keys(fork: Fork) -> str:
    names = list(fork.keys)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {len(names)}: {', '.join(names[:_SHOWN])}{more}" if names else ""


def _changed(fork: Fork, key: str) -> str:
    own, other = fork.changed[key]
    return f"{key}={own} (not {other})"
