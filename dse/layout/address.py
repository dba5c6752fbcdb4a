"""Addresses of a layout: a tensor's stored dimensions, cut into digits, outermost first.

A stored dimension is a logical one; or several fused (`e=H*W`), whose value is h * W + w; or an unfolded one,
whose value is tile * B + offset. A digit is (value mod modulus) / step. The address of an element is the sum
of its digits times the room of all digits inside of them:

    address = sum_j digit_j * W_j,    W_j = prod_{k > j} room_k,    room_k = size_k + pitch padding + guests
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from dse.layout.primitive import Index, tiles_of
from workloads.arrays import Ints
from workloads.einsum import TooLong

LISTABLE = 1 << 24

# (first, how many) of indices of one logical dimension, ascending and apart
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """members: the logical dimensions, adjacent ones fused, with their extents. tile, stride: of an unfolded
    one, else 0.
    """

    members: tuple[int, ...]
    extents: tuple[int, ...]
    tile: int = 0
    stride: int = 0

    def extent(self) -> int:
        """Elements along the fused dimension, before unfolding."""
        return prod(self.extents)

    def tiles(self) -> int:
        """Tiles along an unfolded dimension, overlapping ones counted each."""
        return tiles_of(self.extent(), self.tile, self.stride)


@dataclass(frozen=True, slots=True)
class Digit:
    """(value of stored dimension dim mod modulus) / step, below size; modulus 0: none. pitch: its positions,
    pitch padding and guests included.
    """

    dim: int
    modulus: int
    step: int
    size: int
    pitch: int
    guests: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Equal layouts have equal address maps: what they are made of is canonical (dse/layout/text.py)."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    stored: tuple[Stored, ...]
    digits: tuple[Digit, ...]

    def stored_elems(self) -> int:
        """Elements that the tensor takes in memory, padding, copies and guests included."""
        return prod(d.pitch for d in self.digits)

    def weights(self) -> tuple[int, ...]:
        """Of every digit: the distance between two neighbours of it."""
        found, weight = list[int](), 1
        for digit in reversed(self.digits):
            found.append(weight)
            weight *= digit.pitch
        return tuple(reversed(found))


def row_major(names: Sequence[str], shape: Sequence[int]) -> Layout:
    """Dimensions in their order, the last one contiguous."""
    stored = tuple(Stored((k,), (n,)) for k, n in enumerate(shape))
    return Layout(
        tuple(names), tuple(shape), stored, tuple(Digit(k, 0, 1, n, n) for k, n in enumerate(shape) if n > 1)
    )


def address(layout: Layout, index: Index) -> int:
    """Where an element stands: its canonical copy, if there are several."""
    values = [value(s, tuple(index[m] for m in s.members)) for s in layout.stored]
    return sum(part(d, values[d.dim]) * w for d, w in zip(layout.digits, layout.weights(), strict=True))


def value(s: Stored, index: Index) -> int:
    """Of a stored dimension, at an index of its members."""
    x = 0
    for i, n in zip(index, s.extents, strict=True):
        x = x * n + i
    if not s.tile:
        return x
    tile = min(x // s.stride, s.tiles() - 1)
    return tile * s.tile + x - tile * s.stride


def part(d: Digit, value: int) -> int:
    """The digit of a value: (value mod modulus) div step; modulus 0 stands for none."""
    return (value % d.modulus if d.modulus else value) // d.step


def parts(d: Digit, values: Ints) -> Ints:
    """As `part`, of many values."""
    return (values % d.modulus if d.modulus else values) // d.step


def listable(places: int) -> int:
    """The number of places that are to be listed one by one. Raises TooLong where that takes too much
    room."""
    if places > LISTABLE:
        raise TooLong(
            f"{places:,} places of a tensor are listed one by one, at most {LISTABLE:,}, to count lines, "
            "rows and banks; take smaller extents, or a machine that describes none"
        )
    return places


def values(s: Stored, spans: Sequence[Spans], copies: bool = False) -> Ints:
    """Values of a stored dimension that a box touches, ascending; the box as spans of each member.

    Unfolded: a box is read from the last tile that it needs and, before that tile, from canonical copies; so
    one that a tile holds comes from that tile alone. copies: all copies instead, as a write must. Raises
    ValueError where there are too many to list.
    """
    listable(prod(sum(count for _, count in own) for own in spans))
    found = np.zeros(1, np.int64)
    for own, n in zip(spans, s.extents, strict=True):
        index = (
            np.concatenate([np.arange(first, first + count) for first, count in own])
            if own
            else np.zeros(0, np.int64)
        )
        found = np.add.outer(found * n, index).ravel()
    if not s.tile or not len(found):
        return found
    if copies:
        tiles = np.arange(s.tiles())[:, None]
        offset = found[None, :] - tiles * s.stride
        return np.asarray((tiles * s.tile + offset)[(offset >= 0) & (offset < s.tile)])
    last = max(0, -(-(int(found[-1]) + 1 - s.tile) // s.stride))
    tile = np.where(found >= last * s.stride, last, np.minimum(found // s.stride, s.tiles() - 1))
    return np.asarray(np.sort(tile * s.tile + found - tile * s.stride))


def in_units(layout: Layout, bits: int, sizes: Sequence[int]) -> tuple[Layout, int]:
    """The layout of a tensor of `bits` per element in units that divide them and all sizes (in bits), and the
    bits of a unit.

    Elements that no line holds a whole number of are a dimension of units more, the innermost, of which every
    box has all.
    """
    unit = gcd(bits, *sizes)
    if unit == bits:
        return layout, bits
    dim = len(layout.stored)
    stored = (*layout.stored, Stored((len(layout.shape),), (bits // unit,)))
    digit = Digit(dim, 0, 1, bits // unit, bits // unit)
    return Layout(
        (*layout.names, "unit"), (*layout.shape, bits // unit), stored, (*layout.digits, digit)
    ), unit
