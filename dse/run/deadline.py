"""Deadlines for the searches of this process. Compiled code cannot be interrupted from Python, so it reads
STOP once per step. A timer thread sets STOP; it can run meanwhile, since kernels release the interpreter's
lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

STOP = np.zeros(1, np.int64)  # [1] 1: a deadline has passed; kernels get this very array (state.Work.stop)
# deadlines in force, outermost first: (time.monotonic() of the end, whether `part` divides its time)
_DEADLINES: list[tuple[float, bool]] = []
_MISSED = [0]  # [1] number of deadlines that had passed when their body ended


def has_passed() -> bool:
    """Whether a deadline in force has passed: searches are then cut short."""
    return bool(_DEADLINES) and time.monotonic() >= min(end for end, _ in _DEADLINES)


def missed_count() -> int:
    """Number of deadlines that have passed so far. If it grows during a search, the answer may have been cut
    short.
    """
    return _MISSED[0] + has_passed()


@contextmanager
def within(seconds: float | None, is_divided: bool = False) -> Iterator[None]:
    """Sets a deadline for searches in the body, `seconds` from now; None: no deadline. is_divided: whether
    `part` divides the time among parts of the body.
    """
    if seconds is None:
        yield
        return
    depth = len(_DEADLINES)
    _DEADLINES.append((time.monotonic() + max(seconds, 0.0), is_divided))
    timer = threading.Timer(max(seconds, 0.0), _stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        _MISSED[0] += time.monotonic() >= _DEADLINES[depth][0]
        del _DEADLINES[depth:]  # inner deadlines as well, should a signal have kept them from being removed
        timer.cancel()
        timer.join()
        STOP[0] = int(has_passed())


def _stop() -> None:
    STOP[0] = 1


@contextmanager
def part(parts: int, is_divided: bool = False) -> Iterator[None]:
    """Sets a deadline for the body: 1 / parts of the time that is left until a divided deadline. Without a
    divided deadline nothing is set. parts: parts that are still to be run, this one included. is_divided: as
    of `within`.
    """
    end, has_parts = _DEADLINES[-1] if _DEADLINES else (0.0, False)
    with within((end - time.monotonic()) / parts if has_parts else None, is_divided):
        yield
