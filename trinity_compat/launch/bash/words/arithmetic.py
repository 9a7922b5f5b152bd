"""bash arithmetic over text: 64-bit, C operators, assignments, bases, names that hold expressions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from trinity_compat.common.limits import Budget, BudgetExceeded

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+#[\w@]+|0[xX][\da-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<op><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&|^?:,()\[\]]))"
)
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
LEVEL_OF = {op: level for level, ops in enumerate(LEVELS) for op in ops}
ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="}
NESTING = 50


class BadArithmetic(Exception):
    """bash prints an error and the command fails."""


@dataclass(frozen=True, slots=True)
class AssignmentTarget:
    """Something that can be assigned to: a name, or a name with an index (as text)."""

    name: str
    index: str | None = None


@dataclass(slots=True)
class VariableAccess:
    """Access of arithmetic to variables."""

    read: Callable[[AssignmentTarget], str]
    write: Callable[[AssignmentTarget, int], None]


def wrap(number: int) -> int:
    """A number as a signed 64-bit one."""
    number &= 0xFFFFFFFFFFFFFFFF
    return number - (1 << 64) if number >> 63 else number


def evaluate(text: str, names: VariableAccess, budget: Budget, depth: int = 0) -> int:
    """The value of an expression; an empty one is 0."""
    budget.step(1 + len(text) // 200)
    if depth > NESTING:
        raise BadArithmetic("expression recursion level exceeded")
    stripped = text.strip()
    if not stripped:
        return 0
    if stripped.isascii() and stripped.isdigit() and (stripped[0] != "0" or stripped == "0"):
        return wrap(int(stripped[:40]))
    parser = _Parser(_tokens(text), names, budget, depth)
    value = parser.comma()
    if parser.at < len(parser.tokens):
        raise BadArithmetic(f"syntax error in expression: {text.strip()}")
    return value


def _tokens(text: str) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    at = 0
    text = text.replace("\\\n", "").rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match or not match.lastgroup:
            raise BadArithmetic(f"syntax error in expression: {text}")
        token = match[match.lastgroup]
        at = match.end()
        if match.lastgroup == "name" and text[at : at + 1] == "[":
            index, at = _subscript(text, at)
            out.append(("element", f"{token}[{index}"))
            continue
        out.append((match.lastgroup, token))
        if len(out) > 20_000:
            raise BudgetExceeded("an arithmetic expression that is too long")
    return out


def _subscript(text: str, at: int) -> tuple[str, int]:
    depth = 0
    for index in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[index], 0)
        if depth == 0:
            return text[at + 1 : index], index + 1
    raise BadArithmetic("bad array subscript")


def number(text: str) -> int:
    """An integer constant in any of bash's notations."""
    if "#" in text:
        base_text, digits = text.split("#", 1)
        base = int(base_text[:4])
        if not 2 <= base <= 64:
            raise BadArithmetic("invalid arithmetic base")
        return _in_base(digits.lower() if base <= 36 else digits, base, text)
    if text[:2] in ("0x", "0X"):
        return wrap(int(text[2:][:40], 16))
    if text[0] == "0" and len(text) > 1:
        return _in_base(text, 8, text)
    return wrap(int(text[:40]))


def _in_base(digits: str, base: int, text: str) -> int:
    value = 0
    for digit in digits:
        place = DIGITS.find(digit)
        if not 0 <= place < base:
            raise BadArithmetic(f"{text}: value too great for base")
        value = wrap(value * base + place)
    return value


@dataclass(slots=True)
class _Parser:
    tokens: list[tuple[str, str]]
    names: VariableAccess
    budget: Budget
    depth: int
    at: int = 0
    silent: int = 0  # inside the branch of && || ?: that isn't taken
    nesting: int = field(default=0)

    def _peek(self) -> str:
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "op":
            return self.tokens[self.at][1]
        return ""

    def _take(self, op: str) -> bool:
        if self._peek() == op:
            self.at += 1
            return True
        return False

    def _need(self, op: str) -> None:
        if not self._take(op):
            raise BadArithmetic(f"syntax error: missing {op!r}")

    def comma(self) -> int:
        value = self.assignment()
        while self._take(","):
            value = self.assignment()
        return value

    def assignment(self) -> int:
        self.nesting += 1
        if self.nesting > NESTING:
            raise BadArithmetic("expression nested too deeply")
        try:
            start, place = self.at, self._place()
            op = self._peek()
            if place is not None and op in ASSIGN:
                self.at += 1
                before = 0 if op == "=" else self._value(place)  # read before the right side changes it
                right = self.assignment()
                value = right if op == "=" else self._apply(op[:-1], before, right)
                self._store(place, value)
                return value
            self.at = start
            return self.ternary()
        finally:
            self.nesting -= 1

    def _place(self) -> AssignmentTarget | None:
        if self.at >= len(self.tokens):
            return None
        kind, token = self.tokens[self.at]
        if kind not in ("name", "element"):
            return None
        self.at += 1
        name, _, index = token.partition("[")
        return AssignmentTarget(name, index if kind == "element" else None)

    def _store(self, place: AssignmentTarget, value: int) -> None:
        if not self.silent:
            self.names.write(place, value)

    def _value(self, place: AssignmentTarget) -> int:
        if self.silent:
            return 0
        return evaluate(self.names.read(place), self.names, self.budget, self.depth + 1)

    def ternary(self) -> int:
        condition = self.binary(0)
        if not self._take("?"):
            return condition
        left = self._branch(condition != 0, self.comma)
        self._need(":")
        right = self._branch(condition == 0, self.assignment)
        return left if condition else right

    def _branch(self, taken: bool, parse: Callable[[], int]) -> int:
        self.silent += not taken
        value = parse()
        self.silent -= not taken
        return value

    def binary(self, level: int) -> int:
        """Precedence climbing; && and || don't evaluate what they don't need."""
        left = self.power()
        while (op := self._peek()) in LEVEL_OF and LEVEL_OF[op] >= level:
            self.at += 1
            self.budget.step()
            above = LEVEL_OF[op] + 1
            if op in ("&&", "||"):
                skip = (left == 0) == (op == "&&")
                right = self._branch(not skip, lambda: self.binary(above))  # noqa: B023
                left = int(bool(left) and bool(right)) if op == "&&" else int(bool(left) or bool(right))
            else:
                left = self._apply(op, left, self.binary(above))
        return left

    def power(self) -> int:
        base = self.unary()
        if not self._take("**"):
            return base
        exponent = self.power()
        if exponent < 0:  # bash says so in a branch not taken too
            raise BadArithmetic("exponent less than 0")
        return wrap(pow(base, max(0, exponent), 1 << 64))

    def unary(self) -> int:
        op = self._peek()
        if op in ("++", "--"):
            self.at += 1
            place = self._place()
            if place is None:  # bash reads ++5 as +(+5)
                return self.unary()
            value = wrap(self._value(place) + (1 if op == "++" else -1))
            self._store(place, value)
            return value
        if op in ("-", "+", "!", "~"):
            self.at += 1
            self.nesting += 1
            if self.nesting > NESTING * 4:
                raise BadArithmetic("expression nested too deeply")
            value = self.unary()
            self.nesting -= 1
            return wrap({"-": -value, "+": value, "!": int(not value), "~": ~value}[op])
        return self._atom()

    def _atom(self) -> int:
        if self._take("("):
            value = self.comma()
            self._need(")")
            return value
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "number":
            self.at += 1
            return number(self.tokens[self.at - 1][1])
        place = self._place()
        if place is None:
            raise BadArithmetic("syntax error: operand expected")
        value = self._value(place)
        op = self._peek()
        if op in ("++", "--"):
            self.at += 1
            self._store(place, wrap(value + (1 if op == "++" else -1)))
        return value

    def _apply(self, op: str, left: int, right: int) -> int:
        if op in ("/", "%") and right == 0:
            if self.silent:
                return 0
            raise BadArithmetic("division by 0")
        if op in COMPARE:
            return int(COMPARE[op](left, right))
        return wrap(COMPUTE[op](left, right))


def _quotient(a: int, b: int) -> int:
    """Division as in C, towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _quotient,
    "%": lambda a, b: a - b * _quotient(a, b),
    "<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63),
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip
