"""Data on what stock veRL does with each key, which scripts/generate/make_verl_reads.py writes.

``translators/generated/verl/reads/RELEASE.json`` has each key's label and up to three places in veRL's code;
``translators/by_hand/verl/reads.json`` corrects and confirms. A key is ignored if no code reads it, if its
value is only stored where nothing loads it, or if a person has confirmed that it is only checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from trinity_compat.common.nested import value_at
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.common.resources import data_json
from trinity_compat.launch.entrypoints import PPO, canonical
from trinity_compat.verl_config.compose import composed_as
from trinity_compat.verl_config.model import EffectiveConfig
from trinity_compat.verl_config.releases import FLAVOURS, release_tree

# The releases whose code has been followed; what older ones did with a key is not known.
FOLLOWED = VERL_RELEASES[VERL_RELEASES.index("0.7.0") :]
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,.*)?\}")
_USE_V1 = "trainer.use_v1"  # which of veRL's two trainers runs
_TRAINERS = (f"{_USE_V1}=True", f"{_USE_V1}=False")
NOT_READ, STORED, CHECKED = "NOT READ", "STORED ONLY", "CHECKED ONLY"
_WORDS: Mapping[str, str] = {
    "READ": "reads it",
    "READ IF": "reads it in code of {more}",
    "READ VIA": "reads it as {more}",
    "PASSED ON": "passes its section on as a whole",
    "AMBIGUOUS": "may read it: the code reads a field of this name from an object of unknown type",
    "NAME AS STRING": "has the name in a string, and may read it that way",
    CHECKED: "only checks it",
    STORED: "stores it where nothing reads it",
    NOT_READ: "does not read it",
}


@dataclass(frozen=True, slots=True)
class VerlRead:
    """A release's treatment of a key: ``label``, ``places`` (file:line below veRL's source), and ``more``.

    ``more`` is the key or the part of veRL by which it is read. ``why`` is a person's word on it.
    """

    label: str
    places: tuple[str, ...] = ()
    more: str = ""
    why: str = ""

    @property
    def ignored(self) -> bool:
        """Return whether a run is the same with any value of the key that passes veRL's checks."""
        return self.label in (NOT_READ, STORED) or (self.label == CHECKED and bool(self.why))

    @property
    def shown_places(self) -> str:
        """The places as paths of veRL's source, separated by commas."""
        return ", ".join(f"verl/{place}" for place in self.places)

    @property
    def words(self) -> str:
        """The label as a sentence without its subject, with the places."""
        text = _WORDS[self.label].format(more=self.more)
        places = f" ({self.shown_places})" if self.places else ""
        return f"{text}{places}" + (f": {self.why}" if self.why else "")


def _tables(version: str) -> Mapping[str, Mapping[str, list[Any]]]:
    return data_json(f"translators/generated/verl/reads/{version}.json")


def table_of(version: str, flavour: str) -> Mapping[str, list[Any]]:
    """Return the stored answers: all of ppo_trainer, and those that differ under ppo_megatron_trainer."""
    return _tables(version)[flavour]


def by_hand() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return release → key → ``label``, ``place`` (file:line) and ``why``, written by a person."""
    return data_json("translators/by_hand/verl/reads.json")


def read_of(key: str, version: str, flavour: str = FLAVOURS[0]) -> VerlRead | None:
    """Return what the release does with ``key``; None for keys it lacks and other engines' flavours.

    None also for a release that is not in ``FOLLOWED``.
    """
    if version not in FOLLOWED or flavour not in FLAVOURS:
        return None
    tables = _tables(version)
    found = tables[flavour].get(key) or (
        tables[FLAVOURS[0]].get(key) if _has(key, version, flavour) else None
    )
    if found is None:
        return None
    word = by_hand().get(version, {}).get(key)
    if word:
        return VerlRead(word["label"], (word["place"],), word.get("more", ""), word["why"])
    label, places, more = (*found, (), "")[:3] if len(found) < 3 else found
    return VerlRead(label, tuple(places or ()), more or "")


@cache
def _defaults(version: str, flavour: str) -> Mapping[str, object]:
    return composed_as(release_tree(version), flavour)


def _has(key: str, version: str, flavour: str) -> bool:
    return flavour == FLAVOURS[0] or value_at(_defaults(version, flavour), key, _MISSING) is not _MISSING


_MISSING = object()


def read_until(key: str, version: str, flavour: str = FLAVOURS[0]) -> str:
    """Return the last release before ``version`` that is known to read ``key``; "" where there is none."""
    before = FOLLOWED[: FOLLOWED.index(version)]
    for release in reversed(before):
        found = read_of(key, release, flavour)
        if found is not None and found.label.startswith("READ"):
            return release
    return ""


def sentence(key: str, version: str, flavour: str = FLAVOURS[0]) -> str:
    """Say what a release does with a key that it ignores: ``veRL 0.9.1 does not read it (read until 0.7.0)``.

    Empty for a key that it doesn't ignore.
    """
    found = read_of(key, version, flavour)
    if found is None or not found.ignored:
        return ""
    until = read_until(key, version, flavour)
    return f"veRL {version} {found.words}" + (f" (read until {until})" if until else "")


def unchecked(config: EffectiveConfig) -> str:
    """Say why the launch's code is not known: it is a fork's, or another main's; "" where it is known."""
    if config.fork is not None:
        return f"it starts from the copy of veRL in {config.fork.folder}, whose code may read other keys"
    if canonical(config.launch.main or config.launch.module) != PPO:
        return f"{config.launch.module} is not {PPO}: which keys it reads is not known"
    return ""


def not_followed(config: EffectiveConfig) -> str:
    """Say why it is not known which keys the launch's code ignores; "" where it is known."""
    version = config.version.value
    if version not in FOLLOWED:
        return f"what veRL {version} does with its keys is not known: the data begin with {FOLLOWED[0]}"
    return unchecked(config)


def ignored_keys(config: EffectiveConfig) -> dict[str, str]:
    """Return the keys that the launch sets to another value than the default and that veRL ignores, with why.

    A key that only one of veRL's two trainers reads is ignored if the launch has the other. Empty for other
    mains than main_ppo, for forks and for older releases: their code is another.
    """
    if not_followed(config):
        return {}
    version, flavour = config.version.value, config.flavour
    found = {}
    for key in config.set_keys:
        setting = config.settings.get(key)
        why = sentence(key, version, flavour) or _only_in_the_other_trainer(config, key)
        if setting is None or not why:
            continue
        # The release's default of `key`; of one that refers to another key, that key's value here.
        default = value_at(_defaults(version, flavour), key)
        other = _REFERENCE.fullmatch(default) if isinstance(default, str) else None
        if setting.value != (config.get(other[1]) if other else default):
            found[key] = why
    return found


def _only_in_the_other_trainer(config: EffectiveConfig, key: str) -> str:
    """Say that only the trainer that ``trainer.use_v1`` does not choose reads ``key``; "" for others."""
    found = read_of(key, config.version.value, config.flavour)
    chosen = f"{_USE_V1}={config.get(_USE_V1)}"
    if found is None or found.label != "READ IF" or found.more not in _TRAINERS or found.more == chosen:
        return ""
    return f"veRL {config.version.value} only {found.words}; here {chosen}"
