"""Variables of the calling shell that a script would use and that reading it does not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from trinity_compat.common.errors import Where
from trinity_compat.launch.model import Diagnostic, EnvRef, Reading, Word
from trinity_compat.launch.unset_variables import is_always_set

UNUSED = "TP123"
_PROBE = "0"  # a number stays a number with it
_SEARCH_PATHS = {"PYTHONPATH", "LD_LIBRARY_PATH"}  # scripts put folders in front of whatever is there


def computed_variables(reading: Reading, read: Callable[[Mapping[str, str]], Reading]) -> frozenset[str]:
    """Return the variables with a default from which the script computes a name, a condition, a sum.

    ``${MODEL##*/}`` computes a name. ``read`` reads the script under a variable's value.
    """
    words = [word for launch in reading.launches for word in launch.arguments]
    defaults = {
        reference.name: reference.default
        for word in words
        for reference in word.env_refs
        if reference.default is not None
    }
    found = set()
    for name, default in defaults.items():
        value = f"{default}{_PROBE}"
        other = [word.text for launch in read({name: value}).launches for word in launch.arguments]
        if other != [_text_with(word, name, value) for word in words]:
            found.add(name)
    return frozenset(found)


def _text_with(word: Word, name: str, value: str) -> str:
    sources = ((part, part.source) for part in word.parts)
    return "".join(
        value if isinstance(source, EnvRef) and source.name == name else part.text for part, source in sources
    )


def is_named_apart(name: str) -> bool:
    """Return whether a variable is set wherever a script is started, or holds what others add folders to."""
    return is_always_set(name) or name in _SEARCH_PATHS


def unused_variables(
    reading: Reading, environ: Mapping[str, str], known: Collection[str], *, also: str = ""
) -> Iterator[Diagnostic]:
    """Yield a warning for each variable of the calling shell that the script would use, but was not used.

    ``environ`` is the shell's environment, ``known`` are the variables that the user gave, or that the result
    still names. One that equals the script's own default changes nothing.

    ``also``: another way to give it than ``--env``.
    """
    words = (word for launch in reading.launches for word in launch.arguments)
    references = [(reference, word.where) for word in words for reference in word.env_refs]
    places = {reference.name: where for reference, where in references}
    for name, where in {**places, **reading.surroundings}.items():
        if name not in environ or name in known or is_named_apart(name):
            continue
        if {reference.default for reference, _ in references if reference.name == name} == {environ[name]}:
            continue
        yield not_used(name, where, "bash", also)


def not_used(name: str, where: Where, program: str, also: str = "") -> Diagnostic:
    """Return the warning about a variable of the calling shell that ``program`` would use."""
    # not its value: the script, which others may have written, says which variable that is
    way = f'{also}--env {name}="${name}"'
    message = f"{name} is set in this shell, where {program} would use it; it was not used: {way}"
    return Diagnostic(UNUSED, message, where)
