"""Contents of a source that is not a shell script: the commands that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import Value
from trinity_compat.launch.model import UnknownPiece


@dataclass(frozen=True, slots=True)
class SourceCommand:
    """Shell ``code``, or the ``words`` of one program.

    ``env`` are variables that it gets, ``stdin`` is its input, ``files`` are mounted for it, by their paths.
    ``cwd``: the folder that it starts in, as written, empty for the source's own. ``condition`` is an
    undecided condition that it depends on, or empty. ``unread`` may set any other variable.
    """

    where: Where
    code: Value = ()
    words: tuple[Value, ...] = ()
    env: Mapping[str, Value] = field(default_factory=dict)
    cwd: str = ""
    condition: str = ""
    stdin: Value = ()
    files: Mapping[str, Value] = field(default_factory=dict)
    unread: UnknownPiece | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """The commands of a source, in order.

    ``note`` says in one sentence what the file is and how it is read; ``stopped`` why reading ended early, or
    is empty, and ``stopped_at`` where.
    """

    commands: tuple[SourceCommand, ...]
    note: str
    stopped: str = ""
    stopped_at: Where | None = None
