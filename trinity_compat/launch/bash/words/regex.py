r"""``[[ text =~ expression ]]``: POSIX extended regular expressions on the bounded matcher.

What glibc adds to POSIX (``\w``, ``\b``, back-references) isn't followed: then the test's result is open.
"""

from __future__ import annotations

from dataclasses import dataclass

from trinity_compat.common.limits import Budget
from trinity_compat.launch.bash.words.matching import (
    ANY,
    CLASSES,
    Alt,
    Char,
    Chars,
    Edge,
    Matcher,
    Piece,
    Repeat,
    Sequence,
    bracket,
)

MOST = 32767  # RE_DUP_MAX of glibc
UNREAD = frozenset("wWsSbB<>`'123456789")  # after a backslash


class BadExpression(Exception):
    """bash returns status 2 for it."""


class Unread(BadExpression):
    """A regular expression that may be valid and is not evaluated here."""


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
        out: list[Piece] = []
        while self.at < len(self.chars):
            char = self._peek()
            if char == "|" or (nested and char == ")"):
                break
            if char in ("*", "+", "?", "{"):
                if not out or isinstance(out[-1], Edge):
                    raise BadExpression(f"nothing stands before {char}")
                out[-1] = self._repeat(out[-1], char)
            else:
                out.append(self._atom(char))
        return tuple(out)

    def _atom(self, char: str) -> Piece:
        if char == "(":
            self.at += 1
            self.groups += 1
            options = self.alternatives(nested=True)
            if self._peek() != ")":
                raise BadExpression("unmatched (")
            self.at += 1
            return Alt(options)
        if char == "[":
            found = bracket(self.chars, self.at)
            if not found:
                raise BadExpression("unmatched [")
            self.at = found[1]
            return found[0]
        own, _ = self.chars[self.at]
        self.at += 1
        if char == ".":
            return ANY
        if char in ("^", "$"):
            return Edge(end=char == "$")
        return Char(((own, own),))

    def _repeat(self, item: Piece, char: str) -> Piece:
        self.at += 1
        if char != "{":
            return Repeat(item, int(char == "+"), 1 if char == "?" else None)
        text = ""
        while self._peek() and self._peek() != "}":
            text += self._peek()
            self.at += 1
        if not self._peek():
            raise BadExpression("unmatched {")
        self.at += 1
        least, comma, most = text.partition(",")
        least = least or "0" * len(comma)
        if not least.isdigit() or (most and not most.isdigit()) or int(most or least) > MOST:
            raise BadExpression("bad {…}")
        if most and int(most) < int(least):
            raise BadExpression("bad {…}")
        return Repeat(item, int(least), int(most) if most else (None if comma else int(least)))


def search(pairs: Chars, text: str, budget: Budget, *, fold: bool = False) -> tuple[str, int] | None:
    """The leftmost longest match and the number of groups in the expression; None when nothing matches.

    ``pairs`` are the expression's characters, each with whether the shell quoted it: it is no operator then.
    Raises BadExpression for what bash refuses, Unread for what isn't followed.
    """
    chars = _with_escapes(pairs)
    if fold:
        chars = [(char.lower(), literal) for char, literal in chars]
    parser = _Parser(chars)
    sequence: Sequence = (Alt(parser.alternatives(nested=False)),)
    matcher = Matcher(text, budget, fold)
    for start in range(len(text) + 1):
        ends = matcher.ends(sequence, {start})
        if ends:
            return text[start : max(ends)], parser.groups
    return None


def _with_escapes(pairs: Chars) -> Chars:
    """The characters after backslashes: each with whether it stands for itself."""
    out: Chars = []
    at = 0
    while at < len(pairs):
        char, quoted = pairs[at]
        at += 1
        if char == "[" and not quoted:
            at = _copy_bracket(pairs, at, out)
        elif char == "\\" and not quoted:
            if at == len(pairs):
                raise BadExpression("trailing backslash")
            char, quoted = pairs[at]
            if not quoted and char in UNREAD:
                raise Unread("\\" + char)
            out.append((char, True))
            at += 1
        else:
            out.append((char, quoted))
    return out


def _copy_bracket(pairs: Chars, at: int, out: Chars) -> int:
    """Copy ``…]``; a backslash is a character like any other there. Where it ends."""
    out.append(("[", False))
    if at < len(pairs) and pairs[at] == ("^", False):
        out.append(pairs[at])
        at += 1
    first = at
    while at < len(pairs):
        char, quoted = pairs[at]
        if char == "]" and not quoted and at > first:
            out.append((char, False))
            return at + 1
        named = "".join(c for c, _ in pairs[at : at + 12]) if char == "[" and not quoted else ""
        if named[:2] in ("[:", "[.", "[="):
            name = named[2:].partition(":]")[0]
            if named[:2] != "[:" or name not in CLASSES:
                raise Unread(f"[{named[:2]}{name}")
            out += [(c, False) for c in f"[:{name}:]"]
            at += len(name) + 4
            continue
        out.append((char, char != "-" or quoted))
        at += 1
    raise BadExpression("unmatched [")
