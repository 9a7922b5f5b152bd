"""Methods of lists, dictionaries, texts and parsers in a launcher."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Mapping

from trinity_compat.launch.bash import limits
from trinity_compat.launch.bash.traced_text import TextPiece, Value, literal
from trinity_compat.launch.python import arguments, operators, templates
from trinity_compat.launch.python.evaluator import Evaluator, members
from trinity_compat.launch.python.items import (
    DictValue,
    Item,
    Items,
    Known,
    NotKnown,
    Parser,
    Text,
    made,
    opened,
    place,
    plain,
    text,
)

# What gives a text, a truth or a list of texts, and costs no more than the text that it is called of.
_OF_TEXTS = (
    "lower", "upper", "strip", "lstrip", "rstrip", "title", "capitalize", "startswith", "endswith", "split",
    "rsplit", "splitlines", "partition", "rpartition", "replace", "removeprefix", "removesuffix", "isdigit",
    "as_posix", "find", "count",
)  # fmt: skip


def call(ev: Evaluator, node: ast.Call, owner: Item, name: str) -> Item:
    """``owner.name(…)``. Raises NotKnown for a method that isn't known, or of something that isn't."""
    if isinstance(owner, Parser):
        return arguments.call(ev, node, owner, name)
    if isinstance(owner, Items) and name in _LISTS:
        return _LISTS[name](ev, node, owner)
    if isinstance(owner, DictValue) and name in _TABLES:
        return _TABLES[name](ev, node, owner)
    if isinstance(owner, Known | Text):
        return _of_text(ev, node, owner, name)
    for argument in node.args:  # a command may be started in them
        ev.item(argument)
    raise NotKnown


def _of_text(ev: Evaluator, node: ast.Call, owner: Known | Text, name: str) -> Item:
    if name == "join" and len(node.args) == 1:
        return _join(ev, node, owner)
    if name == "format":
        return _format(ev, node, owner)
    if name == "joinpath":
        parts = [text(owner, node, ev.where(node)), *map(ev.text, node.args)]
        slash = literal("/", ev.where(node))
        return Text(tuple(bit for i, part in enumerate(parts) for bit in (*(slash if i else ()), *part)))
    if name == "split" and not node.args and isinstance(owner, Text):
        return Items([Text(word) for word in shell_words(owner.value, quotes=False)])
    given = [ev.plain(argument) for argument in node.args]
    if name == "as_posix" or (name in ("resolve", "absolute", "expanduser") and isinstance(owner, Text)):
        return owner
    value = plain(owner)
    if name == "replace" and len(str(value)) * len(str(given[1:])) > limits.VALUE:
        raise NotKnown
    if name not in _OF_TEXTS or not isinstance(value, str) or node.keywords:
        raise NotKnown
    try:
        return made(getattr(value, name)(*given), owner.where if isinstance(owner, Known) else ev.where(node))
    except (TypeError, ValueError):
        raise NotKnown from None


def _join(ev: Evaluator, node: ast.Call, owner: Known | Text) -> Item:
    between = text(owner, node, ev.where(node))
    words = [text(item, node.args[0], ev.where(node)) for item in ev.many(node.args[0])]
    return Text(tuple(bit for i, word in enumerate(words) for bit in (*(between if i else ()), *word)))


def _format(ev: Evaluator, node: ast.Call, owner: Known | Text) -> Item:
    where = ev.where(node)
    given = {str(i): argument for i, argument in enumerate(node.args)}
    given |= {word.arg: word.value for word in node.keywords if word.arg}
    spread = [ev.table(word.value).entries for word in node.keywords if word.arg is None]
    tables = {str(key): item for entries in spread for key, item in entries.items()}

    def field(name: str, spec: str) -> Value:
        if name in tables:
            item = tables[name]
            shown: ast.expr = ast.Name(name)
        elif name in given:
            item, shown = ev.item(given[name]), given[name]
        else:
            raise NotKnown
        return literal(operators.formatted(plain(item), spec), where) if spec else text(item, shown, where)

    if isinstance(owner, Text):
        raise NotKnown
    return Text(templates.braces(str(owner.value), field, where))


def shell_words(value: Value, *, quotes: bool = True) -> list[Value]:
    """The words of a text, its open pieces kept: each is stood for by a mark that no text has."""
    marks = {chr(0xE000 + i): bit for i, bit in enumerate(value[:6000]) if bit.source is not None}
    held = {bit: mark for mark, bit in marks.items()}
    whole = "".join(held.get(bit, bit.text) for bit in value)
    try:
        words = shlex.split(whole) if quotes else whole.split()
    except ValueError:
        raise NotKnown from None
    place = value[0].where if value else None
    return [_unmarked(word, marks, value) for word in words] if place else []


def _unmarked(word: str, marks: Mapping[str, TextPiece], value: Value) -> Value:
    out: Value = ()
    start = 0
    for i, letter in enumerate(word):
        if letter in marks:
            out = (*out, *literal(word[start:i], value[0].where), marks[letter])
            start = i + 1
    return (*out, *literal(word[start:], value[0].where))


# Lists.


def _append(ev: Evaluator, node: ast.Call, owner: Items) -> Item:
    if len(node.args) == 1:
        owner.members.append(ev.item(node.args[0]))
    return Known(None, ev.where(node))


def _extend(ev: Evaluator, node: ast.Call, owner: Items) -> Item:
    if len(node.args) == 1:
        grow(ev, owner, node.args[0])
    return Known(None, ev.where(node))


def grow(ev: Evaluator, owner: Items, node: ast.expr) -> None:
    """``list += node``; one that isn't known is one piece."""
    item = ev.item(node)
    try:
        owner.members += members(item, ev.where(node))
    except NotKnown:
        owner.members.append(opened(node, ev.where(node)))
    ev.file.budget.fields(len(owner.members))


def _insert(ev: Evaluator, node: ast.Call, owner: Items) -> Item:
    at = ev.plain(node.args[0]) if len(node.args) == 2 else None
    if not isinstance(at, int):
        raise NotKnown
    owner.members.insert(at, ev.item(node.args[1]))
    return Known(None, ev.where(node))


def _copy_list(ev: Evaluator, node: ast.Call, owner: Items) -> Item:
    return Items(list(owner.members))


_LISTS: dict[str, Callable[[Evaluator, ast.Call, Items], Item]] = {
    "append": _append, "add": _append, "extend": _extend, "insert": _insert, "copy": _copy_list,
}  # fmt: skip

# Dictionaries.


def _items(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    _refuse_partial(owner)
    where = ev.where(node)
    return Items([Items([made(key, place(item, where)), item]) for key, item in owner.entries.items()])


def _keys(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    _refuse_partial(owner)
    return Items(members(owner, ev.where(node)))


def _values(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    _refuse_partial(owner)
    return Items(list(owner.entries.values()))


def _refuse_partial(owner: DictValue) -> None:
    if owner.partial:
        raise NotKnown


def _get(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    key = ev.key(node.args[0]) if node.args else None
    if key in owner.entries:
        return owner.entries[key]
    default = node.args[1] if len(node.args) > 1 else None
    if owner.partial:
        return ev.variable(node.args[0], default, node)
    return Known(None, ev.where(node)) if default is None else ev.item(default)


def _pop(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    item = _get(ev, node, owner)
    owner.entries.pop(ev.key(node.args[0]), None)
    return item


def _update(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    for argument in node.args:
        owner.entries |= ev.table(argument).entries
    for word in node.keywords:
        owner.entries |= {word.arg: ev.item(word.value)} if word.arg else ev.table(word.value).entries
    return Known(None, ev.where(node))


def _set_default(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    if len(node.args) != 2:
        raise NotKnown
    return owner.entries.setdefault(ev.key(node.args[0]), ev.item(node.args[1]))


def _copy_table(ev: Evaluator, node: ast.Call, owner: DictValue) -> Item:
    return DictValue(dict(owner.entries), owner.partial)


_TABLES: dict[str, Callable[[Evaluator, ast.Call, DictValue], Item]] = {
    "items": _items, "keys": _keys, "values": _values, "get": _get, "pop": _pop, "update": _update,
    "setdefault": _set_default, "copy": _copy_table,
}  # fmt: skip
