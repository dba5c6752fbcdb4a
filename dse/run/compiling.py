"""Whether Numba is compiling a kernel right now, for progress displays: `dse/run/compiled.py` reports it
here, so that nobody has to import Numba to ask.
"""

from __future__ import annotations

_open: list[str] = []  # functions that are being compiled, the outermost one first


def begins(function: str) -> None:
    """Numba begins to compile a function, perhaps because another one that is being compiled calls it."""
    _open.append(function)


def ends() -> None:
    """The compilation that began last has ended (compilations nest)."""
    _open.pop()


def now() -> bool:
    """Whether some function is being compiled."""
    return bool(_open)
