"""The part of an einsum that one trip of a loop leaves, or one PE of several that split a rank evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

from dse.mapping.classes import rank_classes
from hw.arch import Fanout
from workloads.einsum import Dim, Einsum, Projection


def stretched(e: Einsum, rank: str, n: int) -> Einsum:
    """Returns an einsum with another extent of a rank that stands alone in its dimensions (a class)."""

    def longer(p: Projection) -> Projection:
        dims = tuple(replace(d, size=n) if rank in d.ranks() else d for d in p.dims)
        return replace(p, dims=dims)

    extents = tuple((r, n if r == rank else own) for r, own in e.extents)
    return replace(e, output=longer(e.output), inputs=tuple(map(longer, e.inputs)), extents=extents)


def trips_below(e: Einsum, loops: Sequence[tuple[str, int]]) -> tuple[tuple[Einsum, int], ...]:
    """Returns the distinct trips of several nested loops (rank, tile), as `trips` for one loop."""
    found = Counter({e: 1})
    for rank, tile in loops:
        inner = [(trip, n * count) for outer, n in found.items() for trip, count in trips(outer, rank, tile)]
        found = Counter[Einsum]()
        for trip, n in inner:
            found[trip] += n
    return tuple(found.most_common())


@lru_cache(maxsize=1 << 14)
def trips(e: Einsum, rank: str, tile: int) -> tuple[tuple[Einsum, int], ...]:
    """Returns the distinct trips of a loop over a rank, as (einsum of the trip, number of such trips), most
    frequent first. Trips differ where padding cuts windows; the last one takes the remainder.
    """
    n = e.sizes()[rank]
    if all(
        d.offset >= 0 and d.offset + sum(c * (e.sizes()[r] - 1) for r, c in d.terms) < d.size
        for p in e.tensors()
        for d in p.dims
        if rank in d.ranks()
    ):
        whole = ((trip_at(e, rank, tile, 0), n // tile),)
        return (*whole, (trip_at(e, rank, n % tile, n - n % tile), 1)) if n % tile else whole
    found = Counter(trip_at(e, rank, min(tile, n - origin), origin) for origin in range(0, n, tile))
    return tuple(found.most_common())


def trip_at(e: Einsum, rank: str, tile: int, origin: int) -> Einsum:
    """Returns the einsum of one trip of a loop over a rank, whose indices begin at `origin`."""
    extents = {r: tile if r == rank else n for r, n in e.extents}

    def cut(p: Projection) -> Projection:
        return replace(
            p, dims=tuple(_cut(d, rank, origin, extents) if rank in d.ranks() else d for d in p.dims)
        )

    return replace(
        e, output=cut(e.output), inputs=tuple(cut(p) for p in e.inputs), extents=tuple(extents.items())
    )


def _cut(dim: Dim, rank: str, origin: int, extents: Mapping[str, int]) -> Dim:
    """Returns the part of a dimension that one trip reads: the hull of its indices. Where it lies within the
    dimension it starts at 0; else it keeps size and clipping of the dimension.
    """
    low = dim.offset + dict(dim.terms)[rank] * origin
    size = 1 + sum(c * (extents[r] - 1) for r, c in dim.terms)
    return (
        replace(dim, offset=0, size=size) if low >= 0 and low + size <= dim.size else replace(dim, offset=low)
    )


# a loop over PEs: its rank in each einsum, its tile, and the dimension of the array
SplitLoop = tuple[tuple[str, ...], int, str]


def even_splits(
    einsums: Sequence[Einsum], made: Collection[str], array: Fanout
) -> Iterator[tuple[tuple[SplitLoop, ...], tuple[Einsum, ...]]]:
    """Yields the ways to give each PE of an array an even part of all einsums: (loops, part of each einsum).
    Along each dimension of the array a rank that every result has (`classes.rank_classes`) is split into as
    many equal parts as divide it. Where one read serves several PEs (multicast) all tensors have the rank, so
    that there is no such read.

    made: all tensors that einsums of the workload make
    """
    dims = [(name, n, shared) for (name, n), shared in zip(array.dims, array.multicast, strict=True) if n > 1]
    for axes in product(rank_classes(einsums, made), repeat=len(dims)):
        parts, loops = tuple(einsums), list[SplitLoop]()
        for axis, (name, n, shared) in zip(axes, dims, strict=True):
            tile = _largest_split(parts[0].sizes()[axis[0]], n)
            if not (parts := _even_parts(parts, axis, tile, shared)):
                break
            loops.append((axis, tile, name))
        if parts:
            yield tuple(loops), parts


def _largest_split(n: int, most: int) -> int:
    """Returns the tile of the largest number of equal parts, at most `most`, of n indices.

    >>> _largest_split(12, 8), _largest_split(7, 4)
    (2, 7)
    """
    return n // max(count for count in range(1, most + 1) if n % count == 0)


def _even_parts(
    einsums: Sequence[Einsum], axis: Sequence[str], tile: int, needs_own: bool
) -> tuple[Einsum, ...]:
    """Returns the part of each einsum that a PE has where a rank of each, which the result has, is split into
    tiles over PEs. () if there is one part, or parts differ (padding cuts some of them).

    needs_own: no two parts have an element of any tensor in common
    """
    kinds = [trips(e, rank, tile) for e, rank in zip(einsums, axis, strict=True)]
    is_split = all(
        rank in e.output.full_ranks() and len(kind) == 1 and kind[0][1] > 1
        for e, rank, kind in zip(einsums, axis, kinds, strict=True)
    )
    has_own = all(rank in p.full_ranks() for e, rank in zip(einsums, axis, strict=True) for p in e.tensors())
    return tuple(kind[0][0] for kind in kinds) if is_split and (has_own or not needs_own) else ()
