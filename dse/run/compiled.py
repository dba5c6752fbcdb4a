"""How kernels are compiled: once, into caches beside their sources.

Light optimisation: LLVM takes a third less time, and searches are as fast (they branch more than they loop). A constant in a call makes no copy of the function
of its own: where that is inlined, LLVM sees the constant all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import config, event, types

from dse.run import compiling

F = TypeVar("F", bound=Callable[..., Any])
config.OPT = config._OptLevel(1)  # type: ignore[attr-defined, no-untyped-call]


class _Told(event.Listener):
    """Hears of each function that no cache on disk has."""

    def on_start(self, event: Any) -> None:
        compiling.begins(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        compiling.ends()


event.register("numba:compile", _Told())  # type: ignore[no-untyped-call]


def njit(**options: Any) -> Callable[[F], F]:
    return lambda f: _without_specialisation(numba.njit(**options)(f))


def lean(f: F) -> F:
    """Compiled without the counting of references to arrays, which costs nine tenths of the time of a search: such a function makes no array."""
    return inner(_nrt=False)(f)


def inner(**options: Any) -> Callable[[F], F]:
    """For compiled functions alone: without a way in from Python, which unpacks every array of the arguments and takes long to compile."""
    return njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def _without_specialisation(found: Any) -> Any:
    """The same function whatever constants it is called with."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return found
    template = found.get_call_template

    def plain(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        own, named = ([types.unliteral(kind) for kind in kinds] for kinds in (args, kws.values()))  # type: ignore[no-untyped-call]
        return template(tuple(own), dict(zip(kws, named, strict=True)))

    found.get_call_template = plain
    return found
