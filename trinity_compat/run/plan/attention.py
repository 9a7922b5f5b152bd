"""flash-attn, veRL's default attention: what a run does where it is missing, and what installs it."""

from __future__ import annotations

import importlib.util

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree, value_at
from trinity_compat.run.plan import profiles
from trinity_compat.run.plan.overlay import Overlay

INSTALL = "pip install flash-attn --no-build-isolation"  # built from source: it needs nvcc and ninja
PROFILE = "no_flash_attn"
_IMPLEMENTATION = "actor_rollout_ref.model.override_config.attn_implementation"
_DEFAULT = "flash_attention_2"
_ACTOR = "actor_rollout_ref.actor"
_ROLES = (_ACTOR, "actor_rollout_ref.ref", "critic")
_OWN_ATTENTION = ("megatron", "veomni", "torchtitan", "automodel")
_SEQUENCE = "ulysses_sequence_parallel_size"


def installed() -> bool:
    """Return whether transformers would find flash-attn in this environment."""
    return importlib.util.find_spec("flash_attn") is not None


def overlay(told: Tree, device: str) -> list[Overlay]:
    """The profile that stands in for flash-attn on a GPU of this machine without it.

    ``told``: what the launch says, by veRL's keys. An attention that needs no flash-attn stays as it is, and
    so does a launch that only flash-attn can run (Ulysses): ``check`` refuses that.
    """
    asked = {key.lstrip("+"): value for key, value in told.items()}
    wanted = str(asked.get(_IMPLEMENTATION) or _DEFAULT)
    if device != "cuda" or installed() or not wanted.startswith("flash"):
        return []
    sequences = (_size(asked.get(f"{role}.{_SEQUENCE}")) for role in _ROLES)
    # These engines bring kernels of their own; and sdpa cannot run Ulysses.
    if asked.get(f"{_ACTOR}.strategy") in _OWN_ATTENTION or max(sequences) > 1:
        return []
    made = Overlay.of_profile(profiles.load(PROFILE))
    return [Overlay(made.verl, made.trinity, (*made.lines, f"  flash-attn is faster: {INSTALL}"), made.env)]


def _size(value: object) -> int:
    """1 for none, and for a size that is not one: the view of the whole configuration names it."""
    try:
        return int(str(value or 1))
    except ValueError:
        return 1


def _wanted(verl: Tree) -> str:
    return str(value_at(verl, _IMPLEMENTATION) or _DEFAULT)


def is_missing(verl: Tree, device: str) -> bool:
    """Return whether the training side asks for flash-attn and it is not installed here."""
    own = value_at(verl, f"{_ACTOR}.strategy") in _OWN_ATTENTION
    return device == "cuda" and not installed() and not own and _wanted(verl).startswith("flash")


def check(verl: Tree, device: str) -> None:
    """Raises UserError for a training side that would ask for flash-attn where it is missing."""
    if not is_missing(verl, device):
        return
    raise UserError(
        f"{_IMPLEMENTATION}={_wanted(verl)} needs flash-attn, which is not installed here",
        hint=f"{INSTALL}; or, with {_SEQUENCE}=1, --profile {PROFILE}",
    )
