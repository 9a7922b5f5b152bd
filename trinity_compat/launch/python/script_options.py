"""``argparse`` in a launcher: its options with the script's own arguments, else with their defaults."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any, NoReturn

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.bash.traced_text import text_of
from trinity_compat.launch.python.evaluator import Evaluator
from trinity_compat.launch.python.values import (
    Item,
    Items,
    Known,
    NotKnown,
    Parser,
    Scalar,
    Table,
    item_of,
    open_text,
    plain,
)

_ACTIONS = ("store", "store_true", "store_false", "argparse.BooleanOptionalAction")
_TYPES: dict[str, type] = {"int": int, "float": float}


class _Arguments(argparse.ArgumentParser):
    """A parser that refuses arguments with the line of ``parse_args``."""

    where: Where

    def error(self, message: str) -> NoReturn:
        raise UserError(
            f"the arguments after -- do not fit the launcher's parser: {message}", where=self.where
        )


def call(ev: Evaluator, node: ast.Call, parser: Parser, name: str) -> Item:
    """Return the result of a method of a parser. Raises NotKnown."""
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return parser
    if name == "add_argument":
        parser.options.append(node)
    if name not in ("parse_args", "parse_known_args"):
        raise NotKnown
    words = ev.plain(node.args[0]) if node.args else list(ev.file.args)
    if not isinstance(words, list):
        raise NotKnown
    options, unknown = _parsed(ev, node, parser, [str(word) for word in words])
    if name == "parse_known_args":
        return Items([options, item_of(unknown, ev.where(node))])
    if unknown:
        raise UserError(
            f"the launcher has no option {' '.join(unknown)}: its parser refuses it", where=ev.where(node)
        )
    return options


def _parsed(ev: Evaluator, node: ast.Call, parser: Parser, words: Sequence[str]) -> tuple[Table, list[str]]:
    """Return (the values of the options, the words that no option takes)."""
    arguments = _Arguments(add_help=False, argument_default=argparse.SUPPRESS)
    arguments.where = ev.where(node)
    defaults: dict[Scalar, Item] = {}
    flags: dict[str, str] = {}
    for option in parser.options:
        keywords = {word.arg: word.value for word in option.keywords if word.arg}
        try:
            action = _add(arguments, ev, option, keywords)
        except (argparse.ArgumentError, TypeError, ValueError, NotKnown):
            continue  # its name stays open
        defaults[action.dest] = _default(ev, option, keywords, action)
        if action.option_strings and "default" in keywords:
            flags[action.dest] = action.option_strings[0]
    found, unknown = arguments.parse_known_args(words)
    ev.file.defaults += [flag for name, flag in flags.items() if name not in found]
    defaults |= {name: item_of(value, ev.where(node)) for name, value in vars(found).items()}
    return Table(defaults), unknown


def _add(
    arguments: argparse.ArgumentParser, ev: Evaluator, option: ast.Call, keywords: dict[str, ast.expr]
) -> argparse.Action:
    given: dict[str, Any] = {}
    if "action" in keywords:
        action = keywords["action"]
        name = str(action.value) if isinstance(action, ast.Constant) else ast.unparse(action)
        if name not in _ACTIONS:
            raise NotKnown
        given["action"] = argparse.BooleanOptionalAction if name == _ACTIONS[-1] else name
    if "type" in keywords and ast.unparse(keywords["type"]) in _TYPES:
        given["type"] = _TYPES[ast.unparse(keywords["type"])]
    for name in keywords.keys() & {"nargs", "dest"}:
        rest = ast.unparse(keywords[name]) == "argparse.REMAINDER"
        given[name] = argparse.REMAINDER if rest else ev.plain(keywords[name])
    names = [text_of(ev.text(flag)) for flag in option.args]
    if names and not names[0].startswith("-"):
        given.setdefault("nargs", "?")  # its absence leaves it open
    return arguments.add_argument(*names, **given)


def _default(ev: Evaluator, option: ast.Call, keywords: dict[str, ast.expr], action: argparse.Action) -> Item:
    """Return the value of an option that is not given; a required one is open."""
    where = ev.where(option)
    if "default" in keywords:
        item = ev.item(keywords["default"])
        kind = _TYPES.get(ast.unparse(keywords["type"])) if "type" in keywords else None
        if kind and isinstance(item, Known) and isinstance(item.value, str):
            return Known(kind(item.value), where)  # argparse converts a default that is a text
        return item
    if action.nargs == 0 and action.const is not None:
        return Known(not action.const, where)
    if action.nargs in ("*", argparse.REMAINDER) and not action.option_strings:
        return Items([])
    positional = not action.option_strings and "nargs" not in keywords
    if positional or ("required" in keywords and plain(ev.item(keywords["required"]))):
        return open_text(f"args.{action.dest}", where)
    return Known(None, where)
