"""KAPLA's intra-layer solver, bottom-up cost descending, for any einsum and any number of levels.

Per level, from the innermost outwards: stack (spread ranks over the fan-out above the level), then cache (grow the
level's tile), each step lowering the traffic of the tensors that the level's block of loops does not keep stationary.
Source: KAPLA (arXiv 2306.15676, Sec. V) and its code as read in specs/dataflow.md, 1.4. Departures: traffic is our
evaluator's (halos included), lanes may stay idle, tiles need not divide, every candidate is ranked by the one evaluator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, permutations, product
from math import inf, isqrt, prod
from random import Random

import numpy as np
from numpy.typing import NDArray

from dse.nest import Infeasible, Loop, Mapping, Store
from dse.sim import cost
from dse.sim.counts import Count, Footprint, count, footprints
from dse.sim.evaluate import EinsumCost, Problem, figure, priced
from hw.arch import Arch, Compute
from workloads.einsum import Einsum, Projection

Tile = dict[str, int]
Tiles = dict[str, NDArray[np.int64]]  # per rank: the tile sizes of C candidates
Lanes = Sequence[tuple[str, str, int]]  # (fan-out dimension, rank, factor)
Counted = tuple[Mapping, tuple[Count, ...], tuple[Footprint, ...]]


@dataclass(frozen=True, slots=True)
class Fill:
    """Tiles of one bottom-up pass. inside[v]: what level v holds; lanes[v]: spatial factor per (fan-out dimension, rank) above level v."""

    inside: tuple[Tile, ...]
    lanes: tuple[tuple[tuple[str, str, int], ...], ...]


def cost_descending(problem: Problem, rng: Random) -> list[EinsumCost] | Infeasible:
    """Best first: one solution, the cheapest of one candidate per choice of stationary tensors. Deterministic: rng is not used."""
    found = candidates(problem.einsum, topology(problem.arch))
    if isinstance(found, Infeasible):
        return found
    best = min(found, key=lambda c: _rank(problem, c))
    return [priced(problem, *best)]


def _rank(problem: Problem, candidate: Counted) -> tuple[float, float, float, str]:
    """Objective, then the other metrics, then the mapping's text."""
    p = cost.price(candidate[1], problem.einsum, problem.arch)
    return figure(problem.objective, p.energy_pj, p.latency_cycles), p.energy_pj, p.latency_cycles, str(candidate[0])


def topology(arch: Arch) -> Arch:
    """The machine without its prices: what decides which mappings exist and fit."""
    levels = tuple(
        replace(level, read_pj=0.0, write_pj=0.0, bandwidth=1.0, access_cycles=1, ports="shared", transfer="next", leak_mw=0.0, area_mm2=0.0)
        for level in arch.levels)
    return replace(arch, name="", levels=levels, compute=Compute(0.0, 0.0), clock_ghz=1.0)


@lru_cache(maxsize=256)
def candidates(e: Einsum, arch: Arch) -> list[Counted] | Infeasible:
    """Counted mappings that fit, one per fill and order of loops; machines that differ in prices only share them."""
    whole, arch = arch, _usable(e, arch)
    fills: dict[str, Fill] = {}
    for kept in product(e.tensors(), repeat=len(arch.levels) - 1):
        fill = _fill(e, arch, kept)
        if isinstance(fill, Infeasible):
            return fill
        fills[repr(fill)] = fill
    orders = sorted({tuple(_order(e, still)) for still in permutations(e.tensors(), min(2, len(e.tensors())))})
    nests = dict.fromkeys(mapping for fill in fills.values() for mapping in _nests(e, arch, fill, orders))
    return [(mapping, count(mapping, e, whole), footprints(mapping, e)) for mapping in nests]


def _usable(e: Einsum, arch: Arch) -> Arch:
    """The machine without the levels that may be bypassed and cannot hold one element of each tensor."""
    unit = dict.fromkeys(e.sizes(), 1)
    kept = [v for v, level in enumerate(arch.levels) if v == 0 or not level.bypass or not _overflow(e, arch, v, unit)]
    fanouts = tuple(replace(f, outside=sum(v < f.outside for v in kept)) for f in arch.fanouts)
    return replace(arch, levels=tuple(arch.levels[v] for v in kept), fanouts=fanouts)


def _fill(e: Einsum, arch: Arch, kept: Sequence[Projection]) -> Fill | Infeasible:
    """One pass from the innermost level outwards; kept[v - 1] is stationary in the block of loops outside level v."""
    extents, depth = e.sizes(), len(arch.levels)
    tile = dict.fromkeys(extents, 1)
    inside: list[Tile] = [extents] * depth
    for v in range(1, depth):
        if full := _overflow(e, arch, v, tile):
            return full
    lanes: list[tuple[tuple[str, str, int], ...]] = [()] * (depth + 1)
    if any(f.outside == depth for f in arch.fanouts):
        lanes[depth], tile = _stack(e, arch, depth, tile, kept[-1] if kept else e.output)
    for v in range(depth - 1, 0, -1):
        lanes[v], _ = _stack(e, arch, v, tile, kept[v - 1])
        inside[v] = _cache(e, arch, v, tile, lanes[v], kept[v - 1])
        tile = _spread(extents, inside[v], lanes[v])
    return Fill(tuple(inside), tuple(lanes))


def _spread(extents: Tile, tile: Tile, lanes: Lanes) -> Tile:
    grown = dict(tile)
    for _, rank, factor in lanes:
        grown[rank] = min(grown[rank] * factor, extents[rank])
    return grown


def _stack(e: Einsum, arch: Arch, border: int, tile: Tile, kept: Projection) -> tuple[tuple[tuple[str, str, int], ...], Tile]:
    """Spread ranks over the fan-outs that lie outside level `border`, one prime of a dimension's size at a time."""
    extents = e.sizes()
    allowed = [rank for rank in extents if rank not in e.output.partial()]
    factors: dict[tuple[str, str], int] = {}
    grown = dict(tile)
    for f in arch.fanouts:
        for name, size in f.dims if f.outside == border else ():
            for p in _primes(size):
                rank = _stacked_rank(e, extents, grown, allowed, kept, p)
                if rank is None:
                    break
                wider = _spread(extents, grown, ((name, rank, p),))
                if any(_overflow(e, arch, v, wider) for v in range(border)):
                    continue
                factors[name, rank] = factors.get((name, rank), 1) * min(p, -(-extents[rank] // grown[rank]))
                grown = wider
    return tuple((name, rank, n) for (name, rank), n in factors.items()), grown


def _stacked_rank(e: Einsum, extents: Tile, tile: Tile, allowed: Sequence[str], kept: Projection, p: int) -> str | None:
    """The rank that takes a prime p: irrelevant to the tensor refetched most, dividing if one does, least padded otherwise."""
    left = {rank: -(-extents[rank] // tile[rank]) for rank in allowed}
    open_ranks = [rank for rank in allowed if left[rank] > 1]
    if not open_ranks:
        return None
    outer = [t for t in e.tensors() if t is not kept]
    refetched = max(outer, key=lambda t: _refetched(t, e, left))
    wanted = [rank for rank in open_ranks if rank not in refetched.ranks() and left[rank] % p == 0]
    if wanted:
        return wanted[0]
    if all(left[rank] == 1 for t in outer for rank in allowed if rank not in t.ranks()):
        inner = [rank for rank in open_ranks if rank not in kept.ranks()] or open_ranks
        return min(inner, key=lambda rank: _padding(left[rank], p))
    return min(open_ranks, key=lambda rank: sum(_refetched(t, e, {**left, rank: -(-left[rank] // p)}) for t in outer) * _padding(left[rank], p))


def _refetched(p: Projection, e: Einsum, left: Tile) -> int:
    """Elements that a tensor brings in when every irrelevant loop that is left refetches it; outputs go both ways."""
    return (2 if p is e.output else 1) * p.stored_elems() * prod(n for rank, n in left.items() if rank not in p.ranks())


def _padding(left: int, p: int) -> float:
    return -(-left // p) * p / left


@lru_cache(maxsize=4096)
def _primes(n: int) -> tuple[int, ...]:
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return (*found, n) if n > 1 else tuple(found)


@lru_cache(maxsize=4096)
def _divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d != n))


def _cache(e: Einsum, arch: Arch, v: int, tile: Tile, spatial: Lanes, kept: Projection) -> Tile:
    """Grow the tile of level v: all products of divisors that fit here and, spread over the lanes, in the levels outside;
    least traffic first; then the stationary tensor's free ranks until full."""
    extents = e.sizes()
    lanes = _spread(extents, dict.fromkeys(extents, 1), spatial)
    left = {rank: -(-extents[rank] // (tile[rank] * lanes[rank])) for rank in extents}
    grid = np.meshgrid(*(_divisors(left[rank]) for rank in extents), indexing="ij")
    tiles = {rank: np.minimum(tile[rank] * g.ravel(), extents[rank]) for rank, g in zip(extents, grid, strict=True)}
    spread = {rank: np.minimum(t * lanes[rank], extents[rank]) for rank, t in tiles.items()}
    held = _held_bits(e, arch, v, tiles)
    trips = {rank: -(-extents[rank] // t) for rank, t in spread.items()}
    traffic = np.sum([_traffic(t, e, spread, trips, t is kept) for t in e.tensors()], axis=0)
    fits = np.logical_and.reduce([held <= _capacity(arch, v), *(_held_bits(e, arch, u, spread) <= _capacity(arch, u) for u in range(v))])
    best = int(np.lexsort((held, traffic, ~fits))[0])
    grown = {rank: int(t[best]) for rank, t in tiles.items()}
    return _topped_up(e, arch, v, grown, {rank: int(t[best]) for rank, t in trips.items()}, spatial, kept)


def _capacity(arch: Arch, v: int) -> float:
    bits = arch.levels[v].capacity_bits
    return inf if bits is None else bits


def _traffic(p: Projection, e: Einsum, spread: Tiles, trips: Tiles, kept: bool) -> NDArray[np.float64]:
    """Elements moved into the level, all lanes: a kept tensor is not fetched again by the loops that it does not see."""
    moved = _hulls(p, spread).astype(np.float64)
    for rank, n in trips.items():
        if rank in p.ranks() or not kept:
            moved = moved * n
    return moved * (2 if p is e.output else 1)


def _hulls(p: Projection, tiles: Tiles) -> NDArray[np.int64]:
    size = np.ones_like(next(iter(tiles.values())))
    for dim in p.dims:
        size = size * (1 + sum(c * (tiles[rank] - 1) for rank, c in dim.terms))
    return size


def _words(p: Projection, tiles: Tiles) -> NDArray[np.int64]:
    """What tiles occupy (counts.held_elems)."""
    whole = _hulls(p, tiles)
    if p.format == "dense":
        return whole
    nonzeros: NDArray[np.int64] = np.ceil(np.round(2 * p.density * whole, 6)).astype(np.int64)
    return nonzeros + _hulls(replace(p, dims=p.dims[:-1]), tiles)


def _held_bits(e: Einsum, arch: Arch, v: int, tiles: Tiles) -> NDArray[np.int64]:
    bits = cost.bits_of(e, arch)
    total = sum(_words(p, tiles) * bits[p.tensor] for p in e.tensors())
    return np.asarray(total) * (2 if arch.levels[v].double_buffer else 1)


def _topped_up(e: Einsum, arch: Arch, v: int, tile: Tile, left: Tile, spatial: Lanes, kept: Projection) -> Tile:
    """Multiply the ranks that the kept tensor does not see by their smallest primes while the tile fits."""
    for rank in (r for r in e.sizes() if r not in kept.ranks()):
        for p in _primes(left[rank]):
            grown = {**tile, rank: min(tile[rank] * p, e.sizes()[rank])}
            wider = _spread(e.sizes(), grown, spatial)
            if _overflow(e, arch, v, grown) or any(_overflow(e, arch, u, wider) for u in range(v)):
                break
            tile = grown
    return tile


def _overflow(e: Einsum, arch: Arch, v: int, tile: Tile) -> Infeasible | None:
    need = int(_held_bits(e, arch, v, {rank: np.array([n]) for rank, n in tile.items()})[0])
    have = arch.levels[v].capacity_bits
    return None if have is None or need <= have else Infeasible(arch.levels[v].name, -(-need // 8), have // 8, e.name)


def _nests(e: Einsum, arch: Arch, fill: Fill, orders: Sequence[Sequence[str]]) -> list[Mapping]:
    """The loop nests of a fill, one per combination of loop orders between the levels."""
    depth = len(arch.levels)
    blocks: list[list[tuple[Loop | Store, ...]]] = [[tuple(Store(arch.levels[0].name, p.tensor) for p in e.tensors())]]
    outer = e.sizes()
    for v in range(1, depth):
        blocks.append(list(dict.fromkeys(_block(e, arch.levels[v].name, outer, fill.inside[v], fill.lanes[v], order) for order in orders)))
        outer = fill.inside[v]
    blocks.append([_block(e, None, outer, dict.fromkeys(outer, 1), fill.lanes[depth], list(outer))])
    return [Mapping(tuple(chain.from_iterable(choice))) for choice in product(*blocks)]


def _block(e: Einsum, level: str | None, outer: Tile, inner: Tile, lanes: Lanes, order: Sequence[str]) -> tuple[Loop | Store, ...]:
    """Loops from tile `outer` to tile `inner` and the level's nodes, each raised above the loops directly over it that it does not see.

    Lanes stand above the outermost of these nodes; loops that follow the lanes run inside each of them.
    """
    spread = _spread(e.sizes(), inner, lanes)
    ranks = [rank for rank in order if spread[rank] < outer[rank]]
    at = [_raised(p, ranks) for p in e.tensors()] if level else [len(ranks)]
    top = min(at)
    own = {rank: min(inner[rank] * -(-outer[rank] // spread[rank]), outer[rank]) if rank in ranks[top:] else inner[rank] for rank in outer}
    nodes: list[Loop | Store] = [Loop(rank, spread[rank]) for rank in ranks[:top]]
    nodes += _lanes(own, lanes)
    for i in range(top, len(ranks) + 1):
        nodes += [Store(level, p.tensor) for p, position in zip(e.tensors(), at, strict=True) if position == i] if level else []
        nodes += [Loop(rank, inner[rank]) for rank in ranks[i : i + 1]]
    return tuple(nodes)


def _order(e: Einsum, still: Sequence[Projection]) -> list[str]:
    """Ranks, outermost first: those that the first tensor of `still` does not see are innermost, then those of the second."""
    seen = [p.ranks() for p in still]

    def depth(rank: str) -> int:
        return next((len(seen) - i for i, ranks in enumerate(seen) if rank not in ranks), 0)

    return sorted(e.sizes(), key=depth)


def _raised(p: Projection, ranks: Sequence[str]) -> int:
    position, seen = len(ranks), p.ranks()
    while position and ranks[position - 1] not in seen:
        position -= 1
    return position


def _lanes(own: Tile, lanes: Lanes) -> list[Loop | Store]:
    """Spatial loops that leave the tile `own` to each lane."""
    tile = dict(own)
    loops: list[Loop | Store] = []
    for name, rank, factor in reversed(lanes):
        loops.append(Loop(rank, tile[rank], name))
        tile[rank] *= factor
    return loops[::-1]
