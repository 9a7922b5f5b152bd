"""Code of a Python launcher, read in its order without running it: what its names hold, what it starts.

Computed are constants, f-strings, ``+`` and ``join`` of texts, lists and what is added to them, and variables
of the environment. All else is open under its own text. Conditions and loops are not decided: what they start
depends on them, and a list to which they add has an open member. Calls of the launcher's own functions are
not followed; each function is read once, with open parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinity_compat.common.errors import Where
from trinity_compat.common.limits import FIELDS, Budget
from trinity_compat.launch.bash.traced_text import (
    TextPiece,
    Value,
    doubt_in,
    lines_of,
    literal,
    parts_of,
    text_of,
)
from trinity_compat.launch.model import EnvRef, UnknownPiece
from trinity_compat.launch.python.names import (
    ENVIRON,
    EXEC,
    FOLDER,
    SHELL,
    SUBPROCESS,
    Function,
    Names,
)
from trinity_compat.launch.source_contents import SourceCommand

_EXIT = ("sys.exit", "exit", "quit", "os._exit", *EXEC)
_PIECE_COST = 16  # characters that a piece of a text costs
_COPIES_A_STEP = 20  # names or members that are copied in one step
_SHOWN = 200  # characters of an open expression
_CONDITION = 100  # characters of a condition


class NotKnownError(Exception):
    """A value is not computed."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a truth value or None, as a text."""

    text: Value


Item = Value | Constant | list[Value]  # none of them is changed in place


@dataclass
class Evaluator:
    """The state of reading one file, or one notebook.

    ``args`` are the words after the script's name, ``env`` the known environment, ``environ`` what the code
    sets in it. ``function`` and ``condition`` are those around the statement that is read.
    """

    name: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    values: dict[str, Item] = field(default_factory=dict)
    environ: dict[str, Value] = field(default_factory=dict)
    folder: str = ""
    function: Function = None
    condition: str = ""
    defined: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, dict[str, Value], str]] = field(
        default_factory=list
    )
    commands: list[SourceCommand] = field(default_factory=list)
    stopped: str = ""  # why reading ended before the code did
    at: Where | None = None  # the statement that is read
    budget: Budget = field(default_factory=Budget)

    def where(self, node: ast.AST) -> Where:
        """Return the line of a node."""
        return Where(self.name, getattr(node, "lineno", 0))

    # Values.

    def item(self, node: ast.expr) -> Item:
        """Return the value of an expression, open under its own text where it is not computed."""
        self.budget.step()
        try:
            item = self._computed(node)
        except NotKnownError:
            return open_text(node, self.where(node))
        if isinstance(item, list):
            self.budget.fields(len(item))
            self.budget.step(len(item) // _COPIES_A_STEP)
        elif isinstance(item, tuple) and not isinstance(node, ast.Name):
            self.budget.make(sum(len(bit.text) + _PIECE_COST for bit in item))
        return item

    def text(self, node: ast.expr) -> Value:
        """Return ``str`` of an expression; that of a list is open."""
        item = self.item(node)
        if isinstance(item, Constant):
            return item.text
        return item if isinstance(item, tuple) else open_text(node, self.where(node))

    def words(self, node: ast.expr) -> list[Value]:
        """Return the members of a list; one that is not known is one open piece."""
        return self._members(self.item(node), node)

    def _members(self, item: Item, node: ast.expr) -> list[Value]:
        return item if isinstance(item, list) else [open_text(node, self.where(node))]

    def _computed(self, node: ast.expr) -> Item:
        where = self.where(node)
        match node:
            case ast.Constant(value=str(text)):
                return lines_of(text, where)
            case ast.Constant(value=int() | float() | None as value):
                try:
                    return Constant(literal(str(value), where))
                except ValueError:  # more digits than Python writes
                    raise NotKnownError from None
            case ast.JoinedStr(values=parts):
                return tuple(bit for part in parts for bit in self.text(part))
            case ast.FormattedValue(value=value, format_spec=None, conversion=-1 | 115):  # !s
                return self.text(value)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [word for part in parts for word in self._member(part)]
            case ast.BinOp(left=one, op=ast.Add(), right=other):
                return self._sum(self.item(one), one, other)
            case ast.Subscript(value=owner, slice=key):
                return self._part(self.names.dotted(owner), key)
            case ast.Name(id=name) if name in self.values and self.names.has_value(name, self.function):
                return self.values[name]
            case ast.Call(args=[value], keywords=[]) if self.names.dotted(node.func) == "str":
                return self.text(value)
            case ast.Call(args=[key, default]) if self.names.dotted(node.func) in (
                f"{ENVIRON}.get",
                "os.getenv",
            ):
                return self._variable(key, default)
            case ast.Call(func=ast.Attribute(value=owner, attr="join"), args=[ast.expr() as value]):
                between, words = self.item(owner), self.item(value)
                if isinstance(between, tuple) and isinstance(words, list):
                    self.budget.make(len(words) * sum(len(bit.text) + _PIECE_COST for bit in between))
                    return tuple(
                        bit for i, word in enumerate(words) for bit in (*(between if i else ()), *word)
                    )
        if self.names.dotted(node) == "sys.executable":
            return literal("python3", where)
        raise NotKnownError

    def _member(self, part: ast.expr) -> list[Value]:
        return self.words(part.value) if isinstance(part, ast.Starred) else [self.text(part)]

    def _sum(self, left: Item, one: ast.expr, other: ast.expr) -> Item:
        right = self.item(other)
        if isinstance(left, list) or isinstance(right, list):
            return [*self._members(left, one), *self._members(right, other)]
        if isinstance(left, tuple) and isinstance(right, tuple):
            return left + right
        raise NotKnownError

    def _part(self, owner: str, key: ast.expr) -> Item:
        """``os.environ[NAME]`` and ``sys.argv[1:]``."""
        match key:
            case ast.Slice(lower=ast.Constant(value=1), upper=None, step=None) if owner == "sys.argv":
                return [literal(word, self.where(key)) for word in self.args]
        if owner != ENVIRON:
            raise NotKnownError
        return self._variable(key, None)

    def _variable(self, key: ast.expr, default: ast.expr | None) -> Value:
        """Return a variable of the environment, as a reference where its value is not known."""
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)) or self.names.surroundings:
            raise NotKnownError
        name, where = key.value, self.where(key)
        if name in self.environ:
            return self.environ[name]
        if name in self.env:
            return literal(self.env[name], where)
        value = () if default is None else self.text(default)
        if doubt_in([value]):
            raise NotKnownError
        parts = parts_of(value) if any(bit.source for bit in value) else ()
        ref = EnvRef(name, None if default is None else text_of(value), parts, required=default is None)
        return (TextPiece(text_of(value), where, ref),)

    # Statements.

    def read_module(self, body: Sequence[ast.stmt]) -> None:
        """Read a module, or a cell of a notebook."""
        for name in self.names.settings:  # whether it is set already is known where the code sets it
            self.environ.setdefault(name, open_text(f"os.environ[{name!r}]", Where(self.name)))
        self._block(body)

    def read_functions(self) -> None:
        """Read the functions, after the code around them."""
        outer = self.values
        while self.defined:
            function, self.environ, self.name = self.defined.pop(0)
            self.function = function
            self.budget.step(len(outer) // _COPIES_A_STEP)
            hidden = self.names.hidden_in(function)
            self.values = {name: item for name, item in outer.items() if name not in hidden}
            self._block(function.body)

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.at = self.where(statement)
            self.budget.step()
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.defined.append((statement, dict(self.environ), self.name))
                case ast.ClassDef(name=name, body=inner):
                    self.values = self.values | self._grown(statement, inner, f"class {name}")
                    self._block(
                        [each for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                    )
                case ast.If(test=test, body=inner) if shown(test) == "__name__ == '__main__'":
                    self._block(inner)
                case ast.With(items=items, body=inner) | ast.AsyncWith(items=items, body=inner):
                    self._starts(*(item.context_expr for item in items))
                    self._block(inner)
                case ast.Try():  # its body is assumed to succeed
                    self._block([*statement.body, *statement.orelse])
                    self._branches(statement, [each.body for each in statement.handlers], "an exception")
                    self._block(statement.finalbody)
                case ast.If(test=test) | ast.While(test=test):
                    self._starts(test)
                    self._branches(statement, [statement.body, statement.orelse], shown(test))
                case ast.For() | ast.AsyncFor():
                    self._starts(statement.iter)
                    each = f"{shown(statement.target)} in {shown(statement.iter)}"
                    self._branches(statement, [statement.body, statement.orelse], each)
                case ast.Match(subject=subject, cases=cases):
                    self._starts(subject)
                    self._branches(statement, [case.body for case in cases], shown(subject))
                case _:
                    self._starts(statement)
                    self._assign(statement)
            if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue) or (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Call)
                and self.names.dotted(statement.value.func) in _EXIT
            ):
                return

    def _branches(self, node: ast.stmt, branches: Sequence[Sequence[ast.stmt]], condition: str) -> None:
        """Read branches of which none, one, or one several times may be taken."""
        before, environ, outer = self.values, self.environ, self.condition
        opened = self._grown(node, [each for branch in branches for each in branch], condition)
        again = isinstance(node, ast.For | ast.AsyncFor | ast.While)
        self.condition = condition[:_CONDITION]
        after: dict[str, Item] = {}
        for branch in branches:
            self.budget.step(1 + len(before) // _COPIES_A_STEP)
            self.values = before | opened if again else dict(before)
            self._block(branch)
            after |= self.values
        self.values, self.environ, self.condition = before | after | opened, environ, outer

    def _grown(self, node: ast.stmt, body: list[ast.stmt], condition: str) -> dict[str, Item]:
        """Return the names to which ``body`` may add, each with an open member; note whether it moves."""
        grown = Names()
        grown.learn(ast.Module(body, []), self.budget)
        if grown.moves:
            self.names.surroundings = FOLDER
        label = f" (depends on {condition[:_CONDITION]})"
        return {
            name: self._with_more(self.values[name], open_text(name + label, self.where(node)))
            for name in grown.growth
            if name in self.values
        }

    @staticmethod
    def _with_more(item: Item, more: Value) -> Item:
        if isinstance(item, list):
            return [*item, more]
        return item + more if isinstance(item, tuple) else more

    def _assign(self, node: ast.stmt) -> None:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                item = self.item(value)
                if isinstance(item, list) and (name in self.names.handed or isinstance(value, ast.Name)):
                    item = open_text(name, self.where(node))
                self.values[name] = item
            case ast.AugAssign(target=ast.Name(id=name) as target, op=ast.Add(), value=value) if (
                name in self.values
            ):
                self.values[name] = self.item(ast.copy_location(ast.BinOp(target, ast.Add(), value), node))
            case ast.Expr(value=ast.Call(func=ast.Attribute(ast.Name(id=name), method), args=[value])) if (
                isinstance(old := self.values.get(name), list) and method in ("append", "extend")
            ):
                added = self.words(value) if method == "extend" else [self.text(value)]
                self.budget.fields(len(old))
                self.budget.step(len(old) // _COPIES_A_STEP)
                self.values[name] = [*old, *added]
            case ast.Assign(
                targets=[ast.Subscript(value=owner, slice=ast.Constant(value=str(key)))], value=value
            ) if self.names.dotted(owner) == ENVIRON:
                if not self.function and not self.condition and self.names.settings[key] == 1:
                    self.environ = self.environ | {key: self.text(value)}
            case ast.Expr(value=ast.Call(func=called, args=[ast.Constant(value=str(folder))])) if (
                self.names.dotted(called) == FOLDER
            ):
                self.folder = (
                    folder if folder.startswith("/") or not self.folder else f"{self.folder}/{folder}"
                )

    def _starts(self, *nodes: ast.AST) -> None:
        """Record the commands that expressions start."""
        for number, node in enumerate(each for top in nodes for each in ast.walk(top)):
            if number % _COPIES_A_STEP == 0:
                self.budget.step()
            if isinstance(node, ast.Call):
                self._start(node, self.names.dotted(node.func))

    def _start(self, node: ast.Call, name: str) -> None:
        given = {word.arg: word.value for word in node.keywords}
        command = next(iter(node.args), given.get("args"))
        if command is None:
            return
        if name in EXEC and len(node.args) > 1:
            self.record(node, words=[self.text(command), *self.words(node.args[1])[1:]])
        elif name in SHELL:
            self.record(node, code=self.text(command))
        elif name in SUBPROCESS:
            match given.get("shell", ast.Constant(False)):
                case ast.Constant(value=True):
                    self.record(node, code=self.text(command), given=given)
                case ast.Constant():
                    self.record(node, words=self.words(command), given=given)
                case _:
                    self.record(node, words=[open_text(command, self.where(node))])

    def record(
        self,
        node: ast.AST,
        *,
        code: Value = (),
        words: Sequence[Value] = (),
        given: Mapping[str | None, ast.expr] | None = None,
    ) -> None:
        """Add a command that the launcher starts with the keywords ``given``."""
        given = given or {}
        unknown, folder = [self.condition, self.names.surroundings], self.folder
        if self.function and folder:  # which is that of the module's end
            unknown.append(FOLDER)
        if "cwd" in given:
            place = self.text(given["cwd"])
            folder = text_of(place)
            if any(bit.source for bit in place):
                unknown.append(f"cwd={shown(given['cwd'])}")
                folder = ""
        if "env" in given and shown(given["env"]) not in (ENVIRON, f"{ENVIRON}.copy()"):
            unknown.append(f"env={shown(given['env'])}")
        condition = " and ".join(each for each in unknown if each)[:_CONDITION]
        if (code or words) and len(self.commands) < FIELDS:
            self.commands.append(
                SourceCommand(self.where(node), code, tuple(words), self.environ, folder, condition)
            )


def open_text(expression: ast.AST | str, where: Where) -> Value:
    """Return a text that stays open under its expression."""
    return (TextPiece("", where, UnknownPiece(shown(expression)[:_SHOWN], where)),)


def shown(expression: ast.AST | str) -> str:
    """Return an expression as it may be written; "…" for a number that Python refuses to write."""
    try:
        return expression if isinstance(expression, str) else ast.unparse(expression)
    except ValueError:
        return "…"
