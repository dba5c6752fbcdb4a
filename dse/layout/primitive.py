"""Layout primitives (ALT, Xu et al. 2023) as values: each rewrites a shape and an index, and has an inverse.

A layout is a sequence of primitives on a logical shape. Forward: logical index -> physical index of the
canonical copy. Backward: physical index -> the element of the host or of a guest that stands there, or
padding. split, reorder and fuse are bijections; unfold and pad store more than the tensor has, store_at
another tensor's elements. Also the arithmetic of sliding windows over a cut dimension, for overlapping tiles
and for unfold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

Index = tuple[int, ...]
Shape = tuple[int, ...]


class LayoutError(ValueError):
    """What is no layout of this shape: one line with the reason."""


@dataclass(frozen=True, slots=True)
class Split:
    """dim -> factors, outermost first."""

    dim: int
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fuse:
    """Adjacent dims -> one."""

    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reorder:
    """Axis j of the result is axis perm[j]."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unfold:
    """dim -> (tiles, tile_size): tiles that start stride apart and may overlap; x stands in tile min(x /
    stride, tiles - 1), copies in others.
    """

    dim: int
    tile_size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Fold:
    """The inverse of unfold, of a dimension of `size`."""

    dim: int
    tile_size: int
    stride: int
    size: int


@dataclass(frozen=True, slots=True)
class Pad:
    """before and after elements of padding around a dimension."""

    dim: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Unpad:
    """The inverse of pad: the same elements are taken off again."""

    dim: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class StoreAt:
    """guest_extent slices of another tensor behind the last slice of dim."""

    dim: int
    guest_extent: int
    guest: str = ""


@dataclass(frozen=True, slots=True)
class DecoupleAt:
    """The inverse of store_at: the last guest_extent slices of dim go back to their own tensor."""

    dim: int
    guest_extent: int
    guest: str = ""


Primitive = Split | Fuse | Reorder | Unfold | Fold | Pad | Unpad | StoreAt | DecoupleAt


@dataclass(frozen=True, slots=True)
class Guest:
    """An element of the tensor that primitive number `primitive` attached, in the axis order of that
    moment."""

    primitive: int
    index: Index


def tiles_of(extent: int, tile_size: int, stride: int) -> int:
    """How many tiles unfold makes: as many as reach the last element.

    >>> tiles_of(11, 4, 3)
    4
    """
    return -(-(extent - tile_size) // stride) + 1


def shape_after(p: Primitive, shape: Shape) -> Shape:
    """The shape that a primitive makes of a shape. Raises LayoutError with the reason why it cannot."""
    _axes(p, shape)
    match p:
        case Split(dim, factors):
            if min(factors, default=0) < 1 or prod(factors) != shape[dim]:
                raise _refused(
                    p,
                    shape,
                    f"factors do not multiply to the extent {shape[dim]}; pad it to a multiple first",
                )
            return (*shape[:dim], *factors, *shape[dim + 1 :])
        case Fuse(dims):
            if not dims or dims != tuple(range(dims[0], dims[0] + len(dims))):
                raise _refused(p, shape, "dims not adjacent; reorder them first")
            return (*shape[: dims[0]], prod(shape[d] for d in dims), *shape[dims[-1] + 1 :])
        case Reorder(perm):
            if sorted(perm) != list(range(len(shape))):
                raise _refused(p, shape, f"not a permutation of {len(shape)} axes")
            return tuple(shape[source] for source in perm)
        case Unfold(dim, tile_size, stride):
            return (
                *shape[:dim],
                _unfolded(p, shape, shape[dim], tile_size, stride),
                tile_size,
                *shape[dim + 1 :],
            )
        case Fold(dim, tile_size, stride, size):
            if shape[dim : dim + 2] != (_unfolded(p, shape, size, tile_size, stride), tile_size):
                raise _refused(p, shape, "is no inverse of an unfold to these two axes")
            return (*shape[:dim], size, *shape[dim + 2 :])
        case Pad(dim, before, after) | Unpad(dim, before, after):
            extent = shape[dim] + (before + after if isinstance(p, Pad) else -before - after)
            if min(before, after) < 0 or extent < 1:
                raise _refused(p, shape, "padding must not be negative and must leave an element")
            return (*shape[:dim], extent, *shape[dim + 1 :])
        case StoreAt(dim, extent, _) | DecoupleAt(dim, extent, _):
            left = shape[dim] + (extent if isinstance(p, StoreAt) else -extent)
            if extent < 1 or left < 1:
                raise _refused(p, shape, "the guest must have a slice and leave one to the host")
            return (*shape[:dim], left, *shape[dim + 1 :])


def _axes(p: Primitive, shape: Shape) -> None:
    named = p.dims if isinstance(p, Fuse) else () if isinstance(p, Reorder) else (p.dim,)
    if wrong := [d for d in named if not 0 <= d < len(shape)]:
        raise _refused(p, shape, f"there is no axis {wrong[0]}")


def _unfolded(p: Primitive, shape: Shape, extent: int, tile_size: int, stride: int) -> int:
    if stride > tile_size:
        raise _refused(p, shape, "stride larger than the tile leaves gaps")
    if tile_size > extent:
        raise _refused(p, shape, f"tile larger than the extent {extent}")
    if stride < 1:
        raise _refused(p, shape, "stride must be at least 1")
    return tiles_of(extent, tile_size, stride)


def _refused(p: Primitive, shape: Shape, why: str) -> LayoutError:
    return LayoutError(f"{p} on shape {list(shape)}: {why}")


def shapes(shape: Shape, prims: Sequence[Primitive]) -> list[Shape]:
    """The shape before each primitive, and the last one. Raises LayoutError."""
    found = [shape]
    for p in prims:
        found.append(shape_after(p, found[-1]))
    return found


def inverted(p: Primitive, shape: Shape) -> Primitive:
    """The primitive that undoes p, which stands on a shape."""
    match p:
        case Split(dim, factors):
            return Fuse(tuple(range(dim, dim + len(factors))))
        case Fuse(dims):
            return Split(dims[0], tuple(shape[d] for d in dims))
        case Reorder(perm):
            return Reorder(tuple(perm.index(j) for j in range(len(perm))))
        case Unfold(dim, tile_size, stride):
            return Fold(dim, tile_size, stride, shape[dim])
        case Fold(dim, tile_size, stride, _):
            return Unfold(dim, tile_size, stride)
        case Pad(dim, before, after):
            return Unpad(dim, before, after)
        case Unpad(dim, before, after):
            return Pad(dim, before, after)
        case StoreAt(dim, extent, guest):
            return DecoupleAt(dim, extent, guest)
        case DecoupleAt(dim, extent, guest):
            return StoreAt(dim, extent, guest)


def inverse(shape: Shape, prims: Sequence[Primitive]) -> list[Primitive]:
    """The primitives, last first, that undo a sequence."""
    return [
        inverted(p, before) for p, before in reversed(list(zip(prims, shapes(shape, prims), strict=False)))
    ]


def step(p: Primitive, shape: Shape, i: Index) -> Index | None:
    """The index that a primitive makes of one of `shape`; None where there is none (outside of what unpad,
    fold or decouple_at keep).
    """
    match p:
        case Split(dim, factors):
            parts, rest = list[int](), i[dim]
            for f in reversed(factors):
                rest, part = divmod(rest, f)
                parts.append(part)
            return (*i[:dim], *reversed(parts), *i[dim + 1 :])
        case Fuse(dims):
            whole = 0
            for d in dims:
                whole = whole * shape[d] + i[d]
            return (*i[: dims[0]], whole, *i[dims[-1] + 1 :])
        case Reorder(perm):
            return tuple(i[source] for source in perm)
        case Unfold(dim, tile_size, stride):
            tile = min(i[dim] // stride, tiles_of(shape[dim], tile_size, stride) - 1)
            return (*i[:dim], tile, i[dim] - tile * stride, *i[dim + 1 :])
        case Fold(dim, _, stride, size):
            x = i[dim] * stride + i[dim + 1]
            return (*i[:dim], x, *i[dim + 2 :]) if x < size else None
        case Pad(dim, before, _):
            return (*i[:dim], i[dim] + before, *i[dim + 1 :])
        case Unpad(dim, before, after):
            x = i[dim] - before
            return (*i[:dim], x, *i[dim + 1 :]) if 0 <= x < shape[dim] - before - after else None
        case StoreAt():
            return i
        case DecoupleAt(dim, extent, _):
            return i if i[dim] < shape[dim] - extent else None


def forward(shape: Shape, prims: Sequence[Primitive], index: Index) -> Index | None:
    """Where a logical element stands; None if the sequence dropped it."""
    i: Index | None = index
    for p, before in zip(prims, shapes(shape, prims), strict=False):
        i = None if i is None else step(p, before, i)
    return i


def backward(shape: Shape, prims: Sequence[Primitive], index: Index) -> Index | Guest | None:
    """What stands at a physical place: an element of the host, of a guest, or padding (None)."""
    i: Index = index
    before = shapes(shape, prims)
    for number in reversed(range(len(prims))):
        p = prims[number]
        if isinstance(p, StoreAt) and i[p.dim] >= before[number][p.dim]:
            return Guest(number, (*i[: p.dim], i[p.dim] - before[number][p.dim], *i[p.dim + 1 :]))
        found = step(inverted(p, before[number]), before[number + 1], i)
        if found is None:
            return None
        i = found
    return i


def windows(extent: int, window: int, step: int) -> int:
    """Whole windows of `window` elements, `step` apart, in `extent` elements; 0 if none fits.

    >>> windows(9, 7, 2), windows(6, 7, 2)
    (2, 0)
    """
    return max((extent - window) // step + 1, 0)


def reach(count: int, window: int, step: int) -> int:
    """Elements from the first to the last of `count` windows: the block B that unfold cuts for them, B = V *
    (w - 1) + M.

    >>> reach(2, 7, 2)
    9
    """
    return (count - 1) * step + window


def pitch(extent: int, window: int, step: int) -> int:
    """Distance between the starts of blocks of `extent` elements so that no window is lost or done twice: S =
    V * w.

    >>> pitch(9, 7, 2)
    4
    """
    return step * windows(extent, window, step)


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of `taps` elements `dilation` apart, whose starts are `step` apart, in a dimension of `extent`
    that `tiles` unfolds.
    """

    step: int
    dilation: int
    taps: int
    extent: int
    tiles: Unfold

    def span(self) -> int:
        """Elements from the first to the last of one window."""
        return self.dilation * (self.taps - 1) + 1

    def access(self, i: int, r: int) -> tuple[int, int]:
        """(tile, offset in it) where element r of window i is read, one tile for all of a window. Raises
        LayoutError where no one tile has it.

        Tiles a whole number of windows apart, S = V * w, have window i in tile i / w; else tile V * i / S has
        it if B >= S - gcd(V, S) + M.
        >>> Windows(2, 1, 3, 11, Unfold(0, 7, 6)).access(4, 2)
        (1, 4)
        """
        size, apart = self.tiles.tile_size, self.tiles.stride
        each = windows(size, self.span(), self.step)
        last = (
            shape_after(
                self.tiles, (self.extent,) if self.tiles.dim == 0 else (1,) * self.tiles.dim + (self.extent,)
            )[self.tiles.dim]
            - 1
        )
        start = self.step * i
        tile = i // each if each and apart == self.step * each else min(start // apart, last)
        if not (tile * apart <= start and start + self.span() <= tile * apart + size):
            needed = apart - gcd(self.step, apart) + self.span()
            raise LayoutError(
                f"window {i} of {self.span()} elements from {start} lies in no one tile of {size}, {apart} "
                f"apart; take tiles of {needed} or more, or {self.step} * windows per tile apart"
            )
        return tile, start + self.dilation * r - apart * tile
