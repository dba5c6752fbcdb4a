"""Cost of directives (docs/model.md, Directives): layers that are nests are costed as nests, other layers by
the counts of boxes.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from dse.mapping import directives, matched, nest
from dse.mapping.directives import FIRST_LINE, FIRST_LINE_WHOLE, Layer, NotANest, TensorTile
from dse.mapping.nest import NON_NEST, Infeasible
from dse.sim.counts import counts
from dse.sim.counts.actions import Key, bits_of
from dse.sim.counts.counts import Elems
from dse.sim.directives import box_hops, boxes
from dse.sim.directives.boxes import ALL, Program, Turn
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import GIVEN_MAPPING, EinsumCost, Problem, Solution, einsum_cost, sequential
from dse.sim.levels import rotation
from dse.sim.schedule import outermost
from hw.arch import Arch, Fanout
from workloads.einsum import Projection, canonical_key
from workloads.graph import Unique, Workload, unique

PREFIX = f"{NON_NEST}: directives whose tiles overlap"


@dataclass(frozen=True, slots=True)
class Ring:
    """Buffers along some stacks that share out a tile (dse/sim/levels/rotation.py)."""

    level: int  # index in Program.levels
    tensor: Projection
    stacks: tuple[Turn, ...]  # stacks whose buffers hold a part each
    pes: int  # number of buffers
    words: float  # words that all buffers together take from the next one of their ring


def evaluate_file(path: Path, workload: Workload, arch: Arch) -> Solution | Infeasible | None:
    """Returns the cost of a file of directives with at least one layer that is no nest; None for any other
    file. Raises ValueError with one line per fault, naming the file.
    """
    text = directives.read_if_directives(path)
    try:
        if text is None or matched.is_schedule(text):
            return None
        given = directives.parse_mappings(text, workload, arch)
        return (
            evaluate(arch, workload, given)
            if any(isinstance(layer_or_nest, NotANest) for layer_or_nest in given.values())
            else None
        )
    except ValueError as fault:
        raise ValueError("\n".join(f"{path}: {line}" for line in str(fault).splitlines())) from None


def evaluate(
    arch: Arch, workload: Workload, given: Mapping[str, nest.Mapping | NotANest]
) -> Solution | Infeasible:
    """Returns the cost of unfused einsums. Raises ValueError with one line per fault.

    given: nest, or layer that is no nest, by einsum name
    """
    groups, costs, faults = unique(workload), list[EinsumCost | Infeasible](), list[str]()
    for group in groups:
        layer_or_nest, problem = given.get(group.names[0]), Problem(arch, group.einsum, "energy")
        if layer_or_nest is None:
            faults.append(f"directives: einsum {group.names[0]} has none; add it")
            continue
        try:
            if not isinstance(layer_or_nest, NotANest) and (
                lines := [
                    *nest.faults(layer_or_nest, group.einsum, arch),
                    *rotation.faults(layer_or_nest, group.einsum, arch),
                ]
            ):
                faults += lines
            else:
                costs.append(
                    layer_cost(layer_or_nest.layer, problem)
                    if isinstance(layer_or_nest, NotANest)
                    else einsum_cost(problem, layer_or_nest)
                )
        except ValueError as fault:
            faults.append(
                layer_or_nest.why or str(fault) if isinstance(layer_or_nest, NotANest) else str(fault)
            )
    if faults:
        raise ValueError("\n".join(faults))
    return outermost.overflow_unfused(arch, workload) or _sequential(costs, groups, arch)


def _sequential(
    costs: list[EinsumCost | Infeasible], groups: list[Unique], arch: Arch
) -> Solution | Infeasible:
    """Returns the unfused solution, with a certificate that names the layers that are no nest."""
    found = sequential(costs, groups, Problem(arch, groups[0].einsum, "energy"), GIVEN_MAPPING)
    if isinstance(found, Infeasible):
        return found
    names = [c.name for c in found.einsums if c.mapping.non_nest_text]
    which = f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}"
    return replace(
        found,
        certificate=f"{which}: directives that are no nest, counted as they stand; cycles are busy times; "
        f"{found.certificate}",
    )


def layer_cost(layer: Layer, problem: Problem) -> EinsumCost | Infeasible:
    """Returns the cost of one layer, counted by boxes even if a nest expresses it. Raises ValueError in one
    line where it is not counted.
    """
    e, arch = problem.einsum, problem.arch
    where = f"directives of {e.name}"
    if ordered := [b.level for b in layer.buffers if b.inside is not None]:
        raise ValueError(
            f"{where}, {ordered[0]}: tiles that overlap are not counted in order; begin the file with "
            f'"{FIRST_LINE_WHOLE}" to fetch tiles whole, as a nest does, or leave the words in order out'
        )
    uncounted = {
        "lines, rows or banks": arch.models_layout(),
        "widths that memories give elements (`bits`)": arch.narrows_or_widens(),
        "ports that serve some tensors, or writes apart from reads,": arch.with_ports(),
        "memories that PEs along dimensions share (`along`)": arch.with_sharing(),
        "first words that take time (`latency_ns`)": arch.with_latency(),
        "several computes": arch.units,
        "the ramp of a systolic array": any(f.systolic for f in arch.fanouts),
    }
    if what := next((what for what, has in uncounted.items() if has), ""):
        raise ValueError(
            f"{where}: {what} of {arch.name} are counted of nests only; begin the file with "
            f'"{FIRST_LINE_WHOLE}" '
            "to fetch tiles whole, as a nest does"
        )
    g = boxes.program(layer, e, arch)
    if overflow := _overfull(g, arch):
        return overflow
    held = boxes.footprints(g)
    if overflow := cost.overflow(held, e, arch):
        return overflow
    rows = boxes.count_rows(g, arch)
    rings = [_ring(g, v, tile, arch) for v, tiles in enumerate(g.tiles) for tile in tiles if tile.shares > 1]
    for ring in rings:
        _with_rotation(rows, ring, g)
    counts_ = counts.busiest(rows, e, arch)
    p = cost.price(counts_, e, arch)
    network_parts = [
        cost.Part(f.name, tensor, action, bits, bits * f.endpoint_pj)
        for f in arch.fanouts
        if f.endpoint_pj
        for tensor, action, bits in _endpoint_bits(g, f, rings, arch)
    ]
    network_parts += [
        cost.Part(f.name, tensor, action, bits, bits * f.hop_pj)
        for f in arch.fanouts
        if f.hop_pj
        for tensor, action, bits in _hops(g, f, rings, arch)
    ]
    energy = p.energy_pj + sum(part.energy_pj for part in network_parts)
    p = replace(p, energy_pj=energy, parts=(*p.parts, *network_parts))
    mapping, key = nest.Mapping((), f"{PREFIX}\n{layer}"), canonical_key(e)
    networks = [
        (
            f.name,
            f.dims,
            f.multicast,
            f.reduce,
            f.endpoint_pj,
            f.hop_pj,
            f.injected_at,
            f.multicast_from,
            f.mesh_region,
        )
        for f in arch.fanouts
    ]
    key_of_mapping = nest.mapping_key(f"{key} {arch.word_bits} {networks}", mapping)
    return EinsumCost(
        name=e.name,
        key=key,
        count=1,
        mapping=mapping,
        mapping_key=key_of_mapping,
        counts=counts_,
        footprint=tuple((row.level, row.tensor, row.elems) for row in held),
        energy_pj=energy,
        latency_cycles=p.latency_cycles,
        bottleneck=p.bottleneck,
        optimality_gap=0.0,
        gap_to_bound=0.0,
        price=p,
        refilled=tuple((row.level, row.tensor) for row in held if row.is_refilled),
    )


def layer_of(mapping: nest.Mapping) -> Layer | None:
    """Returns the layer of a mapping that is directives and no nest; None for other mappings."""
    return (
        directives.parse(f"{FIRST_LINE}{mapping.non_nest_text.removeprefix(PREFIX)}")[0]
        if mapping.non_nest_text.startswith(PREFIX)
        else None
    )


def _overfull(g: Program, arch: Arch) -> Infeasible | None:
    """Returns the first fan-out dimension on which stacks need more PEs than there are, or None."""
    for f in arch.fanouts:
        for name, size in f.dims:
            if (used := prod(turn.trips for turn in g.turns if turn.over == name)) > size:
                return Infeasible(f"{f.name}.{name}", used, size, g.e.name, "PEs")
    return None


def _ring(g: Program, v: int, tile: TensorTile, arch: Arch) -> Ring:
    """Returns the ring of a tile that buffers share out. Raises ValueError in one line where its parts cannot
    rotate evenly.
    """
    where = (
        f"directives of {g.e.name}, {g.levels[v]}: tensor{{{tile.tensor}}} shared by {tile.shares} buffers: "
    )
    p = next(p for p in g.e.tensors() if p.tensor == tile.tensor)
    f = next((f for f in arch.fanouts if set(tile.over) <= {name for name, _ in f.dims}), None)
    stacks = tuple(
        turn for turn in g.turns if turn.level == v and turn.over in tile.over and turn.rank not in p.ranks()
    )
    pes = prod(turn.trips for turn in stacks)
    if (
        p is g.e.output
        or f is None
        or not all(
            dict(zip((name for name, _ in f.dims), f.multicast, strict=True))[dim] for dim in tile.over
        )
    ):
        raise ValueError(
            f"{where}it must be an input, and {' '.join(tile.over)} dimensions of one fan-out that multicasts"
        )
    if pes != tile.shares:
        raise ValueError(f"{where}{pes} along {' '.join(tile.over)} hold the same; say shr={pes}")
    if arch.overlap != "free" or any(v not in g.levels_of(q) for q in g.e.tensors()):
        raise ValueError(
            f"{where}stalls for parts, and tensors that pass {g.levels[v]} by, are not counted; take "
            "overlap: free, and hold all of them there"
        )
    inside = [turn for turn in g.turns if turn.level > v and not turn.over and turn.trips > 1]
    moving_index = next((i for i, turn in enumerate(inside) if turn.rank in p.ranks()), len(inside))
    if moving_index == len(inside) or inside[moving_index].trips % tile.shares:
        trips = inside[moving_index].trips if moving_index < len(inside) else 1
        raise ValueError(
            f"{where}the outermost update further in that moves it makes {trips} trips, which are not shared "
            f"out evenly by {tile.shares} buffers; take tiles that give a multiple of them"
        )
    rank = inside[moving_index].rank
    tile_dims = [
        (q, d, w)
        for q in g.e.tensors()
        for d in q.dims
        for w in range(v, inside[moving_index].level + 1)
        if w in g.levels_of(q) and (q is p or rank in d.ranks())
    ]
    if any(rank in q.partial_ranks() for q in g.e.tensors()) or any(
        boxes.overlaps(g, q, d, w) for q, d, w in tile_dims if w == v or rank in d.ranks()
    ):
        raise ValueError(
            f"{where}tiles that overlap there, or along {rank}, cannot go round; hold them whole"
        )
    words = (
        prod(turn.trips for turn in inside[:moving_index])
        * (pes - 1)
        / pes
        * boxes.fills(g, p, v, lambda _: ALL)
    )
    return Ring(v, p, stacks, pes, words)


def _with_rotation(rows: dict[Key, Elems], ring: Ring, g: Program) -> None:
    """Changes counts for a tile that rotates: a buffer is filled with its part only; each part that arrives
    is read in one buffer and written in the next.
    """
    level, tensor = g.levels[ring.level], ring.tensor.tensor
    buffers = prod(turn.trips for turn in g.turns if turn.over and turn.level <= ring.level)
    for action, divisor in (("read", 1), ("write", ring.pes)):
        total, per_buffer = rows.get((level, tensor, action), (0, [0.0] * len(next(iter(rows.values()))[1])))
        rows[level, tensor, action] = (
            total / divisor + ring.words,
            [n / divisor + ring.words / buffers for n in per_buffer],
        )


def _hops(g: Program, f: Fanout, rings: list[Ring], arch: Arch) -> Iterator[tuple[str, str, float]]:
    """Yields (tensor, action, bits times links) on a mesh."""
    bits = bits_of(g.e, arch)
    for p, outer, v in box_hops.crossing(g, f, arch):
        ring = next((ring for ring in rings if ring.level == v and ring.tensor is p), None)
        yield (
            p.tensor,
            "hop",
            bits[p.tensor] * box_hops.links(g, f, p, outer, v, arch, ring.stacks if ring else ()),
        )
        if ring:
            yield (
                p.tensor,
                "rotate",
                bits[p.tensor] * ring.words * box_hops.ring_links(box_hops.mesh(g, f, ring.stacks)),
            )


def _endpoint_bits(g: Program, f: Fanout, rings: list[Ring], arch: Arch) -> Iterator[tuple[str, str, float]]:
    """Yields (tensor, action, bits that PEs of a fan-out take and give)."""
    order, bits = [level.name for level in arch.levels], bits_of(g.e, arch)
    skips = {level.name for level in arch.levels if level.skip_first_read}
    for p in g.e.tensors():
        levels, output = g.levels_of(p), p is g.e.output
        for outer, v in itertools.pairwise(levels):
            if order.index(g.levels[outer]) < f.outside <= order.index(g.levels[v]):
                ring = next((ring for ring in rings if ring.level == v and ring.tensor is p), None)
                n = boxes.fills(g, p, v, lambda _: ALL)
                read_back = n - boxes.first_reads(g, p, v, lambda _: ALL) if g.levels[outer] in skips else n
                yield (
                    p.tensor,
                    "endpoint",
                    bits[p.tensor] * (n / (ring.pes if ring else 1) + (read_back if output else 0)),
                )
                if ring:
                    yield p.tensor, "rotate_endpoint", 2 * ring.words * bits[p.tensor]
        if order.index(g.levels[levels[-1]]) < f.outside:
            product_count, result_count = boxes.products(g, boxes.values_per_buffer(g), lambda _: ALL)
            yield (
                p.tensor,
                "endpoint",
                bits[p.tensor]
                * (
                    2 * product_count - (result_count if g.levels[levels[-1]] in skips else 0)
                    if output
                    else product_count
                ),
            )
