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
    BUDGET,
    CELLS,
    CHOICES,
    FEW,
    MOST_CHOICES,
    ONE,
    POINTS,
    Einsum,
    Machine,
    Memo,
    Pool,
    Rules,
    Terms,
    Work,
    Worth,
)
from dse.mapper.exact.kernels.tile_sums import factor, minimum_hull
from dse.run.compiled import inner, lean, njit
from workloads.arrays import Bools, Floats, Ints


class Hulls(NamedTuple):
    """Lower bounds of the hull lengths of windows, for N pairs of a quantity and a dimension that adds up
    ranks. Each depends on the unrollings of the dimension's two ranks.
    """

    pairs: Ints  # [N, 2] quantity, dimension
    first: Ints  # [N] where the pair begins in `value`
    many: Ints  # [N] how many unrollings the second rank has
    value: Floats  # at first + a * many + b: the bound for unrolling a of the first rank and b of the second
    low: Floats  # [N, O + 1] the bound if one rank's unrolling is known; the last column: if none is


class Choices(NamedTuple):
    """The spatial unrollings of all ranks end to end, C in all, with their bounds. Or groups of unrollings
    with equally many PEs; a group has the lowest bound of its members.
    """

    first: Ints  # [R + 1] first unrolling of each rank
    alone: Floats  # [C, Q] factor that it gives to a quantity, hulls (`hulls`) left out
    pes: Ints  # [C] PEs that it takes
    alive: Bools  # [C] whether it is open on some machine
    open: Bools  # [C, J] whether it may lead below the best of a machine
    uneven: Bools  # [C] whether the last PE may have less
    factorization_span: Ints  # [C, 2] from, to in `factorizations`
    factorizations: Ints  # [W, D] PEs along each fan-out dimension
    hulls: Hulls


@inner()
def extend_pes(i: int, o: int, used: Ints, many: Ints, c: Choices, m: Machine) -> bool:
    """Combines every way in which the earlier ranks take PEs with every factorization of unrolling o of the
    i-th rank: writes entry i + 1 of `used` and `many`. Returns whether some way fits the dimensions.

    used: [R + 1, ., D] PEs in use per dimension, by number of ranks and way. A way that needs at least as
        many as another one in every dimension is left out.
    many: [R + 1] how many ways are left.
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
    """A grid over the PEs that may be left in each fan-out dimension, rounded up to few values each. A cell
    is one combination of these values; there are C cells.
    """

    pes: Ints  # [C, D] PEs left, at most
    cell: Ints  # [D, .] by PEs left in one dimension: what they add to the cell's number


@njit(cache=True, nogil=True)
def quotients(size: Ints) -> FreePes:
    """The cells for all numbers of PEs that may be left: the size of a dimension divided by whole numbers.
    Steps get coarser until there are at most `CELLS` cells.
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
    pes, cell, stride = np.ones((cells, dims), np.int64), np.zeros(found.shape, np.int64), 1
    for d in range(dims):
        values = np.flatnonzero(found[d])
        for n in range(1, size[d] + 1):
            cell[d, n] = stride * np.searchsorted(values, n)
        for c in range(cells):
            pes[c, d] = values[c // stride % many[d]]
        stride *= many[d]
    return FreePes(pes, cell)


@inner()
def min_inside(c: Choices, order: Ints, left: FreePes) -> Floats:
    """[R + 1, C, Q] lower bounds of the factor that the i-th rank of `order` and all later ones give to a
    quantity, by cell of the PEs that are left to them.
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
    """[R + 1, J, Q] lower bounds of the factor that the i-th rank of `order` and all later ones give to a
    quantity, if they use at most caps[j] PEs together.
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
    """[J, Q] lower bounds of the factor that two groups of ranks give together, if they share caps[j] PEs.
    earlier, later: [J, Q] the bounds of each group.
    """
    found = np.full(later.shape, np.inf)
    for j in range(caps.shape[0]):
        for i in range(j + 1):
            # the first group takes more PEs than the cap before
            left = smallest_cap(caps[j] // (caps[i - 1] + 1 if i else 1), caps)
            for q in range(later.shape[1]):
                found[j, q] = min(found[j, q], earlier[i, q] * later[left, q])
    return found


@lean
def smallest_cap(pes: int, caps: Ints) -> int:
    """The index of the smallest number in `caps` that is at least `pes`."""
    return int(np.searchsorted(caps, pes))


@inner()
def hull_bounds(t: Terms, e: Einsum, p: Pool, memo: Memo, option: Ints) -> Hulls:
    """Lower bounds of the hull length of every window (kind HULL or CLIPPED) in every quantity: for each pair
    of spatial unrollings of its two ranks, and the least over one of them. `option` [R] is scratch.
    """
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
    """Multiplies low [Q] by the bounds of all hulls. A rank whose unrolling is not known yet takes the one
    with the lowest bound.
    """
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
    """Returns consecutive unrollings with equally many PEs as groups, and the first unrolling of each group
    [G + 1].
    """
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
                many = add_undominated(c.factorizations[k], ways, way[g, 0], many)
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


@lean
def add_undominated(trips: Ints, ways: Ints, begin: int, end: int) -> int:
    """Adds trips [D] to the Pareto set in rows begin to end of `ways`, in which fewer PEs in every dimension
    dominate: skips dominated trips, and drops rows that they dominate. What dominated trips leave to other
    ranks, the dominating ones leave too. Returns the new end.
    """
    n = begin
    for j in range(begin, end):
        below, above = True, True
        for d in range(trips.shape[0]):
            below = below and ways[j, d] <= trips[d]
            above = above and ways[j, d] >= trips[d]
        if below:
            return end
        if not above:
            for d in range(trips.shape[0]):
                ways[n, d] = ways[j, d]
            n += 1
    for d in range(trips.shape[0]):
        ways[n, d] = trips[d]
    return n + 1


@inner()
def usable(p: Pool, m: Machine) -> Bools:
    """[O] whether an unrolling fits the machine. The pool may be made for a larger machine."""
    found = np.zeros(p.factorization_span.shape[0], np.bool_)
    for o in range(found.shape[0]):
        for way in range(p.factorization_span[o, 0], p.factorization_span[o, 1]):
            fits = True
            for c in range(m.size.shape[0]):
                fits = fits and p.factorizations[way, c] <= m.size[c]
            found[o] = found[o] or fits
    return found


@inner()
def close_dominated(
    c: Choices, total: int, caps: Ints, t: Terms, e: Einsum, m: Machine, x: Scratch, w: Work, best: Floats
) -> None:
    """Closes unrollings on machines where they cannot lead below the best, whatever the other ranks take. An
    unrolling that is closed on all machines is no longer alive.

    total: PEs of the machine.
    caps: numbers of PEs for which bounds are made (`min_later`), ascending.
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


@inner()
def open_in_group(
    c: Choices,
    own: Ints,
    start: Ints,
    groups: Choices,
    t: Terms,
    e: Einsum,
    m: Machine,
    x: Scratch,
    w: Work,
    best: Floats,
) -> None:
    """Marks which unrollings of one group per rank (own [R]) are enumerated: those with which any machine may
    improve if each other rank takes the lowest bound of its group.
    """
    ranks, machines = w.unrolling.shape[0], w.best_count.shape[0]
    for r in range(ranks):
        x.assigned[:] = False
        x.assigned[r] = True
        for o in range(start[own[r]], start[own[r] + 1]):
            x.tried[o] = c.alive[o]
            if c.alive[o]:
                w.unrolling[r] = o
                for q in range(x.low.shape[0]):
                    x.low[q] = c.alone[o, q]
                    for other in range(ranks):
                        x.low[q] *= groups.alone[own[other], q] if other != r else 1.0
                multiply_hulls(x.low, c, w.unrolling, x.assigned, e)
                for j in range(machines):
                    x.live[ranks, j] = j
                x.tried[o] = (
                    filter_machines(
                        x.live[ranks], machines, x.live[ranks], False, False, x.bound, t, m, x, w, best
                    )
                    > 0
                )


@inner()
def root_bound(
    c: Choices, inside: Floats, left: FreePes, t: Terms, e: Einsum, m: Machine, x: Scratch, w: Work
) -> Floats:
    """[J] lower bounds of the objective under any choice of unrollings that are alive; inf: none fits.
    inside, left: `min_inside` and its cells.
    """
    machines, cell = w.best_count.shape[0], 0
    found, none = np.full(machines, np.inf), np.full((machines, 3), np.inf)
    for d in range(m.size.shape[0]):
        cell += left.cell[d, m.size[d]]
    for j in range(machines if inside[0, cell].max() < np.inf else 0):
        x.assigned[:] = False
        x.low[:] = inside[0, cell]
        multiply_hulls(x.low, c, w.unrolling, x.assigned, e)
        if may_beat(j, False, True, t, m, x, w, none):
            found[j] = w.cost[0]
    return found


class Sums(NamedTuple):
    """The coefficients other than zero of all links of every set of levels, on all machines."""

    span: Ints  # [N, 2] from, to: the coefficients of a set of levels
    of: Ints  # quantity of a coefficient
    part: Ints  # its part of the cost
    coef: Floats  # [., J] its value on each machine
    touched: Bools  # [X, P] whether any set of levels of a tensor has coefficients of the part


class Scratch(NamedTuple):
    """Arrays that the bounds are computed in."""

    low: Floats  # [Q] lower bounds of quantities
    assigned: Bools  # [R] whether a rank's unrolling is known
    sums: Floats  # [N, P] for `sum_bounds`
    rest: Floats  # [X + 1, P] for `sum_bounds`
    cost_sums: Floats  # [X + 1, P] for `holders_may_improve`
    at: Ints  # [X] for `holders_may_improve`
    every: Sums
    bound: Floats  # [J, 3] scratch, for bounds that are not read
    all_tensors: Floats  # [P, J] for `screen_machines`: bound of all tensors
    one_tensor: Floats  # [P, J] the same: of one tensor
    one_set: Floats  # [P, J] the same: of one set of levels of a tensor
    live: Ints  # [R + 1, J] machines on which unrollings of the first i ranks may be best
    live_count: Ints  # [R + 1] how many these are
    tried: Bools  # [C] whether an unrolling is enumerated (`open_in_group`)


@inner()
def scratch(t: Terms, w: Work, options: int) -> Scratch:
    """Arrays that `enumerate_spatial` writes to, made once per search."""
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
        np.ones(options, np.bool_),
    )


@inner()
def dense_sums(t: Terms, machines: int) -> Sums:
    """The coefficients other than zero of the lower bounds, by set of levels. Empty for up to `FEW` machines,
    which are compared with bounds one by one.
    """
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
    """Writes to `out` those of n machines `live` on which the quantities in Scratch.low may lead below the
    best, whatever levels hold each tensor. Returns how many these are. The unrollings of some ranks may still
    be open.

    The bound is that of `may_improve` with all parts, for all machines together.
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
        if wins(j, w.cost, best, w.ties_allowed):
            out[many], many = j, many + 1
    return many


@lean
def may_beat(
    j: int, last: bool, least: bool, t: Terms, m: Machine, x: Scratch, w: Work, best: Floats
) -> bool:
    """Whether the quantities in Scratch.low may lead below the best of machine j.

    last: whether the unrollings of all ranks are known.
    least: whether to write the lowest bound to w.cost.
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
    """Writes to `out` those of n machines `live` on which the quantities in Scratch.low may lead below the
    best. Returns how many these are.

    last: whether the unrollings of all ranks are known.
    low: [J, 3] gets the bounds of these machines; the lowest ones if `least` is set.
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
    rough: Floats,
    caps: Ints,
    t: Terms,
    e: Einsum,
    m: Machine,
    rules: Rules,
    x: Scratch,
    w: Work,
    best: Floats,
) -> tuple[Ints, Floats, Floats]:
    """Enumerates the choices of one unrolling per rank, from begin to end [R], that fit and may beat the best
    of some machine. An unrolling that is added to those of earlier ranks counts as a choice; after
    `MOST_CHOICES` of them the enumeration ends, and so does the budget of the search. Returns three arrays:

    1. [n, R] the `most` choices with the lowest bounds;
    2. [n, J, 3] their bounds, inf on machines where they cannot beat the best;
    3. [3] with one machine, a lower bound of all choices that were left out.

    later: [R + 1, C, Q] lower bounds of what later ranks give, by cell of the PEs that are left
        (`min_inside`).
    left: the cells.
    rough: [R + 1, K, Q] the same by number of PEs that are left, at most caps [K] (`min_later`). A choice
        that cannot win by these bounds is left before its PEs are shared out over the dimensions.

    A quantity is a product over ranks: row i + 1 of `rows` is row i times the factor of the i-th rank in
    the order of unrolling. With `later`, it bounds all choices that begin with the same unrollings.
    """
    ranks, many_q, size, n = w.unrolling.shape[0], t.quantity.shape[0], 64, 0
    machines = w.best_count.shape[0]
    low, left_out, cutoff, limit = np.empty((machines, 3)), np.full(3, np.inf), best.copy(), (np.inf, np.inf)
    chosen, bound, worth = (
        np.empty((size, ranks), np.int64),
        np.empty((size, machines, 3)),
        np.empty((size, 2)),
    )
    x.live_count[0] = machines if most == ALL else w.sampled.shape[0]
    for a in range(x.live_count[0]):
        x.live[0, a] = a if most == ALL else w.sampled[a]
    used, many = np.ones((ranks + 1, 256, m.size.shape[0]), np.int64), np.ones(ranks + 1, np.int64)
    total = 1
    for d in range(m.size.shape[0]):
        total *= m.size[d]
    rows, pes, ragged = (
        np.ones((ranks + 1, many_q)),
        np.ones(ranks + 1, np.int64),
        np.zeros(ranks + 1, np.bool_),
    )
    x.assigned[:] = False
    i, w.unrolling[e.order[0]], x.assigned[e.order[0]] = 0, end[e.order[0]], True
    while i >= 0:
        r = e.order[i]
        w.unrolling[r] -= 1  # most PEs first
        o = w.unrolling[r]
        if o < begin[r]:
            x.assigned[r] = False
            i -= 1
            continue
        pes[i + 1] = pes[i] * c.pes[o]
        if not c.alive[o] or not x.tried[o] or pes[i + 1] > total:
            continue
        w.tally[CHOICES] += 1
        if w.tally[CHOICES] > w.tally[MOST_CHOICES] or w.stop[0] != 0:
            w.tally[CHOICES], w.tally[BUDGET] = w.tally[MOST_CHOICES] + 1, -1
            break
        last = i == ranks - 1
        ragged[i + 1] = ragged[i] or c.uneven[o]
        if last and (pes[ranks] < rules.min_pes or (rules.uneven and not ragged[ranks])):
            continue
        cap = smallest_cap(total // pes[i + 1], caps)
        for q in range(many_q):
            rows[i + 1, q] = rows[i, q] * c.alone[o, q]
            x.low[q] = rows[i + 1, q] * rough[i + 1, cap, q]
        if cutoff[x.live[i, 0], 0] < np.inf:
            multiply_hulls(x.low, c, w.unrolling, x.assigned, e)
            if (
                filter_machines(
                    x.live[i], x.live_count[i], x.live[i + 1], last, False, x.bound, t, m, x, w, cutoff
                )
                == 0
            ):
                continue
        if not extend_pes(i, o, used, many, c, m):
            continue
        # more ways to use the dimensions than `used` takes: the search proves nothing, its budget ends
        if many[i + 1] == used.shape[1] - 1:
            w.tally[BUDGET] = -1
        for q in range(many_q):
            x.low[q] = np.inf
        for u in range(many[i + 1]):
            cell = 0
            for d in range(m.size.shape[0]):
                cell += left.cell[d, m.size[d] // used[i + 1, u, d]]
            for q in range(many_q):
                x.low[q] = min(x.low[q], rows[i + 1, q] * later[i + 1, cell, q])
        alive = 0
        for a in range(x.live_count[i]):
            if c.open[o, x.live[i, a]]:
                x.live[i + 1, alive], alive = x.live[i, a], alive + 1
        least = last or (limit[0] < np.inf and machines > 1)
        if least:
            low[:] = np.inf
        if last or cutoff[x.live[i, 0], 0] < np.inf or least:  # there is a cost to compare with
            multiply_hulls(x.low, c, w.unrolling, x.assigned, e)
            alive = filter_machines(
                x.live[i + 1],
                alive,
                x.live[i + 1],
                last,
                least,
                low if least else x.bound,
                t,
                m,
                x,
                w,
                cutoff,
            )
        x.live_count[i + 1] = alive
        if alive == 0:
            continue
        own = worth_of(low, w.unit) if least else limit
        if least and own >= limit:
            lower_to(left_out, low[0])
            continue
        if not last:
            i += 1
            r = e.order[i]
            x.assigned[r] = True
            fewer = np.searchsorted(c.pes[begin[r] : end[r]], total // pes[i], side="right")
            w.unrolling[r] = begin[r] + fewer  # those with more PEs do not fit
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
            lower_to(left_out, bound[at, 0])
        for j in range(ranks):
            chosen[at, j] = w.unrolling[j]
        bound[at], worth[at, 0], worth[at, 1], n = low, own[0], own[1], min(n + 1, most)
        if n == most:
            at = by_worth(worth[:n])[n - 1]
            limit = (worth[at, 0], worth[at, 1])
            if machines == 1:  # with one machine the limit is a cost
                cutoff[0] = bound[at]
    if n == most:
        lower_to(left_out, cutoff[0])
    return chosen[:n][::-1].copy(), bound[:n][::-1].copy(), left_out


@lean
def lower_to(left_out: Floats, low: Floats) -> None:
    """Lowers left_out [3] to `low` if that is lower. It is called for each choice that is left out, since the
    last one is not always lowest: choices are sorted by exact numbers, but `compare` takes nearly equal
    objectives as equal and goes on to energy.
    """
    if compare(low, left_out) < 0:
        for i in range(3):
            left_out[i] = low[i]


@lean
def worth_of(low: Floats, unit: Floats) -> Worth:
    """The key that bounds [J, 3] are ordered by: the lowest (objective, energy) of all machines, in units of
    each machine (w.unit).
    """
    found = (np.inf, np.inf)
    for j in range(low.shape[0]):
        own = (low[j, 0] / unit[j, 0], low[j, 1] / unit[j, 1])
        if own < found:
            found = own
    return found


@inner()
def by_worth(worth: Floats) -> Ints:
    """Indices that sort keys [n, 2] (`worth_of`), lowest first. The sort is stable."""
    later = np.argsort(worth[:, 1], kind="mergesort")
    return later[np.argsort(worth[later, 0], kind="mergesort")]


@inner()
def by_bound(bound: Floats, unit: Floats) -> Ints:
    """Indices that sort bounds [n, J, 3] by their key (`worth_of`), lowest first."""
    worth = np.empty((bound.shape[0], 2))
    for i in range(bound.shape[0]):
        worth[i, 0], worth[i, 1] = worth_of(bound[i], unit)
    return by_worth(worth)


@lean
def some_win(low: Floats, best: Floats, equal: Bools) -> bool:
    """Whether bounds [J, 3] may lead below the best of some machine."""
    found = False
    for j in range(low.shape[0]):
        found = found or (low[j, 0] < np.inf and wins(j, low[j], best, equal))
    return found


@inner()
def choices(t: Terms, e: Einsum, p: Pool, m: Machine, memo: Memo, w: Work) -> Choices:
    """The spatial unrollings of all ranks, with their bounds; those that do not fit the machine are not
    alive.
    """
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
