"""r, the number of optimizer updates of one veRL step; Trinity's steps are divided by it here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trinity_compat.common.errors import UserError, Where

BATCH = "data.train_batch_size"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
_SEARCHED = 100_000  # larger divisors are found as what the smaller ones leave


_STRETCHED = 2  # a mini-batch is made at most so many times as large, or as small


@dataclass(frozen=True, slots=True)
class UpdatesPerStep:
    """The cut of one veRL step: ``count`` optimizer updates of ``prompts`` prompts each.

    ``why`` says how veRL's own cut differs, "" if it does not.
    """

    count: int
    prompts: int
    why: str = ""


def uneven(batch: int, mini: int) -> UpdatesPerStep | None:
    """Return the even cut nearest to veRL's uneven one; None if no cut is near.

    ``batch`` prompts are cut into mini-batches of ``mini``, both ≥ 1.

    Source: ``update_policy`` in workers/actor/dp_actor.py of veRL 0.2 to 0.7.
    """
    if mini > batch:
        why = (
            f"{MINI}={mini} is more than {BATCH}={batch}: one update a step, of all {batch} prompts; veRL "
            f"also scales the loss of that update by {batch}/{mini}"
        )
        return UpdatesPerStep(1, batch, why)
    near = min(_divisors(batch), key=lambda size: abs(math.log(size / mini)))
    if not mini / _STRETCHED <= near <= mini * _STRETCHED:
        return None
    made = -(-batch // mini)
    why = (
        f"{BATCH}={batch} is not divisible by {MINI}={mini}: veRL makes {made} updates a step, the last of "
        f"{batch % mini} prompts; here they are {batch // near} of {near} each"
    )
    return UpdatesPerStep(batch // near, near, why)


def mini_batches(batch: int, mini: int, where: Where | None = None, key: str = MINI) -> int:
    """Return r of veRL's two batch sizes, both counted in prompts and positive. ``key``: the second one's.

    Raises UserError when it doesn't divide: no Trinity configuration means the same.
    """
    if batch % mini:
        numbers = _divisors(batch)
        shown = numbers if len(numbers) <= 16 else [*numbers[:4], "…", *numbers[-8:]]
        raise UserError(
            f"{BATCH}={batch} is not divisible by {key}={mini}",
            where=where,
            hint=f"{key} may be {', '.join(map(str, shown))}",
        )
    return batch // mini


def verl_steps(path: str, count: int, r: int, why: str, *, least: int = 1) -> int:
    """Return the veRL steps of ``count`` updates at ``path``. ``why`` says how r is known.

    Raises UserError for a count that is not a whole number of steps. It names the two nearest counts that
    are; 0 is one of them only if ``least`` is 0.
    """
    if count % r:
        below = count // r * r
        near = [below, below + r] if below >= least else [below + r]
        raise UserError(
            f"{path}={count} is not a whole number of veRL steps: one veRL step is {r} Trinity steps ({why})",
            hint=f"write {' or '.join(map(str, near))}",
        )
    return count // r


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, min(math.isqrt(number), _SEARCHED) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
