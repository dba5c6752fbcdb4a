"""Lower bounds of the energy or latency of an einsum on one machine, from those that searches proved on
others, the anchors.

Anchor k has prices p_k, leakage per cycle l_k, and the lower bound F_k; the machine asked about has prices p,
leakage l, and no more capacity or PEs, so that each of its mappings is one of every anchor. A mapping with
numbers of actions A takes C cycles there, and at most C / b_k on machine k, with b_k = min(1, t / t_k) over
the times t of ports and operations: cycles grow with each time, and proportionally if all times grow. For any
weights w_k >= 0 that leave no price and no leakage below 0, its energy is

    p.A + l C = sum_k w_k (p_k.A + l_k / b_k C) + (p - sum_k w_k p_k).A + (l - sum_k w_k l_k / b_k) C
             >= sum_k w_k F_k                   + (p - sum_k w_k p_k).U + (l - sum_k w_k l_k / b_k) L

with U the least numbers of actions of any mapping, and L the least cycles. The best weights are those of a
linear program with a row for each price. It is solved by the simplex method from w = 0 (Dantzig, Linear
Programming and Extensions, 1963, chapter 5); any weights that keep to the rows give a bound, so the end of
its steps, or their rounding, cannot make one that is too high. With the objective latency there are no
prices, and each cycle costs 1; with the objective edp each costs more than the leakage (shared_products.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dse.run.compiled import njit, njit_no_alloc
from dse.sim.einsum.evaluate import ROUNDING_GAP
from workloads.arrays import Floats, Ints

MAX_PIVOTS = 64
TINY = 1e-12  # smaller numbers of the tableau count as 0


class Anchors(NamedTuple):
    """Anchors of E einsums, K at most of each."""

    size: Ints  # [E] how many there are
    machine: Ints  # [E, K] whose prices and rates count
    leak_pj: Floats  # [E, K] per cycle
    bound: Floats  # [E, K]
    capacity_bits: Floats  # [E, K, V]
    pes: Ints  # [E, K, D]


class Prices(NamedTuple):
    """What anchors are compared by, of n machines, with kinds of prices and of rates (`MachineBatch`)."""

    kind: Ints  # [n] kind of prices
    rate_kind: Ints  # [n]
    leak_pj: Floats  # [n] per cycle, and what else a cycle costs; ones for latency, whose prices are none
    capacity_bits: Floats  # [n, V]
    pes: Ints  # [n, D]
    prices: Floats  # [kinds, A] per action; of actions whose prices are proportional, one
    times: Floats  # [kinds of rates, T]
    least_pj: Floats  # [E, kinds] energy of the least numbers of actions, p . U
    least_cycles: Floats  # [E, kinds of rates]


def no_anchors(einsums: int, levels: int, dims: int) -> Anchors:
    """Returns room for the first anchors of einsums."""
    room = 8
    return Anchors(
        np.zeros(einsums, np.int64),
        np.zeros((einsums, room), np.int64),
        np.zeros((einsums, room)),
        np.zeros((einsums, room)),
        np.zeros((einsums, room, levels)),
        np.zeros((einsums, room, dims), np.int64),
    )


def with_anchor(
    anchors: Anchors,
    einsum: int,
    machine: int,
    leak_pj: float,
    bound: float,
    capacity_bits: Floats,
    pes: Ints,
) -> Anchors:
    """Returns anchors with one more, in the arrays of `anchors` as long as they have room."""
    at, room = int(anchors.size[einsum]), anchors.machine.shape[1]
    if at == room:
        size, *rows = anchors
        anchors = Anchors(size, *(np.concatenate([one, np.zeros_like(one)], axis=1) for one in rows))
    anchors.size[einsum] += 1
    anchors.machine[einsum, at], anchors.leak_pj[einsum, at] = machine, leak_pj
    anchors.bound[einsum, at] = bound
    anchors.capacity_bits[einsum, at], anchors.pes[einsum, at] = capacity_bits, pes
    return anchors


def distinct_prices(prices: Floats) -> Floats:
    """Returns [kinds, A'] of prices [kinds, A] one action of those whose prices are proportional."""
    first = np.where(prices[:1] > 0, prices[:1], 1.0)
    _, columns = np.unique(prices / first, axis=1, return_index=True)
    return np.ascontiguousarray(prices[:, np.sort(columns)])


@njit(cache=True, nogil=True, error_model="numpy")
def raise_bounds(i: int, anchors: Anchors, p: Prices, seen: Ints, bound: Floats) -> bool:
    """Raises the bounds of machine i in `bound` [E, n] by anchors that are new since it was last asked for
    (`seen` [E, n] of them). Returns whether any was raised.
    """
    raised = False
    rows, most = p.prices.shape[1] + 1, anchors.machine.shape[1]
    table = np.empty((rows + 1, most + rows + 1))
    shares, gain, basis = np.empty((most, rows)), np.empty(most), np.empty(rows, np.int64)
    for e in range(anchors.size.shape[0]):
        if seen[e, i] == anchors.size[e]:
            continue
        seen[e, i] = anchors.size[e]
        columns = 0
        for k in range(anchors.size[e]):
            if set_column(e, i, k, columns, anchors, p, shares, gain):
                columns += 1
        found = p.least_pj[e, p.kind[i]] + p.leak_pj[i] * p.least_cycles[e, p.rate_kind[i]]
        found = (found + best_sum(columns, shares, gain, table, basis)) * (1 - ROUNDING_GAP)
        if found > bound[e, i]:
            bound[e, i], raised = found, True
    return raised


@njit_no_alloc
def set_column(
    e: int, i: int, k: int, column: int, anchors: Anchors, p: Prices, shares: Floats, gain: Floats
) -> bool:
    """Sets a column of the linear program of einsum e on machine i: shares[column] of each price, and last of
    the leakage, of machine i that a weight of 1 of anchor k takes; and what the bound gains by it. Returns
    False where the anchor says nothing about machine i.
    """
    for v in range(p.capacity_bits.shape[1]):
        if p.capacity_bits[i, v] > anchors.capacity_bits[e, k, v]:
            return False
    for d in range(p.pes.shape[1]):
        if p.pes[i, d] > anchors.pes[e, k, d]:
            return False
    other, cycle_ratio = anchors.machine[e, k], 1.0
    for part in range(p.times.shape[1]):
        if p.times[p.rate_kind[other], part] > 0:
            cycle_ratio = min(cycle_ratio, p.times[p.rate_kind[i], part] / p.times[p.rate_kind[other], part])
    leak_pj = anchors.leak_pj[e, k] / cycle_ratio if anchors.leak_pj[e, k] > 0 else 0.0
    rows = p.prices.shape[1]
    for a in range(rows + 1):
        needed = p.prices[p.kind[other], a] if a < rows else leak_pj
        given = p.prices[p.kind[i], a] if a < rows else p.leak_pj[i]
        if needed > 0 and not (needed < np.inf and given > 0):
            return False
        shares[column, a] = needed / given if needed > 0 else 0.0
    gain[column] = (
        anchors.bound[e, k] - p.least_pj[e, p.kind[other]] - leak_pj * p.least_cycles[e, p.rate_kind[i]]
    )
    return bool(gain[column] > 0)


@njit_no_alloc
def best_sum(columns: int, shares: Floats, gain: Floats, table: Floats, basis: Ints) -> float:
    """The largest sum of weights x gain with weights >= 0 whose sum of weights x shares is at most 1 in each
    row, by the simplex method with the largest gain first.

    shares [K, rows], gain [K]: the first `columns` count. table [rows + 1, K + rows + 1], basis [rows]:
    scratch.
    """
    rows = basis.shape[0]
    last = columns + rows
    for r in range(rows + 1):
        for c in range(last + 1):
            table[r, c] = 0.0
        for c in range(columns):
            table[r, c] = shares[c, r] if r < rows else -gain[c]
        if r < rows:
            table[r, columns + r], table[r, last], basis[r] = 1.0, 1.0, columns + r
    for _ in range(MAX_PIVOTS):
        entering, leaving, least = 0, -1, np.inf
        for c in range(last):
            if table[rows, c] < table[rows, entering]:
                entering = c
        for r in range(rows if table[rows, entering] < 0 else 0):
            if table[r, entering] > TINY and table[r, last] < least * table[r, entering]:
                least, leaving = table[r, last] / table[r, entering], r
        if leaving < 0:
            break
        basis[leaving], pivot = entering, table[leaving, entering]
        for c in range(last + 1):
            table[leaving, c] /= pivot
        for r in range(rows + 1):
            factor = table[r, entering]
            for c in range(last + 1 if r != leaving and factor != 0.0 else 0):
                table[r, c] -= factor * table[leaving, c]
    total, most_used = 0.0, 1.0
    for r in range(rows):
        used = 0.0
        for other in range(rows):
            if basis[other] < columns:
                used += max(table[other, last], 0.0) * shares[basis[other], r]
        most_used = max(most_used, used)
        if basis[r] < columns:
            total += max(table[r, last], 0.0) * gain[basis[r]]
    return total / most_used
