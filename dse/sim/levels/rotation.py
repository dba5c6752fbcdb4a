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
from dse.sim.counts.counts import Elems, Footprint, instance_counts, reading
from dse.sim.counts.terms import links, sink
from hw.arch import Arch, Fanout
from workloads.einsum import Einsum, Projection


@dataclass(frozen=True, slots=True)
class Ring:
    """A tile that rotates."""

    rotated: Rotated
    tensor: Projection
    fanout: Fanout
    at: int  # position of the tile's node
    rotating_loop: int  # position of the loop whose trips are the parts
    pes: int  # PEs of the ring, M
    passes: int  # passes through the tile, per fill


def rings(nest: Mapping, e: Einsum, arch: Arch) -> list[Ring]:
    """Returns one ring per shared tile. Raises ValueError with one line where a tile cannot be shared."""
    found: list[Ring] = []
    for one in nest.shares:
        try:
            found.append(_ring(one, nest, e, arch))
        except ValueError as why:
            raise ValueError(
                f"mapping of {e.name}: share {one.level} {one.tensor} over {' '.join(one.dims)}: {why}"
            ) from None
        if found[-1].rotating_loop in [other.rotating_loop for other in found[:-1]]:
            raise ValueError(
                f"mapping of {e.name}: share {one.level} {one.tensor}: another tile goes round in the same "
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


def _ring(one: Rotated, nest: Mapping, e: Einsum, arch: Arch) -> Ring:
    """Returns the ring of one shared tile. Raises ValueError where it cannot rotate."""
    order = arch.order()
    p = next((p for p in e.inputs if p.tensor == one.tensor), None)
    f = next((f for f in arch.fanouts if set(one.dims) <= {name for name, _ in f.dims}), None)
    at = next((i for i, node in enumerate(nest.nodes) if node == Store(one.level, one.tensor)), None)
    if p is None or at is None or p.format != "dense":
        raise ValueError(f"must be a dense input of {e.name} that is stored at {one.level}")
    if at < nest.fork:
        raise ValueError(
            "the tile is shared with other einsums of the segment; share one of the einsum's own nest"
        )
    if f is None or order[one.level] < f.outside:
        raise ValueError("must name dimensions of one fan-out that the level stands inside of")
    if arch.overlap != "free" or arch.models_layout():
        raise ValueError(
            "stalls for parts that rotate, and layouts of parts, are not counted; take a machine "
            "with overlap: free and no lines or rows"
        )
    shares = {name: multicast for (name, _), multicast in zip(f.dims, f.multicast, strict=True)}
    if alone := [dim for dim in one.dims if not shares[dim]]:
        raise ValueError(f"{f.name} does not multicast along {alone[0]}")
    parent = max(
        (i for i in range(at) if isinstance(node := nest.nodes[i], Store) and node.tensor == one.tensor),
        default=-1,
    )
    if (
        parent >= 0
        and sum(order[_level(nest, parent)] < other.outside <= order[one.level] for other in arch.fanouts) > 1
    ):
        raise ValueError("the tile comes through several fan-outs at once; store it between them")
    trips, ragged = _trips(nest, e)
    loops = [
        i
        for i in range(parent + 1, at)
        if isinstance(node := nest.nodes[i], Loop) and node.over in one.dims and node.rank not in p.ranks()
    ]
    pes = prod(trips[i] for i in loops)
    if pes < 2:
        raise ValueError(
            f"no two PEs along them work on the same tile of {one.tensor}; split another rank there"
        )
    rest = sink(p, nest, at) if parent >= 0 else at
    if rest > at + 1 and _rank(nest, rest - 1) not in p.full():
        raise ValueError(f"the tile is a window that slides along {_rank(nest, rest - 1)}; raise its node")
    passes, turned = _passes(one, p, nest, trips, rest)
    rank = _rank(nest, turned)
    d = next(d for d in p.dims if rank in d.ranks())
    if uneven := [i for i in (*loops, turned, *_between(nest, rest, turned)) if i in ragged]:
        raise ValueError(
            f"loop {_rank(nest, uneven[0])} is imperfect: parts and passes differ; take tiles that divide"
        )
    if trips[turned] % pes or d.offset or d.size < e.sizes()[rank]:
        raise ValueError(f"loop {rank} makes {trips[turned]} trips, which {pes} PEs do not share out evenly")
    if any(rank in q.partial() for q in e.tensors()):
        raise ValueError(
            f"loop {rank} slides a window of another tensor: its trips cannot come in another order"
        )
    for link in links(nest, e):
        crosses = (
            order[link.parent.level] < f.outside <= (order[link.child.level] if link.child else len(order))
        )
        own = all(_rank(nest, i) in link.seen for i in loops)
        if crosses and link.tensor is not p and not own and (link.child is None or link.rests_at > turned):
            raise ValueError(
                f"PEs fetch {link.tensor.tensor} together inside of loop {rank}, but are at "
                "different trips of it; raise its node above"
            )
    return Ring(one, p, f, at, turned, pes, passes)


def _passes(one: Rotated, p: Projection, nest: Mapping, trips: dict[int, int], rest: int) -> tuple[int, int]:
    """Returns the passes through the tile, and the position of the loop that passes through it: the first
    loop with several trips over a rank of the tile.
    """
    passes = 1
    for i in range(rest, len(nest.nodes)):
        node = nest.nodes[i]
        if isinstance(node, Store) and node.tensor == one.tensor and node.level != one.level:
            break
        if isinstance(node, Loop) and not node.over and node.rank in p.full() and trips[i] > 1:
            return passes, i
        elif isinstance(node, Loop) and not node.over and node.rank in p.ranks() and trips[i] > 1:
            raise ValueError(
                f"loop {node.rank} slides a window through the tile; put a loop over another of its "
                "ranks outside of it"
            )
        elif isinstance(node, Loop) and not node.over:
            passes *= trips[i]
    raise ValueError("no loop below it passes through the tile part by part")


def _between(nest: Mapping, rest: int, turned: int) -> list[int]:
    """Returns the positions of temporal loops between the tile's resting position and the rotating loop."""
    return [i for i in range(rest, turned) if isinstance(node := nest.nodes[i], Loop) and not node.over]


def _trips(nest: Mapping, e: Einsum) -> tuple[dict[int, int], set[int]]:
    """Returns the trips of each loop, by position, and the positions of loops whose trips differ between
    tiles.
    """
    left, trips, uneven, ragged = e.sizes(), dict[int, int](), set[str](), set[int]()
    for i, node in enumerate(nest.nodes):
        if isinstance(node, Loop):
            trips[i] = -(-left[node.rank] // node.tile)
            uneven |= {node.rank} if left[node.rank] % node.tile else set()
            ragged |= {i} if node.rank in uneven else set()
            left[node.rank] = node.tile
    return trips, ragged


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
    above = Store(arch.levels[0].name, ring.rotated.tensor)
    if ring.at == _first(nest, ring.rotated.tensor):
        nest = replace(nest, nodes=(above, *nest.nodes), fork=nest.fork + bool(nest.fork))
    total, own = instance_counts(reading(nest, e, arch))[ring.rotated.level, ring.rotated.tensor, "write"]
    share = ring.passes * (ring.pes - 1) / ring.pes
    return share * total, [share * n for n in own]


def _first(nest: Mapping, tensor: str) -> int:
    return next(i for i, node in enumerate(nest.nodes) if isinstance(node, Store) and node.tensor == tensor)


def with_rotation(rows: dict[Key, Elems], nest: Mapping, e: Einsum, arch: Arch) -> dict[Key, Elems]:
    """Returns counts of a nest with its shared tiles. A PE is filled with its part only; each part that
    arrives is read in the PE before and written in this one.

    rows: counts without sharing
    """
    for ring in rings(nest, e, arch):
        total, own = rotated_words(ring, nest, e, arch)
        for action, share in (("read", 1), ("write", ring.pes)):
            key = ring.rotated.level, ring.rotated.tensor, action
            before, each_before = rows.get(key, (0, [0] * len(own)))
            rows[key] = (
                before / share + total,
                [n / share + moved for n, moved in zip(each_before, own, strict=True)],
            )
    return rows


def parts(held: Sequence[Footprint], nest: Mapping, e: Einsum, arch: Arch) -> Iterator[Footprint]:
    """Yields the footprints with each tile that rotates replaced by the part that one PE holds. Parts are
    exchanged, so they count as refilled.
    """
    pes = {(ring.rotated.level, ring.rotated.tensor): ring.pes for ring in rings(nest, e, arch)}
    for row in held:
        n = pes.get((row.level, row.tensor), 1)
        yield row if n == 1 else replace(row, elems=-(-row.elems // n), moving=True)
