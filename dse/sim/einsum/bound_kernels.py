"""The compiled twin of bounds.py: unfused einsums on many machines at once, equal bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np

from dse.mapping.nest import role
from dse.run.compiled import njit
from dse.sim.einsum.bounds import EXACT, Formats, Needs, needs
from hw.arch import ROLES
from hw.columns import Columns
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import Einsum

MAC, COPY, OTHER = 0, 1, 2  # kinds of operations
# in `NeedsTable.common`: operands are bounded one by one, since there are more than bounds.MAX_JOINT
ONE_BY_ONE = -1


class NeedsTable(NamedTuple):
    """`bounds.Needs` as arrays over einsums (E) and operands (X)."""

    kind: Ints  # [E] MAC, COPY or OTHER
    points: Floats  # [E] iterations
    share: Floats  # [E] share of the iterations that compute
    computed: Floats  # [E] operations: points * share
    operands: Ints  # [E] how many operands there are
    elems: Floats  # [E, X] elements that must move at least once
    bits: Ints  # [E, X] per element; 0: the machine's word
    role: Ints  # [E, X] index in ROLES (`nest.role`)
    write: Bools  # [E, X] the operand is the output
    gating: Floats  # [E] operations that take cycles, per operation
    compute_words: Floats  # [E, X, 2] elements that compute accesses, of a PE's memory and outside of arrays
    sharers: Floats  # [E, X] MAC units that may want the same element, at most
    # [E, 2^X] per set of operands (its bit mask): the most of them that MAC units along one rank may share
    common: Ints
    times: Floats  # [E] occurrences


class Machines(NamedTuple):
    """The columns of hw/columns.py that the kernel reads: [machines] where no shape is stated; V levels, D
    array dimensions.
    """

    below: Bools  # [D, V] whether PEs along the dimension stand inside of one instance of a level
    around: Bools  # [D, V] the same, or all dimensions for a level of which PEs share instances
    read_pj: Floats  # [machines, V]
    write_pj: Floats  # [machines, V]
    bandwidth: Floats  # [machines, V]
    width_bits: Ints  # [machines, V]
    # [machines, V, roles] bits of an element by role, in the order of ROLES; 0: as elsewhere
    elem_bits: Ints
    separate: Bools  # [machines, V] whether reads and writes have separate ports
    latency_ns: Floats  # [machines, V] from a request to its first word
    # [machines, V, roles] where a level says which port serves what: the port of what a mapping must move of
    # a role (reads of inputs, writes of outputs), else -1; the rate of that port over the level's
    own_port: Ints
    port_times: Floats
    sizes: Ints  # [machines, D] PEs along the dimension
    # [machines, D, 2] whether PEs along the dimension share reads (multicast), and writes (spatial reduction)
    shares: Bools
    mac_pj: Floats
    alu_pj: Floats
    ops_per_cycle: Floats
    alu_per_cycle: Floats
    clock_ghz: Floats
    word_bits: Ints
    leak_mw: Floats


def sequential(runs: Iterable[tuple[Einsum, float]], columns: Columns) -> tuple[Floats, Floats]:
    """Returns lower bounds on energy in pJ and latency in cycles, [machines] each, of unfused einsums: the
    compiled `bounds.sequential`.

    runs: (einsum, number of occurrences)
    """
    run_tuple, found = tuple(runs), np.zeros((2, len(columns.word_bits)))
    gates = tuple(of for of, gated in zip(ROLES, columns.gated, strict=True) if gated)
    for word_bits, lockstep in sorted(
        {*zip(columns.word_bits.tolist(), columns.lockstep.tolist(), strict=True)}
    ):
        rows = np.flatnonzero((columns.word_bits == word_bits) & (columns.lockstep == lockstep))
        batch = columns if len(rows) == len(columns.word_bits) else columns.take(rows)
        found[:, rows] = _sequential(
            _needs_table(run_tuple, word_bits, lockstep, columns.formats, gates),
            Machines(*(np.ascontiguousarray(batch.column(name)) for name in Machines._fields)),
        )
    return found[0], found[1]


@lru_cache(maxsize=64)
def _needs_table(
    runs: tuple[tuple[Einsum, float], ...],
    word_bits: int,
    lockstep: bool,
    formats: Formats,
    gates: tuple[str, ...],
) -> NeedsTable:
    all_needs: list[Needs] = [needs(e, word_bits, lockstep, formats, gates) for e, _ in runs]
    max_operands = max(len(n.operands) for n in all_needs)
    mask_count = max((len(n.common) for n in all_needs), default=0)
    kinds = {"mac": MAC, "copy": COPY}

    def padded(rows: Iterable[Iterable[float]], width: int = max_operands, dtype: type = float) -> Any:
        return np.array([[*row, *[0] * width][:width] for row in rows], dtype)

    return NeedsTable(
        kind=np.array([kinds.get(e.kind, OTHER) for e, _ in runs]),
        points=np.array([n.points for n in all_needs], float),
        share=np.array([n.share for n in all_needs], float),
        computed=np.array([n.computed for n in all_needs], float),
        operands=np.array([len(n.operands) for n in all_needs]),
        elems=padded([elems for elems, _, _ in n.operands] for n in all_needs),
        bits=padded(([bits or 0 for _, bits, _ in n.operands] for n in all_needs), dtype=int),
        role=padded(
            ([ROLES.index(role(n.einsum, p.tensor)) for p in n.einsum.tensors()] for n in all_needs),
            dtype=int,
        ),
        write=padded(([write for _, _, write in n.operands] for n in all_needs), dtype=bool),
        gating=np.array([n.gating for n in all_needs], float),
        compute_words=np.stack(
            [padded([own[at] for own in n.compute_words] for n in all_needs) for at in range(2)], axis=2
        ),
        sharers=padded(n.sharers for n in all_needs),
        common=padded((n.common or (ONE_BY_ONE,) for n in all_needs), max(mask_count, 1), int),
        times=np.array([times for _, times in runs], float),
    )


@njit(cache=True, nogil=True)
def _sequential(a: NeedsTable, m: Machines) -> Floats:
    """Returns energy in pJ and latency in cycles, [2, machines]."""
    machine_count, levels = m.read_pj.shape
    max_operands = a.elems.shape[1]
    found = np.zeros((2, machine_count))
    # below: MAC units below a level; all, if PEs share instances of it (`bounds._units_below`). shared: how
    # many one read may serve (index 0: the PEs along dimensions with multicast), and how many may add up into
    # one write (1: with spatial reduction)
    below, shared = np.ones(levels, np.int64), np.ones((levels, 2), np.int64)
    level_counts, chosen = np.zeros(max_operands, np.int64), np.zeros(max_operands, np.int64)
    # pj: of all accesses of compute to an operand at a level, if none is shared; charged: of these, what the
    # compulsory access to the outermost level pays already; alone: `bounds._alone_pj`, the least beyond that
    scratch = np.zeros((5, max_operands, levels))
    mac_units, sharers, pj, charged, alone = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    outside = np.zeros(levels, np.bool_)  # of an array, or shared by its PEs
    for d in range(m.around.shape[0]):
        for v in range(levels):
            outside[v] |= m.around[d, v]
    for i in range(machine_count):
        for v in range(levels):
            below[v], shared[v, 0], shared[v, 1] = 1, 1, 1
        mac_total = 1
        for d in range(m.below.shape[0]):
            mac_total *= m.sizes[i, d]
            for v in range(levels):
                if m.around[d, v]:
                    below[v] *= m.sizes[i, d]
                if m.below[d, v]:
                    for way in range(2):
                        if m.shares[i, d, way]:
                            shared[v, way] *= m.sizes[i, d]
        for e in range(len(a.kind)):
            cycles = _cycles(a, m, i, e, mac_total)
            op_pj = m.mac_pj[i] if a.kind[e] == MAC else 0.0 if a.kind[e] == COPY else m.alu_pj[i]
            total = a.computed[e] * op_pj
            for x in range(a.operands[e]):
                bits = a.bits[e, x] or m.word_bits[i]
                way = int(a.write[e, x])  # 0: read, 1: written
                moved = (
                    a.elems[e, x] * bits / m.width_bits[i, 0] * (m.write_pj[i, 0] if way else m.read_pj[i, 0])
                )
                total += moved
                cheapest, cheapest_pj = -1, inf
                for v in range(levels):
                    mac_units[x, v] = below[v]
                    sharers[x, v] = min(float(shared[v, way]), a.sharers[e, x])
                    pj[x, v] = a.compute_words[e, x, int(outside[v])] * (
                        (m.elem_bits[i, v, a.role[e, x]] or bits)
                        / m.width_bits[i, v]
                        * (m.write_pj[i, v] if way else m.read_pj[i, v])
                    )
                    charged[x, v] = moved if v == 0 else 0.0
                    alone[x, v] = max(pj[x, v] / sharers[x, v] - charged[x, v], 0.0)
                    if sharers[x, v] == 1 and (cheapest < 0 or alone[x, v] < cheapest_pj):
                        cheapest, cheapest_pj = v, alone[x, v]
                kept_levels = 0
                for v in range(levels):  # bounds._undominated
                    if v == cheapest or (sharers[x, v] > 1 and (cheapest < 0 or alone[x, v] < cheapest_pj)):
                        mac_units[x, kept_levels], sharers[x, kept_levels], pj[x, kept_levels] = (
                            mac_units[x, v],
                            sharers[x, v],
                            pj[x, v],
                        )
                        charged[x, kept_levels], alone[x, kept_levels] = charged[x, v], alone[x, v]
                        kept_levels += 1
                level_counts[x] = kept_levels
            if a.common[e, 0] == ONE_BY_ONE:
                one_by_one = 0.0
                for x in range(a.operands[e]):
                    lowest = inf
                    for v in range(level_counts[x]):
                        lowest = min(lowest, alone[x, v])
                    one_by_one += lowest
                total += one_by_one
            else:
                total += _together(
                    a.common[e], a.operands[e], level_counts, chosen, mac_units, sharers, pj, charged, alone
                )
            found[0, i] += a.times[e] * (total + m.leak_mw[i] * cycles / m.clock_ghz[i])
            found[1, i] += a.times[e] * cycles
    return found


@njit(cache=True, nogil=True)
def _together(
    common: Ints,
    operands: int,
    level_counts: Ints,
    chosen: Ints,
    mac_units: Floats,
    sharers: Floats,
    pj: Floats,
    charged: Floats,
    alone: Floats,
) -> float:
    """Returns the least energy of compute's accesses to all operands, over the choice of the level that each
    is accessed at; `bounds._together_pj` says why it is a lower bound.

    chosen: scratch, the index of the level chosen for each operand
    """
    best = inf
    chosen[:operands] = 0
    while True:
        total = 0.0
        for x in range(operands):
            total += alone[x, chosen[x]]
        if total < best:
            unshared_pj, charged_pj, product, max_units, shared_count, mask = 0.0, 0.0, 1.0, 1.0, 0, 0
            for x in range(operands):
                v = chosen[x]
                if sharers[x, v] == 1:
                    unshared_pj += alone[x, v]
                else:
                    max_units, product, charged_pj = (
                        max(max_units, mac_units[x, v]),
                        product * pj[x, v],
                        charged_pj + charged[x, v],
                    )
                    shared_count, mask = shared_count + 1, mask | 1 << x
            if shared_count:
                total = max(
                    total,
                    unshared_pj
                    + shared_count
                    * (product / max_units ** float(min(common[mask], shared_count))) ** (1 / shared_count)
                    - charged_pj,
                )
            best = min(best, total)
        x = operands - 1
        while x >= 0 and chosen[x] + 1 == level_counts[x]:
            chosen[x] = 0
            x -= 1
        if x < 0:
            return best
        chosen[x] += 1


@njit(cache=True, nogil=True)
def _steps(points: float, mac_units: int) -> float:
    """The compiled `bounds.steps`."""
    return float(-(-int(points) // mac_units)) if points < EXACT else points / mac_units


@njit(cache=True, nogil=True)
def _cycles(a: NeedsTable, m: Machines, i: int, e: int, mac_units: int) -> float:
    """The compiled `bounds._cycles`, where the outermost level holds every tensor: all compulsory traffic
    crosses its ports.
    """
    steps = _steps(a.points[e], mac_units) * a.share[e] * a.gating[e]
    computed = a.computed[e] * a.gating[e]
    wait: float = m.latency_ns[i, 0] * m.clock_ghz[i]
    if a.kind[e] == MAC or isnan(m.alu_per_cycle[i]):
        compute = steps / m.ops_per_cycle[i]
    else:
        compute = computed / m.alu_per_cycle[i]
    if m.own_port[i, 0, 0] >= 0:
        busiest: float = compute
        ports = m.own_port[i, 0]
        for port in ports:
            port_cycles = 0.0
            for x in range(a.operands[e]):
                if ports[a.role[e, x]] == port:
                    accesses = a.elems[e, x] * (a.bits[e, x] or m.word_bits[i]) / m.width_bits[i, 0]
                    port_cycles += accesses / (m.bandwidth[i, 0] * m.port_times[i, 0, a.role[e, x]])
            busiest = max(busiest, port_cycles)
        return busiest + wait
    read = written = 0.0
    for x in range(a.operands[e]):
        bits = a.elems[e, x] * (a.bits[e, x] or m.word_bits[i])
        if a.write[e, x]:
            written += bits
        else:
            read += bits
    read, written = read / m.width_bits[i, 0], written / m.width_bits[i, 0]
    cycles: float = max(
        compute, (max(read, written) if m.separate[i, 0] else read + written) / m.bandwidth[i, 0]
    )
    return cycles + wait
