"""What a file that is not a shell script starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import Value


@dataclass(frozen=True, slots=True)
class SourceCommand:
    """Shell ``code``, or the ``words`` of one program; ``env`` are variables that it is given, ``cwd`` the
    folder that it starts in, as it is written, empty for that of the whole."""

    where: Where
    code: Value = ()
    words: tuple[Value, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    """``note``: in one sentence, what the file is and how it is read; ``guesses``: how conditions that cannot
    be known were taken, each with its place; ``stopped``: why reading ended early, or empty."""

    commands: tuple[SourceCommand, ...]
    note: str
    guesses: tuple[tuple[Where, str], ...] = ()
    stopped: str = ""
