"""Calls in a launcher: what starts a program, functions of its own, and those of Python's that make words."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from trinity_compat.launch.bash.limits import FIELDS
from trinity_compat.launch.bash.traced_text import Value, text_of
from trinity_compat.launch.python import functions, methods
from trinity_compat.launch.python.evaluator import Evaluator
from trinity_compat.launch.python.items import (
    Code,
    DictValue,
    Item,
    Items,
    Namespace,
    NotKnown,
    Text,
    copied,
    opened,
    text,
)
from trinity_compat.launch.source_contents import SourceCommand

_WORDS = {
    f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen", "getoutput")
} | {"os.execvp", "os.execv", "os.execvpe", "os.spawnvp"}
_CODE = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
_SPREAD = {"asyncio.create_subprocess_exec", "os.execlp", "os.execl"}  # words as arguments of the call
ENDS = {"sys.exit", "exit", "quit", "os._exit"}
_DEEP = 20  # functions in each other
SHELL_LINE = "__shell_line__"  # what a notebook's `!command` becomes


class ProgramExit(Exception):
    """The program ends."""


class Leave(Exception):
    """A function returns ``item``."""

    def __init__(self, item: Item) -> None:
        super().__init__()
        self.item = item


def called(ev: Evaluator, node: ast.Call) -> Item:
    """What a call makes. Raises NotKnown for what isn't written out, and `Stop`."""
    name = ev.dotted(node.func)
    if name in _WORDS | _CODE | _SPREAD:
        _start(ev, node, name)
        raise NotKnown
    if name in ENDS:
        functions.given_to(ev, node)
        raise ProgramExit
    if name in _OF_NAMES:
        return _OF_NAMES[name](ev, node)
    owner = None if name else _owner(ev, node.func)
    if owner is not None and isinstance(node.func, ast.Attribute):
        return methods.call(ev, node, owner, node.func.attr)
    return _own(ev, node)


def _owner(ev: Evaluator, function: ast.expr) -> Item | None:
    """What a method is called of; an object of the launcher's own has methods of its own."""
    if not isinstance(function, ast.Attribute):
        return None
    owner = ev.item(function.value)
    return None if isinstance(owner, Namespace) and function.attr in owner.names else owner


def _start(ev: Evaluator, node: ast.Call, name: str) -> None:
    """A program that is started."""
    place, keywords = ev.where(node), {word.arg: word.value for word in node.keywords}
    env = _environment(ev, keywords.get("env"))
    if name in _SPREAD:
        spread = words_of(ev, ast.List(elts=node.args))
        words = spread[1:] if name.startswith("os.") else spread
        _record(ev, SourceCommand(place, words=words, env=env, cwd=ev.file.cwd))
        return
    if not node.args:
        return
    first = node.args[1] if name.startswith("os.exec") and len(node.args) > 1 else node.args[0]
    shell = keywords.get("shell")
    if name in _CODE or (shell is not None and _is_true(ev, shell)):
        _record(ev, SourceCommand(place, ev.text(first), env=env, cwd=ev.file.cwd))
    elif words := words_of(ev, first):
        _record(ev, SourceCommand(place, words=words, env=env, cwd=ev.file.cwd))


def _record(ev: Evaluator, command: SourceCommand) -> None:
    if len(ev.file.commands) < FIELDS:
        ev.file.commands.append(command)
        ev.file.guesses_before_last = len(ev.file.guesses)


def _environment(ev: Evaluator, given: ast.expr | None) -> Mapping[str, str]:
    """The variables that the launcher itself sets for what it starts."""
    own = {name: text_of(value) for name, value in ev.file.environ.items()}
    item = ev.item(given) if given is not None else None
    entries = item.entries if isinstance(item, DictValue) else {}
    return own | {
        str(key): text_of(text(value, given or ast.Constant(None), ev.where(given or ast.Constant(None))))
        for key, value in entries.items()
    }


def _is_true(ev: Evaluator, node: ast.expr) -> bool:
    try:
        return bool(ev.plain(node))
    except NotKnown:
        return False


def words_of(ev: Evaluator, node: ast.expr) -> tuple[Value, ...]:
    """The words of a command; one that isn't written out is one open piece."""
    item = ev.item(node)
    if not isinstance(item, Items):
        return (opened(node, ev.where(node)).value,)
    return tuple(text(member, node, ev.where(node)) for member in item.members)


def shell_line(ev: Evaluator, node: ast.Call) -> Item:
    """A notebook's ``!command``, in which IPython puts the values of names."""
    from trinity_compat.launch.python import ipython

    (code,) = node.args
    value = ipython.expanded(ev, str(ast.literal_eval(code)), ev.where(node))
    _record(ev, SourceCommand(ev.where(node), value, env=_environment(ev, None), cwd=ev.file.cwd))
    raise NotKnown


def _own(ev: Evaluator, node: ast.Call) -> Item:
    """A function, a class or a method of the launcher's own."""
    function = ev.item(node.func)
    try:
        given, named = functions.given_to(ev, node)
    except NotKnown:
        given, named = [], {}
    if isinstance(function, Code):
        return invoke(ev, function, given, named)
    if isinstance(function, Namespace) and function.made_of is not None:
        return _instance(ev, function, given, named)
    raise NotKnown


def _instance(ev: Evaluator, made_of: Namespace, given: list[Item], named: dict[str, Item]) -> Item:
    """An object of a class: its defaults, then what ``__init__`` or a dataclass's own takes."""
    new = Namespace(copied(made_of.names))
    start = new.names.get("__init__")
    if isinstance(start, Code):
        invoke(ev, Code(start.node, start.around, new), given, named)
        return new
    fields = [name for name, item in new.names.items() if not isinstance(item, Code)]
    new.names |= dict(zip(fields, given, strict=False)) | named
    return new


def invoke(ev: Evaluator, code: Code, given: list[Item], named: Mapping[str, Item]) -> Item:
    """Go through a function with these arguments. Raises NotKnown where it returns nothing that is known."""
    file = ev.file
    if file.depth >= _DEEP:
        raise NotKnown
    file.entered.add(code.node)
    names = {**code.around, **_parameters(ev, code, given, named)}
    inner = Evaluator(file, names, called)
    if isinstance(code.node, ast.Lambda):
        return inner.item(code.node.body)
    file.depth += 1
    try:
        return file.run(inner, code.node)
    finally:
        file.depth -= 1


def _parameters(ev: Evaluator, code: Code, given: list[Item], named: Mapping[str, Item]) -> dict[str, Item]:
    """What a function's parameters hold; one that nobody gives is open under its own name."""
    if isinstance(code.node, ast.ClassDef):
        raise NotKnown
    spelled = code.node.args
    plain_ones = [*spelled.posonlyargs, *spelled.args]
    around = Evaluator(ev.file, code.around, called)
    defaults = dict(
        zip(
            (p.arg for p in plain_ones[len(plain_ones) - len(spelled.defaults) :]),
            spelled.defaults,
            strict=True,
        )
    )
    defaults |= {
        p.arg: d for p, d in zip(spelled.kwonlyargs, spelled.kw_defaults, strict=True) if d is not None
    }
    values = [code.bound, *given] if code.bound is not None else given
    found: dict[str, Item] = dict(zip((p.arg for p in plain_ones), values, strict=False))
    for parameter in [*plain_ones, *spelled.kwonlyargs]:
        name = parameter.arg
        if name in named:
            found[name] = named[name]
        elif name not in found:
            default = defaults.get(name)
            symbol = ast.copy_location(ast.Name(name), parameter)
            found[name] = opened(symbol, ev.where(parameter)) if default is None else around.item(default)
    if spelled.vararg:
        found[spelled.vararg.arg] = Items(list(values[len(plain_ones) :]))
    if spelled.kwarg:
        found[spelled.kwarg.arg] = DictValue({k: item for k, item in named.items() if k not in found})
    return found


def _map(ev: Evaluator, node: ast.Call) -> Item:
    if len(node.args) != 2:
        raise NotKnown
    where = ev.where(node)
    if ev.dotted(node.args[0]) == "str":
        return Items([Text(text(item, node.args[1], where)) for item in ev.many(node.args[1])])
    function = ev.item(node.args[0])
    if not isinstance(function, Code):
        raise NotKnown
    return Items([invoke(ev, function, [item], {}) for item in ev.many(node.args[1])])


def _field(ev: Evaluator, node: ast.Call) -> Item:
    """``dataclasses.field(default=…)``."""
    given = functions.given_to(ev, node)[1]
    if "default" in given:
        return given["default"]
    factory = given.get("default_factory")
    if isinstance(factory, Code):
        return invoke(ev, factory, [], {})
    empty = next((ev.dotted(word.value) for word in node.keywords if word.arg == "default_factory"), "")
    if empty not in ("list", "dict"):
        raise NotKnown
    return Items([]) if empty == "list" else DictValue({})


_OF_NAMES: dict[str, Callable[[Evaluator, ast.Call], Item]] = {
    **functions.OF_NAMES,
    SHELL_LINE: shell_line,
    "map": _map,
    "field": _field,
    "dataclasses.field": _field,
}
