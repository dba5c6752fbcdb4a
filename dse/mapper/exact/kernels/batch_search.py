"""The search for the best nest on each machine of a batch: boxes of spatial unrollings by ascending bound,
and under each single unrolling the placements of tensors and their nests (`search`, called by ../search.py).
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from dse.mapper.exact.kernels.compare import (
    compare_unrollings,
    may_lead,
    may_replace_tied,
    objective_value,
    wins,
)
from dse.mapper.exact.kernels.nest_search import (
    nests,
    next_holders,
    outer_extra,
    outer_sum,
    set_outer_sums,
    sum_bounds,
)
from dse.mapper.exact.kernels.spatial_search import (
    Bounding,
    Scratch,
    Trees,
    Unrollings,
    bound_box,
    by_bound,
    plant,
    scratch,
    set_shares,
    sort_key,
    split_node,
    unrollings,
    widest,
)
from dse.mapper.exact.kernels.state import (
    BUDGET,
    CHOICES,
    COUNT,
    LEVEL,
    MAX_CHOICES,
    MIN_FOR_OUTER_BOUNDS,
    NODE_COUNT,
    PARENT,
    PJ,
    POINTS,
    POSITION,
    QUANTITY_KIND,
    QUANTITY_POSITION,
    QUANTITY_TENSOR,
    RAMP,
    ROUND,
    TENSOR,
    TIE_TOLERANCE,
    VISITED,
    Einsum,
    InnerStates,
    Machine,
    Memo,
    Pool,
    Rules,
    Terms,
    Work,
)
from dse.mapper.exact.kernels.tile_sums import amount, factor, hull_bound, links, tile_bits
from dse.run.compiled import njit, njit_inlined, njit_internal, njit_no_alloc
from workloads.arrays import Floats, Ints

DIVES = 8  # box 1, 8, 64, ... is followed down to a single unrolling (`dive`)


class NestSearch(NamedTuple):
    """What the search of nests under one spatial unrolling (`expand`) reads and writes."""

    terms: Terms
    einsum: Einsum
    pool: Pool
    machine: Machine
    outer_terms: Terms  # of outer costs alone
    outer_pool: Pool  # the unrollings, as `set_outer_bounds` wants them
    outer_machine: Machine  # the machines, as `set_outer_bounds` wants them
    rules: Rules
    outer_rules: Rules  # without limits of trips
    memo: Memo
    work: Work
    outer: Work  # of `set_outer_bounds`
    states: InnerStates
    best: Floats  # [J, 3] the best cost on each machine, lowered in place


@njit(cache=True, nogil=True)
def search(
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    outer_terms: Terms,
    outer_pool: Pool,
    outer_machine: Machine,
    rules: Rules,
    outer_rules: Rules,
    memo: Memo,
    w: Work,
    outer: Work,
    states: InnerStates,
    best: Floats,
) -> Floats:
    """Searches boxes of spatial unrollings (spatial_search.py), lowest bound first. A box with several
    unrollings is split in two. Under a single unrolling the sets of levels that hold the tensors are
    searched, and for each of these the nests from inside out (`expand`). All machines of the batch are
    searched together. It ends when no box is left that may beat the best of a machine.

    Some boxes are first followed down to a single unrolling (`dive`), so that there is an answer where the
    budget ends.

    best: [J, 3] the best cost on each machine, lowered in place; its nest is written to w.best_*.
    outer_terms, outer_pool, outer_machine, outer_rules, outer: what `set_outer_bounds` searches.
    states: scratch for inner parts of nests.

    Returns lower bounds [J] on the objective of everything that was left out: above the best unless the
    budget ended, in nodes, in choices or at a deadline.
    """
    machines, ranks = w.best_count.shape[0], w.unrolling.shape[0]
    nest_search = NestSearch(
        t, e, p, m, outer_terms, outer_pool, outer_machine, rules, outer_rules, memo, w, outer, states, best
    )
    set_units(t, m, w)
    u, s = unrollings(t, e, p, m, memo, w), scratch(t, m, w)
    bounding, trees, left = Bounding(t, e, m, s, w), plant(u, m), np.full(machines, np.inf)
    if (trees.span[:ranks, 0] == trees.span[:ranks, 1]).any():  # nothing fits
        return left
    # Boxes by number, in `heap` by their keys: a node per rank, and from, to in `live`, `live_bound`: the
    # machines on which the box may be best, and its bounds there.
    boxes, span, heap = np.empty((256, ranks), np.int32), np.empty((256, 2), np.int64), [(0.0, 0.0, 0)]
    live, live_bound = np.empty(256 + machines, np.int32), np.empty(256 + machines)
    heap.clear()
    new, new_count, count, live_end, popped, next_dive = np.zeros((2, ranks), np.int32), 1, 0, 0, 0, 1
    new[0], live_count = np.arange(ranks), machines
    s.live[0] = np.arange(machines)
    while True:
        for i in range(new_count):
            found = bound_box(new[i], trees, u, live_count, rules, bounding, best)
            if found == 0:
                continue
            if count == span.shape[0]:
                boxes, span = np.concatenate((boxes, boxes)), np.concatenate((span, span))
            if live_end + found > live.shape[0]:
                live, live_bound = np.concatenate((live, live)), np.concatenate((live_bound, live_bound))
            boxes[count], span[count, 0] = new[i], live_end
            for a in range(found):
                live[live_end], live_bound[live_end] = s.live[1, a], s.bound[s.live[1, a], 0]
                live_end += 1
            span[count, 1] = live_end
            key = sort_key(s.bound, w.unit)
            heapq.heappush(heap, (key[0], key[1], count))
            count += 1
        if count == 1:
            set_shares(bounding, trees, u)
        if w.stop[0] != 0:
            w.tally[CHOICES], w.tally[BUDGET] = w.tally[MAX_CHOICES] + 1, -1
        if len(heap) == 0 or w.tally[CHOICES] > w.tally[MAX_CHOICES] or w.tally[VISITED] > w.tally[BUDGET]:
            break
        if heap[0][0] > (best[:, 0] / w.unit[:, 0]).max() * (1 + TIE_TOLERANCE):
            break
        set_outer_bounds(nest_search)
        first, popped = heapq.heappop(heap), popped + 1
        if popped == next_dive:
            next_dive *= DIVES
            live_count = set_live(live, span[first[2]], s)
            dive(boxes[first[2]].copy(), live_count, trees, u, bounding, nest_search)
        live_count, r = set_live(live, span[first[2]], s), widest(boxes[first[2]], trees)
        if r >= 0:
            split_node(boxes[first[2], r], u, trees)
            for i in range(2):
                new[i] = boxes[first[2]]
                new[i, r] = trees.child[boxes[first[2], r]] + i
            new_count = 2
            continue
        new_count = 0
        expand_box(boxes[first[2]], live_count, trees, u, bounding, nest_search)
        if w.tally[VISITED] > w.tally[BUDGET]:
            heapq.heappush(heap, first)
    for _, _, i in heap:
        for at in range(span[i, 0], span[i, 1]):
            left[live[at]] = min(left[live[at]], live_bound[at])
    return left


@njit_inlined
def set_live(live: Ints, span: Ints, s: Scratch) -> int:
    """Copies the machines of a box, from span[0] to span[1] in `live`, to Scratch.live[0]. Returns how many
    they are.
    """
    for at in range(span[0], span[1]):
        s.live[0, at - span[0]] = live[at]
    return int(span[1] - span[0])


@njit_internal()
def dive(
    box: Ints, live_count: int, trees: Trees, u: Unrollings, bounding: Bounding, nest_search: NestSearch
) -> None:
    """Splits a box, and of its halves the one with the lower bound, down to a single unrolling, and expands
    that one, whatever is left of the budget. Lowers `box` [R] in place.
    """
    s, unit, r = bounding.scratch, bounding.work.unit, widest(box, trees)
    while r >= 0:
        split_node(box[r], u, trees)
        child, lowest, side = trees.child[box[r]], (np.inf, np.inf), 0
        for i in range(2):
            box[r] = child + i
            if bound_box(box, trees, u, live_count, nest_search.rules, bounding, nest_search.best) > 0:
                key = sort_key(s.bound, unit)
                if key < lowest:
                    lowest, side = key, i
        box[r] = child + side
        if lowest[0] == np.inf:
            return
        r = widest(box, trees)
    expand_box(box, live_count, trees, u, bounding, nest_search)


@njit_internal()
def expand_box(
    box: Ints, live_count: int, trees: Trees, u: Unrollings, bounding: Bounding, nest_search: NestSearch
) -> None:
    """Expands the single unrolling of a box if it may lead to a new best mapping on some machine."""
    e, w, best = nest_search.einsum, nest_search.work, nest_search.best
    found = bound_box(box, trees, u, live_count, nest_search.rules, bounding, best)
    if found > 0 and may_lead(w.unrolling, bounding.scratch.bound, best, e, w):
        expand(nest_search)


@njit_internal()
def set_units(t: Terms, m: Machine, w: Work) -> None:
    """Sets w.unit [J, 2]: objective and energy of what all mappings have in common, or 1 where that is 0 or
    infinite.
    """
    for j in range(w.best_count.shape[0]):
        w.parts[0, j] = t.base[j]
        objective_value(w.parts[0], j, m, w.cost)
        for i in range(2):
            w.unit[j, i] = w.cost[i] if 0.0 < w.cost[i] < np.inf else 1.0


@njit_no_alloc
def bound_unrolling(t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work) -> None:
    """Sets the lower bounds [Q] of all quantities in w, for the spatial unrolling w.unrolling."""
    for q in range(t.quantity.shape[0]):
        w.quantity_bound[q] = 1.0
        x = t.quantity[q, QUANTITY_TENSOR]
        for r in range(w.unrolling.shape[0]):
            w.quantity_bound[q] *= factor(q, r, w.unrolling[r], t, e, p)
        for dim in range(e.first_dim[x], e.first_dim[x + 1]):
            w.quantity_bound[q] *= hull_bound(q, dim, w.unrolling, t, e, p, memo)
        if t.hop_pair[q] >= 0:
            w.quantity_bound[q] *= links(t.hop_pair[q], w.unrolling, t.hops)
        # accesses of compute, whose tile is fixed: where they move whole lines, the exact number replaces the
        # bound
        if t.quantity[q, QUANTITY_KIND] == POINTS and t.line_words[q] > 0.0:
            for r in range(w.unrolling.shape[0]):
                w.largest[r] = p.span[w.unrolling[r], t.quantity[q, QUANTITY_POSITION], 0]
            w.quantity_bound[q] = amount(q, w.largest, w.unrolling, t, e, p, memo)


@njit_internal()
def placements(t: Terms, m: Machine, w: Work, best: Floats) -> tuple[Ints, Floats, Floats]:
    """Enumerates the sets of levels that may hold all tensors together. Returns three arrays:

    1. [n, X] per choice the number of the set of each tensor in t.holder_sets;
    2. [n, J, 3] its lower bounds, inf where it cannot beat the best of machine j;
    3. [J, N, P + 1] the lower bounds of all links of each set of levels (`sum_bounds`, `set_outer_sums`).
    """
    tensors, parts, size, n = t.holder_span.shape[0] - 1, w.part_scratch.shape[0], 16, 0
    machine_count = w.best_count.shape[0]
    holder_choices, bound = np.empty((size, tensors), np.int64), np.full((size, machine_count, 3), np.inf)
    sums = np.empty((machine_count, t.holder_sets.shape[0], parts + 1))
    choice, remaining = np.zeros(tensors, np.int64), np.empty((tensors + 1, parts))
    cost_sums = np.empty((tensors + 1, parts))
    for j in range(w.best_count.shape[0]):
        sum_bounds(w.quantity_bound, j, t, t.sum, t.sum_of, t.sum_coef, parts, sums[j], remaining)
        set_outer_sums(w.quantity_bound, j, t.sum, t.sum_of, t.sum_outer_pj, sums[j])
        resume = False
        while next_holders(j, resume, t, m, sums[j], remaining, cost_sums, choice, w, best):
            resume, s = True, 0
            # with one machine each choice comes up once
            while s < n and (machine_count == 1 or (holder_choices[s] != choice).any()):
                s += 1
            if s == size:
                size *= 2
                holder_choices, bound = (
                    np.concatenate((holder_choices, np.empty_like(holder_choices))),
                    np.concatenate((bound, np.full_like(bound, np.inf))),
                )
            if s == n:
                holder_choices[n], n = choice, n + 1
            bound[s, j] = w.cost
    return holder_choices[:n], bound[:n], sums


@njit_inlined
def precedes(j: int, holders: Ints, e: Einsum, w: Work) -> bool:
    """Whether nests under the spatial unrolling w.unrolling, with tensors in the levels holders [X], come
    before the best nest of machine j in the order of ties (`may_replace_tied`).
    """
    unrolling_order = (
        compare_unrollings(w.unrolling, w.best_unrolling[j], e.rank_order) if w.best_count[j] >= 0 else 1
    )
    for x in range(holders.shape[0] if unrolling_order == 0 else 0):
        if holders[x] != w.best_holders[j, x]:
            return bool(holders[x] < w.best_holders[j, x])
    return bool(unrolling_order < 0)


@njit_internal()
def fills_dims(unrolling: Ints, p: Pool, m: Machine, rules: Rules) -> bool:
    """Whether the ranks can share the fan-out dimensions so that along each at least Rules.min_along PEs are
    in use, and no more than there are.
    """
    ranks = unrolling.shape[0]
    way = np.empty(ranks, np.int64)
    for r in range(ranks):
        way[r] = p.factorization_span[unrolling[r], 0]
    while True:
        fills = True
        for d in range(rules.min_along.shape[0]):
            trips = 1
            for r in range(ranks):
                trips *= p.factorizations[way[r], d]
            fills = fills and rules.min_along[d] <= trips <= m.fanout_size[d]
        if fills:
            return True
        r = 0
        while r < ranks and way[r] + 1 == p.factorization_span[unrolling[r], 1]:
            way[r] = p.factorization_span[unrolling[r], 0]
            r += 1
        if r == ranks:
            return False
        way[r] += 1


@njit_internal()
def expand(nest_search: NestSearch) -> None:
    """Searches all nests under the spatial unrolling Work.unrolling that may beat the best nest of some
    machine, or replace it at an equal cost (`precedes`).
    """
    t, e, p, m, _terms, _pool, _machine, rules, _rules, memo, w, _outer, states, best = nest_search
    if rules.fills and not fills_dims(w.unrolling, p, m, rules):
        return
    bound_unrolling(t, e, p, memo, w)
    for j in range(w.best_count.shape[0]):
        w.ties_allowed[j] = may_replace_tied(j, w.unrolling, e, w)
    holder_choices, bound, sums = placements(t, m, w, best)
    for s in by_bound(bound, w.unit):
        w.live_count[0] = 0
        for j in range(w.best_count.shape[0]):
            w.ties_allowed[j] = precedes(j, holder_choices[s], e, w)
            if bound[s, j, 0] < np.inf and wins(j, bound[s, j], best, w.ties_allowed):
                w.live[0, w.live_count[0]] = j
                w.live_count[0] += 1
        if w.live_count[0] == 0:
            continue
        init_nodes(holder_choices[s], t, sums, e, m, p, w)
        set_outer_bounds(nest_search)
        n = 0
        for a in range(w.live_count[0]):
            j = w.live[0, a]
            extra = outer_extra(j, holder_choices[s], t, sums[j], w)
            w.parts[0, j, PJ] += extra
            objective_value(w.parts[0], j, m, w.cost)
            # served nodes are placed inside of the arrays, one by one: their cost may not count twice
            w.outer_extra[j] = 0.0 if any_served(t, m, w) else extra
            w.parts[0, j, PJ] += w.outer_extra[j] - extra
            if wins(j, w.cost, best, w.ties_allowed):
                w.live[0, n], n = j, n + 1
        w.live_count[0] = n
        if n > 0:
            states.tally[ROUND], states.tally[COUNT] = states.tally[ROUND] + 1, 0
            nests(t, e, p, m, rules, memo, w, states, best)
        if w.tally[VISITED] > w.tally[BUDGET]:
            break
    for j in range(w.best_count.shape[0]):
        w.ties_allowed[j] = w.best_count[j] >= 0  # for other unrollings `may_lead` decides


@njit_no_alloc
def set_outer_bounds(nest_search: NestSearch) -> None:
    """Sets Work.outer_pj, once the search turns out to be hard (`MIN_FOR_OUTER_BOUNDS`). Nodes at outer
    levels share capacity and loops, so the outer costs of all tensors together (state.Terms) may exceed the
    sum of their separate bounds.

    Their bound is that of the best nest of these nodes, and of those that they serve, on one PE, which has
    the capacity of all PEs together (search.py, `_search_factors`, says where) and stores each tile once;
    nothing else costs. From any nest one gets such a nest that costs no more: a served node holds what all
    PEs hold at a time, below the loops that stand above it inside of the PEs. So the bound holds for any
    unrolling. Where the budget of NestSearch.outer ends it is that of the same nodes without one. Trips are
    not limited there: where PEs stand idle, temporal loops have more.
    """
    t, e, _p, _m, outer_terms, p, m, _rules, rules, memo, w, outer, states, _best = nest_search
    if not 0 <= w.tally[MIN_FOR_OUTER_BOUNDS] <= w.tally[VISITED] + w.tally[CHOICES]:
        return
    w.tally[MIN_FOR_OUTER_BOUNDS] = -1
    for r in range(w.unrolling.shape[0]):
        outer.unrolling[r] = p.rank_start[r]  # a rank's first unrolling takes one PE
    bound_unrolling(t, e, p, memo, outer)
    set_stored(p, outer.unrolling)
    for code in range(t.outer_choices.shape[0]):
        outer.position[0] = m.position[m.capacity.shape[0]]
        for r in range(w.unrolling.shape[0]):
            outer.inner_tile[0, r] = p.span[p.rank_start[r], outer.position[0], 0]
        outer.tally[NODE_COUNT], outer.tally[VISITED] = (
            list_nodes(t.outer_choices[code], True, t, m, outer),
            0,
        )
        outer.live_count[0] = w.best_count.shape[0]
        for j in range(w.best_count.shape[0]):
            outer.live[0, j], outer.parts[0, j, PJ] = j, 0.0
            for n in t.outer_choices[code]:
                outer.parts[0, j, PJ] += outer_sum(
                    n, outer.quantity_bound, j, t.sum, t.sum_of, t.sum_outer_pj
                )
            for i in range(3):
                outer.best[j, i] = np.inf
        states.tally[ROUND], states.tally[COUNT] = states.tally[ROUND] + 1, 0
        nests(outer_terms, e, p, m, rules, memo, outer, states, outer.best)
        for j in range(w.best_count.shape[0]):
            if outer.tally[VISITED] <= outer.tally[BUDGET] and outer.best[j, 0] < np.inf:
                w.outer_pj[code, j] = outer.best[j, 0]
            for without in t.outer_without[code]:
                w.outer_pj[code, j] = max(
                    w.outer_pj[code, j], w.outer_pj[without, j] if without >= 0 else 0.0
                )


@njit_no_alloc
def set_stored(p: Pool, unrolling: Ints) -> None:
    """Sets Pool.stored of the tiles inside of the PEs, for nodes on one PE (`set_outer_bounds`). unrolling:
    [R] that of one PE.

    Where PEs share T values of a rank unevenly, a node goes through them in K steps, and K need not divide T.
    So it holds T / K values or more. The node on one PE has the least tile that divides T and is no less: its
    trips are no more, and divided by its least prime factor it is less than T / K.
    """
    for r in range(unrolling.shape[0]):
        is_uneven = False
        for o in range(p.rank_start[r], p.rank_start[r + 1]):
            is_uneven = is_uneven or p.uneven[o]
        for position in range(1, p.span.shape[1] if is_uneven else 1):
            for tile in range(p.span[unrolling[r], position, 0], p.span[unrolling[r], position, 1]):
                prime = 2
                while p.size[tile] % prime and prime * prime <= p.size[tile]:
                    prime += 1
                prime = p.size[tile] if p.size[tile] % prime else prime
                p.stored[tile] = max(p.size[tile] / prime, 1.0)


@njit_inlined
def any_served(t: Terms, m: Machine, w: Work) -> bool:
    """Whether outer costs have what the outermost level serves to some node of w.nodes (state.Terms)."""
    found = False
    for n in range(w.tally[NODE_COUNT]):
        is_inside = w.nodes[n, POSITION] > 0 and w.nodes[n, PARENT] == 0
        found = found or (is_inside and bool(t.serves[w.nodes[n, TENSOR]]))
    return found


@njit_inlined
def list_nodes(holders: Ints, outer: bool, t: Terms, m: Machine, w: Work) -> int:
    """Lists in w.nodes the nodes of all tensors, or with `outer` those that outer costs depend on
    (state.Terms). Returns their number. holders: [X] numbers of sets of levels in t.holder_sets.

    A tensor's node at the outermost level is not listed. It costs nothing and holds the whole tensor in every
    nest.
    """
    n = 0
    for x in range(holders.shape[0]):
        parent = -1
        for v in range(m.capacity.shape[0]):
            if not t.holder_sets[holders[x]] >> v & 1:
                continue
            counts = not outer or m.position[v] == 0 or (t.serves[x] and parent == 0)
            if (parent >= 0 or v > 0) and counts:
                w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT] = x, v, parent
                w.nodes[n, POSITION], n = m.position[v], n + 1
            parent = v
    return n


@njit_inlined
def fits_tensor(x: int, v: int, e: Einsum, p: Pool, m: Machine, w: Work) -> bool:
    """Whether level v has the capacity for the largest tile of tensor x that may stand there under
    w.unrolling.
    """
    for r in range(w.largest.shape[0]):
        w.largest[r] = p.span[w.unrolling[r], m.position[v], 1] - 1
    return bool(
        tile_bits(x, v, w.largest, w.largest, True, -1, e, p, m) * m.uses_capacity[x, v]
        <= m.capacity[v]
        < np.inf
    )


@njit_no_alloc
def holds_input(v: int, holders: Ints, t: Terms) -> bool:
    """Whether a tensor other than the output stands at level v. holders: as in `init_nodes`."""
    found = False
    for x in range(holders.shape[0] - 1):
        found = found or bool(t.holder_sets[holders[x]] >> v & 1)
    return found


@njit_inlined
def init_nodes(holders: Ints, t: Terms, sums: Floats, e: Einsum, m: Machine, p: Pool, w: Work) -> None:
    """Sets up the state for nests of one placement: the nodes to place, and compute as the innermost tile, on
    the machines that are alive.

    holders: [X] numbers of sets of levels in t.holder_sets.
    """
    levels = m.capacity.shape[0]
    for a in range(w.live_count[0]):
        j = w.live[0, a]
        for i in range(t.base.shape[1]):
            w.parts[0, j, i] = t.base[j, i]
            for x in range(holders.shape[0]):
                w.parts[0, j, i] += sums[j, holders[x], i]
        for v in range(levels):
            w.parts[0, j, RAMP] += m.first_word[j, v] * holds_input(v, holders, t)
    for x in range(holders.shape[0]):
        w.holders[x] = holders[x]
    n = list_nodes(holders, False, t, m, w)
    for i in range(n):
        x, v, parent = w.nodes[i, TENSOR], w.nodes[i, LEVEL], w.nodes[i, PARENT]
        w.holds_tensor[i] = parent >= 0 and m.double_buffer[v] and fits_tensor(x, v, e, p, m, w)
    # entries without a tensor: loops alone, directly inside a boundary, above all its nodes
    for k in m.loop_positions:
        (
            w.nodes[n, TENSOR],
            w.nodes[n, LEVEL],
            w.nodes[n, PARENT],
            w.nodes[n, POSITION],
            w.holds_tensor[n],
            n,
        ) = -1, -1, -1, k, False, n + 1
    w.tally[NODE_COUNT] = n
    for v in range(levels):
        w.used_bits[0, v] = 0.0
    w.placed[0], w.position[0] = 0, m.position[levels]
    for r in range(w.unrolling.shape[0]):
        w.inner_tile[0, r] = p.span[w.unrolling[r], m.position[levels], 0]
