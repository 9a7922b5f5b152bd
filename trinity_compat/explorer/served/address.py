"""Addresses of the models that a run serves.

The serving process stores them in the run's database, under a token that it and the explorers get from the
supervisor.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.explorer.await_with_checks import LOOK_S, await_with_checks
from trinity_compat.job.state_cell import StateCell

if TYPE_CHECKING:  # a dry run works without the packages of a run
    from trinity_compat.buffer.store import Buffer


@dataclass(frozen=True, slots=True)
class ServedRole:
    """A process that serves models.

    ``role``: its name, and its log's; ``token``: the environment variable with the token of one start of a
    run, by which addresses of earlier starts are ignored; ``key``: veRL's key that enables the models;
    ``subject``: what they are and "is" or "are", for messages.
    """

    role: str
    token: str
    key: str
    subject: str

    def cell(self, place: int = 0) -> StateCell[str]:
        """Return the cell with the address (host:port) of this start.

        ``place``: the model's position among those that the run serves.
        """
        start = StateCell[str](f"{self.role}/address").at(os.environ.get(self.token, ""))
        return start.at(place) if place else start

    async def wait(
        self, buffer: Buffer, check: Callable[[], None], *, timeout_s: float, place: int = 0
    ) -> str:
        """Wait for the address; ``check`` is called in the meantime.

        Raises UserError for an explorer alone, RunError after ``timeout_s`` seconds, and what ``check``
        raises.
        """
        if self.token not in os.environ:
            raise UserError(
                f"{self.key}: {self.subject} served by `trinity-compat run`, not by an explorer alone",
                hint="start the explorer with `trinity-compat run --mode explore`",
            )
        late = RunError(
            f"{self.subject} not served after {timeout_s:g} s",
            hint=f"see log/{self.role}.log; it starts at the same time",
        )
        stored = self._until_stored(buffer, place)
        return await await_with_checks(stored, check, limit_s=timeout_s, late=lambda: late)

    async def _until_stored(self, buffer: Buffer, place: int) -> str:
        while (address := self.cell(place).get(buffer)) is None:
            await asyncio.sleep(LOOK_S)
        return address
