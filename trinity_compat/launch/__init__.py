"""Reading launches statically: shell scripts, texts and argument vectors become `Reading`s."""

from trinity_compat.launch.model import (
    Diagnostic,
    EnvRef,
    Launch,
    Reading,
    Start,
    UnknownPiece,
    Word,
    WordPart,
    merged,
)
from trinity_compat.launch.reading import (
    read_argv,
    read_script,
    read_text,
    refuse_broken_script,
    refuse_lost_arguments,
)

__all__ = [
    "Diagnostic",
    "EnvRef",
    "Launch",
    "Reading",
    "Start",
    "UnknownPiece",
    "Word",
    "WordPart",
    "merged",
    "read_argv",
    "read_script",
    "read_text",
    "refuse_broken_script",
    "refuse_lost_arguments",
]
