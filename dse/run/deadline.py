"""Deadlines for the searches of this process. Compiled code cannot be interrupted from Python, so it looks at
STOP once per step; a thread sets it, which runs since kernels release the interpreter's lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

STOP = np.zeros(1, np.int64)  # 1: a deadline has passed; kernels get this very array (state.Work.stop)
_ENDS: list[tuple[float, bool]] = []  # deadlines that are set, by time.monotonic; whether `part` divides it
_MISSED = [0]  # how many deadlines had passed when their body ended


def passed() -> bool:
    """Whether a deadline that is set has passed. What is searched then is cut short."""
    return bool(_ENDS) and time.monotonic() >= min(end for end, _ in _ENDS)


def missed() -> int:
    """How many deadlines have passed so far. Where the number grows, answers may have been cut short."""
    return _MISSED[0] + passed()


@contextmanager
def within(seconds: float | None, divided: bool = False) -> Iterator[None]:
    """Sets a deadline for searches in the body, in seconds from now; None sets none. divided: whether `part`
    gives each part of the body its share of the time.
    """
    if seconds is None:
        yield
        return
    depth = len(_ENDS)
    _ENDS.append((time.monotonic() + max(seconds, 0.0), divided))
    timer = threading.Timer(max(seconds, 0.0), _stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        _MISSED[0] += time.monotonic() >= _ENDS[depth][0]
        del _ENDS[depth:]  # those inside as well, should a signal have kept them from ending
        timer.cancel()
        timer.join()
        STOP[0] = int(passed())


def _stop() -> None:
    STOP[0] = 1


@contextmanager
def part(parts: int) -> Iterator[None]:
    """Gives the body one of so many equal parts of the time that is left of a divided deadline. Without such
    a deadline nothing is set.
    """
    end, divided = _ENDS[-1] if _ENDS else (0.0, False)
    with within((end - time.monotonic()) / parts if divided else None):
        yield
