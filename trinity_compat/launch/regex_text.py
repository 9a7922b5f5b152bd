"""The text of a regular expression, basic or extended, as the characters that `ere` parses.

As glibc reads it: a backslash before a letter may be an assertion or a class (``\\b``, ``\\w``), in brackets
it is a character. A token of two characters (``\\b``) is special, see `ere`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trinity_compat.launch.ere import BadExpression, Unread
from trinity_compat.launch.matching import CLASSES, Chars

SPECIAL = frozenset("wWsSbB<>`'")
CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def chars_of_text(text: str, *, basic: bool, stream: bool = False) -> Chars:
    """The characters of ``text``; ``stream`` knows sed's own escapes (``\\n``, ``\\t``)."""
    return chars_of_pairs([(char, False) for char in text], basic=basic, stream=stream)


def chars_of_pairs(pairs: Chars, *, basic: bool = False, stream: bool = False) -> Chars:
    """The same for characters of which some were quoted by the shell: those stand for themselves.

    Raises BadExpression for what is refused, Unread for what isn't followed (back-references).
    """
    reader = _Reader(pairs, basic, stream)
    while reader.at < len(pairs):
        reader.one()
    return reader.out


@dataclass(slots=True)
class _Reader:
    pairs: Chars
    basic: bool
    stream: bool
    at: int = 0
    out: Chars = field(default_factory=list)

    def one(self) -> None:
        char, quoted = self.pairs[self.at]
        if quoted:
            self._push(char, literal=True)
        elif char == "[":
            self._bracket()
        elif char == "\\":
            self._escape()
        elif self.basic:
            self._push(char, literal=not self._is_special(char))
        else:
            self._push(char, literal=False)

    def _push(self, char: str, *, literal: bool, width: int = 1) -> None:
        self.out.append((char, literal))
        self.at += width

    def _text(self, start: int, size: int) -> str:
        return "".join(char for char, _ in self.pairs[start : start + size])

    def _is_special(self, char: str) -> bool:
        """Whether a bare character of a basic expression is an operator where it stands."""
        opens = not self.out or self.out[-1] in (("(", False), ("|", False))
        if char == "*":
            return not opens and self.out[-1] != ("^", False)
        if char == "^":
            return opens
        if char == "$":
            return self.at + 1 == len(self.pairs) or self._text(self.at + 1, 2) in ("\\)", "\\|")
        return char not in "(){}+?|"

    def _escape(self) -> None:
        if self.at + 1 == len(self.pairs):
            raise BadExpression("trailing backslash")
        char, quoted = self.pairs[self.at + 1]
        if quoted:
            self._push(char, literal=True, width=2)
        elif char in SPECIAL:
            self._push("\\" + char, literal=False, width=2)
        elif self.basic and char in "(){}+?|":
            self._push(char, literal=False, width=2)
        elif char in "123456789" or (self.stream and char in "cdox0"):
            raise Unread("\\" + char)
        elif self.stream and char in CONTROL:
            self._push(CONTROL[char], literal=True, width=2)
        else:
            self._push(char, literal=True, width=2)

    def _bracket(self) -> None:
        self._push("[", literal=False)
        if self._text(self.at, 1) == "^" and not self.pairs[self.at][1]:
            self._push("^", literal=False)
        first = self.at
        while self.at < len(self.pairs):
            char, quoted = self.pairs[self.at]
            if char == "]" and not quoted and self.at > first:
                self._push(char, literal=False)
                return
            self._member(char, quoted)
        raise BadExpression("unmatched [")

    def _member(self, char: str, quoted: bool) -> None:
        pair = self._text(self.at, 2)
        if char == "[" and not quoted and pair in ("[:", "[.", "[="):
            self._class()
        elif char == "\\" and self.stream and pair[1:] in CONTROL:
            self._push(CONTROL[pair[1]], literal=True, width=2)
        elif char == "\\" and self.stream and pair[1:] in tuple("cdox]"):
            raise Unread(pair)
        else:
            self._push(char, literal=char != "-" or quoted)

    def _class(self) -> None:
        name = self._text(self.at + 2, 10).partition(":]")[0]
        if self._text(self.at, 2) != "[:" or name not in CLASSES or name == "word":
            raise Unread(f"[[:{name}")
        for char in f"[:{name}:]":
            self._push(char, literal=False)
