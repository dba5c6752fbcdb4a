"""Lower bounds on register fills: over all tiles of the three tensors of a product that fit the registers of
one PE together (docs/reuse.md, Pipelines).

A product reads two inputs, the image and the weights. Each of its ranks is missing from at most one tensor: n
ranks from the weights, k ranks from the image, c ranks from the result. In the registers of a PE each tensor
has one storage node. The loops below a storage node are its box: the products that one tile serves. The loops
of the box that index the tensor are what the tile holds:

    for ...
      store REGF result            holds n x k words, serves all c of them: each word leaves once per c
                                   operations at best
      for c ...
        store REGF weights         holds k' x c' words, each serves n operations
        for n ...
          store REGF image         holds the window of n' x c' products, and serves k' times
          for p ...                below one such loop a window slides: it fetches p + r - 1 words, and holds
                                   r

Boxes are nested, the held words of all three tensors fit together, and boxes divide the extents of one node.
Every such choice is a row of a table (`rows`); the minimum over the rows is the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from dse.mapper.exact.spatial import divisors
from dse.run.compiled import njit
from workloads.arrays import Floats
from workloads.einsum import Dim, Einsum

N, K, C = range(3)  # kinds of ranks: missing from the weights, from the image, from the result
IMAGE, WEIGHTS, RESULT = range(3)
MISSED = (K, N, C)  # kind of ranks that image, weights, result lack


@dataclass(frozen=True, slots=True)
class Window:
    """A window: the index p * step + r * dilation in a dimension of the image."""

    p: int  # extent of the rank that moves the window (of outputs)
    r: int  # extent of the rank inside the window (of taps)
    step: int  # stride
    dilation: int  # in indices
    words: int  # different indices that are read and are not padding
    padding_pairs: int  # pairs (p, r) that lie in padding


@dataclass(frozen=True, slots=True)
class Roles:
    """The iterations of a product."""

    extents: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # of the ranks of kind N, K, C
    windows: tuple[Window, ...]  # of the image


def kinds(e: Einsum) -> dict[str, int] | None:
    """Returns the kind (N, K or C) of each rank that one of the tensors lacks. None: the einsum is no product
    of two inputs, two tensors lack the same rank, or a window is not that of a convolution.
    """
    if e.kind != "mac" or len(e.inputs) != 2 or any(len(d.terms) > 1 for d in e.output.dims):
        return None
    image = int(any(len(d.terms) > 1 for d in e.inputs[1].dims))
    tensors, found = (e.inputs[image], e.inputs[1 - image], e.output), dict[str, int]()
    for rank, _ in e.extents:
        missed = [MISSED[tensor] for tensor, p in enumerate(tensors) if rank not in p.ranks()]
        if len(missed) > 1:
            return None
        found |= dict.fromkeys([rank] * len(missed), *missed)
    windows = [d.ranks() for d in tensors[IMAGE].dims if len(d.terms) > 1]
    is_irregular = any(
        len(ranks) != 2 or sorted(found.get(rank, -1) for rank in ranks) != [N, C] for ranks in windows
    )
    image_ranks = [rank for d in tensors[IMAGE].dims for rank in d.ranks()]
    return (
        None
        if is_irregular
        or len(image_ranks) > len(set(image_ranks))
        or any(len(d.terms) > 1 for d in tensors[WEIGHTS].dims)
        else found
    )


@lru_cache(maxsize=1 << 12)
def roles(e: Einsum) -> Roles | None:
    """Returns extents by kind, and windows; None for the einsums for which `kinds` is None."""
    kind_of, n = kinds(e), e.sizes()
    if kind_of is None:
        return None
    by_kind = [
        tuple(sorted(n[rank] for rank, kind in kind_of.items() if kind == wanted and n[rank] > 1))
        for wanted in (N, K, C)
    ]
    return Roles(
        (by_kind[N], by_kind[K], by_kind[C]),
        tuple(_window(d, kind_of, n) for p in e.inputs for d in p.dims if len(d.terms) > 1),
    )


def _window(d: Dim, kind_of: dict[str, int], sizes: dict[str, int]) -> Window:
    (p, step), (r, dilation) = sorted(d.terms, key=lambda term: kind_of[term[0]])  # N before C
    index = d.offset + step * np.arange(sizes[p])[:, None] + dilation * np.arange(sizes[r])[None, :]
    is_inside = (index >= 0) & (index < d.size)
    return Window(
        sizes[p], sizes[r], step, dilation, len(np.unique(index[is_inside])), int((~is_inside).sum())
    )


def _used_words(w: Window, p: int, r: int) -> int:
    return len(np.unique(w.step * np.arange(p)[:, None] + w.dilation * np.arange(r)[None, :]))


def _share(w: Window, p: int, r: int) -> float:
    """Returns a lower bound on the words per pair (p, r) that boxes of at most p x r pairs bring in. A pair
    in padding needs at most one word that is not stored.
    """
    return max(_used_words(w, p, r) / (p * r) - w.padding_pairs / (w.p * w.r), w.words / (w.p * w.r))


@dataclass(frozen=True, slots=True)
class TileChoices:
    """Choices of tiles, one per row."""

    fetched: Floats  # [M] words of the image per product, after sharing in windows
    # [M, 3] by tensor: products of its box that use the same word, since it lacks their ranks; inf: all of
    # them
    served: Floats
    needs: Floats  # [M, 3] iterations of kind N, K, C that the boxes have


BATCH = 128  # parts that `fill_pj` prices at a time, which limits its memory
Prices = tuple[float, float, float]
# columns of the image's tiles: words held; n and c of the products served; n and c after sliding; words
# fetched per product
HELD, AT_N, AT_C, SLID_N, SLID_C, FETCHED = range(6)


def _one_window(w: Window, capacity: int) -> list[tuple[int, int, int, int, int, float]]:
    """Returns tiles of one window, slid along one of its ranks or not at all."""
    found = []
    for p, r in product(divisors(w.p), divisors(w.r)):
        held = w.step * (p - 1) + w.dilation * (r - 1) + 1
        if held <= capacity:
            slid = [
                (p, r),
                *((b, r) for b in divisors(w.p) if b > p and b % p == 0),
                *((p, b) for b in divisors(w.r) if b > r and b % r == 0),
            ]
            found += [(held, p, r, *to, _share(w, *to)) for to in slid]
    return found


def _tiles(windows: tuple[Window, ...], capacity: int) -> Floats:
    """Returns tiles [M, 6] of the image, in which at most one window slides."""
    rows = [(1, 1, 1, 1, 1, 1.0, False)]  # the six columns of a tile, and whether a window slides
    for w in windows:
        window_tiles = [(*one, one[3:5] != one[1:3]) for one in _one_window(w, capacity)]
        rows = [
            (a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3], a[4] * b[4], a[5] * b[5], a[6] or b[6])
            for a in rows
            for b in window_tiles
            if a[0] * b[0] <= capacity and not (a[6] and b[6])
        ]
    found = _undominated_tiles(np.array([row[:6] for row in rows], np.float64))
    # n, c: indices of further ranks of kind N and of kind C that the tile holds
    scaled_tiles = [
        found[found[:, HELD] <= capacity // (n * c)] * (n * c, n, c, n, c, 1)
        for n in range(1, capacity + 1)
        for c in range(1, capacity // n + 1)
    ]
    return _undominated_tiles(np.concatenate(scaled_tiles))


def _undominated_tiles(tiles: Floats, served: bool = True) -> Floats:
    """Returns the tiles that no other tile dominates. A tile dominates if it holds and fetches no more,
    slides no further and, if `served`, serves at least as many products.
    """
    signed = tiles[:, [HELD, FETCHED, SLID_N, SLID_C]]
    # sorted: only an earlier row can dominate
    signed = np.unique(np.column_stack([signed, -tiles[:, [AT_N, AT_C]]]) if served else signed, axis=0)
    undominated = _undominated_sorted(signed)
    served_counts = -undominated[:, 4:6] if served else np.ones((len(undominated), 2))
    return np.column_stack([undominated[:, 0], served_counts, undominated[:, 2:4], undominated[:, 1]])


@lru_cache(maxsize=1 << 8)
def rows(windows: tuple[Window, ...], capacity: int) -> TileChoices:
    """Returns the choices of tiles: for each order of the three storage nodes and each tile of the image, the
    largest tiles of the other two tensors that fit beside it. capacity: words of the registers.
    """
    tiles = _tiles(windows, capacity)
    inner = np.repeat(_undominated_tiles(tiles, served=False), capacity, axis=0)
    k, no_limit = np.tile(np.arange(1.0, capacity + 1), len(inner) // capacity), np.full(len(tiles), inf)
    found = list[Floats]()

    def add(
        t: Floats, fits: NDArray[np.bool_], image: Floats, weights: Floats, result: Floats, k: Floats
    ) -> None:
        found.append(
            np.column_stack([t[:, FETCHED], image, weights, result, t[:, SLID_N], k, t[:, SLID_C]])[fits]
        )

    ones, no_inner_limit = np.ones(len(tiles)), np.full(len(inner), inf)
    # the outermost tensor holds k x y words, the next one k x (n or c of the image's tile)
    for ranks_around, ranks_across in ((SLID_N, SLID_C), (SLID_C, SLID_N)):
        y = (capacity - inner[:, HELD] - k * inner[:, ranks_across]) // k
        weights, result = (y, no_inner_limit) if ranks_around == SLID_N else (no_inner_limit, y)
        # result weights image, weights result image
        add(inner, y >= inner[:, ranks_around], k, weights, result, k)
    free_words = capacity - tiles[:, HELD] - 1
    n, c = free_words // tiles[:, SLID_N], free_words // tiles[:, SLID_C]
    add(tiles, n >= 1, n, tiles[:, AT_N], no_limit, ones)  # result image weights
    add(tiles, c >= 1, c, no_limit, tiles[:, AT_C], ones)  # weights image result
    # image weights result
    add(tiles, free_words >= 1, no_limit, tiles[:, AT_N], np.minimum(free_words, tiles[:, AT_C]), ones)
    # image result weights
    add(tiles, free_words >= 1, no_limit, np.minimum(free_words, tiles[:, AT_N]), tiles[:, AT_C], ones)
    all_rows = _undominated_rows(np.concatenate(found))
    return TileChoices(all_rows[:, 0], all_rows[:, 1:4], all_rows[:, 4:7])


def _undominated_rows(found: Floats) -> Floats:
    """Returns the rows that no other row dominates. A row dominates if it fetches no more, serves at least as
    many products, and needs no more iterations.
    """
    signs = np.array([1.0, -1, -1, -1, 1, 1, 1])
    undominated: Floats = _undominated_sorted(np.unique(found * signs, axis=0)) * signs
    return undominated


@njit(cache=True, nogil=True)
def _undominated_sorted(ordered: Floats) -> Floats:
    """Returns the sorted rows for which no earlier row is lower or equal in all columns."""
    undominated, count = np.empty_like(ordered), 0
    for i in range(len(ordered)):
        is_dominated = False
        for j in range(count):
            is_higher = False
            for column in range(ordered.shape[1]):
                if undominated[j, column] > ordered[i, column]:
                    is_higher = True
                    break
            if not is_higher:
                is_dominated = True
                break
        if not is_dominated:
            undominated[count] = ordered[i]
            count += 1
    return undominated[:count]


@lru_cache(maxsize=1 << 12)
def _dividing(extents: tuple[int, ...], capacity: int) -> Floats:
    """Returns most [capacity + 2]: most[i] is the largest number of iterations up to i of a box that divides
    each rank of a kind; the last entry is the number of all iterations.
    """
    found = {1}
    for n in extents:
        found = {a * b for a in found for b in divisors(n) if a * b <= capacity}
    return np.array(
        [0, *(max(one for one in found if one <= most) for most in range(1, capacity + 1)), prod(extents)],
        np.float64,
    )


def fill_pj(
    parts: Sequence[Roles], capacity: int, pj: Prices, buffer: Prices = (0.0, 0.0, 0.0), pes: int = 1
) -> Floats:
    """Returns lower bounds [parts] on the energy (pJ) per operation of moving image, weights and result into
    and out of registers. Parts have equal windows.

    capacity: words of the registers of one PE.
    pj: per word of image, weights, result: at the registers and on the way.
    buffer: per word of image, weights, result: at the buffer; PEs that use the same word share it.
    pes: number of PEs of the array.

    s_t PEs share a word of tensor t. They share it along ranks that t lacks, and no two tensors lack the same
    rank, so a product of several s_t is at most the number of PEs. Hence a_1 / s_1 + a_2 / s_2 >=
    2 (a_1 a_2 / PEs)^(1/2), and for all three tensors 3 (a_1 a_2 a_3 / PEs)^(1/3).
    """
    choices, found = rows(parts[0].windows, capacity), list[Floats]()
    served = np.minimum(choices.served, capacity + 1).astype(np.int64)
    for begin in range(0, len(parts), BATCH):
        extents_of_parts = [one.extents for one in parts[begin : begin + BATCH]]
        sizes = np.array([[prod(kind) for kind in extents] for extents in extents_of_parts], np.float64)
        image, weights, result = (
            1
            / np.array([_dividing(extents[kind], capacity) for extents in extents_of_parts])[:, served[:, t]]
            for t, kind in enumerate(MISSED)
        )
        # pJ per operation at the buffer, if PEs shared no words
        p = (image := image * choices.fetched) * buffer[IMAGE]
        q = weights * buffer[WEIGHTS]
        s = result * buffer[RESULT]
        two = 2 * np.sqrt(np.maximum(p * q, np.maximum(p * s, q * s)) / pes)
        three = 3 * np.cbrt(p * q * s / pes)
        total = (
            image * pj[IMAGE]
            + weights * pj[WEIGHTS]
            + result * pj[RESULT]
            + np.maximum(np.maximum(two, three), (p + q + s) / pes)
        )
        is_possible = (choices.needs <= sizes[:, None, :]).all(axis=2)
        found.append(np.where(is_possible, total, inf).min(axis=1, initial=inf))
    return np.concatenate(found)
