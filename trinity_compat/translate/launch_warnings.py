"""Warnings that concern a launch as a whole, not one of its keys."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.common.releases import VERL
from trinity_compat.common.suggestions import nearest
from trinity_compat.launch import entrypoints
from trinity_compat.launch.model import UnknownPiece
from trinity_compat.translate import forks, stock_verl
from trinity_compat.translate.launch_checks import launch_checks
from trinity_compat.translate.launch_view import LaunchView
from trinity_compat.translate.model import Caution, notice
from trinity_compat.translate.release_caution import release_caution
from trinity_compat.translate.trainer_config import trainer_config


def launch_cautions(view: LaunchView) -> Iterator[Caution]:
    """Yield the warnings of a launch that no single derivation can give."""
    yield from _unknown_main(view)
    yield from _ignored(view)
    yield from _open(view)
    yield from release_caution(view)
    yield from forks.caution(view.origin)
    yield from _lost_by_stock(view)
    yield from launch_checks(view)


def _unknown_main(view: LaunchView) -> Iterator[Caution]:
    launch = view.launch
    if launch.main:
        why = "--main or a rule says so" if launch.module in view.options.mains else "its keys are veRL's"
        yield Caution(
            "TW020",
            f"{launch.module} is not a main of veRL's; it is translated as {launch.main}: {why}. Differences "
            "of its trainer are not in the YAML",
            launch.where,
            hint=_misspelt(launch.module),
        )


def _lost_by_stock(view: LaunchView) -> Iterator[Caution]:
    """Warn of keys that are honoured here and ignored by stock veRL."""
    lost = list(stock_verl.lost_keys(view.origin))
    if lost:
        shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        yield notice(
            "TW021",
            f"stock veRL {VERL} ignores the reward keys of releases before 0.8 and would train with another"
            f" reward; here they are read as {shown}",
            view.launch.where,
            "for a baseline on stock veRL: trinity-compat profile NAME --as-overrides --for SCRIPT",
        )


def _misspelt(module: str) -> str | None:
    """Suggest the translated main whose name resembles ``module``, a name in one of veRL's packages."""
    near = nearest(module, entrypoints.TRANSLATED, cutoff=0.95) if module.startswith("verl.") else []
    return f"did you mean {near[0]}?" if near else None


def _ignored(view: LaunchView) -> Iterator[Caution]:
    """Warn of keys that upstream would overwrite under trainer_config."""
    takes = trainer_config(view.options.trinity, "megatron" if view.megatron else "fsdp")
    keys = [key for key in view.config.set_keys if _dead(key, takes.ignored)]
    if keys:
        shown = ", ".join(keys[:6]) + (f" and {len(keys) - 6} more" if len(keys) > 6 else "")
        yield notice(
            "TW005",
            f"upstream accepts these under trainer.trainer_config and ignores them: {shown}; "
            "they are written where it reads them, or carried for our runtime",
            view.where(keys[0]),
        )


_DEAD = ("clip_ratio", "entropy_coeff", "kl_loss_type", "kl_loss_coef", "policy_loss")


def _dead(key: str, ignored: frozenset[str]) -> bool:
    if not ignored:
        return False
    if key in ignored or key.startswith("critic.model."):
        return True
    prefix = "actor_rollout_ref.actor."
    return key.startswith(prefix) and key[len(prefix) :].startswith(_DEAD)


def _open(view: LaunchView) -> Iterator[Caution]:
    words = [*view.launch.arguments, *view.launch.env.values()]
    for word in words:
        for part in word.parts:
            if isinstance(part.source, UnknownPiece) and not part.text:
                yield Caution(
                    "TW013",
                    f"{part.source.expression} is kept as written: only a run of the script gives its value",
                    part.source.where,
                    "edit the YAML, or use trinity-compat run, where bash computes it",
                )
