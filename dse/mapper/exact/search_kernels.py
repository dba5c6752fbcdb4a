"""The compiled half of the search (search.py): arrays in, arrays out.

Lanes first: with the lanes of all ranks fixed, what a tensor moves depends on the tile at its node alone, and
the largest tile that may stand there bounds it. A nest is then built from compute outwards, node by node: the
next node out, the loops in the gap below it, its traffic, its room.

Long, because compiled functions share their array layout and are kept in one file. No recursion: numba's
cache does not keep it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dse.run.compiled import inner, lean, njit
from workloads.arrays import Bools, Floats, Ints

ENERGY, LATENCY, EDP = 0, 1, 2
# parts of a cost: cycles of compute, of systolic arrays that fill and empty; before them energy, after them
# ports
STEPS, RAMP = 1, 2
LOWEST, ALL = 5, 1 << 62  # choices of lanes that are followed before others are looked for; all of them
MANY = 1 << 14  # that are looked for before the lowest of them are followed
FEW = 2  # machines that are held against bounds one by one
CELLS = 512  # numbers of lanes that may be left, told apart (`quotients`)
CLOSE = 1e-10  # costs that differ by less, relatively, are ties
# Kinds of quantities: 1, of what does not depend on tiles; words of tiles; rows of compressed tiles; accesses
# of compute; first reads that are skipped, by a node and by compute; elements of the output once per place of
# inputs with zeros (terms.sparse); words of the first tiles that are fetched and of the last ones that are
# drained.
ONE, WORDS, ROWS, POINTS, STARTED, BEGUN, MET, FIRST, LAST = range(-1, 8)
# kinds of a tensor's dimension: one rank as it is; a hull of up to two ranks; a hull that storage clips
ALONE, HULL, CLIPPED = 0, 1, 2
# Work.tally: nodes to place, nodes placed in all, budget, of them before bounds of what stands outside are
# asked for
NODES_PLACED, VISITED, BUDGET, EASY = 0, 1, 2, 3
TENSOR, LEVEL, PARENT, POSITION = 0, 1, 2, 3  # columns of Work.nodes
ROUND, COUNT = 0, 1  # InnerStates.tally
# why a choice of loops was left: no room, no better than the best; or it was followed
OVER, BOUND, DONE = 0, 1, 2


Worth = tuple[float, float]


class Einsum(NamedTuple):
    """Ranks R of more than one value, tensors X (the output last), their dimensions Dm.

    seen, full [X, R] relevant, fully relevant; part [X, R] in a hull; unshared [X, R] lanes along it share
    nothing that compute asks for (terms.unshared). dim [X + 1] first dimension of a tensor. kind, offset,
    stored [Dm]; rank [Dm, 2], -1 where there is none; coef [Dm, 2]. csr [X] density of a compressed tensor,
    else 0. order [R] in which lanes are chosen.
    """

    seen: Bools
    full: Bools
    part: Bools
    unshared: Bools
    dim: Ints
    kind: Ints
    offset: Ints
    stored: Ints
    rank: Ints
    coef: Ints
    csr: Floats
    order: Ints


class Pool(NamedTuple):
    """Options of all ranks end to end (lanes.Options). first [R + 1] options of a rank; span [O, K, 2]; size,
    pieces, elems, out, whole [n]; pes [O, K, M]; uneven [O] its lanes may be uneven; cuts [n, J];
    factorization_span [O, 2] from, to in factorizations [W, D]; base [R] first tile of a rank; last [n]
    largest tile of the same option and position; prefix [B + 1] masks of all groups at the outermost borders,
    so many of them.
    """

    first: Ints
    span: Ints
    size: Ints
    pieces: Floats
    elems: Floats
    out: Ints
    untiled: Bools
    pes: Floats
    uneven: Bools
    cuts: Ints
    factorization_span: Ints
    factorizations: Ints
    base: Ints
    last: Ints
    prefix: Ints


class Machine(NamedTuple):
    """What the search reads of machines J that differ in prices and rates alone. Levels V, child V is
    compute; parts P of a cost: 0 energy, then cycles: of compute, of ramps, of every port, of what the inside
    of a level waits for at each port, of what enters and leaves it there.

    capacity [V] bits; bits [X, 2] of an element, or a nonzero with its column, and of a row pointer; takes
    [X, V] 0 where the room of a node is not the einsum's, else 1; double_buffer [V] a moving tile counts
    twice; whole [X, V, V] tensor, parent, level: a tile stands whole at its node, which does not sink, but
    for windows (terms.rest); ports [V, 2] parts of reads and of writes; exposed [V, 3] from, to, to in those
    of a level that are waited for: first fills, then last drains; of one that holds nothing twice all fills
    and drains. through [V, 2] from, to in those of what passes it, or leaves it for the inside, of such a
    level. position [V + 1] borders outside; size [D] lanes of a dimension. leak [J]: pJ per cycle. limit [J]:
    cycles at most. gaps [G] positions directly inside of a border where loops that stand above all nodes may
    pay: what is stored outside does not sink below them, where a tile that moves would count twice. ends:
    whether first fills and last drains are waited for at some level.
    """

    capacity: Floats
    bits: Floats
    takes: Floats
    double_buffer: Bools
    whole: Bools
    ports: Ints
    exposed: Ints
    through: Ints
    position: Ints
    size: Ints
    leak: Floats
    limit: Floats
    gaps: Ints
    ends: bool
    objective: int


class Terms(NamedTuple):
    """What links of tensors move, as sums of coef * quantity (search.py, `_terms`, writes them).

    quantity [Q, 5]: kind, tensor, position, masks of the groups of which only the first lane counts, for
    ranks that the tensor does not see and for others. line [Q] words that move at once, 0: any number may;
    spread [Q] dimensions of the tensor, as a mask, of which every index takes a share [Q] of a line. link [X,
    V, V + 1, 2] from, to in quantities `of` [T], coef [J, T, P]. holder_span [X + 1] from, to in the sets of
    levels that may hold a tensor: holder_sets [N] masks, sum [N, 2] from, to in `sum_of`, `sum_coef`: all
    links of such a set together; low: the same, at least and without first reads, which are subtracted. base
    [J, P]: the same for all mappings. Coefficients of every machine apart.
    """

    quantity: Ints
    line: Floats
    spread: Ints
    share: Floats
    link: Ints
    of: Ints
    coef: Floats
    holder_span: Ints
    holder_sets: Ints
    sum: Ints
    sum_of: Ints
    sum_coef: Floats
    low: Ints
    low_of: Ints
    low_coef: Floats
    base: Floats


class Memo(NamedTuple):
    """Sums over the pieces of clipped dimensions, which are slow to make: filled when asked for (nan: not
    yet).

    hulls [B + 1, Dc, A, B'] of clipped dimensions by the tiles of their ranks: at least that of the first
    lane of so many borders, of all lanes of the others; row [Dm] of a dimension there. unions [2, Du, A, B']:
    elements that all tiles touch, stored or not, and that are stored; urow [Dm]. shortest [B + 1, Dm, O, O',
    K], with the first lane of so many borders: the least of a dimension over all tiles of a position, by the
    options of its ranks. spans [2, 2, .], tile [R], entry [B + 1, R], touched [.]: scratch.
    """

    hulls: Floats
    row: Ints
    unions: Floats
    urow: Ints
    shortest: Floats
    spans: Ints
    tile: Ints
    entry: Ints
    touched: Bools


class Rules(NamedTuple):
    """What a mapping must keep to. sinks [X, V, R] a node whose parent's level is V passes below a loop for
    free; inside [R] ranks that may loop in time inside the lanes; stationary: tensor whose innermost node
    stands above these loops, -1: none; both where lanes are in use, but for those of the groups in mask idle.
    min_pes: lanes that must be in use; uneven: only choices of lanes of which some are.
    """

    sinks: Bools
    inside: Bools
    stationary: int
    unconstrained: int
    min_pes: int
    uneven: bool


class InnerStates(NamedTuple):
    """What stood inside a border before, under the same lanes and levels: key [S, R] tiles that it lets in,
    of round [S]; head [S] the first of a chain of cost parts [V, P] of machine of [V] that next [V] joins,
    -1: the end. tally [2]: round, how many are in chains.
    """

    key: Ints
    round: Ints
    head: Ints
    parts: Floats
    of: Ints
    next: Ints
    tally: Ints


class OuterBounds(NamedTuple):
    """Of which levels outside of all borders hold the tensors (`outside`), -1: of none yet: what
    `outer_bound` said, energy [., J].
    """

    levels: Ints
    energy: Floats


class Work(NamedTuple):
    """A nest in the making, from inside out, for all machines at once that it may be best on.

    After d nodes: live [d, J] these machines, lives [d] how many; tile [d, R] what stands there, numbers of
    the pool; parts [d, J, P] at least what the whole costs; need [d, V] bits; done [d] nodes as a mask;
    position [d]; node [d] the one placed then; at [d, R] its tile; level [d] the loop below it that is being
    chosen, -1: the node itself is; loops [d] how many may stand there, windows [d] of these the first ones,
    over ranks of its windows; rank [d, R] theirs, turn [d, R] their tiles, first [d, R] none was tried
    before, ended [d, R] what became of all of them. entry [K, R] tiles that enter the lanes around a
    position. unrolling [R]. nodes [N, 4] tensor, level, parent, position (tensor -1: loops directly inside a
    border, no node); holds_whole [N] its level, which holds what moves twice, has room for all of its tensor;
    tally [4] nodes to place, nodes placed in all, budget, of them before bounds of what stands outside are
    asked for; equal [J] whether what costs the same as the best of a machine is let through too: it may come
    before that in the order of ties (`first_of`); own [X] which levels hold the tensors. lower [Q] bounds of
    the quantities, whatever the tiles; outer_extra [J] energy that crowded outer levels cost beyond that;
    unit [J, 2] what figures and energies of machines are measured in, to compare them; few [.] some of them,
    that differ; guess [P], cost [3], lowest [J, 3], largest [R], rest [R]: scratch; best [J, 3] cost of the
    best nest of outer levels (`outer_bound`); best_*: of each machine the best nest so far, best_count [J]
    its nodes, -1: none yet.
    """

    live: Ints
    lives: Ints
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
    windows: Ints
    rank: Ints
    turn: Ints
    first: Bools
    ended: Ints
    unrolling: Ints
    nodes: Ints
    holds_whole: Bools
    tally: Ints
    lower: Floats
    equal: Bools
    own: Ints
    outer_extra: Floats
    unit: Floats
    few: Ints
    guess: Floats
    cost: Floats
    lowest: Floats
    largest: Ints
    rest: Ints
    best: Floats
    best_count: Ints
    best_unrolling: Ints
    best_own: Ints
    best_nodes: Ints
    best_at: Ints


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


@lean
def clipped_sum(
    dim: int, a: int, b: int, n: int, k: int, entry: Ints, e: Einsum, p: Pool, memo: Memo
) -> float:
    """Sum of the hull lengths of a dimension over the tiles of its ranks at position k, clipped to what is
    stored. a, b: numbers of tiles, -1: no rank.

    n: of so many borders, the outermost ones, the first lane only; entry [K, R] then the tiles that lanes are
    entered with.
    """
    many_a, many_b = (
        pieces(dim, 0, a, n, k, entry, e, p, memo.spans[0]),
        pieces(dim, 1, b, n, k, entry, e, p, memo.spans[1]),
    )
    total = 0.0
    for i in range(many_a):
        for j in range(many_b):
            low = e.offset[dim] + memo.spans[0, 0, i] + memo.spans[1, 0, j]
            high = low + memo.spans[0, 1, i] + memo.spans[1, 1, j]
            total += max(min(high, e.stored[dim] - 1) - max(low, 0) + 1, 0)
    return total


@lean
def pieces(
    dim: int, side: int, tile: int, n: int, k: int, entry: Ints, e: Einsum, p: Pool, spans: Ints
) -> int:
    """spans [2, .]: where the pieces of a rank begin in a dimension, and how far they reach; returns how many
    there are.
    """
    spans[0, 0], spans[1, 0] = 0, 0
    if tile < 0:
        return 1
    r, many = e.rank[dim, side], 1
    spans[1, 0] = p.size[p.span[p.first[r], 0, 1] - 1]
    if n > 0:
        for j in range(1, k + 1):
            many = cut_over_pes(entry[j, r], j <= n, many, p, spans)
        many = cut(p.size[tile], many, spans)
    else:
        for j in range(p.cuts.shape[1]):
            if p.cuts[tile, j]:
                many = cut(p.cuts[tile, j], many, spans)
    for i in range(many):
        spans[0, i], spans[1, i] = e.coef[dim, side] * spans[0, i], e.coef[dim, side] * (spans[1, i] - 1)
    return many


@lean
def cut_over_pes(tile: int, first: bool, many: int, p: Pool, spans: Ints) -> int:
    """Cuts pieces into what enters a border's lanes, then into the lanes' shares, or to that of the first
    lane. tile: what stands inside.
    """
    out, begin, end = p.out[tile], 0, 0
    many = cut(p.size[out], many, spans)
    for j in range(p.cuts.shape[1]):
        begin, end = begin + (p.cuts[out, j] != 0), end + (p.cuts[tile, j] != 0)
    # cuts of these lanes stand between the tile outside, which they share out, and the tile inside
    ragged = end > begin
    if first:
        for i in range(many):
            spans[1, i] = min(spans[1, i], p.size[p.last[tile]] if ragged else p.size[tile])
    elif ragged:
        for j in range(begin, end - 1):
            many = cut(p.cuts[tile, j], many, spans)
    else:
        many = cut(p.size[tile], many, spans)
    return many


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
    """Sum of a dimension's hull lengths over the tiles of its ranks; of clipped ones with a mask at least
    that of the first lane.
    """
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    if e.kind[dim] == ALONE:
        return float(p.elems[tile[a], mask])
    if e.kind[dim] == HULL:
        n1 = p.pieces[tile[a], mask] if a >= 0 else 1.0
        n2 = p.pieces[tile[b], mask] if b >= 0 else 1.0
        s1 = p.elems[tile[a], mask] if a >= 0 else 1.0
        s2 = p.elems[tile[b], mask] if b >= 0 else 1.0
        return float(n1 * n2 + e.coef[dim, 0] * (s1 - n1) * n2 + e.coef[dim, 1] * (s2 - n2) * n1)
    i, j, n, row = (
        tile[a] - p.base[a] if a >= 0 else 0,
        tile[b] - p.base[b] if b >= 0 else 0,
        full_boundaries(mask, p),
        memo.row[dim],
    )
    if np.isnan(memo.hulls[n, row, i, j]):
        one, other = tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1
        memo.hulls[n, row, i, j] = (
            min_first_pe(dim, one, other, mask, e, p, memo)
            if mask
            else clipped_sum(dim, one, other, 0, 0, memo.entry, e, p, memo)
        )
    return float(memo.hulls[n, row, i, j])


@lean
def full_boundaries(mask: int, p: Pool) -> int:
    """Of how many borders, the outermost ones, a mask has all groups."""
    n = 0
    while p.prefix[n] != mask:
        n += 1
    return n


@lean
def min_first_pe(dim: int, a: int, b: int, mask: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """At least what the first lane has of a clipped dimension, whatever tiles enter the lanes: a multiple of
    the tile at the node. Under two borders as many tiles as it has, each as short as the shortest of all.
    """
    least = np.inf
    if p.prefix.shape[0] > 2:
        n1 = pieces(dim, 0, a, 0, 0, memo.entry, e, p, memo.spans[0])
        n2 = pieces(dim, 1, b, 0, 0, memo.entry, e, p, memo.spans[1])
        for i in range(n1):
            for j in range(n2):
                low = e.offset[dim] + memo.spans[0, 0, i] + memo.spans[1, 0, j]
                high = low + memo.spans[0, 1, i] + memo.spans[1, 1, j]
                least = min(least, max(min(high, e.stored[dim] - 1) - max(low, 0) + 1, 0))
        return float(least * (p.pieces[a, mask] if a >= 0 else 1.0) * (p.pieces[b, mask] if b >= 0 else 1.0))
    for i in range(a, a + 1 if a < 0 else p.last[a] + 1):
        for j in range(b, b + 1 if b < 0 else p.last[b] + 1):
            if (a < 0 or p.size[i] % p.size[a] == 0) and (b < 0 or p.size[j] % p.size[b] == 0):
                if a >= 0:
                    memo.entry[1, e.rank[dim, 0]] = i
                if b >= 0:
                    memo.entry[1, e.rank[dim, 1]] = j
                least = min(least, clipped_sum(dim, a, b, 1, 1, memo.entry, e, p, memo))
    return float(least)


@lean
def union(dim: int, a: int, b: int, stored: bool, e: Einsum, p: Pool, memo: Memo) -> float:
    """Elements of an output's dimension that all tiles touch together; stored: of those that it has. Its
    ranks have no lanes (lanes.options).
    """
    row, i, j = (
        memo.urow[dim],
        a - p.base[e.rank[dim, 0]] if a >= 0 else 0,
        b - p.base[e.rank[dim, 1]] if b >= 0 else 0,
    )
    if np.isnan(memo.unions[int(stored), row, i, j]):
        n1 = pieces(dim, 0, a, 0, 0, memo.entry, e, p, memo.spans[0])
        n2 = pieces(dim, 1, b, 0, 0, memo.entry, e, p, memo.spans[1])
        total = 0.0
        memo.touched[:] = False
        for u in range(n1):
            for v in range(n2):
                begin = memo.spans[0, 0, u] + memo.spans[1, 0, v]
                for at in range(begin, begin + memo.spans[0, 1, u] + memo.spans[1, 1, v] + 1):
                    if not memo.touched[at] and (not stored or 0 <= e.offset[dim] + at < e.stored[dim]):
                        memo.touched[at] = True
                        total += 1.0
        memo.unions[int(stored), row, i, j] = total
    return float(memo.unions[int(stored), row, i, j])


@lean
def value(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """A quantity at given tiles (of its position)."""
    kind, x, k, unseen, seen = t.quantity[q]
    if kind >= FIRST:
        return end_transfer_words(q, tile, option, t, e, p)
    if kind == ONE:
        return 1.0
    total, last = 1.0, e.dim[x + 1] - 1
    for r in range(tile.shape[0]):
        if kind == POINTS:
            total *= p.elems[tile[r], seen if e.unshared[x, r] else unseen]
        elif not e.seen[x, r]:
            if kind == MET and e.unshared[x, r]:
                total *= p.elems[tile[r], seen]
            else:
                total *= (
                    p.pes[option[r], k, seen if kind == BEGUN and e.unshared[x, r] else unseen]
                    if kind >= STARTED
                    else p.pieces[tile[r], unseen]
                )
    if kind != POINTS:
        for dim in range(e.dim[x], last + 1):
            a, b = e.rank[dim, 0], e.rank[dim, 1]
            if kind == ROWS and dim == last:
                for r in e.rank[dim]:
                    total *= p.pieces[tile[r], seen] if r >= 0 else 1.0
            elif kind >= STARTED and e.kind[dim] != ALONE:
                total *= union(
                    dim, tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1, kind == STARTED, e, p, memo
                )
            else:
                total *= length(dim, tile, seen, e, p, memo)
    return (
        total if t.line[q] == 0.0 else max(total, t.line[q] * line_requests(q, tile, option, t, e, p, memo))
    )


@lean
def line_requests(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """At least how many lines: one each time that lanes ask for tiles, all of them at once; or a share of one
    per index of the dimensions that are spread. Of clipped dimensions not where all that is asked for is
    clipped: so often as what is asked for in all is more than lanes ask for at once.
    """
    _, x, k, unseen, _ = t.quantity[q]
    every, times = p.pieces.shape[1] - 1, 1.0
    for r in range(tile.shape[0]):
        if not e.seen[x, r]:
            times *= p.pieces[tile[r], unseen]
    indices = times * t.share[q]
    for dim in range(e.dim[x], e.dim[x + 1]):
        reach, lanes, turns = 1.0, 1.0, 1.0
        for side in range(2):
            r = e.rank[dim, side]
            if r >= 0:
                turns *= p.pieces[tile[r], every]
                reach += e.coef[dim, side] * (p.size[tile[r]] - 1)
                lanes *= p.pes[option[r], k, 0]
        whole = turns * reach
        if e.kind[dim] == CLIPPED:
            whole = length(dim, tile, 0, e, p, memo) / lanes
            turns = np.ceil(whole / reach - 1e-9)
        elif e.kind[dim] == ALONE:
            whole = p.elems[tile[e.rank[dim, 0]], 0]
        times *= turns
        indices *= whole if t.spread[q] >> dim - e.dim[x] & 1 else turns
    return float(max(times, indices))


@lean
def end_transfer_words(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool) -> float:
    """Words that the first trips of all loops in time fetch, or the last ones drain, at least: of a clipped
    tile that is not the first, all that may be cut.
    """
    _kind, x, k, unseen, _seen = t.quantity[q]
    total = 1.0
    for r in range(tile.shape[0]):
        if not e.seen[x, r]:
            total *= full_pes(option[r], k, unseen, p)
    for dim in range(e.dim[x], e.dim[x + 1]):
        a, b = e.rank[dim, 0], e.rank[dim, 1]
        total *= end_words(q, dim, tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1, option, t, e, p)
    return total


@lean
def end_words(q: int, dim: int, a: int, b: int, option: Ints, t: Terms, e: Einsum, p: Pool) -> float:
    """The same of one dimension. a, b: numbers of tiles, -1: no rank."""
    kind, _x, k, _unseen, seen = t.quantity[q]
    reach, whole, lanes, total = 0, 0, 1.0, 1.0
    for side in range(2):
        r = e.rank[dim, side]
        if r >= 0:
            reach += e.coef[dim, side] * (p.size[b if side else a] - 1)
            whole += e.coef[dim, side] * (p.size[p.span[p.first[r], 0, 1] - 1] - 1)
            lanes *= p.pes[option[r], k, seen]
            total *= full_pes(option[r], k, seen, p)
    words = reach + 1
    if e.kind[dim] == CLIPPED and kind == FIRST and lanes == 1.0:
        words = min(e.offset[dim] + reach, e.stored[dim] - 1) - max(e.offset[dim], 0) + 1
    elif e.kind[dim] == CLIPPED:
        words -= max(-e.offset[dim], 0) + max(e.offset[dim] + whole - e.stored[dim] + 1, 0)
    return total * max(words, 0)


@lean
def full_pes(o: int, k: int, mask: int, p: Pool) -> float:
    """Lanes of an option that surely have whole tiles: of uneven ones the last may have less, under two
    borders any but the first.
    """
    lanes = float(p.pes[o, k, mask])
    return lanes if not p.uneven[o] or lanes == 1.0 else 1.0 if p.prefix.shape[0] > 2 else lanes - 1.0


@lean
def factor(q: int, r: int, o: int, t: Terms, e: Einsum, p: Pool) -> float:
    """What rank r alone brings to the least value of a quantity under option o: its largest tile at that
    position; the smallest of first and last tiles.
    """
    kind, x, k, unseen, seen = t.quantity[q]
    if kind >= FIRST:
        for dim in range(e.dim[x], e.dim[x + 1]):
            if e.kind[dim] == ALONE and e.rank[dim, 0] == r:
                return float(full_pes(o, k, seen, p) * p.size[p.span[o, k, 0]])
        return 1.0 if e.seen[x, r] else full_pes(o, k, unseen, p)
    if kind == ONE:
        return 1.0
    tile = p.span[o, k, 1] - 1
    if kind == POINTS:
        return float(p.elems[tile, seen if e.unshared[x, r] else unseen])
    if not e.seen[x, r]:
        if kind == MET and e.unshared[x, r]:
            return float(p.elems[tile, seen])
        return float(
            p.pes[o, k, seen if kind == BEGUN and e.unshared[x, r] else unseen]
            if kind >= STARTED
            else p.pieces[tile, unseen]
        )
    last = e.dim[x + 1] - 1
    for dim in range(e.dim[x], last + 1):
        if e.rank[dim, 0] == r or e.rank[dim, 1] == r:
            if kind == ROWS and dim == last:
                return float(p.pieces[tile, seen])
            return float(p.elems[tile, seen]) if e.kind[dim] == ALONE else 1.0  # a hull: `minimum_hull`
    return 1.0


@lean
def minimum_hull(q: int, dim: int, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """The least hull of a dimension over all tiles of a quantity's position: it need not grow with the tile
    where strides leave gaps. Of first reads, which are subtracted, the most: those of the largest tiles,
    which touch all that smaller ones do; compute touches one element at a time.
    """
    kind, x, k = t.quantity[q, 0], t.quantity[q, 1], t.quantity[q, 2]
    if kind in (ONE, POINTS) or e.kind[dim] == ALONE or (kind == ROWS and dim == e.dim[x + 1] - 1):
        return 1.0
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    if kind >= FIRST:
        return end_words(
            q,
            dim,
            p.span[option[a], k, 0] if a >= 0 else -1,
            p.span[option[b], k, 0] if b >= 0 else -1,
            option,
            t,
            e,
            p,
        )
    if kind >= STARTED:
        one = (p.span[option[a], k, 1] - 1 if kind == STARTED else p.span[option[a], k, 0]) if a >= 0 else -1
        other = (
            (p.span[option[b], k, 1] - 1 if kind == STARTED else p.span[option[b], k, 0]) if b >= 0 else -1
        )
        return union(dim, one, other, kind == STARTED, e, p, memo)
    n = full_boundaries(t.quantity[q, 4], p)
    i, j = option[a] - p.first[a] if a >= 0 else 0, option[b] - p.first[b] if b >= 0 else 0
    if np.isnan(memo.shortest[n, dim, i, j, k]):
        memo.shortest[n, dim, i, j, k] = min_length(dim, k, p.prefix[n], option, e, p, memo)
    return float(memo.shortest[n, dim, i, j, k])


@lean
def min_length(dim: int, k: int, mask: int, option: Ints, e: Einsum, p: Pool, memo: Memo) -> float:
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
def footprint(x: int, tile: Ints, low: Ints, e: Einsum, p: Pool, m: Machine) -> float:
    """Bits of a node's tile; the loops directly below lead to tiles `low`: it sinks into the best sliding
    window.
    """
    return hull(x, tile, low, True, window(x, tile, low, True, e, p, m), e, p, m)


@lean
def standing(x: int, tile: Ints, low: Ints, e: Einsum, p: Pool, m: Machine) -> float:
    """The same of one that stands whole, but for the window that it best slides along (terms.slides)."""
    return hull(x, tile, low, False, window(x, tile, low, False, e, p, m), e, p, m)


@lean
def window(x: int, tile: Ints, low: Ints, sinks: bool, e: Einsum, p: Pool, m: Machine) -> int:
    """The rank whose window a node best sinks into, -1: none; of those that stand whole, windows of inputs,
    in one dimension each.
    """
    best, least = -1, hull(x, tile, low, sinks, -1, e, p, m)
    for r in range(tile.shape[0]):
        if e.part[x, r] and tile[r] != low[r] and (sinks or one_window(x, r, e)):
            own = hull(x, tile, low, sinks, r, e, p, m)
            if own < least:
                best, least = r, own
    return best


@lean
def one_window(x: int, r: int, e: Einsum) -> bool:
    """Whether tensor x is an input that has rank r in one dimension."""
    many = 0
    for dim in range(e.dim[x], e.dim[x + 1]):
        many += int(e.rank[dim, 0] == r or e.rank[dim, 1] == r)
    return many == 1 and x < e.seen.shape[0] - 1


@lean
def hull(x: int, tile: Ints, low: Ints, sinks: bool, window: int, e: Einsum, p: Pool, m: Machine) -> float:
    """Bits of a tile (counts.tile_bits). sinks: into loops of its full ranks; window: and into this rank's,
    -1: none.
    """
    whole, rows = 1.0, 1.0
    for dim in range(e.dim[x], e.dim[x + 1]):
        own = 1.0
        for side in range(2):
            r = e.rank[dim, side]
            if r >= 0:
                own += e.coef[dim, side] * (
                    p.size[low[r] if (sinks and e.full[x, r]) or r == window else tile[r]] - 1
                )
        whole *= own
        if dim < e.dim[x + 1] - 1:
            rows *= own
    bits: float = whole * m.bits[x, 0]
    if e.csr[x] > 0.0:
        bits = np.ceil(np.round(e.csr[x] * whole, 6)) * m.bits[x, 0] + rows * m.bits[x, 1]
    return bits


@lean
def is_used(k: int, mask: int, p: Pool, w: Work) -> bool:
    """Whether lanes outside of a position are in use, but for those of the groups in the mask."""
    some = False
    for r in range(w.unrolling.shape[0]):
        some = some or p.pes[w.unrolling[r], k, mask] > 1
    return some


@lean
def is_innermost(k: int, mask: int, p: Pool, m: Machine, w: Work) -> bool:
    """Whether a position stands inside of all lanes in use, and there are some, but for those of the groups
    in the mask.
    """
    compute, inside = m.position[m.capacity.shape[0]], True
    for r in range(w.unrolling.shape[0]):
        inside = inside and p.pes[w.unrolling[r], k, mask] == p.pes[w.unrolling[r], compute, mask]
    return inside and is_used(k, mask, p, w)


@lean
def stationarity_ok(d: int, rules: Rules, p: Pool, m: Machine, w: Work) -> bool:
    """Whether all nodes of the still tensor inside of the lanes are to come, and there is one."""
    above, below_it = False, False
    for n in range(w.tally[NODES_PLACED]):
        if w.nodes[n, TENSOR] == rules.stationary and is_innermost(
            w.nodes[n, POSITION], rules.unconstrained, p, m, w
        ):
            above, below_it = above or not w.done[d] >> n & 1, below_it or bool(w.done[d] >> n & 1)
    return above and not below_it


@lean
def must_loop_inside(d: int, n: int, r: int, e: Einsum, w: Work) -> bool:
    """Whether rank r had better loop below node n than above it, for the sake of a node outside: one whose
    level holds its whole tensor, once as long as nothing moves it, and which a loop directly below would turn
    into a window that slides, held twice. A dense tile that passes below a loop whole becomes no larger:
    twice a half at most.
    """
    some = False
    for other in range(w.tally[NODES_PLACED]):
        y, k = w.nodes[other, TENSOR], w.nodes[other, POSITION]
        outside = w.nodes[n, POSITION] == k if w.nodes[n, TENSOR] >= 0 else w.nodes[n, POSITION] > k
        some = some or (
            w.holds_whole[other]
            and outside
            and other != n
            and not w.done[d] >> other & 1
            and e.seen[y, r]
            and (e.part[y, r] or e.csr[y] > 0)
        )
    return some


@lean
def may_loop_here(d: int, n: int, r: int, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Whether rank r may loop between node n and what stands inside of it.

    Not where n passes below the loop for free (the same fetches of smaller tiles), nor where the node inside
    rises above it for free (fewer fetches): the loop then follows those that this node sinks through, so that
    its window stays. But n keeps the loop if it may sink through it.
    """
    x, _level, parent, k = w.nodes[n]
    if is_innermost(k, rules.unconstrained, p, m, w):
        if not rules.inside[r]:
            return False
        if rules.stationary >= 0 and not stationarity_ok(d, rules, p, m, w):
            return False
    if x < 0:
        return must_loop_inside(d, n, r, e, w)
    if (
        parent >= 0
        and rules.sinks[x, parent, r]
        and x != rules.stationary
        and not must_loop_inside(d, n, r, e, w)
    ):
        return False
    if d > 0 and w.position[d] == w.nodes[w.node[d - 1], POSITION]:
        inner = w.nodes[w.node[d - 1], TENSOR]
        if not e.seen[inner, r] and not (parent >= 0 and e.seen[x, r]):
            return False
    return True


@lean
def fits(d: int, n: int, whole: bool, e: Einsum, p: Pool, m: Machine, w: Work) -> bool:
    """Whether node n fits with the loops chosen so far (whole: all of them), and all nodes of its level that
    are still to come.
    """
    level = w.nodes[n, LEVEL]
    if level < 0 or m.capacity[level] == np.inf:
        return True
    need = w.need[d, level] + own_bits(d, n, whole, e, p, m, w)
    for other in range(w.tally[NODES_PLACED]):
        if other != n and w.nodes[other, LEVEL] == level and not w.done[d] >> other & 1:
            x = w.nodes[other, TENSOR]
            need += hull(x, w.at[d], w.at[d], True, -1, e, p, m) * m.takes[x, level]
    return bool(need <= m.capacity[level])


@lean
def own_bits(d: int, n: int, whole: bool, e: Einsum, p: Pool, m: Machine, w: Work) -> float:
    """Where moving tiles count twice: those that a loop in time above fills again, or one that they sink
    into; not known before all loops are.
    """
    x, level, parent = w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT]
    sinks = parent >= 0 and not m.whole[x, parent, level]
    tile = hull(x, w.at[d], w.at[d], True, -1, e, p, m)
    if parent >= 0:
        tile = (
            footprint(x, w.at[d], w.tile[d], e, p, m) if sinks else standing(x, w.at[d], w.tile[d], e, p, m)
        )
    bits: float = m.takes[x, level] * tile
    if whole and m.double_buffer[level]:
        again = parent >= 0 and tile < hull(x, w.at[d], w.tile[d], sinks, -1, e, p, m)
        for r in range(w.tile.shape[1]):
            again = (
                again or not p.untiled[w.at[d, r]] or (sinks and e.full[x, r] and w.at[d, r] != w.tile[d, r])
            )
        return 2.0 * bits if again else bits
    return bits


@lean
def place_node(
    d: int, n: int, t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work, best: Floats
) -> int:
    """Node n after d others, its loops chosen: OVER, BOUND or DONE."""
    if not fits(d, n, True, e, p, m, w) or is_swapped_duplicate(d, n, w):
        return OVER
    x, level, parent, k = w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT], w.nodes[n, POSITION]
    ends = x >= 0 and m.exposed[level, 1] < m.exposed[level, 2]
    if ends:
        sinks = parent < 0 or not m.whole[x, parent, level]
        entry = window(x, w.at[d], w.tile[d], sinks, e, p, m)
        for r in range(w.rest.shape[0]):
            w.rest[r] = w.tile[d, r] if (sinks and e.full[x, r]) or r == entry else w.at[d, r]
    add_fetches(d, n, w.at[d], w.rest, t, e, p, memo, w)
    add_exposed(d, n, w.tile[d], w.at[d], t, e, p, m, w, w.parts[d + 1])
    if keep_improving(d, w.parts[d + 1], m, w, best, True) == 0:
        if m.ends:  # smaller first tiles, of this node or of those to come outside, are waited for less
            add_fetches(d, n, w.at[d], w.tile[d], t, e, p, memo, w)
            return OVER if keep_improving(d, w.parts[d + 1], m, w, best, False) else BOUND
        return BOUND
    for v in range(m.capacity.shape[0]):
        w.need[d + 1, v] = w.need[d, v]
    if x >= 0 and m.capacity[level] < np.inf:
        w.need[d + 1, level] += own_bits(d, n, True, e, p, m, w)
    w.done[d + 1] = w.done[d] | np.int64(1) << n
    w.position[d + 1] = k
    for r in range(w.tile.shape[1]):
        w.tile[d + 1, r] = w.at[d, r]
    return DONE


@lean
def shares_unevenly(tile: int, p: Pool) -> bool:
    """Whether the lanes directly outside of a tile share out one tile, which leaves cuts of its own."""
    more = 0
    for j in range(p.cuts.shape[1]):
        more += int(p.cuts[tile, j] != 0) - int(p.cuts[p.out[tile], j] != 0)
    return more > 0


@lean
def enter_fanout(d: int, t: Terms, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Moves out over the borders inside of which all nodes stand; whether the nest is whole. Uneven lanes
    loop in time through all of their share: where the rules forbid it, the nest costs infinitely much.
    """
    while True:
        k = w.position[d]
        for n in range(w.tally[NODES_PLACED]):
            if w.nodes[n, POSITION] == k and not w.done[d] >> n & 1:
                return False
        if k == 0:
            return True
        for r in range(w.tile.shape[1]):
            if (
                (rules.stationary >= 0 or not rules.inside[r])
                and shares_unevenly(w.tile[d, r], p)
                and w.tile[d, r] != p.last[w.tile[d, r]]
            ):
                for a in range(w.lives[d] if is_innermost(k, rules.unconstrained, p, m, w) else 0):
                    # whatever the objective
                    w.parts[d, w.live[d, a], 0] = w.parts[d, w.live[d, a], STEPS] = np.inf
            w.entry[k, r] = w.tile[d, r]
            w.tile[d, r] = p.out[w.tile[d, r]]
        w.position[d] = k - 1
        for a in range(w.lives[d] if k == 1 else 0):
            w.parts[d, w.live[d, a], 0] -= w.outer_extra[w.live[d, a]]
        add_exposed(d, -1, w.tile[d], w.tile[d], t, e, p, m, w, w.parts[d])


@lean
def is_next(d: int, n: int, w: Work) -> bool:
    """Whether node n may be the next one outwards: inner levels of its tensor first."""
    if w.nodes[n, POSITION] != w.position[d] or w.done[d] >> n & 1:
        return False
    for other in range(w.tally[NODES_PLACED]):
        inside = (
            w.nodes[other, POSITION] == w.position[d]
            and not w.done[d] >> other & 1
            and w.nodes[other, LEVEL] > w.nodes[n, LEVEL]
        )
        if inside and (w.nodes[other, TENSOR] == w.nodes[n, TENSOR] or w.nodes[n, TENSOR] < 0):
            return False
    return True


@lean
def push(d: int, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Turns to the next node that may follow d others outwards, and to the loops that may stand below it;
    False: there is none.
    """
    n = w.node[d] + 1
    while n < w.tally[NODES_PLACED] and not is_next(d, n, w):
        n += 1
    if n == w.tally[NODES_PLACED]:
        return False
    w.node[d], w.level[d], w.loops[d], w.windows[d] = n, 0, 0, 0
    x = w.nodes[n, TENSOR]
    for window in (True, False):  # ranks of windows first: `is_promising`
        for r in range(w.tile.shape[1]):
            w.at[d, r] = w.tile[d, r]
            if (x >= 0 and e.part[x, r]) == window and may_loop_here(d, n, r, e, p, m, rules, w):
                w.rank[d, w.loops[d]], w.loops[d], w.windows[d] = r, w.loops[d] + 1, w.windows[d] + window
    reset_loop(d, p, w)
    return True


@lean
def reset_loop(d: int, p: Pool, w: Work) -> None:
    """The loop at w.level[d] begins with its largest tile."""
    i = w.level[d]
    if i < w.loops[d]:
        w.turn[d, i] = p.span[w.unrolling[w.rank[d, i]], w.nodes[w.node[d], POSITION], 1]
        w.first[d, i], w.ended[d, i] = True, BOUND


@lean
def next_tile(d: int, p: Pool, w: Work) -> bool:
    """The next smaller tile of the loop at w.level[d], the loops after it as they stand inside; False: there
    is none.
    """
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
def is_promising(d: int, t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work, best: Floats) -> bool:
    """Whether a node may still lead below the best once the loops of its windows are chosen: the other ranks'
    largest tiles are fetched least, and no first tile is smaller than what stands inside.
    """
    n = w.node[d]
    for r in range(w.tile.shape[1]):
        w.largest[r] = w.at[d, r]
    for i in range(w.windows[d], w.loops[d]):
        w.largest[w.rank[d, i]] = p.last[w.tile[d, w.rank[d, i]]]
    add_fetches(d, n, w.largest, w.tile[d], t, e, p, memo, w)
    return keep_improving(d, w.parts[d + 1], m, w, best, False) > 0


@lean
def add_fetches(
    d: int, n: int, tile: Ints, rest: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work
) -> None:
    """w.parts [d + 1]: at least what the whole costs with node n at these tiles. rest: those that it sinks
    to, where first and last tiles are waited for.
    """
    x, level, parent = w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT]
    for a in range(w.lives[d]):
        machine = w.live[d, a]
        for i in range(w.parts.shape[2]):
            w.parts[d + 1, machine, i] = w.parts[d, machine, i]
    if parent >= 0:
        for j in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
            q = t.of[j]
            if t.quantity[q, 0] >= FIRST:
                more = end_transfer_words(q, rest, w.unrolling, t, e, p) - end_transfer_words(
                    q, w.tile[d], w.unrolling, t, e, p
                )
            else:
                more = value(q, tile, w.unrolling, t, e, p, memo) - w.lower[q]
            add_link(d, j, more, t, w, w.parts[d + 1])


@lean
def add_link(d: int, link: int, more: float, t: Terms, w: Work, parts: Floats) -> None:
    """parts [J, P] of the machines that are alive after d nodes, plus what so much more of a link's quantity
    costs.
    """
    for a in range(w.lives[d]):
        j = w.live[d, a]
        for i in range(parts.shape[1]):
            parts[j, i] += t.coef[j, link, i] * more


@lean
def add_exposed(
    d: int, n: int, before: Ints, tile: Ints, t: Terms, e: Einsum, p: Pool, m: Machine, w: Work, parts: Floats
) -> None:
    """parts [J, P] plus what the first and last tiles of nodes that are still to come here, but for n, are
    more if they hold these tiles, not those before.
    """
    for other in range(w.tally[NODES_PLACED]):
        x, level, parent, k = w.nodes[other]
        if (
            other == n
            or parent < 0
            or w.done[d] >> other & 1
            or k != w.position[d]
            or m.exposed[level, 1] == m.exposed[level, 2]
        ):
            continue
        for j in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
            q = t.of[j]
            if t.quantity[q, 0] >= FIRST:
                more = end_transfer_words(q, tile, w.unrolling, t, e, p) - (
                    end_transfer_words(q, before, w.unrolling, t, e, p) if n >= 0 else w.lower[q]
                )
                add_link(d, j, more, t, w, parts)


@lean
def is_swapped_duplicate(d: int, n: int, w: Work) -> bool:
    """Whether node n and the one inside of it stand in a row, above one that sinks from its end: so they may
    change places, and one order is enough.
    """
    if (
        d == 0
        or w.nodes[n, TENSOR] < 0
        or w.position[d] != w.nodes[w.node[d - 1], POSITION]
        or n < w.node[d - 1]
    ):
        return False
    looped = False
    for r in range(w.tile.shape[1]):
        looped = looped or w.at[d, r] != w.tile[d, r] or w.at[d - 1, r] != w.tile[d - 1, r]
    return not looped


@lean
def dominated_inner_state(
    d: int, t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work, seen: InnerStates
) -> bool:
    """Whether what stands inside a border costs no less in any part, on any machine, than what stood there
    before and let the same tiles in: with that, all that can stand outside was tried already. Machines of
    which this holds are alive no more; of the others it is kept, to be compared with. What the first lane has
    of clipped dimensions is known outside of the last border only; of machines with two nothing is compared
    then.
    """
    clipped_ones = False
    for dim in range(e.kind.shape[0]):
        clipped_ones = clipped_ones or e.kind[dim] == CLIPPED
    if clipped_ones and p.prefix.shape[0] > 2:
        return False
    at = slot_of(d, w, seen)
    if at < 0:  # no room to keep it
        return False
    parts, last = w.parts[w.parts.shape[0] - 1], w.parts.shape[0] - 1
    for a in range(w.lives[d]):
        j = w.live[d, a]
        for i in range(parts.shape[1]):
            parts[j, i] = w.parts[d, j, i]
        w.live[last, a] = j
    w.lives[last] = w.lives[d]
    if clipped_ones:
        add_clipped(last, d, t, e, p, memo, w)
    n = 0
    for a in range(w.lives[last]):
        j, worse, v = w.live[last, a], False, seen.head[at]
        while v >= 0 and not worse:
            worse = seen.of[v] == j
            for i in range(parts.shape[1]):
                worse = worse and parts[j, i] >= seen.parts[v, i]
            v = seen.next[v]
        if worse:
            continue
        w.live[d, n], n = j, n + 1
        if seen.tally[COUNT] < seen.next.shape[0]:
            v = seen.tally[COUNT]
            seen.tally[COUNT] = v + 1
            seen.next[v], seen.head[at], seen.of[v] = seen.head[at], v, j
            for i in range(parts.shape[1]):
                seen.parts[v, i] = parts[j, i]
    w.lives[d] = n
    return n == 0


@lean
def slot_of(d: int, w: Work, seen: InnerStates) -> int:
    """Where those that let the tiles in that stand outside of d nodes are kept, -1: nowhere."""
    at, found, ranks = 0, False, w.tile.shape[1]
    for r in range(ranks):
        at = (at * 1000003 + w.tile[d, r]) & (seen.round.shape[0] - 1)
    for _ in range(8):
        found = seen.round[at] != seen.tally[ROUND]
        if found:
            seen.round[at], seen.head[at] = seen.tally[ROUND], -1
            for r in range(ranks):
                seen.key[at, r] = w.tile[d, r]
            return at
        found = True
        for r in range(ranks):
            found = found and seen.key[at, r] == w.tile[d, r]
        if found:
            return at
        at = (at + 1) & (seen.round.shape[0] - 1)
    return -1


@lean
def pop_loop(d: int, why: int, e: Einsum, p: Pool, w: Work) -> None:
    """The tile of the loop at w.level[d] is done with: to the next smaller one, or to the loop outside. If
    its bound was no better than the best (BOUND), smaller tiles of this loop are left out: the tensor is
    fetched more often, and costs no less. Not of a window's ranks, of which smaller tiles may leave gaps out.
    """
    x = w.nodes[w.node[d], TENSOR]
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
def nests(
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    seen: InnerStates,
    best: Floats,
) -> None:
    """All nests of w.nodes under the lanes of w.option, from compute outwards; larger tiles first, cut by
    room and by bound.
    """
    d = 0
    enter_fanout(0, t, e, p, m, rules, w)
    w.node[0], w.level[0] = -1, -1
    if w.tally[NODES_PLACED] == 0:
        record_if_better(0, t, e, p, m, memo, w, best)
        return
    while d >= 0 and w.tally[VISITED] <= w.tally[BUDGET]:
        if w.level[d] < 0:
            if not push(d, e, p, m, rules, w):
                d -= 1
                if d >= 0:
                    pop_loop(d, DONE, e, p, w)
            continue
        if w.level[d] < w.loops[d]:
            if not next_tile(d, p, w):
                why = w.ended[d, w.level[d]]
                w.level[d] -= 1
                if w.level[d] >= 0:
                    pop_loop(d, why, e, p, w)
            elif not fits(d, w.node[d], False, e, p, m, w):
                pop_loop(d, OVER, e, p, w)
            elif (
                w.level[d] == w.windows[d] - 1
                and w.windows[d] < w.loops[d]
                and not is_promising(d, t, e, p, m, memo, w, best)
            ):
                pop_loop(d, BOUND, e, p, w)
            else:
                w.level[d] += 1
                reset_loop(d, p, w)
            continue
        w.tally[VISITED] += 1
        why = place_node(d, w.node[d], t, e, p, m, memo, w, best)
        if why != DONE:
            pop_loop(d, why, e, p, w)
        elif enter_fanout(d + 1, t, e, p, m, rules, w):
            record_if_better(d + 1, t, e, p, m, memo, w, best)
            pop_loop(d, DONE, e, p, w)
        elif w.position[d + 1] != w.nodes[w.node[d], POSITION] and dominated_inner_state(
            d + 1, t, e, p, memo, w, seen
        ):
            pop_loop(d, DONE, e, p, w)
        else:
            d += 1
            w.node[d], w.level[d] = -1, -1


@lean
def add_clipped(to: int, d: int, t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work) -> None:
    """w.parts [to] with what the first lane has of clipped dimensions, which is known once the tiles that
    enter the lanes are; of the machines alive there.
    """
    for j in range(d):
        x, level, parent, k = w.nodes[w.node[j]]
        for i in range(
            t.link[x, parent, level, 0], t.link[x, parent, level, 1] if parent >= 0 and k > 0 else 0
        ):
            q = t.of[i]
            if (t.quantity[q, 0] != WORDS and t.quantity[q, 0] != ROWS) or t.quantity[q, 4] == 0:
                continue
            least, exact = 1.0, 1.0
            for dim in range(e.dim[x], e.dim[x + 1] - (t.quantity[q, 0] == ROWS)):
                if e.kind[dim] == CLIPPED:
                    a, b = e.rank[dim, 0], e.rank[dim, 1]
                    least *= length(dim, w.at[j], t.quantity[q, 4], e, p, memo)
                    exact *= clipped_sum(
                        dim,
                        w.at[j, a] if a >= 0 else -1,
                        w.at[j, b] if b >= 0 else -1,
                        full_boundaries(t.quantity[q, 4], p),
                        k,
                        w.entry,
                        e,
                        p,
                        memo,
                    )
            if exact > least:
                add_link(
                    to,
                    i,
                    unclipped_value(q, w.at[j], w.unrolling, t, e, p, memo) * (exact - least),
                    t,
                    w,
                    w.parts[to],
                )


@lean
def unclipped_value(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """A quantity of words or rows but for its clipped dimensions."""
    kind, x, _, unseen, seen = t.quantity[q]
    total, last = 1.0, e.dim[x + 1] - 1
    for r in range(tile.shape[0]):
        if not e.seen[x, r]:
            total *= p.pieces[tile[r], unseen]
    for dim in range(e.dim[x], last + 1):
        if kind == ROWS and dim == last:
            for r in e.rank[dim]:
                total *= p.pieces[tile[r], seen] if r >= 0 else 1.0
        elif e.kind[dim] != CLIPPED:
            total *= length(dim, tile, seen, e, p, memo)
    return total


@lean
def record_if_better(
    d: int, t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work, best: Floats
) -> None:
    """Of every machine. Under the same lanes and levels the first of equals that comes is taken."""
    add_clipped(d, d, t, e, p, memo, w)
    for a in range(w.lives[d]):
        machine = w.live[d, a]
        objective_value(w.parts[d], machine, m, w.cost)
        if wins(machine, w.cost, best, w.equal):
            better, w.equal[machine] = compare(w.cost, best[machine]) < 0, False
            for i in range(3 if better else 0):
                best[machine, i] = w.cost[i]
            w.best_count[machine] = d
            for x in range(w.own.shape[0]):
                w.best_own[machine, x] = w.own[x]
            for r in range(w.unrolling.shape[0]):
                w.best_unrolling[machine, r] = w.unrolling[r]
            for j in range(d):
                for i in range(4):
                    w.best_nodes[machine, j, i] = w.nodes[w.node[j], i]
                for r in range(w.unrolling.shape[0]):
                    w.best_at[machine, j, r] = w.at[j, r]


@lean
def sum_bounds(
    least: Floats, j: int, t: Terms, span: Ints, of: Ints, coef: Floats, upto: int, sums: Floats, rest: Floats
) -> int:
    """sums [N, P]: bounds of all links of every set of levels on machine j, by t.sum or t.low; rest [X + 1,
    P]: at least what tensors x and later cost in every part, whatever holds them; of the first `upto` parts,
    which is returned.
    """
    tensors = t.holder_span.shape[0] - 1
    for i in range(upto):
        rest[tensors, i] = 0.0
    for x in range(tensors - 1, -1, -1):
        for n in range(t.holder_span[x], t.holder_span[x + 1]):
            for i in range(upto):
                sums[n, i] = 0.0
            for link in range(span[n, 0], span[n, 1]):
                for i in range(upto):
                    sums[n, i] += coef[j, link, i] * least[of[link]]
            for i in range(upto):
                low = sums[n, i] if n == t.holder_span[x] else min(rest[x, i], sums[n, i])
                rest[x, i] = low
        for i in range(upto):
            rest[x, i] += rest[x + 1, i]
    return upto


class Hulls(NamedTuple):
    """Dimensions that add up ranks, as lanes bound them, of N pairs [N, 2] of a quantity and a dimension.

    value: what they bring by the options of their ranks, at first [N] + a * many [N] + b; low [N, O + 1] the
    least once one rank's option is known, in the last column if none is.
    """

    pairs: Ints
    first: Ints
    many: Ints
    value: Floats
    low: Floats


class Choices(NamedTuple):
    """Options C of all ranks, as lanes bound them; or groups of options with equally many lanes, each as low
    as any of it. first [R + 1]; alone [C, Q] what one brings to a quantity, but for hulls; lanes, alive,
    uneven [C]; open [C, J] to which machines; factorization_span [C, 2] from, to in factorizations [W, D].
    """

    first: Ints
    alone: Floats
    pes: Ints
    alive: Bools
    open: Bools
    uneven: Bools
    factorization_span: Ints
    factorizations: Ints
    hulls: Hulls


@inner()
def spread_over_dims(i: int, o: int, used: Ints, many: Ints, c: Choices, m: Machine) -> bool:
    """The sets of lanes in use per dimension once option o of the i-th rank is taken: used [R + 1, ., D],
    none needing no fewer than another.
    """
    n, dims = 0, m.size.shape[0]
    for u in range(many[i]):
        for k in range(c.factorization_span[o, 0], c.factorization_span[o, 1]):
            fits = True
            for d in range(dims):
                used[i + 1, n, d] = used[i, u, d] * c.factorizations[k, d]
                fits = fits and used[i + 1, n, d] <= m.size[d]
            if not fits:
                continue
            beaten = False
            for j in range(n):
                worse = True
                for d in range(dims):
                    worse = worse and used[i + 1, j, d] <= used[i + 1, n, d]
                beaten = beaten or worse
            if not beaten and n < used.shape[1] - 1:
                n += 1
    many[i + 1] = n
    return n > 0


class FreePes(NamedTuple):
    """How many lanes are left in the dimensions, in C cells: pes [C, D] at most, cell [D, .] what so many in
    one dimension add to the number of a cell.
    """

    pes: Ints
    cell: Ints


@njit(cache=True, nogil=True)
def quotients(size: Ints) -> FreePes:
    """The cells of all that may be left: a dimension divided by whole numbers, in coarser steps where these
    are many.
    """
    dims, most, steps, many, cells = (
        size.shape[0],
        1,
        np.ones(size.shape[0], np.int64),
        np.zeros(size.shape[0], np.int64),
        CELLS + 1,
    )
    for d in range(dims):
        most = max(most, size[d])
    found = np.zeros((dims, most + 1), np.bool_)
    while cells > CELLS:
        cells = 1
        for d in range(dims):
            found[d] = False
            n = size[d]
            while n > 0:
                found[d, n] = True
                n = min(size[d] // (size[d] // n + 1), n - steps[d])
            many[d] = found[d].sum()
            cells *= many[d]
        for d in range(dims):
            steps[d] *= 2
    lanes, cell, stride = np.ones((cells, dims), np.int64), np.zeros(found.shape, np.int64), 1
    for d in range(dims):
        values = np.flatnonzero(found[d])
        for n in range(1, size[d] + 1):
            cell[d, n] = stride * np.searchsorted(values, n)
        for c in range(cells):
            lanes[c, d] = values[c // stride % many[d]]
        stride *= many[d]
    return FreePes(lanes, cell)


@inner()
def min_inside(c: Choices, order: Ints, left: FreePes) -> Floats:
    """[R + 1, C, Q]: at least what the i-th rank of an order and later ones bring to a quantity, if so many
    lanes are left to them.
    """
    ranks, dims = order.shape[0], left.pes.shape[1]
    found = np.ones((ranks + 1, left.pes.shape[0], c.alone.shape[1]))
    for i in range(ranks - 1, -1, -1):
        found[i] = np.inf
        for o in range(c.first[order[i]], c.first[order[i] + 1]):
            for k in range(c.factorization_span[o, 0], c.factorization_span[o, 1] if c.alive[o] else 0):
                for j in range(left.pes.shape[0]):
                    after = 0
                    for d in range(dims):
                        n = left.pes[j, d] // c.factorizations[k, d]
                        after = after + left.cell[d, n] if n > 0 and after >= 0 else -1
                    if after >= 0:
                        for q in range(c.alone.shape[1]):
                            found[i, j, q] = min(found[i, j, q], c.alone[o, q] * found[i + 1, after, q])
    return found


@inner()
def min_later(c: Choices, order: Ints, caps: Ints) -> Floats:
    """[R + 1, J, Q]: at least what the i-th rank of an order and later ones bring to a quantity, if they
    share so many lanes (caps [J]) among them.
    """
    ranks = order.shape[0]
    found = np.ones((ranks + 1, caps.shape[0], c.alone.shape[1]))
    for i in range(ranks - 1, -1, -1):
        found[i] = np.inf
        for o in range(c.first[order[i]], c.first[order[i] + 1]):
            for j in range(caps.shape[0] if c.alive[o] else 0):
                if c.pes[o] <= caps[j]:
                    left = smallest_cap(caps[j] // c.pes[o], caps)
                    for q in range(c.alone.shape[1]):
                        found[i, j, q] = min(found[i, j, q], c.alone[o, q] * found[i + 1, left, q])
    return found


@inner()
def min_around(earlier: Floats, later: Floats, caps: Ints) -> Floats:
    """[J, Q]: at least what two groups of ranks [J, Q] bring together."""
    found = np.full(later.shape, np.inf)
    for j in range(caps.shape[0]):
        for i in range(j + 1):
            # the first group takes more lanes than the cap before
            left = smallest_cap(caps[j] // (caps[i - 1] + 1 if i else 1), caps)
            for q in range(later.shape[1]):
                found[j, q] = min(found[j, q], earlier[i, q] * later[left, q])
    return found


@lean
def smallest_cap(lanes: int, caps: Ints) -> int:
    """The least number in caps that is no smaller."""
    return int(np.searchsorted(caps, lanes))


@inner()
def hull_bounds(t: Terms, e: Einsum, p: Pool, memo: Memo, option: Ints) -> Hulls:
    n, at, most = 0, 0, t.quantity.shape[0] * e.kind.shape[0]
    pairs, first, many = np.empty((most, 2), np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    value, low = np.empty(1024), np.full((most, p.factorization_span.shape[0] + 1), np.inf)
    for q in range(t.quantity.shape[0]):
        x = t.quantity[q, 1]
        for dim in range(e.dim[x], e.dim[x + 1]):
            if e.kind[dim] == ALONE or t.quantity[q, 0] in (ONE, POINTS):
                continue
            a, b = e.rank[dim, 0], e.rank[dim, 1]
            from_a, to_a = (p.first[a], p.first[a + 1]) if a >= 0 else (0, 1)
            from_b, to_b = (p.first[b], p.first[b + 1]) if b >= 0 else (0, 1)
            pairs[n, 0], pairs[n, 1], first[n], many[n] = q, dim, at, to_b - from_b
            while at + (to_a - from_a) * many[n] > value.shape[0]:
                value = np.concatenate((value, np.empty_like(value)))
            for i in range(from_a, to_a):
                for j in range(from_b, to_b):
                    if a >= 0:
                        option[a] = i
                    if b >= 0:
                        option[b] = j
                    value[at] = minimum_hull(q, dim, option, t, e, p, memo)
                    if a >= 0:
                        low[n, i] = min(low[n, i], value[at])
                    if b >= 0:
                        low[n, j] = min(low[n, j], value[at])
                    low[n, p.factorization_span.shape[0]] = min(
                        low[n, p.factorization_span.shape[0]], value[at]
                    )
                    at += 1
            n += 1
    return Hulls(pairs[:n], first, many, value, low)


@lean
def multiply_hulls(low: Floats, c: Choices, option: Ints, known: Bools, e: Einsum) -> None:
    """low [Q] times what the hulls bring, of ranks that have no option yet at least."""
    for j in range(c.hulls.pairs.shape[0]):
        q, dim = c.hulls.pairs[j]
        a, b = e.rank[dim, 0], e.rank[dim, 1]
        if (a < 0 or known[a]) and (b < 0 or known[b]):
            at = (option[a] - c.first[a] if a >= 0 else 0) * c.hulls.many[j] + (
                option[b] - c.first[b] if b >= 0 else 0
            )
            low[q] *= c.hulls.value[c.hulls.first[j] + at]
        else:
            low[q] *= c.hulls.low[
                j,
                option[a]
                if a >= 0 and known[a]
                else option[b]
                if b >= 0 and known[b]
                else c.hulls.low.shape[1] - 1,
            ]


@inner()
def group_equal_pes(c: Choices, e: Einsum) -> tuple[Choices, Ints]:
    """Options in a row with equally many lanes as one, and where each such group begins [G + 1]."""
    ranks, n = c.first.shape[0] - 1, 0
    first, start = np.zeros(ranks + 1, np.int64), np.zeros(c.pes.shape[0] + 1, np.int64)
    of = np.zeros(c.pes.shape[0], np.int64)
    for r in range(ranks):
        for o in range(c.first[r], c.first[r + 1]):
            if o == c.first[r] or c.pes[o] != c.pes[o - 1]:
                start[n], n = o, n + 1
            of[o] = n - 1
        first[r + 1] = n
    start[n] = c.pes.shape[0]
    alone, alive, ragged, way = (
        np.full((n, c.alone.shape[1]), np.inf),
        np.zeros(n, np.bool_),
        np.zeros(n, np.bool_),
        np.zeros((n, 2), np.int64),
    )
    opened = np.zeros((n, c.open.shape[1]), np.bool_)
    ways, many = np.empty_like(c.factorizations), 0
    for g in range(n):
        way[g, 0] = many
        for o in range(start[g], start[g + 1]):
            for k in range(c.factorization_span[o, 0], c.factorization_span[o, 1] if c.alive[o] else 0):
                known = False
                for j in range(way[g, 0], many):
                    known = known or (ways[j] == c.factorizations[k]).all()
                if not known:
                    ways[many], many = c.factorizations[k], many + 1
        way[g, 1] = many
        for o in range(start[g], start[g + 1]):
            alive[g], ragged[g] = alive[g] or c.alive[o], ragged[g] or c.uneven[o]
            for j in range(opened.shape[1]):
                opened[g, j] = opened[g, j] or c.open[o, j]
            for q in range(c.alone.shape[1] if c.alive[o] else 0):
                alone[g, q] = min(alone[g, q], c.alone[o, q])
    pairs, at = c.hulls.pairs.shape[0], 0
    begin, wide, low, value = (
        np.empty(pairs, np.int64),
        np.empty(pairs, np.int64),
        np.full((pairs, n + 1), np.inf),
        np.full(c.hulls.value.shape[0], np.inf),
    )
    for j in range(pairs):
        a, b = e.rank[c.hulls.pairs[j, 1]]
        from_a, to_a = (c.first[a], c.first[a + 1]) if a >= 0 else (0, 1)
        from_b, to_b = (c.first[b], c.first[b + 1]) if b >= 0 else (0, 1)
        begin[j], wide[j] = at, first[b + 1] - first[b] if b >= 0 else 1
        for i in range(from_a, to_a):
            for k in range(from_b, to_b):
                one = c.hulls.value[c.hulls.first[j] + (i - from_a) * c.hulls.many[j] + k - from_b]
                own = at + (of[i] - first[a] if a >= 0 else 0) * wide[j] + (of[k] - first[b] if b >= 0 else 0)
                value[own] = min(value[own], one)
                if a >= 0:
                    low[j, of[i]] = min(low[j, of[i]], one)
                if b >= 0:
                    low[j, of[k]] = min(low[j, of[k]], one)
                low[j, n] = min(low[j, n], one)
        at += (first[a + 1] - first[a] if a >= 0 else 1) * wide[j]
    return Choices(
        first,
        alone,
        c.pes[start[:n]],
        alive,
        opened,
        ragged,
        way,
        ways,
        Hulls(c.hulls.pairs, begin, wide, value, low),
    ), start[: n + 1]


@inner()
def usable(p: Pool, m: Machine) -> Bools:
    """[O]: whether the lanes of an option fit the machine, which may have fewer than the pool was made
    for."""
    found = np.zeros(p.factorization_span.shape[0], np.bool_)
    for o in range(found.shape[0]):
        for way in range(p.factorization_span[o, 0], p.factorization_span[o, 1]):
            fits = True
            for c in range(m.size.shape[0]):
                fits = fits and p.factorizations[way, c] <= m.size[c]
            found[o] = found[o] or fits
    return found


@inner()
def close_hopeless(
    c: Choices, total: int, caps: Ints, t: Terms, e: Einsum, m: Machine, x: Scratch, w: Work, best: Floats
) -> None:
    """Options that cannot lead below the best of a machine, whatever lanes the other ranks have, are not open
    to it; those open to none are alive no more.
    """
    ranks, machines = w.unrolling.shape[0], w.best_count.shape[0]
    later, earlier = min_later(c, e.order, caps), min_later(c, e.order[::-1].copy(), caps)
    for i in range(ranks):
        r, around = e.order[i], min_around(earlier[ranks - i], later[i + 1], caps)
        x.assigned[:] = False
        x.assigned[r] = True
        for o in range(c.first[r], c.first[r + 1]):
            if c.alive[o]:
                w.unrolling[r], left, n = o, smallest_cap(total // c.pes[o], caps), 0
                for q in range(x.low.shape[0]):
                    x.low[q] = c.alone[o, q] * around[left, q]
                multiply_hulls(x.low, c, w.unrolling, x.assigned, e)
                for j in range(machines):
                    if c.open[o, j]:
                        x.live[ranks, n], n = j, n + 1
                    c.open[o, j] = False
                n = filter_machines(x.live[ranks], n, x.live[ranks], False, False, x.bound, t, m, x, w, best)
                for a in range(n):
                    c.open[o, x.live[ranks, a]] = True
                c.alive[o] = n > 0


class Sums(NamedTuple):
    """Coefficients of all links of every set of levels on all machines, but for zeros: of set n those from to
    [N, 2], each of a quantity and a part, [J]. touched [X, P] whether any set of a tensor has the part.
    """

    span: Ints
    of: Ints
    part: Ints
    coef: Floats
    touched: Bools


class Scratch(NamedTuple):
    """Of `may_beat`: low [Q] quantities; assigned [R] of which ranks there are lanes; sums [N, P], rest,
    cost_sums [X + 1, P], at [X]; bound [J, 3]. Of `screen_machines`: all_tensors [P, J] of all tensors, some
    of one, one of one set of its levels; live [R + 1, J], lives [R + 1] machines that choices of the first
    ranks may be best on.
    """

    low: Floats
    assigned: Bools
    sums: Floats
    rest: Floats
    cost_sums: Floats
    at: Ints
    every: Sums
    bound: Floats
    all_tensors: Floats
    one_tensor: Floats
    one_set: Floats
    live: Ints
    lives: Ints


@inner()
def scratch(t: Terms, w: Work) -> Scratch:
    parts, tensors, ranks, machines = (
        w.guess.shape[0],
        t.holder_span.shape[0] - 1,
        w.unrolling.shape[0],
        w.best_count.shape[0],
    )
    return Scratch(
        np.empty(t.quantity.shape[0]),
        np.zeros(ranks, np.bool_),
        np.empty((t.holder_sets.shape[0], parts)),
        np.empty((tensors + 1, parts)),
        np.empty((tensors + 1, parts)),
        np.empty(tensors, np.int64),
        dense_sums(t, machines),
        np.empty((machines, 3)),
        np.empty((parts, machines)),
        np.empty((parts, machines)),
        np.empty((parts, machines)),
        np.empty((ranks + 1, machines), np.int64),
        np.zeros(ranks + 1, np.int64),
    )


@inner()
def dense_sums(t: Terms, machines: int) -> Sums:
    n, parts = 0, t.base.shape[1]
    span, touched, most = (
        np.empty((t.holder_sets.shape[0], 2), np.int64),
        np.zeros((t.holder_span.shape[0] - 1, parts), np.bool_),
        t.low_of.shape[0] * parts,
    )
    if machines <= FEW:
        most = 0
    of, part, coef = np.empty(most, np.int64), np.empty(most, np.int64), np.empty((most, machines))
    for x in range(touched.shape[0] if most > 0 else 0):
        for k in range(t.holder_span[x], t.holder_span[x + 1]):
            span[k, 0] = n
            for link in range(t.low[k, 0], t.low[k, 1]):
                for i in range(parts):
                    if (t.low_coef[:, link, i] != 0.0).any():
                        of[n], part[n], touched[x, i] = t.low_of[link], i, True
                        coef[n], n = t.low_coef[:, link, i], n + 1
            span[k, 1] = n
    return Sums(span, of, part, coef[:n].copy(), touched)


@lean
def screen_machines(
    live: Ints, n: int, out: Ints, t: Terms, m: Machine, x: Scratch, w: Work, best: Floats
) -> int:
    """Of n machines live those that quantities of lanes x.low, known of some ranks, may be best on, whatever
    levels hold each tensor; how many. As `may_improve` of all parts, of all machines at once.
    """
    parts, s, last = w.guess.shape[0], x.every, w.parts.shape[0] - 1
    for i in range(parts):
        for a in range(n):
            x.all_tensors[i, a] = t.base[live[a], i]
    for tensor in range(s.touched.shape[0]):
        for k in range(t.holder_span[tensor], t.holder_span[tensor + 1]):
            one = x.one_tensor if k == t.holder_span[tensor] else x.one_set
            for i in range(parts):
                if s.touched[tensor, i]:
                    for a in range(n):
                        one[i, a] = 0.0
            for link in range(s.span[k, 0], s.span[k, 1]):
                i, low = s.part[link], x.low[s.of[link]]
                for a in range(n):
                    one[i, a] += s.coef[link, live[a]] * low
            if k > t.holder_span[tensor]:
                for i in range(parts):
                    if s.touched[tensor, i]:
                        for a in range(n):
                            x.one_tensor[i, a] = min(x.one_tensor[i, a], one[i, a])
        for i in range(parts):
            if s.touched[tensor, i]:
                for a in range(n):
                    x.all_tensors[i, a] += x.one_tensor[i, a]
    many = 0
    for a in range(n):
        j = live[a]
        for i in range(parts):
            w.parts[last, j, i] = x.all_tensors[i, a]
        objective_value(w.parts[last], j, m, w.cost)
        if wins(j, w.cost, best, w.equal):
            out[many], many = j, many + 1
    return many


@lean
def may_beat(
    j: int, last: bool, least: bool, t: Terms, m: Machine, x: Scratch, w: Work, best: Floats
) -> bool:
    """Whether quantities of lanes, known of some ranks (last: of all), may beat the best of machine j;
    w.figure has the bound, if least.
    """
    span, of, coef = (t.sum, t.sum_of, t.sum_coef) if last else (t.low, t.low_of, t.low_coef)
    for upto in (2, w.guess.shape[0]):  # energy and steps first
        if not may_improve(
            j, sum_bounds(x.low, j, t, span, of, coef, upto, x.sums, x.rest), t, m, x.rest, w, best
        ):
            return False
    return holders_may_improve(j, least, t, m, x.sums, x.rest, x.cost_sums, x.at, w, best)


@lean
def filter_machines(
    live: Ints,
    n: int,
    out: Ints,
    last: bool,
    least: bool,
    low: Floats,
    t: Terms,
    m: Machine,
    x: Scratch,
    w: Work,
    best: Floats,
) -> int:
    """Of n machines live those that quantities of lanes x.low may be best on; how many. low [J, 3] their
    bounds, if least.
    """
    source = live
    if n > FEW:
        n, source = screen_machines(live, n, out, t, m, x, w, best), out
    many = 0
    for a in range(n):
        j = source[a]
        if may_beat(j, last, least, t, m, x, w, best):
            out[many], many = j, many + 1
            for i in range(3):
                low[j, i] = w.cost[i]
    return many


@inner()
def enumerate_spatial(
    most: int,
    c: Choices,
    begin: Ints,
    end: Ints,
    later: Floats,
    left: FreePes,
    t: Terms,
    e: Einsum,
    m: Machine,
    rules: Rules,
    x: Scratch,
    w: Work,
    best: Floats,
) -> tuple[Ints, Floats, Floats]:
    """All choices [n, R], of those from begin to end [R] of each rank, that fit and may beat the best of some
    machine, with the least figure [n, J, 3] that each may have, inf where it may not: the `most` lowest of
    them, and, of one machine, a figure [3] that no other is below.

    Quantities are products over ranks: rows [i + 1] are those of row i times what the i-th rank of e.order
    brings. With the least that later ranks bring on the lanes that are left (`min_inside`), they bound all
    choices for these.
    """
    ranks, many_q, size, n = w.unrolling.shape[0], t.quantity.shape[0], 64, 0
    machines = w.best_count.shape[0]
    low, rest, than, limit = np.empty((machines, 3)), np.full(3, np.inf), best.copy(), (np.inf, np.inf)
    chosen, bound, worth = (
        np.empty((size, ranks), np.int64),
        np.empty((size, machines, 3)),
        np.empty((size, 2)),
    )
    x.lives[0] = machines if most == ALL else w.few.shape[0]
    for a in range(x.lives[0]):
        x.live[0, a] = a if most == ALL else w.few[a]
    used, many = np.ones((ranks + 1, 256, m.size.shape[0]), np.int64), np.ones(ranks + 1, np.int64)
    rows, lanes, ragged = (
        np.ones((ranks + 1, many_q)),
        np.ones(ranks + 1, np.int64),
        np.zeros(ranks + 1, np.bool_),
    )
    x.assigned[:] = False
    i, w.unrolling[e.order[0]], x.assigned[e.order[0]] = 0, end[e.order[0]], True
    while i >= 0:
        r = e.order[i]
        w.unrolling[r] -= 1  # most lanes first
        o = w.unrolling[r]
        if o < begin[r]:
            x.assigned[r] = False
            i -= 1
            continue
        lanes[i + 1] = lanes[i] * c.pes[o]
        if not c.alive[o] or not spread_over_dims(i, o, used, many, c, m):
            continue
        # more ways to use the dimensions than are kept: nothing is proven
        if many[i + 1] == used.shape[1] - 1:
            w.tally[BUDGET] = -1
        last = i == ranks - 1
        ragged[i + 1] = ragged[i] or c.uneven[o]
        if last and (lanes[ranks] < rules.min_pes or (rules.uneven and not ragged[ranks])):
            continue
        for q in range(many_q):
            rows[i + 1, q] = rows[i, q] * c.alone[o, q]
            x.low[q] = np.inf
        for u in range(many[i + 1]):
            cell = 0
            for d in range(m.size.shape[0]):
                cell += left.cell[d, m.size[d] // used[i + 1, u, d]]
            for q in range(many_q):
                x.low[q] = min(x.low[q], rows[i + 1, q] * later[i + 1, cell, q])
        alive = 0
        for a in range(x.lives[i]):
            if c.open[o, x.live[i, a]]:
                x.live[i + 1, alive], alive = x.live[i, a], alive + 1
        least = last or (limit[0] < np.inf and machines > 1)
        if least:
            low[:] = np.inf
        if last or than[x.live[i, 0], 0] < np.inf or least:  # there is something to be held against
            multiply_hulls(x.low, c, w.unrolling, x.assigned, e)
            alive = filter_machines(
                x.live[i + 1], alive, x.live[i + 1], last, least, low if least else x.bound, t, m, x, w, than
            )
        x.lives[i + 1] = alive
        if alive == 0:
            continue
        own = worth_of(low, w.unit) if least else limit
        if least and own >= limit:
            lower_to(rest, low[0])
            continue
        if not last:
            i += 1
            x.assigned[e.order[i]] = True
            w.unrolling[e.order[i]] = end[e.order[i]]
            continue
        if n == size:
            size *= 2
            chosen, bound = (
                np.concatenate((chosen, np.empty_like(chosen))),
                np.concatenate((bound, np.empty_like(bound))),
            )
            worth = np.concatenate((worth, np.empty_like(worth)))
        at = n
        if n == most:
            at = by_worth(worth[:n])[n - 1]
            lower_to(rest, bound[at, 0])
        for j in range(ranks):
            chosen[at, j] = w.unrolling[j]
        bound[at], worth[at, 0], worth[at, 1], n = low, own[0], own[1], min(n + 1, most)
        if n == most:
            at = by_worth(worth[:n])[n - 1]
            limit = (worth[at, 0], worth[at, 1])
            if machines == 1:  # the limit is a cost
                than[0] = bound[at]
    if n == most:
        lower_to(rest, than[0])
    return chosen[:n][::-1].copy(), bound[:n][::-1].copy(), rest


@lean
def lower_to(rest: Floats, low: Floats) -> None:
    """rest [3] is low where that is lower. The order of choices is exact, costs are not: of two with the same
    figure, but for rounding, the later may have less energy.
    """
    if compare(low, rest) < 0:
        for i in range(3):
            rest[i] = low[i]


@lean
def worth_of(low: Floats, unit: Floats) -> Worth:
    """Of bounds [J, 3] what they are compared by: the least of all machines, in units of each."""
    found = (np.inf, np.inf)
    for j in range(low.shape[0]):
        own = (low[j, 0] / unit[j, 0], low[j, 1] / unit[j, 1])
        if own < found:
            found = own
    return found


@inner()
def by_worth(worth: Floats) -> Ints:
    later = np.argsort(worth[:, 1], kind="mergesort")
    return later[np.argsort(worth[later, 0], kind="mergesort")]


@inner()
def by_bound(bound: Floats, unit: Floats) -> Ints:
    """The order of bounds [n, J, 3], lowest first."""
    worth = np.empty((bound.shape[0], 2))
    for i in range(bound.shape[0]):
        worth[i, 0], worth[i, 1] = worth_of(bound[i], unit)
    return by_worth(worth)


@lean
def some_win(low: Floats, best: Floats, equal: Bools) -> bool:
    """Whether bounds [J, 3] may be better than the best of some machine."""
    found = False
    for j in range(low.shape[0]):
        found = found or (low[j, 0] < np.inf and wins(j, low[j], best, equal))
    return found


@inner()
def choices(t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work) -> Choices:
    """All options that fit the machine."""
    ranks, many_q, compute = w.unrolling.shape[0], t.quantity.shape[0], int(m.position[m.capacity.shape[0]])
    alone, alive = np.empty((p.first[ranks], many_q)), usable(p, m)
    for r in range(ranks):
        for o in range(p.first[r], p.first[r + 1]):
            for q in range(many_q if alive[o] else 0):
                alone[o, q] = factor(q, r, o, t, e, p)
    return Choices(
        p.first,
        alone,
        p.pes[:, compute, 0].astype(np.int64),
        alive,
        np.ones((alive.shape[0], w.best_count.shape[0]), np.bool_),
        p.uneven,
        p.factorization_span,
        p.factorizations,
        hull_bounds(t, e, p, memo, w.unrolling),
    )


@njit(cache=True, nogil=True)
def search(
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    free: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    outer: Work,
    seen: InnerStates,
    best: Floats,
) -> Floats:
    """Best first over lanes, then over the levels that hold the tensors, then nests from inside out; for all
    machines at once. best [J, 3] is lowered; the nests stand in w.best_*.

    All choices of lanes that fit and may beat the best, by the least figure that each may have: first how
    many lanes each rank has, then how they share it out. The LOWEST ones are followed before others are
    looked for, which are held against what these lead to; of those each at once whose figure is lower than
    all before, the others when there are MANY of them, or no more. free, outer: for `outer_bound`. Returns
    inf; if the budget ended, figures [J] that nothing which was left out is below.
    """
    machines = w.best_count.shape[0]
    outer_bounds = OuterBounds(np.full(256, -1), np.empty((256, machines)))
    ranks, many_q, total, c, left = (
        w.unrolling.shape[0],
        t.quantity.shape[0],
        1,
        choices(t, e, p, m, memo, w),
        quotients(m.size),
    )
    x = scratch(t, w)
    set_units(t, m, w)
    for d in range(m.size.shape[0]):
        total *= m.size[d]
    few = min(total, 32)
    caps = np.array(
        list(range(1, few + 1))
        + [int(np.ceil(few * 2.0 ** (j / 8))) for j in range(1, 8 * int(np.ceil(np.log2(total / few))) + 1)]
    )
    all_left, later = (
        FreePes(m.size.copy().reshape(1, -1), np.zeros_like(left.cell)),
        np.ones((ranks + 1, 1, many_q)),
    )
    chosen, bound, n, record, full = (
        np.empty((64, ranks), np.int64),
        np.empty((64, machines, 3)),
        0,
        (np.inf, np.inf),
        MANY,
    )
    done, many = np.empty((LOWEST * LOWEST, ranks), np.int64), 0
    for most in (LOWEST, ALL):
        if best.min() < np.inf:
            close_hopeless(c, total, caps, t, e, m, x, w, best)
        groups, start = group_equal_pes(c, e)
        inside = min_inside(groups, e.order, left)
        of_groups, low_of_groups, rest = enumerate_spatial(
            most, groups, groups.first[:-1], groups.first[1:], inside, left, t, e, m, rules, x, w, best
        )
        for g in by_bound(low_of_groups, w.unit):
            if not some_win(low_of_groups[g], best, w.equal):
                continue
            if n >= full:
                n = expand_choices(
                    worth_of(low_of_groups[g], w.unit)[0],
                    chosen,
                    bound,
                    n,
                    t,
                    e,
                    p,
                    m,
                    free,
                    rules,
                    memo,
                    w,
                    outer,
                    seen,
                    outer_bounds,
                    best,
                )
                full = max(MANY, 2 * n)
            if (
                w.tally[VISITED] > w.tally[BUDGET]
                and n > 0
                and min_worth(bound[:n], w.unit) <= worth_of(low_of_groups[g], w.unit)[0]
            ):
                break
            own = of_groups[g]
            for i in range(ranks - 1, -1, -1):
                for q in range(many_q):
                    later[i, 0, q] = later[i + 1, 0, q] * groups.alone[own[e.order[i]], q]
            if (start[own + 1] - start[own]).max() == 1:
                found, low = start[own].reshape(1, ranks), low_of_groups[g].copy().reshape(1, machines, 3)
            else:
                found, low, others = enumerate_spatial(
                    most, c, start[own], start[own + 1], later, all_left, t, e, m, rules, x, w, best
                )
                lower_to(rest, others)
            for v in by_bound(low, w.unit):
                known = False
                for j in range(many if most == ALL else 0):
                    known = known or (done[j] == found[v]).all()
                worth = worth_of(low[v], w.unit)
                if (
                    not known
                    and w.tally[VISITED] <= w.tally[BUDGET]
                    and may_lead(found[v], low[v], best, e, w)
                    and (most == LOWEST or worth < record)
                ):
                    w.unrolling[:] = found[v]
                    expand(t, e, p, m, free, rules, memo, w, outer, seen, outer_bounds, best)
                    known = w.tally[VISITED] <= w.tally[BUDGET]
                    if known and most == LOWEST:
                        done[many], many = found[v], many + 1
                    elif known:
                        record = worth
                if most == ALL and not known:
                    if n == chosen.shape[0]:
                        chosen, bound = (
                            np.concatenate((chosen, np.empty_like(chosen))),
                            np.concatenate((bound, np.empty_like(bound))),
                        )
                    chosen[n], bound[n], n = found[v], low[v], n + 1
        # nothing that was left out is lower
        if machines == 1 and w.tally[VISITED] <= w.tally[BUDGET] and not wins(0, rest, best, w.equal):
            break
    n = expand_choices(
        np.inf, chosen, bound, n, t, e, p, m, free, rules, memo, w, outer, seen, outer_bounds, best
    )
    left_out = np.full(machines, np.inf)
    for j in range(machines if n > 0 else 0):
        left_out[j] = bound[:n, j, 0].min()
    return left_out


@inner()
def set_units(t: Terms, m: Machine, w: Work) -> None:
    """w.unit: what operations alone cost, or 1."""
    for j in range(w.best_count.shape[0]):
        w.parts[0, j] = t.base[j]
        objective_value(w.parts[0], j, m, w.cost)
        for i in range(2):
            w.unit[j, i] = w.cost[i] if 0.0 < w.cost[i] < np.inf else 1.0


@inner()
def min_worth(bound: Floats, unit: Floats) -> float:
    least = np.inf
    for i in range(bound.shape[0]):
        least = min(least, worth_of(bound[i], unit)[0])
    return least


@inner()
def expand_choices(
    upto: float,
    chosen: Ints,
    bound: Floats,
    n: int,
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    free: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    outer: Work,
    seen: InnerStates,
    outer_bounds: OuterBounds,
    best: Floats,
) -> int:
    """Follows those of the first n choices of lanes that are worth no more than upto, lowest first; the
    others move to the front. Returns how many these are, with all that are not followed to the end where the
    budget ends.
    """
    order, at = by_bound(bound[:n], w.unit), 0
    while at < n and worth_of(bound[order[at]], w.unit)[0] <= upto and w.tally[VISITED] <= w.tally[BUDGET]:
        c = order[at]
        if may_lead(chosen[c], bound[c], best, e, w):
            w.unrolling[:] = chosen[c]
            expand(t, e, p, m, free, rules, memo, w, outer, seen, outer_bounds, best)
        at += int(w.tally[VISITED] <= w.tally[BUDGET])
    rest = order[at:]
    chosen[: n - at], bound[: n - at] = chosen[rest], bound[rest]
    return n - at


@lean
def may_improve(j: int, upto: int, t: Terms, m: Machine, rest: Floats, w: Work, best: Floats) -> bool:
    """Whether what all tensors cost at least on machine j, in the first so many parts, may beat the best;
    w.figure has it.
    """
    last = w.parts.shape[0] - 1
    for i in range(w.guess.shape[0]):
        w.parts[last, j, i] = t.base[j, i] + (rest[0, i] if i < upto else 0.0)
    objective_value(w.parts[last], j, m, w.cost)
    return wins(j, w.cost, best, w.equal)


@lean
def next_holders(
    j: int,
    begun: bool,
    t: Terms,
    m: Machine,
    sums: Floats,
    rest: Floats,
    parts: Floats,
    at: Ints,
    w: Work,
    best: Floats,
) -> bool:
    """Moves at [X] on to the next choice of levels for all tensors that may beat the best of machine j, with
    the parts of the same choice; w.figure has its figure; False: there is none. parts [X + 1, P]: scratch.
    """
    x, tensors, last = at.shape[0] - 1, at.shape[0], w.parts.shape[0] - 1
    if not begun:
        for i in range(parts.shape[1]):
            parts[0, i] = t.base[j, i]
        x, at[0] = 0, t.holder_span[0] - 1
    while x >= 0:
        at[x] += 1
        if at[x] >= t.holder_span[x + 1]:
            x -= 1
            continue
        for i in range(parts.shape[1]):
            parts[x + 1, i] = parts[x, i] + sums[at[x], i]
            w.parts[last, j, i] = parts[x + 1, i] + rest[x + 1, i]
        objective_value(w.parts[last], j, m, w.cost)
        if not wins(j, w.cost, best, w.equal):
            continue
        if x == tensors - 1:
            return True
        x += 1
        at[x] = t.holder_span[x] - 1
    return False


@lean
def holders_may_improve(
    j: int,
    least: bool,
    t: Terms,
    m: Machine,
    sums: Floats,
    rest: Floats,
    parts: Floats,
    at: Ints,
    w: Work,
    best: Floats,
) -> bool:
    """Whether some choice of levels for all tensors may beat the best of machine j; w.figure has its figure,
    the least of all if asked for.
    """
    found = False
    for i in range(3):
        w.lowest[j, i] = best[j, i]
    while (least or not found) and next_holders(j, found, t, m, sums, rest, parts, at, w, w.lowest):
        if found and compare(w.cost, w.lowest[j]) >= 0:
            continue
        found = True
        for i in range(3):
            w.lowest[j, i] = w.cost[i]
    for i in range(3):
        w.cost[i] = w.lowest[j, i]
    return found


@lean
def bound_unrolling(t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work) -> None:
    """Bounds of all quantities under the lanes of w.option."""
    for q in range(t.quantity.shape[0]):
        w.lower[q] = 1.0
        x = t.quantity[q, 1]
        for r in range(w.unrolling.shape[0]):
            w.lower[q] *= factor(q, r, w.unrolling[r], t, e, p)
        for dim in range(e.dim[x], e.dim[x + 1]):
            w.lower[q] *= minimum_hull(q, dim, w.unrolling, t, e, p, memo)
        if t.quantity[q, 0] == POINTS and t.line[q] > 0.0:  # the tile of compute is known
            for r in range(w.unrolling.shape[0]):
                w.largest[r] = p.span[w.unrolling[r], t.quantity[q, 2], 0]
            w.lower[q] = value(q, w.largest, w.unrolling, t, e, p, memo)


@inner()
def placements(t: Terms, m: Machine, w: Work, best: Floats) -> tuple[Ints, Floats, Floats]:
    """Which levels hold the tensors [n, X], numbers of `keep`, and the least figure [n, J, 3] of each that
    may beat the best, else inf; sums [J, N, P] of all sets of levels.
    """
    tensors, parts, size, n = t.holder_span.shape[0] - 1, w.guess.shape[0], 16, 0
    many = w.best_count.shape[0]
    own, bound = np.empty((size, tensors), np.int64), np.full((size, many, 3), np.inf)
    sums, rest = np.empty((many, t.holder_sets.shape[0], parts)), np.empty((tensors + 1, parts))
    at, held = np.zeros(tensors, np.int64), np.empty((tensors + 1, parts))
    for j in range(w.best_count.shape[0]):
        sum_bounds(w.lower, j, t, t.sum, t.sum_of, t.sum_coef, parts, sums[j], rest)
        begun = False
        while next_holders(j, begun, t, m, sums[j], rest, held, at, w, best):
            begun, s = True, 0
            while s < n and (many == 1 or (own[s] != at).any()):  # one machine comes to each once
                s += 1
            if s == size:
                size *= 2
                own, bound = (
                    np.concatenate((own, np.empty_like(own))),
                    np.concatenate((bound, np.full_like(bound, np.inf))),
                )
            if s == n:
                own[n], n = at, n + 1
            bound[s, j] = w.cost
    return own[:n], bound[:n], sums


@lean
def precedes(j: int, own: Ints, e: Einsum, w: Work) -> bool:
    """Whether nests under the lanes of w.option, of which these levels hold the tensors, come before the best
    one of machine j in the order of ties.
    """
    lanes = order_of(w.unrolling, w.best_unrolling[j], e.order) if w.best_count[j] >= 0 else 1
    for x in range(own.shape[0] if lanes == 0 else 0):
        if own[x] != w.best_own[j, x]:
            return bool(own[x] < w.best_own[j, x])
    return bool(lanes < 0)


@inner()
def expand(
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    free: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    outer: Work,
    seen: InnerStates,
    outer_bounds: OuterBounds,
    best: Floats,
) -> None:
    """All nests under the lanes of w.option that may beat the best, or are taken in its place."""
    bound_unrolling(t, e, p, memo, w)
    for j in range(w.best_count.shape[0]):
        w.equal[j] = ties_with(j, w.unrolling, e, w)
    own, bound, sums = placements(t, m, w, best)
    for s in by_bound(bound, w.unit):
        w.lives[0] = 0
        for j in range(w.best_count.shape[0]):
            w.equal[j] = precedes(j, own[s], e, w)
            if bound[s, j, 0] < np.inf and wins(j, bound[s, j], best, w.equal):
                w.live[0, w.lives[0]] = j
                w.lives[0] += 1
        if w.lives[0] == 0:
            continue
        init_nodes(own[s], t, sums, e, m, p, w)
        held, at = outer_holders(own[s], t, m), 0
        while (
            outer_bounds.levels[at] != held
            and outer_bounds.levels[at] >= 0
            and at < outer_bounds.levels.shape[0] - 1
        ):
            at += 1
        hard = w.tally[VISITED] >= w.tally[EASY]
        if hard and outer_bounds.levels[at] != held:
            outer_bounds.levels[at] = held
            outer_bound(t, e, p, free, rules, memo, w, outer, seen, outer_bounds.energy[at])
        n = 0
        for a in range(w.lives[0]):
            j = w.live[0, a]
            w.outer_extra[j] = (
                max(outer_bounds.energy[at, j] - separate_outer_pj(j, t, w), 0.0) if hard else 0.0
            )
            w.parts[0, j, 0] += w.outer_extra[j]
            objective_value(w.parts[0], j, m, w.cost)
            if wins(j, w.cost, best, w.equal):
                w.live[0, n], n = j, n + 1
        w.lives[0] = n
        if n > 0:
            seen.tally[ROUND], seen.tally[COUNT] = seen.tally[ROUND] + 1, 0
            nests(t, e, p, m, rules, memo, w, seen, best)
        if w.tally[VISITED] > w.tally[BUDGET]:
            break
    for j in range(w.best_count.shape[0]):
        w.equal[j] = w.best_count[j] >= 0  # of other lanes: `may_lead`


@lean
def outer_holders(own: Ints, t: Terms, m: Machine) -> int:
    """Which levels outside of all borders hold the tensors, as one number."""
    held, levels = 0, m.capacity.shape[0]
    for x in range(own.shape[0]):
        for v in range(levels):
            held = 2 * held + int(m.position[v] == 0 and t.holder_sets[own[x]] >> v & 1)
    return held


@lean
def outer_bound(
    t: Terms,
    e: Einsum,
    p: Pool,
    free: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    outer: Work,
    seen: InnerStates,
    energy: Floats,
) -> None:
    """energy [J]: at least the energy that the nodes outside of all borders cost together, for they share
    room: that of the best nest of these nodes alone, around single elements, which need least room, whatever
    lanes and nodes stand inside. free: machines without leakage, energy the objective, tiles held once.
    """
    n = 0
    for j in range(energy.shape[0]):
        energy[j] = 0.0
    if w.position[0] == 0:
        return
    for i in range(w.tally[NODES_PLACED]):
        if w.nodes[i, POSITION] == 0:
            for j in range(4):
                outer.nodes[n, j] = w.nodes[i, j]
            outer.holds_whole[n], n = False, n + 1
    outer.tally[NODES_PLACED], outer.tally[VISITED], outer.done[0], outer.position[0] = n, 0, 0, 0
    for j in range(energy.shape[0]):
        for i in range(w.parts.shape[2]):
            outer.parts[0, j, i] = 0.0
        for i in range(3):
            outer.best[j, i] = np.inf
        outer.outer_extra[j] = 0.0
        outer.live[0, j] = j
    outer.lives[0] = energy.shape[0]
    for v in range(w.need.shape[1]):
        outer.need[0, v] = 0.0
    for q in range(w.lower.shape[0]):
        outer.lower[q] = 0.0
    for r in range(w.unrolling.shape[0]):
        outer.unrolling[r] = p.first[r]  # a rank's first option: no lanes
        outer.tile[0, r] = p.span[p.first[r], 0, 0]
    nests(t, e, p, free, rules, memo, outer, seen, outer.best)
    for j in range(energy.shape[0]):
        if outer.tally[VISITED] <= outer.tally[BUDGET] and outer.best[j, 0] < np.inf:
            energy[j] = outer.best[j, 0]


@lean
def separate_outer_pj(j: int, t: Terms, w: Work) -> float:
    """The energy of the same nodes in w.parts [0], on machine j: each at its least."""
    total = 0.0
    for i in range(w.tally[NODES_PLACED]):
        x, level, parent, k = w.nodes[i]
        if k == 0 and x >= 0 and parent >= 0:
            for link in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
                if t.quantity[t.of[link], 0] < FIRST:
                    total += t.coef[j, link, 0] * w.lower[t.of[link]]
    return total


@lean
def fits_whole(x: int, v: int, e: Einsum, p: Pool, m: Machine, w: Work) -> bool:
    """Whether a level has room for what its lanes need of a tensor in all."""
    for r in range(w.largest.shape[0]):
        w.largest[r] = p.span[w.unrolling[r], m.position[v], 1] - 1
    return bool(hull(x, w.largest, w.largest, True, -1, e, p, m) * m.takes[x, v] <= m.capacity[v] < np.inf)


@lean
def init_nodes(own: Ints, t: Terms, sums: Floats, e: Einsum, m: Machine, p: Pool, w: Work) -> None:
    """The nodes of a placement, and compute as the innermost place, for the machines alive. A tensor's node
    at the outermost level costs nothing, and holds it whole whatever the nest.
    """
    n, levels = 0, m.capacity.shape[0]
    for a in range(w.lives[0]):
        j = w.live[0, a]
        for i in range(t.base.shape[1]):
            w.parts[0, j, i] = t.base[j, i]
            for x in range(own.shape[0]):
                w.parts[0, j, i] += sums[j, own[x], i]
    for x in range(own.shape[0]):
        w.own[x], before = own[x], -1
        for v in range(levels):
            if t.holder_sets[own[x]] >> v & 1:
                if before >= 0 or v > 0:
                    w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT], w.nodes[n, POSITION] = (
                        x,
                        v,
                        before,
                        m.position[v],
                    )
                    w.holds_whole[n], n = (
                        before >= 0 and m.double_buffer[v] and fits_whole(x, v, e, p, m, w),
                        n + 1,
                    )
                before = v
    for k in m.gaps:
        (
            w.nodes[n, TENSOR],
            w.nodes[n, LEVEL],
            w.nodes[n, PARENT],
            w.nodes[n, POSITION],
            w.holds_whole[n],
            n,
        ) = -1, -1, -1, k, False, n + 1
    w.tally[NODES_PLACED] = n
    for v in range(levels):
        w.need[0, v] = 0.0
    w.done[0], w.position[0] = 0, m.position[levels]
    for r in range(w.unrolling.shape[0]):
        w.tile[0, r] = p.span[w.unrolling[r], m.position[levels], 0]
