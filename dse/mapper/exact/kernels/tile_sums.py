"""Sums over the tiles of an einsum: words, rows and hull lengths of what a loop nest moves, edges and windows
included. Hull of a tile in a dimension: the indices from its first to its last.
"""

from __future__ import annotations

import numpy as np

from dse.mapper.exact.kernels.state import (
    ALONE,
    CLIPPED,
    COMPUTE_FIRST_READS,
    EVEN,
    FIRST_FILLS,
    HULL,
    MASK_RELEVANT,
    NODE_FIRST_READS,
    NONZERO_OUTPUTS,
    NONZERO_OUTPUTS_IN_PE,
    ONE,
    POINTS,
    QUANTITY_KIND,
    QUANTITY_POSITION,
    QUANTITY_TENSOR,
    ROWS,
    UNEVEN,
    Einsum,
    Hops,
    Machine,
    Memo,
    Pool,
    Terms,
)
from dse.run.compiled import njit_inlined, njit_no_alloc
from workloads.arrays import Ints


@njit_inlined
def counts_touched_outputs(kind: int) -> bool:
    """Whether a kind of quantity counts what tiles of the output touch (first reads, nonzero outputs), not
    what is moved for each tile.
    """
    return NODE_FIRST_READS <= kind < FIRST_FILLS


@njit_inlined
def counts_end_tiles(kind: int) -> bool:
    """Whether a kind of quantity counts the first tiles that are filled, or the last ones that are
    drained.
    """
    return kind >= FIRST_FILLS


@njit_inlined
def counts_positions(kind: int, x: int, r: int, e: Einsum) -> bool:
    """Whether a kind of quantity counts all iterations of rank r, which the output x lacks."""
    return (kind == NONZERO_OUTPUTS and e.unshared[x, r]) or (
        kind == NONZERO_OUTPUTS_IN_PE and e.has_zeros[r]
    )


@njit_no_alloc
def clipped_sum(
    dim: int, a: int, b: int, n: int, k: int, entry: Ints, e: Einsum, p: Pool, memo: Memo
) -> float:
    """Sum of a dimension's hull lengths, clipped to what is stored, over all pairs of a tile of its one rank
    and a tile of its other rank at position k.

    a, b: the tile of each of the two ranks (its index in the pool), -1: there is no such rank
    n: at the n outermost fan-out boundaries only the first PE counts
    entry: [K, R] the tile directly inside of the PEs of each boundary (Work.entry_tile); read only if n > 0
    """
    a_pieces = cut_rank(dim, 0, a, n, k, entry, e, p, memo.spans[0])
    b_pieces = cut_rank(dim, 1, b, n, k, entry, e, p, memo.spans[1])
    total = 0.0
    for i in range(a_pieces):
        for j in range(b_pieces):
            low = e.offset[dim] + memo.spans[0, 0, i] + memo.spans[1, 0, j]
            high = low + memo.spans[0, 1, i] + memo.spans[1, 1, j]
            total += max(min(high, e.stored_size[dim] - 1) - max(low, 0) + 1, 0)
    return total


@njit_no_alloc
def cut_rank(
    dim: int, side: int, tile: int, n: int, k: int, entry: Ints, e: Einsum, p: Pool, spans: Ints
) -> int:
    """Cuts a rank into pieces, its tiles, and returns their number. Fills spans [2, .] with each piece's
    first index in the dimension, and with its reach: last index - first index.

    side: 0 or 1, which of the dimension's ranks; tile, n, k, entry: as in `clipped_sum`. While cutting, spans
    hold first value and size of each piece, in values of the rank.
    """
    spans[0, 0], spans[1, 0] = 0, 0
    if tile < 0:
        return 1
    r, piece_count = e.dim_ranks[dim, side], 1
    spans[1, 0] = p.size[p.span[p.rank_start[r], 0, 1] - 1]
    if n > 0:
        for j in range(1, k + 1):
            piece_count = cut_over_pes(entry[j, r], j <= n, piece_count, p, spans)
        piece_count = cut(p.size[tile], piece_count, spans)
    else:
        for j in range(p.cuts.shape[1]):
            if p.cuts[tile, j]:
                piece_count = cut(p.cuts[tile, j], piece_count, spans)
    for i in range(piece_count):
        spans[0, i], spans[1, i] = e.coef[dim, side] * spans[0, i], e.coef[dim, side] * (spans[1, i] - 1)
    return piece_count


@njit_no_alloc
def cut_over_pes(tile: int, first: bool, piece_count: int, p: Pool, spans: Ints) -> int:
    """Cuts pieces into the tiles that enter a fan-out boundary, then into the shares of its PEs; with `first`
    only the share of the first PE stays. tile: the tile directly inside of the PEs. Returns the number of
    pieces.
    """
    outer, begin, end = p.outer_tile[tile], 0, 0
    piece_count = cut(p.size[outer], piece_count, spans)
    for j in range(p.cuts.shape[1]):
        begin, end = begin + (p.cuts[outer, j] != 0), end + (p.cuts[tile, j] != 0)
    # p.cuts[tile, begin:end]: the cuts that PEs with uneven shares make, and last the tile itself, which is
    # cut later; even PEs record none
    uneven = end > begin
    if first:
        for i in range(piece_count):
            spans[1, i] = min(spans[1, i], p.size[p.largest_tile[tile]] if uneven else p.size[tile])
    elif uneven:
        for j in range(begin, end - 1):
            piece_count = cut(p.cuts[tile, j], piece_count, spans)
    else:
        piece_count = cut(p.size[tile], piece_count, spans)
    return piece_count


@njit_no_alloc
def cut(t: int, n: int, spans: Ints) -> int:
    """Cuts n pieces into pieces of at most t values. Returns their number."""
    more = 0
    for i in range(n):
        more += -(-spans[1, i] // t)
    at = more
    for i in range(n - 1, -1, -1):
        begin, size = spans[0, i], spans[1, i]
        for k in range(-(-size // t) - 1, -1, -1):
            at -= 1
            spans[0, at], spans[1, at] = begin + k * t, min(t, size - k * t)
    return more


@njit_inlined
def hull_sum(dim: int, tile: Ints, mask: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """Sum of a dimension's hull lengths over the tiles of its ranks. mask: groups of PEs of which only the
    first PE counts; in a clipped dimension the sum is then a lower bound.

    tile: [R] the tile of every rank
    """
    a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
    if e.kind[dim] == ALONE:
        return float(p.elems[tile[a], mask])
    if e.kind[dim] == HULL:
        # n tiles of s values in all, of each rank: a hull is 1 + the sum over ranks of coef * (tile size - 1)
        n1 = p.pieces[tile[a], mask] if a >= 0 else 1.0
        n2 = p.pieces[tile[b], mask] if b >= 0 else 1.0
        s1 = p.elems[tile[a], mask] if a >= 0 else 1.0
        s2 = p.elems[tile[b], mask] if b >= 0 else 1.0
        return float(n1 * n2 + e.coef[dim, 0] * (s1 - n1) * n2 + e.coef[dim, 1] * (s2 - n2) * n1)
    i, j, n, row = (
        tile[a] - p.first_tile[a] if a >= 0 else 0,
        tile[b] - p.first_tile[b] if b >= 0 else 0,
        full_boundaries(mask, p),
        memo.hull_row[dim],
    )
    if np.isnan(memo.hull_sums[n, row, i, j]):
        tile_a, tile_b = tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1
        memo.hull_sums[n, row, i, j] = (
            min_first_pe(dim, tile_a, tile_b, mask, e, p, memo)
            if mask
            else clipped_sum(dim, tile_a, tile_b, 0, 0, memo.entry, e, p, memo)
        )
    return float(memo.hull_sums[n, row, i, j])


@njit_inlined
def full_boundaries(mask: int, p: Pool) -> int:
    """The number n of outermost fan-out boundaries whose groups of PEs are the mask."""
    n = 0
    while p.groups_outside[n] != mask:
        n += 1
    return n


@njit_no_alloc
def min_first_pe(dim: int, a: int, b: int, mask: int, e: Einsum, p: Pool, memo: Memo) -> float:
    """A lower bound of `clipped_sum` for the first PE. Its exact value depends on the tile directly inside of
    the fan-out boundary, which is not known while nests are searched: the minimum over all that it may be,
    the multiples of the tile at the node. On machines with two fan-out boundaries or more: the number of
    tiles of the first PE, times the least clipped hull length of any tile.

    a, b: as in `clipped_sum`
    """
    lowest = np.inf
    if p.groups_outside.shape[0] > 2:
        n1 = cut_rank(dim, 0, a, 0, 0, memo.entry, e, p, memo.spans[0])
        n2 = cut_rank(dim, 1, b, 0, 0, memo.entry, e, p, memo.spans[1])
        for i in range(n1):
            for j in range(n2):
                low = e.offset[dim] + memo.spans[0, 0, i] + memo.spans[1, 0, j]
                high = low + memo.spans[0, 1, i] + memo.spans[1, 1, j]
                lowest = min(lowest, max(min(high, e.stored_size[dim] - 1) - max(low, 0) + 1, 0))
        return float(lowest * (p.pieces[a, mask] if a >= 0 else 1.0) * (p.pieces[b, mask] if b >= 0 else 1.0))
    for i in range(a, a + 1 if a < 0 else p.largest_tile[a] + 1):
        for j in range(b, b + 1 if b < 0 else p.largest_tile[b] + 1):
            if (a < 0 or p.size[i] % p.size[a] == 0) and (b < 0 or p.size[j] % p.size[b] == 0):
                if a >= 0:
                    memo.entry[1, e.dim_ranks[dim, 0]] = i
                if b >= 0:
                    memo.entry[1, e.dim_ranks[dim, 1]] = j
                lowest = min(lowest, clipped_sum(dim, a, b, 1, 1, memo.entry, e, p, memo))
    return float(lowest)


@njit_no_alloc
def union(dim: int, a: int, b: int, stored: bool, e: Einsum, p: Pool, memo: Memo) -> float:
    """Elements of an output's dimension that lie in the hull of one of its tiles or more; each counts once.
    stored: count only those that are stored. a, b: as in `clipped_sum`. No rank of the dimension is unrolled
    over PEs (search.py leaves out spatial loops over ranks of the output's windows).
    """
    row, i, j = (
        memo.union_row[dim],
        a - p.first_tile[e.dim_ranks[dim, 0]] if a >= 0 else 0,
        b - p.first_tile[e.dim_ranks[dim, 1]] if b >= 0 else 0,
    )
    if np.isnan(memo.unions[int(stored), row, i, j]):
        n1 = cut_rank(dim, 0, a, 0, 0, memo.entry, e, p, memo.spans[0])
        n2 = cut_rank(dim, 1, b, 0, 0, memo.entry, e, p, memo.spans[1])
        total = 0.0
        memo.touched[:] = False
        for u in range(n1):
            for v in range(n2):
                begin = memo.spans[0, 0, u] + memo.spans[1, 0, v]
                for at in range(begin, begin + memo.spans[0, 1, u] + memo.spans[1, 1, v] + 1):
                    if not memo.touched[at] and (not stored or 0 <= e.offset[dim] + at < e.stored_size[dim]):
                        memo.touched[at] = True
                        total += 1.0
        memo.unions[int(stored), row, i, j] = total
    return float(memo.unions[int(stored), row, i, j])


@njit_inlined
def amount(q: int, tile: Ints, unrolling: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """The amount of quantity q for given tiles [R] at its position, under unrolling [R]. Of words on a
    network times their links; where whole lines move, of these at least `line_requests`.
    """
    kind, x, k, mask_irrelevant, mask_relevant = t.quantity[q]
    if counts_end_tiles(kind):
        return first_or_last_words(q, tile, unrolling, t, e, p)
    if kind == ONE:
        return 1.0
    total, last = 1.0, e.first_dim[x + 1] - 1
    for r in range(tile.shape[0]):
        if kind == POINTS:
            total *= p.elems[tile[r], mask_relevant if e.unshared[x, r] else mask_irrelevant]
        elif not e.has_rank[x, r]:
            if counts_positions(kind, x, r, e):
                total *= p.elems[tile[r], mask_relevant]
            elif counts_touched_outputs(kind):
                is_unshared = kind == COMPUTE_FIRST_READS and e.unshared[x, r]
                mask = mask_relevant | mask_irrelevant & p.unreduced if is_unshared else mask_irrelevant
                total *= p.pes[unrolling[r], k, mask]
            else:
                total *= p.pieces[tile[r], mask_irrelevant]
    if kind != POINTS:
        for dim in range(e.first_dim[x], last + 1):
            a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
            if kind == ROWS and dim == last:
                for r in e.dim_ranks[dim]:
                    total *= p.pieces[tile[r], mask_relevant] if r >= 0 else 1.0
            elif counts_touched_outputs(kind) and e.kind[dim] != ALONE:
                total *= union(
                    dim,
                    tile[a] if a >= 0 else -1,
                    tile[b] if b >= 0 else -1,
                    kind == NODE_FIRST_READS,
                    e,
                    p,
                    memo,
                )
            else:
                total *= hull_sum(dim, tile, mask_relevant, e, p, memo)
    if t.hop_pair[q] >= 0:
        return total * links(t.hop_pair[q], unrolling, t.hops)
    return (
        total
        if t.line_words[q] == 0.0
        else max(total, t.line_words[q] * line_requests(q, tile, unrolling, t, e, p, memo))
    )


@njit_inlined
def first_trip_share(q: int, tile: Ints, unrolling: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """An upper bound of what the first of n trips moves of the words of quantity q, times n over all trips:
    its tiles are whole, and all PEs have one. inf if nothing moves.
    """
    _, x, k, mask_irrelevant, mask_relevant = t.quantity[q]
    all_groups, found = p.pieces.shape[1] - 1, 1.0
    for r in range(tile.shape[0]):
        if not e.has_rank[x, r]:
            found *= p.pieces[tile[r], all_groups] * p.pes[unrolling[r], k, mask_irrelevant]
            found /= p.pieces[tile[r], mask_irrelevant]
    for dim in range(e.first_dim[x], e.first_dim[x + 1]):
        reach = 1.0
        for side in range(2):
            r = e.dim_ranks[dim, side]
            if r >= 0:
                found *= p.pieces[tile[r], all_groups] * p.pes[unrolling[r], k, mask_relevant]
                reach += e.coef[dim, side] * (p.size[tile[r]] - 1)
        words = hull_sum(dim, tile, mask_relevant, e, p, memo)
        found = found * reach / words if words > 0.0 else np.inf
    return float(found)


@njit_inlined
def links(pair: int, unrolling: Ints, hops: Hops) -> float:
    """A lower bound of the links that a word takes on average, for one pair of network and receiver."""
    word_group_pes, word_groups, rectangle, kind = 1.0, 1.0, 1, EVEN
    for r in range(unrolling.shape[0]):
        word_group_pes *= hops.word_group_pes[unrolling[r], pair]
        word_groups *= hops.word_groups[unrolling[r], pair]
        rectangle *= hops.rectangle_pes[unrolling[r], pair]
        kind = UNEVEN if hops.unequal[unrolling[r], pair] else kind
    return look_up_links(pair, kind, word_group_pes, word_groups, rectangle, hops)


@njit_inlined
def look_up_links(
    pair: int, kind: int, word_group_pes: float, word_groups: float, rectangle: int, hops: Hops
) -> float:
    """The least links of a word that all PEs of its word group get. kind: EVEN, UNEVEN or ANY; rectangle: PEs
    of the rectangle in which those in use stand, at most. The other numbers need not be whole: they are
    rounded down, to at most the PEs of the network; 0 PEs: 0 links.
    """
    if word_group_pes < 1.0:
        return 0.0
    n = min(int(word_group_pes + 1e-9), hops.pes[pair])
    groups = max(1, min(int(word_groups + 1e-9), hops.pes[pair] // n))
    found = hops.links[kind, hops.first[pair, n] + groups]
    if kind != EVEN and hops.near_first[pair] >= 0:
        rectangle = min(rectangle, hops.pes[pair])
        groups = min(groups, rectangle // n)
        at = rectangle * (hops.pes[pair] + 1) + groups
        found = max(found, n - 1 + hops.near[hops.near_first[pair] + at])
    return float(found)


@njit_no_alloc
def line_requests(q: int, tile: Ints, unrolling: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """A lower bound of the cache lines that quantity q moves: the larger of two numbers.

    1. One line for each request, made by all PEs at once. In clipped dimensions a request that lies wholly
       outside of what is stored moves nothing; of the others there are at least (stored indices that all
       requests ask for together / indices of a request that is not cut).
    2. A share of a line for each index of the dimensions that a layout spreads over lines (search.Spread).
    """
    _, x, k, mask_irrelevant, _ = t.quantity[q]
    all_groups, requests = p.pieces.shape[1] - 1, 1.0
    for r in range(tile.shape[0]):
        if not e.has_rank[x, r]:
            requests *= p.pieces[tile[r], mask_irrelevant]
    lines_by_share = requests * t.line_share[q]
    for dim in range(e.first_dim[x], e.first_dim[x + 1]):
        reach, pes, dim_requests = 1.0, 1.0, 1.0
        for side in range(2):
            r = e.dim_ranks[dim, side]
            if r >= 0:
                dim_requests *= p.pieces[tile[r], all_groups]
                reach += e.coef[dim, side] * (p.size[tile[r]] - 1)
                pes *= p.pes[unrolling[r], k, 0]
        dim_indices = dim_requests * reach
        if e.kind[dim] == CLIPPED:
            dim_indices = hull_sum(dim, tile, 0, e, p, memo) / pes
            dim_requests = np.ceil(dim_indices / reach - 1e-9)
        elif e.kind[dim] == ALONE:
            dim_indices = p.elems[tile[e.dim_ranks[dim, 0]], 0]
        requests *= dim_requests
        lines_by_share *= dim_indices if t.spread_dims[q] >> dim - e.first_dim[x] & 1 else dim_requests
    return float(max(requests, lines_by_share))


@njit_inlined
def first_or_last_words(q: int, tile: Ints, unrolling: Ints, t: Terms, e: Einsum, p: Pool) -> float:
    """A lower bound of the words of a node's first fills, or of its last drains, all PEs that count together.
    In a clipped dimension everything that clipping may cut is subtracted; from first fills of a single PE,
    only what it cuts from the first tile.
    """
    _kind, x, k, mask_irrelevant, _mask_relevant = t.quantity[q]
    total = 1.0
    for r in range(tile.shape[0]):
        if not e.has_rank[x, r]:
            total *= full_pes(unrolling[r], k, mask_irrelevant, p)
    for dim in range(e.first_dim[x], e.first_dim[x + 1]):
        a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
        tile_a, tile_b = tile[a] if a >= 0 else -1, tile[b] if b >= 0 else -1
        total *= first_or_last_words_of_dim(q, dim, tile_a, tile_b, unrolling, t, e, p)
    return total


@njit_inlined
def first_or_last_words_of_dim(
    q: int, dim: int, a: int, b: int, unrolling: Ints, t: Terms, e: Einsum, p: Pool
) -> float:
    """The factor of one dimension in `first_or_last_words`. a, b: as in `clipped_sum`."""
    kind, _x, k, _mask_irrelevant, mask_relevant = t.quantity[q]
    reach, full_reach, pes, total = 0, 0, 1.0, 1.0
    for side in range(2):
        r = e.dim_ranks[dim, side]
        if r >= 0:
            reach += e.coef[dim, side] * (p.size[b if side else a] - 1)
            full_reach += e.coef[dim, side] * (p.size[p.span[p.rank_start[r], 0, 1] - 1] - 1)
            pes *= p.pes[unrolling[r], k, mask_relevant]
            total *= full_pes(unrolling[r], k, mask_relevant, p)
    words = reach + 1
    if e.kind[dim] == CLIPPED and kind == FIRST_FILLS and pes == 1.0:
        words = min(e.offset[dim] + reach, e.stored_size[dim] - 1) - max(e.offset[dim], 0) + 1
    elif e.kind[dim] == CLIPPED:
        words -= max(-e.offset[dim], 0) + max(e.offset[dim] + full_reach - e.stored_size[dim] + 1, 0)
    return total * max(words, 0)


@njit_inlined
def full_pes(o: int, k: int, mask: int, p: Pool) -> float:
    """A lower bound of the number of PEs outside of position k, of those that count under the mask, that get
    full tiles under unrolling o of a rank. Where shares are uneven, these are all PEs except the last; on
    machines with two boundaries only the first PE is sure to get one.
    """
    pes = float(p.pes[o, k, mask])
    return pes if not p.uneven[o] or pes == 1.0 else 1.0 if p.groups_outside.shape[0] > 2 else pes - 1.0


@njit_inlined
def factor(q: int, r: int, o: int, t: Terms, e: Einsum, p: Pool) -> float:
    """Rank r's factor in the lower bound of quantity q, under unrolling o of that rank: for the largest tile
    at the position of q, or for the smallest tile if q counts first or last tiles. Windows count 1: their
    bound is `hull_bound`.
    """
    kind, x, k, mask_irrelevant, mask_relevant = t.quantity[q]
    if counts_end_tiles(kind):
        for dim in range(e.first_dim[x], e.first_dim[x + 1]):
            if e.kind[dim] == ALONE and e.dim_ranks[dim, 0] == r:
                return float(full_pes(o, k, mask_relevant, p) * p.size[p.span[o, k, 0]])
        return 1.0 if e.has_rank[x, r] else full_pes(o, k, mask_irrelevant, p)
    if kind == ONE:
        return 1.0
    tile = p.span[o, k, 1] - 1
    if kind == POINTS:
        return float(p.elems[tile, mask_relevant if e.unshared[x, r] else mask_irrelevant])
    if not e.has_rank[x, r]:
        if counts_positions(kind, x, r, e):
            return float(p.elems[tile, mask_relevant])
        if counts_touched_outputs(kind):
            is_unshared = kind == COMPUTE_FIRST_READS and e.unshared[x, r]
            mask = mask_relevant | mask_irrelevant & p.unreduced if is_unshared else mask_irrelevant
            return float(p.pes[o, k, mask])
        return float(p.pieces[tile, mask_irrelevant])
    last = e.first_dim[x + 1] - 1
    for dim in range(e.first_dim[x], last + 1):
        if e.dim_ranks[dim, 0] == r or e.dim_ranks[dim, 1] == r:
            if kind == ROWS and dim == last:
                return float(p.pieces[tile, mask_relevant])
            return float(p.elems[tile, mask_relevant]) if e.kind[dim] == ALONE else 1.0
    return 1.0


@njit_inlined
def hull_bound(q: int, dim: int, unrolling: Ints, t: Terms, e: Einsum, p: Pool, memo: Memo) -> float:
    """The factor of a window, or of a clipped dimension, in the lower bound of quantity q: over all tiles at
    its position, the least summed hull length. Every tile is looked at, since where strides leave gaps the
    sum need not fall with larger tiles. 1 for other dimensions.

    Skipped first reads are subtracted from a cost, so for these it is an upper bound: what the largest tiles
    touch, which is all that smaller ones do. Compute has one tile, a single element.
    """
    kind, x, k = (
        t.quantity[q, QUANTITY_KIND],
        t.quantity[q, QUANTITY_TENSOR],
        t.quantity[q, QUANTITY_POSITION],
    )
    if kind in (ONE, POINTS) or e.kind[dim] == ALONE or (kind == ROWS and dim == e.first_dim[x + 1] - 1):
        return 1.0
    a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
    if counts_end_tiles(kind):
        return first_or_last_words_of_dim(
            q,
            dim,
            p.span[unrolling[a], k, 0] if a >= 0 else -1,
            p.span[unrolling[b], k, 0] if b >= 0 else -1,
            unrolling,
            t,
            e,
            p,
        )
    if counts_touched_outputs(kind):
        tile_a = (
            (p.span[unrolling[a], k, 1] - 1 if kind == NODE_FIRST_READS else p.span[unrolling[a], k, 0])
            if a >= 0
            else -1
        )
        tile_b = (
            (p.span[unrolling[b], k, 1] - 1 if kind == NODE_FIRST_READS else p.span[unrolling[b], k, 0])
            if b >= 0
            else -1
        )
        return union(dim, tile_a, tile_b, kind == NODE_FIRST_READS, e, p, memo)
    n = full_boundaries(t.quantity[q, MASK_RELEVANT], p)
    i, j = unrolling[a] - p.rank_start[a] if a >= 0 else 0, unrolling[b] - p.rank_start[b] if b >= 0 else 0
    if np.isnan(memo.min_hull_sums[n, dim, i, j, k]):
        memo.min_hull_sums[n, dim, i, j, k] = min_hull_sum(dim, k, p.groups_outside[n], unrolling, e, p, memo)
    return float(memo.min_hull_sums[n, dim, i, j, k])


@njit_no_alloc
def min_hull_sum(dim: int, k: int, mask: int, unrolling: Ints, e: Einsum, p: Pool, memo: Memo) -> float:
    """The least `hull_sum` of a dimension at position k, over all tiles that the spatial unrolling leaves its
    two ranks there: a bound for every nest with this unrolling.
    """
    a, b = e.dim_ranks[dim, 0], e.dim_ranks[dim, 1]
    tile, lowest = memo.tile, np.inf
    for i in range(p.span[unrolling[a], k, 0] if a >= 0 else 0, p.span[unrolling[a], k, 1] if a >= 0 else 1):
        for j in range(
            p.span[unrolling[b], k, 0] if b >= 0 else 0, p.span[unrolling[b], k, 1] if b >= 0 else 1
        ):
            if a >= 0:
                tile[a] = i
            if b >= 0:
                tile[b] = j
            lowest = min(lowest, hull_sum(dim, tile, mask, e, p, memo))
    return float(lowest)


@njit_inlined
def sunk_tile_bits(x: int, v: int, tile: Ints, inner_tile: Ints, e: Einsum, p: Pool, m: Machine) -> float:
    """Bits of a node of tensor x at level v that sinks below the loops directly inside of it. tile,
    inner_tile: [R] the tiles above and below these loops.
    """
    window = best_window(x, v, tile, inner_tile, True, e, p, m)
    return tile_bits(x, v, tile, inner_tile, True, window, e, p, m)


@njit_inlined
def whole_tile_bits(x: int, v: int, tile: Ints, inner_tile: Ints, e: Einsum, p: Pool, m: Machine) -> float:
    """Bits of a node of tensor x that does not sink below the loops directly inside of it; it may still slide
    along one window (terms.slides).
    """
    window = best_window(x, v, tile, inner_tile, False, e, p, m)
    return tile_bits(x, v, tile, inner_tile, False, window, e, p, m)


@njit_inlined
def best_window(
    x: int, v: int, tile: Ints, inner_tile: Ints, sinks: bool, e: Einsum, p: Pool, m: Machine
) -> int:
    """The window's rank whose loop saves the node most bits if it sinks below that loop too (a node can sink
    into one window only); -1: none saves. If the node does not sink (sinks False), only tiles of inputs
    slide, along a rank that stands in one dimension of the tensor.
    """
    best, lowest_bits = -1, tile_bits(x, v, tile, inner_tile, sinks, -1, e, p, m)
    for r in range(tile.shape[0]):
        if e.in_window[x, r] and tile[r] != inner_tile[r] and (sinks or is_in_one_dim(x, r, e)):
            bits = tile_bits(x, v, tile, inner_tile, sinks, r, e, p, m)
            if bits < lowest_bits:
                best, lowest_bits = r, bits
    return best


@njit_inlined
def is_in_one_dim(x: int, r: int, e: Einsum) -> bool:
    """Whether tensor x is an input that has rank r in one dimension only."""
    dim_count = 0
    for dim in range(e.first_dim[x], e.first_dim[x + 1]):
        dim_count += int(e.dim_ranks[dim, 0] == r or e.dim_ranks[dim, 1] == r)
    return dim_count == 1 and x < e.has_rank.shape[0] - 1


@njit_inlined
def tile_bits(
    x: int, v: int, tile: Ints, inner_tile: Ints, sinks: bool, window: int, e: Einsum, p: Pool, m: Machine
) -> float:
    """Bits of a node of tensor x at level v (counts.tile_bits). tile, inner_tile: [R] the tiles above and
    below the loops directly inside of it. sinks: it sinks below loops over ranks that stand alone in a
    dimension. window: it also sinks below the loop over this rank of a window, -1: below none.
    """
    elems, rows = 1.0, 1.0
    for dim in range(e.first_dim[x], e.first_dim[x + 1]):
        dim_length = 1.0
        for side in range(2):
            r = e.dim_ranks[dim, side]
            if r >= 0:
                dim_length += e.coef[dim, side] * (
                    p.stored[inner_tile[r] if (sinks and e.full[x, r]) or r == window else tile[r]] - 1
                )
        elems *= dim_length
        if dim < e.first_dim[x + 1] - 1:
            rows *= dim_length
    bits: float = elems * m.bits[x, v, 0]
    if m.density[x, v] > 0.0:
        bits = np.ceil(np.round(m.density[x, v] * elems, 6)) * m.bits[x, v, 0] + rows * m.bits[x, v, 1]
        bits += elems * m.bits[x, v, 2]
    return bits
