"""A lower bound on the words that an operation reads, for any order and tiling of its loops, if its operands
do not fit on chip and must be read again.

While M bits come in, a chip of S bits has at most S + M bits of operands and partial sums to compute with. A
point of the iteration space uses one element of each tensor. With a_t elements of tensor t on chip, at most
the product of a_t^e_t points can be computed, where the exponents e_t of the tensors that have a rank add up
to 1 at least, for each rank (Loomis and Whitney 1949; Irony, Toledo and Tiskin 2004). The best split of F
bits among the tensors gives, with sigma = sum e_t:

    points(F)  = (F / sigma)^sigma * prod (e_t / bits_t)^e_t
    bits read >= (all points / points(S + M) - 1) * M             for every M

For C[m,n] += A[m,k] * B[k,n] and S elements this is 2 m n k / sqrt(S) - 2 S (Smith et al. 2019). Partial sums
count as read, although the first one of each element of the result begins on chip; `reread_words` subtracts
these. A word that several PEs share is read once for all of them. In the cycle in which the M-th bit arrives,
each MAC unit may use words from before and after it, which adds as many points as there are MAC units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

import numpy as np

from dse.solve.gogeta.accesses import Phase
from dse.solve.gogeta.operations import Graph, accessed_words
from hw.arch import Arch
from workloads.einsum import Einsum, Projection

TRIED_FACTORS = (0.5, 1.0, 2.0, 4.0)  # tried M / best M for a chip whose MAC units add no points


@dataclass(frozen=True, slots=True)
class Chip:
    """What the bound needs to know of a machine."""

    bits: float  # capacity of all on-chip levels together, all instances; inf: one is unbounded
    mac_units: int
    word_bits: int  # of a machine word


def chip_of(arch: Arch) -> Chip:
    """Returns on-chip capacity, MAC units and word width of a machine."""
    sizes = [
        inf if level.capacity_bits is None else level.capacity_bits * arch.instances(v)
        for v, level in enumerate(arch.levels)
        if v
    ]
    return Chip(sum(sizes), arch.instances(len(arch.levels)), arch.word_bits)


@dataclass(frozen=True, slots=True)
class Rereads:
    """A lower bound on repeated reads."""

    words: float  # minimum of words that operations read in addition to reading each operand once
    unknown: int  # number of overfull operations for which the bound is 0


def rereads_of(op_graph: Graph, order: Sequence[Phase], overfull: Sequence[int], chip: Chip) -> Rereads:
    """Returns a lower bound on the repeated reads of all periods; its `unknown` counts one period.

    overfull: numbers, within a period, of the operations that cannot read each operand once. Operations that
    are pipelined with others count as unknown, since forwarded operands are not read from main memory.
    """
    sizes = op_graph.words(chip.word_bits)
    unpipelined = {phase.stages[0][0] for phase in order if sum(map(len, phase.stages)) == 1}
    reread = [
        reread_words(op_graph.operations[v], sizes, chip) if v in unpipelined else 0.0 for v in overfull
    ]
    return Rereads(sum(reread) * op_graph.periods, sum(n <= 0 for n in reread))


def reread_words(e: Einsum, sizes: Mapping[str, int], chip: Chip) -> float:
    """Returns a lower bound on the words that an operation reads in addition to reading each operand once.
    sizes: words of every tensor.
    """
    read_once = sum(sizes[t] for t in {p.tensor for p in e.inputs})
    return max(0.0, min_words_in(e, chip) - accessed_words(e.output, e.sizes(), chip.word_bits) - read_once)


def min_words_in(e: Einsum, chip: Chip) -> float:
    """Returns a lower bound on the words that an operation reads, plus the words of its result, whose sums
    begin on chip. 0: no bound is known.
    """
    tensors = _tensors_per_point(e)
    if chip.bits == inf or any(p.format != "dense" or p.density < 1 for p in e.tensors()):
        return 0.0
    bits = {
        t: min(p.bits or chip.word_bits for p in e.tensors() if p.tensor == t)
        for t in {p.tensor for p in tensors}
    }
    exponents = _exponents(e)
    sigma = sum(exponents.values())
    if sigma <= 1:
        return 0.0
    # points(F) = F^sigma * shape, for each tap of a window
    shape = prod((n / bits[t]) ** n for t, n in exponents.items() if n) / sigma**sigma
    slices = prod(n for rank, n in e.extents if rank in _window_taps(e))

    def bound(bits_in: float) -> float:
        points = (chip.bits + bits_in) ** sigma * shape * slices + chip.mac_units
        return float((e.points() / points - 1) * bits_in)

    return max(0.0, *(bound(factor * chip.bits / (sigma - 1)) for factor in TRIED_FACTORS)) / chip.word_bits


def _tensors_per_point(e: Einsum) -> list[Projection]:
    """Returns the tensors of which every point of the iteration space uses an element: not those with
    padding, nor operands without any summed rank, which are added to a sum only once.
    """
    summed = set(e.sizes()) - e.output.ranks()
    inputs = [p for p in e.inputs if p.ranks() & summed or not summed]
    return [p for p in (*inputs, e.output) if all(d.is_stored(e.sizes()) for d in p.dims)]


def _window_taps(e: Einsum) -> frozenset[str]:
    """Returns the ranks that share a dimension with a larger rank (taps of a window). Points are counted
    separately for each of their indices.
    """
    sizes = e.sizes()
    shared = [
        sorted(d.ranks(), key=lambda rank: -sizes[rank])[1:]
        for p in e.tensors()
        for d in p.dims
        if len(d.terms) > 1
    ]
    return frozenset(rank for ranks in shared for rank in ranks)


@lru_cache(maxsize=1 << 10)
def _exponents(e: Einsum) -> dict[str, float]:
    """Returns the exponent of each tensor: those of the smallest sum for which, for each rank, the exponents
    of the tensors that have it add up to at least 1. A tensor that is read twice has the sum of both
    exponents. Empty if some rank is in no tensor.
    """
    from scipy.optimize import linprog  # type: ignore[attr-defined, unused-ignore]

    tensors, taps = _tensors_per_point(e), _window_taps(e)
    ranks = [rank for rank, n in e.extents if n > 1 and rank not in taps]
    covers = np.array([[float(rank in p.ranks()) for p in tensors] for rank in ranks]).reshape(
        len(ranks), len(tensors)
    )
    if not ranks or not covers.any(axis=1).all():
        return {}
    found = linprog(np.ones(len(tensors)), -covers, -np.ones(len(ranks)), method="highs")  # type: ignore[no-untyped-call, unused-ignore]
    exponent_of = dict.fromkeys((p.tensor for p in tensors), 0.0)
    for p, n in zip(tensors, found.x, strict=True):
        exponent_of[p.tensor] += float(n)
    return exponent_of
