"""``xargs``: which command lines it makes of its input."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trinity_compat.launch import bounds
from trinity_compat.launch.quoting import ansi_c
from trinity_compat.launch.state import Shell
from trinity_compat.launch.values import Bit, Value, doubt_in, literal, slice_value, text_of

LONG = {
    "--null": "-0", "--delimiter": "-d", "--max-args": "-n", "--max-lines": "-l", "--replace": "-i",
    "--max-procs": "-P", "--max-chars": "-s", "--arg-file": "-a", "--eof": "-e", "--no-run-if-empty": "-r",
    "--verbose": "-t", "--exit": "-x",
}  # fmt: skip
WITH_VALUE = "dnLIPsaE"
OPTIONAL = {"i": ("I", "{}"), "l": ("L", "1"), "e": ("E", "")}  # a value only where it is attached
FLAGS = "0rtxo"
TOKEN = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"|\\(.)|([ \t]+)|(\n)|[^'\"\\ \t\n]+", re.S)


@dataclass(slots=True)
class _Items:
    """What was read: each item and the line it ends on."""

    values: list[Value] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def add(self, value: Value, line: int) -> None:
        self.values.append(value)
        self.lines.append(line)


def calls(sh: Shell, fields: list[Value]) -> list[list[Value]] | None:
    """The command lines; None, and a diagnostic, where an option isn't read."""
    options, command = _options(fields)
    stdin = None if options is None else _input(sh, options)
    items = None if options is None or stdin is None else _items(stdin, options)
    if options is None or stdin is None or items is None:
        sh.warn("TP109", "xargs is not read with these options or this input; what it starts is missing here")
        return None
    command = command or [literal("echo", sh.where)]
    if doubt_in([stdin]) and not items.values:
        items.add(stdin, 0)
    found = list(_calls(items, command, options))
    if len(found) > bounds.LAUNCHES:
        sh.warn("TP109", f"xargs starts more than {bounds.LAUNCHES} commands; the rest is missing here")
    return found[: bounds.LAUNCHES]


def _options(fields: list[Value]) -> tuple[dict[str, str] | None, list[Value]]:
    """The options by letter, and the command; the last of -I, -L and -n counts."""
    out: dict[str, str] = {}
    rest = fields[1:]
    while rest and text_of(rest[0]).startswith("-"):
        text = text_of(rest.pop(0))
        if text == "--":
            break
        name, equals, value = text.partition("=")
        text = LONG.get(name, text) + value if text.startswith("--") and (equals or name in LONG) else text
        body = text[1:]
        while body:
            letter, body = body[0], body[1:]
            if letter in WITH_VALUE and not body and not rest:
                return None, []
            if letter in WITH_VALUE:
                _set(out, letter, body or text_of(rest.pop(0)))
            elif letter in OPTIONAL:
                name, default = OPTIONAL[letter]
                _set(out, name, body or default)
            elif letter in FLAGS:
                out[letter] = ""
                continue
            else:
                return None, []
            break
    return out, rest


def _set(options: dict[str, str], letter: str, value: str) -> None:
    if letter in "ILn":
        for other in "ILn":
            options.pop(other, None)
    options[letter] = value


def _input(sh: Shell, options: dict[str, str]) -> Value | None:
    if any(not options.get(name, "1").isdigit() for name in "nL"):
        return None
    if "a" in options:
        return sh.files.read(sh.files_path(literal(options["a"], sh.where)))
    stdin, sh.stdin = sh.stdin, ()
    return (sh.unknown("stdin", sh.where),) if stdin is None else stdin


def _items(stdin: Value, options: dict[str, str]) -> _Items | None:
    if "0" in options or "d" in options:
        return _delimited(stdin, "\0" if "0" in options else ansi_c(options["d"])[:1] or "\0")
    text = text_of(stdin)
    if len("".join(match[0] for match in TOKEN.finditer(text))) < len(text):
        return None  # a quote without its end
    if "L" in options and re.search(r"[ \t]\n", text):
        return None  # a blank at its end continues a line
    items = _quoted(stdin, by_line="I" in options)
    if options.get("E"):
        texts = [text_of(value) for value in items.values]
        if options["E"] in texts:
            del items.values[texts.index(options["E"]) :]
    return items


def _delimited(stdin: Value, mark: str) -> _Items:
    items, text, at = _Items(), text_of(stdin), 0
    while at < len(text):
        stop = text.find(mark, at)
        stop = len(text) if stop < 0 else stop
        items.add(slice_value(stdin, at, stop), len(items.values))
        at = stop + 1
    return items


def _quoted(stdin: Value, *, by_line: bool) -> _Items:
    """Words between blanks, or lines without their leading blanks; quotes and backslashes count in both."""
    items, line = _Items(), 0
    current: list[Bit] | None = None
    for match in TOKEN.finditer(text_of(stdin)):
        if match[5] or (match[4] and (not by_line or current is None)):
            if current is not None:
                items.add(tuple(current), line)
            current, line = None, line + bool(match[5])
            continue
        group = next((n for n in (1, 2, 3) if match[n] is not None), 0)
        current = [*(current or []), *slice_value(stdin, *match.span(group))]
    if current is not None:
        items.add(tuple(current), line)
    return items


def _calls(items: _Items, command: list[Value], options: dict[str, str]) -> list[list[Value]]:
    values = items.values
    if "I" in options:
        return [[_filled(word, options["I"], value) for word in command] for value in values]
    if "L" in options:
        chunks = _by_lines(items, int(options["L"]) or 1)
    else:
        size = int(options.get("n", "0")) or max(1, len(values))
        chunks = [values[i : i + size] for i in range(0, len(values), size)]
    if not chunks and "r" not in options:
        chunks = [[]]
    return [[*command, *chunk] for chunk in chunks]


def _by_lines(items: _Items, count: int) -> list[list[Value]]:
    order = {line: place for place, line in enumerate(sorted(set(items.lines)))}
    chunks: list[list[Value]] = [[] for _ in range(-(-len(order) // count))]
    for value, line in zip(items.values, items.lines, strict=False):
        chunks[order[line] // count].append(value)
    return chunks


def _filled(word: Value, mark: str, value: Value) -> Value:
    text = text_of(word)
    if not mark or mark not in text:
        return word
    out: list[Bit] = [Bit("", word[0].where)] if word else []
    for index, piece in enumerate(text.split(mark)):
        out += value if index else ()
        out += literal(piece, word[0].where)
    return tuple(out)
