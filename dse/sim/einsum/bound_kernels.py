"""The compiled twin of bounds.py: unfused einsums on many machines at once, equal bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np

from dse.run.compiled import njit
from dse.sim.einsum.bounds import EXACT, Needs, needs
from hw.columns import Columns
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import Einsum

MAC, COPY, OTHER = 0, 1, 2  # kinds of operations
# in `NeedsTable.common`: operands are bounded one by one, since there are more than bounds.JOINT
ONE_BY_ONE = -1


class NeedsTable(NamedTuple):
    """`bounds.Needs` as arrays over einsums (E) and operands (X)."""

    kind: Ints  # [E] MAC, COPY or OTHER
    points: Floats  # [E]
    share: Floats  # [E]
    computed: Floats  # [E]
    operands: Ints  # [E] how many operands there are
    elems: Floats  # [E, X]
    bits: Ints  # [E, X] 0: the machine's word
    write: Bools  # [E, X]
    compute_words: Floats  # [E, X]
    sharers: Floats  # [E, X]
    common: Ints  # [E, 2^X]
    times: Floats  # [E] occurrences


class Machines(NamedTuple):
    """The columns of hw/columns.py that the kernel reads."""

    outside: Ints
    read_pj: Floats
    write_pj: Floats
    bandwidth: Floats
    width_bits: Ints
    separate: Bools
    sizes: Ints
    shares: Bools
    mac_pj: Floats
    alu_pj: Floats
    ops_per_cycle: Floats
    alu_per_cycle: Floats
    clock_ghz: Floats
    word_bits: Ints
    leak_mw: Floats


def sequential(runs: Iterable[tuple[Einsum, float]], columns: Columns) -> tuple[Floats, Floats]:
    """Returns energy in pJ and latency in cycles, [machines] each, of unfused einsums with their numbers of
    occurrences: the compiled `bounds.sequential`.
    """
    given, found = tuple(runs), np.zeros((2, len(columns.word_bits)))
    for word_bits in np.unique(columns.word_bits).tolist():
        rows = np.flatnonzero(columns.word_bits == word_bits)
        own = columns if len(rows) == len(columns.word_bits) else columns.take(rows)
        found[:, rows] = _sequential(
            _needs_table(given, word_bits),
            Machines(*(np.ascontiguousarray(own.named(name)) for name in Machines._fields)),
        )
    return found[0], found[1]


@lru_cache(maxsize=64)
def _needs_table(runs: tuple[tuple[Einsum, float], ...], word_bits: int) -> NeedsTable:
    known: list[Needs] = [needs(e, word_bits) for e, _ in runs]
    most = max(len(n.operands) for n in known)
    masks = max((len(n.common) for n in known), default=0)
    kinds = {"mac": MAC, "copy": COPY}

    def padded(rows: Iterable[Iterable[float]], width: int = most, dtype: type = float) -> Any:
        return np.array([[*row, *[0] * width][:width] for row in rows], dtype)

    return NeedsTable(
        kind=np.array([kinds.get(e.kind, OTHER) for e, _ in runs]),
        points=np.array([n.points for n in known], float),
        share=np.array([n.share for n in known], float),
        computed=np.array([n.computed for n in known], float),
        operands=np.array([len(n.operands) for n in known]),
        elems=padded([elems for elems, _, _ in n.operands] for n in known),
        bits=padded(([bits or 0 for _, bits, _ in n.operands] for n in known), dtype=int),
        write=padded(([write for _, _, write in n.operands] for n in known), dtype=bool),
        compute_words=padded(n.compute_words for n in known),
        sharers=padded(n.sharers for n in known),
        common=padded((n.common or (ONE_BY_ONE,) for n in known), max(masks, 1), int),
        times=np.array([times for _, times in runs], float),
    )


@njit(cache=True, nogil=True)
def _sequential(a: NeedsTable, m: Machines) -> Floats:
    """Returns energy in pJ and latency in cycles, [2, machines]."""
    n, levels = m.read_pj.shape
    most = a.elems.shape[1]
    found = np.zeros((2, n))
    # MAC units below a level; how many of them lie along dimensions that share a read, a write
    below, shared = np.ones(levels, np.int64), np.ones((levels, 2), np.int64)
    count, at = np.zeros(most, np.int64), np.zeros(most, np.int64)
    places = np.zeros((5, most, levels))
    mac_units, alike, pj, charged, alone = places[0], places[1], places[2], places[3], places[4]
    for i in range(n):
        for v in range(levels):
            below[v], shared[v, 0], shared[v, 1] = 1, 1, 1
        whole = 1
        for d in range(len(m.outside)):
            whole *= m.sizes[i, d]
            for v in range(levels):
                if m.outside[d] > v:
                    below[v] *= m.sizes[i, d]
                    for way in range(2):
                        if m.shares[i, d, way]:
                            shared[v, way] *= m.sizes[i, d]
        for e in range(len(a.kind)):
            cycles = _cycles(a, m, i, e, whole)
            op_pj = m.mac_pj[i] if a.kind[e] == MAC else 0.0 if a.kind[e] == COPY else m.alu_pj[i]
            total = a.computed[e] * op_pj
            for x in range(a.operands[e]):
                bits = a.bits[e, x] or m.word_bits[i]
                way = int(a.write[e, x])
                moved = (
                    a.elems[e, x] * bits / m.width_bits[i, 0] * (m.write_pj[i, 0] if way else m.read_pj[i, 0])
                )
                total += moved
                near, nearest = -1, inf
                for v in range(levels):
                    mac_units[x, v] = below[v]
                    alike[x, v] = min(float(shared[v, way]), a.sharers[e, x])
                    pj[x, v] = a.compute_words[e, x] * (
                        bits / m.width_bits[i, v] * (m.write_pj[i, v] if way else m.read_pj[i, v])
                    )
                    charged[x, v] = moved if v == 0 else 0.0
                    alone[x, v] = max(pj[x, v] / alike[x, v] - charged[x, v], 0.0)
                    if alike[x, v] == 1 and (near < 0 or alone[x, v] < nearest):
                        near, nearest = v, alone[x, v]
                kept = 0
                for v in range(levels):  # bounds._undominated
                    if v == near or (alike[x, v] > 1 and (near < 0 or alone[x, v] < nearest)):
                        mac_units[x, kept], alike[x, kept], pj[x, kept] = (
                            mac_units[x, v],
                            alike[x, v],
                            pj[x, v],
                        )
                        charged[x, kept], alone[x, kept] = charged[x, v], alone[x, v]
                        kept += 1
                count[x] = kept
            if a.common[e, 0] == ONE_BY_ONE:
                rest = 0.0
                for x in range(a.operands[e]):
                    least = inf
                    for v in range(count[x]):
                        least = min(least, alone[x, v])
                    rest += least
                total += rest
            else:
                total += _together(
                    a.common[e], a.operands[e], count, at, mac_units, alike, pj, charged, alone
                )
            found[0, i] += a.times[e] * (total + m.leak_mw[i] * cycles / m.clock_ghz[i])
            found[1, i] += a.times[e] * cycles
    return found


@njit(cache=True, nogil=True)
def _together(
    common: Ints,
    operands: int,
    count: Ints,
    at: Ints,
    mac_units: Floats,
    alike: Floats,
    pj: Floats,
    charged: Floats,
    alone: Floats,
) -> float:
    """Returns what `bounds._together_pj` does. at: scratch, the level chosen for each operand."""
    best = inf
    at[:operands] = 0
    while True:
        each = 0.0
        for x in range(operands):
            each += alone[x, at[x]]
        if each < best:
            near, given, product, most, many, mask = 0.0, 0.0, 1.0, 1.0, 0, 0
            for x in range(operands):
                v = at[x]
                if alike[x, v] == 1:
                    near += alone[x, v]
                else:
                    most, product, given = (
                        max(most, mac_units[x, v]),
                        product * pj[x, v],
                        given + charged[x, v],
                    )
                    many, mask = many + 1, mask | 1 << x
            if many:
                each = max(
                    each,
                    near + many * (product / most ** float(min(common[mask], many))) ** (1 / many) - given,
                )
            best = min(best, each)
        x = operands - 1
        while x >= 0 and at[x] + 1 == count[x]:
            at[x] = 0
            x -= 1
        if x < 0:
            return best
        at[x] += 1


@njit(cache=True, nogil=True)
def _steps(points: float, mac_units: int) -> float:
    """The compiled `bounds.steps`."""
    return float(-(-int(points) // mac_units)) if points < EXACT else points / mac_units


@njit(cache=True, nogil=True)
def _cycles(a: NeedsTable, m: Machines, i: int, e: int, mac_units: int) -> float:
    """The compiled `bounds._cycles`. The outermost level of a whole machine holds every tensor."""
    if a.kind[e] == MAC or isnan(m.alu_per_cycle[i]):
        compute = _steps(a.points[e], mac_units) * a.share[e] / m.ops_per_cycle[i]
    else:
        compute = a.computed[e] / m.alu_per_cycle[i]
    read = written = 0.0
    for x in range(a.operands[e]):
        bits = a.elems[e, x] * (a.bits[e, x] or m.word_bits[i])
        if a.write[e, x]:
            written += bits
        else:
            read += bits
    read, written = read / m.width_bits[i, 0], written / m.width_bits[i, 0]
    least: float = max(
        compute, (max(read, written) if m.separate[i, 0] else read + written) / m.bandwidth[i, 0]
    )
    return least
