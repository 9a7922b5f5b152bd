"""Variables that a launch takes from its surroundings and that nothing gives a value to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from trinity_compat.common.errors import Where
from trinity_compat.common.redaction import shown
from trinity_compat.launch.model import EnvRef, Launch, WordPart

# What a login, a shell or a scheduler sets wherever a script is started.
_OF_EVERY_SHELL = frozenset(
    {"HOME", "HOSTNAME", "LANG", "LOGNAME", "OLDPWD", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "USER"}
)
_OF_SCHEDULERS = ("SLURM_", "SKYPILOT_", "PBS_", "LSB_", "OMPI_")


def is_always_set(name: str) -> bool:
    """Return whether a shell, or the scheduler that starts it, sets ``name``."""
    return name in _OF_EVERY_SHELL or name.startswith(_OF_SCHEDULERS)


def warnings(launches: Iterable[Launch]) -> Iterator[tuple[Where, str]]:
    """A place and a message per line that is the first to use such a variable."""
    seen: set[str] = set()
    lines: dict[Where, tuple[list[str], list[str]]] = {}  # names, and the words that they leave incomplete
    for word in (word for launch in launches for word in launch.arguments):
        unset = dict.fromkeys(reference.name for reference in filter(None, map(missing, word.parts)))
        new = [name for name in unset if name not in seen and not is_always_set(name)]
        if new:
            seen.update(new)
            names, words = lines.setdefault(word.where, ([], []))
            names += new
            words.append(shown(word.text))
    for where, (names, words) in lines.items():
        are, them = ("is", "it") if len(names) == 1 else ("are", "them")
        listed = " and ".join(filter(None, (", ".join(f"${n}" for n in names[:-1]), f"${names[-1]}")))
        yield where, f"{listed} {are} not set: {', '.join(words)} here, unless the environment has {them}"


def of_arguments(launches: Iterable[Launch], lacking: Collection[int]) -> tuple[Where, str] | None:
    """A place and a message where values are empty and the script reads arguments that nobody gave it."""
    arguments = (word for launch in launches for word in launch.arguments)
    # `key=` with nothing behind it, not even what could be in a variable
    words = [word for word in arguments if word.text.endswith("=") and not any(p.source for p in word.parts)]
    if not words or not lacking:
        return None
    names = ", ".join(f"${number}" for number in sorted(lacking))
    are, them = ("is", "it") if len(lacking) == 1 else ("are", "them")
    empty = ", ".join(dict.fromkeys(word.text for word in words))
    return words[0].where, f"{names} {are} not set: {empty} here; give {them} after --, in their order"


def missing(part: WordPart) -> EnvRef | None:
    """The variable that a part stands for, where it has no value, no default, and no order to stop then."""
    source = part.source
    if not isinstance(source, EnvRef) or source.default is not None or source.required or part.text:
        return None
    return source
