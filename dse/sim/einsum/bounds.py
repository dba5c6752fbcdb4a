"""Lower bounds that no mapping of an einsum on a machine can beat: compulsory traffic and roofline
(docs/model.md, Networks, bounds).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf, prod
from typing import NamedTuple

import numpy as np

from dse.mapping.constraints import computes
from dse.mapping.nest import gates_zeros, role, stored_at, ungated
from dse.sim.counts.actions import first_word_cycles, gating, op_cycles, op_pj
from dse.sim.counts.terms import direct_elems, gathered, nonzero_share, unshared
from hw.arch import Arch, Stored
from workloads.einsum import Dim, Einsum, Projection

Formats = tuple[tuple[Stored, ...], ...]
MAX_JOINT = 3  # most operands that are bounded together; one more doubles the sets in `Needs.common`
EXACT = 1 << 53  # 2^53: floats represent every integer below it


@lru_cache(maxsize=1 << 14)
def used_elems(p: Projection, extents: tuple[tuple[str, int], ...]) -> int:
    """Returns the stored elements of a tensor that the einsum uses. They are fewer than the tensor's hull
    where a stride leaves gaps: small tiles need not fetch the elements in a gap.
    """
    sizes = dict(extents)
    return prod(_used_indices(dim, tuple(sizes[rank] for rank in dim.ranks())) for dim in p.dims)


def _used_indices(dim: Dim, extents: tuple[int, ...]) -> int:
    """Returns the number of different stored indices of one dimension that the einsum uses.

    Terms with small coefficients form a run of neighbouring indices. The first coefficient larger than the
    run repeats it with gaps; from a second one on, indices are listed one by one.
    """
    run, blocks = 1, [(0, 1)]  # length of the run; how it is repeated: (step, how often)
    for c, n in sorted((c, n) for (_, c), n in zip(dim.terms, extents, strict=True) if n > 1):
        if len(blocks) == 1 and c <= run:
            run += c * (n - 1)
        else:
            blocks.append((c, n))
    if len(blocks) <= 2:
        return _stored_in_runs(dim, run, *blocks[-1])
    index = np.arange(run)
    for c, n in blocks[1:]:
        index = np.unique(np.add.outer(index, c * np.arange(n)))
    return int(((index >= -dim.offset) & (index < dim.size - dim.offset)).sum())


def _stored_in_runs(dim: Dim, run: int, step: int, n: int) -> int:
    """Returns how many indices of n runs, `step` apart and not overlapping, are stored: whole runs, and one
    cut at each end.
    """
    low = 0 if step == 0 else max(-(dim.offset // step), 0)
    high = n - 1 if step == 0 else min((dim.size - run - dim.offset) // step, n - 1)
    cut_runs = {i for i in (low - 1, low, high, high + 1) if 0 <= i < n and not low <= i <= high} | (
        {0} if step == 0 else set()
    )
    whole_elems = 0 if step == 0 else max(high - low + 1, 0) * run
    starts = [dim.offset + step * i for i in cut_runs]
    return whole_elems + sum(max(min(start + run, dim.size) - max(start, 0), 0) for start in starts)


def words(p: Projection, e: Einsum, word_bits: int) -> float:
    """Returns the elements of a tensor that must move at least once, on a machine with words of `word_bits`.

    * dense input: elements that are used where all inputs are nonzero; read through the columns of a
      compressed operand whose pattern is known (`terms.gathered`): the columns that have a nonzero
    * dense result: all elements, since zeros are written too
    * compressed tensor, also a result: value and column of every nonzero and a pointer per row, in widths of
      its elements
    """
    used, (elem_words, row_words) = used_elems(p, e.extents), p.compressed_words(word_bits)
    if p.format == "dense":
        if p is e.output:
            return used
        share, found = nonzero_share(e), gathered(e)
        if found and found.tensor == p.tensor:
            pattern = found.tile_columns
            share = max(share, float(pattern.mean(pattern.rows)) / pattern.columns)
        return used * share
    return elem_words * used + row_words * used_elems(replace(p, dims=p.dims[:-1]), e.extents)


class Operand(NamedTuple):
    """What must move of one tensor of an einsum."""

    elems: float  # elements that must move at least once (`words`)
    bits: int | None  # of an element; None: the machine's word
    is_output: bool


class LevelAccess(NamedTuple):
    """Accesses of compute to one kind of operand at one level."""

    mac_units: int  # MAC units below
    sharing_units: int  # how many of them one access may serve
    pj: float  # per access of one element


class LevelCost(NamedTuple):
    """One operand at one level, if all accesses of compute go there."""

    mac_units: int  # MAC units below
    sharing_units: int  # how many of them may share an access
    unshared_pj: float  # of all accesses, if none is shared
    charged_pj: float  # of these, what the compulsory access to the outermost level is charged for already


@dataclass(frozen=True, slots=True)
class Needs:
    """What lower bounds read of an einsum, for machines of one word width."""

    einsum: Einsum
    points: int  # iterations
    share: float  # share of the iterations that compute
    computed: float  # operations: points * share
    gating: float  # operations that take cycles, per operation
    operands: tuple[Operand, ...]  # per tensor
    # elements of each tensor that compute accesses, at memories of a PE and outside of arrays
    compute_words: tuple[tuple[float, float], ...]
    sharers: tuple[int, ...]  # per tensor, MAC units that may want the same word of it
    # per set of operands (index: its bit mask): the most of them that MAC units along one rank may share;
    # empty for more than MAX_JOINT operands
    common: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """What lower bounds read of a machine."""

    arch: Arch
    mac_units: int
    leak_mw: float
    access: dict[tuple[int, str], tuple[LevelAccess, ...]]  # (bits, role of the tensor) -> per level


@lru_cache(maxsize=1 << 14)
def needs(
    e: Einsum, word_bits: int, lockstep: bool = False, formats: Formats = (), gates: tuple[str, ...] = ()
) -> Needs:
    """Returns what lower bounds read of an einsum on machines with words of `word_bits`. lockstep, gates: of
    `Compute`. formats: of each level (`Level.formats`); compute accesses least words of all of these.
    """
    tensors, sizes = e.tensors(), e.sizes()
    outside = ungated(e, gates)
    lockstep = lockstep and not gates_zeros(e, gates)
    unshared_ranks = [unshared(p, outside, lockstep) for p in tensors]
    masks = range(1 << len(tensors)) if len(tensors) <= MAX_JOINT else ()
    common = tuple(_most_shared(e, mask, unshared_ranks) for mask in masks)
    operands = tuple(Operand(words(p, e, word_bits), p.bits, p is e.output) for p in tensors)
    in_pe, outside_of_arrays = (
        [
            e.points() * min(direct_elems(own, served, word_bits, lockstep) for own in stored)
            for p in tensors
            for served in [ungated(e, served_gates, p is e.output)]
            for stored in [{p, *(stored_at(one, p, e) for one in formats)}]
        ]
        for served_gates in ((), gates)
    )
    return Needs(
        einsum=e,
        points=e.points(),
        share=nonzero_share(e),
        computed=e.points() * nonzero_share(e),
        gating=gating(e, gates),
        operands=operands,
        compute_words=tuple(zip(in_pe, outside_of_arrays, strict=True)),
        sharers=tuple(prod(n for rank, n in sizes.items() if rank not in ranks) for ranks in unshared_ranks),
        common=common,
    )


def _needs_on(e: Einsum, arch: Arch) -> Needs:
    """Returns what lower bounds read of an einsum on a machine."""
    formats = tuple(level.formats for level in arch.levels)
    return needs(e, arch.word_bits, arch.compute.lockstep, formats, arch.compute.gates)


def _most_shared(e: Einsum, mask: int, unshared_ranks: Sequence[frozenset[str]]) -> int:
    """Returns the most operands of a set (bits of `mask`) that MAC units along one rank may share.

    unshared_ranks: per operand, the ranks along which they share nothing (`unshared`)
    """
    ranks = [rank for rank, n in e.extents if n > 1]
    shared = [
        sum(mask >> x & 1 and rank not in private_ranks for x, private_ranks in enumerate(unshared_ranks))
        for rank in ranks
    ]
    return max(shared, default=0)


def rates(arch: Arch) -> Rates:
    """Returns what lower bounds read of a machine. `_access` adds access energies when an einsum asks for
    them.
    """
    return Rates(arch, arch.instances(len(arch.levels)), arch.leak_mw(), {})


def _access(r: Rates, bits: int, role: str) -> tuple[LevelAccess, ...]:
    """Returns the accesses to one kind of operand, per level. bits: of an element at levels that give tensors
    of this role no width of their own
    """
    found, write = r.access.get((bits, role)), role == "output"
    if found is None:
        found = r.access[bits, role] = tuple(
            LevelAccess(
                *_units_below(r.arch, v, write),
                level.elem_bits(role, bits) / level.width_bits * (level.write_pj if write else level.read_pj),
            )
            for v, level in enumerate(r.arch.levels)
        )
    return found


def _units_below(arch: Arch, v: int, write: bool) -> tuple[int, int]:
    """Returns the MAC units below a level, and how many of them lie along dimensions that share an access.

    Of levels of which PEs share instances, those of two may not be nested: weights shared along rows and sums
    along columns serve together all that rows times columns do (`_together_pj`). So all MAC units are
    returned.
    """
    name = arch.levels[v].name
    dims = [
        (size, flag)
        for f in arch.fanouts
        for (dim, size), flag in zip(f.dims, f.reduce if write else f.multicast, strict=True)
        if f.outside > v or dim in f.shared_along(name)
    ]
    is_shared = any(name in levels for f in arch.fanouts for levels in f.shared)
    units = arch.instances(len(arch.levels)) if is_shared else prod(size for size, _ in dims)
    return units, prod(size for size, flag in dims if flag)


def lower_bound(n: Needs, r: Rates) -> tuple[float, float]:
    """Returns energy in pJ and latency in cycles that no mapping beats.

    Energy is the sum of operations, each used element once at the outermost level, compute's accesses at the
    cheapest levels, and leakage.
    """
    cycles = _cycles(n, r)
    arch, outer = r.arch, r.arch.levels[0]
    total = n.computed * op_pj(n.einsum, arch)
    level_costs, of_pes = [], arch.levels_of_pes()
    for p, (elems, tensor_bits, write), words_accessed, sharers in zip(
        n.einsum.tensors(), n.operands, n.compute_words, n.sharers, strict=True
    ):
        bits = tensor_bits or arch.word_bits
        moved_pj = (
            0.0
            if outer.bypass
            else elems * bits / outer.width_bits * (outer.write_pj if write else outer.read_pj)
        )
        total += moved_pj
        level_costs.append(
            _undominated(
                [
                    LevelCost(
                        mac_units,
                        min(shared, sharers),
                        words_accessed[arch.levels[v].name not in of_pes] * pj,
                        moved_pj if v == 0 else 0.0,
                    )
                    for v, (mac_units, shared, pj) in enumerate(_access(r, bits, role(n.einsum, p.tensor)))
                ]
            )
        )
    total += (
        _together_pj(level_costs, n.common)
        if n.common
        else sum(min(map(_alone_pj, levels)) for levels in level_costs)
    )
    return total + r.leak_mw * cycles / arch.clock_ghz, cycles


def _alone_pj(level: LevelCost) -> float:
    """Returns the least energy of compute's accesses to one operand at one level, beyond what is charged
    already: as many MAC units as possible share each access.
    """
    return max(level.unshared_pj / level.sharing_units - level.charged_pj, 0.0)


def _undominated(levels: Sequence[LevelCost]) -> list[LevelCost]:
    """Returns the levels without those that cost at least the cheapest level where nothing is shared, however
    many MAC units share an access there.
    """
    cheapest = min((level for level in levels if level.sharing_units == 1), key=_alone_pj, default=None)
    return [
        level
        for level in levels
        if level is cheapest
        or (level.sharing_units > 1 and (cheapest is None or _alone_pj(level) < _alone_pj(cheapest)))
    ]


def _together_pj(level_costs: Sequence[Sequence[LevelCost]], common: Sequence[int]) -> float:
    """Returns the least energy of compute's accesses to all operands, over the choice of the innermost level
    of each.

    MAC units that share an access to an operand differ in ranks that it does not have, and `common` says how
    many operands lack the same rank. So k operands whose accesses serve s1 .. sk of at most L MAC units have
    s1 s2 .. sk <= L^min(common, k). As an arithmetic mean is at least the geometric mean, sum(pJ / s) >=
    k (product(pJ) / L^min(common, k))^(1/k).
    """
    best = inf
    for chosen in product(*level_costs):
        total, unshared_pj, charged_pj, product_pj, max_units, shared_count, mask = (
            0.0,
            0.0,
            0.0,
            1.0,
            1,
            0,
            0,
        )
        for x, level in enumerate(chosen):
            alone = _alone_pj(level)
            total += alone
            if level.sharing_units == 1:
                unshared_pj += alone
            else:
                max_units = max(max_units, level.mac_units)
                product_pj = product_pj * level.unshared_pj
                charged_pj = charged_pj + level.charged_pj
                shared_count = shared_count + 1
                mask = mask | 1 << x
        if shared_count:
            total = max(
                total,
                unshared_pj
                + shared_count
                * (product_pj / float(max_units) ** min(common[mask], shared_count)) ** (1 / shared_count)
                - charged_pj,
            )
        best = min(best, total)
    return best


def steps(points: int, mac_units: int) -> float:
    """Returns a lower bound on the iterations of the busiest MAC unit, rounded up while floats represent
    every integer (`EXACT`).

    >>> steps(7, 4), steps(10**27, 4) == 10**27 / 4
    (2.0, True)
    """
    return float(-(-points // mac_units)) if points < EXACT else float(points) / mac_units


def _cycles(n: Needs, r: Rates) -> float:
    """Returns the roofline in cycles: the larger of operations over all MAC units and compulsory traffic over
    the outermost bandwidth; and the wait for the first word of the outermost level.
    """
    compute: float = op_cycles(n.computed, steps(n.points, r.mac_units) * n.share, n.einsum, r.arch)
    outer = r.arch.levels[0]
    if outer.bypass:
        return compute
    wait = float(first_word_cycles(outer, r.arch)) if n.einsum.inputs else 0.0
    if not isinstance(outer.ports, str):
        port_cycles: dict[str, float] = {}
        for p, (elems, bits, write) in zip(n.einsum.tensors(), n.operands, strict=True):
            port, times = outer.port(role(n.einsum, p.tensor), "write" if write else "read")
            accesses = elems * (bits or r.arch.word_bits) / outer.width_bits
            port_cycles[port] = port_cycles.get(port, 0.0) + accesses / (outer.bandwidth * times)
        return max(compute, *port_cycles.values()) + wait
    moved_bits = [0.0, 0.0]
    for elems, bits, write in n.operands:
        moved_bits[write] += elems * (bits or r.arch.word_bits)
    read, written = moved_bits[0] / outer.width_bits, moved_bits[1] / outer.width_bits
    return (
        max(compute, (max(read, written) if outer.ports == "separate" else read + written) / outer.bandwidth)
        + wait
    )


def energy_pj(e: Einsum, arch: Arch) -> float:
    """Returns a lower bound in pJ on the energy of any mapping of one einsum, leakage included."""
    return lower_bound(_needs_on(e, arch), rates(arch))[0]


def latency_cycles(e: Einsum, arch: Arch) -> float:
    """Returns a lower bound in cycles on the latency of any mapping of one einsum."""
    return _cycles(_needs_on(e, arch), rates(arch))


def lower_bounds(einsums: Iterable[Einsum], arch: Arch) -> list[tuple[float, float]]:
    """Returns the lower bounds (pJ, cycles) of every einsum by itself; of those on several computes the least
    energy and the least cycles.
    """
    if arch.units:
        of_unit = {one.compute.name: rates(one) for one in arch.units}
        pairs = [
            [lower_bound(_needs_on(e, one), of_unit[one.compute.name]) for one in computes(e, arch)]
            for e in einsums
        ]
        return [(min(pj for pj, _ in own), min(cycles for _, cycles in own)) for own in pairs]
    machine_rates = rates(arch)
    return [lower_bound(_needs_on(e, arch), machine_rates) for e in einsums]


def sequential(runs: Iterable[tuple[Einsum, float]], arch: Arch) -> tuple[float, float]:
    """Returns the lower bounds (pJ, cycles) of a sequence of unfused einsums.

    runs: (einsum, number of occurrences)
    """
    pairs = list(runs)
    return weighted_sum([times for _, times in pairs], lower_bounds((e for e, _ in pairs), arch))


def weighted_sum(times: Sequence[float], costs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns total energy and cycles: each cost times its number of occurrences."""
    return sum(n * pj for n, (pj, _) in zip(times, costs, strict=True)), sum(
        n * cycles for n, (_, cycles) in zip(times, costs, strict=True)
    )
