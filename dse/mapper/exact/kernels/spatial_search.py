"""Spatial unrollings of all ranks: which are left to choose from, and a lower bound of the cost under each.

Unrollings of a rank form a binary tree: a node is a set of them, a leaf a single one. A box is a choice of
one node per rank, and stands for all unrollings that these contain together (`batch_search.search`).

With the PEs of all ranks fixed, what a tensor moves depends on the tile at its node alone, and the largest
tile that may stand there gives a lower bound. It is a product over ranks, so the least factors of all nodes
bound a box (`bound_box`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dse.mapper.exact.kernels.compare import objective_value, wins
from dse.mapper.exact.kernels.nest_search import holders_may_improve, may_improve, set_outer_sums, sum_bounds
from dse.mapper.exact.kernels.state import (
    ALONE,
    ANY,
    BUDGET,
    CHOICES,
    ENERGY,
    FEW_MACHINES,
    LATENCY,
    MAX_BOUNDARIES,
    MAX_WAYS,
    MIN_FOR_OUTER_BOUNDS,
    ONE,
    PJ,
    POINTS,
    QUANTITY_KIND,
    QUANTITY_TENSOR,
    Einsum,
    Hops,
    Machine,
    Memo,
    Pool,
    Rules,
    SortKey,
    Terms,
    Work,
)
from dse.mapper.exact.kernels.tile_sums import factor, hull_bound, links, look_up_links
from dse.run.compiled import njit_inlined, njit_internal, njit_no_alloc
from workloads.arrays import Bools, Floats, Ints


class HullBounds(NamedTuple):
    """The factors of windows in lower bounds of quantities (tile_sums.hull_bound). H pairs of a quantity and
    a dimension with up to two ranks; a factor depends on the unrollings of these.
    """

    pairs: Ints  # [H, 2] quantity, dimension
    start: Ints  # [H] where the pair begins in `value`
    row_length: Ints  # [H] how many unrollings the second rank has
    value: Floats  # at start + a * row_length + b: for unrolling a of the first rank, b of the second
    low: Floats  # [H, C] by unrolling of one rank, the least over the other's


class Unrollings(NamedTuple):
    """The spatial unrollings of all ranks end to end, C in all, with what bounds are made from."""

    rank_start: Ints  # [R + 1] first unrolling of each rank
    # [C, Q] lower bound of the factor that it gives to a quantity, without the factors of windows (`hulls`)
    # and the links of networks (`hops`), which depend on several ranks
    factors: Floats
    pes: Ints  # [C] PEs that it takes
    boundary_pes: Floats  # [C, B] PEs that it takes at a boundary, at least
    trips: Ints  # [C, D] PEs that it takes along a fan-out dimension, at least
    alive: Bools  # [C] whether it fits the machine
    uneven: Bools  # [C] whether the last PE may have less
    factorization_span: Ints  # [C, 2] from, to in `factorizations`
    factorizations: Ints  # [W, D] PEs along each fan-out dimension, for every way to take the PEs
    hulls: HullBounds
    hop_pair: Ints  # [Q] as Terms.hop_pair
    hops: Hops


class Trees(NamedTuple):
    """A tree per rank over its unrollings that are alive; N nodes in all, made as they are asked for. The
    roots are the first R nodes.

    A quantity is bounded by the product of the least factors of all nodes. But where factors are least many
    PEs are in use, and all ranks together have no more than there are. So there are L such bounds: for each
    set of boundaries, the product of the least (factor * PEs at these boundaries), divided by the PEs of the
    machine there. The greatest holds.
    """

    order: Ints  # [C] unrollings, those of a node next to each other
    span: Ints  # [N, 2] from, to in `order`
    child: Ints  # [N] the first of its two children, the other one follows; -1: none yet
    factors: Floats  # [N, L, Q] least factor, times the PEs at the boundaries of a set
    trips: Ints  # [N, D] least PEs along each fan-out dimension
    max_pes: Ints  # [N] most PEs
    uneven: Bools  # [N] whether the last PE may have less in any
    word_group_pes: Floats  # [N, W] least, as Hops.word_group_pes
    word_groups: Floats  # [N, W] least, as Hops.word_groups
    rectangle_pes: Ints  # [N, W] most, as Hops.rectangle_pes
    hulls: Floats  # [N, H] least, as HullBounds.low
    spread: Floats  # [N] how far costs of its unrollings may lie apart, 0: a leaf
    split: Ints  # [N] the column of `column` by which it is split
    node_count: Ints  # [1] nodes made
    sets: Bools  # [L, B] the sets of boundaries
    set_pes: Floats  # [L] PEs of the machine at the boundaries of a set
    share: Floats  # [Q + 2 W] share of the cost that depends on a column of `column`, roughly


@njit_internal()
def plant(u: Unrollings, m: Machine) -> Trees:
    """The trees, with their roots alone; a rank without any unrolling that fits has an empty root."""
    ranks, dims, quantity_count = u.rank_start.shape[0] - 1, u.trips.shape[1], u.factors.shape[1]
    boundaries, nodes, pairs = u.boundary_pes.shape[1], 2 * u.pes.shape[0] + ranks, u.hops.pes.shape[0]
    # boundaries beyond MAX_BOUNDARIES count in no set
    set_count = 1 << min(boundaries, MAX_BOUNDARIES)
    sets, set_pes = np.zeros((set_count, boundaries), np.bool_), np.ones(set_count)
    for k in range(set_count):
        for b in range(min(boundaries, MAX_BOUNDARIES)):
            sets[k, b] = k >> b & 1
        for d in range(dims):
            set_pes[k] *= m.fanout_size[d] if sets[k, m.fanout_boundary[d]] else 1
    trees = Trees(
        np.flatnonzero(u.alive),
        np.zeros((nodes, 2), np.int64),
        np.full(nodes, -1),
        np.empty((nodes, set_count, quantity_count)),
        np.empty((nodes, dims), np.int64),
        np.empty(nodes, np.int64),
        np.empty(nodes, np.bool_),
        np.empty((nodes, pairs)),
        np.empty((nodes, pairs)),
        np.empty((nodes, pairs), np.int64),
        np.empty((nodes, u.hulls.pairs.shape[0])),
        np.empty(nodes),
        np.empty(nodes, np.int64),
        np.zeros(1, np.int64),
        sets,
        set_pes,
        np.zeros(quantity_count + 2 * pairs),
    )
    for r in range(ranks):
        begin, end = np.searchsorted(trees.order, u.rank_start[r : r + 2])
        add_node(begin, end, u, trees)
    return trees


@njit_inlined
def column(o: int, i: int, u: Unrollings) -> float:
    """What an unrolling may be told apart by: factors of quantities, then PEs and number of word groups."""
    i -= u.factors.shape[1]
    if i < 0:
        return float(u.factors[o, i + u.factors.shape[1]])
    pair = i >> 1
    return float(u.hops.word_groups[o, pair] if i & 1 else u.hops.word_group_pes[o, pair])


@njit_no_alloc
def add_node(begin: int, end: int, u: Unrollings, trees: Trees) -> int:
    """Adds the node of the unrollings from begin to end of trees.order. Returns its number."""
    n = trees.node_count[0]
    trees.node_count[0] = n + 1
    trees.span[n, 0], trees.span[n, 1], trees.child[n] = begin, end, -1
    trees.max_pes[n], trees.uneven[n] = 0, False
    trees.factors[n] = np.inf
    trees.trips[n] = 1 << 62
    trees.word_group_pes[n] = trees.word_groups[n] = np.inf
    trees.rectangle_pes[n] = 1
    trees.hulls[n] = np.inf
    for i in range(begin, end):
        o = trees.order[i]
        trees.max_pes[n] = max(trees.max_pes[n], u.pes[o])
        trees.uneven[n] = trees.uneven[n] or u.uneven[o]
        for d in range(u.trips.shape[1]):
            trees.trips[n, d] = min(trees.trips[n, d], u.trips[o, d])
        for k in range(trees.sets.shape[0]):
            pes = 1.0
            for b in range(trees.sets.shape[1]):
                pes *= u.boundary_pes[o, b] if trees.sets[k, b] else 1.0
            for q in range(u.factors.shape[1]):
                trees.factors[n, k, q] = min(trees.factors[n, k, q], pes * u.factors[o, q])
        for pair in range(u.hops.pes.shape[0]):
            trees.word_group_pes[n, pair] = min(trees.word_group_pes[n, pair], u.hops.word_group_pes[o, pair])
            trees.word_groups[n, pair] = min(trees.word_groups[n, pair], u.hops.word_groups[o, pair])
            trees.rectangle_pes[n, pair] = max(trees.rectangle_pes[n, pair], u.hops.rectangle_pes[o, pair])
        for j in range(trees.hulls.shape[1]):
            trees.hulls[n, j] = min(trees.hulls[n, j], u.hulls.low[j, o])
    set_spread(n, u, trees)
    return int(n)


@njit_no_alloc
def set_spread(n: int, u: Unrollings, trees: Trees) -> None:
    """Sets the spread of a node, and the column that contributes most to it."""
    begin, end = trees.span[n]
    trees.spread[n], trees.split[n], most = 0.0, 0, -1.0
    for i in range(trees.share.shape[0] if end - begin > 1 else 0):
        low, high = np.inf, 0.0
        for at in range(begin, end):
            value = column(trees.order[at], i, u)
            low, high = min(low, value), max(high, value)
        spread = trees.share[i] * (high - low) / max(low, 1e-3 * high) if high > low else 0.0
        trees.spread[n] += spread
        if spread > most:
            trees.split[n], most = i, spread
    if end - begin > 1 and not trees.spread[n] > 0.0:  # 0, or not a number: told apart last
        trees.spread[n] = 1e-12


@njit_no_alloc
def split_node(n: int, u: Unrollings, trees: Trees) -> None:
    """Makes the two children of a node, if it has none yet: unrollings below and above the middle of the
    column trees.split, on a logarithmic scale; two halves where all have the same number there.
    """
    if trees.child[n] >= 0:
        return
    begin, end = trees.span[n]
    low, high = np.inf, 0.0
    for at in range(begin, end):
        value = column(trees.order[at], trees.split[n], u)
        low, high = min(low, value), max(high, value)
    middle = np.sqrt(low * high)
    cut = begin
    for at in range(begin, end):
        if column(trees.order[at], trees.split[n], u) <= middle:
            trees.order[at], trees.order[cut], cut = trees.order[cut], trees.order[at], cut + 1
    if cut in (begin, end):
        cut = (begin + end) // 2
    trees.child[n] = add_node(begin, cut, u, trees)
    add_node(cut, end, u, trees)


@njit_inlined
def widest(box: Ints, trees: Trees) -> int:
    """The rank whose node has the largest spread, -1: all are leaves."""
    found, most = -1, 0.0
    for r in range(box.shape[0]):
        if trees.spread[box[r]] > most:
            found, most = r, trees.spread[box[r]]
    return found


@njit_no_alloc
def set_shares(bounding: Bounding, trees: Trees, u: Unrollings) -> None:
    """Sets trees.share, from the bound of all unrollings together on the first machine (Scratch.low, and
    w.cost: objective, energy, latency), and with it the spread of all nodes.
    """
    t, _e, m, s, w = bounding
    quantity_count = s.low.shape[0]
    leakage = m.leak[0] * w.cost[2] / w.cost[1] if w.cost[1] > 0.0 else 0.0
    for link in range(t.low_of.shape[0]):
        q, cycles = t.low_of[link], 0.0
        for i in range(t.low_coef.shape[2]):
            cycles = max(cycles, t.low_coef[0, link, i] if i != PJ else 0.0)
        share = t.low_coef[0, link, PJ] / w.cost[1] if m.objective != LATENCY and w.cost[1] > 0.0 else 0.0
        if w.cost[2] > 0.0:
            share += cycles / w.cost[2] * (leakage if m.objective == ENERGY else 1.0)
        trees.share[q] = max(trees.share[q], share * s.low[q])
    for q in range(quantity_count):
        pair = u.hop_pair[q]
        for i in range(2 if pair >= 0 else 0):
            trees.share[quantity_count + 2 * pair + i] += trees.share[q]
    for n in range(trees.node_count[0]):
        set_spread(n, u, trees)


@njit_no_alloc
def bound_box(
    box: Ints, trees: Trees, u: Unrollings, live_count: int, rules: Rules, bounding: Bounding, best: Floats
) -> int:
    """Writes to Scratch.bound [J, 3] the lower bounds of all unrollings of a box on those of the machines
    Scratch.live[0] that may be better than their best, and these machines to Scratch.live[1]. Returns how
    many they are. Where all nodes are leaves Work.unrolling becomes the unrolling.
    """
    _t, _e, m, s, w = bounding
    w.tally[CHOICES] += 1 + live_count // 16
    uneven, pes, single = not rules.uneven_only, 1, True
    for r in range(box.shape[0]):
        n = box[r]
        uneven, pes = uneven or trees.uneven[n], pes * trees.max_pes[n]
        s.single[r] = trees.span[n, 1] - trees.span[n, 0] == 1
        single = single and s.single[r]
        w.unrolling[r] = trees.order[trees.span[n, 0]]
    if not uneven or pes < rules.min_pes:
        return 0
    for d in range(trees.trips.shape[1]):
        trips = 1
        for r in range(box.shape[0]):
            trips *= trees.trips[box[r], d]
        if trips > m.fanout_size[d]:
            return 0
    if single and not fit_together(u, bounding):
        return 0
    for q in range(s.low.shape[0]):
        s.low[q] = 0.0
        for k in range(1 if single else trees.sets.shape[0]):
            low = 1.0
            for r in range(box.shape[0]):
                low *= trees.factors[box[r], k, q]
            s.low[q] = max(s.low[q], low / trees.set_pes[k])
    multiply_joint_factors(box, single, trees, u, bounding)
    s.bound[:] = np.inf
    return filter_machines(s.live[0], live_count, s.live[1], single, s.bound, bounding, best)


@njit_inlined
def multiply_joint_factors(box: Ints, single: bool, trees: Trees, u: Unrollings, bounding: Bounding) -> None:
    """Multiplies Scratch.low [Q] by what depends on several ranks: factors of windows, and the least links of
    networks. single: whether all nodes of the box are leaves.
    """
    _t, e, _m, s, w = bounding
    for pair in range(u.hops.pes.shape[0]):
        if single:
            least = links(pair, w.unrolling, u.hops)
        else:
            word_group_pes, word_groups, rectangle = 1.0, 1.0, 1
            for r in range(box.shape[0]):
                word_group_pes *= trees.word_group_pes[box[r], pair]
                word_groups *= trees.word_groups[box[r], pair]
                rectangle *= trees.rectangle_pes[box[r], pair]
            least = look_up_links(pair, ANY, word_group_pes, word_groups, rectangle, u.hops)
        for q in range(s.low.shape[0]):
            if u.hop_pair[q] == pair:
                s.low[q] *= least
    for j in range(u.hulls.pairs.shape[0]):
        q, dim = u.hulls.pairs[j]
        a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
        if (a < 0 or s.single[a]) and (b < 0 or s.single[b]):
            at = (w.unrolling[a] - u.rank_start[a] if a >= 0 else 0) * u.hulls.row_length[j] + (
                w.unrolling[b] - u.rank_start[b] if b >= 0 else 0
            )
            s.low[q] *= u.hulls.value[u.hulls.start[j] + at]
        else:
            s.low[q] *= max(
                trees.hulls[box[a], j] if a >= 0 else 0.0, trees.hulls[box[b], j] if b >= 0 else 0.0
            )


@njit_inlined
def fit_together(u: Unrollings, bounding: Bounding) -> bool:
    """Whether some factorizations of the unrollings Work.unrolling fit the fan-out dimensions together. Where
    there are more ways than are listed the search ends, and proves nothing.
    """
    _t, _e, m, s, w = bounding
    for r in range(w.unrolling.shape[0]):
        if not extend_pes(r, w.unrolling[r], s.used, s.way_count, u, m):
            return False
        if s.way_count[r + 1] == MAX_WAYS:
            w.tally[BUDGET] = -1
    return True


@njit_inlined
def extend_pes(i: int, o: int, used: Ints, way_count: Ints, u: Unrollings, m: Machine) -> bool:
    """Combines every way in which the first i ranks take PEs with every factorization of unrolling o of the
    next one: writes entry i + 1 of `used` and `way_count`. Returns whether some way fits the dimensions.

    used: [R + 1, ., D] PEs in use per dimension, by number of ranks and way. A way is left out that needs at
        least as many as an earlier one in every dimension.
    way_count: [R + 1] how many ways there are.
    """
    n, dims = 0, m.fanout_size.shape[0]
    for way in range(way_count[i]):
        for k in range(u.factorization_span[o, 0], u.factorization_span[o, 1]):
            fits = True
            for d in range(dims):
                used[i + 1, n, d] = used[i, way, d] * u.factorizations[k, d]
                fits = fits and used[i + 1, n, d] <= m.fanout_size[d]
            if not fits:
                continue
            is_dominated = False
            for j in range(n):
                dominates = True
                for d in range(dims):
                    dominates = dominates and used[i + 1, j, d] <= used[i + 1, n, d]
                is_dominated = is_dominated or dominates
            if not is_dominated and n < MAX_WAYS:
                n += 1
    way_count[i + 1] = n
    return n > 0


@njit_internal()
def hull_bounds(t: Terms, e: Einsum, p: Pool, memo: Memo, unrolling: Ints) -> HullBounds:
    """The factors of all windows (dimensions of kind HULL or CLIPPED) in the bounds of all quantities.
    `unrolling` [R] is scratch.
    """
    n, at, most = 0, 0, t.quantity.shape[0] * e.kind.shape[0]
    pairs, start, row_length = (
        np.empty((most, 2), np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
    )
    value, low = np.empty(1024), np.full((most, p.factorization_span.shape[0]), np.inf)
    for q in range(t.quantity.shape[0]):
        x = t.quantity[q, QUANTITY_TENSOR]
        for dim in range(e.first_dim[x], e.first_dim[x + 1]):
            # no hull: one rank alone, or a quantity that depends on no tile (constants ONE, accesses of
            # compute)
            if e.kind[dim] == ALONE or t.quantity[q, QUANTITY_KIND] in (ONE, POINTS):
                continue
            a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
            from_a, to_a = (p.rank_start[a], p.rank_start[a + 1]) if a >= 0 else (0, 1)
            from_b, to_b = (p.rank_start[b], p.rank_start[b + 1]) if b >= 0 else (0, 1)
            pairs[n, 0], pairs[n, 1], start[n], row_length[n] = q, dim, at, to_b - from_b
            while at + (to_a - from_a) * row_length[n] > value.shape[0]:
                value = np.concatenate((value, np.empty_like(value)))
            for i in range(from_a, to_a):
                for j in range(from_b, to_b):
                    if a >= 0:
                        unrolling[a] = i
                    if b >= 0:
                        unrolling[b] = j
                    value[at] = hull_bound(q, dim, unrolling, t, e, p, memo)
                    if a >= 0:
                        low[n, i] = min(low[n, i], value[at])
                    if b >= 0:
                        low[n, j] = min(low[n, j], value[at])
                    at += 1
            n += 1
    return HullBounds(pairs[:n], start, row_length, value, low)


@njit_internal()
def unrollings(t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work) -> Unrollings:
    """The spatial unrollings of all ranks, with what bounds are made from. The pool may be made for a larger
    machine: unrollings that do not fit are not alive.
    """
    ranks, quantity_count, compute = (
        w.unrolling.shape[0],
        t.quantity.shape[0],
        int(m.position[m.capacity.shape[0]]),
    )
    count, dims = p.rank_start[ranks], m.fanout_size.shape[0]
    factors, alive = np.empty((count, quantity_count)), np.zeros(count, np.bool_)
    trips, boundary_pes = np.full((count, dims), 1 << 62), np.full((count, compute), np.inf)
    for r in range(ranks):
        for o in range(p.rank_start[r], p.rank_start[r + 1]):
            for way in range(p.factorization_span[o, 0], p.factorization_span[o, 1]):
                alive[o] = add_way(p.factorizations[way], m, trips[o], boundary_pes[o]) or alive[o]
            for q in range(quantity_count if alive[o] else 0):
                factors[o, q] = factor(q, r, o, t, e, p)
    return Unrollings(
        p.rank_start,
        factors,
        p.pes[:, compute, 0].astype(np.int64),
        boundary_pes,
        trips,
        alive,
        p.uneven,
        p.factorization_span,
        p.factorizations,
        hull_bounds(t, e, p, memo, w.unrolling),
        t.hop_pair,
        t.hops,
    )


@njit_no_alloc
def add_way(factorization: Ints, m: Machine, trips: Ints, boundary_pes: Floats) -> bool:
    """Lowers trips [D] and boundary_pes [B] to those of a factorization [D], and returns True, if it fits the
    machine.
    """
    for d in range(factorization.shape[0]):
        if factorization[d] > m.fanout_size[d]:
            return False
    for b in range(boundary_pes.shape[0]):
        pes = 1.0
        for d in range(factorization.shape[0]):
            pes *= factorization[d] if m.fanout_boundary[d] == b else 1.0
        boundary_pes[b] = min(boundary_pes[b], pes)
    for d in range(factorization.shape[0]):
        trips[d] = min(trips[d], factorization[d])
    return True


class LinkCoefs(NamedTuple):
    """The coefficients other than zero in the lower bounds of all sets of levels (Terms.low), end to end."""

    span: Ints  # [N, 2] from, to: the coefficients of a set of levels
    quantity: Ints  # [.] the quantity that a coefficient is multiplied by
    part: Ints  # [.] its part of the cost
    coef: Floats  # [., J] its value on each machine
    has_part: Bools  # [X, P] whether any set of levels of a tensor has coefficients of the part


class Scratch(NamedTuple):
    """Arrays that the bounds of spatial unrollings are computed in."""

    low: Floats  # [Q] lower bounds of quantities
    single: Bools  # [R] whether a rank's node is a leaf
    used: Ints  # [R + 1, ., D] for `extend_pes`
    way_count: Ints  # [R + 1] for `extend_pes`
    sums: Floats  # [N, P + 1] for `sum_bounds`, `set_outer_sums`
    remaining: Floats  # [X + 1, P] for `sum_bounds`
    cost_sums: Floats  # [X + 1, P] for `holders_may_improve`
    holder_choice: Ints  # [X] for `holders_may_improve`
    link_coefs: LinkCoefs
    bound: Floats  # [J, 3] bounds of a box
    all_tensors: Floats  # [P, J] for `screen_machines`: bound of all tensors
    one_tensor: Floats  # [P, J] the same: of one tensor
    one_set: Floats  # [P, J] the same: of one set of levels of a tensor
    live: Ints  # [2, J] machines on which a box may be best: before, and after its bound is known


class Bounding(NamedTuple):
    """What bounds of spatial unrollings are made from, and the state and arrays that they are made in."""

    terms: Terms
    einsum: Einsum
    machine: Machine
    scratch: Scratch
    work: Work


@njit_internal()
def scratch(t: Terms, m: Machine, w: Work) -> Scratch:
    """Arrays that bounds are made in, made once per search."""
    parts, tensors, ranks, machines = (
        w.part_scratch.shape[0],
        t.holder_span.shape[0] - 1,
        w.unrolling.shape[0],
        w.best_count.shape[0],
    )
    return Scratch(
        np.empty(t.quantity.shape[0]),
        np.zeros(ranks, np.bool_),
        np.ones((ranks + 1, MAX_WAYS + 1, m.fanout_size.shape[0]), np.int64),
        np.ones(ranks + 1, np.int64),
        np.zeros((t.holder_sets.shape[0], parts + 1)),
        np.empty((tensors + 1, parts)),
        np.empty((tensors + 1, parts)),
        np.empty(tensors, np.int64),
        nonzero_coefs(t, machines),
        np.empty((machines, 3)),
        np.empty((parts, machines)),
        np.empty((parts, machines)),
        np.empty((parts, machines)),
        np.empty((2, machines), np.int64),
    )


@njit_internal()
def nonzero_coefs(t: Terms, machines: int) -> LinkCoefs:
    """The coefficients of `screen_machines`. Empty for up to `FEW_MACHINES` machines, which are compared with
    bounds one by one.
    """
    n, parts = 0, t.base.shape[1]
    span, has_part, max_count = (
        np.empty((t.holder_sets.shape[0], 2), np.int64),
        np.zeros((t.holder_span.shape[0] - 1, parts), np.bool_),
        t.low_of.shape[0] * parts,
    )
    if machines <= FEW_MACHINES:
        max_count = 0
    quantity, part, coef = (
        np.empty(max_count, np.int64),
        np.empty(max_count, np.int64),
        np.empty((max_count, machines)),
    )
    for x in range(has_part.shape[0] if max_count > 0 else 0):
        for k in range(t.holder_span[x], t.holder_span[x + 1]):
            span[k, 0] = n
            for link in range(t.low[k, 0], t.low[k, 1]):
                for i in range(parts):
                    if (t.low_coef[:, link, i] != 0.0).any():
                        quantity[n], part[n], has_part[x, i] = t.low_of[link], i, True
                        coef[n], n = t.low_coef[:, link, i], n + 1
            span[k, 1] = n
    return LinkCoefs(span, quantity, part, coef[:n].copy(), has_part)


@njit_no_alloc
def screen_machines(live: Ints, n: int, out: Ints, bounding: Bounding, best: Floats) -> int:
    """Writes to `out` those of n machines `live` on which the quantities in Scratch.low may lead below the
    best, if each tensor is held by the set of levels that is lowest in each part by itself. Returns how many
    these are. The unrollings of some ranks may still be open.

    The bound is that of `may_improve` with all parts, made for all machines together.
    """
    t, _e, m, s, w = bounding
    parts, sums, scratch_row = w.part_scratch.shape[0], s.link_coefs, w.parts.shape[0] - 1
    for i in range(parts):
        for a in range(n):
            s.all_tensors[i, a] = t.base[live[a], i]
    for tensor in range(sums.has_part.shape[0]):
        for k in range(t.holder_span[tensor], t.holder_span[tensor + 1]):
            set_bound = s.one_tensor if k == t.holder_span[tensor] else s.one_set
            for i in range(parts):
                if sums.has_part[tensor, i]:
                    for a in range(n):
                        set_bound[i, a] = 0.0
            for link in range(sums.span[k, 0], sums.span[k, 1]):
                i, low = sums.part[link], s.low[sums.quantity[link]]
                for a in range(n):
                    set_bound[i, a] += sums.coef[link, live[a]] * low
            if k > t.holder_span[tensor]:
                for i in range(parts):
                    if sums.has_part[tensor, i]:
                        for a in range(n):
                            s.one_tensor[i, a] = min(s.one_tensor[i, a], set_bound[i, a])
        for i in range(parts):
            if sums.has_part[tensor, i]:
                for a in range(n):
                    s.all_tensors[i, a] += s.one_tensor[i, a]
    live_count = 0
    for a in range(n):
        j = live[a]
        for i in range(parts):
            w.parts[scratch_row, j, i] = s.all_tensors[i, a]
        objective_value(w.parts[scratch_row], j, m, w.cost)
        if wins(j, w.cost, best, w.ties_allowed):
            out[live_count], live_count = j, live_count + 1
    return live_count


@njit_inlined
def may_beat(j: int, all_assigned: bool, t: Terms, m: Machine, s: Scratch, w: Work, best: Floats) -> bool:
    """Whether the quantities in Scratch.low may lead below the best of machine j. w.cost holds the lowest
    bound.

    all_assigned: whether the unrollings of all ranks are known.
    """
    span, quantity, coef = (t.sum, t.sum_of, t.sum_coef) if all_assigned else (t.low, t.low_of, t.low_coef)
    # energy and compute cycles first: two parts often rule it out
    for part_count in (2, w.part_scratch.shape[0]):
        if not may_improve(
            j,
            sum_bounds(s.low, j, t, span, quantity, coef, part_count, s.sums, s.remaining),
            t,
            m,
            s.remaining,
            w,
            best,
        ):
            return False
    if w.tally[MIN_FOR_OUTER_BOUNDS] < 0:
        outer_pj = t.sum_outer_pj if all_assigned else t.low_outer_pj
        set_outer_sums(s.low, j, span, quantity, outer_pj, s.sums)
    return holders_may_improve(j, t, m, s.sums, s.remaining, s.cost_sums, s.holder_choice, w, best)


@njit_inlined
def filter_machines(
    live: Ints, n: int, out: Ints, all_assigned: bool, low: Floats, bounding: Bounding, best: Floats
) -> int:
    """Writes to `out` those of n machines `live` on which the quantities in Scratch.low may lead below the
    best. Returns how many these are.

    all_assigned: whether the unrollings of all ranks are known.
    low: [J, 3] gets the bound of each of these machines: of the choice of levels where it is lowest.
    """
    t, _e, m, s, w = bounding
    source = live
    if n > FEW_MACHINES:
        n, source = screen_machines(live, n, out, bounding, best), out
    live_count = 0
    for a in range(n):
        j = source[a]
        if may_beat(j, all_assigned, t, m, s, w, best):
            out[live_count], live_count = j, live_count + 1
            for i in range(3):
                low[j, i] = w.cost[i]
    return live_count


@njit_inlined
def sort_key(low: Floats, unit: Floats) -> SortKey:
    """The key that bounds [J, 3] are ordered by: the lowest (objective, energy) of all machines, in units of
    each machine (w.unit).
    """
    lowest = (np.inf, np.inf)
    for j in range(low.shape[0]):
        key = (low[j, 0] / unit[j, 0], low[j, 1] / unit[j, 1])
        if key < lowest:
            lowest = key
    return lowest


@njit_internal()
def by_sort_key(keys: Floats) -> Ints:
    """Indices that sort keys [n, 2] (`sort_key`), lowest first. The sort is stable."""
    by_energy = np.argsort(keys[:, 1], kind="mergesort")
    return by_energy[np.argsort(keys[by_energy, 0], kind="mergesort")]


@njit_internal()
def by_bound(bound: Floats, unit: Floats) -> Ints:
    """Indices that sort bounds [n, J, 3] by their key (`sort_key`), lowest first."""
    keys = np.empty((bound.shape[0], 2))
    for i in range(bound.shape[0]):
        keys[i, 0], keys[i, 1] = sort_key(bound[i], unit)
    return by_sort_key(keys)
