"""Exact sums over tiles: what one link of a tensor moves, also with imperfect tiles and padding
(docs/model.md, Counts).

A count is a product of factors: one per dimension of the tensor, and one per rank that the tensor does not
have. A factor is an exact sum over tiles: how many there are, or how long their hulls are (the hull of a tile
along a dimension reaches from its first to its last index). The loops of a rank cut its tiles one after the
other. For each loop the sum counts all trips or some of them (spans.py: ALL, FIRST, ...): the first trip for
tiles that are fetched before work starts, the last trip for tiles that drain after work has ended, one PE for
the accesses of one instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.mapping.constraints import stationary
from dse.mapping.nest import Loop, Mapping, Store, gates_zeros, stored_at, ungated
from dse.sim.counts.spans import (
    ALL,
    ALL_PES,
    BELOW,
    FIRST,
    INSTANCE_PE,
    LAST,
    ONLY,
    PE_0,
    span_sum,
    tile_spans,
)
from hw.arch import OUTSIDE, ROLES, Arch, Stored
from workloads.einsum import Dim, Einsum, Projection, TileColumns, TooLong, in_groups

# trips counted of a loop, narrowed to its first trip
AND_FIRST = {ALL: FIRST, FIRST: FIRST, LAST: ONLY, ONLY: ONLY}
# trips counted of a loop, narrowed to its last trip
AND_LAST = {ALL: LAST, LAST: LAST, FIRST: ONLY, ONLY: ONLY}

# Trips counted of a spatial loop whose PEs share an access to a tile that is gathered (`gathered`): `value`
# counts it both as ALL_PES and as FIRST.
SHARED_PES = INSTANCE_PE + 1

FACTORS_LOCK = Lock()  # guards `Formulas.factors`, which threads share
# most tiles, or positions of a window, to list one by one; they are listed where no product gives their sum
MAX_LISTED = 1 << 24

Cut = tuple[int, int]  # (tile size, trips counted)
Cuts = tuple[Cut, ...]
# rank -> (number of the loop in the nest, trips counted); `value` puts tile sizes in place of loop numbers
CountedLoops = dict[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Factor:
    """One exact sum over tiles: of a dimension's hull lengths, or (dim None) the number of a rank's tiles."""

    dim: Dim | None
    # per rank: (extent, its loops as (number of the loop in the nest, trips counted))
    cuts: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    clip: bool = False  # True: indices outside of the stored range (padding) do not count
    # 0: all elements of each tile; 1: only those that no earlier tile had; 2: the same for a window that
    # slides along the last loop; where its stride leaves a gap to the trip before, the elements in the gap
    # count as touched, too
    distinct: int = 0
    # -1: the sum over all tiles; n: of the tiles that the rank's loops before index n cut, each is cut into a
    # number of tiles by the loops from n on, and the factor is the smallest of these numbers
    split_at: int = -1
    most: bool = False  # with `split_at`: the largest number instead of the smallest
    # with dim None: each tile counts as the share of the columns that it has a nonzero in (`gathered`)
    tile_columns: TileColumns | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """scale * product of factors."""

    scale: float
    factors: tuple[int, ...]  # numbers of the factors in `Formulas.factors`


@dataclass(frozen=True, slots=True)
class Row:
    """A count as sums of terms."""

    key: tuple[str, str, str]  # level, tensor, action
    total: tuple[Term, ...]  # over all instances
    one_instance: tuple[Term, ...]  # of one instance


@dataclass(frozen=True, slots=True)
class Systolic:
    """A systolic array, which takes cycles to fill and to empty."""

    name: str
    systolic: str  # which tensor is stationary (os, ws, is)
    inside: tuple[str, ...]  # names of the levels inside its PEs
    double_buffered: tuple[str, ...]  # those of them that are double-buffered


@dataclass(frozen=True, slots=True)
class Wiring:
    """What formulas depend on of a machine, beside its sizes."""

    dims: tuple[tuple[str, bool, bool], ...]  # (fan-out dimension, multicast, spatial reduction)
    skips: frozenset[str]  # levels that skip the first read of an output element
    systolic: tuple[Systolic, ...]
    word_bits: int  # width of values whose tensor states none; unit for indices of compressed tensors
    # levels that describe lines, rows or banks (`resting_position`)
    layout_levels: frozenset[str] = frozenset()
    gathers: bool = False  # fills bring in parts of a tile (`gathered`)
    # (level, dimensions along which PEs share one instance of it), of levels that have such dimensions
    shared: tuple[tuple[str, frozenset[str]], ...] = ()
    waits: frozenset[str] = frozenset()  # levels whose first words take time
    # (level, role, fill or drain) of what goes through a port of its own there (`Level.apart_outside`)
    outside: frozenset[tuple[str, str, str]] = frozenset()
    lockstep: bool = False  # PEs step through operands in N:M together (`in_step`)
    # levels that store tensors with zeros in formats of their own, by name
    packing: tuple[tuple[str, tuple[Stored, ...]], ...] = ()
    gates: tuple[str, ...] = ()  # roles of operands whose zeros are gated (`Compute.gates`)
    of_pes: frozenset[str] = frozenset()  # if any are: levels that gated zeros do not reach (`levels_of_pes`)

    def has_own(self, node: Store | None, at: int, i: int, loop: Loop) -> bool:
        """True if PEs of the spatial loop at position i each have an instance of what the node at position
        `at` stands for: its level, or compute (None).
        """
        along = dict(self.shared).get(node.level, frozenset()) if node and self.shared else frozenset()
        return i < at and loop.over not in along


@dataclass(frozen=True, slots=True)
class Link:
    """A parent storage node and what it serves: the tensor's next node inward, or compute."""

    tensor: Projection
    ranks: frozenset[str]  # the tensor's ranks
    is_output: bool  # the tensor is the einsum's output
    parent: Store
    parent_at: int  # position of the parent in the nest
    child: Store | None  # None: compute
    child_at: int  # position of the child; the number of nodes for compute
    rests_at: int  # position that the child's tile sinks to (`resting_position`)


def without_tile_sizes(mapping: Mapping) -> Mapping:
    """Returns the mapping without its tile sizes; formulas of counts depend on this alone."""
    return Mapping(
        tuple(Loop(node.rank, 0, node.over) if isinstance(node, Loop) else node for node in mapping.nodes),
        fork=mapping.fork,
    )


def wiring(arch: Arch) -> Wiring:
    """Returns what counts depend on of a machine, beside its sizes."""
    dims = tuple(
        (name, multicast, reduce)
        for f in arch.fanouts
        for (name, _), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True)
    )
    systolic = tuple(
        Systolic(
            f.name,
            f.systolic,
            tuple(level.name for level in arch.levels[f.outside :]),
            tuple(level.name for level in arch.levels[f.outside :] if level.double_buffer),
        )
        for f in arch.fanouts
        if f.systolic
    )
    return Wiring(
        dims,
        frozenset(level.name for level in arch.levels if level.skip_first_read),
        systolic,
        arch.word_bits,
        arch.layout_levels(),
        gathers(arch),
        tuple(
            (level.name, frozenset[str]().union(*(f.shared_along(level.name) for f in arch.fanouts)))
            for level in arch.levels
            if any(level.name in levels for f in arch.fanouts for levels in f.shared)
        ),
        frozenset(level.name for level in arch.levels if level.latency_ns),
        frozenset(
            (level.name, of, action)
            for level in arch.levels
            for of in ROLES
            for action in OUTSIDE
            if level.apart_outside(of, action)
        ),
        arch.compute.lockstep,
        tuple((level.name, level.formats) for level in arch.levels if level.formats),
        arch.compute.gates,
        arch.levels_of_pes() if arch.compute.gates else frozenset(),
    )


def links(nest: Mapping, e: Einsum, layout_levels: frozenset[str] = frozenset()) -> list[Link]:
    """Returns the links of every tensor, outermost first. A tensor's last node serves compute.

    layout_levels: levels that describe lines, rows or banks (`resting_position`)
    """
    found = []
    for p in e.tensors():
        stores: list[tuple[int, Store | None]] = [
            (i, node)
            for i, node in enumerate(nest.nodes)
            if isinstance(node, Store) and node.tensor == p.tensor
        ]
        for (i, store), (j, child) in pairwise([*stores, (len(nest.nodes), None)]):
            assert store is not None
            at_rest = resting_position(p, e, nest, j, store.level, layout_levels) if child else j
            found.append(Link(p, p.ranks(), p is e.output, store, i, child, j, at_rest))
    return found


def moves_in_lines(p: Projection) -> bool:
    """True if a tensor moves in whole lines where a level describes lines. Tensors with zeros count as packed
    instead.
    """
    return p.format == "dense" and p.density == 1


def resting_position(
    p: Projection, e: Einsum, nest: Mapping, at: int, parent: str, layout_levels: frozenset[str]
) -> int:
    """Returns the position that a tile sinks to.

    at: position of the tile's node
    parent: level that fills it
    layout_levels: levels that describe lines

    If the parent or the node's own level describes lines, the node does not sink: the whole tile is laid out
    and transferred at once. With capacity for a part of each line only, as on the right, every trip fetches
    its lines again. Each nest is counted as it is written:

        store BUF A[a,b]     each line once, capacity  for b ...
        for b ...            for all of them             store BUF A[a,b]    a line per element, capacity
          for a ...                                      for a ...           for a column

    One exception: a window slides along a loop directly below its node, and each transfer is the part that is
    new (`slides`).
    """
    node = nest.nodes[at]
    assert isinstance(node, Store)
    moves_lines = moves_in_lines(p) and not layout_levels.isdisjoint((parent, node.level))
    return at + 1 + slides(p, e, nest, at) if moves_lines else sink(p, nest, at)


def slides(p: Projection, e: Einsum, nest: Mapping, at: int) -> bool:
    """True if the loop directly below position `at` slides a window along one dimension of an input. Each
    trip then fetches only the elements that the trip before did not have.
    """
    node = nest.nodes[at + 1] if at + 1 < len(nest.nodes) and at + 1 != nest.fork else None
    return (
        isinstance(node, Loop)
        and not node.over
        and p is not e.output
        and node.rank in p.partial_ranks()
        and sum(node.rank in d.ranks() for d in p.dims) == 1
    )


def sink(p: Projection, nest: Mapping, at: int) -> int:
    """Returns the position that a tensor's node at `at` sinks to, at most to the fork: below temporal loops
    over fully relevant ranks, each of which only cuts its tile into parts, and below the first one over a
    partially relevant rank, along which it is a window that slides.
    """
    full, ranks, nodes = p.full_ranks(), p.ranks(), nest.nodes
    for i in range(at + 1, len(nodes)):
        node = nodes[i]
        if i == nest.fork or isinstance(node, Store) or node.over or node.rank not in ranks:
            return i
        if node.rank not in full:
            return i + 1
    return len(nodes)


def nonzero_share(e: Einsum) -> float:
    """Returns the share of iterations that compute: those at which all inputs are nonzero (independent,
    uniform, unless their products were counted: `Einsum.share`).
    """
    return e.share or prod(p.density for p in e.inputs if p.density != 1)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Corrections to the accesses that compute makes directly to a level, where inputs have zeros and no node
    of the result stands further in. They come on top of one read and one write per product of nonzeros.

    K: combinations of the ranks that inputs with zeros have and the result lacks
    q: expected products of nonzeros per element. q exceeds K where windows overlap in the result; ranks that
        no input with zeros has count as one product.
    d: share of the elements that products may add to: 1 of a dense result, the nonzeros of a compressed one

    If q < d, what is stored is still written once, as a zero; so are the zeros of runs that are too long.
    Every PE that adds to an element skips its first read of it. If one PE computes all K combinations,
    min(q, d) reads are skipped; if K PEs compute one each, min(q, K); between, the number is interpolated
    linearly. At a memory, PEs that do not reduce count as one (`additions`). Of a compressed result an access
    is of a value and its index, and pointers of rows or the mask are written once.
    """

    writes: float  # extra writes per combination
    first_reads: float  # skipped first reads per combination
    first_reads_per_pe: float  # skipped first reads per element and PE


def sparse(e: Einsum, output: Projection, word_bits: int, lockstep: bool) -> Sparse | None:
    """Returns what zeros add to the accesses of compute, in widths of elements of the result on machines with
    words of `word_bits`; None: no input has zeros. output: the result as the level that compute adds to
    stores it. lockstep: as of `unshared`. In step every element has products, the first of which finds none
    to add to.
    """
    share = nonzero_share(e)
    if share == 1:
        return None
    share = 1.0 if lockstep and in_step(e.output, e) else share
    sizes, output_ranks = e.sizes(), e.output.ranks()
    combinations = prod(n for rank, n in e.extents if rank in unshared(output, e, lockstep) - output_ranks)
    elements = prod(
        dim_sum(dim, tuple((sizes[rank], ((1, ALL),)) for rank in dim.ranks()), False, True)
        for dim in output.dims
    )
    expected = share * combinations * prod(sizes[rank] for rank in output_ranks) / elements
    is_dense = output.format == "dense"
    touched = 1.0 if is_dense else output.density
    zeros = 0.0 if is_dense else output.stored_density() - output.density  # stored in runs that are too long
    entry, beside = (
        (1.0, 0.0)
        if is_dense
        else (
            entry_words(output, word_bits),
            _pointers(output, e, word_bits) + output.mask_bits() / (output.bits or word_bits),
        )
    )
    expected_first = min(expected, touched)
    first_per_pe = (
        (min(expected, combinations) - expected_first) / (combinations - 1) if combinations > 1 else 0.0
    )
    return Sparse(
        ((touched - expected_first + zeros) * entry + beside) / combinations,
        (expected_first - first_per_pe) / combinations * entry,
        first_per_pe * entry,
    )


def entry_words(p: Projection, word_bits: int) -> float:
    """Returns the width of a nonzero of a compressed result, a value and its index, in widths of a value."""
    return 1 + p.index_bits / (p.bits or word_bits)


def _pointers(p: Projection, e: Einsum, word_bits: int) -> float:
    """Returns the row pointers of a compressed tensor per element, in widths of a value: one is shared out
    over the elements of a row.
    """
    columns = prod(
        n
        for rank, n in e.extents
        if rank in p.dims[-1].ranks() and not any(rank in dim.ranks() for dim in p.dims[:-1])
    )
    return p.compressed_words(word_bits)[1] / columns


def in_step(p: Projection, e: Einsum) -> Projection | None:
    """Returns the operand in N:M through whose groups PEs step together, as tensor p sees it, on a machine
    with `lockstep`; None: they are at different nonzeros.

    It is the only one with zeros, the result is dense, and its last dimension is a rank of its own in whole
    groups of M. In each step all PEs are at the same group, so those along its ranks want the same group of
    another operand (of which each picks N values), and add to the same element of a result, unless the
    group's rank moves it.
    """
    own = in_groups(e)
    return None if own and p.tensor == e.output.tensor and own.dims[-1].ranks()[0] in p.ranks() else own


def direct_elems(p: Projection, e: Einsum, word_bits: int, lockstep: bool) -> float:
    """Returns the elements per iteration that compute exchanges directly with a level, where no node of the
    tensor stands between.

    p: the tensor as that level stores it. A compressed input is read whole: value and index of every nonzero
    with the pointers of rows or the mask, in widths of its elements, since zeros of other inputs are not
    known before. Any other tensor moves one element wherever no input is known to be zero, a compressed
    result with its index; in lockstep, of groups that PEs may share, all M values (`in_step`).
    """
    is_output = p.tensor == e.output.tensor
    if is_output or p.format == "dense":
        own = in_step(p, e) if lockstep and not is_output else None
        if own and own.dims[-1].ranks()[0] in p.ranks() and not set(own.ranks()) <= p.ranks():
            return 1.0
        share = nonzero_share(e)
        return share if p.format == "dense" else share * entry_words(p, word_bits)
    return p.compressed_words(word_bits)[0] + _pointers(p, e, word_bits)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A dense operand that is read through the columns of a compressed one, whose pattern is known."""

    tensor: str
    rank: str  # of the rows of the compressed operand, the only one that the dense operand lacks
    tile_columns: TileColumns  # of the compressed operand


@lru_cache(maxsize=1 << 12)
def gathered(e: Einsum) -> Gathered | None:
    """Returns the dense operand of which fills bring in parts of a tile: of Y[m,n] += A[m,k] * X[k,n] the
    rows k of X that are columns of a nonzero of A, in the rows m of A that are computed while the tile of X
    stands. None: no pattern is known, or the operands are others.

        X moved = sum over tiles of rows of A: (distinct columns / columns) * (all that a pass over X moves)

    However A's columns are cut, the distinct columns of the parts add up to those of the tile of rows.
    """
    matrix = next((p for p in e.inputs if p.tile_columns and len(p.dims) == 2), None)
    if not matrix or not matrix.tile_columns:
        return None
    sizes, pattern = e.sizes(), matrix.tile_columns
    shape = zip(matrix.dims, (pattern.rows, pattern.columns), strict=True)
    if not all(is_whole(dim, sizes) and sizes[dim.ranks()[0]] == n for dim, n in shape):
        return None
    (rows,), (columns,) = (dim.ranks() for dim in matrix.dims)
    lacking = [p for p in e.tensors() if rows not in p.ranks()]
    if len(lacking) != 1 or lacking[0] is e.output or not moves_in_lines(p := lacking[0]):
        return None
    has_columns = any(dim.ranks() == (columns,) and is_whole(dim, sizes) for dim in p.dims)
    lacks_rows_only = p.ranks() | {rows} == set(sizes)
    return Gathered(p.tensor, rows, pattern) if has_columns and lacks_rows_only else None


def gathers(arch: Arch) -> bool:
    """True if fills of a machine bring in parts of a tile (`gathered`). Where levels describe lines, rows or
    banks, arrays are systolic, hops have a price or PEs share memories along dimensions, tiles are whole.
    """
    return not (
        arch.models_layout() or arch.prices_networks() or any(f.systolic or f.shared for f in arch.fanouts)
    )


def unshared(p: Projection, e: Einsum, lockstep: bool) -> frozenset[str]:
    """Returns the ranks along which PEs share no word that compute exchanges directly with a level: the
    tensor's ranks, and the ranks of inputs with zeros, since PEs along them are at different nonzeros, unless
    they step through them together. lockstep: whether the machine does so (`Compute.lockstep`).
    """
    if lockstep and in_step(p, e):
        return p.ranks()
    return p.ranks().union(*(q.ranks() for q in e.inputs if q.density != 1))


@dataclass(slots=True)
class Formulas:
    """The formulas of one nest for all tile sizes: links, factors, and the rows of counts.

    `factor_number` adds a factor when it is first asked for.
    """

    e: Einsum
    nest: Mapping  # without tile sizes (`without_tile_sizes`)
    wires: Wiring
    whole_einsum: Einsum | None = None  # as in `counts.nest_sums`; None: e
    rows: tuple[Row, ...] = ()  # in the order of the nest's nodes
    factors: list[Factor] = field(default_factory=list)  # different factors; a Term names them by index
    # index in `factors`, by what identifies the factor
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    # terms of a link, by what identifies them
    memo: dict[tuple[object, ...], tuple[Term, ...]] = field(default_factory=dict)
    links: list[Link] = field(init=False)
    # (position in the nest, loop); the index here is the number of the loop
    loops: list[tuple[int, Loop]] = field(init=False)
    # trips counted for a whole einsum: all trips of every loop
    all_trips: tuple[int, ...] = field(init=False)
    sizes: dict[str, int] = field(init=False)  # extent of each rank
    # per tensor and dimension: (dimension, number among different dimensions, its ranks, `is_whole`)
    dims: dict[str, list[tuple[Dim, int, tuple[str, ...], bool]]] = field(init=False)
    gathered: Gathered | None = field(init=False)
    sparse: Sparse | None = field(init=False)  # what zeros add to the accesses of compute
    # as memories outside of arrays serve its inputs, and its result (`ungated`)
    outside: tuple[Einsum, Einsum] = field(init=False)
    lockstep: bool = field(init=False)  # PEs step through an operand in N:M together

    def __post_init__(self) -> None:
        """Sets the fields that follow from einsum, nest and wires. A dimension that `is_whole` has no
        overlapping tiles and no padding, so clip and distinct make no difference.
        """
        self.links = links(self.nest, self.e, self.wires.layout_levels)
        self.loops = [(i, node) for i, node in enumerate(self.nest.nodes) if isinstance(node, Loop)]
        self.all_trips = (ALL,) * len(self.loops)
        self.gathered = gathered(self.e) if self.wires.gathers else None
        wires, summed = self.wires, [link for link in self.links if link.is_output and not link.child]
        self.outside, self.sparse = (ungated(self.e, wires.gates), ungated(self.e, wires.gates, True)), None
        self.lockstep = wires.lockstep and not gates_zeros(self.e, wires.gates)
        for link in summed:
            stored, e = self.stored(link, End.PARENT), self.whole_einsum or self.e
            served = e if link.parent.level in wires.of_pes else ungated(e, wires.gates, True)
            self.sparse = sparse(served, stored, wires.word_bits, self.lockstep)
        self.sizes, dim_numbers = self.e.sizes(), dict[Dim, int]()
        self.dims = {
            p.tensor: [
                (dim, dim_numbers.setdefault(dim, len(dim_numbers)), dim.ranks(), is_whole(dim, self.sizes))
                for dim in p.dims
            ]
            for p in self.e.tensors()
        }

    def served(self, link: Link) -> Einsum:
        """Returns the einsum as compute asks the parent of a link for it: memories of a PE are not accessed
        at gated zeros, those outside of arrays are.
        """
        return self.e if link.parent.level in self.wires.of_pes else self.outside[link.is_output]

    def unshared(self, link: Link) -> frozenset[str]:
        """Returns the ranks along which PEs share no word of a link."""
        return link.ranks if link.child else unshared(link.tensor, self.served(link), self.lockstep)

    def access(self, link: Link) -> float:
        """Returns the elements per iteration that compute exchanges over a link (`direct_elems`)."""
        stored = self.stored(link, End.PARENT)
        return direct_elems(stored, self.served(link), self.wires.word_bits, self.lockstep)

    def stored(self, link: Link, end: End) -> Projection:
        """Returns a link's tensor as it is stored at an end: at its child, or at its parent, which also sends
        and takes it over networks.
        """
        if not self.wires.packing:
            return link.tensor
        level = link.child.level if link.child and end is End.CHILD else link.parent.level
        return stored_at(dict(self.wires.packing).get(level, ()), link.tensor, self.e)

    def of_dims(
        self, p: Projection, cuts: CountedLoops, clip: bool, distinct: int = 0, sliding_rank: str = ""
    ) -> tuple[int, ...]:
        """Returns the numbers of one factor per dimension of a tensor.

        sliding_rank: rank of the loop that a window slides along, or empty
        """
        return tuple(
            [
                self.factor_number(dim, name, ranks, cuts)
                if whole
                else self.factor_number(dim, name, ranks, cuts, clip, distinct + (sliding_rank in ranks))
                for dim, name, ranks, whole in self.dims[p.tensor]
            ]
        )

    def factor_number(
        self,
        dim: Dim | None,
        name: object,
        ranks: tuple[str, ...],
        cuts: CountedLoops,
        clip: bool = False,
        distinct: int = 0,
        split_at: int = -1,
        most: bool = False,
        tile_columns: TileColumns | None = None,
    ) -> int:
        """Returns the number of the factor of one dimension; dim None: the number of tiles of one rank.

        name: identifies the dimension in the memo
        cuts: loops of each rank, outermost first
        clip, distinct, split_at, most, tile_columns: as in `Factor`
        """
        key = (
            name,
            clip,
            distinct,
            split_at,
            most,
            tile_columns,
            cuts.get(ranks[0], ()) if len(ranks) == 1 else tuple([cuts.get(rank, ()) for rank in ranks]),
        )
        if key not in self.numbers:
            loops = tuple([(self.sizes[rank], cuts.get(rank, ())) for rank in ranks])
            # threads share the sums of equal nests, so a number is stored only after its factor
            with FACTORS_LOCK:
                if key not in self.numbers:
                    self.factors.append(Factor(dim, loops, clip, distinct, split_at, most, tile_columns))
                    self.numbers[key] = len(self.factors) - 1
        return self.numbers[key]


class End(Enum):
    """An end of a link, at which what it moves is counted."""

    PARENT = 0  # PEs that share an access (multicast or spatial reduction) count once
    CHILD = 1  # every PE counts
    MEMORY = 2  # as PARENT, but of PEs that add to the same element one after the other only the first counts
    NETWORK = 3  # every PE counts, in the format of the parent


def fills(
    s: Formulas, link: Link, one_instance: bool, trips_counted: tuple[int, ...] = (), skip: bool = False
) -> tuple[Term, ...]:
    """Returns the elements that fill a link's child. For an output, the child drains the same elements.

    one_instance: of one instance, otherwise of all
    trips_counted: per loop; empty: all
    skip: returns minus the first reads of output elements instead, once per PE, to be added to all reads:
        each PE starts from zero and needs no read
    """
    return _transfers(s, link, End.CHILD, one_instance, trips_counted, skip)


def serves(
    s: Formulas, link: Link, one_instance: bool, trips_counted: tuple[int, ...] = (), skip: bool = False
) -> tuple[Term, ...]:
    """Returns what `fills` counts, as accesses of the parent. PEs that share an access (multicast or spatial
    reduction, along ranks that do not index the tensor) count once.
    """
    return _transfers(s, link, End.PARENT, one_instance, trips_counted, skip)


def additions(
    s: Formulas, link: Link, one_instance: bool, trips_counted: tuple[int, ...] = ()
) -> tuple[Term, ...]:
    """Returns the reads with which an output's parent adds what PEs drain to what others have drained before:
    of n PEs that the array does not reduce, each starts from zero (`serves` with `skip`), and all but the
    first write to elements that have a value already. So parents read (updates - distinct elements) times.
    """
    first_per_pe, first = (
        _transfers(s, link, end, one_instance, trips_counted, True) for end in (End.PARENT, End.MEMORY)
    )
    return () if first == first_per_pe else (*first, *(replace(t, scale=-t.scale) for t in first_per_pe))


def writes(
    s: Formulas, link: Link, one_instance: bool, trips_counted: tuple[int, ...] = ()
) -> tuple[Term, ...]:
    """Returns the elements written to an output's parent: elements that it serves and what is only written
    (`_written_only`).
    """
    return serves(s, link, one_instance, trips_counted) + _written_only(
        s, link, End.PARENT, one_instance, trips_counted
    )


def drains(
    s: Formulas, link: Link, one_instance: bool, trips_counted: tuple[int, ...] = (), skip: bool = False
) -> tuple[Term, ...]:
    """Returns the elements that an output's child drains: what `fills` counts, and of a compressed output the
    row pointers.
    """
    return fills(s, link, one_instance, trips_counted, skip) + _written_only(
        s, link, End.CHILD, one_instance, trips_counted
    )


def crossing(s: Formulas, link: Link) -> tuple[Term, ...]:
    """Returns the elements that all PEs below a link exchange over it, both ways for an output."""
    one_way = _transfers(s, link, End.NETWORK, False, (), False)
    skips = link.is_output and link.parent.level in s.wires.skips
    skipped_reads = _transfers(s, link, End.NETWORK, False, (), True) if skips else ()
    return (
        (*one_way, *one_way, *_written_only(s, link, End.NETWORK, False), *skipped_reads)
        if link.is_output
        else one_way
    )


def _transfers(
    s: Formulas, link: Link, end: End, one_instance: bool, trips_counted: tuple[int, ...], skip: bool
) -> tuple[Term, ...]:
    """Returns `_terms`, counted at one end of the link, memoized. With `skip`, for a result that compute adds
    to directly and whose inputs have zeros: minus the expected number of skipped first reads (`Sparse`).
    """
    trips_counted = trips_counted or s.all_trips
    if skip and s.sparse and not link.child:
        first_reads = _distinct_terms(
            s, link, end, one_instance, trips_counted, s.unshared(link), -s.sparse.first_reads
        )
        return first_reads + _distinct_terms(
            s, link, end, one_instance, trips_counted, link.ranks, -s.sparse.first_reads_per_pe
        )
    key = (link.tensor.tensor, link.child_at, link.rests_at, end, one_instance, skip, trips_counted)
    if key not in s.memo:
        cuts = _cuts(s, link, trips_counted, skip, _pe_rule(s, link, end, one_instance, link.ranks))
        s.memo[key] = tuple(_terms(s, link, s.stored(link, end), cuts, skip))
    return s.memo[key]


def _written_only(
    s: Formulas, link: Link, end: End, one_instance: bool, trips_counted: tuple[int, ...] = ()
) -> tuple[Term, ...]:
    """Returns what is written of an output and not read: from compute, if inputs have zeros, what `Sparse`
    says; of a compressed tile that drains, a pointer per row of it.
    """
    trips_counted = trips_counted or s.all_trips
    if link.child:
        if (stored := s.stored(link, end)).format == "dense":
            return ()
        cuts = _cuts(s, link, trips_counted, False, _pe_rule(s, link, end, one_instance, link.ranks))
        dims = s.of_dims(link.tensor, cuts, clip=True)
        return (_row_term(s, stored, cuts, dims, _missing_ranks(s, link, cuts)),)
    if not s.sparse:
        return ()
    return _distinct_terms(s, link, end, one_instance, trips_counted, s.unshared(link), s.sparse.writes)


def _distinct_terms(
    s: Formulas,
    link: Link,
    end: End,
    one_instance: bool,
    trips_counted: tuple[int, ...],
    counted_ranks: frozenset[str],
    scale: float,
) -> tuple[Term, ...]:
    """Returns scale times the number of different elements that compute accesses.

    counted_ranks: ranks of which all iterations count; of other ranks only the first iteration in time counts
    """
    key = (
        link.tensor.tensor,
        link.child_at,
        link.rests_at,
        end,
        one_instance,
        counted_ranks,
        scale,
        trips_counted,
    )
    if scale and key not in s.memo:
        pe_rule = _pe_rule(s, link, end, one_instance, counted_ranks)
        cuts = _cuts(s, link, trips_counted, True, pe_rule, counted_ranks)
        s.memo[key] = (
            Term(scale, (*s.of_dims(link.tensor, cuts, False, True), *_missing_ranks(s, link, cuts))),
        )
    return s.memo[key] if scale else ()


def _pe_rule(
    s: Formulas, link: Link, end: End, one_instance: bool, counted_ranks: frozenset[str]
) -> Callable[[int, Loop], int]:
    """Returns the rule by which one end counts PEs of a spatial loop: at the parent, PEs that share an access
    count once; PEs that share an instance of the child count once at both ends (they want the same tile:
    nest.py, `unrollable`).

    counted_ranks: ranks along which all PEs count at a memory
    """
    shared = {name: reduce if link.is_output else multicast for name, multicast, reduce in s.wires.dims}
    unshared_ranks = s.unshared(link)

    def pes_counted(i: int, loop: Loop) -> int:
        in_parent = not s.wires.has_own(link.parent, link.parent_at, i, loop)
        if in_parent and not s.wires.has_own(link.child, link.child_at, i, loop):
            return FIRST
        if not in_parent or end in (End.CHILD, End.NETWORK):
            return INSTANCE_PE if one_instance else ALL_PES
        if end is End.MEMORY and not shared[loop.over] and loop.rank not in counted_ranks:
            return FIRST
        if loop.rank in unshared_ranks or not shared[loop.over]:
            return ALL_PES
        return SHARED_PES if is_gathered else FIRST

    is_gathered = _gathered(s, link)
    return pes_counted


def _gathered(s: Formulas, link: Link) -> Gathered | None:
    """Returns what is known of a link whose child's fills bring in parts of a tile, else None."""
    found = s.gathered
    return found if found and link.child and found.tensor == link.tensor.tensor else None


def merges(s: Formulas, link: Link) -> Iterator[Term]:
    """Yields the partial sums that are added to sums of other PEs, in the array or at the parent: the
    elements that all PEs drain, minus the elements that remain after the reduced ranks are added up.
    """
    p, own = s.stored(link, End.CHILD), s.wires.has_own

    def crosses(i: int, loop: Loop) -> bool:
        return own(link.child, link.child_at, i, loop) and not own(link.parent, link.parent_at, i, loop)

    if any(loop.over and crosses(i, loop) and loop.rank not in link.ranks for i, loop in s.loops):
        for sign, others in ((1, ALL_PES), (-1, FIRST)):

            def pes_counted(i: int, loop: Loop, others: int = others) -> int:
                if not own(link.child, link.child_at, i, loop):
                    return FIRST
                return others if crosses(i, loop) and loop.rank not in link.ranks else ALL_PES

            cuts = _cuts(s, link, s.all_trips, False, pes_counted)
            yield Term(
                sign * (1 if p.format == "dense" else p.density),
                (*s.of_dims(p, cuts, clip=True), *_missing_ranks(s, link, cuts)),
            )


def _cuts(
    s: Formulas,
    link: Link,
    trips_counted: tuple[int, ...],
    skip: bool,
    pes_counted: Callable[[int, Loop], int],
    counted_ranks: frozenset[str] | None = None,
) -> CountedLoops:
    """Returns, by rank, the loops that cut the child's tiles and the trips counted of each.

    * Loops above the position that the child's tile rests at are included.
    * Loops that the tile sinks through are left out, from the innermost outward, as long as all their trips
      count: together they fetch the tile at the node.
    * A loop below the resting position is included (BELOW) only if it, or a loop of its rank further in,
      counts ONLY. It cuts no tile, but tiles in which that loop has more than one trip do not count.

    skip: ranks that are not in `counted_ranks` (None: the tensor's own ranks) count with their first
        iterations only
    """
    counted_ranks = link.ranks if counted_ranks is None else counted_ranks
    included = [
        number
        for number, (i, _) in enumerate(s.loops)
        if i < link.rests_at and (i < link.child_at or trips_counted[number] != ALL)
    ]
    deepest = max(included, default=-1)
    found: CountedLoops = {}
    for number, (i, loop) in enumerate(s.loops):
        if i < link.rests_at:
            counted = (
                pes_counted(i, loop)
                if loop.over
                else AND_FIRST[trips_counted[number]]
                if skip and loop.rank not in counted_ranks
                else trips_counted[number]
            )
            if number <= deepest:
                found[loop.rank] = (*found.get(loop.rank, ()), (number, counted))
        elif link.child and any(
            trips_counted[other] == ONLY
            for other in range(number, len(s.loops))
            if s.loops[other][1].rank == loop.rank
        ):
            found[loop.rank] = (
                *found.get(loop.rank, ()),
                (number, BELOW + (FIRST if loop.over else trips_counted[number])),
            )
    return found


def _terms(s: Formulas, link: Link, p: Projection, cuts: CountedLoops, skip: bool) -> Iterator[Term]:
    """Yields the elements that a link moves in the counted trips: the sum of its child's clipped tiles, or
    the single accesses of compute (`direct_elems`). p: its tensor as it is stored where they are counted.

    A compressed tile is a value and a column per nonzero and a pointer per row (CSR), in widths of its
    elements. Of an output pointers are written with every tile (`drains`), not read.
    """
    # tiles of a node are clipped to what is stored, single accesses of compute are not
    has_child, sign = link.child is not None, -1 if skip else 1
    sliding_loop = next(
        (
            loop
            for number, (i, loop) in enumerate(s.loops)
            if link.child_at < i == link.rests_at - 1
            and loop.rank not in p.full_ranks()
            and any(number == cut for cut, _ in cuts.get(loop.rank, ()))
        ),
        None,
    )
    dims = s.of_dims(p, cuts, has_child, skip, sliding_loop.rank if skip and sliding_loop else "")
    outer = _missing_ranks(s, link, cuts)
    if not has_child:
        yield Term(sign * s.access(link), (*dims, *outer))
        return
    if p.format == "dense":
        yield Term(sign, (*dims, *outer))
        return
    yield Term(sign * p.compressed_words(s.wires.word_bits)[0], (*dims, *outer))
    if not link.is_output:
        yield _row_term(s, p, cuts, dims, outer)


def _row_term(
    s: Formulas, p: Projection, cuts: CountedLoops, dims: tuple[int, ...], outer: tuple[int, ...]
) -> Term:
    """Returns the row pointers of the tiles of a compressed tensor, in widths of its elements. dims, outer:
    factors of its dimensions, and of ranks that it lacks
    """
    last = (s.factor_number(None, rank, (rank,), cuts) for rank in p.dims[-1].ranks())
    return Term(p.compressed_words(s.wires.word_bits)[1], (*dims[:-1], *last, *outer))


def _missing_ranks(s: Formulas, link: Link, cuts: CountedLoops) -> tuple[int, ...]:
    """Returns the factors of ranks that the tensor lacks: how often each tile moves."""
    found = _gathered(s, link)
    pattern = found.tile_columns if found else None
    return tuple(
        [
            s.factor_number(None, rank, (rank,), cuts, tile_columns=pattern)
            for rank, _ in s.e.extents
            if rank not in link.ranks
        ]
    )


def folds(s: Formulas, array: Systolic) -> Term:
    """Returns how often a systolic array fills and empties: once per element of the stationary tensor that
    the first PE gets, wherever the loops stand.

        store WREG B          for n, k       n * k elements of B, one after the other: n * k folds
        for n, k         =    store WREG B   the same, since the node on the left sinks
          for m                 for m

    * A double-buffered register needs one fold: the next element is there when it is needed.
    * If no level inside holds the tensor, nothing is stationary and every step is a fold.
    * Elements in the padding count as well.

    Source: SCALE-Sim (Samajdar et al. 2020): folds of the stationary matrix over the array.
    """
    tensor = stationary(s.e, array.systolic).tensor
    link = next(
        (
            candidate
            for candidate in s.links
            if candidate.tensor.tensor == tensor
            and candidate.parent.level not in array.inside
            and (candidate.child is None or candidate.child.level in array.inside)
        ),
        None,
    )
    if link is None or (link.child and link.child.level in array.double_buffered):
        return Term(1, ())
    if link.child is None:
        return Term(1, passes(s, len(s.nest.nodes), all_pes=False))
    cuts = _cuts(s, link, s.all_trips, False, lambda _number, _loop: FIRST)
    return Term(1, (*s.of_dims(link.tensor, cuts, clip=False), *_missing_ranks(s, link, cuts)))


def passes(s: Formulas, position: int, all_pes: bool, trips_counted: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Returns factors whose product is how often `position` is reached, by all PEs or by the first one, which
    is the busiest.
    """
    found: CountedLoops = {}
    for number, (i, loop) in enumerate(s.loops):
        if i < position:
            counted = (
                (ALL_PES if all_pes else FIRST)
                if loop.over
                else trips_counted[number]
                if trips_counted
                else ALL
            )
            found[loop.rank] = (*found.get(loop.rank, ()), (number, counted))
    return tuple(s.factor_number(None, rank, (rank,), found) for rank, _ in s.e.extents)


def rounds(s: Formulas, begin: int, end: int, trips_counted: tuple[int, ...], most: bool) -> tuple[int, ...]:
    """Returns factors whose product is the fewest iterations (most: the most) of the temporal loops at
    positions begin..end-1, within one iteration of the loops above.
    """
    found: CountedLoops = {}
    loops_before: dict[str, int] = {}
    for number, (i, loop) in enumerate(s.loops):
        if i < end:
            found[loop.rank] = (
                *found.get(loop.rank, ()),
                (number, FIRST if loop.over else trips_counted[number]),
            )
            loops_before[loop.rank] = loops_before.get(loop.rank, 0) + (i < begin)
    return tuple(
        s.factor_number(None, rank, (rank,), found, split_at=loops_before[rank], most=most) for rank in found
    )


def value(tiles: Sequence[int], factor: Factor, pes: dict[int, int] | None = None) -> float:
    """Returns the value of a factor for given tile sizes, one per loop of the nest.

    pes: index of a spatial loop -> PE of the instance; 0 where a loop is left out
    """
    pe_trips = {number: PE_0 + pe for number, pe in pes.items() if pe} if pes else {}
    ranks = tuple(
        [
            (
                extent,
                tuple(
                    [
                        (tiles[n], counted if counted != INSTANCE_PE else pe_trips.get(n, FIRST))
                        for n, counted in loops
                    ]
                ),
            )
            for extent, loops in factor.cuts
        ]
    )
    if factor.split_at >= 0:
        extent, cuts = ranks[0]
        tile_counts = [
            tile_count(size, cuts[factor.split_at :])
            for size, _ in tile_sizes(extent, cuts[: factor.split_at])
        ]
        return (max(tile_counts) if factor.most else min(tile_counts)) if tile_counts else 1
    if factor.tile_columns:
        return passes_gathered(factor.tile_columns, *ranks[0])
    if factor.dim is None:
        return tile_count(*ranks[0])
    if (
        factor.distinct
        and len(factor.dim.terms) > 1
        and any(counted not in (ALL, ALL_PES) for _, cuts in ranks for _, counted in cuts)
    ):
        return _first_elems(factor, tiles)
    return dim_sum(factor.dim, ranks, factor.clip, bool(factor.distinct))


Number = Any  # a float, or an array of one per mapping


@dataclass(slots=True)
class NestSums:
    """The formulas of a nest, evaluated for given tile sizes."""

    formulas: Formulas
    value: Callable[[Factor, dict[int, int]], Number]  # value of a factor at an instance
    # instances one of which is the busiest, each as {index of a spatial loop: PE}; the instance of first PEs
    # comes first
    instances: list[dict[int, int]]
    # (number of the factor, index of the instance) -> value
    memo: dict[tuple[int, int], Number] = field(default_factory=dict)

    def total(self, terms: Sequence[Term], instance: int = 0) -> Number:
        """Returns the sum of terms. Terms of one instance are evaluated at the instance with index
        `instance`.
        """
        return sum(self._product(term, instance) for term in terms)

    def by_instance(self, terms: Sequence[Term]) -> list[Number]:
        """Returns the count of each instance in `instances`. Instances that differ only in loops that the
        terms lack are evaluated once.
        """
        if len(self.instances) == 1:
            return [self.total(terms)]
        loops = {
            number
            for term in terms
            for factor in term.factors
            for _, cuts in self.formulas.factors[factor].cuts
            for number, counted in cuts
            if counted == INSTANCE_PE
        }
        found: dict[frozenset[tuple[int, int]], Number] = {}
        keys = [
            frozenset((number, k) for number, k in pes.items() if number in loops) for pes in self.instances
        ]
        for i, key in enumerate(keys):
            if key not in found:
                found[key] = self.total(terms, i)
        return [found[key] for key in keys]

    def _product(self, term: Term, instance: int) -> Number:
        found: Number = term.scale
        for number in term.factors:
            key = number, instance
            if key not in self.memo:
                self.memo[key] = self.value(self.formulas.factors[number], self.instances[instance])
            found = found * self.memo[key]
        return found


def instances(s: Formulas, tiles: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """Returns instances one of which is the busiest of any port.

    tiles: tile size per loop, for each of some mappings

    PEs along a rank have tiles of at most the first PE's size, so the first PE is the busiest unless padding
    cuts what it fetches. Of the PEs that no padding reaches, one for each different sequence of tiles is
    enough.
    """
    padded: dict[str, list[tuple[Dim, int]]] = {}
    sizes = s.sizes
    for p in s.e.tensors():
        for dim in p.dims:
            if not within(dim, [sizes[rank] for rank in dim.ranks()]):
                for rank, c in dim.terms:
                    padded.setdefault(rank, []).append((dim, c))
    found: list[dict[int, int]] = [{}]
    for rank, dims in padded.items():
        rank_loops = [(number, loop) for number, (_, loop) in enumerate(s.loops) if loop.rank == rank]
        spatial = [number for number, loop in rank_loops if loop.over]
        if spatial and sizes[rank] > 1:
            # from one mapping per different sequence of the rank's tile sizes
            distinct_pes = dict.fromkeys(
                pes
                for tile_row in {
                    tuple(row[number] for number, _ in rank_loops): row for row in tiles
                }.values()
                for pes in _distinct_pes(
                    s.e.extents,
                    rank,
                    tuple([(tile_row[number], bool(loop.over)) for number, loop in rank_loops]),
                    tuple(dims),
                )
            )
            found = [
                instance | {n: k for n, k in zip(spatial, pes, strict=True) if k}
                for instance in found
                for pes in distinct_pes
            ]
    return found


@lru_cache(maxsize=1 << 14)
def _distinct_pes(
    extents: tuple[tuple[str, int], ...],
    rank: str,
    loops: tuple[tuple[int, bool], ...],
    dims: tuple[tuple[Dim, int], ...],
) -> list[tuple[int, ...]]:
    """Returns the PEs along one rank that differ in what they fetch.

    loops: (tile, is spatial) of the rank, outermost first
    dims: (dimension, coefficient of the rank in it) of the dimensions that have padding
    """
    sizes = dict(extents)
    pe_ranges, tile_size = [], sizes[rank]
    for tile, is_spatial in loops:
        pe_ranges += [range(-(-tile_size // tile))] if is_spatial else []
        tile_size = min(tile_size, tile)
    found: dict[object, tuple[int, ...]] = {}
    for pes in product(*pe_ranges):
        signature: list[object] = []
        # levels between two fan-outs of the rank have one instance per outer PE, so PEs are compared at every
        # depth of fan-outs
        for depth in range(1, len(pes) + 1):
            pe = iter(pes[:depth])
            cuts = tuple(
                (
                    tile,
                    PE_0 + k if is_spatial and (k := next(pe, -1)) >= 0 else ALL_PES if is_spatial else ALL,
                )
                for tile, is_spatial in loops
            )
            low, size = tile_spans(sizes[rank], _cuts_array(cuts))
            first, last = (int(low.min()), int((low + size).max()) - 1) if len(low) else (-1, -1)
            other_reach = [sum(o * (sizes[r] - 1) for r, o in dim.terms if r != rank) for dim, _ in dims]
            avoids_padding = first >= 0 and all(
                dim.offset + c * first >= 0 and dim.offset + c * last + o < dim.size
                for (dim, c), o in zip(dims, other_reach, strict=True)
            )
            signature.append(
                tuple(_tile_size_counts(sizes[rank], cuts[:d]) for d in range(1, len(cuts) + 1))
                if avoids_padding
                else pes[:depth]
            )
        if first >= 0:
            found.setdefault(tuple(signature), pes)
    return list(found.values())


@lru_cache(maxsize=1 << 16)
def tile_sizes(extent: int, cuts: Cuts) -> tuple[tuple[int, int], ...]:
    """Returns (size, number of tiles) for the tiles of one rank after all cuts.

    >>> tile_sizes(100, ((16, ALL), (8, FIRST)))
    ((8, 6), (4, 1))
    """
    found: dict[int, int] = {}
    for (size, _), n in _tile_size_counts(extent, cuts):
        found[size] = found.get(size, 0) + n
    return tuple(found.items())


def _tile_size_counts(extent: int, cuts: Cuts) -> tuple[tuple[tuple[int, int], int], ...]:
    """Returns ((tile size, tile size of the first PE in the same trips), number of such tiles) after all
    cuts. PEs run in lockstep: the first one, with the largest tiles, decides which trip is the last.
    """
    sizes = {(extent, extent): 1}
    for tile, counted in cuts:
        parts: dict[tuple[int, int], int] = {}
        for (size, longest), n in sizes.items():
            for part, first, k in _cut_tile(size, longest, tile, counted):
                parts[part, first] = parts.get((part, first), 0) + n * k
        sizes = parts
    return tuple(sizes.items())


def _cut_tile(size: int, longest: int, tile: int, counted: int) -> Iterator[tuple[int, int, int]]:
    """Yields (tile size, tile size of the first PE, number) of the tiles that one loop cuts from a tile and
    counts.

    size: size of the tile that is cut
    longest: size of the first PE's tile in the same trips
    """
    whole_tiles, remainder = divmod(size, tile)
    last = (longest - 1) // tile * tile  # start of the first PE's last trip
    if counted == FIRST:
        yield min(size, tile), min(longest, tile), 1
    elif counted in (ALL, ALL_PES):
        if whole_tiles:
            yield tile, tile, whole_tiles
        if remainder:
            yield remainder, min(longest - (whole_tiles * tile if counted == ALL else 0), tile), 1
    elif counted == LAST:
        if size > last:
            yield size - last if size - last < tile else tile, longest - last, 1
    elif counted == ONLY:
        if not last:
            yield size, longest, 1
    elif counted >= PE_0:
        if size > (counted - PE_0) * tile:
            yield min(size - (counted - PE_0) * tile, tile), min(longest, tile), 1
    elif counted == BELOW + LAST:
        yield size, longest - last, 1
    elif counted != BELOW + ONLY or not last:
        yield size, min(longest, tile), 1


def tile_count(extent: int, cuts: Cuts) -> int:
    """Returns the number of tiles that the loops `cuts` split an extent into."""
    return sum(n for _, n in tile_sizes(extent, cuts))


@lru_cache(maxsize=1 << 16)
def passes_gathered(pattern: TileColumns, rows: int, cuts: Cuts) -> float:
    """Returns how often a dense operand moves through tiles of the rows of a compressed one: the sum over
    tiles of the share of its columns that a tile has (`gathered`).

    PEs that share accesses (SHARED_PES) get each row that one of them needs, at the outer end at most once
    per PE that needs it, and at most once for all of them, whichever is less.
    """
    each, together = (
        tile_sizes(rows, tuple((tile, pes if counted == SHARED_PES else counted) for tile, counted in cuts))
        for pes in (ALL_PES, FIRST)
    )
    columns = sum(n * float(pattern.mean(size)) for size, n in each)
    return min(columns / pattern.columns, float(sum(n for _, n in together)))


@lru_cache(maxsize=1 << 16)
def dim_sum(dim: Dim, ranks: tuple[tuple[int, Cuts], ...], clip: bool, distinct: bool) -> int:
    """Returns the sum over all tiles of one dimension's hull length, clipped to what is stored; distinct: the
    length of their union.

    A constant index has no ranks and one tile: one element, or none if that is padding.
    """
    if not dim.terms:
        return int(not clip or within(dim, ()))
    if is_whole(dim, {dim.terms[0][0]: ranks[0][0]}):
        return sum(size * n for size, n in tile_sizes(*ranks[0]))
    if distinct or (clip and not within(dim, [extent for extent, _ in ranks])):
        return _span_sum(dim, ranks, clip, distinct)
    hull_counts = [(1, 1)]  # (hull length, how many tiles have it)
    for (_, c), (extent, cuts) in zip(dim.terms, ranks, strict=True):
        hull_counts = [
            (length + c * (size - 1), n * m)
            for length, n in hull_counts
            for size, m in tile_sizes(extent, cuts)
        ]
    return sum(length * n for length, n in hull_counts)


def is_whole(dim: Dim, sizes: dict[str, int]) -> bool:
    """True if a dimension is exactly one rank and all of it is stored; False for a constant index."""
    return (
        len(dim.terms) == 1
        and dim.terms[0][1] == 1
        and dim.offset == 0
        and dim.size >= sizes[dim.terms[0][0]]
    )


def within(dim: Dim, extents: Sequence[int]) -> bool:
    """True if every index of a dimension is stored, none being padding."""
    return (
        dim.offset >= 0
        and dim.offset + sum(c * (n - 1) for (_, c), n in zip(dim.terms, extents, strict=True)) < dim.size
    )


def _span_sum(dim: Dim, ranks: tuple[tuple[int, Cuts], ...], clip: bool, distinct: bool) -> int:
    """Returns `dim_sum` by listing all tiles. Raises TooLong if there are more than MAX_LISTED."""
    if (tile_total := prod(tile_count(extent, cuts) for extent, cuts in ranks)) > MAX_LISTED:
        raise TooLong(
            f"{tile_total:,} tiles of {'+'.join(dim.ranks())} over padding are counted one by one, at most "
            f"{MAX_LISTED:,}; take larger tiles"
        )
    ends = np.cumsum([0, *(len(cuts) for _, cuts in ranks)])
    rows = [
        (c, extent, ends[i], ends[i + 1])
        for i, ((_, c), (extent, _)) in enumerate(zip(dim.terms, ranks, strict=True))
    ]
    return int(
        span_sum(
            dim.offset,
            dim.size,
            np.array(rows, np.int64),
            _cuts_array(tuple(cut for _, cuts in ranks for cut in cuts)),
            clip,
            distinct,
        )
    )


def _cuts_array(cuts: Cuts) -> NDArray[np.int64]:
    return np.array(cuts, np.int64).reshape(-1, 2)


def _first_elems(factor: Factor, tiles: Sequence[int]) -> int:
    """Returns how many elements of one dimension of an output are first touched by a counted tile, with all
    tiles in the order of the nest. Ranks that share a dimension of an output are never spatial.
    """
    dim = factor.dim
    assert dim is not None
    low = np.zeros((1, len(factor.cuts)), np.int64)
    size = np.array([[extent for extent, _ in factor.cuts]], np.int64)
    is_counted, trip = np.ones(1, np.bool_), np.zeros(1, np.int64)
    for number, x, counted in sorted(
        (number, x, counted)
        for x, (_, loops) in enumerate(factor.cuts)
        for number, counted in loops
        if counted < BELOW
    ):
        trips = -(-size[:, x] // tiles[number])
        parent = np.repeat(np.arange(len(size)), trips)
        trip = np.arange(len(parent)) - np.repeat(np.cumsum(trips) - trips, trips)
        is_counted = (
            is_counted[parent]
            & ((counted not in (FIRST, ONLY)) | (trip == 0))
            & ((counted not in (LAST, ONLY)) | (trip == trips[parent] - 1))
        )
        low, size = low[parent], size[parent]
        low[:, x] += trip * tiles[number]
        size[:, x] = np.minimum(size[:, x] - trip * tiles[number], tiles[number])
    c = np.array([c for _, c in dim.terms], np.int64)
    start, stop = dim.offset + low @ c, dim.offset + (low + size - 1) @ c + 1
    if factor.clip:
        start, stop = np.maximum(start, 0), np.minimum(stop, dim.size)
    if factor.distinct == 2:  # a sliding window also touches the gap since the trip before
        start[1:] = np.where(trip[1:] > 0, np.minimum(start[1:], stop[:-1]), start[1:])
    base = int(start.min())
    unseen, found = np.ones(int(max(stop.max() - base, 0)), np.bool_), 0
    for first, end, counted_here in zip(
        (start - base).tolist(), (stop - base).tolist(), is_counted.tolist(), strict=True
    ):
        found += int(unseen[first:end].sum()) if counted_here and end > first else 0
        unseen[first : max(end, first)] = False
    return found
