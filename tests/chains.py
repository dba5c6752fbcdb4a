"""Long graphs, and code that runs under a low limit of recursion: no depth may grow with the number of
operations.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workloads.einsum import einsum
from workloads.graph import Workload

SIZES = {"m": 8, "n": 8, "k": 8}
DEEP = 90  # frames that a short graph needs, with room to spare
ROOT = Path(__file__).parents[1]


def products(length: int) -> Workload:
    """T1 = T0 W0, T2 = T1 W1, ...: each product reads the one before."""
    return Workload(
        "products",
        tuple(einsum(f"T{i + 1}[m,n] += T{i}[m,k] * W{i}[k,n]", SIZES, f"e{i}") for i in range(length)),
    )


def functions(length: int) -> Workload:
    """T1 = f(T0), ...: one pipeline."""
    return Workload(
        "functions",
        tuple(einsum(f"T{i + 1}[m,n] = f(T{i}[m,n])", {"m": 8, "n": 8}, f"e{i}") for i in range(length)),
    )


def sums(length: int) -> Workload:
    """T1 = A B, T2 = X1 + T1, T3 = X2 + T2, ...: one operation takes in all of them."""
    product = einsum("T1[m,n] += A[m,k] * B[k,n]", SIZES, "p")
    more = (
        einsum(f"T{i + 1}[m,n] = X{i}[m,n] + T{i}[m,n]", {"m": 8, "n": 8}, f"s{i}") for i in range(1, length)
    )
    return Workload("sums", (product, *more))


def apart(length: int) -> Workload:
    """Operations that share nothing: every order is one."""
    return Workload(
        "apart", tuple(einsum(f"Y{i}[m,n] = f(X{i}[m,n])", {"m": 8, "n": 8}, f"e{i}") for i in range(length))
    )


KINDS = {make.__name__: make for make in (products, functions, sums, apart)}


@contextmanager
def shallow(deep: int = DEEP) -> Iterator[None]:
    """So many frames more than there are; also those of C code that counts them (pickle, repr)."""
    frame, depth, before = sys._getframe(), 0, sys.getrecursionlimit()
    while (above := frame.f_back) is not None:
        frame, depth = above, depth + 1
    sys.setrecursionlimit(depth + deep)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def recursive(folders: tuple[str, ...]) -> set[str]:
    """file:function of all that call themselves, by way of functions of the same file too; names as Python
    resolves them.
    """
    found: set[str] = set()
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        calls: dict[str, set[str]] = {}
        _calls(ast.parse(path.read_text(encoding="utf-8")), "", [{}], "", calls)
        for name in calls:
            seen, left = set[str](), set(calls[name])
            while left:
                one = left.pop()
                if one not in seen:
                    seen.add(one)
                    left |= calls.get(one, set())
            found |= {f"{path.relative_to(ROOT)}:{name}"} if name in seen else set()
    return found


Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
NAMELESS = (ast.expr_context, ast.Constant, ast.operator, ast.cmpop)


def _calls(
    tree: ast.AST, name: str, scopes: list[dict[str, str]], owner: str, calls: dict[str, set[str]]
) -> None:
    """calls[function]: functions that its body names or calls as self.NAME. scopes: functions by the names
    that see them; owner: the class around.
    """
    inside = list(_body(tree))
    here = {node.name: f"{name}.{node.name}".lstrip(".") for node in inside if isinstance(node, Definition)}
    bound = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in inside if isinstance(node, ast.arg)}
    hidden = dict.fromkeys(bound - here.keys(), "")
    seen = [*scopes, hidden | here] if not isinstance(tree, ast.ClassDef) else scopes
    for node in inside:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            target = next((scope[node.id] for scope in reversed(seen) if node.id in scope), "")
            calls.setdefault(name, set()).update({target} - {""})
        elif (
            owner
            and isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            calls.setdefault(name, set()).add(f"{owner}.{node.attr}")
        elif isinstance(node, Definition):
            _calls(
                node,
                here[node.name],
                seen,
                here[node.name] if isinstance(node, ast.ClassDef) else owner,
                calls,
            )


def _body(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a definition but annotations; inner definitions as one node each."""
    left = _below(tree)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, Definition):
            left += _below(node)


def _below(node: ast.AST) -> list[ast.AST]:
    found = []
    for field in node._fields:
        child = getattr(node, field, None)
        if field not in ("annotation", "returns", "ctx"):
            found += [
                one
                for one in (child if isinstance(child, list) else [child])
                if isinstance(one, ast.AST) and not isinstance(one, NAMELESS)
            ]
    return found
