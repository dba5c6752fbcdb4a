"""Comparisons of costs, for each machine of a batch, with the best cost that was found on it."""

from __future__ import annotations

import numpy as np

from dse.mapper.exact.kernels.state import CLOSE, ENERGY, LATENCY, RAMP, STEPS, Einsum, Machine, Work
from dse.run.compiled import lean, njit
from workloads.arrays import Bools, Floats, Ints


@lean
def compare(a: Floats, b: Floats) -> int:
    """Compares two costs [3] by the first of their numbers that differ by more than rounding. Returns -1 if a
    is lower, 0 if none differs, 1 if b is lower.
    """
    for i in range(3):
        if abs(a[i] - b[i]) > CLOSE * min(abs(a[i]), abs(b[i])):
            return -1 if a[i] < b[i] else 1
    return 0


@njit(cache=True, nogil=True, _nrt=False)
def is_below(a: Floats, b: Floats) -> bool:
    """Whether cost a is lower than b."""
    return bool(compare(a, b) < 0)


@lean
def wins(j: int, cost: Floats, best: Floats, equal: Bools) -> bool:
    """Whether a cost, or a lower bound of one, may be better than the best of machine j. An equal cost counts
    too where equal[j] is set.
    """
    order = compare(cost, best[j])
    return bool(order < 0 or (order == 0 and equal[j]))


@lean
def order_of(a: Ints, b: Ints, order: Ints) -> int:
    """Compares two spatial unrollings by the first rank in which they differ. Returns -1 if a comes first, 0
    if they are equal, 1 if b comes first.
    """
    for i in order:
        if a[i] != b[i]:
            return -1 if a[i] < b[i] else 1
    return 0


@lean
def ties_with(j: int, option: Ints, e: Einsum, w: Work) -> bool:
    """Whether a mapping with the spatial unrolling `option`, and with the same cost as the best of machine j,
    may replace that one.

    Among equal costs the first mapping in this order stays: by unrolling, then by the levels that hold the
    tensors, then as the search enumerates nests. No price changes the order. So the answer depends neither on
    the order of the search nor on the other machines of the batch.
    """
    return bool(w.best_count[j] >= 0 and order_of(option, w.best_unrolling[j], e.order) <= 0)


@lean
def may_lead(option: Ints, low: Floats, best: Floats, e: Einsum, w: Work) -> bool:
    """Whether a spatial unrolling with bounds low [J, 3] may lead to a new best mapping on some machine."""
    for j in range(w.best_count.shape[0]):
        order = compare(low[j], best[j]) if low[j, 0] < np.inf else 1
        if order < 0 or (order == 0 and ties_with(j, option, e, w)):
            return True
    return False


@lean
def objective_value(parts: Floats, j: int, m: Machine, out: Floats) -> None:
    """Writes to out [3] the value of the objective, energy and latency of cost parts [J, P] on machine j; inf
    above its limit of cycles.

    Latency is built level by level from compute outwards: ports that serve transfers further inside overlap
    with the inside (`Machine.through`), stalls of fills and of drains add (`Machine.exposed`), and the ports
    of the level itself overlap. Ramps are added at the end.
    """
    latency = parts[j, STEPS]
    for v in range(m.ports.shape[0] - 1, -1, -1):
        for i in range(m.through[v, 0], m.through[v, 1]):
            latency = max(latency, parts[j, i])
        for side in range(2):
            waited = 0.0
            for i in range(m.exposed[v, side], m.exposed[v, side + 1]):
                waited = max(waited, parts[j, i])
            latency += waited
        latency = max(latency, parts[j, m.ports[v, 0]], parts[j, m.ports[v, 1]])
    latency += parts[j, RAMP]
    # latency may be inf, for a forbidden mapping: without leakage, 0 * inf would make the energy nan
    energy = parts[j, 0] + (m.leak[j] * latency if m.leak[j] > 0 else 0.0)
    out[0] = energy if m.objective == ENERGY else latency if m.objective == LATENCY else energy * latency
    out[1], out[2] = energy, latency
    if latency > m.limit[j]:
        out[0] = out[1] = out[2] = np.inf


@lean
def keep_improving(d: int, parts: Floats, m: Machine, w: Work, best: Floats, keep: bool) -> int:
    """How many of the machines alive after d nodes may still improve on their best with parts [J, P].

    keep: whether these become the machines alive after d + 1 nodes. If not, the count ends at the first one.
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
