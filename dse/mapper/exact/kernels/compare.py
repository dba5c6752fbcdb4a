"""Costs of the machines of a batch, held against the best that each has: which is lower, which may still
win."""

from __future__ import annotations

import numpy as np

from dse.mapper.exact.kernels.state import CLOSE, ENERGY, LATENCY, RAMP, STEPS, Einsum, Machine, Work
from dse.run.compiled import lean, njit
from workloads.arrays import Bools, Floats, Ints


@lean
def compare(a: Floats, b: Floats) -> int:
    """Of two costs [3], by the first of their numbers that differ by more than rounding: -1, a is lower; 0,
    there is none; 1.
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
    """Whether a cost, or what is at least one, may be better than the best of machine j, or as good, where
    that is let through.
    """
    order = compare(cost, best[j])
    return bool(order < 0 or (order == 0 and equal[j]))


@lean
def order_of(a: Ints, b: Ints, order: Ints) -> int:
    """Of two choices of lanes, by the first ranks that differ: -1, a comes first; 0, they are equal; 1."""
    for i in order:
        if a[i] != b[i]:
            return -1 if a[i] < b[i] else 1
    return 0


@lean
def ties_with(j: int, option: Ints, e: Einsum, w: Work) -> bool:
    """Whether what has these lanes and costs the same as the best of machine j may be taken in its place. Of
    equals the first is: by lanes, then by the levels that hold the tensors, then as nests are made; an order
    that no price changes, so that the answer does not depend on what is looked at first, nor with which other
    machines.
    """
    return bool(w.best_count[j] >= 0 and order_of(option, w.best_unrolling[j], e.order) <= 0)


@lean
def may_lead(option: Ints, low: Floats, best: Floats, e: Einsum, w: Work) -> bool:
    """Whether lanes with bounds [J, 3] may lead to what is taken on some machine."""
    for j in range(w.best_count.shape[0]):
        order = compare(low[j], best[j]) if low[j, 0] < np.inf else 1
        if order < 0 or (order == 0 and ties_with(j, option, e, w)):
            return True
    return False


@lean
def objective_value(parts: Floats, j: int, m: Machine, out: Floats) -> None:
    """Figure of the objective, energy, latency of cost parts [J, P] of machine j."""
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
    # what is forbidden costs infinitely many cycles
    energy = parts[j, 0] + (m.leak[j] * latency if m.leak[j] > 0 else 0.0)
    out[0] = energy if m.objective == ENERGY else latency if m.objective == LATENCY else energy * latency
    out[1], out[2] = energy, latency
    if latency > m.limit[j]:
        out[0] = out[1] = out[2] = np.inf


@lean
def keep_improving(d: int, parts: Floats, m: Machine, w: Work, best: Floats, keep: bool) -> int:
    """Of how many machines that are alive after d nodes parts [J, P] may be better than the best; keep: these
    are alive after one node more.
    """
    n = 0
    for a in range(w.lives[d]):
        j = w.live[d, a]
        objective_value(parts, j, m, w.cost)
        if wins(j, w.cost, best, w.equal):
            if not keep:
                return 1
            w.live[d + 1, n], n = j, n + 1
    if keep:
        w.lives[d + 1] = n
    return n
