"""Enumeration of spatial unrollings: a lower bound of the cost under each, and which of them no machine of
the batch needs.

With the PEs of all ranks fixed, what a tensor moves depends on the tile at its node alone. The largest tile
that may stand there gives the lower bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dse.mapper.exact.kernels.compare import compare, objective_value, wins
from dse.mapper.exact.kernels.nest_search import holders_may_improve, may_improve, sum_bounds
from dse.mapper.exact.kernels.state import (
    ALL,
    ALONE,
    ANY,
    BUDGET,
    CHOICES,
    FEW_MACHINES,
    MAX_CELLS,
    MAX_CHOICES,
    ONE,
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
from dse.mapper.exact.kernels.tile_sums import factor, hull_bound, look_up_links
from dse.run.compiled import njit, njit_internal, njit_no_alloc
from workloads.arrays import Bools, Floats, Ints


class HullBounds(NamedTuple):
    """The factors of windows in lower bounds of quantities (tile_sums.hull_bound). N pairs of a quantity and
    a dimension with up to two ranks; a factor depends on the unrollings of these.
    """

    pairs: Ints  # [N, 2] quantity, dimension
    start: Ints  # [N] where the pair begins in `value`
    row_length: Ints  # [N] how many unrollings the second rank has
    value: Floats  # at start + a * row_length + b: for unrolling a of the first rank, b of the second
    # [N, C + 1] by unrolling of one rank, the least over the other's; last column: over both ranks
    low: Floats


class Choices(NamedTuple):
    """The spatial unrollings of all ranks end to end, C in all, with their bounds. Or, in their place, groups
    of unrollings of a rank with equally many PEs (`group_equal_pes`); a group has the lowest bounds of its
    members, and all factorizations that none of the group dominates.
    """

    rank_start: Ints  # [R + 1] first unrolling of each rank
    # [C, Q] lower bound of the factor that it gives to a quantity, without the factors of windows (`hulls`)
    # and the links of networks (`hops`), which depend on several ranks
    factors: Floats
    pes: Ints  # [C] PEs that it takes
    alive: Bools  # [C] whether it fits and is open on some machine
    open_on: Bools  # [C, J] whether it may lead below the best of a machine
    uneven: Bools  # [C] whether the last PE may have less
    factorization_span: Ints  # [C, 2] from, to in `factorizations`
    factorizations: Ints  # [W, D] PEs along each fan-out dimension, for every way to take the PEs
    hulls: HullBounds
    hop_pair: Ints  # [Q] as Terms.hop_pair
    hops: Hops


@njit_internal()
def extend_pes(i: int, o: int, used: Ints, way_count: Ints, c: Choices, m: Machine) -> bool:
    """Combines every way in which the earlier ranks take PEs with every factorization of unrolling o of the
    i-th rank: writes entry i + 1 of `used` and `way_count`. Returns whether some way fits the dimensions.

    used: [R + 1, ., D] PEs in use per dimension, by number of ranks and way. A way is left out that needs at
        least as many as an earlier one in every dimension.
    way_count: [R + 1] how many ways there are.
    """
    n, dims = 0, m.fanout_size.shape[0]
    for u in range(way_count[i]):
        for k in range(c.factorization_span[o, 0], c.factorization_span[o, 1]):
            fits = True
            for d in range(dims):
                used[i + 1, n, d] = used[i, u, d] * c.factorizations[k, d]
                fits = fits and used[i + 1, n, d] <= m.fanout_size[d]
            if not fits:
                continue
            is_dominated = False
            for j in range(n):
                dominates = True
                for d in range(dims):
                    dominates = dominates and used[i + 1, j, d] <= used[i + 1, n, d]
                is_dominated = is_dominated or dominates
            if not is_dominated and n < used.shape[1] - 1:
                n += 1
    way_count[i + 1] = n
    return n > 0


class FreePes(NamedTuple):
    """A grid over the PEs that earlier ranks may leave in each fan-out dimension, rounded up to few values
    each. A cell is one combination of these values; there are F cells.
    """

    pes: Ints  # [F, D] PEs left in a cell
    # [D, .] by PEs left in one dimension; the sum of these numbers over dimensions is the index of the cell
    cell: Ints


@njit(cache=True, nogil=True)
def quotients(size: Ints) -> FreePes:
    """The cells for all PEs that may be left: in each dimension its size [D] divided by whole numbers,
    rounded down. If these are more than `MAX_CELLS` cells, values in a distance below a step are left out,
    and the step is doubled until they are not.
    """
    dims, max_size, steps, value_count, cells = (
        size.shape[0],
        1,
        np.ones(size.shape[0], np.int64),
        np.zeros(size.shape[0], np.int64),
        MAX_CELLS + 1,
    )
    for d in range(dims):
        max_size = max(max_size, size[d])
    found = np.zeros((dims, max_size + 1), np.bool_)
    while cells > MAX_CELLS:
        cells = 1
        for d in range(dims):
            found[d] = False
            n = size[d]
            while n > 0:
                found[d, n] = True
                n = min(size[d] // (size[d] // n + 1), n - steps[d])
            value_count[d] = found[d].sum()
            cells *= value_count[d]
        for d in range(dims):
            steps[d] *= 2
    pes, cell, stride = np.ones((cells, dims), np.int64), np.zeros(found.shape, np.int64), 1
    for d in range(dims):
        values = np.flatnonzero(found[d])
        for n in range(1, size[d] + 1):
            cell[d, n] = stride * np.searchsorted(values, n)
        for c in range(cells):
            pes[c, d] = values[c // stride % value_count[d]]
        stride *= value_count[d]
    return FreePes(pes, cell)


@njit_internal()
def min_later_by_dims(c: Choices, order: Ints, cells: FreePes) -> Floats:
    """[R + 1, F, Q] lower bounds of the factor that the i-th rank of `order` and all later ones give to a
    quantity, by cell of the PEs that are left to them; inf where they do not fit.
    """
    ranks, dims = order.shape[0], cells.pes.shape[1]
    found = np.ones((ranks + 1, cells.pes.shape[0], c.factors.shape[1]))
    for i in range(ranks - 1, -1, -1):
        found[i] = np.inf
        for o in range(c.rank_start[order[i]], c.rank_start[order[i] + 1]):
            for k in range(c.factorization_span[o, 0], c.factorization_span[o, 1] if c.alive[o] else 0):
                for j in range(cells.pes.shape[0]):
                    after = 0
                    for d in range(dims):
                        n = cells.pes[j, d] // c.factorizations[k, d]
                        after = after + cells.cell[d, n] if n > 0 and after >= 0 else -1
                    if after >= 0:
                        for q in range(c.factors.shape[1]):
                            found[i, j, q] = min(found[i, j, q], c.factors[o, q] * found[i + 1, after, q])
    return found


@njit_internal()
def min_later_by_pes(c: Choices, order: Ints, pe_limits: Ints) -> Floats:
    """[R + 1, J, Q] lower bounds of the factor that the i-th rank of `order` and all later ones give to a
    quantity, if they use at most pe_limits[j] PEs together.
    """
    ranks = order.shape[0]
    found = np.ones((ranks + 1, pe_limits.shape[0], c.factors.shape[1]))
    for i in range(ranks - 1, -1, -1):
        found[i] = np.inf
        for o in range(c.rank_start[order[i]], c.rank_start[order[i] + 1]):
            for j in range(pe_limits.shape[0] if c.alive[o] else 0):
                if c.pes[o] <= pe_limits[j]:
                    left = smallest_limit(pe_limits[j] // c.pes[o], pe_limits)
                    for q in range(c.factors.shape[1]):
                        found[i, j, q] = min(found[i, j, q], c.factors[o, q] * found[i + 1, left, q])
    return found


@njit_internal()
def min_other_ranks(earlier: Floats, later: Floats, pe_limits: Ints) -> Floats:
    """[J, Q] lower bounds of the factor that two sets of ranks give together, if they use at most
    pe_limits[j] PEs together. earlier, later: [J, Q] the same bounds of each set (`min_later_by_pes`).
    """
    found = np.full(later.shape, np.inf)
    for j in range(pe_limits.shape[0]):
        for i in range(j + 1):
            # the first set takes more PEs than the limit below i, else its bound would stand there
            left = smallest_limit(pe_limits[j] // (pe_limits[i - 1] + 1 if i else 1), pe_limits)
            for q in range(later.shape[1]):
                found[j, q] = min(found[j, q], earlier[i, q] * later[left, q])
    return found


@njit_no_alloc
def smallest_limit(pes: int, pe_limits: Ints) -> int:
    """The index of the smallest number in `pe_limits` that is at least `pes`."""
    return int(np.searchsorted(pe_limits, pes))


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
    value, low = np.empty(1024), np.full((most, p.factorization_span.shape[0] + 1), np.inf)
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
                    low[n, p.factorization_span.shape[0]] = min(
                        low[n, p.factorization_span.shape[0]], value[at]
                    )
                    at += 1
            n += 1
    return HullBounds(pairs[:n], start, row_length, value, low)


@njit_no_alloc
def multiply_joint_factors(low: Floats, c: Choices, unrolling: Ints, assigned: Bools, e: Einsum) -> None:
    """Multiplies low [Q] by the factors of windows and by the least links of networks. assigned: [R] whether
    a rank's unrolling is known. A rank whose unrolling is not takes the one with the lowest factor; on a
    network, a single PE.
    """
    for pair in range(c.hops.pes.shape[0]):
        word_group_pes, word_groups = 1.0, 1.0
        for r in range(unrolling.shape[0]):
            if assigned[r]:
                word_group_pes *= c.hops.word_group_pes[unrolling[r], pair]
                word_groups *= c.hops.word_groups[unrolling[r], pair]
        links = look_up_links(pair, ANY, word_group_pes, word_groups, c.hops)
        for q in range(low.shape[0]):
            if c.hop_pair[q] == pair:
                low[q] *= links
    for j in range(c.hulls.pairs.shape[0]):
        q, dim = c.hulls.pairs[j]
        a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
        if (a < 0 or assigned[a]) and (b < 0 or assigned[b]):
            at = (unrolling[a] - c.rank_start[a] if a >= 0 else 0) * c.hulls.row_length[j] + (
                unrolling[b] - c.rank_start[b] if b >= 0 else 0
            )
            low[q] *= c.hulls.value[c.hulls.start[j] + at]
        else:
            low[q] *= c.hulls.low[
                j,
                unrolling[a]
                if a >= 0 and assigned[a]
                else unrolling[b]
                if b >= 0 and assigned[b]
                else c.hulls.low.shape[1] - 1,
            ]


@njit_internal()
def group_equal_pes(c: Choices, e: Einsum) -> tuple[Choices, Ints]:
    """Returns two things: the groups of unrollings of a rank with equally many PEs, G in all, in the form of
    choices; and the first unrolling of each group [G + 1] (the unrollings of a group follow each other).
    """
    ranks, n = c.rank_start.shape[0] - 1, 0
    rank_start, group_start = np.zeros(ranks + 1, np.int64), np.zeros(c.pes.shape[0] + 1, np.int64)
    group_of = np.zeros(c.pes.shape[0], np.int64)
    for r in range(ranks):
        for o in range(c.rank_start[r], c.rank_start[r + 1]):
            if o == c.rank_start[r] or c.pes[o] != c.pes[o - 1]:
                group_start[n], n = o, n + 1
            group_of[o] = n - 1
        rank_start[r + 1] = n
    group_start[n] = c.pes.shape[0]
    pairs_of_hops = c.hops.pes.shape[0]
    word_group_pes = np.full((n, pairs_of_hops), np.inf)
    word_groups = np.full((n, pairs_of_hops), np.inf)
    factors, alive, uneven, factorization_span = (
        np.full((n, c.factors.shape[1]), np.inf),
        np.zeros(n, np.bool_),
        np.zeros(n, np.bool_),
        np.zeros((n, 2), np.int64),
    )
    open_on = np.zeros((n, c.open_on.shape[1]), np.bool_)
    factorizations, factorization_count = np.empty_like(c.factorizations), 0
    for g in range(n):
        factorization_span[g, 0] = factorization_count
        for o in range(group_start[g], group_start[g + 1]):
            for k in range(c.factorization_span[o, 0], c.factorization_span[o, 1] if c.alive[o] else 0):
                factorization_count = add_undominated(
                    c.factorizations[k], factorizations, factorization_span[g, 0], factorization_count
                )
        factorization_span[g, 1] = factorization_count
        for o in range(group_start[g], group_start[g + 1]):
            alive[g], uneven[g] = alive[g] or c.alive[o], uneven[g] or c.uneven[o]
            for j in range(open_on.shape[1]):
                open_on[g, j] = open_on[g, j] or c.open_on[o, j]
            for q in range(c.factors.shape[1] if c.alive[o] else 0):
                factors[g, q] = min(factors[g, q], c.factors[o, q])
            for pair in range(pairs_of_hops if c.alive[o] else 0):
                word_group_pes[g, pair] = min(word_group_pes[g, pair], c.hops.word_group_pes[o, pair])
                word_groups[g, pair] = min(word_groups[g, pair], c.hops.word_groups[o, pair])
    pairs, at = c.hulls.pairs.shape[0], 0
    hull_start, row_length, low, value = (
        np.empty(pairs, np.int64),
        np.empty(pairs, np.int64),
        np.full((pairs, n + 1), np.inf),
        np.full(c.hulls.value.shape[0], np.inf),
    )
    for j in range(pairs):
        a, b = e.dim_ranks[c.hulls.pairs[j, 1]]
        from_a, to_a = (c.rank_start[a], c.rank_start[a + 1]) if a >= 0 else (0, 1)
        from_b, to_b = (c.rank_start[b], c.rank_start[b + 1]) if b >= 0 else (0, 1)
        hull_start[j], row_length[j] = at, rank_start[b + 1] - rank_start[b] if b >= 0 else 1
        for i in range(from_a, to_a):
            for k in range(from_b, to_b):
                bound = c.hulls.value[c.hulls.start[j] + (i - from_a) * c.hulls.row_length[j] + k - from_b]
                slot = (
                    at
                    + (group_of[i] - rank_start[a] if a >= 0 else 0) * row_length[j]
                    + (group_of[k] - rank_start[b] if b >= 0 else 0)
                )
                value[slot] = min(value[slot], bound)
                if a >= 0:
                    low[j, group_of[i]] = min(low[j, group_of[i]], bound)
                if b >= 0:
                    low[j, group_of[k]] = min(low[j, group_of[k]], bound)
                low[j, n] = min(low[j, n], bound)
        at += (rank_start[a + 1] - rank_start[a] if a >= 0 else 1) * row_length[j]
    return Choices(
        rank_start,
        factors,
        c.pes[group_start[:n]],
        alive,
        open_on,
        uneven,
        factorization_span,
        factorizations,
        HullBounds(c.hulls.pairs, hull_start, row_length, value, low),
        c.hop_pair,
        Hops(word_group_pes, word_groups, c.hops.unequal, c.hops.pes, c.hops.first, c.hops.links),
    ), group_start[: n + 1]


@njit_no_alloc
def add_undominated(factorization: Ints, front: Ints, begin: int, end: int) -> int:
    """Adds factorization [D] to the Pareto set in rows begin to end of `front`, where a row dominates if it
    has no more PEs in any dimension: skips it if a row dominates it, and drops rows that it dominates. The
    PEs that dominated ones leave to other ranks, the dominating ones leave too. Returns the new end.
    """
    n = begin
    for j in range(begin, end):
        is_dominated, dominates = True, True
        for d in range(factorization.shape[0]):
            is_dominated = is_dominated and front[j, d] <= factorization[d]
            dominates = dominates and front[j, d] >= factorization[d]
        if is_dominated:
            return end
        if not dominates:
            for d in range(factorization.shape[0]):
                front[n, d] = front[j, d]
            n += 1
    for d in range(factorization.shape[0]):
        front[n, d] = factorization[d]
    return n + 1


@njit_internal()
def fits_machine(p: Pool, m: Machine) -> Bools:
    """[O] whether an unrolling fits the machine. The pool may be made for a larger machine."""
    found = np.zeros(p.factorization_span.shape[0], np.bool_)
    for o in range(found.shape[0]):
        for way in range(p.factorization_span[o, 0], p.factorization_span[o, 1]):
            fits = True
            for c in range(m.fanout_size.shape[0]):
                fits = fits and p.factorizations[way, c] <= m.fanout_size[c]
            found[o] = found[o] or fits
    return found


class LinkCoefs(NamedTuple):
    """The coefficients other than zero in the lower bounds of all sets of levels (Terms.low), end to end."""

    span: Ints  # [N, 2] from, to: the coefficients of a set of levels
    quantity: Ints  # [.] the quantity that a coefficient is multiplied by
    part: Ints  # [.] its part of the cost
    coef: Floats  # [., J] its value on each machine
    has_part: Bools  # [X, P] whether any set of levels of a tensor has coefficients of the part


class Scratch(NamedTuple):
    """Arrays that the bounds of spatial unrollings are computed in."""

    low: Floats  # [Q] lower bounds of quantities under the unrollings that are known
    assigned: Bools  # [R] whether a rank's unrolling (Work.unrolling) is known
    sums: Floats  # [N, P] for `sum_bounds`
    remaining: Floats  # [X + 1, P] for `sum_bounds`
    cost_sums: Floats  # [X + 1, P] for `holders_may_improve`
    holder_choice: Ints  # [X] for `holders_may_improve`
    link_coefs: LinkCoefs
    bound: Floats  # [J, 3] scratch, for bounds that are not read
    all_tensors: Floats  # [P, J] for `screen_machines`: bound of all tensors
    one_tensor: Floats  # [P, J] the same: of one tensor
    one_set: Floats  # [P, J] the same: of one set of levels of a tensor
    live: Ints  # [R + 1, J] machines on which the chosen unrollings of the first i ranks may be best
    live_count: Ints  # [R + 1] how many these are
    enabled: Bools  # [C] whether an unrolling is enumerated (`enable_in_group`)


class Bounding(NamedTuple):
    """What bounds of spatial unrollings are made from, and the state and arrays that they are made in."""

    terms: Terms
    einsum: Einsum
    machine: Machine
    scratch: Scratch
    work: Work


class LaterRanks(NamedTuple):
    """Lower bounds of the factor that the i-th rank in the order of unrolling and all later ones give to a
    quantity, by the PEs that earlier ranks leave them.
    """

    by_dims: Floats  # [R + 1, F, Q] by cell of the PEs left (`min_later_by_dims`)
    cells: FreePes
    by_pes: Floats  # [R + 1, K, Q] by number of PEs left (`min_later_by_pes`): lower, but without the cells
    pe_limits: Ints  # [K] these numbers, ascending


@njit_internal()
def close_dominated(c: Choices, pe_count: int, pe_limits: Ints, bounding: Bounding, best: Floats) -> None:
    """Closes unrollings on machines where they cannot lead below the best, whatever the other ranks take. An
    unrolling that is closed on all machines is no longer alive.

    pe_count: PEs of the machine.
    pe_limits: numbers of PEs for which bounds are made (`min_later_by_pes`), ascending.
    """
    _t, e, _m, s, w = bounding
    ranks, machines = w.unrolling.shape[0], w.best_count.shape[0]
    later, earlier = (
        min_later_by_pes(c, e.rank_order, pe_limits),
        min_later_by_pes(c, e.rank_order[::-1].copy(), pe_limits),
    )
    for i in range(ranks):
        r, other_ranks = e.rank_order[i], min_other_ranks(earlier[ranks - i], later[i + 1], pe_limits)
        s.assigned[:] = False
        s.assigned[r] = True
        for o in range(c.rank_start[r], c.rank_start[r + 1]):
            if c.alive[o]:
                w.unrolling[r], left, n = o, smallest_limit(pe_count // c.pes[o], pe_limits), 0
                for q in range(s.low.shape[0]):
                    s.low[q] = c.factors[o, q] * other_ranks[left, q]
                multiply_joint_factors(s.low, c, w.unrolling, s.assigned, e)
                for j in range(machines):
                    if c.open_on[o, j]:
                        s.live[ranks, n], n = j, n + 1
                    c.open_on[o, j] = False
                n = filter_machines(s.live[ranks], n, s.live[ranks], False, False, s.bound, bounding, best)
                for a in range(n):
                    c.open_on[o, s.live[ranks, a]] = True
                c.alive[o] = n > 0


@njit_internal()
def enable_in_group(
    c: Choices, rank_group: Ints, group_start: Ints, groups: Choices, bounding: Bounding, best: Floats
) -> None:
    """Sets Scratch.enabled of the unrollings in one group per rank (rank_group [R]): True for those with
    which any machine may improve if each other rank takes the lowest bound of its group.

    group_start: [G + 1] the first unrolling of each group
    """
    _t, e, _m, s, w = bounding
    ranks, machines = w.unrolling.shape[0], w.best_count.shape[0]
    for r in range(ranks):
        s.assigned[:] = False
        s.assigned[r] = True
        for o in range(group_start[rank_group[r]], group_start[rank_group[r] + 1]):
            s.enabled[o] = c.alive[o]
            if c.alive[o]:
                w.unrolling[r] = o
                for q in range(s.low.shape[0]):
                    s.low[q] = c.factors[o, q]
                    for other in range(ranks):
                        s.low[q] *= groups.factors[rank_group[other], q] if other != r else 1.0
                multiply_joint_factors(s.low, c, w.unrolling, s.assigned, e)
                for j in range(machines):
                    s.live[ranks, j] = j
                n = filter_machines(
                    s.live[ranks], machines, s.live[ranks], False, False, s.bound, bounding, best
                )
                s.enabled[o] = n > 0


@njit_internal()
def root_bound(c: Choices, later_by_dims: Floats, cells: FreePes, bounding: Bounding) -> Floats:
    """[J] lower bounds of the objective under any choice of unrollings that are alive; inf: none fits.
    later_by_dims, cells: `min_later_by_dims` and its cells.
    """
    t, e, m, s, w = bounding
    machines, cell = w.best_count.shape[0], 0
    found, no_best = np.full(machines, np.inf), np.full((machines, 3), np.inf)
    for d in range(m.fanout_size.shape[0]):
        cell += cells.cell[d, m.fanout_size[d]]
    for j in range(machines if later_by_dims[0, cell].max() < np.inf else 0):
        s.assigned[:] = False
        s.low[:] = later_by_dims[0, cell]
        multiply_joint_factors(s.low, c, w.unrolling, s.assigned, e)
        if may_beat(j, False, True, t, m, s, w, no_best):
            found[j] = w.cost[0]
    return found


@njit_internal()
def scratch(t: Terms, w: Work, unrolling_count: int) -> Scratch:
    """Arrays that `enumerate_spatial` writes to, made once per search."""
    parts, tensors, ranks, machines = (
        w.part_scratch.shape[0],
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
        nonzero_coefs(t, machines),
        np.empty((machines, 3)),
        np.empty((parts, machines)),
        np.empty((parts, machines)),
        np.empty((parts, machines)),
        np.empty((ranks + 1, machines), np.int64),
        np.zeros(ranks + 1, np.int64),
        np.ones(unrolling_count, np.bool_),
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


@njit_no_alloc
def may_beat(
    j: int, all_assigned: bool, find_lowest: bool, t: Terms, m: Machine, s: Scratch, w: Work, best: Floats
) -> bool:
    """Whether the quantities in Scratch.low may lead below the best of machine j.

    all_assigned: whether the unrollings of all ranks are known.
    find_lowest: whether to write the lowest bound to w.cost.
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
    return holders_may_improve(
        j, find_lowest, t, m, s.sums, s.remaining, s.cost_sums, s.holder_choice, w, best
    )


@njit_no_alloc
def filter_machines(
    live: Ints,
    n: int,
    out: Ints,
    all_assigned: bool,
    find_lowest: bool,
    low: Floats,
    bounding: Bounding,
    best: Floats,
) -> int:
    """Writes to `out` those of n machines `live` on which the quantities in Scratch.low may lead below the
    best. Returns how many these are.

    all_assigned: whether the unrollings of all ranks are known.
    low: [J, 3] gets a bound that is below the best, for each of these machines: of some choice of levels; if
        `find_lowest` is set, of the lowest one.
    """
    t, _e, m, s, w = bounding
    source = live
    if n > FEW_MACHINES:
        n, source = screen_machines(live, n, out, bounding, best), out
    live_count = 0
    for a in range(n):
        j = source[a]
        if may_beat(j, all_assigned, find_lowest, t, m, s, w, best):
            out[live_count], live_count = j, live_count + 1
            for i in range(3):
                low[j, i] = w.cost[i]
    return live_count


@njit_internal()
def enumerate_spatial(
    max_count: int,
    c: Choices,
    begin: Ints,
    end: Ints,
    later: LaterRanks,
    bounding: Bounding,
    rules: Rules,
    best: Floats,
) -> tuple[Ints, Floats, Floats]:
    """Enumerates the choices of one unrolling per rank, from begin[r] to end[r] - 1, that fit and may beat
    the best of some machine. Each unrolling that is added to those of earlier ranks is counted; after
    `MAX_CHOICES` of them the enumeration ends, and so does the budget of the search. Returns three arrays:

    1. [n, R] the `max_count` choices with the lowest bounds;
    2. [n, J, 3] their bounds, inf on machines where they cannot beat the best;
    3. [3] with one machine, a lower bound of all choices that were left out.

    A quantity is a product over ranks: row i + 1 of `products` is row i times the factor of the i-th rank in
    the order of unrolling. Times the bounds of `later` ranks, it bounds all choices that begin with the same
    unrollings. Bounds by number of PEs are tested first; a choice that they rule out is dropped before its
    PEs are split over the dimensions.
    """
    t, e, m, s, w = bounding
    later_by_dims, cells, later_by_pes, pe_limits = later
    ranks, quantity_count, size, n = w.unrolling.shape[0], t.quantity.shape[0], 64, 0
    machines = w.best_count.shape[0]
    low, left_out, cutoff, worst_key = (
        np.empty((machines, 3)),
        np.full(3, np.inf),
        best.copy(),
        (np.inf, np.inf),
    )
    chosen, bound, keys = (
        np.empty((size, ranks), np.int64),
        np.empty((size, machines, 3)),
        np.empty((size, 2)),
    )
    s.live_count[0] = machines if max_count == ALL else w.sampled.shape[0]
    for a in range(s.live_count[0]):
        s.live[0, a] = a if max_count == ALL else w.sampled[a]
    used, way_count = (
        np.ones((ranks + 1, 256, m.fanout_size.shape[0]), np.int64),
        np.ones(ranks + 1, np.int64),
    )
    pe_count = 1
    for d in range(m.fanout_size.shape[0]):
        pe_count *= m.fanout_size[d]
    products, pes, uneven = (
        np.ones((ranks + 1, quantity_count)),
        np.ones(ranks + 1, np.int64),
        np.zeros(ranks + 1, np.bool_),
    )
    s.assigned[:] = False
    i, w.unrolling[e.rank_order[0]], s.assigned[e.rank_order[0]] = 0, end[e.rank_order[0]], True
    while i >= 0:
        r = e.rank_order[i]
        w.unrolling[r] -= 1  # most PEs first
        o = w.unrolling[r]
        if o < begin[r]:
            s.assigned[r] = False
            i -= 1
            continue
        pes[i + 1] = pes[i] * c.pes[o]
        if not c.alive[o] or not s.enabled[o] or pes[i + 1] > pe_count:
            continue
        w.tally[CHOICES] += 1
        if w.tally[CHOICES] > w.tally[MAX_CHOICES] or w.stop[0] != 0:
            w.tally[CHOICES], w.tally[BUDGET] = w.tally[MAX_CHOICES] + 1, -1
            break
        all_assigned = i == ranks - 1
        uneven[i + 1] = uneven[i] or c.uneven[o]
        if all_assigned and (pes[ranks] < rules.min_pes or (rules.uneven_only and not uneven[ranks])):
            continue
        limit = smallest_limit(pe_count // pes[i + 1], pe_limits)
        for q in range(quantity_count):
            products[i + 1, q] = products[i, q] * c.factors[o, q]
            s.low[q] = products[i + 1, q] * later_by_pes[i + 1, limit, q]
        if cutoff[s.live[i, 0], 0] < np.inf:
            multiply_joint_factors(s.low, c, w.unrolling, s.assigned, e)
            live_count = filter_machines(
                s.live[i], s.live_count[i], s.live[i + 1], all_assigned, False, s.bound, bounding, cutoff
            )
            if live_count == 0:
                continue
        if not extend_pes(i, o, used, way_count, c, m):
            continue
        # more ways to use the dimensions than `used` takes, so some are missing: the search ends, and proves
        # nothing
        if way_count[i + 1] == used.shape[1] - 1:
            w.tally[BUDGET] = -1
        for q in range(quantity_count):
            s.low[q] = np.inf
        for u in range(way_count[i + 1]):
            cell = 0
            for d in range(m.fanout_size.shape[0]):
                cell += cells.cell[d, m.fanout_size[d] // used[i + 1, u, d]]
            for q in range(quantity_count):
                s.low[q] = min(s.low[q], products[i + 1, q] * later_by_dims[i + 1, cell, q])
        live_count = 0
        for a in range(s.live_count[i]):
            if c.open_on[o, s.live[i, a]]:
                s.live[i + 1, live_count], live_count = s.live[i, a], live_count + 1
        find_lowest = all_assigned or (worst_key[0] < np.inf and machines > 1)
        if find_lowest:
            low[:] = np.inf
        if all_assigned or cutoff[s.live[i, 0], 0] < np.inf or find_lowest:  # there is a cost to compare with
            multiply_joint_factors(s.low, c, w.unrolling, s.assigned, e)
            live_count = filter_machines(
                s.live[i + 1],
                live_count,
                s.live[i + 1],
                all_assigned,
                find_lowest,
                low if find_lowest else s.bound,
                bounding,
                cutoff,
            )
        s.live_count[i + 1] = live_count
        if live_count == 0:
            continue
        key = sort_key(low, w.unit) if find_lowest else worst_key
        if find_lowest and key >= worst_key:
            lower_to(left_out, low[0])
            continue
        if not all_assigned:
            i += 1
            r = e.rank_order[i]
            s.assigned[r] = True
            fewer = np.searchsorted(c.pes[begin[r] : end[r]], pe_count // pes[i], side="right")
            w.unrolling[r] = begin[r] + fewer  # those with more PEs do not fit
            continue
        if n == size:
            size *= 2
            chosen, bound = (
                np.concatenate((chosen, np.empty_like(chosen))),
                np.concatenate((bound, np.empty_like(bound))),
            )
            keys = np.concatenate((keys, np.empty_like(keys)))
        at = n
        if n == max_count:
            at = by_sort_key(keys[:n])[n - 1]
            lower_to(left_out, bound[at, 0])
        for j in range(ranks):
            chosen[at, j] = w.unrolling[j]
        bound[at], keys[at, 0], keys[at, 1], n = low, key[0], key[1], min(n + 1, max_count)
        if n == max_count:
            at = by_sort_key(keys[:n])[n - 1]
            worst_key = (keys[at, 0], keys[at, 1])
            if machines == 1:  # with one machine the bound of the worst choice that is kept is a cutoff
                cutoff[0] = bound[at]
    if n == max_count:
        lower_to(left_out, cutoff[0])
    return chosen[:n][::-1].copy(), bound[:n][::-1].copy(), left_out


@njit_no_alloc
def lower_to(left_out: Floats, low: Floats) -> None:
    """Lowers left_out [3] to `low` if that is lower. It is called for each choice that is left out, since the
    last one is not always lowest: choices are sorted by exact numbers, but `compare` takes nearly equal
    objectives as equal and goes on to energy.
    """
    if compare(low, left_out) < 0:
        for i in range(3):
            left_out[i] = low[i]


@njit_no_alloc
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


@njit_no_alloc
def any_wins(low: Floats, best: Floats, ties_allowed: Bools) -> bool:
    """Whether bounds [J, 3] may lead below the best of some machine."""
    found = False
    for j in range(low.shape[0]):
        found = found or (low[j, 0] < np.inf and wins(j, low[j], best, ties_allowed))
    return found


@njit_internal()
def choices(t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work) -> Choices:
    """The spatial unrollings of all ranks, with their bounds; those that do not fit the machine are not
    alive.
    """
    ranks, quantity_count, compute = (
        w.unrolling.shape[0],
        t.quantity.shape[0],
        int(m.position[m.capacity.shape[0]]),
    )
    factors, alive = np.empty((p.rank_start[ranks], quantity_count)), fits_machine(p, m)
    for r in range(ranks):
        for o in range(p.rank_start[r], p.rank_start[r + 1]):
            for q in range(quantity_count if alive[o] else 0):
                factors[o, q] = factor(q, r, o, t, e, p)
    return Choices(
        p.rank_start,
        factors,
        p.pes[:, compute, 0].astype(np.int64),
        alive,
        np.ones((alive.shape[0], w.best_count.shape[0]), np.bool_),
        p.uneven,
        p.factorization_span,
        p.factorizations,
        hull_bounds(t, e, p, memo, w.unrolling),
        t.hop_pair,
        t.hops,
    )
