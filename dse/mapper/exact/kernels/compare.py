"""Comparisons of costs, for each machine of a batch, with the best cost that was found on it."""

from __future__ import annotations

import numpy as np

from dse.mapper.exact.kernels.state import (
    ENERGY,
    LATENCY,
    PJ,
    RAMP,
    STEPS,
    TIE_TOLERANCE,
    Einsum,
    Machine,
    Work,
)
from dse.run.compiled import njit, njit_inlined, njit_no_alloc
from workloads.arrays import Bools, Floats, Ints


@njit_inlined
def compare(a: Floats, b: Floats) -> int:
    """Compares two costs [3] by the first of their numbers that differ by more than rounding. Returns -1 if a
    is lower, 0 if none differs, 1 if b is lower.
    """
    for i in range(3):
        if abs(a[i] - b[i]) > TIE_TOLERANCE * min(abs(a[i]), abs(b[i])):
            return -1 if a[i] < b[i] else 1
    return 0


@njit(cache=True, nogil=True, _nrt=False)
def is_below(a: Floats, b: Floats) -> bool:
    """Whether cost a is lower than b."""
    return bool(compare(a, b) < 0)


@njit_inlined
def wins(j: int, cost: Floats, best: Floats, ties_allowed: Bools) -> bool:
    """Whether a cost, or a lower bound of one, may be better than the best of machine j. An equal cost counts
    too where ties_allowed[j].
    """
    sign = compare(cost, best[j])
    return bool(sign < 0 or (sign == 0 and ties_allowed[j]))


@njit_no_alloc
def compare_unrollings(a: Ints, b: Ints, rank_order: Ints) -> int:
    """Compares two spatial unrollings by the first rank in which they differ. Returns -1 if a comes first, 0
    if they are equal, 1 if b comes first.
    """
    for i in rank_order:
        if a[i] != b[i]:
            return -1 if a[i] < b[i] else 1
    return 0


@njit_no_alloc
def may_replace_tied(j: int, unrolling: Ints, e: Einsum, w: Work) -> bool:
    """Whether a mapping with the spatial unrolling `unrolling`, and with the same cost as the best of machine
    j, may replace that one.

    Among equal costs the first mapping in this order stays: by unrolling, then by the levels that hold the
    tensors, then as the search enumerates nests. No price changes the order. So the answer depends neither on
    the order of the search nor on the other machines of the batch.
    """
    return bool(
        w.best_count[j] >= 0 and compare_unrollings(unrolling, w.best_unrolling[j], e.rank_order) <= 0
    )


@njit_no_alloc
def may_lead(unrolling: Ints, low: Floats, best: Floats, e: Einsum, w: Work) -> bool:
    """Whether a spatial unrolling with bounds low [J, 3] (inf: ruled out there) may lead to a new best
    mapping on some machine.
    """
    for j in range(w.best_count.shape[0]):
        sign = compare(low[j], best[j]) if low[j, 0] < np.inf else 1
        if sign < 0 or (sign == 0 and may_replace_tied(j, unrolling, e, w)):
            return True
    return False


@njit_inlined
def objective_value(parts: Floats, j: int, m: Machine, out: Floats) -> None:
    """Writes to out [3] the value of the objective, energy and latency of cost parts [J, P] on machine j; inf
    above its limit of cycles.

    Latency is built level by level from compute outwards. At each level the latency of its inside is the
    larger one of that and of the ports that serve transfers to levels further inside (`Machine.through`); its
    stalls, the busiest port of fills and that of drains, are added (`Machine.exposed`); the result overlaps
    with the level's own ports, so the longest of them counts. Ramps of systolic arrays are added at the end.
    """
    latency = parts[j, STEPS]
    for v in range(m.ports.shape[0] - 1, -1, -1):
        for i in range(m.through[v, 0], m.through[v, 1]):
            latency = max(latency, parts[j, i])
        for side in range(2):
            stall = 0.0
            for i in range(m.exposed[v, side], m.exposed[v, side + 1]):
                stall = max(stall, parts[j, i])
            latency += stall
        latency = max(latency, parts[j, m.ports[v, 0]], parts[j, m.ports[v, 1]])
    latency += parts[j, RAMP]
    # latency may be inf, for a forbidden mapping: without leakage, 0 * inf would make the energy nan
    energy = parts[j, PJ] + (m.leak[j] * latency if m.leak[j] > 0 else 0.0)
    out[0] = energy if m.objective == ENERGY else latency if m.objective == LATENCY else energy * latency
    out[1], out[2] = energy, latency
    if latency > m.max_cycles[j]:
        out[0] = out[1] = out[2] = np.inf


@njit_inlined
def keep_improving(d: int, parts: Floats, m: Machine, w: Work, best: Floats, keep: bool) -> int:
    """How many of the machines alive after d nodes may still improve on their best with parts [J, P].

    keep: whether these become the machines alive after d + 1 nodes. If not, nothing is written, and the count
        ends at the first one: it is 0 or 1.
    """
    n = 0
    for a in range(w.live_count[d]):
        j = w.live[d, a]
        objective_value(parts, j, m, w.cost)
        if wins(j, w.cost, best, w.ties_allowed):
            if not keep:
                return 1
            w.live[d + 1, n], n = j, n + 1
    if keep:
        w.live_count[d + 1] = n
    return n
