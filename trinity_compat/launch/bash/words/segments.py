"""Pieces of a word between expansion and the final fields: splitting, quoting, joining."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import TextPiece, Value, open_source
from trinity_compat.launch.model import EnvRef, UnknownPiece

DEFAULT_IFS = " \t\n"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a word. ``own`` means written in the word itself; ``split`` means IFS cuts it."""

    text: str
    where: Where
    source: EnvRef | UnknownPiece | None = None
    quoted: bool = False
    own: bool = False
    split: bool = False
    breaks: bool = False  # the boundary between two parameters of "$@"


Segs = list[Segment]


def segs_of(value: Value, *, quoted: bool, where: Where, own: bool = False) -> Segs:
    """A value as pieces; an empty one in quotes is still a piece."""
    segs = [Segment(b.text, b.where, b.source, quoted, own, split=not quoted and not own) for b in value]
    if quoted and not segs:
        segs = [Segment("", where, quoted=True)]
    return segs


def value_of(segs: Segs) -> Value:
    """The pieces as one value; boundaries become blanks, as in an assignment."""
    bits: list[TextPiece] = []
    for seg in segs:
        if seg.breaks:
            bits.append(TextPiece(" ", seg.where))
        elif seg.text or seg.source is not None:
            bits.append(TextPiece(seg.text, seg.where, seg.source))
    return tuple(bits)


def split_fields(segs: Segs, ifs: str) -> list[Segs]:
    """The fields of a word: cut at boundaries, and at IFS in unquoted expansions."""
    splitter = _Splitter(ifs)
    for seg in segs:
        splitter.feed(seg)
    splitter.flush()
    return splitter.fields


class _Splitter:
    def __init__(self, ifs: str) -> None:
        self.blanks = "".join(c for c in ifs if c in DEFAULT_IFS)
        self.marks = "".join(c for c in ifs if c not in DEFAULT_IFS)
        self.fields: list[Segs] = []
        self.current: Segs = []
        self.started = False

    def flush(self) -> None:
        """End the field. One without text and without quotes vanishes, unless a run may fill it."""
        if self.started or any(isinstance(seg.source, UnknownPiece) for seg in self.current):
            self.fields.append(self.current)
        self.current, self.started = [], False

    def feed(self, seg: Segment) -> None:
        if seg.breaks:
            self.flush()
            return
        if seg.split and isinstance(seg.source, UnknownPiece):
            seg = replace(seg, source=replace(seg.source, words=True))
        if not seg.split or not any(c in seg.text for c in self.blanks + self.marks):
            self.current.append(seg)
            self.started = self.started or seg.quoted or bool(seg.text)
            return
        text, at, line = seg.text, 0, 0
        whole = open_source(TextPiece(seg.text, seg.where, seg.source))
        while at < len(text):
            start = at
            if text[at] in self.blanks or text[at] in self.marks:
                at = self._delimiter(text, at)
                line += text.count("\n", start, at)
                continue
            while at < len(text) and text[at] not in self.blanks and text[at] not in self.marks:
                at += 1
            where = Where(seg.where.file, seg.where.line + line) if line else seg.where
            source = seg.source if whole is not None else None
            self.current.append(replace(seg, text=text[start:at], where=where, source=source, split=False))
            self.started = True
            line += text.count("\n", start, at)

    def _delimiter(self, text: str, at: int) -> int:
        mark = False
        while at < len(text) and text[at] in self.blanks:
            at += 1
        if at < len(text) and text[at] in self.marks:
            mark, at = True, at + 1
            while at < len(text) and text[at] in self.blanks:
                at += 1
        if mark and not self.started:
            self.started = True
        if self.started:
            self.flush()
        return at


def field_value(segs: Segs, where: Where) -> Value:
    """A finished field. Its first bit carries the field's place.

    That is the word's own line when any of it was written there, else the line where the text came
    from (an element of an array, a line of a string that was split).
    """
    bits = tuple(TextPiece(s.text, s.where, s.source) for s in segs if s.text or s.source is not None)
    own = next((s.where for s in segs if s.own), None)
    place = own or (bits[0].where if bits else where)
    if not bits or bits[0].where != place:
        return (TextPiece("", place), *bits)
    return bits


def place_of(value: Value, fallback: Where) -> Where:
    """Return the place of a field in the source."""
    return value[0].where if value else fallback
