"""Tiles of a tensor: plain cuts, cuts under sliding windows (stride, padding, overlap), and what the host
copies for them.

The tiles of a tensor are a grid: every dimension is cut independently, and tiles are numbered row-major (the
last dimension fastest). Padding is never stored in a tile. Source: SMAUG's tile generators (Xi et al. 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from dse.layout.primitive import reach, windows
from dse.mapper.smaug.factor import Shape
from workloads.arrays import Array

Cut = tuple[int, int]  # (origin, extent) of one piece of a dimension


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides over one dimension of an input."""

    size: int
    step: int
    lead: int = 0  # elements of padding before the dimension
    trail: int = 0  # elements of padding after it

    def outputs(self, extent: int) -> int:
        """Outputs along the dimension for `extent` inputs, padding added."""
        return windows(extent + self.lead + self.trail, self.size, self.step)


@dataclass(frozen=True, slots=True)
class Tiled:
    """A tensor and its tiles."""

    shape: Shape
    label: str  # SMAUG's name of the dimensions that may be cut: None, or Dim and their letters (DimNC)
    tile: Shape  # the largest tile
    cuts: tuple[tuple[Cut, ...], ...]  # the pieces of every dimension

    def grid(self) -> Shape:
        """Number of tiles along each dimension."""
        return tuple(len(cut) for cut in self.cuts)

    def extents(self, dim: int) -> Shape:
        """Extents in elements of the tiles along one dimension, in order."""
        return tuple(extent for _, extent in self.cuts[dim])

    def tiles(self) -> Iterator[tuple[Shape, Shape]]:
        """(origin, shape) of every tile."""
        for pieces in product(*self.cuts):
            yield tuple(origin for origin, _ in pieces), tuple(extent for _, extent in pieces)

    def at(self, number: int) -> tuple[Shape, Shape]:
        """(origin, shape) of one tile."""
        pieces = [
            cut[int(i)] for cut, i in zip(self.cuts, np.unravel_index(number, self.grid()), strict=True)
        ]
        return tuple(origin for origin, _ in pieces), tuple(extent for _, extent in pieces)

    def elems(self) -> NDArray[np.int64]:
        """Elements of every tile."""
        total = np.ones((), np.int64)
        for dim in range(len(self.cuts)):
            total = np.multiply.outer(total, np.array(self.extents(dim), np.int64))
        return total.ravel()


@dataclass(frozen=True, slots=True)
class Copies:
    """What the host does to cut a tensor, or to put it together."""

    number: int  # contiguous copies
    elems: int  # elements of all copies together
    shortest_elems: int  # elements of the shortest copy


def cut(extent: int, tile: int) -> tuple[Cut, ...]:
    """Steps of the tile's extent; the last piece is what remains.

    >>> cut(10, 4)
    ((0, 4), (4, 4), (8, 2))
    """
    return tuple((origin, min(tile, extent - origin)) for origin in range(0, extent, tile))


def cut_windows(extent: int, tile: int, w: Window, aligned: bool = True) -> tuple[Cut, ...]:
    """Pieces of an input dimension under a sliding window: neighbours share size - step elements. Where
    step > size, the step - size elements between two belong to neither.

        size 3, step 1, tiles of 5:   |0 1 2 3 4|
                                            |3 4 5 6 7|        outputs 0 1 2, then 3 4 5

    The first of several pieces is shortened to whole windows (with the leading padding), so that the next one
    begins where a window begins. SMAUG shortens it only if more than one window is left in it (aligned
    False), and reads wrong elements where one is. Raises ValueError for a tile below one window.
    >>> [piece for _, piece in cut_windows(225, 9, Window(7, 2, 3, 3))][::55]
    [8, 6]
    """
    pieces: list[Cut] = []
    origin, left = 0, extent
    if tile < min(w.size, extent):
        raise ValueError(f"tiles of {tile} hold no window of {w.size}; raise the minimum tile")
    while left > 0:
        piece = min(tile, left)
        count = windows(piece + w.lead, w.size, w.step)
        if not pieces and left > tile and (count > 1 or (aligned and count == 1)):
            piece = reach(count, w.size, w.step) - w.lead
        pieces.append((origin, piece))
        origin += piece - (w.size - w.step)
        left -= piece
        left += w.size - w.step if left > 0 else 0
    return tuple(pieces)


def cut_outputs(pieces: Sequence[Cut], w: Window) -> tuple[Cut, ...]:
    """The outputs that each input piece makes. A last input piece shorter than a window makes none and is
    dropped.

    >>> cut_outputs(((0, 8), (6, 8), (12, 4)), Window(5, 3))
    ((0, 2), (2, 2))
    """
    found: list[Cut] = []
    for i, (_, piece) in enumerate(pieces):
        padding = (w.lead if i == 0 else 0) + (w.trail if i == len(pieces) - 1 else 0)
        count = windows(piece + padding, w.size, w.step)
        if count:
            found.append((sum(found[-1]) if found else 0, count))
    return tuple(found)


def input_range(piece: Cut, w: Window, extent: int) -> Cut:
    """The stored elements that an output piece reads, from the first to the last, as (origin, extent); extent
    0 where it reads padding only.
    """
    first = piece[0] * w.step - w.lead
    last = first + reach(piece[1], w.size, w.step)
    low = min(max(first, 0), extent)
    return low, max(min(last, extent) - low, 0)


def is_uniform(cuts: Sequence[Cut]) -> bool:
    """Whether one loop can make these pieces: `for p tile n` leaves tiles of n and, last, what remains."""
    return all(n == cuts[0][1] for _, n in cuts[:-1]) and cuts[-1][1] <= cuts[0][1]


def take(tensor: Array, origin: Shape, shape: Shape) -> Array:
    """One tile of a tensor, as a view."""
    return tensor[tuple(slice(start, start + extent) for start, extent in zip(origin, shape, strict=True))]


def copies(tiled: Tiled) -> Copies:
    """Contiguous copies that cut a tensor stored in the order of its dimensions. A single tile is the tensor
    itself: none.

    >>> copies(Tiled((4, 6), "NC", (4, 3), (cut(4, 4), cut(6, 3))))
    Copies(number=8, elems=24, shortest_elems=3)
    """
    grid = tiled.grid()
    if prod(grid) == 1:
        return Copies(0, 0, 0)
    inner = max(dim for dim, n in enumerate(grid) if n > 1)
    run_elems = prod(tiled.shape[inner + 1 :])
    rows = prod(sum(tiled.extents(dim)) for dim in range(inner))
    return Copies(
        rows * grid[inner],
        rows * sum(tiled.extents(inner)) * run_elems,
        min(tiled.extents(inner)) * run_elems,
    )
