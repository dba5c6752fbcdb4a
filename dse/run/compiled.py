"""How kernels are compiled: once, into Numba's caches beside their sources, and again when a source changes.

Numba compiles a function again only if the file of the function itself changes. But a kernel contains the
code of the kernels that it calls. So its cache is keyed by all files from which its module imports kernels or
records (`stamp`).

The level of optimisation is low: LLVM then takes a third less time, and searches are as fast (they branch
more than they loop). A constant as an argument does not lead to another version of the function; where the
function is inlined, LLVM sees the constant anyway.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config, event, types

from dse.run import compiling

F = TypeVar("F", bound=Callable[..., Any])
config.OPT = config._OptLevel(1)  # type: ignore[attr-defined, no-untyped-call]


class _CompilationListener(event.Listener):
    """Reports each function that is compiled because no cache on disk has it."""

    def on_start(self, _event: Any) -> None:
        compiling.begins()

    def on_end(self, _event: Any) -> None:
        compiling.ends()


event.register("numba:compile", _CompilationListener())  # type: ignore[no-untyped-call]


def njit(**options: Any) -> Callable[[F], F]:
    """Returns a decorator: numba.njit with a cache keyed by `stamp` and one version for all constant
    arguments.
    """
    return lambda f: _keyed(_without_specialisation(numba.njit(**options)(f)))


def njit_no_alloc(f: F) -> F:
    """Decorator: compiles a function (called by compiled code only) without reference counts of arrays, which
    would take nine tenths of a search's time. Such a function must not create arrays.
    """
    return njit_internal(_nrt=False)(f)


def njit_inlined(f: F) -> F:
    """Decorator: as `njit_no_alloc`, and the function's code takes the place of every call. A record of
    arrays is passed field by field, every array as seven words or more: a call with the records of a search
    (state.py) pushes up to a thousand words, which took most of the time of small functions.
    """
    return njit_internal(_nrt=False, forceinline=True)(f)


def njit_internal(**options: Any) -> Callable[[F], F]:
    """Returns a decorator for functions that only compiled code calls. It omits the entry from Python, which
    unpacks every array of the arguments and takes long to compile.
    """
    return njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def _keyed(dispatcher: Any) -> Any:
    """Returns the compiled function, its cache keyed by `stamp` of its module. All that it calls must be
    defined or imported in that module.
    """
    if hasattr(getattr(dispatcher, "_cache", None), "_cache_file"):
        dispatcher._cache._cache_file._source_stamp = stamp(dispatcher.py_func.__module__)
    return dispatcher


@lru_cache(maxsize=256)
def stamp(module: str) -> bytes:
    """Returns a digest of the texts of a module's `sources`, and of the numbers defined or imported there."""
    key = hashlib.sha256()
    for name in sorted(sources(module)):
        text = Path(sys.modules[name].__file__ or "").read_bytes()
        numbers = {k: v for k, v in vars(sys.modules[name]).items() if isinstance(v, int | float)}
        key.update(hashlib.sha256(text).digest() + repr(sorted(numbers.items())).encode())
    return key.digest()


def sources(module: str) -> frozenset[str]:
    """Returns the names of `module`, of dse.run.compiled, and transitively of all modules of dse from which
    one of these imports kernels or records (NamedTuple).
    """
    found, to_visit = {module, __name__}, [module]
    while to_visit:
        for value in vars(sys.modules[to_visit.pop()]).values():
            record = isinstance(value, type) and issubclass(value, tuple)
            owner_module = getattr(getattr(value, "py_func", value if record else None), "__module__", "")
            if owner_module.startswith("dse.") and owner_module not in found:
                found.add(owner_module)
                to_visit.append(owner_module)
    return frozenset(found)


def _without_specialisation(dispatcher: Any) -> Any:
    """Returns a function that is compiled once for all constants with which it is called."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return dispatcher
    template = dispatcher.get_call_template

    def unliteral_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        positional, named = ([types.unliteral(kind) for kind in kinds] for kinds in (args, kws.values()))  # type: ignore[no-untyped-call]
        return template(tuple(positional), dict(zip(kws, named, strict=True)))

    dispatcher.get_call_template = unliteral_template
    return dispatcher
