"""The cost of every mapping of one einsum on one machine: a simple reference for the optimal mapper, for
small problems.

The mapspace:

- per level, the tensors that it holds and the order of their storage nodes;
- at most one temporal loop per rank between two nodes, and on both sides of a fan-out boundary;
- at most one spatial loop per rank and fan-out dimension, in the machine's order;
- tiles of each rank from its extent down to 1.

Two things are left out, since they change no count and need no less capacity:

- loops among the nodes of the outermost level, where nothing is filled;
- most orders of the loops between two nodes. First come loops of all ranks that are fully relevant to the
  node above, then one of a partially relevant rank (each is tried), then the others. Counts depend on the
  tiles below the loops, not on this order, and it lets the node above sink furthest: through the fully
  relevant loops, then into one sliding window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from math import inf, prod
from random import Random

import numpy as np

from dse.mapper.exact.spatial import divisors
from dse.mapping.constraints import FREE, Constraints, Factors, minimal_mapping
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, in_lockstep, may_keep, unrollable
from dse.sim.counts.counts import footprints
from dse.sim.counts.vectorized import Costs, cost_many, mapping_at, tables
from dse.sim.einsum.cost import overflow
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_unfused
from dse.sim.einsum.limits import broken
from dse.sim.schedule import outermost
from hw.arch import Arch
from workloads.arrays import Bools, Ints
from workloads.einsum import Einsum, whole_slots

# per level, outermost first, the tensors that it holds, in the order of their nodes
Placement = tuple[tuple[str, ...], ...]
CostTriple = tuple[float, float, float]  # value of the objective, energy, latency
MAX_MAPPINGS = 20_000_000  # mappings at most; a core costs about a million per second
BLOCK = 1 << 16  # mappings that are costed together
TIE_TOLERANCE = 1e-10  # costs that differ by less, relatively, are ties


@outermost.mapper
def exhaustive(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """The optimum by enumeration, over perfect temporal and imperfect spatial factors.

    Returns a list of one solution. Spatial factors are as even as can be (n / f, rounded up). Deterministic:
    rng is not used. Raises ValueError if the mapspace has more than MAX_MAPPINGS mappings.
    """
    return enumerated(problem)


@outermost.mapper
def enumerated(
    problem: Problem,
    factors: Factors = "imperfect_spatial",
    constraints: Constraints = FREE,
    limit: int = MAX_MAPPINGS,
) -> list[EinsumCost] | Infeasible:
    """The optimum of one einsum by enumeration. Ties are decided by energy, latency, text of the mapping.

    factors: which tiles must divide what encloses them: temporal and spatial ones (perfect), only temporal
        ones (imperfect_spatial), or none (imperfect).

    Raises ValueError if there are more than `limit` mappings.
    """
    e, arch = problem.einsum, problem.arch
    if (n := mapspace_size(e, arch, factors)) > limit:
        raise ValueError(
            f"{e.name} on {arch.name}: {n:,} mappings, exhaustive takes at most {limit:,}; take "
            "mapper: optimal, or smaller extents"
        )
    best: CostTriple = (inf, inf, inf)
    chosen: Mapping | None = None
    for placement in placements(e, arch):
        for nest in nests(e, arch, placement):
            for cost, mapping in _cheapest(problem, nest, factors, constraints, best):
                if (
                    chosen is None
                    or is_lower(cost, best)
                    or (not is_lower(best, cost) and str(mapping) < str(chosen))
                ):
                    best, chosen = cost, mapping
    if chosen is None:
        return overflow(footprints(minimal_mapping(e, arch), e, arch), e, arch) or Infeasible(
            "constraints", 1, 0, e.name, "mappings"
        )
    return [evaluate_unfused(problem, chosen)]


def is_lower(a: CostTriple, b: CostTriple) -> bool:
    """Whether cost a is lower than b: decided by the first of objective, energy and latency in which they
    differ by more than TIE_TOLERANCE.
    """
    return next(
        (x < y for x, y in zip(a, b, strict=True) if abs(x - y) > TIE_TOLERANCE * min(abs(x), abs(y))), False
    )


def placements(e: Einsum, arch: Arch) -> Iterator[Placement]:
    """Yields per level the tensors that it holds, in order. At the outermost level one order suffices."""
    names = [p.tensor for p in e.tensors()]
    choices = []
    for v, level in enumerate(arch.levels):
        allowed = may_keep(e, level)
        sets = (
            [allowed]
            if not level.bypass
            else [list(subset) for n in range(len(allowed) + 1) for subset in combinations(allowed, n)]
        )
        choices.append(
            [order for subset in sets for order in (permutations(subset) if v else [tuple(subset)])]
        )
    return (choice for choice in product(*choices) if set(chain(*choice)) == set(names))


def nests(e: Einsum, arch: Arch, placement: Placement) -> Iterator[Mapping]:
    """Yields the loop nests of a placement with all loops of the mapspace, whose tiles are still open (0):
    one nest per choice of the loop order below every node (`loop_orders`).
    """
    for orders in product(*loop_orders(e, arch, placement)):
        blocks = (
            [item] if isinstance(item, Store) else spatial_loops(e, arch, item)
            for item in loop_positions(arch, placement)
        )
        loops = ([Loop(rank, 0) for rank in order] for order in orders)
        yield Mapping(
            tuple(
                chain.from_iterable(
                    (*block, *order_loops) for block, order_loops in zip(blocks, loops, strict=True)
                )
            )
        )


def loop_positions(arch: Arch, placement: Placement) -> list[Store | int]:
    """What loops may stand below, outermost first: storage nodes, and fan-out boundaries, each given by the
    number of levels outside of it.
    """
    boundaries = {f.outside for f in arch.fanouts}
    found: list[Store | int] = []
    for v, held in enumerate((*placement, ())):
        found += [v] if v in boundaries else []
        found += [Store(arch.levels[v].name, tensor) for tensor in held]
    return found


def spatial_loops(e: Einsum, arch: Arch, boundary: int) -> list[Loop]:
    """Spatial loops at a fan-out boundary, over the ranks that may be unrolled there."""
    sizes = e.sizes()
    return [
        Loop(rank, 0, dim)
        for f in arch.fanouts
        if f.outside == boundary
        for dim, size in f.dims
        if size > 1
        for rank in unrollable(e, arch, dim)
        if sizes[rank] > 1
    ]


def loop_orders(e: Einsum, arch: Arch, placement: Placement) -> list[list[tuple[str, ...]]]:
    """Per item of `loop_positions` the possible orders of the temporal loops directly below it, as ranks; one
    empty order where no loops may stand.
    """
    projections, seen = {p.tensor: p for p in e.tensors()}, set()
    # index of the last node of the outermost level: no loops stand between nodes of that level
    last_outermost_node = len(placement[0]) - 1
    ranks = [rank for rank, n in e.extents if n > 1]
    found: list[list[tuple[str, ...]]] = []
    for i, item in enumerate(loop_positions(arch, placement)):
        is_outermost = isinstance(item, Store) and item.tensor not in seen
        seen |= {item.tensor} if isinstance(item, Store) else set()
        if i < last_outermost_node:
            found.append([()])
        elif is_outermost or not isinstance(item, Store):
            found.append([tuple(ranks)])
        else:
            p = projections[item.tensor]
            windows = [rank for rank in ranks if rank in p.partial_ranks()] or [""]
            found.append(
                [
                    tuple(sorted(ranks, key=lambda rank: (rank not in p.full_ranks(), rank != w)))
                    for w in windows
                ]
            )
    return found


def mapspace_size(e: Einsum, arch: Arch, factors: Factors) -> int:
    """How many mappings the whole space has, counting those that exceed capacities or fan-outs."""
    total, sizes = 0, e.sizes()
    for placement in placements(e, arch):
        for nest in nests(e, arch, placement):
            total += prod(
                len(chains(sizes[rank], loops, factors)) for rank, loops in rank_loops(e, arch, nest).items()
            )
    return total


def rank_loops(e: Einsum, arch: Arch, nest: Mapping) -> dict[str, tuple[int, ...]]:
    """Per rank of extent above 1 its loops in a nest, outermost first: 0 for a temporal loop, else the size
    of the fan-out dimension.
    """
    size_of = {dim: n for f in arch.fanouts for dim, n in f.dims}
    loops = [node for node in nest.nodes if isinstance(node, Loop)]
    return {
        rank: tuple(size_of[loop.over] if loop.over else 0 for loop in loops if loop.rank == rank)
        for rank, n in e.extents
        if n > 1
    }


@lru_cache(maxsize=1 << 12)
def chains(
    extent: int, loops: tuple[int, ...], factors: Factors, least: int = 1
) -> tuple[tuple[int, ...], ...]:
    """All choices of tile sizes for the loops of one rank, outermost first; the last tile is 1. loops: as
    `rank_loops` returns them, 0 for a temporal loop, else the size of the fan-out dimension. least: PEs get
    multiples of it (`whole_slots`); 0: a loop outside has left no multiple, so that no PEs share the tile.
    """
    if not loops:
        return ((),) if extent == 1 else ()
    fanout_size, inner = loops[0], loops[1:]
    if fanout_size:
        slots = extent // least if least else 1
        parts = (-(-slots // f) for f in range(1, fanout_size + 1) if factors != "perfect" or slots % f == 0)
        sizes = sorted({n * least for n in parts}) if least else [extent]
    else:
        sizes = list(range(1, extent + 1) if factors == "imperfect" else divisors(extent))
    return tuple(
        (n, *rest)
        for n in sizes
        for rest in chains(n, inner, factors, least if least and n % least == 0 else 0)
    )


def _cheapest(
    problem: Problem, nest: Mapping, factors: Factors, constraints: Constraints, best: CostTriple
) -> Iterator[tuple[CostTriple, Mapping]]:
    """Yields the cheapest mappings of a nest that fit and cost no more than `best`: one per BLOCK choices, of
    equally cheap ones the first by text.
    """
    e, arch = problem.einsum, problem.arch
    loops_of = rank_loops(e, arch, nest)
    lockstep = in_lockstep(e, arch.compute)
    least = {rank: whole_slots(e, rank) if lockstep else 1 for rank, _ in e.extents}
    options = {rank: chains(n, loops_of.get(rank, ()), factors, least[rank]) for rank, n in e.extents}
    compiled = tables(nest, e, arch, options)
    trips = [_trip_counts(nest, rank, n, options[rank]) for rank, n in e.extents]
    shape = tuple(len(options[rank]) for rank, _ in e.extents)
    for start in range(0, prod(shape), BLOCK):
        choices = np.stack(np.unravel_index(np.arange(start, min(start + BLOCK, prod(shape))), shape), axis=1)
        choices = choices[_fits_fanouts(nest, arch, trips, choices)]
        yield from _first_cheapest(
            problem, nest, options, constraints, cost_many(compiled, e, arch, choices), choices, best
        )


def _trip_counts(nest: Mapping, rank: str, extent: int, tiles: Sequence[Sequence[int]]) -> Ints:
    """[N, L] trip counts of every loop of the nest for each option of a rank; 1 for loops of other ranks."""
    loops = [node for node in nest.nodes if isinstance(node, Loop)]
    rank_loop_at = [i for i, loop in enumerate(loops) if loop.rank == rank]
    found = np.ones((len(tiles), len(loops)), np.int64)
    if rank_loop_at:
        inside = np.array(tiles, np.int64)
        outside = np.column_stack([np.full(len(tiles), extent), inside[:, :-1]])
        found[:, rank_loop_at] = -(-outside // inside)
    return found


def _fits_fanouts(nest: Mapping, arch: Arch, trips: Sequence[Ints], choices: Ints) -> Bools:
    """[C] whether the trips over each fan-out dimension are at most its size. trips: per rank as
    `_trip_counts`;
    choices: [C, ranks] index of the chosen option of each rank.
    """
    loops = [node for node in nest.nodes if isinstance(node, Loop)]
    fits = np.ones(len(choices), np.bool_)
    for dim, dim_size in (pair for f in arch.fanouts for pair in f.dims):
        dim_loops = [i for i, loop in enumerate(loops) if loop.over == dim]
        used = np.prod(
            [rank_trips[:, dim_loops].prod(axis=1)[choices[:, r]] for r, rank_trips in enumerate(trips)],
            axis=0,
        )
        fits &= used <= dim_size
    return fits


def _first_cheapest(
    problem: Problem,
    nest: Mapping,
    options: dict[str, tuple[tuple[int, ...], ...]],
    constraints: Constraints,
    costs: Costs,
    choices: Ints,
    best: CostTriple,
) -> Iterator[tuple[CostTriple, Mapping]]:
    """Yields one mapping, or none if `best` is cheaper: of the choices [C, ranks] that fit and keep the
    constraints the cheapest; of equally cheap ones the first by text.
    """
    values = {
        "energy": costs.energy_pj,
        "latency": costs.latency_cycles,
        "edp": costs.energy_pj * costs.latency_cycles,
    }[problem.objective]
    table = np.column_stack([values, costs.energy_pj, costs.latency_cycles])
    fits = np.all(
        costs.occupied_bits
        <= [inf if level.capacity_bits is None else level.capacity_bits for level in problem.arch.levels],
        axis=1,
    )
    remaining: Ints = np.flatnonzero(fits & (values <= best[0] * (1 + TIE_TOLERANCE)))

    def mapping(c: int) -> Mapping:
        complete = mapping_at(nest, options, dict(zip(options, choices[c].tolist(), strict=True)))
        return without_unit_loops(complete, problem.einsum)

    if constraints != FREE:
        remaining = np.array(
            [
                c
                for c in remaining.tolist()
                if not broken(constraints, mapping(c), problem.einsum, problem.arch)
            ],
            np.int64,
        )
    for column in range(3):
        remaining = remaining[
            table[remaining, column] <= table[remaining, column].min(initial=inf) * (1 + TIE_TOLERANCE)
        ]
    if len(remaining) and not is_lower(best, (cost := tuple(table[remaining[0]].tolist()))):
        yield cost, min((mapping(c) for c in remaining.tolist()), key=str)


def without_unit_loops(mapping: Mapping, e: Einsum) -> Mapping:
    """The same mapping without loops of one trip."""
    tile = e.sizes()
    nodes: list[Loop | Store] = []
    for node in mapping.nodes:
        if isinstance(node, Loop):
            if node.tile < tile[node.rank]:
                nodes.append(node)
            tile[node.rank] = node.tile
        else:
            nodes.append(node)
    return Mapping(tuple(nodes))
