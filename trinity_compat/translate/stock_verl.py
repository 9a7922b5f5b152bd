"""Keys that stock veRL accepts and ignores, or uses otherwise than documented.

``translators/by_hand/verl/stock.json`` maps a key, or ``x.*`` for all below x, to a description of the pinned
release's ``main_ppo``: ``says`` what it does; ``but``: the value with which it does what the key says;
``moved``: a section that the release has under another name; ``here``: a run here does what the key says.
Found by tracing the key's reads in whole runs and by reading the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trinity_compat.common.nested import Tree, leaves, sections_above, value_at
from trinity_compat.common.releases import VERL
from trinity_compat.common.resources import data_json
from trinity_compat.launch.entrypoints import PPO
from trinity_compat.verl_config import upgrade
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.pinned import pinned_release
from trinity_compat.verl_config.upgrade import row_for


def _table() -> Mapping[str, Mapping[str, Any]]:
    return data_json("translators/by_hand/verl/stock.json")


def _entry(key: str) -> Mapping[str, Any] | None:
    names = (key, *(f"{section}.*" for section in sections_above(key)))
    return next((_table()[name] for name in names if name in _table()), None)


def remark(config: EffectiveConfig, key: str) -> str | None:
    """Return what stock veRL does with a ``key`` that the launch sets, None if it does what the key says."""
    setting = config.settings.get(key)
    entry = _entry(key)
    if entry is None or setting is None or setting.where is None or setting.value is None:
        return None
    if config.launch.taken_for != PPO or ("but" in entry and setting.value == entry["but"]):
        return None
    return f"stock veRL {VERL} {entry['says']}"


def is_moved(key: str) -> bool:
    """Return True if stock veRL ignores ``key`` because the pinned release renamed its section."""
    return bool((_entry(key) or {}).get("moved"))


def honoured_here(key: str) -> bool:
    """Return True if a run here does what ``key`` says and stock veRL ignores it."""
    entry = _entry(key) or {}
    return bool(entry.get("moved") or entry.get("here"))


def lost_in(verl: Tree) -> dict[str, object]:
    """Return the moved keys, with their values, that a stock run lost, whose whole configuration is ``verl``.

    A release that reads them either has no section of the new name, or deletes the old one when it has moved
    them. A key that the run was given under both names is not lost.
    """
    if not isinstance(verl.get("reward"), Mapping):
        return {}
    lost: dict[str, object] = {}
    for key, value in leaves(verl):
        row = row_for(key, "ppo_trainer") if is_moved(key) and value not in (None, {}, []) else None
        if row and any(value_at(verl, new) != row.value(value) for new in row.targets(key)):
            lost[key] = value
    return lost


def ignored_in(verl: Tree) -> dict[str, str]:
    """Return key → what stock veRL 0.9 does instead, for keys of its run ``verl`` that a run here honours.

    Moved keys are ``lost_in``'s. Empty for other releases, of whose runs ``verl`` says less.
    """
    if value_at(verl, "trainer.use_v1") is None:
        return {}
    defaults = pinned_release("ppo_trainer").resolved
    return {
        key: entry["says"]
        for key, entry in _table().items()
        if entry.get("here")
        and (value := value_at(verl, key)) is not None
        and value not in (entry.get("but"), value_at(defaults, key))
    }


def lost_keys(config: EffectiveConfig) -> dict[str, object]:
    """Return the values that stock veRL ignores since it renamed their section, by the new names.

    As overrides they make a stock run mean what the launch means.
    """
    if not any(map(is_moved, config.set_keys)):
        return {}
    found = upgrade(config)
    lost: dict[str, object] = {}
    for move in found.moves:
        entry = _entry(move.old) if move.old else None
        if move.given and entry is not None and entry.get("moved") and remark(config, move.old):
            lost |= {key: found.config.get(key) for key in move.new}
    return lost
