"""Counts and footprints of a mapping in closed form, exact also with imperfect tiles (docs/model.md, Counts).
The sums are those of terms.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from math import prod

from dse.mapping.nest import Loop, Mapping, Store, bits_at, role, stored_at
from dse.sim.counts.actions import UNPRICED, Key
from dse.sim.counts.terms import (
    End,
    Formulas,
    NestSums,
    Row,
    Term,
    Wiring,
    additions,
    crossing,
    drains,
    fills,
    folds,
    instances,
    merges,
    nonzero_share,
    passes,
    resting_position,
    serves,
    value,
    wiring,
    without_tile_sizes,
    writes,
)
from hw.arch import OUTSIDE, Arch, Fanout
from workloads.einsum import Dim, Einsum, Projection
from workloads.graph import base_of_any


@dataclass(frozen=True, slots=True)
class Count:
    """One action of one tensor at one level, in elements. Counts are whole numbers; expected ones where an
    operand is sparse.
    """

    level: str
    tensor: str
    # read, write, compute, merge (partial sums of PEs are added), fold (a systolic array fills and empties),
    # wait (for the first word of a level)
    action: str
    elems: float  # of all instances
    busiest_elems: float  # of the instance whose port is the busiest

    @property
    def key(self) -> Key:
        """Returns (level, tensor, action)."""
        return self.level, self.tensor, self.action


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one instance of a level holds of one tensor."""

    level: str
    tensor: str
    elems: int | Fraction  # elements; of a compressed tensor, its bits divided by the bits of an element
    # filled more than once (a temporal loop stands above the position that the node sinks to), so a double
    # buffer doubles it
    is_refilled: bool


class Violated(RuntimeError):
    """A contradiction in the model, after which no result can be trusted. The message names the einsum, the
    machine and the mapping.
    """


Elems = tuple[float, list[float]]  # of all instances; of each instance that may be the busiest of a port


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of one mapping of one einsum: made once (`counted`), then read by all that prices them."""

    mapping: Mapping  # the whole nest, with the shared part of a schedule
    sums: NestSums  # the sums of that nest, with its links
    rows: tuple[Count, ...]
    footprints: Sequence[Footprint]
    # sums of the nest whose latency, with stalls, is the einsum's; None: the latency is the largest busy time
    timed: NestSums | None
    restart_at: int = 0  # levels start empty in every iteration of the loops of `timed` above this position
    moves_more: bool = False  # rows have transfers that `timed` has not; the latency is at least their time
    before: tuple[Count, ...] = ()  # transfers beside the nest, while nothing else runs
    # (weight, nest, restart_at) of nests whose latencies, weighted, are the einsum's (instead of `timed`)
    in_part: tuple[tuple[float, NestSums, int], ...] = ()


def nest_sums(mapping: Mapping, e: Einsum, arch: Arch, whole_einsum: Einsum | None = None) -> NestSums:
    """Returns the sums of one mapping.

    whole_einsum: the whole einsum, where e is a part of it; products per element are those of the whole
    """
    if mapping.whole_tiles or mapping.shares:  # PEs pass parts of whole tiles round
        e = e.without_pattern()
    formulas = recipe(without_tile_sizes(mapping), e, wiring(arch), whole_einsum or e)
    tiles = [node.tile for node in mapping.nodes if isinstance(node, Loop)]
    return NestSums(formulas, partial(value, tiles), instances(formulas, [tiles]))


def counted(mapping: Mapping, e: Einsum, arch: Arch, held: Sequence[Footprint] = ()) -> Counted:
    """Returns a mapping counted, for an einsum that runs alone.

    held: the mapping's footprints, which the caller has checked: only a mapping that fits is counted
    """
    sums = nest_sums(mapping, e, arch)
    return Counted(mapping, sums, busiest(instance_counts(sums), e, arch), held, sums)


def added_up(rows: Sequence[Count], more: Sequence[Count]) -> Sequence[Count]:
    """Returns rows, each with those of `more` of the same level, tensor and action added; then the others."""
    if not more:
        return rows
    found = {row.key: row for row in rows}
    for row in more:
        same = found.get(row.key, Count(*row.key, 0.0, 0.0))
        found[row.key] = Count(*row.key, same.elems + row.elems, same.busiest_elems + row.busiest_elems)
    return tuple(found.values())


def count(mapping: Mapping, e: Einsum, arch: Arch) -> tuple[Count, ...]:
    """Returns reads and writes per level and tensor, operations, and folds of systolic arrays. Rows without
    elements are left out.
    """
    return busiest(instance_counts(nest_sums(mapping, e, arch)), e, arch)


def instance_counts(sums: NestSums) -> dict[Key, Elems]:
    """Returns, by row key, the counts of every instance that may be the busiest."""
    return {
        row.key: (sums.total(row.total), sums.by_instance(row.one_instance)) for row in sums.formulas.rows
    }


def busiest(rows: dict[Key, Elems], e: Einsum, arch: Arch) -> tuple[Count, ...]:
    """Returns, for each row, the total and the count of the instance whose port is the busiest."""
    instance_count = len(next(iter(rows.values()))[1])
    busiest_index: dict[Key, int] = {}
    for level in arch.levels if instance_count > 1 else ():
        ports: dict[str, list[tuple[Key, float]]] = {}  # by port: its rows, and bits per element at its rate
        for key in rows:
            if key[0] == level.name:
                name, times = level.port(role(e, key[1]), key[2])
                bits = bits_at(level, key[1], e, arch)
                ports.setdefault(name, []).append((key, bits if times == 1 else bits / times))
        for own in ports.values():
            port_bits = [sum(bits * rows[key][1][i] for key, bits in own) for i in range(instance_count)]
            busiest_index |= dict.fromkeys((key for key, _ in own), port_bits.index(max(port_bits)))
    return tuple(
        Count(*key, total, per_instance[busiest_index.get(key, 0)])
        for key, (total, per_instance) in rows.items()
        if total or (key[2] in OUTSIDE and any(per_instance))
    )


@lru_cache(maxsize=1 << 12)
def recipe(nest: Mapping, e: Einsum, wires: Wiring, whole_einsum: Einsum) -> Formulas:
    """Returns the formulas of a nest's counts, the same for all tile sizes, rows in the order of its nodes.

    For the node of a tensor at level L: reads_L = R - S + A + W', writes_L = W + R' - S' (docs/model.md,
    Counts).
    R, W: reads and writes that the node serves inward
    R', W': the node's own fills and drains
    S, S': skipped first reads of an output, as served and as filled
    A: reads with which the node adds what PEs write to what others wrote before (`additions`)
    Of fills and drains that go through a port of their own (wires.outside) a row of their own has what the
    busiest instance moves, and no total: they are part of the writes and reads.

    whole_einsum: as in `nest_sums`
    """
    s = Formulas(e, nest, wires, whole_einsum)
    found: dict[Key, tuple[list[Term], list[Term]]] = {}

    def add(store: Store, action: str, terms: Sequence[tuple[Term, ...]], outside: str = "") -> None:
        row = found.setdefault((store.level, store.tensor, action), ([], []))
        row[0].extend(terms[0])
        if outside and (store.level, role(e, store.tensor), outside) in wires.outside:
            row = found.setdefault((store.level, store.tensor, outside), ([], []))
        row[1].extend(terms[1])

    for link in s.links:
        output = link.is_output
        skips = (False, True) if output and link.parent.level in wires.skips else (False,)
        for skip in skips:
            add(
                link.parent,
                "read",
                [serves(s, link, one_instance, skip=skip) for one_instance in (False, True)],
            )
        if output and len(skips) > 1:
            add(link.parent, "read", [additions(s, link, one_instance) for one_instance in (False, True)])
        if output:
            add(link.parent, "write", [writes(s, link, one_instance) for one_instance in (False, True)])
        for skip in skips if link.child else ():
            add(
                link.child or link.parent,
                "write",
                [fills(s, link, one_instance, skip=skip) for one_instance in (False, True)],
                "fill",
            )
        if output and link.child:
            drained = [drains(s, link, one_instance) for one_instance in (False, True)]
            add(link.child, "read", drained, "drain")
    rows = [Row(key, tuple(total), tuple(one_instance)) for key, (total, one_instance) in found.items()]
    if merge_terms := tuple(
        term for link in s.links if link.is_output and link.child for term in merges(s, link)
    ):
        rows.append(Row(("MAC", e.output.tensor, "merge"), merge_terms, ()))
    all_points, first_pe_points = (
        Term(nonzero_share(e), passes(s, len(nest.nodes), all_pes)) for all_pes in (True, False)
    )
    rows.append(Row(("MAC", "-", "compute"), (all_points,), (first_pe_points,)))
    for array in wires.systolic:
        fold_terms = (folds(s, array),)
        rows.append(Row((array.name, "-", "fold"), fold_terms, fold_terms))
    # of a level that inputs are read from, one first word is waited for: later requests are sent ahead
    sources = {link.parent.level for link in s.links if not link.is_output}
    once = (Term(1, ()),)
    rows += [Row(("-", name, "wait"), once, once) for name in sorted(wires.waits & sources)]
    s.rows = tuple(rows)
    return s


def steps(sums: NestSums) -> tuple[Count, ...]:
    """Returns the rows of `count` that use no port: operations, folds of systolic arrays, waits for first
    words. Their busiest instance is the first.
    """
    return tuple(
        Count(*row.key, sums.total(row.total), sums.total(row.one_instance))
        for row in sums.formulas.rows
        if row.key[2] in ("compute", *UNPRICED) and row.key[2] not in OUTSIDE
    )


def footprints(mapping: Mapping, e: Einsum, arch: Arch) -> tuple[Footprint, ...]:
    """Returns what each storage node holds per instance (docs/model.md, Capacity), in the order of the nodes.

    Hulls are not clipped. A node sinks through the loops directly below that move its tensor: the same
    fetches need less capacity. Nodes at levels that describe lines do not sink (`terms.resting_position`). At
    the outermost level a tensor is stored whole, wherever its node stands.
    """
    projections = {p.tensor: p for p in e.tensors()}
    outer = arch.levels[0].name
    layout_levels = arch.layout_levels()
    formats = {level.name: level.formats for level in arch.levels}
    level_above: dict[str, str] = {}  # tensor -> level of its last node
    found = []
    tile, below_loop = e.sizes(), False
    for i, node in enumerate(mapping.nodes):
        if isinstance(node, Loop):
            below_loop = below_loop or (not node.over and node.tile < tile[node.rank])
            tile[node.rank] = node.tile
            continue
        p = projections[node.tensor]
        if node.level == outer:
            stored = p.stored_bits(arch.word_bits) * takes_capacity(p, e)
            found.append(Footprint(node.level, node.tensor, in_elems(p, stored, arch.word_bits), False))
            level_above[node.tensor] = node.level
            continue
        sink_nodes = (
            mapping.nodes[i : resting_position(p, e, mapping, i, level_above[node.tensor], layout_levels)]
            if node.tensor in level_above
            else ()
        )
        level_above[node.tensor] = node.level
        sunk_tile = tile | {loop.rank: loop.tile for loop in sink_nodes if isinstance(loop, Loop)}
        refilled = below_loop or any(
            isinstance(loop, Loop) and loop.tile < tile[loop.rank] for loop in sink_nodes
        )
        p = stored_at(formats[node.level], p, e)
        found.append(Footprint(node.level, node.tensor, tile_words(p, sunk_tile, arch.word_bits), refilled))
    return tuple(found)


def takes_capacity(p: Projection, e: Einsum) -> bool:
    """True if a tensor takes capacity where it is stored whole. A second access (T_again) is the same tensor
    and takes none.
    """
    return base_of_any(p.tensor, [q.tensor for q in e.tensors()], [e.output.tensor]) == p.tensor


def hull(p: Projection, tile: dict[str, int], dims: Sequence[Dim] | None = None) -> int:
    """Returns the elements of a tile's bounding box. dims: the dimensions to count; None: all"""
    return prod(dim.hull(tile) for dim in (p.dims if dims is None else dims))


def tile_bits(p: Projection, tile: dict[str, int], word_bits: int) -> int:
    """Returns the bits of a tile: if dense, its hull; for CSR, whole nonzeros with an index each, and a
    pointer per row.
    """
    return p.tile_bits(hull(p, tile), hull(p, tile, p.dims[:-1]), word_bits)


def tile_words(p: Projection, tile: dict[str, int], word_bits: int) -> int | Fraction:
    """Returns the size of a tile in widths of an element; for a compressed tensor it need not be whole."""
    return hull(p, tile) if p.format == "dense" else in_elems(p, tile_bits(p, tile, word_bits), word_bits)


def in_elems(p: Projection, bits: int, word_bits: int) -> int | Fraction:
    """Returns bits in widths of the tensor's element, as an int where whole."""
    found = Fraction(bits, p.bits or word_bits)
    return found.numerator if found.denominator == 1 else found


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one tensor moves across a fan-out, both ways."""

    tensor: Projection
    at_source: float  # elements at the outer side; PEs that share an access count once
    at_pes: float  # elements at all PEs
    bits: int  # per element: the width at the parent's level, outside of the fan-out
    unshared: frozenset[str]  # ranks along which PEs share nothing
    access: float  # words per access of compute; 1 for a node
    is_dense: bool  # whether the level outside stores it dense


def deliveries(sums: NestSums, arch: Arch, f: Fanout) -> list[Delivery]:
    """Returns what crosses a fan-out, for each tensor whose parent node is outside and whose next node, or
    compute, is inside.
    """
    s, order = sums.formulas, arch.level_index()
    found = []
    for link in s.links:
        inner = order[link.child.level] if link.child else len(order)
        if not order[link.parent.level] < f.outside <= inner:
            continue
        stored, source_terms = s.stored(link, End.PARENT), [serves(s, link, False)]
        if link.is_output:
            source_terms.append(writes(s, link, False))
            source_terms += [serves(s, link, False, skip=True)] if link.parent.level in s.wires.skips else []
        found.append(
            Delivery(
                link.tensor,
                sum(map(sums.total, source_terms)),
                sums.total(crossing(s, link)),
                bits_at(arch.levels[order[link.parent.level]], link.tensor.tensor, s.e, arch),
                s.unshared(link),
                1.0 if link.child else s.access(link),
                stored.format == "dense",
            )
        )
    return found
