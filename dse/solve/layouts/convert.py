"""Conversions of a tensor between two layouts: a copy reads one layout, writes the other, and is priced like
any other einsum (docs/model.md, Layouts).

A block of a layout is a box of elements that are contiguous in memory: the innermost digits of the layout. A
copy reads lines of one layout and writes lines of the other, so its tiles are made of blocks of both. The
nests that are priced are the mapper's own, and nests of this form:

    for ...                 down to tile T, a box that holds a block of each layout
      store LEVEL A B       both tensors, or one of them here and a block of the other at an inner level
      for ...
        parfor ...          a block of the tensor that has no storage node, of at most one element per PE
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import gcd, inf, prod

from dse.layout.address import Digit, Layout, row_major
from dse.mapper.exact.layout_aware import (
    LayoutPricing,
    TensorAt,
    best_layouts,
    in_layouts,
    layout_pricing,
    priced_mappings,
)
from dse.mapper.exact.spatial import divisors
from dse.mapping.constraints import FREE
from dse.mapping.conversion import copy_einsum
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, faults, may_keep
from dse.sim.counts.counts import footprints
from dse.sim.einsum import bounds
from dse.sim.einsum.cost import overflow
from dse.sim.einsum.evaluate import Problem, objective_value, relative_gap
from dse.sim.levels.transfer import dim_names
from hw.arch import Arch, Level
from workloads.einsum import Einsum

NEAR = 1e-3  # the search of a copy ends at this relative gap to the lower bound
TRIED = 4  # maximum of boxes that are priced per choice of storage nodes
Box = tuple[int, ...]  # extents, one per dimension


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between two layouts, with its cost."""

    mapping: Mapping  # with the layouts of tiles at inner levels
    energy: float
    cycles: float
    gap: float  # optimality gap to the best copy with imperfect spatial factors


@dataclass(slots=True)
class Conversions:
    """The copies on one machine, each searched once."""

    arch: Arch
    objective: str
    memo: dict[tuple[int | None, Layout, Layout], Copy] = field(default_factory=dict)  # of `cost`
    # of `_own`
    own: dict[tuple[tuple[int, ...], int | None], tuple[list[LayoutPricing], float]] = field(
        default_factory=dict
    )
    # of `_pricing`, `_inner` and `lower_bound`
    pricings: dict[tuple[Einsum, Mapping], LayoutPricing | None] = field(default_factory=dict)
    inner: dict[tuple[Einsum, Mapping], dict[TensorAt, Layout]] = field(default_factory=dict)
    lower_bounds: dict[tuple[tuple[int, ...], int | None], tuple[float, float]] = field(default_factory=dict)

    def lower_bound(self, bits: int | None, shape: tuple[int, ...]) -> tuple[float, float]:
        """Returns lower bounds (energy, cycles) of any copy of a tensor of a shape. bits: of an element;
        None: a machine word.
        """
        if (shape, bits) not in self.lower_bounds:
            e = copy_einsum(shape, bits)
            self.lower_bounds[shape, bits] = (
                bounds.energy_pj(e, self.arch),
                bounds.latency_cycles(e, self.arch),
            )
        return self.lower_bounds[shape, bits]

    def cost(self, bits: int | None, a: Layout, b: Layout) -> Copy:
        """Returns the best copy found from layout a to layout b. Layouts name dimensions as all tensors of
        the shape do.
        """
        if (bits, a, b) not in self.memo:
            self.memo[bits, a, b] = self._search(bits, a, b)
        return self.memo[bits, a, b]

    def _search(self, bits: int | None, a: Layout, b: Layout) -> Copy:
        """Returns the best copy found. Nests are priced in the order of their estimated costs, until the next
        estimate is no lower than the best cost.
        """
        home, e = self.arch.levels[0].name, copy_einsum(a.shape, bits)
        own, floor = self._own(a.shape, bits)
        ends = {(home, "A"): a, (home, "B"): b}
        rows = [(0.0, one) for one in own]
        for nest, asked in dict(between(e, self.arch, a, b)).items():
            if one := self._pricing(e, nest):
                rows.append((self._estimate(one, asked), one))
        best, chosen = inf, None
        for about, one in sorted(rows, key=lambda row: (row[0], str(row[1].mapping))):
            if about >= best or best <= floor * (1 + NEAR):
                break
            if objective_value(self.objective, *one.cost(ends)) >= best:
                continue
            inner = self._inner(e, one)
            energy, cycles = one.cost(inner | ends)
            if (value := objective_value(self.objective, energy, cycles)) < best:
                best, chosen = value, (in_layouts(one.mapping, inner), energy, cycles)
        assert chosen
        return Copy(*chosen, relative_gap(best, floor))

    def _estimate(self, one: LayoutPricing, main_memory_lines: float) -> float:
        """Returns an estimate of a nest's objective value if it moves so many lines of main memory; row
        activations and bank conflicts are not estimated.
        """
        (energy, cycles), outer, e = one.cost({}), self.arch.levels[0], one.problem.einsum
        words = 2 * e.points() * (e.output.bits or self.arch.word_bits)
        moved = max(words, main_memory_lines * outer.access.line_bits) if outer.access else words
        energy += (moved - words) / outer.width_bits * min(outer.read_pj, outer.write_pj)
        port = moved / outer.width_bits / outer.bandwidth / (2 if outer.ports == "separate" else 1)
        return objective_value(self.objective, energy, max(cycles, port))

    def _own(self, shape: tuple[int, ...], bits: int | None) -> tuple[list[LayoutPricing], float]:
        """Returns the mapper's nests of a copy, and a lower bound of the objective of any copy in any
        layouts.
        """
        if (shape, bits) not in self.own:
            one = Problem(self.arch, copy_einsum(shape, bits), self.objective)
            found = priced_mappings(one, "imperfect_spatial", FREE, 0.01, frozenset())
            nests, floor = (
                ([], 0.0) if isinstance(found, Infeasible) else (list(found.mappings), found.lower_bound)
            )
            self.own[shape, bits] = (
                nests,
                max(floor, objective_value(self.objective, *self.lower_bound(bits, shape))),
            )
        return self.own[shape, bits]

    def _pricing(self, e: Einsum, nest: Mapping) -> LayoutPricing | None:
        """Returns the pricing of a nest, None if it does not fit."""
        if (e, nest) not in self.pricings:
            fits = not faults(nest, e, self.arch) and not overflow(
                footprints(nest, e, self.arch), e, self.arch
            )
            self.pricings[e, nest] = (
                layout_pricing(Problem(self.arch, e, self.objective), nest) if fits else None
            )
        return self.pricings[e, nest]

    def _inner(self, e: Einsum, one: LayoutPricing) -> dict[TensorAt, Layout]:
        """Returns the layouts of tiles at inner levels that are best if the tensors are row-major in main
        memory.
        """
        if (e, one.mapping) not in self.inner:
            home = self.arch.levels[0].name
            ends = {
                place: row_major(dim_names(link.tensor), tuple(d.size for d in link.tensor.dims))
                for place, link in one.links.items()
                if place[0] == home
            }
            found = best_layouts(one, ends)[2] if len(ends) < len(one.links) else ends
            self.inner[e, one.mapping] = {
                place: layout for place, layout in found.items() if place[0] != home
            }
        return self.inner[e, one.mapping]


def blocks(layout: Layout) -> list[Box]:
    """Returns the boxes that are contiguous in a layout, smallest first: some of the innermost digits whole,
    and a divisor of the next digit. The digit after a padded one is not used.

    >>> blocks(row_major(("A", "B"), (2, 6)))
    [(1, 1), (1, 2), (1, 3), (1, 6), (2, 6)]
    """
    own = [1] * len(layout.shape)
    found = [tuple(own)]
    for k, digit in _chain(layout):
        if digit.step != own[k]:
            break
        found += [
            tuple(min(n * part, layout.shape[k]) if i == k else n for i, n in enumerate(own))
            for part in divisors(digit.size)[1:]
        ]
        own[k] *= digit.size
        if digit.pitch != digit.size:
            break
    return found


def _chain(layout: Layout) -> Iterator[tuple[int, Digit]]:
    """Yields (dimension, digit), innermost first, up to the first digit of fused or unfolded dimensions."""
    for digit in reversed(layout.digits):
        one = layout.stored[digit.dim]
        if len(one.members) != 1 or one.tile:
            return
        yield one.members[0], digit


def lines(layout: Layout, box: Box, line: int) -> float:
    """Returns an estimate of the lines of memory that are accessed if the tensor is read box by box. line:
    elements per line. A box consists of contiguous runs, and each run starts at a multiple of its length.

    >>> [lines(row_major(("A", "B"), (4, 8)), box, 4) for box in ((1, 8), (4, 2), (4, 1))]
    [8.0, 16.0, 32.0]
    """
    run = 1
    for k, digit in _chain(layout):
        part = min(digit.size, max(box[k] // digit.step, 1))
        run *= part
        if part < digit.size:
            break
    return prod(layout.shape) / run * (1 + (run - gcd(run, line)) / line)


@dataclass(frozen=True, slots=True)
class Staging:
    """The form of a nest of a copy: the boxes that its storage nodes hold."""

    lines: float  # estimate of the lines of main memory that it accesses
    tile: Box  # held by the `upper` storage nodes
    inner: Box  # held by the `lower` storage nodes
    last: str  # tensor whose layout orders the loops below the tile
    upper: tuple[Store, ...] = ()
    lower: tuple[Store, ...] = ()
    in_arrays: bool = False  # whether the `lower` nodes stand inside the arrays, where PEs share the box


def between(e: Einsum, arch: Arch, a: Layout, b: Layout) -> Iterator[tuple[Mapping, float]]:
    """Yields (nest, estimate of the lines that it accesses) of copies between two layouts, fewest lines
    first. Some nests may not fit.
    """
    bits = e.output.bits or arch.word_bits
    access = arch.levels[0].access
    ranks = [rank for rank, _ in e.extents]
    line, ways = max(1, access.line_bits // bits) if access else 1, {"A": a, "B": b}
    found = dict[tuple[object, ...], list[Staging]]()
    for one in _stagings(e, arch, ways, bits, line):
        found.setdefault((one.upper, one.lower), []).append(one)
    few = (sorted(own, key=lambda one: (one.lines, -prod(one.tile)))[:TRIED] for own in found.values())
    for one in sorted(chain.from_iterable(few), key=lambda one: one.lines):
        for order in ways.values():
            yield _nest(e, arch, one, _ranks(order, ranks), _ranks(ways[one.last], ranks)), one.lines


def _stagings(e: Einsum, arch: Arch, layouts: dict[str, Layout], bits: int, line: int) -> Iterator[Staging]:
    """Yields forms of nests: boxes that hold a block of each layout, and levels at which tensors stand."""
    whole, pes = tuple(n for _, n in e.extents), arch.instances(len(arch.levels))
    near = {
        x: {one.name: _capacity_elems(arch, one, bits) for one in arch.levels[1:] if x in may_keep(e, one)}
        for x in "AB"
    }
    first = min((f.outside for f in arch.fanouts), default=len(arch.levels))
    shared = {level.name for level in arch.levels[first:]}

    def lines_accessed(a: Box, b: Box) -> float:
        return lines(layouts["A"], a, line) + lines(layouts["B"], b, line)

    for t in dict.fromkeys(
        tuple(map(max, p, q)) for p in (*blocks(layouts["A"]), whole) for q in (*blocks(layouts["B"]), whole)
    ):
        for name in near["A"].keys() & near["B"].keys():
            if 2 * prod(t) <= near["A"][name]:
                one, both = Staging(lines_accessed(t, t), t, t, "B"), (Store(name, "A"), Store(name, "B"))
                yield replace(one, lower=both, in_arrays=True) if name in shared else replace(one, upper=both)
        outside = [
            (x, name)
            for x, rooms in near.items()
            for name in rooms
            if name not in shared and prod(t) <= rooms[name]
        ]
        for x, name in outside:
            y = "B" if x == "A" else "A"
            left = {below: room - (prod(t) if below == name else 0) for below, room in near[y].items()}
            boxes = {"": _largest(layouts[y], t, pes)} | {
                below: _best_block(layouts[y], t, room, line) for below, room in left.items()
            }
            for below, own in boxes.items():
                if own:
                    lower = (Store(below, y),) if below else ()
                    many = lines_accessed(t, own) if x == "A" else lines_accessed(own, t)
                    yield Staging(many, t, own, y, (Store(name, x),), lower, below in shared)
    for x in "AB":
        box = _largest(layouts[x], whole, pes)
        yield Staging(lines_accessed(box, box), box, box, x)


def _capacity_elems(arch: Arch, level: Level, bits: int) -> float:
    """Returns the elements that all instances of a level hold together; half of that with double buffers."""
    return (
        inf
        if level.capacity_bits is None
        else (
            level.capacity_bits
            // bits
            // (2 if level.double_buffer else 1)
            * arch.instances(arch.levels.index(level))
        )
    )


def _best_block(layout: Layout, within: Box, elems: float, line: int) -> Box | None:
    """Returns the block within a box that has at most `elems` elements and accesses the fewest lines."""
    inside = (tuple(map(min, within, box)) for box in blocks(layout))
    fit = [box for box in inside if prod(box) <= elems]
    return min(fit, key=lambda box: (lines(layout, box, line), -prod(box)), default=None)


def _largest(layout: Layout, within: Box, most: int) -> Box:
    """Returns the largest block within a box that has at most `most` elements."""
    inside = (tuple(map(min, within, box)) for box in blocks(layout))
    return max((box for box in inside if prod(box) <= most), key=prod)


def _ranks(layout: Layout, ranks: Sequence[str]) -> list[str]:
    """Returns the ranks in the order of their outermost digits in a layout, outermost first."""
    place = {
        m: i
        for i, digit in reversed(list(enumerate(layout.digits)))
        for m in layout.stored[digit.dim].members
    }
    return [rank for _, rank in sorted((place.get(k, -1), rank) for k, rank in enumerate(ranks))]


def _nest(e: Einsum, arch: Arch, one: Staging, outer: Sequence[str], inner: Sequence[str]) -> Mapping:
    """Returns the nest of a form (one). outer, inner: order of the loops above the tile and below it, as
    ranks, outermost first.
    """
    home, left = arch.levels[0].name, dict(e.extents)
    nodes: list[Loop | Store] = [Store(home, "A"), Store(home, "B")]
    for box, order, stores in (
        (one.tile, outer, one.upper),
        (one.inner, inner, () if one.in_arrays else one.lower),
    ):
        tile = {rank: min(left[rank], n) for rank, n in zip(left, box, strict=True)}
        nodes += [*(Loop(rank, tile[rank]) for rank in order if tile[rank] < left[rank]), *stores]
        left = tile
    held = [store for store in nodes if isinstance(store, Store)]
    return Mapping((*nodes, *_inside(e, arch, left, one.lower if one.in_arrays else (), held)))


def _inside(
    e: Einsum, arch: Arch, left: dict[str, int], lower: Sequence[Store], inner_tile: Sequence[Store]
) -> list[Loop | Store]:
    """Returns the innermost nodes of a nest: spatial loops over the tile that is left, storage nodes inside
    the arrays (those of `lower`, and mandatory ones), and temporal loops over what is left then. left: tile
    of each rank, is updated; inner_tile: storage nodes that the nest has already.
    """
    nodes = list[Loop | Store]()
    for v in range(1, len(arch.levels) + 1):
        for dim, size in (one for f in arch.fanouts if f.outside == v for one in f.dims):
            while (most := max((max(d for d in divisors(n) if d <= size), rank) for rank, n in left.items()))[
                0
            ] > 1:
                part, rank = most
                left[rank], size = left[rank] // part, size // part
                nodes.append(Loop(rank, left[rank], dim))
        for level in arch.levels[v : v + 1]:
            must = [] if level.bypass else [Store(level.name, t) for t in may_keep(e, level)]
            own = dict.fromkeys((*(one for one in lower if one.level == level.name), *must))
            nodes += [one for one in own if one not in inner_tile]
    return [*nodes, *(Loop(rank, 1) for rank, n in left.items() if n > 1)]
