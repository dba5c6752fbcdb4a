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
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.dataflow.space import Constraints, Tiles, Walks, Way, fewest_ways, walks
from dse.sim.cost import bits_of, op_cycles
from dse.sim.counts import dim_sum, nonzero
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
    """Factors by number, what their product counts, its sign, and a bound that holds for every mapping, 0 if there is none; inner: ends at a node."""

    factors: tuple[int, ...]
    uses: tuple[Use, ...]
    sign: int
    floor: float
    inner: bool


@dataclass(frozen=True, slots=True)
class Factor:
    """exact: of every state of its ranks; low, high: over all states that may follow and end a link there."""

    ranks: tuple[int, ...]
    exact: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Formulas:
    """ranks: those of more than one value. links: products from, to, numbered as `link_number` says, the last one compute's.

    ramps: (levels outside, product that counts the folds, dimensions from, to) of the systolic arrays.
    access: products that count what compute reads or writes through the outermost border, with the ranks that they do not see.
    even [R]: ranks whose uneven lanes (tiles that a smaller number of lanes leaves as well) never cost less.
    moves: successors for the kernels (succ_start, succ, succ_ways, fewest, way_list, ways, tile); flat: factors for the kernels (products to
    high); grid: what may enter the outermost fan-out.
    """

    ranks: tuple[str, ...]
    walks: tuple[Walks, ...]
    factors: tuple[Factor, ...]
    products: tuple[Product, ...]
    links: tuple[tuple[int, int], ...]
    ramps: tuple[tuple[int, int, int, int], ...]
    access: dict[int, Bools]
    even: Bools
    moves: tuple[Ints, ...]
    flat: tuple[NDArray[Any], ...]
    grid: Units


@dataclass(frozen=True, slots=True)
class Units:
    """Tiles of all ranks before any lane, and what products are there: states [G, R]; digit [G, R] their numbers within a rank; stride [R]; after_start,
    after: numbers that may follow a number in time; exact, bound [T, G]: of every product, and at most (high for those subtracted) in any descendant."""

    states: Ints
    digit: Ints
    stride: Ints
    after_start: Ints
    after: Ints
    exact: Floats
    bound: Floats


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
    systolic = e.kind == "mac" or arch.compute.alu_per_cycle is None
    return _formulas(e, len(arch.levels), arch.fanouts, skips, systolic, tiles, rules.spatial, rules == Constraints())


@lru_cache(maxsize=64)
def _formulas(e: Einsum, depth: int, fanouts: tuple[Fanout, ...], skips: tuple[bool, ...], systolic: bool, tiles: Tiles,
              spatial: tuple[tuple[str, tuple[str, ...]], ...], merge: bool) -> Formulas:
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
    ramps, at = [], 0
    for f in fanouts:
        if f.ramp and systolic:
            ramps.append((f.outside, first, at, at + len(f.dims)))
        at += len(f.dims)
    own = tuple(draft.walks[rank] for rank in draft.ranks)
    factors, products = _merged(own, draft.factors, draft.products)
    grid = _units(own, factors, products) if tiles != "ragged" else NOWHERE
    alike_dims = len({own for own, dim in zip(classes(fanouts, merge), draft.dims, strict=True) if dim[2] == draft.first_border}) == 1
    even = np.array([alike_dims and _even(e, rank, skips) for rank in draft.ranks])
    moves = _moves(own, len({dim[2] for dim in draft.dims}), len(draft.dims))
    return Formulas(draft.ranks, own, factors, products, (*links, (first, first + 1)), tuple(ramps), draft.access, even, moves, _flat(factors, products), grid)


def _even(e: Einsum, rank: str, skips: Sequence[bool]) -> bool:
    """Of a rank that stands alone in its dimensions, more lanes for the same tile only mean more tiles; but every lane over a reduced rank starts its own
    sums, which saves reads."""
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
    own = [_pieces(w.extent, *_cut_arrays(w), np.array(flags, np.bool_)) for w, flags in ranks]
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
    shape = [len(w.cuts) for w, _ in ranks]
    if not distinct and len(ranks) <= 2 and all(c > 0 for _, c in dim.terms):
        (a, first), (b, second) = (*ranks, (walks(1, (), 0, "divisor"), ranks[0][1]))[:2]
        c = [c for _, c in dim.terms] + [0]
        found: Floats = _covered(a.extent, *_cut_arrays(a), np.array(first, np.bool_), c[0], b.extent, *_cut_arrays(b), np.array(second, np.bool_), c[1],
                                 dim.offset, dim.size)
        return found.reshape(shape)
    tables = [[(w.extent, tuple((tile, flags[d]) for tile, d in cuts)) for cuts in w.cuts] for w, flags in ranks]
    return np.array([dim_sum(dim, own, clip, distinct) for own in product(*tables)], np.float64).reshape(shape)


@lru_cache(maxsize=256)
def _cut_arrays(w: Walks) -> tuple[Ints, Ints, Ints]:
    """Tiles and lanes [S, J], number of cuts [S] of every state."""
    n = np.array([len(own) for own in w.cuts], np.int64)
    tile, lane = np.ones((len(n), max(int(n.max()), 1)), np.int64), np.full((len(n), max(int(n.max()), 1)), -1, np.int64)
    for s, own in enumerate(w.cuts):
        for j, (t, d) in enumerate(own):
            tile[s, j], lane[s, j] = t, d
    return tile, lane, n


@njit(cache=True, nogil=True)
def _pieces(extent: int, tile: Ints, lane: Ints, cuts: Ints, first: Bools) -> tuple[Floats, Floats]:
    """Number and total size of the tiles of every state; first: per class of lanes, and last in time, only the first tile of a cut counts."""
    states, most = tile.shape
    number, total = np.zeros(states), np.zeros(states)
    size, count = np.zeros(1 << most, np.int64), np.zeros(1 << most, np.int64)
    for s in range(states):
        size[0], count[0], n = extent, 1, 1
        for j in range(cuts[s]):
            for i in range(n):
                whole, rest = size[i] // tile[s, j], size[i] % tile[s, j]
                own = count[i]
                size[i], count[i] = tile[s, j], own * (min(whole, 1) if first[lane[s, j]] else whole)
                if rest and not (first[lane[s, j]] and whole):
                    size[n], count[n] = rest, own
                    n += 1
            keep = 0
            for i in range(n):
                if count[i] == 0:
                    continue
                at = 0
                while at < keep and size[at] != size[i]:
                    at += 1
                if at < keep:
                    count[at] += count[i]
                else:
                    size[keep], count[keep] = size[i], count[i]
                    keep += 1
            n = keep
        for i in range(n):
            number[s] += count[i]
            total[s] += count[i] * size[i]
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


@lru_cache(maxsize=256)
def _later(w: Walks) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """States that may follow every state, itself included, end to end, and where those of a state begin: all of them, and those of tiles of 1."""
    follows: dict[int, Ints] = {}
    for s in sorted(range(len(w.cuts)), key=lambda s: (w.tile(s), -s)):
        after = {*w.time[s], *(state for border in w.lanes[s] for state, _ in border)} - {s}
        follows[s] = np.unique(np.concatenate([[s], *(follows[state] for state in after)]))
    for state in range(len(w.cuts)) if w.lanes[0] else ():  # the first of states that are alike stands for all of them
        for first, *rest in ([found for found, _ in own] for own in alike(w, state, 0)):
            follows[first] = np.unique(np.concatenate([follows[first], *(follows[s] for s in rest)])) if rest else follows[first]
    tile = np.array([w.tile(s) for s in range(len(w.cuts))])
    rows = [[follows[s] for s in range(len(tile))], [follows[s][tile[follows[s]] == 1] for s in range(len(tile))]]
    every, last = (np.concatenate(own) for own in rows)
    starts = [np.concatenate(([0], np.cumsum([len(row) for row in own])))[:-1] for own in rows]
    return (every, starts[0]), (last, starts[1])


def _reached(w: Walks, table: Floats, axis: int, pick: np.ufunc, inner: bool) -> Floats:
    """Least (or largest) value over all states that follow, of nodes (inner) or of compute, which is reached with tiles of 1 only."""
    later, starts = _later(w)[not inner]
    return np.moveaxis(pick.reduceat(np.moveaxis(table, axis, 0)[later], starts, axis=0), 0, axis)


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
            exact = np.array(np.broadcast_to(exact, [len(own[rank].cuts) for rank in ranks]))
            low, high = exact, exact
            for axis, rank in enumerate(ranks):
                low, high = (_reached(own[rank], t, axis, pick, inner) for t, pick in ((low, np.minimum), (high, np.maximum)))
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


After = Sequence[tuple[int, tuple[Way, ...]]]  # states that follow one, with the ways there


def _moves(own: Sequence[Walks], borders: int, dims: int) -> tuple[Ints, ...]:
    """Successors of every state: in time, to tiles of 1, both directly below lanes (canonical: only where these are ragged), over each border, and last
    over the first border one state for all that leave a lane the same tile, with the ways of all (`alike`)."""
    alone = (((1,) * dims, ()),)
    groups: list[list[list[After]]] = [[] for _ in range(5 + borders)]
    for w in own:
        states = range(len(w.cuts))
        time: list[After] = [[(s, alone) for s in follow] for follow in w.time]
        unit: list[After] = [[(follow, alone)] for follow in w.unit]
        groups[0].append(time)
        groups[1].append(unit)
        groups[2].append([time[s] if w.ragged(s) else time[s][:1] for s in states])
        groups[3].append([unit[s] if w.ragged(s) or w.tile(s) == 1 else [] for s in states])
        for b in range(borders):
            groups[4 + b].append([list(chain.from_iterable(alike(w, s, b))) for s in states])
        groups[-1].append([[(own_states[0][0], fewest_ways([way for _, ways in own_states for way in ways])) for own_states in alike(w, s, 0)]
                           if borders else [] for s in states])
    most = max(len(w.cuts) for w in own)
    fewest_of: list[int] = []
    start = np.zeros((len(groups), len(own), most + 1), np.int64)
    tile = np.ones((len(own), most), np.int64)
    after: list[int] = []
    lists: dict[tuple[tuple[int, ...], ...], int] = {}
    ways_of: list[int] = []
    for g, by_rank in enumerate(groups):
        for r, by_state in enumerate(by_rank):
            for s, found in enumerate(by_state):
                start[g, r, s] = len(after)
                for state, own_ways in found:
                    after.append(state)
                    fewest_of.append(fewest(own_ways))
                    ways_of.append(lists.setdefault(tuple(trips for trips, _ in own_ways), len(lists)))
                start[g, r, s + 1] = len(after)
    for r, w in enumerate(own):
        tile[r, : len(w.cuts)] = [w.tile(s) for s in range(len(w.cuts))]
    return (start, np.array(after, np.int64), np.array(ways_of, np.int64), np.array(fewest_of, np.int64), ranges(map(len, lists)),
            np.array([trips for own_ways in lists for trips in own_ways], np.int64).reshape(sum(map(len, lists)), dims), tile)


def alike(w: Walks, state: int, border: int) -> list[list[tuple[int, tuple[Way, ...]]]]:
    """States over a border by the tile that a lane gets, each group and the groups sorted by the lanes that they need at least."""
    groups: dict[int, list[tuple[int, tuple[Way, ...]]]] = {}
    for found in sorted(w.lanes[state][border], key=lambda found: fewest(found[1])):
        groups.setdefault(w.tile(found[0]), []).append(found)
    return list(groups.values())


def fewest(ways: Sequence[Way]) -> int:
    """Lanes of the way that needs fewest."""
    return min(prod(trips) for trips, _ in ways)


def _flat(factors: Sequence[Factor], products: Sequence[Product]) -> tuple[NDArray[Any], ...]:
    """Products, then the factors that they multiply: a row per use, and the tables end to end with their bounds."""
    starts = np.concatenate(([0], np.cumsum([f.exact.size for f in factors])))[:-1]
    rows = [f for p in products for f in p.factors]
    uses = np.column_stack([starts, *ranges(len(f.ranks) for f in factors).T])[rows].astype(np.int64)
    steps = [(rank, prod(f.exact.shape[axis + 1:])) for f in factors for axis, rank in enumerate(f.ranks)] or [(0, 0)]
    return (ranges(len(p.factors) for p in products), uses, *(np.array(column, np.int64) for column in zip(*steps, strict=True)),
            *(np.concatenate([getattr(f, name).ravel() for f in factors]) for name in ("exact", "low", "high")))


NOWHERE = Units(np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.int64), np.zeros(1, np.int64),
                np.zeros((1, 1)), np.zeros((1, 1)))


def _units(own: Sequence[Walks], factors: Sequence[Factor], products: Sequence[Product]) -> Units:
    states = [[s for s, cuts in enumerate(w.cuts) if all(d < 0 for _, d in cuts)] for w in own]
    shape = tuple(len(s) for s in states)
    digit = np.stack([axis.ravel() for axis in np.indices(shape)], axis=1).astype(np.int64)
    stride = np.array([prod(shape[r + 1:]) for r in range(len(own))], np.int64)
    after_start, after = np.zeros((len(own), max(shape) + 1), np.int64), list[int]()
    for r, w in enumerate(own):
        for a, s in enumerate(states[r]):
            after_start[r, a] = len(after)
            after += [states[r].index(t) for t in w.time[s]]
            after_start[r, a + 1] = len(after)

    def over_grid(pick: Callable[[int], str]) -> Floats:
        spread = {}
        found = np.ones((len(products), *shape))
        for t, p in enumerate(products):
            for f in p.factors:
                if (f, pick(t)) not in spread:
                    part = getattr(factors[f], pick(t))[np.ix_(*(states[r] for r in factors[f].ranks))]
                    spread[f, pick(t)] = _along(part, factors[f].ranks, tuple(range(len(own))))
                found[t] *= spread[f, pick(t)]
        return found.reshape(len(products), -1)

    numbers = np.stack([np.array(s, np.int64)[digit[:, r]] for r, s in enumerate(states)], axis=1)
    return Units(numbers, digit, stride, after_start, np.array(after, np.int64), over_grid(lambda t: "exact"),
                 over_grid(lambda t: "high" if products[t].sign < 0 else "low"))


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
