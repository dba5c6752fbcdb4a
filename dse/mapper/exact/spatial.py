"""Spatial unrollings of one rank over the PEs of a machine's fan-outs, and all tiles that temporal loops may
leave around them.

Boundary: where fan-outs stand between two levels.
Unrolling (option): how many PEs share the rank at each boundary.
Perfect PEs: divide the tile that enters them evenly, whatever it is.
Imperfect PEs: share a tile of one size, the shared tile; the last of them get less of it (10 items over 2 x 2
    PEs: 3, 2, 3, 2).
Position: a place for temporal loops. Position k has k boundaries outside: position 0 is that of the outermost
    levels, the last position lies inside of all fan-outs.

Temporal loops always divide the tile around them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from dse.mapping.constraints import Factors
from dse.run import deadline
from dse.run.compiled import njit
from dse.sim.fronts import undominated
from hw.arch import Fanout, Level
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import TileColumns

UNROLLINGS = 1 << 18  # ways to unroll a rank, at most: tables of more take minutes and gigabytes
KEPT_BYTES = 1 << 30  # of tables that are kept for the next search
MAX_DIVISORS = 1 << 16  # no number below 2**53 has so many (41,472 at most)
# last axis of `keyed`, the array of all FanoutBoundary: PEs, shared tile; from FIRST_CUT on the cuts, two
# numbers each, then zeros
PES, SHARED_TILE, FIRST_CUT = 0, 1, 2


class TooMany(ValueError):
    """A rank has more than UNROLLINGS spatial unrollings, or more than can be listed before a deadline."""


class NoneAllowed(ValueError):
    """No unrolling of a rank has as many trips along each dimension as are allowed."""


class FanoutDim(NamedTuple):
    """A fan-out dimension."""

    number: int  # of the dimension on the machine
    size: int
    boundary: int  # number of its boundary, from outside in
    group: int  # number of its group


class Group(NamedTuple):
    """Dimensions at one boundary that multicast and reduce alike, whose PEs share the same levels."""

    outside: int  # number of levels outside of the boundary
    multicast: bool
    reduce: bool
    shared: tuple[str, ...] = ()  # names of the levels inside of which PEs share one instance

    def shares(self, levels: Sequence[Level], v: int) -> bool:
        """True if PEs along the group share one instance of level v; of compute (len(levels)) they do not."""
        return v < len(levels) and levels[v].name in self.shared


class FanoutBoundary(NamedTuple):
    """The PEs that one rank takes at one boundary."""

    pes: int
    shared_tile: int  # the tile that imperfect PEs share; 0: PEs are perfect, any multiple of `pes` may enter
    # of perfect PEs pairs (group, PEs along it); of imperfect PEs, from outside in, pairs (group, tile that a
    # PE along it gets)
    cuts: tuple[tuple[int, int], ...]


class SpatialUnrollings(NamedTuple):
    """All options O of one rank, options with fewest PEs first. The tiles of all options stand in one list of
    length n, by option, then position, then size. K positions, M masks of groups, D dimensions.
    """

    extent: int
    boundaries: tuple[tuple[FanoutBoundary, ...], ...]  # per option one entry for each boundary
    is_uneven: Bools  # [O] whether the PEs of some boundary are imperfect
    # [F, D] factorizations that give the options, option after option, each as trips per fan-out dimension;
    # left out are those that need at least as many in every dimension as another one of the same option
    factorizations: Ints
    first_factorization: Ints  # [O + 1] of each option, and one past the last
    span: Ints  # [O, K, 2] first tile of a position, and one past its last
    size: Ints  # [n] of each tile
    # [n, M] how many such tiles the rank is cut into, all PEs together; of each group in the mask only the
    # first PE counts
    pieces: Floats
    elems: Floats  # [n, M] elements of these tiles together
    outer_tile: Ints  # [n] the tile that enters the PEs directly outside; -1 in position 0
    untiled: Bools  # [n] whether no temporal loop over the rank stands above the tile
    pes: Floats  # [O, K, M] PEs in use outside of a position; along each group in the mask only the first
    cuts: Ints  # [n, J] sizes by which the rank is cut into these tiles, from outside in, then zeros
    # [O, boundaries] PEs of the rectangle in which the PEs of a boundary stand, at most; some may get nothing
    rectangle_pes: Ints


@lru_cache(maxsize=256)
def dims_and_groups(fanouts: tuple[Fanout, ...]) -> tuple[tuple[FanoutDim, ...], tuple[Group, ...]]:
    """Dimensions and groups of a machine, outermost first. Dimensions of systolic arrays are never in one
    group with others.
    """
    boundaries = sorted({f.outside for f in fanouts})
    found: list[FanoutDim] = []
    groups: list[tuple[Group, bool]] = []
    number = 0
    for f in sorted(fanouts, key=lambda f: f.outside):
        shared = f.shared or ((),) * len(f.dims)
        for (_, size), multicast, reduce, own in zip(f.dims, f.multicast, f.reduce, shared, strict=True):
            group_and_kind = (Group(f.outside, multicast, reduce, own), bool(f.systolic))
            if group_and_kind not in groups:
                groups.append(group_and_kind)
            found.append(FanoutDim(number, size, boundaries.index(f.outside), groups.index(group_and_kind)))
            number += 1
    return tuple(found), tuple(g for g, _ in groups)


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n >= 1 in ascending order."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return (*small, *(n // d for d in reversed(small) if d * d != n))


@lru_cache(maxsize=4096)
def primes(n: int) -> tuple[int, ...]:
    """Prime factors of n >= 1 in ascending order, with multiplicity; () for 1."""
    found, p = list[int](), 2
    while p * p <= n:
        if n % p:
            p += 1
        else:
            found.append(p)
            n //= p
    return (*found, n) if n > 1 else tuple(found)


Trips = tuple[int, ...]  # spatial trip counts, one per fan-out dimension
TripLimits = tuple[tuple[int, int, int], ...]  # (number of a fan-out dimension, least trips, most trips)
NO_BOUNDARY: tuple[tuple[tuple[FanoutBoundary, ...], Trips]] = (((), ()),)  # the one way over no boundary


def kept_up_to(most: int, size: Callable[[Any], int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function of arguments by position: its results are kept, those used last up to `most` in
    all, as `size` counts them, and the last one whatever its size.
    """

    def decorated(call: Callable[..., Any]) -> Callable[..., Any]:
        results: dict[Any, tuple[Any, int]] = {}

        @wraps(call)
        def kept(*given: Any) -> Any:
            if given in results:
                results[given] = results.pop(given)
                return results[given][0]
            found = call(*given)
            results[given] = found, size(found)
            total = sum(n for _, n in results.values())
            while total > most and len(results) > 1:
                total -= results.pop(next(iter(results)))[1]
            return found

        vars(kept)["cache_clear"] = results.clear
        return kept

    return decorated


def array_bytes(found: Sequence[Any]) -> int:
    """Bytes of the arrays in a tuple."""
    return sum(one.nbytes for one in found if isinstance(one, np.ndarray))


@kept_up_to(KEPT_BYTES // 4, array_bytes)
def unrollings(
    extent: int,
    dims: tuple[FanoutDim, ...],
    all_dims: int,
    boundaries: int,
    groups: int,
    factors: Factors,
    trips_allowed: TripLimits = (),
    tile_columns: TileColumns | None = None,
    least: int = 1,
) -> SpatialUnrollings:
    """All options of a rank.

    dims: fan-out dimensions that may take the rank, by boundary.
    all_dims: how many dimensions the machine has.
    trips_allowed: limits of trips (constraints); a dimension that does not take the rank has one trip.
    tile_columns: where the rank is the rows of an operand through which another is gathered
        (`terms.gathered`): `pieces` are those of `_gathered_pieces`.
    least: each PE gets a multiple of so many values (`whole_slots`). Above 1 no PEs are perfect, since those
        take any tile that enters: of each tile that PEs may share they are listed by themselves.

    Raises TooMany, or NoneAllowed.
    """
    if boundaries > 1 and way_count(extent, dims, boundaries, factors, least) > UNROLLINGS:
        raise TooMany(f"{extent} over {[dim.size for dim in dims]}")
    index = {array_dim.number: i for i, array_dim in enumerate(dims)}
    limits = [(index[d], least, most) for d, least, most in trips_allowed if d in index]
    if any(least > 1 for d, least, _ in trips_allowed if d not in index):
        raise NoneAllowed
    found: dict[tuple[FanoutBoundary, ...], set[Trips]] = {}
    ways = (
        _factorizations(extent, dims, boundaries, 0, factors, True, least)
        if boundaries
        else iter(NO_BOUNDARY)
    )
    for number, (boundary_pes, trips) in enumerate(ways):
        past_deadline = factors != "perfect" and number % 1024 == 1023 and deadline.has_passed()
        if number == UNROLLINGS or past_deadline:
            raise TooMany(f"{extent} over {[dim.size for dim in dims]}")
        if all(least <= trips[i] <= most for i, least, most in limits):
            found.setdefault(boundary_pes, set()).add(trips)
    if not found:
        raise NoneAllowed
    if len(dims) < all_dims:
        found = {
            boundary_pes: {
                tuple(trips[index[d]] if d in index else 1 for d in range(all_dims))
                for trips in factorizations
            }
            for boundary_pes, factorizations in found.items()
        }
    return _to_arrays(extent, boundaries, groups, found, dims, tile_columns)


def _factorizations(
    top: int,
    dims: Sequence[FanoutDim],
    boundaries: int,
    b: int,
    factors: Factors,
    all_perfect: bool,
    least: int,
) -> Iterator[tuple[tuple[FanoutBoundary, ...], Trips]]:
    """Yields all ways to unroll a tile `top` over boundary b and the boundaries inside. all_perfect: whether
    all PEs further out are perfect. least: as in `unrollings`.
    """
    whole = least > 1
    own_dims, is_last = [array_dim for array_dim in dims if array_dim.boundary == b], b + 1 == boundaries
    for n, cuts, trips in (
        _perfect_splits(top, own_dims) if all_perfect and not whole else ((1, (), (1,) * len(own_dims)),)
    ):
        for rest, inner_trips in (
            NO_BOUNDARY
            if is_last
            else _factorizations(top // n, dims, boundaries, b + 1, factors, all_perfect, least)
        ):
            yield (FanoutBoundary(n, 0, cuts), *rest), (*trips, *inner_trips)
    if factors != "perfect" or whole:
        for shared_tile in (n for n in divisors(top) if n % least == 0):
            for t, cuts, trips, divides in _imperfect_splits(shared_tile, own_dims, least):
                # cuts that divide are among the perfect ones
                if cuts and (factors != "perfect" or divides) and (whole or not (all_perfect and divides)):
                    boundary = FanoutBoundary(-(-shared_tile // t), shared_tile, _without_redundant(cuts))
                    for rest, inner_trips in (
                        NO_BOUNDARY
                        if is_last
                        else _factorizations(t, dims, boundaries, b + 1, factors, False, least)
                    ):
                        yield (boundary, *rest), (*trips, *inner_trips)


@lru_cache(maxsize=1 << 14)
def way_count(
    top: int,
    dims: tuple[FanoutDim, ...],
    boundaries: int,
    factors: Factors,
    least: int,
    b: int = 0,
    all_perfect: bool = True,
) -> int:
    """How many ways `_factorizations` yields, counted without listing them."""
    if b == boundaries:
        return 1
    whole, own_dims = least > 1, tuple(dim for dim in dims if dim.boundary == b)
    inside = Counter[tuple[int, bool]]()  # (tile that enters the boundary inside, whether all are perfect)
    for n, *_ in _perfect_splits(top, own_dims) if all_perfect and not whole else ((1,),):
        inside[top // n, all_perfect] += 1
    for shared_tile in divisors(top) if factors != "perfect" or whole else ():
        if shared_tile % least == 0:
            for (t, is_cut, divides), n in _imperfect_counts(shared_tile, own_dims, least).items():
                if is_cut and (factors != "perfect" or divides) and (whole or not (all_perfect and divides)):
                    inside[t, False] += n
    return sum(
        n * way_count(t, dims, boundaries, factors, least, b + 1, perfect)
        for (t, perfect), n in inside.items()
    )


@lru_cache(maxsize=1 << 14)
def _imperfect_counts(tile: int, dims: tuple[FanoutDim, ...], least: int) -> Counter[tuple[int, bool, bool]]:
    """How many `_imperfect_splits` yields by (tile that a PE gets, whether it is cut, whether all divide)."""
    return Counter((t, bool(cuts), divides) for t, cuts, _, divides in _imperfect_splits(tile, dims, least))


def _perfect_splits(
    top: int, dims: Sequence[FanoutDim]
) -> Iterator[tuple[int, tuple[tuple[int, int], ...], Trips]]:
    """Yields all ways in which PEs divide the tile, as (PEs, (group, PEs along it), trips)."""
    if not dims:
        yield 1, (), ()
        return
    array_dim, *rest = dims
    for n in divisors(top):
        if n <= array_dim.size:
            for pes, cuts, trips in _perfect_splits(top // n, rest):
                merged = dict(cuts)
                merged[array_dim.group] = merged.get(array_dim.group, 1) * n
                yield n * pes, tuple(sorted((g, m) for g, m in merged.items() if m > 1)), (n, *trips)


def _imperfect_splits(
    tile: int, dims: Sequence[FanoutDim], least: int
) -> Iterator[tuple[int, tuple[tuple[int, int], ...], Trips, bool]]:
    """Yields all ways in which imperfect PEs share a tile, as (tile that a PE gets, cuts, trips, whether
    each cut divides the tile that it cuts). least: cuts are multiples of it, as the tile is.
    """
    if not dims:
        yield tile, (), (), True
        return
    array_dim, rest = dims[0], dims[1:]
    for t, cuts, trips, divides in _imperfect_splits(tile, rest, least):
        yield t, cuts, (1, *trips), divides
    before = tile
    for n in range(2, min(array_dim.size, tile) + 1):
        inner = -(-tile // (n * least)) * least
        if inner != before:
            divides_here, cut, pes = tile % inner == 0, (array_dim.group, inner), -(-tile // inner)
            for t, cuts, trips, divides in _imperfect_splits(inner, rest, least):
                yield t, (cut, *cuts), (pes, *trips), divides and divides_here
        before = inner


def _without_redundant(cuts: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The cuts without redundant ones: a cut is redundant if the next one over the same group divides it."""
    found: list[tuple[int, int]] = []
    for group, tile in cuts:
        if found and found[-1][0] == group and found[-1][1] % tile == 0:
            found.pop()
        found.append((group, tile))
    return tuple(found)


def _to_arrays(
    extent: int,
    boundaries: int,
    groups: int,
    found: dict[tuple[FanoutBoundary, ...], set[Trips]],
    dims: Sequence[FanoutDim],
    tile_columns: TileColumns | None,
) -> SpatialUnrollings:
    """The unrollings as arrays. dims: those that take the rank; the other ones have one trip."""
    keys, width = list(found), len(dims)
    flat: list[int] = []
    for boundary in (boundary for key in keys for boundary in key):
        flat += (boundary.pes, boundary.shared_tile, *(n for cut in boundary.cuts for n in cut))
        flat += (0, 0) * (width - len(boundary.cuts))
    keyed = np.array(flat, np.int64).reshape(len(keys), boundaries, 2 + 2 * width)
    pes = _filled_pes(extent, keyed, groups)
    order = np.argsort(pes[:, boundaries, 0], kind="stable")
    keyed, pes, keys = keyed[order], pes[order], [keys[o] for o in order.tolist()]
    span, size, out, untiled, cuts, owner, share = _tile_arrays(extent, keyed, groups)
    pieces, elems = np.empty((len(size), 1 << groups)), np.empty((len(size), 1 << groups))
    _count_pieces(extent, cuts, owner, share, np.ones(0), pieces, elems)
    if tile_columns:
        shares = tile_columns.mean(np.arange(extent + 1)) / tile_columns.columns
        gathered, elems_of_pes = np.empty_like(pieces), np.empty_like(elems)
        _count_pieces(extent, cuts, owner, share, shares, gathered, elems_of_pes)
        pieces = _gathered_pieces(pieces, gathered, span, size, bool((extent % size == 0).all()))
    ways = [sorted(found[key]) for key in keys]
    trips = np.array([way for one in ways for way in one], np.int64)
    first = np.cumsum([0, *(len(one) for one in ways)])
    rectangle_pes = np.ones((len(keys), boundaries), np.int64)
    for b in range(boundaries):
        numbers = [array_dim.number for array_dim in dims if array_dim.boundary == b]
        rectangle_pes[:, b] = np.maximum.reduceat(trips[:, numbers].prod(axis=1), first[:-1])
    kept = [undominated(one) if len(one) > 1 else [0] for one in ways]
    return SpatialUnrollings(
        extent=extent,
        boundaries=tuple(keys),
        is_uneven=np.asarray(keyed[:, :, SHARED_TILE].any(axis=1)),
        factorizations=trips[[f + i for f, own in zip(first.tolist(), kept, strict=False) for i in own]],
        first_factorization=np.cumsum([0, *(len(own) for own in kept)]),
        span=span,
        size=size,
        pieces=pieces,
        elems=elems,
        outer_tile=out,
        untiled=untiled,
        pes=pes,
        cuts=cuts,
        rectangle_pes=rectangle_pes,
    )


def gathered_mask(own: int, mask: int, groups: int) -> int:
    """The column of `pieces` of a rank with `tile_columns` for a mask of groups, of which those in `own` are
    outside of the level that is counted. PEs along the others share accesses.
    """
    return own << groups | mask


def _gathered_pieces(pieces: Floats, gathered: Floats, span: Ints, size: Ints, is_exact: bool) -> Floats:
    """Returns [n, M * M], by `gathered_mask`: how often a dense operand moves through a tile of the rows, as
    `terms.passes_gathered` has it. gathered: as `pieces`, where a tile counts the share of its columns.

    is_exact: all tiles divide the rows. Otherwise their shares are estimates, which may be larger for a
    multiple of a tile. The search takes a larger tile to move no more, so such a one counts as the smaller
    one does. That is less than the evaluator says, by which the answer is priced.
    """
    gathered = gathered.copy()
    for begin, end in span.reshape(-1, 2).tolist() if not is_exact else ():
        for i in range(begin + 1, end):
            divides = begin + np.flatnonzero(size[i] % size[begin:i] == 0)
            if divides.size:
                np.minimum(gathered[i], gathered[divides].min(axis=0), out=gathered[i])
    both = np.minimum(gathered[:, :, None], pieces[:, None, :])
    found: Floats = both.reshape(len(pieces), -1)
    return found


@njit(cache=True, nogil=True)
def _filled_pes(extent: int, keyed: Ints, groups: int) -> Floats:
    """[O, K, M] `SpatialUnrollings.pes`: PEs outside of a position that get some of the rank in the first
    trip of all temporal loops; of groups in the mask only the first PE counts.

    keyed: [O, boundaries, 2 + 2 D] each FanoutBoundary as numbers (PES, SHARED_TILE, FIRST_CUT)
    """
    options, boundaries, width = keyed.shape
    pes = np.ones((options, boundaries + 1, 1 << groups))
    sizes, copies = np.zeros(256, np.int64), np.zeros(256)
    for o in range(options):
        for m in range(1 << groups):
            n, sizes[0], copies[0] = 1, extent, 1.0
            for b in range(boundaries):
                key = keyed[o, b]
                if key[SHARED_TILE]:
                    for k in range(n):
                        sizes[k] = min(sizes[k], key[SHARED_TILE])
                for j in range(FIRST_CUT, width, 2):
                    group, tile, count = key[j], key[j + 1], n
                    if tile == 0:
                        break
                    only_first_pe = m >> group & 1
                    if not key[SHARED_TILE]:
                        for k in range(n):
                            copies[k] *= 1 if only_first_pe else tile
                        continue
                    for k in range(n):
                        full_tiles, rest = sizes[k] // tile, sizes[k] % tile
                        if full_tiles and rest and not only_first_pe:
                            sizes[count], copies[count] = rest, copies[k]
                            count += 1
                        if full_tiles:
                            sizes[k], copies[k] = tile, copies[k] * (1 if only_first_pe else full_tiles)
                    n = count
                if not key[SHARED_TILE]:
                    for k in range(n):
                        sizes[k] //= key[PES]
                pes[o, b + 1, m] = copies[:n].sum()
    return pes


@njit(cache=True, nogil=True)
def _quotients(n: int, divisor: int, found: Ints) -> int:
    """Writes the divisors of n / `divisor` to `found`, in ascending order, and returns their number: 0 if
    `divisor` does not divide n.
    """
    n, count, d = n // divisor if n % divisor == 0 else 0, 0, 1
    while d * d <= n:
        if n % d == 0:
            found[count], count = d, count + 1
        d += 1
    for i in range(count - 1, -1, -1):
        if found[i] * found[i] != n:
            found[count], count = n // found[i], count + 1
    return count


@njit(cache=True, nogil=True)
def _tile_arrays(extent: int, keyed: Ints, groups: int) -> tuple[Ints, Ints, Ints, Bools, Ints, Ints, Floats]:
    """Returns span, size, out, untiled and cuts of SpatialUnrollings, and two more arrays:

    owner: [n, J] the group that a cut is over; -1: none, the cut is by temporal loops.
    share: [n, G] perfect PEs of a group outside of the tile.
    """
    options, boundaries, width = keyed.shape
    depth = 1 + boundaries * (1 + width // 2)
    span = np.zeros((options, boundaries + 1, 2), np.int64)
    quotients = np.empty(MAX_DIVISORS, np.int64)
    largest, smallest = (
        np.ones((options, boundaries + 1), np.int64),
        np.ones((options, boundaries + 1), np.int64),
    )
    n = 0
    for o in range(options):
        largest[o, 0] = extent
        for b in range(boundaries):
            largest[o, b + 1] = largest[o, b] // keyed[o, b, PES]
            if keyed[o, b, SHARED_TILE]:
                largest[o, b + 1] = keyed[o, b, SHARED_TILE]
                for j in range(FIRST_CUT, width, 2):
                    largest[o, b + 1] = keyed[o, b, j + 1] if keyed[o, b, j + 1] else largest[o, b + 1]
        for b in range(boundaries - 1, -1, -1):
            smallest[o, b] = (
                keyed[o, b, SHARED_TILE]
                if keyed[o, b, SHARED_TILE]
                else keyed[o, b, PES] * smallest[o, b + 1]
            )
        for k in range(boundaries + 1):
            span[o, k, 0] = n
            n += _quotients(largest[o, k], smallest[o, k], quotients)
            span[o, k, 1] = n
    size, out, untiled = np.zeros(n, np.int64), np.full(n, -1, np.int64), np.zeros(n, np.bool_)
    cuts = np.zeros((n, depth), np.int64)
    owner = np.full((n, depth), -1, np.int64)
    share = np.ones((n, groups))
    for o in range(options):
        unlooped, cut_count = True, 0
        cuts_outside, owners_outside, perfect = (
            np.zeros(depth, np.int64),
            np.full(depth, -1, np.int64),
            np.ones(groups),
        )
        for k in range(boundaries + 1):
            if k:
                key = keyed[o, k - 1]
                if key[SHARED_TILE]:
                    unlooped = unlooped and key[SHARED_TILE] == largest[o, k - 1]
                    cuts_outside[cut_count], cut_count = key[SHARED_TILE], cut_count + 1
                for j in range(FIRST_CUT, width, 2):
                    if key[j + 1] and key[SHARED_TILE]:
                        cuts_outside[cut_count], owners_outside[cut_count], cut_count = (
                            key[j + 1],
                            key[j],
                            cut_count + 1,
                        )
                    elif key[j + 1]:
                        perfect[key[j]] *= key[j + 1]
            at = span[o, k - 1, 0] if k else 0
            for j in range(_quotients(largest[o, k], smallest[o, k], quotients)):
                i, d = span[o, k, 0] + j, smallest[o, k] * quotients[j]
                size[i], untiled[i], share[i] = d, unlooped and d == largest[o, k], perfect
                cuts[i, :cut_count], owner[i, :cut_count], cuts[i, cut_count] = (
                    cuts_outside[:cut_count],
                    owners_outside[:cut_count],
                    d,
                )
                if k:
                    entering = (
                        keyed[o, k - 1, SHARED_TILE]
                        if keyed[o, k - 1, SHARED_TILE]
                        else keyed[o, k - 1, PES] * d
                    )
                    while size[at] != entering:
                        at += 1
                    out[i] = at
    return span, size, out, untiled, cuts, owner, share


@njit(cache=True, nogil=True)
def _count_pieces(
    extent: int, cuts: Ints, owner: Ints, share: Floats, weight: Floats, pieces: Floats, elems: Floats
) -> None:
    """Fills in `pieces` and `elems` (SpatialUnrollings) of every tile and mask.

    share: [n, G] perfect PEs of a group; only one of them counts where the mask has the group.
    weight: what a tile of each size counts; empty: 1.
    """
    sizes, copies = np.zeros(256, np.int64), np.zeros(256)
    for i in range(cuts.shape[0]):
        for m in range(pieces.shape[1]):
            n, sizes[0], copies[0] = 1, extent, 1.0
            for j in range(cuts.shape[1]):
                tile = cuts[i, j]
                if tile == 0:
                    break
                only_first_pe, after = owner[i, j] >= 0 and m >> owner[i, j] & 1, n
                for k in range(n):
                    full_tiles, rest = sizes[k] // tile, sizes[k] % tile
                    if full_tiles:
                        sizes[k], copies[k] = tile, copies[k] * (1.0 if only_first_pe else full_tiles)
                        if rest and not only_first_pe:
                            sizes[after], copies[after] = rest, copies[k] / full_tiles
                            after += 1
                n = after
            piece_count, words, masked_pes = 0.0, 0.0, 1.0
            for k in range(n):
                piece_count += copies[k] * (weight[sizes[k]] if weight.shape[0] else 1.0)
                words += copies[k] * sizes[k]
            for g in range(share.shape[1]):
                if m >> g & 1:
                    masked_pes *= share[i, g]
            pieces[i, m], elems[i, m] = piece_count / masked_pes, words / masked_pes
