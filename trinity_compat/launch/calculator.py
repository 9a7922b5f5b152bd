"""Constant arithmetic in other languages: ``bc``, ``awk 'BEGIN {print …}'``, ``python -c 'print(…)'``.

Only numbers and operators are read, from the parse tree; nothing is executed. Anything else is None.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal

NUMERIC = re.compile(r"[\d.\s+*/%()^-]{1,300}")
LARGEST = 10**15
Number = int | float
OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "int": int, "float": float, "round": round, "abs": abs, "max": max, "min": min,
}  # fmt: skip


def python(source: str) -> str | None:
    """What ``python -c source`` prints, when the source is ``print(number)``."""
    match = re.fullmatch(r"\s*print\s*\((.{1,300})\)\s*;?\s*", source, re.S)
    value = _evaluate(match[1]) if match else None
    return None if value is None else f"{value}\n"


def awk(program: str) -> str | None:
    """What ``BEGIN {print number}`` or ``BEGIN {printf "%.2f", number}`` prints."""
    match = re.fullmatch(
        r"\s*BEGIN\s*\{\s*(printf\s*\(?\s*\"([^\"]*)\"\s*,|print)\s*(.*?)\)?;?\s*\}\s*", program, re.S
    )
    text = match[3] if match else ""
    if not match or not NUMERIC.fullmatch(text):
        return None
    value = _evaluate(text.replace("^", "**") + ")" * (text.count("(") - text.count(")")))
    if value is None:
        return None
    if match[2] is None:
        return f"{int(value)}\n" if value == int(value) else f"{value:.6g}\n"
    form = re.fullmatch(r"%(\.\d{1,2})?([dfeg])(\\n)?", match[2])
    if not form:
        return None
    number = int(value) if form[2] == "d" else float(value)
    return f"%{form[1] or ''}{form[2]}" % number + ("\n" if form[3] else "")


def _evaluate(text: str) -> Number | None:
    try:
        return _node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError, MemoryError):
        return None


def _node(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _small(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _node(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _node(node.left), _node(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) <= 64 and abs(left) <= 1024:
            return _small(left**right)
        return _small(OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _small(FUNCTIONS[node.func.id](*(_node(arg) for arg in node.args)))
    raise ValueError


def _small(value: Number) -> Number:
    if isinstance(value, complex) or abs(value) > LARGEST:
        raise ValueError
    return value


def bc(text: str, *, library: bool = False) -> str | None:
    """What bc prints for ``scale=N; expression``; ``library`` is ``-l`` (20 digits)."""
    scale, out = 20 if library else 0, ""
    for line in re.split(r"[;\n]", text):
        setting = re.fullmatch(r"\s*scale\s*=\s*(\d{1,2})\s*", line)
        if setting:
            scale = int(setting[1])
        elif line.strip():
            result = _bc_line(line, scale)
            if result is None:
                return None
            out += result + "\n"
    return out


def _bc_line(line: str, scale: int) -> str | None:
    if not NUMERIC.fullmatch(line):
        return None
    try:
        value = _Bc(scale).node(ast.parse(line.strip().replace("^", "**"), mode="eval").body, line.strip())
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, KeyError):
        return None
    shown = f"{value:f}"
    if value == 0:
        return "0"
    return re.sub(r"^(-?)0\.", r"\1.", shown)


class _Bc:
    """bc's fixed-point numbers: each result has a scale of its own, division is cut off at ``scale``."""

    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.context = Context(prec=120, rounding=ROUND_DOWN)

    def node(self, node: ast.expr, text: str) -> Decimal:
        if isinstance(node, ast.Constant):
            return Decimal(ast.get_source_segment(text.replace("^", "**"), node) or "")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.node(node.operand, text)
        if not isinstance(node, ast.BinOp):
            raise ValueError
        return self._binary(node.op, self.node(node.left, text), self.node(node.right, text))

    def _binary(self, op: ast.operator, a: Decimal, b: Decimal) -> Decimal:
        scales = _digits(a), _digits(b)
        if isinstance(op, ast.Add | ast.Sub):
            return a + b if isinstance(op, ast.Add) else a - b
        if isinstance(op, ast.Mult):
            return self._cut(self.context.multiply(a, b), min(sum(scales), max(self.scale, *scales)))
        if isinstance(op, ast.Div):
            return self._cut(self.context.divide(a, b), self.scale)
        raise ValueError

    def _cut(self, value: Decimal, digits: int) -> Decimal:
        return value.quantize(Decimal(1).scaleb(-digits), context=self.context)


def _digits(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
