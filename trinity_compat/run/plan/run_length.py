"""Length of a run, where the YAML and ``--set`` give it in more than one way.

veRL ends at ``trainer.total_training_steps``, or with ``trainer.total_epochs`` where these are over before.
Trinity: the explorer ends at ``buffer.total_steps``, the trainer at ``trainer.total_steps``, whichever comes
first. translate writes ``trainer.total_steps`` also where the epochs decide; it is a count then, and becomes
a limit by an edit.
"""

from __future__ import annotations

from collections.abc import Sequence

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.sections.batch import TOTAL, TOTAL_STEPS
from trinity_compat.translate.trinity_reader import TrinityReader

STEPS = TOTAL
_EPOCHS = ("trainer.total_epochs", "buffer.total_epochs")
_TRAINER = "trainer.total_steps"


def check_limits(config: Tree, sets: Sequence[str]) -> None:
    """Raise UserError for an edited or set limit in steps that changes nothing, since the other is lower.

    ``config`` is the Trinity configuration with the sets in it.
    """
    reading = TrinityReader(config)
    limits = {path: count for path in TOTAL_STEPS if isinstance(count := reading.get(path), int)}
    written = _as_translated(config)
    for path, limit in limits.items():
        lower = [other for other, count in limits.items() if 0 < count < limit]
        if not lower:
            continue
        if path in _keys(sets):
            raise UserError(
                f"--set {path}={limit} changes nothing: {lower[0]}={limits[lower[0]]} ends the run before",
                hint=f"add --set {lower[0]}={limit}, or write --set {STEPS}=N (veRL steps)",
            )
        if limits[lower[0]] == written.get(lower[0]) and limit != written.get(path):
            raise UserError(
                f"{path}={limit} changes nothing: {lower[0]}={limits[lower[0]]} ends the run before",
                hint=f"write {lower[0]}: {limit} too",
            )


def _as_translated(config: Tree) -> dict[str, int]:
    """Return the two limits that translate wrote into ``config``; nothing where it wrote none, or by hand."""
    found = dict(verl_from_trinity.stand_ins(verl_from_trinity.compat_of(config))).get(STEPS)
    if not found:
        return {}
    unit = 1 if verl_from_trinity.is_published(config) else verl_from_trinity.updates_per_step(config)[0]
    asked, ends = found[1], found[0]
    both = zip(TOTAL_STEPS, (asked, ends), strict=True)
    return {path: steps * unit for path, steps in both if isinstance(steps, int)}


def of_launch(config: Tree, sets: Sequence[str], total: int | None) -> int | None:
    """The veRL steps of a run with ``total_training_steps``: fewer where its epochs end before.

    translate has counted the steps of the epochs; ``sets`` that change the epochs invalidate that count.
    """
    if total is None or not verl_from_trinity.from_launch(config) or set(_EPOCHS).intersection(_keys(sets)):
        return total
    reading = TrinityReader(config)
    r = 1 if verl_from_trinity.is_published(config) else verl_from_trinity.updates_per_step(config)[0]
    counted = reading.get(_TRAINER)
    if not counted or reading.get("buffer.total_steps") != total * r:
        return total
    return min(total, int(counted) // r)


def refuse_idle_epochs(sets: Sequence[str], config: Tree, total: int | None) -> None:
    """Raise UserError for a ``--set`` of the epochs where a number of steps ends the run before them.

    ``config``: the translation, which has counted the steps of all epochs where these are fewer.
    """
    keys = _keys(sets)
    idle = [key for key in keys if key in _EPOCHS]
    if total is not None and idle and STEPS not in keys and of_launch(config, (), total) == total:
        raise UserError(
            f"--set {idle[0]}=… changes nothing: the run ends after {total} veRL steps ({STEPS})",
            hint=f"write --set {STEPS}=N, or add --set {STEPS}=null to let the epochs decide",
        )


def _keys(sets: Sequence[str]) -> list[str]:
    return [text.partition("=")[0].lstrip("+") for text in sets]
