"""The explorers' reports of their engines' dtypes to the trainer.

The value ``weights/dtypes/I`` of the state is explorer I's: {pattern: dtype, "" for several}. It is null
until its engines are started.
"""

from __future__ import annotations

from trinity_compat.buffer.store import Buffer
from trinity_compat.synchronizer.engine_dtypes import Dtypes, merged


def _key(index: int) -> str:
    return f"weights/dtypes/{index}"


def store(buffer: Buffer, index: int, dtypes: Dtypes | None) -> None:
    """Store explorer ``index``'s answer; None while its engines are being started."""
    buffer.set_state(_key(index), dtypes)


def agreed(buffer: Buffer, explorers: int) -> dict[str, str]:
    """Return what all explorers have answered; nothing while an answer is missing."""
    answers = [buffer.get_state(_key(index)) for index in range(explorers)]
    return merged(answers) if all(answers) else {}
