"""What einsums may share a loop, and one trip of an einsum under it (docs/reuse.md, Fusion).

segment                      members: einsums next to each other in the order of the workload
  store DRAM W;  store G W   held: brought in once for all trips, whole
  for m tile 8        one loop in time, over a rank of every member's output
    store G T                handed: made and read in the segment, tile by tile
    einsum a ...             what else a member has comes from the outermost level in every trip
    einsum b ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hw.arch import Arch, Level
from workloads.einsum import Dim, Einsum, Projection
from workloads.graph import Workload, counts, owner

MOST_MEMBERS = 6


@dataclass(frozen=True, slots=True)
class Members:
    """Einsums first to last of a workload. forwarded: tensors that one makes and others read; spilled: those
    of them that others read too; axes: ranks, one per member, that a shared loop may run over.
    """

    first: int
    last: int
    forwarded: tuple[str, ...]
    spilled: frozenset[str]
    axes: tuple[tuple[str, ...], ...]


def fusing_levels(arch: Arch) -> tuple[Level, ...]:
    """Levels where fused einsums hand tensors on: on the chip, outside of all arrays, that hold inputs and
    outputs.
    """
    first = min((f.outside for f in arch.fanouts), default=len(arch.levels))
    return tuple(level for level in arch.levels[1:first] if {"input", "output"} <= set(level.may_keep))


def has_nodes(arch: Arch) -> bool:
    """Whether the machine is rows and columns of nodes with a buffer in each, on which pipelines run."""
    return bool(arch.fanouts) and arch.fanouts[0].outside == 1 and len(arch.fanouts[0].dims) == 2


def fuser(arch: Arch, workload: Workload) -> str:
    """The solver.schedule that runs einsums of a workload together on a machine, "": none does."""
    if fusing_levels(arch) and not any(f.hop_pj or f.endpoint_pj for f in arch.fanouts):
        return "fused"
    if has_nodes(arch) and not arch.models_layout():
        return "pipelined"
    bounded = len(arch.levels) > 1 and arch.levels[1].capacity_bits
    return "residency" if bounded and not arch.layout_sensitive() and max(counts(workload)) == 1 else ""


# first, last; tensors that one makes and others read; of them those that others outside read too
Run = tuple[int, int, tuple[str, ...], frozenset[str]]


def runs(workload: Workload, most: int) -> Iterator[Run]:
    """All runs of two to `most` einsums that run once."""
    made = {e.output.tensor: i for i, e in enumerate(workload.einsums)}
    readers: dict[str, set[int]] = {}
    for i, e in enumerate(workload.einsums):
        for p in e.inputs:
            readers.setdefault(owner(p.tensor, made), set()).add(i)
    once = [n == 1 for n in counts(workload)]
    for first in range(len(workload.einsums)):
        for last in range(first + 1, min(first + most, len(workload.einsums))):
            if not all(once[first : last + 1]):
                break
            handed = tuple(
                e.output.tensor
                for e in workload.einsums[first : last + 1]
                if any(first <= i <= last for i in readers.get(e.output.tensor, ()))
            )
            yield (
                first,
                last,
                handed,
                frozenset(t for t in handed if any(not first <= i <= last for i in readers[t])),
            )


def segments(workload: Workload, padded: bool = False) -> list[Members]:
    """All runs of einsums that hand tensors on, and that a loop can be shared by. The first makes one of
    them, the last reads one: others gain nothing. padded: readers may see padding around what is handed on,
    in dimensions that the loop does not cut.
    """
    made, found = {e.output.tensor: i for i, e in enumerate(workload.einsums)}, []
    for first, last, handed, leaving in runs(workload, MOST_MEMBERS):
        own = workload.einsums[first : last + 1]
        ends = own[0].output.tensor in handed and any(owner(p.tensor, made) in handed for p in own[-1].inputs)
        if ends and (axes := tuple(_axes(own, handed, made, padded))):
            found.append(Members(first, last, handed, leaving, axes))
    return found


def _axes(
    own: Sequence[Einsum], forwarded: Sequence[str], makers: Mapping[str, int], padded: bool
) -> Iterator[tuple[str, ...]]:
    """Ranks of the members that cut every tensor that is handed on alike, into tiles that are complete when
    they are read.
    """
    users = {t: [p for e in own for p in e.tensors() if owner(p.tensor, makers) == t] for t in forwarded}
    if all(p.tensor == t and reads_as_written(p, users[t][0], padded) for t in forwarded for p in users[t]):
        yield from _extended(own, frozenset(forwarded), (), {})


def _extended(
    own: Sequence[Einsum], forwarded: frozenset[str], ranks: tuple[str, ...], at: Mapping[str, int]
) -> Iterator[tuple[str, ...]]:
    """ranks: of the first members; at: the dimension in which they cut each tensor. A member between others
    that has none of the tensors takes any rank. The columns of a compressed input are not cut: every trip
    would read pointers of its own, which a nest of all trips reads once.
    """
    if len(ranks) == len(own):
        yield ranks
        return
    e = own[len(ranks)]
    columns = {rank for p in e.inputs if p.format == "csr" for rank in p.dims[-1].ranks()}
    for rank in (
        rank
        for rank, n in e.extents
        if rank in e.output.full() - columns
        and n == own[0].sizes().get(ranks[0] if ranks else rank)
        and n > 1
    ):
        mine = {
            p.tensor: next((i for i, dim in enumerate(p.dims) if alone(dim, e) == rank), -1)
            for p in e.tensors()
            if p.tensor in forwarded
        }
        if all(i >= 0 and at.get(t, i) == i for t, i in mine.items()):
            yield from _extended(own, forwarded, (*ranks, rank), {**at, **mine})


def reads_as_written(p: Projection, q: Projection, padded: bool) -> bool:
    """True if two projections of a dense tensor agree in the sizes and offsets of their dimensions and in
    bits.

    padded: offsets may differ (a reader's padding).
    """
    pairs = list(zip(p.dims, q.dims, strict=False))
    sizes = len(p.dims) == len(q.dims) and all(a.size == b.size for a, b in pairs)
    # a constant index reads what is there
    starts = padded or all(a.offset == b.offset or not a.terms for a, b in pairs)
    same = sizes and starts
    return p.bits == q.bits and p.format == q.format == "dense" and same


def alone(dim: Dim, e: Einsum) -> str | None:
    """The rank that runs over a whole dimension, if one does."""
    if (
        len(dim.terms) == 1
        and dim.terms[0][1] == 1
        and dim.offset == 0
        and e.sizes()[dim.terms[0][0]] == dim.size
    ):
        return dim.terms[0][0]
    return None


@lru_cache(maxsize=1 << 14)
def trips(e: Einsum, rank: str, tile: int) -> tuple[tuple[Einsum, int], ...]:
    """Different trips of a loop over a rank, the most frequent first, and how often each is: they differ
    where padding cuts windows.
    """
    n = e.sizes()[rank]
    if all(
        d.offset >= 0 and d.offset + sum(c * (e.sizes()[r] - 1) for r, c in d.terms) < d.size
        for p in e.tensors()
        for d in p.dims
        if rank in d.ranks()
    ):
        return ((_trip(e, rank, tile, 0), n // tile),)
    return tuple(Counter(_trip(e, rank, tile, at) for at in range(0, n, tile)).most_common())


def _trip(e: Einsum, rank: str, tile: int, at: int) -> Einsum:
    extents = {r: tile if r == rank else n for r, n in e.extents}

    def cut(p: Projection) -> Projection:
        return replace(p, dims=tuple(_cut(d, rank, at, extents) if rank in d.ranks() else d for d in p.dims))

    return replace(
        e, output=cut(e.output), inputs=tuple(cut(p) for p in e.inputs), extents=tuple(extents.items())
    )


def _cut(dim: Dim, rank: str, at: int, extents: Mapping[str, int]) -> Dim:
    """What a trip sees of a dimension: its hull, clipped as the dimension is."""
    low = dim.offset + dict(dim.terms)[rank] * at
    size = 1 + sum(c * (extents[r] - 1) for r, c in dim.terms)
    return (
        replace(dim, offset=0, size=size) if low >= 0 and low + size <= dim.size else replace(dim, offset=low)
    )
