"""The compiled half of the search (search.py): arrays in, arrays out.

Lanes first: with the lanes of all ranks fixed, what a tensor moves depends on the tile at its node alone, and the largest tile that may stand there bounds it.
A nest is then built from compute outwards, node by node: the next node out, the loops in the gap below it, its traffic, its room.

Long, because compiled functions share their array layout and are kept in one file. No recursion: numba's cache does not keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

F = TypeVar("F", bound=Callable[..., Any])


def lean(f: F) -> F:
    """Compiled without the counting of references to arrays, which costs nine tenths of the time here: such a function makes no array."""
    return njit(cache=True, nogil=True, _nrt=False)(f)  # type: ignore[no-any-return, call-overload]


ENERGY, LATENCY, EDP = 0, 1, 2
CLOSE = 1e-10  # costs that differ by less, relatively, are ties
WORDS, ROWS, POINTS, STARTED = 0, 1, 2, 3  # kinds of quantities: words of tiles; rows of compressed tiles; accesses of compute; first reads that are skipped
ALONE, HULL, CLIPPED = 0, 1, 2  # kinds of a tensor's dimension: one rank as it is; a hull of up to two ranks; a hull that storage clips
OVER, BOUND, DONE = 0, 1, 2  # why a choice of loops was left: no room, no better than the best; or it was followed


class Einsum(NamedTuple):
    """Ranks R of more than one value, tensors X (the output last), their dimensions Dm.

    seen, full [X, R] relevant, fully relevant; part [X, R] in a hull. dim [X + 1] first dimension of a tensor. kind, offset, stored [Dm]; rank [Dm, 2], -1
    where there is none; coef [Dm, 2]. csr [X] 2 * density of a compressed tensor, else 0.
    """

    seen: Bools
    full: Bools
    part: Bools
    dim: Ints
    kind: Ints
    offset: Ints
    stored: Ints
    rank: Ints
    coef: Ints
    csr: Floats


class Pool(NamedTuple):
    """Options of all ranks end to end (lanes.Options). first [R + 1] options of a rank; span [O, K, 2]; size, pieces, elems, out, whole [n]; lanes [O, K, M];
    cuts [n, J]; way [O, 2] from, to in ways [W, D]; base [R] first tile of a rank; last [n] largest tile of the
    same option and position; prefix [B + 1] masks of all groups at the outermost borders, so many of them."""

    first: Ints
    span: Ints
    size: Ints
    pieces: Floats
    elems: Floats
    out: Ints
    whole: Bools
    lanes: Floats
    cuts: Ints
    way: Ints
    ways: Ints
    base: Ints
    last: Ints
    prefix: Ints


class Machine(NamedTuple):
    """What the search reads of a machine. Levels V, child V is compute; parts P of a cost: 0 energy, 1 cycles of compute, then of every port.

    room [V] bits; bits [X]; twice [V] a moving tile counts twice; ports [V, 3] parts of reads and of writes, 1 if fills wait; position [V + 1] borders
    outside; size [D] lanes of a dimension. leak: pJ per cycle. ramps [K, 3] position inside of a systolic array, mask of all other groups, cycles to fill it.
    """

    room: Floats
    bits: Floats
    twice: Bools
    ports: Ints
    position: Ints
    size: Ints
    leak: float
    ramps: Floats
    objective: int


class Terms(NamedTuple):
    """What links of tensors move, as sums of coef * quantity (search.py, `_terms`, writes them).

    quantity [Q, 5]: kind, tensor, position, masks of the groups of which only the first lane counts, for ranks that the tensor does not see and for others.
    link [X, V, V + 1, 2] from, to in quantities `of` [T], coef [T, P]. keeps [X + 1] from, to in the sets of levels that may hold a tensor: keep [N] masks,
    sum [N, 2] from, to in `sum_of`, `sum_coef`: all links of such a set together. base [P]: the same for all mappings.
    """

    quantity: Ints
    link: Ints
    of: Ints
    coef: Floats
    keeps: Ints
    keep: Ints
    sum: Ints
    sum_of: Ints
    sum_coef: Floats
    base: Floats


class Memo(NamedTuple):
    """Sums over the pieces of clipped dimensions, which are slow to make: filled when asked for (nan: not yet).

    hulls [2, Dc, A, B] of clipped dimensions by the tiles of their ranks: of all
    lanes, and at least that of the first one; row [Dm] of a dimension there. least [B + 1, Dm, O, O', K], with the first lane of so many borders: the least
    of a dimension over all tiles of a position, by the options of its ranks. spans [2, 2, .], tile [R]: scratch.
    """

    hulls: Floats
    row: Ints
    least: Floats
    spans: Ints
    tile: Ints


class Rules(NamedTuple):
    """What a mapping must keep to. windowed [X] a hull of the tensor adds up ranks; sinks [X, R] a node passes below a loop for free; inside [R] ranks that
    may loop in time inside the lanes; still: tensor whose innermost node stands above these loops, -1: none; mixed: a node of an outer level may stand below
    one of an inner level (of another tensor).
    """

    windowed: Bools
    sinks: Bools
    inside: Bools
    still: int
    mixed: bool


class Work(NamedTuple):
    """A nest in the making, from inside out. After d nodes: tile [d, R] what stands there, numbers of the pool; parts [d, P] at least what the whole costs;
    need [d, V] bits; done [d] nodes as a mask; position [d]; node [d] the one placed then; at [d, R] its tile. entry [K, R]: tiles that enter the lanes around
    a position. level [d] the loop below it that is being chosen, -1: the node itself is; loops [d] how many may stand there, rank [d, R] theirs, turn [d, R]
    their tiles, first [d, R] none was tried before, ended [d, R] what became of all of them. option [R]. nodes [N, 4] tensor, level, parent, position (tensor
    -1: loops directly inside a systolic array, no node); tally [3] nodes to place, nodes placed in all, budget; least [Q] bounds of the
    quantities, whatever the tiles; guess [P]; figure [3]; best_*: the best nest so far, best_count [1] its nodes.
    """

    tile: Ints
    parts: Floats
    need: Floats
    entry: Ints
    done: Ints
    position: Ints
    node: Ints
    at: Ints
    level: Ints
    loops: Ints
    rank: Ints
    turn: Ints
    first: Bools
    ended: Ints
    option: Ints
    nodes: Ints
    tally: Ints
    least: Floats
    guess: Floats
    figure: Floats
    best_count: Ints
    best_option: Ints
    best_nodes: Ints
    best_at: Ints


@lean
def below(a: Floats, b: Floats) -> bool:
    """Whether cost a [3] is lower than b: the first of its numbers that differ by more than rounding."""
    for i in range(3):
        if abs(a[i] - b[i]) > CLOSE * min(abs(a[i]), abs(b[i])):
            return bool(a[i] < b[i])
    return False


@lean
def figure(parts: Floats, m: Machine, out: Floats) -> None:
    """Figure of the objective, energy, latency of cost parts."""
    latency = parts[1]
    for v in range(m.ports.shape[0] - 1, -1, -1):
        own = max(parts[m.ports[v, 0]], parts[m.ports[v, 1]])
        latency = latency + own if m.ports[v, 2] else max(latency, own)
    energy = parts[0] + m.leak * latency
    out[0] = energy if m.objective == ENERGY else latency if m.objective == LATENCY else energy * latency
    out[1], out[2] = energy, latency


@lean
def clipped(dim: int, a: int, b: int, enter_a: int, enter_b: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """Sum of the hull lengths of a dimension over the tiles of its ranks, clipped to what is stored. a, b: numbers of tiles, -1: no rank.

    enter_a, enter_b: the tiles with which a lane is entered, to count the first lane only; -1: all lanes.
    """
    many_a, many_b = pieces(dim, 0, a, enter_a, e, p, memo.spans[0]), pieces(dim, 1, b, enter_b, e, p, memo.spans[1])
    total = 0.0
    for i in range(many_a):
        for j in range(many_b):
            low = e.offset[dim] + memo.spans[0, 0, i] + memo.spans[1, 0, j]
            high = low + memo.spans[0, 1, i] + memo.spans[1, 1, j]
            total += max(min(high, e.stored[dim] - 1) - max(low, 0) + 1, 0)
    return total


@lean
def pieces(dim: int, side: int, tile: int, enter: int, e: Einsum, p: Pool, spans: Ints) -> int:
    """spans [2, .]: where the pieces of a rank begin in a dimension, and how far they reach; returns how many there are."""
    spans[0, 0], spans[1, 0] = 0, 0
    if tile < 0:
        return 1
    n, spans[1, 0] = 1, p.size[p.span[p.first[e.rank[dim, side]], 0, 1] - 1]
    if enter >= 0:  # the tile that enters the lanes, the first lane's share of it, the node's tile
        n = cut(p.size[p.out[enter]], n, spans)
        for i in range(n):
            spans[1, i] = min(spans[1, i], p.size[p.last[enter]] if p.cuts[enter, 1] else p.size[enter])
        n = cut(p.size[tile], n, spans)
    else:
        for j in range(p.cuts.shape[1]):
            if p.cuts[tile, j]:
                n = cut(p.cuts[tile, j], n, spans)
    for i in range(n):
        spans[0, i], spans[1, i] = e.coef[dim, side] * spans[0, i], e.coef[dim, side] * (spans[1, i] - 1)
    return n


@lean
def cut(t: int, n: int, spans: Ints) -> int:
    """Cuts n pieces into tiles of t; returns how many there are then."""
    more = 0
    for i in range(n):
        more += -(-spans[1, i] // t)
    at = more
    for i in range(n - 1, -1, -1):
        begin, whole = spans[0, i], spans[1, i]
        for k in range(-(-whole // t) - 1, -1, -1):
            at -= 1
            spans[0, at], spans[1, at] = begin + k * t, min(t, whole - k * t)
    return more


@lean
def length(dim: int, tile: Ints, mask: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """Sum of a dimension's hull lengths over the tiles of its ranks; of clipped ones with a mask (one border at most) at least that of the first lane."""
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    if e.kind[dim] == ALONE:
        return float(p.elems[tile[a], mask])
    if e.kind[dim] == HULL:
        n1 = p.pieces[tile[a], mask] if a >= 0 else 1.0
        n2 = p.pieces[tile[b], mask] if b >= 0 else 1.0
        s1 = p.elems[tile[a], mask] if a >= 0 else 1.0
        s2 = p.elems[tile[b], mask] if b >= 0 else 1.0
        return float(n1 * n2 + e.coef[dim, 0] * (s1 - n1) * n2 + e.coef[dim, 1] * (s2 - n2) * n1)
    i, j, n = tile[a] - p.base[a] if a >= 0 else 0, tile[b] - p.base[b] if b >= 0 else 0, 1 if mask else 0
    row = memo.row[dim]
    if np.isnan(memo.hulls[n, row, i, j]):
        one, other = tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1
        memo.hulls[n, row, i, j] = least_first(dim, one, other, e, p, memo) if mask else clipped(dim, one, other, -1, -1, e, p, memo)
    return float(memo.hulls[n, row, i, j])


@lean
def least_first(dim: int, a: int, b: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """At least what the first lane has of a clipped dimension, whatever tile enters the lanes: a multiple of the tile at the node."""
    least = np.inf
    for i in range(a, a + 1 if a < 0 else p.last[a] + 1):
        for j in range(b, b + 1 if b < 0 else p.last[b] + 1):
            if (a < 0 or p.size[i] % p.size[a] == 0) and (b < 0 or p.size[j] % p.size[b] == 0):
                least = min(least, clipped(dim, a, b, i, j, e, p, memo))
    return float(least)


@lean
def value(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """A quantity at given tiles (of its position)."""
    kind, x, k, unseen, seen = t.quantity[q]
    total, last = 1.0, e.dim[x + 1] - 1
    for r in range(tile.shape[0]):
        if kind == POINTS:
            total *= p.elems[tile[r], seen if e.seen[x, r] else unseen]
        elif not e.seen[x, r]:
            total *= p.lanes[option[r], k, unseen] if kind == STARTED else p.pieces[tile[r], unseen]
    if kind != POINTS:
        for dim in range(e.dim[x], last + 1):
            if kind == ROWS and dim == last:
                for r in e.rank[dim]:
                    total *= p.pieces[tile[r], seen] if r >= 0 else 1.0
            else:
                total *= length(dim, tile, seen, e, p, memo)
    return total


@lean
def factor(q: int, r: int, o: int, t: Terms, e: Einsum, p: Pool) -> float:
    """What rank r alone brings to the least value of a quantity under option o: its largest tile at that position."""
    kind, x, k, unseen, seen = t.quantity[q]
    tile = p.span[o, k, 1] - 1
    if kind == POINTS:
        return float(p.elems[tile, seen if e.seen[x, r] else unseen])
    if not e.seen[x, r]:
        return float(p.lanes[o, k, unseen] if kind == STARTED else p.pieces[tile, unseen])
    last = e.dim[x + 1] - 1
    for dim in range(e.dim[x], last + 1):
        if e.rank[dim, 0] == r or e.rank[dim, 1] == r:
            if kind == ROWS and dim == last:
                return float(p.pieces[tile, seen])
            return float(p.elems[tile, seen]) if e.kind[dim] == ALONE else 1.0  # a hull: `together`
    return 1.0


@lean
def together(q: int, dim: int, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """The least hull of a dimension over all tiles of a quantity's position: it need not grow with the tile where strides leave gaps."""
    kind, k, n = t.quantity[q, 0], t.quantity[q, 2], 0
    while p.prefix[n] != t.quantity[q, 4]:
        n += 1
    if kind == POINTS or e.kind[dim] == ALONE or (kind == ROWS and dim == e.dim[t.quantity[q, 1] + 1] - 1):
        return 1.0
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    i, j = option[a] - p.first[a] if a >= 0 else 0, option[b] - p.first[b] if b >= 0 else 0
    if np.isnan(memo.least[n, dim, i, j, k]):
        memo.least[n, dim, i, j, k] = least_length(dim, k, p.prefix[n], option, e, p, memo)
    return float(memo.least[n, dim, i, j, k])


@lean
def least_length(dim: int, k: int, mask: int, option: Ints, e: Einsum, p: Pool, memo: Memo) -> float:
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    tile, least = memo.tile, np.inf
    for i in range(p.span[option[a], k, 0] if a >= 0 else 0, p.span[option[a], k, 1] if a >= 0 else 1):
        for j in range(p.span[option[b], k, 0] if b >= 0 else 0, p.span[option[b], k, 1] if b >= 0 else 1):
            if a >= 0:
                tile[a] = i
            if b >= 0:
                tile[b] = j
            least = min(least, length(dim, tile, mask, e, p, memo))
    return float(least)


@lean
def entered(tile: Ints, p: Pool) -> float:
    """How often the first lane meets tiles of this size."""
    times = 1.0
    for r in range(tile.shape[0]):
        times *= p.pieces[tile[r], p.pieces.shape[1] - 1]
    return times


@lean
def held(x: int, tile: Ints, low: Ints, e: Einsum, p: Pool) -> float:
    """Words of a node's tile; the loops directly below lead to tiles `low`: it sinks into the best sliding window."""
    best = hull(x, tile, low, -1, e, p)
    for r in range(tile.shape[0]):
        if e.part[x, r] and tile[r] != low[r]:
            best = min(best, hull(x, tile, low, r, e, p))
    return best


@lean
def hull(x: int, tile: Ints, low: Ints, window: int, e: Einsum, p: Pool) -> float:
    whole, rows = 1.0, 1.0
    for dim in range(e.dim[x], e.dim[x + 1]):
        own = 1.0
        for side in range(2):
            r = e.rank[dim, side]
            if r >= 0:
                own += e.coef[dim, side] * (p.size[low[r] if e.full[x, r] or r == window else tile[r]] - 1)
        whole *= own
        if dim < e.dim[x + 1] - 1:
            rows *= own
    return whole if e.csr[x] == 0.0 else np.ceil(np.round(e.csr[x] * whole, 6)) + rows


@lean
def grows(d: int, n: int, r: int, e: Einsum, m: Machine, rules: Rules, w: Work) -> bool:
    """Whether rank r may loop between node n and what stands inside of it.

    Not where n passes below the loop for free (the same fetches of smaller tiles), nor where the node inside rises above it for free (fewer fetches); one with
    a window stays: a loop between it and its window would end it.
    """
    x, level, parent, k = w.nodes[n]
    if k == m.position[m.room.shape[0]] and k > 0:
        if not rules.inside[r]:
            return False
        if rules.still >= 0:  # once its innermost node is placed, and if it has none, nothing loops
            free = False
            for other in range(w.tally[0]):
                free = free or (w.nodes[other, 0] == rules.still and w.nodes[other, 3] == k and not w.done[d] >> other & 1)
            if not free:
                return False
    if x < 0:
        return True
    if parent >= 0 and rules.sinks[x, r] and not m.twice[level] and x != rules.still:
        return False
    if d > 0 and w.position[d] == w.nodes[w.node[d - 1], 3]:
        inner = w.nodes[w.node[d - 1], 0]
        if not rules.windowed[inner] and not e.seen[inner, r] and not (parent >= 0 and e.seen[x, r]):
            return False
    return True


@lean
def roomy(d: int, n: int, whole: bool, e: Einsum, p: Pool, m: Machine, w: Work) -> bool:
    """Whether node n fits with the loops chosen so far (whole: all of them), and all nodes of its level that are still to come."""
    level = w.nodes[n, 1]
    if level < 0 or m.room[level] == np.inf:
        return True
    need = w.need[d, level] + own_bits(d, n, whole, e, p, m, w)
    for other in range(w.tally[0]):
        if other != n and w.nodes[other, 1] == level and not w.done[d] >> other & 1:
            x = w.nodes[other, 0]
            need += hull(x, w.at[d], w.at[d], -1, e, p) * m.bits[x]
    return bool(need <= m.room[level])


@lean
def own_bits(d: int, n: int, whole: bool, e: Einsum, p: Pool, m: Machine, w: Work) -> float:
    """Where moving tiles count twice: those that a loop in time above fills again, or one that they sink into; not known before all loops are."""
    x, level, parent = w.nodes[n, 0], w.nodes[n, 1], w.nodes[n, 2]
    words = held(x, w.at[d], w.tile[d], e, p) if parent >= 0 else hull(x, w.at[d], w.at[d], -1, e, p)
    bits: float = m.bits[x] * words
    if whole and m.twice[level]:
        again = parent >= 0 and words < hull(x, w.at[d], w.tile[d], -1, e, p)
        for r in range(w.tile.shape[1]):
            again = again or not p.whole[w.at[d, r]] or (parent >= 0 and e.full[x, r] and w.at[d, r] != w.tile[d, r])
        return 2.0 * bits if again else bits
    return bits


@lean
def place(d: int, n: int, t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work, best: Floats) -> int:
    """Node n after d others, its loops chosen: OVER, BOUND or DONE."""
    if not roomy(d, n, True, e, p, m, w):
        return OVER
    x, level, parent, k = w.nodes[n]
    for i in range(w.parts.shape[1]):
        w.parts[d + 1, i] = w.parts[d, i]
    if parent >= 0:
        for j in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
            more = value(t.of[j], w.at[d], w.option, t, e, p, memo) - w.least[t.of[j]]
            for i in range(w.parts.shape[1]):
                w.parts[d + 1, i] += t.coef[j, i] * more
    figure(w.parts[d + 1], m, w.figure)
    if not below(w.figure, best):
        return BOUND
    for v in range(m.room.shape[0]):
        w.need[d + 1, v] = w.need[d, v]
    if x >= 0 and m.room[level] < np.inf:
        w.need[d + 1, level] += own_bits(d, n, True, e, p, m, w)
    w.done[d + 1] = w.done[d] | np.int64(1) << n
    w.position[d + 1] = k
    for r in range(w.tile.shape[1]):
        w.tile[d + 1, r] = w.at[d, r]
    return DONE


@lean
def crossed(d: int, p: Pool, m: Machine, w: Work) -> bool:
    """Moves out over the borders inside of which all nodes stand; whether the nest is whole."""
    while True:
        k = w.position[d]
        for n in range(w.tally[0]):
            if w.nodes[n, 3] == k and not w.done[d] >> n & 1:
                return False
        if k == 0:
            return True
        for r in range(w.tile.shape[1]):
            w.entry[k, r] = w.tile[d, r]
            w.tile[d, r] = p.out[w.tile[d, r]]
        w.position[d] = k - 1
        for f in range(m.ramps.shape[0]):
            if m.ramps[f, 0] == k:
                some = False
                for r in range(w.tile.shape[1]):
                    some = some or p.lanes[w.option[r], k, int(m.ramps[f, 1])] > 1
                if some:
                    w.parts[d, 1] += (entered(w.tile[d], p) - 1) * m.ramps[f, 2]


@lean
def next_out(d: int, n: int, rules: Rules, w: Work) -> bool:
    """Whether node n may be the next one outwards: inner levels first, of its tensor or (not mixed) of all."""
    if w.nodes[n, 3] != w.position[d] or w.done[d] >> n & 1:
        return False
    for other in range(w.tally[0]):
        inside = w.nodes[other, 3] == w.position[d] and not w.done[d] >> other & 1 and w.nodes[other, 1] > w.nodes[n, 1]
        if inside and (w.nodes[other, 0] == w.nodes[n, 0] or w.nodes[n, 0] < 0 or not rules.mixed):
            return False
    return True


@lean
def opened(d: int, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Turns to the next node that may follow d others outwards, and to the loops that may stand below it; False: there is none."""
    n = w.node[d] + 1
    while n < w.tally[0] and not next_out(d, n, rules, w):
        n += 1
    if n == w.tally[0]:
        return False
    w.node[d], w.level[d], w.loops[d] = n, 0, 0
    for r in range(w.tile.shape[1]):
        w.at[d, r] = w.tile[d, r]
        if grows(d, n, r, e, m, rules, w):
            w.rank[d, w.loops[d]], w.loops[d] = r, w.loops[d] + 1
    rewound(d, p, w)
    return True


@lean
def rewound(d: int, p: Pool, w: Work) -> None:
    """The loop at w.level[d] begins with its largest tile."""
    i = w.level[d]
    if i < w.loops[d]:
        w.turn[d, i] = p.span[w.option[w.rank[d, i]], w.nodes[w.node[d], 3], 1]
        w.first[d, i], w.ended[d, i] = True, BOUND


@lean
def turned(d: int, p: Pool, w: Work) -> bool:
    """The next smaller tile of the loop at w.level[d], the loops after it as they stand inside; False: there is none."""
    i = w.level[d]
    r = w.rank[d, i]
    begin = w.tile[d, r]
    w.turn[d, i] -= 1
    while w.turn[d, i] >= begin and p.size[w.turn[d, i]] % p.size[begin]:
        w.turn[d, i] -= 1
    if w.turn[d, i] < begin:
        return False
    w.at[d, r] = w.turn[d, i]
    for j in range(i + 1, w.loops[d]):
        w.at[d, w.rank[d, j]] = w.tile[d, w.rank[d, j]]
    return True


@lean
def told(d: int, why: int, e: Einsum, p: Pool, w: Work) -> None:
    """The tile of the loop at w.level[d] is done with: to the next smaller one, or to the loop outside. If its bound was no better than the best (BOUND),
    smaller tiles of this loop are left out: the tensor is fetched more often, and costs no less. Not of a window's ranks, of which smaller tiles may
    leave gaps out."""
    x = w.nodes[w.node[d], 0]
    while w.level[d] >= 0:
        i = w.level[d]
        if i == w.loops[d]:
            w.level[d] -= 1
            continue
        if why == BOUND and (x < 0 or not e.part[x, w.rank[d, i]]):
            why = BOUND if w.first[d, i] else DONE
            w.level[d] -= 1
            continue
        w.first[d, i] = False
        if why != BOUND:
            w.ended[d, i] = DONE
        return


@lean
def nests(t: Terms, e: Einsum, p: Pool, m: Machine, rules: Rules, memo: Memo, w: Work, best: Floats) -> None:
    """All nests of w.nodes under the lanes of w.option, from compute outwards; larger tiles first, cut by room and by bound."""
    d = 0
    crossed(0, p, m, w)
    w.node[0], w.level[0] = -1, -1
    if w.tally[0] == 0:
        kept_if_better(0, t, e, p, m, memo, w, best)
        return
    while d >= 0 and w.tally[1] <= w.tally[2]:
        if w.level[d] < 0:
            if not opened(d, e, p, m, rules, w):
                d -= 1
                if d >= 0:
                    told(d, DONE, e, p, w)
            continue
        if w.level[d] < w.loops[d]:
            if not turned(d, p, w):
                why = w.ended[d, w.level[d]]
                w.level[d] -= 1
                if w.level[d] >= 0:
                    told(d, why, e, p, w)
            elif not roomy(d, w.node[d], False, e, p, m, w):
                told(d, OVER, e, p, w)
            else:
                w.level[d] += 1
                rewound(d, p, w)
            continue
        w.tally[1] += 1
        why = place(d, w.node[d], t, e, p, m, memo, w, best)
        if why != DONE:
            told(d, why, e, p, w)
        elif crossed(d + 1, p, m, w):
            kept_if_better(d + 1, t, e, p, m, memo, w, best)
            told(d, DONE, e, p, w)
        else:
            d += 1
            w.node[d], w.level[d] = -1, -1


@lean
def settled(d: int, t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work) -> None:
    """The parts of a whole nest: what the first lane has of clipped dimensions is known once the tiles that enter the lanes are."""
    for j in range(d):
        x, level, parent, k = w.nodes[w.node[j]]
        for i in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1] if parent >= 0 and k > 0 else 0):
            q = t.of[i]
            if t.quantity[q, 0] != WORDS or t.quantity[q, 4] == 0:
                continue
            low, exact = 1.0, 1.0
            for dim in range(e.dim[x], e.dim[x + 1]):
                if e.kind[dim] == CLIPPED:
                    a, b = e.rank[dim, 0], e.rank[dim, 1]
                    low *= length(dim, w.at[j], t.quantity[q, 4], e, p, memo)
                    exact *= clipped(dim, w.at[j, a] if a >= 0 else -1, w.at[j, b] if b >= 0 else -1, w.entry[k, a] if a >= 0 else -1,
                                     w.entry[k, b] if b >= 0 else -1, e, p, memo)
            if exact != low:
                more = value(q, w.at[j], w.option, t, e, p, memo) * (exact / low - 1.0) if low > 0.0 else 0.0
                for part in range(w.parts.shape[1]):
                    w.parts[d, part] += t.coef[i, part] * more


@lean
def kept_if_better(d: int, t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work, best: Floats) -> None:
    settled(d, t, e, p, memo, w)
    figure(w.parts[d], m, w.figure)
    if below(w.figure, best):
        for i in range(3):
            best[i] = w.figure[i]
        w.best_count[0] = d
        for r in range(w.option.shape[0]):
            w.best_option[r] = w.option[r]
        for j in range(d):
            for i in range(4):
                w.best_nodes[j, i] = w.nodes[w.node[j], i]
            for r in range(w.option.shape[0]):
                w.best_at[j, r] = w.at[j, r]


@lean
def summed(least: Floats, t: Terms, sums: Floats, rest: Floats) -> None:
    """sums [N, P]: bounds of all links of every set of levels; rest [X + 1, P]: at least what tensors x and later cost in every part, whatever holds them."""
    parts, tensors = sums.shape[1], t.keeps.shape[0] - 1
    for i in range(parts):
        rest[tensors, i] = 0.0
    for x in range(tensors - 1, -1, -1):
        for n in range(t.keeps[x], t.keeps[x + 1]):
            for i in range(parts):
                sums[n, i] = 0.0
            for j in range(t.sum[n, 0], t.sum[n, 1]):
                for i in range(parts):
                    sums[n, i] += t.sum_coef[j, i] * least[t.sum_of[j]]
            for i in range(parts):
                low = sums[n, i] if n == t.keeps[x] else min(rest[x, i], sums[n, i])
                rest[x, i] = low
        for i in range(parts):
            rest[x, i] += rest[x + 1, i]


@njit(cache=True, nogil=True)
def spread_lanes(r: int, o: int, used: Ints, many: Ints, p: Pool, m: Machine) -> bool:
    """The sets of lanes in use per dimension once option o of rank r is taken: used [R + 1, ., D], none needing no fewer than another."""
    n, dims = 0, m.size.shape[0]
    for u in range(many[r]):
        for way in range(p.way[o, 0], p.way[o, 1]):
            fits = True
            for c in range(dims):
                used[r + 1, n, c] = used[r, u, c] * p.ways[way, c]
                fits = fits and used[r + 1, n, c] <= m.size[c]
            if not fits:
                continue
            beaten = False
            for j in range(n):
                worse = True
                for c in range(dims):
                    worse = worse and used[r + 1, j, c] <= used[r + 1, n, c]
                beaten = beaten or worse
            if not beaten and n < used.shape[1] - 1:
                n += 1
    many[r + 1] = n
    return n > 0


@njit(cache=True, nogil=True)
def lane_vectors(t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work, least: int, best: Floats) -> tuple[Ints, Floats]:
    """All choices of lanes [n, R] that fit and may beat the best, with the least figure [n, 3] that each may have.

    Quantities are products over ranks: rows [r + 1] are those of row r times what rank r brings.
    """
    ranks, parts, many_q, compute = w.option.shape[0], w.guess.shape[0], t.quantity.shape[0], m.position[m.room.shape[0]]
    size, n = 1024, 0
    chosen, bound = np.empty((size, ranks), np.int64), np.empty((size, 3))
    used, many = np.ones((ranks + 1, 64, m.size.shape[0]), np.int64), np.ones(ranks + 1, np.int64)
    sums, rest = np.empty((t.keep.shape[0], parts)), np.empty((t.keeps.shape[0], parts))
    rows, lanes = np.ones((ranks + 1, many_q)), np.ones(ranks + 1)
    alone = np.empty((many_q, p.first[ranks]))
    for q in range(many_q):
        for r in range(ranks):
            for o in range(p.first[r], p.first[r + 1]):
                alone[q, o] = factor(q, r, o, t, e, p)
    last = np.full((ranks, e.kind.shape[0]), -1, np.int64)  # dimensions whose ranks are all known once rank r is
    for dim in range(e.kind.shape[0]):
        if e.kind[dim] != ALONE:
            last[max(e.rank[dim, 0], e.rank[dim, 1], 0), dim] = 1
    r = 0
    w.option[0] = p.first[0] - 1
    while r >= 0:
        w.option[r] += 1
        o = w.option[r]
        if o >= p.first[r + 1]:
            r -= 1
            continue
        if not spread_lanes(r, o, used, many, p, m):
            continue
        lanes[r + 1] = lanes[r] * p.lanes[o, compute, 0]
        for q in range(many_q):
            rows[r + 1, q] = rows[r, q] * alone[q, o]
        for dim in range(e.kind.shape[0]):
            if last[r, dim] == 1:
                for q in range(many_q):
                    if e.dim[t.quantity[q, 1]] <= dim < e.dim[t.quantity[q, 1] + 1]:
                        rows[r + 1, q] *= together(q, dim, w.option, t, e, p, memo)
        if r < ranks - 1:
            r += 1
            w.option[r] = p.first[r] - 1
            continue
        if lanes[ranks] < least:
            continue
        summed(rows[ranks], t, sums, rest)
        for i in range(parts):
            w.guess[i] = t.base[i] + rest[0, i]
        figure(w.guess, m, w.figure)
        if not below(w.figure, best):
            continue
        if n == size:
            size *= 2
            chosen, bound = np.concatenate((chosen, np.empty_like(chosen))), np.concatenate((bound, np.empty_like(bound)))
        for i in range(ranks):
            chosen[n, i] = w.option[i]
        bound[n], n = w.figure, n + 1
    return chosen[:n], bound[:n]


@lean
def lanes_fixed(t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work) -> None:
    """Bounds of all quantities under the lanes of w.option."""
    for q in range(t.quantity.shape[0]):
        w.least[q] = 1.0
        x = t.quantity[q, 1]
        for r in range(w.option.shape[0]):
            w.least[q] *= factor(q, r, w.option[r], t, e, p)
        for dim in range(e.dim[x], e.dim[x + 1]):
            w.least[q] *= together(q, dim, w.option, t, e, p, memo)


@njit(cache=True, nogil=True)
def placements(t: Terms, sums: Floats, rest: Floats, m: Machine, w: Work, best: Floats) -> tuple[Ints, Floats]:
    """Which levels hold the tensors [n, X], numbers of `keep`, and the least figure [n, 3] of each that may beat the best."""
    tensors, size, n = t.keeps.shape[0] - 1, 64, 0
    chosen, bound = np.empty((size, tensors), np.int64), np.empty((size, 3))
    at, parts = np.zeros(tensors, np.int64), np.empty((tensors + 1, t.base.shape[0]))
    parts[0] = t.base
    x = 0
    at[0] = t.keeps[0] - 1
    while x >= 0:
        at[x] += 1
        if at[x] >= t.keeps[x + 1]:
            x -= 1
            continue
        for i in range(parts.shape[1]):
            parts[x + 1, i] = parts[x, i] + sums[at[x], i]
            w.guess[i] = parts[x + 1, i] + rest[x + 1, i]
        figure(w.guess, m, w.figure)
        if not below(w.figure, best):
            continue
        if x < tensors - 1:
            x += 1
            at[x] = t.keeps[x] - 1
            continue
        if n == size:
            size *= 2
            chosen, bound = np.concatenate((chosen, np.empty_like(chosen))), np.concatenate((bound, np.empty_like(bound)))
        chosen[n], bound[n], n = at, w.figure, n + 1
    return chosen[:n], bound[:n]


@njit(cache=True, nogil=True)
def by_bound(bound: Floats) -> Ints:
    later = np.argsort(bound[:, 1], kind="mergesort")
    return later[np.argsort(bound[later, 0], kind="mergesort")]


@njit(cache=True, nogil=True)
def search(t: Terms, e: Einsum, p: Pool, m: Machine, rules: Rules, memo: Memo, w: Work, least: int, best: Floats) -> int:
    """Best first over lanes, then over the levels that hold the tensors, then nests from inside out. best [3] is lowered; the nest stands in w.best_*.

    Returns how many choices of lanes were looked at.
    """
    vectors, bound = lane_vectors(t, e, p, m, memo, w, least, best)
    parts = w.guess.shape[0]
    sums, rest = np.empty((t.keep.shape[0], parts)), np.empty((t.keeps.shape[0], parts))
    for c in by_bound(bound):
        if not below(bound[c], best):
            if bound[c, 0] > best[0] * (1 + CLOSE):
                break
            continue
        for r in range(vectors.shape[1]):
            w.option[r] = vectors[c, r]
        lanes_fixed(t, e, p, memo, w)
        summed(w.least, t, sums, rest)
        own, own_bound = placements(t, sums, rest, m, w, best)
        for s in by_bound(own_bound):
            if below(own_bound[s], best):
                begin(own[s], t, sums, m, p, w)
                nests(t, e, p, m, rules, memo, w, best)
            if w.tally[1] > w.tally[2]:
                break
        if w.tally[1] > w.tally[2]:
            break
    return len(vectors)


@lean
def begin(own: Ints, t: Terms, sums: Floats, m: Machine, p: Pool, w: Work) -> None:
    """The nodes of a placement, and compute as the innermost place. A tensor's first node at the unbounded outermost level costs and needs nothing."""
    n, levels = 0, m.room.shape[0]
    for i in range(t.base.shape[0]):
        w.parts[0, i] = t.base[i]
    for x in range(own.shape[0]):
        for i in range(t.base.shape[0]):
            w.parts[0, i] += sums[own[x], i]
        before = -1
        for v in range(levels):
            if t.keep[own[x]] >> v & 1:
                if before >= 0 or v > 0 or m.room[0] < np.inf:
                    w.nodes[n, 0], w.nodes[n, 1], w.nodes[n, 2], w.nodes[n, 3], n = x, v, before, m.position[v], n + 1
                before = v
    for f in range(m.ramps.shape[0]):  # a systolic array is entered less often where loops stand directly inside
        w.nodes[n, 0], w.nodes[n, 1], w.nodes[n, 2], w.nodes[n, 3], n = -1, -1, -1, int(m.ramps[f, 0]), n + 1
    w.tally[0] = n
    for v in range(levels):
        w.need[0, v] = 0.0
    w.done[0], w.position[0] = 0, m.position[levels]
    for r in range(w.option.shape[0]):
        w.tile[0, r] = p.span[w.option[r], m.position[levels], 0]
