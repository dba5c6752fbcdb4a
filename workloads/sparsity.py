"""What the pattern of a sparse matrix says of tiles: nonzeros per row, bandwidth, distinct columns that tiles
of rows read, tiles that are not empty. Counted from the places of its nonzeros, beside what is expected of as
many nonzeros spread evenly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from math import isqrt
from typing import NamedTuple

import numpy as np

from workloads.arrays import Ints
from workloads.einsum import TileColumns
from workloads.matrix import Pattern, run_lengths, sorted_once

TILES = tuple(4**i for i in range(2, 12))  # rows (and columns) of tiles, of which those are shown that cut
MAX_PRODUCTS = 1 << 26  # of rows that are multiplied at a time (`product_counts`)
QUANTILES = (0, 25, 50, 75, 100)  # percent of the rows, of the nonzeros per row


class TileRow(NamedTuple):
    """One row of `dse check MATRIX`: tiles of `tile` rows and all columns, and tiles of as many rows as
    columns. evenly: expected of nonzeros spread evenly.
    """

    tile: int
    row_tiles: int
    distinct_columns: float  # that a tile of rows reads, in the mean
    largest: int  # of any tile of rows
    distinct_evenly: float
    tiles: int
    nonempty: int
    nonempty_evenly: float


class RowCounts(NamedTuple):
    """Nonzeros per row of a matrix. rows_with: (nonzeros, rows that have as many), ascending; empty rows are
    among them.
    """

    mean: float
    rows_with: tuple[tuple[int, int], ...]

    def at_percent(self, percent: int) -> int:
        """Returns the fewest nonzeros that so many percent of the rows do not exceed; at 0 the least."""
        counts, rows = (np.array(column) for column in zip(*self.rows_with, strict=True))
        rank = max(1, -(-percent * int(rows.sum()) // 100))
        return int(counts[np.searchsorted(np.cumsum(rows), rank)])


def nonzeros_per_row(p: Pattern) -> RowCounts:
    """Returns the histogram of the nonzeros per row."""
    lengths = run_lengths(p.places // p.columns)
    counts, rows = np.unique(lengths, return_counts=True)
    empty = [(0, p.rows - len(lengths))] if len(lengths) < p.rows else []
    return RowCounts(len(p.places) / p.rows, (*empty, *zip(counts.tolist(), rows.tolist(), strict=True)))


def bandwidth(p: Pattern) -> int:
    """Returns the largest distance of a nonzero from the diagonal."""
    row, column = np.divmod(p.places, p.columns)
    return int(np.abs(row - column).max())


def distinct_columns(p: Pattern, tile_rows: int) -> Ints:
    """Returns how many distinct columns each tile of `tile_rows` rows has nonzeros in, for tiles that have
    one: the rows of a dense operand that the tile reads.
    """
    return _columns_per_tile(_tile_columns(p, tile_rows), p.columns)


def tile_columns(p: Pattern) -> TileColumns:
    """Returns the distinct columns of tiles of whole rows, for each number of rows that divides the rows, and
    for powers of two. Where the last tile is smaller it is left out of the mean.

    A tile has a column once: of the nonzeros of each column, from the top down, those count that are not in
    the tile of the one before.
    """
    row, column = np.divmod(p.places, p.columns)
    order = np.argsort(column, kind="stable")
    row, column = row[order], column[order]
    begins_column = np.append(True, column[1:] != column[:-1])
    divisors = {d for i in range(1, isqrt(p.rows) + 1) if p.rows % i == 0 for d in (i, p.rows // i)}
    sizes = tuple(sorted(divisors.union(1 << i for i in range(p.rows.bit_length()))))
    means = []
    for size in sizes:
        tile = row // size
        is_new = begins_column.copy()
        is_new[1:] |= tile[1:] != tile[:-1]
        whole_tiles = p.rows // size
        means.append(int((is_new & (tile < whole_tiles)).sum()) / whole_tiles)
    said = f"{p.rows} {p.columns} {sizes} {means}"
    return TileColumns(p.rows, p.columns, hashlib.sha256(said.encode()).hexdigest()[:16], sizes, tuple(means))


def product_counts(p: Pattern, transposed: bool = False) -> tuple[int, int]:
    """Returns the products of nonzeros of A A (transposed: of A A'), and the nonzeros of the result, those
    that cancel counted. Rows are multiplied in blocks of MAX_PRODUCTS products, or a row.
    """
    from scipy import sparse  # imported here: that is slow, and only files need it

    row, column = np.divmod(p.places, p.columns)
    a = sparse.csr_array((np.ones(len(row), np.bool_), (row, column)), (p.rows, p.columns))
    b = sparse.csr_array(a.T) if transposed else a
    per_nonzero = np.diff(b.indptr)[a.indices].astype(np.int64)
    before = np.append(0, np.cumsum(per_nonzero))[a.indptr]  # products of the rows before each
    nonzeros, at = 0, 0
    while at < p.rows:
        end = max(int(np.searchsorted(before, before[at] + MAX_PRODUCTS, "right")) - 1, at + 1)
        nonzeros += (a[at:end] @ b).nnz
        at = end
    return int(per_nonzero.sum()), nonzeros


def triangle(p: Pattern, lower: bool) -> Pattern:
    """Returns the lower or the upper triangle of a square matrix, with all of the diagonal."""
    row, column = np.divmod(p.places, p.columns)
    diagonal = np.arange(p.rows) * (p.columns + 1)
    places = np.union1d(p.places[row > column if lower else row < column], diagonal)
    return replace(p, places=places)


def level_count(p: Pattern) -> int:
    """Returns the levels of a lower triangle: the most rows of which each needs the one before. Rows of one
    level need none of each other, so a solve has as many steps at least (Anderson and Saad 1989).
    """
    level = [1] * p.rows
    # places ascend, so the level of every earlier row is known
    for row, column in zip(*(x.tolist() for x in np.divmod(p.places, p.columns)), strict=True):
        if column < row and level[column] >= level[row]:
            level[row] = level[column] + 1
    return max(level)


def nonempty_tiles(p: Pattern, tile_rows: int, tile_columns: int) -> int:
    """Returns how many tiles of so many rows and columns have a nonzero."""
    return len(_coarser(p.places, p.columns, tile_rows, tile_columns))


def tile_rows(p: Pattern) -> Iterator[TileRow]:
    """Yields a row for each size of TILES that cuts the matrix. Each size is counted from the one before,
    which divides it.
    """
    density, before, columns_before = len(p.places) / (p.rows * p.columns), 1, p.places
    squares, square_columns = p.places, p.columns
    for tile in TILES:
        if tile >= max(p.rows, p.columns):
            return
        factor, before = tile // before, tile
        columns_before = _coarser(columns_before, p.columns, factor, 1)
        squares = _coarser(squares, square_columns, factor, factor)
        square_columns = -(-p.columns // tile)
        distinct = _columns_per_tile(columns_before, p.columns)
        row_parts, column_parts = _parts(p.rows, tile), _parts(p.columns, tile)
        row_tiles = -(-p.rows // tile)
        yield TileRow(
            tile,
            row_tiles,
            float(distinct.sum()) / row_tiles,
            int(distinct.max()),
            sum(n * p.columns * _chance(density, rows) for rows, n in row_parts) / row_tiles,
            row_tiles * square_columns,
            len(squares),
            sum(
                n * many * _chance(density, rows * columns)
                for rows, n in row_parts
                for columns, many in column_parts
            ),
        )


def _chance(density: float, places: int) -> float:
    """Returns the chance that one of so many places has a nonzero, each with this chance by itself."""
    return float(-np.expm1(places * np.log1p(-density))) if density < 1 else 1.0


def _parts(extent: int, tile: int) -> list[tuple[int, int]]:
    """Returns (size, how many) of the tiles of an extent; the last one may be smaller."""
    return [(size, n) for size, n in ((tile, extent // tile), (extent % tile, 1)) if size and n]


def _tile_columns(p: Pattern, rows: int) -> Ints:
    return _coarser(p.places, p.columns, rows, 1)


def _coarser(places: Ints, columns: int, tile_rows: int, tile_columns: int) -> Ints:
    """Returns the places of tiles that have a nonzero, in the matrix of tiles, ascending, each once."""
    row, column = np.divmod(places, columns)
    return sorted_once(row // tile_rows * -(-columns // tile_columns) + column // tile_columns)


def _columns_per_tile(tile_columns: Ints, columns: int) -> Ints:
    return run_lengths(tile_columns // columns)
