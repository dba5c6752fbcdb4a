"""Expressions and statements of a source found by the definition that they stand in, and changed: how mutants
are anchored.

A place is (definition, old, nth): the nth expression or run of statements equal to `old` inside a function or
class, in source order. It survives formatting and lines that move; a rule that is rewritten loses its mutant,
and the proof of mutants says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Nodes parent.field[start:stop], or the single node parent.field where start is None."""

    parent: ast.AST
    field: str
    start: int | None = None
    stop: int = 0


def changed(source: str, definition: str, old: str, new: str, nth: int | None = None) -> str:
    """The source with `old` replaced by `new` at one place, as ast.unparse prints it.

    nth: which of several equal places, from 0; None: there must be exactly one. Raises ValueError where the
    place does not exist.

    >>> changed("def f(a):\\n    return a < 1", "f", "a < 1", "a <= 1")
    'def f(a):\\n    return a <= 1'
    """
    tree = ast.parse(source)
    _replace(_place(tree, definition, old, new, nth), _fragments(old, new)[1])
    return ast.unparse(ast.fix_missing_locations(tree))


def check(tree: ast.AST, definition: str, old: str, new: str, nth: int | None = None) -> None:
    """Raises ValueError where a parsed source has not the place that `changed` would change."""
    _place(tree, definition, old, new, nth)


def _place(tree: ast.AST, definition: str, old: str, new: str, nth: int | None) -> Place:
    places = list(_places(_scope(tree, definition), _fragments(old, new)[0]))
    if nth is None and len(places) > 1:
        raise ValueError(f"{definition or 'the module'} has {len(places)} of: {old}; say which (nth)")
    if len(places) <= (nth or 0):
        raise ValueError(f"{definition or 'the module'} has {len(places)} of: {old}")
    return places[nth or 0]


def _fragments(old: str, new: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Both as one expression each, else as statements."""
    before, after = ast.parse(old).body, ast.parse(new).body
    if len(before) == len(after) == 1 and isinstance(before[0], ast.Expr) and isinstance(after[0], ast.Expr):
        return [before[0].value], [after[0].value]
    return list(before), list(after)


def _scope(tree: ast.AST, definition: str) -> ast.AST:
    """The node of `Class.method`, `outer.inner`; the module for an empty name. Raises ValueError if there is
    none.
    """
    scope = tree
    for name in definition.split(".") if definition else []:
        kinds = (ast.FunctionDef, ast.ClassDef)
        inner = (
            node
            for node in ast.walk(scope)
            if isinstance(node, kinds) and node.name == name and node is not scope
        )
        found = next(inner, None)
        if found is None:
            raise ValueError(f"there is no {definition}")
        scope = found
    return scope


def _places(scope: ast.AST, wanted: list[ast.AST]) -> Iterator[Place]:
    """Where a node, or a run of statements, is equal to what is wanted, in source order."""
    keys, statements = [ast.dump(node) for node in wanted], isinstance(wanted[0], ast.stmt)
    for field, value in ast.iter_fields(scope):
        nodes = value if isinstance(value, list) else [value]
        for i, node in enumerate(nodes):
            if not isinstance(node, ast.AST):
                continue
            run = nodes[i : i + len(wanted)]
            if isinstance(node, ast.stmt) == statements and [ast.dump(one) for one in run] == keys:
                yield (
                    Place(scope, field, i, i + len(wanted))
                    if isinstance(value, list)
                    else Place(scope, field)
                )
            yield from _places(node, wanted)


def _replace(place: Place, after: list[ast.AST]) -> None:
    if place.start is None:
        setattr(place.parent, place.field, after[0])
    else:
        getattr(place.parent, place.field)[place.start : place.stop] = deepcopy(after)
