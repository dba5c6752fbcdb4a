"""How much a test tries: a quarter by default, all of it in `make prove PART=tests` (DSE_TESTS=full)."""

from __future__ import annotations

import os

FULL = os.environ.get("DSE_TESTS") == "full"


def amount(full: int) -> int:
    """So many examples or seeds of `full`."""
    return full if FULL else -(-full // 4)
