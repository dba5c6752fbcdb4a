"""Counts of all mappings of one einsum as tables over the states of its ranks: what the searches of optimal.py look up (recipe: dse/sim/counts.py).

A link is a storage node and what it serves: the next node of its tensor inward, or compute. What it moves depends on the states in view at the inner
end only, and is a sum of products of factors; a factor is a table over the states of one rank, or of the ranks that share a dimension of a tensor.
Nothing here knows prices or capacities: machines with the same levels and fan-outs share it.

Long, because the tables, the bounds over them and their compiled sums stand in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf, prod
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.dataflow.space import Constraints, Tiles
from dse.dataflow.walks import LANES, TIME, Walks, walks
from dse.sim.parts import bits_of, op_cycles
from dse.sim.terms import dim_sum, nonzero
from hw.arch import Arch, Fanout
from workloads.einsum import Dim, Einsum, Projection

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Use:
    """One action that a product of factors counts: `scale` times at level `v`; busiest: of its busiest instance. tensor -1: operations."""

    tensor: int
    v: int
    action: str
    scale: float
    busiest: bool


@dataclass(frozen=True, slots=True)
class Product:
    """A product of factors (by number): what it counts, its sign, and floor, a bound that holds for every mapping (0: none is known).

    inner: its link ends at a node, not at compute.
    """

    factors: tuple[int, ...]
    uses: tuple[Use, ...]
    sign: int
    floor: float
    inner: bool


@dataclass(frozen=True, slots=True)
class Factor:
    """Tables over the states of its ranks. exact: the value at a state; low, high: the least and the largest one of all states that may follow it, itself
    included, and at which a link may end (at compute only tiles of 1)."""

    ranks: tuple[int, ...]
    exact: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Formulas:
    """ranks: those of more than one value. links: products from, to, numbered as `link_number` says, the last one compute's.

    access: products that count what compute reads or writes through the outermost border, with the ranks that they do not see.
    even [R]: ranks of which more lanes than leave the same largest tile never cost less (see `_even`).
    moves: successors for the kernels (succ_start, succ, succ_ways, fewest, way_list, ways, tile); flat: factors for the kernels (products to
    high); grid: what may enter the outermost fan-out.
    """

    ranks: tuple[str, ...]
    walks: tuple[Walks, ...]
    factors: tuple[Factor, ...]
    products: tuple[Product, ...]
    links: tuple[tuple[int, int], ...]
    access: dict[int, Bools]
    even: Bools
    moves: tuple[Ints, ...]
    flat: tuple[NDArray[Any], ...]
    grid: Units


@dataclass(frozen=True, slots=True)
class Units:
    """Tiles of all ranks before any lane, and what products are there: states [G, R]; digit [G, R] their numbers within a rank; stride [R]; after_start,
    after: numbers that may follow a number in time. exact [T]: number of the row in rows [N, G] with the values of a product there; bound [T]: of the row with
    its least value (largest, of a product that is subtracted) in all states that may follow."""

    states: Ints
    digit: Ints
    stride: Ints
    after_start: Ints
    after: Ints
    rows: Floats
    exact: Ints
    bound: Ints


def link_number(tensor: int, parent: int, child: int, depth: int) -> int:
    """Of a tensor's link between two levels, child = depth: compute."""
    pairs = depth * (depth + 1) // 2
    return tensor * pairs + parent * depth - parent * (parent - 1) // 2 + child - parent - 1


def fanout_dims(fanouts: Sequence[Fanout]) -> list[tuple[str, int, int, bool, bool, bool]]:
    """(name, size, levels outside, multicast, reduce, systolic) of every fan-out dimension."""
    return [(name, size, f.outside, multicast, reduce, bool(f.ramp)) for f in fanouts
            for (name, size), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True)]


def classes(fanouts: Sequence[Fanout], merge: bool) -> list[int]:
    """Per dimension the first one that shares and merges alike at the same border, itself if not `merge` or systolic."""
    dims = fanout_dims(fanouts)
    return [next(i for i, other in enumerate(dims) if i == d or (merge and not dim[5] and other[2:] == dim[2:])) for d, dim in enumerate(dims)]


def formulas(e: Einsum, arch: Arch, tiles: Tiles, rules: Constraints) -> Formulas:
    """Of an einsum on all machines with the same levels, fan-outs and rules, whatever they cost and hold."""
    skips = tuple(level.skip_first_read for level in arch.levels)
    return _formulas(e, len(arch.levels), arch.fanouts, skips, tiles, rules.spatial, rules == Constraints())


@lru_cache(maxsize=64)
def _formulas(e: Einsum, depth: int, fanouts: tuple[Fanout, ...], skips: tuple[bool, ...], tiles: Tiles, spatial: tuple[tuple[str, tuple[str, ...]], ...],
              merge: bool) -> Formulas:
    draft = _Draft(e, depth, fanouts, tiles, dict(spatial), merge)
    links = []
    for x, p in enumerate(e.tensors()):
        for parent in range(depth):
            for child in range(parent + 1, depth + 1):
                first = len(draft.products)
                _link(draft, x, p, parent, child, skips[parent])
                links.append((first, len(draft.products)))
    first = len(draft.products)
    folds = tuple(draft.factor(None, ((rank, (True,) * len(draft.dims) + (False,)),), False, False) for rank, _ in e.extents)
    draft.products.append(Product(folds, (Use(-1, depth, "compute", nonzero(e), True),), 1, e.points() / prod(size for _, size, *_ in draft.dims), False))
    own = tuple(draft.walks[rank] for rank in draft.ranks)
    factors, products = _merged(own, draft.factors, draft.products)
    grid = _units(own, factors, products, tiles)
    alike_dims = len({own for own, dim in zip(classes(fanouts, merge), draft.dims, strict=True) if dim[2] == draft.first_border}) == 1
    even = np.array([alike_dims and _even(e, rank, skips) for rank in draft.ranks])
    moves = _moves(own, len({dim[2] for dim in draft.dims}), len(draft.dims))
    return Formulas(draft.ranks, own, factors, products, (*links, (first, first + 1)), draft.access, even, moves, _flat(factors, products), grid)


def _even(e: Einsum, rank: str, skips: Sequence[bool]) -> bool:
    """Whether more lanes of a rank that leave the same largest tile never cost less (9 over 2 x 2 lanes: 3 2 2 2, over 3 lanes: 3 3 3).

    They do not if the rank stands alone in its dimensions: there they are only more tiles. But each lane of a reduced rank starts sums of its own, so that
    where first reads are skipped more lanes read less.
    """
    dims = [dim for p in e.tensors() for dim in p.dims if rank in dim.ranks()]
    plain = all(len(dim.terms) == 1 and dim.terms[0][1] == 1 and dim.offset == 0 and dim.size >= e.sizes()[rank] for dim in dims)
    return plain and (rank in e.output.full() or not any(skips))


class _Draft:
    """Formulas in the making: different factors once."""

    def __init__(self, e: Einsum, depth: int, fanouts: tuple[Fanout, ...], tiles: Tiles, taken: dict[str, tuple[str, ...]], merge: bool) -> None:
        self.e, self.depth, self.dims = e, depth, fanout_dims(fanouts)
        self.ranks = tuple(rank for rank, n in e.extents if n > 1) or tuple(rank for rank, _ in e.extents[:1])
        own = classes(fanouts, merge)
        borders = sorted({dim[2] for dim in self.dims})
        self.walks = {rank: walks(n, tuple(tuple((d, dim[1], own[d]) for d, dim in enumerate(self.dims) if dim[2] == border and dim[1] > 1
                                                 and rank not in e.output.partial() and rank in taken.get(dim[0], (rank,)))
                                           for border in borders), len(self.dims), tiles) for rank, n in e.extents}
        self.first_border = borders[0] if borders else -1
        self.factors: list[Factor] = []
        self.numbers: dict[object, int] = {}
        self.products: list[Product] = []
        self.access: dict[int, Bools] = {}

    def factor(self, dim: Dim | None, ranks: tuple[tuple[str, tuple[bool, ...]], ...], inner: bool, distinct: bool) -> int:
        """ranks: with whether only the first tile of a cut counts, per fan-out dimension, and last in time."""
        key = (dim, ranks, inner, distinct)
        if key not in self.numbers:
            exact = table(dim, [(self.walks[rank], flags) for rank, flags in ranks], inner, distinct)
            content = (tuple(rank for rank, _ in ranks), inner, exact.tobytes())
            if content not in self.numbers:
                self.numbers[content] = len(self.factors)
                axes = tuple(self.ranks.index(rank) if rank in self.ranks else -1 for rank, _ in ranks)
                kept = exact[tuple(slice(None) if own >= 0 else 0 for own in axes)]
                self.factors.append(Factor(tuple(a for a in axes if a >= 0), kept, kept, kept))
            self.numbers[key] = self.numbers[content]
        return self.numbers[key]


def _link(draft: _Draft, x: int, p: Projection, parent: int, child: int, skip_first_read: bool) -> None:
    """What moves between a tensor's nodes at two levels, as counts.recipe has it."""
    e, output, seen, inner = draft.e, p is draft.e.output, p.ranks(), child < draft.depth
    shared = [dim[4] if output else dim[3] for dim in draft.dims]
    above = [dim[2] <= parent for dim in draft.dims]
    found: dict[tuple[tuple[int, ...], int], list[Use]] = {}
    floors: dict[tuple[tuple[int, ...], int], float] = {}

    def add(sign: int, actions: Sequence[str], v: int, lanes: Callable[[str, int], bool], busiest: bool, skip: bool) -> None:
        spread = prod(dim[1] for d, dim in enumerate(draft.dims) if any(rank not in seen and lanes(rank, d) for rank in draft.ranks))
        for scale, factors in _terms(draft, p, lanes, inner, skip):
            found.setdefault((factors, sign), []).extend(Use(x, v, action, sign * scale, busiest) for action in actions)
            floors.setdefault((factors, sign), 0.0 if inner or busiest or skip else e.points() / spread)

    for busiest in (False, True):
        def served(rank: str, d: int, busiest: bool = busiest) -> bool:
            return busiest if above[d] else rank not in seen and shared[d]

        def filled(rank: str, d: int, busiest: bool = busiest) -> bool:
            return busiest

        skips = output and skip_first_read
        add(1, ("read", "write") if output else ("read",), parent, served, busiest, False)
        if skips:
            add(-1, ("read",), parent, served, busiest, True)
        if inner:
            add(1, ("write", "read") if output else ("write",), child, filled, busiest, False)
            if skips:
                add(-1, ("write",), child, filled, busiest, True)
    for (factors, sign), uses in found.items():
        if not inner and sign > 0 and parent < draft.first_border and any(not use.busiest for use in uses):
            draft.access[len(draft.products)] = np.array([rank not in seen for rank in draft.ranks])
        draft.products.append(Product(factors, tuple(uses), sign, floors[factors, sign], inner))


def _terms(draft: _Draft, p: Projection, lanes: Callable[[str, int], bool], inner: bool, skip: bool) -> list[tuple[float, tuple[int, ...]]]:
    """Scaled products of factors (counts._terms)."""
    seen, e = p.ranks(), draft.e

    def flags(rank: str) -> tuple[bool, ...]:
        return (*(lanes(rank, d) for d in range(len(draft.dims))), skip and rank not in seen)

    dims = tuple(draft.factor(dim, tuple((rank, flags(rank)) for rank in dim.ranks()), inner, skip) for dim in p.dims)
    outer = tuple(draft.factor(None, ((rank, flags(rank)),), inner, False) for rank, _ in e.extents if rank not in seen)
    if not inner:
        return [(nonzero(e), (*dims, *outer))]
    if p.format == "dense":
        return [(1.0, (*dims, *outer))]
    rows = (*dims[:-1], *(draft.factor(None, ((rank, flags(rank)),), inner, False) for rank in p.dims[-1].ranks()))
    return [(2 * p.density, (*dims, *outer)), (1.0, (*rows, *outer))]


def table(dim: Dim | None, ranks: Sequence[tuple[Walks, tuple[bool, ...]]], clip: bool, distinct: bool) -> Floats:
    """A factor for all states of its ranks, one axis each: counts.tile_count or counts.dim_sum."""
    if dim is not None and not _plain(dim, [w.extent for w, _ in ranks], clip, distinct):
        return _clipped(dim, ranks, clip, distinct)
    own = [_pieces(w.extent, w.cut_tile, w.cut_lane, w.cuts, np.array(flags, np.bool_)) for w, flags in ranks]
    if dim is None:
        return own[0][0]
    if len(ranks) == 1 and dim.terms[0][1] == 1 and dim.offset == 0 and dim.size >= ranks[0][0].extent:
        return own[0][1]
    counts = [n.reshape([-1 if i == axis else 1 for i in range(len(own))]) for axis, (n, _) in enumerate(own)]
    sizes = [s.reshape([-1 if i == axis else 1 for i in range(len(own))]) for axis, (_, s) in enumerate(own)]
    total = np.ones([1] * len(own))
    for n in counts:
        total = total * n
    whole = total
    for axis, (_, c) in enumerate(dim.terms):
        part = c * (sizes[axis] - counts[axis])
        for i, n in enumerate(counts):
            part = part * n if i != axis else part
        total = total + part
    return np.broadcast_to(total, whole.shape).copy()


def _plain(dim: Dim, extents: Sequence[int], clip: bool, distinct: bool) -> bool:
    """Whether a dimension's hulls are sums of tile sizes: nothing is clipped, none counted once."""
    if len(dim.terms) == 1 and dim.terms[0][1] == 1 and dim.offset == 0 and dim.size >= extents[0]:
        return True
    inside = dim.offset >= 0 and dim.offset + sum(c * (n - 1) for (_, c), n in zip(dim.terms, extents, strict=True)) < dim.size
    return not distinct and (not clip or inside) and all(c > 0 for _, c in dim.terms)


def _clipped(dim: Dim, ranks: Sequence[tuple[Walks, tuple[bool, ...]]], clip: bool, distinct: bool) -> Floats:
    shape = [len(w.tiles) for w, _ in ranks]
    if not distinct and len(ranks) <= 2 and all(c > 0 for _, c in dim.terms):
        pair = zip((*ranks, (walks(1, (), 0, "divisor"), ())), (*(c for _, c in dim.terms), 0), strict=False)  # a second rank of one value, if there is none
        (first, second, *_) = [(w.extent, w.cut_tile, w.cut_lane, w.cuts, np.array(flags or [False], np.bool_), c) for (w, flags), c in pair]
        found: Floats = _covered(*first, *second, dim.offset, dim.size)
        return found.reshape(shape)
    tables = [[(w.extent, tuple((tile, flags[d]) for tile, d in w.cuts_of(s))) for s in range(len(w.tiles))] for w, flags in ranks]
    return np.array([dim_sum(dim, own, clip, distinct) for own in product(*tables)], np.float64).reshape(shape)


@njit(cache=True, nogil=True, forceinline=True)
def cut(size: Ints, many: Ints, n: int, tile: int, first: bool) -> int:
    """Cut a set of tiles, n sizes each so many times; first: only the first tile of each cut counts. Returns the number of sizes."""
    found = n
    for i in range(n):
        whole, rest, own = size[i] // tile, size[i] % tile, many[i]
        if whole == 0:
            continue
        size[i], many[i] = tile, own if first else own * whole
        if rest and not first:
            size[found], many[found] = rest, own
            found += 1
    keep = 0
    for i in range(found):
        at = 0
        while at < keep and size[at] != size[i]:
            at += 1
        if at < keep:
            many[at] += many[i]
        else:
            size[keep], many[keep] = size[i], many[i]
            keep += 1
    return keep


@njit(cache=True, nogil=True)
def _pieces(extent: int, tile: Ints, lane: Ints, cuts: Ints, first: Bools) -> tuple[Floats, Floats]:
    """Number and total size of the tiles of every state; first: per class of lanes, and last in time, only the first tile of a cut counts."""
    states, most = tile.shape
    number, total = np.zeros(states), np.zeros(states)
    size, many = np.zeros(1 << most, np.int64), np.zeros(1 << most, np.int64)
    for s in range(states):
        size[0], many[0], n = extent, 1, 1
        for j in range(cuts[s]):
            n = cut(size, many, n, tile[s, j], first[lane[s, j]])
        for i in range(n):
            number[s] += many[i]
            total[s] += many[i] * size[i]
    return number, total


@njit(cache=True, nogil=True)
def _spans(extent: int, tile: Ints, lane: Ints, cuts: int, first: Bools, low: Ints, size: Ints) -> int:
    """Origins and sizes of the tiles of one state, in order; returns how many."""
    low[0], size[0], n = 0, extent, 1
    a, b = np.empty_like(low), np.empty_like(size)
    for j in range(cuts):
        m = 0
        for i in range(n):
            trips = 1 if first[lane[j]] else -(-size[i] // tile[j])
            for k in range(trips):
                a[m], b[m] = low[i] + k * tile[j], min(size[i] - k * tile[j], tile[j])
                m += 1
        n = m
        low[:n], size[:n] = a[:n], b[:n]
    return n


@njit(cache=True, nogil=True)
def _covered(extent: int, tile: Ints, lane: Ints, cuts: Ints, first: Bools, c: int, extent2: int, tile2: Ints, lane2: Ints, cuts2: Ints, first2: Bools,
             c2: int, offset: int, stored: int) -> Floats:
    """Per pair of states of two ranks, the summed lengths of their tiles' hulls c p + c2 r + offset, clipped to 0..stored-1."""
    found = np.zeros((tile.shape[0], tile2.shape[0]))
    low, size = np.zeros(extent, np.int64), np.zeros(extent, np.int64)
    low2, size2 = np.zeros((tile2.shape[0], extent2), np.int64), np.zeros((tile2.shape[0], extent2), np.int64)
    n2 = np.zeros(tile2.shape[0], np.int64)
    for s in range(tile2.shape[0]):
        n2[s] = _spans(extent2, tile2[s], lane2[s], cuts2[s], first2, low2[s], size2[s])
    for s in range(tile.shape[0]):
        n = _spans(extent, tile[s], lane[s], cuts[s], first, low, size)
        for s2 in range(tile2.shape[0]):
            total = 0
            for i in range(n):
                for k in range(n2[s2]):
                    begin = max(offset + c * low[i] + c2 * low2[s2, k], 0)
                    end = min(offset + c * (low[i] + size[i] - 1) + c2 * (low2[s2, k] + size2[s2, k] - 1), stored - 1)
                    total += max(end - begin + 1, 0)
            found[s, s2] = total
    return found


@njit(cache=True, nogil=True)
def _reached(tiles: Ints, start: Ints, after: Ints, table: Floats, inner: bool, least: bool) -> Floats:
    """[A, S, B] least (or largest) value over all states that follow, of nodes (inner) or of compute, which is reached with tiles of 1 only."""
    worst = inf if least else -inf
    found = table.copy()
    for s in range(tiles.shape[0]):
        if not inner and tiles[s] > 1:
            found[:, s] = worst
    borders = start.shape[0] - LANES - 1
    for s in np.argsort(tiles, kind="mergesort"):
        for group in range(LANES - 1, LANES + borders):  # in time, and over each border
            own = group if group >= LANES else TIME
            for m in range(start[own, s], start[own, s + 1]):
                _better(found, s, after[m], least)
    for s in range(tiles.shape[0] if borders else 0):  # searches cross border 0 with one state per tile of a lane, the first: it needs the bounds of all
        first = start[LANES, s]
        for m in range(first + 1, start[LANES, s + 1]):
            first = first if tiles[after[m]] == tiles[after[first]] else m
            _better(found, after[first], after[m], least)
    return found


@njit(cache=True, nogil=True, inline="always")
def _better(found: Floats, s: int, other: int, least: bool) -> None:
    for a in range(found.shape[0]):
        for b in range(found.shape[2]):
            own, new = found[a, s, b], found[a, other, b]
            found[a, s, b] = (new if new < own else own) if least else (new if new > own else own)


def _bounds(own: Walks, table: Floats, axis: int, inner: bool, least: bool) -> Floats:
    """`_reached` along one axis of a table."""
    shape = table.shape
    flat = table.reshape(prod(shape[:axis]), shape[axis], prod(shape[axis + 1:]))
    found: Floats = _reached(own.tiles, own.start, own.after, flat, inner, least)
    return found.reshape(shape)


def _merged(own: Sequence[Walks], factors: Sequence[Factor], products: Sequence[Product]) -> tuple[tuple[Factor, ...], tuple[Product, ...]]:
    """One factor per product and group of ranks, those that share a dimension being a group: fewer to look up, and bounds that know them together."""
    group = list(range(len(own)))
    for f in factors:
        first = min((group[rank] for rank in f.ranks), default=0)
        group = [first if g in [group[rank] for rank in f.ranks] else g for g in group]
    found: list[Factor] = []
    numbers: dict[object, int] = {}

    def number(p: Product, parts: tuple[int, ...], ranks: tuple[int, ...]) -> int:
        inner = p.inner
        if (key := (parts, inner)) not in numbers:
            exact = np.ones([1] * len(ranks))
            for f in parts:
                exact = exact * _along(factors[f].exact, factors[f].ranks, ranks)
            exact = np.array(np.broadcast_to(exact, [len(own[rank].tiles) for rank in ranks]))
            low, high = exact, exact
            for axis, rank in enumerate(ranks):
                low, high = _bounds(own[rank], low, axis, inner, True), _bounds(own[rank], high, axis, inner, False)
            numbers[key] = len(found)
            found.append(Factor(ranks, exact, low, high))
        return numbers[key]

    merged = []
    for p in products:
        parts: dict[int, list[int]] = {}
        for n in sorted(p.factors):
            parts.setdefault(group[factors[n].ranks[0]] if factors[n].ranks else -1, []).append(n)
        numbers_of = [number(p, tuple(fs), tuple(sorted({rank for f in fs for rank in factors[f].ranks}))) for fs in parts.values()]
        merged.append(replace(p, factors=tuple(numbers_of)))
    return tuple(found), tuple(merged)


def _along(table: Floats, ranks: tuple[int, ...], axes: tuple[int, ...]) -> Floats:
    """A table over ranks as one over axes, which hold them and more."""
    order = np.argsort(ranks)
    return np.transpose(table, order).reshape([table.shape[ranks.index(a)] if a in ranks else 1 for a in axes])


def _moves(own: Sequence[Walks], borders: int, dims: int) -> tuple[Ints, ...]:
    """Successors of every state of every rank, group by group (`Walks`), and the lists of their ways, different ones once."""
    groups, most = LANES + borders + 1, max(len(w.tiles) for w in own)
    start, tile = np.zeros((groups, len(own), most + 1), np.int64), np.ones((len(own), most), np.int64)
    numbers: dict[bytes, int] = {}
    number_of = [np.empty(len(w.lists), np.int64) for w in own]
    columns: list[tuple[Ints, Ints, Ints]] = []
    at = 0
    for g in range(groups):
        for r, w in enumerate(own):
            for n in range(w.fresh[g], w.fresh[g + 1]):
                number_of[r][n] = numbers.setdefault(w.lists[n], len(numbers))
            first, last = w.start[g, 0], w.start[g, -1]
            start[g, r, : len(w.tiles) + 1] = w.start[g] + (at - first)
            columns.append((w.after[first:last], number_of[r][w.ways[first:last]], w.fewest[first:last]))
            at += last - first
    for r, w in enumerate(own):
        tile[r, : len(w.tiles)] = w.tiles
    rows = [len(ways) // (8 * dims) if dims else 1 for ways in numbers]
    return (start, *(np.concatenate(column) for column in zip(*columns, strict=True)), ranges(rows),
            np.frombuffer(b"".join(numbers), np.int64).reshape(sum(rows), dims).copy(), tile)


def _flat(factors: Sequence[Factor], products: Sequence[Product]) -> tuple[NDArray[Any], ...]:
    """Products, then the factors that they multiply: a row per use, and the tables end to end with their bounds."""
    starts = np.concatenate(([0], np.cumsum([f.exact.size for f in factors])))[:-1]
    rows = [f for p in products for f in p.factors]
    uses = np.column_stack([starts, *ranges(len(f.ranks) for f in factors).T])[rows].astype(np.int64)
    steps = [(rank, prod(f.exact.shape[axis + 1:])) for f in factors for axis, rank in enumerate(f.ranks)] or [(0, 0)]
    return (ranges(len(p.factors) for p in products), uses, *(np.array(column, np.int64) for column in zip(*steps, strict=True)),
            *(np.concatenate([getattr(f, name).ravel() for f in factors]) for name in ("exact", "low", "high")))


def _units(own: Sequence[Walks], factors: Sequence[Factor], products: Sequence[Product], tiles: Tiles) -> Units:
    """Units of an einsum; for ragged tiles, where no search looks them up, of the whole ranks only."""
    states = [np.flatnonzero(w.timed)[: None if tiles != "ragged" else 1] for w in own]
    shape = tuple(len(s) for s in states)
    digit = np.stack([axis.ravel() for axis in np.indices(shape)], axis=1).astype(np.int64)
    stride = np.array([prod(shape[r + 1:]) for r in range(len(own))], np.int64)
    later = [[np.searchsorted(s, own[r].after[own[r].start[TIME, n]:own[r].start[TIME, n + 1]][: len(s)]) for n in s] for r, s in enumerate(states)]
    after_start = np.zeros((len(own), max(shape) + 1), np.int64)
    at = 0
    for r, rows in enumerate(later):
        after_start[r, : len(rows) + 1] = at + np.cumsum([0, *map(len, rows)])
        at = after_start[r, len(rows)]
    parts: dict[object, Floats] = {}
    rows_of: dict[tuple[object, ...], Floats] = {}
    number: dict[tuple[object, ...], int] = {}

    def part(f: int, name: str) -> object:
        """The key of a factor's table on the grid: many are the same there."""
        found = getattr(factors[f], name)[np.ix_(*(states[r] for r in factors[f].ranks))]
        key = (factors[f].ranks, found.tobytes())
        if key not in parts:
            parts[key] = _along(found, factors[f].ranks, tuple(range(len(own))))
        return key

    keys = {(f, name): part(f, name) for f in range(len(factors)) for name in ("exact", "low", "high")}

    def row(p: Product, name: str) -> int:
        key = tuple(keys[f, name] for f in p.factors)
        if key not in rows_of:
            found = np.ones(shape)
            for own_part in key:
                found *= parts[own_part]
            rows_of[key] = found.ravel()
            number[key] = len(number)
        return number[key]

    numbers = np.stack([s[digit[:, r]] for r, s in enumerate(states)], axis=1)
    exact, bound = [row(p, "exact") for p in products], [row(p, "high" if p.sign < 0 else "low") for p in products]
    return Units(numbers, digit, stride, after_start, np.concatenate([n for rows in later for n in rows]), np.stack(list(rows_of.values())), np.array(exact),
                 np.array(bound))


def weights(f: Formulas, e: Einsum, arch: Arch, ports: Sequence[tuple[int, int]], parts: int) -> Floats:
    """[T, P] what a unit of each product costs on a machine: energy, compute cycles, cycles of every port."""
    found = np.zeros((len(f.products), parts))
    per = [[bits_of(e, arch)[p.tensor] / level.width_bits for level in arch.levels] for p in e.tensors()]
    for t, own in enumerate(f.products):
        for use in own.uses:
            if use.tensor < 0:
                found[t, 1] += use.scale * op_cycles(0.0, 1.0, e, arch)
            elif use.busiest:
                found[t, ports[use.v][use.action == "write"]] += use.scale * per[use.tensor][use.v] / arch.levels[use.v].bandwidth
            else:
                level = arch.levels[use.v]
                found[t, 0] += use.scale * per[use.tensor][use.v] * (level.read_pj if use.action == "read" else level.write_pj)
    return found


def ranges(lengths: Iterable[int]) -> Ints:
    """[N, 2] from, to of runs that stand end to end."""
    ends = np.cumsum([0, *lengths])
    return np.column_stack([ends[:-1], ends[1:]]).astype(np.int64)
