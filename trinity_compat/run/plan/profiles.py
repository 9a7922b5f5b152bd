"""Profiles: lists of veRL keys with the reason for each, applied on top of a launch. Data: ``overrides/``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import yaml

from trinity_compat.common.errors import UserError
from trinity_compat.common.resources import data_path
from trinity_compat.verl_config.grammar import hydra_text

_ENV_VARS = "ray_kwargs.ray_init.runtime_env.env_vars"
Kind = Literal["stock", "decoupled"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a profile. ``only_for`` None: for stock veRL and for the decoupled run.

    ``in_place_of``: the values that a run replaces, any where it is empty.
    """

    key: str
    value: object
    why: str
    only_for: Kind | None = None
    add: bool = False  # Hydra's "+": the release's own configuration doesn't define the key
    in_place_of: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """A named list of entries; later entries win."""

    name: str
    about: str
    entries: tuple[Entry, ...]
    env: tuple[tuple[str, str, str], ...] = ()  # (name, value, why)

    def for_kind(self, kind: Kind) -> tuple[Entry, ...]:
        """The entries that hold for stock veRL, or for a decoupled run."""
        return tuple(entry for entry in self.entries if entry.only_for in (None, kind))


def names() -> list[str]:
    """The shipped profiles."""
    return sorted(path.stem for path in data_path("overrides").glob("*.yaml"))


def load(name: str) -> Profile:
    """Read a shipped profile. Raises UserError for an unknown name, listing the known ones."""
    path = data_path("overrides") / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"no profile {name!r}", hint=f"known profiles: {', '.join(names())}")
    data = yaml.safe_load(path.read_text())
    entries = tuple(
        Entry(**{**entry, "in_place_of": tuple(entry.get("in_place_of", ()))}) for entry in data["set"]
    )
    env = tuple((item["name"], str(item["value"]), item["why"]) for item in data.get("env", ()))
    return Profile(name=name, about=data["about"], entries=entries, env=env)


def as_overrides(profile: Profile, kind: Kind = "stock") -> list[str]:
    """The profile as Hydra overrides, each one shell word without blanks.

    Its environment goes through Ray's runtime environment: a launch has no other way to set one.
    """
    entries = profile.for_kind(kind)
    words = [f"{'++' if entry.add else ''}{entry.key}={hydra_value(entry.value)}" for entry in entries]
    return words + [f'++{_ENV_VARS}.{name}="{value}"' for name, value, _ in profile.env]


def hydra_value(value: object) -> str:
    """``value`` in Hydra's override grammar. Raises ValueError for one that has no spelling there."""
    text = hydra_text(value)
    if text is None:
        raise ValueError(f"{value!r} has no spelling in Hydra's grammar")
    return text


def announce(profile: Profile) -> Iterator[str]:
    """Lines for the user: each key and variable, its value, and why."""
    entries = profile.entries
    yield f"profile {profile.name}: {profile.about}"
    width = max((len(entry.key) + len(hydra_value(entry.value)) for entry in entries), default=0) + 3
    for entry in entries:
        yield f"  {f'{entry.key} = {hydra_value(entry.value)}':<{width}}  # {entry.why}"
    for name, value, why in profile.env:
        yield f"  {name}={value}  # {why}"
