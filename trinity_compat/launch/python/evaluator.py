"""Expressions of a launcher: what each is, as far as the text around it says."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.limits import Budget
from trinity_compat.launch.bash.traced_text import Value, literal, text_of
from trinity_compat.launch.python import operators
from trinity_compat.launch.python.items import (
    Code,
    DictValue,
    Item,
    Items,
    Known,
    Namespace,
    NotKnown,
    Scalar,
    Text,
    is_open,
    made,
    of_environment,
    opened,
    place,
    plain,
    text,
)
from trinity_compat.launch.source_contents import SourceCommand

# What pathlib has of a path.
_OF_PATHS: dict[str, Callable[[str], str]] = {
    "parent": lambda path: posixpath.dirname(path) or ".",
    "name": posixpath.basename,
    "stem": lambda path: posixpath.splitext(posixpath.basename(path))[0],
    "suffix": lambda path: posixpath.splitext(path)[1],
}
ROUNDS = 1000  # of one loop or comprehension


@dataclass
class File:
    """One file, or notebook, that is gone through: what it was given, and what it starts.

    ``args`` are the words after the script's name, ``env`` the environment that is known, ``environ`` what
    the code itself puts there. ``defaults`` are the options of argparse whose default was taken, ``guesses``
    the conditions that cannot be known: their place and how they were taken.
    """

    name: str
    aliases: dict[str, str] = field(default_factory=dict)
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    environ: dict[str, Value] = field(default_factory=dict)
    commands: list[SourceCommand] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)
    guesses: list[tuple[Where, str]] = field(default_factory=list)
    stopped: str = ""  # why reading ended before the code did
    guesses_before_last: int = 0  # how many of them stand before the last command
    entered: set[ast.AST] = field(default_factory=set)  # functions that the code called itself
    budget: Budget = field(default_factory=Budget)
    defined: list[Code] = field(default_factory=list)
    run: Callable[[Evaluator, ast.AST], Item] = field(kw_only=True)
    depth: int = 0
    cwd: str = ""


class Evaluator:
    """Expressions under the names of one function, a module or a class. ``calls`` knows what a call makes."""

    def __init__(
        self, file: File, names: dict[str, Item], calls: Callable[[Evaluator, ast.Call], Item]
    ) -> None:
        self.file = file
        self.names = names
        self._calls = calls

    def where(self, node: ast.AST) -> Where:
        """The line of a node."""
        return Where(self.file.name, getattr(node, "lineno", 0))

    def text(self, node: ast.expr) -> Value:
        """What ``str`` makes of an expression, with its open pieces."""
        return text(self.item(node), node, self.where(node))

    def plain(self, node: ast.expr) -> object:
        """The expression's value. Raises NotKnown."""
        return plain(self.item(node))

    def item(self, node: ast.expr) -> Item:
        """What an expression is."""
        self.file.budget.step()
        reader = _READERS.get(type(node))
        try:
            if reader is not None:
                return self._paid(reader(self, node), node)
        except NotKnown:
            pass
        return opened(node, self.where(node))

    def _paid(self, item: Item, node: ast.expr) -> Item:
        """A new text or list is paid for; a name's is there already."""
        if isinstance(item, Text) and not isinstance(node, ast.Name):
            self.file.budget.make(sum(len(bit.text) + 1 for bit in item.value))
        elif isinstance(item, Items):
            self.file.budget.fields(len(item.members))
        return item

    def many(self, node: ast.expr) -> list[Item]:
        """The members of a list, a range, the keys of a dictionary. Raises NotKnown."""
        return members(self.item(node), self.where(node))

    def bind(self, target: ast.expr, item: Item) -> None:
        """``target = item``, for names, tuples of them, ``a[key]`` and ``a.b``."""
        if isinstance(target, ast.Name):
            self.names[target.id] = item
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, item)
        elif isinstance(target, ast.Subscript):
            self._set_key(target, item)
        elif isinstance(target, ast.Attribute):
            owner = self.item(target.value)
            if isinstance(owner, Namespace):
                owner.names[target.attr] = item

    def _unpack(self, target: ast.Tuple | ast.List, item: Item) -> None:
        try:
            parts: Sequence[Item] = members(item, self.where(target))
        except NotKnown:
            parts = ()
        known = len(parts) == len(target.elts)
        for i, name in enumerate(target.elts):
            inner = name.value if isinstance(name, ast.Starred) else name
            self.bind(inner, parts[i] if known else opened(inner, self.where(inner)))

    def _set_key(self, target: ast.Subscript, item: Item) -> None:
        key = self.item(target.slice)
        if self.dotted(target.value) == "os.environ" and isinstance(key, Known):
            self.file.environ[str(key.value)] = text(item, target, self.where(target))
            return
        owner = self.item(target.value)
        if isinstance(owner, DictValue) and isinstance(key, Known):
            owner.entries[key.value] = item
        elif isinstance(owner, Items) and isinstance(key, Known):
            owner.members[_index(key.value, owner)] = item

    def dotted(self, node: ast.expr) -> str:
        """``subprocess.run`` for a name of it, whatever it is imported as; empty for what is no such name."""
        if isinstance(node, ast.Name):
            return "" if node.id in self.names else self.file.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (head := self.dotted(node.value)):
            return f"{head}.{node.attr}"
        return ""

    # Each kind of expression. All raise NotKnown where they can't say more than the expression's own text.

    def _constant(self, node: ast.Constant) -> Item:
        return made(node.value, self.where(node))

    def _name(self, node: ast.Name) -> Item:
        if node.id not in self.names:
            raise NotKnown
        return self.names[node.id]

    def _joined(self, node: ast.JoinedStr) -> Item:
        return Text(tuple(bit for part in node.values for bit in self.text(part)))

    def _formatted(self, node: ast.FormattedValue) -> Item:
        item = self.item(node.value)
        if node.format_spec is None and node.conversion in (-1, ord("s")):
            return Text(text(item, node.value, self.where(node.value)))
        spec = text_of(self.text(node.format_spec)) if node.format_spec is not None else ""
        try:
            return Known(operators.formatted(plain(item), spec, node.conversion), self.where(node))
        except NotKnown:
            return opened(node.value, self.where(node))

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set) -> Item:
        return Items([item for element in node.elts for item in self._element(element)])

    def _element(self, node: ast.expr) -> list[Item]:
        if not isinstance(node, ast.Starred):
            return [self.item(node)]
        try:
            return self.many(node.value)
        except NotKnown:
            return [opened(node.value, self.where(node))]

    def _dict(self, node: ast.Dict) -> Item:
        entries: dict[Scalar, Item] = {}
        partial = False
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                spread = self.table(value)
                partial = partial or spread.partial
                entries |= spread.entries
            else:
                entries[self.key(key)] = self.item(value)
        return DictValue(entries, partial)

    def key(self, node: ast.expr) -> Scalar:
        """The key of a dictionary. Raises NotKnown."""
        key = self.plain(node)
        if key is None or isinstance(key, str | int | float):
            return key
        raise NotKnown

    def table(self, node: ast.expr) -> DictValue:
        """A dictionary. Raises NotKnown."""
        item = self.item(node)
        if self.dotted(node) == "os.environ":
            return DictValue({}, partial=True)
        if not isinstance(item, DictValue):
            raise NotKnown
        return item

    def _attribute(self, node: ast.Attribute) -> Item:
        if self.dotted(node) == "sys.executable":
            return Known("python3", self.where(node))
        if self.dotted(node) == "sys.argv":
            return made([self.file.name, *self.file.args], self.where(node))
        owner = self.item(node.value)
        if isinstance(owner, Namespace) and node.attr in owner.names:
            found = owner.names[node.attr]
            return Code(found.node, found.around, owner) if isinstance(found, Code) else found
        if node.attr in _OF_PATHS and isinstance(owner, Known | Text):
            return Known(_OF_PATHS[node.attr](str(plain(owner))), place(owner, self.where(node)))
        raise NotKnown

    def _subscript(self, node: ast.Subscript) -> Item:
        if self.dotted(node.value) == "os.environ":
            return self.variable(node.slice, None, node)
        owner = self.item(node.value)
        if isinstance(owner, Items) and isinstance(node.slice, ast.Slice):
            return Items(owner.members[self._slice(node.slice)])
        key = self.key(node.slice)
        if isinstance(owner, DictValue) and key in owner.entries:
            return owner.entries[key]
        if isinstance(owner, DictValue) and owner.partial:
            return self.variable(node.slice, None, node)
        if (
            isinstance(owner, Items)
            and isinstance(key, int)
            and -len(owner.members) <= key < len(owner.members)
        ):
            return owner.members[key]
        raise NotKnown

    def _slice(self, node: ast.Slice) -> slice:
        bounds = [None if part is None else self.plain(part) for part in (node.lower, node.upper, node.step)]
        if not all(bound is None or isinstance(bound, int) for bound in bounds):
            raise NotKnown
        return slice(*bounds)

    def variable(self, name: ast.expr, default: ast.expr | None, node: ast.expr) -> Item:
        """A variable of the environment: what the code set, what is known, or itself."""
        key = text_of(self.text(name))
        if key in self.file.environ:
            return Text(self.file.environ[key])
        if key in self.file.env:
            return Known(self.file.env[key], self.where(node))
        known = None if default is None else text_of(self.text(default))
        return of_environment(key, known, self.where(node))

    def _binary(self, node: ast.BinOp) -> Item:
        left, right = self.item(node.left), self.item(node.right)
        if isinstance(node.op, ast.Mod) and isinstance(left, Known | Text):
            return self.percent(node, left)
        if isinstance(node.op, ast.Add) and (isinstance(left, Items) or isinstance(right, Items)):
            return Items([*_listed(left), *_listed(right)])
        if isinstance(node.op, ast.Add) and any(isinstance(s, Text) or is_open(s) for s in (left, right)):
            return self._added(node, left, right)
        if isinstance(node.op, ast.BitOr) and isinstance(left, DictValue) and isinstance(right, DictValue):
            return DictValue({**left.entries, **right.entries})
        if isinstance(node.op, ast.Div) and isinstance(left, Known | Text) and not _is_number(left):
            return self._added(node, left, right, between="/")
        return made(operators.binary(node.op, plain(left), plain(right)), self.where(node))

    def _added(self, node: ast.BinOp, left: Item, right: Item, between: str = "") -> Item:
        """``text + text``, and ``path / text`` with a slash between."""
        if _is_number(left) or _is_number(right):
            return made(operators.binary(node.op, plain(left), plain(right)), self.where(node))
        first, second = text(left, node.left, self.where(node)), text(right, node.right, self.where(node))
        return Text((*first, *literal(between, self.where(node)), *second))

    def percent(self, node: ast.BinOp, left: Item) -> Item:
        """``"key=%d" % n``, a number's remainder."""
        from trinity_compat.launch.python.templates import percent

        if isinstance(left, Known) and isinstance(left.value, str):
            given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return percent(left.value, [self.text(item) for item in given], self.where(node))
        return made(operators.binary(node.op, plain(left), self.plain(node.right)), self.where(node))

    def _unary(self, node: ast.UnaryOp) -> Item:
        return made(operators.unary(node.op, self.plain(node.operand)), self.where(node))

    def _compare(self, node: ast.Compare) -> Item:
        left, verdict = self.plain(node.left), True
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.plain(right_node)
            verdict = verdict and bool(operators.compare(kind, left, right))
            left = right
        return Known(verdict, self.where(node))

    def _boolean(self, node: ast.BoolOp) -> Item:
        """The first that decides. One that is open decides nothing after it."""
        wanted = isinstance(node.op, ast.Or)
        item = self.item(node.values[0])
        for value in node.values[1:]:
            if bool(plain(item)) == wanted:
                return item
            item = self.item(value)
        return item

    def _conditional(self, node: ast.IfExp) -> Item:
        return self.item(node.body if self.plain(node.test) else node.orelse)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Item:
        with_names = self._rounds(node.generators)
        return Items([each.item(node.elt) for each in with_names])

    def _dict_comprehension(self, node: ast.DictComp) -> Item:
        rounds = self._rounds(node.generators)
        pairs = [(each.key(node.key), each.item(node.value)) for each in rounds]
        return DictValue(dict(pairs))

    def _rounds(self, generators: Sequence[ast.comprehension]) -> Iterator[Evaluator]:
        """One evaluator a round, with the names of the loop. Raises NotKnown."""
        first, *rest = generators
        for item in self.many(first.iter)[:ROUNDS]:
            inner = Evaluator(self.file, dict(self.names), self._calls)
            inner.bind(first.target, item)
            if all(inner.plain(condition) for condition in first.ifs):
                yield from inner._rounds(rest) if rest else (inner,)

    def _call(self, node: ast.Call) -> Item:
        return self._calls(self, node)

    def _lambda(self, node: ast.Lambda) -> Item:
        return Code(node, self.names)

    def _walrus(self, node: ast.NamedExpr) -> Item:
        item = self.item(node.value)
        self.bind(node.target, item)
        return item


def members(item: Item, where: Where) -> list[Item]:
    """What a loop over an item goes through. Raises NotKnown."""
    if isinstance(item, Items):
        return list(item.members)
    if isinstance(item, DictValue):
        return [made(key, place(value, where)) for key, value in item.entries.items()]
    if isinstance(item, Known) and isinstance(item.value, str):
        return [Known(letter, item.where) for letter in item.value[:ROUNDS]]
    raise NotKnown


def _index(key: Scalar, owner: Items) -> int:
    if isinstance(key, int) and -len(owner.members) <= key < len(owner.members):
        return key
    raise NotKnown


def _listed(item: Item) -> list[Item]:
    """A side of ``list + list``; one that isn't known is one piece."""
    return item.members if isinstance(item, Items) else [item]


def _is_number(item: Item) -> bool:
    if isinstance(item, Text):
        return item.kind is not str
    return isinstance(item, Known) and isinstance(item.value, int | float)


# Any: each takes the nodes of its own type.
_READERS: dict[type[ast.expr], Callable[[Evaluator, Any], Item]] = {
    ast.Constant: Evaluator._constant,
    ast.Name: Evaluator._name,
    ast.JoinedStr: Evaluator._joined,
    ast.FormattedValue: Evaluator._formatted,
    ast.List: Evaluator._sequence,
    ast.Tuple: Evaluator._sequence,
    ast.Set: Evaluator._sequence,
    ast.Dict: Evaluator._dict,
    ast.Attribute: Evaluator._attribute,
    ast.Subscript: Evaluator._subscript,
    ast.BinOp: Evaluator._binary,
    ast.UnaryOp: Evaluator._unary,
    ast.Compare: Evaluator._compare,
    ast.BoolOp: Evaluator._boolean,
    ast.IfExp: Evaluator._conditional,
    ast.ListComp: Evaluator._comprehension,
    ast.SetComp: Evaluator._comprehension,
    ast.GeneratorExp: Evaluator._comprehension,
    ast.DictComp: Evaluator._dict_comprehension,
    ast.Call: Evaluator._call,
    ast.Lambda: Evaluator._lambda,
    ast.NamedExpr: Evaluator._walrus,
}
