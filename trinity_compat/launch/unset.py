"""Variables that a launch takes from its surroundings and that nothing gives a value to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trinity_compat.errors import Where
from trinity_compat.launch.model import EnvRef, Launch, Part, Word
from trinity_compat.secret import shown

# What a login, a shell or a scheduler sets wherever a script is started.
_OF_EVERY_SHELL = frozenset(
    {"HOME", "HOSTNAME", "LANG", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"}
)
_OF_SCHEDULERS = ("SLURM_", "SKYPILOT_", "PBS_", "LSB_", "OMPI_")


def is_always_set(name: str) -> bool:
    """Whether a shell, or the scheduler that starts it, sets ``name``."""
    return name in _OF_EVERY_SHELL or name.startswith(_OF_SCHEDULERS)


def warnings(launches: Iterable[Launch]) -> Iterator[tuple[Where, str]]:
    """A place and a message per line that is the first to use such a variable."""
    told: set[str] = set()
    lines: dict[Where, tuple[list[str], list[str]]] = {}  # names, and the words that they leave incomplete
    for word in (word for launch in launches for word in launch.arguments):
        new = [name for name in dict.fromkeys(_unset(word)) if name not in told]
        if new:
            told.update(new)
            names, words = lines.setdefault(word.where, ([], []))
            names += new
            words.append(shown(word.text))
    for where, (names, words) in lines.items():
        are, them = ("is", "it") if len(names) == 1 else ("are", "them")
        listed = " and ".join(filter(None, (", ".join(f"${n}" for n in names[:-1]), f"${names[-1]}")))
        yield where, f"{listed} {are} not set: {', '.join(words)} here, unless the environment has {them}"


def missing(part: Part) -> EnvRef | None:
    """The variable that a part stands for, where it has no value, no default, and no order to stop then."""
    source = part.source
    if not isinstance(source, EnvRef) or source.default is not None or source.required or part.text:
        return None
    return source


def _unset(word: Word) -> Iterator[str]:
    for reference in filter(None, map(missing, word.parts)):
        if not is_always_set(reference.name):
            yield reference.name
