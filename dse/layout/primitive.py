"""Layout primitives (ALT, Xu et al. 2023) as values: each rewrites a shape and an index, and has an inverse.

A layout is a sequence of primitives on a logical shape. Forward: logical index -> physical index of the
canonical copy. Backward: physical index -> element of the host or of a guest at that position, or padding.
split, reorder and fuse are bijections. unfold and pad store more elements than the tensor has; store_at
stores elements of another tensor.

The file also has the arithmetic of sliding windows over a tiled dimension, for overlapping tiles and for
unfold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

Index = tuple[int, ...]
Shape = tuple[int, ...]


class LayoutError(ValueError):
    """A layout that does not fit the shape. The message is one line with the reason."""


@dataclass(frozen=True, slots=True)
class Split:
    """Splits dim into several axes of extents `factors`, outermost first."""

    dim: int
    factors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fuse:
    """Fuses adjacent dims into one."""

    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reorder:
    """Permutes axes: axis j of the result is axis perm[j]."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unfold:
    """Replaces dim by axes (tile, offset). Tiles start `stride` apart and may overlap. Element x stands in
    tile min(x / stride, tiles - 1), with copies in other tiles that contain it.
    """

    dim: int
    tile_size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Fold:
    """The inverse of unfold, for a dimension of `size` elements."""

    dim: int
    tile_size: int
    stride: int
    size: int


@dataclass(frozen=True, slots=True)
class Pad:
    """Adds `before` and `after` elements of padding to a dimension."""

    dim: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Unpad:
    """The inverse of pad: removes these elements."""

    dim: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class StoreAt:
    """Adds guest_extent slices of another tensor behind the last slice of dim."""

    dim: int
    guest_extent: int
    guest: str = ""


@dataclass(frozen=True, slots=True)
class DecoupleAt:
    """The inverse of store_at: moves the last guest_extent slices of dim back to their own tensor."""

    dim: int
    guest_extent: int
    guest: str = ""


Primitive = Split | Fuse | Reorder | Unfold | Fold | Pad | Unpad | StoreAt | DecoupleAt


@dataclass(frozen=True, slots=True)
class Guest:
    """An element of a guest tensor."""

    primitive: int  # index of the StoreAt that attached the guest
    index: Index  # in the axes at that primitive


def tiles_of(extent: int, tile_size: int, stride: int) -> int:
    """Returns the number of tiles of unfold: as many as reach the last element.

    >>> tiles_of(11, 4, 3)
    4
    """
    return -(-(extent - tile_size) // stride) + 1


def shape_after(p: Primitive, shape: Shape) -> Shape:
    """Returns the shape after a primitive. Raises LayoutError if the primitive does not fit the shape."""
    _check_axes(p, shape)
    match p:
        case Split(dim, factors):
            if min(factors, default=0) < 1 or prod(factors) != shape[dim]:
                raise _layout_error(
                    p,
                    shape,
                    f"factors do not multiply to the extent {shape[dim]}; pad it to a multiple first",
                )
            return (*shape[:dim], *factors, *shape[dim + 1 :])
        case Fuse(dims):
            if not dims or dims != tuple(range(dims[0], dims[0] + len(dims))):
                raise _layout_error(p, shape, "dims not adjacent; reorder them first")
            return (*shape[: dims[0]], prod(shape[d] for d in dims), *shape[dims[-1] + 1 :])
        case Reorder(perm):
            if sorted(perm) != list(range(len(shape))):
                raise _layout_error(p, shape, f"not a permutation of {len(shape)} axes")
            return tuple(shape[source] for source in perm)
        case Unfold(dim, tile_size, stride):
            return (
                *shape[:dim],
                _tile_count(p, shape, shape[dim], tile_size, stride),
                tile_size,
                *shape[dim + 1 :],
            )
        case Fold(dim, tile_size, stride, size):
            if shape[dim : dim + 2] != (_tile_count(p, shape, size, tile_size, stride), tile_size):
                raise _layout_error(p, shape, "is no inverse of an unfold to these two axes")
            return (*shape[:dim], size, *shape[dim + 2 :])
        case Pad(dim, before, after) | Unpad(dim, before, after):
            extent = shape[dim] + (before + after if isinstance(p, Pad) else -before - after)
            if min(before, after) < 0 or extent < 1:
                raise _layout_error(p, shape, "padding must not be negative and must leave an element")
            return (*shape[:dim], extent, *shape[dim + 1 :])
        case StoreAt(dim, extent, _) | DecoupleAt(dim, extent, _):
            new_extent = shape[dim] + (extent if isinstance(p, StoreAt) else -extent)
            if extent < 1 or new_extent < 1:
                raise _layout_error(p, shape, "the guest must have a slice and leave one to the host")
            return (*shape[:dim], new_extent, *shape[dim + 1 :])


def _check_axes(p: Primitive, shape: Shape) -> None:
    """Raises LayoutError if the primitive names an axis that the shape lacks."""
    named = p.dims if isinstance(p, Fuse) else () if isinstance(p, Reorder) else (p.dim,)
    if wrong := [d for d in named if not 0 <= d < len(shape)]:
        raise _layout_error(p, shape, f"there is no axis {wrong[0]}")


def _tile_count(p: Primitive, shape: Shape, extent: int, tile_size: int, stride: int) -> int:
    """Returns the number of tiles of an unfold. Raises LayoutError if it does not fit the extent."""
    if stride > tile_size:
        raise _layout_error(p, shape, "stride larger than the tile leaves gaps")
    if tile_size > extent:
        raise _layout_error(p, shape, f"tile larger than the extent {extent}")
    if stride < 1:
        raise _layout_error(p, shape, "stride must be at least 1")
    return tiles_of(extent, tile_size, stride)


def _layout_error(p: Primitive, shape: Shape, why: str) -> LayoutError:
    return LayoutError(f"{p} on shape {list(shape)}: {why}")


def shapes(shape: Shape, prims: Sequence[Primitive]) -> list[Shape]:
    """Returns the shape before each primitive, and the last shape. Raises LayoutError."""
    found = [shape]
    for p in prims:
        found.append(shape_after(p, found[-1]))
    return found


def inverse_of(p: Primitive, shape: Shape) -> Primitive:
    """Returns the primitive that undoes p. shape: the shape before p."""
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
    """Returns the primitives that undo a sequence, last first."""
    return [
        inverse_of(p, before) for p, before in reversed(list(zip(prims, shapes(shape, prims), strict=False)))
    ]


def apply(p: Primitive, shape: Shape, i: Index) -> Index | None:
    """Returns the index after a primitive; None if unpad, fold or decouple_at drops it.

    shape: the shape before the primitive
    """
    match p:
        case Split(dim, factors):
            parts, rest = list[int](), i[dim]
            for f in reversed(factors):
                rest, part = divmod(rest, f)
                parts.append(part)
            return (*i[:dim], *reversed(parts), *i[dim + 1 :])
        case Fuse(dims):
            fused = 0
            for d in dims:
                fused = fused * shape[d] + i[d]
            return (*i[: dims[0]], fused, *i[dims[-1] + 1 :])
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
    """Returns the physical index of a logical element; None if the sequence dropped it."""
    i: Index | None = index
    for p, before in zip(prims, shapes(shape, prims), strict=False):
        i = None if i is None else apply(p, before, i)
    return i


def backward(shape: Shape, prims: Sequence[Primitive], index: Index) -> Index | Guest | None:
    """Returns what stands at a physical index: an index of the host, a Guest, or None for padding."""
    i: Index = index
    before = shapes(shape, prims)
    for number in reversed(range(len(prims))):
        p = prims[number]
        if isinstance(p, StoreAt) and i[p.dim] >= before[number][p.dim]:
            return Guest(number, (*i[: p.dim], i[p.dim] - before[number][p.dim], *i[p.dim + 1 :]))
        found = apply(inverse_of(p, before[number]), before[number + 1], i)
        if found is None:
            return None
        i = found
    return i


def windows(extent: int, window: int, step: int) -> int:
    """Returns how many whole windows of `window` elements, `step` apart, fit in `extent` elements; 0 if none
    fits.

    >>> windows(9, 7, 2), windows(6, 7, 2)
    (2, 0)
    """
    return max((extent - window) // step + 1, 0)


def reach(count: int, window: int, step: int) -> int:
    """Returns the elements from the first to the last of `count` windows: the block that unfold cuts for
    them, B = V * (w - 1) + M, where V is `step`, w is `count` and M is `window`.

    >>> reach(2, 7, 2)
    9
    """
    return (count - 1) * step + window


def pitch(extent: int, window: int, step: int) -> int:
    """Returns the distance between the starts of blocks of `extent` elements at which no window is lost or
    duplicated: S = V * w, where V is `step` and w the windows per block.

    >>> pitch(9, 7, 2)
    4
    """
    return step * windows(extent, window, step)


@dataclass(frozen=True, slots=True)
class Windows:
    """Sliding windows over a dimension that `tiles` unfolds."""

    step: int  # elements from the start of one window to the next
    dilation: int  # elements from one tap to the next
    taps: int  # elements of a window
    extent: int  # elements of the dimension
    tiles: Unfold

    def span(self) -> int:
        """Returns the elements from the first to the last of one window."""
        return self.dilation * (self.taps - 1) + 1

    def access(self, i: int, r: int) -> tuple[int, int]:
        """Returns (tile, offset in it) where element r of window i is read; a window is read from one tile.
        Raises LayoutError where no tile contains the window.

        Let tiles of B elements start S apart, windows of M elements start V apart, and w windows fit in a
        tile. If S = V * w, window i lies in tile i / w. Otherwise tile V * i / S contains it if B >= S -
        gcd(V, S) + M.
        >>> Windows(2, 1, 3, 11, Unfold(0, 7, 6)).access(4, 2)
        (1, 4)
        """
        size, stride = self.tiles.tile_size, self.tiles.stride
        per_tile = windows(size, self.span(), self.step)
        last_tile = (
            shape_after(
                self.tiles, (self.extent,) if self.tiles.dim == 0 else (1,) * self.tiles.dim + (self.extent,)
            )[self.tiles.dim]
            - 1
        )
        start = self.step * i
        tile = (
            i // per_tile if per_tile and stride == self.step * per_tile else min(start // stride, last_tile)
        )
        if not (tile * stride <= start and start + self.span() <= tile * stride + size):
            needed = stride - gcd(self.step, stride) + self.span()
            raise LayoutError(
                f"window {i}, {self.span()} elements from {start}, lies in no single tile of {size} elements "
                f"at stride {stride}; take tiles of {needed} or more, or stride {self.step} * windows per "
                "tile"
            )
        return tile, start + self.dilation * r - stride * tile
