"""Expressions of a Python launcher: the value of each, or an open piece under its own text.

Computed are literals, f-strings, ``+`` and ``join`` of texts and lists, paths, numbers, conditions of known
values, comprehensions over known lists, and calls of the launcher's own functions. All others are open.
"""

from __future__ import annotations

import ast
import operator
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common.errors import Where
from trinity_compat.common.limits import FIELDS, Budget
from trinity_compat.launch.bash.traced_text import Value, literal, text_of
from trinity_compat.launch.python import script_options
from trinity_compat.launch.python.values import (
    Function,
    Item,
    Items,
    Known,
    MethodCall,
    NotKnown,
    Parser,
    Scalar,
    Table,
    Text,
    environment_text,
    formatted,
    guarded,
    item_of,
    joined,
    open_text,
    plain,
    replaced,
    text,
)
from trinity_compat.launch.source_contents import SourceCommand

ENVIRON = "os.environ"
_SUBPROCESS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")}
_SHELL = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
EXIT = {"sys.exit", "exit", "quit", "os._exit"}
_TEXT_METHODS = ("lower", "upper", "strip", "split", "replace", "startswith", "endswith", "removesuffix")
_A_PIECE = 16  # characters that a piece of a text costs
_A_STEP = 20  # members or names that are copied in one step
_PATHS: dict[str, Callable[[str], str]] = {
    "parent": lambda path: posixpath.dirname(path) or ".",
    "name": posixpath.basename,
    "stem": lambda path: posixpath.splitext(posixpath.basename(path))[0],
}
_TYPES: dict[str, type] = {"str": str, "bool": bool, "int": int, "float": float, "list": list, "dict": dict}
_COMPARE: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip


class ProgramExit(Exception):
    """The program ends."""


@dataclass
class File:
    """The state of reading one file, or one notebook.

    ``args`` are the words after the script's name, ``env`` the known environment. ``defaults`` are the
    options of argparse that took their default, ``shared`` the names that a function declares global.
    ``condition`` is the undecided condition around the statement that is read.
    """

    name: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    invoke: Callable[[Evaluator, Function, list[Item], dict[str, Item]], Item] = field(kw_only=True)
    aliases: dict[str, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    commands: list[SourceCommand] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)
    defined: list[Function] = field(default_factory=list)
    entered: set[ast.AST] = field(default_factory=set)
    condition: str = ""
    stopped: str = ""  # why reading ended before the code did
    at: Where | None = None  # the statement that is read
    depth: int = 0
    cwd: str = ""
    budget: Budget = field(default_factory=Budget)


class Evaluator:
    """Evaluate expressions under the names of one function or module."""

    def __init__(self, file: File, names: dict[str, Item]) -> None:
        self.file = file
        self.names = names
        self.may_have_returned = False

    def where(self, node: ast.AST) -> Where:
        """Return the line of a node."""
        return Where(self.file.name, getattr(node, "lineno", 0))

    def text(self, node: ast.expr) -> Value:
        """Return ``str`` of an expression, with its open pieces."""
        return self.text_of_item(self.item(node), node)

    def text_of_item(self, item: Item, node: ast.expr, where: Where | None = None) -> Value:
        """Return ``str`` of an item, open under the text of ``node``, and pay for its pieces."""
        found = text(item, node, where or self.where(node))
        self.file.budget.make(_cost(found))
        return found

    def plain(self, node: ast.expr) -> object:
        """Return the Python value of an expression. Raises NotKnown."""
        return plain(self.item(node))

    def item(self, node: ast.expr) -> Item:
        """Return the value of an expression, open under its own text where it is not known."""
        self.file.budget.step()
        reader = _READERS.get(type(node))
        try:
            if reader is None:
                for child in ast.iter_child_nodes(node):  # a command may be started in it
                    if isinstance(child, ast.expr):
                        self.item(child)
                raise NotKnown
            item = reader(self, node)
        except NotKnown:
            return open_text(node, self.where(node))
        if isinstance(item, Text) and not isinstance(node, ast.Name):
            self.file.budget.make(_cost(item.value))
        elif isinstance(item, Items) and not isinstance(node, ast.Name):
            self.file.budget.fields(len(item.members))
            self.file.budget.step(len(item.members) // _A_STEP)
        elif isinstance(item, Table) and not isinstance(node, ast.Name):
            self.file.budget.step(len(item.entries) // _A_STEP)
        return item

    def members(self, node: ast.expr) -> list[Item]:
        """Return what a loop over an expression goes through. Raises NotKnown."""
        item = self.item(node)
        if isinstance(item, Table) and not item.environment:
            return [item_of(key, self.where(node)) for key in item.entries]
        if not isinstance(item, Items):
            raise NotKnown
        return list(item.members)

    def bind(self, target: ast.expr, item: Item) -> None:
        """Do ``target = item``, for names, tuples of them, ``table[key]`` and ``options.name``."""
        if isinstance(target, ast.Name):
            shared = target.id in self.file.shared
            self.names[target.id] = open_text(target, self.where(target)) if shared else item
        elif isinstance(target, ast.Tuple | ast.List):
            parts = item.members if isinstance(item, Items) else []
            known = len(parts) == len(target.elts)
            for i, inner in enumerate(target.elts):
                self.bind(inner, parts[i] if known else open_text(inner, self.where(inner)))
        elif isinstance(target, ast.Subscript):
            owner = self.item(target.value)
            try:
                key = self.plain(target.slice)
            except NotKnown:
                key = None
            if isinstance(owner, Table) and isinstance(key, str | int):
                owner.entries[key] = item
            else:
                forget(owner, target, self.where(target))
        elif isinstance(target, ast.Attribute) and isinstance(owner := self.item(target.value), Table):
            owner.entries[target.attr] = item

    def dotted(self, node: ast.expr) -> str:
        """Return ``subprocess.run`` for a name of it, whatever it is imported as; empty for other values."""
        if isinstance(node, ast.Name):
            return "" if node.id in self.names else self.file.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (head := self.dotted(node.value)):
            return f"{head}.{node.attr}"
        return ""

    def words(self, node: ast.expr) -> tuple[Value, ...]:
        """Return the words of a command; a list that is not known is one open piece."""
        item = self.item(node)
        if not isinstance(item, Items):
            return (open_text(node, self.where(node)).value,)
        return tuple(self.text_of_item(member, node) for member in item.members)

    def record(
        self,
        where: Where,
        *,
        code: Value = (),
        words: tuple[Value, ...] = (),
        env: Table | None = None,
        cwd: str = "",
    ) -> None:
        """Add a command that the launcher starts, by default with the environment that it has set so far."""
        environ = env or self.names[ENVIRON]
        assert isinstance(environ, Table)
        variables = {
            str(name): self.text_of_item(item, ast.Name(str(name)), where)
            for name, item in environ.entries.items()
        }
        if len(self.file.commands) < FIELDS:
            command = SourceCommand(where, code, words, variables, cwd or self.file.cwd, self.file.condition)
            self.file.commands.append(command)

    # Each kind of expression. All raise NotKnown for a value that is not computed.

    def _name(self, node: ast.Name) -> Item:
        if node.id not in self.names:
            raise NotKnown
        return self.names[node.id]

    def _formatted(self, node: ast.FormattedValue) -> Item:
        if node.format_spec is None and node.conversion in (-1, ord("s")):
            return Text(self.text(node.value))
        spec = text_of(self.text(node.format_spec)) if node.format_spec is not None else ""
        try:
            return Known(formatted(self.plain(node.value), spec, node.conversion), self.where(node))
        except NotKnown:
            return open_text(node.value, self.where(node))

    def _sequence(self, node: ast.List | ast.Tuple) -> Items:
        members: list[Item] = []
        for element in node.elts:
            item = self.item(element.value if isinstance(element, ast.Starred) else element)
            spread = isinstance(element, ast.Starred) and isinstance(item, Items)
            members += item.members if spread and isinstance(item, Items) else [item]
        return Items(members)

    def _dict(self, node: ast.Dict) -> Table:
        table = Table({})
        for key, value in zip(node.keys, node.values, strict=True):
            item = self.item(value)
            if key is not None:
                table.entries[_key(self.plain(key))] = item
            elif isinstance(item, Table):
                table.entries |= item.entries
                table.environment = table.environment or item.environment
            else:
                raise NotKnown
        return table

    def _attribute(self, node: ast.Attribute) -> Item:
        name = self.dotted(node)
        if name == "sys.executable":
            return Known("python3", self.where(node))
        if name == "sys.argv":
            return item_of([self.file.name, *self.file.args], self.where(node))
        if name == ENVIRON:
            return self.names[ENVIRON]
        owner = self.item(node.value)
        if isinstance(owner, Table) and node.attr in owner.entries:
            return owner.entries[node.attr]
        if node.attr in _PATHS and isinstance(path := plain(owner), str):
            return Known(_PATHS[node.attr](path), self.where(node))
        raise NotKnown

    def _subscript(self, node: ast.Subscript) -> Item:
        owner = self.item(node.value)
        if isinstance(node.slice, ast.Slice):
            limits = [part and self.plain(part) for part in (node.slice.lower, node.slice.upper)]
            if not isinstance(owner, Items) or node.slice.step is not None:
                raise NotKnown
            members = guarded(owner.members.__getitem__, slice(*limits))
            return Items(members) if isinstance(members, list) else owner
        if isinstance(owner, Items):
            index = self.plain(node.slice)
            if not isinstance(index, int) or not -len(owner.members) <= index < len(owner.members):
                raise NotKnown
            return owner.members[index]
        return self._entry(owner, node.slice, None, node)

    def _entry(self, owner: Item, name: ast.expr, default: ast.expr | None, node: ast.expr) -> Item:
        """Return an entry of a dictionary; of the environment, a reference where its value is not known."""
        if not isinstance(owner, Table):
            raise NotKnown
        key = _key(self.plain(name))
        if key in owner.entries:
            return owner.entries[key]
        if not owner.environment:
            if default is None:
                raise NotKnown
            return self.item(default)
        if key in self.file.env:
            return Known(self.file.env[str(key)], self.where(node))
        return environment_text(
            str(key), None if default is None else str(self.plain(default)), self.where(node)
        )

    def _binary(self, node: ast.BinOp) -> Item:
        left, right = self.item(node.left), self.item(node.right)
        added, divided = isinstance(node.op, ast.Add), isinstance(node.op, ast.Div)
        if added and (isinstance(left, Items) or isinstance(right, Items)):
            return Items([each for side in (left, right) for each in _spread(side)])
        if added and isinstance(left, Items | Table):
            raise NotKnown
        if (added or divided) and not _is_number(left) and not _is_number(right):
            where = self.where(node)
            first = self.text_of_item(left, node.left, where)
            second = self.text_of_item(right, node.right, where)
            if divided and text_of(second).startswith("/"):
                return Text(second)
            return Text((*first, *literal("/" * divided, self.where(node)), *second))
        if not added or not (_is_number(left) and _is_number(right)):
            raise NotKnown
        return item_of(guarded(operator.add, plain(left), plain(right)), self.where(node))

    def _unary(self, node: ast.UnaryOp) -> Item:
        value = self.plain(node.operand)
        if isinstance(node.op, ast.Not):
            return Known(not value, self.where(node))
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return Known(-value, self.where(node))
        raise NotKnown

    def _compare(self, node: ast.Compare) -> Item:
        if len(node.ops) > 1 or type(node.ops[0]) not in _COMPARE:
            raise NotKnown
        left, right = self.plain(node.left), self.plain(node.comparators[0])
        return Known(bool(guarded(_COMPARE[type(node.ops[0])], left, right)), self.where(node))

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Item:
        """``[… for x in known list if known condition]``."""
        generator = node.generators[0]
        if len(node.generators) > 1:
            raise NotKnown
        inner, result = Evaluator(self.file, dict(self.names)), []
        for member in self.members(generator.iter):
            inner.bind(generator.target, member)
            if all(inner.plain(condition) for condition in generator.ifs):
                result.append(inner.item(node.elt))
        return Items(result)

    def _call(self, node: ast.Call) -> Item:
        name = self.dotted(node.func)
        if name in _SUBPROCESS | _SHELL:
            self._start(node, name)
            raise NotKnown
        given = self._sequence(ast.List(node.args)).members
        if name in EXIT:
            raise ProgramExit
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](self, node, given)
        if name and not name.startswith(ENVIRON):
            for word in node.keywords:
                self.item(word.value)
            raise NotKnown
        function = self.item(node.func) if isinstance(node.func, ast.Name) else None
        if isinstance(function, Function):
            named = self._dict(
                ast.Dict(
                    [ast.Constant(word.arg) if word.arg else None for word in node.keywords],
                    [word.value for word in node.keywords],
                )
            ).entries
            return self.file.invoke(self, function, given, {str(name): item for name, item in named.items()})
        if isinstance(node.func, ast.Attribute):
            return _method(self, node, self.item(node.func.value), given)
        raise NotKnown

    def _start(self, node: ast.Call, name: str) -> None:
        """Record a program that ``subprocess`` or ``os`` starts."""
        keywords = {word.arg: word.value for word in node.keywords}
        command = node.args[:1]
        if not command:
            return
        env = self.item(keywords["env"]) if "env" in keywords else None
        env = env if isinstance(env, Table) else None
        folder = self.text(keywords["cwd"]) if "cwd" in keywords else ()
        cwd = "" if any(bit.source for bit in folder) else text_of(folder)
        shell = name in _SHELL
        with suppress(NotKnown):
            shell = shell or ("shell" in keywords and bool(self.plain(keywords["shell"])))
        if shell:
            self.record(self.where(node), code=self.text(command[0]), env=env, cwd=cwd)
        elif words := self.words(command[0]):
            self.record(self.where(node), words=words, env=env, cwd=cwd)


def _cost(value: Value) -> int:
    """Return what a text costs: a piece is a line, or what a variable gave."""
    return sum(len(bit.text) + _A_PIECE for bit in value)


def _key(value: object) -> Scalar:
    if value is None or isinstance(value, str | int | float):
        return value
    raise NotKnown


def _spread(item: Item) -> list[Item]:
    return item.members if isinstance(item, Items) else [item]


def _is_number(item: Item) -> bool:
    return isinstance(item, Known) and isinstance(item.value, int | float)


def forget(owner: Item, node: ast.AST | str, where: Where) -> None:
    """Make a list or a dictionary open that something changes in a way that is not computed."""
    if isinstance(owner, Items):
        owner.members[:] = [open_text(node, where)]
    elif isinstance(owner, Table):
        owner.entries = {key: open_text(node, where) for key in owner.entries}


def _method(ev: Evaluator, node: ast.Call, owner: Item, given: list[Item]) -> Item:
    """Return ``owner.name(…)``. Raises NotKnown."""
    assert isinstance(node.func, ast.Attribute)
    name, where = node.func.attr, ev.where(node)
    if isinstance(owner, Parser):
        named = {word.arg: ev.item(word.value) for word in node.keywords if word.arg}
        call = MethodCall(node, given, named, where)
        return script_options.call(owner, name, call, ev.file.args, ev.file.defaults)
    if isinstance(owner, Items):
        if name in ("append", "extend") and len(given) == 1:
            owner.members += [given[0]] if name == "append" else _spread(given[0])
            ev.file.budget.fields(len(owner.members))
        elif name == "copy":
            return Items(list(owner.members))
        else:
            forget(owner, node, where)
        return Known(None, where)
    if isinstance(owner, Table):
        if name == "items" and not owner.environment:
            return Items(
                [Items([Known(key, _place(item, where)), item]) for key, item in owner.entries.items()]
            )
        if name == "get" and node.args:
            return ev._entry(
                owner, node.args[0], node.args[1] if len(given) > 1 else ast.Constant(None), node
            )
        if name == "copy":
            return Table(dict(owner.entries), owner.environment)
        forget(owner, node, where)
        return Known(None, where)
    if name == "join" and len(node.args) == 1:
        words = [ev.text_of_item(item, node.args[0], where) for item in ev.members(node.args[0])]
        between = ev.text_of_item(owner, node, where)
        ev.file.budget.make(_cost(between) * len(words))
        return Text(joined(between, words))
    if name in ("resolve", "absolute", "as_posix") and not given and isinstance(owner, Text | Known):
        return owner
    value = plain(owner)
    if name == "is_absolute" and isinstance(value, str) and not given:
        return Known(value.startswith("/"), where)
    if name not in _TEXT_METHODS or not isinstance(value, str) or node.keywords:
        raise NotKnown
    values = [plain(each) for each in given]
    if name == "replace" and len(values) > 1:
        return item_of(replaced(value, *values), _place(owner, where))
    return item_of(guarded(getattr(value, name), *values), _place(owner, where))


def _place(item: Item, where: Where) -> Where:
    """Return the line that an item is written at."""
    if isinstance(item, Text) and item.value:
        return item.value[0].where
    return item.where if isinstance(item, Known) else where


# Functions that are called by these names.


def _is_instance(ev: Evaluator, node: ast.Call, given: list[Item]) -> Item:
    value, kinds = plain(given[0]), node.args[1]
    names = [ev.dotted(kind) for kind in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])]
    if not all(name in _TYPES for name in names):
        raise NotKnown
    return Known(isinstance(value, tuple(_TYPES[name] for name in names)), ev.where(node))


def _path(ev: Evaluator, node: ast.Call, given: list[Item]) -> Item:
    out: Value = ()
    for item, argument in zip(given, node.args, strict=True):
        piece = ev.text_of_item(item, argument, ev.where(node))
        slash = literal("/" if out and not text_of(out).endswith("/") else "", ev.where(node))
        out = piece if text_of(piece).startswith("/") else (*out, *slash, *piece)
    return Text(out)


def _change_folder(ev: Evaluator, node: ast.Call, given: list[Item]) -> Item:
    ev.file.cwd = str(plain(given[0]))
    raise NotKnown


_FUNCTIONS: dict[str, Callable[[Evaluator, ast.Call, list[Item]], Item]] = {
    "str": lambda ev, node, given: (
        Text(ev.text_of_item(given[0], node.args[0], ev.where(node))) if given else Known("", ev.where(node))
    ),
    "len": lambda ev, node, given: Known(len(ev.members(node.args[0])), ev.where(node)),
    "isinstance": _is_instance,
    "os.getenv": lambda ev, node, given: ev._entry(
        ev.names[ENVIRON], node.args[0], node.args[1] if len(given) > 1 else ast.Constant(""), node
    ),
    "os.chdir": _change_folder,
    "pathlib.Path": _path, "Path": _path, "os.path.join": _path,
    "argparse.ArgumentParser": lambda ev, node, given: Parser(),
}  # fmt: skip

# Any: each takes the nodes of its own type.
_READERS: dict[type[ast.expr], Callable[[Evaluator, Any], Item]] = {
    ast.Constant: lambda ev, node: item_of(node.value, ev.where(node)), ast.Name: Evaluator._name,
    ast.JoinedStr: lambda ev, node: Text(tuple(bit for part in node.values for bit in ev.text(part))),
    ast.FormattedValue: Evaluator._formatted, ast.List: Evaluator._sequence, ast.Tuple: Evaluator._sequence,
    ast.Dict: Evaluator._dict, ast.Attribute: Evaluator._attribute, ast.Subscript: Evaluator._subscript,
    ast.BinOp: Evaluator._binary, ast.UnaryOp: Evaluator._unary, ast.Compare: Evaluator._compare,
    ast.IfExp: lambda ev, node: ev.item(node.body if ev.plain(node.test) else node.orelse),
    ast.ListComp: Evaluator._comprehension, ast.GeneratorExp: Evaluator._comprehension,
    ast.Call: Evaluator._call,
}  # fmt: skip
