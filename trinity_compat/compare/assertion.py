"""``--assert 'max(abs(delta("critic/score/mean"))) < 0.05'``: a small, safe expression language.

Vectors over the common x: ``a(name)``, ``b(name)``, ``delta(name)`` = b − a, ``relative(name)`` =
(b − a) / max(|a|, |b|). Functions: abs, max, min, mean, last, area(name). Arithmetic, comparisons,
and / or / not. Nothing else is evaluated.
"""

from __future__ import annotations

import ast
import operator
import statistics
from collections.abc import Callable
from typing import Any

from trinity_compat.common.errors import UserError
from trinity_compat.compare.conclusion import divergence
from trinity_compat.compare.verdict import Comparison

_Value = float | list[float] | bool
_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_REDUCE: dict[str, Callable[[list[float]], float]] = {
    "max": max,
    "min": min,
    "mean": statistics.fmean,
    "last": lambda v: v[-1],
}
_METRIC = ("a", "b", "delta", "relative", "area")


class _Diverged(Exception):
    """The assertion uses a metric that has NaN or infinite values."""


def failure(expression: str, comparison: Comparison) -> str | None:
    """Return None if the assertion holds, else the reason ("" if its numbers are the reason).

    An assertion on a metric with NaN or infinite values fails. Raises UserError as ``holds`` does.
    """
    try:
        return None if holds(expression, comparison) else ""
    except _Diverged as diverged:
        return str(diverged)


def holds(expression: str, comparison: Comparison) -> bool:
    """Return whether the assertion holds. Raises UserError for an invalid expression."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise UserError(f"--assert {expression!r}: {error.msg} at column {error.offset}") from error
    try:
        value = _Evaluator(expression, comparison).of(tree.body)
    except ZeroDivisionError as error:
        raise UserError(f"--assert {expression!r}: division by zero") from error
    if not isinstance(value, bool):
        raise UserError(f"--assert {expression!r} is a number, not a condition", hint="compare it: … < 0.05")
    return value


class _Evaluator:
    def __init__(self, expression: str, comparison: Comparison) -> None:
        self.expression = expression
        self.comparison = comparison

    def of(self, node: ast.expr) -> _Value:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BoolOp):
            parts = [bool(self.of(part)) for part in node.values]
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _each(operator.neg, self.of(node.operand))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.of(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return self._binary(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node.func.id, node.args)
        raise self._error(node)

    def _binary(self, node: ast.BinOp) -> _Value:
        apply = _BINARY[type(node.op)]
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                raise self._error(node, "the two metrics have different x")
            return [apply(p, q) for p, q in zip(left, right, strict=True)]
        if isinstance(left, list):
            return [apply(p, self._scalar(node, right)) for p in left]
        return _each(lambda q: apply(self._scalar(node, left), q), right)

    def _compare(self, node: ast.Compare) -> bool:
        values = [self._scalar(node, self.of(part)) for part in (node.left, *node.comparators)]
        for op, p, q in zip(node.ops, values, values[1:], strict=False):
            if type(op) not in _COMPARE:
                raise self._error(node)
            if not _COMPARE[type(op)](p, q):
                return False
        return True

    def _scalar(self, node: ast.expr, value: _Value) -> float:
        if isinstance(value, list):
            raise self._error(node, "a curve where a number is needed: use max(abs(…)), mean(…) or last(…)")
        return value

    def _call(self, name: str, args: list[ast.expr]) -> _Value:
        if name in _METRIC and len(args) == 1 and isinstance(args[0], ast.Constant):
            return self._metric(name, str(args[0].value))
        values = [self.of(arg) for arg in args]
        if name == "abs" and len(values) == 1:
            return _each(abs, values[0])
        if name in _REDUCE and len(values) == 1 and isinstance(values[0], list):
            return _REDUCE[name](values[0])
        if name in ("max", "min") and len(values) > 1:
            return _REDUCE[name]([v for v in values if isinstance(v, int | float)])
        raise UserError(
            f"--assert {self.expression!r}: unknown function {name}(…)",
            hint=f"known: {', '.join((*_METRIC, 'abs', *_REDUCE))}",
        )

    def _metric(self, name: str, metric: str) -> _Value:
        verdict = self.comparison.metric(metric)
        if verdict.a.broken or verdict.b.broken:
            raise _Diverged(divergence(verdict, self.comparison.options.axis))
        a, b = verdict.a.mean, verdict.b.mean
        if name == "area":
            return verdict.area
        if name in ("a", "b"):
            return a if name == "a" else b
        if name == "delta":
            return [q - p for p, q in zip(a, b, strict=True)]
        return [(q - p) / (max(abs(p), abs(q)) or 1.0) for p, q in zip(a, b, strict=True)]

    def _error(self, node: ast.expr, why: str = "not allowed in an assertion") -> UserError:
        piece = ast.get_source_segment(self.expression, node) or self.expression
        return UserError(f"--assert {self.expression!r}: {piece!r}: {why}")


def _each(apply: Callable[[float], float], value: _Value) -> _Value:
    return [apply(v) for v in value] if isinstance(value, list) else apply(value)
