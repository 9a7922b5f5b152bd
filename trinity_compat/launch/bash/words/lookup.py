"""Values of parameters, elements of arrays, and the arithmetic over them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import (
    EMPTY,
    TextPiece,
    Value,
    as_one_word,
    derived,
    doubt_in,
    is_uncounted,
    literal,
    named,
    slice_value,
    text_of,
)
from trinity_compat.launch.bash.words import arithmetic
from trinity_compat.launch.bash.words.arithmetic import AssignmentTarget, BadArithmetic, VariableAccess
from trinity_compat.launch.bash.words.segments import DEFAULT_IFS
from trinity_compat.launch.model import EnvRef, UnknownPiece
from trinity_compat.launch.unset_variables import is_always_set

# Variables that bash itself sets, but whose value belongs to the run.
DYNAMIC = {"RANDOM", "SRANDOM", "SECONDS", "HOSTNAME", "PPID", "EPOCHSECONDS", "EPOCHREALTIME", "BASHPID"}
SHELL_FACTS = {
    "BASH": "/bin/bash",
    "BASH_VERSION": "5.2.15(1)-release",
    "OSTYPE": "linux-gnu",
    "MACHTYPE": "x86_64-pc-linux-gnu",
    "HOSTTYPE": "x86_64",
    "SHLVL": "1",
    "OPTIND": "1",
    "UID": "0",
    "EUID": "0",
}
SHELL_ARRAYS = ("BASH_SOURCE", "FUNCNAME", "PIPESTATUS", "BASH_VERSINFO")
OPTION_ORDER = "abefhkmnptuvxBCEHPT"  # of the letters in $-
VERSION_PARTS = ("5", "2", "15", "1", "release", "x86_64-pc-linux-gnu")
Key = tuple[str | int, list[Value]]  # of an element, and the values on which it depends


def lookup(sh: Shell, name: str, where: Where) -> Value | None:
    """The value of a scalar or special parameter; None when it is certainly unset.

    A name that the script never set could come from its surroundings: then the value is an `EnvRef`.
    """
    special = _special(sh, name, where)
    if special is not None:
        return special
    name = sh.variables.target(name) or name
    value = sh.scalar(name)
    if value is not None:
        return value
    if name.isdigit():
        return None
    if not (sh.from_surroundings(name) or name in sh.unexported):
        return None
    if name in DYNAMIC:  # another value each time that it is read
        return (TextPiece("", where, UnknownPiece(f"${name}", where)),)
    if name in SHELL_FACTS:
        return literal(SHELL_FACTS[name], where)
    sh.log.surroundings.setdefault(name, where)
    if sh.assigned_unread is not None and not is_always_set(name):
        return (TextPiece("", where, UnknownPiece(named(sh.assigned_unread), where, name)),)
    return None if name in sh.unexported else (TextPiece("", where, EnvRef(name)),)


def _special(sh: Shell, name: str, where: Where) -> Value | None:
    if name.isdigit():
        index = int(name[:9])
        if index == 0:
            return sh.name
        if any(map(is_uncounted, sh.positional[: index - 1])):
            return (TextPiece("", where, UnknownPiece(f"${name}", where)),)
        if index > len(sh.positional):
            return None
        sh.note_arguments(sh.positional[index - 1 : index])
        return as_one_word(sh.positional[index - 1])
    if name in ("$", "!"):
        return (TextPiece("", where, UnknownPiece(f"${name}", where)),)
    if name == "?":
        return sh.status_value(sh.status, sh.doubt_before, where)
    if name == "#":
        return count_of(sh.positional, "$#", where)
    if name == "-":
        return literal("".join(o for o in OPTION_ORDER if o in sh.options or o in "hB"), where)
    if name == "LINENO":
        return literal(str(where.line), where)
    if name in ("@", "*"):
        sh.note_arguments(sh.positional)
        return join(sh.positional, " ", where)
    return None


def join(values: list[Value], separator: str, where: Where) -> Value:
    """Values with a separator between."""
    out: list[TextPiece] = []
    for index, value in enumerate(values):
        if index and separator:
            out.append(TextPiece(separator, where))
        out += value
    return tuple(out)


def count_of(values: Iterable[Value], expression: str, where: Where) -> Value:
    """The number of values; open where one of them may be any number of words."""
    listed = list(values)
    return derived(str(len(listed)), filter(is_uncounted, listed), expression, where)


def elements(sh: Shell, name: str, where: Where) -> dict[Any, Value]:
    """All elements of an array; a scalar is an array of one."""
    if name in SHELL_ARRAYS and name not in sh.touched:
        return dict(enumerate(_shell_array(sh, name, where)))
    variable = sh.variables.get(name)
    if variable is None:
        value = lookup(sh, name, where)
        return {} if value is None else {0: value}
    sh.note_read(name)
    return dict(Shell.as_array(variable))


def _shell_array(sh: Shell, name: str, where: Where) -> list[Value]:
    if name == "BASH_SOURCE":
        return list(reversed(sh.scripts)) or [sh.name]
    if name == "FUNCNAME":
        return [literal(f, where) for f in [*reversed(sh.frames), *(["main"] if sh.frames else [])]]
    if name == "BASH_VERSINFO":
        return [literal(part, where) for part in VERSION_PARTS]
    return list(sh.pipe_statuses) or [sh.status_value(sh.status, sh.doubt_before, where)]


def key_of(sh: Shell, name: str, index: str, where: Where) -> Key:
    """The key that an index text stands for: a number, or text in an associative array."""
    variable = sh.variables.get(name)
    if variable is not None and variable.is_table:
        return index.strip("\"'"), []
    try:
        return evaluate_text(sh, index, [], where)
    except BadArithmetic:
        return 0, []


def element(sh: Shell, name: str, index: str | None, where: Where) -> Value:
    """``name`` or ``name[index]`` as arithmetic reads it; empty when unset."""
    if index is None:
        return lookup(sh, name, where) or EMPTY
    key = key_of(sh, name, index, where)
    return element_at(elements(sh, name, where), key, f"{name}[{index}]", where) or EMPTY


def element_at(found: dict[Any, Value], at: Key, expression: str, where: Where) -> Value | None:
    """The element of a key, None where it is unset.

    It is open where its key is, or where the elements on the way to it may be any number of words.
    """
    key, of_key = at
    if isinstance(key, int):
        from_end = key < 0
        key = key + max(found, default=-1) + 1 if from_end else key
        passed = [value for other, value in found.items() if (other > key if from_end else other < key)]
    else:
        passed = list(found.values())
    doubted = [*of_key, *filter(is_uncounted, passed)]
    value = found.get(key)
    if doubt_in(doubted) is not None:
        return derived(text_of(value or EMPTY), doubted, expression, where)
    return None if value is None else as_one_word(value)


def set_named(sh: Shell, target: Value, value: Value, what: str = "") -> None:
    """Set ``name`` or ``name[index]``, as the builtin ``what`` is given it; any variable where it is open."""
    name, bracket, index = text_of(target).partition("[")
    of_name = doubt_in([slice_value(target, 0, len(name))])
    if isinstance(of_name, UnknownPiece):
        sh.may_set_any(what, of_name)
    elif bracket:
        key, of_key = key_of(sh, name, index.removesuffix("]"), sh.where)
        sh.set_element(name, key, value, doubt=doubt_in([target, *of_key]))
    elif name.isidentifier():
        sh.set_scalar(name, value)


def evaluate_text(sh: Shell, text: str, used: list[Value], where: Where) -> tuple[int, list[Value]]:
    """The number of an arithmetic text; ``used`` collects the values of the names in it."""

    def read(place: AssignmentTarget) -> str:
        value = element(sh, place.name, place.index, where)
        used.append(value)
        return text_of(value)

    def write(place: AssignmentTarget, number: int) -> None:
        target = place.name if place.index is None else f"{place.name}[{place.index}]"
        set_named(sh, literal(target, where), derived(str(number), used, text, where))

    if any(0xE000 <= ord(char) <= 0xF8FF for char in text):
        for char, bit in sh.unit.holes.items():
            if char in text:
                used.append((bit,))
                text = text.replace(char, bit.text)
    return arithmetic.evaluate(text, VariableAccess(read, write), sh.budget), used


def ifs_of(sh: Shell) -> str:
    """The separators in force."""
    value = sh.scalar("IFS")
    return DEFAULT_IFS if value is None else text_of(value)
