"""Values of a Python launcher, computed without running it: literals, environment variables, open pieces."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from trinity_compat.common.errors import Where
from trinity_compat.common.limits import FIELDS, VALUE, Budget, BudgetExceeded
from trinity_compat.launch.bash.traced_text import TextPiece, Value, lines_of, open_source, text_of
from trinity_compat.launch.model import EnvRef, UnknownPiece

Scalar = str | int | float | bool | None
_SHOWN = 200  # characters of an open expression
_BITS = 4096  # of an integer; str() refuses larger ones
_WIDE = re.compile(r"\d{4}|\*")  # the width of a format that could make a long text


class NotKnown(Exception):
    """A value depends on something outside what the evaluator computes."""


@dataclass(frozen=True, slots=True)
class Known:
    """A or a value computed from literals."""

    value: Scalar
    where: Where = field(compare=False)

    def __deepcopy__(self, memo: object) -> Known:
        return self


@dataclass(frozen=True, slots=True)
class Text:
    """A text with pieces from the environment, or open pieces."""

    value: Value

    def __deepcopy__(self, memo: object) -> Text:
        return self


@dataclass(slots=True)
class Items:
    """A list or a tuple."""

    members: list[Item]


@dataclass(slots=True)
class Table:
    """A dictionary, or the result of ``parse_args``.

    ``environment``: keys that it lacks are variables of the environment.
    """

    entries: dict[Scalar, Item]
    environment: bool = False


@dataclass(slots=True)
class Function:
    """A function of the launcher, with the names around it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    around: dict[str, Item] = field(repr=False, compare=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        return Function(self.node, copy.deepcopy(self.around, memo))


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A call of a method, with the values of its arguments."""

    node: ast.Call
    given: Sequence[Item]
    named: Mapping[str, Item]
    where: Where


@dataclass(slots=True)
class Parser:
    """An ``argparse.ArgumentParser``: the ``add_argument`` calls on it."""

    options: list[MethodCall] = field(default_factory=list)

    def __deepcopy__(self, memo: object) -> Parser:
        return Parser(list(self.options))


Item = Known | Text | Items | Table | Function | Parser


def open_text(expression: ast.AST | str, where: Where) -> Text:
    """Return a text that stays open under its expression."""
    return Text((TextPiece("", where, UnknownPiece(shown(expression)[:_SHOWN], where)),))


def shown(expression: ast.AST | str) -> str:
    """Return an expression as it may be written; "…" for a number that Python refuses to write."""
    try:
        return expression if isinstance(expression, str) else ast.unparse(expression)
    except ValueError:
        return "…"


def environment_text(name: str, default: str | None, where: Where) -> Text:
    """Return the text of an environment variable; Python stops where one without a default is not set."""
    return Text((TextPiece(default or "", where, EnvRef(name, default, required=default is None)),))


def plain(item: Item) -> object:
    """Return the Python value of an item. Raises NotKnown, also where lists in lists are too many."""
    try:
        return _plain(item, Budget(seconds=inf, steps=5 * FIELDS, text=VALUE))
    except BudgetExceeded:
        raise NotKnown from None


def _plain(item: Item, budget: Budget) -> object:
    budget.step()
    if isinstance(item, Known):
        budget.make(len(item.value) if isinstance(item.value, str) else 0)
        return item.value
    if isinstance(item, Items):
        return [_plain(member, budget) for member in item.members]
    if isinstance(item, Table) and not item.environment:
        budget.make(sum(len(key) for key in item.entries if isinstance(key, str)))
        return {key: _plain(value, budget) for key, value in item.entries.items()}
    if isinstance(item, Text) and not any(map(open_source, item.value)):
        found = text_of(item.value)
        budget.make(len(found))
        return found
    raise NotKnown


def are_equal(one: Item | None, other: Item | None) -> bool:
    """Compare two items; lists in lists that are too many count as different."""
    return _are_equal(one, other, iter(range(5 * FIELDS)))


def _are_equal(one: Item | None, other: Item | None, budget: Iterator[int]) -> bool:
    if next(budget, None) is None:
        return False
    if isinstance(one, Items) and isinstance(other, Items):
        pairs = list(zip(one.members, other.members, strict=False))
        return len(one.members) == len(other.members) and all(_are_equal(a, b, budget) for a, b in pairs)
    if isinstance(one, Table) and isinstance(other, Table):
        return one.entries.keys() == other.entries.keys() and all(
            _are_equal(value, other.entries[key], budget) for key, value in one.entries.items()
        )
    return one == other


def item_of(value: object, where: Where) -> Item:
    """Return the item of a Python value. Raises NotKnown for other types."""
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise NotKnown
    if value is None or isinstance(value, str | int | float):
        return Known(value, where)
    if isinstance(value, list | tuple):
        return Items([item_of(member, where) for member in value])
    raise NotKnown


def text(item: Item, node: ast.AST, where: Where) -> Value:
    """Return ``str(item)``; open under the text of ``node`` where it is not known."""
    if isinstance(item, Text):
        return item.value
    try:
        found = str(plain(item))
    except NotKnown:
        return open_text(node, where).value
    return lines_of(found, item.where if isinstance(item, Known) and item.where.line else where)


def joined(between: Value, parts: Sequence[Value]) -> Value:
    """Return ``between.join(parts)``."""
    return tuple(bit for i, part in enumerate(parts) for bit in (*(between if i else ()), *part))


def formatted(value: object, spec: str, conversion: int = -1) -> str:
    """Return ``f"{value!r:spec}"``. Raises NotKnown."""
    if _WIDE.search(spec):
        raise NotKnown
    converted = repr(value) if conversion in (ord("r"), ord("a")) else value
    return str(guarded(format, str(converted) if conversion == ord("s") else converted, spec))


def guarded(function: Callable[..., object], *values: object) -> object:
    """Call a function of Python's on known values. Raises NotKnown where it fails, or makes too much."""
    try:
        result = function(*values)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        raise NotKnown from None
    if isinstance(result, str | list) and len(result) > VALUE:
        raise NotKnown
    if isinstance(result, int) and result.bit_length() > _BITS:
        raise NotKnown
    return result


def replaced(value: str, old: object, new: object, *count: object) -> str:
    """Return ``value.replace(old, new)``. Raises NotKnown; BudgetExceeded before it makes too much."""
    if not isinstance(old, str) or not isinstance(new, str):
        raise NotKnown
    if len(value) + value.count(old) * (len(new) - len(old)) > VALUE:
        raise BudgetExceeded("too much text")
    return str(guarded(value.replace, old, new, *count))
