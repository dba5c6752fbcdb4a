"""What kind of value stands where in a file of a peer: checked once, before anything is read.

A shape is one of:
    NUMBER  a finite number            AMOUNT  a number, or a text that may be an expression
    COUNT   a whole number, 1 or more  TEXT    a text or number         object  anything
    [shape]                     a list
    {"key": shape, "key!": ..}  a mapping; `!`: the key is needed; other keys are free
    {ANY: shape}                a mapping of any keys
    (shape, shape)              one of these
    a function                  the shape that it returns, for shapes inside of themselves
A value that is missing or null has any shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from hw.component import show

NUMBER, AMOUNT, COUNT, TEXT, ANY = "a number", "an amount", "a whole number above 0", "a text", "*"
MAX_COUNT = 2**53
Shape = Any


def faults(file: str, key: str, value: Any, shape: Shape) -> Iterator[str]:
    """Yields a line per value of another kind: `file: key = value is no ...; write one`."""
    if value is None or shape is object:
        return
    if callable(shape):
        yield from faults(file, key, value, shape())
    elif isinstance(shape, tuple):
        if all(any(faults(file, key, value, one)) for one in shape):
            yield from faults(file, key, value, shape[-1])
    elif isinstance(shape, str):
        if not _is_scalar(value, shape):
            yield f"{file}: {key} = {show(value)} is not {shape}; write one"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{file}: {key} = {show(value)} is no list; write one"
            return
        for i, one in enumerate(value):
            if one is None:
                yield f"{file}: {key}[{i}] is empty; fill it or leave it out"
            yield from faults(file, f"{key}[{i}]", one, shape[0])
    elif not isinstance(value, dict):
        yield f"{file}: {key} = {show(value)} is no mapping of keys; write one"
    else:
        yield from _mapping_faults(file, key, value, shape)


def _mapping_faults(file: str, key: str, value: dict[Any, Any], shape: dict[str, Shape]) -> Iterator[str]:
    for name, inner in shape.items():
        if name == ANY:
            for own, one in value.items():
                yield from faults(file, f"{key}.{own}", one, inner)
            continue
        own = name.removesuffix("!")
        if name != own and value.get(own) is None:
            yield f"{file}: {key}.{own} is missing; add it"
        yield from faults(file, f"{key}.{own}", value.get(own), inner)


def _is_scalar(value: Any, shape: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return isinstance(value, bool) and shape == TEXT
    if isinstance(value, str):
        return shape in (AMOUNT, TEXT)
    if shape == COUNT:
        return isinstance(value, int) and 1 <= value <= MAX_COUNT
    return shape != NUMBER or isfinite(value)
