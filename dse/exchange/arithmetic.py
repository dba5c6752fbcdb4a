"""Numbers as peers write them: `12 * 34`, `datawidth * 3`, `8 * 38.4e9`, with names from elsewhere in the
file. Nothing but arithmetic is carried out.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
    "round": round,
    "log2": math.log2,
    "sqrt": math.sqrt,
}
CONSTANTS = {"inf": math.inf, ".inf": math.inf}
MAX_LENGTH = 200
MAX_POWER = 64


def number(value: Any, names: Mapping[str, Any] | None = None) -> float | None:
    """Returns the number that a value says; None where it says none.

    names: values of names, which may be expressions themselves
    >>> number("datawidth * 3", {"datawidth": "word / 2", "word": 16}), number("2 ** 20"), number("LPDDR4")
    (24.0, 1048576.0, None)
    """
    try:
        found = _number(value, names or {}, 10)
    except (ValueError, SyntaxError, TypeError, ArithmeticError, LookupError, RecursionError):
        return None
    return None if math.isnan(found) else found


def _number(value: Any, names: Mapping[str, Any], depth: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("no number")
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    if text in CONSTANTS:
        return CONSTANTS[text]
    if depth == 0 or len(text) > MAX_LENGTH:
        raise ValueError("too deep")
    return float(_walked(ast.parse(text, mode="eval").body, names, depth))


def _walked(node: ast.AST, names: Mapping[str, Any], depth: int) -> float:
    if isinstance(node, ast.Constant):
        return _number(node.value, {}, 1)
    if isinstance(node, ast.Name):
        return _number(names[node.id] if node.id in names else CONSTANTS.get(node.id), names, depth - 1)
    if isinstance(node, ast.UnaryOp):
        return float(OPERATORS[type(node.op)](_walked(node.operand, names, depth)))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return float(
            OPERATORS[type(node.op)](_walked(node.left, names, depth), _walked(node.right, names, depth))
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _walked(node.left, names, depth), _walked(node.right, names, depth)
        if abs(power) > MAX_POWER:
            raise ValueError("too large")
        return float(base**power)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return float(FUNCTIONS[node.func.id](*(_walked(one, names, depth) for one in node.args)))
    raise ValueError("no arithmetic")
