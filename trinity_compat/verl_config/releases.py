"""veRL's releases as data: each release's config tree, its recipes' configs, the keys of all releases."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.common.releases import VERL_RELEASES
from trinity_compat.common.resources import data_json
from trinity_compat.verl_config.yaml_files import ConfigFile

_RELEASE = re.compile(r"v?(\d+\.\d+)(?:\.(\d+))?(?:\.\w+)*")  # groups: its line, its number in the line
_ANY_PATCH = 1 << 30  # "0.9" is the newest of its line
FLAVOURS = ("ppo_trainer", "ppo_megatron_trainer")
# ppo_trainer with another ``model_engine``: its sections have classes and keys of their own. The names are
# those of the files that veRL generates for them (verl/trainer/config/_generated_*).
ENGINE_FLAVOURS: Mapping[str, str] = {
    "ppo_veomni_trainer": "veomni",
    "ppo_torchtitan_trainer": "torchtitan",
}
# Of ours: ppo_trainer with an actor of an engine for which veRL has none, since its supervised trainer alone
# trains with it. plugins/automodel_actor.py is the actor's class.
ROWS_FLAVOURS: Mapping[str, str] = {"sft_automodel": "automodel"}
OTHER_FLAVOURS: Mapping[str, str] = {**ENGINE_FLAVOURS, **ROWS_FLAVOURS}
MODEL_ENGINE = "model_engine"

Find = Callable[[str], ConfigFile | None]  # a config's path in its search path, without suffix


@dataclass(frozen=True, eq=False)
class Tree:
    """A folder of config files by path without suffix, e.g. ``actor/dp_actor``."""

    files: Mapping[str, ConfigFile] = field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Mapping[str, Any]]) -> Tree:
        """The tree as scripts/generate/make_verl_releases.py stores it."""
        return cls(
            {
                name: ConfigFile(
                    tuple(entry.get("defaults", ())), entry.get("config", {}), entry.get("package")
                )
                for name, entry in stored.items()
            }
        )

    def find(self, name: str) -> ConfigFile | None:
        """The config file at ``name``; None when the tree has none."""
        return self.files.get(name)

    def has_group(self, group: str) -> bool:
        """Return whether ``group`` is a folder of this tree (Hydra then takes it as a config group)."""
        return group in self._groups

    @cached_property
    def _groups(self) -> frozenset[str]:
        parts = [name.split("/") for name in self.files]
        return frozenset("/".join(path[:depth]) for path in parts for depth in range(1, len(path)))


def flavour_with(engine: object) -> str:
    """Return the flavour of ppo_trainer with ``model_engine=engine``."""
    if engine == "megatron":
        return "ppo_megatron_trainer"
    return next((name for name, other in ENGINE_FLAVOURS.items() if other == engine), "ppo_trainer")


def engine_flavour(engine: str) -> str:
    """Return the flavour with the sections of an engine other than FSDP and Megatron, "" for those two."""
    return next((name for name, other in OTHER_FLAVOURS.items() if other == engine), "")


def _load(name: str) -> Any:
    return data_json(f"translators/generated/verl/releases/{name}")


@cache
def release_tree(version: str) -> Tree:
    """``verl/trainer/config`` of a release. Raises UserError for a version that we don't know."""
    return Tree.from_json(_load(f"{check_version(version)}.json")["files"])


@cache
def recipes(version: str) -> Mapping[str, Any]:
    """``{"dirs": {folder: {name: file}}, "mains": {module: [folder, name]}}`` of a release's repository."""
    return _load(f"{check_version(version)}.recipes.json")


@lru_cache(maxsize=1)
def key_index() -> Mapping[str, Any]:
    """Return two masks of releases by flavour and key: those with the key, and those where it isn't null."""
    return _load("keys.json")


def is_in_no_release(key: str) -> bool:
    """Tell whether no release has the key, nor one below it."""
    names = (name for flavour in FLAVOURS for name in key_index()[flavour])
    return not any(name == key or name.startswith(f"{key}.") for name in names)


def dataclass_fields() -> Mapping[str, list[str]]:
    """Return the field names of the pinned release's dataclasses, by ``_target_``."""
    return _load("fields.json")


def check_version(version: str) -> str:
    """``version`` itself, or the release whose configuration it shares (0.5.1 → 0.5.0).

    Of a line with several known releases it is the newest that is not newer. Raises UserError for a version
    of another line.
    """
    parsed = _RELEASE.fullmatch(version)
    if parsed:
        line, patch = parsed.group(1), int(parsed.group(2) or _ANY_PATCH)
        known = {int(name.rpartition(".")[2]): name for name in VERL_RELEASES if name.startswith(f"{line}.")}
        if known:
            return known[max((each for each in known if each <= patch), default=min(known))]
    raise UserError(
        f"veRL {version} is not a release that trinity-compat knows",
        hint=f"write one of {', '.join(VERL_RELEASES)}",
    )
