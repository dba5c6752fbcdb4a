"""Every mapping of a small problem, counted by formulas of its own: what the searches are proven against.
Shares no code with dse/mapper.

A mapping is a skeleton (storage nodes and borders of fan-outs, outermost first) with, below each of them, one
loop in time per rank, and at a border one loop in space per rank and fan-out dimension; loops of one trip are
none. Two things are left out, for they change no count and hold no more words: where the nodes of the
outermost level stand (they are filled by nothing, and hold all of their tensors), and the order of the loops
of a gap, but for which window the node above enters (counts know the tiles at nodes only, and a node sinks
furthest through its own ranks first, then into one window).

Counts are those of docs/model.md, as tables over the chains of tiles of a rank (or of two that share a
dimension), multiplied in a compiled loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from math import inf, prod
from typing import Literal

import numpy as np
from numba import njit

from dse.mapping.nest import Loop, Mapping, Store, may_keep
from dse.sim.counts.actions import fill_cycles, op_cycles, op_pj
from dse.sim.einsum.evaluate import Problem
from hw.arch import Arch, Fanout
from tests.nests import alike_ranks, stored_bits
from tests.oracle import Walk, alone, gate, kept, part, width
from workloads.einsum import Dim, Einsum, Projection

# nodes of an outer level above all nodes of an inner one; or only those of the same tensor
Order = Literal["levels", "tensors"]
Node = tuple[int, int]  # level, tensor; or (-1, border): a fan-out's border with so many levels outside
Skeleton = tuple[Node, ...]
CLOSE = 1e-10
EVERY = -1


@dataclass(frozen=True)
class Best:
    """The least (figure, energy, latency) of all mappings, one that has it, and how many mappings there
    are."""

    cost: tuple[float, float, float]
    mapping: Mapping | None
    mappings: int


def skeletons(e: Einsum, arch: Arch, order: Order) -> Iterator[Skeleton]:
    """All of them, each once."""
    tensors, depth = e.tensors(), len(arch.levels)
    borders = sorted({f.outside for f in arch.fanouts})
    holders: list[list[tuple[int, ...]]] = []
    for p in tensors:
        may = [v for v, level in enumerate(arch.levels) if p.tensor in may_keep(e, level)]
        must = {v for v in may if not arch.levels[v].bypass}
        holders.append(
            [own for n in range(1, len(may) + 1) for own in combinations(may, n) if must <= set(own)]
        )
    for choice in product(*holders):
        nodes = [(v, x) for x, own in enumerate(choice) for v in own]
        top = [node for node in nodes if node[0] == 0]
        spans = [(low, high) for low, high in zip([0, *borders], [*borders, depth], strict=True)]
        parts = [
            list(_interleaved([node for node in nodes if low <= node[0] < high and node not in top], order))
            for low, high in spans
        ]
        for found in product(*parts):
            yield (
                *top,
                *chain(
                    *(
                        [*([(-1, low)] if low in borders else []), *own]
                        for (low, _), own in zip(spans, found, strict=True)
                    )
                ),
            )


def _interleaved(nodes: list[Node], order: Order) -> Iterator[tuple[Node, ...]]:
    if order == "levels":
        by = [[node for node in nodes if node[0] == v] for v in sorted({v for v, _ in nodes})]
        yield from (tuple(chain(*own)) for own in product(*(permutations(own) for own in by)))
        return
    if not nodes:
        yield ()
    for node in nodes:
        if not any(other[1] == node[1] and other[0] < node[0] for other in nodes):
            yield from (
                (node, *rest) for rest in _interleaved([other for other in nodes if other != node], order)
            )


@lru_cache(maxsize=1 << 14)
def chains(extent: int, loops: tuple[int, ...], tiles: str, slot: int = 1) -> tuple[tuple[int, ...], ...]:
    """Tiles that every loop leaves, the last one 1. loops: 0 in time, else lanes that a loop in space may use
    at most. slot: neighbours of which no lane gets a part.
    """
    if not loops:
        return ((),) if extent == 1 else ()
    if loops[0] and extent % slot:
        own = [extent]
    elif loops[0]:
        own = [n * slot for n in chains_of_one(extent // slot, loops[0], tiles)]
    else:
        own = [n for n in range(1, extent + 1) if tiles == "imperfect" or extent % n == 0]
    return tuple((n, *rest) for n in own for rest in chains(n, loops[1:], tiles, slot))


def chains_of_one(extent: int, lanes: int, tiles: str) -> list[int]:
    """Tiles that a loop in space leaves."""
    return sorted({-(-extent // n) for n in range(1, lanes + 1) if tiles != "perfect" or extent % n == 0})


def slot_of(e: Einsum, arch: Arch, rank: str) -> int:
    """Neighbours along a rank of which a lane gets all or none where lanes step together (`Walk.stepped`)."""
    stepped = Walk(Mapping(()), e, arch).stepped(e.inputs[0])
    if stepped is None or stepped.dims[-1].terms[0][0] != rank:
        return 1
    few, long = map(int, stepped.format.split(":"))
    return long // few if long % few == 0 else long


@lru_cache(maxsize=1 << 14)
def how_many(extent: int, loops: tuple[int, ...], tiles: str) -> int:
    """Number of `chains`, without listing them."""
    if not loops:
        return int(extent == 1)
    own = (
        {-(-extent // n) for n in range(1, loops[0] + 1) if tiles != "perfect" or extent % n == 0}
        if loops[0]
        else {n for n in range(1, extent + 1) if tiles == "imperfect" or extent % n == 0}
    )
    return sum(how_many(n, loops[1:], tiles) for n in own)


@dataclass(frozen=True)
class Shape:
    """A skeleton's loops: per loop 0 in time, else 1 + number of the fan-out dimension; at [items + 1] loops
    above every item and above compute.
    """

    kinds: tuple[int, ...]
    at: tuple[int, ...]


def shape(skeleton: Skeleton, arch: Arch) -> Shape:
    """No loops between the nodes of the outermost level, one gap below every other item."""
    dims = [(f.outside, size) for f in arch.fanouts for _, size in f.dims]
    kinds: list[int] = []
    at = []
    for i, (v, number) in enumerate(skeleton):
        at.append(len(kinds))
        if v < 0:
            kinds += [1 + d for d, (outside, size) in enumerate(dims) if outside == number and size > 1]
        following = skeleton[i + 1] if i + 1 < len(skeleton) else (-1, -1)
        if not (v == 0 and following[0] == 0):
            kinds.append(0)
    return Shape(tuple(kinds), (*at, len(kinds)))


def loops_of(e: Einsum, arch: Arch, kinds: tuple[int, ...], rank: str) -> tuple[int, ...]:
    """What `chains` takes: lanes may not share output elements through a window, nor want different elements
    of what they share an instance of.
    """
    dims = [dim for f in arch.fanouts for dim in f.dims]
    apart = [rank in e.output.partial_ranks() or rank in alike_ranks(e, arch, name) for name, _ in dims]
    return tuple(0 if kind == 0 else 1 if apart[kind - 1] else dims[kind - 1][1] for kind in kinds)


def size(e: Einsum, arch: Arch, tiles: str, order: Order = "levels", limit: float = inf) -> int:
    """Mappings of the whole space, those that overfill levels or fan-outs included; above the limit it may
    stop counting.
    """
    total = 0
    for skeleton in skeletons(e, arch, order):
        kinds = shape(skeleton, arch).kinds
        total += prod(how_many(n, loops_of(e, arch, kinds, rank), tiles) for rank, n in e.extents if n > 1)
        if total > limit:
            break
    return total


@njit(cache=True, nogil=True)
def _pieces(extent, tiles, first, low, size):  # type: ignore[no-untyped-def]
    """Origins and sizes of the tiles that cuts leave, of a cut only the one whose number `first` gives, if it
    is not below 0; how many.
    """
    low[0], size[0], n = 0, extent, 1
    a, b = np.empty_like(low), np.empty_like(size)
    for j in range(tiles.shape[0]):
        m = 0
        for i in range(n):
            begin = max(first[j], 0) * tiles[j]
            while begin < size[i] and (first[j] < 0 or begin == first[j] * tiles[j]):
                a[m], b[m] = low[i] + begin, min(tiles[j], size[i] - begin)
                m += 1
                begin += tiles[j]
        low[:m], size[:m], n = a[:m], b[:m], m
    return n


@njit(cache=True, nogil=True)
def _counted(extent, tiles, first):  # type: ignore[no-untyped-def]
    """[N] number of tiles of every chain [N, J]."""
    found = np.zeros(tiles.shape[0])
    low, size = np.zeros(extent, np.int64), np.zeros(extent, np.int64)
    for c in range(tiles.shape[0]):
        found[c] = _pieces(extent, tiles[c], first, low, size)
    return found


@njit(cache=True, nogil=True)
def _covered(extent, tiles, first, c, extent2, tiles2, first2, c2, offset, stored, clip, distinct):  # type: ignore[no-untyped-def]
    """[N, M] lengths of the hulls of all pairs of tiles, clipped to what is stored; distinct: of their
    union."""
    found = np.zeros((tiles.shape[0], tiles2.shape[0]))
    low, size = np.zeros(extent, np.int64), np.zeros(extent, np.int64)
    low2, size2 = np.zeros(extent2, np.int64), np.zeros(extent2, np.int64)
    shift = -min(offset, 0)
    seen = np.zeros(shift + max(offset, 0) + abs(c) * extent + abs(c2) * extent2 + stored + 1, np.bool_)
    for i in range(tiles.shape[0]):
        n = _pieces(extent, tiles[i], first, low, size)
        for k in range(tiles2.shape[0]):
            m = _pieces(extent2, tiles2[k], first2, low2, size2)
            seen[:] = False
            for a in range(n):
                for b in range(m):
                    begin = offset + c * low[a] + c2 * low2[b]
                    end = begin + c * (size[a] - 1) + c2 * (size2[b] - 1)
                    if clip:
                        begin, end = max(begin, 0), min(end, stored - 1)
                    if distinct:
                        for x in range(begin, end + 1):
                            seen[shift + x] = True
                    else:
                        found[i, k] += max(end - begin + 1, 0)
            if distinct:
                found[i, k] = np.sum(seen)
    return found


@dataclass
class Space:
    """One problem: chains and tables of factors by the loops that they stand on, and what costs are made
    of."""

    problem: Problem
    tiles: str
    options: dict[tuple[str, tuple[int, ...]], np.ndarray] = field(default_factory=dict)
    tables: dict[object, np.ndarray] = field(default_factory=dict)

    def chains(self, rank: str, kinds: tuple[int, ...]) -> np.ndarray:
        if (rank, kinds) not in self.options:
            e = self.problem.einsum
            arch = self.problem.arch
            lanes = loops_of(e, arch, kinds, rank)
            found = chains(e.sizes()[rank], lanes, self.tiles, slot_of(e, arch, rank))
            self.options[rank, kinds] = np.array(found, np.int64).reshape(len(found), len(kinds))
        return self.options[rank, kinds]

    def table(
        self,
        dim: Dim | None,
        ranks: Sequence[str],
        kinds: tuple[int, ...],
        firsts: tuple[tuple[int, ...], ...],
        clip: bool,
        distinct: bool,
    ) -> np.ndarray:
        """[N] or [N, M] over the chains of one or two ranks; firsts: per rank, of the loops above, the number
        of the one trip that counts, or EVERY.
        """
        key = (dim, tuple(ranks), kinds, firsts, clip, distinct)
        if key not in self.tables:
            above = len(firsts[0])
            sizes = self.problem.einsum.sizes()
            own = [
                np.unique(self.chains(rank, kinds)[:, :above], axis=0, return_inverse=True) for rank in ranks
            ]
            flags = [np.array(first, np.int64) for first in firsts]
            if dim is None:
                self.tables[key] = _counted(sizes[ranks[0]], own[0][0], flags[0])[own[0][1].ravel()]
            else:
                assert len(ranks) <= 2, f"{dim}: more than two ranks on one dimension"
                coefficient = dict(dim.terms)
                ends = [
                    (sizes[rank], prefix, flag, coefficient[rank])
                    for rank, (prefix, _), flag in zip(ranks, own, flags, strict=True)
                ]
                if len(ends) == 1:
                    ends.append((1, np.ones((1, above), np.int64), np.full(above, EVERY), 0))
                found = _covered(*ends[0], *ends[1], dim.offset, dim.size, clip, distinct)
                self.tables[key] = (
                    found[:, 0][own[0][1].ravel()]
                    if len(ranks) == 1
                    else found[np.ix_(own[0][1].ravel(), own[1][1].ravel())]
                )
        return self.tables[key]


@dataclass
class Draft:
    """The sums of products of one skeleton: factors by number, products as rows of factor numbers, columns
    what a unit of them costs.
    """

    factors: list[tuple[np.ndarray, tuple[int, ...]]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    products: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)

    def factor(self, table: np.ndarray, ranks: tuple[int, ...]) -> int:
        if id(table) not in self.numbers:
            self.numbers[id(table)] = len(self.factors)
            self.factors.append((table, ranks))
        return self.numbers[id(table)]

    def add(self, factors: Sequence[int], column: np.ndarray) -> None:
        key = tuple(sorted(factors))
        self.products[key] = self.products.get(key, 0.0) + column


def enumerated(problem: Problem, tiles: str, order: Order = "levels") -> Best:
    """The optimum by looking at every mapping; its cost is inf if none fits."""
    e, arch = problem.einsum, problem.arch
    space, best, found, total = Space(problem, tiles), np.full(3, inf), None, 0
    there = (
        arch.levels[0].capacity_bits is None or stored_bits(e, arch.word_bits) <= arch.levels[0].capacity_bits
    )
    for skeleton in skeletons(e, arch, order):
        s = shape(skeleton, arch)
        own = [space.chains(rank, s.kinds) for rank in _long(e)]
        total += prod(map(len, own))
        chosen = np.zeros(len(own), np.int64)
        if there and _searched(*_arrays(space, skeleton, s), best, chosen):
            found = skeleton, s, [tuple(own[r][c].tolist()) for r, c in enumerate(chosen)]
    return Best((float(best[0]), float(best[1]), float(best[2])), found and nest(e, arch, *found), total)


def mappings(problem: Problem, tiles: str, order: Order = "levels") -> Iterator[Mapping]:
    """All that `enumerated` looks at, also those that do not fit, one by one."""
    e, arch = problem.einsum, problem.arch
    space = Space(problem, tiles)
    for skeleton in skeletons(e, arch, order):
        s = shape(skeleton, arch)
        for chosen in product(*(map(tuple, space.chains(rank, s.kinds).tolist()) for rank in _long(e))):
            yield nest(e, arch, skeleton, s, chosen)


def in_orders(mapping: Mapping) -> Iterator[Mapping]:
    """The mapping with the loops of each gap in every order."""
    runs: list[list[Loop | Store]] = []
    for node in mapping.nodes:
        timed = isinstance(node, Loop) and not node.over
        last = runs[-1][-1] if runs else None
        if timed and isinstance(last, Loop) and not last.over:
            runs[-1].append(node)
        else:
            runs.append([node])
    for order in product(*map(permutations, runs)):
        yield Mapping(tuple(chain(*order)))


def _long(e: Einsum) -> list[str]:
    return [rank for rank, n in e.extents if n > 1] or [e.extents[0][0]]


def nonzero(e: Einsum) -> float:
    return prod(p.density for p in e.inputs)


def with_zeros(e: Einsum, arch: Arch, v: int) -> list[Projection]:
    """Operands at whose zeros level v is not accessed: of zeros that are gated only a memory with one lane
    inside hears, not one outside of an array or that lanes share.
    """
    serves_one = all(f.outside <= v for f in arch.fanouts) and not alone(arch, arch.levels[v].name)
    waits = () if serves_one else arch.compute.gates
    return [p for p in e.inputs if p.density < 1 and part(p.tensor, e) not in waits]


def accessed(e: Einsum, zeros: list[Projection], p: Projection) -> float:
    """Share of the iterations that access tensor p, uncompressed or a result, where these have zeros."""
    share = prod(q.density for q in zeros)
    gated = len(zeros) < sum(q.density < 1 for q in e.inputs)
    return min(share, p.density) if gated and p is e.output and p.format != "dense" else share


def overlap(e: Einsum) -> float:
    """How many iterations of its own ranks an element of the output has in the mean: more than one where
    windows overlap.
    """
    sizes = e.sizes()
    found = 1.0
    for d in e.output.dims:
        indices = [
            sum(c * i for (_, c), i in zip(d.terms, place, strict=True))
            for place in product(*(range(sizes[rank]) for rank in d.ranks()))
        ]
        found *= len(indices) / len(set(indices))
    return found


def products(share: float, places: int, more: float, stored: float) -> tuple[float, float, float]:
    """Of an element that so many places times `more` products add to, each nonzero with this chance: first
    reads per place and per lane, and zeros written per place. stored: share of the elements that are kept.

    Below one expected nonzero, zeros are written for the rest; lanes between one and all places lie on the
    line between their first reads.
    """
    expected = share * places * more
    each_lane = (min(expected, places) - min(stored, expected)) / (places - 1) if places > 1 else 0.0
    return (min(stored, expected) - each_lane) / places, each_lane, max(0.0, stored - expected) / places


def _ports(e: Einsum, arch: Arch, instances: int) -> list[tuple[int, int, str]]:
    """The ports (instance, level, name) of the columns after energy and compute."""
    return [
        (instance, v, name)
        for instance in range(instances)
        for v, level in enumerate(arch.levels)
        for name in dict.fromkeys(
            gate(level, tensor, way, e)[0]
            for tensor in may_keep(e, level)
            for way in ("read", "write", "fill", "drain")
        )
    ]


def is_clipped(dim: Dim, sizes: dict[str, int]) -> bool:
    """Whether indices of a dimension lie outside of what is stored of it."""
    last = dim.offset + sum(c * (sizes[rank] - 1) for rank, c in dim.terms)
    return dim.offset < 0 or last >= dim.size


def padded(e: Einsum) -> list[str]:
    """Ranks of which padding cuts tiles, if lanes may share them out."""
    sizes = e.sizes()
    return sorted(
        {
            rank
            for p in e.tensors()
            for dim in p.dims
            for rank, _ in dim.terms
            if sizes[rank] > 1 and is_clipped(dim, sizes)
        }
        - e.output.partial_ranks()
    )


def _instances(e: Einsum, arch: Arch, kinds: tuple[int, ...]) -> list[dict[tuple[str, int], int]]:
    """Lanes that may be busier than the first ones, by (rank, loop): of ranks of which padding cuts tiles;
    one that a chain has not got moves nothing.
    """
    sizes, lanes, cut = e.sizes(), [size for f in arch.fanouts for _, size in f.dims], padded(e)
    found: list[dict[tuple[str, int], int]] = [{}]
    for j, kind in enumerate(kinds):
        if kind and cut:
            chosen = [
                own
                for own in product(*(range(min(lanes[kind - 1], sizes[rank])) for rank in cut))
                if prod(k + 1 for k in own) <= lanes[kind - 1]
            ]
            found = [
                one | {(rank, j): k for rank, k in zip(cut, own, strict=True)}
                for one in found
                for own in chosen
            ]
    return found


def _counts(space: Space, skeleton: Skeleton, s: Shape) -> Draft:
    """All counts of a skeleton, weighted: columns energy, compute cycles, cycles of every port."""
    e, arch = space.problem.einsum, space.problem.arch
    instances = _instances(e, arch, s.kinds)
    every = _ports(e, arch, len(instances))
    ranks, draft = _long(e), Draft()
    multicast = [flag for f in arch.fanouts for flag in f.multicast]
    reduce = [flag for f in arch.fanouts for flag in f.reduce]

    def column(v: int, action: str, tensor: str, instance: int | None, scale: float) -> np.ndarray:
        level, found = arch.levels[v], np.zeros(2 + len(every))
        actions = scale * width(level.name, tensor, e, arch) / level.width_bits
        if instance is not None:
            name, times = gate(level, tensor, action, e)
            found[2 + every.index((instance, v, name))] = actions / (level.bandwidth * times)
        else:
            found[0] = actions * (level.read_pj if action in ("read", "drain") else level.write_pj)
        return found

    def terms(
        p: Projection,
        above: int,
        clip: bool,
        first_of: list[list[bool]],
        skip: bool,
        lanes: dict[tuple[str, int], int],
        again: frozenset[str] = frozenset(),
        *,
        holey: list[Projection],
    ) -> list[tuple[float, list[int]]]:
        """Scaled products; first_of [2, above]: whether of a loop in space of a rank that p sees, or does not
        see, one lane counts ([3, above]: and of ranks whose lanes are at other nonzeros, else as those that p
        sees); lanes: which, if not the first. skip: only the first iterations in time, but of ranks that p
        sees or that are in `again`.
        """
        seen = p.ranks()
        # lanes at other nonzeros
        apart = set() if clip else {rank for q in holey for rank in q.ranks()}

        def firsts(rank: str) -> tuple[int, ...]:
            own = first_of[0] if rank in seen else first_of[1]
            own = first_of[2 % len(first_of)] if rank in apart - seen else own
            return tuple(
                (lanes.get((rank, j), 0) if own[j] else EVERY)
                if s.kinds[j]
                else 0
                if skip and rank not in seen | again
                else EVERY
                for j in range(above)
            )

        def dim_factor(dim: Dim) -> list[int]:
            own = [rank for rank in ranks if rank in dim.ranks()]
            if not own and not clip:
                return []
            if not own:
                own = [dim.terms[0][0]] if dim.terms else []
                length = _fixed(dim, clip)
                return (
                    []
                    if length == 1
                    else [
                        draft.factor(
                            space.tables.setdefault(("fixed", length), np.full(1, float(length))), ()
                        )
                    ]
                )
            if not clip and not skip:
                return [counted(rank) for rank in own]
            return [
                draft.factor(
                    space.table(dim, own, s.kinds, tuple(firsts(rank) for rank in own), clip, skip),
                    tuple(ranks.index(rank) for rank in own),
                )
            ]

        def counted(rank: str) -> int:
            return draft.factor(
                space.table(None, (rank,), s.kinds, (firsts(rank),), False, False), (ranks.index(rank),)
            )

        outer = [counted(rank) for rank in ranks if rank not in seen]
        whole = [f for dim in p.dims for f in dim_factor(dim)]
        value = p.bits or arch.word_bits
        share = float(kept(p.density, p.format, p.index_bits)) if p.format == "rle" else p.density
        mask = 1 / value if p.format == "bitmask" else 0.0
        each, pointer = share * (value + p.index_bits) / value + mask, p.pointer_bits / value
        if not clip:
            along = prod(e.sizes()[rank] for rank in p.dims[-1].ranks())
            return [
                (
                    accessed(e, holey, p) * (1 + p.index_bits / value if p.format != "dense" else 1)
                    if p is e.output or p.format == "dense"
                    else each + pointer / along,
                    whole + outer,
                )
            ]
        if p.format == "dense":
            return [(1.0, whole + outer)]
        last = [counted(rank) for rank in ranks if rank in p.dims[-1].ranks()]
        return [
            (each, whole + outer),
            (pointer, [f for dim in p.dims[:-1] for f in dim_factor(dim)] + last + outer),
        ]

    names = ["", *(name for f in arch.fanouts for name, _ in f.dims)]

    def apart(v: int, at: int) -> list[bool]:
        """Whether lanes of each loop have instances of a level of their own."""
        one = alone(arch, arch.levels[v].name) if v < len(arch.levels) else set()
        return [j < at and names[kind] not in one for j, kind in enumerate(s.kinds)]

    for x, p in enumerate(e.tensors()):
        output, shared = p is e.output, reduce if p is e.output else multicast
        nodes = [(i, v) for i, (v, number) in enumerate(skeleton) if v >= 0 and number == x]
        for (i, v), child in zip(nodes, [*nodes[1:], None], strict=True):
            holey = with_zeros(e, arch, v)
            above = s.at[child[0]] if child else len(s.kinds)
            # loops in space of which lanes have instances of both ends, of the inner end alone, of none
            outer_own = apart(v, s.at[i])[:above]
            inner_own = apart(child[1], above)[:above] if child else [True] * above
            crossed = [
                bool(kind) and mine and not theirs
                for kind, mine, theirs in zip(s.kinds, inner_own, outer_own, strict=False)
            ]
            merged = [bool(kind) and not mine for kind, mine in zip(s.kinds, inner_own, strict=False)]
            for skip in (False, True) if output and arch.levels[v].skip_first_read else (False,):
                for instance in (None, *range(len(instances))):
                    busiest = instance is not None
                    lanes = {} if instance is None else instances[instance]
                    above_parent = {
                        (rank, j): k for (rank, j), k in lanes.items() if j < above and outer_own[j]
                    }
                    above_child = {
                        (rank, j): k for (rank, j), k in lanes.items() if j < above and inner_own[j]
                    }
                    serve = [
                        [busiest and mine for mine in outer_own],
                        [
                            (busiest and mine) or one or (between and shared[kind - 1])
                            for kind, mine, one, between in zip(
                                s.kinds, outer_own, merged, crossed, strict=False
                            )
                        ],
                    ]
                    # the first reads of a memory: once for all lanes that add to an element there
                    once = [
                        serve[0],
                        [mine or between for mine, between in zip(serve[1], crossed, strict=False)],
                    ]
                    added = [
                        mine or (between and not shared[kind - 1])
                        for kind, mine, between in zip(s.kinds, serve[0], crossed, strict=False)
                    ]
                    own_tiles = [
                        [busiest and mine for mine in inner_own],
                        [(busiest and mine) or one for mine, one in zip(inner_own, merged, strict=True)],
                    ]
                    sign = -1.0 if skip else 1.0
                    if output and not child and (share := accessed(e, holey, p)) < 1:
                        places = frozenset(rank for q in holey for rank in q.ranks())
                        first, each_lane, zeros = products(
                            share,
                            prod(n for rank, n in e.extents if rank in places - p.ranks()),
                            overlap(e),
                            1.0 if p.format == "dense" else p.density,
                        )
                        if p.format != "dense":
                            value, row = p.bits or arch.word_bits, prod(n for n in [p.dims[-1].size])
                            entry, held = (
                                1 + p.index_bits / value,
                                prod(n for rank, n in e.extents if rank in places - p.ranks()),
                            )
                            first, each_lane = first * entry, each_lane * entry
                            zeros = zeros * entry + p.pointer_bits / value / row / held
                        of = once if skip else serve
                        ((_, met),) = terms(p, above, False, of, True, above_parent, places, holey=holey)
                        ((_, begun),) = terms(
                            p, above, False, [*once, added], True, above_parent, holey=holey
                        )
                        draft.add(
                            met,
                            column(v, "read", p.tensor, instance, -first)
                            if skip
                            else column(v, "write", p.tensor, instance, zeros),
                        )
                        draft.add(begun, column(v, "read", p.tensor, instance, -each_lane if skip else 0.0))
                        if skip:
                            continue
                    of = once if skip else serve
                    # of a compressed result pointers come with tiles that are written, not with sums that
                    # return: the second term
                    for i, (scale, own) in enumerate(
                        terms(p, above, child is not None, of, skip, above_parent, holey=holey)
                    ):
                        for action in (
                            ("read", "write")[i if output else 0 :]
                            if output and not skip
                            else ("read",)[: 1 - (i if output else 0)]
                        ):
                            draft.add(own, column(v, action, p.tensor, instance, sign * scale))
                    if child:
                        for i, (scale, own) in enumerate(
                            terms(p, above, True, own_tiles, skip, above_child, holey=[])
                        ):
                            for action in (
                                ("fill", "drain")[i:]
                                if output and not skip
                                else ("fill",)[: 1 - (i if output else 0)]
                            ):
                                draft.add(own, column(child[1], action, p.tensor, instance, sign * scale))
            if output and child and arch.compute.merge_pj:
                pj = np.zeros(2 + len(every))
                # of a compressed one the values, not their places
                pj[0] = arch.compute.merge_pj * (1 if p.format == "dense" else p.density)
                others = [one or between for one, between in zip(merged, crossed, strict=True)]
                for sign, unseen in ((1.0, merged), (-1.0, others)):
                    _, own = terms(p, above, True, [[False] * above, unseen], False, {}, holey=[])[0]
                    draft.add(own, sign * pj)
    first = tuple(0 if kind else EVERY for kind in s.kinds)
    steps = [
        draft.factor(space.table(None, (rank,), s.kinds, (first,), False, False), (r,))
        for r, rank in enumerate(ranks)
    ]
    operations = np.zeros(2 + len(every))
    operations[1] = op_cycles(0.0, nonzero(e), e, arch)
    draft.add(steps, operations)
    draft.products = {key: column for key, column in draft.products.items() if column.any()} or {
        (): np.zeros(2 + len(every))
    }
    return draft


def _folds(space: Space, draft: Draft, skeleton: Skeleton, s: Shape, f: Fanout) -> list[int]:
    """Factors of how many elements of the tensor that stays still in a systolic array its first PE gets,
    padding counted; none where there is one fold: nothing enters the array, or it has two registers in turn.
    """
    e, arch, ranks = space.problem.einsum, space.problem.arch, _long(space.problem.einsum)
    p = {"ws": e.inputs[-1], "is": e.inputs[0], "os": e.output}[f.systolic]
    nodes = [(v, s.at[i]) for i, (v, x) in enumerate(skeleton) if v >= 0 and e.tensors()[x] is p]
    v, above = next(((v, at) for v, at in nodes if v >= f.outside), (len(arch.levels), len(s.kinds)))
    if nodes[0][0] >= f.outside or (v < len(arch.levels) and arch.levels[v].double_buffer):
        return []
    first = tuple(0 if kind else EVERY for kind in s.kinds[:above])
    alone = ranks if v == len(arch.levels) else [rank for rank in ranks if rank not in p.ranks()]
    found = [
        draft.factor(space.table(None, (rank,), s.kinds, (first,), False, False), (ranks.index(rank),))
        for rank in alone
    ]
    for dim in p.dims if v < len(arch.levels) else ():
        own = [rank for rank in ranks if rank in dim.ranks()]
        if own:
            table = space.table(dim, own, s.kinds, (first,) * len(own), False, False)
            found.append(draft.factor(table, tuple(ranks.index(rank) for rank in own)))
    return found


def _fixed(dim: Dim, clip: bool) -> int:
    """Hull of a dimension whose ranks have one value each: its one element, 0 if it is padding."""
    return int(not clip or 0 <= dim.offset < dim.size)


def _arrays(space: Space, skeleton: Skeleton, s: Shape) -> tuple[object, ...]:
    """What the compiled loop takes."""
    e, arch = space.problem.einsum, space.problem.arch
    ranks, draft = _long(e), _counts(space, skeleton, s)
    own = [space.chains(rank, s.kinds) for rank in ranks]
    longest = max(map(len, own))
    tile = np.ones((len(ranks), longest, 1 + len(s.kinds)), np.int64)
    for r, (rank, found) in enumerate(zip(ranks, own, strict=True)):
        tile[r, :, 0], tile[r, : len(found), 1:] = e.sizes()[rank], found
    fold = [
        (cycles, _folds(space, draft, skeleton, s, f))
        for f in arch.fanouts
        if f.systolic and (cycles := fill_cycles(f, e, arch))
    ]
    start = np.cumsum([0, *(table.size for table, _ in draft.factors)])
    stride = np.zeros((len(draft.factors), len(ranks)), np.int64)
    for f, (table, of) in enumerate(draft.factors):
        for axis, r in enumerate(of):
            stride[f, r] = prod(table.shape[axis + 1 :])
    spans = np.cumsum([0, *map(len, draft.products)])
    ops = e.points() * nonzero(e)
    nodes, hulls, words = [], [], []
    tensors, seen = e.tensors(), set()
    for i, (v, x) in enumerate(skeleton):
        if v >= 0:
            p, after = tensors[x], s.at[i] + 1 if x in seen else s.at[i]
            seen.add(x)
            if v and arch.levels[v].capacity_bits is not None:
                first = len(hulls)
                hulls += [
                    [next((c for rank, c in dim.terms if rank == own_rank), 0) for own_rank in ranks]
                    for dim in p.dims
                ]
                nodes.append((v, s.at[i], after, first, len(hulls), int(arch.levels[v].double_buffer), x))
                words.append(
                    (
                        float(width(arch.levels[v].name, p.tensor, e, arch) + p.index_bits),
                        float(p.pointer_bits),
                        0.0 if p.format == "dense" else float(kept(p.density, p.format, p.index_bits)),
                        float(p.format == "bitmask"),
                    )
                )
    full = np.array([[rank in p.full_ranks() for rank in ranks] for p in tensors])
    part = np.array([[rank in p.partial_ranks() for rank in ranks] for p in tensors])
    begin = np.zeros(2 + len(_ports(e, arch, len(_instances(e, arch, s.kinds)))))
    begin[0], begin[1] = ops * op_pj(e, arch), op_cycles(ops, 0.0, e, arch)
    return (
        np.array([len(found) for found in own]),
        tile,
        np.array(s.kinds, np.int64),
        np.array([n for f in arch.fanouts for _, n in f.dims] or [1], np.int64),
        np.concatenate([table.ravel() for table, _ in draft.factors]),
        start[:-1],
        stride,
        spans,
        np.array([f for product_of in draft.products for f in product_of], np.int64),
        np.stack(list(draft.products.values())),
        begin,
        np.array([cycles for cycles, _ in fold], np.float64),
        np.cumsum([0, *(len(own) for _, own in fold)]),
        np.array([f for _, own in fold for f in own], np.int64),
        np.array(nodes, np.int64).reshape(-1, 7),
        np.array(words).reshape(-1, 4),
        np.array(hulls, np.int64).reshape(-1, len(ranks)),
        full,
        part,
        np.array([inf if level.capacity_bits is None else level.capacity_bits for level in arch.levels]),
        arch.leak_mw() / arch.clock_ghz,
        ("energy", "latency", "edp").index(space.problem.objective),
    )


@njit(cache=True, nogil=True)
def _bits(hulls, words, full, part, window, tile, choice, at, after):  # type: ignore[no-untyped-def]
    """Bits of a node that sees the tiles at `at`, and at `after` of its own ranks and of one window."""
    whole, rows = 1.0, 1.0
    for d in range(hulls.shape[0]):
        length = 1.0
        for r in range(hulls.shape[1]):
            moves = full[r] or (part[r] and r == window)
            length += hulls[d, r] * (tile[r, choice[r], after if moves else at] - 1)
        whole *= length
        rows *= length if d < hulls.shape[0] - 1 else 1.0
    each, pointer, csr, mask = words
    if csr == 0.0:
        return whole * each
    return np.ceil(np.round(csr * whole, 6)) * each + rows * pointer + whole * mask


@njit(cache=True, nogil=True)
def _searched(
    options,
    tile,
    kinds,
    lanes,
    table,
    start,
    stride,
    spans,
    factors,
    columns,
    begin,
    fills,
    fold_spans,
    fold_factors,
    nodes,
    words,
    hulls,  # type: ignore[no-untyped-def]
    full,
    part,
    rooms,
    leak,
    objective,
    best,
    chosen,
):
    """Whether any choice of chains is below best [3], which it lowers; chosen [R]."""
    ranks, better = options.shape[0], False
    choice, values, parts = np.zeros(ranks, np.int64), np.zeros(start.shape[0]), np.zeros(begin.shape[0])
    used, held, cost = np.ones(lanes.shape[0], np.int64), np.zeros(rooms.shape[0]), np.zeros(3)
    while True:
        used[:], fits = 1, True
        for j in range(kinds.shape[0]):
            if kinds[j]:
                for r in range(ranks):
                    used[kinds[j] - 1] *= -(-tile[r, choice[r], j] // tile[r, choice[r], j + 1])
        for d in range(lanes.shape[0]):
            fits = fits and used[d] <= lanes[d]
        held[:] = 0.0
        for i in range(nodes.shape[0] if fits else 0):
            v, at, after, first, last, double, x = nodes[i]
            need = _bits(hulls[first:last], words[i], full[x], part[x], -1, tile, choice, at, after)
            for r in range(ranks):
                if part[x, r]:
                    need = min(
                        need, _bits(hulls[first:last], words[i], full[x], part[x], r, tile, choice, at, after)
                    )
            moving = False
            for j in range(at):
                for r in range(ranks):
                    moving = moving or (kinds[j] == 0 and tile[r, choice[r], j] != tile[r, choice[r], j + 1])
            moving = moving or need < _bits(
                hulls[first:last], words[i], full[x], part[x], -1, tile, choice, at, after
            )
            for r in range(ranks):
                moving = moving or (full[x, r] and tile[r, choice[r], at] != tile[r, choice[r], after])
            held[v] += need * (2 if double and moving else 1)
        for v in range(rooms.shape[0]):
            fits = fits and held[v] <= rooms[v]
        if fits:
            for f in range(start.shape[0]):
                place = start[f]
                for r in range(ranks):
                    place += choice[r] * stride[f, r]
                values[f] = table[place]
            parts[:], ramp = begin, 0.0
            for p in range(spans.shape[0] - 1):
                value = 1.0
                for i in range(spans[p], spans[p + 1]):
                    value *= values[factors[i]]
                for c in range(parts.shape[0]):
                    parts[c] += columns[p, c] * value
            for i in range(fills.shape[0]):
                entered = 1.0
                for k in range(fold_spans[i], fold_spans[i + 1]):
                    entered *= values[fold_factors[k]]
                ramp += max(entered * fills[i] - 1, 0.0)
            latency = parts[1]
            for port in range(2, parts.shape[0]):
                latency = max(latency, parts[port])
            latency += ramp
            cost[1], cost[2] = parts[0] + leak * latency, latency
            cost[0] = cost[1] if objective == 0 else latency if objective == 1 else cost[1] * latency
            for i in range(3):
                if abs(cost[i] - best[i]) > 1e-10 * min(abs(cost[i]), abs(best[i])):
                    if cost[i] < best[i]:
                        best[:], chosen[:], better = cost, choice, True
                    break
        r = ranks - 1
        while r >= 0:
            choice[r] += 1
            if choice[r] < options[r]:
                break
            choice[r] = 0
            r -= 1
        if r < 0:
            return better


def nest(e: Einsum, arch: Arch, skeleton: Skeleton, s: Shape, chosen: Sequence[tuple[int, ...]]) -> Mapping:
    """The mapping of a skeleton and a chain of tiles per rank."""
    ranks, tensors = _long(e), e.tensors()
    dims = [name for f in arch.fanouts for name, _ in f.dims]
    left, nodes, seen = e.sizes(), [], set()

    def loops(at: int, over: str, order: Sequence[str]) -> None:
        for rank in order:
            tile = chosen[ranks.index(rank)][at]
            if tile < left[rank]:
                nodes.append(Loop(rank, tile, over))
                left[rank] = tile

    for i, (v, x) in enumerate(skeleton):
        order = ranks
        at, end = s.at[i], s.at[i + 1]
        if v >= 0:
            p = tensors[x]
            nodes.append(Store(arch.levels[v].name, p.tensor))
            if x in seen and at < end:
                after = {rank: chosen[r][at] for r, rank in enumerate(ranks)}

                def held(window: str, p: Projection = p, after: dict[str, int] = after) -> int:
                    sizes = {
                        rank: after[rank]
                        if rank in after and (rank in p.full_ranks() or rank == window)
                        else left[rank]
                        for rank, _ in e.extents
                    }
                    return prod(1 + sum(c * (sizes[rank] - 1) for rank, c in dim.terms) for dim in p.dims)

                window = min((rank for rank in ranks if rank in p.partial_ranks()), key=held, default="")
                order = sorted(ranks, key=lambda rank: (rank not in p.full_ranks(), rank != window))
            seen.add(x)
        for j in range(at, end):
            outside = next((node for node in reversed(nodes) if isinstance(node, Store) or node.over), None)
            inside = (
                v < 0
                and s.kinds[j] == 0
                and any(own[j] < left[rank] for rank, own in zip(ranks, chosen, strict=True))
            )
            if inside and isinstance(outside, Store) and (spare := _spare(e, arch, x)):
                # an idle array: what stands outside does not sink into it
                nodes.append(Loop(spare[0], left[spare[0]], spare[1]))
            loops(j, dims[s.kinds[j] - 1] if s.kinds[j] else "", order)
    return Mapping(tuple(nodes))


def _spare(e: Einsum, arch: Arch, border: int) -> tuple[str, str] | None:
    """A rank and a dimension of a border over which it may loop once."""
    dims = [name for f in arch.fanouts if f.outside == border for name, _ in f.dims]
    ranks = [rank for rank, _ in e.extents if rank not in e.output.partial_ranks()]
    return (ranks[0], dims[0]) if ranks and dims else None
