"""Vectors of the search over imperfect factors (ragged.py). A chain is the tile sizes of one rank, outermost
first: one per gap (loop position) outside the array, then one per fan-out dimension. A vector holds, for one
chain per rank of a group, the factors that they give to every product of a program (ragged_program.Term).

A row stays if, together with bounds of what the other groups give (`kernels.Rest`), it fits and may cost less
than the best so far. Groups of two ranks are outlined first: an outline has one row per choice of tiles
outside the array, with lower bounds over all tiles inside. Where the innermost gap cuts a tile of more than
`FEW` elements, one row of bounds stands for all chains that leave more than one element per PE on equally
many PEs (`small` of ragged_kernels.chains).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from dse.mapper.exact import ragged_kernels as kernels
from dse.mapper.exact.ragged_kernels import COUNT, FIRST
from dse.mapper.exact.ragged_program import Program, Role, Window, bounded_nodes, touched
from hw.arch import Arch
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import Dim, Einsum

# rows for the chains of a short rank: a quarter of what is allocated first, fourfold each time until they fit
ROOM = 1 << 12
# elements of a tile up to which every split over PEs is a row; above, see `small` of ragged_kernels.chains
FEW = 64
# more vectors than this, in groups of one and of two ranks, are not compared with each other for dominance
MANY = (20_000, 40_000)
# at most: rows for the chains of a rank, pairs of chains of two ranks, vectors of a group
MOST = (1 << 24, 1 << 40, 24_000_000)
PART = 1 << 18  # pairs of chains that are made at a time
KINDS = 64  # rows of bounds (kernels.Rest) for what all other groups give, at most


@dataclass(frozen=True, slots=True)
class Group:
    """What the vectors of a group of ranks depend on. Equal groups have equal vectors."""

    extents: tuple[int, ...]  # of the ranks
    allowed: tuple[tuple[bool, ...], ...]  # per rank and gap: whether the rank may be cut there
    pes: tuple[int, ...]  # sizes of the fan-out dimensions
    # per product: [0] sign, [1] roles of the ranks, [2] windows within the group, [3] gap of these (-1: none)
    terms: tuple[tuple[int, tuple[Role, ...], tuple[Window, ...], int], ...]
    # per bounded node: its gap, its dimensions within the group as (coefficients, whether a window)
    footprints: tuple[tuple[int, tuple[tuple[tuple[int, ...], bool], ...]], ...]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Rows of a group: chains of its ranks, and the factors that these give."""

    tiles: Ints  # [N, R, E + D] per rank the tiles at the gaps, then at the fan-out dimensions
    products: Floats  # [N, T] factors of the products
    # [N, B, 2] factors of a node's elements: at its own place; if it also sinks below the loop of that rank
    # of a window that saves most (one rank of all groups together may do so)
    footprints: Floats
    pes: Floats  # [N, D] PEs in use


def group(p: Program, e: Einsum, arch: Arch, ranks: tuple[str, ...]) -> Group:
    """The terms and footprints of a program, restricted to the given ranks."""
    sizes, names = e.sizes(), [rank for rank, _ in e.extents]

    def coefs(dim: Dim) -> tuple[int, ...]:
        return tuple(dict(dim.terms).get(rank, 0) for rank in ranks)

    terms = tuple(
        (
            t.sign,
            tuple(t.roles[names.index(rank)] for rank in ranks),
            tuple((coefs(d), d.offset, d.size) for d in t.windows if any(coefs(d))),
            t.at if any(any(coefs(d)) for d in t.windows) else -1,
        )
        for t in p.terms
    )
    footprints = tuple(
        (
            gap,
            tuple(
                (coefs(d), not (len(d.terms) == 1 and d.terms[0][1] == 1))
                for d in e.tensors()[node.tensor].dims
                if any(coefs(d))
            ),
        )
        for gap, node in bounded_nodes(p, arch)
    )
    return Group(
        tuple(sizes[rank] for rank in ranks),
        tuple(tuple(rank in own for own in p.allowed) for rank in ranks),
        tuple(n for f in arch.fanouts for _, n in f.dims),
        terms,
        footprints,
    )


@dataclass(frozen=True, slots=True)
class Scope:
    """Which chains are wanted: those that may cost less than `best` together with some row of `rest`."""

    prices: kernels.Prices
    best: Floats  # [3] objective, energy, latency
    rest: kernels.Rest  # bounds of what all other groups give
    coarse: bool  # whether to take only tiles of ceil(extent / n)


def vectors(g: Group, scope: Scope, outer: bool = False, alive: Ints | None = None) -> Vectors | None:
    """The vectors of a group that no other one dominates and that may be part of a mapping below the best.
    None if there are too many to make.

    outer: whether to return an outline instead: one vector of lower bounds per choice of tiles outside the
        array.
    alive: [., R, E] choices of tiles outside the array that an outline left; others are skipped. None:
        none is skipped. A vector that dominates one with such tiles has such tiles itself, since its bounds
        are no higher, so no dominating vector is skipped.
    """
    codes = [
        kernels.codes(alive[:, r], n) if alive is not None else np.zeros(0, np.int64)
        for r, n in enumerate(g.extents)
    ]
    singles = _singles(g, scope, outer, codes)
    if singles is None:
        return None
    if len(g.extents) == 2 and all(len(rows) for rows, _ in singles):
        keep = _widely(g, singles, scope, outer)
        singles[0] = singles[0][0][keep], {name: own[keep] for name, own in singles[0][1].items()}
    shape = [len(rows) for rows, _ in singles]
    if prod(shape) > MOST[1]:
        return None
    tables, found, kept = tables_of(g, singles), [], 0
    apart = (g.extents[-1] + 1) ** len(g.allowed[-1])
    wanted = (
        np.unique(codes[0] * apart + codes[1])
        if alive is not None and apart * (g.extents[0] + 1) ** len(g.allowed[0]) < 1 << 63
        else None
    )
    own = [
        kernels.codes(rows[:, : len(g.allowed[0])], n)
        for n, (rows, _) in zip(g.extents, singles, strict=True)
    ]
    for begin in range(0, prod(shape), PART):  # part by part, since few pairs are kept of each
        pick = list(np.unravel_index(np.arange(begin, min(begin + PART, prod(shape))), shape))
        if wanted is not None:
            pairs = own[0][pick[0]] * apart + own[1][pick[1]]
            at = np.searchsorted(wanted, pairs)
            keep = np.flatnonzero(wanted[np.minimum(at, len(wanted) - 1)] == pairs)
            pick = [index[keep] for index in pick]
        part = vectors_of(g, singles, pick, tables)
        found.append(may_improve(part, scope))
        kept += len(found[-1].products)
        if kept > MOST[2]:
            return None
    every = (
        _concatenate(found) if found else vectors_of(g, singles, [np.zeros(0, np.int64)] * len(shape), tables)
    )
    return every if outer else undominated(g, every)


def undominated(g: Group, v: Vectors) -> Vectors:
    """The vectors of a group that no other one dominates; all of them, if there are too many to compare."""
    if not 0 < len(v.products) <= MANY[len(g.extents) - 1]:
        return v
    signed = v.products * [own[0] for own in g.terms]
    return take_rows(
        v,
        _front(
            np.concatenate([signed, v.footprints.reshape(len(v.footprints), -1), v.pes], axis=1),
            real(v.tiles),
        ),
    )


def _singles(
    g: Group, scope: Scope, outer: bool, alive: Sequence[Ints] = ()
) -> list[tuple[Ints, Columns]] | None:
    """Per rank its chains and their columns, without chains that are part of no mapping below the best, by a
    bound with the lowest factors of the other rank.

    outer: one row per choice of tiles outside the array.
    alive: per rank the codes of the only tiles outside the array that count; empty: all count.
    """
    reach = max(
        [own[3] for own in g.terms if own[2]]
        + [gap + 1 for gap, dims in g.footprints if any(window for _, window in dims)],
        default=-1,
    )
    least = np.array(
        [
            [_low(role, n) for (_, roles, _, _) in g.terms for role in [roles[r]]]
            for r, n in enumerate(g.extents)
        ]
    )
    seen = np.array([prod(touched(w, g.extents) for w in own[2]) for own in g.terms])
    found = []
    for r in range(len(g.extents)):
        others = seen * np.prod(np.delete(least, r, axis=0), axis=0)
        own = replace(scope, rest=scope.rest._replace(products=scope.rest.products * others))
        one = chains(
            g,
            r,
            min(reach + 1, len(g.allowed[0])),
            own,
            outer,
            alive=np.unique(alive[r]) if len(alive) else np.zeros(0, np.int64),
        )
        if one is None:
            return None
        found.append(one)
    return found


def outline(g: Group, scope: Scope) -> Vectors | None:
    """An outline coarser than `vectors` with `outer`: one row per choice of the first rank's tiles outside
    the array, with lower bounds over all splits over PEs and all chains of the second rank. Only rows that
    may lead below the best. None if there are too many chains.
    """
    singles = _singles(g, scope, True)
    if singles is None or not all(len(rows) for rows, _ in singles):
        return (
            None
            if singles is None
            else Vectors(
                np.zeros((0, 1, 1), np.int64),
                np.zeros((0, len(g.terms))),
                np.zeros((0, len(g.footprints), 2)),
                np.zeros((0, 0)),
            )
        )
    return may_improve(_first(g, singles), scope)


def _first(g: Group, singles: Sequence[tuple[Ints, Columns]]) -> Vectors:
    """Per chain of the first rank, lower bounds of all numbers over the chains of the second rank."""
    rows, columns = singles[0]
    products, footprints = np.ones((len(rows), len(g.terms))), np.ones((len(rows), len(g.footprints), 2))
    tables = tables_of(g, singles)
    for k, (_, roles, windows, gap) in enumerate(g.terms):
        role = roles[0]
        name = ("count", role.gap, 0) if role.gap >= 0 else ("lanes", role.what, role.mask)
        products[:, k] = (
            columns[name] if role.gap >= 0 or role.what >= 0 else g.extents[0] if role.what == -1 else 1.0
        )
        for r, other in enumerate(roles[1:], 1):
            own = singles[r][1].get(
                ("count", other.gap, 0) if other.gap >= 0 else ("lanes", other.what, other.mask)
            )
            products[:, k] *= (
                _low(other, g.extents[r]) if own is None else own.max() if other.what == FIRST else own.min()
            )
        for window in windows:
            table, which = tables[window, gap]
            products[:, k] *= table.min(axis=1)[which[0]]
    for b, (gap, dims) in enumerate(g.footprints):
        for coefs, partial in dims:
            for sunk in range(2 if coefs[0] else 0):
                footprints[:, b, sunk] *= 1 + coefs[0] * (columns["tile", gap + (partial and sunk), 0] - 1)
    return Vectors(
        rows[:, None, :],
        products,
        footprints,
        np.stack([columns["trips", d, 0] for d in range(len(g.pes))], axis=1),
    )


def may_improve(v: Vectors, scope: Scope) -> Vectors:
    """The vectors that may cost less than scope.best, with all other groups at their bounds (scope.rest)."""
    return take_rows(
        v,
        np.flatnonzero(
            kernels.may_improve(v.products, v.footprints, v.pes, scope.rest, scope.prices, scope.best)
        ),
    )


def _concatenate(found: Sequence[Vectors]) -> Vectors:
    return Vectors(
        *(
            np.concatenate([getattr(v, name) for v in found])
            for name in ("tiles", "products", "footprints", "pes")
        )
    )


def combine(groups: Sequence[Vectors], lows: Sequence[Vectors], scope: Scope) -> kernels.Rest:
    """Bounds of what the groups give together, in at most `KINDS` rows. lows: vectors or bounds of the groups
    that are not in `groups`, to drop rows that cannot lead below the best.
    """
    t = scope.prices
    least = [minimum_of(v, t) for v in groups]
    found = unit(t)
    for i, v in enumerate(groups):
        few, others = _kinds(v, t, KINDS), [minimum_of(v, t) for v in lows] + least[i + 1 :]
        found = times(found, few)
        rest = unit(t)
        for other in others:
            rest = times(rest, other)
        found = may_improve(found, replace(scope, rest=rest_of(rest)))
        found = _kinds(found, t, KINDS)
    return rest_of(found)


def rest_of(v: Vectors) -> kernels.Rest:
    """Vectors as the rows of bounds that stand for all other groups."""
    return kernels.Rest(v.products, v.footprints, v.pes)


def unit(t: kernels.Prices) -> Vectors:
    """The neutral vector of `times`: one row of factors 1."""
    return Vectors(
        np.zeros((1, 1, 1), np.int64),
        np.ones((1, len(t.sign))),
        np.ones((1, len(t.bits), 2)),
        np.ones((1, len(t.pes))),
    )


def times(a: Vectors, b: Vectors) -> Vectors:
    """All pairs of rows of two groups, as the rows of both groups together."""
    i, j = (index.ravel() for index in np.indices((len(a.products), len(b.products))))
    one, two = a.footprints[i], b.footprints[j]
    footprints = np.stack(
        [one[..., 0] * two[..., 0], np.minimum(one[..., 1] * two[..., 0], one[..., 0] * two[..., 1])], axis=-1
    )
    return Vectors(
        np.zeros((len(i), 1, 1), np.int64), a.products[i] * b.products[j], footprints, a.pes[i] * b.pes[j]
    )


def _kinds(v: Vectors, t: kernels.Prices, most: int) -> Vectors:
    """The rows in at most `most` clusters, each as one row with the lowest values of its rows. The cluster
    that spreads most is split first.
    """
    values = np.log2(1e-9 + np.concatenate([v.products, v.footprints[..., 0], v.pes], axis=1).clip(max=1e18))
    parts = [np.arange(len(values))]
    spread = [np.ptp(values, axis=0) if len(values) else np.zeros(values.shape[1])]
    while len(parts) < min(most, len(values)):
        i = max(range(len(parts)), key=lambda i: spread[i].max())
        column = int(spread[i].argmax())
        if not spread[i][column]:
            break
        own, numbers = parts[i], values[parts[i], column]
        upper = numbers > (numbers.min() + numbers.max()) / 2
        parts[i : i + 1], spread[i : i + 1] = (
            [own[~upper], own[upper]],
            [np.ptp(values[own[~upper]], axis=0), np.ptp(values[own[upper]], axis=0)],
        )
    return _concatenate([minimum_of(take_rows(v, own), t) for own in parts]) if len(values) else v


def minimum_of(v: Vectors, t: kernels.Prices) -> Vectors:
    """One row: the least of all rows in every number; for products that are subtracted, the largest."""
    return Vectors(
        np.zeros((1, 1, 1), np.int64),
        np.where(t.sign > 0, v.products.min(axis=0), v.products.max(axis=0))[None],
        v.footprints.min(axis=0)[None],
        v.pes.min(axis=0)[None],
    )


def take_rows(v: Vectors, rows: Ints) -> Vectors:
    """The given rows of every array, in the given order."""
    return Vectors(v.tiles[rows], v.products[rows], v.footprints[rows], v.pes[rows])


def real(tiles: Ints) -> Bools:
    """[N] True for a row of actual chains, False for a row of bounds for many chains."""
    found: Bools = np.all(tiles.reshape(len(tiles), -1, tiles.shape[-1])[:, :, -1] > 0, axis=1)
    return found


def _low(role: Role, extent: int) -> float:
    """Lower bound of the factor that a rank gives to a product; for skipped reads, which are subtracted, the
    upper bound inf.
    """
    return float(extent) if role.gap < 0 and role.what == -1 else inf if role.what == FIRST else 1.0


def lows(g: Group) -> Vectors:
    """One row: lower bounds of the factors that a group gives to products; upper bounds for skipped reads."""
    products = [
        prod(touched(w, g.extents) for w in own[2])
        * prod(_low(role, n) for role, n in zip(own[1], g.extents, strict=True))
        for own in g.terms
    ]
    return Vectors(
        np.zeros((1, 1, 1), np.int64),
        np.array([products], float),
        np.ones((1, len(g.footprints), 2)),
        np.ones((1, len(g.pes))),
    )


def _front(values: Floats, real: Bools) -> Ints:
    """Indices of the rows that no other one dominates. Of equal rows one stays: a row of actual chains (real)
    before a row of bounds.
    """
    varied = np.ascontiguousarray(values[:, np.ptp(values, axis=0) > 0]) if len(values) > 1 else values[:, :0]
    scale = np.log2(1 + varied - varied.min(axis=0)).sum(axis=1) if varied.size else np.zeros(len(values))
    return np.flatnonzero(kernels.front(varied, np.argsort(scale + 1e-9 * ~real, kind="stable"), real))


# Columns of numbers per chain of a rank: ("count", gap, 0) tiles at a gap, ("tile", gap, 0) their size,
# ("lanes", what, mask) a number for the tiles inside the PEs (Role), ("trips", dimension, 0) PEs in use.
Columns = dict[tuple[str, int, int], Floats]


def chains(
    g: Group,
    r: int,
    keys: int,
    scope: Scope,
    outer: bool = False,
    fixed: Sequence[int] = (),
    alive: Ints | None = None,
) -> tuple[Ints, Columns] | None:
    """The chains of rank r and their columns (ragged_kernels.chains). None if there are too many.

    keys: a chain may only dominate chains with the same tiles at the first so many gaps (windows see these).
    outer: one row per choice of tiles outside the array.
    fixed: tile per gap, 0: any.
    alive: codes of the only tiles at the gaps that count; None or empty: all count.
    """
    counts = sorted({own[1][r].gap for own in g.terms if own[1][r].gap >= 0})
    lane = sorted({(own[1][r].what, own[1][r].mask) for own in g.terms if own[1][r].what >= 0})
    tiles = sorted(
        {
            gap + more
            for gap, dims in g.footprints
            for coefs, window in dims
            if coefs[r]
            for more in range(1 + window)
        }
    )
    last = max((j for j, may in enumerate(g.allowed[r]) if may), default=-1)
    large = (
        any(j >= last for j in counts)
        or any(what == COUNT for what, _ in lane)
        or any(own[3] >= last for own in g.terms if own[2])
        or len(g.pes) > 2
    )
    names = [
        *(("count", j, 0) for j in counts),
        *(("tile", j, 0) for j in tiles),
        *(("lanes", what, mask) for what, mask in lane),
        *(("trips", d, 0) for d in range(len(g.pes))),
    ]
    column = [
        names.index(("count", role.gap, 0))
        if role.gap >= 0
        else names.index(("lanes", role.what, role.mask))
        if role.what >= 0
        else -1
        for role in (own[1][r] for own in g.terms)
    ]
    n = g.extents[r]
    ends = np.array([n if role.gap < 0 and role.what == -1 else 1 for role in (own[1][r] for own in g.terms)])
    sizes = np.array(
        sorted({-(-n // m) for m in range(1, n + 1)}) if scope.coarse else range(1, n + 1), np.int64
    )
    hold = [
        (b, gap, coefs[r], int(window))
        for b, (gap, dims) in enumerate(g.footprints)
        for coefs, window in dims
        if coefs[r]
    ]
    hope = kernels.ChainBound(
        scope.prices,
        scope.best,
        np.array(column, np.int64),
        np.array(hold, np.int64).reshape(-1, 4),
        scope.rest._replace(products=scope.rest.products * ends),
    )
    room, enough = ROOM * (1 if n < 200 else 1 << 5), False
    while not enough:
        room *= 4
        if room > MOST[0]:
            return None
        rows, values, enough = kernels.chains(
            n,
            np.array(g.allowed[r]),
            sizes,
            np.array(fixed or [0] * len(g.allowed[r]), np.int64),
            np.array(g.pes, np.int64),
            np.array(counts, np.int64),
            np.array(tiles, np.int64),
            np.array(lane, np.int64).reshape(-1, 2),
            keys,
            0 if large or fixed or len(g.extents) > 1 else FEW,
            outer,
            np.zeros(0, np.int64) if alive is None else alive,
            hope,
            room,
        )
    columns = {
        name: values[:, i] * (-1 if name[:2] == ("lanes", FIRST) else 1) for i, name in enumerate(names)
    }
    return rows, columns


Tables = dict[tuple[Window, int], tuple[Floats, list[Ints]]]


def tables_of(g: Group, singles: Sequence[tuple[Ints, Columns]]) -> Tables:
    """Per window and gap: summed hull lengths by the different beginnings (up to that gap) of each rank's
    chains; and per rank the beginning that each row has.
    """
    return {
        (window, gap): _hulls(g, window, gap, [rows for rows, _ in singles])
        for window, gap in {(window, own[3]) for own in g.terms for window in own[2]}
    }


def _hulls(g: Group, window: Window, gap: int, rows: Sequence[Ints]) -> tuple[Floats, list[Ints]]:
    """The entry of `tables_of` for one window and gap."""
    (coefs, offset, size), (unique, which) = window, ([], [])
    for own in rows:  # rows with equal tiles up to a gap follow each other
        new = np.ones(len(own), np.bool_)
        new[1:] = (own[1:, : gap + 1] != own[:-1, : gap + 1]).any(axis=1)
        unique.append(np.ascontiguousarray(own[new, : gap + 1]))
        which.append(np.cumsum(new) - 1)
    if len(rows) == 1:
        unique.append(np.ones((1, 1), np.int64))
    two = (*g.extents, 1)[1]
    return kernels.hulls(
        g.extents[0], unique[0], coefs[0], two, unique[1], (*coefs, 0)[1], offset, size
    ), which


def _widely(g: Group, singles: Sequence[tuple[Ints, Columns]], scope: Scope, outer: bool) -> Ints:
    """Indices of the first rank's chains that no other chain dominates, whatever the second rank's is."""
    rows, columns = singles[0]
    first, tables = _first(g, singles), tables_of(g, singles)
    keep = np.flatnonzero(
        kernels.may_improve(first.products, first.footprints, first.pes, scope.rest, scope.prices, scope.best)
    )
    if outer or not 0 < len(keep) <= MANY[1]:
        return keep
    values = [own[keep] * (-1 if name[:2] == ("lanes", FIRST) else 1) for name, own in columns.items()]
    for table, (which, _) in tables.values():
        values += list(table.T[:, which[keep]])
    return keep[_front(np.stack(values, axis=1), real(rows[keep]))]


def vectors_of(
    g: Group, singles: Sequence[tuple[Ints, Columns]], pick: Sequence[Ints], tables: Tables
) -> Vectors:
    """The vectors of chosen chains that fit the array. pick: per rank the index of each vector's chain."""
    n = len(pick[0])
    products = np.ones((n, len(g.terms)))
    footprints = np.ones((n, len(g.footprints), 2))
    pes = np.ones((n, len(g.pes)))
    for k, (_, roles, windows, gap) in enumerate(g.terms):
        for r, role in enumerate(roles):
            if role.gap >= 0:
                products[:, k] *= singles[r][1]["count", role.gap, 0][pick[r]]
            elif role.what >= 0:
                products[:, k] *= singles[r][1]["lanes", role.what, role.mask][pick[r]]
            elif role.what == -1:
                products[:, k] *= g.extents[r]
        for window in windows:
            table, which = tables[window, gap]
            products[:, k] *= table[which[0][pick[0]], which[1][pick[1]] if len(pick) > 1 else 0]
    for b, (gap, dims) in enumerate(g.footprints):

        def length(
            moved: int, gap: int = gap, dims: tuple[tuple[tuple[int, ...], bool], ...] = dims
        ) -> Floats:
            total = np.ones(n)
            for coefs, window in dims:
                own = np.ones(n)
                for r, c in enumerate(coefs):
                    if c:
                        own += c * (singles[r][1]["tile", gap + (window and r == moved), 0][pick[r]] - 1)
                total *= own
            return total

        footprints[:, b, 0] = length(-1)
        footprints[:, b, 1] = np.min([length(r) for r in (-1, *range(len(pick)))], axis=0)
    for d in range(len(g.pes)):
        for r in range(len(pick)):
            pes[:, d] *= singles[r][1]["trips", d, 0][pick[r]]
    keep = np.flatnonzero((pes <= np.array(g.pes)).all(axis=1))
    tiles = np.stack([singles[r][0][pick[r]] for r in range(len(pick))], axis=1)
    return Vectors(tiles[keep], products[keep], footprints[keep], pes[keep])


def sets(found: Sequence[Vectors]) -> kernels.Sets:
    """Vectors of several groups end to end."""
    return kernels.Sets(
        np.cumsum([0, *(len(v.products) for v in found)]),
        np.concatenate([v.products for v in found]),
        np.concatenate([v.footprints for v in found]),
        np.concatenate([v.pes for v in found]),
    )
