"""Reading launches statically: shell scripts, texts and argument vectors become `Reading`s."""

from trinity_compat.launch.model import Diagnostic, EnvRef, Launch, Open, Part, Reading, Start, Word
from trinity_compat.launch.reading import read_argv, read_script, read_text, refuse_lost_arguments
from trinity_compat.launch.repeated import merged

__all__ = [
    "Diagnostic",
    "EnvRef",
    "Launch",
    "Open",
    "Part",
    "Reading",
    "Start",
    "Word",
    "merged",
    "read_argv",
    "read_script",
    "read_text",
    "refuse_lost_arguments",
]
