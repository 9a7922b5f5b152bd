"""``argparse`` in a launcher: what an option holds with the arguments that stand after ``--``, or without."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import text_of
from trinity_compat.launch.python.evaluator import Evaluator
from trinity_compat.launch.python.items import (
    Item,
    Items,
    Known,
    Namespace,
    NotKnown,
    Parser,
    Text,
    is_open,
    made,
    opened,
    plain,
    text,
)

_SWITCHES = {"store_true": True, "store_false": False}
_MANY = ("*", "+")
_REST = ("argparse.REMAINDER", "...")


def call(ev: Evaluator, node: ast.Call, parser: Parser, name: str) -> Item:
    """A method of a parser. Raises NotKnown."""
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return parser
    if name == "add_argument":
        _add(ev, node, parser)
    if name == "parse_args":
        return _parsed(ev, node, parser)[0]
    if name == "parse_known_args":
        return Items(list(_parsed(ev, node, parser)))
    raise NotKnown


def _add(ev: Evaluator, node: ast.Call, parser: Parser) -> None:
    flags = [text_of(ev.text(flag)) for flag in node.args]
    keywords = {word.arg: _keyword(ev, word) for word in node.keywords if word.arg}
    if flags:
        parser.options.append((flags, keywords))


def _keyword(ev: Evaluator, word: ast.keyword) -> Item:
    """``type=int`` is kept by its name."""
    if word.arg in ("type", "nargs", "action") and not isinstance(word.value, ast.Constant):
        return Known(ast.unparse(word.value), ev.where(word.value))
    return ev.item(word.value)


def _parsed(ev: Evaluator, node: ast.Call, parser: Parser) -> tuple[Namespace, Item]:
    """(what the options hold, what no option takes)."""
    where = ev.where(node)
    args = [text_of(text(item, node, where)) for item in ev.many(node.args[0])] if node.args else ev.file.args
    found = Namespace({})
    left = list(args)
    for flags, keywords in sorted(parser.options, key=lambda option: not option[0][0].startswith("-")):
        name = _name(flags, keywords)
        values = _taken(left, flags, keywords)
        if values is None:
            found.names[name] = _default(ev, node, name, keywords)
            if flags[0].startswith("-") and not is_open(found.names[name]) and keywords.get("default"):
                ev.file.defaults.append(flags[0])
        else:
            found.names[name] = _value(values, keywords, where)
    return found, made(left, where)


def _name(flags: Sequence[str], keywords: dict[str, Item]) -> str:
    if "dest" in keywords:
        return str(plain(keywords["dest"]))
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    return long.lstrip("-").replace("-", "_")


def _taken(left: list[str], flags: Sequence[str], keywords: dict[str, Item]) -> list[str] | None:
    """The words of the command line that an option takes, and takes away; None where it isn't there."""
    many = _said(keywords, "nargs") in (*_MANY, *_REST)
    if not flags[0].startswith("-"):
        return _positional(left, many=many)
    for i, word in enumerate(left):
        flag, equals, value = word.partition("=")
        if flag not in flags:
            continue
        if equals:
            del left[i]
            return [value]
        if _said(keywords, "action") in (*_SWITCHES, "argparse.BooleanOptionalAction"):
            del left[i]
            return []
        end = i + 2
        while many and end < len(left) and not left[end].startswith("-"):
            end += 1
        values = left[i + 1 : end]
        del left[i:end]
        return values
    return None


def _positional(left: list[str], *, many: bool) -> list[str] | None:
    free = [word for word in left if not word.startswith("-")]
    taken = free if many else free[:1]
    for word in taken:
        left.remove(word)
    return taken or None


def _said(keywords: dict[str, Item], name: str) -> str:
    item = keywords.get(name)
    return str(item.value) if isinstance(item, Known) else ""


def _value(values: list[str], keywords: dict[str, Item], where: Where) -> Item:
    action = _said(keywords, "action")
    if action in _SWITCHES:
        return Known(_SWITCHES[action], where)
    if action == "argparse.BooleanOptionalAction":
        return Known(True, where)
    typed = [_typed(value, _said(keywords, "type"), where) for value in values]
    if _said(keywords, "nargs") in (*_MANY, *_REST) or not typed:
        return Items(typed)
    return typed[0]


def _typed(value: str, kind: str, where: Where) -> Item:
    try:
        return Known(int(value) if kind == "int" else float(value) if kind == "float" else value, where)
    except ValueError:
        return Known(value, where)


def _default(ev: Evaluator, node: ast.Call, name: str, keywords: dict[str, Item]) -> Item:
    """What an option holds that isn't given; one that has to be is open."""
    action = _said(keywords, "action")
    if action in _SWITCHES:
        return keywords.get("default", Known(not _SWITCHES[action], ev.where(node)))
    if "default" in keywords:
        return _of_type(keywords["default"], _said(keywords, "type"))
    if _said(keywords, "nargs") in ("*", *_REST):
        return Items([])
    symbol = ast.Attribute(ast.Name("args"), name)
    if isinstance(keywords.get("required"), Known) or not keywords:
        return opened(symbol, ev.where(node))
    return Known(None, ev.where(node))


def _of_type(item: Item, kind: str) -> Item:
    """argparse converts a default that is a text."""
    if isinstance(item, Known) and isinstance(item.value, str):
        return _typed(item.value, kind, item.where)
    if isinstance(item, Text) and kind in ("int", "float"):
        return Text(item.value, int if kind == "int" else float)
    return item
