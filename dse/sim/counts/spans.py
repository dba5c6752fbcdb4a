"""Tiles of a rank as spans of indices, and the sums of terms.py that no product of counts gives (padding,
unions). Compiled.
"""

from __future__ import annotations

import numpy as np

from dse.run.compiled import njit
from workloads.arrays import Ints

# Trips counted of a temporal loop: all, the first, the last, or the only one (ONLY: none if there are more).
# Trips counted of a spatial loop: all PEs (ALL_PES), the first PE, or the PE of one instance (INSTANCE_PE,
# replaced by PE_0 + number once the PE is known). PEs run in lockstep: the last trip is the last one of the
# first PE, which has the most trips; a PE with fewer trips takes no part in it.
ALL, FIRST, LAST, ONLY, ALL_PES, INSTANCE_PE = range(6)
PE_0 = 1 << 20
# added to the trips counted of a loop below the counted tile, which only decides whether the tile counts
BELOW = 1 << 10


@njit(cache=True, nogil=True)
def tile_spans(extent: int, cuts: Ints) -> tuple[Ints, Ints]:
    """Returns (origin, size) of every tile of one rank, in order.

    cuts: [n, 2], tile and trips counted of each loop, outermost first
    """
    # longest: the first PE's tile at that time
    low, size, longest = np.zeros(1, np.int64), np.full(1, extent), np.full(1, extent)
    for c in range(cuts.shape[0]):
        tile, counted = cuts[c]
        decides = BELOW <= counted < PE_0
        trips = np.zeros(low.shape[0], np.int64)
        for i in range(low.shape[0]):
            last = (longest[i] - 1) // tile
            if decides:
                trips[i] = last == 0 or counted != BELOW + ONLY
            elif counted in (ALL, ALL_PES):
                trips[i] = -(-size[i] // tile)
            else:
                begin = last if counted == LAST else max(counted - PE_0, 0)
                trips[i] = size[i] > begin * tile and (counted != ONLY or last == 0)
        more = trips.sum()
        inner = np.empty(more, np.int64)
        width = np.empty(more, np.int64)
        first = np.empty(more, np.int64)
        at = 0
        for i in range(low.shape[0]):
            last = (longest[i] - 1) // tile
            begin = last if counted == LAST else max(counted - PE_0, 0)
            for step in range(begin, begin + trips[i]):
                if decides:
                    inner[at], width[at] = low[i], size[i]
                    first[at] = longest[i] - last * tile if counted == BELOW + LAST else min(longest[i], tile)
                else:
                    inner[at], width[at] = low[i] + step * tile, min(size[i] - step * tile, tile)
                    first[at] = min(longest[i] - (step * tile if counted in (ALL, LAST) else 0), tile)
                at += 1
        low, size, longest = inner, width, first
    return low, size


@njit(cache=True, nogil=True)
def span_sum(offset: int, stored: int, ranks: Ints, cuts: Ints, clip: bool, distinct: bool) -> int:
    """Returns the sum over all tiles of a dimension's hull length, clipped to the stored indices 0..stored-1;
    distinct: the length of their union.

    ranks: [R, 4], coefficient, extent, and the range of rows (from, to) in cuts
    cuts: [n, 2], as in `tile_spans`
    """
    low, high = np.full(1, offset), np.full(1, offset)
    for r in range(ranks.shape[0]):
        c, extent, begin, end = ranks[r]
        origin, size = tile_spans(extent, cuts[begin:end])
        many = origin.shape[0]
        more_low = np.empty(low.shape[0] * origin.shape[0], np.int64)
        more_high = np.empty(low.shape[0] * origin.shape[0], np.int64)
        for i in range(low.shape[0]):
            for j in range(many):
                more_low[i * many + j], more_high[i * many + j] = (
                    low[i] + c * origin[j],
                    high[i] + c * (origin[j] + size[j] - 1),
                )
        low, high = more_low, more_high
    total = 0
    if clip:
        low, high = np.maximum(low, 0), np.minimum(high, stored - 1)
    if not distinct:
        for i in range(low.shape[0]):
            total += max(high[i] - low[i] + 1, 0)
        return total
    order, reach = np.argsort(low, kind="mergesort"), np.int64(-1 << 62)
    for i in order:
        if high[i] >= low[i]:
            total += max(high[i] - max(low[i] - 1, reach), 0)
            reach = max(reach, high[i])
    return total
