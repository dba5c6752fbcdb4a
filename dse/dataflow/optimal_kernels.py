"""Compiled branch and bound over tile sizes: arrays in, arrays out (the readable side is optimal.py, the counts are formula.py's).

A program is a list of steps, outermost first. At a step every rank moves from its state to one of its successors: to a smaller temporal tile, or over
the lanes of a fan-out. A step may carry a storage node, whose traffic is then known, or compute. What stands outside the first fan-out (outer programs)
is solved for all tiles U that may enter it; what stands inside (inner programs) only for those U that a bound leaves.

Long, because compiled functions share their array layout and are kept in one file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.dataflow.steps import LANES, MAC, NODE

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ENERGY, LATENCY, EDP, ALL = 0, 1, 2, 3  # ALL: costs are compared part by part, no figure is made of them
OBJECTIVES = {"energy": ENERGY, "latency": LATENCY, "edp": EDP}
CLOSE = 1e-10  # costs that differ by less, relatively, are ties
WAYS, SETS = 256, 1 << 12  # lanes in use: ways to have them, and how many such sets are remembered


class Tables(NamedTuple):
    """One einsum on one machine. Levels V, tensors X, ranks R, states S, fan-out dimensions D, products T, links K, cost parts P.

    room bits [V], doubled [V]; bits [X]. succ [M]: successors, of state s of rank r in group g from succ_start[g, r, s] to [g, r, s + 1]; succ_ways [M]
    number of the list of their ways over lanes, way_list [., 2] from, to in ways [W, D]; fewest [M] lanes of the way that needs fewest, in this order;
    even [R] see Formulas; lane_size [D]. tile [R, S]. full, seen [X, R]; dim_start [X, 2] dimensions of a tensor, dim_rank [., 2]
    terms of a dimension, dim_coef [., 2] (rank, coefficient); csr [X] 2 * density if compressed, else 0. links [K, 2] products from, to; weights [T, P + 1]
    (last the sign); products [T, 2] factors from, to; factor_start [., 3] table offset, ranks from, to; factor_rank, factor_stride; table, low, high;
    floor [T]. start [P]; folds cycles per array; port [V, 3] parts of reads and of writes, 1 if fills wait; machine [leakage pJ per cycle, least
    compute cycles]; rules: see `keeps`; rooms [V, .] ascending capacities of a family, the last
    one `room`: needs with the same smallest capacity that holds them are equal.
    """

    room: Floats
    doubled: Bools
    bits: Floats
    succ_start: Ints
    succ: Ints
    succ_ways: Ints
    fewest: Ints
    even: Bools
    way_list: Ints
    ways: Ints
    lane_size: Ints
    tile: Ints
    full: Bools
    seen: Bools
    dim_start: Ints
    dim_rank: Ints
    dim_coef: Ints
    csr: Floats
    links: Ints
    weights: Floats
    products: Ints
    factor_start: Ints
    factor_rank: Ints
    factor_stride: Ints
    table: Floats
    low: Floats
    high: Floats
    floor: Floats
    start: Floats
    folds: Floats
    port: Ints
    machine: Floats
    objective: int
    rules: Ints
    rooms: Floats


class Programs(NamedTuple):
    """N programs of at most n steps: steps [N, n, 5] kind, level, tensor, link, group of successors; length [N]; order [N, .] links as they are settled,
    ordered [N]; rest [N, n + 1, 2] the links still open after so many steps; allowed [N, n, R] ranks; border_dims [N, n, D]; ramp [N, ., 3]
    step and fan-out dimensions from, to of a systolic array."""

    steps: Ints
    length: Ints
    order: Ints
    ordered: Ints
    rest: Ints
    allowed: Bools
    border_dims: Bools
    ramp: Ints


class Walk(NamedTuple):
    """Room for one depth-first walk: what is settled after every step (state, parts, need, moved); scratch.

    used [rows] after every rank of every step the number of a set of lanes in use, set 0 none: sets [N, WAYS, D] the ways to have them, none of which needs
    no more lanes in any dimension than another, set_size [N], sets_known [1], place [2 N] finds a set; after [N, lists] the set that a list of ways leads to,
    -1 none, -2 not known yet.
    """

    state: Ints
    at: Ints
    parts: Floats
    need: Floats
    moved: Bools
    used: Ints
    sets: Ints
    set_size: Ints
    sets_known: Ints
    place: Ints
    after: Ints
    fewest: Ints
    guess: Floats
    total: Floats
    extra: Floats
    figure: Floats
    least: Floats
    alone: Floats
    lowest: Ints


@njit(cache=True, nogil=True)
def walk(steps: int, t: Tables) -> Walk:
    ranks, parts, levels, dims, lists = t.tile.shape[0], t.start.shape[0], t.room.shape[0], t.lane_size.shape[0], t.way_list.shape[0]
    rows = steps * ranks + 1 + 2 * ranks  # the last ones are for `uneven`
    size = np.ones(SETS + rows, np.int64)
    return Walk(np.zeros((steps + 1, ranks), np.int64), np.zeros((steps, ranks), np.int64), np.zeros((steps + 1, parts)), np.zeros((steps + 1, levels)),
                np.zeros(steps + 1, np.bool_), np.zeros(rows, np.int64), np.ones((SETS + rows, WAYS, dims), np.int16), size, np.ones(1, np.int64),
                np.full(2 * SETS, -1, np.int64), np.full((SETS, lists), -2, np.int32), np.ones(ranks + 1, np.int64), np.zeros(parts), np.zeros(parts),
                np.zeros(parts), np.zeros(3), np.zeros(3), np.zeros((2, parts)), np.zeros(ranks, np.int64))


@njit(cache=True, nogil=True, forceinline=True)
def copied(a: Floats, b: Floats) -> None:
    """b = a, without the overlap checks that a slice costs."""
    for i in range(a.shape[0]):
        b[i] = a[i]


@njit(cache=True, nogil=True, forceinline=True)
def added(a: Floats, b: Floats) -> None:
    for i in range(a.shape[0]):
        b[i] += a[i]


@njit(cache=True, nogil=True, forceinline=True)
def below(a: Floats, b: Floats) -> bool:
    """Whether cost a [3] is lower than b: the first of its numbers that differ by more than rounding."""
    for i in range(3):
        if abs(a[i] - b[i]) > CLOSE * min(abs(a[i]), abs(b[i])):
            return bool(a[i] < b[i])
    return False


@njit(cache=True, nogil=True, forceinline=True)
def rank_cost(parts: Floats, port: Ints, machine: Floats, objective: int, out: Floats) -> None:
    """Figure of the objective, energy, latency from cost parts: [energy without leakage, compute cycles, port cycles...]. port [V, 3] parts of reads and of
    writes, 1 if fills wait; machine [leakage pJ per cycle, least compute cycles]."""
    latency = max(parts[1], machine[1])
    for v in range(port.shape[0] - 1, -1, -1):
        own = max(parts[port[v, 0]], parts[port[v, 1]])
        latency = latency + own if port[v, 2] else max(latency, own)
    energy = parts[0] + machine[0] * latency
    out[0] = energy if objective == ENERGY else latency if objective == LATENCY else energy * latency
    out[1], out[2] = energy, latency


@njit(cache=True, nogil=True, forceinline=True)
def product_at(p: int, states: Ints, t: Tables, table: Floats) -> float:
    """Product p of factors for the ranks' states."""
    value = 1.0
    for f in range(t.products[p, 0], t.products[p, 1]):
        at = t.factor_start[f, 0]
        for i in range(t.factor_start[f, 1], t.factor_start[f, 2]):
            at += states[t.factor_rank[i]] * t.factor_stride[i]
        value *= float(table[at])
    return value


@njit(cache=True, nogil=True, forceinline=True)
def add_link(link: int, states: Ints, t: Tables, parts: Floats) -> None:
    """Add what a link costs at these states to parts."""
    for p in range(t.links[link, 0], t.links[link, 1]):
        value = product_at(p, states, t, t.table)
        for i in range(parts.shape[0]):
            parts[i] += t.weights[p, i] * value


@njit(cache=True, nogil=True, forceinline=True)
def add_bound(link: int, states: Ints, floors: bool, t: Tables, extra: Floats, parts: Floats) -> None:
    """Add to parts a lower bound of what a link costs at every state that may still follow.

    floors: also no product below its floor, which lanes set; not on links with skipped reads, which are subtracted. A link never costs less than 0: the reads
    that are skipped are some of those that are counted. extra: scratch.
    """
    n, first, last = parts.shape[0], t.links[link, 0], t.links[link, 1]
    minus = False
    for i in range(n):
        extra[i] = 0.0
    for p in range(first, last):
        minus = minus or t.weights[p, n] < 0
    for p in range(first, last):
        value = product_at(p, states, t, t.high if t.weights[p, n] < 0 else t.low)
        if floors and not minus:
            value = max(value, t.floor[p])
        for i in range(n):
            extra[i] += t.weights[p, i] * value
    for i in range(n):
        parts[i] += max(extra[i], 0.0)


@njit(cache=True, nogil=True, forceinline=True)
def hull_of(x: int, s: Ints, s2: Ints, window: int, t: Tables) -> float:
    """Words that tensor x holds: full ranks at state s2, the rank `window` too, others at s."""
    whole, rows = 1.0, 1.0
    for d in range(t.dim_start[x, 0], t.dim_start[x, 1]):
        length = 1.0
        for i in range(t.dim_rank[d, 0], t.dim_rank[d, 1]):
            r = t.dim_coef[i, 0]
            at = s2[r] if t.full[x, r] or r == window else s[r]
            length += t.dim_coef[i, 1] * (t.tile[r, at] - 1)
        whole *= length
        if d < t.dim_start[x, 1] - 1:
            rows *= length
    return whole if t.csr[x] == 0.0 else np.ceil(np.round(t.csr[x] * whole, 6)) + rows


@njit(cache=True, nogil=True, forceinline=True)
def sunk(x: int, s: Ints, s2: Ints, t: Tables) -> float:
    """Words of a node at state s when the loops of the next gap lead to s2: below fully relevant loops, into the best window."""
    best = hull_of(x, s, s2, -1, t)
    for r in range(s.shape[0]):
        if t.seen[x, r] and not t.full[x, r] and s[r] != s2[r]:
            best = min(best, hull_of(x, s, s2, r, t))
    return best


@njit(cache=True, nogil=True, forceinline=True)
def rest_bits(step: Ints, next_kind: int, s: Ints, s2: Ints, moved: bool, settled: bool, t: Tables) -> float:
    """Bits of the node of a step once the next one is known: where it comes to rest, twice if doubled and filled more than once; 0 at an unbounded level.

    settled: s2 are the states that follow. Else the result is a lower bound for all states that may follow: a tile is doubled only if `moved`, since a node
    that sinks into no loop is not filled again.
    """
    x, v = step[2], step[1]
    if t.room[v] == np.inf:
        return 0.0
    if next_kind == LANES or step[3] < 0:
        words = hull_of(x, s, s, -1, t)
    else:
        words = sunk(x, s, s2, t)
        if settled and not moved:
            moved = words < hull_of(x, s, s2, -1, t)
            for r in range(s.shape[0]):
                moved = moved or (t.full[x, r] and s[r] != s2[r])
    bits: float = words * t.bits[x]
    return 2.0 * bits if t.doubled[v] and moved else bits


@njit(cache=True, nogil=True, forceinline=True)
def settle(guess: Floats, heads: Floats, first: int, last: int, t: Tables, best: Floats, w: Walk) -> int:
    """The outer part among heads[first:last] with which `guess` costs least, -1 if none makes it cheaper than best; its cost in w.least."""
    found = -1
    copied(best, w.least)
    for h in range(first, last):
        for i in range(guess.shape[0]):
            w.total[i] = guess[i] + heads[h, i]
        rank_cost(w.total, t.port, t.machine, t.objective, w.figure)
        if below(w.figure, w.least):
            found = h
            copied(w.figure, w.least)
    return found


@njit(cache=True, nogil=True)
def spread(own: int, ways: int, row: int, t: Tables, w: Walk) -> int:
    """Number of the set of lanes in use after one of a list of ways is taken, -1 if none fits; see Walk. What is not remembered stands at SETS + row."""
    n, dims, known = 0, t.lane_size.shape[0], w.sets_known[0]
    new = known if known < SETS else SETS + row
    for u in range(w.set_size[own]):
        for k in range(t.way_list[ways, 0], t.way_list[ways, 1]):
            fits, more, keep = True, False, 0
            for d in range(dims):
                fits = fits and w.sets[own, u, d] * t.ways[k, d] <= t.lane_size[d]
            if not fits:
                continue
            for j in range(n):
                covered, covers = True, True
                for d in range(dims):
                    lanes_used = w.sets[own, u, d] * t.ways[k, d]
                    covered = covered and w.sets[new, j, d] <= lanes_used
                    covers = covers and lanes_used <= w.sets[new, j, d]
                more = more or covered
                if not covers or covered:
                    w.sets[new, keep] = w.sets[new, j]
                    keep += 1
            n = keep
            if not more:
                assert n < WAYS
                for d in range(dims):
                    w.sets[new, n, d] = w.sets[own, u, d] * t.ways[k, d]
                n += 1
    if n == 0:
        return -1
    if new >= SETS:
        w.set_size[new] = n
        return new
    mark = np.uint64(n)
    for j in range(n):  # the order of its ways is no part of a set
        own_mark = np.uint64(1)
        for d in range(dims):
            own_mark = own_mark * np.uint64(1000003) + np.uint64(w.sets[new, j, d])
        mark += own_mark * own_mark
    at = np.int64(mark % np.uint64(2 * SETS))
    while w.place[at] >= 0:
        old = w.place[at]
        if w.set_size[old] == n:
            same = 0
            for j in range(n):
                for i in range(n):
                    same += int(np.all(w.sets[old, i] == w.sets[new, j]))
            if same == n:
                return int(old)
        at = (at + 1) % (2 * SETS)
    w.place[at], w.set_size[new], w.sets_known[0] = new, n, new + 1
    return new


@njit(cache=True, nogil=True, forceinline=True)
def used_after(own: int, o: int, row: int, t: Tables, w: Walk) -> int:
    """Set of lanes in use after successor o is taken."""
    ways = t.succ_ways[o]
    if own >= SETS:
        return spread(own, ways, row, t, w)
    if w.after[own, ways] == -2:
        found = spread(own, ways, row, t, w)
        if found >= SETS:
            return found
        w.after[own, ways] = found
    return int(w.after[own, ways])


@njit(cache=True, nogil=True, forceinline=True)
def account(e: int, p: Programs, k: int, used: int, t: Tables, w: Walk) -> bool:
    """Costs and footprints that step e settles; False if a level overflows. used: set of lanes in use by now."""
    steps, s, s2 = p.steps[k], w.state[e], w.state[e + 1]
    copied(w.parts[e], w.parts[e + 1])
    copied(w.need[e], w.need[e + 1])
    w.moved[e + 1] = w.moved[e]
    if steps[e, 0] == LANES:
        for f in range(t.folds.shape[0]):
            if p.ramp[k, f, 0] == e:
                some = False
                for d in range(p.ramp[k, f, 1], p.ramp[k, f, 2]):
                    some = some or w.sets[used, 0, d] > 1
                entered = product_at(t.links[t.links.shape[0] - 1, 0], s2, t, t.table) if some else 1.0
                w.parts[e + 1, 1] += max(entered * t.folds[f] - 1, 0.0)
    else:
        for r in range(s.shape[0]):
            w.moved[e + 1] = w.moved[e + 1] or s[r] != s2[r]
    if e > 0 and steps[e - 1, 0] == NODE:  # the node above comes to rest
        v = steps[e - 1, 1]
        w.need[e + 1, v] += rest_bits(steps[e - 1], steps[e, 0], s, s2, w.moved[e], True, t)
        if w.need[e + 1, v] > t.room[v]:
            return False
    if steps[e, 0] == NODE and steps[e, 3] >= 0:
        if t.room[steps[e, 1]] < np.inf:  # the node will hold no less than below all loops that the next step may have
            for r in range(s.shape[0]):
                w.lowest[r] = t.succ[t.succ_start[1, r, s2[r]]] if p.allowed[k, e + 1, r] else s2[r]
            v = steps[e, 1]
            if w.need[e + 1, v] + rest_bits(steps[e], steps[e + 1, 0], s2, w.lowest, w.moved[e + 1], False, t) > t.room[v]:
                return False
        add_link(steps[e, 3], s2, t, w.parts[e + 1])
    elif steps[e, 0] == MAC:
        for i in range(steps[e, 3], p.ordered[k]):
            add_link(p.order[k, i], s2, t, w.parts[e + 1])
    return True


@njit(cache=True, nogil=True, forceinline=True)
def promising(e: int, p: Programs, k: int, done: int, states: Ints, heads: Floats, first: int, last: int, t: Tables, best: Floats, w: Walk) -> bool:
    """Whether what is settled before step e, and at least what the links cost that are open after `done` steps, is below best with some outer part."""
    copied(w.parts[e], w.guess)
    for i in range(p.rest[k, done, 0], p.rest[k, done, 1]):
        add_bound(p.order[k, i], states, True, t, w.extra, w.guess)
    return settle(w.guess, heads, first, last, t, best, w) >= 0


@njit(cache=True, nogil=True)
def search(p: Programs, k: int, begin: int, heads: Floats, first: int, last: int, t: Tables, best: Floats, chosen: Ints, choice: Ints, w: Walk,
           budget: int) -> int:
    """Depth first over the states of program k from step `begin` on, cut by bounds; improves best [3], chosen [n, R], choice [outer part, program].

    heads[first:last]: parts of what stands outside. Returns nodes visited, above budget if it stopped early.
    """
    n, ranks, steps = p.length[k], t.tile.shape[0], p.steps[k]
    visited, e, r = 0, begin, 0
    w.at[e, 0] = -1
    while True:
        s = w.state[e, r]
        group = steps[e, 4]
        w.at[e, r] += 1
        o = t.succ_start[group, r, s] + w.at[e, r]
        if o >= t.succ_start[group, r, s + 1] or (w.at[e, r] > 0 and not p.allowed[k, e, r]):
            r -= 1
            if r < 0:
                e, r = e - 1, ranks - 1
                if e < begin:
                    return visited
            continue
        row = e * ranks + r
        w.used[row + 1] = used_after(w.used[row], o, row, t, w) if steps[e, 0] == LANES else w.used[row]
        if w.used[row + 1] < 0:
            continue
        w.state[e + 1, r] = t.succ[o]
        if r < ranks - 1:
            if steps[e, 0] == LANES or w.at[e, r] > 0:  # the other ranks may still go anywhere
                for i in range(r + 1, ranks):
                    w.state[e + 1, i] = w.state[e, i]
                if not promising(e, p, k, e, w.state[e + 1], heads, first, last, t, best, w):
                    continue
            r += 1
            w.at[e, r] = -1
            continue
        visited += 1
        if visited > budget:
            return visited
        if not account(e, p, k, w.used[row + 1], t, w) or not promising(e + 1, p, k, e + 1, w.state[e + 1], heads, first, last, t, best, w):
            continue
        if e == n - 1:
            if keeps(p, k, w.used[row + 1], t, w):
                choice[0], choice[1] = settle(w.parts[n], heads, first, last, t, best, w), k
                best[:] = w.least
                chosen[:n] = w.state[1:n + 1]
            continue
        e, r = e + 1, 0
        w.at[e, 0] = -1


@njit(cache=True, nogil=True, forceinline=True)
def keeps(p: Programs, k: int, lanes_used: int, t: Tables, w: Walk) -> bool:
    """Whether a full choice keeps its rules: [stationary tensor or -1, least lanes, may iterate inside per rank..., named per fan-out dimension...]."""
    n, ranks, dims, steps, rules = p.length[k], t.tile.shape[0], t.lane_size.shape[0], p.steps[k], t.rules
    used = w.sets[lanes_used, 0]
    if np.prod(used) < rules[1]:
        return False
    border = -1
    for e in range(n):
        if steps[e, 0] == LANES:
            for d in range(dims):
                if p.border_dims[k, e, d] and rules[2 + ranks + d] and used[d] > 1:
                    border = e
    if border < 0:
        return True
    innermost, first = -1, n
    for e in range(border + 1, n):
        if steps[e, 0] == NODE and steps[e, 2] == rules[0]:
            innermost = e
        if steps[e, 0] != LANES:
            for r in range(ranks):
                if w.state[e, r] != w.state[e + 1, r]:
                    first = min(first, e)
                    if not rules[2 + r]:
                        return False
    # a step's loops stand above its node
    return bool(rules[0] < 0 or first == n or (innermost >= 0 and innermost < first))


class Grid(NamedTuple):
    """All tiles U that may enter the first fan-out, G of them, as states of the ranks before any lane.

    states [G, R]; digit [G, R] numbers of these states within a rank; stride [R]; after_start [R, . + 1], after: numbers that may follow a number in time.
    canonical [G]: False where another place has the same costs, since two ranks of the einsum may change places. exact, low [K, G, P]: what a link costs at
    U, and at least in any descendant; plain: low without the floors that lanes set.
    """

    states: Ints
    digit: Ints
    stride: Ints
    after_start: Ints
    after: Ints
    canonical: Bools
    exact: Floats
    low: Floats
    plain: Floats


class Heads(NamedTuple):
    """Labels of the outer programs: parts [L, P], need [L, V] (bits; of a whole program the number of the room), at [L] place in the grid, back [L] the
    label before, program [L], next [L] in a list."""

    parts: Floats
    need: Floats
    at: Ints
    back: Ints
    program: Ints
    next: Ints


@njit(cache=True, nogil=True, forceinline=True)
def roomy(need: Floats, t: Tables, out: Floats) -> None:
    """Per level the number of the smallest capacity that holds so many bits."""
    for v in range(t.rooms.shape[0]):
        n = 0
        while n < t.rooms.shape[1] - 1 and t.rooms[v, n] < need[v]:
            n += 1
        out[v] = n


@njit(cache=True, nogil=True, forceinline=True)
def listed(label: int, head: Ints, at: int, h: Heads) -> bool:
    """Enter a label into the list of its place, unless another one there dominates it (at most it in every part and need); drop those that it dominates."""
    before, own = -1, head[at]
    while own >= 0:
        covered, covers = True, True
        for i in range(h.parts.shape[1]):
            covered = covered and h.parts[own, i] <= h.parts[label, i]
            covers = covers and h.parts[label, i] <= h.parts[own, i]
        for v in range(h.need.shape[1]):
            covered = covered and h.need[own, v] <= h.need[label, v]
            covers = covers and h.need[label, v] <= h.need[own, v]
        if covered:
            return False
        after = h.next[own]
        if covers:
            if before < 0:
                head[at] = after
            else:
                h.next[before] = after
            h.at[own] = -1
        else:
            before = own
        own = after
    h.next[label] = head[at]
    head[at] = label
    return True


@njit(cache=True, nogil=True)
def linked(rows: Floats, number: Ints, floor: Floats, weight: Floats, links: Ints, wanted: Bools, floored: Bools) -> Floats:
    """[K, G, P] what the wanted links cost: every product T a row, weighted; at least its floor at the floored links; never below 0."""
    found = np.zeros((links.shape[0], rows.shape[1], weight.shape[1]))
    for k in np.flatnonzero(wanted):
        for p in range(links[k, 0], links[k, 1]):
            if np.any(weight[p] != 0.0):
                least = floor[p] if floored[k] else -np.inf
                for i in range(rows.shape[1]):
                    value = max(rows[number[p], i], least)
                    for j in range(weight.shape[1]):
                        found[k, i, j] += weight[p, j] * value
        for i in range(rows.shape[1]):
            for j in range(weight.shape[1]):
                found[k, i, j] = max(found[k, i, j], 0.0)
    return found


@njit(cache=True, nogil=True)
def summed(low: Floats, pair_links: Ints, pair_signature: Ints, joint: Floats, joint_of: Ints) -> tuple[Floats, Floats]:
    """[pairs, G, P] the links of every pair together, with the energy of joint [., G]; and the least of the pairs of each signature [sigs, G, P]."""
    parts, every = low.shape[2], low.shape[1] * low.shape[2]
    flat = low.reshape(low.shape[0], every)
    inside, tails = np.zeros((pair_links.shape[0], every)), np.full((pair_signature.max() + 1, every), np.inf)
    for g in range(pair_links.shape[0]):
        own, least = inside[g], tails[pair_signature[g]]
        for link in pair_links[g]:
            if link >= 0:
                own += flat[link]
        for i in range(low.shape[1]):
            own[i * parts] += joint[joint_of[g], i]
        for i in range(every):
            least[i] = min(least[i], own[i])
    return inside.reshape(inside.shape[0], low.shape[1], parts), tails.reshape(tails.shape[0], low.shape[1], parts)


@njit(cache=True, nogil=True)
def following(i: int, free: Bools, grid: Grid, out: Ints) -> int:
    """Places that may follow place i in time if these ranks are free to move, in out; how many."""
    ranks, n = free.shape[0], 0
    at, place = np.zeros(ranks, np.int64), np.zeros(ranks + 1, np.int64)
    r, at[0] = 0, -1
    while r >= 0:
        at[r] += 1
        o = grid.after_start[r, grid.digit[i, r]] + at[r]
        if o >= grid.after_start[r, grid.digit[i, r] + 1] or (at[r] > 0 and not free[r]):
            r -= 1
            continue
        place[r + 1] = place[r] + grid.after[o] * grid.stride[r]
        if r < ranks - 1:
            r += 1
            at[r] = -1
            continue
        out[n] = place[ranks]
        n += 1
    return n


@njit(cache=True, nogil=True)
def outward(p: Programs, signature: Ints, grid: Grid, tails: Floats, t: Tables, best: Floats, h: Heads, ends: Ints, w: Walk, budget: int) -> int:
    """Labels of all outer programs, step by step; ends [sigs, G]: the list of those that enter the array at U, by signature.

    A signature says which levels fill the inside; tails [sigs, G, P]: at least what the inside costs. Labels that cannot lead below best, and those that
    another one at the same place beats, are left out. Returns nodes visited, above budget if labels were left out for want of room.
    """
    size, filled, visited = grid.states.shape[0], 0, 0
    place, after = np.full(size, -1, np.int64), np.empty(size, np.int64)
    for k in range(p.length.shape[0]):
        n, sig, steps = p.length[k], signature[k], p.steps[k]
        low, high = filled, filled + 1
        if high >= h.at.shape[0]:
            return budget + 1
        h.parts[filled], h.need[filled], h.at[filled], h.back[filled], h.program[filled] = t.start, 0.0, 0, -1, k
        filled += 1
        for e in range(n):
            last = e == n - 1
            for label in range(low, high):
                origin = h.at[label]
                if origin < 0:
                    continue
                for i in after[:following(origin, p.allowed[k, e], grid, after)]:
                    visited += 1
                    if visited > budget or filled >= h.at.shape[0]:
                        return budget + 1
                    if last and not grid.canonical[i]:
                        continue
                    copied(h.parts[label], h.parts[filled])
                    copied(h.need[label], h.need[filled])
                    if e > 0 and steps[e - 1, 0] == NODE:
                        v = steps[e - 1, 1]
                        h.need[filled, v] += rest_bits(steps[e - 1], steps[e, 0], grid.states[origin], grid.states[i], origin > 0, True, t)
                        if h.need[filled, v] > t.room[v]:
                            continue
                    if steps[e, 0] == NODE and steps[e, 3] >= 0:
                        added(grid.exact[steps[e, 3], i], h.parts[filled])
                    if t.objective != ALL:
                        copied(tails[sig, i], w.guess)
                        for j in range(p.rest[k, e + 1, 0], p.rest[k, e + 1, 1]):
                            added(grid.low[p.order[k, j], i], w.guess)
                        if settle(w.guess, h.parts, filled, filled + 1, t, best, w) < 0:
                            continue
                    h.at[filled], h.back[filled], h.program[filled] = i, label, k
                    if last:
                        roomy(h.need[filled], t, h.need[filled])
                    if listed(filled, ends[sig] if last else place, i, h):
                        filled += 1
            low, high = high, filled
            if not last:
                for label in range(low, high):
                    if h.at[label] >= 0:
                        place[h.at[label]] = -1
    return visited


@njit(cache=True, nogil=True)
def collected(ends: Ints, h: Heads) -> tuple[Floats, Ints, Ints]:
    """The labels at the ends as parts [N, P], their numbers [N], and per (signature, U) the first and the last of them [sigs, G, 2]."""
    sigs, size = ends.shape
    spans, n = np.zeros((sigs, size, 2), np.int64), 0
    for fill in range(2):
        if fill:
            parts, labels = np.zeros((n, h.parts.shape[1])), np.zeros(n, np.int64)
        n = 0
        for sig in range(sigs):
            for i in range(size):
                spans[sig, i, 0] = n
                own = ends[sig, i]
                while own >= 0:
                    if fill:
                        parts[n], labels[n] = h.parts[own], own
                    n += 1
                    own = h.next[own]
                spans[sig, i, 1] = n
    return parts, labels, spans


class Crowd(NamedTuple):
    """What limits the first level inside: room of a node of x, and which tensors pay if x stands first there.

    words [X]: the most that a node of x may hold, inf if nothing bounds it; paid [X, X, R]: ranks of x that y does not see;
    first [N]: the tensor whose node stands first in inner program n, -1 if none stands at that level. tensor [K] of a link, -1 if it does not cross the border;
    serves [K] whether it ends at compute; direct [K]: its tensor if it also crosses the border over lanes that all share, else -1.
    """

    words: Floats
    paid: Bools
    first: Ints
    tensor: Ints
    serves: Bools
    direct: Ints


@njit(cache=True, nogil=True, forceinline=True)
def least_sum(a: float, b: float, whole1: float, whole2: float, k: float) -> float:
    """The least a / R1 + b / R2 with 1 <= R1 <= whole1, 1 <= R2 <= whole2, R1 R2 <= k."""
    k = max(k, 1.0)
    if b <= 0.0:
        return a / min(whole1, k)
    share = min(max(np.sqrt(k * a / b), k / whole2, 1.0), whole1, k)
    return float(a / share + b / max(min(k / share, whole2), 1.0))


@njit(cache=True, nogil=True)
def crowded(x: int, u: Ints, lanes_left: float, t: Tables, c: Crowd, pays: Bools, crossing: Floats, low: Floats, out: Floats) -> None:
    """A lower bound of the links over the border if x stands first inside: out [P] += what the room of x adds to crossing [X, P], the bounds of each tensor.

        tile U                  at the border
        spatial ...             lanes_left
        for r                   U_r / R_r trips at least, R_r = s_r * lanes over r: the tile s of x must fit
          store L x             room: words
          for ...
            store L' y          y does not see r, and stands inside the loop over r: it is filled again in every trip

    u: states of the tile U; low [X, P]: the same bounds at U; pays [X]: tensors that have a node inside, which stands below that of x. Argument: where x
    rests a lane holds a tile s of x, whose hull, and so the product over the dimensions of x of the longest s in each, is at most `words`. The node of y
    stands no further out, so over a rank r that y does not see it is refilled at least U_r / R_r times per U, R_r at most s_r times the lanes over r, and
    R_r <= U_r; lanes of all ranks of x are `lanes_left` at most. So prod(R_y) <= K over the ranks of x that y does not see, and y costs at least U_y / R_y
    times its bound at U, which counts one refill (what is skipped is part of the first one). Two tensors share K best where a / R_1 + b / R_2 is least.
    It does not hold for what serves compute directly: its bound at U already counts the steps of compute inside U.
    The idea is the I/O bound of Hong and Kung (STOC 1981), per placement.
    """
    n, first, second, k = 0, -1, -1, c.words[x] * lanes_left
    for y in range(t.seen.shape[0]):
        if y != x and pays[y] and np.any(c.paid[x, y]):
            first, second, n = y if n == 0 else first, y if n == 1 else second, n + 1
    if n == 0 or n > 2 or (n == 2 and np.any(c.paid[x, first] & c.paid[x, second])):
        return
    whole1, whole2 = 1.0, 1.0
    for d in range(t.dim_start[x, 0], t.dim_start[x, 1]):
        longest = 1.0
        for i in range(t.dim_rank[d, 0], t.dim_rank[d, 1]):
            r = t.dim_coef[i, 0]
            size = float(t.tile[r, u[r]])
            if c.paid[x, first, r]:
                whole1 *= size
            elif n == 2 and c.paid[x, second, r]:
                whole2 *= size
            else:
                continue
            k *= size
            longest = max(longest, size)
        k /= longest  # a window is no shorter than its longest rank
    if whole1 * whole2 <= k:
        return
    for i in range(out.shape[0]):
        b = low[second, i] * whole2 if n == 2 else 0.0
        together = least_sum(low[first, i] * whole1, b, whole1, whole2, k)
        out[i] += max(together - crossing[first, i] - (crossing[second, i] if n == 2 else 0.0), 0.0)


@njit(cache=True, nogil=True)
def served(p: Programs, k: int, r: int, lanes_left: float, narrowest: Floats, t: Tables, c: Crowd, crossing: Floats, w: Walk, out: Floats) -> None:
    """At least what compute's accesses over the border cost: out [P] += what the lanes that are left add to crossing [X, P].

    Ranks up to r have their lanes. An access serves the lanes over the ranks that its tensor does not see, at most U / narrowest of each, and if two
    tensors see different ranks, at most `lanes_left` for both together.
    """
    n, first, second = 0, 0, 0
    for j in range(p.ordered[k]):
        if c.direct[p.order[k, j]] >= 0:
            first, second, n = (j if n == 0 else first), (j if n == 1 else second), n + 1
    if n == 0 or n > 2:
        return
    x, y = c.direct[p.order[k, first]], c.direct[p.order[k, second]]
    whole1, whole2 = 1.0, 1.0
    for j in range(r + 1, t.tile.shape[0]):
        share = float(t.tile[j, w.state[0, j]]) / narrowest[j]
        if not t.seen[x, j] and n == 2 and not t.seen[y, j]:
            return
        whole1 *= 1.0 if t.seen[x, j] else share
        whole2 *= 1.0 if t.seen[y, j] else share
    whole2 = whole2 if n == 2 else 1.0
    if whole1 * whole2 <= lanes_left:
        return
    w.alone[:] = 0.0
    add_bound(p.order[k, first], w.state[1], False, t, w.extra, w.alone[0])
    if n == 2:
        add_bound(p.order[k, second], w.state[1], False, t, w.extra, w.alone[1])
    for i in range(out.shape[0]):
        together = least_sum(w.alone[0, i] * whole1, w.alone[1, i] * whole2, whole1, whole2, lanes_left)
        out[i] += max(together - crossing[x, i] - (crossing[y, i] if n == 2 else 0.0), 0.0)


@njit(cache=True, nogil=True)
def inward(p: Programs, pair_programs: Ints, pair_signature: Ints, inside: Floats, grid: Grid, crowd: Crowd, heads: Floats, spans: Ints, t: Tables,
           best: Floats, chosen: Ints, choice: Ints, w: Walk, budget: int) -> int:
    """Best first over (pair, U): outer labels of U, then all lanes and inner programs of the pair. A pair is a signature and a set of inner links.

    inside [pairs, G, P]: at least what the inside costs at U. choice [outer part, program, U]; returns nodes visited, above budget if it stopped early.
    """
    pairs, size, tensors = inside.shape[0], inside.shape[1], t.seen.shape[0]
    bounds = np.full((pairs * size, 3), np.inf)
    low, floored = np.zeros((tensors, t.start.shape[0])), np.zeros((tensors, t.start.shape[0]))
    guess, lanes_all, pays = np.zeros(t.start.shape[0]), float(np.prod(t.lane_size)), np.zeros(tensors, np.bool_)
    for g in range(pairs):
        for i in range(size):
            first, last = spans[pair_signature[g], i]
            if first == last or not grid.canonical[i] or settle(inside[g, i], heads, first, last, t, best, w) < 0:
                continue
            crossings(p, pair_programs[g, 0], i, grid, crowd, low, pays)
            seen = np.int64(0)
            for k in range(pair_programs[g, 0], pair_programs[g, 1]):  # the pair costs at least as much as its cheapest program
                x = crowd.first[k]
                if seen >> (x + 1) & 1:
                    continue
                seen |= np.int64(1) << (x + 1)
                copied(inside[g, i], guess)
                if x >= 0 and crowd.words[x] < np.inf:
                    floored[:] = 0.0
                    for j in range(p.ordered[k]):
                        if crowd.tensor[p.order[k, j]] >= 0:
                            added(grid.low[p.order[k, j], i], floored[crowd.tensor[p.order[k, j]]])
                    crowded(x, grid.states[i], lanes_all, t, crowd, pays, floored, low, guess)
                if settle(guess, heads, first, last, t, best, w) >= 0 and (bounds[g * size + i, 0] == np.inf or below(w.least, bounds[g * size + i])):
                    copied(w.least, bounds[g * size + i])
    open_pairs = np.flatnonzero(bounds[:, 0] < np.inf)
    later = open_pairs[np.argsort(bounds[open_pairs, 1], kind="mergesort")]
    later = later[np.argsort(bounds[later, 0], kind="mergesort")]
    visited = 0
    for c in later:
        if bounds[c, 0] > best[0] * (1 + CLOSE) or visited > budget:
            break
        if below(bounds[c], best):
            g, i = c // size, c % size
            found = choice[1]
            choice[1] = -1
            visited += lanes(p, pair_programs[g], grid, i, crowd, heads, spans[pair_signature[g], i], t, best, chosen, choice, w, budget - visited)
            if choice[1] >= 0:
                choice[2] = i
            else:
                choice[1] = found
    return visited


@njit(cache=True, nogil=True, forceinline=True)
def crossings(p: Programs, k: int, i: int, grid: Grid, crowd: Crowd, low: Floats, pays: Bools) -> None:
    """[X, P] at least what the links of every tensor over the border cost at place i of the grid, were there as many lanes as one likes; [X] whether they end
    at a node."""
    low[:], pays[:] = 0.0, False
    for j in range(p.ordered[k]):
        x = crowd.tensor[p.order[k, j]]
        if x >= 0:
            added(grid.plain[p.order[k, j], i], low[x])
            pays[x] = not crowd.serves[p.order[k, j]]


@njit(cache=True, nogil=True)
def lanes(p: Programs, programs: Ints, grid: Grid, i: int, crowd: Crowd, heads: Floats, span: Ints, t: Tables, best: Floats, chosen: Ints,
          choice: Ints, w: Walk, budget: int) -> int:
    """All lanes that share out the tile at place i, and for each of them all inner programs [from, to) of a pair; their first step is the same."""
    u, parts, tensors = grid.states[i], t.start.shape[0], t.seen.shape[0]
    ranks, visited, r, k = u.shape[0], 0, 0, programs[0]
    low, crossing, total = np.zeros((tensors, parts)), np.zeros((tensors, parts)), np.zeros(parts)
    pays = np.zeros(tensors, np.bool_)
    crossings(p, k, i, grid, crowd, low, pays)
    hopeful = np.zeros(tensors + 1, np.bool_)
    w.state[0], w.moved[0] = u, i > 0
    w.parts[0], w.need[0] = 0.0, 0.0
    group, most = t.succ_start.shape[0] - 1, np.prod(t.lane_size)
    narrowest = np.ones(ranks)
    for j in range(ranks):
        narrowest[j] = t.tile[j, u[j]]
        for o in range(t.succ_start[group, j, u[j]], t.succ_start[group, j, u[j] + 1]):
            narrowest[j] = min(narrowest[j], t.tile[j, t.succ[o]])
    w.at[0, 0] = -1
    while r >= 0:
        w.at[0, r] += 1
        o = t.succ_start[group, r, u[r]] + w.at[0, r]
        if o >= t.succ_start[group, r, u[r] + 1] or t.fewest[o] * w.fewest[r] > most:
            r -= 1
            continue
        w.used[r + 1] = used_after(w.used[r], o, r, t, w)
        if w.used[r + 1] < 0:
            continue
        w.fewest[r + 1] = w.fewest[r] * t.fewest[o]
        w.state[1, r] = t.succ[o]
        for j in range(r + 1, ranks):
            w.state[1, j] = u[j]
        visited += 1
        if visited > budget:
            return visited
        crossing[:] = 0.0
        copied(w.parts[0], w.guess)
        for j in range(p.ordered[k]):
            x = crowd.tensor[p.order[k, j]]
            if x >= 0:
                add_bound(p.order[k, j], w.state[1], True, t, w.extra, crossing[x])
            else:
                add_bound(p.order[k, j], w.state[1], True, t, w.extra, w.guess)
        for x in range(tensors):
            added(crossing[x], w.guess)
        copied(w.guess, total)
        if settle(w.guess, heads, span[0], span[1], t, best, w) < 0:
            continue
        served(p, k, r, most / w.fewest[r + 1], narrowest, t, crowd, crossing, w, w.guess)
        if settle(w.guess, heads, span[0], span[1], t, best, w) < 0:
            continue
        some = False
        hopeful[:] = False
        for own in range(programs[0], programs[1]):
            x = crowd.first[own]
            if x < 0:
                hopeful[tensors] = True
            elif not hopeful[x]:
                copied(total, w.guess)
                if crowd.words[x] < np.inf:
                    over = 1.0
                    for j in range(r + 1):
                        if t.seen[x, j]:
                            over *= t.tile[j, u[j]] / t.tile[j, w.state[1, j]]
                    rest = 1.0
                    for j in range(r + 1, ranks):
                        if t.seen[x, j]:
                            rest *= t.tile[j, u[j]]
                    over *= min(rest, most / w.fewest[r + 1])
                    crowded(x, u, over, t, crowd, pays, crossing, low, w.guess)
                hopeful[x] = settle(w.guess, heads, span[0], span[1], t, best, w) >= 0
            some = some or hopeful[x]
        if not some:
            continue
        if r < ranks - 1:
            r += 1
            w.at[0, r] = -1
            continue
        visited += uneven(p, programs, u, hopeful, crowd, heads, span, t, best, chosen, choice, w, budget - visited)
    return visited


@njit(cache=True, nogil=True)
def uneven(p: Programs, programs: Ints, u: Ints, hopeful: Bools, crowd: Crowd, heads: Floats, span: Ints, t: Tables, best: Floats, chosen: Ints,
           choice: Ints, w: Walk, budget: int) -> int:
    """The ways to cut u into lanes of the tiles that state[1] leaves them, fewest lanes first, and for each the hopeful inner programs.

    A way that cuts an even rank into more lanes than it needs is left out if fewer fit as well.
    """
    ranks, visited, r, k = u.shape[0], 0, 0, programs[0]
    group, row = p.steps[k, 0, 4], w.used.shape[0] - 2 * ranks
    used = np.zeros(ranks + 1, np.int64)
    tile, first, at = w.state[1].copy(), np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for j in range(ranks):
        first[j] = t.succ_start[group, j, u[j]]
        while t.succ[first[j]] != tile[j]:
            first[j] += 1
    at[0] = -1
    while r >= 0:
        at[r] += 1
        o = first[r] + at[r]
        if o >= t.succ_start[group, r, u[r] + 1] or t.tile[r, t.succ[o]] != t.tile[r, tile[r]]:
            r -= 1
            continue
        used[r + 1] = used_after(used[r], o, row + r, t, w)
        if used[r + 1] < 0:
            continue
        if r < ranks - 1:
            r += 1
            at[r] = -1
            continue
        beaten = False
        for j in range(ranks):
            if at[j] > 0 and t.even[j] and not beaten:
                fewer = 0
                for i in range(ranks):
                    fewer = used_after(fewer, first[i] if i == j else first[i] + at[i], row + ranks + i, t, w) if fewer >= 0 else -1
                beaten = fewer >= 0
        if beaten:
            continue
        for j in range(ranks):
            w.state[1, j] = t.succ[first[j] + at[j]]
        w.used[ranks] = used[ranks]
        visited += 1
        if not promising(0, p, k, 0, w.state[1], heads, span[0], span[1], t, best, w):
            continue
        for own in range(programs[0], programs[1]):
            if hopeful[crowd.first[own]] and account(0, p, own, int(used[ranks]), t, w):
                visited += search(p, own, 1, heads, span[0], span[1], t, best, chosen, choice, w, budget - visited)
    for j in range(ranks):
        w.state[1, j] = tile[j]
    return visited
