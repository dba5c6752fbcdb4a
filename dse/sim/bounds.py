"""Lower bounds that no mapping of an einsum on a machine can beat (specs/model.md, 5): compulsory traffic and roofline."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from dse.sim.cost import bits_of, op_cycles, op_pj
from dse.sim.counts import nonzero
from hw.arch import Arch, Level
from workloads.einsum import Dim, Einsum, Projection


@lru_cache(maxsize=1 << 14)
def touched_elems(p: Projection, extents: tuple[tuple[str, int], ...]) -> int:
    """Stored elements that the einsum uses at all. Below the compulsory hull where a stride leaves gaps that small tiles skip."""
    sizes = dict(extents)
    return prod(_touched(dim, tuple(sizes[rank] for rank in dim.ranks())) for dim in p.dims)


def _touched(dim: Dim, extents: tuple[int, ...]) -> int:
    """Different stored indices of one dimension: a run of neighbours, repeated with gaps by the first coefficient that is too large."""
    run, blocks = 1, [(0, 1)]  # length of the run; (step, how often)
    for c, n in sorted((c, n) for (_, c), n in zip(dim.terms, extents, strict=True) if n > 1):
        if len(blocks) == 1 and c <= run:
            run += c * (n - 1)
        else:
            blocks.append((c, n))
    if len(blocks) <= 2:
        return _inside(dim, run, *blocks[-1])
    index = np.arange(run)
    for c, n in blocks[1:]:
        index = np.unique(np.add.outer(index, c * np.arange(n)))
    return int(((index >= -dim.offset) & (index < dim.size - dim.offset)).sum())


def _inside(dim: Dim, run: int, step: int, n: int) -> int:
    """Indices of n runs, `step` apart and not overlapping, that fall into the stored range: whole runs, and one cut at each end."""
    low = 0 if step == 0 else max(-(dim.offset // step), 0)
    high = n - 1 if step == 0 else min((dim.size - run - dim.offset) // step, n - 1)
    cut = {i for i in (low - 1, low, high, high + 1) if 0 <= i < n and not low <= i <= high} | ({0} if step == 0 else set())
    whole = 0 if step == 0 else max(high - low + 1, 0) * run
    starts = [dim.offset + step * i for i in cut]
    return whole + sum(max(min(start + run, dim.size) - max(start, 0), 0) for start in starts)


def words(p: Projection, e: Einsum) -> float:
    """Elements of a tensor that must move at least once: what is touched where all inputs are nonzero."""
    return touched_elems(p, e.extents) * nonzero(e)


def energy_pj(e: Einsum, arch: Arch) -> float:
    """Operations, every element once at the outermost level, every operand access at its cheapest place, leakage."""
    bits = bits_of(e, arch)
    outer = arch.levels[0]
    total = e.points() * nonzero(e) * op_pj(e, arch) + arch.leak_mw() * latency_cycles(e, arch) / arch.clock_ghz
    for p in e.tensors():
        write = p is e.output
        moved = words(p, e) if not outer.bypass else 0
        pj = outer.write_pj if write else outer.read_pj
        total += moved * bits[p.tensor] / outer.width_bits * pj
        total += _operand_pj(p, e, arch, moved)
    return total


def _operand_pj(p: Projection, e: Einsum, arch: Arch, outer_words: float) -> float:
    """Cheapest energy of the accesses that compute makes to one tensor, without what the outermost level is charged already."""
    write = p is e.output
    best = float("inf")
    for v, level in enumerate(arch.levels):
        accesses = e.points() * nonzero(e) / _widest(arch, v, write)
        if v == 0:
            accesses = max(accesses - outer_words, 0.0)
        best = min(best, accesses * _access_pj(level, p, arch, write))
    return best


def _access_pj(level: Level, p: Projection, arch: Arch, write: bool) -> float:
    return (p.bits or arch.word_bits) / level.width_bits * (level.write_pj if write else level.read_pj)


def _widest(arch: Arch, v: int, reduce: bool) -> int:
    """Lanes below level v that one access may serve."""
    shared = [size for f in arch.fanouts if f.outside > v for (_, size), flag in zip(f.dims, f.reduce if reduce else f.multicast, strict=True) if flag]
    return prod(shared)


def latency_cycles(e: Einsum, arch: Arch) -> float:
    """Roofline: operations over all lanes, compulsory words over the outermost bandwidth."""
    lanes = arch.instances(len(arch.levels))
    compute = op_cycles(e.points() * nonzero(e), -(-e.points() // lanes) * nonzero(e), e, arch)
    outer = arch.levels[0]
    if outer.bypass:
        return compute
    bits = bits_of(e, arch)
    read = sum(words(p, e) * bits[p.tensor] for p in e.inputs) / outer.width_bits
    written = words(e.output, e) * bits[e.output.tensor] / outer.width_bits
    port = max(read, written) if outer.ports == "separate" else read + written
    return max(compute, port / outer.bandwidth)
