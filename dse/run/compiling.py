"""Whether Numba is compiling a kernel right now, for progress displays: `dse/run/compiled.py` reports it
here, so that nobody has to import Numba to ask.
"""

from __future__ import annotations

_open = 0  # number of functions being compiled: above 1 where one calls others that are not compiled yet


def begins() -> None:
    """Report that Numba begins to compile a function (perhaps while it compiles another one that calls
    it).
    """
    global _open
    _open += 1


def ends() -> None:
    """Report that the compilation that began last has ended (compilations nest)."""
    global _open
    _open -= 1


def now() -> bool:
    """Whether some function is being compiled."""
    return _open > 0
