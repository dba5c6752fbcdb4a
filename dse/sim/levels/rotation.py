"""Buffer sharing with rotation: PEs hold a part each of a tile and pass the parts round (docs/model.md,
Networks).

Without sharing, PEs that work on the same tile hold a copy each. With sharing, each of the M PEs of a ring
holds 1 / M of the tile, cut over the rank of the first loop below that moves it (the rotating loop). PE i
begins that loop with part i, continues with part i + 1, and so on round the ring. The parts move the other
way, one PE at a time: M - 1 steps per pass through the tile. The number of passes is the product of the trips
of the loops between the tile's node and the rotating loop.

    before: a PE holds F words, and is filled with F of them
    after:  F / M; of each pass (M - 1) / M * F words come from the next PE of the ring

PEs therefore run the rotating loop in different orders. No other count changes, as long as PEs share accesses
only outside of that loop. Source: Gao et al., TETRIS and Tangram (nn_dataflow); KAPLA's `shr`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from dse.mapping.nest import Loop, Mapping, Rotated, Store
from dse.sim.counts.actions import Key
from dse.sim.counts.counts import Elems, Footprint, instance_counts, nest_sums
from dse.sim.counts.terms import links, sink
from hw.arch import Arch, Fanout
from workloads.einsum import Einsum, Projection


@dataclass(frozen=True, slots=True)
class Ring:
    """A tile that rotates."""

    rotated: Rotated
    tensor: Projection
    fanout: Fanout
    node_at: int  # position of the tile's node
    rotating_loop: int  # position of the loop whose trips are the parts
    pes: int  # PEs of the ring, M
    passes: int  # passes through the tile, per fill


def rings(nest: Mapping, e: Einsum, arch: Arch) -> list[Ring]:
    """Returns one ring per shared tile. Raises ValueError with one line where a tile cannot be shared."""
    found: list[Ring] = []
    for tile in nest.shares:
        try:
            found.append(_ring(tile, nest, e, arch))
        except ValueError as why:
            raise ValueError(
                f"mapping of {e.name}: share {tile.level} {tile.tensor} over {' '.join(tile.dims)}: {why}"
            ) from None
        if found[-1].rotating_loop in [other.rotating_loop for other in found[:-1]]:
            raise ValueError(
                f"mapping of {e.name}: share {tile.level} {tile.tensor}: another tile goes round in the same "
                f"loop {_rank(nest, found[-1].rotating_loop)}; share one of them"
            )
    return found


def faults(nest: Mapping, e: Einsum, arch: Arch) -> list[str]:
    """Returns one line that says why the shared tiles of a nest cannot rotate, or an empty list."""
    try:
        rings(nest, e, arch)
    except ValueError as why:
        return [str(why)]
    return []


def _ring(tile: Rotated, nest: Mapping, e: Einsum, arch: Arch) -> Ring:
    """Returns the ring of one shared tile. Raises ValueError where it cannot rotate."""
    order = arch.level_index()
    p = next((p for p in e.inputs if p.tensor == tile.tensor), None)
    f = next((f for f in arch.fanouts if set(tile.dims) <= {name for name, _ in f.dims}), None)
    node_at = next((i for i, node in enumerate(nest.nodes) if node == Store(tile.level, tile.tensor)), None)
    if p is None or node_at is None or p.format != "dense":
        raise ValueError(f"must be a dense input of {e.name} that is stored at {tile.level}")
    if node_at < nest.fork:
        raise ValueError(
            "the tile is shared with other einsums of the segment; share one of the einsum's own nest"
        )
    if f is None or order[tile.level] < f.outside:
        raise ValueError("must name dimensions of one fan-out that the level stands inside of")
    if arch.overlap != "free" or arch.models_layout():
        raise ValueError(
            "stalls for parts that rotate, and layouts of parts, are not counted; take a machine "
            "with overlap: free and no lines or rows"
        )
    multicasts = {name: multicast for (name, _), multicast in zip(f.dims, f.multicast, strict=True)}
    if unicast_dims := [dim for dim in tile.dims if not multicasts[dim]]:
        raise ValueError(f"{f.name} does not multicast along {unicast_dims[0]}")
    parent = max(
        (
            i
            for i in range(node_at)
            if isinstance(node := nest.nodes[i], Store) and node.tensor == tile.tensor
        ),
        default=-1,
    )
    if (
        parent >= 0
        and sum(order[_level(nest, parent)] < other.outside <= order[tile.level] for other in arch.fanouts)
        > 1
    ):
        raise ValueError("the tile comes through several fan-outs at once; store it between them")
    trips, uneven_loops = _trips(nest, e)
    loops = [
        i
        for i in range(parent + 1, node_at)
        if isinstance(node := nest.nodes[i], Loop) and node.over in tile.dims and node.rank not in p.ranks()
    ]
    pes = prod(trips[i] for i in loops)
    if pes < 2:
        raise ValueError(
            f"no two PEs along them work on the same tile of {tile.tensor}; split another rank there"
        )
    rests_at = sink(p, nest, node_at) if parent >= 0 else node_at
    if rests_at > node_at + 1 and _rank(nest, rests_at - 1) not in p.full_ranks():
        raise ValueError(
            f"the tile is a window that slides along {_rank(nest, rests_at - 1)}; raise its node"
        )
    passes, rotating_loop = _passes(tile, p, nest, trips, rests_at)
    rank = _rank(nest, rotating_loop)
    d = next(d for d in p.dims if rank in d.ranks())
    if uneven := [
        i for i in (*loops, rotating_loop, *_between(nest, rests_at, rotating_loop)) if i in uneven_loops
    ]:
        raise ValueError(
            f"loop {_rank(nest, uneven[0])} is imperfect: parts and passes differ; take tiles that divide"
        )
    if trips[rotating_loop] % pes or d.offset or d.size < e.sizes()[rank]:
        raise ValueError(
            f"loop {rank} makes {trips[rotating_loop]} trips, which {pes} PEs do not share out evenly"
        )
    if any(rank in q.partial_ranks() for q in e.tensors()):
        raise ValueError(
            f"loop {rank} slides a window of another tensor: its trips cannot come in another order"
        )
    for link in links(nest, e):
        crosses = (
            order[link.parent.level] < f.outside <= (order[link.child.level] if link.child else len(order))
        )
        is_distinct = all(_rank(nest, i) in link.ranks for i in loops)
        if (
            crosses
            and link.tensor is not p
            and not is_distinct
            and (link.child is None or link.rests_at > rotating_loop)
        ):
            raise ValueError(
                f"PEs fetch {link.tensor.tensor} together inside of loop {rank}, but are at "
                "different trips of it; raise its node above"
            )
    return Ring(tile, p, f, node_at, rotating_loop, pes, passes)


def _passes(
    tile: Rotated, p: Projection, nest: Mapping, trips: dict[int, int], rests_at: int
) -> tuple[int, int]:
    """Returns the passes through the tile, and the position of the loop that passes through it: the first
    loop with several trips over a rank of the tile.
    """
    passes = 1
    for i in range(rests_at, len(nest.nodes)):
        node = nest.nodes[i]
        if isinstance(node, Store) and node.tensor == tile.tensor and node.level != tile.level:
            break
        if isinstance(node, Loop) and not node.over and node.rank in p.full_ranks() and trips[i] > 1:
            return passes, i
        elif isinstance(node, Loop) and not node.over and node.rank in p.ranks() and trips[i] > 1:
            raise ValueError(
                f"loop {node.rank} slides a window through the tile; put a loop over another of its "
                "ranks outside of it"
            )
        elif isinstance(node, Loop) and not node.over:
            passes *= trips[i]
    raise ValueError("no loop below it passes through the tile part by part")


def _between(nest: Mapping, rests_at: int, rotating_loop: int) -> list[int]:
    """Returns the positions of temporal loops between the tile's resting position and the rotating loop."""
    return [
        i for i in range(rests_at, rotating_loop) if isinstance(node := nest.nodes[i], Loop) and not node.over
    ]


def _trips(nest: Mapping, e: Einsum) -> tuple[dict[int, int], set[int]]:
    """Returns the trips of each loop, by position, and the positions of loops whose trips differ between
    tiles.
    """
    tile_of, trips, uneven_ranks, uneven_loops = e.sizes(), dict[int, int](), set[str](), set[int]()
    for i, node in enumerate(nest.nodes):
        if isinstance(node, Loop):
            trips[i] = -(-tile_of[node.rank] // node.tile)
            uneven_ranks |= {node.rank} if tile_of[node.rank] % node.tile else set()
            uneven_loops |= {i} if node.rank in uneven_ranks else set()
            tile_of[node.rank] = node.tile
    return trips, uneven_loops


def _rank(nest: Mapping, at: int) -> str:
    node = nest.nodes[at]
    return node.rank if isinstance(node, Loop) else ""


def _level(nest: Mapping, at: int) -> str:
    node = nest.nodes[at]
    return node.level if isinstance(node, Store) else ""


def rotated_words(ring: Ring, nest: Mapping, e: Einsum, arch: Arch) -> Elems:
    """Returns the words that PEs take from the next PE of their ring: of all PEs, and of each that may be the
    busiest.
    """
    outer_node = Store(arch.levels[0].name, ring.rotated.tensor)
    if ring.node_at == _first_node(nest, ring.rotated.tensor):
        nest = replace(nest, nodes=(outer_node, *nest.nodes), fork=nest.fork + bool(nest.fork))
    total, per_pe = instance_counts(nest_sums(nest, e, arch))[
        ring.rotated.level, ring.rotated.tensor, "write"
    ]
    moved_share = ring.passes * (ring.pes - 1) / ring.pes
    return moved_share * total, [moved_share * n for n in per_pe]


def _first_node(nest: Mapping, tensor: str) -> int:
    return next(i for i, node in enumerate(nest.nodes) if isinstance(node, Store) and node.tensor == tensor)


def with_rotation(rows: dict[Key, Elems], nest: Mapping, e: Einsum, arch: Arch) -> dict[Key, Elems]:
    """Returns counts of a nest with its shared tiles. A PE is filled with its part only; each part that
    arrives is read in the PE before and written in this one.

    rows: counts without sharing
    """
    for ring in rings(nest, e, arch):
        total, per_pe = rotated_words(ring, nest, e, arch)
        for action, divisor in (("read", 1), ("write", ring.pes)):
            key = ring.rotated.level, ring.rotated.tensor, action
            before, each_before = rows.get(key, (0, [0] * len(per_pe)))
            rows[key] = (
                before / divisor + total,
                [n / divisor + words for n, words in zip(each_before, per_pe, strict=True)],
            )
    return rows


def rotated_footprints(
    footprints: Sequence[Footprint], nest: Mapping, e: Einsum, arch: Arch
) -> Iterator[Footprint]:
    """Yields the footprints with each tile that rotates replaced by the part that one PE holds. Parts are
    exchanged, so they count as refilled.
    """
    pes = {(ring.rotated.level, ring.rotated.tensor): ring.pes for ring in rings(nest, e, arch)}
    for row in footprints:
        n = pes.get((row.level, row.tensor), 1)
        yield row if n == 1 else replace(row, elems=-(-row.elems // n), is_refilled=True)
