"""What the runners of case files share: how a case's einsum, leakage and reading faults are taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from workloads.einsum import Einsum, einsum

FACTOR = re.compile(r"(?<![\w.])(\d+)\s*([A-Za-z_])")
# what reading a case of another form raises
FAULTS = (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration)


class NotRun(Exception):
    """A case of a kind or form that has no runner yet; its text says which."""


def read_einsum(text: str, bounds: Mapping[str, int], name: str = "") -> Einsum:
    """2p+r stands for 2*p+r."""
    return einsum(FACTOR.sub(r"\1*\2", text), dict(bounds), name)


def leak(data: Mapping[str, Any]) -> float:
    """Energy per cycle of one instance, which at 1 GHz are mW."""
    return float(
        next(
            (
                value
                for key, value in data.items()
                if key.startswith("leak") and isinstance(value, int | float)
            ),
            0.0,
        )
    )


def told(case: Callable[[], list[str]]) -> list[str]:
    """What a case finds wrong, or why it is not run: never an exception."""
    try:
        return case()
    except NotRun as why:
        return [f"not run: {why}"]
    except FAULTS as fault:
        return [f"not run: cannot be read: {type(fault).__name__}: {fault}"]
