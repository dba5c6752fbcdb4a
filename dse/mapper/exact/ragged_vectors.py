"""Vectors of the search over imperfect factors (ragged.py). A chain is the tile sizes of one rank, outermost
first: one per gap (loop position) outside the array, then one per fan-out dimension. A vector holds, for one
chain per rank of a group, the factors that they give to every product of a program (ragged_program.Term).

A row stays if, together with bounds of what the other groups give (`kernels.Rest`), it fits and may cost less
than the best so far. Groups of two ranks are outlined first: an outline has one row per choice of tiles
outside the array, with lower bounds over all tiles inside. Where the innermost gap cuts a tile of more than
`MAX_ENUMERATED` elements, one row of bounds stands for all chains that leave more than one element per PE on
equally many PEs (`bundle_above` of ragged_kernels.chains).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from dse.mapper.exact import ragged_kernels as kernels
from dse.mapper.exact.ragged_kernels import COUNT
from dse.mapper.exact.ragged_program import (
    EXTENT,
    NO_GAP,
    TILES_AT_GAP,
    Program,
    Role,
    Window,
    bounded_nodes,
    touched,
)
from hw.arch import Arch
from workloads.arrays import Bools, Floats, Ints
from workloads.einsum import Dim, Einsum

# a quarter of the rows that are allocated first for the chains of a rank (of 32 times as many for extents of
# 200 or more); each time that they do not fit, four times as many
INITIAL_ROWS = 1 << 12
# elements of a tile up to which every split over PEs is a row; above, see `bundle_above` of
# ragged_kernels.chains
MAX_ENUMERATED = 64
# more vectors than this, in groups of one and of two ranks, are not compared with each other for dominance
MAX_COMPARED = (20_000, 40_000)
# at most: rows for the chains of a rank, pairs of chains of two ranks, vectors of a group
MAX_CHAIN_ROWS, MAX_PAIRS, MAX_VECTORS = (1 << 24, 1 << 40, 24_000_000)
PAIRS_PER_PART = 1 << 18  # pairs of chains that are made at a time
MAX_BOUND_ROWS = 64  # rows of bounds (kernels.Rest) for what all other groups give, at most


class GroupTerm(NamedTuple):
    """What a group of ranks gives to one product (ragged_program.Term)."""

    sign: int  # 1; -1 for skipped reads, which are subtracted
    roles: tuple[Role, ...]  # of the group's ranks
    windows: tuple[Window, ...]  # dimensions that have a rank of the group
    window_gap: int  # the gap whose tiles these are summed over; NO_GAP: there are none


class FootprintDim(NamedTuple):
    """A dimension of a node's tensor that has a rank of the group."""

    coefs: tuple[int, ...]  # per rank of the group
    is_window: bool


class Footprint(NamedTuple):
    """What a group gives to the footprint of a node whose level has a capacity."""

    gap: int  # directly above the node
    dims: tuple[FootprintDim, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """What the vectors of a group of ranks depend on. Equal groups have equal vectors."""

    extents: tuple[int, ...]  # of the ranks
    allowed: tuple[tuple[bool, ...], ...]  # per rank and gap: whether the rank may be cut there
    pes: tuple[int, ...]  # sizes of the fan-out dimensions
    terms: tuple[GroupTerm, ...]  # one per product
    footprints: tuple[Footprint, ...]  # one per bounded node (ragged_program.bounded_nodes)


class Column(NamedTuple):
    """The name of a number per chain of a rank.

    "count": tiles at a gap. "tile": their size. "inside": a number for the tiles inside the PEs, by
    Role.kind. "trips": PEs in use along a fan-out dimension.
    """

    name: Literal["count", "tile", "inside", "trips"]
    number: int  # of the gap, of the gap, the kind, of the dimension
    mask: int = 0  # of "inside": Role.mask


def column_of(role: Role) -> Column | None:
    """The column that a role takes its factor from. None: the factor is the same for all chains."""
    if role.kind == TILES_AT_GAP:
        return Column("count", role.gap)
    return Column("inside", role.kind, role.mask) if role.is_inside_pes() else None


class RankChains(NamedTuple):
    """Chains of one rank, one per row."""

    tiles: Ints  # [N, E + D] the tiles at the gaps, then at the fan-out dimensions
    columns: dict[Column, Floats]  # [N] each


@dataclass(frozen=True, slots=True)
class Vectors:
    """Rows of a group: chains of its ranks, and the factors that these give."""

    tiles: Ints  # [N, R, E + D] per rank the tiles at the gaps, then at the fan-out dimensions
    products: Floats  # [N, T] factors of the products
    # [N, B, 2] factors of a node's elements: [0] of its tile at its own gap; [1] if it also sinks below the
    # loop over one rank of a window, the one that saves most. At most one group gives its [1]
    footprints: Floats
    pes: Floats  # [N, D] PEs in use


def group(p: Program, e: Einsum, arch: Arch, ranks: tuple[str, ...]) -> Group:
    """The terms and footprints of a program, restricted to the given ranks."""
    sizes, names = e.sizes(), [rank for rank, _ in e.extents]

    def coefs(dim: Dim) -> tuple[int, ...]:
        return tuple(dict(dim.terms).get(rank, 0) for rank in ranks)

    terms = tuple(
        GroupTerm(
            t.sign,
            tuple(t.roles[names.index(rank)] for rank in ranks),
            tuple(Window(coefs(d), d.offset, d.size) for d in t.windows if any(coefs(d))),
            t.window_gap if any(any(coefs(d)) for d in t.windows) else NO_GAP,
        )
        for t in p.terms
    )
    footprints = tuple(
        Footprint(
            gap,
            tuple(
                FootprintDim(coefs(d), not (len(d.terms) == 1 and d.terms[0][1] == 1))
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
    """Which chains and vectors are wanted: those that may cost less than `best` together with some row of
    `rest`.
    """

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
    rank_chains = _rank_chains(g, scope, outer, codes)
    if rank_chains is None:
        return None
    if len(g.extents) == 2 and all(len(one.tiles) for one in rank_chains):
        keep = _undominated_for_all(g, rank_chains, scope, outer)
        rank_chains[0] = RankChains(
            rank_chains[0].tiles[keep],
            {name: column[keep] for name, column in rank_chains[0].columns.items()},
        )
    shape = [len(one.tiles) for one in rank_chains]
    if prod(shape) > MAX_PAIRS:
        return None
    tables, found, row_count = tables_of(g, rank_chains), [], 0
    pair_radix = (g.extents[-1] + 1) ** len(g.allowed[-1])
    wanted_pairs = (
        np.unique(codes[0] * pair_radix + codes[1])
        if alive is not None and pair_radix * (g.extents[0] + 1) ** len(g.allowed[0]) < 1 << 63
        else None
    )
    row_codes = [
        kernels.codes(one.tiles[:, : len(g.allowed[0])], n)
        for n, one in zip(g.extents, rank_chains, strict=True)
    ]
    for begin in range(0, prod(shape), PAIRS_PER_PART):  # part by part, since few pairs are kept of each
        pick = list(np.unravel_index(np.arange(begin, min(begin + PAIRS_PER_PART, prod(shape))), shape))
        if wanted_pairs is not None:
            pairs = row_codes[0][pick[0]] * pair_radix + row_codes[1][pick[1]]
            at = np.searchsorted(wanted_pairs, pairs)
            keep = np.flatnonzero(wanted_pairs[np.minimum(at, len(wanted_pairs) - 1)] == pairs)
            pick = [index[keep] for index in pick]
        part = vectors_of(g, rank_chains, pick, tables)
        found.append(may_improve(part, scope))
        row_count += len(found[-1].products)
        if row_count > MAX_VECTORS:
            return None
    all_rows = (
        _concatenate(found)
        if found
        else vectors_of(g, rank_chains, [np.zeros(0, np.int64)] * len(shape), tables)
    )
    return all_rows if outer else undominated(g, all_rows)


def undominated(g: Group, v: Vectors) -> Vectors:
    """The vectors of a group that no other one dominates; all of them, if there are too many to compare."""
    if not 0 < len(v.products) <= MAX_COMPARED[len(g.extents) - 1]:
        return v
    signed = v.products * [term.sign for term in g.terms]
    return take_rows(
        v,
        _front(
            np.concatenate([signed, v.footprints.reshape(len(v.footprints), -1), v.pes], axis=1),
            are_chains(v.tiles),
        ),
    )


def _rank_chains(g: Group, scope: Scope, outer: bool, alive: Sequence[Ints] = ()) -> list[RankChains] | None:
    """Per rank its chains and their columns, without chains that are part of no mapping below the best, by a
    bound with the lowest factors of the other rank.

    outer: one row per choice of tiles outside the array.
    alive: per rank the codes of the only tiles outside the array that count; empty: all count.
    """
    last_window_gap = max(
        [term.window_gap for term in g.terms if term.windows]
        + [node.gap + 1 for node in g.footprints if any(dim.is_window for dim in node.dims)],
        default=-1,
    )
    factor_bounds = np.array(
        [[_factor_bound(term.roles[r], n) for term in g.terms] for r, n in enumerate(g.extents)]
    )
    window_minimum = np.array([prod(touched(w, g.extents) for w in term.windows) for term in g.terms])
    found = []
    for r in range(len(g.extents)):
        others = window_minimum * np.prod(np.delete(factor_bounds, r, axis=0), axis=0)
        rank_scope = replace(scope, rest=scope.rest._replace(products=scope.rest.products * others))
        one = chains(
            g,
            r,
            min(last_window_gap + 1, len(g.allowed[0])),
            rank_scope,
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
    rank_chains = _rank_chains(g, scope, True)
    if rank_chains is None or not all(len(one.tiles) for one in rank_chains):
        return (
            None
            if rank_chains is None
            else Vectors(
                np.zeros((0, 1, 1), np.int64),
                np.zeros((0, len(g.terms))),
                np.zeros((0, len(g.footprints), 2)),
                np.zeros((0, 0)),
            )
        )
    return may_improve(_bounds_over_second(g, rank_chains), scope)


def _bounds_over_second(g: Group, rank_chains: Sequence[RankChains]) -> Vectors:
    """Per chain of the first rank, lower bounds of all numbers over the chains of the second rank; of
    products that are subtracted, upper bounds.
    """
    rows, columns = rank_chains[0]
    products, footprints = np.ones((len(rows), len(g.terms))), np.ones((len(rows), len(g.footprints), 2))
    tables = tables_of(g, rank_chains)
    for k, term in enumerate(g.terms):
        role = term.roles[0]
        name = column_of(role)
        products[:, k] = columns[name] if name else g.extents[0] if role.kind == EXTENT else 1.0
        for r, other in enumerate(term.roles[1:], 1):
            name = column_of(other)
            if name is None:
                products[:, k] *= _factor_bound(other, g.extents[r])
            else:
                column = rank_chains[r].columns[name]
                products[:, k] *= column.min()
        for window in term.windows:
            table, which = tables[window, term.window_gap]
            products[:, k] *= table.min(axis=1)[which[0]]
    for b, node in enumerate(g.footprints):
        for coefs, is_window in node.dims:
            for sinks in range(2 if coefs[0] else 0):
                tile = columns[Column("tile", node.gap + (is_window and sinks))]
                footprints[:, b, sinks] *= 1 + coefs[0] * (tile - 1)
    return Vectors(
        rows[:, None, :],
        products,
        footprints,
        np.stack([columns[Column("trips", d)] for d in range(len(g.pes))], axis=1),
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


def combine(groups: Sequence[Vectors], remaining: Sequence[Vectors], scope: Scope) -> kernels.Rest:
    """Bounds of what the groups give together, in at most `MAX_BOUND_ROWS` rows. remaining: vectors or bounds
    of the groups that are not in `groups`, to drop rows that cannot lead below the best.
    """
    prices = scope.prices
    minima = [minimum_of(v, prices) for v in groups]
    found = unit_vectors(prices)
    for i, v in enumerate(groups):
        others = [minimum_of(v, prices) for v in remaining] + minima[i + 1 :]
        found = multiply(found, _cluster_bounds(v, prices, MAX_BOUND_ROWS))
        rest = unit_vectors(prices)
        for other in others:
            rest = multiply(rest, other)
        found = may_improve(found, replace(scope, rest=rest_of(rest)))
        found = _cluster_bounds(found, prices, MAX_BOUND_ROWS)
    return rest_of(found)


def rest_of(v: Vectors) -> kernels.Rest:
    """Vectors as the rows of bounds that stand for all other groups."""
    return kernels.Rest(v.products, v.footprints, v.pes)


def unit_vectors(prices: kernels.Prices) -> Vectors:
    """The neutral vector of `multiply`: one row of factors 1."""
    return Vectors(
        np.zeros((1, 1, 1), np.int64),
        np.ones((1, len(prices.sign))),
        np.ones((1, len(prices.bits), 2)),
        np.ones((1, len(prices.pes))),
    )


def multiply(a: Vectors, b: Vectors) -> Vectors:
    """All pairs of rows of two groups, as the rows of both groups together."""
    i, j = (index.ravel() for index in np.indices((len(a.products), len(b.products))))
    one, two = a.footprints[i], b.footprints[j]
    footprints = np.stack(
        [one[..., 0] * two[..., 0], np.minimum(one[..., 1] * two[..., 0], one[..., 0] * two[..., 1])], axis=-1
    )
    return Vectors(
        np.zeros((len(i), 1, 1), np.int64), a.products[i] * b.products[j], footprints, a.pes[i] * b.pes[j]
    )


def _cluster_bounds(v: Vectors, prices: kernels.Prices, max_rows: int) -> Vectors:
    """The rows in at most `max_rows` clusters, each as one row with the lowest values of its rows. The
    cluster that spreads most is split first.
    """
    values = np.log2(1e-9 + np.concatenate([v.products, v.footprints[..., 0], v.pes], axis=1).clip(max=1e18))
    clusters = [np.arange(len(values))]
    spread = [np.ptp(values, axis=0) if len(values) else np.zeros(values.shape[1])]
    while len(clusters) < min(max_rows, len(values)):
        i = max(range(len(clusters)), key=lambda i: spread[i].max())
        column = int(spread[i].argmax())
        if not spread[i][column]:
            break
        members, column_values = clusters[i], values[clusters[i], column]
        upper = column_values > (column_values.min() + column_values.max()) / 2
        clusters[i : i + 1], spread[i : i + 1] = (
            [members[~upper], members[upper]],
            [np.ptp(values[members[~upper]], axis=0), np.ptp(values[members[upper]], axis=0)],
        )
    return (
        _concatenate([minimum_of(take_rows(v, members), prices) for members in clusters])
        if len(values)
        else v
    )


def minimum_of(v: Vectors, prices: kernels.Prices) -> Vectors:
    """One row: the least of all rows in every number; for products that are subtracted, the largest."""
    return Vectors(
        np.zeros((1, 1, 1), np.int64),
        np.where(prices.sign > 0, v.products.min(axis=0), v.products.max(axis=0))[None],
        v.footprints.min(axis=0)[None],
        v.pes.min(axis=0)[None],
    )


def take_rows(v: Vectors, rows: Ints) -> Vectors:
    """The given rows of every array, in the given order."""
    return Vectors(v.tiles[rows], v.products[rows], v.footprints[rows], v.pes[rows])


def are_chains(tiles: Ints) -> Bools:
    """[N] True for a row of actual chains, False for a row of bounds for many chains."""
    found: Bools = np.all(tiles.reshape(len(tiles), -1, tiles.shape[-1])[:, :, -1] > 0, axis=1)
    return found


def _factor_bound(role: Role, extent: int) -> float:
    """Lower bound of the factor that a rank gives to a product."""
    return float(extent) if role.kind == EXTENT else 1.0


def lower_bounds(g: Group) -> Vectors:
    """One row: lower bounds of the factors that a group gives to products; upper bounds for skipped reads."""
    products = [
        prod(touched(w, g.extents) for w in term.windows)
        * prod(_factor_bound(role, n) for role, n in zip(term.roles, g.extents, strict=True))
        for term in g.terms
    ]
    return Vectors(
        np.zeros((1, 1, 1), np.int64),
        np.array([products], float),
        np.ones((1, len(g.footprints), 2)),
        np.ones((1, len(g.pes))),
    )


def _front(values: Floats, is_chain: Bools) -> Ints:
    """Indices of the rows that no other one dominates. Of equal rows one stays: a row of an actual chain
    before a row of bounds.
    """
    varied = np.ascontiguousarray(values[:, np.ptp(values, axis=0) > 0]) if len(values) > 1 else values[:, :0]
    order_key = np.log2(1 + varied - varied.min(axis=0)).sum(axis=1) if varied.size else np.zeros(len(values))
    return np.flatnonzero(
        kernels.front(varied, np.argsort(order_key + 1e-9 * ~is_chain, kind="stable"), is_chain)
    )


def chains(
    g: Group,
    r: int,
    same_gaps: int,
    scope: Scope,
    outer: bool = False,
    fixed: Sequence[int] = (),
    alive: Ints | None = None,
) -> RankChains | None:
    """The chains of rank r and their columns (ragged_kernels.chains). None if there are too many.

    same_gaps: a chain may only dominate chains with the same tiles at the first so many gaps (windows see
    these). outer: one row per choice of tiles outside the array. fixed: tile per gap, 0: any. alive: codes of
    the only tiles at the gaps that count; None or empty: all count.
    """
    roles = [term.roles[r] for term in g.terms]
    count_gaps = sorted({role.gap for role in roles if role.kind == TILES_AT_GAP})
    inside = sorted({(role.kind, role.mask) for role in roles if role.is_inside_pes()})
    # a node's tile at its own gap, and for windows, into which it may sink, at the next gap in
    tile_gaps = sorted(
        {
            node.gap + more
            for node in g.footprints
            for dim in node.dims
            if dim.coefs[r]
            for more in range(1 + dim.is_window)
        }
    )
    last_cut_gap = max((j for j, can_cut in enumerate(g.allowed[r]) if can_cut), default=-1)
    # no chains are bundled where larger tiles in the PEs may lower a column, so that one element per PE is
    # not always best, nor with more than two fan-out dimensions
    is_enumerated = (
        any(j >= last_cut_gap for j in count_gaps)
        or any(kind == COUNT for kind, _ in inside)
        or any(term.window_gap >= last_cut_gap for term in g.terms if term.windows)
        or len(g.pes) > 2
    )
    names = [
        *(Column("count", j) for j in count_gaps),
        *(Column("tile", j) for j in tile_gaps),
        *(Column("inside", kind, mask) for kind, mask in inside),
        *(Column("trips", d) for d in range(len(g.pes))),
    ]
    columns_of_roles = [column_of(role) for role in roles]
    n = g.extents[r]
    extent_factors = np.array([n if role.kind == EXTENT else 1 for role in roles])
    sizes = np.array(
        sorted({-(-n // m) for m in range(1, n + 1)}) if scope.coarse else range(1, n + 1), np.int64
    )
    footprint_dims = [
        (b, node.gap, dim.coefs[r], int(dim.is_window))
        for b, node in enumerate(g.footprints)
        for dim in node.dims
        if dim.coefs[r]
    ]
    chain_bound = kernels.ChainBound(
        scope.prices,
        scope.best,
        np.array([names.index(name) if name else -1 for name in columns_of_roles], np.int64),
        np.array(footprint_dims, np.int64).reshape(-1, 4),
        scope.rest._replace(products=scope.rest.products * extent_factors),
    )
    space = kernels.ChainSpace(
        n,
        np.array(g.allowed[r]),
        sizes,
        np.array(fixed or [0] * len(g.allowed[r]), np.int64),
        np.array(g.pes, np.int64),
        np.array(count_gaps, np.int64),
        np.array(tile_gaps, np.int64),
        np.array(inside, np.int64).reshape(-1, 2),
        same_gaps,
        0 if is_enumerated or fixed or len(g.extents) > 1 else MAX_ENUMERATED,
        outer,
        np.zeros(0, np.int64) if alive is None else alive,
    )
    max_rows, enough = INITIAL_ROWS * (1 if n < 200 else 1 << 5), False
    while not enough:
        max_rows *= 4
        if max_rows > MAX_CHAIN_ROWS:
            return None
        rows, values, enough = kernels.chains(space, chain_bound, max_rows)
    return RankChains(rows, {name: values[:, i] for i, name in enumerate(names)})


class HullTable(NamedTuple):
    """The summed hull lengths of one window at one gap. They depend on how a rank's chain begins: its tiles
    up to that gap. U, U2: different beginnings of the chains of the first and of the second rank.
    """

    hulls: Floats  # [U, U2]
    which: list[Ints]  # per rank [N] the beginning of each of its chains


Tables = dict[tuple[Window, int], HullTable]  # by window and gap


def tables_of(g: Group, rank_chains: Sequence[RankChains]) -> Tables:
    """The hulls of all windows of a group, at the gaps whose tiles they are summed over."""
    return {
        (window, gap): _hulls(g, window, gap, [one.tiles for one in rank_chains])
        for window, gap in {(window, term.window_gap) for term in g.terms for window in term.windows}
    }


def _hulls(g: Group, window: Window, gap: int, rows: Sequence[Ints]) -> HullTable:
    """The entry of `tables_of` for one window and gap. rows: per rank the tiles of its chains."""
    (coefs, offset, size), (unique, which) = window, ([], [])
    for rank_rows in rows:  # rows with equal tiles up to a gap follow each other
        is_new = np.ones(len(rank_rows), np.bool_)
        is_new[1:] = (rank_rows[1:, : gap + 1] != rank_rows[:-1, : gap + 1]).any(axis=1)
        unique.append(np.ascontiguousarray(rank_rows[is_new, : gap + 1]))
        which.append(np.cumsum(is_new) - 1)
    if len(rows) == 1:
        unique.append(np.ones((1, 1), np.int64))
    second_extent = (*g.extents, 1)[1]
    found = kernels.hulls(
        g.extents[0], unique[0], coefs[0], second_extent, unique[1], (*coefs, 0)[1], offset, size
    )
    return HullTable(found, which)


def _undominated_for_all(g: Group, rank_chains: Sequence[RankChains], scope: Scope, outer: bool) -> Ints:
    """Indices of the first rank's chains that no other chain dominates, whatever the second rank's is."""
    rows, columns = rank_chains[0]
    bounds, tables = _bounds_over_second(g, rank_chains), tables_of(g, rank_chains)
    keep = np.flatnonzero(
        kernels.may_improve(
            bounds.products, bounds.footprints, bounds.pes, scope.rest, scope.prices, scope.best
        )
    )
    if outer or not 0 < len(keep) <= MAX_COMPARED[1]:
        return keep
    values = [column[keep] for column in columns.values()]
    for table, (which, _) in tables.values():
        values += list(table.T[:, which[keep]])
    return keep[_front(np.stack(values, axis=1), are_chains(rows[keep]))]


def vectors_of(g: Group, rank_chains: Sequence[RankChains], pick: Sequence[Ints], tables: Tables) -> Vectors:
    """The vectors of chosen chains that fit the array. pick: per rank the index of each vector's chain."""
    n = len(pick[0])
    products = np.ones((n, len(g.terms)))
    footprints = np.ones((n, len(g.footprints), 2))
    pes = np.ones((n, len(g.pes)))
    for k, term in enumerate(g.terms):
        for r, role in enumerate(term.roles):
            name = column_of(role)
            if name:
                products[:, k] *= rank_chains[r].columns[name][pick[r]]
            elif role.kind == EXTENT:
                products[:, k] *= g.extents[r]
        for window in term.windows:
            table, which = tables[window, term.window_gap]
            products[:, k] *= table[which[0][pick[0]], which[1][pick[1]] if len(pick) > 1 else 0]
    for b, node in enumerate(g.footprints):

        def elems(sunk_rank: int, node: Footprint = node) -> Floats:
            """[n] the factor of the node's elements, if it sinks below the loop over this rank of a window
            (-1: below none).
            """
            total = np.ones(n)
            for coefs, is_window in node.dims:
                dim_length = np.ones(n)
                for r, c in enumerate(coefs):
                    if c:
                        name = Column("tile", node.gap + (is_window and r == sunk_rank))
                        dim_length += c * (rank_chains[r].columns[name][pick[r]] - 1)
                total *= dim_length
            return total

        footprints[:, b, 0] = elems(-1)
        footprints[:, b, 1] = np.min([elems(r) for r in (-1, *range(len(pick)))], axis=0)
    for d in range(len(g.pes)):
        for r in range(len(pick)):
            pes[:, d] *= rank_chains[r].columns[Column("trips", d)][pick[r]]
    keep = np.flatnonzero((pes <= np.array(g.pes)).all(axis=1))
    tiles = np.stack([rank_chains[r].tiles[pick[r]] for r in range(len(pick))], axis=1)
    return Vectors(tiles[keep], products[keep], footprints[keep], pes[keep])


def vector_table(found: Sequence[Vectors]) -> kernels.VectorTable:
    """Vectors of several groups end to end."""
    return kernels.VectorTable(
        np.cumsum([0, *(len(v.products) for v in found)]),
        np.concatenate([v.products for v in found]),
        np.concatenate([v.footprints for v in found]),
        np.concatenate([v.pes for v in found]),
    )
