"""Sums over tiles of an einsum: words, rows and lengths of what a loop nest moves, edges and windows
included."""

from __future__ import annotations

import numpy as np

from dse.mapper.exact.kernels.state import (
    ALONE,
    BEGUN,
    CLIPPED,
    FIRST,
    HULL,
    MET,
    ONE,
    POINTS,
    ROWS,
    STARTED,
    Einsum,
    Machine,
    Memo,
    Pool,
    Terms,
)
from dse.run.compiled import lean
from workloads.arrays import Ints


@lean
def clipped_sum(
    dim: int, a: int, b: int, n: int, k: int, entry: Ints, e: Einsum, p: Pool, memo: Memo
) -> float:
    """Sum of the hull lengths of a dimension over the tiles of its ranks at position k, clipped to what is
    stored.

    a, b: number of the tile of each of the two ranks, -1 where there is no second rank. n: at the n outermost
    fan-out boundaries only the first PE counts; entry [K, R] are then the tiles that enter each boundary.
    """
    many_a, many_b = (
        pieces(dim, 0, a, n, k, entry, e, p, memo.spans[0]),
        pieces(dim, 1, b, n, k, entry, e, p, memo.spans[1]),
    )
    total = 0.0
    for i in range(many_a):
        for j in range(many_b):
            low = e.offset[dim] + memo.spans[0, 0, i] + memo.spans[1, 0, j]
            high = low + memo.spans[0, 1, i] + memo.spans[1, 1, j]
            total += max(min(high, e.stored[dim] - 1) - max(low, 0) + 1, 0)
    return total


@lean
def pieces(
    dim: int, side: int, tile: int, n: int, k: int, entry: Ints, e: Einsum, p: Pool, spans: Ints
) -> int:
    """Fills spans [2, .] with the start and the reach of each piece of a rank's tile in a dimension. Returns
    how many pieces there are.
    """
    spans[0, 0], spans[1, 0] = 0, 0
    if tile < 0:
        return 1
    r, many = e.rank[dim, side], 1
    spans[1, 0] = p.size[p.span[p.first[r], 0, 1] - 1]
    if n > 0:
        for j in range(1, k + 1):
            many = cut_over_pes(entry[j, r], j <= n, many, p, spans)
        many = cut(p.size[tile], many, spans)
    else:
        for j in range(p.cuts.shape[1]):
            if p.cuts[tile, j]:
                many = cut(p.cuts[tile, j], many, spans)
    for i in range(many):
        spans[0, i], spans[1, i] = e.coef[dim, side] * spans[0, i], e.coef[dim, side] * (spans[1, i] - 1)
    return many


@lean
def cut_over_pes(tile: int, first: bool, many: int, p: Pool, spans: Ints) -> int:
    """Cuts pieces to the tile that enters a fan-out boundary, then into the shares of its PEs (first: to the
    share of the first PE alone). tile: the tile inside of the boundary. Returns the number of pieces.
    """
    out, begin, end = p.out[tile], 0, 0
    many = cut(p.size[out], many, spans)
    for j in range(p.cuts.shape[1]):
        begin, end = begin + (p.cuts[out, j] != 0), end + (p.cuts[tile, j] != 0)
    # the cuts that these PEs make are those that the tile inside has and the tile outside has not
    ragged = end > begin
    if first:
        for i in range(many):
            spans[1, i] = min(spans[1, i], p.size[p.last[tile]] if ragged else p.size[tile])
    elif ragged:
        for j in range(begin, end - 1):
            many = cut(p.cuts[tile, j], many, spans)
    else:
        many = cut(p.size[tile], many, spans)
    return many


@lean
def cut(t: int, n: int, spans: Ints) -> int:
    """Cuts n pieces into tiles of t. Returns the number of pieces after that."""
    more = 0
    for i in range(n):
        more += -(-spans[1, i] // t)
    at = more
    for i in range(n - 1, -1, -1):
        begin, whole = spans[0, i], spans[1, i]
        for k in range(-(-whole // t) - 1, -1, -1):
            at -= 1
            spans[0, at], spans[1, at] = begin + k * t, min(t, whole - k * t)
    return more


@lean
def length(dim: int, tile: Ints, mask: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """Sum of a dimension's hull lengths over the tiles of its ranks. Of a clipped dimension, where a mask is
    given, a lower bound of the part that the first PE has.
    """
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    if e.kind[dim] == ALONE:
        return float(p.elems[tile[a], mask])
    if e.kind[dim] == HULL:
        n1 = p.pieces[tile[a], mask] if a >= 0 else 1.0
        n2 = p.pieces[tile[b], mask] if b >= 0 else 1.0
        s1 = p.elems[tile[a], mask] if a >= 0 else 1.0
        s2 = p.elems[tile[b], mask] if b >= 0 else 1.0
        return float(n1 * n2 + e.coef[dim, 0] * (s1 - n1) * n2 + e.coef[dim, 1] * (s2 - n2) * n1)
    i, j, n, row = (
        tile[a] - p.base[a] if a >= 0 else 0,
        tile[b] - p.base[b] if b >= 0 else 0,
        full_boundaries(mask, p),
        memo.row[dim],
    )
    if np.isnan(memo.hulls[n, row, i, j]):
        one, other = tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1
        memo.hulls[n, row, i, j] = (
            min_first_pe(dim, one, other, mask, e, p, memo)
            if mask
            else clipped_sum(dim, one, other, 0, 0, memo.entry, e, p, memo)
        )
    return float(memo.hulls[n, row, i, j])


@lean
def full_boundaries(mask: int, p: Pool) -> int:
    """The number n of outermost fan-out boundaries of which all groups of PEs are in the mask."""
    n = 0
    while p.prefix[n] != mask:
        n += 1
    return n


@lean
def min_first_pe(dim: int, a: int, b: int, mask: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """A lower bound of the first PE's part of a clipped dimension, over all tiles that may enter the PEs
    (multiples of the tile at the node). Where two boundaries stand outside: the number of tiles that it has,
    times the length of the shortest.
    """
    least = np.inf
    if p.prefix.shape[0] > 2:
        n1 = pieces(dim, 0, a, 0, 0, memo.entry, e, p, memo.spans[0])
        n2 = pieces(dim, 1, b, 0, 0, memo.entry, e, p, memo.spans[1])
        for i in range(n1):
            for j in range(n2):
                low = e.offset[dim] + memo.spans[0, 0, i] + memo.spans[1, 0, j]
                high = low + memo.spans[0, 1, i] + memo.spans[1, 1, j]
                least = min(least, max(min(high, e.stored[dim] - 1) - max(low, 0) + 1, 0))
        return float(least * (p.pieces[a, mask] if a >= 0 else 1.0) * (p.pieces[b, mask] if b >= 0 else 1.0))
    for i in range(a, a + 1 if a < 0 else p.last[a] + 1):
        for j in range(b, b + 1 if b < 0 else p.last[b] + 1):
            if (a < 0 or p.size[i] % p.size[a] == 0) and (b < 0 or p.size[j] % p.size[b] == 0):
                if a >= 0:
                    memo.entry[1, e.rank[dim, 0]] = i
                if b >= 0:
                    memo.entry[1, e.rank[dim, 1]] = j
                least = min(least, clipped_sum(dim, a, b, 1, 1, memo.entry, e, p, memo))
    return float(least)


@lean
def union(dim: int, a: int, b: int, stored: bool, e: Einsum, p: Pool, memo: Memo) -> float:
    """Elements of an output's dimension that all tiles together touch. stored: count only those that are
    stored. No rank of the dimension is unrolled over PEs (spatial.unrollings).
    """
    row, i, j = (
        memo.urow[dim],
        a - p.base[e.rank[dim, 0]] if a >= 0 else 0,
        b - p.base[e.rank[dim, 1]] if b >= 0 else 0,
    )
    if np.isnan(memo.unions[int(stored), row, i, j]):
        n1 = pieces(dim, 0, a, 0, 0, memo.entry, e, p, memo.spans[0])
        n2 = pieces(dim, 1, b, 0, 0, memo.entry, e, p, memo.spans[1])
        total = 0.0
        memo.touched[:] = False
        for u in range(n1):
            for v in range(n2):
                begin = memo.spans[0, 0, u] + memo.spans[1, 0, v]
                for at in range(begin, begin + memo.spans[0, 1, u] + memo.spans[1, 1, v] + 1):
                    if not memo.touched[at] and (not stored or 0 <= e.offset[dim] + at < e.stored[dim]):
                        memo.touched[at] = True
                        total += 1.0
        memo.unions[int(stored), row, i, j] = total
    return float(memo.unions[int(stored), row, i, j])


@lean
def value(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """The amount of quantity q for given tiles at its position."""
    kind, x, k, unseen, seen = t.quantity[q]
    if kind >= FIRST:
        return end_transfer_words(q, tile, option, t, e, p)
    if kind == ONE:
        return 1.0
    total, last = 1.0, e.dim[x + 1] - 1
    for r in range(tile.shape[0]):
        if kind == POINTS:
            total *= p.elems[tile[r], seen if e.unshared[x, r] else unseen]
        elif not e.seen[x, r]:
            if kind == MET and e.unshared[x, r]:
                total *= p.elems[tile[r], seen]
            else:
                total *= (
                    p.pes[option[r], k, seen if kind == BEGUN and e.unshared[x, r] else unseen]
                    if kind >= STARTED
                    else p.pieces[tile[r], unseen]
                )
    if kind != POINTS:
        for dim in range(e.dim[x], last + 1):
            a, b = e.rank[dim, 0], e.rank[dim, 1]
            if kind == ROWS and dim == last:
                for r in e.rank[dim]:
                    total *= p.pieces[tile[r], seen] if r >= 0 else 1.0
            elif kind >= STARTED and e.kind[dim] != ALONE:
                total *= union(
                    dim, tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1, kind == STARTED, e, p, memo
                )
            else:
                total *= length(dim, tile, seen, e, p, memo)
    return (
        total if t.line[q] == 0.0 else max(total, t.line[q] * line_requests(q, tile, option, t, e, p, memo))
    )


@lean
def line_requests(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """A lower bound of the cache lines that quantity q moves: the larger of two numbers.

    1. One line for each request, made by all PEs at once. In clipped dimensions a request for clipped indices
       alone moves nothing; of the others there are at least (sum of all lengths / length of a full request).
    2. A share of a line for each index of the dimensions that a layout spreads over lines (search.Spread).
    """
    _, x, k, unseen, _ = t.quantity[q]
    every, times = p.pieces.shape[1] - 1, 1.0
    for r in range(tile.shape[0]):
        if not e.seen[x, r]:
            times *= p.pieces[tile[r], unseen]
    indices = times * t.share[q]
    for dim in range(e.dim[x], e.dim[x + 1]):
        reach, pes, turns = 1.0, 1.0, 1.0
        for side in range(2):
            r = e.rank[dim, side]
            if r >= 0:
                turns *= p.pieces[tile[r], every]
                reach += e.coef[dim, side] * (p.size[tile[r]] - 1)
                pes *= p.pes[option[r], k, 0]
        whole = turns * reach
        if e.kind[dim] == CLIPPED:
            whole = length(dim, tile, 0, e, p, memo) / pes
            turns = np.ceil(whole / reach - 1e-9)
        elif e.kind[dim] == ALONE:
            whole = p.elems[tile[e.rank[dim, 0]], 0]
        times *= turns
        indices *= whole if t.spread[q] >> dim - e.dim[x] & 1 else turns
    return float(max(times, indices))


@lean
def end_transfer_words(q: int, tile: Ints, option: Ints, t: Terms, e: Einsum, p: Pool) -> float:
    """A lower bound of the words of a tile's first fills, or of its last drains. In a clipped dimension
    everything that clipping may cut is subtracted, except from the first tile.
    """
    _kind, x, k, unseen, _seen = t.quantity[q]
    total = 1.0
    for r in range(tile.shape[0]):
        if not e.seen[x, r]:
            total *= full_pes(option[r], k, unseen, p)
    for dim in range(e.dim[x], e.dim[x + 1]):
        a, b = e.rank[dim, 0], e.rank[dim, 1]
        total *= end_words(q, dim, tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1, option, t, e, p)
    return total


@lean
def end_words(q: int, dim: int, a: int, b: int, option: Ints, t: Terms, e: Einsum, p: Pool) -> float:
    """`end_transfer_words` of one dimension. a, b: numbers of the tiles of its ranks, -1: no second rank."""
    kind, _x, k, _unseen, seen = t.quantity[q]
    reach, whole, pes, total = 0, 0, 1.0, 1.0
    for side in range(2):
        r = e.rank[dim, side]
        if r >= 0:
            reach += e.coef[dim, side] * (p.size[b if side else a] - 1)
            whole += e.coef[dim, side] * (p.size[p.span[p.first[r], 0, 1] - 1] - 1)
            pes *= p.pes[option[r], k, seen]
            total *= full_pes(option[r], k, seen, p)
    words = reach + 1
    if e.kind[dim] == CLIPPED and kind == FIRST and pes == 1.0:
        words = min(e.offset[dim] + reach, e.stored[dim] - 1) - max(e.offset[dim], 0) + 1
    elif e.kind[dim] == CLIPPED:
        words -= max(-e.offset[dim], 0) + max(e.offset[dim] + whole - e.stored[dim] + 1, 0)
    return total * max(words, 0)


@lean
def full_pes(o: int, k: int, mask: int, p: Pool) -> float:
    """A lower bound of the number of PEs of an unrolling that have full tiles. Where shares are uneven, these
    are all PEs except the last; with two boundaries outside, only the first PE is sure to have one.
    """
    pes = float(p.pes[o, k, mask])
    return pes if not p.uneven[o] or pes == 1.0 else 1.0 if p.prefix.shape[0] > 2 else pes - 1.0


@lean
def factor(q: int, r: int, o: int, t: Terms, e: Einsum, p: Pool) -> float:
    """Rank r's factor in the lower bound of quantity q, under unrolling o of that rank: for the largest tile
    at the position of q, or for the smallest tile if q counts first or last tiles.
    """
    kind, x, k, unseen, seen = t.quantity[q]
    if kind >= FIRST:
        for dim in range(e.dim[x], e.dim[x + 1]):
            if e.kind[dim] == ALONE and e.rank[dim, 0] == r:
                return float(full_pes(o, k, seen, p) * p.size[p.span[o, k, 0]])
        return 1.0 if e.seen[x, r] else full_pes(o, k, unseen, p)
    if kind == ONE:
        return 1.0
    tile = p.span[o, k, 1] - 1
    if kind == POINTS:
        return float(p.elems[tile, seen if e.unshared[x, r] else unseen])
    if not e.seen[x, r]:
        if kind == MET and e.unshared[x, r]:
            return float(p.elems[tile, seen])
        return float(
            p.pes[o, k, seen if kind == BEGUN and e.unshared[x, r] else unseen]
            if kind >= STARTED
            else p.pieces[tile, unseen]
        )
    last = e.dim[x + 1] - 1
    for dim in range(e.dim[x], last + 1):
        if e.rank[dim, 0] == r or e.rank[dim, 1] == r:
            if kind == ROWS and dim == last:
                return float(p.pieces[tile, seen])
            return float(p.elems[tile, seen]) if e.kind[dim] == ALONE else 1.0  # a hull: `minimum_hull`
    return 1.0


@lean
def minimum_hull(q: int, dim: int, option: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """A lower bound of a dimension's hull over all tiles at the position of quantity q. The hull need not
    grow with the tile where strides leave gaps.

    First reads are subtracted, so for these it is an upper bound: the largest tiles touch everything that
    smaller ones do. Compute touches one element at a time.
    """
    kind, x, k = t.quantity[q, 0], t.quantity[q, 1], t.quantity[q, 2]
    if kind in (ONE, POINTS) or e.kind[dim] == ALONE or (kind == ROWS and dim == e.dim[x + 1] - 1):
        return 1.0
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    if kind >= FIRST:
        return end_words(
            q,
            dim,
            p.span[option[a], k, 0] if a >= 0 else -1,
            p.span[option[b], k, 0] if b >= 0 else -1,
            option,
            t,
            e,
            p,
        )
    if kind >= STARTED:
        one = (p.span[option[a], k, 1] - 1 if kind == STARTED else p.span[option[a], k, 0]) if a >= 0 else -1
        other = (
            (p.span[option[b], k, 1] - 1 if kind == STARTED else p.span[option[b], k, 0]) if b >= 0 else -1
        )
        return union(dim, one, other, kind == STARTED, e, p, memo)
    n = full_boundaries(t.quantity[q, 4], p)
    i, j = option[a] - p.first[a] if a >= 0 else 0, option[b] - p.first[b] if b >= 0 else 0
    if np.isnan(memo.shortest[n, dim, i, j, k]):
        memo.shortest[n, dim, i, j, k] = min_length(dim, k, p.prefix[n], option, e, p, memo)
    return float(memo.shortest[n, dim, i, j, k])


@lean
def min_length(dim: int, k: int, mask: int, option: Ints, e: Einsum, p: Pool, memo: Memo) -> float:
    """The least length of a dimension's tile at position k, over all tiles that the spatial factors `option`
    leave its two ranks: a bound of every nest with these factors.
    """
    a, b = e.rank[dim, 0], e.rank[dim, 1]
    tile, least = memo.tile, np.inf
    for i in range(p.span[option[a], k, 0] if a >= 0 else 0, p.span[option[a], k, 1] if a >= 0 else 1):
        for j in range(p.span[option[b], k, 0] if b >= 0 else 0, p.span[option[b], k, 1] if b >= 0 else 1):
            if a >= 0:
                tile[a] = i
            if b >= 0:
                tile[b] = j
            least = min(least, length(dim, tile, mask, e, p, memo))
    return float(least)


@lean
def footprint(x: int, tile: Ints, low: Ints, e: Einsum, p: Pool, m: Machine) -> float:
    """Bits of a node's tile that sinks through the loops directly below it, down to tiles `low`, and into the
    window that saves most.
    """
    return hull(x, tile, low, True, window(x, tile, low, True, e, p, m), e, p, m)


@lean
def standing(x: int, tile: Ints, low: Ints, e: Einsum, p: Pool, m: Machine) -> float:
    """Bits of the complete tile of a node that does not sink, but for the window that it slides along
    (terms.slides).
    """
    return hull(x, tile, low, False, window(x, tile, low, False, e, p, m), e, p, m)


@lean
def window(x: int, tile: Ints, low: Ints, sinks: bool, e: Einsum, p: Pool, m: Machine) -> int:
    """The rank whose window a node's tile sinks into with the largest saving, -1: none. If the node does not
    sink (sinks False), only tiles of inputs slide, along a rank that stands in one dimension of the tensor.
    """
    best, least = -1, hull(x, tile, low, sinks, -1, e, p, m)
    for r in range(tile.shape[0]):
        if e.part[x, r] and tile[r] != low[r] and (sinks or one_window(x, r, e)):
            own = hull(x, tile, low, sinks, r, e, p, m)
            if own < least:
                best, least = r, own
    return best


@lean
def one_window(x: int, r: int, e: Einsum) -> bool:
    """Whether tensor x is an input that has rank r in one dimension only."""
    many = 0
    for dim in range(e.dim[x], e.dim[x + 1]):
        many += int(e.rank[dim, 0] == r or e.rank[dim, 1] == r)
    return many == 1 and x < e.seen.shape[0] - 1


@lean
def hull(x: int, tile: Ints, low: Ints, sinks: bool, window: int, e: Einsum, p: Pool, m: Machine) -> float:
    """Bits of a tile (counts.tile_bits). sinks: through loops of ranks that stand alone in a dimension;
    window: also into the window of this rank, -1: of none.
    """
    whole, rows = 1.0, 1.0
    for dim in range(e.dim[x], e.dim[x + 1]):
        own = 1.0
        for side in range(2):
            r = e.rank[dim, side]
            if r >= 0:
                own += e.coef[dim, side] * (
                    p.size[low[r] if (sinks and e.full[x, r]) or r == window else tile[r]] - 1
                )
        whole *= own
        if dim < e.dim[x + 1] - 1:
            rows *= own
    bits: float = whole * m.bits[x, 0]
    if e.csr[x] > 0.0:
        bits = np.ceil(np.round(e.csr[x] * whole, 6)) * m.bits[x, 0] + rows * m.bits[x, 1]
    return bits
