"""Compiled half of ragged.py: all chains of tiles of one rank, dominance among vectors, and branch and bound
that takes one vector per group of ranks.

A chain is the tiles of one rank, outermost first: one per gap (a place for temporal loops: above each storage
node outside the array, and above the array), then one per fan-out dimension. A group is ranks that share a
dimension of a tensor; a vector has the factors that one choice of a group's chains gives to every product
(ragged.py). Letters in shapes: E gaps, D fan-out dimensions, T products, P cost parts, V levels, B bounded
nodes (whose level has a capacity), G groups, M rows of bounds, N rows.

The file is long because compiled functions with common array layouts stay in one file. So are `chains` and
`search`: each walks a tree without recursion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dse.mapper.exact.kernels.compare import is_below
from dse.mapper.exact.kernels.state import ENERGY, LATENCY
from dse.run.compiled import njit
from workloads.arrays import Bools, Floats, Ints

# Kinds of numbers for the tiles inside the PEs. COUNT: how many tiles; TOTAL: elements in them
COUNT, TOTAL = 0, 1
KIND, MASK = 0, 1  # columns of ChainSpace.inside
READ_PORT, WRITE_PORT, STALLS = 0, 1, 2  # columns of Prices.ports


@njit(cache=True, nogil=True, forceinline=True)
def cut(size: Ints, many: Ints, n: int, tile: int, first: bool) -> int:
    """Cuts each tile of a set into tiles of size `tile` and a remainder. Returns the number of different
    sizes then.

    size, many: the first n entries are the sizes of the set and how many tiles have each; rewritten in place.
    first: whether only the first tile of each cut stays.
    """
    size_count = n
    for i in range(n):
        whole, rest, count = size[i] // tile, size[i] % tile, many[i]
        if whole == 0:
            continue
        size[i], many[i] = tile, count if first else count * whole
        if rest and not first:
            size[size_count], many[size_count] = rest, count
            size_count += 1
    distinct = 0
    for i in range(size_count):
        at = 0
        while at < distinct and size[at] != size[i]:
            at += 1
        if at < distinct:
            many[at] += many[i]
        else:
            size[distinct], many[distinct] = size[i], many[i]
            distinct += 1
    return distinct


@njit(cache=True, nogil=True, forceinline=True)
def total_cost(parts: Floats, port: Ints, machine: Floats, objective: int, out: Floats) -> None:
    """Writes to out [3] the value of the objective, energy and latency of cost parts.

    parts: [P] energy without leakage, cycles of compute, cycles of every port.
    port: [V, 3] part of the port for reads, part of the port for writes, 1 if the inside of the level waits
        for them.
    machine: [2] leakage in pJ per cycle, least cycles of compute.
    """
    latency = max(parts[1], machine[1])
    for v in range(port.shape[0] - 1, -1, -1):
        port_cycles = max(parts[port[v, READ_PORT]], parts[port[v, WRITE_PORT]])
        latency = latency + port_cycles if port[v, STALLS] else max(latency, port_cycles)
    energy = parts[0] + machine[0] * latency
    out[0] = energy if objective == ENERGY else latency if objective == LATENCY else energy * latency
    out[1], out[2] = energy, latency


@njit(cache=True, nogil=True, forceinline=True)
def is_dominated(a: Floats, b: Floats) -> bool:
    """Whether row b dominates row a: b is at most a in every column (equal rows dominate each other)."""
    i = 0
    while i < a.shape[0] and b[i] <= a[i]:
        i += 1
    return bool(i == a.shape[0])


@njit(cache=True, nogil=True, forceinline=True)
def count_in_pes(
    size: Ints, many: Ints, n: int, tiles: Ints, kind: int, mask: int, size2: Ints, many2: Ints
) -> int:
    """The number of a kind (COUNT or TOTAL) for a set of tiles (`cut`) that is split over PEs.

    tiles: [D + 1] the tile that enters the PEs, then the tile inside each fan-out dimension.
    mask: fan-out dimensions of which only the first PE counts.
    size2, many2: scratch.
    """
    for i in range(n):
        size2[i], many2[i] = size[i], many[i]
    for d in range(tiles.shape[0] - 1):
        if tiles[d + 1] < tiles[d]:
            n = cut(size2, many2, n, tiles[d + 1], (mask >> d) & 1 == 1)
    total = 0
    for i in range(n):
        total += many2[i] * (size2[i] if kind == TOTAL else 1)
    return total


class Prices(NamedTuple):
    """What counts cost, and what limits mappings. A count (how often something happens) is a product with one
    factor per group of ranks, called product here.
    """

    weights: Floats  # [T, P] what one unit of a product adds to each part
    sign: Floats  # [T] 1; -1 for skipped reads, which are subtracted
    lower: Floats  # [T] lower bound of the product; with sign -1 an upper bound
    minuend: Ints  # [T] the product that skipped reads are subtracted from, which they do not exceed
    start: Floats  # [P] parts of the cost that are the same for all mappings
    ports: Ints  # [V, 3] as in `total_cost`
    machine: Floats  # [2] as in `total_cost`
    objective: int
    break_ties: bool  # whether energy, then latency order choices with equal objectives
    bits: Floats  # [B] bits per element of a node
    level: Ints  # [B] its level
    capacity: Floats  # [V] bits
    pes: Floats  # [D] PEs along each dimension


@njit(cache=True, nogil=True, forceinline=True)
def objective_value(value: Floats, prices: Prices, parts: Floats, out: Floats) -> None:
    """Writes to out [3] the objective, energy and latency if the products have the values `value` [T]; 0 for
    the last two where they break no ties. parts: [P] scratch.
    """
    for i in range(parts.shape[0]):
        parts[i] = prices.start[i]
    for k in range(value.shape[0]):
        amount = prices.sign[k] * value[k]
        for i in range(parts.shape[0]):
            parts[i] += prices.weights[k, i] * amount
    total_cost(parts, prices.ports, prices.machine, prices.objective, out)
    if not prices.break_ties:
        out[1], out[2] = 0.0, 0.0


class Rest(NamedTuple):
    """Bounds of what all other groups give, in M rows. For every choice of their vectors there is a row whose
    numbers are at most those of the choice (at least, in products that are subtracted).
    """

    products: Floats  # [M, T]
    footprints: Floats  # [M, B, 2] as in `VectorTable`
    pes: Floats  # [M, D]


class Scratch(NamedTuple):
    """Arrays for bounding one row after the other."""

    products: Floats  # [T] of the row
    footprints: Floats  # [B, 2] of the row
    value: Floats  # [T] products with the rest
    parts: Floats  # [P] of the cost with the rest
    used_bits: Floats  # [V] bits with the rest
    cost: Floats  # [3] objective, energy, latency with the rest


@njit(cache=True, nogil=True)
def new_scratch(prices: Prices) -> Scratch:
    """Scratch arrays of the shapes that `prices` has."""
    n = prices.sign.shape[0]
    return Scratch(
        np.zeros(n),
        np.zeros((prices.bits.shape[0], 2)),
        np.zeros(n),
        np.zeros(prices.start.shape[0]),
        np.zeros(prices.capacity.shape[0]),
        np.zeros(3),
    )


@njit(cache=True, nogil=True)
def improving_row(
    products: Floats,
    footprints: Floats,
    pes: Floats,
    rest: Rest,
    prices: Prices,
    best: Floats,
    first: int,
    scratch: Scratch,
) -> int:
    """The index of a row of `rest` together with which these numbers of one group fit the machine and may
    cost less than `best`. -1 if there is none: then no mapping with these numbers is better. Row `first` is
    tried first.

    products [T], footprints [B, 2], pes [D]: of the group
    """
    for j in range(-1, len(rest.products)):
        m = first if j < 0 else j
        fits_row = True
        for d in range(pes.shape[0]):
            fits_row = fits_row and pes[d] * rest.pes[m, d] <= prices.pes[d]
        scratch.used_bits[:] = 0.0
        for b in range(footprints.shape[0]):
            v = prices.level[b]
            scratch.used_bits[v] += prices.bits[b] * min(
                footprints[b, 1] * rest.footprints[m, b, 0], footprints[b, 0] * rest.footprints[m, b, 1]
            )
            fits_row = fits_row and scratch.used_bits[v] <= prices.capacity[v]
        if not fits_row:
            continue
        for k in range(products.shape[0]):
            scratch.value[k] = products[k] * rest.products[m, k]
            scratch.value[k] = (
                max(scratch.value[k], prices.lower[k])
                if prices.sign[k] > 0
                else min(scratch.value[k], prices.lower[k], scratch.value[prices.minuend[k]])
            )
        objective_value(scratch.value, prices, scratch.parts, scratch.cost)
        if is_below(scratch.cost, best):
            return m
    return -1


class ChainBound(NamedTuple):
    """What bounds the mappings that a chain can be part of."""

    prices: Prices
    best: Floats  # [3] the best cost so far
    column: Ints  # [T] the column of the rank that is a factor of a product, -1: none
    # [., 4] per dimension of a node that has the rank: number of the bounded node; the gap above it;
    # coefficient of the rank; 1 for a window, else 0. If the node sinks below the loops of the next gap, a
    # window has the tile of that gap, another dimension keeps its own
    footprint_dims: Ints
    rest: Rest  # bounds of all other ranks and groups


class ChainSpace(NamedTuple):
    """Which chains of a rank are made, and which columns (numbers per chain) of them. The columns are, in
    this
    order: the number of tiles at the gaps count_gaps; the tile at the gaps tile_gaps; a number for the tiles
    inside the PEs for each row of `inside`; the PEs in use along each fan-out dimension.
    """

    extent: int
    allowed: Bools  # [E] whether a gap may cut
    sizes: Ints  # tiles that it may cut into, ascending
    fixed: Ints  # [E] the tile at a gap, 0: any
    pes: Ints  # [D] sizes of the fan-out dimensions
    count_gaps: Ints
    tile_gaps: Ints
    # [., 2] kind of number (COUNT or TOTAL), and a bit mask of the fan-out dimensions of which only the first
    # PE counts
    inside: Ints
    same_gaps: int  # a chain dominates only chains with the same tiles at the first so many gaps
    # 0: off. Else, where the tile above the innermost gap that may cut has more elements than this, only
    # chains that leave one element per PE are made one by one (to be asked for only where no larger tile in
    # the PEs lowers a column). All chains that leave more and use a0 x a1 PEs (both above 1) are bundled: one
    # row per (outer tiles, a0, a1), whose columns are bounds and whose other tiles are 0
    bundle_above: int
    # whether to make an outline: one row per choice of tiles at the gaps, with bounds over all tiles inside
    outline: bool
    alive: Ints  # if not empty, `codes` of the only tiles at the gaps that are wanted, ascending


@njit(cache=True, nogil=True)
def chain_may_improve(
    column_values: Floats,
    known_columns: int,
    tile: Ints,
    known_tiles: int,
    pes: Floats,
    bound: ChainBound,
    first: int,
    scratch: Scratch,
) -> int:
    """The result of `improving_row` for all chains of a rank that begin alike: their first `known_columns`
    columns and first `known_tiles` tiles are given. Later numbers count with their lowest values. pes: [D]
    PEs in use.
    """
    for k in range(scratch.products.shape[0]):
        c = bound.column[k]
        scratch.products[k] = (
            1.0
            if c < 0
            else abs(column_values[c])
            if c < known_columns
            else 1.0
            if bound.prices.sign[k] > 0
            else np.inf
        )
    scratch.footprints[:] = 1.0
    for i in range(bound.footprint_dims.shape[0]):
        b, gap, coef, is_window = bound.footprint_dims[i]
        sunk_gap = gap + is_window
        scratch.footprints[b, 0] *= 1 + coef * (tile[gap] - 1) if gap < known_tiles else 1
        scratch.footprints[b, 1] *= 1 + coef * (tile[sunk_gap] - 1) if sunk_gap < known_tiles else 1
    return improving_row(
        scratch.products, scratch.footprints, pes, bound.rest, bound.prices, bound.best, first, scratch
    )


@njit(cache=True, nogil=True)
def codes(tiles: Ints, extent: int) -> Ints:
    """[N] per row of `tiles` [N, E], the tiles of a rank at all gaps, one number: its digits in base
    extent + 1.
    """
    found = np.zeros(tiles.shape[0], np.int64)
    for i in range(tiles.shape[0]):
        for tile in tiles[i]:
            found[i] = found[i] * (extent + 1) + tile
    return found


@njit(cache=True, nogil=True)
def bound_columns_over_splits(
    inside: Ints, size: Ints, many: Ints, n: int, pes: Ints, values: Floats
) -> None:
    """Writes to `values` lower bounds of the columns `inside` (ChainSpace), over all ways to split a set of
    tiles (`cut`) over the PEs: those of a row of an outline, which has tiles at the gaps only.
    """
    for c in range(inside.shape[0]):
        kind, pes_along_mask = inside[c, KIND], 1
        for d in range(pes.shape[0]):
            if (inside[c, MASK] >> d) & 1:
                pes_along_mask *= pes[d]
        values[c] = 0
        for i in range(n):
            values[c] += many[i] * (-(-size[i] // pes_along_mask) if kind == TOTAL else 1)


@njit(cache=True, nogil=True)
def bundle_columns(inside: Ints, size: Ints, many: Ints, n: int, used: Floats, values: Floats) -> None:
    """The bounds of `bound_columns_over_splits` for two fan-out dimensions, over those splits in which
    exactly used[0] x used[1] PEs get one element or more.
    """
    for c in range(inside.shape[0]):
        mask = inside[c, MASK]
        pes_along_mask = (int(used[0]) if mask & 1 else 1) * (int(used[1]) if mask & 2 else 1)
        values[c] = 0
        for i in range(n):
            values[c] += many[i] * -(-size[i] // pes_along_mask)


@njit(cache=True, nogil=True)
def chains(space: ChainSpace, bound: ChainBound, max_rows: int) -> tuple[Ints, Floats, bool]:
    """The chains of a rank and their columns, the numbers that products are made of. Left out are two kinds
    of chains:

    1. those that a chain with the same first `same_gaps` tiles dominates;
    2. those that by a bound are part of no mapping below the best.

    Returns three things: with one row per chain, the array of tiles [N, E + D] and that of columns [N, .];
    and whether `max_rows` rows, which are allocated, were enough (if not, both arrays are empty).
    """
    (
        extent,
        allowed,
        sizes,
        fixed,
        pes,
        count_gaps,
        tile_gaps,
        inside,
        same_gaps,
        bundle_above,
        outline,
        alive,
    ) = space
    gaps, dims, n_count, n_tile = allowed.shape[0], pes.shape[0], count_gaps.shape[0], tile_gaps.shape[0]
    width, last_cut_gap, pe_count, max_pieces = (
        n_count + n_tile + inside.shape[0] + dims,
        -1,
        int(np.prod(pes)),
        1 << (gaps + dims + 1),
    )
    rows, values, filled = np.zeros((max_rows, gaps + dims), np.int64), np.empty((max_rows, width)), 0
    # row j: the set of tiles (`cut`) that gap j gets from outside; the last row: that the PEs get
    size, many, n = (
        np.zeros((gaps + 1, max_pieces), np.int64),
        np.zeros((gaps + 1, max_pieces), np.int64),
        np.zeros(gaps + 1, np.int64),
    )
    size2, many2 = np.zeros(max_pieces, np.int64), np.zeros(max_pieces, np.int64)
    size[0, 0], many[0, 0], n[0] = extent, 1, 1
    column_values = np.zeros(width)
    # the tile that enters the PEs, then the tile inside each fan-out dimension, and in how many it is cut
    # there
    pe_tiles, factor = np.zeros(dims + 1, np.int64), np.zeros(dims + 1, np.int64)
    inside_values, used = column_values[n_count + n_tile : width - dims], column_values[width - dims :]
    # the tile outside of each gap, the tile at it, and its index in `sizes`; the tiles of the chain before
    tile_outside, tile, size_index, previous_tiles = (
        np.zeros(gaps + 1, np.int64),
        np.zeros(gaps, np.int64),
        np.full(gaps, -1, np.int64),
        np.zeros(gaps, np.int64),
    )
    # known_columns[j]: columns that are known once the tile at gap j is. Rows that a chain is compared with
    # are a linked list per `pes_key`: its newest row, and for each row the one before
    known_columns, one_pe, newest_row, previous_row = (
        np.zeros(gaps, np.int64),
        np.ones(dims),
        np.full(pe_count + 1, -1, np.int64),
        np.empty(max_rows + 1, np.int64),
    )
    tile_outside[0] = extent
    for i in range(gaps):
        last_cut_gap = i if allowed[i] else last_cut_gap
        for c in range(n_count):
            known_columns[i] += count_gaps[c] <= i
    scratch, first_rest_row, j = new_scratch(bound.prices), 0, 0
    while j >= 0 and filled <= max_rows:
        # index in `sizes`; the first size that is not below the tile above stands for no cut
        size_index[j] += 1
        is_bundled = bundle_above > 0 and last_cut_gap >= 0 and tile_outside[last_cut_gap] > bundle_above
        cuts = allowed[j] and size_index[j] < sizes.shape[0] and sizes[size_index[j]] < tile_outside[j]
        if cuts:
            tile[j] = sizes[size_index[j]]
            if is_bundled and j == last_cut_gap and tile[j] > pe_count:
                j -= 1
                continue
        elif size_index[j] > sizes.shape[0] or (
            is_bundled and j == last_cut_gap and tile_outside[j] > pe_count
        ):
            j -= 1
            continue
        else:
            tile[j], size_index[j] = tile_outside[j], sizes.shape[0]
        if is_bundled and j == last_cut_gap and dims == 2 and size_index[j] == 0:
            for a0 in range(2, pes[0] + 1):
                for a1 in range(2, pes[1] + 1):
                    # the smallest tile that uses a0 x a1 PEs with more than one element in some PE: along
                    # dimension 1 2 (a1 - 1) + 1 = 2 a1 - 1 elements; along dimension 0 (a0 - 1) such tiles
                    # and one element more
                    smallest_tile = (a0 - 1) * (2 * a1 - 1) + 1
                    if smallest_tile > tile_outside[j]:
                        break
                    for c in range(n_tile):
                        column_values[n_count + c] = (
                            tile[tile_gaps[c]] if tile_gaps[c] < last_cut_gap else smallest_tile
                        )
                    used[0], used[1] = a0, a1
                    bundle_columns(inside, size[j], many[j], int(n[j]), used, inside_values)
                    m = chain_may_improve(
                        column_values, width, tile, last_cut_gap, used, bound, first_rest_row, scratch
                    )
                    if m >= 0:
                        filled, first_rest_row = (
                            append_row(
                                tile[:last_cut_gap], pe_tiles[:0], column_values, filled, rows, values
                            ),
                            m,
                        )
        if fixed[j] and tile[j] != fixed[j]:
            continue
        for i in range(n[j]):
            size[j + 1, i], many[j + 1, i] = size[j, i], many[j, i]
        n[j + 1] = n[j] if tile[j] == tile_outside[j] else cut(size[j + 1], many[j + 1], n[j], tile[j], False)
        tile_outside[j + 1] = tile[j]
        for c in range(n_count):
            if count_gaps[c] == j:
                column_values[c] = many[j + 1, : n[j + 1]].sum()
        m = chain_may_improve(
            column_values, known_columns[j], tile, j + 1, one_pe, bound, first_rest_row, scratch
        )
        if m < 0:
            continue
        first_rest_row = m
        if j < gaps - 1:
            j += 1
            size_index[j] = -1
            continue
        if alive.shape[0]:
            code = codes(tile.reshape(1, gaps), extent)[0]
            place = int(np.searchsorted(alive, code))
            if place == alive.shape[0] or alive[place] != code:
                continue
        for i in range(same_gaps):
            if previous_tiles[i] != tile[i]:
                newest_row[:] = -1
            previous_tiles[i] = tile[i]
        for c in range(n_tile):
            column_values[n_count + c] = tile[tile_gaps[c]]
        pe_tiles[0], factor[0], d = tile[gaps - 1], 0, 0
        if outline:
            bound_columns_over_splits(inside, size[gaps], many[gaps], int(n[gaps]), pes, inside_values)
            used[:] = 1.0
            m = chain_may_improve(column_values, width, tile, gaps, one_pe, bound, first_rest_row, scratch)
            if m >= 0:
                filled, first_rest_row = (
                    append_row(tile, pe_tiles[:0], column_values, filled, rows, values),
                    m,
                )
            continue
        while d >= 0:
            if d < dims:
                factor[d] += 1
                if factor[d] > pes[d] or (factor[d] > 1 and pe_tiles[d] == 1):
                    d -= 1
                    continue
                pe_tiles[d + 1] = -(-pe_tiles[d] // factor[d])
                if factor[d] == 1 or pe_tiles[d + 1] < -(-pe_tiles[d] // (factor[d] - 1)):
                    d += 1
                    factor[d] = 0
                continue
            d -= 1
            if is_bundled and pe_tiles[dims] > 1:
                continue
            for c in range(inside.shape[0]):
                inside_values[c] = count_in_pes(
                    size[gaps],
                    many[gaps],
                    int(n[gaps]),
                    pe_tiles,
                    inside[c, KIND],
                    inside[c, MASK],
                    size2,
                    many2,
                )
            # with bundles a chain is compared with those only that use as many PEs along each dimension
            pes_key = 0
            for i in range(dims):
                used[i] = -(-pe_tiles[i] // pe_tiles[i + 1])
                pes_key = pes_key * pes[i] + int(used[i]) - 1
            pes_key = pes_key if bundle_above else 0
            other, dominated = newest_row[pes_key], False
            while other >= 0 and not dominated:
                dominated = is_dominated(column_values, values[other])
                other = previous_row[other]
            if dominated:
                continue
            m = chain_may_improve(column_values, width, tile, gaps, used, bound, first_rest_row, scratch)
            if m >= 0:
                previous_row[filled], newest_row[pes_key], first_rest_row = newest_row[pes_key], filled, m
                filled = append_row(tile, pe_tiles[1:], column_values, filled, rows, values)
                if filled > max_rows:
                    break
    enough = filled <= max_rows
    return rows[: filled if enough else 0], values[: filled if enough else 0], enough


@njit(cache=True, nogil=True, forceinline=True)
def append_row(
    gap_tiles: Ints, inner_tiles: Ints, column_values: Floats, filled: int, rows: Ints, values: Floats
) -> int:
    """Writes the tiles of a chain and its columns as row `filled`, if there is space left. Returns the number
    of rows with it, written or not.
    """
    if filled < rows.shape[0]:
        rows[filled, : gap_tiles.shape[0]], values[filled] = gap_tiles, column_values
        for d in range(inner_tiles.shape[0]):
            rows[filled, gap_tiles.shape[0] + d] = inner_tiles[d]
    return filled + 1


@njit(cache=True, nogil=True)
def may_improve(
    products: Floats, footprints: Floats, pes: Floats, rest: Rest, prices: Prices, best: Floats
) -> Bools:
    """[N] whether a vector, by its bound with `rest`, may be part of a mapping below the best cost."""
    found, m, scratch = np.zeros(len(products), np.bool_), 0, new_scratch(prices)
    for i in range(len(products)):
        row = improving_row(products[i], footprints[i], pes[i], rest, prices, best, m, scratch)
        found[i], m = row >= 0, max(row, 0)
    return found


@njit(cache=True, nogil=True)
def front(values: Floats, order: Ints, is_chain: Bools) -> Bools:
    """[N] whether no chain dominates a row of `values` (is at most in every column); of equal rows only the
    first counts.

    order: the rows, each after those that dominate it.
    is_chain: whether a row is a chain. A row of bounds for many chains may be dominated but dominates none.
    """
    n, width = values.shape
    in_front, chain_rows, chain_count = np.zeros(n, np.bool_), np.zeros((n, width)), 0
    for i in order:
        dominated = False
        for k in range(chain_count):
            if is_dominated(values[i], chain_rows[k]):
                dominated = True
                if k:
                    for c in range(width):
                        chain_rows[k, c], chain_rows[k // 2, c] = chain_rows[k // 2, c], chain_rows[k, c]
                break
        if not dominated:
            in_front[i] = True
            if is_chain[i]:
                chain_rows[chain_count] = values[i]
                chain_count += 1
    return in_front


@njit(cache=True, nogil=True)
def spans(extent: int, tiles: Ints) -> tuple[Ints, Ints]:
    """The first and the last value of every tile that a rank has after it is cut by all of `tiles`."""
    low, high, n = np.zeros(extent, np.int64), np.zeros(extent, np.int64), 1
    high[0] = extent - 1
    a, b = np.zeros(extent, np.int64), np.zeros(extent, np.int64)
    for tile in tiles:
        m = 0
        for i in range(n):
            for begin in range(low[i], high[i] + 1, tile):
                a[m], b[m] = begin, min(begin + tile - 1, high[i])
                m += 1
        n = m
        low[:n], high[:n] = a[:n], b[:n]
    return low[:n], high[:n]


@njit(cache=True, nogil=True)
def hulls(
    extent: int, tiles: Ints, c: int, extent2: int, tiles2: Ints, c2: int, offset: int, stored: int
) -> Floats:
    """[N, N2] for every pair of a chain of rank p and a chain of rank r: the summed lengths of the hulls of
    c p + c2 r + offset over all their tiles, clipped to the stored indices 0 .. stored - 1.

    extent, tiles, c: of p, its chains [N, .]; extent2, tiles2, c2: of r, its chains [N2, .]
    """
    found = np.zeros((tiles.shape[0], tiles2.shape[0]))
    for k in range(tiles2.shape[0]):
        low2, high2 = spans(extent2, tiles2[k])
        for i in range(tiles.shape[0]):
            low, high = spans(extent, tiles[i])
            total = 0
            for b in range(len(low2)):
                for a in range(len(low)):
                    begin, end = offset + c * low[a] + c2 * low2[b], offset + c * high[a] + c2 * high2[b]
                    total += max(min(end, stored - 1) - max(begin, 0) + 1, 0)
            found[i, k] = total
    return found


class VectorTable(NamedTuple):
    """The vectors of all groups as rows, group after group."""

    start: Ints  # [G + 1] first row of each group
    products: Floats  # [N, T]
    # [N, B, 2] factors of a node's footprint: [0] of its tile at its own gap; [1] if the node also sinks
    # below the loop over one rank of a window, the one that saves most. A node sinks into one window only:
    # the footprint is the least product in which at most one group gives its [1]
    footprints: Floats
    pes: Floats  # [N, D]


@njit(cache=True, nogil=True)
def minimum(
    table: VectorTable, prices: Prices, rows: Ints, products: Floats, footprints: Floats, pes: Floats
) -> None:
    """Writes to products, footprints, pes the least of the given rows; for products that are subtracted, the
    largest.
    """
    products[:] = np.where(prices.sign > 0, np.inf, -np.inf)
    footprints[:] = np.inf
    pes[:] = np.inf
    for i in rows:
        for k in range(products.shape[0]):
            products[k] = (
                min(products[k], table.products[i, k])
                if prices.sign[k] > 0
                else max(products[k], table.products[i, k])
            )
        for b in range(footprints.shape[0]):
            footprints[b, 0], footprints[b, 1] = (
                min(footprints[b, 0], table.footprints[i, b, 0]),
                min(footprints[b, 1], table.footprints[i, b, 1]),
            )
        for d in range(pes.shape[0]):
            pes[d] = min(pes[d], table.pes[i, d])


@njit(cache=True, nogil=True, forceinline=True)
def fits(table: VectorTable, prices: Prices, i: int, footprints: Floats, pes: Floats, need: Floats) -> bool:
    """Whether row i fits the machine. footprints, pes: lower bounds for the other groups together. need: [V]
    scratch, bits of each level.
    """
    for d in range(pes.shape[0]):
        if table.pes[i, d] * pes[d] > prices.pes[d]:
            return False
    for v in range(need.shape[0]):
        need[v] = 0.0
    for b in range(footprints.shape[0]):
        v = prices.level[b]
        need[v] += prices.bits[b] * min(
            table.footprints[i, b, 1] * footprints[b, 0], table.footprints[i, b, 0] * footprints[b, 1]
        )
        if need[v] > prices.capacity[v]:
            return False
    return True


@njit(cache=True, nogil=True)
def search(
    table: VectorTable, prices: Prices, best: Floats, chosen: Ints, found: Ints, costs: Floats, budget: int
) -> tuple[int, int]:
    """Chooses one row per group: the cheapest choice that fits and is below `best`.

    best: [3] lowered to its cost.
    chosen: [G] gets its rows; unchanged if no choice is below `best`.
    found: [., G] if it has rows, all choices below `best` are written there, their costs to `costs`, and
        `best` stays.
    budget: rows visited at most.

    At every node of the tree each group keeps the rows that by a bound may still lead below the best. Then
    the group with fewest rows is fixed to each of its rows, one after the other. Once one group is left open,
    the bounds of its rows are costs. Returns how many rows were visited (above `budget`: it ended early), and
    how many choices are in `found`.
    """
    group_count, part_count, n = len(table.start) - 1, len(prices.start), len(table.products)
    product_count, node_count, dim_count = (
        table.products.shape[1],
        table.footprints.shape[1],
        table.pes.shape[1],
    )
    rows, row_count = (
        np.zeros((group_count + 1, n), np.int64),
        np.zeros((group_count + 1, group_count), np.int64),
    )
    fixed_row = np.full((group_count + 1, group_count), -1, np.int64)
    next_choice, branch_group, order, bound = (
        np.zeros(group_count, np.int64),
        np.zeros(group_count, np.int64),
        np.zeros((group_count, n), np.int64),
        np.zeros((group_count, n, 3)),
    )
    low, low_footprints, low_pes = (
        np.zeros((group_count, product_count)),
        np.zeros((group_count, node_count, 2)),
        np.zeros((group_count, dim_count)),
    )
    value, part_scratch, used_bits, cost = (
        np.zeros(product_count),
        np.zeros(part_count),
        np.zeros(len(prices.capacity)),
        np.zeros(3),
    )
    rest_products, rest_footprints, rest_pes = (
        np.zeros(product_count),
        np.zeros((node_count, 2)),
        np.zeros(dim_count),
    )
    for g in range(group_count):
        row_count[0, g] = table.start[g + 1] - table.start[g]
        for i in range(row_count[0, g]):
            rows[0, table.start[g] + i] = table.start[g] + i
    visited, depth, descend, found_count = 0, 0, True, 0
    single_row = np.zeros(1, np.int64)
    while depth >= 0:
        if descend:
            if visited > budget:
                return visited, found_count
            alive = True
            for _ in range(2 if depth == 0 else 1):
                for g in range(group_count):
                    if fixed_row[depth, g] >= 0:
                        single_row[0] = fixed_row[depth, g]
                        minimum(table, prices, single_row, low[g], low_footprints[g], low_pes[g])
                    else:
                        minimum(
                            table,
                            prices,
                            rows[depth, table.start[g] : table.start[g] + row_count[depth, g]],
                            low[g],
                            low_footprints[g],
                            low_pes[g],
                        )
                for g in range(group_count):
                    if fixed_row[depth, g] >= 0 or not alive:
                        continue
                    rest_products[:], rest_footprints[:], rest_pes[:] = 1.0, 1.0, 1.0
                    for other in range(group_count):
                        if other != g:
                            for k in range(product_count):
                                rest_products[k] *= low[other, k]
                            for b in range(node_count):
                                rest_footprints[b, 1] = min(
                                    rest_footprints[b, 1] * low_footprints[other, b, 0],
                                    rest_footprints[b, 0] * low_footprints[other, b, 1],
                                )
                                rest_footprints[b, 0] *= low_footprints[other, b, 0]
                            for d in range(dim_count):
                                rest_pes[d] *= low_pes[other, d]
                    keep, first = 0, table.start[g]
                    visited += row_count[depth, g]
                    for i in range(row_count[depth, g]):
                        row = rows[depth, first + i]
                        if not fits(table, prices, row, rest_footprints, rest_pes, used_bits):
                            continue
                        for k in range(product_count):
                            value[k] = table.products[row, k] * rest_products[k]
                            if prices.sign[k] > 0:
                                value[k] = max(value[k], prices.lower[k])
                            else:
                                value[k] = min(value[k], prices.lower[k], value[prices.minuend[k]])
                        objective_value(value, prices, part_scratch, cost)
                        if is_below(cost, best):
                            bound[depth, first + keep] = cost
                            rows[depth, first + keep] = row
                            keep += 1
                    row_count[depth, g] = keep
                    alive = alive and keep > 0
                    if alive:
                        minimum(
                            table,
                            prices,
                            rows[depth, first : first + keep],
                            low[g],
                            low_footprints[g],
                            low_pes[g],
                        )
            g = -1
            open_groups = 0
            for other in range(group_count):
                if fixed_row[depth, other] < 0:
                    open_groups += 1
                    if g < 0 or row_count[depth, other] < row_count[depth, g]:
                        g = other
            if not alive:
                depth -= 1
                descend = False
                continue
            first = table.start[g]
            if open_groups == 1:
                for i in range(row_count[depth, g]):
                    if is_below(bound[depth, first + i], best):
                        chosen[:] = fixed_row[depth]
                        chosen[g] = rows[depth, first + i]
                        if not len(found):
                            best[:] = bound[depth, first + i]
                            continue
                        if found_count == len(found):
                            return budget + 1, found_count
                        found[found_count], costs[found_count] = chosen, bound[depth, first + i]
                        found_count += 1
                depth -= 1
                descend = False
                continue
            branch_group[depth], next_choice[depth] = g, 0
            order[depth, : row_count[depth, g]] = np.argsort(
                bound[depth, first : first + row_count[depth, g], 0]
            )
            descend = False
            continue
        g = branch_group[depth]
        first = table.start[g]
        if next_choice[depth] >= row_count[depth, g]:
            depth -= 1
            continue
        i = order[depth, next_choice[depth]]
        next_choice[depth] += 1
        if not is_below(bound[depth, first + i], best):
            continue
        for other in range(group_count):
            fixed_row[depth + 1, other], row_count[depth + 1, other] = (
                fixed_row[depth, other],
                row_count[depth, other],
            )
            if fixed_row[depth, other] < 0 and other != g:
                rows[depth + 1, table.start[other] : table.start[other] + row_count[depth, other]] = rows[
                    depth, table.start[other] : table.start[other] + row_count[depth, other]
                ]
        fixed_row[depth + 1, g] = rows[depth, first + i]
        depth += 1
        descend = True
    return visited, found_count
