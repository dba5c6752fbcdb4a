"""What a mapping may not do under the rules of a machine or a study: the readable definition of each limit
(dse/mapping/constraints.py, `Limit`). Searches obey the same limits in tables and kernels
(dse/mapper/exact/search.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from dse.mapping.constraints import Constraints, Limit, violations
from dse.mapping.nest import Loop, Mapping, Store, bits_at
from dse.sim.counts.counts import footprints
from hw.arch import Arch
from workloads.einsum import Einsum


def broken(c: Constraints, mapping: Mapping, e: Einsum, arch: Arch) -> list[str]:
    """Returns why a well-formed mapping breaks its constraints, those of the dataflow and those of rules, one
    line each.
    """
    return [
        *violations(c, mapping),
        *(line for limit in c.limits for line in _breaks(limit, mapping, e, arch)),
    ]


def broken_below(
    c: Constraints, shared: Sequence[Loop | Store], own: Mapping, e: Einsum, arch: Arch
) -> list[str]:
    """Returns the lines of `broken` of an einsum that shares loops and storage nodes with others.

    A shared loop counts as one of the outermost level, wherever shared nodes stand; a tensor stands where it
    has a shared node or one of the nest, and its tile in a shared node is the one below the loops above it.

    shared: loops and nodes of its tensors above the fork, in its names; own: its nest below them
    """
    loops = [node for node in shared if isinstance(node, Loop)]
    stores = [node for node in shared if isinstance(node, Store)]
    shared_tiles = [
        (limit, at)
        for limit in c.limits
        if limit.kind == "tile"
        for at, node in enumerate(shared)
        if node == Store(limit.at, limit.name)
    ]
    others = tuple(limit for limit in c.limits if all(limit is not one for one, _ in shared_tiles))
    nest = replace(own, nodes=(*loops, *stores, *own.nodes), fork=0)
    return [
        *broken(replace(c, limits=others), nest, e, arch),
        *(
            line
            for limit, at in shared_tiles
            for line in _breaks(limit, Mapping(_up_to(shared, at)), e, arch)
        ),
    ]


def _up_to(shared: Sequence[Loop | Store], at: int) -> tuple[Loop | Store, ...]:
    """Returns the node at a position below the loops above it alone."""
    return (*(node for node in shared[:at] if isinstance(node, Loop)), shared[at])


def _breaks(limit: Limit, mapping: Mapping, e: Einsum, arch: Arch) -> Iterator[str]:
    """Yields a line if the mapping breaks a limit."""
    name, held = f"{limit.name} at {limit.at}", Store(limit.at, limit.name) in mapping.nodes
    if limit.kind == "spatial" and not limit.allows(n := spatial_trips(mapping, e, limit.at, limit.name)):
        yield f"{limit.text}: {n} trips of {limit.name} over {limit.at}"
    if limit.kind == "temporal" and not limit.allows(
        n := temporal_trips(mapping, e, arch, limit.at, limit.name)
    ):
        yield f"{limit.text}: {n} trips of {name}"
    if limit.kind == "keep" and not held:
        yield f"{limit.text}: {limit.name} does not stand at {limit.at}"
    if limit.kind == "bypass" and held:
        yield f"{limit.text}: {limit.name} stands at {limit.at}"
    if (
        limit.kind == "tile"
        and held
        and (n := tile_bits(mapping, e, arch, limit.at, limit.name)) > limit.most
    ):
        yield f"{limit.text}: a tile of {name} takes {-(-n // 8)} bytes"
    if limit.kind == "order" and _is_reversed(limit, mapping, e, arch):
        yield f"{limit.text}: a loop over {limit.below} stands above one over {limit.name} at {limit.at}"
    if limit.kind == "inside" and _is_outside(limit, mapping, e):
        yield f"{limit.text}: a loop over {limit.name} stands above a tile at {limit.at}"
    if limit.kind == "fill" and (n := trips_along(mapping, e, limit.at)) < limit.least:
        yield f"{limit.text}: {n} PEs along {limit.at} work, {limit.least} must"
    if limit.kind == "pes" and (n := busy_pes(mapping, e)) < limit.least:
        yield f"{limit.text}: {n} PEs work, {limit.least} must"


def spatial_trips(mapping: Mapping, e: Einsum, dim: str, rank: str) -> int:
    """Returns the trips of all spatial loops over a rank along a dimension, multiplied."""
    return prod(trips for _, loop, trips in _loops(mapping, e) if (loop.over, loop.rank) == (dim, rank))


def trips_along(mapping: Mapping, e: Einsum, dim: str) -> int:
    """Returns the trips of all spatial loops along a dimension, multiplied."""
    return prod(trips for _, loop, trips in _loops(mapping, e) if loop.over == dim)


def temporal_trips(mapping: Mapping, e: Einsum, arch: Arch, level: str, rank: str) -> int:
    """Returns the trips of all temporal loops over a rank at a level, multiplied: of those that cut tiles of
    that level. It is the innermost of the nodes above whose tensors have the rank, else the outermost.
    """
    return prod(trips for loop, trips in _temporal_loops(mapping, e, arch, level) if loop.rank == rank)


def _is_reversed(limit: Limit, mapping: Mapping, e: Einsum, arch: Arch) -> bool:
    """Whether a temporal loop over rank `below` at a level stands above one over rank `name`."""
    ranks = [loop.rank for loop, trips in _temporal_loops(mapping, e, arch, limit.at) if trips > 1]
    return limit.below in ranks and limit.name in ranks[ranks.index(limit.below) :]


def _is_outside(limit: Limit, mapping: Mapping, e: Einsum) -> bool:
    """Whether a temporal loop over a rank stands above a storage node of a level."""
    trips = {id(loop): n for _, loop, n in _loops(mapping, e)}
    looped = False
    for node in mapping.nodes:
        if isinstance(node, Store) and looped and node.level == limit.at:
            return True
        if isinstance(node, Loop) and not node.over and node.rank == limit.name:
            looped = looped or trips[id(node)] > 1
    return False


def _temporal_loops(mapping: Mapping, e: Einsum, arch: Arch, level: str) -> Iterator[tuple[Loop, int]]:
    """Yields (loop, its trips) of each temporal loop at a level, outermost first."""
    order = arch.level_index()
    for above, loop, trips in _loops(mapping, e):
        relevant = {p.tensor for p in e.tensors() if loop.rank in p.ranks()}
        own = max([order[node.level] for node in above if node.tensor in relevant], default=0)
        if not loop.over and own == order[level]:
            yield loop, trips


def _loops(mapping: Mapping, e: Einsum) -> Iterator[tuple[Sequence[Store], Loop, int]]:
    """Yields (nodes above, loop, its trips) of each loop, outermost first."""
    above, tile_of = list[Store](), e.sizes()
    for node in mapping.nodes:
        if isinstance(node, Store):
            above.append(node)
        else:
            yield above, node, -(-tile_of[node.rank] // node.tile)
            tile_of[node.rank] = node.tile


def tile_bits(mapping: Mapping, e: Einsum, arch: Arch, level: str, tensor: str) -> int:
    """Returns the bits of one tile of a tensor at a level (docs/model.md, Capacity)."""
    bits = bits_at(arch.levels[arch.level_index()[level]], tensor, e, arch)
    held = [row for row in footprints(mapping, e, arch) if (row.level, row.tensor) == (level, tensor)]
    return max(int(row.elems * bits) for row in held)


def busy_pes(mapping: Mapping, e: Einsum) -> int:
    """Returns how many PEs get some of the work in the first trip of all temporal loops.

    Of a rank that 9 elements are cut by 4 PEs into tiles of 3, 3 PEs get some; the product over ranks.
    """
    return prod(_busy(mapping, rank, extent) for rank, extent in e.extents)


def _busy(mapping: Mapping, rank: str, extent: int) -> int:
    """Returns how many PEs get some of a rank."""
    shares = {extent: 1}  # values of the rank that a PE gets -> PEs
    for loop in mapping.nodes:
        if not isinstance(loop, Loop) or loop.rank != rank:
            continue
        after: dict[int, int] = {}
        for share, pes in shares.items():
            whole, rest = divmod(share, loop.tile)
            if not loop.over:
                parts = {min(share, loop.tile): 1}
            else:
                parts = {loop.tile: whole} if whole else {}
                parts |= {rest: 1} if rest else {}
            for size, n in parts.items():
                after[size] = after.get(size, 0) + pes * n
        shares = after
    return sum(shares.values())
