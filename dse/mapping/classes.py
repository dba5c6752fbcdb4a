"""Classes of ranks that may share a loop: one rank of every einsum of a segment, matched because they index
the same dimensions of tensors that several of the einsums use.

S[h,m,p] += Q[h,m,e] * K[h,p,e];  O[h,i,f] += S[h,i,j] * V[h,j,f]   ->   (h, h), (m, i), (p, j)

The second einsum sums over j. Below a shared loop over (p, j), O must therefore be stored outside of the
loop; otherwise its partial sums are written out and read back in every trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from workloads.einsum import Dim, Einsum, Projection
from workloads.graph import base_tensor

SMOOTH = 20160  # 2^6 3^2 5 7: 84 divisors, the most below 25,200
APART = 7  # divisors of an extent lie far apart where neighbours differ by more than this factor

Users = list[tuple[int, Einsum, Projection]]  # (number of the einsum, the einsum, its projection) of a tensor
RankOf = tuple[int, str]  # (number of the einsum, rank)


def smooth(n: int) -> int:
    """Returns a number of many divisors that is larger than n: SMOOTH times a power of two."""
    return SMOOTH << max((n // SMOOTH).bit_length(), 0)


@lru_cache(maxsize=1 << 12)
def uneven_tiles(n: int) -> tuple[int, ...]:
    """Returns the searched tiles of a shared loop over n indices that leave a remainder, largest first: for
    each number of trips the smallest tile that divides `smooth(n)`. () where the divisors of n lie close to
    each other (APART).
    """
    divisors = [t for t in range(1, n + 1) if n % t == 0]
    if all(b <= APART * a for a, b in pairwise(divisors)):
        return ()
    tiles = {-(-n // t): t for t in range(n - 1, 0, -1) if smooth(n) % t == 0}
    return tuple(t for t in tiles.values() if n % t)


def shared_tensors(einsums: Sequence[Einsum], made: Collection[str]) -> dict[str, Users]:
    """Returns the tensors that are used more than once (by several einsums, or by one einsum under two
    names), each with its users.

    made: all tensors that einsums of the workload make
    """
    users_of: dict[str, Users] = {}
    for i, e in enumerate(einsums):
        for p in e.tensors():
            users_of.setdefault(base_tensor(p.tensor, made), []).append((i, e, p))
    return {tensor: its_users for tensor, its_users in users_of.items() if len(its_users) > 1}


def rank_classes(einsums: Sequence[Einsum], made: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the classes. A class is a tuple with exactly one rank of each einsum, in the order of
    `einsums`.

    A tensor that one einsum makes and another reads must be read in the shape in which it is written, and
    every class must index one of its dimensions; else there are no classes. Ranks that slide windows (into
    padding around the tensor, or not), columns of compressed tensors, and rows that a softmax or norm needs
    whole are in no class. Tensors that the einsums only read also match ranks with each other, as long as
    each einsum still has one rank in the class.
    """
    tensors = shared_tensors(einsums, made)
    results = {e.output.tensor for e in einsums}
    forwarded = {t: its_users for t, its_users in tensors.items() if t in results}
    for tensor, users in forwarded.items():
        if not all(p.tensor == tensor and reads_as_written(p, users[0][2]) for _, _, p in users):
            return ()
    groups = [
        group for by_tensor in (forwarded, tensors) for group in _joined_groups(einsums, by_tensor.values())
    ]
    found = [ranks for group in groups if (ranks := _rank_per_einsum(group, einsums, forwarded))]
    return tuple(dict.fromkeys(found))


def _joined_groups(einsums: Sequence[Einsum], tensors: Collection[Users]) -> Iterator[frozenset[RankOf]]:
    """Yields groups of ranks: two ranks are in one group if each of them is the only index of the same
    dimension of a tensor. Groups come in the order of their first ranks.
    """
    group: dict[RankOf, frozenset[RankOf]] = {
        (i, rank): frozenset({(i, rank)}) for i, e in enumerate(einsums) for rank in e.ranks()
    }
    for users in tensors:
        for dims in zip(*(p.dims for _, _, p in users), strict=False):
            ranks = [rank_of(dim, e) for (_, e, _), dim in zip(users, dims, strict=True)]
            members = [(i, rank) for (i, _, _), rank in zip(users, ranks, strict=True) if rank]
            merged = (
                frozenset().union(*(group[member] for member in members))
                if len(members) == len(ranks)
                else ()
            )
            group |= dict.fromkeys(merged, frozenset(merged))
    yield from dict.fromkeys(group.values())


def _rank_per_einsum(
    group: Collection[RankOf], einsums: Sequence[Einsum], forwarded: dict[str, Users]
) -> tuple[str, ...] | None:
    """Returns the rank of each einsum in a group, None if a loop over the group cannot be shared."""
    ranks = dict(group)
    if len(group) != len(einsums) or len(ranks) != len(einsums):
        return None
    sizes = {e.sizes()[ranks[i]] for i, e in enumerate(einsums)}
    stands_alone = all(_stands_alone(ranks[i], p, e) for i, e in enumerate(einsums) for p in e.tensors())
    cuts_forwarded = all(ranks[i] in p.ranks() for users in forwarded.values() for i, _, p in users)
    same_dims = all(len({_cut_dims(p, ranks[i]) for i, _, p in users}) == 1 for users in forwarded.values())
    cuts_rows = any(ranks[i] in e.whole_ranks() for i, e in enumerate(einsums))
    if len(sizes) > 1 or sizes == {1} or cuts_rows or not (stands_alone and cuts_forwarded and same_dims):
        return None
    return tuple(ranks[i] for i in range(len(einsums)))


def _stands_alone(rank: str, p: Projection, e: Einsum) -> bool:
    """True if the rank does not index the tensor, or is the only index of exactly one dimension, and that
    dimension is not the column of a compressed tensor.
    """
    dims = _cut_dims(p, rank)
    is_csr_column = p.format != "dense" and dims == (len(p.dims) - 1,)
    return not dims or (len(dims) == 1 and rank_of(p.dims[dims[0]], e) == rank and not is_csr_column)


def _cut_dims(p: Projection, rank: str) -> tuple[int, ...]:
    return tuple(i for i, d in enumerate(p.dims) if rank in d.ranks())


def exchangeable(einsums: Sequence[Einsum], a: Sequence[str], b: Sequence[str]) -> bool:
    """True if a segment stays the same when rank a[i] of every einsum i takes the place of rank b[i] and the
    other way round: rows and columns of square images, say. Plans with loops over them then come in pairs
    that cost the same. Only where tensors are dense.
    """
    return all(map(_stays_same, einsums, a, b))


def _stays_same(e: Einsum, a: str, b: str) -> bool:
    """True if an einsum stays the same when ranks a and b change places, and with them the ranks that slide
    windows along the dimensions of a and b.
    """
    swap, sizes = {a: b, b: a}, e.sizes()
    if a == b or sizes[a] != sizes[b]:
        return False
    for p in e.tensors():
        windows = [[d for d in p.dims if rank in d.ranks() and len(d.terms) > 1] for rank in (a, b)]
        for one, other in zip(*windows, strict=False):
            for (x, _), (y, _) in zip(
                *(sorted(d.terms, key=lambda t: (t[0] in (a, b), t[1])) for d in (one, other)), strict=False
            ):
                if swap.setdefault(x, y) != y or swap.setdefault(y, x) != x:
                    return False
    rows = e.whole_ranks()
    same_sizes = all(sizes[x] == sizes[y] for x, y in swap.items())
    same_rows = {swap.get(rank, rank) for rank in rows} == rows
    return (
        same_sizes
        and same_rows
        and all(
            p.format == "dense" and Counter(p.dims) == Counter(_renamed(d, swap) for d in p.dims)
            for p in e.tensors()
        )
    )


def _renamed(d: Dim, names: Mapping[str, str]) -> Dim:
    return replace(d, terms=tuple((names.get(rank, rank), c) for rank, c in d.terms))


def cut_alike(users: Users, classes: Sequence[tuple[str, ...]]) -> bool:
    """True if one storage node below any loops over these classes serves all users of a tensor: they use the
    same part of it (equal offsets and extents) under one name, and each class indexes the same dimensions of
    it for every user.
    """
    first = users[0][2]
    cuts = {tuple(_cut_dims(p, ranks[i]) for ranks in classes) for i, _, p in users}
    parts = {
        tuple((d.offset, sum(c * e.sizes()[rank] for rank, c in d.terms)) for d in p.dims)
        for _, e, p in users
    }
    same_reads = all(
        (p.tensor, p.density) == (first.tensor, first.density) and reads_as_written(p, first)
        for _, _, p in users
    )
    return same_reads and len(cuts) == len(parts) == 1


def reads_as_written(p: Projection, q: Projection) -> bool:
    """True if two projections of a dense tensor agree in the sizes of their dimensions and in bits. Offsets
    may differ: a reader's windows may reach into padding around the tensor.
    """
    same_sizes = [d.size for d in p.dims] == [d.size for d in q.dims]
    return p.bits == q.bits and p.format == q.format == "dense" and same_sizes


def rank_of(dim: Dim, e: Einsum) -> str | None:
    """Returns the rank that alone covers a whole dimension, else None."""
    if (
        len(dim.terms) == 1
        and dim.terms[0][1] == 1
        and dim.offset == 0
        and e.sizes()[dim.terms[0][0]] == dim.size
    ):
        return dim.terms[0][0]
    return None
