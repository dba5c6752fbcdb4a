"""What layouts cost at levels that describe lines, rows or banks (hw/arch.py: Access), by counting the boxes
that a nest requests (docs/model.md, Layouts).

A box is what all PEs request from a level at once: the union of their tiles at the tensor's next node. One
transfer serves one box. At the outermost level a tensor is stored whole, in the layout of its stored shape.
Further inside, a tile is stored by itself, in the layout of the tile's shape. Each tensor has its own banks.
Levels that describe none of these have no transfers.

Longer than most files: boxes, their number and their order are defined once, for lines, rows and banks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from dse.layout import count as layouts
from dse.layout.address import Layout, Spans, check_listable, in_units, row_major, values
from dse.layout.count import CountRange, Counts, ValueSets
from dse.layout.primitive import LayoutError
from dse.layout.text import parse, show
from dse.mapping.nest import Loop, Mapping, bits_at, role
from dse.sim.counts.actions import Delay, Key, elem_cycles
from dse.sim.counts.counts import Counted, Footprint
from dse.sim.counts.counts import footprints as count_footprints
from dse.sim.counts.spans import ALL, ALL_PES, FIRST
from dse.sim.counts.terms import (
    Link,
    Term,
    additions,
    links,
    moves_in_lines,
    nonzero_share,
    serves,
    tile_count,
    tile_sizes,
)
from hw.arch import Access, Arch, Level
from workloads.arrays import Ints
from workloads.einsum import Dim, Einsum, Projection

# most elements whose addresses are listed one by one, where a line, row or bank ends inside of a digit
MAX_LISTED = 1 << 20
NO_ROWS = CountRange(0, 0, 0)  # no rows opened
NO_LOOP = -1  # less than the position of any loop: no window slides
PAST_LOOPS = 1 << 30  # more than the position of any loop, as `united_from`: each trip has a box of its own


@dataclass(frozen=True, slots=True)
class Transfer:
    """Traffic of one tensor at one level, read or written, over a whole einsum, and what its layout costs
    beside the elements.
    """

    level: str
    tensor: str
    action: str
    layout: str  # text of the layout
    elems: int  # elements requested
    counted_elems: float  # elements that the port is busy for (`Count.elems`), all instances
    busiest_elems: float  # the same of the busiest instance
    runs: int  # runs of consecutive addresses
    moved_bits: CountRange  # lines that move, in bits
    activations: CountRange  # rows opened
    conflict: CountRange  # words of the busiest bank, summed over boxes
    descriptors: int  # DMA descriptors
    misses: float  # lines that were not prefetched
    unused_bits: float  # bits of lines beyond the requested elements
    modified_bits: float  # bits of lines that are read first, since only a part of them is written
    extra_cycles: float  # cycles of the port beyond the cycles of the elements
    exact: bool  # True: no count is an estimate

    def added_cycles(self, level: Level) -> float:
        """Returns the cycles of the port beyond those of the elements. level: that of the transfer."""
        return self.unused_bits / level.width_bits / level.bandwidth + self.extra_cycles


def transfers(c: Counted, arch: Arch) -> dict[Key, Transfer]:
    """Returns the transfers by (level, tensor, action); empty where no level is described."""
    s, found = c.sums.formulas, dict[Key, Transfer]()
    for link in s.links:
        if link.parent.level in s.wires.layout_levels:
            found |= of_layout(c, link, arch, layout_of(c.mapping, link, s.e, arch))
    return found


def of_layout(c: Counted, link: Link, arch: Arch, layout: Layout) -> dict[Key, Transfer]:
    """Returns the transfers over one link to a described level, with the tensor in the given layout. They
    depend on the nest's loops and on this layout alone. Empty for tensors with zeros, which move as if
    packed.
    """
    served = c.sums.formulas.served(link)
    moves_lines = moves_in_lines(link.tensor) and (link.child or nonzero_share(served) == 1)
    moved = _of_link(c, link, arch, layout) if moves_lines else ()
    return {(one.level, one.tensor, one.action): one for one in moved}


def delays(transfer_of: Dict[Key, Transfer], e: Einsum, arch: Arch) -> dict[Key, Delay]:
    """Returns what layouts add to the time of ports, by (level, tensor, action). All transfers of a tensor
    take the same share longer; what a port does for other tensors does not.
    """
    levels, found = {level.name: level for level in arch.levels}, dict[Key, Delay]()
    for key, one in transfer_of.items():
        level, tensor = levels[one.level], one.tensor
        cycles = one.added_cycles(level)
        plain = one.counted_elems * elem_cycles(
            level, bits_at(level, tensor, e, arch), role(e, tensor), one.action
        )
        if cycles > 0 and plain > 0:
            found[key] = Delay(cycles * one.busiest_elems / one.counted_elems, cycles / plain)
    return found


def layout_energy(
    transfer_of: Dict[Key, Transfer], arch: Arch
) -> Iterator[tuple[str, str, str, float, float]]:
    """Yields the energy of layouts beside the energy of the elements, as rows (level, tensor, action,
    actions, energy in pJ). Actions: unused (bits of lines that were not requested), modify (lines read to
    be written), open (rows opened).
    """
    levels = {level.name: level for level in arch.levels}
    for one in transfer_of.values():
        level = levels[one.level]
        if one.unused_bits:
            actions = one.unused_bits / level.width_bits
            yield (
                one.level,
                one.tensor,
                "unused",
                actions,
                actions * (level.read_pj if one.action == "read" else level.write_pj),
            )
        if one.modified_bits:
            yield (
                one.level,
                one.tensor,
                "modify",
                one.modified_bits / level.width_bits,
                one.modified_bits / level.width_bits * level.read_pj,
            )
        if level.access and (opened := one.activations.n * level.access.row_pj):
            yield one.level, one.tensor, "open", one.activations.n, opened


def dim_names(p: Projection) -> tuple[str, ...]:
    """Returns the names of a tensor's dimensions in texts of layouts: the first rank in upper case, or D0_,
    D1_ ... for all dimensions where two names would be equal.
    """
    names = tuple((d.terms[0][0].upper() if d.terms else f"D{k}") for k, d in enumerate(p.dims))
    names = tuple(f"{name}_" if name[-1].isdigit() else name for name in names)
    return (
        names
        if len(set(names)) == len(names) and all(name != name.lower() for name in names)
        else tuple(f"D{k}_" for k in range(len(names)))
    )


def shape_at(mapping: Mapping, link: Link, e: Einsum, arch: Arch) -> tuple[int, ...]:
    """Returns the shape that is laid out at the parent's level: the stored tensor at the outermost level,
    otherwise a tile.
    """
    if link.parent.level == arch.levels[0].name:
        return tuple(d.size for d in link.tensor.dims)
    tile = e.sizes() | {
        node.rank: node.tile for node in mapping.nodes[: link.parent_at] if isinstance(node, Loop)
    }
    return tuple(d.hull(tile) for d in link.tensor.dims)


def layout_of(mapping: Mapping, link: Link, e: Einsum, arch: Arch) -> Layout:
    """Returns the layout that the mapping names, otherwise row-major. Raises LayoutError."""
    names, shape = dim_names(link.tensor), shape_at(mapping, link, e, arch)
    text = next(
        (
            one.text
            for one in mapping.layouts
            if (one.level, one.tensor) == (link.parent.level, link.tensor.tensor)
        ),
        None,
    )
    layout = row_major(names, shape) if text is None else parse(text, names, shape)
    if any(guest == link.tensor.tensor for digit in layout.digits for guest, _ in digit.guests):
        raise LayoutError(
            f'layout "{text}": {link.tensor.tensor} is no guest of itself; name another tensor behind &'
        )
    return layout


@dataclass(frozen=True, slots=True)
class Route:
    """One link of a nest on a machine, and what its boxes depend on."""

    link: Link
    e: Einsum
    is_outermost: bool  # the parent is the outermost level, where the whole tensor is laid out
    loops: tuple[tuple[int, Loop], ...]  # (position, loop) of the loops above the child
    # the loop below the child that its window slides along, if any; a transfer is then the part of the window
    # that the trip before did not have
    sliding: tuple[tuple[int, Loop], ...]
    shared: frozenset[str]  # fan-out dimensions whose PEs share an access
    bits: int  # per element

    @property
    def sliding_at(self) -> int:
        """Returns the position in the nest of the loop in `sliding`, or NO_LOOP."""
        return self.sliding[0][0] if self.sliding else NO_LOOP


def _of_link(c: Counted, link: Link, arch: Arch, layout: Layout) -> Iterator[Transfer]:
    """Yields the transfers of one link: reads of an input; writes of an output, and reads of its partial
    sums.
    """
    sums, level = c.sums, next(one for one in arch.levels if one.name == link.parent.level)
    s, below = sums.formulas, link.child_at + 1
    r = Route(
        link,
        s.e,
        level is arch.levels[0],
        _loops(c.mapping, 0, link.child_at),
        _loops(c.mapping, below, below + 1) if link.child and link.rests_at > below else (),
        frozenset(
            name for name, multicast, reduce in s.wires.dims if (reduce if link.is_output else multicast)
        ),
        bits_at(level, link.tensor.tensor, s.e, arch),
    )
    visits, first_visits = (_visits(r, link.child_at, skip) for skip in (False, True))
    skips_first = level.skip_first_read and not link.tensor.partial_ranks()

    def elems(is_read_of_output: bool) -> tuple[float, float]:
        """Returns the elements of all instances, and of the busiest one."""

        def terms(one: bool) -> tuple[Term, ...]:
            if not (is_read_of_output and level.skip_first_read):
                return serves(s, link, one)
            skipped, added = serves(s, link, one, skip=True), additions(s, link, one)
            return (*serves(s, link, one), *skipped, *added)

        return sums.total(terms(False)), max(sums.by_instance(terms(True)))

    if not link.is_output:
        yield _transfer(r, level, layout, "read", visits, False, elems(False))
        return
    yield _transfer(r, level, layout, "write", visits, False, elems(False))
    if read_visits := visits - (first_visits if skips_first else 0):
        yield _transfer(r, level, layout, "read", read_visits, skips_first, elems(True))


def _loops(mapping: Mapping, begin: int, end: int) -> tuple[tuple[int, Loop], ...]:
    """Returns (position, loop) of the loops at positions begin..end-1."""
    return tuple(
        (i, node) for i, node in enumerate(mapping.nodes) if begin <= i < end and isinstance(node, Loop)
    )


def _visits(r: Route, united_from: int, first: bool = False) -> int:
    """Returns how often a box is requested: the product of the trips of loops outside of position
    `united_from` over ranks that the tensor lacks. PEs that share an access count once.

    united_from: boxes of all trips of the loops from this position on are united into one
    first: only the first request of each box counts
    """
    trips_counted = {
        i: FIRST if first or i >= united_from or loop.over in r.shared else ALL_PES if loop.over else ALL
        for i, loop in r.loops
    }
    return prod(
        tile_count(extent, tuple((loop.tile, trips_counted[i]) for i, loop in r.loops if loop.rank == rank))
        for rank, extent in r.e.extents
        if rank not in r.link.ranks
    )


def _transfer(
    r: Route,
    level: Level,
    elem_layout: Layout,
    action: str,
    visits: int,
    skips_first: bool,
    counted: tuple[float, float],
) -> Transfer:
    """Returns the transfer of one link for one action.

    elem_layout: the layout, in elements
    visits: how often each box is requested
    skips_first: True leaves out the first of the visits
    counted: elements of the count row, and of its busiest instance; bits of lines beyond these elements are
        unused
    """
    a, link, (counted_elems, busiest_elems) = level.access, r.link, counted
    assert a is not None
    bits = r.bits
    layout, memory, unit_bits = _in_units(elem_layout, bits, a)
    cuts = layouts.cuts(layout, memory)
    copies = action == "write"
    found = _count_boxes(cuts, _boxes(r, layout, PAST_LOOPS, copies), visits)
    elems = found.elems * unit_bits // bits
    activations = _rows_opened(r, cuts, copies, visits, skips_first, found) if a.row_bits else NO_ROWS
    if action == "read" and link.is_output and link.tensor.partial_ranks():
        found = replace(found, lines=_at_most(found.lines), conflict=_at_most(found.conflict))
        activations = _at_most(activations)
    moved_bits = CountRange(*(n * a.line_bits for n in (found.lines.n, found.lines.lo, found.lines.hi)))
    port_cycles = moved_bits.n / level.width_bits / level.bandwidth
    runs, lines = found.runs, found.lines.n
    descriptor_count = layouts.descriptors(found, a.dma_strides) if a.descriptor_cycles else 0
    miss_count = (
        layouts.misses(runs, lines, a.prefetch_lines, a.prefetch_run, a.prefetch_line)
        if a.prefetch_lines
        else 0.0
    )
    open_cycles = (
        activations.n * a.row_cycles / max(1.0, found.banks.n / max(found.boxes, 1)) if a.row_bits else 0.0
    )
    bank_cycles = found.conflict.n * a.banks / level.bandwidth
    modified_bits = found.partial.n * a.line_bits if a.rmw and action == "write" else 0.0
    # opening rows and serving banks overlap the transfer; only what takes longer than that is extra
    extra_cycles = (
        max(0.0, open_cycles - port_cycles, bank_cycles - port_cycles)
        + descriptor_count * a.descriptor_cycles / a.dma_queues
        + miss_count * a.miss_cycles
        + modified_bits / level.width_bits / level.bandwidth
    )
    exact = (
        found.lines.exact
        and activations.exact
        and found.conflict.exact
        and (not modified_bits or found.partial.exact)
    )
    return Transfer(
        level.name,
        link.tensor.tensor,
        action,
        show(elem_layout),
        elems,
        counted_elems,
        busiest_elems,
        runs,
        moved_bits,
        activations,
        found.conflict,
        descriptor_count,
        miss_count,
        max(0.0, moved_bits.n - counted_elems * bits),
        modified_bits,
        extra_cycles,
        exact,
    )


def _at_most(span: CountRange) -> CountRange:
    """Returns the span with lower limit 0, for an output in which windows overlap: the part of a box that was
    written before, and is read again, is not counted exactly.
    """
    return CountRange(span.n, 0, span.hi)


def _in_units(elem_layout: Layout, bits: int, a: Access) -> tuple[Layout, layouts.Memory, int]:
    """Returns the layout in units, the largest parts of an element of which lines, rows and interleaved
    blocks are multiples; the memory in these units; and the bits of a unit.

    bits: per element
    """
    sizes = [
        n
        for n in (a.line_bits, a.row_bits, a.interleave_bits, a.capacity_bits if a.bank_map == "block" else 0)
        if n
    ]
    layout, unit = in_units(elem_layout, bits, sizes)
    line, row, interleave, capacity = (
        n // unit for n in (a.line_bits, a.row_bits, a.interleave_bits, a.capacity_bits)
    )
    return layout, layouts.Memory(line, row, a.row_banks, interleave, a.banks, a.bank_map, capacity), unit


def _count_boxes(cuts: layouts.Cuts, boxes: Sequence[Sequence[ValueSets]], visits: int) -> Counts:
    """Returns what all boxes ask of the memory, by closed forms; where these are not exact, by listing
    addresses if there are at most MAX_LISTED, in at most MAX_LISTED / 16 boxes.
    """
    found = layouts.combine(cuts, [layouts.sums(cuts, dim, rows) for dim, rows in enumerate(boxes)], visits)
    if found.exact:
        return found
    box_count = prod(sum(len(times) for _, times in rows) for rows in boxes)
    elems = prod(sum(v.size for v, _ in rows) for rows in boxes)
    return (
        layouts.count_listed(cuts, boxes, visits)
        if box_count <= MAX_LISTED >> 4 and max(elems, cuts.layout.stored_elems()) <= MAX_LISTED
        else found
    )


def _rows_opened(
    r: Route, cuts: layouts.Cuts, copies: bool, visits: int, skips_first: bool, per_box: Counts
) -> CountRange:
    """Returns the rows opened by all boxes in the order of time: an estimate between limits, or the exact
    number.

    Upper limit: every box opens its rows anew. But if the union of all boxes of some inner loops never has
    two rows of one bank, its rows stay open meanwhile, and count once for the union.
    Lower limit: the rows of the union of all boxes.
    If the two differ, the boxes are listed one by one, if they are few enough (`_box_by_box`).
    """
    # the data that the level holds stay the same in all trips of the loops from this position on
    first_at = 0 if r.is_outermost else r.link.parent_at
    loops = sorted({first_at, *(i for i, loop in r.loops if not loop.over and i >= first_at)})
    best, lo = per_box.activations, 0.0
    # which copies are read depends on the box, so united boxes give no limit
    if per_box.boxes > 1 and not copies and any(s.tile for s in cuts.layout.stored):
        loops, lo = [], min(1.0, best.lo)

    def united(i: int, best: CountRange, lo: float) -> tuple[CountRange, float]:
        """Returns the range and lower limit once the boxes of the loops from position i on are united."""
        rows = _boxes(r, cuts.layout, i, copies)
        if (
            lo
            and prod(max(indices.shape[1] for indices, _ in dim_sets) for dim_sets in rows if dim_sets)
            > cuts.memory.row * cuts.memory.banks
        ):
            return best, lo  # the union is larger than one row of all banks together
        found = _count_boxes(cuts, rows, min(_visits(r, i), visits))
        lowers_limit = found.activations.hi <= found.banks.lo and found.activations.hi < best.hi
        return found.activations if lowers_limit else best, lo or found.activations.lo

    for i in loops[:1]:
        best, lo = united(i, best, lo)
    if (
        best.hi > lo
        and r.is_outermost
        and (exact_rows := _box_by_box(r, cuts, copies, skips_first)) is not None
    ):
        return CountRange(exact_rows, exact_rows, exact_rows)
    for i in loops[1:] if best.hi > lo else ():
        best, lo = united(i, best, lo)
        if best.hi == lo:
            break
    return CountRange(max(best.n, lo), lo, best.hi)


def _box_by_box(r: Route, cuts: layouts.Cuts, copies: bool, skips_first: bool) -> int | None:
    """Returns the rows opened at the outermost level, box by box in the order of time; None if there are more
    than MAX_LISTED / 16 boxes or MAX_LISTED addresses.
    """
    e, link = r.e, r.link
    places_of = {
        rank: _positions(r, rank, extent, PAST_LOOPS, frozenset() if rank in link.ranks else r.shared)
        for rank, extent in e.extents
    }
    if prod(len(one.occurrences) for one in places_of.values()) > MAX_LISTED >> 4:
        return None
    place_index = _order(places_of, link.ranks, skips_first)
    offsets, start, set_index = list[Ints](), [0], list[Ints]()
    # per request of a box, in the order of time: one number per distinct box
    box_number = np.zeros(len(place_index[e.extents[0][0]]), np.int64)
    hulls = [_hulls(d, [places_of[rank] for rank in d.ranks()], True, r.sliding_at) for d in link.tensor.dims]
    for dim, s in enumerate(cuts.layout.stored):
        # per request: one number for the sets of indices that it has of the dimension's members
        combination = np.zeros(len(box_number), np.int64)
        # empty for the digit of units within an element
        members = [(hulls[m], link.tensor.dims[m]) for m in s.members if m < len(hulls)]
        for hull, d in members:
            place_number = np.zeros(len(box_number), np.int64)
            for rank in d.ranks():
                place_number = place_number * len(places_of[rank].occurrences) + place_index[rank]
            combination = combination * len(hull.spans) + hull.set_index[place_number]
        distinct, inverse = np.unique(combination, return_inverse=True)
        set_index.append(inverse.ravel() + len(start) - 1)
        box_number = np.unique(box_number * len(distinct) + inverse.ravel(), return_inverse=True)[1].ravel()
        for number in distinct.tolist():
            spans = list[Spans]()
            for hull, _ in reversed(members):
                number, k = divmod(number, len(hull.spans))
                spans.append(hull.spans[k])
            indices = values(s, spans[::-1], copies) if members else np.arange(s.extent())
            offsets.append(layouts.offset(cuts.layout, cuts.weights, dim, indices))
            start.append(start[-1] + len(indices))
    begin, boxes = (
        np.array(start, np.int64),
        np.stack(set_index, axis=1)[np.unique(box_number, return_index=True)[1]],
    )
    elems = (begin[boxes + 1] - begin[boxes]).prod(axis=1)
    block_counts = np.minimum(
        elems, cuts.layout.stored_elems() // (cuts.memory.interleave or cuts.memory.row) + 1
    )[box_number].sum()
    return (
        layouts.rows_opened(cuts, np.concatenate(offsets), begin, boxes, box_number)
        if max(int(elems.sum()), int(block_counts)) <= MAX_LISTED
        else None
    )


def _order(places_of: Dict[str, TilePositions], ranks: frozenset[str], skipped: bool) -> dict[str, Ints]:
    """Returns, per rank, its place (index in `TilePositions`) at each request of a box, in the order of time.
    PEs that share no access request the same box one after the other.

    ranks: the tensor's ranks
    skipped: True leaves out the first request in the first trips of all loops over other ranks
    """
    place_counts = [len(one.occurrences) for one in places_of.values()]
    place_index = dict(
        zip(places_of, np.unravel_index(np.arange(prod(place_counts)), place_counts), strict=True)
    )
    trip_at = {
        i: turn[place_index[rank]] for rank, one in places_of.items() for i, turn in one.trip_at.items()
    }
    pe_visits, is_counted = np.ones(prod(place_counts), np.int64), np.full(prod(place_counts), not skipped)
    for rank in places_of.keys() - ranks:
        pe_visits *= (places_of[rank].size > 0).sum(axis=1)[place_index[rank]]
        for i in places_of[rank].trip_at:
            is_counted |= trip_at[i] > 0
    order = (
        np.lexsort([trip_at[i] for i in sorted(trip_at, reverse=True)]) if trip_at else np.zeros(1, np.int64)
    )
    order = np.repeat(order, (pe_visits - ~is_counted)[order])
    return {rank: places[order] for rank, places in place_index.items()}


def _boxes(r: Route, layout: Layout, united_from: int, copies: bool) -> list[list[ValueSets]]:
    """Returns, per stored dimension, the sets of values that boxes request, and how often each occurs. The
    boxes of all trips of the loops from position `united_from` on are united into one.
    """
    sizes = r.e.sizes()
    by_dim = [
        _spans(
            d,
            [_positions(r, rank, sizes[rank], united_from) for rank in d.ranks()],
            r.is_outermost,
            r.sliding_at,
        )
        for d in r.link.tensor.dims
    ]
    found = []
    for s in layout.stored:
        if s.members[0] >= len(by_dim):  # the digit of units within an element
            found.append([(np.arange(s.extent())[None, :], np.ones(1, np.int64))])
            continue
        by_length: dict[int, tuple[list[Ints], list[int]]] = {}
        for combination in product(*(by_dim[m].items() for m in s.members)):
            indices = values(s, [spans for spans, _ in combination], copies)
            rows, times = by_length.setdefault(len(indices), ([], []))
            rows.append(indices)
            times.append(prod(n for _, n in combination))
        found.append(
            [
                (np.stack(rows), np.array(times, np.int64))
                for length, (rows, times) in by_length.items()
                if length
            ]
        )
    return found


@dataclass(frozen=True, slots=True)
class TilePositions:
    """The tiles of one rank at the child, at n places. A place is one combination of trips of the rank's
    temporal loops.
    """

    low: Ints  # [n, PEs] first index of each PE's tile
    size: Ints  # [n, PEs] size of each PE's tile; below 1: the PE idles
    occurrences: Ints  # [n] how often the place occurs
    trip_at: dict[int, Ints]  # position of a temporal loop -> its trip [n]


def _positions(
    r: Route, rank: str, extent: int, united_from: int, first_pe_dims: frozenset[str] = frozenset()
) -> TilePositions:
    """Returns the tiles of one rank. At the outermost level, indices count from the first of the whole
    tensor; further inside, from the first of the parent's tile, for each size that this tile has.

    united_from: boxes of all trips of the loops from this position on are united into one
    first_pe_dims: fan-out dimensions along which only the first PE counts, which has the largest tile
    """
    rank_loops = [(i, loop) for i, loop in r.loops + r.sliding if loop.rank == rank]
    begin = 0 if r.is_outermost else r.link.parent_at
    outside = tuple((loop.tile, ALL_PES if loop.over else ALL) for i, loop in rank_loops if i < begin)
    starts = tile_sizes(extent, outside)
    low = np.zeros((len(starts), 1), np.int64)
    size = np.array([[n] for n, _ in starts], np.int64)
    occurrences = np.array([n for _, n in starts], np.int64)
    trip_at = dict[int, Ints]()
    for i, node in [one for one in rank_loops if one[0] >= begin]:
        if node.over or i >= united_from:
            trip_count = 1 if node.over in first_pe_dims else -(-int(size.max()) // node.tile)
            check_listable(low.size * trip_count)
            trips = np.arange(trip_count)
            low = (low[:, :, None] + trips * node.tile).reshape(len(low), -1)
            size = np.minimum(size[:, :, None] - trips * node.tile, node.tile).reshape(len(size), -1)
            has_tile = (size > 0).any(axis=0)
            low, size = low[:, has_tile], size[:, has_tile]
        else:
            trip_counts = -(-size.max(axis=1) // node.tile)
            check_listable(int(trip_counts.sum()) * size.shape[1])
            parent = np.repeat(np.arange(len(size)), trip_counts)
            trip = np.arange(len(parent)) - np.repeat(np.cumsum(trip_counts) - trip_counts, trip_counts)
            trip_at = {k: before[parent] for k, before in trip_at.items()} | {i: trip}
            trip = trip[:, None]
            low = low[parent] + trip * node.tile
            size = np.minimum(size[parent] - trip * node.tile, node.tile)
            occurrences = occurrences[parent]
    return TilePositions(low, size, occurrences, trip_at)


@dataclass(frozen=True, slots=True)
class Hulls:
    """The sets of indices of one dimension that boxes request."""

    spans: list[Spans]  # different sets of indices
    set_index: Ints  # per combination of places of the ranks, the index in `spans`
    occurrences: list[int]  # how often each set occurs


def _hulls(d: Dim, ranks: Sequence[TilePositions], is_outermost: bool, sliding_at: int) -> Hulls:
    """Returns the hulls of all PEs' tiles, without padding. For a window that slides along the loop at
    position `sliding_at`, each trip after the first asks only for indices that the trip before did not have.
    """
    low = np.full((1, 1), d.offset if is_outermost else 0, np.int64)
    high, high_before, occurrences = low.copy(), low.copy(), np.ones(1, np.int64)
    idle, is_later = np.zeros((1, 1), bool), np.zeros((1, 1), bool)
    for (_, c), tiles in zip(d.terms, ranks, strict=True):
        last_before = tiles.low - 1 if sliding_at in tiles.trip_at else tiles.low + tiles.size - 1
        high_before = (high_before[:, None, :, None] + c * last_before[None, :, None, :]).reshape(
            len(low) * len(tiles.low), -1
        )
        is_later_trip = (
            tiles.trip_at[sliding_at] > 0 if sliding_at in tiles.trip_at else np.zeros(len(tiles.low), bool)
        )
        is_later = (is_later[:, None, :] | is_later_trip[None, :, None]).reshape(len(high_before), -1)
        low = (low[:, None, :, None] + c * tiles.low[None, :, None, :]).reshape(len(low) * len(tiles.low), -1)
        high = (high[:, None, :, None] + c * (tiles.low + tiles.size - 1)[None, :, None, :]).reshape(
            low.shape
        )
        idle = (idle[:, None, :, None] | (tiles.size < 1)[None, :, None, :]).reshape(low.shape)
        occurrences = np.outer(occurrences, tiles.occurrences).ravel()
    low = np.where(is_later, np.maximum(low, high_before + 1), low)
    if is_outermost:
        low, high = np.maximum(low, 0), np.minimum(high, d.size - 1)
    # an idle PE, or one that asks for padding alone, has the empty interval from -1 to -2
    low, high = np.where(idle | (high < low), -1, low), np.where(idle | (high < low), -2, high)
    distinct_sets, inverse = np.unique(np.concatenate([low, high], axis=1), axis=0, return_inverse=True)
    set_counts = np.bincount(inverse.ravel(), weights=occurrences, minlength=len(distinct_sets))
    pes = low.shape[1]
    return Hulls(
        [_union(row[:pes], row[pes:]) for row in distinct_sets.tolist()],
        inverse.ravel(),
        [int(n) for n in set_counts],
    )


def _spans(d: Dim, ranks: Sequence[TilePositions], is_outermost: bool, sliding_at: int) -> dict[Spans, int]:
    """Returns the sets of indices of one dimension that boxes request, and how often each occurs."""
    hulls, found = _hulls(d, ranks, is_outermost, sliding_at), dict[Spans, int]()
    for spans, n in zip(hulls.spans, hulls.occurrences, strict=True):
        found[spans] = found.get(spans, 0) + n
    return found


def _union(low: Sequence[int], high: Sequence[int]) -> Spans:
    """Returns the union of PEs' hulls, as spans that do not touch."""
    found: list[list[int]] = []
    for first, last in sorted(zip(low, high, strict=True)):
        if last < first:
            continue
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return tuple((first, last - first + 1) for first, last in found)


def footprints(mapping: Mapping, e: Einsum, arch: Arch) -> tuple[Footprint, ...]:
    """Returns `counts.footprints`, where a tile in a layout that the mapping names takes the capacity of that
    layout, with padding and copies.
    """
    plain = count_footprints(mapping, e, arch)
    if not mapping.layouts:
        return plain
    link_at = {(link.parent.level, link.tensor.tensor): link for link in links(mapping, e)}
    with_layout = {(one.level, one.tensor) for one in mapping.layouts}
    return tuple(
        replace(f, elems=max(f.elems, layout_of(mapping, link_at[place], e, arch).stored_elems()))
        if (place := (f.level, f.tensor)) in with_layout
        else f
        for f in plain
    )


def faults(mapping: Mapping, e: Einsum, arch: Arch) -> list[str]:
    """Returns one line per layout text that does not fit what is stored at its level. The mapping must have
    no fault of `nest.faults`.
    """
    lines = []
    for link in links(mapping, e):
        try:
            layout_of(mapping, link, e, arch)
        except LayoutError as fault:
            lines.append(f"mapping of {e.name}: layout {link.parent.level} {link.tensor.tensor}: {fault}")
    return lines
