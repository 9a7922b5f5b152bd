"""Statements of a launcher, in their order: loops over what is known are gone through round by round, and a
condition that isn't known is taken one way, which is noted."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from trinity_compat.launch.python import methods, operators
from trinity_compat.launch.python.calls import ENDS, Leave, ProgramExit, called, invoke
from trinity_compat.launch.python.evaluator import ROUNDS, Evaluator, File
from trinity_compat.launch.python.items import (
    Code,
    DictValue,
    Item,
    Items,
    Known,
    Namespace,
    NotKnown,
    Text,
    copied,
    is_open,
    made,
    opened,
    plain,
    text,
)

_Body = Sequence[ast.stmt]
_SHOWN = 100  # characters of a condition


class _Next(Exception):
    """``continue``."""


class _Last(Exception):
    """``break``."""


def run_module(file: File, names: dict[str, Item], body: _Body) -> None:
    """Go through a module, or a cell of a notebook; then through the functions that it doesn't call."""
    ev = Evaluator(file, names, called)
    with suppress(ProgramExit, Leave, _Next, _Last):
        _block(ev, body)
    for code in file.defined:
        if code.node not in file.entered:
            with suppress(NotKnown, ProgramExit):
                invoke(ev, code, [], {})


def run_function(ev: Evaluator, node: ast.AST) -> Item:
    """What a function returns."""
    try:
        _block(ev, getattr(node, "body", []))
    except Leave as leave:
        return leave.item
    except (_Next, _Last):
        pass
    return Known(None, ev.where(node))


def _block(ev: Evaluator, body: _Body) -> None:
    for statement in body:
        ev.file.budget.step()
        run = _STATEMENTS.get(type(statement))
        try:
            if run is not None:
                run(ev, statement)
            else:
                _expressions(ev, statement)
        except NotKnown:
            pass


def _expressions(ev: Evaluator, node: ast.stmt) -> None:
    """A statement of another kind: what it calls."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            ev.item(child)


def _assign(ev: Evaluator, node: ast.Assign) -> None:
    item = ev.item(node.value)
    for target in node.targets:
        ev.bind(target, item)


def _annotated(ev: Evaluator, node: ast.AnnAssign) -> None:
    if node.value is not None:
        ev.bind(node.target, ev.item(node.value))
    elif isinstance(node.target, ast.Name):
        ev.names.setdefault(node.target.id, opened(node.target, ev.where(node)))


def _augmented(ev: Evaluator, node: ast.AugAssign) -> None:
    before = ev.item(node.target)
    if isinstance(before, Items) and isinstance(node.op, ast.Add):
        methods.grow(ev, before, node.value)
        return
    added = ev.item(node.value)
    if isinstance(before, DictValue) and isinstance(added, DictValue):
        before.entries |= added.entries
        return
    if isinstance(node.op, ast.Add) and (is_open(before) or is_open(added) or _is_text(before)):
        where = ev.where(node)
        value = (*text(before, node.target, where), *text(added, node.value, where))
        ev.file.budget.make(sum(len(bit.text) + 1 for bit in value))
        ev.bind(node.target, Text(value))
        return
    try:
        ev.bind(node.target, made(operators.binary(node.op, plain(before), plain(added)), ev.where(node)))
    except NotKnown:
        ev.bind(node.target, opened(node.value, ev.where(node)))


def _is_text(item: Item) -> bool:
    return isinstance(item, Text) or (isinstance(item, Known) and isinstance(item.value, str))


def _if(ev: Evaluator, node: ast.If) -> None:
    try:
        taken = bool(ev.plain(node.test))
    except NotKnown:
        _guess(ev, node)
        return
    _block(ev, node.body if taken else node.orelse)


def _guess(ev: Evaluator, node: ast.If) -> None:
    """A condition that cannot be known is taken as false, or the way that doesn't end the function: a
    launcher is written to reach its launch. The other way is read for what it starts."""
    taken = _leaves(node.orelse) and not _leaves(node.body)
    shown = ast.unparse(node.test)[:_SHOWN]
    told = f"this depends on {shown}, which cannot be known here; taken as {'true' if taken else 'false'}"
    ev.file.guesses.append((ev.where(node), told))
    _aside(ev, [node.orelse if taken else node.body])
    _block(ev, node.body if taken else node.orelse)


def _leaves(body: _Body) -> bool:
    """Whether statements end the function, the loop or the program."""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ENDS
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _for(ev: Evaluator, node: ast.For | ast.AsyncFor) -> None:
    """Over what isn't known: one round."""
    try:
        rounds = ev.many(node.iter)[:ROUNDS]
    except NotKnown:
        rounds = [opened(node.target, ev.where(node))]
    for item in rounds:
        ev.bind(node.target, item)
        try:
            _block(ev, node.body)
        except _Next:
            continue
        except _Last:
            return
    _block(ev, node.orelse)


def _while(ev: Evaluator, node: ast.While) -> None:
    """Until a condition that is known; one that isn't, or never changes, is one round."""
    for _ in range(1 if isinstance(node.test, ast.Constant) else ROUNDS):
        try:
            known = bool(ev.plain(node.test))
        except NotKnown:
            known = None
        if known is False:
            return
        try:
            _block(ev, node.body)
        except _Next:
            pass
        except _Last:
            return
        if known is None:
            return


def _try(ev: Evaluator, node: ast.Try) -> None:
    """The body goes well; its handlers are read for what they start."""
    try:
        _block(ev, node.body)
        _block(ev, node.orelse)
    finally:
        _aside(ev, [handler.body for handler in node.handlers])
        _block(ev, node.finalbody)


def _aside(ev: Evaluator, blocks: Sequence[_Body]) -> None:
    before = ev.names
    for block in blocks:
        ev.names = copied(before)
        with suppress(Leave, ProgramExit, _Last, _Next):
            _block(ev, block)
    ev.names = before


def _with(ev: Evaluator, node: ast.With | ast.AsyncWith) -> None:
    for item in node.items:
        value = ev.item(item.context_expr)
        if item.optional_vars is not None:
            ev.bind(item.optional_vars, value)
    _block(ev, node.body)


def _match(ev: Evaluator, node: ast.Match) -> None:
    """The last case, which most often is that of all others."""
    ev.item(node.subject)
    *others, last = node.cases
    _aside(ev, [case.body for case in others])
    _block(ev, last.body)


def _function(ev: Evaluator, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    code = Code(node, ev.names)
    ev.names[node.name] = code
    ev.file.defined.append(code)


def _class(ev: Evaluator, node: ast.ClassDef) -> None:
    inherited: dict[str, Item] = {}
    for base in node.bases:
        owner = ev.item(base)
        if isinstance(owner, Namespace):
            inherited |= owner.names
    inner = Evaluator(ev.file, dict(ev.names), called)
    _block(inner, node.body)
    own = {name: item for name, item in inner.names.items() if ev.names.get(name) is not item}
    methods_ = {name: Code(item.node, ev.names) for name, item in own.items() if isinstance(item, Code)}
    ev.names[node.name] = Namespace({**inherited, **own, **methods_}, node)


def _return(ev: Evaluator, node: ast.Return) -> None:
    raise Leave(Known(None, ev.where(node)) if node.value is None else ev.item(node.value))


def _raise(ev: Evaluator, node: ast.Raise) -> None:
    if node.exc is not None:
        ev.item(node.exc)
    raise ProgramExit


def _next(ev: Evaluator, node: ast.Continue) -> None:
    raise _Next


def _last(ev: Evaluator, node: ast.Break) -> None:
    raise _Last


def _delete(ev: Evaluator, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            ev.names.pop(target.id, None)
        elif isinstance(target, ast.Subscript) and isinstance(owner := ev.item(target.value), DictValue):
            key = ev.plain(target.slice)
            owner.entries = {name: item for name, item in owner.entries.items() if name != key}


def _nothing(ev: Evaluator, node: ast.stmt) -> None:
    """Imports are read beforehand."""


# Any: each takes the statements of its own type.
_STATEMENTS: dict[type[ast.stmt], Callable[[Evaluator, Any], None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.Try: _try,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Match: _match,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Continue: _next,
    ast.Break: _last,
    ast.Delete: _delete,
    ast.Import: _nothing,
    ast.ImportFrom: _nothing,
    ast.Global: _nothing,
    ast.Nonlocal: _nothing,
    ast.Pass: _nothing,
}
