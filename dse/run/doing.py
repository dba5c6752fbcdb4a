"""How far a search of minutes is, as one short line: the search says it (`say`), and whoever runs it listens
(`heard_by`). Answers do not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

SAY_S = 2.0  # seconds between lines at least
_LISTENERS: list[Callable[[str], None]] = []
_said_at = [0.0]  # time.monotonic() of the last line


def say(text: Callable[[], str]) -> None:
    """Passes what `text` returns on to who listens, if the last line was said SAY_S ago."""
    if _LISTENERS and time.monotonic() - _said_at[0] >= SAY_S:
        _said_at[0] = time.monotonic()
        with suppress(Exception):  # who listens may be gone; the search goes on
            _LISTENERS[-1](text())


def say_einsum(index: int, efforts: Sequence[float], name: str) -> None:
    """Says which einsum of a workload is searched, a `ProgressFn`."""
    say(lambda: f"{name}, {index + 1} of {len(efforts)} einsums")


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Passes on to `listener` what searches say in the body."""
    _LISTENERS.append(listener)
    _said_at[0] = time.monotonic()
    try:
        yield
    finally:
        _LISTENERS.pop()
