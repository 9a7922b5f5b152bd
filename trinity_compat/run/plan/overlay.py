"""Values laid over a configuration: from a profile, or from ``--set``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import yaml

from trinity_compat.common.bounded_yaml import safe_load
from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, holds, leaves, put, value_at
from trinity_compat.common.redaction import shown
from trinity_compat.common.releases import VERL
from trinity_compat.common.suggestions import did_you_mean, nearest, question
from trinity_compat.common.training_engines import ULYSSES as _ULYSSES
from trinity_compat.common.training_engines import engine_of
from trinity_compat.job.settings import SETTINGS
from trinity_compat.run.plan import profiles
from trinity_compat.run.plan.engine import OFF
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.sections.asynchronous import USE_V1
from trinity_compat.trinity.config import TARGETS, schema
from trinity_compat.verl_config.pinned import pinned_tree

# Keys of veRL without effect on a run.
_DECIDED = {"trainer.device": "--device sets the device"} | dict.fromkeys(
    OFF, "trinity-compat runs without it"
)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Values by dotted key, in veRL's or Trinity's spelling, and the lines that announce them."""

    verl: Tree = field(default_factory=dict)
    trinity: Tree = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of_profile(cls, profile: profiles.Profile, value: Callable[[str], object] | None = None) -> Overlay:
        """Return a shipped profile with its entries for a decoupled run.

        ``value`` returns what the launch has at a key; without it the entries that depend on it are left out.
        """
        entries = tuple(
            entry
            for entry in profile.for_kind("decoupled")
            if not entry.in_place_of or (value is not None and value(entry.key) in entry.in_place_of)
        )
        number = len(entries) + len(profile.env)
        listed = f"{number} settings: `trinity-compat profile {profile.name}` lists them"
        line = f"profile {profile.name}: {profile.about} ({listed})"
        values = {entry.key: entry.value for entry in entries}
        return cls(verl=values, lines=(line,), env=tuple((name, value) for name, value, _ in profile.env))

    @classmethod
    def of_sets(cls, sets: tuple[str, ...]) -> Overlay:
        """Read each ``KEY=VALUE``: a veRL key, a path of the Trinity YAML, or ``trinity_compat.NAME``.

        A key that both have is veRL's. Raises UserError with the nearest key for an unknown one.
        """
        verl: dict[str, object] = {}
        trinity: dict[str, object] = {}
        for text in sets:
            key, value = _read(text)
            if why := _DECIDED.get(key.lstrip("+")):
                raise UserError(f"--set {key}={value}: {why}", hint="leave it out")
            if key == USE_V1:
                # veRL's switch between its two trainers stands for a setting of ours.
                if not isinstance(value, bool):
                    raise UserError(f"--set {USE_V1}={value}: it may be True or False")
                key, value = SETTINGS["trainer"].key, "v1" if value else "v0"
            if own := own_setting(key):
                trinity[own] = value
            else:
                (verl if _is_verl(key, text) else trinity)[key.lstrip("+")] = value
        return cls(verl=verl, trinity=trinity, lines=tuple(f"--set {shown(text)}" for text in sets))


def apply(values: Tree, tree: dict[str, object]) -> None:
    """Set every dotted key of ``values`` in ``tree``, adding missing sections."""
    for key, value in values.items():
        put(tree, key, value)


def _read(text: str) -> tuple[str, object]:
    key, sep, value = text.partition("=")
    if not sep or not key:
        raise UserError(f"--set {text}: no value", hint="write --set KEY=VALUE")
    try:
        return key, safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"--set {text}: the value is not valid YAML") from error


def own_setting(key: str) -> str | None:
    """Return the path of ``trinity_compat.NAME``, or None for any other key.

    Raises UserError for an unknown NAME.
    """
    section, _, name = key.partition(".")
    if section != verl_from_trinity.COMPAT:
        return None
    if name not in SETTINGS:
        raise UserError(
            f"--set {key}: unknown setting",
            hint=question(nearest(name, SETTINGS)) or f"use one of {', '.join(SETTINGS)}",
        )
    return f"{verl_from_trinity.compat_path(TARGETS[0])}.{name}"


def is_trinity_only(text: str) -> bool:
    """Return whether ``KEY=VALUE`` names a path of the Trinity configuration that veRL doesn't have."""
    key, _ = _read(text)
    if own_setting(key):
        return True
    return not _in_verl(key) and schema(TARGETS[0]).find(key) is not None


def _is_verl(key: str, text: str) -> bool:
    if key.startswith("+") or _in_verl(key):
        # "+" is Hydra's word for a key that veRL does not define: nothing to look up.
        return True
    if schema(TARGETS[0]).find(key) is not None:
        return False
    near = did_you_mean(key, (known for known, _ in leaves(pinned_tree("ppo_trainer"))))
    raise UserError(
        f"--set {text}: neither veRL {VERL} nor Trinity has a key {key!r}",
        hint=(f"did you mean {near!r}? " if near else "")
        + f"`--set +{text}` adds a key that veRL doesn't define",
    )


def _in_verl(key: str) -> bool:
    return holds(pinned_tree("ppo_trainer"), key)


FLASH_ATTN_INSTALL = (
    "pip install flash-attn --no-build-isolation"  # built from source: it needs nvcc and ninja
)
FLASH_ATTN_PROFILE = "no_flash_attn"
_IMPLEMENTATION = "actor_rollout_ref.model.override_config.attn_implementation"
_DEFAULT_IMPLEMENTATION = "flash_attention_2"
_ACTOR = "actor_rollout_ref.actor"
_ROLES = (_ACTOR, "actor_rollout_ref.ref", "critic")


def flash_attn_installed() -> bool:
    """Return whether transformers would find flash-attn in this environment."""
    return importlib.util.find_spec("flash_attn") is not None


def flash_attn_overlay(launch: Tree, device: str) -> list[Overlay]:
    """Return the profile that replaces flash-attn on a GPU of this machine without it.

    ``launch``: the launch's values by veRL's keys. An attention that needs no flash-attn is not changed.
    Nor is a launch that only flash-attn can run (Ulysses): ``check_flash_attn`` refuses that.
    """
    keys = {key.lstrip("+"): value for key, value in launch.items()}
    implementation = str(keys.get(_IMPLEMENTATION) or _DEFAULT_IMPLEMENTATION)
    if device != "cuda" or flash_attn_installed() or not implementation.startswith("flash"):
        return []
    sequences = (_parallel_size(keys.get(f"{role}.{_ULYSSES}")) for role in _ROLES)
    # These engines bring kernels of their own; and sdpa cannot run Ulysses.
    if engine_of(keys.get(f"{_ACTOR}.strategy")).own_attention or max(sequences) > 1:
        return []
    profile = Overlay.of_profile(profiles.load(FLASH_ATTN_PROFILE))
    return [replace(profile, lines=(*profile.lines, f"  flash-attn is faster: {FLASH_ATTN_INSTALL}"))]


def _parallel_size(value: object) -> int:
    """Return a parallel size; 1 for None and for text that is not a number, which ``VerlView`` reports."""
    try:
        return int(str(value or 1))
    except ValueError:
        return 1


def _implementation(verl: Tree) -> str:
    return str(value_at(verl, _IMPLEMENTATION) or _DEFAULT_IMPLEMENTATION)


def flash_attn_is_missing(verl: Tree, device: str) -> bool:
    """Return whether the training side asks for flash-attn and it is not installed here."""
    own = engine_of(value_at(verl, f"{_ACTOR}.strategy")).own_attention
    return (
        device == "cuda"
        and not flash_attn_installed()
        and not own
        and _implementation(verl).startswith("flash")
    )


def check_flash_attn(verl: Tree, device: str) -> None:
    """Raise UserError where the training side needs flash-attn and it is not installed."""
    if not flash_attn_is_missing(verl, device):
        return
    raise UserError(
        f"{_IMPLEMENTATION}={_implementation(verl)} needs flash-attn, which is not installed here",
        hint=f"{FLASH_ATTN_INSTALL}; or, with {_ULYSSES}=1, --profile {FLASH_ATTN_PROFILE}",
    )
