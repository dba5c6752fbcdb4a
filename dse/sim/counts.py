"""Closed forms: what a mapping moves and holds, exactly, also with ragged tiles (docs/model.md, Counts).

Every count is a product over the dimensions of a tensor, and over the ranks that it does not have, of an exact sum over
tiles. A rank's tiles are cut loop by loop; a loop whose lanes share one access (multicast, reduction), or of which only
the first trip counts (skipped first reads, the busiest instance), keeps the first tile of each cut. What crosses a fan-out
(`delivered`) stands here too, past 400 lines, beside the terms that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from dse.nest import Loop, Mapping, Store
from hw.arch import Arch, Fanout
from workloads.einsum import Dim, Einsum, Projection

Cut = tuple[int, bool]  # (tile, only the first tile of each cut counts)
Cuts = tuple[Cut, ...]
Loops = dict[str, tuple[tuple[int, bool], ...]]  # rank -> (number of the loop, only the first tile of a cut counts)


@dataclass(frozen=True, slots=True)
class Count:
    """One action of one tensor at one level, in elements: of all instances, and of the busiest one.

    action: read, write, compute, or enter (a systolic array starts a fold). The busiest instance is the first lane of every
    spatial loop. Whole numbers, but where an operand is sparse: expected ones.
    """

    level: str
    tensor: str
    action: str
    elems: float
    busiest_elems: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """Elements of one tensor that one instance of a level holds; moving: filled more than once (by a loop in time above the
    place that the node sinks to), so doubled by double buffering."""

    level: str
    tensor: str
    elems: int
    moving: bool


@dataclass(frozen=True, slots=True)
class Factor:
    """One exact sum over tiles: of a dimension's hull lengths, or (dim None) of a rank's tiles.

    cuts: per rank its extent and its loops, each as (number of the loop in the nest, only the first tile of a cut counts).
    """

    dim: Dim | None
    cuts: tuple[tuple[int, tuple[tuple[int, bool], ...]], ...]
    clip: bool = False
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """scale * product of the recipe's factors of these numbers."""

    scale: float
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A count as sums of terms: of all instances, and of the busiest."""

    level: str
    tensor: str
    action: str
    total: tuple[Term, ...]
    busiest: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Wiring:
    """What formulas depend on of a machine. lanes: (fan-out dimension, multicast, reduce); skips: levels that skip first reads.

    systolic: (name, dimensions) of the arrays that take time to fill.
    """

    lanes: tuple[tuple[str, bool, bool], ...]
    skips: frozenset[str]
    systolic: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The formulas of a nest's counts: the same for all tile sizes."""

    factors: tuple[Factor, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A parent node and what it serves: the next node of the tensor inward, or compute (child None). seen: the tensor's ranks."""

    tensor: Projection
    seen: frozenset[str]
    parent: Store
    parent_at: int
    child: Store | None
    child_at: int


def count(mapping: Mapping, e: Einsum, arch: Arch) -> tuple[Count, ...]:
    """Reads and writes per level and tensor, operations, folds of systolic arrays; rows without elements left out."""
    tiles = [node.tile for node in mapping.nodes if isinstance(node, Loop)]
    formulas = recipe(shape(mapping), e, wiring(arch))
    values = [value(factor, tiles) for factor in formulas.factors]

    def total(terms: tuple[Term, ...]) -> float:
        return sum(term.scale * prod(values[f] for f in term.factors) for term in terms)

    rows = (Count(row.level, row.tensor, row.action, total(row.total), total(row.busiest)) for row in formulas.rows)
    return tuple(row for row in rows if row.elems)


def shape(mapping: Mapping) -> Mapping:
    """A mapping without its tile sizes: what its formulas depend on."""
    return Mapping(tuple(Loop(node.rank, 0, node.over) if isinstance(node, Loop) else node for node in mapping.nodes))


def wiring(arch: Arch) -> Wiring:
    lanes = tuple((name, multicast, reduce) for f in arch.fanouts for (name, _), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True))
    systolic = tuple((f.name, tuple(name for name, _ in f.dims)) for f in arch.fanouts if f.ramp)
    return Wiring(lanes, frozenset(level.name for level in arch.levels if level.skip_first_read), systolic)


@lru_cache(maxsize=1 << 12)
def recipe(nest: Mapping, e: Einsum, wires: Wiring) -> Recipe:
    """The formulas of a nest's counts, rows in the order of its nodes.

    reads_L = R - S + W', writes_L = W + R' - S' (docs/model.md, Counts): R, W what the node serves inward, R', W' its own
    fills and drains, S and S' the skipped first reads of an output.
    """
    draft = Draft(e, [(i, node) for i, node in enumerate(nest.nodes) if isinstance(node, Loop)])
    found: dict[tuple[str, str, str], tuple[list[Term], list[Term]]] = {}

    def add(store: Store, action: str, pair: Pair) -> None:
        row = found.setdefault((store.level, store.tensor, action), ([], []))
        row[0].extend(pair[0])
        row[1].extend(pair[1])

    for link in links(nest, e):
        output = link.tensor is e.output
        served, filled = _moved(draft, link, wires)
        skipped, unfilled = _moved(draft, link, wires, skip=True) if output and link.parent.level in wires.skips else (NOTHING, NOTHING)
        for pair in (served, skipped):
            add(link.parent, "read", pair)
        if output:
            add(link.parent, "write", served)
        for pair in (filled, unfilled) if link.child else ():
            add(link.child or link.parent, "write", pair)
        if output and link.child:
            add(link.child, "read", filled)
    rows = [Row(*key, tuple(total), tuple(busiest)) for key, (total, busiest) in found.items()]
    points, lane = (Term(nonzero(e), _passes(draft, len(nest.nodes), lanes)) for lanes in (True, False))
    rows += [Row("MAC", "-", "compute", (points,), (lane,)), *_folds(draft, wires)]
    return Recipe(tuple(draft.factors), tuple(rows))


Pair = tuple[list[Term], list[Term]]  # of all instances, of the busiest
NOTHING: Pair = ([], [])


def links(nest: Mapping, e: Einsum) -> list[Link]:
    """Parent and child nodes of every tensor, outermost first; a tensor's last node serves compute."""
    found = []
    for p in e.tensors():
        at = [i for i, node in enumerate(nest.nodes) if isinstance(node, Store) and node.tensor == p.tensor]
        stores = [node for node in nest.nodes if isinstance(node, Store) and node.tensor == p.tensor]
        children: list[Store | None] = [*stores[1:], None]
        found += [Link(p, p.ranks(), *row) for row in zip(stores, at, children, [*at[1:], len(nest.nodes)], strict=True)]
    return found


def nonzero(e: Einsum) -> float:
    """Share of the iterations that compute: all inputs are nonzero there (independent, uniform)."""
    return prod(p.density for p in e.inputs if p.density != 1)


@dataclass(slots=True)
class Draft:
    """A recipe in the making: its different factors in order, each under a short name."""

    e: Einsum
    loops: list[tuple[int, Loop]]
    factors: list[Factor] = field(default_factory=list)
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)

    def number(self, dim: Dim | None, name: object, ranks: tuple[str, ...], cuts: Loops, clip: bool = False, distinct: bool = False) -> int:
        key = (name, clip, distinct, cuts.get(ranks[0], ()) if len(ranks) == 1 else tuple([cuts.get(rank, ()) for rank in ranks]))
        found = self.numbers.setdefault(key, len(self.numbers))
        if found == len(self.factors):
            sizes = self.e.sizes()
            self.factors.append(Factor(dim, tuple((sizes[rank], cuts.get(rank, ())) for rank in ranks), clip, distinct))
        return found


def _moved(draft: Draft, link: Link, wires: Wiring, skip: bool = False) -> tuple[Pair, Pair]:
    """((served by the parent, by its busiest instance), (filled into the child, into its busiest instance)).

    skip: minus the first reads of output elements, which start from zero and are never read.
    """
    shared = {name: reduce if link.tensor is draft.e.output else multicast for name, multicast, reduce in wires.lanes}

    def terms(lane_above: bool, merge_from: int) -> list[Term]:
        """lane_above: of the spatial loops above merge_from only the first lane (the busiest instance), else all lanes. Below it lanes that share an access
        (multicast, reduction, of ranks that the tensor does not see) count once."""
        def first(i: int, loop: Loop) -> bool:
            if not loop.over:
                return skip and loop.rank not in link.seen
            return lane_above if i < merge_from else loop.rank not in link.seen and shared[loop.over]

        return _terms(draft, link, first, skip)

    served = terms(False, link.parent_at), terms(True, link.parent_at)
    return served, (terms(False, link.child_at), terms(True, link.child_at)) if link.child else NOTHING


def _cuts(draft: Draft, at: int, first: Callable[[int, Loop], bool]) -> Loops:
    """The loops above position `at`, by rank."""
    found: Loops = {}
    for number, (i, loop) in enumerate(draft.loops):
        if i >= at:
            break
        found[loop.rank] = (*found.get(loop.rank, ()), (number, first(i, loop)))
    return found


def _terms(draft: Draft, link: Link, first: Callable[[int, Loop], bool], skip: bool) -> list[Term]:
    """Elements over all iterations of the loops above the child: sum of its clipped tiles; at compute, single accesses.

    Sparse operands: only nonzero iterations access; a compressed tile is 2 words per nonzero and one per row (CSR).
    """
    cuts = _cuts(draft, link.child_at, first)
    clip, p, sign = link.child is not None, link.tensor, -1 if skip else 1
    dims = tuple([draft.number(dim, (p.tensor, i), dim.ranks(), cuts, clip, skip) for i, dim in enumerate(p.dims)])
    outer = tuple([draft.number(None, rank, (rank,), cuts) for rank, _ in draft.e.extents if rank not in link.seen])
    if not clip:
        return [Term(sign * nonzero(draft.e), (*dims, *outer))]
    if p.format == "dense":
        return [Term(sign, (*dims, *outer))]
    rows = (*dims[:-1], *(draft.number(None, rank, (rank,), cuts) for rank in p.dims[-1].ranks()))
    return [Term(sign * 2 * p.density, (*dims, *outer)), Term(sign, (*rows, *outer))]


def _passes(draft: Draft, at: int, all_lanes: bool) -> tuple[int, ...]:
    """How often position `at` is passed, by all lanes or by the busiest one."""
    cuts = _cuts(draft, at, lambda _, loop: bool(loop.over) and not all_lanes)
    return tuple(draft.number(None, rank, (rank,), cuts) for rank, _ in draft.e.extents)


def _folds(draft: Draft, wires: Wiring) -> list[Row]:
    """Per systolic array: how often it is entered, each time to be filled and emptied."""
    found = []
    for array, names in wires.systolic:
        last = max((i for i, loop in draft.loops if loop.over in names), default=-1)
        entered = (Term(1, _passes(draft, last + 1, all_lanes=False)),)
        found.append(Row(array, "-", "enter", entered, entered))
    return found


def value(factor: Factor, tiles: Sequence[int]) -> int:
    """A factor for given tile sizes, one per loop of the nest."""
    ranks = tuple((extent, tuple((tiles[number], first) for number, first in loops)) for extent, loops in factor.cuts)
    return tile_count(*ranks[0]) if factor.dim is None else dim_sum(factor.dim, ranks, factor.clip, factor.distinct)


@lru_cache(maxsize=1 << 16)
def tile_sizes(extent: int, cuts: Cuts) -> tuple[tuple[int, int], ...]:
    """(size, how many) of the tiles of one rank after all cuts.

    >>> tile_sizes(100, ((16, False), (8, True)))
    ((8, 6), (4, 1))
    """
    sizes = {extent: 1}
    for tile, first in cuts:
        parts: dict[int, int] = {}
        for size, n in sizes.items():
            whole, rest = divmod(size, tile)
            if whole:
                parts[tile] = parts.get(tile, 0) + n * (1 if first else whole)
            if rest and not (first and whole):
                parts[rest] = parts.get(rest, 0) + n
        sizes = parts
    return tuple(sizes.items())


@lru_cache(maxsize=1 << 16)
def tile_count(extent: int, cuts: Cuts) -> int:
    return sum(n for _, n in tile_sizes(extent, cuts))


def tile_spans(extent: int, cuts: Cuts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(origin, size) of every tile of one rank, in order."""
    low, size = np.zeros(1, np.int64), np.full(1, extent, np.int64)
    for tile, first in cuts:
        trips = np.ones_like(size) if first else -(-size // tile)
        parent = np.repeat(np.arange(len(size)), trips)
        step = np.arange(len(parent)) - np.repeat(np.cumsum(trips) - trips, trips)
        low, size = low[parent] + step * tile, np.minimum(size[parent] - step * tile, tile)
    return low, size


@lru_cache(maxsize=1 << 16)
def dim_sum(dim: Dim, ranks: tuple[tuple[int, Cuts], ...], clip: bool, distinct: bool) -> int:
    """Sum over all tiles of one dimension's hull length, clipped to what is stored; distinct: length of their union."""
    if len(dim.terms) == 1 and dim.terms[0][1] == 1 and dim.offset == 0 and dim.size >= ranks[0][0]:
        return sum(size * n for size, n in tile_sizes(*ranks[0]))
    inside = dim.offset >= 0 and dim.offset + sum(c * (n - 1) for (_, c), (n, _) in zip(dim.terms, ranks, strict=True)) < dim.size
    if distinct or (clip and not inside):
        return _span_sum(dim, ranks, clip, distinct)
    total = [(1, 1)]  # (hull length, how many)
    for (_, c), (extent, cuts) in zip(dim.terms, ranks, strict=True):
        total = [(length + c * (size - 1), n * m) for length, n in total for size, m in tile_sizes(extent, cuts)]
    return sum(length * n for length, n in total)


def _span_sum(dim: Dim, ranks: tuple[tuple[int, Cuts], ...], clip: bool, distinct: bool) -> int:
    low, high = np.full(1, dim.offset, np.int64), np.full(1, dim.offset, np.int64)
    for (_, c), (extent, cuts) in zip(dim.terms, ranks, strict=True):
        origin, size = tile_spans(extent, cuts)
        low = np.add.outer(low, c * origin).ravel()
        high = np.add.outer(high, c * (origin + size - 1)).ravel()
    if clip:
        low, high = np.maximum(low, 0), np.minimum(high, dim.size - 1)
    low, high = low[high >= low], high[high >= low]
    if not distinct:
        return int((high - low + 1).sum())
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    reach = np.maximum.accumulate(np.concatenate(([low[0] - 1 if len(low) else 0], high)))[:-1]
    return int(np.maximum(high - np.maximum(low - 1, reach), 0).sum())


def footprints(mapping: Mapping, e: Einsum) -> tuple[Footprint, ...]:
    """What each storage node holds per instance (docs/model.md, Room): hulls unclipped, nodes sunk through the loops
    directly below that move their tensor (same fetches, less room)."""
    projections = {p.tensor: p for p in e.tensors()}
    seen: set[str] = set()
    found = []
    tile, moving = e.sizes(), False
    for i, node in enumerate(mapping.nodes):
        if isinstance(node, Loop):
            moving = moving or (not node.over and node.tile < tile[node.rank])
            tile[node.rank] = node.tile
            continue
        p = projections[node.tensor]
        sunk = mapping.nodes[i : sink(p, mapping.nodes, i)] if node.tensor in seen else ()
        seen.add(node.tensor)
        held = tile | {loop.rank: loop.tile for loop in sunk if isinstance(loop, Loop)}
        refilled = moving or any(isinstance(loop, Loop) and loop.tile < tile[loop.rank] for loop in sunk)
        found.append(Footprint(node.level, node.tensor, held_elems(p, held), refilled))
    return tuple(found)


def sink(p: Projection, nodes: Sequence[Loop | Store], at: int) -> int:
    """Position that the node of a tensor at `at` sinks to: below fully relevant temporal loops, into one partially relevant one."""
    full, seen = p.full(), p.ranks()
    for i in range(at + 1, len(nodes)):
        node = nodes[i]
        if isinstance(node, Store) or node.over or node.rank not in seen:
            return i
        if node.rank not in full:
            return i + 1
    return len(nodes)


def hull(p: Projection, tile: dict[str, int]) -> int:
    """Elements between the first and the last that a tile touches, per dimension: 1 + sum |c| (s - 1)."""
    return prod(1 + sum(c * (tile[rank] - 1) for rank, c in dim.terms) for dim in p.dims)


def held_elems(p: Projection, tile: dict[str, int]) -> int:
    """Words that a tile occupies: its hull, or 2 per expected nonzero and one per row (CSR)."""
    whole = hull(p, tile)
    if p.format == "dense":
        return whole
    rows = prod(1 + sum(c * (tile[rank] - 1) for rank, c in dim.terms) for dim in p.dims[:-1])
    return ceil(round(2 * p.density * whole, 6)) + rows  # a density of nnz / size is no exact float


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one tensor moves across a fan-out, both ways. served: elements at the outer side, those that lanes share once; lanes: elements at all lanes."""

    tensor: Projection
    served: float
    lanes: float


def delivered(mapping: Mapping, e: Einsum, arch: Arch, f: Fanout) -> list[Delivered]:
    """Of every tensor whose parent node stands outside of a fan-out, and the next one, or compute, inside."""
    tiles = [node.tile for node in mapping.nodes if isinstance(node, Loop)]
    nest, wires, order = shape(mapping), wiring(arch), {level.name: v for v, level in enumerate(arch.levels)}
    draft = Draft(e, [(i, node) for i, node in enumerate(nest.nodes) if isinstance(node, Loop)])

    def total(terms: Sequence[Term]) -> float:
        return sum(term.scale * prod(value(draft.factors[n], tiles) for n in term.factors) for term in terms)

    found = []
    for link in links(nest, e):
        inner = order[link.child.level] if link.child else len(order)
        if not order[link.parent.level] < f.outside <= inner:
            continue
        (served, _), _ = _moved(draft, link, wires)
        every = _terms(draft, link, lambda i, loop: False, False)
        both = [total(served), total(every)]
        if link.tensor is e.output:
            (skipped, _), _ = _moved(draft, link, wires, skip=True) if link.parent.level in wires.skips else (NOTHING, NOTHING)
            alone = _terms(draft, link, lambda i, loop, seen=link.seen: not loop.over and loop.rank not in seen, True) if skipped else []  # type: ignore[misc]
            both = [2 * both[0] + total(skipped), 2 * both[1] + total(alone)]
        found.append(Delivered(link.tensor, *both))
    return found
