"""The optimum over imperfect temporal and spatial factors ("ragged tiles") of one einsum on a machine with
one array.

For a fixed order of storage nodes, a mapping is one chain per rank: the rank's tile at every gap between
nodes, then at every fan-out dimension. Ranks that share a dimension of a tensor form a group. Every count,
footprint and number of PEs in use is a product over groups, and each factor depends on the chains of its
group alone (a "vector" of factors per choice of chains). No mapping gets cheaper if a factor rises, except
for skipped reads, which are subtracted. So two steps are exact:

1. Of a group's vectors those are left out that another one dominates.
2. Branch and bound takes one vector per group.

Two more bounds save work. One vector of bounds may stand for many chains; if the best choice contains it, the
vectors of these chains replace it. And the vectors of a group are not made if none of its outlines may lead
below the best. An outline (ragged_vectors.py): one vector of lower bounds per choice of tiles outside the
array; it stands for all chains with these tiles.

steps.py says in which gaps a rank may be cut. A register inside the array holds one element per PE, since it
sinks below all loops of its own ranks. Neighbouring levels that hold no tensor in common may stand in any
order. That space is wider than the one of exhaustive.py, and contains SMAUG's nests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import inf
from typing import NamedTuple

import numpy as np

from dse.mapper.exact import ragged_kernels as kernels
from dse.mapper.exact import ragged_vectors as vec
from dse.mapper.exact.kernels.compare import is_below
from dse.mapper.exact.ragged_program import (
    Program,
    groups_of,
    ideal,
    nest,
    orders,
    prices,
    program,
    unsupported,
)
from dse.mapper.exact.ragged_vectors import Group, Scope, Vectors
from dse.mapper.exact.steps import step_lists
from dse.mapping.constraints import FREE, minimal_mapping
from dse.mapping.nest import Infeasible
from dse.mapping.searched import mappings_of
from dse.sim.counts.counts import footprints
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_unfused
from dse.sim.schedule import outermost
from workloads.arrays import Floats, Ints
from workloads.einsum import Einsum

BUDGET = 100_000_000  # vectors visited per order of storage nodes: half a minute
# rounds of pruning outlines, at most: in each, the outlines of every group are compared with bounds of the
# other groups, which rise with each round
OUTLINE_ROUNDS = 6
# A block is those rows (vectors) of a group that are alike (`_blocks`). If at most this many choices of one
# block per group may be best, each is searched by itself; otherwise all rows together
MAX_BLOCK_CHOICES = 10_000
# objective latency only: vectors visited in a first attempt without blocks; if it does not end within that,
# blocks are searched
ROWS_BUDGET = 5_000_000
# rows with equal numbers v form a block: its key is the sum of v_i * `KEY_WEIGHT`^i
KEY_WEIGHT = 1.6180339887
QUICK_BUDGET = 1_000_000  # vectors visited for a first mapping of a program, and for the choice of outlines
# Left out (`Mappings.cut_twice`): two loops over a rank in one gap. They may pay where strides leave holes
# between tiles, which are not fetched: tiles of 4, then of 3 cut 7 into 3, 1, 3; one loop gives 3, 3, 1.


@outermost.mapper
def solve_ragged(problem: Problem, budget: int = BUDGET, ties: bool = True) -> list[EinsumCost] | Infeasible:
    """The optimum over imperfect temporal and spatial factors, alone in a list. ties: whether energy, then
    latency decide between equal objectives; if not, any mapping with the least objective is the answer.

    budget: vectors visited at most per order of storage nodes.

    The answer has no certificate in three cases. It is then the best that was found, at least as good as the
    best of the tile sizes ceil(extent / n):

    1. the budget ends;
    2. a window has too many chains (ragged_vectors.MAX_CHAIN_ROWS);
    3. buffers stall (`overlap: buffered`), since stalls are not searched.

    Raises ValueError with the reason where `unsupported` has one.
    """
    e = problem.einsum
    if why := unsupported(e, problem.arch):
        raise ValueError(f"{e.name} on {problem.arch.name}: {why}; take another search of imperfect factors")
    candidates = _programs(problem, ties)
    best, answer, visited, proven = np.full(3, inf), None, 0, True
    # first few tile sizes, programs with most nodes first; then all sizes, programs with fewest chains first
    for coarse in (True, False):
        for low, p, reordered in sorted(
            candidates,
            key=lambda one: (
                -len(one.program.nodes) - (one.program.node_in_array is not None)
                if coarse
                else _chains_of(one.program, e)
            ),
        ):
            if is_below(low, best):
                found, n = _search_program(
                    p, reordered, best, coarse, ties, QUICK_BUDGET if coarse else budget
                )
                visited, proven = visited + min(n, budget), proven and (coarse or n <= budget)
                answer = (p, reordered.arch, found) if found else answer
    if answer is None:
        smallest = minimal_mapping(e, problem.arch)
        return cost.overflow(footprints(smallest, e, problem.arch), e, problem.arch) or Infeasible(
            "constraints", 1, 0, e.name, "mappings"
        )
    mapping = nest(e, *answer)
    one = evaluate_unfused(problem, mapping)
    held = [set(level.may_keep) for level in problem.arch.levels[1:]]
    strided = any(c > 1 for p in e.tensors() for dim in p.dims for _, c in dim.terms)
    space = replace(mappings_of("imperfect", problem.arch), cut_twice=not strided)
    # levels that share no tensor stand in any order
    if any(holds & other for holds, other in combinations(held, 2)):
        space = replace(space, node_order="levels")
    return [
        replace(one, optimality_gap=0.0, space=space, visited=visited)
        if proven and problem.arch.overlap == "free"
        else replace(one, visited=visited)
    ]


class Candidate(NamedTuple):
    """One order of storage nodes."""

    lower: Floats  # [3] a lower bound of its cost: objective, energy, latency
    program: Program
    problem: Problem  # on the machine with its levels in that order


def _programs(problem: Problem, ties: bool) -> list[Candidate]:
    """All orders of storage nodes. ties: as in `solve_ragged`."""
    found: dict[tuple[tuple[str, int], ...], Candidate] = {}
    for arch in orders(problem.arch):
        reordered = replace(problem, arch=arch)
        for _, steps in step_lists(problem.einsum, arch, FREE):
            p = program(problem.einsum, arch, steps)
            name = tuple(
                (arch.levels[n.level].name, n.tensor)
                for n in (*p.nodes, *([p.node_in_array] if p.node_in_array else []))
            )
            if name not in found:
                found[name] = Candidate(ideal(p, reordered, prices(p, reordered, ties)), p, reordered)
    return list(found.values())


def _chains_of(p: Program, e: Einsum) -> int:
    """An upper bound of the number of chains of a program."""
    return sum(n ** sum(rank in own for own in p.allowed) for rank, n in e.extents)


def _search_program(
    p: Program, problem: Problem, best: Floats, coarse: bool, ties: bool, budget: int
) -> tuple[list[Ints] | None, int]:
    """Searches a program. Returns the chains of its best mapping below `best`, which is lowered (None: there
    is none), and the vectors visited.
    """
    term_prices = prices(p, problem, ties)
    specs = [vec.group(p, problem.einsum, problem.arch, ranks) for ranks in groups_of(problem.einsum)]
    group_vectors = [vec.lower_bounds(g) for g in specs]  # per group its vectors, or lower bounds of them
    done_groups: list[int] = []
    single = [g for g, spec in enumerate(specs) if len(spec.extents) == 1]
    for g in sorted(range(len(specs)), key=lambda g: (len(specs[g].extents), specs[g].extents)):
        # an equal group has the same vectors and bounds
        own = next((group_vectors[h] for h in done_groups if specs[h] == specs[g]), None)
        if own is None:
            surviving_tiles = None
            if len(specs[g].extents) == 2 and not coarse:
                may_improve, pruned = _make_outlines(specs, group_vectors, done_groups, term_prices, best)
                if not may_improve:
                    return None, 0
                # tiles outside the array of the outlines that are left: only their chains are made
                surviving_tiles = group_vectors[g].tiles[:, :, : len(p.allowed)] if pruned else None
            scope = _scope(g, group_vectors, term_prices, best, coarse)
            own = (
                vec.vectors(specs[g], scope, alive=surviving_tiles)
                if len(scope.rest.products)
                else vec.take_rows(group_vectors[g], np.zeros(0, np.int64))
            )
        if own is None or not len(own.products):
            return None, budget + 1 if own is None else 0
        group_vectors[g] = own
        done_groups.append(g)
        if (
            len(done_groups) == len(single)
            and not coarse
            and not _prune_again(specs, group_vectors, single, term_prices, best)
        ):
            return None, 0
    first = None
    # Latency bound by transfers often prunes well without blocks: try all rows first, with a small budget
    if problem.objective == "latency":
        first, n = _best_rows(
            specs, group_vectors, term_prices, best, group_vectors, min(budget, ROWS_BUDGET)
        )
        if n <= min(budget, ROWS_BUDGET):
            return first, n
    blocks = [
        _blocks(g, v, term_prices, problem.objective == "latency")
        for g, v in zip(specs, group_vectors, strict=True)
    ]
    better, n = _best_by_blocks(specs, group_vectors, blocks, term_prices, best, group_vectors, budget)
    return better or first, n


def _prune_again(
    specs: Sequence[Group],
    vectors_of_groups: list[Vectors],
    groups: Sequence[int],
    term_prices: kernels.Prices,
    best: Floats,
) -> bool:
    """Drops vectors of `groups` that the present bounds of the other groups rule out. Returns False if a
    group has none left: no mapping is below the best.
    """
    for g in groups:
        scope = _scope(g, vectors_of_groups, term_prices, best, False)
        if not len(scope.rest.products):
            return False
        vectors_of_groups[g] = vec.undominated(specs[g], vec.may_improve(vectors_of_groups[g], scope))
        if not len(vectors_of_groups[g].products):
            return False
    return True


def _scope(
    g: int, vectors_of_groups: Sequence[Vectors], term_prices: kernels.Prices, best: Floats, coarse: bool
) -> Scope:
    """What group g's vectors are compared with: prices, best, and bounds of all other groups together, from
    what is known of these so far (vectors or bounds).
    """
    scope = Scope(term_prices, best, vec.rest_of(vec.unit_vectors(term_prices)), coarse)
    return replace(
        scope,
        rest=vec.combine(
            [v for h, v in enumerate(vectors_of_groups) if h != g], [vectors_of_groups[g]], scope
        ),
    )


def _make_outlines(
    specs: Sequence[Group],
    vectors_of_groups: list[Vectors],
    done_groups: Sequence[int],
    term_prices: kernels.Prices,
    best: Floats,
) -> tuple[bool, bool]:
    """Makes outlines of the groups of two ranks whose vectors are not made yet, in two passes: coarse ones
    (vec.outline: tiles of the first rank fixed), then finer ones (both ranks). In each, groups prune each
    other's rows until a round drops under 10 %.

    Returns two flags. may_improve: whether a mapping below the best may be left. pruned: whether
    `vectors_of_groups` now holds, for these groups, the outlines that survived.
    """
    open_groups = [g for g, spec in enumerate(specs) if len(spec.extents) == 2 and g not in done_groups]
    equal_group = {g: next(h for h in open_groups if specs[h] == specs[g]) for g in open_groups}
    for turn in range(2):
        for i in range(OUTLINE_ROUNDS):
            before = sum(len(vectors_of_groups[g].products) for g in open_groups)
            for g in open_groups:
                if equal_group[g] == g:
                    scope = _scope(g, vectors_of_groups, term_prices, best, False)
                    if not len(scope.rest.products):
                        return False, False
                    own = (
                        vec.may_improve(vectors_of_groups[g], scope)
                        if i
                        else vec.vectors(specs[g], scope, True)
                        if turn
                        else vec.outline(specs[g], scope)
                    )
                    if own is None:
                        return True, False
                    if not len(own.products):
                        return False, False
                    vectors_of_groups[g] = own
                vectors_of_groups[g] = vectors_of_groups[equal_group[g]]
            if i and sum(len(vectors_of_groups[g].products) for g in open_groups) > 0.9 * before:
                break
    blocks = [_blocks(g, v, term_prices, False) for g, v in zip(specs, vectors_of_groups, strict=True)]
    s = vec.vector_table([block.bounds for block in blocks])
    chosen = np.full(len(specs), -1, np.int64)
    choices = np.zeros((MAX_BLOCK_CHOICES, len(specs)), np.int64)
    n, choice_count = kernels.search(
        s, term_prices, best.copy(), chosen, choices, np.zeros((MAX_BLOCK_CHOICES, 3)), QUICK_BUDGET
    )
    if n > QUICK_BUDGET:
        return True, False
    for g in open_groups if choice_count else ():
        if equal_group[g] == g:
            wanted = np.unique(
                [choices[:choice_count, h] - s.start[h] for h in open_groups if equal_group[h] == g]
            )
            vectors_of_groups[g] = vec.take_rows(
                vectors_of_groups[g], np.sort(np.concatenate([blocks[g].rows[i] for i in wanted]))
            )
        vectors_of_groups[g] = vectors_of_groups[equal_group[g]]
    return choice_count > 0, True


def _best_by_blocks(
    specs: Sequence[Group],
    group_vectors: Sequence[Vectors],
    blocks: Sequence[Blocks],
    term_prices: kernels.Prices,
    best: Floats,
    all_vectors: Sequence[Vectors],
    budget: int,
) -> tuple[list[Ints] | None, int]:
    """The best choice of rows. First blocks are chosen, each by the lowest numbers of its rows; then rows are
    searched within the choices of blocks that may be best, in order of their bounds.

    all_vectors: the unreduced vectors of all groups, for bounds when a row of bounds is replaced by its
        chains.
    """
    answer, visited, goal = None, 0, best.copy()
    no_choices, no_bounds = np.zeros((0, len(specs)), np.int64), np.zeros((0, 3))
    s, chosen = vec.vector_table([block.bounds for block in blocks]), np.full(len(specs), -1, np.int64)
    n, _ = kernels.search(s, term_prices, goal, chosen, no_choices, no_bounds, budget)
    visited += n
    if chosen[0] < 0:
        return None, visited
    block_choices, bounds = chosen[None, :], goal[None, :]
    # turn 0: the choice of blocks with the lowest bound, to lower `best`; turn 1: all choices that still may
    # beat it
    for turn in range(2):
        if turn:
            block_choices, bounds = (
                np.zeros((MAX_BLOCK_CHOICES, len(specs)), np.int64),
                np.zeros((MAX_BLOCK_CHOICES, 3)),
            )
            n, choice_count = kernels.search(s, term_prices, best, chosen, block_choices, bounds, budget)
            visited += n
            if n > budget:  # too many choices of blocks: search all rows at once
                better, n = _best_rows(specs, group_vectors, term_prices, best, all_vectors, budget)
                return better or answer, n
            order = np.argsort(bounds[:choice_count, 0], kind="stable")
            block_choices, bounds = block_choices[:choice_count][order], bounds[:choice_count][order]
        for choice, bound in zip(block_choices, bounds, strict=True):
            if visited <= budget and is_below(bound, best):
                rows = [
                    vec.take_rows(v, block.rows[i - s.start[g]])
                    for g, (v, block, i) in enumerate(zip(group_vectors, blocks, choice, strict=True))
                ]
                better, n = _best_rows(specs, rows, term_prices, best, all_vectors, budget)
                answer, visited = better or answer, visited + n
    return answer, visited


class Blocks(NamedTuple):
    """The rows of a group in blocks."""

    bounds: Vectors  # per block one row: the lowest of its rows in every number
    rows: list[Ints]  # per block the indices of its rows


def _blocks(g: Group, v: Vectors, term_prices: kernels.Prices, by_pes: bool) -> Blocks:
    """Puts rows into blocks: rows with equal products in all terms that do not depend on the tiles inside the
    PEs; with `by_pes` rows with equal PEs, which matter more for latency.
    """
    # terms in which no rank has a factor for the tiles inside the PEs
    outside = [k for k, term in enumerate(g.terms) if not any(role.is_inside_pes() for role in term.roles)]
    values = v.pes if by_pes else v.products[:, outside]
    block_key = np.zeros(len(values))
    # Different numbers may have the same key. That makes a larger block, whose lowest numbers still bound it.
    for i in range(values.shape[1]):
        block_key += values[:, i] * KEY_WEIGHT ** (i + 1)
    order = np.argsort(block_key, kind="stable")
    starts = (
        np.flatnonzero(np.append(True, np.diff(block_key[order]) != 0))
        if len(order)
        else np.zeros(0, np.int64)
    )
    products, node_footprints, pes = v.products[order] * term_prices.sign, v.footprints[order], v.pes[order]
    bounds = Vectors(
        np.zeros((len(starts), 1, 1), np.int64),
        np.minimum.reduceat(products, starts) * term_prices.sign,
        np.minimum.reduceat(node_footprints, starts),
        np.minimum.reduceat(pes, starts),
    )
    return Blocks(bounds, np.split(order, starts[1:]))


def _best_rows(
    specs: Sequence[Group],
    rows: Sequence[Vectors],
    term_prices: kernels.Prices,
    best: Floats,
    all_vectors: Sequence[Vectors],
    budget: int,
) -> tuple[list[Ints] | None, int]:
    """The best choice of rows below `best`, which is lowered. If a row of that choice is a bound for many
    chains, the rows of these chains replace it and the search runs again.
    """
    found, visited = list(rows), 0
    no_choices, no_bounds = np.zeros((0, len(specs)), np.int64), np.zeros((0, 3))
    while True:
        s, chosen, goal = vec.vector_table(found), np.full(len(found), -1, np.int64), best.copy()
        n, _ = kernels.search(s, term_prices, goal, chosen, no_choices, no_bounds, budget)
        visited += n
        if chosen[0] < 0:
            return None, visited
        picked = [v.tiles[i - s.start[g]] for g, (v, i) in enumerate(zip(found, chosen, strict=True))]
        bound_groups = [g for g, row in enumerate(picked) if row[0, -1] == 0]
        if not bound_groups:
            best[:] = goal
            return picked, visited
        for g in bound_groups:
            found[g] = _with_chains(
                specs[g], found[g], picked[g][0], _loose_scope(g, all_vectors, term_prices, best)
            )


def _loose_scope(
    g: int, vectors_of_groups: Sequence[Vectors], term_prices: kernels.Prices, best: Floats
) -> Scope:
    """A scope like that of `_scope`, but quick to make: its bounds of the other groups are one row, the
    lowest numbers of each of them.
    """
    rest = vec.unit_vectors(term_prices)
    for h, v in enumerate(vectors_of_groups):
        rest = vec.multiply(rest, vec.minimum_of(v, term_prices)) if h != g else rest
    return Scope(term_prices, best, vec.rest_of(rest), False)


def _with_chains(g: Group, v: Vectors, bound: Ints, scope: Scope) -> Vectors:
    """Vectors with a row of bounds (bound: its tiles) replaced by the chains that it stands for: those with
    the same tiles outside the array.
    """
    fixed = [int(n) for n in bound[: len(g.allowed[0])]]
    single = vec.chains(g, 0, 0, scope, fixed=fixed)
    assert single is not None, "never too many chains: one rank, and its tiles outside the array are fixed"
    more = vec.vectors_of(g, [single], [np.arange(len(single.tiles))], vec.tables_of(g, [single]))
    kept_rows = vec.are_chains(v.tiles) | (v.tiles[:, 0, : len(fixed)] != fixed).any(axis=1)
    return Vectors(
        *(
            np.concatenate([getattr(v, name)[kept_rows], getattr(more, name)])
            for name in ("tiles", "products", "footprints", "pes")
        )
    )
