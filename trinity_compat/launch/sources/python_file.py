"""Programs in Python that start a training main: literal calls of ``subprocess`` and ``os.system``.

Read by ``ast``, nothing is executed or imported. What isn't written out (an argument of a function, the
result of a call) stays open under its own text.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trinity_compat.errors import UserError, Where
from trinity_compat.launch.core.values import Bit, Value, lines_of, literal, text_of
from trinity_compat.launch.model import EnvRef, Open
from trinity_compat.launch.sources.hydra_main import hydra_mains
from trinity_compat.launch.sources.model import Command, Contents

_WORDS = {
    f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen", "getoutput")
} | {"os.execvp", "os.execv", "os.execvpe", "os.spawnvp"}
_CODE = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
_SPREAD = {"asyncio.create_subprocess_exec", "os.execlp", "os.execl"}  # words as arguments of the call
_ENVIRONMENT = {"os.environ.get", "os.getenv"}
_PLACEHOLDER = re.compile(r"%[-+ 0]*\d*(?:\.\d+)?[sdrfgi]")
_NOTE = "a Python file: literal calls of subprocess and os.system are read, nothing is executed"
_MAIN = "a Python file that Hydra starts{}: read as `python3 {} ARGUMENTS`, whose arguments stand after --"
_COMPOSED = "a Python file that composes its configuration itself (compose({})): the rest is in its code"


def read(name: str, text: str, args: Sequence[str] = ()) -> Contents:
    """What a Python file starts; one that Hydra starts is itself started with ``args``.

    Raises UserError for what isn't Python.
    """
    code = _parsed(text)
    if isinstance(code, Exception):
        line = getattr(code, "lineno", None) or 0
        told = getattr(code, "msg", str(code))
        raise UserError(f"not a Python file: {told}", where=Where(name, line))
    commands = tuple(_commands(code, name))
    if main := next(hydra_mains(text), None):
        place = Where(name, main.line)
        started = Command(place, words=tuple(literal(word, place) for word in ("python3", name, *args)))
        named = f" with its configuration {main.shown}" if main.shown else ""
        return Contents((*commands, started), _MAIN.format(named, posixpath.basename(name)))
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and _name(node.func) in ("compose", "hydra.compose"):
            started = _composed(node, name)
            return Contents((*commands, started), _COMPOSED.format(_shown(node)))
    return Contents(commands, _NOTE)


def commands_of(name: str, text: str) -> tuple[Command, ...]:
    """What Python code starts; nothing where it isn't Python (the cell of a notebook)."""
    code = _parsed(text)
    return tuple(_commands(code, name)) if isinstance(code, ast.Module) else ()


def _parsed(text: str) -> ast.Module | Exception:
    """The tree, or why there is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error


def _shown(call: ast.Call) -> str:
    name = next((word for word in call.keywords if word.arg == "config_name"), None)
    return ast.unparse(name) if name else "…"


def _composed(call: ast.Call, name: str) -> Command:
    """What ``compose(config_name=…, overrides=[…])`` stands for on a command line."""
    place = Where(name, call.lineno)
    scope = _Scope(name)
    given = {word.arg: word.value for word in call.keywords}
    words = [literal("python3", place), literal(name, place)]
    if (config := given.get("config_name")) is not None:
        words += [literal("--config-name", place), scope.text(config)]
    return Command(place, words=(*words, *scope.words(given.get("overrides", ast.List(elts=[])))))


def _name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _commands(code: ast.Module, name: str) -> Iterator[Command]:
    yield from _Scope(name, _aliases(code)).block(code.body)


def _aliases(code: ast.Module) -> dict[str, str]:
    """What names imported from ``subprocess`` and ``os`` mean: ``run`` → ``subprocess.run``."""
    found: dict[str, str] = {}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "os"):
            found |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
        elif isinstance(node, ast.Import):
            found |= {item.asname: item.name for item in node.names if item.asname}
    return found


@dataclass
class _Scope:
    """Names whose value is written out, while statements are gone through in their order.

    ``sure``: the statements certainly run; what a condition or a loop adds to a list is open.
    """

    name: str
    aliases: dict[str, str] = field(default_factory=dict)
    texts: dict[str, Value] = field(default_factory=dict)
    lists: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    sure: bool = True

    def block(self, body: Sequence[ast.stmt]) -> Iterator[Command]:
        for statement in body:
            yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[Command]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = _Scope(self.name, self.aliases, dict(self.texts), dict(self.lists))
            yield from inner.block(node.body)
            return
        blocks = [block for part in ("body", "orelse", "finalbody") if (block := getattr(node, part, None))]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        if not blocks:
            yield from self._calls(node)
            self._bind(node)
            return
        before, self.sure = self.sure, self.sure and isinstance(node, (ast.With, ast.Try))
        for block in blocks:
            yield from self.block(block)
        self.sure = before

    def _calls(self, node: ast.stmt) -> Iterator[Command]:
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                yield from self._call(call)

    def _call(self, call: ast.Call) -> Iterator[Command]:
        spelled = _name(call.func)
        head, _, rest = spelled.partition(".")
        head = self.aliases.get(head, head)
        called = f"{head}.{rest}" if rest else head
        place = Where(self.name, call.lineno)
        if called in _SPREAD:
            spread = tuple(self.text(item) for item in call.args)
            yield Command(place, words=spread[1:] if called.startswith("os.") else spread)
            return
        if not call.args or called not in _WORDS | _CODE:
            return
        first = call.args[1] if called.startswith("os.exec") and len(call.args) > 1 else call.args[0]
        shell = any(word.arg == "shell" and _is_true(word.value) for word in call.keywords)
        if called in _CODE or shell:
            yield Command(place, self.text(first))
        elif words := self.words(first):
            yield Command(place, words=words)

    def _bind(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self._assign(target.id, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._grow(node.target.id, node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and len(node.value.args) == 1:
            name, _, method = _name(node.value.func).rpartition(".")
            if method == "append":
                self._grow(name, ast.List(elts=[node.value.args[0]]))
            elif method == "extend":
                self._grow(name, node.value.args[0])

    def _assign(self, name: str, node: ast.expr) -> None:
        self.texts.pop(name, None)
        self.lists.pop(name, None)
        if not self.sure:
            return
        if isinstance(node, (ast.List, ast.Tuple)) or (isinstance(node, ast.Call) and self._split(node)):
            self.lists[name] = self.words(node)
        elif isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call)):
            added = self.words(node) if isinstance(node, ast.BinOp) and self._is_list(node) else None
            if added is not None:
                self.lists[name] = added
            else:
                self.texts[name] = self.text(node)

    def _grow(self, name: str, node: ast.expr) -> None:
        if name in self.lists:
            added = self.words(node) if self.sure else (self._open(getattr(node, "elts", [node])[0]),)
            self.lists[name] = (*self.lists[name], *added)
        elif name in self.texts:
            self.texts[name] = (*self.texts[name], *(self.text(node) if self.sure else self._open(node)))

    def _is_list(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp):
            return self._is_list(node.left) or self._is_list(node.right)
        return isinstance(node, (ast.List, ast.Tuple)) or (
            isinstance(node, ast.Name) and node.id in self.lists
        )

    def words(self, node: ast.expr) -> tuple[Value, ...]:
        """The items of a list; one that isn't written out is one open piece."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return tuple(word for item in node.elts for word in self._item(item))
        if isinstance(node, ast.Name) and node.id in self.lists:
            return self.lists[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and self._is_list(node):
            return (*self.words(node.left), *self.words(node.right))
        if isinstance(node, ast.Call) and (text := self._split(node)):
            return tuple(literal(word, self._where(node)) for word in text)
        return (self._open(node),)

    def _item(self, node: ast.expr) -> tuple[Value, ...]:
        return self.words(node.value) if isinstance(node, ast.Starred) else (self.text(node),)

    def _split(self, node: ast.Call) -> list[str]:
        """``shlex.split("…")`` and ``"…".split()`` of a text that is known."""
        if _name(node.func) == "shlex.split" and node.args:
            return _words_of(text_of(self.text(node.args[0])))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "split" and not node.args:
            return text_of(self.text(node.func.value)).split()
        return []

    def text(self, node: ast.expr) -> Value:
        """A text, with its open pieces."""
        where = self._where(node)
        if isinstance(node, ast.Constant):
            return lines_of(node.value if isinstance(node.value, str) else str(node.value), where)
        if isinstance(node, ast.JoinedStr):
            return tuple(bit for part in node.values for bit in self.text(part))
        if isinstance(node, ast.FormattedValue) and node.format_spec is None:
            return self.text(node.value)
        if isinstance(node, ast.Name) and node.id in self.texts:
            return self.texts[node.id]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return (*self.text(node.left), *self.text(node.right))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._formatted(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        if _name(node) == "sys.executable":
            return literal("python3", where)
        if isinstance(node, ast.Subscript) and _name(node.value) == "os.environ":
            return self._variable(node.slice, None, where)
        return self._open(node)

    def _formatted(self, node: ast.BinOp) -> Value:
        """``"key=%d" % n``."""
        given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        pieces = _PLACEHOLDER.split(text_of(self.text(node.left)))
        if len(pieces) != len(given) + 1:
            return self._open(node)
        out, where = lines_of(pieces[0], self._where(node)), self._where(node)
        for item, piece in zip(given, pieces[1:], strict=True):
            out = (*out, *self.text(item), *lines_of(piece, where))
        return out

    def _called(self, node: ast.Call) -> Value:
        name = _name(node.func)
        if name == "str" and node.args:
            return self.text(node.args[0])
        if name in _ENVIRONMENT and node.args:
            return self._variable(node.args[0], (*node.args[1:], None)[0], self._where(node))
        joined = isinstance(node.func, ast.Attribute) and node.func.attr == "join" and len(node.args) == 1
        if joined and self._is_list(node.args[0]):
            between = self.text(node.func.value)  # type: ignore[attr-defined]
            words = self.words(node.args[0])
            return tuple(bit for i, word in enumerate(words) for bit in (*(between if i else ()), *word))
        return self._open(node)

    def _variable(self, node: ast.expr, default: ast.expr | None, where: Where) -> Value:
        name, known = text_of(self.text(node)), text_of(self.text(default)) if default is not None else None
        return (Bit(known or "", where, EnvRef(name, known, required=default is None)),)

    def _open(self, node: ast.expr) -> Value:
        where = self._where(node)
        return (Bit("", where, Open(ast.unparse(node)[:200], where)),)

    def _where(self, node: ast.expr) -> Where:
        return Where(self.name, getattr(node, "lineno", 0))


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _words_of(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
