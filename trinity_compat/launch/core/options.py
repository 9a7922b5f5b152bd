"""The options of a command line, as getopt reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity_compat.launch.core.values import EMPTY, Value, from_character, text_of


@dataclass(frozen=True, slots=True)
class Given:
    """What a command line gives: options by letter (EMPTY for a flag), and the operands."""

    options: Mapping[str, Value]
    operands: list[Value]

    def has(self, letters: str) -> bool:
        """Whether one of the options is there."""
        return not self.options.keys().isdisjoint(letters)

    def text(self, letter: str, default: str = "") -> str:
        """The value of an option; of one that is given several times the last."""
        return text_of(self.options[letter]) if letter in self.options else default


@dataclass(frozen=True, slots=True)
class Options:
    """The options that a program knows.

    ``flags`` and ``values`` are letters, without and with a value; a letter of ``attached`` has one only
    where it is attached (``date -Iseconds``). ``long`` names the letter of each long spelling.
    ``leading``: they end at the first operand, as for a program that runs another.
    ``lenient``: any other option is taken for a flag, where it cannot matter what it does.
    """

    flags: str = ""
    values: str = ""
    attached: str = ""
    long: Mapping[str, str] = field(default_factory=dict)
    leading: bool = False
    lenient: bool = False

    def read(self, words: Sequence[Value]) -> Given | None:
        """The options and operands of ``words``; None where one isn't known, or lacks its value."""
        found: dict[str, Value] = {}
        operands: list[Value] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            text = text_of(word)
            if text == "--":
                return Given(found, operands + rest)
            if not text.startswith("-") or text == "-":
                operands.append(word)
                if self.leading:
                    return Given(found, operands + rest)
            elif not (self._long if text.startswith("--") else self._letters)(word, rest, found):
                return None
        return Given(found, operands)

    def _long(self, word: Value, rest: list[Value], found: dict[str, Value]) -> bool:
        name, equals, _ = text_of(word).partition("=")
        letter = self.long.get(name, "")
        if not letter:
            return self.lenient
        value = from_character(word, len(name) + 1) if equals else EMPTY
        if letter in self.values and not equals:
            if not rest:
                return False
            value = rest.pop(0)
        found[letter] = value
        return True

    def _letters(self, word: Value, rest: list[Value], found: dict[str, Value]) -> bool:
        text = text_of(word)
        for at, letter in enumerate(text[1:], 2):
            if letter in self.values and at == len(text):
                if not rest:
                    return False
                found[letter] = rest.pop(0)
            elif letter in self.values + self.attached:
                found[letter] = from_character(word, at)
                return True
            elif letter in self.flags or self.lenient:
                found[letter] = EMPTY
            else:
                return False
        return True
