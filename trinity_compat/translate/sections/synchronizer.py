"""synchronizer.*: how weights travel, and how far rollouts run ahead of training."""

from __future__ import annotations

from collections.abc import Iterator

from trinity_compat.translate.launch_view import ARR, LaunchView, PathValue
from trinity_compat.translate.update_steps import BATCH, MINI

SECTION = "synchronizer"
_FIXED = "veRL's order: every rollout waits for its weights"
_FULLY_ASYNC = "rollouts go on while the trainer trains, and change weights in the middle of their answers"
# The old trinity-rft's style in which the explorer waits for nothing; it has no fully_async.
_OLD_STYLES = {"fully_async": "dynamic_by_trainer"}


def synchronized(view: LaunchView) -> Iterator[PathValue]:
    """Yield the times at which weights move. Units: Trinity's steps, r for one of veRL's."""
    style = view.ahead.style if view.ahead else "fixed"
    named = _OLD_STYLES.get(style, style) if view.old_trinity else style
    yield PathValue(
        f"{SECTION}.sync_method", _method(view), note="how weights travel; nccl, checkpoint or memory"
    )
    yield PathValue(f"{SECTION}.sync_style", named, note=_FIXED if style == "fixed" else _FULLY_ASYNC)
    yield PathValue(f"{SECTION}.sync_interval", updates_per_version(view), *_of_interval(view))
    yield PathValue(f"{SECTION}.sync_offset", *_offset(view))
    if view.published:
        yield PathValue(f"{SECTION}.sync_timeout", 1200, note="as in the published guide")


def updates_per_version(view: LaunchView) -> int:
    """Optimizer updates between two sets of weights."""
    return view.r * (view.ahead.interval if view.ahead else 1)


def _of_interval(view: LaunchView) -> tuple[tuple[str, ...], str | None, str]:
    """Sources, note and what stands between the sources."""
    if view.ahead is None or view.ahead.interval == 1:
        return (BATCH, MINI), None, " ÷ "
    note = f"{view.ahead.sources[0]}={view.ahead.interval} × r={view.r}"
    return (BATCH, MINI), note, " ÷ "


def _method(view: LaunchView) -> str:
    if view.value(f"{ARR}.model.lora_rank", 0):
        return "checkpoint"
    return "memory" if view.cluster == (1, 1) else "nccl"


def _offset(view: LaunchView) -> tuple[int, tuple[str, ...], str]:
    ahead = view.options.sync_offset
    if ahead:
        return ahead * view.r, (), f"{ahead} veRL step(s) ahead × r={view.r} (--sync-offset)"
    if view.ahead is not None and view.ahead.style != "fixed":
        return 0, (), f"{view.ahead.sources[1]} says how far rollouts run ahead"
    if view.ahead is not None:
        note = f"one_step_off: a step's rollouts are made while the one before is trained; × r={view.r}"
        return view.ahead.offset * view.r, (), note
    if view.published:
        return 1, (), "as the published examples print it: the explorer is one mini-batch ahead"
    return 0, (), "on-policy, as veRL"
