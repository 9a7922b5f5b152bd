"""Keys that no veRL release reads, with the nearest known spelling."""

from __future__ import annotations

from collections.abc import Collection

from trinity_compat.common.suggestions import did_you_mean
from trinity_compat.translate.rows import MappingTable
from trinity_compat.verl_config import FLAVOURS
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.releases import key_index

UNKNOWN = "TC001"
USER_RULE = "TC002"


def is_unknown(key: str, unread: Collection[str], rows: MappingTable) -> bool:
    """Return True if ``key`` is among ``unread`` and neither a row of its own nor a user's rule covers it."""
    if key not in unread:
        return False
    row = rows.find(key)
    return row is None or (key not in rows.exact and row.code != USER_RULE)


def reason_of(key: str, config: EffectiveConfig) -> str:
    """Return the reason why a key of a composed launch is unknown, with the nearest key of its release."""
    known = config.settings.keys() - set(config.unknown)
    if config.fork:
        folder = config.fork.folder
        return f"neither the fork in {folder} nor a release of veRL has such a key; {_hint(key, known)}"
    return f"veRL {config.version.value} has no such key and never reads it; {_hint(key, known)}"


def reason_without_release(key: str, rows: MappingTable) -> str | None:
    """Return that reason for a launch that no release can compose; None if a release may read the key."""
    index = key_index()
    known = index[FLAVOURS[0]].keys() | index[FLAVOURS[1]].keys()
    named = key in known or key in index["groups"] or key in rows.exact or key.startswith(("-", "~", "hydra"))
    if named or not _in_a_fixed_section(key, known):
        return None
    return f"no veRL release has such a key; {_hint(key, known)}"


def _in_a_fixed_section(key: str, known: Collection[str]) -> bool:
    """Return True if the section above ``key`` has fixed keys; some are dictionaries of anything."""
    section = key.rpartition(".")[0]
    return not section or any(name.startswith(section + ".") for name in known)


def _hint(key: str, known: Collection[str]) -> str:
    near = did_you_mean(key, sorted(known))
    return f"did you mean {near}?" if near else "no key of veRL's resembles it"
