"""Addresses of a layout: a tensor's stored dimensions, cut into digits, outermost first.

The value of a stored dimension is a logical index; or, for fused dimensions (`e=H*W`), h * W + w; or, for an
unfolded dimension, tile * B + offset. A digit is (value mod modulus) / step. The address of an element is the
sum of its digits, each times its weight W, the product of the pitches of all digits inside of it:

    address = sum_j digit_j * W_j,    W_j = prod_{k > j} pitch_k,    pitch_k = size_k + pitch padding + guests
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from dse.layout.primitive import Index, tiles_of
from workloads.arrays import Ints
from workloads.einsum import TooLong

MAX_LISTABLE = 1 << 24  # most positions that are listed one by one; a limit of memory

# (first index, number of indices) of one logical dimension, ascending and not touching
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StoredDim:
    """A stored dimension."""

    members: tuple[int, ...]  # logical dimensions; several adjacent ones are fused
    extents: tuple[int, ...]  # extents of the members
    tile: int = 0  # elements of a tile of an unfolded dimension, otherwise 0
    stride: int = 0  # elements from one tile to the next, otherwise 0

    def extent(self) -> int:
        """Returns the elements along the dimension, before unfolding."""
        return prod(self.extents)

    def tiles(self) -> int:
        """Returns the number of tiles along an unfolded dimension."""
        return tiles_of(self.extent(), self.tile, self.stride)


@dataclass(frozen=True, slots=True)
class Digit:
    """A part of a stored dimension: (value mod modulus) / step."""

    dim: int  # index of the stored dimension
    modulus: int  # 0: none
    step: int
    size: int  # number of values of the digit
    pitch: int  # number of positions: size, pitch padding and guests
    guests: tuple[tuple[str, int], ...] = ()  # (tensor, slices)


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout in canonical form (dse/layout/text.py): equal layouts have equal address maps."""

    names: tuple[str, ...]  # of logical dimensions
    shape: tuple[int, ...]  # of logical dimensions
    stored: tuple[StoredDim, ...]
    digits: tuple[Digit, ...]  # outermost first

    def stored_elems(self) -> int:
        """Returns the elements that the tensor takes in memory, with padding, copies and guests."""
        return prod(d.pitch for d in self.digits)

    def weights(self) -> tuple[int, ...]:
        """Returns, per digit, the distance in address between two neighbouring values."""
        found, weight = list[int](), 1
        for digit in reversed(self.digits):
            found.append(weight)
            weight *= digit.pitch
        return tuple(reversed(found))


def row_major(names: Sequence[str], shape: Sequence[int]) -> Layout:
    """Returns the layout with dimensions in their order, the last one contiguous."""
    stored = tuple(StoredDim((k,), (n,)) for k, n in enumerate(shape))
    return Layout(
        tuple(names), tuple(shape), stored, tuple(Digit(k, 0, 1, n, n) for k, n in enumerate(shape) if n > 1)
    )


def address(layout: Layout, index: Index) -> int:
    """Returns the address of an element; if it has several copies, of the canonical one."""
    values = [value(s, tuple(index[m] for m in s.members)) for s in layout.stored]
    return sum(digit_of(d, values[d.dim]) * w for d, w in zip(layout.digits, layout.weights(), strict=True))


def value(s: StoredDim, index: Index) -> int:
    """Returns the value of a stored dimension at an index of its members."""
    x = 0
    for i, n in zip(index, s.extents, strict=True):
        x = x * n + i
    if not s.tile:
        return x
    tile = min(x // s.stride, s.tiles() - 1)
    return tile * s.tile + x - tile * s.stride


def digit_of(d: Digit, value: int) -> int:
    """Returns the digit of a value."""
    return (value % d.modulus if d.modulus else value) // d.step


def digits_of(d: Digit, values: Ints) -> Ints:
    """Returns the digit of each of many values."""
    return (values % d.modulus if d.modulus else values) // d.step


def check_listable(positions: int) -> int:
    """Returns the number of positions that are to be listed one by one. Raises TooLong if they are more
    than MAX_LISTABLE."""
    if positions > MAX_LISTABLE:
        raise TooLong(
            f"lines, rows and banks are counted by listing {positions:,} positions of a tensor, more than "
            f"{MAX_LISTABLE:,}; take smaller extents, or a machine that describes none of them"
        )
    return positions


def values(s: StoredDim, spans: Sequence[Spans], copies: bool = False) -> Ints:
    """Returns the values of a stored dimension that a box touches, ascending.

    spans: the box along each member
    copies: True: all copies of an element in overlapping tiles, which a write must touch

    In an unfolded dimension, a box is read from the last tile that it needs and, before that tile, from
    canonical copies. So a box that one tile contains is read from that tile alone. Raises TooLong if there
    are too many values to list.
    """
    check_listable(prod(sum(count for _, count in member_spans) for member_spans in spans))
    found = np.zeros(1, np.int64)
    for member_spans, n in zip(spans, s.extents, strict=True):
        index = (
            np.concatenate([np.arange(first, first + count) for first, count in member_spans])
            if member_spans
            else np.zeros(0, np.int64)
        )
        found = np.add.outer(found * n, index).ravel()
    if not s.tile or not len(found):
        return found
    if copies:
        tiles = np.arange(s.tiles())[:, None]
        offset = found[None, :] - tiles * s.stride
        return np.asarray((tiles * s.tile + offset)[(offset >= 0) & (offset < s.tile)])
    last_tile = max(0, -(-(int(found[-1]) + 1 - s.tile) // s.stride))
    tile = np.where(found >= last_tile * s.stride, last_tile, np.minimum(found // s.stride, s.tiles() - 1))
    return np.asarray(np.sort(tile * s.tile + found - tile * s.stride))


def in_units(layout: Layout, bits: int, sizes: Sequence[int]) -> tuple[Layout, int]:
    """Returns the layout in units, the largest that divide an element and all sizes, and the bits of a unit.

    bits: of an element
    sizes: bits of a line, a row and other parts of the memory

    If the unit is smaller than an element, the units of an element are one more dimension, the innermost;
    every box has all of them.
    """
    unit_bits = gcd(bits, *sizes)
    if unit_bits == bits:
        return layout, bits
    dim = len(layout.stored)
    stored = (*layout.stored, StoredDim((len(layout.shape),), (bits // unit_bits,)))
    digit = Digit(dim, 0, 1, bits // unit_bits, bits // unit_bits)
    return Layout(
        (*layout.names, "unit"), (*layout.shape, bits // unit_bits), stored, (*layout.digits, digit)
    ), unit_bits
