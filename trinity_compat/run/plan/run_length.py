"""Length of a run, where the YAML and ``--set`` give it in more than one way.

veRL ends at ``trainer.total_training_steps``, or with ``trainer.total_epochs`` where these are over before.
Trinity: the explorer ends at ``buffer.total_steps``, the trainer at ``trainer.total_steps``, whichever comes
first. translate writes ``trainer.total_steps`` also where the epochs decide; it is a count then, not a limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from trinity_compat.common.errors import UserError
from trinity_compat.common.nested import Tree
from trinity_compat.translate import verl_from_trinity
from trinity_compat.translate.trinity_reader import TrinityReader

STEPS = "trainer.total_training_steps"
_EPOCHS = ("trainer.total_epochs", "buffer.total_epochs")
_TRAINER = "trainer.total_steps"


def steps_of(config: Tree, sets: Sequence[str]) -> dict[str, int]:
    """``total_training_steps`` (veRL steps) where ``trainer.total_steps`` limits the run, else nothing.

    ``config`` is the Trinity configuration with the sets in it. Raises UserError for a limit that a
    lower ``buffer.total_steps`` makes idle, and for one that r doesn't divide.
    """
    is_set = _TRAINER in _keys(sets)
    compat = verl_from_trinity.compat_of(config)
    reading = TrinityReader(config)
    limit = reading.get(_TRAINER)
    bound = reading.get("buffer.total_steps")
    # In a translated YAML the number is a count that follows from the epochs, unless --set gives it.
    if limit is None or not (is_set or not compat):
        return {}
    if is_set and bound is not None and bound < limit:
        raise UserError(
            f"--set {_TRAINER}={limit} changes nothing: buffer.total_steps={bound} ends the run before",
            hint=f"add --set buffer.total_steps={limit}, or write --set {STEPS}=N (veRL steps)",
        )
    r = 1 if compat.get("steps") == "verl" else verl_from_trinity.updates_per_step(config)[0]
    if limit % r:
        raise UserError(
            f"{_TRAINER}={limit} optimizer updates are no whole number of veRL steps of {r} updates each",
            hint=f"write {limit // r * r or r} or {(limit // r + 1) * r}",
        )
    # Both sides end at the lower of the two, as Trinity's do.
    return {STEPS: min(limit, bound or limit) // r}


def of_launch(config: Tree, sets: Sequence[str], total: int | None) -> int | None:
    """The veRL steps of a run with ``total_training_steps``: fewer where its epochs end before.

    translate has counted the steps of the epochs; ``sets`` that change the epochs invalidate that count.
    """
    if total is None or not verl_from_trinity.from_launch(config) or set(_EPOCHS).intersection(_keys(sets)):
        return total
    reading = TrinityReader(config)
    r = (
        1
        if verl_from_trinity.compat_of(config).get("steps") == "verl"
        else verl_from_trinity.updates_per_step(config)[0]
    )
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
