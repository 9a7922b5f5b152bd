"""Inference of the veRL release of a launch: the one whose keys its overrides fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from trinity_compat.common.nested import nodes
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.config_search import SUPERVISED
from trinity_compat.verl_config.grammar import ADD, DELETE, SET, Override
from trinity_compat.verl_config.model import VersionChoice
from trinity_compat.verl_config.releases import ENGINE_FLAVOURS, FLAVOURS, key_index, release_tree

# The release since which a key has no default ("???") but has to be given
# (translators/generated/verl/releases).
MANDATORY = {"actor_rollout_ref.rollout.name": "0.6.1"}


@dataclass(frozen=True, slots=True)
class ReleaseFit:
    """The overrides that each release's Hydra would refuse.

    ``lacking``: for each release the mandatory values that nobody gave.
    """

    misfits: Mapping[str, tuple[str, ...]]
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def best(self) -> tuple[str, ...]:
        """The releases with the fewest refused overrides, oldest first.

        Where the newest is not among them, the launch is an older one's, and no release that demands more
        than it gives.
        """
        fewest = min(len(keys) for keys in self.misfits.values())
        best = tuple(version for version, keys in self.misfits.items() if len(keys) == fewest)
        whole = tuple(version for version in best if not self.lacking.get(version))
        return whole if whole and best[-1] != tuple(self.misfits)[-1] else best


def fit(
    overrides: Iterable[Override],
    flavour: str,
    known: Mapping[str, int],
    candidates: tuple[str, ...] = VERL_RELEASES,
) -> ReleaseFit:
    """Count what each release refuses.

    ``known`` are the keys of the config files above veRL's own, a recipe's or the user's, with the bits of
    the releases that have them there.
    """
    overrides = tuple(overrides)
    groups = _chosen_sections(overrides, flavour)
    masks = [(override.key, _accepting(override, flavour, groups, known)) for override in overrides]
    given = {key for key, _ in masks} | set(known)
    misfits, lacking = {}, {}
    for version in candidates:
        bit = 1 << VERL_RELEASES.index(version)
        misfits[version] = tuple(dict.fromkeys(key for key, mask in masks if not mask & bit))
        lacking[version] = (
            tuple(_demanded(version) - given) if flavour in (*FLAVOURS, *ENGINE_FLAVOURS) else ()
        )
    return ReleaseFit(misfits, lacking)


def _demanded(version: str) -> set[str]:
    place = VERL_RELEASES.index
    return {key for key, since in MANDATORY.items() if place(version) >= place(since)}


def choose(found: ReleaseFit) -> VersionChoice:
    """The newest of the releases that fit best, with the reason in words."""
    version = found.best[-1]
    return VersionChoice(version, _why(version, found), found.best)


def _chosen_sections(overrides: Iterable[Override], flavour: str) -> tuple[tuple[str, str], ...]:
    """Return the files of its sections that a supervised launch chooses: ``engine=megatron``."""
    if flavour not in SUPERVISED:
        return ()
    chosen = {
        each.key: each.value
        for each in overrides
        if each.key in ("engine", "optim") and isinstance(each.value, str)
    }
    return tuple(sorted(chosen.items()))


@cache
def keys_of(flavour: str, groups: tuple[tuple[str, str], ...] = ()) -> Mapping[str, tuple[int, int]]:
    """Return for each key two bit masks: releases that have it, and those where it is not null.

    From ``key_index``; composed here for other engines, and for a main of supervised training with its
    choices of ``groups``.
    """
    if flavour in FLAVOURS:
        found: Mapping[str, tuple[int, int]] = key_index()[flavour]
        return found
    masks: dict[str, tuple[int, int]] = {}
    for bit, version in enumerate(VERL_RELEASES):
        for key, value in nodes(composed_as(release_tree(version), flavour, groups)).items():
            has, filled = masks.get(key, (0, 0))
            masks[key] = has | 1 << bit, filled | (value is not None) << bit
    return masks


_ALL = (1 << len(VERL_RELEASES)) - 1


def _accepting(
    override: Override, flavour: str, groups: tuple[tuple[str, str], ...], known: Mapping[str, int]
) -> int:
    """Bit mask of the releases whose Hydra takes the override."""
    index = key_index()
    key = override.key
    group = index["groups"].get(key)
    if group is not None and isinstance(override.value, str):
        return int(group)
    has, filled = keys_of(flavour, groups).get(key, (0, 0))
    # What the file has, its release takes whatever it is.
    if key in known:
        return known[key] | int(has)
    if override.op == SET:
        return int(has)
    if override.op == ADD:
        # Hydra refuses + where a value stands already, but merges dictionaries and lists.
        return _ALL if isinstance(override.value, dict | list) else _ALL & ~int(filled)
    return int(filled) if override.op == DELETE else _ALL


def _why(version: str, found: ReleaseFit) -> str:
    left = found.misfits[version]
    age = VERL_RELEASES.index
    older = [v for v in found.misfits if age(v) < age(version) and v not in found.best]
    newer = [v for v in found.misfits if age(v) > age(version)]
    reasons = []
    demanding = [v for v in found.misfits if v not in found.best and len(found.misfits[v]) == len(left)]
    if demanding:
        reasons.append(f"{_name(found.lacking[demanding[0]])} has to be given since {demanding[0]}")
    if older:
        reasons.append(
            f"{_name(_only(found, older[-1], version))} {_verb(found, older[-1], version)} {older[-1]}"
        )
    if newer:
        reasons.append(
            f"{_name(_only(found, newer[0], version))} {_verb(found, newer[0], version)} {newer[0]}"
        )
    if left:
        reasons.append(f"no release takes {_name(left)}; this one refuses the fewest keys ({len(left)})")
    elif len(found.best) > 1:
        reasons.append(f"every key fits {', '.join(found.best)}; the newest is taken")
    return "; ".join(reasons)


def _only(found: ReleaseFit, other: str, version: str) -> tuple[str, ...]:
    return tuple(key for key in found.misfits[other] if key not in found.misfits[version])


def _verb(found: ReleaseFit, other: str, version: str) -> str:
    return "are refused by" if len(_only(found, other, version)) > 1 else "is refused by"


def _name(keys: tuple[str, ...]) -> str:
    shown = ", ".join(keys[:3])
    return shown + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
