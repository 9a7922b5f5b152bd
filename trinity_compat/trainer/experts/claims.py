"""Rows of an expert in the buffer: groups of their own kind, claimed and committed like answers.

The rows of a step follow from its number, so they are written when they are claimed. A row's position in the
stream of all steps is its task number and its key: a step repeated after a resume finds its rows trained,
ready or missing, and writes the missing ones again.
"""

from __future__ import annotations

from dataclasses import replace

from trinity_compat.buffer.model import Claim, Group
from trinity_compat.buffer.store import Buffer
from trinity_compat.common.errors import RunError
from trinity_compat.job.run_spec import ExpertSpec
from trinity_compat.trainer.lease_heartbeat import LeaseHeartbeat
from trinity_compat.trainer.supervised.files import FileRows, open_rows
from trinity_compat.trainer.supervised.formats import Formatter, Tokenizer
from trinity_compat.trainer.supervised.order import RowOrder

KIND = "expert"


class Experts:
    """``each_step`` rows of ``rows`` for a step, in ``order``, which begins again at its end."""

    def __init__(self, buffer: Buffer, rows: FileRows, formatter: Formatter, order: RowOrder) -> None:
        self._buffer, self._rows, self._formatter, self._order = buffer, rows, formatter, order

    @classmethod
    def of(cls, buffer: Buffer, spec: ExpertSpec, tokenizer: Tokenizer) -> Experts:
        """Open the rows of ``spec``. Raises UserError for rows that cannot be read."""
        rows = open_rows(spec.rows)
        order = RowOrder(spec.rows, len(rows), spec.each_step, rows)
        return cls(buffer, rows, Formatter(spec.rows, tokenizer), order)

    def claim(self, step: int, heart: LeaseHeartbeat) -> Claim:
        """The rows of ``step``, leased to it. Raises UserError for a row that cannot be used."""
        made = self.groups(step)
        self._buffer.put_groups(made)
        claim = self._buffer.claim_groups(
            len(made), owner=heart.name, step=step, kind=KIND, lease_s=heart.lease_s
        )
        found = [group.key for group in claim.groups] if claim else []
        if claim is None or found != [group.key for group in made]:
            raise RunError(
                f"the expert's rows of step {step} are not ready: {', '.join(found) or 'none'} instead",
                hint="another trainer may work on this database",
            )
        return claim

    def groups(self, step: int) -> list[Group]:
        """A group for each row of ``step``, counted from 1."""
        before = step - 1  # its policy's version, as if it had written them: a row is never stale
        groups = []
        for place, number in enumerate(self._order.rows_of(step), before * self._order.batch):
            made = self._formatter.experiences(self._rows[number], number)
            experiences = tuple(
                replace(each, min_model_version=before, max_model_version=before) for each in made
            )
            groups.append(Group(f"expert-{place}", place, {"row": number}, step, experiences, kind=KIND))
        return groups
