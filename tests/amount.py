"""How much a test tries: a part by default, all of it in `make prove PART=tests` (DSE_TESTS=full)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")
FULL = os.environ.get("DSE_TESTS") == "full"

full_only = pytest.mark.skipif(not FULL, reason="make prove PART=tests")


def amount(full: int, share: int = 4) -> int:
    """So many examples or seeds of `full`: one in `share` by default, 8 where each of them is dear."""
    return full if FULL else -(-full // share)


def some(every: Iterable[T], *at: int) -> list[T]:
    """The cases at these places of `every`: enough for each rule to fire. All of them in full."""
    found = list(every)
    return found if FULL else [found[i] for i in at]
