"""r: one veRL step is r optimizer updates, which Trinity counts. Divided by it here."""

from __future__ import annotations

import math

from trinity_compat.errors import UserError, Where

BATCH = "data.train_batch_size"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
_SEARCHED = 100_000  # larger divisors are found as what the smaller ones leave


def mini_batches(batch: int, mini: int, where: Where | None = None) -> int:
    """r of veRL's two batch sizes, both counted in prompts and positive.

    Raises UserError when it doesn't divide: no Trinity configuration means the same.
    """
    if batch % mini:
        raise UserError(
            f"{BATCH}={batch} is not divisible by {MINI}={mini}",
            where=where,
            hint=f"{MINI} may be {_listed(_divisors(batch))}",
        )
    return batch // mini


def verl_steps(path: str, count: int, r: int, why: str) -> int:
    """The veRL steps of ``count`` updates at ``path``. ``why`` says how r is known.

    Raises UserError, with the nearest count that is a whole number of steps, for another.
    """
    if count % r:
        near = round(count / r) or 1
        raise UserError(
            f"{path}={count} is not a whole number of veRL steps: one is r={r} Trinity steps ({why})",
            hint=f"write {near * r}",
        )
    return count // r


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, min(math.isqrt(number), _SEARCHED) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _listed(numbers: list[int]) -> str:
    shown = numbers if len(numbers) <= 16 else [*numbers[:4], "…", *numbers[-8:]]
    return ", ".join(map(str, shown))
