"""``read`` and ``mapfile``: lines of stdin, where stdin is known."""

from __future__ import annotations

from trinity_compat.launch.bash.options import ParsedOptions
from trinity_compat.launch.bash.state import Shell, Variable
from trinity_compat.launch.bash.traced_text import (
    TextPiece,
    Value,
    doubt_in,
    named,
    slice_value,
    text_of,
    uncounted,
)
from trinity_compat.launch.bash.words import lookup
from trinity_compat.launch.bash.words.segments import DEFAULT_IFS
from trinity_compat.launch.model import UnknownPiece


def _line_end(given: ParsedOptions) -> str:
    """The character that ends a line: ``-d``."""
    return (given.text("d")[:1] or "\0") if given.has("d") else "\n"


def _count(text: str) -> int:
    return int(text[:6]) if text.isascii() and text.isdigit() else 0


def _take(sh: Shell, end: str) -> tuple[Value, bool]:
    """The next line of stdin without its end, and whether the end was there."""
    value = sh.stdin or ()
    text = text_of(value)
    at = text.find(end)
    if at < 0:
        sh.stdin = ()
        return value, False
    sh.stdin = slice_value(value, at + 1, len(text))
    return slice_value(value, 0, at), True


def read(sh: Shell, given: ParsedOptions) -> int:
    """``read [-r] [-a array] names``."""
    end = _line_end(given)
    if sh.stdin is None:
        line: Value = (sh.unknown("read " + " ".join(given.texts()), sh.where),)
        found = True
        sh.doubt = UnknownPiece("read", sh.where)
    else:
        line, found = _take(sh, end)
        sh.doubt = doubt_in([line])
    while not given.has("r") and found and text_of(line).endswith("\\") and end == "\n":
        more, found = _take(sh, end)
        line = (*slice_value(line, 0, len(text_of(line)) - 1), *more)
    if given.has("nN"):
        line = slice_value(line, 0, _count(given.text("n") or given.text("N")))
    _store(sh, line, given, given.operands)
    return 0 if found else 1


def _store(sh: Shell, line: Value, given: ParsedOptions, names: list[Value]) -> None:
    raw, ifs = given.has("r"), "" if given.has("N") else lookup.ifs_of(sh)
    opened = next((bit.source for bit in line if isinstance(bit.source, UnknownPiece)), None)
    if given.has("a"):
        pieces = _split(line, ifs, 0, raw)
        if opened is not None:
            pieces.append(uncounted(named(opened), sh.where))
        sh.put(given.text("a"), Variable(array=dict(enumerate(pieces))))
        return
    if not names:
        sh.set_scalar("REPLY", line)
        return
    if opened is not None and len(names) == 1:  # all of the line, but for blanks at its ends
        lookup.set_named(sh, names[0], _unescaped(line, raw), "read")
        return
    pieces = _split(line, ifs, len(names), raw)
    rest: Value = () if opened is None else (TextPiece("", sh.where, opened),)
    for index, name in enumerate(names):
        lookup.set_named(sh, name, pieces[index] if index < len(pieces) else rest, "read")


def _split(line: Value, ifs: str, limit: int, raw: bool) -> list[Value]:
    """Cut a line at IFS into at most ``limit`` pieces (0: no limit); the last one keeps the rest.

    Of a line with an open piece only the pieces that end before it are known, and returned.
    """
    unknown = [index for index, bit in enumerate(line) if isinstance(bit.source, UnknownPiece)]
    text = text_of(line[: unknown[0]] if unknown else line)
    blanks = "".join(c for c in ifs if c in DEFAULT_IFS)
    at, out = 0, list[Value]()
    while at < len(text) and text[at] in blanks:
        at += 1
    while at < len(text):
        if limit and len(out) == limit - 1:
            if unknown:
                break
            out.append(_last(line, text, at, ifs, blanks, raw))
            break
        stop = at
        while stop < len(text) and text[stop] not in ifs:
            stop += 2 if text[stop] == "\\" and not raw else 1
        if unknown and stop >= len(text):
            break
        out.append(_unescaped(slice_value(line, at, min(stop, len(text))), raw))
        at = _skip(text, min(stop, len(text)), ifs, blanks)
    return out


def _skip(text: str, at: int, ifs: str, blanks: str) -> int:
    while at < len(text) and text[at] in blanks:
        at += 1
    if at < len(text) and text[at] in ifs:
        at += 1
        while at < len(text) and text[at] in blanks:
            at += 1
    return at


def _last(line: Value, text: str, at: int, ifs: str, blanks: str, raw: bool) -> Value:
    """Return the rest of the line, or its first word where only delimiters follow."""
    stop = at
    while stop < len(text) and text[stop] not in ifs:
        stop += 2 if text[stop] == "\\" and not raw else 1
    stop = min(stop, len(text))
    if _skip(text, stop, ifs, blanks) < len(text):
        stop = len(text)
        while stop > at and text[stop - 1] in blanks:
            stop -= 1
    return _unescaped(slice_value(line, at, stop), raw)


def _unescaped(value: Value, raw: bool) -> Value:
    if raw or "\\" not in text_of(value):
        return value
    out: list[TextPiece] = []
    for bit in value:
        text, escaped = "", False
        for char in bit.text:
            if char != "\\" or escaped:
                text += char
            escaped = char == "\\" and not escaped
        out.append(TextPiece(text, bit.where, bit.source))
    return tuple(out)


def mapfile(sh: Shell, given: ParsedOptions) -> int:
    """``mapfile [-t] name``: every line of stdin an element."""
    end, skip, limit = _line_end(given), _count(given.text("s")), _count(given.text("n"))
    lines: list[Value] = []
    name = text_of(given.operands[0]) if given.operands else "MAPFILE"
    opened = UnknownPiece("stdin", sh.where) if sh.stdin is None else doubt_in([sh.stdin])
    array = dict(Shell.as_array(sh.variable(name))) if given.has("O") else {}
    origin = _count(given.text("O"))
    if opened is not None:
        kept = {key: value for key, value in array.items() if key < origin}
        sh.put(name, Variable(array={**kept, origin: uncounted(named(opened), sh.where)}))
        sh.stdin = ()
        return 0
    while sh.stdin:
        sh.budget.step()
        line, found = _take(sh, end)
        keep = found and not given.has("t")
        lines.append((*line, TextPiece(end, sh.where)) if keep else line)
        sh.budget.fields(len(lines))
    lines = lines[skip : skip + limit if limit else None]
    sh.put(name, Variable(array={**array, **dict(enumerate(lines, start=origin))}))
    return 0
