"""Names of a Python launcher that have one value, found before its code is read.

A name of a function is known where one plain assignment in the function binds it, a name of the module where
one in the whole file does, whatever branch or loop it stands in. What anything else binds is open everywhere.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

from trinity_compat.common.limits import Budget

ENVIRON, FOLDER = "os.environ", "os.chdir"
SUBPROCESS = tuple(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen"))
SHELL = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput")
EXEC = ("os.execv", "os.execve", "os.execvp", "os.execvpe")
# Calls that change no argument.
_KEEPING = ("print", "len", "str", "join", "extend", "debug", "info", "warning", "error")
_HIDDEN = ("exec", "globals", "locals", "vars")  # with these any name may be bound
_NODES_A_STEP = 20  # nodes that are looked at in one step
Function = ast.FunctionDef | ast.AsyncFunctionDef | None


@dataclass
class Names:
    """The names of a file: the function of each plain binding and of each growth (``+=``, append, extend).

    ``never`` have no value; ``handed`` are given to code that may change a list. ``bound`` are all that the
    code binds. ``settings`` counts the statements that set a variable of the environment, by its name.
    """

    aliases: dict[str, str] = field(default_factory=dict)
    plain: dict[str, list[Function]] = field(default_factory=dict)
    growth: dict[str, list[Function]] = field(default_factory=dict)
    never: set[str] = field(default_factory=set)
    handed: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=lambda: set(dir(builtins)))
    settings: dict[str, int] = field(default_factory=dict)
    moves: bool = False  # to another folder
    surroundings: str = ""  # an expression that changes the environment or the folder in another way

    def learn(self, code: ast.Module, budget: Budget) -> None:
        """Note what a module, or a cell of a notebook, binds and changes."""
        marked: set[int] = set()  # names that are bound plainly, or read in a place that changes no list
        for number, (node, function) in enumerate(_with_functions(code)):
            if number % _NODES_A_STEP == 0:
                budget.step()
            match node:
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                    found = {each.asname or each.name: f"{start}{each.name}" for each in names}
                    self.aliases |= found
                    self.never |= found.keys()
                case (
                    ast.Assign(targets=[ast.Name(id=name) as target])
                    | ast.AnnAssign(target=ast.Name(id=name) as target, value=ast.expr())
                ):
                    self.plain.setdefault(name, []).append(function)
                    marked.add(id(target))
                case ast.Assign(targets=[ast.Subscript(value=owner, slice=ast.Constant(value=str(key)))]) if (
                    self.dotted(owner) == ENVIRON
                ):
                    self.settings[key] = self.settings.get(key, 0) + 1
                    marked.add(id(owner))
                case ast.Expr(value=ast.Call(func=ast.Attribute(ast.Name() as owner, "append" | "extend"))):
                    self.growth.setdefault(owner.id, []).append(function)
                    marked.add(id(owner))
                case ast.AugAssign(target=ast.Name(id=name) as target, op=ast.Add(), value=value):
                    self.growth.setdefault(name, []).append(function)
                    marked |= {id(target), id(value)}
                case ast.BinOp(left=one, op=ast.Add(), right=other):
                    marked |= {id(one), id(other)}
                case ast.Starred(value=value) | ast.FormattedValue(value=value):
                    marked.add(id(value))
                case ast.Subscript(value=value, ctx=ast.Load()):
                    marked.add(id(value))
                case ast.Call():
                    marked |= self._read_by(node, function)
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    self.never |= set(names)
                case ast.Lambda(args=arguments):
                    self.never |= parameters(arguments)
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.never.add(name)
                case (
                    ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name))
                    | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name))
                ):  # fmt: skip
                    self.never.add(name)
                case ast.Name(id=name, ctx=ast.Load()) if id(node) not in marked:
                    self.handed |= {name, "*"} if name in _HIDDEN else {name}
                case ast.Name(id=name) if id(node) not in marked:
                    self.never.add(name)
                case ast.Attribute() if id(node) not in marked and self.dotted(node) == ENVIRON:
                    self.surroundings = ENVIRON
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.bound |= parameters(node.args)
        self.bound |= self.never | self.plain.keys()

    def _read_by(self, call: ast.Call, function: Function) -> set[int]:
        """Return the parts of a call that it does not change, and note what it does to the surroundings."""
        name = self.dotted(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else name
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        plain = [each for each in call.args if not isinstance(each, ast.Starred)]
        self.moves = self.moves or name == FOLDER
        if name == FOLDER and (function or not isinstance(next(iter(plain), None), ast.Constant)):
            self.surroundings = FOLDER
        if name.rpartition(".")[2] in ("load_dotenv", "putenv", "unsetenv"):
            self.surroundings = name
        found = {id(owner)} if method in ("join", "get", "copy") else set()
        if method in _KEEPING or name in (*SUBPROCESS, *SHELL, *EXEC):
            found |= {id(each) for each in (*plain, *(word.value for word in call.keywords))}
        return found

    def has_value(self, name: str, function: Function) -> bool:
        """Tell whether a name has one value in ``function``, or one that grows there in order."""
        places, growth = self.plain.get(name, []), self.growth.get(name, [])
        owner = function if function in places else None
        count = places.count(owner) if owner else len(places)
        if count != 1 or owner not in places or name in self.never or "*" in self.never | self.handed:
            return False
        elsewhere = any(each is not owner and each not in places for each in growth)
        return not elsewhere and (owner is function or owner not in growth)

    def hidden_in(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
        """Return the names of a function's own, which hide those around it."""
        return parameters(function.args) | {name for name, places in self.plain.items() if function in places}

    def dotted(self, node: ast.expr) -> str:
        """Return ``subprocess.run`` for a name of it, whatever it is imported as; empty for other values."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])


def parameters(given: ast.arguments) -> set[str]:
    """Return the names of a function's parameters."""
    rest = [each for each in (given.vararg, given.kwarg) if each is not None]
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)}


def _with_functions(code: ast.Module) -> Iterator[tuple[ast.AST, Function]]:
    """Yield each node with the function around it, a node before those in it."""
    todo: list[tuple[ast.AST, Function]] = [(code, None)]
    while todo:
        node, function = todo.pop()
        yield node, function
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        todo += [(child, inner) for child in ast.iter_child_nodes(node)]
