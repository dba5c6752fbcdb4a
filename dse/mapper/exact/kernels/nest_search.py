"""The search of nests under one spatial unrolling, built from compute outwards: the next node, the loops in
the gap below it, its traffic, its capacity. There is no recursion, since Numba cannot cache recursive
functions.
"""

from __future__ import annotations

import numpy as np

from dse.mapper.exact.kernels.compare import compare, keep_improving, objective_value, wins
from dse.mapper.exact.kernels.state import (
    ALONE,
    BOUND,
    BUDGET,
    CLIPPED,
    COUNT,
    DONE,
    DRAINS_END,
    FILLS_END,
    LEVEL,
    MASK_RELEVANT,
    NODE_COUNT,
    NODE_FIRST_READS,
    OVER,
    PARENT,
    PJ,
    POSITION,
    QUANTITY_KIND,
    ROUND,
    ROWS,
    STEPS,
    TENSOR,
    VISITED,
    WORDS,
    Einsum,
    InnerStates,
    Machine,
    Memo,
    Pool,
    Rules,
    Terms,
    Work,
)
from dse.mapper.exact.kernels.tile_sums import (
    amount,
    best_window,
    clipped_sum,
    counts_end_tiles,
    first_or_last_words,
    first_trip_share,
    full_boundaries,
    hull_sum,
    sunk_tile_bits,
    tile_bits,
    whole_tile_bits,
)
from dse.run.compiled import njit_inlined, njit_no_alloc
from workloads.arrays import Floats, Ints


@njit_inlined
def pes_used_outside(k: int, mask: int, p: Pool, w: Work) -> bool:
    """True if a fan-out outside of position k (k: fan-out boundaries outside of it) has more than one PE in
    use. mask: groups of PEs that do not count.
    """
    any_used = False
    for r in range(w.unrolling.shape[0]):
        any_used = any_used or p.pes[w.unrolling[r], k, mask] > 1
    return any_used


@njit_inlined
def is_innermost(k: int, mask: int, p: Pool, m: Machine, w: Work) -> bool:
    """Whether PEs are in use and position k lies inside of all of them. PEs along groups in the mask do not
    count.
    """
    compute, inside = m.position[m.capacity.shape[0]], True
    for r in range(w.unrolling.shape[0]):
        inside = inside and p.pes[w.unrolling[r], k, mask] == p.pes[w.unrolling[r], compute, mask]
    return inside and pes_used_outside(k, mask, p, w)


@njit_no_alloc
def stationarity_ok(d: int, rules: Rules, p: Pool, m: Machine, w: Work) -> bool:
    """Whether the stationarity rule lets a temporal loop stand here, inside the PEs, after d placed nodes: no
    node of the stationary tensor inside the PEs is placed yet, and one is still to be placed. So all of them
    will stand above the loop.
    """
    to_place, placed = False, False
    for n in range(w.tally[NODE_COUNT]):
        if w.nodes[n, TENSOR] == rules.stationary and is_innermost(
            w.nodes[n, POSITION], rules.unconstrained, p, m, w
        ):
            to_place, placed = to_place or not w.placed[d] >> n & 1, placed or bool(w.placed[d] >> n & 1)
    return to_place and not placed


@njit_inlined
def must_loop_below(d: int, n: int, r: int, e: Einsum, m: Machine, w: Work) -> bool:
    """Whether a loop over rank r may have to stand below node n, though n could sink below it: for the sake
    of a double-buffered node further out, still to be placed, whose level has the capacity for its whole
    tensor once.

    That node is stored once as long as nothing refills it. A loop above n may come to stand directly below
    the outer node, which then sinks below it and is refilled, so its smaller tile is stored twice. Two copies
    of a dense tile that is cut at least in half need no more than the whole, so there nothing is lost; but
    two copies of a window (its tiles overlap) or of a compressed tile (its row pointers) may need more. Hence
    the rule is for these two only. Node n (dense) needs no more bits with the loop below it: above, its tile
    is at best half as large, but refilled and so stored twice.
    """
    must_loop = False
    for other in range(w.tally[NODE_COUNT]):
        y, k = w.nodes[other, TENSOR], w.nodes[other, POSITION]
        outside = w.nodes[n, POSITION] == k if w.nodes[n, TENSOR] >= 0 else w.nodes[n, POSITION] > k
        must_loop = must_loop or (
            w.holds_tensor[other]
            and outside
            and other != n
            and not w.placed[d] >> other & 1
            and e.has_rank[y, r]
            and (e.in_window[y, r] or m.packed[y])
        )
    return must_loop


@njit_inlined
def may_loop_here(d: int, n: int, r: int, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Whether rank r may loop between node n and the node inside of it. Two kinds of loops are left out:

    1. n could be moved below the loop: it is fetched as often, and its tile is smaller;
    2. rank r is irrelevant to the node inside, which could be moved above the loop: it is fetched less often.
       It still sinks as far, since the loop then stands below the loops that it sinks through. Such loops
       are kept if r is relevant to n and n may sink: n sinks below the loop only where no node stands
       between.

    The first move gives the loop to a level further out, so such loops stay where trips over r are limited.
    Both change which loops stand above which, so they stay where an order is given of r, or it is to stand
    inside of nodes; also directly inside of PEs: those that share another rank unevenly have its loops
    inside, and r may have to be there.
    """
    x, _level, parent, k = w.nodes[n]
    if is_innermost(k, rules.unconstrained, p, m, w):
        if not rules.may_loop_inside_pes[r]:
            return False
        if rules.stationary >= 0 and not stationarity_ok(d, rules, p, m, w):
            return False
    if rules.ordered[r]:
        return True
    if x < 0:  # no storage node: loops alone, directly inside a fan-out boundary (Work.nodes)
        return must_loop_below(d, n, r, e, m, w)
    if (
        parent >= 0
        and rules.sinks[x, parent, r]
        and x != rules.stationary
        and not rules.limited[r]
        and not must_loop_below(d, n, r, e, m, w)
    ):
        return False
    if d > 0 and w.position[d] == w.nodes[w.node[d - 1], POSITION]:
        inner = w.nodes[w.node[d - 1], TENSOR]
        if not e.has_rank[inner, r] and not (parent >= 0 and e.has_rank[x, r]):
            return False
    return True


@njit_inlined
def fits(d: int, n: int, loops_final: bool, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Whether node n fits its level with the loops chosen so far, beside all nodes of that level that are not
    placed yet. `loops_final`: no loop is still to be chosen.
    """
    level = w.nodes[n, LEVEL]
    if level < 0:
        return True
    if m.most_bits[w.nodes[n, TENSOR], level] < np.inf and not fits_limit(d, n, e, p, m, rules, w):
        return False
    if m.capacity[level] == np.inf:
        return True
    need = w.used_bits[d, level] + node_bits(d, n, loops_final, e, p, m, rules, w)
    for other in range(w.tally[NODE_COUNT]):
        if other != n and w.nodes[other, LEVEL] == level and not w.placed[d] >> other & 1:
            x = w.nodes[other, TENSOR]
            need += (
                tile_bits(x, level, w.node_tile[d], w.node_tile[d], True, -1, e, p, m)
                * m.uses_capacity[x, level]
            )
    return bool(need <= m.capacity[level])


@njit_inlined
def fits_limit(d: int, n: int, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Whether one tile of node n is no larger than allowed (Machine.most_bits) with the loops chosen so far.
    A node of a tensor that stands nowhere further out holds the tile as it is, as in `node_bits`.
    """
    x, level = w.nodes[n, TENSOR], w.nodes[n, LEVEL]
    return bool(tile_bits_at(d, n, e, p, m, rules, w) <= m.most_bits[x, level])


@njit_inlined
def tile_bits_at(d: int, n: int, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> float:
    """Bits of one tile of node n after it sinks."""
    x, level, parent = w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT]
    if parent < 0:
        return float(tile_bits(x, level, w.node_tile[d], w.node_tile[d], True, -1, e, p, m))
    sinks = not m.no_sink[x, parent, level]
    set_reached(d, x, sinks, e, p, m, rules, w)
    if sinks:
        return float(sunk_tile_bits(x, level, w.node_tile[d], w.reached, e, p, m))
    return float(whole_tile_bits(x, level, w.node_tile[d], w.reached, e, p, m))


@njit_inlined
def set_reached(d: int, x: int, sinks: bool, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> None:
    """Sets w.reached [R]: the tile that a node of tensor x, being placed after d others, may sink to: that
    inside of the loops below it, but for loops below which an order of loops does not let it sink.

    A node sinks through loops over ranks that stand alone in a dimension, then into one window. A loop that
    must stand below another one is reached once that one is passed, or (sinks False: it slides into a window
    alone) if no other stands here.
    """
    for r in range(w.reached.shape[0]):
        w.reached[r] = w.node_tile[d, r] if rules.orders else w.inner_tile[d, r]
    changed = rules.orders
    while changed:
        changed = False
        for r in range(w.reached.shape[0]):
            if w.reached[r] != w.inner_tile[d, r] and is_reached(d, x, r, sinks, e, p, m, rules, w):
                w.reached[r], changed = w.inner_tile[d, r], True


@njit_inlined
def is_reached(
    d: int, x: int, r: int, sinks: bool, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work
) -> bool:
    """Whether all loops that must stand above that over rank r, of those below the node being placed, are
    ones that it has sunk through (w.reached).
    """
    level = level_of_loops(d, r, e, m, w) if rules.ordered[r] else 0
    for q in range(w.reached.shape[0]):
        if (
            rules.ordered[r]
            and rules.above[level, q, r]
            and p.size[w.node_tile[d, q]] != p.size[w.inner_tile[d, q]]
            and level_of_loops(d, q, e, m, w) == level
            and not (sinks and e.full[x, q] and w.reached[q] == w.inner_tile[d, q])
        ):
            return False
    return True


@njit_inlined
def node_bits(
    d: int, n: int, loops_final: bool, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work
) -> float:
    """Bits of node n in its level; twice where the level is double-buffered and the tile is filled more than
    once: because of a temporal loop above the node, or of one below that it sinks through. Not twice without
    `loops_final`: then it is not known yet whether a loop refills the tile.
    """
    x, level, parent = w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT]
    sinks = parent >= 0 and not m.no_sink[x, parent, level]
    tile = tile_bits_at(d, n, e, p, m, rules, w)
    bits: float = m.uses_capacity[x, level] * tile
    if loops_final and m.double_buffer[level]:
        is_refilled = parent >= 0 and tile < tile_bits(
            x, level, w.node_tile[d], w.reached, sinks, -1, e, p, m
        )
        for r in range(w.inner_tile.shape[1]):
            is_refilled = (
                is_refilled
                or not p.untiled[w.node_tile[d, r]]
                or (sinks and e.full[x, r] and w.node_tile[d, r] != w.reached[r])
            )
        return 2.0 * bits if is_refilled else bits
    return bits


@njit_inlined
def place_node(
    d: int, n: int, t: Terms, e: Einsum, p: Pool, m: Machine, rules: Rules, memo: Memo, w: Work, best: Floats
) -> int:
    """Places node n, with its loops chosen, after d others. Returns DONE if it is placed, else OVER or BOUND.

    OVER: left out, but smaller tiles may do. It does not fit, it is a swapped duplicate, its level has more
        trips than allowed, or only the stalls of its first fills and last drains make its bound too high.
    BOUND: left out, and smaller tiles are no better. Of exchanges one after the other that is not known: of
        smaller tiles more may change together.
    """
    if not fits(d, n, True, e, p, m, rules, w) or is_swapped_duplicate(d, n, w):
        return OVER
    if rules.limits_trips and not trips_allowed(d, False, e, p, m, rules, w):
        return OVER
    if rules.orders and not is_in_order(d, False, e, p, m, rules, w):
        return OVER
    if rules.keeps_inside and not keeps_inside(d, n, p, rules, w):
        return OVER
    x, level, parent, k = w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT], w.nodes[n, POSITION]
    # the level of n stalls on first fills or last drains
    has_end_stalls = x >= 0 and m.exposed[level, FILLS_END] < m.exposed[level, DRAINS_END]
    if has_end_stalls:
        sinks = parent < 0 or not m.no_sink[x, parent, level]
        set_reached(d, x, sinks, e, p, m, rules, w)
        window_rank = best_window(x, level, w.node_tile[d], w.reached, sinks, e, p, m)
        for r in range(w.sunk_tile.shape[0]):
            w.sunk_tile[r] = (
                w.reached[r] if (sinks and e.full[x, r]) or r == window_rank else w.node_tile[d, r]
            )
    add_fetches(d, n, w.node_tile[d], w.sunk_tile, t, e, p, memo, w)
    add_exposed(d, n, w.inner_tile[d], w.node_tile[d], t, e, p, m, w, w.parts[d + 1])
    if x >= 0 and parent >= 0 and m.exchanges[level] >= 0:
        if keep_improving(d, w.parts[d + 1], m, w, best, False) == 0:
            return BOUND
        set_exchanges(d, t, e, p, m, memo, w)
        if keep_improving(d, w.parts[d + 1], m, w, best, True) == 0:
            return OVER
    elif keep_improving(d, w.parts[d + 1], m, w, best, True) == 0:
        # stalls get shorter with smaller first tiles, of this node and of nodes further out
        if m.waits_at_ends:
            add_fetches(d, n, w.node_tile[d], w.inner_tile[d], t, e, p, memo, w)
            return OVER if keep_improving(d, w.parts[d + 1], m, w, best, False) else BOUND
        return BOUND
    for v in range(m.capacity.shape[0]):
        w.used_bits[d + 1, v] = w.used_bits[d, v]
    if x >= 0 and m.capacity[level] < np.inf:
        w.used_bits[d + 1, level] += node_bits(d, n, True, e, p, m, rules, w)
    w.placed[d + 1] = w.placed[d] | np.int64(1) << n
    w.position[d + 1] = k
    for r in range(w.inner_tile.shape[1]):
        w.inner_tile[d + 1, r] = w.node_tile[d, r]
    return DONE


@njit_no_alloc
def set_exchanges(d: int, t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work) -> None:
    """Sets the part `Machine.exchanges` of the level of the node placed after d others: a lower bound of the
    time in which its tiles change, one kind of exchange after the other (latency.py).

    Where a loop between two nodes of the level advances, the nodes inside of it change together, at the pace
    of their busiest port: all that is fetched in them, less what they fetch in the first trip of these loops,
    in which a node further out changes, too.
    """
    level, parts = w.nodes[w.node[d], LEVEL], w.parts[d + 1]
    end = m.exchanges[level]
    for j in range(d + 1):
        x, own_level, parent, _ = w.nodes[w.node[j]]
        if own_level == level and (x < 0 or parent < 0 or not m.no_sink[x, parent, level]):
            return  # a tile that sinks changes further inside than its node stands
    for a in range(w.live_count[d]):
        machine = w.live[d, a]
        total = 0.0
        for inner in range(d + 1):
            if w.nodes[w.node[inner], LEVEL] != level:
                continue
            outer = inner + 1
            while outer <= d and w.nodes[w.node[outer], LEVEL] != level:
                outer += 1
            for i in range(m.exposed[level, 0], end):
                w.part_scratch[i] = 0.0
            for j in range(inner + 1):
                if w.nodes[w.node[j], LEVEL] == level:
                    add_exchange(j, inner, outer if outer <= d else -1, machine, t, e, p, m, memo, w)
            busiest = 0.0
            for i in range(m.exposed[level, 0], end):
                busiest = max(busiest, w.part_scratch[i])
            total += busiest
        parts[machine, end] = total


@njit_no_alloc
def add_exchange(
    j: int,
    inner: int,
    outer: int,
    machine: int,
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    memo: Memo,
    w: Work,
) -> None:
    """Adds to w.part_scratch a lower bound of what the j-th node moves, on one machine, where loops between
    nodes `inner` and `outer` (-1: none) of its level advance. It stands at `inner` or inside of it.

    Where not all trips move the same (windows, padding, uneven shares) the bound is 0 inside of `inner`.
    """
    x, level, parent, _ = w.nodes[w.node[j]]
    is_even = True
    for r in range(w.unrolling.shape[0]):
        is_even = is_even and not p.uneven[w.unrolling[r]]
    for dim in range(e.first_dim[x], e.first_dim[x + 1]):
        is_even = is_even and e.kind[dim] == ALONE
    if not is_even and j != inner:
        return
    # trips of all loops between the node and `inner`, and `outer`; own: of those over the tensor's ranks
    inner_trips, outer_trips, own_inner_trips, own_outer_trips = 1.0, 1.0, 1.0, 1.0
    for r in range(w.unrolling.shape[0]):
        size = p.size[w.node_tile[j, r]]
        more = p.size[w.node_tile[inner, r]] / size
        further = p.size[w.node_tile[outer, r]] / size if outer >= 0 else 1.0
        inner_trips, outer_trips = inner_trips * more, outer_trips * further
        if e.has_rank[x, r]:
            own_inner_trips, own_outer_trips = own_inner_trips * more, own_outer_trips * further
    for link in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
        q, waits = t.link_of[link], False
        for i in range(m.exposed[level, 0], m.exchanges[level]):
            waits = waits or t.link_coef[machine, link, i] != 0.0
        if not waits:
            continue
        kind, tile = t.quantity[q, QUANTITY_KIND], w.node_tile[j]
        share, skipped = 0.0, 1.0  # of what is added, at least, and of what is subtracted, at most
        if kind == WORDS:
            first = 1.0 if is_even or outer < 0 else first_trip_share(q, tile, w.unrolling, t, e, p, memo)
            share = max(1.0 / inner_trips - (first / outer_trips if outer >= 0 else 0.0), 0.0)
        if kind == NODE_FIRST_READS and is_even:
            skipped = 1.0 / own_inner_trips - (1.0 / own_outer_trips if outer >= 0 else 0.0)
        moved = amount(q, tile, w.unrolling, t, e, p, memo)
        for i in range(m.exposed[level, 0], m.exchanges[level]):
            coef = t.link_coef[machine, link, i]
            w.part_scratch[i] += coef * moved * (share if coef > 0.0 else skipped)


@njit_no_alloc
def trips_allowed(d: int, complete: bool, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Whether no level has more temporal trips over a rank than Rules.most_trips, in the nest so far: d nodes
    and, unless it is complete, the next one with its loops. complete: whether also no level has fewer than
    Rules.least_trips.
    """
    for r in range(w.inner_tile.shape[1]):
        for v in range(m.capacity.shape[0] if rules.limited[r] else 0):
            trips, position = 1, m.position[m.capacity.shape[0]]
            for j in range(d if complete else d + 1):
                if level_of_loops(j, r, e, m, w) == v:
                    trips *= p.size[w.node_tile[j, r]] // p.size[w.inner_tile[j, r]]
                    for k in range(position, w.nodes[w.node[j], POSITION], -1):
                        trips *= trips_inside(w.entry_tile[k, r], p)
                position = w.nodes[w.node[j], POSITION]
            if complete and level_of_loops(d, r, e, m, w) == v:
                trips *= p.size[p.largest_tile[w.inner_tile[d, r]]] // p.size[w.inner_tile[d, r]]
                for k in range(position, 0, -1):
                    trips *= trips_inside(w.entry_tile[k, r], p)
            if trips > rules.most_trips[v, r] or (complete and trips < rules.least_trips[v, r]):
                return False
    return True


@njit_inlined
def keeps_inside(d: int, n: int, p: Pool, rules: Rules, w: Work) -> bool:
    """Whether no temporal loop over a rank of Rules.inside will stand above node n, being placed after d
    others: whether its tile is as large as the spatial loops outside leave it.
    """
    kept = True
    for r in range(w.inner_tile.shape[1] if w.nodes[n, LEVEL] >= 0 else 0):
        kept = kept and (p.untiled[w.node_tile[d, r]] or not rules.inside[w.nodes[n, LEVEL], r])
    return kept


@njit_no_alloc
def is_in_order(d: int, complete: bool, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Whether the temporal loops of the nest so far can stand in the order that Rules.above asks for: d nodes
    and, unless it is complete, the next one with its loops.

    A gap is what stands between two nodes, or a node and a fan-out boundary. Loops of one gap may stand in
    any order, so of these only an order that no sequence has excludes them; loops of gaps further in stand
    below all others.
    """
    ranks, gap, position = w.inner_tile.shape[1], 0, m.position[m.capacity.shape[0]]
    for r in range(ranks):
        w.gap_levels[0, r] = -1
    for j in range(d if complete else d + 1):
        for k in range(position, w.nodes[w.node[j], POSITION], -1):
            gap = add_loops_inside(gap, j, k, e, p, m, w)
        position = w.nodes[w.node[j], POSITION]
        for r in range(ranks):
            if p.size[w.node_tile[j, r]] != p.size[w.inner_tile[j, r]]:
                w.gap_levels[gap, r] = level_of_loops(j, r, e, m, w)
        # loops directly inside a boundary (no tensor) stand in one gap with those of uneven shares
        if w.nodes[w.node[j], TENSOR] >= 0:
            gap = begin_gap(gap, w)
    if complete:
        for k in range(position, 0, -1):
            gap = add_loops_inside(gap, d, k, e, p, m, w)
        for r in range(ranks):
            if p.size[p.largest_tile[w.inner_tile[d, r]]] != p.size[w.inner_tile[d, r]]:
                w.gap_levels[gap, r] = 0
    for g in range(gap + 1):
        if not has_order(g, rules, w):
            return False
        for r in range(ranks):
            level = w.gap_levels[g, r]
            for q in range(ranks if level >= 0 and rules.ordered[r] else 0):
                for inside in range(g if rules.above[level, q, r] else 0):
                    if w.gap_levels[inside, q] == level:
                        return False
    return True


@njit_inlined
def begin_gap(gap: int, w: Work) -> int:
    """Begins the next gap further out, and returns its number."""
    for r in range(w.gap_levels.shape[1]):
        w.gap_levels[gap + 1, r] = -1
    return gap + 1


@njit_inlined
def add_loops_inside(gap: int, j: int, k: int, e: Einsum, p: Pool, m: Machine, w: Work) -> int:
    """Adds the loops that cut uneven shares of PEs directly inside of boundary k to a gap, and returns the
    number of the gap outside of it. j: nodes placed inside.
    """
    for r in range(w.gap_levels.shape[1]):
        if trips_inside(w.entry_tile[k, r], p) > 1:
            w.gap_levels[gap, r] = level_of_loops(j, r, e, m, w)
    return begin_gap(gap, w)


@njit_inlined
def has_order(gap: int, rules: Rules, w: Work) -> bool:
    """Whether the loops of a gap have a sequence in which Rules.above holds: whether one after the other can
    be taken that no other one left must stand above.
    """
    left = 0
    for r in range(w.gap_levels.shape[1]):
        left |= int(w.gap_levels[gap, r] >= 0 and rules.ordered[r]) << r
    while left:
        before = left
        for r in range(w.gap_levels.shape[1]):
            free = bool(left >> r & 1)
            for q in range(w.gap_levels.shape[1] if free else 0):
                level = w.gap_levels[gap, r]
                free = free and not (
                    left >> q & 1 and w.gap_levels[gap, q] == level and rules.above[level, q, r]
                )
            if free:
                left &= ~(1 << r)
        if left == before:
            return False
    return True


@njit_no_alloc
def level_of_loops(j: int, r: int, e: Einsum, m: Machine, w: Work) -> int:
    """The level of the temporal loops over rank r that stand directly below the node placed after j others:
    the innermost level of all nodes above of tensors that have the rank; 0 where there is none. A tensor that
    the schedule holds (Machine.uses_capacity 0) stands above all loops, wherever its node is placed.
    """
    level = 0
    for n in range(w.tally[NODE_COUNT]):
        x = w.nodes[n, TENSOR]
        if x < 0 or not e.has_rank[x, r]:
            continue
        is_above = w.nodes[n, PARENT] < 0 and m.uses_capacity[x, w.nodes[n, LEVEL]] == 0.0
        if is_above or not w.placed[j] >> n & 1:
            level = max(level, w.nodes[n, LEVEL])
    return int(level)


@njit_inlined
def trips_inside(tile: int, p: Pool) -> int:
    """Trips of the temporal loop that cuts the uneven shares of PEs into the tile that their nodes need."""
    return int(p.size[p.largest_tile[tile]] // p.size[tile]) if shares_unevenly(tile, p) else 1


@njit_inlined
def shares_unevenly(tile: int, p: Pool) -> bool:
    """True if the PEs directly outside of a tile divide the rank unevenly, so the last PE may get less. PEs
    with even shares record no cuts in Pool.cuts, so shares are uneven if the tile has more cuts than the tile
    that enters the PEs.
    """
    extra_cuts = 0
    for j in range(p.cuts.shape[1]):
        extra_cuts += int(p.cuts[tile, j] != 0) - int(p.cuts[p.outer_tile[tile], j] != 0)
    return extra_cuts > 0


@njit_inlined
def enter_fanout(d: int, t: Terms, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Moves out over those fan-out boundaries that have no more nodes to place inside. Returns whether the
    nest is complete.

    If PEs share a rank unevenly, and a PE's nodes need less than its whole share at a time, temporal loops
    over the rank stand inside the PEs. Where the rules forbid these, the nest costs infinitely much.
    """
    while True:
        k = w.position[d]
        for n in range(w.tally[NODE_COUNT]):
            if w.nodes[n, POSITION] == k and not w.placed[d] >> n & 1:
                return False
        if k == 0:
            return True
        for r in range(w.inner_tile.shape[1]):
            if (
                (rules.stationary >= 0 or not rules.may_loop_inside_pes[r])
                and shares_unevenly(w.inner_tile[d, r], p)
                and w.inner_tile[d, r] != p.largest_tile[w.inner_tile[d, r]]
            ):
                for a in range(w.live_count[d] if is_innermost(k, rules.unconstrained, p, m, w) else 0):
                    # infinite in both, so whatever the objective
                    w.parts[d, w.live[d, a], PJ] = w.parts[d, w.live[d, a], STEPS] = np.inf
            w.entry_tile[k, r] = w.inner_tile[d, r]
            w.inner_tile[d, r] = p.outer_tile[w.inner_tile[d, r]]
        w.position[d] = k - 1
        # from here the outer nodes are placed one by one: drop what `outer_extra` added in advance for them
        for a in range(w.live_count[d] if k == 1 else 0):
            w.parts[d, w.live[d, a], PJ] -= w.outer_extra[w.live[d, a]]
        add_exposed(d, -1, w.inner_tile[d], w.inner_tile[d], t, e, p, m, w, w.parts[d])


@njit_inlined
def is_next(d: int, n: int, w: Work) -> bool:
    """Whether node n may be placed next, outwards: all nodes of its tensor that stand further inside are
    placed. An entry of loops without a node (Work.nodes) comes after all nodes of its position.
    """
    if w.nodes[n, POSITION] != w.position[d] or w.placed[d] >> n & 1:
        return False
    for other in range(w.tally[NODE_COUNT]):
        inside = (
            w.nodes[other, POSITION] == w.position[d]
            and not w.placed[d] >> other & 1
            and w.nodes[other, LEVEL] > w.nodes[n, LEVEL]
        )
        if inside and (w.nodes[other, TENSOR] == w.nodes[n, TENSOR] or w.nodes[n, TENSOR] < 0):
            return False
    return True


@njit_inlined
def push(d: int, e: Einsum, p: Pool, m: Machine, rules: Rules, w: Work) -> bool:
    """Turns to the next node, by number, that may follow d placed ones, and lists the loops that may stand
    below it. Returns False where there is none.
    """
    n = w.node[d] + 1
    while n < w.tally[NODE_COUNT] and not is_next(d, n, w):
        n += 1
    if n == w.tally[NODE_COUNT]:
        return False
    w.node[d], w.loop[d], w.loop_count[d], w.window_count[d] = n, 0, 0, 0
    x = w.nodes[n, TENSOR]
    # ranks of windows first: `is_promising` bounds the node once these are chosen, with the other ranks at
    # their largest tiles
    for of_window in (True, False):
        for r in range(w.inner_tile.shape[1]):
            w.node_tile[d, r] = w.inner_tile[d, r]
            if (x >= 0 and e.in_window[x, r]) == of_window and may_loop_here(d, n, r, e, p, m, rules, w):
                w.loop_rank[d, w.loop_count[d]], w.loop_count[d], w.window_count[d] = (
                    r,
                    w.loop_count[d] + 1,
                    w.window_count[d] + of_window,
                )
    reset_loop(d, p, w)
    return True


@njit_inlined
def reset_loop(d: int, p: Pool, w: Work) -> None:
    """Sets the loop that is being chosen after d nodes to just before its largest tile (`next_tile`)."""
    i = w.loop[d]
    if i < w.loop_count[d]:
        w.loop_tile[d, i] = p.span[w.unrolling[w.loop_rank[d, i]], w.nodes[w.node[d], POSITION], 1]
        w.untried[d, i], w.outcome[d, i] = True, BOUND


@njit_inlined
def next_tile(d: int, p: Pool, w: Work) -> bool:
    """Takes the next smaller tile for the loop that is being chosen after d nodes: the next one that the tile
    inside divides. Loops that are chosen after it are reset to the tile inside, which is no loop. Returns
    False if there is no smaller tile.
    """
    i = w.loop[d]
    r = w.loop_rank[d, i]
    begin = w.inner_tile[d, r]
    w.loop_tile[d, i] -= 1
    while w.loop_tile[d, i] >= begin and p.size[w.loop_tile[d, i]] % p.size[begin]:
        w.loop_tile[d, i] -= 1
    if w.loop_tile[d, i] < begin:
        return False
    w.node_tile[d, r] = w.loop_tile[d, i]
    for j in range(i + 1, w.loop_count[d]):
        w.node_tile[d, w.loop_rank[d, j]] = w.inner_tile[d, w.loop_rank[d, j]]
    return True


@njit_inlined
def is_promising(d: int, t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work, best: Floats) -> bool:
    """Whether a node may still lead below the best, once the loops over ranks of its windows are chosen. Its
    lower bound: the other ranks take their largest tiles, which are fetched least often; first fills and last
    drains (stalls) move at least the tile that stands inside.
    """
    n = w.node[d]
    for r in range(w.inner_tile.shape[1]):
        w.largest[r] = w.node_tile[d, r]
    for i in range(w.window_count[d], w.loop_count[d]):
        w.largest[w.loop_rank[d, i]] = p.largest_tile[w.inner_tile[d, w.loop_rank[d, i]]]
    add_fetches(d, n, w.largest, w.inner_tile[d], t, e, p, memo, w)
    return keep_improving(d, w.parts[d + 1], m, w, best, False) > 0


@njit_inlined
def add_fetches(
    d: int, n: int, tile: Ints, sunk_tile: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work
) -> None:
    """Sets w.parts[d + 1] to a lower bound of the nest with node n at `tile` [R]: the bound of its quantities
    in w.parts[d] (w.quantity_bound) is replaced by their amounts. sunk_tile [R]: the tile that is left of it
    after it sinks, which its first fills and last drains move.
    """
    x, level, parent = w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT]
    for a in range(w.live_count[d]):
        machine = w.live[d, a]
        for i in range(w.parts.shape[2]):
            w.parts[d + 1, machine, i] = w.parts[d, machine, i]
    if parent >= 0:
        for j in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
            q = t.link_of[j]
            if counts_end_tiles(t.quantity[q, QUANTITY_KIND]):
                more = first_or_last_words(q, sunk_tile, w.unrolling, t, e, p) - first_or_last_words(
                    q, w.inner_tile[d], w.unrolling, t, e, p
                )
            else:
                more = amount(q, tile, w.unrolling, t, e, p, memo) - w.quantity_bound[q]
            add_link(d, j, more, t, w, w.parts[d + 1])


@njit_inlined
def add_link(d: int, link: int, more: float, t: Terms, w: Work, parts: Floats) -> None:
    """Adds to parts [J, P] the cost of `more` of a link's quantity, on the machines that are alive after d
    nodes. link: its index in t.link_of and t.link_coef.
    """
    for a in range(w.live_count[d]):
        j = w.live[d, a]
        for i in range(parts.shape[1]):
            parts[j, i] += t.link_coef[j, link, i] * more


@njit_inlined
def add_exposed(
    d: int, n: int, before: Ints, tile: Ints, t: Terms, e: Einsum, p: Pool, m: Machine, w: Work, parts: Floats
) -> None:
    """Raises parts [J, P] for the stalls (first fills, last drains) of all nodes still to be placed at this
    position: their tiles are at least `tile` [R], what stands inside of them.

    n: the node that is being placed, whose stalls are counted elsewhere; -1 directly after a boundary is
        crossed
    before: [R] the tile whose stalls `parts` counts so far; not used with n = -1, where it counts
        w.quantity_bound
    """
    for other in range(w.tally[NODE_COUNT]):
        x, level, parent, k = w.nodes[other]
        if (
            other == n
            or parent < 0
            or w.placed[d] >> other & 1
            or k != w.position[d]
            or m.exposed[level, FILLS_END] == m.exposed[level, DRAINS_END]
        ):
            continue
        for j in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
            q = t.link_of[j]
            if counts_end_tiles(t.quantity[q, QUANTITY_KIND]):
                more = first_or_last_words(q, tile, w.unrolling, t, e, p) - (
                    first_or_last_words(q, before, w.unrolling, t, e, p) if n >= 0 else w.quantity_bound[q]
                )
                add_link(d, j, more, t, w, parts)


@njit_inlined
def is_swapped_duplicate(d: int, n: int, w: Work) -> bool:
    """Whether node n and the node placed before it have no loop between nor below them, and stand in the
    order that is left out (the higher number outside). No loop stands directly below either one, so neither
    sinks, and both orders cost the same.
    """
    if (
        d == 0
        or w.nodes[n, TENSOR] < 0
        or w.position[d] != w.nodes[w.node[d - 1], POSITION]
        or n < w.node[d - 1]
    ):
        return False
    looped = False
    for r in range(w.inner_tile.shape[1]):
        looped = (
            looped
            or w.node_tile[d, r] != w.inner_tile[d, r]
            or w.node_tile[d - 1, r] != w.inner_tile[d - 1, r]
        )
    return not looped


@njit_inlined
def dominated_inner_state(
    d: int, t: Terms, e: Einsum, p: Pool, rules: Rules, memo: Memo, w: Work, states: InnerStates
) -> bool:
    """Whether, on every live machine, an earlier inner part of a nest dominates this one: it needs the same
    tiles from outside and costs no more in any part. Everything that may stand outside was tried with it.

    Machines on which one dominates are no longer alive. For the others this inner part is stored, to compare
    with later ones.

    With clipped dimensions (padding cuts tiles) the exact share of the first PE depends on the tiles that
    enter the outermost array. Within an inner array of two these are not known yet: states cannot be
    compared, and False is returned. Nor are they compared where temporal trips are limited, or an order of
    loops is given: the one that costs less may have trips, or loops, that are not allowed.
    """
    has_clipped = False
    for dim in range(e.kind.shape[0]):
        has_clipped = has_clipped or e.kind[dim] == CLIPPED
    if rules.limits_trips or rules.orders or (has_clipped and p.groups_outside.shape[0] > 2):
        return False
    slot = slot_of(d, w, states)
    if slot < 0:  # no slot is free
        return False
    parts, scratch_row = w.parts[w.parts.shape[0] - 1], w.parts.shape[0] - 1
    for a in range(w.live_count[d]):
        j = w.live[d, a]
        for i in range(parts.shape[1]):
            parts[j, i] = w.parts[d, j, i]
        w.live[scratch_row, a] = j
    w.live_count[scratch_row] = w.live_count[d]
    if has_clipped:
        add_clipped(scratch_row, d, t, e, p, memo, w)
    n = 0
    for a in range(w.live_count[scratch_row]):
        j, dominated, v = w.live[scratch_row, a], False, states.head[slot]
        while v >= 0 and not dominated:
            dominated = states.machine[v] == j
            for i in range(parts.shape[1]):
                dominated = dominated and parts[j, i] >= states.parts[v, i]
            v = states.next[v]
        if dominated:
            continue
        w.live[d, n], n = j, n + 1
        if states.tally[COUNT] < states.next.shape[0]:
            v = states.tally[COUNT]
            states.tally[COUNT] = v + 1
            states.next[v], states.head[slot], states.machine[v] = states.head[slot], v, j
            for i in range(parts.shape[1]):
                states.parts[v, i] = parts[j, i]
    w.live_count[d] = n
    return n == 0


@njit_inlined
def slot_of(d: int, w: Work, states: InnerStates) -> int:
    """The slot of the hash table for the tiles that d placed nodes need from outside (w.inner_tile[d]); -1 if
    8 slots are taken by other tiles.
    """
    slot, ranks = 0, w.inner_tile.shape[1]
    for r in range(ranks):
        slot = (slot * 1000003 + w.inner_tile[d, r]) & (states.round.shape[0] - 1)
    for _ in range(8):
        is_free = states.round[slot] != states.tally[ROUND]
        if is_free:
            states.round[slot], states.head[slot] = states.tally[ROUND], -1
            for r in range(ranks):
                states.key[slot, r] = w.inner_tile[d, r]
            return slot
        is_same_key = True
        for r in range(ranks):
            is_same_key = is_same_key and states.key[slot, r] == w.inner_tile[d, r]
        if is_same_key:
            return slot
        slot = (slot + 1) & (states.round.shape[0] - 1)
    return -1


@njit_inlined
def pop_loop(d: int, outcome: int, e: Einsum, p: Pool, w: Work) -> None:
    """Leaves the present tile of the loop that is being chosen after d nodes: for its next smaller tile, or
    for the loop outside. outcome: what became of the present tile (OVER, BOUND, DONE).

    If the bound of this tile did not beat the best (BOUND), smaller tiles of the loop are left out: with
    these the tensor is fetched more often and costs no less. Ranks of a window are excepted, since between
    smaller tiles there may be gaps that are not fetched.
    """
    x = w.nodes[w.node[d], TENSOR]
    while w.loop[d] >= 0:
        i = w.loop[d]
        if i == w.loop_count[d]:
            w.loop[d] -= 1
            continue
        if outcome == BOUND and (x < 0 or not e.in_window[x, w.loop_rank[d, i]]):
            # at the first (largest) tile every tile of this loop is hopeless, so the present tile of the loop
            # chosen before it is too (BOUND); at a later one a larger tile was not hopeless, so nothing
            # follows for that loop (DONE)
            outcome = BOUND if w.untried[d, i] else DONE
            w.loop[d] -= 1
            continue
        w.untried[d, i] = False
        if outcome != BOUND:
            w.outcome[d, i] = DONE
        return


@njit_no_alloc
def nests(
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    states: InnerStates,
    best: Floats,
) -> None:
    """Searches all nests of w.nodes under the spatial unrolling w.unrolling, from compute outwards, larger
    tiles first; cut by capacity and by lower bound. The nests stand in w.best_*.

    best: [J, 3] (objective, energy, cycles) of the best nest of each machine, lowered in place.
    """
    d = 0
    enter_fanout(0, t, e, p, m, rules, w)
    w.node[0], w.loop[0] = -1, -1
    if w.tally[NODE_COUNT] == 0:
        record_if_better(0, t, e, p, m, rules, memo, w, best)
        return
    while d >= 0 and w.tally[VISITED] <= w.tally[BUDGET]:
        if w.stop[0] != 0:  # the budget ends here
            w.tally[BUDGET] = -1
        if w.loop[d] < 0:
            if not push(d, e, p, m, rules, w):
                d -= 1
                if d >= 0:
                    pop_loop(d, DONE, e, p, w)
            continue
        if w.loop[d] < w.loop_count[d]:
            if not next_tile(d, p, w):
                outcome = w.outcome[d, w.loop[d]]
                w.loop[d] -= 1
                if w.loop[d] >= 0:
                    pop_loop(d, outcome, e, p, w)
            elif not fits(d, w.node[d], False, e, p, m, rules, w):
                pop_loop(d, OVER, e, p, w)
            elif (
                w.loop[d] == w.window_count[d] - 1
                and w.window_count[d] < w.loop_count[d]
                and not is_promising(d, t, e, p, m, memo, w, best)
            ):
                pop_loop(d, BOUND, e, p, w)
            else:
                w.loop[d] += 1
                reset_loop(d, p, w)
            continue
        w.tally[VISITED] += 1
        outcome = place_node(d, w.node[d], t, e, p, m, rules, memo, w, best)
        if outcome != DONE:
            pop_loop(d, outcome, e, p, w)
        elif enter_fanout(d + 1, t, e, p, m, rules, w):
            record_if_better(d + 1, t, e, p, m, rules, memo, w, best)
            pop_loop(d, DONE, e, p, w)
        elif w.position[d + 1] != w.nodes[w.node[d], POSITION] and dominated_inner_state(
            d + 1, t, e, p, rules, memo, w, states
        ):
            pop_loop(d, DONE, e, p, w)
        else:
            d += 1
            w.node[d], w.loop[d] = -1, -1


@njit_no_alloc
def add_clipped(row: int, d: int, t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work) -> None:
    """Replaces the lower bounds of clipped lengths by exact ones, for quantities that count the first PE
    only: adds the cost of the difference to row `row` of w.parts, for machines alive there. The exact lengths
    depend on the tiles that enter the PEs, which are known by now.
    """
    for j in range(d):
        x, level, parent, k = w.nodes[w.node[j]]
        for i in range(
            t.link[x, parent, level, 0], t.link[x, parent, level, 1] if parent >= 0 and k > 0 else 0
        ):
            q = t.link_of[i]
            if (t.quantity[q, QUANTITY_KIND] != WORDS and t.quantity[q, QUANTITY_KIND] != ROWS) or t.quantity[
                q, MASK_RELEVANT
            ] == 0:
                continue
            bound, exact = 1.0, 1.0
            for dim in range(e.first_dim[x], e.first_dim[x + 1] - (t.quantity[q, QUANTITY_KIND] == ROWS)):
                if e.kind[dim] == CLIPPED:
                    a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
                    bound *= hull_sum(dim, w.node_tile[j], t.quantity[q, MASK_RELEVANT], e, p, memo)
                    exact *= clipped_sum(
                        dim,
                        w.node_tile[j, a] if a >= 0 else -1,
                        w.node_tile[j, b] if b >= 0 else -1,
                        full_boundaries(t.quantity[q, MASK_RELEVANT], p),
                        k,
                        w.entry_tile,
                        e,
                        p,
                        memo,
                    )
            if exact > bound:
                add_link(
                    row,
                    i,
                    unclipped_amount(q, w.node_tile[j], w.unrolling, t, e, p, memo) * (exact - bound),
                    t,
                    w,
                    w.parts[row],
                )


@njit_no_alloc
def unclipped_amount(q: int, tile: Ints, unrolling: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """The amount of a quantity of words or rows, without the factors of its clipped dimensions."""
    kind, x, _, mask_irrelevant, mask_relevant = t.quantity[q]
    total, last = 1.0, e.first_dim[x + 1] - 1
    for r in range(tile.shape[0]):
        if not e.has_rank[x, r]:
            total *= p.pieces[tile[r], mask_irrelevant]
    for dim in range(e.first_dim[x], last + 1):
        if kind == ROWS and dim == last:
            for r in e.dim_ranks[dim]:
                total *= p.pieces[tile[r], mask_relevant] if r >= 0 else 1.0
        elif e.kind[dim] != CLIPPED:
            total *= hull_sum(dim, tile, mask_relevant, e, p, memo)
    return total


@njit_no_alloc
def record_if_better(
    d: int, t: Terms, e: Einsum, p: Pool, m: Machine, rules: Rules, memo: Memo, w: Work, best: Floats
) -> None:
    """Records the complete nest as best on each live machine where it wins, if its trips are allowed. Of
    nests with equal costs under the same unrolling and levels the first that comes is kept. `best` becomes
    what the next one has to beat: the cost divided by Work.margin. Without a margin it is the cost of the
    nest that is kept, also among equal ones, whose last digits differ: the same in every batch of machines.
    """
    if rules.limits_trips and not trips_allowed(d, True, e, p, m, rules, w):
        return
    if rules.orders and not is_in_order(d, True, e, p, m, rules, w):
        return
    add_clipped(d, d, t, e, p, memo, w)
    for a in range(w.live_count[d]):
        machine = w.live[d, a]
        objective_value(w.parts[d], machine, m, w.cost)
        if wins(machine, w.cost, best, w.ties_allowed):
            better, w.ties_allowed[machine] = compare(w.cost, best[machine]) < 0, False
            for i in range(3 if better or w.margin[0] == 1.0 else 0):
                best[machine, i] = w.cost[i] / w.margin[0]
            w.best_count[machine] = d
            for x in range(w.holders.shape[0]):
                w.best_holders[machine, x] = w.holders[x]
            for r in range(w.unrolling.shape[0]):
                w.best_unrolling[machine, r] = w.unrolling[r]
            for j in range(d):
                for i in range(4):
                    w.best_nodes[machine, j, i] = w.nodes[w.node[j], i]
                for r in range(w.unrolling.shape[0]):
                    w.best_tiles[machine, j, r] = w.node_tile[j, r]


@njit_inlined
def sum_bounds(
    quantity_bounds: Floats,
    j: int,
    t: Terms,
    span: Ints,
    quantity: Ints,
    coef: Floats,
    part_count: int,
    sums: Floats,
    remaining: Floats,
) -> int:
    """Writes to `sums` the lower bound of each set of levels on machine j, and to `remaining` the least of
    all tensors from x on. Returns part_count, so that a caller can pass the call on as an argument of
    may_improve.

    span, quantity, coef: t.sum, t.sum_of, t.sum_coef (all unrollings are known), or t.low, t.low_of,
        t.low_coef (without skipped first reads: a bound also while unrollings of ranks are open).
    sums: [N, P + 1] per set of levels that may hold a tensor; the last column is `set_outer_sums`'s.
    remaining: [X + 1, P] the least that tensors x and later cost, whatever levels hold them.
    """
    tensors = t.holder_span.shape[0] - 1
    for i in range(part_count):
        remaining[tensors, i] = 0.0
    for x in range(tensors - 1, -1, -1):
        for n in range(t.holder_span[x], t.holder_span[x + 1]):
            for i in range(part_count):
                sums[n, i] = 0.0
            for link in range(span[n, 0], span[n, 1]):
                for i in range(part_count):
                    sums[n, i] += coef[j, link, i] * quantity_bounds[quantity[link]]
            for i in range(part_count):
                low = sums[n, i] if n == t.holder_span[x] else min(remaining[x, i], sums[n, i])
                remaining[x, i] = low
        for i in range(part_count):
            remaining[x, i] += remaining[x + 1, i]
    return part_count


@njit_inlined
def outer_sum(n: int, quantity_bounds: Floats, j: int, span: Ints, quantity: Ints, outer_pj: Floats) -> float:
    """The outer costs of set n of levels in its lower bound on machine j (state.Terms). outer_pj:
    t.sum_outer_pj or t.low_outer_pj; the other arguments are those of `sum_bounds`.
    """
    total = 0.0
    for link in range(span[n, 0], span[n, 1]):
        if outer_pj[j, link] != 0.0:
            total += outer_pj[j, link] * quantity_bounds[quantity[link]]
    return total


@njit_inlined
def set_outer_sums(
    quantity_bounds: Floats, j: int, span: Ints, quantity: Ints, outer_pj: Floats, sums: Floats
) -> None:
    """Sets the last column of `sums` [N, P + 1], for `outer_extra`. The arguments are those of
    `outer_sum`.
    """
    for n in range(span.shape[0]):
        sums[n, sums.shape[1] - 1] = outer_sum(n, quantity_bounds, j, span, quantity, outer_pj)


@njit_inlined
def outer_extra(j: int, holders: Ints, t: Terms, sums: Floats, w: Work) -> float:
    """The pJ on machine j by which the outer costs of all tensors together exceed the sum of their separate
    bounds, with tensors in the levels holders [X]; 0 where that is not known.
    """
    code, separate = 0, 0.0
    for x in range(holders.shape[0]):
        code += t.outer_code[holders[x]]
        separate += sums[holders[x], sums.shape[1] - 1]
    extra: float = max(w.outer_pj[code, j] - separate, 0.0)
    return extra


@njit_inlined
def may_improve(
    j: int, part_count: int, t: Terms, m: Machine, remaining: Floats, w: Work, best: Floats
) -> bool:
    """Whether the lower bound of all tensors on machine j may beat the best. w.cost holds it. The tensors
    count in the first `part_count` parts of the cost only.
    """
    scratch_row = w.parts.shape[0] - 1
    for i in range(w.part_scratch.shape[0]):
        w.parts[scratch_row, j, i] = t.base[j, i] + (remaining[0, i] if i < part_count else 0.0)
    objective_value(w.parts[scratch_row], j, m, w.cost)
    return wins(j, w.cost, best, w.ties_allowed)


@njit_inlined
def next_holders(
    j: int,
    resume: bool,
    t: Terms,
    m: Machine,
    sums: Floats,
    remaining: Floats,
    parts: Floats,
    choice: Ints,
    w: Work,
    best: Floats,
) -> bool:
    """Moves `choice` [X] to the next choice of levels for all tensors that may beat the best of machine j.
    Returns False where there is none. resume: False to begin with the first choice. w.cost holds the bound of
    the choice; parts [X + 1, P] is scratch.
    """
    x, tensors, scratch_row = choice.shape[0] - 1, choice.shape[0], w.parts.shape[0] - 1
    if not resume:
        for i in range(parts.shape[1]):
            parts[0, i] = t.base[j, i]
        x, choice[0] = 0, t.holder_span[0] - 1
    while x >= 0:
        choice[x] += 1
        if choice[x] >= t.holder_span[x + 1]:
            x -= 1
            continue
        for i in range(parts.shape[1]):
            parts[x + 1, i] = parts[x, i] + sums[choice[x], i]
            w.parts[scratch_row, j, i] = parts[x + 1, i] + remaining[x + 1, i]
        objective_value(w.parts[scratch_row], j, m, w.cost)
        if not wins(j, w.cost, best, w.ties_allowed):
            continue
        if x < tensors - 1:
            x += 1
            choice[x] = t.holder_span[x] - 1
            continue
        extra = outer_extra(j, choice, t, sums, w)
        if extra > 0.0:
            w.parts[scratch_row, j, PJ] += extra
            objective_value(w.parts[scratch_row], j, m, w.cost)
        if extra == 0.0 or wins(j, w.cost, best, w.ties_allowed):
            return True
    return False


@njit_inlined
def holders_may_improve(
    j: int,
    t: Terms,
    m: Machine,
    sums: Floats,
    remaining: Floats,
    parts: Floats,
    choice: Ints,
    w: Work,
    best: Floats,
) -> bool:
    """Whether some choice of levels for all tensors may beat the best of machine j. w.cost holds the bound of
    the choice with the lowest one.
    """
    found = False
    for i in range(3):
        w.lowest[j, i] = best[j, i]
    while next_holders(j, found, t, m, sums, remaining, parts, choice, w, w.lowest):
        if found and compare(w.cost, w.lowest[j]) >= 0:
            continue
        found = True
        for i in range(3):
            w.lowest[j, i] = w.cost[i]
    for i in range(3):
        w.cost[i] = w.lowest[j, i]
    return found
