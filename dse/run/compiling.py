"""Whether kernels are being compiled now, for who shows a wait: told by `dse/run/compiled.py`, without an
import of Numba.
"""

from __future__ import annotations

_open: list[str] = []  # functions whose compilation has begun and not ended, the outermost first


def begins(function: str) -> None:
    """Numba begins to compile a function, perhaps on behalf of one that is being compiled."""
    _open.append(function)


def ends() -> None:
    """The compilation that began last has ended."""
    _open.pop()


def now() -> bool:
    """Whether some function is being compiled."""
    return bool(_open)
