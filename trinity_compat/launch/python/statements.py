"""Statements of a Python launcher, in their order.

A condition or a loop that cannot be decided is read on a copy of the names, for the commands that it starts;
every name and list that it changes is open afterwards. The body of ``try`` is assumed to succeed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from trinity_compat.common.errors import Where
from trinity_compat.launch.python.evaluator import EXIT, Evaluator, File, ProgramExit, forget
from trinity_compat.launch.python.ipython import SHELL_LINE, run_line
from trinity_compat.launch.python.values import (
    Function,
    Item,
    Items,
    Known,
    NotKnown,
    Table,
    Text,
    are_equal,
    open_text,
    shown,
)

_Body = Sequence[ast.stmt]
_DEEP = 20  # calls of functions in each other
_SHOWN = 100  # characters of a condition


class _Return(Exception):
    """Leave a function with ``item``."""

    def __init__(self, item: Item) -> None:
        super().__init__()
        self.item = item


def run_module(file: File, names: dict[str, Item], body: _Body) -> None:
    """Read a module, or a cell of a notebook; then the functions that it does not call."""
    with suppress(ProgramExit, _Return):
        _block(Evaluator(file, names), body)
    for function in file.defined:
        if function.node not in file.entered:
            with suppress(NotKnown, ProgramExit):
                invoke(Evaluator(file, names), function, [], {})


def invoke(ev: Evaluator, function: Function, given: list[Item], named: dict[str, Item]) -> Item:
    """Read a function with these arguments, and return its result. Raises NotKnown."""
    file, node = ev.file, function.node
    if file.depth >= _DEEP:
        raise NotKnown
    file.entered.add(node)
    file.budget.step(len(function.around) // 20)  # which are copied
    around = Evaluator(file, function.around)
    inner = Evaluator(file, dict(function.around))
    taken = dict(zip((each.arg for each in _parameters(node)), given, strict=False)) | named
    for parameter, default in _parameters(node).items():
        item = taken.get(parameter.arg)
        if item is None and default is not None:
            item = around.item(default)
        inner.names[parameter.arg] = item or open_text(parameter.arg, ev.where(parameter))
    for rest in (node.args.vararg, node.args.kwarg):
        if rest is not None:
            inner.names[rest.arg] = open_text(rest.arg, ev.where(rest))
    file.depth += 1
    try:
        _block(inner, node.body)
        result: Item = Known(None, ev.where(node))
    except _Return as found:
        result = found.item
    finally:
        file.depth -= 1
    if inner.may_have_returned:
        raise NotKnown
    return result


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[ast.arg, ast.expr | None]:
    """Return the parameters of a function, each with its default."""
    positional = [*node.args.posonlyargs, *node.args.args]
    missing = [None] * (len(positional) - len(node.args.defaults))
    found = dict(zip(positional, [*missing, *node.args.defaults], strict=True))
    return found | dict(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))


def _block(ev: Evaluator, body: _Body) -> None:
    for index, statement in enumerate(body):
        ev.file.at = ev.where(statement)
        ev.file.budget.step()
        returned = ev.may_have_returned
        with suppress(NotKnown):
            _STATEMENTS.get(type(statement), _expressions)(ev, statement)
        if ev.may_have_returned and not returned:  # the rest may not be reached
            _undecided(ev, [body[index + 1 :]], statement, ev.file.condition)
            return


def _undecided(ev: Evaluator, branches: Sequence[_Body], node: ast.stmt, condition: str) -> None:
    """Read branches of which none, one, or one several times may be taken."""
    before, outer = ev.names, ev.file.condition
    results: list[dict[str, Item]] = []
    ev.file.condition = condition
    for branch in branches:
        ev.file.budget.step(1 + sum(len(i.members) for i in before.values() if isinstance(i, Items)) // 100)
        ev.names = copy.deepcopy(before)
        try:
            _block(ev, branch)
            results.append(ev.names)
        except _Return:
            ev.may_have_returned = True
        except ProgramExit:
            pass
    ev.names, ev.file.condition = before, outer
    original, suffix = copy.deepcopy(before), f" (depends on {condition})" if condition else ""
    for after in results:
        _merge(before, original, after, suffix, ev.where(node))


def _merge(
    names: dict[Any, Item],
    before: Mapping[Any, Item],
    after: Mapping[Any, Item],
    suffix: str,
    where: Where,
    owner: str = "",
) -> None:
    """Make open what a branch changed; a list that grew keeps its members, followed by an open one."""
    for name, changed in after.items():
        item, old = names.get(name), before.get(name)
        if are_equal(changed, old):
            continue
        spelled = f"{owner}[{name!r}]" if owner else str(name)
        label = spelled + suffix
        if isinstance(item, Items) and isinstance(old, Items) and isinstance(changed, Items):
            if not are_equal(Items(changed.members[: len(old.members)]), old):
                forget(item, label, where)
            elif len(item.members) == len(old.members) and item.members[-1:] != [open_text(label, where)]:
                item.members.append(open_text(label, where))
        elif isinstance(item, Table) and isinstance(old, Table) and isinstance(changed, Table):
            _merge(item.entries, old.entries, changed.entries, suffix, where, spelled)
        else:
            names[name] = open_text(label, where)


def _expressions(ev: Evaluator, node: ast.stmt) -> None:
    """Evaluate what a statement of another kind calls."""
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and ev.dotted(call.func) == SHELL_LINE:
        run_line(ev, call)
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            ev.item(child)


def _assign(ev: Evaluator, node: ast.Assign | ast.AnnAssign) -> None:
    if node.value is not None:
        item = ev.item(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            ev.bind(target, item)


def _augmented(ev: Evaluator, node: ast.AugAssign) -> None:
    """``a += b``: a list grows in place, everything else is ``a = a + b``."""
    before = ev.item(node.target)
    sum_of_both = ev.item(ast.copy_location(ast.BinOp(node.target, node.op, node.value), node))
    if isinstance(before, Items) and isinstance(sum_of_both, Items):
        before.members[:] = sum_of_both.members
    elif isinstance(before, Items):
        forget(before, node.value, ev.where(node))
    else:
        ev.bind(node.target, sum_of_both)


def _if(ev: Evaluator, node: ast.If) -> None:
    try:
        taken = bool(ev.plain(node.test))
    except NotKnown:
        left, stays = (node.body, node.orelse) if _leaves(ev, node.body) else (node.orelse, node.body)
        if _leaves(ev, left):
            _undecided(ev, [left], node, shown(node.test)[:_SHOWN])
            _block(ev, stays)
        else:
            _undecided(ev, [node.body, node.orelse], node, shown(node.test)[:_SHOWN])
        return
    _block(ev, node.body if taken else node.orelse)


def _leaves(ev: Evaluator, body: _Body) -> bool:
    """Tell whether a branch ends the function or the program."""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ev.dotted(last.value.func) in EXIT
    return isinstance(last, ast.Return | ast.Raise)


def _for(ev: Evaluator, node: ast.For | ast.AsyncFor) -> None:
    try:
        if any(isinstance(inner, ast.Break | ast.Continue) for inner in ast.walk(node)):
            raise NotKnown
        rounds = ev.members(node.iter)
    except NotKnown:
        ev.bind(node.target, open_text(node.target, ev.where(node)))
        _repeated(ev, node, f"{shown(node.target)} in {shown(node.iter)}")
        return
    for item in rounds:
        ev.bind(node.target, item)
        _block(ev, node.body)
    _block(ev, node.orelse)


def _repeated(ev: Evaluator, node: ast.For | ast.AsyncFor | ast.While, condition: str) -> None:
    """Read the body twice: first for the names that it changes, then, with these open, for its commands."""
    count = len(ev.file.commands)
    _undecided(ev, [node.body], node, condition[:_SHOWN])
    del ev.file.commands[count:]
    _undecided(ev, [node.body], node, condition[:_SHOWN])
    _block(ev, node.orelse)


def _try(ev: Evaluator, node: ast.Try) -> None:
    try:
        _block(ev, node.body)
        _block(ev, node.orelse)
    finally:
        _undecided(ev, [handler.body for handler in node.handlers], node, "an exception")
        _block(ev, node.finalbody)


def _with(ev: Evaluator, node: ast.With | ast.AsyncWith) -> None:
    for item in node.items:
        value = ev.item(item.context_expr)
        if item.optional_vars is not None:
            ev.bind(
                item.optional_vars,
                value if isinstance(value, Text) else open_text(item.optional_vars, ev.where(node)),
            )
    _block(ev, node.body)


def _function(ev: Evaluator, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    function = Function(node, ev.names)
    ev.names[node.name] = open_text(node.name, ev.where(node)) if node.decorator_list else function
    ev.file.defined.append(function)


def _class(ev: Evaluator, node: ast.ClassDef) -> None:
    """Read the methods of a class as functions that are not called."""
    ev.names[node.name] = open_text(node.name, ev.where(node))
    methods = [inner for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)]
    ev.file.defined += [Function(method, ev.names) for method in methods]


def _return(ev: Evaluator, node: ast.Return) -> None:
    raise _Return(Known(None, ev.where(node)) if node.value is None else ev.item(node.value))


def _raise(ev: Evaluator, node: ast.Raise) -> None:
    _expressions(ev, node)
    raise ProgramExit


# Any: each takes the statements of its own type.
_STATEMENTS: dict[type[ast.stmt], Callable[[Evaluator, Any], None]] = {
    ast.Assign: _assign, ast.AnnAssign: _assign, ast.AugAssign: _augmented, ast.If: _if, ast.For: _for,
    ast.AsyncFor: _for, ast.Try: _try, ast.With: _with, ast.AsyncWith: _with, ast.ClassDef: _class,
    ast.FunctionDef: _function, ast.AsyncFunctionDef: _function, ast.Return: _return, ast.Raise: _raise,
    ast.While: lambda ev, node: _repeated(ev, node, shown(node.test)),
    ast.Match: lambda ev, node: _undecided(
        ev, [case.body for case in node.cases], node, shown(node.subject)[:_SHOWN]
    ),
}  # fmt: skip
