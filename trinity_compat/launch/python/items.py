"""What a name or an expression of a launcher holds, as far as its text says.

Nothing is imported or called: an item is made of literals, of variables of the environment, and of pieces
that stay open under their own text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash import limits
from trinity_compat.launch.bash.traced_text import TextPiece, Value, lines_of, open_source, text_of
from trinity_compat.launch.model import EnvRef, UnknownPiece

Scalar = str | int | float | bool | None
_SHOWN = 200  # characters of an open expression


class NotKnown(Exception):
    """A value depends on something that the text doesn't say."""


@dataclass(frozen=True, slots=True)
class Known:
    """A literal, or what was computed from literals."""

    value: Scalar
    where: Where


@dataclass(frozen=True, slots=True)
class Text:
    """A text with pieces of the environment or open ones; ``kind`` is what Python would make of it."""

    value: Value
    kind: type[str] | type[int] | type[float] = str


@dataclass(slots=True)
class Items:
    """A list, a tuple or a set."""

    members: list[Item]


@dataclass(slots=True)
class DictValue:
    """A dictionary whose keys are known. ``partial``: a copy of the environment, which has others too."""

    entries: dict[Scalar, Item]
    partial: bool = False


@dataclass(slots=True)
class Namespace:
    """Names with a dot before them: a class (which ``made_of`` has), an instance, what argparse returns."""

    names: dict[str, Item]
    made_of: ast.ClassDef | None = None


@dataclass(slots=True)
class Code:
    """A function or a class, with the names around it; ``bound`` is a method's own object."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
    around: dict[str, Item] = field(repr=False)
    bound: Namespace | None = None


@dataclass(slots=True)
class Parser:
    """An ``argparse.ArgumentParser``: its ``add_argument`` calls, as (flags, keywords)."""

    options: list[tuple[list[str], dict[str, Item]]] = field(default_factory=list)


Item = Known | Text | Items | DictValue | Namespace | Code | Parser


def opened(node: ast.AST, where: Where) -> Text:
    """An expression that stays open under its own text."""
    return Text((TextPiece("", where, UnknownPiece(ast.unparse(node)[:_SHOWN], where)),))


def of_environment(name: str, default: str | None, where: Where) -> Text:
    """A variable that the surroundings may set. Without a default Python stops where it is missing."""
    return Text((TextPiece(default or "", where, EnvRef(name, default, required=default is None)),))


def is_open(item: Item) -> bool:
    """Whether anything in an item isn't known."""
    try:
        plain(item)
    except NotKnown:
        return True
    return False


def plain(item: Item) -> object:
    """The item as Python has it. Raises NotKnown, also where lists in lists are too many."""
    return _plain(item, iter(range(5 * limits.FIELDS)))


def _plain(item: Item, left: Iterator[int]) -> object:
    if next(left, None) is None:
        raise NotKnown
    if isinstance(item, Known):
        return item.value
    if isinstance(item, Items):
        return [_plain(member, left) for member in item.members]
    if isinstance(item, DictValue):
        return {key: _plain(value, left) for key, value in item.entries.items()}
    if isinstance(item, Text) and not any(map(open_source, item.value)):
        try:
            return item.kind(text_of(item.value))
        except ValueError:
            raise NotKnown from None
    raise NotKnown


def made(value: object, where: Where) -> Item:
    """The item of a Python value. Raises NotKnown for what no item stands for."""
    if value is None or isinstance(value, str | int | float):
        return Known(value, where)
    if isinstance(value, list | tuple | set | frozenset | range):
        return Items([made(member, where) for member in value])
    if isinstance(value, dict):
        return DictValue({key: made(member, where) for key, member in value.items()})
    raise NotKnown


def text(item: Item, node: ast.AST, where: Where) -> Value:
    """What ``str`` makes of an item; open under the text of ``node`` where that isn't known."""
    if isinstance(item, Text):
        return item.value
    if isinstance(item, Known):
        place = item.where if item.where.line else where
        return lines_of(item.value if isinstance(item.value, str) else str(item.value), place)
    try:
        return lines_of(str(plain(item)), where)
    except NotKnown:
        return opened(node, where).value


def place(item: Item, otherwise: Where) -> Where:
    """The line that an item was written at."""
    if isinstance(item, Known):
        return item.where
    if isinstance(item, Text) and item.value:
        return item.value[0].where
    if isinstance(item, Items) and item.members:
        return place(item.members[0], otherwise)
    return otherwise


def copied(names: Mapping[str, Item]) -> dict[str, Item]:
    """Names for a branch that may not be taken: what it changes in their lists stays there."""
    memo: dict[int, Item] = {}
    return {name: _copy(item, memo) for name, item in names.items()}


def _copy(item: Item, memo: dict[int, Item]) -> Item:
    if isinstance(item, Items | DictValue | Namespace) and id(item) not in memo:
        new: Items | DictValue | Namespace
        if isinstance(item, Items):
            new = Items([])
            memo[id(item)] = new
            new.members += [_copy(member, memo) for member in item.members]
        elif isinstance(item, DictValue):
            new = DictValue({}, item.partial)
            memo[id(item)] = new
            new.entries |= {key: _copy(value, memo) for key, value in item.entries.items()}
        else:
            new = Namespace({}, item.made_of)
            memo[id(item)] = new
            new.names |= {name: _copy(value, memo) for name, value in item.names.items()}
    return memo.get(id(item), item)
