"""What a plug-in promises, tried: `dse check FILE.py:NAME`. Its kind is read off the names of its parameters:

mapper           (problem, rng) -> list of mappings, texts or values, or Infeasible
component table  (capacity_bits, width_bits, node_nm, cell) -> {read_pj: ..., write_pj: ..., ...}
cost term        (machine, energy_pj, latency_ns, area_mm2, ...) -> number
workload         (its parameters, each with a default) -> Workload
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from workloads import plugin

EINSUMS = (  # small problems: extents, text
    ({"m": 4, "n": 3, "k": 6}, "C[m,n] += A[m,k] * B[k,n]"),
    ({"k": 2, "c": 2, "p": 5, "r": 3}, "O[k,p] += I[c,p+r] * W[k,c,r]"),
    ({"a": 6, "b": 4}, "Y[a,b] = relu(X[a,b])"),
)
MACHINE = "a3"
CAPACITIES = (512, 8 * 1024, 8 * 1024 * 1024)  # bits
WIDTHS = (16, 64, 256)


def check(spec: str) -> str:
    """Returns one line about a plug-in that keeps its contract. Raises ValueError with a line per breach."""
    found = plugin.find(spec)
    make = plugin.function(found.key)
    names = list(inspect.signature(make).parameters)
    kind, breaches = (
        ("mapper", _mapper)
        if names[:1] == ["problem"]
        else ("component table", _table)
        if "capacity_bits" in names
        else ("cost term", _term)
        if names[:1] == ["machine"]
        else ("workload", _workload)
    )
    if lines := list(dict.fromkeys(breaches(spec, found.key, make))):
        raise ValueError("\n".join(f"{spec}: {line}" for line in lines))
    source = Path(found.source).name if found.is_file else found.source
    return f"{kind} {found.name} of {source}, {found.key}"


def _mapper(spec: str, key: str, make: Callable[..., Any]) -> Iterator[str]:
    """Yields breaches: other answers with the same seed, mappings that are not legal, nothing that fits
    though something does. Costs are the evaluator's, which holds each against its lower bound.
    """
    from dse.mapper.plugged import plugged
    from dse.mapping.nest import Infeasible
    from dse.sim.einsum.evaluate import Problem
    from hw import machine
    from workloads.einsum import einsum

    mapper = plugged(key)
    for extents, text in EINSUMS:
        problem = Problem(machine.load_arch(MACHINE), einsum(text, extents), "energy")
        try:
            first, again = mapper(problem, Random(1)), mapper(problem, Random(1))
        except Exception as fault:  # whatever the user's function raises
            yield f"{text}: {plugin.one_line(fault)}"
            continue
        if isinstance(first, Infeasible) or not first:
            yield f"{text}: finds nothing, though mappings fit ({first})"
        elif isinstance(again, Infeasible) or [c.mapping for c in again] != [c.mapping for c in first]:
            yield f"{text}: two answers with the same seed; draw from rng alone"


def _table(spec: str, key: str, make: Callable[..., Any]) -> Iterator[str]:
    from hw.arch import Machine, Memory
    from hw.component import ComponentError, with_table

    spec_of = Machine(name="m", clock_mhz=1000.0, node_nm=45.0, word_bits=8)
    for bits in CAPACITIES:
        for width in WIDTHS:
            node = Memory(name="own", width_bits=width, kind="custom", capacity=bits // 8, table=key)
            try:
                if make(capacity_bits=bits, width_bits=width, node_nm=45.0, cell="lop") != make(
                    capacity_bits=bits, width_bits=width, node_nm=45.0, cell="lop"
                ):
                    yield f"{bits} bits of {width}: two answers to one question"
                with_table(spec_of, node)
            except ComponentError as fault:
                yield f"{bits} bits of {width}: {fault}"
            except Exception as fault:  # whatever the user's function raises
                yield f"{bits} bits of {width}: {plugin.one_line(fault)}"


def _term(spec: str, key: str, make: Callable[..., Any]) -> Iterator[str]:
    from dse.study.pareto import Cost, metrics

    given = {**metrics(Cost(2e9, 1e6, 1e6, 1e6)), "area_mm2": 3.0}
    try:
        first, again = make({}, **given), make({}, **given)
    except KeyError:
        return  # it reads a parameter of its own space
    except Exception as fault:  # whatever the user's function raises
        yield f"{plugin.one_line(fault)}"
        return
    if not isinstance(first, int | float) or not math.isfinite(first):
        yield f"returned {first!r}; return a finite number"
    elif first != again:
        yield "two answers to one question"


def _workload(spec: str, key: str, make: Callable[..., Any]) -> Iterator[str]:
    from workloads import catalog
    from workloads.einsum import WorkloadError

    try:
        if catalog.load(spec) != catalog.load(spec):
            yield "two answers to one question"
    except WorkloadError as fault:
        yield from str(fault).splitlines()
