"""Whether kernels are being compiled now, for who shows a wait: told by `dse/run/compiled.py`, without an import of Numba."""

from __future__ import annotations

_open: list[str] = []  # functions whose compilation has begun and not ended, the outermost first


def begins(function: str) -> None:
    _open.append(function)


def ends() -> None:
    _open.pop()


def now() -> bool:
    return bool(_open)
