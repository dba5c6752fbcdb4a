"""How one rank is cut over the lanes of a machine's fan-outs, and all tiles that loops in time may leave around them.

An option of a rank says, border by border, how many lanes share it out. Perfect lanes divide the tile that enters them, whatever it is; ragged lanes share
out one tile u, of which the last lanes get less (10 items over 2 x 2 lanes: 3, 2, 3, 2). Loops in time divide the tile around them.
Position k is what has k borders outside of it: position 0 the outermost levels, the last one the lanes' own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.dataflow.space import Tiles
from hw.arch import Fanout

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Lane(NamedTuple):
    """A fan-out dimension: its number on the machine, size, border (number from outside in), group of dimensions at that border that share alike."""

    number: int
    size: int
    border: int
    group: int


class Group(NamedTuple):
    """Dimensions of one border that multicast and reduce alike; outside: levels outside of the border."""

    outside: int
    multicast: bool
    reduce: bool


class Border(NamedTuple):
    """One rank's lanes at one border. u: the tile that they share out, 0: any multiple of `lanes` (perfect). cuts: (group, tile of a lane) of ragged ones."""

    lanes: int
    u: int
    cuts: tuple[tuple[int, int], ...]


class Options(NamedTuple):
    """All options O of one rank, fewest lanes first. Tiles of all of them in one list of length n, ascending per option and position.

    ways: per option the trips per dimension [., D] that cut it so, without those that another way undercuts or equals in every dimension.
    span [O, K, 2]: tiles of a position, from, to.
    size [n]; pieces, elems [n, M]: tiles of that size over the whole rank, and elements in them, if of the lanes of the groups in mask m only the first
    counts; out [n]: the tile that enters the lanes outside (-1 in position 0); whole [n]: no loop in time stands above. lanes [O, K, M]: lanes outside of
    a position (all groups but those of the mask). cuts [n, J]: tiles that leave these pieces, from outside in, 0 where there are fewer.
    borders: per option and border.
    """

    extent: int
    borders: tuple[tuple[Border, ...], ...]
    ways: tuple[tuple[tuple[int, ...], ...], ...]
    span: Ints
    size: Ints
    pieces: Floats
    elems: Floats
    out: Ints
    whole: Bools
    lanes: Floats
    cuts: Ints


@lru_cache(maxsize=256)
def wired(fanouts: tuple[Fanout, ...]) -> tuple[tuple[Lane, ...], tuple[Group, ...]]:
    """Dimensions and groups of a machine, outermost first. Dimensions of a systolic array and of arrays of one lane stand alone."""
    borders = sorted({f.outside for f in fanouts})
    found: list[Lane] = []
    groups: list[tuple[Group, bool]] = []
    number = 0
    for f in sorted(fanouts, key=lambda f: f.outside):
        for (_, size), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True):
            own = (Group(f.outside, multicast, reduce), bool(f.ramp))
            if own not in groups:
                groups.append(own)
            found.append(Lane(number, size, borders.index(f.outside), groups.index(own)))
            number += 1
    return tuple(found), tuple(g for g, _ in groups)


def divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


@lru_cache(maxsize=1 << 10)
def options(extent: int, dims: tuple[Lane, ...], all_dims: int, borders: int, groups: int, tiles: Tiles) -> Options:
    """dims: those that take this rank; all_dims: how many the machine has."""
    found: dict[tuple[Border, ...], set[tuple[int, ...]]] = {}
    for own, trips in _chosen(extent, dims, borders, 0, tiles, True):
        row = [1] * all_dims
        for lane, n in trips:
            row[lane.number] = n
        found.setdefault(own, set()).add(tuple(row))
    return _tabled(extent, borders, groups, found, dims)


Trips = tuple[tuple[Lane, int], ...]


def _chosen(top: int, dims: Sequence[Lane], borders: int, b: int, tiles: Tiles, even: bool) -> Iterator[tuple[tuple[Border, ...], Trips]]:
    """All ways over border b and those inside, of a tile `top`; even: no lanes outside are ragged."""
    if b == borders:
        yield (), ()
        return
    own = [lane for lane in dims if lane.border == b]
    for n, cuts, trips in _perfect(top, own) if even else ((1, (), ()),):
        for rest, more in _chosen(top // n, dims, borders, b + 1, tiles, even):
            yield (Border(n, 0, cuts), *rest), (*trips, *more)
    if tiles != "perfect":
        for u in divisors(top):
            for t, cuts, trips in _ragged(u, own, even):
                for rest, more in _chosen(t, dims, borders, b + 1, tiles, False):
                    yield (Border(-(-u // t), u, cuts), *rest), (*trips, *more)


def _perfect(top: int, dims: Sequence[Lane]) -> Iterator[tuple[int, tuple[tuple[int, int], ...], Trips]]:
    """(lanes, (group, lanes of it), trips) of lanes that divide."""
    if not dims:
        yield 1, (), ()
        return
    lane, *rest = dims
    for n in divisors(top):
        if n <= lane.size:
            for lanes, cuts, trips in _perfect(top // n, rest):
                merged = dict(cuts)
                merged[lane.group] = merged.get(lane.group, 1) * n
                yield n * lanes, tuple(sorted((g, m) for g, m in merged.items() if m > 1)), (((lane, n), *trips) if n > 1 else trips)


def _ragged(u: int, dims: Sequence[Lane], even: bool) -> Iterator[tuple[int, tuple[tuple[int, int], ...], Trips]]:
    """(tile of a lane, cuts, trips) of a tile u; even: only those that do not divide, the others are perfect."""
    for t, cuts, trips in _cut(u, dims):
        divided = all(a % b == 0 for a, b in zip((u, *(tile for _, tile in cuts)), (tile for _, tile in cuts), strict=False))
        if cuts and not (even and divided):
            yield t, _merged(cuts), trips


def _cut(tile: int, dims: Sequence[Lane]) -> Iterator[tuple[int, tuple[tuple[int, int], ...], Trips]]:
    if not dims:
        yield tile, (), ()
        return
    lane, *rest = dims
    before = 0
    for n in range(1, min(lane.size, tile) + 1):
        inner = -(-tile // n)
        if inner != before:
            for t, cuts, trips in _cut(inner, rest):
                yield (t, cuts, trips) if n == 1 else (t, ((lane.group, inner), *cuts), ((lane, -(-tile // inner)), *trips))
        before = inner


def _merged(cuts: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Cuts in a row over one group leave the same tiles as the last of them where it divides the one before."""
    found: list[tuple[int, int]] = []
    for group, tile in cuts:
        if found and found[-1][0] == group and found[-1][1] % tile == 0:
            found.pop()
        found.append((group, tile))
    return tuple(found)


def _least(ways: set[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(a for a in ways if not any(b != a and all(y <= x for x, y in zip(a, b, strict=True)) for b in ways)))


def _tabled(extent: int, borders: int, groups: int, found: dict[tuple[Border, ...], set[tuple[int, ...]]], dims: Sequence[Lane]) -> Options:
    keys = sorted(found, key=lambda key: _lanes_of(extent, key, 0))
    depth = 1 + sum(2 + len(dims) for _ in range(borders))
    rows: list[tuple[int, list[tuple[int, int]], list[tuple[int, int]], bool]] = []  # size, explicit cuts (group or -1, tile), perfect lanes outside, whole
    out: list[int] = []
    span = np.zeros((len(keys), borders + 1, 2), np.int64)
    lanes = np.ones((len(keys), borders + 1, 1 << groups))
    for o, key in enumerate(keys):
        tops, explicit, perfect, wholes = [extent], [[]], [[]], [True]  # type: ignore[var-annotated]
        for border in key:
            if border.u:
                explicit.append([*explicit[-1], (-1, border.u), *border.cuts])
                perfect.append(perfect[-1])
                wholes.append(wholes[-1] and border.u == tops[-1])
                tops.append(border.cuts[-1][1] if border.cuts else border.u)
            else:
                explicit.append(explicit[-1])
                perfect.append([*perfect[-1], *border.cuts])
                wholes.append(wholes[-1])
                tops.append(tops[-1] // border.lanes)
        least = [1] * (borders + 1)
        for k in range(borders - 1, -1, -1):
            least[k] = key[k].u or key[k].lanes * least[k + 1]
        starts: list[dict[int, int]] = []
        for k in range(borders + 1):
            begin = len(rows)
            own = {d: begin + i for i, d in enumerate(d for d in divisors(tops[k]) if d % least[k] == 0)}
            for d in own:
                rows.append((d, explicit[k], perfect[k], wholes[k] and d == tops[k]))
                out.append(-1 if k == 0 else starts[k - 1][key[k - 1].u or key[k - 1].lanes * d])
            starts.append(own)
            span[o, k] = begin, len(rows)
            for m in range(1 << groups):
                lanes[o, k, m] = _lanes_of(extent, key[:k], m)
    size = np.array([row[0] for row in rows], np.int64)
    cuts = np.zeros((len(rows), depth), np.int64)
    owner = np.full((len(rows), depth), -1, np.int64)
    share = np.ones((len(rows), groups))
    for i, (d, explicit_cuts, perfect_cuts, _) in enumerate(rows):
        for j, (group, tile) in enumerate((*explicit_cuts, (-1, d))):
            cuts[i, j], owner[i, j] = tile, group
        for group, n in perfect_cuts:
            share[i, group] *= n
    pieces, elems = np.empty((len(rows), 1 << groups)), np.empty((len(rows), 1 << groups))
    _counted(extent, cuts, owner, share, pieces, elems)
    return Options(extent, tuple(keys), tuple(_least(found[key]) for key in keys), span, size, pieces, elems, np.array(out, np.int64),
                   np.array([row[3] for row in rows], np.bool_), lanes, cuts)


def _lanes_of(extent: int, borders: Sequence[Border], mask: int) -> float:
    """Lanes of these borders that get something when loops in time take their first trips; those of the groups in the mask counted once."""
    pieces = {extent: 1}
    for border in borders:
        if not border.u:
            n = prod(many for group, many in border.cuts if not mask >> group & 1)
            pieces = {size // border.lanes: c * n for size, c in pieces.items()}
            continue
        entered: dict[int, int] = {}
        for size, c in pieces.items():
            entered[min(size, border.u)] = entered.get(min(size, border.u), 0) + c
        pieces = entered
        for group, tile in border.cuts:
            after: dict[int, int] = {}
            for piece, n in pieces.items():
                whole, rest = divmod(piece, tile)
                if mask >> group & 1:
                    whole, rest = (1, 0) if whole else (0, rest)
                if whole:
                    after[tile] = after.get(tile, 0) + n * whole
                if rest:
                    after[rest] = after.get(rest, 0) + n
            pieces = after
    return float(sum(pieces.values()))


@njit(cache=True, nogil=True)
def _counted(extent: int, cuts: Ints, owner: Ints, share: Floats, pieces: Floats, elems: Floats) -> None:
    """Pieces and elements of every tile and mask: share [n, G] perfect lanes of a group, which the mask leaves out."""
    sizes, many = np.zeros(256, np.int64), np.zeros(256)
    for i in range(cuts.shape[0]):
        for m in range(pieces.shape[1]):
            n, sizes[0], many[0] = 1, extent, 1.0
            for j in range(cuts.shape[1]):
                tile = cuts[i, j]
                if tile == 0:
                    break
                first, after = owner[i, j] >= 0 and m >> owner[i, j] & 1, n
                for k in range(n):
                    whole, rest = sizes[k] // tile, sizes[k] % tile
                    if whole:
                        sizes[k], many[k] = tile, many[k] * (1.0 if first else whole)
                        if rest and not first:
                            sizes[after], many[after] = rest, many[k] / whole
                            after += 1
                n = after
            left, words, shared = 0.0, 0.0, 1.0
            for k in range(n):
                left += many[k]
                words += many[k] * sizes[k]
            for g in range(share.shape[1]):
                if m >> g & 1:
                    shared *= share[i, g]
            pieces[i, m], elems[i, m] = left / shared, words / shared
