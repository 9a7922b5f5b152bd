"""Patterns without backtracking: shell globs (with extglob) and POSIX extended expressions.

A pattern is a small tree; matching carries the set of positions that are reachable, so no pattern
takes more than polynomial time, and every step is paid for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trinity_compat.common.limits import Budget


@dataclass(frozen=True, slots=True)
class Char:
    """One character out of a set; ``ranges`` are inclusive."""

    ranges: tuple[tuple[str, str], ...] = ()
    negated: bool = False

    def fits(self, char: str) -> bool:
        """Return whether the character is in the set."""
        return any(low <= char <= high for low, high in self.ranges) != self.negated


ANY = Char((), negated=True)


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several sequences."""

    options: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A piece repeated; ``most`` None means without end."""

    item: Piece
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """extglob's ``!(…)``: anything that none of the options matches as a whole."""

    options: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """The start (``^``) or the end (``$``) of the text."""

    end: bool


Piece = Char | Alt | Repeat | Not | Edge
Sequence = tuple[Piece, ...]


@dataclass(slots=True)
class Matcher:
    """Matches sequences in one text."""

    text: str
    budget: Budget
    fold: bool = False

    def __post_init__(self) -> None:
        if self.fold:
            self.text = self.text.lower()

    def ends(self, sequence: Sequence, starts: set[int]) -> set[int]:
        """All positions where a match can end that starts at one of ``starts``."""
        for node in sequence:
            if not starts:
                break
            starts = self._step(node, starts)
        return starts

    def _step(self, node: Piece, starts: set[int]) -> set[int]:
        self.budget.step(1 + len(starts) // 64)
        if isinstance(node, Char):
            text, size = self.text, len(self.text)
            return {at + 1 for at in starts if at < size and node.fits(text[at])}
        if isinstance(node, Repeat):
            return self._repeat(node, starts)
        if isinstance(node, Alt):
            return set().union(*(self.ends(option, starts) for option in node.options))
        if isinstance(node, Edge):
            edge = len(self.text) if node.end else 0
            return starts & {edge}
        result: set[int] = set()
        for start in starts:
            taken: set[int] = set().union(*(self.ends(option, {start}) for option in node.options))
            self.budget.step(1 + len(self.text) // 64)
            result |= set(range(start, len(self.text) + 1)) - taken
        return result

    def _repeat(self, node: Repeat, starts: set[int]) -> set[int]:
        if node.item == ANY and node.most is None:
            return set(range(min(starts) + node.least, len(self.text) + 1))
        current = starts
        for _ in range(node.least):
            current = self._step(node.item, current)
        seen, fresh, rounds = set(current), current, node.least
        while fresh and (node.most is None or rounds < node.most):
            fresh = self._step(node.item, fresh) - seen
            seen |= fresh
            rounds += 1
        return seen

    def whole(self, sequence: Sequence) -> bool:
        """Return whether the pattern matches the text from end to end."""
        return len(self.text) in self.ends(sequence, {0})


def mirrored(sequence: Sequence) -> Sequence:
    """The pattern that matches the reversed text."""
    return tuple(_mirror(node) for node in reversed(sequence))


def _mirror(node: Piece) -> Piece:
    if isinstance(node, Alt):
        return Alt(tuple(mirrored(option) for option in node.options))
    if isinstance(node, Not):
        return Not(tuple(mirrored(option) for option in node.options))
    if isinstance(node, Repeat):
        return Repeat(_mirror(node.item), node.least, node.most)
    return node


CLASSES: dict[str, tuple[tuple[str, str], ...]] = {
    "alpha": (("a", "z"), ("A", "Z")),
    "digit": (("0", "9"),),
    "alnum": (("a", "z"), ("A", "Z"), ("0", "9")),
    "upper": (("A", "Z"),),
    "lower": (("a", "z"),),
    "space": ((" ", " "), ("\t", "\r")),
    "blank": ((" ", " "), ("\t", "\t")),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "xdigit": (("0", "9"), ("a", "f"), ("A", "F")),
    "cntrl": (("\0", "\x1f"), ("\x7f", "\x7f")),
    "print": ((" ", "~"),),
    "graph": (("!", "~"),),
}

# A pattern's characters: each with whether it was quoted (then it stands for itself).
Chars = list[tuple[str, bool]]


def chars_of(text: str, *, quoted: bool = False) -> Chars:
    """Pattern characters of a text; in an unquoted text a backslash quotes the next one."""
    if quoted:
        return [(char, True) for char in text]
    out: Chars = []
    escaped = False
    for char in text:
        if escaped or char != "\\":
            out.append((char, escaped))
        escaped = char == "\\" and not escaped
    return [*out, ("\\", True)] if escaped else out


def bracket(chars: Chars, at: int) -> tuple[Char, int] | None:
    """The ``[…]`` that starts at ``at``, and where it ends; None when it isn't closed."""
    index, negated = at + 1, False
    if index < len(chars) and chars[index] in (("!", False), ("^", False)):
        negated, index = True, index + 1
    ranges: list[tuple[str, str]] = []
    first = index
    while index < len(chars):
        char, quoted = chars[index]
        if char == "]" and not quoted and index > first:
            return Char(tuple(ranges), negated), index + 1
        if char == "[" and not quoted and (named := _named_class(chars, index)):
            ranges += named[0]
            index = named[1]
            continue
        if index + 2 < len(chars) and chars[index + 1] == ("-", False) and chars[index + 2][0] != "]":
            ranges.append((char, chars[index + 2][0]))
            index += 3
            continue
        ranges.append((char, char))
        index += 1
    return None


def _named_class(chars: Chars, at: int) -> tuple[tuple[tuple[str, str], ...], int] | None:
    text = "".join(char for char, _ in chars[at : at + 12])
    end = text.find(":]")
    if text.startswith("[:") and end > 0 and text[2:end] in CLASSES:
        return CLASSES[text[2:end]], at + end + 2
    return None


def glob(chars: Iterable[tuple[str, bool]], *, extended: bool = True) -> Sequence:
    """A shell pattern as a sequence."""
    sequence, _ = _glob(list(chars), 0, extended, nested=False)
    return sequence


def _glob(chars: Chars, at: int, extended: bool, *, nested: bool) -> tuple[Sequence, int]:
    out: list[Piece] = []
    while at < len(chars):
        char, quoted = chars[at]
        if quoted:
            out.append(Char(((char, char),)))
            at += 1
            continue
        if nested and char in "|)":
            break
        if extended and char in "?*+@!" and at + 1 < len(chars) and chars[at + 1] == ("(", False):
            group = _extglob(chars, at)
            if group:
                out.append(group[0])
                at = group[1]
                continue
        if char == "[" and (found := bracket(chars, at)):
            node, at = found
            out.append(node)
            continue
        out.append(Repeat(ANY) if char == "*" else ANY if char == "?" else Char(((char, char),)))
        at += 1
    return tuple(out), at


def _extglob(chars: Chars, at: int) -> tuple[Piece, int] | None:
    kind, index = chars[at][0], at + 2
    options: list[Sequence] = []
    while True:
        option, index = _glob(chars, index, True, nested=True)
        options.append(option)
        if index >= len(chars):
            return None
        index += 1
        if chars[index - 1][0] == ")":
            break
    if kind == "!":
        return Not(tuple(options)), index
    alternatives = Alt(tuple(options))
    least, most = {"?": (0, 1), "*": (0, None), "+": (1, None), "@": (1, 1)}[kind]
    return (alternatives if kind == "@" else Repeat(alternatives, least, most)), index


def is_plain(chars: Chars) -> bool:
    """Return whether a pattern has no special characters."""
    return all(quoted or char not in "*?[]+@!()|" for char, quoted in chars)
