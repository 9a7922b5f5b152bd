"""``argparse`` in a launcher: its options with the script's own arguments, else with their defaults."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import Any, NoReturn

from trinity_compat.common.errors import UserError, Where
from trinity_compat.launch.bash.traced_text import text_of
from trinity_compat.launch.python.values import (
    Item,
    Items,
    Known,
    MethodCall,
    NotKnown,
    Parser,
    Scalar,
    Table,
    item_of,
    open_text,
    plain,
    shown,
    text,
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


def call(parser: Parser, name: str, call: MethodCall, args: Sequence[str], defaults: list[str]) -> Item:
    """Return the result of a method of a parser.

    ``args``: the words after the script's name; ``defaults`` collects the options that take their default.
    Raises NotKnown.
    """
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return parser
    if name == "add_argument":
        parser.options.append(call)
    if name not in ("parse_args", "parse_known_args"):
        raise NotKnown
    words = plain(call.given[0]) if call.given else list(args)
    if not isinstance(words, list):
        raise NotKnown
    arguments = _Arguments(add_help=False, argument_default=argparse.SUPPRESS)
    arguments.where = call.where
    values: dict[Scalar, Item] = {}
    flags: dict[str, str] = {}
    for option in parser.options:
        try:
            action = _add(arguments, option)
        except (argparse.ArgumentError, TypeError, ValueError, LookupError, AttributeError, NotKnown):
            continue  # its name stays open
        values[action.dest] = _default(option, action)
        if action.option_strings and "default" in option.named:
            flags[action.dest] = action.option_strings[0]
    found, unknown = arguments.parse_known_args([str(word) for word in words])
    defaults += [flag for name, flag in flags.items() if name not in found]
    values |= {name: item_of(value, call.where) for name, value in vars(found).items()}
    if name == "parse_known_args":
        return Items([Table(values), item_of(unknown, call.where)])
    if unknown:
        raise UserError(
            f"the launcher has no option {' '.join(unknown)}: its parser refuses it", where=call.where
        )
    return Table(values)


def _add(arguments: argparse.ArgumentParser, option: MethodCall) -> argparse.Action:
    nodes = {word.arg: word.value for word in option.node.keywords if word.arg}
    given: dict[str, Any] = {}
    if "action" in nodes:
        action = nodes["action"]
        name = str(action.value) if isinstance(action, ast.Constant) else shown(action)
        if name not in _ACTIONS:
            raise NotKnown
        given["action"] = argparse.BooleanOptionalAction if name == _ACTIONS[-1] else name
    if "type" in nodes and shown(nodes["type"]) in _TYPES:
        given["type"] = _TYPES[shown(nodes["type"])]
    for name in nodes.keys() & {"nargs", "dest"}:
        rest = shown(nodes[name]) == "argparse.REMAINDER"
        given[name] = argparse.REMAINDER if rest else plain(option.named[name])
    names = [
        text_of(text(flag, node, option.where))
        for flag, node in zip(option.given, option.node.args, strict=False)
    ]
    if names and not names[0].startswith("-"):
        given.setdefault("nargs", "?")  # its absence leaves it open
    return arguments.add_argument(*names, **given)


def _default(option: MethodCall, action: argparse.Action) -> Item:
    """Return the value of an option that is not given; a required one is open."""
    named, where = option.named, option.where
    if "default" in named:
        item = named["default"]
        if isinstance(item, Known) and isinstance(item.value, str) and action.type in (int, float):
            return Known(action.type(item.value), where)  # argparse converts a default that is a text
        return item
    if action.nargs == 0 and action.const is not None:
        return Known(not action.const, where)
    if action.nargs in ("*", argparse.REMAINDER) and not action.option_strings:
        return Items([])
    positional = not action.option_strings and "nargs" not in named
    if positional or ("required" in named and plain(named["required"])):
        return open_text(f"args.{action.dest}", where)
    return Known(None, where)
