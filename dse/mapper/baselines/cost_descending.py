"""KAPLA's intra-layer solver, bottom-up cost descending, for any einsum and any number of levels.

Per level, from the innermost outwards: stack (unroll ranks over the fan-out above the level), then cache
(grow the tile of the level). Each step lowers the traffic of the tensors that the loops outside the level do
not keep stationary. Source: KAPLA (arXiv 2306.15676, Sec. V) and its published code. Differences: traffic is
that of our evaluator (halos included), PEs may be idle, tiles need not divide, and all candidates are ranked
by the evaluator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from math import inf, prod
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dse.mapper.exact.spatial import divisors, primes
from dse.mapping.constraints import minimal_mapping
from dse.mapping.nest import (
    Infeasible,
    Loop,
    Mapping,
    Store,
    bits_at,
    faults,
    in_lockstep,
    may_keep,
    stored_at,
)
from dse.sim.counts.counts import Counted, counted, footprints, tile_bits
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, evaluate_fitting, objective_value
from dse.sim.schedule import outermost
from hw.arch import Arch
from workloads.einsum import Einsum, Projection, whole_slots

Tile = dict[str, int]
Tiles = dict[str, NDArray[np.int64]]  # per rank the tile sizes [C] of C candidates
# tile sizes in the order of the ranks -> nodes that stand above and leave these tiles
Factorizations = dict[tuple[int, ...], tuple[Loop | Store, ...]]
Tier = Sequence[int]  # levels (by number) whose nodes stand in one block


class SpatialFactor(NamedTuple):
    """The PEs along one fan-out dimension over which a rank is unrolled."""

    dim: str
    rank: str
    factor: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Tiles of one bottom-up pass."""

    tiles: tuple[Tile, ...]  # per tier the tile that it holds
    # per tier the spatial factors above it; last those above compute
    pes: tuple[tuple[SpatialFactor, ...], ...]


@dataclass(frozen=True, slots=True)
class Stationary:
    """Storage nodes that stand above all temporal loops."""

    e: Einsum
    arch: Arch
    # the innermost level that is too small for one element of each of its tensors, if these move: its double
    # buffer stores them twice
    last_tight: int
    required: tuple[tuple[Store, ...], ...]  # per level the nodes that no mapping may leave out
    # per tensor the innermost level of these nodes; 0: only the node of the outermost level
    depth: dict[str, int]

    def above(self, v: int) -> list[Store]:
        """Required nodes of level v that stand above all temporal loops."""
        return [store for store in self.required[v] if v <= self.depth[store.tensor]]

    def below(self) -> list[Store]:
        """Required nodes that stand below temporal loops, outermost level first."""
        return [
            store
            for v, stores in enumerate(self.required)
            for store in stores
            if v > self.depth[store.tensor]
        ]


@outermost.mapper
def cost_descending(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """The best of all candidates of KAPLA's intra-layer solver: one or more per choice of stationary tensors.

    Returns a list of one solution. Deterministic: rng is not used.
    """
    found = candidates(problem.einsum, topology(problem.arch))
    if isinstance(found, Infeasible):
        return found
    best = min(found, key=lambda c: _rank(problem, c))
    return [evaluate_fitting(problem, best)]


def _rank(problem: Problem, candidate: Counted) -> tuple[float, float, float, str]:
    """Objective, then the other metrics, then the mapping's text."""
    p = cost.price(candidate.rows, problem.einsum, problem.arch, candidate.timed)
    return (
        objective_value(problem.objective, p.energy_pj, p.latency_cycles),
        p.energy_pj,
        p.latency_cycles,
        str(candidate.mapping),
    )


def topology(arch: Arch) -> Arch:
    """The machine without its prices; mappings, and whether they fit, depend on this alone."""
    return arch.structure()


@lru_cache(maxsize=256)
def candidates(e: Einsum, arch: Arch) -> list[Counted] | Infeasible:
    """Mappings that fit, with their counts: one per `Fill` and choice of loop orders. Machines that differ in
    prices only share them.
    """
    smallest = smallest_mapping(e, arch)
    if isinstance(smallest, Infeasible):
        return smallest
    usable_arch = _usable_arch(e, arch)
    fills = {
        repr(fill): fill
        for tier_stationary in product(
            *(_tier_tensors(e, usable_arch, tier) for tier in tiers(e, usable_arch)[1:])
        )
        for fill in [_fill(e, usable_arch, tier_stationary)]
    }
    orders = sorted(
        {tuple(_order(e, stationary)) for stationary in permutations(e.tensors(), min(2, len(e.tensors())))}
    )
    nests = dict.fromkeys(
        mapping for fill in fills.values() for mapping in _nests(e, usable_arch, fill, orders)
    )
    fitting = [
        (mapping, footprint)
        for mapping in nests
        if not cost.overflow(footprint := footprints(mapping, e, arch), e, arch)
        and not (arch.compute.lockstep and faults(mapping, e, arch))  # PEs get whole slots (`whole_slots`)
    ]
    return [
        counted(mapping, e, arch, footprint)
        for mapping, footprint in fitting or [(smallest, footprints(smallest, e, arch))]
    ]


def smallest_mapping(e: Einsum, arch: Arch) -> Mapping | Infeasible:
    """The mapping that needs the least capacity. If it is Infeasible, no mapping fits. (The outermost level
    is assumed to hold every tensor.)

    It holds only the nodes that it must, one element each, below all loops. Where double buffering makes this
    too large for a level, mappings with tiles that no temporal loop moves may still fit, since those tiles
    are stored once.
    """
    smallest = minimal_mapping(e, arch)
    single_buffered = replace(
        arch, levels=tuple(replace(level, double_buffer=False) for level in arch.levels)
    )
    overflow = cost.overflow(footprints(smallest, e, arch), e, arch)
    if overflow and not cost.overflow(footprints(smallest, e, arch), e, single_buffered):
        fitting = (
            nest
            for nest in _stationary_mappings(e, arch)
            if not cost.overflow(footprints(nest, e, arch), e, arch) and not faults(nest, e, arch)
        )
        return next(fitting, overflow)
    return overflow or smallest


def _stationary_mappings(e: Einsum, arch: Arch) -> Iterator[Mapping]:
    """Mappings some of whose nodes stand above all temporal loops: if any mapping fits, one of these does.

    Take a mapping that fits. Some of its nodes are stationary: they stand above all temporal loops and do not
    sink. All other nodes of double-buffered levels count twice, with at least one element each. Move those
    below all loops, and let the loops go down to single elements: these nodes need no more capacity than
    before. Nor do the stationary nodes, unless the last of them can sink now. What stood below that node
    before kept it from sinking. It was one of these:
        a loop over a rank that its tensor does not have: make it the first loop now;
        no loop at all: there is none now either;
        PEs (a spatial loop): let it stand there, 2 PEs are enough;
        nodes of another tensor or another level, of which the last one sank, or did not, likewise: let them
            stand there, sunk as far as they can.
    Nodes outside of PEs in use cannot move, since a loop above the PEs would move all that is inside of them.
    Levels inside of `last_tight` have the capacity for nodes that move.
    """
    unit_tile, names = dict.fromkeys(e.sizes(), 1), [p.tensor for p in e.tensors()]
    required = tuple(
        tuple(Store(level.name, t) for t in may_keep(e, level)) if not v or not level.bypass else ()
        for v, level in enumerate(arch.levels)
    )
    last_tight = max(
        v
        for v, stores in enumerate(required)
        if v and stores and _overflows(e, arch, v, unit_tile, unit_tile)
    )
    for depth in product(
        *(
            [0, *(v for v in range(1, last_tight + 1) if any(store.tensor == t for store in required[v]))]
            for t in names
        )
    ):
        stationary = Stationary(e, arch, last_tight, required, dict(zip(names, depth, strict=True)))
        for tile, nodes in _factorizations(stationary).items() if last_tight in depth else ():
            yield from _nests_below(
                stationary, {rank: n for rank, n in zip(unit_tile, tile, strict=True) if n > 1}, nodes
            )


def _nests_below(
    stationary: Stationary, remaining: Tile, nodes: tuple[Loop | Store, ...]
) -> Iterator[Mapping]:
    """Nests that go on below the stationary nodes: one per choice of what stands directly above the temporal
    loops (a node, or PEs) and of the first loop.
    """
    e, arch, moving = stationary.e, stationary.arch, stationary.below()
    tops: list[tuple[tuple[Loop | Store, ...], Projection]] = []
    for p in e.tensors():
        end = Store(arch.levels[stationary.depth[p.tensor]].name, p.tensor)
        tops.append(((*(node for node in nodes if node != end), end), p))
        inner = [
            Store(level.name, p.tensor)
            for v, level in enumerate(arch.levels)
            if v > stationary.depth[p.tensor] and p.tensor in may_keep(e, level)
        ]
        tops += [
            ((*nodes, *inner_nodes), p)
            for n in range(1, len(inner) + 1)
            for inner_nodes in combinations(inner, n)
        ]
    for top, p in tops:
        for order in _first_loops(p, remaining):
            yield Mapping(
                (*top, *(Loop(rank, 1) for rank in order), *(store for store in moving if store not in top))
            )
    for f in arch.fanouts:
        for rank, (dim, _) in product(remaining, f.dims if f.outside > stationary.last_tight else ()):
            half = -(-remaining[rank] // 2)
            yield Mapping(
                (
                    *nodes,
                    Loop(rank, half, dim),
                    *(Loop(r, 1) for r in remaining if r != rank or half > 1),
                    *moving,
                )
            )


def _first_loops(p: Projection, ranks: Tile) -> Iterator[list[str]]:
    """Orders of the loops below a node of a tensor, of two kinds. In some the node sinks as far as it can,
    one order per window that it may sink into. In the others the node does not sink, since the tensor does
    not have the rank of the first loop.
    """
    for window in sorted(p.partial_ranks() & set(ranks)) or [""]:
        yield sorted(ranks, key=lambda r: (r not in p.full_ranks(), r != window))
    for unseen in set(ranks) - p.ranks():
        yield sorted(ranks, key=lambda r: r != unseen)


def _factorizations(stationary: Stationary) -> Factorizations:
    """Ways to unroll ranks over the fan-outs outside of the level `Stationary.last_tight`: remaining tile ->
    nodes that stand above.

    Only ranks that change what this level needs are unrolled: all ranks of stationary tensors, and the
    partially relevant ranks of the others.
    """
    e, arch, last_tight = stationary.e, stationary.arch, stationary.last_tight
    unrolled_ranks = frozenset().union(
        *(p.ranks() if stationary.depth[p.tensor] else p.partial_ranks() for p in e.tensors())
    )
    factorizations: Factorizations = {tuple(e.sizes().values()): stationary.required[0]}
    later_pes = prod(size for f in arch.fanouts if 0 < f.outside <= last_tight for _, size in f.dims)
    for v in range(1, last_tight + 1):
        has_moving = any(
            store not in stationary.above(u) for u in range(1, v) for store in stationary.required[u]
        )
        for dim, size in (pair for f in arch.fanouts if f.outside == v for pair in f.dims):
            later_pes //= size
            if not has_moving:
                factorizations = _unroll_dim(
                    stationary,
                    factorizations,
                    unrolled_ranks - e.output.partial_ranks(),
                    dim,
                    size,
                    later_pes,
                )
        with_nodes = {tile: (*nodes, *stationary.above(v)) for tile, nodes in factorizations.items()}
        factorizations = {
            tile: nodes
            for tile, nodes in with_nodes.items()
            if not cost.overflow(footprints(Mapping(nodes), e, arch), e, arch)
        }
    return {
        tile: nodes
        for tile, nodes in factorizations.items()
        if _min_bits(stationary, tile, 1) <= _capacity(arch, last_tight)
    }


def _unroll_dim(
    stationary: Stationary,
    factorizations: Factorizations,
    ranks: frozenset[str],
    dim: str,
    size: int,
    later_pes: int,
) -> Factorizations:
    """The factorizations extended by one more fan-out dimension. later_pes: PEs of the dimensions still to
    come. Two kinds are left out:

    1. those for which another one, which leaves the same ranks to loops, has a tile that is nowhere larger;
    2. those that do not fit even if the PEs of the dimensions still to come cut the tile further
       (`_min_bits`).
    """
    capacity = _capacity(stationary.arch, stationary.last_tight)
    found: Factorizations = {}
    for start, above in factorizations.items():
        partial = [(start, size, above)]
        for i, rank in enumerate(stationary.e.sizes()):
            if rank in ranks:
                lockstep = in_lockstep(stationary.e, stationary.arch.compute)
                whole = whole_slots(stationary.e, rank) if lockstep else 1
                cuts = [
                    (
                        (*tile[:i], n, *tile[i + 1 :]),
                        pes // -(-tile[i] // n),
                        nodes if n == tile[i] else (*nodes, Loop(rank, n, dim)),
                    )
                    for tile, pes, nodes in partial
                    for n in sorted({-(-tile[i] // f) for f in range(1, min(pes, tile[i]) + 1)})
                    if n == tile[i] or n % whole == 0 == tile[i] % whole
                ]
                partial = [
                    cut for cut in cuts if _min_bits(stationary, cut[0], cut[1] * later_pes) <= capacity
                ]
        found |= {tile: nodes for tile, _, nodes in partial}
    tiles = np.array(list(found))
    return {
        tile: nodes
        for tile, nodes in found.items()
        if np.sum(np.all((tiles <= tile) & ((tiles > 1) == (np.array(tile) > 1)), axis=1)) == 1
    }


def _min_bits(stationary: Stationary, tile: Sequence[int], pes: int) -> int:
    """A lower bound of the bits that the level `Stationary.last_tight` needs: twice one element of each
    moving tensor, and the tile of each stationary tensor divided by all remaining PEs (`pes`), as if no other
    tensor were cut by them.
    """
    e, arch, sizes = stationary.e, stationary.arch, dict(zip(stationary.e.sizes(), tile, strict=True))
    total = 0
    for p in _tier_tensors(e, arch, (stationary.last_tight,)):
        bits = bits_at(arch.levels[stationary.last_tight], p.tensor, e, arch)
        elem_bits = bits if p.format == "dense" else tile_bits(p, dict.fromkeys(sizes, 1), arch.word_bits)
        share_bits = (
            bits * -(-prod(max((sizes[rank] for rank in dim.ranks()), default=1) for dim in p.dims) // pes)
            if p.format == "dense"
            else elem_bits
        )
        total += (
            max(elem_bits, share_bits)
            if stationary.depth[p.tensor] == stationary.last_tight
            else 2 * elem_bits
        )
    return total


def _usable_arch(e: Einsum, arch: Arch) -> Arch:
    """The machine without levels that are too small for one element of each of their tensors, held twice;
    such a level that may not be bypassed gets a single buffer instead.
    """
    unit = dict.fromkeys(e.sizes(), 1)
    is_tight = [bool(_overflows(e, arch, v, unit, unit)) for v in range(len(arch.levels))]
    kept_levels = [
        v
        for v, level in enumerate(arch.levels)
        if v == 0 or (may_keep(e, level) and not (level.bypass and is_tight[v]))
    ]
    levels = tuple(
        replace(arch.levels[v], double_buffer=arch.levels[v].double_buffer and not is_tight[v])
        for v in kept_levels
    )
    return replace(
        arch,
        levels=levels,
        fanouts=tuple(replace(f, outside=sum(v < f.outside for v in kept_levels)) for f in arch.fanouts),
    )


def tiers(e: Einsum, arch: Arch) -> list[Tier]:
    """The levels from outside in, in tiers. Neighbouring levels that share no tensor and have no fan-out
    between them are one tier: their nodes stand in one block.
    """
    found: list[Tier] = [(0,)]
    for v in range(1, len(arch.levels)):
        is_same_tier = len(found) > 1 and all(f.outside != v for f in arch.fanouts)
        if is_same_tier and not set(may_keep(e, arch.levels[v])) & {
            p.tensor for p in _tier_tensors(e, arch, found[-1])
        }:
            found[-1] = (*found[-1], v)
        else:
            found.append((v,))
    return found


def _tier_tensors(e: Einsum, arch: Arch, tier: Tier) -> list[Projection]:
    """Tensors that the levels of a tier may hold."""
    return [p for p in e.tensors() if any(p.tensor in may_keep(e, arch.levels[v]) for v in tier)]


def _fill(e: Einsum, arch: Arch, stationary: Sequence[Projection]) -> Fill:
    """One pass from the innermost tier outwards. stationary[t - 1]: the tensor that the loops outside tier t
    keep stationary.
    """
    extents, all_tiers = e.sizes(), tiers(e, arch)
    depth = len(all_tiers)
    tile = dict.fromkeys(extents, 1)
    tier_tiles: list[Tile] = [extents] * depth
    spatial_factors: list[tuple[SpatialFactor, ...]] = [()] * (depth + 1)
    if any(f.outside == len(arch.levels) for f in arch.fanouts):
        spatial_factors[depth], tile = _stack(
            e, arch, len(arch.levels), tile, stationary[-1] if stationary else e.output
        )
    for t in range(depth - 1, 0, -1):
        spatial_factors[t], _ = _stack(e, arch, all_tiers[t][0], tile, stationary[t - 1])
        tier_tiles[t] = _cache(e, arch, all_tiers[t], tile, spatial_factors[t], stationary[t - 1])
        tile = _tile_of_pes(extents, tier_tiles[t], spatial_factors[t])
    return Fill(tuple(tier_tiles), tuple(spatial_factors))


def _tile_of_pes(extents: Tile, tile: Tile, pes: Sequence[SpatialFactor]) -> Tile:
    """The tile of all PEs together, where each has `tile`."""
    grown = dict(tile)
    for _, rank, factor in pes:
        grown[rank] = min(grown[rank] * factor, extents[rank])
    return grown


def _stack(
    e: Einsum, arch: Arch, boundary: int, tile: Tile, stationary: Projection
) -> tuple[tuple[SpatialFactor, ...], Tile]:
    """Unroll ranks over the fan-outs with `boundary` levels outside, one prime factor of a dimension's size
    at a time: the spatial factors, and the tile of all PEs together.
    """
    extents = e.sizes()
    allowed = [
        rank
        for rank in extents
        if rank not in e.output.partial_ranks()
        and not (in_lockstep(e, arch.compute) and tile[rank] % whole_slots(e, rank))
    ]
    factors: dict[tuple[str, str], int] = {}
    grown = dict(tile)
    for f in arch.fanouts:
        for name, size in f.dims if f.outside == boundary else ():
            for p in primes(size):
                rank = _rank_to_spread(e, extents, grown, allowed, stationary, p)
                if rank is None:
                    break
                wider = _tile_of_pes(extents, grown, (SpatialFactor(name, rank, p),))
                if any(_overflows(e, arch, v, wider, wider) for v in range(boundary)):
                    continue
                factors[name, rank] = factors.get((name, rank), 1) * min(p, -(-extents[rank] // grown[rank]))
                grown = wider
    return tuple(SpatialFactor(name, rank, n) for (name, rank), n in factors.items()), grown


def _rank_to_spread(
    e: Einsum, extents: Tile, tile: Tile, allowed: Sequence[str], stationary: Projection, p: int
) -> str | None:
    """The rank over which a prime factor p of a fan-out dimension is unrolled; None if no rank is left.

    First choice: a rank that p divides and that the most refetched tensor does not have (not counting the
    stationary one). Otherwise, while any of these tensors is refetched, the rank that leaves least
    refetching, weighted by its padding; after that the rank with least padding, ranks that the stationary
    tensor does not have first.
    """
    trips_left = {rank: -(-extents[rank] // tile[rank]) for rank in allowed}
    open_ranks = [rank for rank in allowed if trips_left[rank] > 1]
    if not open_ranks:
        return None
    moving = [t for t in e.tensors() if t is not stationary]
    refetched = max(moving, key=lambda t: _refetch_elems(t, e, trips_left))
    preferred = [rank for rank in open_ranks if rank not in refetched.ranks() and trips_left[rank] % p == 0]
    if preferred:
        return preferred[0]
    if all(trips_left[rank] == 1 for t in moving for rank in allowed if rank not in t.ranks()):
        last_choices = [rank for rank in open_ranks if rank not in stationary.ranks()] or open_ranks
        return min(last_choices, key=lambda rank: _padding(trips_left[rank], p))
    return min(
        open_ranks,
        key=lambda rank: (
            sum(_refetch_elems(t, e, {**trips_left, rank: -(-trips_left[rank] // p)}) for t in moving)
            * _padding(trips_left[rank], p)
        ),
    )


def _refetch_elems(p: Projection, e: Einsum, trips_left: Tile) -> int:
    """Elements that a tensor moves if every loop that is left over a rank it does not have refetches it;
    outputs count twice, for they go both ways.
    """
    return (
        (2 if p is e.output else 1)
        * p.stored_elems()
        * prod(n for rank, n in trips_left.items() if rank not in p.ranks())
    )


def _padding(extent: int, p: int) -> float:
    """How much an extent grows, as a factor, if it is padded to a multiple of p."""
    return -(-extent // p) * p / extent


def _cache(
    e: Einsum, arch: Arch, tier: Tier, tile: Tile, spatial: Sequence[SpatialFactor], stationary: Projection
) -> Tile:
    """Grows the tile of a tier. Candidates are all products of divisors that fit this tier and, over all PEs
    together, the levels outside. The one with least traffic is taken, of equal ones the smallest. Then
    `_top_up`.
    """
    extents = e.sizes()
    pes = _tile_of_pes(extents, dict.fromkeys(extents, 1), spatial)  # PEs by the rank unrolled over them
    trips_left = {rank: -(-extents[rank] // (tile[rank] * pes[rank])) for rank in extents}
    grid = np.meshgrid(*(divisors(trips_left[rank]) for rank in extents), indexing="ij")
    tiles = {
        rank: np.minimum(tile[rank] * g.ravel(), extents[rank]) for rank, g in zip(extents, grid, strict=True)
    }
    # the tiles of all PEs together
    spread = {rank: np.minimum(t * pes[rank], extents[rank]) for rank, t in tiles.items()}
    bits_by_level = [_held_bits(e, arch, v, tiles, spread) for v in tier]
    trips = {rank: -(-extents[rank] // t) for rank, t in spread.items()}
    inner = _tier_tensors(e, arch, range(tier[0], len(arch.levels)))
    traffic = np.sum([_traffic(t, e, spread, trips, t is stationary) for t in inner], axis=0)
    fits = np.logical_and.reduce(
        [
            *(level_bits <= _capacity(arch, v) for level_bits, v in zip(bits_by_level, tier, strict=True)),
            *(_held_bits(e, arch, u, spread, spread) <= _capacity(arch, u) for u in range(tier[0])),
        ]
    )
    best = int(np.lexsort((np.sum(bits_by_level, axis=0), traffic, ~fits))[0])
    grown = {rank: int(t[best]) for rank, t in tiles.items()}
    return _top_up(
        e, arch, tier, grown, {rank: int(t[best]) for rank, t in trips.items()}, spatial, stationary
    )


def _capacity(arch: Arch, v: int) -> float:
    """Bits of level v, inf without a limit."""
    bits = arch.levels[v].capacity_bits
    return inf if bits is None else bits


def _traffic(p: Projection, e: Einsum, spread: Tiles, trips: Tiles, stationary: bool) -> NDArray[np.float64]:
    """Elements moved into the level, for all PEs. A stationary tensor is not fetched again by loops over
    ranks that it does not have.
    """
    elems = _hulls(p, spread).astype(np.float64)
    for rank, n in trips.items():
        if rank in p.ranks() or not stationary:
            elems = elems * n
    return elems * (2 if p is e.output else 1)


def _hulls(p: Projection, tiles: Tiles) -> NDArray[np.int64]:
    """[C] elements of a tensor from the first to the last index of each tile, in every dimension."""
    size = np.ones_like(next(iter(tiles.values())))
    for dim in p.dims:
        size = size * (1 + sum(c * (tiles[rank] - 1) for rank, c in dim.terms))
    return size


def bits_of_tiles(p: Projection, tiles: Tiles, elem_bits: int) -> NDArray[np.int64]:
    """Bits that tiles take (counts.tile_bits). elem_bits: of an element, without the index of a nonzero."""
    elems, bits = _hulls(p, tiles), elem_bits + p.index_bits
    if p.format == "dense":
        return elems * bits
    values: NDArray[np.int64] = np.ceil(np.round(p.stored_density() * elems, 6)).astype(np.int64)
    rows = _hulls(replace(p, dims=p.dims[:-1]), tiles)
    return values * bits + rows * p.pointer_bits + elems * p.mask_bits()


def _held_bits(e: Einsum, arch: Arch, v: int, tiles: Tiles, spread: Tiles) -> NDArray[np.int64]:
    """Bits that level v needs for its tiles. spread: the tile of all PEs together; where that is the whole
    einsum, nothing moves, and a double-buffered level holds each tile once.
    """
    total = sum(
        (
            bits_of_tiles(
                stored_at(arch.levels[v].formats, p, e), tiles, bits_at(arch.levels[v], p.tensor, e, arch)
            )
            for p in _tier_tensors(e, arch, (v,))
        ),
        np.zeros_like(next(iter(tiles.values()))),
    )
    if not arch.levels[v].double_buffer:
        return total
    moving = np.logical_or.reduce([spread[rank] < n for rank, n in e.extents])
    return total * np.where(moving, 2, 1)


def _top_up(
    e: Einsum,
    arch: Arch,
    tier: Tier,
    tile: Tile,
    trips_left: Tile,
    spatial: Sequence[SpatialFactor],
    stationary: Projection,
) -> Tile:
    """Multiply ranks that the stationary tensor lacks by their smallest primes while the tile fits."""
    for rank in (r for r in e.sizes() if r not in stationary.ranks()):
        for p in primes(trips_left[rank]):
            grown = {**tile, rank: min(tile[rank] * p, e.sizes()[rank])}
            wider = _tile_of_pes(e.sizes(), grown, spatial)
            if any(_overflows(e, arch, v, grown, wider) for v in tier) or any(
                _overflows(e, arch, u, wider, wider) for u in range(tier[0])
            ):
                break
            tile = grown
    return tile


def _overflows(e: Einsum, arch: Arch, v: int, tile: Tile, spread: Tile) -> bool:
    """Whether level v is too small for its tiles. spread: the tile of all PEs together."""
    tile_arrays, spread_arrays = (
        {rank: np.array([n]) for rank, n in scalar_tile.items()} for scalar_tile in (tile, spread)
    )
    return bool(_held_bits(e, arch, v, tile_arrays, spread_arrays)[0] > _capacity(arch, v))


def _nests(e: Einsum, arch: Arch, fill: Fill, orders: Sequence[Sequence[str]]) -> list[Mapping]:
    """The loop nests of a fill, one per combination of loop orders between the tiers."""
    all_tiers = tiers(e, arch)
    blocks: list[list[tuple[Loop | Store, ...]]] = [
        [tuple(Store(arch.levels[0].name, p.tensor) for p in e.tensors())]
    ]
    outer = e.sizes()
    for t in range(1, len(all_tiers)):
        stores = [
            (Store(arch.levels[v].name, p.tensor), p)
            for v in all_tiers[t]
            for p in _tier_tensors(e, arch, (v,))
        ]
        blocks.append(
            list(
                dict.fromkeys(_block(e, stores, outer, fill.tiles[t], fill.pes[t], order) for order in orders)
            )
        )
        outer = fill.tiles[t]
    blocks.append([_block(e, [], outer, dict.fromkeys(outer, 1), fill.pes[-1], list(outer))])
    return [Mapping(tuple(chain.from_iterable(choice))) for choice in product(*blocks)]


def _block(
    e: Einsum,
    stores: Sequence[tuple[Store, Projection]],
    outer: Tile,
    inner: Tile,
    pes: Sequence[SpatialFactor],
    order: Sequence[str],
) -> tuple[Loop | Store, ...]:
    """Loops from tile `outer` to tile `inner` and the nodes of a tier, each node raised above the loops
    directly over it whose ranks its tensor does not have.

    Spatial loops stand above the outermost of these nodes; loops that follow them run inside each PE.
    """
    spread = _tile_of_pes(e.sizes(), inner, pes)
    ranks = [rank for rank in order if spread[rank] < outer[rank]]
    risen = [_risen_position(p, ranks) for _, p in stores]
    top = min(risen, default=len(ranks))
    pe_tile = {
        rank: min(inner[rank] * -(-outer[rank] // spread[rank]), outer[rank])
        if rank in ranks[top:]
        else inner[rank]
        for rank in outer
    }
    nodes: list[Loop | Store] = [Loop(rank, spread[rank]) for rank in ranks[:top]]
    nodes += _spatial_loops(pe_tile, pes)
    for i in range(top, len(ranks) + 1):
        nodes += [store for (store, _), position in zip(stores, risen, strict=True) if position == i]
        nodes += [Loop(rank, inner[rank]) for rank in ranks[i : i + 1]]
    return tuple(nodes)


def _order(e: Einsum, stationary: Sequence[Projection]) -> list[str]:
    """Ranks, outermost first. Ranks that the first tensor of `stationary` does not have are innermost;
    outside of these are ranks that the second tensor does not have.
    """
    ranks_of = [p.ranks() for p in stationary]

    def depth(rank: str) -> int:
        return next((len(ranks_of) - i for i, ranks in enumerate(ranks_of) if rank not in ranks), 0)

    return sorted(e.sizes(), key=depth)


def _risen_position(p: Projection, ranks: Sequence[str]) -> int:
    """How many of the loops stay above a node of the tensor, raised above inner loops over other ranks."""
    position, tensor_ranks = len(ranks), p.ranks()
    while position and ranks[position - 1] not in tensor_ranks:
        position -= 1
    return position


def _spatial_loops(pe_tile: Tile, pes: Sequence[SpatialFactor]) -> list[Loop | Store]:
    """Spatial loops that leave the tile `pe_tile` to each PE."""
    tile = dict(pe_tile)
    loops: list[Loop | Store] = []
    for name, rank, factor in reversed(pes):
        loops.append(Loop(rank, tile[rank], name))
        tile[rank] *= factor
    return loops[::-1]
