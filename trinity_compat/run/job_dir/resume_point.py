"""The checkpoint from which the next start of a run continues, with the same words wherever it is told."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

from trinity_compat.common.errors import RunError, UserError
from trinity_compat.common.nested import value_at
from trinity_compat.job.checkpoints import CheckpointState, LoadedRole, NewestCheckpoint, loaded_roles, newest
from trinity_compat.job.run_spec import RunSpec
from trinity_compat.translate import micro_batch_sizes


def of(job: Path, spec: RunSpec) -> NewestCheckpoint:
    """Return the job's newest checkpoint, as a run with ``spec`` would load it."""
    return newest(job, roles_of(spec), is_ours=partial(_is_ours, spec.database_url))


def roles_of(spec: RunSpec) -> tuple[LoadedRole, ...]:
    """Return the parts of a checkpoint that the run loads."""
    return loaded_roles(spec.verl, critic=micro_batch_sizes.has_critic(partial(value_at, spec.verl)))


def _is_ours(url: str, step: int, state: CheckpointState) -> bool:
    import sqlalchemy as sa  # here: a dry run does without it

    from trinity_compat.buffer import open_buffer
    from trinity_compat.buffer.stream_position import StreamPosition

    kept = state.get("position")
    position = StreamPosition(below=0) if kept is None else StreamPosition.of(kept)
    try:
        with closing(open_buffer(url, create=False, retry_s=1.0)) as buffer:
            return buffer.is_on_line(step=step, position=position)
    except (UserError, RunError, sa.exc.SQLAlchemyError):  # the start says what is wrong with it
        return False
