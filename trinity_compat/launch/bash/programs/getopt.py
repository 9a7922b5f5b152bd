"""``getopt`` of util-linux: the options of a script in a normal form, for ``eval set -- …`` (getopt(1))."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from trinity_compat.launch.bash.options import OptionSpec, ParsedOptions
from trinity_compat.launch.bash.state import Shell
from trinity_compat.launch.bash.traced_text import EMPTY, TextPiece, Value, from_character, literal, text_of

OPTIONS = OptionSpec(
    "qQuT",
    "olns",
    long={
        "--options": "o",
        "--long": "l",
        "--longoptions": "l",
        "--name": "n",
        "--shell": "s",
        "--quiet": "q",
        "--quiet-output": "Q",
        "--unquoted": "u",
        "--test": "T",
    },
    leading=True,
)


@dataclass(slots=True)
class _Found:
    """The options so far, each with its value where it has one, and the words that are none."""

    options: list[tuple[str, Value | None]] = field(default_factory=list)
    others: list[Value] = field(default_factory=list)
    status: int = 0


def getopt(sh: Shell, given: ParsedOptions) -> int | None:
    """``getopt -o SHORT --long LONG -- "$@"``, or ``getopt SHORT "$@"``; None for what isn't read."""
    if given.has("T"):
        return 4  # how a script asks for this getopt
    words, old = list(given.operands), not given.has("ol")
    if old and not words:
        return None
    short = text_of(words.pop(0)) if old else given.text("o")
    names = [name for value in given.options.get("l", []) for name in re.split(r"[,\s]+", text_of(value))]
    long = {name.rstrip(":"): name.count(":") for name in names if name}
    if short.startswith("-"):  # words in their order among the options
        return None
    found, rest = _Found(), list(words)
    while rest:
        word = rest.pop(0)
        text = text_of(word)
        if text == "--":
            break
        if text.startswith("--") and long:
            _long(word, rest, long, found)
        elif text.startswith("-") and text != "-":
            _letters(word, rest, short.lstrip("+"), found)
        else:
            found.others.append(word)
            if short.startswith("+"):
                break
    found.others += rest
    if not given.has("Q"):
        _print(sh, found, quoted=not (old or given.has("u")))
    return found.status


def _print(sh: Shell, found: _Found, *, quoted: bool) -> None:
    """The options, ``--``, and the other words; each value in quotes, as a shell reads it back."""
    blank, quote = literal(" ", sh.where), literal("'", sh.where)

    def shown(value: Value) -> Value:
        if not quoted:
            return (*blank, *value)
        inside = (replace(bit, text=bit.text.replace("'", "'\\''")) for bit in value)
        return (*blank, *quote, *inside, *quote)

    out: list[TextPiece] = []
    for option, value in found.options:
        out += (*literal(f" {option}", sh.where), *(shown(value) if value is not None else ()))
    out += literal(" --", sh.where)
    for word in found.others:
        out += shown(word)
    sh.write_line(tuple(out))


def _long(word: Value, rest: list[Value], long: dict[str, int], found: _Found) -> None:
    name, equals, _ = text_of(word)[2:].partition("=")
    fitting = [name] if name in long else [one for one in long if one.startswith(name)]
    value = from_character(word, len(name) + 3) if equals else None
    if len(fitting) != 1 or (value is not None and long[fitting[0]] == 0):
        found.status = 1
        return
    _add(f"--{fitting[0]}", long[fitting[0]], value, rest, found)


def _letters(word: Value, rest: list[Value], short: str, found: _Found) -> None:
    text = text_of(word)
    for at, letter in enumerate(text[1:], 2):
        place = short.find(letter)
        if place < 0 or letter == ":":
            found.status = 1
            continue
        takes = len(short[place + 1 : place + 3]) - len(short[place + 1 : place + 3].lstrip(":"))
        attached = from_character(word, at) if takes and at < len(text) else None
        _add(f"-{letter}", takes, attached, rest, found)
        if takes:
            return


def _add(option: str, takes: int, value: Value | None, rest: list[Value], found: _Found) -> None:
    """An option that takes no value (0), one (1), or perhaps one that is attached (2)."""
    if takes == 1 and value is None:
        if not rest:
            found.status = 1
            return
        value = rest.pop(0)
    found.options.append((option, EMPTY if takes == 2 and value is None else value))
