"""The options of a command line, as getopt reads them: of programs, builtins and launchers alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity_compat.launch.bash.traced_text import EMPTY, Value, from_character, text_of


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """The words of a command, parsed: options by letter, each with its values (EMPTY for a flag)."""

    options: dict[str, list[Value]]
    operands: list[Value]

    def has(self, letters: str) -> bool:
        """Return whether one of the options is there."""
        return not self.options.keys().isdisjoint(letters)

    def value(self, letter: str) -> Value:
        """The value of an option, the last one where it is given several times."""
        return self.options.get(letter, [EMPTY])[-1]

    def text(self, letter: str) -> str:
        """The value of an option as far as it is known; empty where it isn't given."""
        return text_of(self.value(letter))

    def texts(self) -> list[str]:
        """The operands as far as they are known."""
        return [text_of(operand) for operand in self.operands]


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """The options that a command knows.

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

    def read(self, words: Sequence[Value]) -> ParsedOptions | None:
        """The options and operands of ``words``; None where one isn't known, or lacks its value."""
        given = ParsedOptions({}, [])
        rest = list(words)
        while rest:
            word = rest.pop(0)
            text = text_of(word)
            if text == "--":
                break
            if not text.startswith("-") or text == "-":
                given.operands.append(word)
                if self.leading:
                    break
            elif not (self._long if text.startswith("--") else self._letters)(word, rest, given):
                return None
        given.operands.extend(rest)
        return given

    def _long(self, word: Value, rest: list[Value], given: ParsedOptions) -> bool:
        name, equals, _ = text_of(word).partition("=")
        letter = self.long.get(name)
        if letter is None:
            return self.lenient
        if letter in self.values and not equals:
            return self._next(letter, rest, given)
        value = from_character(word, len(name) + 1) if equals else EMPTY
        given.options.setdefault(letter, []).append(value)
        return True

    def _letters(self, word: Value, rest: list[Value], given: ParsedOptions) -> bool:
        text = text_of(word)
        for behind, letter in enumerate(text[1:], 2):
            if letter in self.values and behind == len(text):
                return self._next(letter, rest, given)
            if letter in self.values + self.attached:
                given.options.setdefault(letter, []).append(from_character(word, behind))
                return True
            if letter not in self.flags and not self.lenient:
                return False
            given.options.setdefault(letter, []).append(EMPTY)
        return True

    @staticmethod
    def _next(letter: str, rest: list[Value], given: ParsedOptions) -> bool:
        """An option whose value is the next word."""
        if not rest:
            return False
        given.options.setdefault(letter, []).append(rest.pop(0))
        return True
