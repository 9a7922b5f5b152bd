"""``[[ text =~ expression ]]``, grep, sed: POSIX extended regular expressions on the bounded matcher."""

from __future__ import annotations

from dataclasses import dataclass

from trinity_compat.launch.bounds import Budget
from trinity_compat.launch.matching import (
    ANY,
    CLASSES,
    Alt,
    Boundary,
    Char,
    Chars,
    Edge,
    Matcher,
    Node,
    Repeat,
    Sequence,
    bracket,
)

MOST = 255  # POSIX: RE_DUP_MAX


class BadExpression(Exception):
    """bash returns status 2 for it."""


class Unread(BadExpression):
    """It may be right, but isn't followed here."""


@dataclass(slots=True)
class _Parser:
    chars: Chars
    at: int = 0
    groups: int = 0

    def alternatives(self, *, nested: bool) -> tuple[Sequence, ...]:
        options = [self._sequence(nested)]
        while self._peek() == "|":
            self.at += 1
            options.append(self._sequence(nested))
        return tuple(options)

    def _peek(self) -> str:
        """The next character when it is special, else empty."""
        if self.at < len(self.chars) and not self.chars[self.at][1]:
            return self.chars[self.at][0]
        return ""

    def _sequence(self, nested: bool) -> Sequence:
        out: list[Node] = []
        while self.at < len(self.chars):
            char = self._peek()
            if char == "|" or (nested and char == ")"):
                break
            if char in ("*", "+", "?", "{") and out:
                out[-1] = self._repeat(out[-1], char)
            else:
                out.append(self._atom(char))
        return tuple(out)

    def _atom(self, char: str) -> Node:
        if char == "(":
            self.at += 1
            self.groups += 1
            number = self.groups
            options = self.alternatives(nested=True)
            if self._peek() != ")":
                raise BadExpression("unmatched (")
            self.at += 1
            return Alt(options, number)
        if char == "[":
            found = bracket(self.chars, self.at)
            if not found:
                raise BadExpression("unmatched [")
            self.at = found[1]
            return found[0]
        own, quoted = self.chars[self.at]
        self.at += 1
        return self._single(char, own, quoted)

    def _single(self, char: str, own: str, quoted: bool) -> Node:
        if char == ".":
            return ANY
        if char in ("^", "$"):
            return Edge(end=char == "$")
        if char[:1] == "\\":
            return _escaped(char[1])
        return Char(((own, own),))

    def _repeat(self, item: Node, char: str) -> Node:
        self.at += 1
        if char != "{":
            return Repeat(item, int(char == "+"), 1 if char == "?" else None)
        text = ""
        while self._peek() and self._peek() != "}":
            text += self._peek()
            self.at += 1
        self.at += 1
        least, comma, most = text.partition(",")
        least = least or "0" * len(comma)
        if not least.isdigit() or (most and not most.isdigit()) or int(most or least) > MOST:
            raise BadExpression("bad {…}")
        return Repeat(item, int(least), int(most) if most else (None if comma else int(least)))


def _escaped(letter: str) -> Node:
    if letter in "wWsS":
        return Char(CLASSES["word" if letter in "wW" else "space"], letter.isupper())
    return Edge(end=letter == "'") if letter in "`'" else Boundary(letter)


def search(chars: Chars, text: str, budget: Budget, *, fold: bool = False) -> list[str] | None:
    """BASH_REMATCH of the leftmost longest match, None when there is none.

    Raises BadExpression for what bash refuses.
    """
    found = find(chars, text, budget, fold=fold)
    return None if found is None else found[1]


def find(
    chars: Chars, text: str, budget: Budget, *, fold: bool = False, begin: int = 0
) -> tuple[int, list[str]] | None:
    """Where the leftmost longest match from ``begin`` on starts; the texts of the match and its groups."""
    if fold:
        chars = [(char.lower() if len(char) == 1 else char, quoted) for char, quoted in chars]
    parser = _Parser(chars)
    options = parser.alternatives(nested=False)
    sequence: Sequence = (Alt(options),)
    matcher = Matcher(text, budget, fold)
    for start in range(begin, len(text) + 1):
        ends = matcher.ends(sequence, {start})
        if ends:
            end = max(ends)
            where = matcher.captures(sequence, start, end)
            spans = [where.get(i, (0, 0)) for i in range(1, parser.groups + 1)]
            return start, [text[start:end], *(text[a:b] for a, b in spans)]
    return None
