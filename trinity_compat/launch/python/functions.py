"""Functions by name in a launcher: Python's own, those of os.path, shlex and argparse, that make words."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable

from trinity_compat.launch.bash.limits import FIELDS
from trinity_compat.launch.bash.traced_text import EMPTY, Value, literal, text_of
from trinity_compat.launch.python import methods
from trinity_compat.launch.python.evaluator import Evaluator, members
from trinity_compat.launch.python.items import (
    DictValue,
    Item,
    Items,
    Known,
    Namespace,
    NotKnown,
    Parser,
    Text,
    copied,
    is_open,
    made,
    of_environment,
    plain,
    text,
)

_PATHS = {"pathlib.Path", "Path", "pathlib.PurePosixPath", "os.fspath", "os.path.abspath", "os.path.realpath"}


def given_to(ev: Evaluator, node: ast.Call) -> tuple[list[Item], dict[str, Item]]:
    """The arguments, in their order: calls in them count as well."""
    given: list[Item] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            given += ev.many(argument.value)
        else:
            given.append(ev.item(argument))
    named: dict[str, Item] = {}
    for word in node.keywords:
        if word.arg:
            named[word.arg] = ev.item(word.value)
        else:
            named |= {str(key): item for key, item in ev.table(word.value).entries.items()}
    return given, named


def _text(ev: Evaluator, node: ast.Call) -> Item:
    return Text(ev.text(node.args[0])) if node.args else Known("", ev.where(node))


def _number(kind: type[int] | type[float]) -> Callable[[Evaluator, ast.Call], Item]:
    def read(ev: Evaluator, node: ast.Call) -> Item:
        item = first(ev, node)
        if isinstance(item, Text) and len(item.value) == 1:
            return Text(item.value, kind)
        return _computed(kind, ev, node, [item])

    return read


def _computed(function: Callable[..., object], ev: Evaluator, node: ast.Call, given: list[Item]) -> Item:
    try:
        return made(function(*map(plain, given)), ev.where(node))
    except (TypeError, ValueError, ArithmeticError, LookupError):
        raise NotKnown from None


def _of_values(function: Callable[..., object]) -> Callable[[Evaluator, ast.Call], Item]:
    """A function of Python's on values that are known."""

    def read(ev: Evaluator, node: ast.Call) -> Item:
        given, named = given_to(ev, node)
        if named:
            raise NotKnown
        return _computed(function, ev, node, given)

    return read


def first(ev: Evaluator, node: ast.Call) -> Item:
    given, _ = given_to(ev, node)
    if not given:
        raise NotKnown
    return given[0]


def _list(ev: Evaluator, node: ast.Call) -> Item:
    return Items(members(first(ev, node), ev.where(node)) if node.args else [])


def _sorted(ev: Evaluator, node: ast.Call) -> Item:
    """In the order of what is known of each member, so that ``sorted(config.items())`` is."""
    given = members(first(ev, node), ev.where(node))
    if len(node.args) != 1 or node.keywords:
        raise NotKnown

    firsts = [plain(item.members[0] if isinstance(item, Items) and item.members else item) for item in given]
    if all(isinstance(first, str) for first in firsts):
        return Items([given[i] for i in sorted(range(len(given)), key=lambda i: str(firsts[i]))])
    return _computed(sorted, ev, node, [Items(given)])


def _dict(ev: Evaluator, node: ast.Call) -> Item:
    new = DictValue({})
    if node.args:
        given = ev.table(node.args[0])
        new = DictValue(dict(given.entries), given.partial)
    for word in node.keywords:
        if word.arg:
            new.entries[word.arg] = ev.item(word.value)
        else:
            new.entries |= ev.table(word.value).entries
    return new


def _namespace(ev: Evaluator, node: ast.Call) -> Item:
    return Namespace(given_to(ev, node)[1])


def _length(ev: Evaluator, node: ast.Call) -> Item:
    return Known(len(members(first(ev, node), ev.where(node))), ev.where(node))


def _enumerate(ev: Evaluator, node: ast.Call) -> Item:
    where, given = ev.where(node), given_to(ev, node)[0]
    start = plain(given[1]) if len(given) > 1 else 0
    if not given or not isinstance(start, int):
        raise NotKnown
    pairs = enumerate(members(given[0], where), start)
    return Items([Items([Known(i, where), item]) for i, item in pairs])


def _zip(ev: Evaluator, node: ast.Call) -> Item:
    lists = [members(item, ev.where(node)) for item in given_to(ev, node)[0]]
    return Items([Items(list(row)) for row in zip(*lists, strict=False)])


def _range(ev: Evaluator, node: ast.Call) -> Item:
    limits = [plain(item) for item in given_to(ev, node)[0]]
    whole = [limit for limit in limits if isinstance(limit, int)]
    if not 0 < len(whole) == len(limits) <= 3 or whole[2:] == [0]:
        raise NotKnown
    if len(range(*whole)[: FIELDS + 1]) > FIELDS:
        raise NotKnown
    return made(range(*whole), ev.where(node))


_TYPES: dict[str, type] = {
    "str": str, "bool": bool, "int": int, "float": float, "list": list, "tuple": list, "dict": dict,
}  # fmt: skip


def _is_instance(ev: Evaluator, node: ast.Call) -> Item:
    if len(node.args) != 2:
        raise NotKnown
    item, kinds = ev.item(node.args[0]), node.args[1]
    names = [ev.dotted(kind) for kind in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])]
    if not all(name in _TYPES for name in names):
        raise NotKnown
    shape = _shape(item)
    return Known(any(issubclass(shape, _TYPES[name]) for name in names), ev.where(node))


def _shape(item: Item) -> type:
    """What Python's type of an item is. Raises NotKnown."""
    if isinstance(item, Known):
        return type(item.value)
    if isinstance(item, Items | DictValue):
        return list if isinstance(item, Items) else dict
    if isinstance(item, Text) and not is_open(item):
        return item.kind
    raise NotKnown


def _environment_variable(ev: Evaluator, node: ast.Call) -> Item:
    if not node.args:
        raise NotKnown
    return ev.variable(node.args[0], node.args[1] if len(node.args) > 1 else None, node)


def _copy_of_environment(ev: Evaluator, node: ast.Call) -> Item:
    return DictValue({}, partial=True)


def _set_environment(ev: Evaluator, node: ast.Call) -> Item:
    given, named = given_to(ev, node)
    entries = given[0].entries if given and isinstance(given[0], DictValue) else {}
    for name, item in [*entries.items(), *named.items()]:
        ev.file.environ[str(name)] = text(item, node, ev.where(node))
    raise NotKnown


def _set_default(ev: Evaluator, node: ast.Call) -> Item:
    given, _ = given_to(ev, node)
    if len(given) == 2:
        name = str(plain(given[0]))
        if name not in ev.file.env:
            ev.file.environ.setdefault(name, text(given[1], node, ev.where(node)))
    raise NotKnown


def _path(ev: Evaluator, node: ast.Call) -> Item:
    return Text(_joined_path(ev, node))


def _joined_path(ev: Evaluator, node: ast.Call) -> Value:
    out: Value = EMPTY
    for item in given_to(ev, node)[0]:
        piece = text(item, node, ev.where(node))
        absolute = text_of(piece).startswith("/")
        between = literal("/", ev.where(node)) if out and not text_of(out).endswith("/") else EMPTY
        out = piece if absolute or not out else (*out, *between, *piece)
    return out


def _home(ev: Evaluator, node: ast.Call) -> Item:
    value = _joined_path(ev, node)
    if text_of(value)[:2] not in ("~", "~/") or value[0].source is not None:
        return Text(value)
    home = of_environment("HOME", None, ev.where(node)).value
    return Text((*home, *literal(value[0].text[1:], value[0].where), *value[1:]))


def _split(ev: Evaluator, node: ast.Call) -> Item:
    """``shlex.split``: between the words of a text with open pieces, these stay where they are."""
    value = text(first(ev, node), node, ev.where(node))
    return Items([Text(word) for word in methods.shell_words(value)])


def _shell_joined(ev: Evaluator, node: ast.Call) -> Item:
    where, out = ev.where(node), EMPTY
    for i, item in enumerate(members(first(ev, node), where)):
        word = text(item, node, where)
        known = all(bit.source is None for bit in word)
        out = (
            *out,
            *literal(" " * bool(i), where),
            *(literal(shlex.quote(text_of(word)), where) if known else word),
        )
    return Text(out)


def _quoted(ev: Evaluator, node: ast.Call) -> Item:
    item = first(ev, node)
    value = text(item, node, ev.where(node))
    return (
        Text(value)
        if any(bit.source for bit in value)
        else Known(shlex.quote(text_of(value)), value[0].where)
    )


def _parser(ev: Evaluator, node: ast.Call) -> Item:
    return Parser()


def _change_folder(ev: Evaluator, node: ast.Call) -> Item:
    ev.file.cwd = str(plain(first(ev, node)))
    raise NotKnown


# Functions that are called by these names.
OF_NAMES: dict[str, Callable[[Evaluator, ast.Call], Item]] = {
    "str": _text, "int": _number(int), "float": _number(float), "bool": _of_values(bool),
    "repr": _of_values(repr), "min": _of_values(min), "max": _of_values(max), "sum": _of_values(sum),
    "round": _of_values(round), "abs": _of_values(abs), "any": _of_values(any), "all": _of_values(all),
    "list": _list, "tuple": _list, "set": _list, "sorted": _sorted, "dict": _dict, "len": _length,
    "enumerate": _enumerate, "zip": _zip, "range": _range, "isinstance": _is_instance,
    "os.environ.get": _environment_variable, "os.getenv": _environment_variable,
    "os.environ.copy": _copy_of_environment, "os.environ.update": _set_environment,
    "os.environ.setdefault": _set_default, "os.chdir": _change_folder,
    "os.path.join": _path, **dict.fromkeys(_PATHS, _path), "os.path.expanduser": _home,
    "os.path.expandvars": _text, "shlex.split": _split, "shlex.join": _shell_joined, "shlex.quote": _quoted,
    "subprocess.list2cmdline": _shell_joined,
    "argparse.ArgumentParser": _parser, "ArgumentParser": _parser,
    "argparse.Namespace": _namespace, "types.SimpleNamespace": _namespace, "SimpleNamespace": _namespace,
    "copy.deepcopy": lambda ev, node: copied({"": first(ev, node)})[""],
    "copy.copy": lambda ev, node: copied({"": first(ev, node)})[""],
}  # fmt: skip
