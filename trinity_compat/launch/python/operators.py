"""Python's operators on values that are known, within bounds: a launcher must not cost what it would cost."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from trinity_compat.launch.bash import limits
from trinity_compat.launch.python.items import NotKnown

_BITS = 4096  # of a whole number
_WIDE = re.compile(r"\d{4}|\*")  # the width of a format that could make a long text
# Of values that nothing is known of by their types: every use is guarded by `_guarded`.
_Operator = Callable[..., object]

_BINARY: dict[type[ast.operator], _Operator] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARE: dict[type[ast.cmpop], _Operator] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,  # of literals: None, True
    ast.IsNot: operator.ne,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_UNARY: dict[type[ast.unaryop], _Operator] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


def binary(kind: ast.operator, left: object, right: object) -> object:
    """``left kind right``. Raises NotKnown for what isn't computed, or is too large."""
    if isinstance(kind, ast.Pow):
        return _power(left, right)
    if type(kind) not in _BINARY:
        raise NotKnown
    if isinstance(kind, ast.Mult):
        _refuse_long_product(left, right)
    if isinstance(kind, ast.Mod) and isinstance(left, str) and _WIDE.search(left):
        raise NotKnown
    return _guarded(_BINARY[type(kind)], left, right)


def compare(kind: ast.cmpop, left: object, right: object) -> object:
    """``left kind right``. Raises NotKnown."""
    if type(kind) not in _COMPARE:
        raise NotKnown
    return _guarded(_COMPARE[type(kind)], left, right)


def unary(kind: ast.unaryop, value: object) -> object:
    """``kind value``. Raises NotKnown."""
    if type(kind) not in _UNARY:
        raise NotKnown
    return _guarded(_UNARY[type(kind)], value)


def formatted(value: object, spec: str, conversion: int = -1) -> str:
    """``f"{value!r:spec}"``. Raises NotKnown."""
    if _WIDE.search(spec):
        raise NotKnown
    if conversion in (ord("r"), ord("a")):
        value = repr(value)
    elif conversion == ord("s"):
        value = str(value)
    return str(_guarded(format, value, spec))


def _power(left: object, right: object) -> object:
    small = isinstance(left, int | float) and isinstance(right, int | float)
    if not small or abs(left) > 1 << 32 or abs(right) > 64:  # type: ignore[arg-type]
        raise NotKnown
    return _guarded(operator.pow, left, right)


def _refuse_long_product(left: object, right: object) -> None:
    for many, times in ((left, right), (right, left)):
        if isinstance(many, str | list) and isinstance(times, int) and len(many) * times > limits.FIELDS:
            raise NotKnown


def _guarded(function: _Operator, *values: object) -> object:
    try:
        made = function(*values)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        raise NotKnown from None
    if isinstance(made, int) and made.bit_length() > _BITS:
        raise NotKnown
    if isinstance(made, str | list) and len(made) > limits.VALUE:
        raise NotKnown
    return made
