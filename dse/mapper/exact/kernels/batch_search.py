"""The search for the best nest on each machine of a batch: spatial unrollings by ascending bound, and for
each of them the placements of tensors and their nests (`search`, called by ../search.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dse.mapper.exact.kernels.compare import (
    compare_unrollings,
    may_lead,
    may_replace_tied,
    objective_value,
    wins,
)
from dse.mapper.exact.kernels.nest_search import nests, next_holders, sum_bounds
from dse.mapper.exact.kernels.spatial_search import (
    Bounding,
    FreePes,
    LaterRanks,
    any_wins,
    by_bound,
    choices,
    close_dominated,
    enable_in_group,
    enumerate_spatial,
    group_equal_pes,
    lower_to,
    min_later_by_dims,
    min_later_by_pes,
    quotients,
    root_bound,
    scratch,
    sort_key,
)
from dse.mapper.exact.kernels.state import (
    ALL,
    BUDGET,
    CHOICES,
    COUNT,
    LEVEL,
    LOWEST,
    MAX_CHOICES,
    MAX_COLLECTED,
    MIN_VISITED_FOR_OUTER_BOUND,
    NODE_COUNT,
    PARENT,
    PJ,
    POINTS,
    POSITION,
    QUANTITY_KIND,
    QUANTITY_POSITION,
    QUANTITY_TENSOR,
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
from dse.mapper.exact.kernels.tile_sums import amount, counts_end_tiles, factor, hull_bound, links, tile_bits
from dse.run.compiled import njit, njit_internal, njit_no_alloc
from workloads.arrays import Floats, Ints


class NestSearch(NamedTuple):
    """What the search of nests under one spatial unrolling (`expand`) reads and writes."""

    terms: Terms
    einsum: Einsum
    pool: Pool
    machine: Machine
    energy_only: Machine  # the machines with energy as the only objective, for `outer_bound`
    rules: Rules
    memo: Memo
    work: Work
    outer: Work  # of `outer_bound`
    states: InnerStates
    outer_bounds: OuterBounds
    best: Floats  # [J, 3] the best cost on each machine, lowered in place


@njit(cache=True, nogil=True)
def search(
    t: Terms,
    e: Einsum,
    p: Pool,
    m: Machine,
    energy_only: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    outer: Work,
    states: InnerStates,
    best: Floats,
) -> Floats:
    """Searches spatial unrollings by ascending bound; for each, the sets of levels that hold the tensors; for
    each of these, the nests from inside out. All machines of the batch are searched together.

    Unrollings are enumerated in two steps: how many PEs each rank takes, then how these are split over the
    fan-out dimensions. Two passes enumerate them:

    1. LOWEST: only those with the lowest bounds, on a sample of the machines. They are expanded (their nests
       are searched), which gives first results.
    2. ALL: every unrolling that may beat these results. An unrolling whose bound is lower than those of all
       that were expanded before is expanded at once. The others are collected, and expanded when there are
       `MAX_COLLECTED` of them or no more come.

    best: [J, 3] the best cost on each machine, lowered in place; its nest is written to w.best_*.
    energy_only: the machines with energy as the only objective, for `outer_bound`.
    outer: its Work.
    states: scratch for inner parts of nests.

    Returns lower bounds [J] on the objective of everything that was left out: inf unless the budget ended,
    in nodes, in choices or at a deadline.
    """
    machines = w.best_count.shape[0]
    outer_bounds = OuterBounds(np.full(256, -1), np.empty((256, machines)))
    ranks, quantity_count, pe_count, c, cells = (
        w.unrolling.shape[0],
        t.quantity.shape[0],
        1,
        choices(t, e, p, m, memo, w),
        quotients(m.fanout_size),
    )
    nest_search = NestSearch(t, e, p, m, energy_only, rules, memo, w, outer, states, outer_bounds, best)
    s = scratch(t, w, c.pes.shape[0])
    bounding = Bounding(t, e, m, s, w)
    set_units(t, m, w)
    for d in range(m.fanout_size.shape[0]):
        pe_count *= m.fanout_size[d]
    # numbers of PEs with bounds of their own: each up to 32, then in steps of 9 %
    exact_limits = min(pe_count, 32)
    pe_limits = np.array(
        list(range(1, exact_limits + 1))
        + [
            int(np.ceil(exact_limits * 2.0 ** (j / 8)))
            for j in range(1, 8 * int(np.ceil(np.log2(pe_count / exact_limits))) + 1)
        ]
    )
    # with one group chosen per rank, later ranks take equal PEs in all choices: one cell, one limit of PEs,
    # and for each rank one row of bounds, the factors of the groups of later ranks
    one_cell, later_by_group = (
        FreePes(m.fanout_size.copy().reshape(1, -1), np.zeros_like(cells.cell)),
        np.ones((ranks + 1, 1, quantity_count)),
    )
    collected, collected_bounds, n, lowest_key, max_collected = (
        np.empty((64, ranks), np.int64),
        np.empty((64, machines, 3)),
        0,
        (np.inf, np.inf),
        MAX_COLLECTED,
    )
    # unrollings that pass 1 expanded: pass 2 skips them
    expanded, expanded_count = np.empty((LOWEST * LOWEST, ranks), np.int64), 0
    later_in_group = LaterRanks(later_by_group, one_cell, later_by_group, np.array([pe_count]))
    unvisited_bound = np.full(machines, np.inf)  # [J] lower bounds of what the budget left unenumerated
    for max_count in (LOWEST, ALL):
        if best.min() < np.inf:
            close_dominated(c, pe_count, pe_limits, bounding, best)
        groups, group_start = group_equal_pes(c, e)
        later_by_dims = min_later_by_dims(groups, e.rank_order, cells)
        later = LaterRanks(later_by_dims, cells, min_later_by_pes(groups, e.rank_order, pe_limits), pe_limits)
        s.enabled[:] = True
        # pruned_bound [3]: with one machine, a lower bound of the choices that `max_count` cut
        group_choices, group_bounds, pruned_bound = enumerate_spatial(
            max_count, groups, groups.rank_start[:-1], groups.rank_start[1:], later, bounding, rules, best
        )
        if w.tally[CHOICES] > w.tally[MAX_CHOICES]:
            unvisited_bound = root_bound(groups, later_by_dims, cells, bounding)
            break
        for g in by_bound(group_bounds, w.unit):
            if not any_wins(group_bounds[g], best, w.ties_allowed):
                continue
            if n >= max_collected:
                n = expand_choices(
                    sort_key(group_bounds[g], w.unit)[0], collected, collected_bounds, n, nest_search
                )
                max_collected = max(MAX_COLLECTED, 2 * n)
            if (
                w.tally[VISITED] > w.tally[BUDGET]
                and n > 0
                and min_sort_key(collected_bounds[:n], w.unit) <= sort_key(group_bounds[g], w.unit)[0]
            ):
                break
            rank_group = group_choices[g]
            for i in range(ranks - 1, -1, -1):
                for q in range(quantity_count):
                    later_by_group[i, 0, q] = (
                        later_by_group[i + 1, 0, q] * groups.factors[rank_group[e.rank_order[i]], q]
                    )
            # each rank's group has one unrolling, so the choice of groups is a choice of unrollings
            single = (group_start[rank_group + 1] - group_start[rank_group]).max() == 1
            if max_count == ALL and not single:
                enable_in_group(c, rank_group, group_start, groups, bounding, best)
            if single:
                found, low = (
                    group_start[rank_group].reshape(1, ranks),
                    group_bounds[g].copy().reshape(1, machines, 3),
                )
            else:
                found, low, pruned_in_group = enumerate_spatial(
                    max_count,
                    c,
                    group_start[rank_group],
                    group_start[rank_group + 1],
                    later_in_group,
                    bounding,
                    rules,
                    best,
                )
                lower_to(pruned_bound, pruned_in_group)
                if w.tally[CHOICES] > w.tally[MAX_CHOICES]:
                    # the budget ended inside this group: the bound over all groups also bounds this one and
                    # those after it
                    unvisited_bound = root_bound(groups, later_by_dims, cells, bounding)
            for v in by_bound(low, w.unit):
                is_done = False
                for j in range(expanded_count if max_count == ALL else 0):
                    is_done = is_done or (expanded[j] == found[v]).all()
                key = sort_key(low[v], w.unit)
                if (
                    not is_done
                    and w.tally[VISITED] <= w.tally[BUDGET]
                    and may_lead(found[v], low[v], best, e, w)
                    and (max_count == LOWEST or key < lowest_key)
                ):
                    w.unrolling[:] = found[v]
                    expand(nest_search)
                    is_done = w.tally[VISITED] <= w.tally[BUDGET]
                    if is_done and max_count == LOWEST:
                        expanded[expanded_count], expanded_count = found[v], expanded_count + 1
                    elif is_done:
                        lowest_key = key
                if max_count == ALL and not is_done:
                    if n == collected.shape[0]:
                        collected, collected_bounds = (
                            np.concatenate((collected, np.empty_like(collected))),
                            np.concatenate((collected_bounds, np.empty_like(collected_bounds))),
                        )
                    collected[n], collected_bounds[n], n = found[v], low[v], n + 1
            if w.tally[CHOICES] > w.tally[MAX_CHOICES]:
                break
        if w.tally[CHOICES] > w.tally[MAX_CHOICES]:
            break
        # no unrolling that `max_count` cut has a lower bound than the best: pass 2 is not needed
        if (
            machines == 1
            and w.tally[VISITED] <= w.tally[BUDGET]
            and not wins(0, pruned_bound, best, w.ties_allowed)
        ):
            break
    n = expand_choices(np.inf, collected, collected_bounds, n, nest_search)
    remaining_bound = np.full(machines, np.inf)
    for j in range(machines):
        remaining_bound[j] = min(collected_bounds[:n, j, 0].min() if n > 0 else np.inf, unvisited_bound[j])
    return remaining_bound


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


@njit_internal()
def min_sort_key(bound: Floats, unit: Floats) -> float:
    """The lowest objective of bounds [n, J, 3], each in the units of its machine (`sort_key`); inf if n is 0.
    None of these unrollings leads to a lower cost.
    """
    lowest = np.inf
    for i in range(bound.shape[0]):
        lowest = min(lowest, sort_key(bound[i], unit)[0])
    return lowest


@njit_internal()
def expand_choices(max_key: float, collected: Ints, bound: Floats, n: int, nest_search: NestSearch) -> int:
    """Expands those of the first n unrollings in `collected` with an objective of at most `max_key`
    (`sort_key`), lowest first. The others move to the front of `collected` and `bound`.

    Returns how many are left. If the budget ends, the unrolling that was being expanded is among them.
    """
    e, w, best = nest_search.einsum, nest_search.work, nest_search.best
    order, at = by_bound(bound[:n], w.unit), 0
    while at < n and sort_key(bound[order[at]], w.unit)[0] <= max_key and w.tally[VISITED] <= w.tally[BUDGET]:
        c = order[at]
        if may_lead(collected[c], bound[c], best, e, w):
            w.unrolling[:] = collected[c]
            expand(nest_search)
        at += int(w.tally[VISITED] <= w.tally[BUDGET])
    remaining = order[at:]
    collected[: n - at], bound[: n - at] = collected[remaining], bound[remaining]
    return n - at


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
    3. [J, N, P] the lower bounds of all links of each set of levels (`sum_bounds`).
    """
    tensors, parts, size, n = t.holder_span.shape[0] - 1, w.part_scratch.shape[0], 16, 0
    machine_count = w.best_count.shape[0]
    holder_choices, bound = np.empty((size, tensors), np.int64), np.full((size, machine_count, 3), np.inf)
    sums, remaining = np.empty((machine_count, t.holder_sets.shape[0], parts)), np.empty((tensors + 1, parts))
    choice, cost_sums = np.zeros(tensors, np.int64), np.empty((tensors + 1, parts))
    for j in range(w.best_count.shape[0]):
        sum_bounds(w.quantity_bound, j, t, t.sum, t.sum_of, t.sum_coef, parts, sums[j], remaining)
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


@njit_no_alloc
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
def expand(nest_search: NestSearch) -> None:
    """Searches all nests under the spatial unrolling Work.unrolling that may beat the best nest of some
    machine, or replace it at an equal cost (`precedes`).
    """
    t, e, p, m, energy_only, rules, memo, w, outer, states, outer_bounds, best = nest_search
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
        outer_levels, at = outer_holders(holder_choices[s], t, m), 0
        while (
            outer_bounds.levels[at] != outer_levels
            and outer_bounds.levels[at] >= 0
            and at < outer_bounds.levels.shape[0] - 1
        ):
            at += 1
        is_hard = w.tally[VISITED] >= w.tally[MIN_VISITED_FOR_OUTER_BOUND]
        if is_hard and outer_bounds.levels[at] != outer_levels:
            outer_bounds.levels[at] = outer_levels
            outer_bound(t, e, p, energy_only, rules, memo, w, outer, states, outer_bounds.energy[at])
        n = 0
        for a in range(w.live_count[0]):
            j = w.live[0, a]
            w.outer_extra[j] = (
                max(outer_bounds.energy[at, j] - separate_outer_pj(j, t, w), 0.0) if is_hard else 0.0
            )
            w.parts[0, j, PJ] += w.outer_extra[j]
            objective_value(w.parts[0], j, m, w.cost)
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
def outer_holders(holders: Ints, t: Terms, m: Machine) -> int:
    """The levels outside of all fan-out boundaries that hold each tensor, as one number."""
    code, levels = 0, m.capacity.shape[0]
    for x in range(holders.shape[0]):
        for v in range(levels):
            code = 2 * code + int(m.position[v] == 0 and t.holder_sets[holders[x]] >> v & 1)
    return code


@njit_no_alloc
def outer_bound(
    t: Terms,
    e: Einsum,
    p: Pool,
    energy_only: Machine,
    rules: Rules,
    memo: Memo,
    w: Work,
    outer: Work,
    states: InnerStates,
    energy: Floats,
) -> None:
    """Sets energy [J] to a lower bound of the energy of all nodes outside of all fan-out boundaries. They
    share capacities, so the bound may exceed the sum of their separate bounds.

    It is the energy of the best nest of these nodes alone, around tiles of single elements, which need the
    least capacity. So it holds for any unrolling and any nodes inside. It is 0 where there are no such
    boundaries, or where the budget of `outer` ends.

    energy_only: machines without leakage, with energy as the objective, where each tile is stored once.
    """
    n = 0
    for j in range(energy.shape[0]):
        energy[j] = 0.0
    if w.position[0] == 0:
        return
    for i in range(w.tally[NODE_COUNT]):
        if w.nodes[i, POSITION] == 0:
            for j in range(4):
                outer.nodes[n, j] = w.nodes[i, j]
            outer.holds_tensor[n], n = False, n + 1
    outer.tally[NODE_COUNT], outer.tally[VISITED], outer.placed[0], outer.position[0] = n, 0, 0, 0
    for j in range(energy.shape[0]):
        for i in range(w.parts.shape[2]):
            outer.parts[0, j, i] = 0.0
        for i in range(3):
            outer.best[j, i] = np.inf
        outer.outer_extra[j] = 0.0
        outer.live[0, j] = j
    outer.live_count[0] = energy.shape[0]
    for v in range(w.used_bits.shape[1]):
        outer.used_bits[0, v] = 0.0
    for q in range(w.quantity_bound.shape[0]):
        outer.quantity_bound[q] = 0.0
    for r in range(w.unrolling.shape[0]):
        outer.unrolling[r] = p.rank_start[r]  # a rank's first unrolling takes one PE
        outer.inner_tile[0, r] = p.span[p.rank_start[r], 0, 0]
    nests(t, e, p, energy_only, rules, memo, outer, states, outer.best)
    for j in range(energy.shape[0]):
        if outer.tally[VISITED] <= outer.tally[BUDGET] and outer.best[j, 0] < np.inf:
            energy[j] = outer.best[j, 0]


@njit_no_alloc
def separate_outer_pj(j: int, t: Terms, w: Work) -> float:
    """The energy on machine j of the nodes that `outer_bound` looks at, as w.parts[0] has it: each node at
    its own lower bound.
    """
    total = 0.0
    for i in range(w.tally[NODE_COUNT]):
        x, level, parent, k = w.nodes[i]
        if k == 0 and x >= 0 and parent >= 0:
            for link in range(t.link[x, parent, level, 0], t.link[x, parent, level, 1]):
                if not counts_end_tiles(t.quantity[t.link_of[link], QUANTITY_KIND]):
                    total += t.link_coef[j, link, PJ] * w.quantity_bound[t.link_of[link]]
    return total


@njit_no_alloc
def fits_tensor(x: int, v: int, e: Einsum, p: Pool, m: Machine, w: Work) -> bool:
    """Whether level v has the capacity for the largest tile of tensor x that may stand there under
    w.unrolling.
    """
    for r in range(w.largest.shape[0]):
        w.largest[r] = p.span[w.unrolling[r], m.position[v], 1] - 1
    return bool(
        tile_bits(x, w.largest, w.largest, True, -1, e, p, m) * m.uses_capacity[x, v]
        <= m.capacity[v]
        < np.inf
    )


@njit_no_alloc
def init_nodes(holders: Ints, t: Terms, sums: Floats, e: Einsum, m: Machine, p: Pool, w: Work) -> None:
    """Sets up the state for nests of one placement: the nodes to place, and compute as the innermost tile, on
    the machines that are alive.

    holders: [X] numbers of sets of levels in t.holder_sets.

    A tensor's node at the outermost level is not listed. It costs nothing and holds the whole tensor in every
    nest.
    """
    n, levels = 0, m.capacity.shape[0]
    for a in range(w.live_count[0]):
        j = w.live[0, a]
        for i in range(t.base.shape[1]):
            w.parts[0, j, i] = t.base[j, i]
            for x in range(holders.shape[0]):
                w.parts[0, j, i] += sums[j, holders[x], i]
    for x in range(holders.shape[0]):
        w.holders[x], parent = holders[x], -1
        for v in range(levels):
            if t.holder_sets[holders[x]] >> v & 1:
                if parent >= 0 or v > 0:
                    w.nodes[n, TENSOR], w.nodes[n, LEVEL], w.nodes[n, PARENT], w.nodes[n, POSITION] = (
                        x,
                        v,
                        parent,
                        m.position[v],
                    )
                    w.holds_tensor[n], n = (
                        parent >= 0 and m.double_buffer[v] and fits_tensor(x, v, e, p, m, w),
                        n + 1,
                    )
                parent = v
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
