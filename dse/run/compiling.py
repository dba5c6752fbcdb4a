"""Whether Numba is compiling a kernel right now, for progress displays: `dse/run/compiled.py` reports it
here, so that nobody has to import Numba to ask.
"""

from __future__ import annotations

_open = 0  # functions that are being compiled: one, and those that it calls


def begins() -> None:
    """Numba begins to compile a function, perhaps because another one that is being compiled calls it."""
    global _open
    _open += 1


def ends() -> None:
    """The compilation that began last has ended (compilations nest)."""
    global _open
    _open -= 1


def now() -> bool:
    """Whether some function is being compiled."""
    return _open > 0
