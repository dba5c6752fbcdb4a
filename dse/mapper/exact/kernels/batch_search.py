"""The search for the best nest on each machine of a batch: spatial unrollings by ascending bound, and for
each of them the placements of tensors and their nests (`search`, called by ../search.py).
"""

from __future__ import annotations

import numpy as np

from dse.mapper.exact.kernels.compare import may_lead, objective_value, order_of, ties_with, wins
from dse.mapper.exact.kernels.nest_search import nests, next_holders, sum_bounds
from dse.mapper.exact.kernels.spatial_search import (
    FreePes,
    by_bound,
    choices,
    close_dominated,
    enumerate_spatial,
    group_equal_pes,
    lower_to,
    min_inside,
    min_later,
    open_in_group,
    quotients,
    root_bound,
    scratch,
    some_win,
    worth_of,
)
from dse.mapper.exact.kernels.state import (
    ALL,
    BUDGET,
    CHOICES,
    COUNT,
    EASY,
    FIRST,
    LEVEL,
    LOWEST,
    MANY,
    MOST_CHOICES,
    NODES_PLACED,
    PARENT,
    POINTS,
    POSITION,
    ROUND,
    TENSOR,
    VISITED,
    Einsum,
    InnerStates,
    Machine,
    Memo,
    OuterBounds,
    Pool,
    Rules,
    Terms,
    Work,
)
from dse.mapper.exact.kernels.tile_sums import factor, hull, minimum_hull, value
from dse.run.compiled import inner, lean, njit
from workloads.arrays import Floats, Ints


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
    """Searches spatial unrollings by ascending bound; for each, the sets of levels that hold the tensors; for
    each of these, the nests from inside out. All machines of the batch are searched together.

    Unrollings are enumerated in two steps: how many PEs each rank takes, then how these are split over the
    fan-out dimensions. Two passes enumerate them:

    1. LOWEST: only those with the lowest bounds, on a sample of the machines. Expanding them gives first
       results.
    2. ALL: every unrolling that may beat these results. An unrolling whose bound is lower than those of all
       that were expanded before is expanded at once. The others are collected, and expanded when there are
       `MANY` of them or no more come.

    best: [J, 3] the best cost on each machine, lowered in place; its nest is written to w.best_*.
    free, outer: machines (energy alone counts) and state for `outer_bound`.
    seen: scratch for inner parts of nests.

    Returns lower bounds [J] on the objective of everything that was left out: inf unless the budget ended,
    in nodes, in choices or at a deadline.
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
    x = scratch(t, w, c.pes.shape[0])
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
    # the second: lower bounds of what was not enumerated
    whole, never = np.array([total]), np.full(machines, np.inf)
    for most in (LOWEST, ALL):
        if best.min() < np.inf:
            close_dominated(c, total, caps, t, e, m, x, w, best)
        groups, start = group_equal_pes(c, e)
        inside = min_inside(groups, e.order, left)
        rough = min_later(groups, e.order, caps)
        x.tried[:] = True
        of_groups, low_of_groups, rest = enumerate_spatial(
            most,
            groups,
            groups.first[:-1],
            groups.first[1:],
            inside,
            left,
            rough,
            caps,
            t,
            e,
            m,
            rules,
            x,
            w,
            best,
        )
        if w.tally[CHOICES] > w.tally[MOST_CHOICES]:
            never = root_bound(groups, inside, left, t, e, m, x, w)
            break
        for g in by_bound(low_of_groups, w.unit):
            if not some_win(low_of_groups[g], best, w.ties_allowed):
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
            single = (start[own + 1] - start[own]).max() == 1
            if most == ALL and not single:
                open_in_group(c, own, start, groups, t, e, m, x, w, best)
            if single:
                found, low = start[own].reshape(1, ranks), low_of_groups[g].copy().reshape(1, machines, 3)
            else:
                found, low, others = enumerate_spatial(
                    most,
                    c,
                    start[own],
                    start[own + 1],
                    later,
                    all_left,
                    later,
                    whole,
                    t,
                    e,
                    m,
                    rules,
                    x,
                    w,
                    best,
                )
                lower_to(rest, others)
                if w.tally[CHOICES] > w.tally[MOST_CHOICES]:
                    # of this group and of those after it
                    never = root_bound(groups, inside, left, t, e, m, x, w)
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
            if w.tally[CHOICES] > w.tally[MOST_CHOICES]:
                break
        if w.tally[CHOICES] > w.tally[MOST_CHOICES]:
            break
        # no unrolling that was left out has a lower bound than the best
        if machines == 1 and w.tally[VISITED] <= w.tally[BUDGET] and not wins(0, rest, best, w.ties_allowed):
            break
    n = expand_choices(
        np.inf, chosen, bound, n, t, e, p, m, free, rules, memo, w, outer, seen, outer_bounds, best
    )
    left_out = np.full(machines, np.inf)
    for j in range(machines):
        left_out[j] = min(bound[:n, j, 0].min() if n > 0 else np.inf, never[j])
    return left_out


@inner()
def set_units(t: Terms, m: Machine, w: Work) -> None:
    """Sets w.unit [J, 2]: objective and energy of what all mappings have in common, or 1 where that is 0 or
    infinite.
    """
    for j in range(w.best_count.shape[0]):
        w.parts[0, j] = t.base[j]
        objective_value(w.parts[0], j, m, w.cost)
        for i in range(2):
            w.unit[j, i] = w.cost[i] if 0.0 < w.cost[i] < np.inf else 1.0


@inner()
def min_worth(bound: Floats, unit: Floats) -> float:
    """The lowest objective of bounds [n, J, 3], in units of a machine (`worth_of`); inf if n is 0. None of
    these unrollings leads to a lower cost.
    """
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
    """Expands those of the first n unrollings in `chosen` with an objective of at most `upto` (`worth_of`),
    lowest first. The others move to the front of `chosen` and `bound`.

    Returns how many are left. If the budget ends, the unrolling that was being expanded is among them.
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
def bound_unrolling(t: Terms, e: Einsum, p: Pool, memo: Memo, w: Work) -> None:
    """Sets the lower bounds [Q] of all quantities in w, for the spatial unrolling w.unrolling."""
    for q in range(t.quantity.shape[0]):
        w.lower[q] = 1.0
        x = t.quantity[q, 1]
        for r in range(w.unrolling.shape[0]):
            w.lower[q] *= factor(q, r, w.unrolling[r], t, e, p)
        for dim in range(e.dim[x], e.dim[x + 1]):
            w.lower[q] *= minimum_hull(q, dim, w.unrolling, t, e, p, memo)
        if t.quantity[q, 0] == POINTS and t.line[q] > 0.0:  # compute has one tile only, so the value is exact
            for r in range(w.unrolling.shape[0]):
                w.largest[r] = p.span[w.unrolling[r], t.quantity[q, 2], 0]
            w.lower[q] = value(q, w.largest, w.unrolling, t, e, p, memo)


@inner()
def placements(t: Terms, m: Machine, w: Work, best: Floats) -> tuple[Ints, Floats, Floats]:
    """Enumerates the sets of levels that may hold all tensors together. Returns three arrays:

    1. [n, X] per choice the number of the set of each tensor in t.holder_sets;
    2. [n, J, 3] its lower bounds, inf where it cannot beat the best of machine j;
    3. [J, N, P] the lower bounds of all links of each set of levels (`sum_bounds`).
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
            while s < n and (many == 1 or (own[s] != at).any()):  # with one machine each choice comes up once
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
    """Whether nests under the spatial unrolling w.unrolling, with tensors in the levels own [X], come before
    the best nest of machine j in the order of ties (`ties_with`).
    """
    unrolling_order = order_of(w.unrolling, w.best_unrolling[j], e.order) if w.best_count[j] >= 0 else 1
    for x in range(own.shape[0] if unrolling_order == 0 else 0):
        if own[x] != w.best_holders[j, x]:
            return bool(own[x] < w.best_holders[j, x])
    return bool(unrolling_order < 0)


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
    """Searches all nests under the spatial unrolling w.unrolling that may beat the best nest of some machine,
    or replace it at an equal cost (`precedes`).
    """
    bound_unrolling(t, e, p, memo, w)
    for j in range(w.best_count.shape[0]):
        w.ties_allowed[j] = ties_with(j, w.unrolling, e, w)
    own, bound, sums = placements(t, m, w, best)
    for s in by_bound(bound, w.unit):
        w.live_count[0] = 0
        for j in range(w.best_count.shape[0]):
            w.ties_allowed[j] = precedes(j, own[s], e, w)
            if bound[s, j, 0] < np.inf and wins(j, bound[s, j], best, w.ties_allowed):
                w.live[0, w.live_count[0]] = j
                w.live_count[0] += 1
        if w.live_count[0] == 0:
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
        for a in range(w.live_count[0]):
            j = w.live[0, a]
            w.outer_extra[j] = (
                max(outer_bounds.energy[at, j] - separate_outer_pj(j, t, w), 0.0) if hard else 0.0
            )
            w.parts[0, j, 0] += w.outer_extra[j]
            objective_value(w.parts[0], j, m, w.cost)
            if wins(j, w.cost, best, w.ties_allowed):
                w.live[0, n], n = j, n + 1
        w.live_count[0] = n
        if n > 0:
            seen.tally[ROUND], seen.tally[COUNT] = seen.tally[ROUND] + 1, 0
            nests(t, e, p, m, rules, memo, w, seen, best)
        if w.tally[VISITED] > w.tally[BUDGET]:
            break
    for j in range(w.best_count.shape[0]):
        w.ties_allowed[j] = w.best_count[j] >= 0  # for other unrollings `may_lead` decides


@lean
def outer_holders(own: Ints, t: Terms, m: Machine) -> int:
    """The levels outside of all fan-out boundaries that hold each tensor, as one number."""
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
    """Sets energy [J] to a lower bound of the energy of all nodes outside of all fan-out boundaries. They
    share capacities, so the bound may exceed the sum of their separate bounds.

    It is the energy of the best nest of these nodes alone, around tiles of single elements, which need the
    least capacity. So it holds for any unrolling and any nodes inside. It is 0 where there are no such
    boundaries, or where the budget of `outer` ends.

    free: machines without leakage, with energy as the objective, where each tile is stored once.
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
    outer.live_count[0] = energy.shape[0]
    for v in range(w.need.shape[1]):
        outer.need[0, v] = 0.0
    for q in range(w.lower.shape[0]):
        outer.lower[q] = 0.0
    for r in range(w.unrolling.shape[0]):
        outer.unrolling[r] = p.first[r]  # a rank's first unrolling takes one PE
        outer.tile[0, r] = p.span[p.first[r], 0, 0]
    nests(t, e, p, free, rules, memo, outer, seen, outer.best)
    for j in range(energy.shape[0]):
        if outer.tally[VISITED] <= outer.tally[BUDGET] and outer.best[j, 0] < np.inf:
            energy[j] = outer.best[j, 0]


@lean
def separate_outer_pj(j: int, t: Terms, w: Work) -> float:
    """The energy on machine j of the nodes that `outer_bound` looks at, as w.parts[0] has it: each node at
    its own lower bound.
    """
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
    """Whether level v has the capacity for the largest tile of tensor x that may stand there under
    w.unrolling.
    """
    for r in range(w.largest.shape[0]):
        w.largest[r] = p.span[w.unrolling[r], m.position[v], 1] - 1
    return bool(
        hull(x, w.largest, w.largest, True, -1, e, p, m) * m.uses_capacity[x, v] <= m.capacity[v] < np.inf
    )


@lean
def init_nodes(own: Ints, t: Terms, sums: Floats, e: Einsum, m: Machine, p: Pool, w: Work) -> None:
    """Sets up the state for nests of one placement: the nodes to place, and compute as the innermost tile, on
    the machines that are alive.

    own: [X] numbers of sets of levels in t.holder_sets.

    A tensor's node at the outermost level is not listed. It costs nothing and holds the whole tensor in every
    nest.
    """
    n, levels = 0, m.capacity.shape[0]
    for a in range(w.live_count[0]):
        j = w.live[0, a]
        for i in range(t.base.shape[1]):
            w.parts[0, j, i] = t.base[j, i]
            for x in range(own.shape[0]):
                w.parts[0, j, i] += sums[j, own[x], i]
    for x in range(own.shape[0]):
        w.holders[x], before = own[x], -1
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
