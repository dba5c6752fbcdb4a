"""Closed forms: what a mapping moves and holds, exactly, also with ragged tiles (specs/model.md, 1 and 2).

Every count is a product over the dimensions of a tensor, and over the ranks that it does not have, of an exact sum over
tiles. A rank's tiles are cut loop by loop; a loop whose lanes share one access (multicast, reduction), or of which only
the first trip counts (skipped first reads, the busiest instance), keeps the first tile of each cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from dse.nest import Loop, Mapping, Store
from hw.arch import Arch
from workloads.einsum import Dim, Einsum, Projection

Cut = tuple[int, bool]  # (tile, only the first tile of each cut counts)
Cuts = tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """One action of one tensor at one level, in elements: of all instances, and of the busiest one.

    action: read, write or compute. The busiest instance is the first lane of every spatial loop.
    """

    level: str
    tensor: str
    action: str
    elems: int
    busiest_elems: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Elements of one tensor that one instance of a level holds; moving: refilled by a temporal loop, so doubled by double buffering."""

    level: str
    tensor: str
    elems: int
    moving: bool


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
    """Reads and writes per level and tensor, and operations.

    reads_L = R - S + W', writes_L = W + R' - S' (specs/model.md, 2): R, W what the node serves inward, R', W' its own
    fills and drains, S and S' the skipped first reads of an output. Rows in the order of the mapping's nodes; zero rows left out.
    """
    totals: dict[tuple[str, str, str], list[int]] = {}

    def add(store: Store, action: str, elems: tuple[int, int]) -> None:
        row = totals.setdefault((store.level, store.tensor, action), [0, 0])
        row[0] += elems[0]
        row[1] += elems[1]

    for link in links(mapping, e):
        skips = next(level.skip_first_read for level in arch.levels if level.name == link.parent.level)
        served, filled = _moved(link, mapping, e, arch, skip=False)
        if link.tensor is not e.output:
            add(link.parent, "read", served)
            if link.child:
                add(link.child, "write", filled)
            continue
        skipped, unfilled = _moved(link, mapping, e, arch, skip=True) if skips else ((0, 0), (0, 0))
        add(link.parent, "read", (served[0] - skipped[0], served[1] - skipped[1]))
        add(link.parent, "write", served)
        if link.child:
            add(link.child, "read", filled)
            add(link.child, "write", (filled[0] - unfilled[0], filled[1] - unfilled[1]))
    rows = [Count(*key, *elems) for key, elems in totals.items() if elems[0]]
    return (*rows, Count("MAC", "-", "compute", e.points(), _steps(mapping, e)))


def links(mapping: Mapping, e: Einsum) -> list[Link]:
    """Parent and child nodes of every tensor, outermost first; a tensor's last node serves compute."""
    found = []
    for p in e.tensors():
        at = [i for i, node in enumerate(mapping.nodes) if isinstance(node, Store) and node.tensor == p.tensor]
        stores = [node for node in mapping.nodes if isinstance(node, Store) and node.tensor == p.tensor]
        children: list[Store | None] = [*stores[1:], None]
        found += [Link(p, p.ranks(), *row) for row in zip(stores, at, children, [*at[1:], len(mapping.nodes)], strict=True)]
    return found


def _moved(link: Link, mapping: Mapping, e: Einsum, arch: Arch, skip: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """((served by the parent, by its busiest instance), (filled into the child, into its busiest instance)) in elements.

    skip: only the first reads of output elements, which start from zero and are never read.
    """
    relevant = link.seen
    shared = _shared(arch, reduce=link.tensor is e.output)

    def tally(lane_above: bool, merge_from: int) -> int:
        """lane_above: follow the first lane of the spatial loops above merge_from; shared loops below it merge."""
        def first(i: int, loop: Loop) -> bool:
            if not loop.over:
                return skip and loop.rank not in relevant
            return lane_above if i < merge_from else loop.rank not in relevant and shared[loop.over]

        return _sum(link, mapping, e, first, distinct=skip)

    served = tally(False, link.parent_at), tally(True, link.parent_at)
    filled = (tally(False, link.child_at), tally(True, link.child_at)) if link.child else (0, 0)
    return served, filled


def _shared(arch: Arch, reduce: bool) -> dict[str, bool]:
    """Fan-out dimension -> whether lanes share the accesses of a tensor that their rank does not touch."""
    return {name: flag for f in arch.fanouts for (name, _), flag in zip(f.dims, f.reduce if reduce else f.multicast, strict=True)}


def _sum(link: Link, mapping: Mapping, e: Einsum, first: Callable[[int, Loop], bool], distinct: bool) -> int:
    """Elements over all iterations of the loops above the child: sum of its clipped tiles; at compute, single accesses."""
    cuts: dict[str, list[Cut]] = {rank: [] for rank, _ in e.extents}
    for i, node in enumerate(mapping.nodes[: link.child_at]):
        if isinstance(node, Loop):
            cuts[node.rank].append((node.tile, first(i, node)))
    sizes = e.sizes()
    clip = link.child is not None
    dims = (dim_sum(dim, tuple((sizes[r], tuple(cuts[r])) for r in dim.ranks()), clip, distinct) for dim in link.tensor.dims)
    outer = (tile_count(n, tuple(cuts[r])) for r, n in e.extents if r not in link.seen)
    return prod(dims) * prod(outer)


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


def _steps(mapping: Mapping, e: Einsum) -> int:
    """Operations of the busiest lane."""
    cuts: dict[str, list[Cut]] = {rank: [] for rank, _ in e.extents}
    for node in mapping.nodes:
        if isinstance(node, Loop):
            cuts[node.rank].append((node.tile, bool(node.over)))
    return prod(tile_count(n, tuple(cuts[r])) for r, n in e.extents)


def footprints(mapping: Mapping, e: Einsum) -> tuple[Footprint, ...]:
    """What each storage node holds per instance (specs/model.md, 1, footprint): hulls unclipped, nodes sunk where that is free."""
    projections = {p.tensor: p for p in e.tensors()}
    seen: set[str] = set()
    found = []
    tile, moving = e.sizes(), False
    for i, node in enumerate(mapping.nodes):
        if isinstance(node, Loop):
            moving = moving or (not node.over and node.tile < tile[node.rank])
            tile[node.rank] = min(node.tile, tile[node.rank])
            continue
        p = projections[node.tensor]
        held = _sunk(p, tile, mapping.nodes[i + 1 :]) if node.tensor in seen else tile
        seen.add(node.tensor)
        found.append(Footprint(node.level, node.tensor, hull(p, held), moving))
    return tuple(found)


def _sunk(p: Projection, tile: dict[str, int], below: Sequence[Loop | Store]) -> dict[str, int]:
    full, partial, tile = p.full(), p.partial(), dict(tile)
    for node in below:
        if isinstance(node, Store) or node.over or node.rank not in full | partial:
            break
        tile[node.rank] = node.tile
        if node.rank in partial:
            break
    return tile


def hull(p: Projection, tile: dict[str, int]) -> int:
    """Elements between the first and the last that a tile touches, per dimension: 1 + sum |c| (s - 1)."""
    return prod(1 + sum(c * (tile[rank] - 1) for rank, c in dim.terms) for dim in p.dims)
