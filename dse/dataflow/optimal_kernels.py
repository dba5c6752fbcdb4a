"""Compiled branch and bound over the tile sizes of one placement: arrays in, arrays out (the readable side is optimal.py).

A placement is a list of steps, outermost first. At a step every rank moves from its state to one of its successors: to a smaller
temporal tile, or over the lanes of a fan-out. A step may carry a storage node, whose traffic is then known, or compute.

Long, because compiled functions share their array layout and are kept in one file.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NODE, GAP, LANES, MAC = 0, 1, 2, 3  # kinds of steps
CLOSE = 1e-10  # costs that differ by less, relatively, are ties


@njit(cache=True, nogil=True)
def below(a: Floats, b: Floats) -> bool:
    """Whether cost a [3] is lower than b: the first of its numbers that differ by more than rounding."""
    for i in range(3):
        if abs(a[i] - b[i]) > CLOSE * min(abs(a[i]), abs(b[i])):
            return bool(a[i] < b[i])
    return False


@njit(cache=True, nogil=True)
def rank_cost(parts: Floats, port: Ints, machine: Floats, objective: int, out: Floats) -> None:
    """Figure of the objective, energy, latency from cost parts: [energy without leakage, compute cycles, port cycles...].

    port [V, 3]: parts of a level's reads and writes (equal if shared), 1 if its fills wait for the inside. machine: [leakage pJ per cycle].
    """
    latency = parts[1]
    for v in range(port.shape[0] - 1, -1, -1):
        own = max(parts[port[v, 0]], parts[port[v, 1]])
        latency = latency + own if port[v, 2] else max(latency, own)
    energy = parts[0] + machine[0] * latency
    out[0] = energy if objective == 0 else latency if objective == 1 else energy * latency
    out[1], out[2] = energy, latency


@njit(cache=True, nogil=True)
def product_at(t: int, states: Ints, products: Ints, factor_start: Ints, factor_rank: Ints, factor_stride: Ints, table: Floats) -> float:
    """Product t of factors for the ranks' states. products [T, 2]: its factors' numbers from, to; factor_start [F, 3]: table offset, ranks from, to."""
    value = 1.0
    for f in range(products[t, 0], products[t, 1]):
        at = factor_start[f, 0]
        for i in range(factor_start[f, 1], factor_start[f, 2]):
            at += states[factor_rank[i]] * factor_stride[i]
        value *= table[at]
    return value


@njit(cache=True, nogil=True)
def add_link(link: int, states: Ints, links: Ints, weights: Floats, products: Ints, factor_start: Ints, factor_rank: Ints, factor_stride: Ints,
             table: Floats, low: Floats, high: Floats, floor: Floats, bound: bool, parts: Floats) -> None:
    """Add a link's cost to parts; bound: at most what it costs in any descendant of the states. links [K, 2]: products from, to; weights [T, P]."""
    n, first, last = parts.shape[0], links[link, 0], links[link, 1]
    if bound and last > first and weights[first:last, n].min() < 0:
        extra = np.zeros(n)
        for t in range(first, last):
            value = product_at(t, states, products, factor_start, factor_rank, factor_stride, high if weights[t, n] < 0 else low)
            for i in range(n):
                extra[i] += weights[t, i] * value
        for i in range(n):
            parts[i] += max(extra[i], 0.0)
        return
    for t in range(first, last):
        minus = weights[t, n] < 0
        value = product_at(t, states, products, factor_start, factor_rank, factor_stride, table if not bound else high if minus else low)
        if bound and not minus:
            value = max(value, floor[t])
        for i in range(n):
            parts[i] += weights[t, i] * value


@njit(cache=True, nogil=True)
def hull_of(x: int, s: Ints, s2: Ints, window: int, full: Bools, tile: Ints, dim_start: Ints, dim_rank: Ints, dim_coef: Ints, csr: Floats) -> float:
    """Words that tensor x holds: full ranks at state s2, the rank `window` too, others at s. dim_start [X + 1], a row of dims: ranks from, to."""
    whole, rows = 1.0, 1.0
    for d in range(dim_start[x, 0], dim_start[x, 1]):
        length = 1.0
        for i in range(dim_rank[d, 0], dim_rank[d, 1]):
            r = dim_coef[i, 0]
            at = s2[r] if full[x, r] or r == window else s[r]
            length += dim_coef[i, 1] * (tile[r, at] - 1)
        whole *= length
        if d < dim_start[x, 1] - 1:
            rows *= length
    return whole if csr[x] == 0.0 else np.ceil(csr[x] * whole) + rows


@njit(cache=True, nogil=True)
def sunk(x: int, s: Ints, s2: Ints, full: Bools, seen: Bools, tile: Ints, dim_start: Ints, dim_rank: Ints, dim_coef: Ints, csr: Floats) -> float:
    """Words of a node at state s when the loops of the next gap lead to s2: below fully relevant loops, into the best window."""
    best = hull_of(x, s, s2, -1, full, tile, dim_start, dim_rank, dim_coef, csr)
    for r in range(s.shape[0]):
        if seen[x, r] and not full[x, r] and s[r] != s2[r]:
            best = min(best, hull_of(x, s, s2, r, full, tile, dim_start, dim_rank, dim_coef, csr))
    return best


@njit(cache=True, nogil=True)
def search(steps: Ints, n: int, order: Ints, rest: Ints, allowed: Bools, border_dims: Bools, ramp: Ints, target: Ints, start: Ints, start_parts: Floats,
           tail: Floats, room: Floats, doubled: Bools, bits: Floats, succ_start: Ints, succ: Ints, succ_trips: Ints, lane_size: Ints, tile: Ints, full: Bools,
           seen: Bools, dim_start: Ints, dim_rank: Ints, dim_coef: Ints, csr: Floats, links: Ints, weights: Floats, products: Ints, factor_start: Ints,
           factor_rank: Ints, factor_stride: Ints, table: Floats, low: Floats, high: Floats, floor: Floats, folds: Floats, port: Ints, machine: Floats,
           objective: int, rules: Ints, best: Floats, chosen: Ints, found: Floats, found_states: Ints, filled: int, budget: int) -> tuple[int, int]:
    """Depth first over the states of one list of steps, cut by bounds; returns (nodes visited, above budget if it stopped early; entries of found).

    steps [n, 5]: kind, level, tensor, link, group of successors. target [R]: states to end in, then the Pareto list `found` of parts and states
    (filled: its length) is extended; target[0] = -1: improve best [3] and chosen [n, R]. tail: at least what comes after the target.
    """
    ranks, parts_n, listing = tile.shape[0], start_parts.shape[0], target[0] >= 0
    state = np.zeros((n + 1, ranks), np.int64)
    state[0] = start
    at = np.zeros((n, ranks), np.int64)
    parts = np.zeros((n + 1, parts_n))
    parts[0] = start_parts
    need = np.zeros((n + 1, room.shape[0]))
    moved = np.zeros(n + 1, np.bool_)
    moved[0] = np.any(start > 0)
    used = np.ones((n * ranks + 1, lane_size.shape[0]), np.int64)
    guess, figure = np.zeros(parts_n), np.zeros(3)
    settled = order[: rest[0, 1]]
    visited, e, r = 0, 0, 0
    at[0, 0] = -1
    while True:
        s = state[e, r]
        first, last = succ_start[steps[e, 4], r, s], succ_start[steps[e, 4], r, s + 1]
        at[e, r] += 1
        o = first + at[e, r]
        if o >= last or (at[e, r] > 0 and not allowed[e, r]):
            r -= 1
            if r < 0:
                e, r = e - 1, ranks - 1
                if e < 0:
                    return visited, filled
            continue
        if listing and (tile[r, succ[o]] % tile[r, target[r]] != 0 or (e == n - 1 and succ[o] != target[r])):
            continue
        row = e * ranks + r
        used[row + 1] = used[row]
        if steps[e, 0] == LANES:
            ok = True
            for d in range(lane_size.shape[0]):
                used[row + 1, d] *= succ_trips[o, d]
                ok = ok and used[row + 1, d] <= lane_size[d]
            if not ok:
                continue
        state[e + 1, r] = succ[o]
        if r < ranks - 1:
            if steps[e, 0] == LANES:  # the other ranks may still go anywhere
                state[e + 1, r + 1:] = state[e, r + 1:]
                guess[:] = parts[e]
                for k in range(rest[e + 1, 0], rest[e + 1, 1]):
                    add_link(order[k], state[e + 1], links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor, True, guess)
                guess[1] = max(guess[1], machine[1])
                rank_cost(guess, port, machine, objective, figure)
                if not below(figure, best):
                    continue
            r += 1
            at[e, r] = -1
            continue
        visited += 1
        if visited > budget:
            return visited, filled
        if not account(e, steps, settled, border_dims, ramp, room, doubled, bits, tile, full, seen, dim_start, dim_rank, dim_coef, csr, links, weights,
                       products, factor_start, factor_rank, factor_stride, table, low, high, floor, folds, state, parts, need, moved, used[row + 1]):
            continue
        guess[:] = parts[e + 1]
        if listing:
            guess += tail
        for k in range(rest[e + 1, 0], rest[e + 1, 1]):
            add_link(order[k], state[e + 1], links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor, True, guess)
        guess[1] = max(guess[1], machine[1])
        rank_cost(guess, port, machine, objective, figure)
        if not below(figure, best):
            continue
        if e == n - 1:
            if listing:
                filled = listed(parts[n], state, n, found, found_states, filled)
            elif keeps(steps, n, state, used[row + 1], lane_size, border_dims, rules):
                best[:] = figure
                chosen[:n] = state[1:n + 1]
            continue
        e, r = e + 1, 0
        at[e, 0] = -1
        used[e * ranks] = used[row + 1]


@njit(cache=True, nogil=True)
def listed(parts: Floats, state: Ints, n: int, found: Floats, found_states: Ints, filled: int) -> int:
    """Keep the list of parts free of those that another is not above in any part; a full list keeps all that it has room for."""
    keep = 0
    for i in range(filled):
        if np.all(found[i] <= parts):
            return filled
    for i in range(filled):
        if not np.all(parts <= found[i]):
            found[keep] = found[i]
            found_states[keep] = found_states[i]
            keep += 1
    assert keep < found.shape[0]
    found[keep] = parts
    found_states[keep, 0, :] = n
    found_states[keep, 1:n + 1] = state[1:n + 1]
    return keep + 1


@njit(cache=True, nogil=True)
def account(e: int, steps: Ints, order: Ints, border_dims: Bools, ramp: Ints, room: Floats, doubled: Bools, bits: Floats, tile: Ints, full: Bools,
            seen: Bools, dim_start: Ints, dim_rank: Ints, dim_coef: Ints, csr: Floats, links: Ints, weights: Floats, products: Ints, factor_start: Ints,
            factor_rank: Ints, factor_stride: Ints, table: Floats, low: Floats, high: Floats, floor: Floats, folds: Floats, state: Ints, parts: Floats,
            need: Floats, moved: Bools, used: Ints) -> bool:
    """Costs and footprints that step e settles; False if a level overflows."""
    s, s2 = state[e], state[e + 1]
    parts[e + 1] = parts[e]
    need[e + 1] = need[e]
    moved[e + 1] = moved[e]
    if steps[e, 0] == LANES:
        for f in range(folds.shape[0]):
            if ramp[f, 0] == e:
                entered = product_at(ramp[f, 1], s2, products, factor_start, factor_rank, factor_stride, table)
                some = False
                for d in range(used.shape[0]):
                    some = some or (ramp[f, 2] <= d < ramp[f, 3] and used[d] > 1)
                parts[e + 1, 1] += max((entered if some else 1.0) * folds[f] - 1, 0.0)
    else:
        for r in range(s.shape[0]):
            moved[e + 1] = moved[e + 1] or s[r] != s2[r]
    if e > 0 and steps[e - 1, 0] == NODE:  # the node above comes to rest
        x, v = steps[e - 1, 2], steps[e - 1, 1]
        if room[v] < np.inf:
            if steps[e, 0] == LANES or steps[e - 1, 3] < 0:
                words = hull_of(x, s, s, -1, full, tile, dim_start, dim_rank, dim_coef, csr)
            else:
                words = sunk(x, s, s2, full, seen, tile, dim_start, dim_rank, dim_coef, csr)
            need[e + 1, v] += words * bits[x] * (2.0 if doubled[v] and moved[e] else 1.0)
            if need[e + 1, v] > room[v]:
                return False
    if steps[e, 0] == NODE and steps[e, 3] >= 0:
        add_link(steps[e, 3], s2, links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor, False, parts[e + 1])
    elif steps[e, 0] == MAC:
        for k in range(steps[e, 3], order.shape[0]):
            add_link(order[k], s2, links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor, False, parts[e + 1])
    return True


@njit(cache=True, nogil=True)
def keeps(steps: Ints, n: int, state: Ints, used: Ints, lane_size: Ints, border_dims: Bools, rules: Ints) -> bool:
    """Whether a full choice keeps its rules: [stationary tensor or -1, least lanes, may iterate inside per rank..., named per fan-out dimension...]."""
    ranks, dims = state.shape[1], lane_size.shape[0]
    lanes = 1
    for d in range(dims):
        lanes *= used[d]
    if lanes < rules[1]:
        return False
    border = -1
    for e in range(n):
        if steps[e, 0] == LANES:
            for d in range(dims):
                if border_dims[e, d] and rules[2 + ranks + d] and used[d] > 1:
                    border = e
    if border < 0:
        return True
    innermost, first = -1, n
    for e in range(border + 1, n):
        if steps[e, 0] == NODE and steps[e, 2] == rules[0]:
            innermost = e
        if steps[e, 0] != LANES:
            for r in range(ranks):
                if state[e, r] != state[e + 1, r]:
                    first = min(first, e)
                    if not rules[2 + r]:
                        return False
    # a step's loops stand above its node
    return bool(rules[0] < 0 or first == n or (innermost >= 0 and innermost < first))


@njit(cache=True, nogil=True)
def joint_lanes(accesses: Ints, states: Ints, unseen: Bools, lanes: float, points: float, products: Ints, weights: Floats, factor_start: Ints,
                factor_rank: Ints, factor_stride: Ints, low: Floats, floor: Floats, tile: Ints) -> float:
    """Energy that accesses of compute to several tensors cost above their bounds apart, since they share the lanes.

    A tensor is read c times per tile U, c the product over the ranks that it does not see (unseen [T, R], disjoint) of the steps that lanes leave;
    the product of all c is at least that of these extents of U over the lanes, so the sum of n costs w c is at least n times the geometric mean.
    """
    n, ratio, apart, mean = 0, 1.0 / lanes, 0.0, 1.0
    for t in accesses:
        if t < 0:
            break
        once = weights[t, 0] * points
        for r in range(tile.shape[0]):
            if unseen[t, r]:
                once /= tile[r, states[r]]
                ratio *= tile[r, states[r]]
        apart += weights[t, 0] * max(product_at(t, states, products, factor_start, factor_rank, factor_stride, low), floor[t])
        mean *= once
        n += 1
    if n < 2 or ratio <= 1.0:
        return 0.0
    together: float = n * (mean * ratio) ** (1.0 / n)
    return max(together - apart, 0.0)


@njit(cache=True, nogil=True)
def split(out_steps: Ints, out_n: Ints, out_order: Ints, out_rest: Ints, out_allowed: Bools, out_dims: Bools, out_ramp: Ints, out_sig: Ints,
          in_steps: Ints, in_n: Ints, in_order: Ints, in_rest: Ints, in_allowed: Bools, in_dims: Bools, in_ramp: Ints, in_pair: Ints, pair_sig: Ints,
          pair_links: Ints, pair_count: Ints, pair_joint: Ints, unseen: Bools, lanes: float, points: float, units: Ints, tiles: Ints,
          tile_count: Ints, start_parts: Floats, room: Floats, doubled: Bools, bits: Floats,
          succ_start: Ints, succ: Ints, succ_trips: Ints, lane_size: Ints, tile: Ints, full: Bools,
          seen: Bools, dim_start: Ints, dim_rank: Ints, dim_coef: Ints, csr: Floats, links: Ints, weights: Floats, products: Ints, factor_start: Ints,
          factor_rank: Ints, factor_stride: Ints, table: Floats, low: Floats, high: Floats, floor: Floats, folds: Floats, port: Ints, machine: Floats,
          objective: int, rules: Ints, best: Floats, chosen: Ints, choice: Ints, budget: int) -> int:
    """Best first over (kept sets, U): U is the tile that enters the outermost fan-out, in view of which outer and inner steps are independent.

    Outer programs share a signature if the same levels fill the inside; a pair is a signature and a set of inner nodes. choice [2]: the programs of the
    best, chosen: the outer states, then the inner ones. Returns nodes visited,
    above budget if something was left out.
    """
    ranks, parts_n = tile.shape[0], start_parts.shape[0]
    sigs, pairs = np.max(out_sig) + 1, pair_sig.shape[0]
    size = 1
    for r in range(ranks):
        size *= tile_count[r]
    lattice = np.zeros((size, ranks), np.int64)
    for i in range(size):
        rest = i
        for r in range(ranks - 1, -1, -1):
            lattice[i, r] = tiles[r, rest % tile_count[r]]
            rest //= tile_count[r]
    # what every link costs at least inside each U
    lowest = np.zeros((links.shape[0], size, parts_n))
    needed = np.zeros(links.shape[0], np.bool_)
    for g in range(pairs):
        for k in range(pair_count[g]):
            needed[pair_links[g, k]] = True
    for link in range(links.shape[0]):
        if needed[link]:
            for i in range(size):
                add_link(link, lattice[i], links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor, True, lowest[link, i])
    width = out_steps.shape[1]
    found = np.zeros((4096, parts_n))
    found_states = np.zeros((4096, width + 1, ranks), np.int64)
    root, zero = np.zeros(ranks, np.int64), np.zeros(parts_n)
    visited = 0
    partial = False
    outer_floor = np.full((sigs, parts_n), np.inf)
    for sig in range(sigs):
        filled, cut = 0, False
        for o in range(out_sig.shape[0]):
            if out_sig[o] == sig:
                n, filled = search(out_steps[o], out_n[o], out_order[o], out_rest[o], out_allowed[o], out_dims[o], out_ramp[o], units, root, start_parts,
                                   zero, room, doubled, bits, succ_start, succ, succ_trips, lane_size, tile, full, seen, dim_start, dim_rank, dim_coef, csr,
                                   links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor, folds, port, machine,
                                   objective, rules, best, chosen, found, found_states, filled, budget // 32)
                visited += n
                cut = cut or n > budget // 32
        for i in range(filled):
            for j in range(parts_n):
                outer_floor[sig, j] = min(outer_floor[sig, j], found[i, j])
        if cut:  # nothing is a bound too
            outer_floor[sig] = start_parts
    tails = np.full((sigs, size, parts_n), np.inf)
    bounds, extra = np.full((pairs * size, 3), np.inf), np.zeros((pairs, size))
    guess = np.zeros(parts_n)
    for g in range(pairs):
        sig = pair_sig[g]
        if outer_floor[sig, 0] == np.inf:
            continue
        for i in range(size):
            guess[:] = 0.0
            for k in range(pair_count[g]):
                guess += lowest[pair_links[g, k], i]
            extra[g, i] = joint_lanes(pair_joint[g], lattice[i], unseen, lanes, points, products, weights, factor_start, factor_rank, factor_stride, low,
                                      floor, tile)
            guess[0] += extra[g, i]
            tails[sig, i] = np.minimum(tails[sig, i], guess)
            guess += outer_floor[sig]
            guess[1] = max(guess[1], machine[1])
            rank_cost(guess, port, machine, objective, bounds[g * size + i])
    later = np.argsort(bounds[:, 1], kind="mergesort")
    later = later[np.argsort(bounds[later, 0], kind="mergesort")]
    pool = np.zeros((1024, parts_n))
    pool_states = np.zeros((1024, width + 1, ranks), np.int64)
    pool_program = np.zeros(1024, np.int64)
    pool_from, pool_to, pool_size = np.full((sigs, size), -1, np.int64), np.zeros((sigs, size), np.int64), 0
    figure = np.zeros(3)
    for c in later:
        if bounds[c, 0] > best[0] * (1 + CLOSE) or bounds[c, 0] == np.inf or visited > budget:
            break
        if not below(bounds[c], best):
            continue
        g, i = c // size, c % size
        sig = pair_sig[g]
        if pool_from[sig, i] < 0:
            filled, most = 0, budget - visited if best[0] < np.inf else min(budget - visited, budget // 32)
            for o in range(out_sig.shape[0]):
                if out_sig[o] == sig:
                    n, filled = search(out_steps[o], out_n[o], out_order[o], out_rest[o], out_allowed[o], out_dims[o], out_ramp[o], lattice[i], root,
                                       start_parts, tails[sig, i], room, doubled, bits, succ_start, succ, succ_trips, lane_size, tile, full, seen, dim_start,
                                       dim_rank, dim_coef, csr, links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor,
                                       folds, port, machine, objective, rules, best, chosen, found, found_states, filled, most)
                    visited += n
                    partial = partial or n > most
                    for j in range(filled):
                        if found_states[j, 0, 0] >= 0:
                            found_states[j, 0, 0] = -1 - o
            while pool_size + filled > pool.shape[0]:
                pool = np.concatenate((pool, np.zeros_like(pool)))
                pool_states = np.concatenate((pool_states, np.zeros_like(pool_states)))
                pool_program = np.concatenate((pool_program, np.zeros_like(pool_program)))
            pool_from[sig, i] = pool_size
            for j in range(filled):
                pool[pool_size] = found[j]
                pool_states[pool_size] = found_states[j]
                pool_program[pool_size] = -1 - found_states[j, 0, 0]
                pool_size += 1
            pool_to[sig, i] = pool_size
        for j in range(pool_from[sig, i], pool_to[sig, i]):
            guess[:] = pool[j]
            guess[0] += extra[g, i]
            for k in range(pair_count[g]):
                guess += lowest[pair_links[g, k], i]
            guess[1] = max(guess[1], machine[1])
            rank_cost(guess, port, machine, objective, figure)
            if not below(figure, best):
                continue
            for p in range(in_pair.shape[0]):
                if in_pair[p] != g:
                    continue
                was = best.copy()
                n, _ = search(in_steps[p], in_n[p], in_order[p], in_rest[p], in_allowed[p], in_dims[p], in_ramp[p], np.full(ranks, -1, np.int64), lattice[i],
                              pool[j], zero, room, doubled, bits, succ_start, succ, succ_trips, lane_size, tile, full, seen, dim_start, dim_rank, dim_coef,
                              csr, links, weights, products, factor_start, factor_rank, factor_stride, table, low, high, floor, folds, port, machine,
                              objective, rules, best, chosen[width:], found, found_states, 0, budget - visited)
                visited += n
                if np.any(was != best):
                    chosen[:width] = pool_states[j, 1:]
                    choice[0], choice[1] = pool_program[j], p
    return max(visited, budget + 1) if partial else visited
