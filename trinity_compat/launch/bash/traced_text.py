"""Strings with provenance: what the evaluator computes with instead of ``str``.

A value is a tuple of bits. Each bit knows the line where its text was written and, when the text
comes from the surroundings or cannot be known, the `EnvRef` or `Open` that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trinity_compat.common.errors import Where
from trinity_compat.launch.model import EnvRef, UnknownPiece, Word, WordPart


@dataclass(frozen=True, slots=True)
class TextPiece:
    """One piece of a value."""

    text: str
    where: Where
    source: EnvRef | UnknownPiece | None = None


Value = tuple[TextPiece, ...]
Prefix = dict[str, Value]  # the assignments in front of a command: ``NAME=value python3 …``
EMPTY: Value = ()


def text_of(value: Value) -> str:
    """The characters of a value, as far as they are known."""
    if len(value) == 1:
        return value[0].text
    return "".join(bit.text for bit in value)


def shown(value: Value) -> str:
    """The text, with the name of each variable that isn't set."""
    return "".join(f"${b.source.name}" if isinstance(b.source, EnvRef) else b.text for b in value)


def named(source: UnknownPiece | EnvRef) -> str:
    """The expression of what isn't known: ``$NAME``, ``$(command)``."""
    return source.expression if isinstance(source, UnknownPiece) else f"${source.name}"


def literal(text: str, where: Where) -> Value:
    """A known text written at ``where``."""
    return (TextPiece(text, where),) if text else EMPTY


def lines_of(text: str, where: Where) -> Value:
    """A text of several lines, each line with its own place."""
    if "\n" not in text:
        return literal(text, where)
    lines = text.splitlines(keepends=True) if "\r" not in text else text.split("\n")
    if "\r" in text:
        lines = [line + "\n" for line in lines[:-1]] + lines[-1:]
    return tuple(TextPiece(line, Where(where.file, where.line + i)) for i, line in enumerate(lines) if line)


def open_source(bit: TextPiece | WordPart) -> UnknownPiece | EnvRef | None:
    """Why a bit isn't settled: an open value, or a variable without a default, at any depth."""
    source = bit.source
    if not isinstance(source, EnvRef) or source.default is None:
        return source
    return next((found for part in source.parts if (found := open_source(part)) is not None), None)


def doubt_in(values: Iterable[Value]) -> UnknownPiece | EnvRef | None:
    """The first thing in the values that isn't settled."""
    for value in values:
        for bit in value:
            if bit.source is not None and (found := open_source(bit)) is not None:
                return found
    return None


def is_uncounted(value: Value) -> bool:
    """Return whether the value, one of a list, may stand for any number of words."""
    return any(isinstance(bit.source, UnknownPiece) and bit.source.words for bit in value)


def as_one_word(value: Value) -> Value:
    """The value where it is a single text: assigned to a name, or taken from its place in a list."""
    if not is_uncounted(value):
        return value
    return tuple(
        replace(bit, source=replace(bit.source, words=False)) if isinstance(bit.source, UnknownPiece) else bit
        for bit in value
    )


def uncounted(expression: str, where: Where) -> Value:
    """An open piece that stands for any number of words."""
    return (TextPiece("", where, UnknownPiece(expression, where, words=True)),)


def derived(text: str, sources: Iterable[Value], expression: str, where: Where) -> Value:
    """The result of an operation: settled when its sources are, otherwise open under ``expression``."""
    if doubt_in(sources) is None:
        return literal(text, where)
    return (TextPiece(text, where, UnknownPiece(expression, where)),)


def slice_value(value: Value, start: int, stop: int) -> Value:
    """The characters [start, stop) with their provenance.

    A piece with a source that is cut in two becomes open under the source's own name.
    """
    out: list[TextPiece] = []
    at = 0
    for bit in value:
        end = at + len(bit.text)
        if at >= stop and end > at:
            break
        low, high = max(start, at) - at, min(stop, end) - at
        # an open piece has no text, but what stands there at run time belongs to the slice
        if high > low or (at == end and start <= at <= stop):
            out.append(_slice_bit(bit, low, high))
        at = end
    return tuple(out)


def from_character(value: Value, start: int) -> Value:
    """The characters from ``start`` on. A piece that is cut in two keeps its source."""
    out: list[TextPiece] = []
    at = 0
    for bit in value:
        end = at + len(bit.text)
        if at >= start:
            out.append(bit)
        elif end > start:
            out.append(TextPiece(bit.text[start - at :], bit.where, bit.source))
        at = end
    return tuple(bit for bit in out if bit.text or bit.source)


def _slice_bit(bit: TextPiece, low: int, high: int) -> TextPiece:
    if low <= 0 and high >= len(bit.text):
        return bit
    text = bit.text[max(low, 0) : high]
    source = open_source(bit)
    if source is None:
        return TextPiece(text, bit.where)
    expression = source.expression if isinstance(source, UnknownPiece) else f"${{{source.name}}}"
    return TextPiece(text, bit.where, UnknownPiece(expression, bit.where))


def strip_newlines(value: Value) -> Value:
    """Without the newlines at the end, as ``$(…)`` does."""
    bits = list(value)
    while bits:
        last = bits[-1]
        text = last.text.rstrip("\n")
        # an open piece may be anything: no newline in front of it is at the end for certain
        if text or last.source is not None:
            bits[-1] = TextPiece(text, last.where, last.source)
            break
        bits.pop()
    return tuple(bits)


def to_word(value: Value, where: Where) -> Word:
    """The public form: neighbouring literal bits joined."""
    parts: list[WordPart] = []
    for bit in value:
        if bit.source is None and parts and parts[-1].source is None:
            parts[-1] = WordPart(parts[-1].text + bit.text)
        elif bit.text or bit.source is not None:
            parts.append(WordPart(bit.text, bit.source))
    return Word(tuple(parts), where)


def parts_of(value: Value) -> tuple[WordPart, ...]:
    """The pieces of a value without their places."""
    return tuple(WordPart(bit.text, bit.source) for bit in value)
