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

GAP = 1e-3  # the search of a copy ends at this relative gap to the lower bound
MAX_BOXES = 4  # maximum of boxes that are priced per choice of storage nodes
# by `ports` of main memory: its two transfers over those that take turns; none where ports have own rates
PORT_SHARES: dict[object, int] = {"shared": 2, "separate": 1}
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
    copies: dict[tuple[int | None, Layout, Layout], Copy] = field(default_factory=dict)  # of `cost`
    # of `_mapper_nests`
    mapper_nests: dict[tuple[tuple[int, ...], int | None], tuple[list[LayoutPricing], float]] = field(
        default_factory=dict
    )
    # of `_pricing`, `_inner_layouts` and `lower_bound`
    pricings: dict[tuple[Einsum, Mapping], LayoutPricing | None] = field(default_factory=dict)
    inner_layouts: dict[tuple[Einsum, Mapping], dict[TensorAt, Layout]] = field(default_factory=dict)
    lower_bounds: dict[tuple[tuple[int, ...], int | None], tuple[float, float]] = field(default_factory=dict)

    def lower_bound(self, bits: int | None, shape: tuple[int, ...]) -> tuple[float, float]:
        """Returns lower bounds (energy, cycles) of any copy of a tensor of a shape: it moves whole lines of
        main memory. bits: of an element; None: a machine word.
        """
        if (shape, bits) not in self.lower_bounds:
            e = copy_einsum(shape, bits)
            outer, elem_bits = self.arch.levels[0], bits or self.arch.word_bits
            line = outer.access.line_bits if outer.access and not outer.bits else 1
            tensor_bits = prod(shape) * elem_bits
            line_actions = -(-tensor_bits // line) * line / outer.width_bits
            more = max(0.0, line_actions - -(-tensor_bits // outer.width_bits))
            self.lower_bounds[shape, bits] = (
                bounds.energy_pj(e, self.arch) + 2 * more * min(outer.read_pj, outer.write_pj),
                max(
                    bounds.latency_cycles(e, self.arch),
                    line_actions / outer.bandwidth * PORT_SHARES.get(outer.ports, 0),
                ),
            )
        return self.lower_bounds[shape, bits]

    def cost(self, bits: int | None, a: Layout, b: Layout) -> Copy:
        """Returns the best copy found from layout a to layout b. Layouts name dimensions as all tensors of
        the shape do.
        """
        if (bits, a, b) not in self.copies:
            self.copies[bits, a, b] = self._search(bits, a, b)
        return self.copies[bits, a, b]

    def _search(self, bits: int | None, a: Layout, b: Layout) -> Copy:
        """Returns the best copy found. Nests are priced in the order of their estimated costs, until the next
        estimate is no lower than the best cost.
        """
        home, e = self.arch.levels[0].name, copy_einsum(a.shape, bits)
        mapper_nests, lower_bound = self._mapper_nests(a.shape, bits)
        outer_layouts = {(home, "A"): a, (home, "B"): b}
        candidates = [(0.0, pricing) for pricing in mapper_nests]
        for nest, lines_accessed in dict(copy_nests(e, self.arch, a, b)).items():
            if pricing := self._pricing(e, nest):
                candidates.append((self._estimate(pricing, lines_accessed), pricing))
        best, chosen = inf, None
        for estimate, pricing in sorted(candidates, key=lambda row: (row[0], str(row[1].mapping))):
            if estimate >= best or best <= lower_bound * (1 + GAP):
                break
            if objective_value(self.objective, *pricing.cost(outer_layouts)) >= best:
                continue
            inner = self._inner_layouts(e, pricing)
            energy, cycles = pricing.cost(inner | outer_layouts)
            if (value := objective_value(self.objective, energy, cycles)) < best:
                best, chosen = value, (in_layouts(pricing.mapping, inner), energy, cycles)
        assert chosen
        return Copy(*chosen, relative_gap(best, lower_bound))

    def _estimate(self, pricing: LayoutPricing, main_memory_lines: float) -> float:
        """Returns an estimate of a nest's objective value if it moves so many lines of main memory; row
        activations and bank conflicts are not estimated.
        """
        (energy, cycles), outer, e = pricing.cost({}), self.arch.levels[0], pricing.problem.einsum
        copied_bits = 2 * e.points() * (e.output.bits or self.arch.word_bits)
        moved_bits = (
            max(copied_bits, main_memory_lines * outer.access.line_bits) if outer.access else copied_bits
        )
        energy += (moved_bits - copied_bits) / outer.width_bits * min(outer.read_pj, outer.write_pj)
        port_cycles = (
            moved_bits / outer.width_bits / outer.bandwidth / (2 if outer.ports == "separate" else 1)
        )
        return objective_value(self.objective, energy, max(cycles, port_cycles))

    def _mapper_nests(self, shape: tuple[int, ...], bits: int | None) -> tuple[list[LayoutPricing], float]:
        """Returns the mapper's nests of a copy, and a lower bound of the objective of any copy in any
        layouts.
        """
        if (shape, bits) not in self.mapper_nests:
            problem = Problem(self.arch, copy_einsum(shape, bits), self.objective)
            found = priced_mappings(problem, "imperfect_spatial", FREE, 0.01, frozenset())
            nests, lower_bound = (
                ([], 0.0) if isinstance(found, Infeasible) else (list(found.mappings), found.lower_bound)
            )
            self.mapper_nests[shape, bits] = (
                nests,
                max(lower_bound, objective_value(self.objective, *self.lower_bound(bits, shape))),
            )
        return self.mapper_nests[shape, bits]

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

    def _inner_layouts(self, e: Einsum, pricing: LayoutPricing) -> dict[TensorAt, Layout]:
        """Returns the layouts of tiles at inner levels that are best if the tensors are row-major in main
        memory.
        """
        if (e, pricing.mapping) not in self.inner_layouts:
            home = self.arch.levels[0].name
            outer_layouts = {
                place: row_major(dim_names(link.tensor), tuple(d.size for d in link.tensor.dims))
                for place, link in pricing.links.items()
                if place[0] == home
            }
            found = (
                best_layouts(pricing, outer_layouts)[2]
                if len(outer_layouts) < len(pricing.links)
                else outer_layouts
            )
            self.inner_layouts[e, pricing.mapping] = {
                place: layout for place, layout in found.items() if place[0] != home
            }
        return self.inner_layouts[e, pricing.mapping]


def blocks(layout: Layout) -> list[Box]:
    """Returns the boxes that are contiguous in a layout, smallest first: some of the innermost digits whole,
    and a divisor of the next digit. The digit after a padded one is not used. Of a digit whose indices lie
    several apart, the indices between are in the box too, so that it is as many contiguous pieces.

    >>> blocks(row_major(("A", "B"), (2, 6)))
    [(1, 1), (1, 2), (1, 3), (1, 6), (2, 6)]
    >>> from dse.layout.text import parse
    >>> blocks(parse("b2 A B/2", ("A", "B"), (2, 6)))  # 0 2 4 lie side by side, 1 3 5 elsewhere
    [(1, 1), (1, 6), (2, 6)]
    """
    block = [1] * len(layout.shape)
    found = [tuple(block)]
    for k, digit in _plain_digits(layout):
        if digit.step * digit.size <= block[k]:
            continue  # these indices are in the box
        found += [
            tuple(min(digit.step * part, layout.shape[k]) if i == k else n for i, n in enumerate(block))
            for part in divisors(digit.size)[1:]
        ]
        block[k] = digit.step * digit.size
        if digit.pitch != digit.size:
            break
    return found


def _plain_digits(layout: Layout) -> Iterator[tuple[int, Digit]]:
    """Yields (dimension, digit), innermost first, up to the first digit of fused or unfolded dimensions."""
    for digit in reversed(layout.digits):
        stored_dim = layout.stored[digit.dim]
        if len(stored_dim.members) != 1 or stored_dim.tile:
            return
        yield stored_dim.members[0], digit


def line_count(layout: Layout, box: Box, line_elems: int) -> float:
    """Returns an estimate of the lines of memory that are accessed if the tensor is read box by box.
    line_elems: elements per line. A box consists of contiguous runs, and each run starts at a multiple of its
    length.

    >>> [line_count(row_major(("A", "B"), (4, 8)), box, 4) for box in ((1, 8), (4, 2), (4, 1))]
    [8.0, 16.0, 32.0]
    """
    run = 1
    for k, digit in _plain_digits(layout):
        part = min(digit.size, max(box[k] // digit.step, 1))
        run *= part
        if part < digit.size:
            break
    return prod(layout.shape) / run * (1 + (run - gcd(run, line_elems)) / line_elems)


@dataclass(frozen=True, slots=True)
class Staging:
    """The form of a nest of a copy: the boxes that its storage nodes hold."""

    lines: float  # estimate of the lines of main memory that it accesses
    tile: Box  # held by the `upper` storage nodes
    inner_tile: Box  # held by the `lower` storage nodes
    inner_order: str  # tensor whose layout orders the loops below the tile
    upper: tuple[Store, ...] = ()
    lower: tuple[Store, ...] = ()
    in_arrays: bool = False  # whether the `lower` nodes stand inside the arrays, where PEs share the box


def copy_nests(e: Einsum, arch: Arch, a: Layout, b: Layout) -> Iterator[tuple[Mapping, float]]:
    """Yields (nest, estimate of the lines that it accesses) of copies between two layouts, fewest lines
    first. Some nests may not fit.
    """
    bits = e.output.bits or arch.word_bits
    access = arch.levels[0].access
    ranks = [rank for rank, _ in e.extents]
    line_elems, layouts = max(1, access.line_bits // bits) if access else 1, {"A": a, "B": b}
    found = dict[tuple[object, ...], list[Staging]]()
    for staging in _stagings(e, arch, layouts, bits, line_elems):
        found.setdefault((staging.upper, staging.lower), []).append(staging)
    best_stagings = (
        sorted(group, key=lambda staging: (staging.lines, -prod(staging.tile)))[:MAX_BOXES]
        for group in found.values()
    )
    for staging in sorted(chain.from_iterable(best_stagings), key=lambda staging: staging.lines):
        for order in layouts.values():
            yield (
                _nest(
                    e,
                    arch,
                    staging,
                    _ranks_by_digit(order, ranks),
                    _ranks_by_digit(layouts[staging.inner_order], ranks),
                ),
                staging.lines,
            )


def _stagings(
    e: Einsum, arch: Arch, layouts: dict[str, Layout], bits: int, line_elems: int
) -> Iterator[Staging]:
    """Yields forms of nests: boxes that hold a block of each layout, and levels at which tensors stand."""
    full_box, pes = tuple(n for _, n in e.extents), arch.instances(len(arch.levels))
    capacities = {
        x: {
            inner_level.name: _capacity_elems(arch, inner_level, bits)
            for inner_level in arch.levels[1:]
            if x in may_keep(e, inner_level)
        }
        for x in "AB"
    }
    outermost_array = min((f.outside for f in arch.fanouts), default=len(arch.levels))
    in_array_levels = {level.name for level in arch.levels[outermost_array:]}

    def lines_accessed(a: Box, b: Box) -> float:
        return line_count(layouts["A"], a, line_elems) + line_count(layouts["B"], b, line_elems)

    for tile in dict.fromkeys(
        tuple(map(max, p, q))
        for p in (*blocks(layouts["A"]), full_box)
        for q in (*blocks(layouts["B"]), full_box)
    ):
        for name in capacities["A"].keys() & capacities["B"].keys():
            if 2 * prod(tile) <= capacities["A"][name]:
                staging, stores = (
                    Staging(lines_accessed(tile, tile), tile, tile, "B"),
                    (Store(name, "A"), Store(name, "B")),
                )
                yield (
                    replace(staging, lower=stores, in_arrays=True)
                    if name in in_array_levels
                    else replace(staging, upper=stores)
                )
        outside = [
            (x, name)
            for x, capacity_of in capacities.items()
            for name in capacity_of
            if name not in in_array_levels and prod(tile) <= capacity_of[name]
        ]
        for x, name in outside:
            y = "B" if x == "A" else "A"
            free_elems = {
                below: capacity - (prod(tile) if below == name else 0)
                for below, capacity in capacities[y].items()
            }
            boxes = {"": _largest_block(layouts[y], tile, pes)} | {
                below: _best_block(layouts[y], tile, capacity, line_elems)
                for below, capacity in free_elems.items()
            }
            for below, box_below in boxes.items():
                if box_below:
                    lower = (Store(below, y),) if below else ()
                    line_total = (
                        lines_accessed(tile, box_below) if x == "A" else lines_accessed(box_below, tile)
                    )
                    yield Staging(
                        line_total, tile, box_below, y, (Store(name, x),), lower, below in in_array_levels
                    )
    for x in "AB":
        box = _largest_block(layouts[x], full_box, pes)
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


def _best_block(layout: Layout, within: Box, elems: float, line_elems: int) -> Box | None:
    """Returns the block within a box that has at most `elems` elements and accesses the fewest lines."""
    inside = (tuple(map(min, within, box)) for box in blocks(layout))
    fit = [box for box in inside if prod(box) <= elems]
    return min(fit, key=lambda box: (line_count(layout, box, line_elems), -prod(box)), default=None)


def _largest_block(layout: Layout, within: Box, max_elems: int) -> Box:
    """Returns the largest block within a box that has at most `max_elems` elements."""
    inside = (tuple(map(min, within, box)) for box in blocks(layout))
    return max((box for box in inside if prod(box) <= max_elems), key=prod)


def _ranks_by_digit(layout: Layout, ranks: Sequence[str]) -> list[str]:
    """Returns the ranks in the order of their outermost digits in a layout, outermost first."""
    digit_position = {
        m: i
        for i, digit in reversed(list(enumerate(layout.digits)))
        for m in layout.stored[digit.dim].members
    }
    return [rank for _, rank in sorted((digit_position.get(k, -1), rank) for k, rank in enumerate(ranks))]


def _nest(e: Einsum, arch: Arch, staging: Staging, outer: Sequence[str], inner: Sequence[str]) -> Mapping:
    """Returns the nest of a staging. outer, inner: order of the loops above the tile and below it, as
    ranks, outermost first.
    """
    home, tile_outside = arch.levels[0].name, dict(e.extents)
    nodes: list[Loop | Store] = [Store(home, "A"), Store(home, "B")]
    for box, order, stores in (
        (staging.tile, outer, staging.upper),
        (staging.inner_tile, inner, () if staging.in_arrays else staging.lower),
    ):
        tile = {rank: min(tile_outside[rank], n) for rank, n in zip(tile_outside, box, strict=True)}
        nodes += [*(Loop(rank, tile[rank]) for rank in order if tile[rank] < tile_outside[rank]), *stores]
        tile_outside = tile
    placed_stores = [store for store in nodes if isinstance(store, Store)]
    return Mapping(
        (
            *nodes,
            *_innermost_nodes(
                e, arch, tile_outside, staging.lower if staging.in_arrays else (), placed_stores
            ),
        )
    )


def _innermost_nodes(
    e: Einsum, arch: Arch, tile_of: dict[str, int], lower: Sequence[Store], placed_stores: Sequence[Store]
) -> list[Loop | Store]:
    """Returns the innermost nodes of a nest: spatial loops over the tile that is left, storage nodes inside
    the arrays (those of `lower`, and mandatory ones), and temporal loops over what is left then. tile_of:
    tile of each rank, is updated; placed_stores: storage nodes that the nest has already.
    """
    nodes = list[Loop | Store]()
    for v in range(1, len(arch.levels) + 1):
        for dim, size in (one for f in arch.fanouts if f.outside == v for one in f.dims):
            while (
                largest := max(
                    (max(d for d in divisors(n) if d <= size), rank) for rank, n in tile_of.items()
                )
            )[0] > 1:
                part, rank = largest
                tile_of[rank], size = tile_of[rank] // part, size // part
                nodes.append(Loop(rank, tile_of[rank], dim))
        for level in arch.levels[v : v + 1]:
            mandatory = [] if level.bypass else [Store(level.name, t) for t in may_keep(e, level)]
            level_stores = dict.fromkeys((*(one for one in lower if one.level == level.name), *mandatory))
            nodes += [one for one in level_stores if one not in placed_stores]
    return [*nodes, *(Loop(rank, 1) for rank, n in tile_of.items() if n > 1)]
