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
    # longest: size of the first PE's tile in the same trips
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
        tile_total = trips.sum()
        next_low = np.empty(tile_total, np.int64)
        next_size = np.empty(tile_total, np.int64)
        next_longest = np.empty(tile_total, np.int64)
        filled = 0
        for i in range(low.shape[0]):
            last = (longest[i] - 1) // tile
            begin = last if counted == LAST else max(counted - PE_0, 0)
            for trip in range(begin, begin + trips[i]):
                if decides:
                    next_low[filled], next_size[filled] = low[i], size[i]
                    next_longest[filled] = (
                        longest[i] - last * tile if counted == BELOW + LAST else min(longest[i], tile)
                    )
                else:
                    next_low[filled], next_size[filled] = (
                        low[i] + trip * tile,
                        min(size[i] - trip * tile, tile),
                    )
                    next_longest[filled] = min(
                        longest[i] - (trip * tile if counted in (ALL, LAST) else 0), tile
                    )
                filled += 1
        low, size, longest = next_low, next_size, next_longest
    return low, size


@njit(cache=True, nogil=True)
def span_sum(offset: int, stored_size: int, ranks: Ints, cuts: Ints, clip: bool, distinct: bool) -> int:
    """Returns the sum over all tiles of a dimension's hull length (first to last index), clipped to the
    stored indices 0..stored_size-1; distinct: the length of the hulls' union.

    ranks: [R, 4], coefficient in the dimension, extent, and begin and end of the rank's rows in `cuts`
    cuts: [n, 2], as in `tile_spans`
    """
    low, high = np.full(1, offset), np.full(1, offset)
    for r in range(ranks.shape[0]):
        c, extent, begin, end = ranks[r]
        origin, size = tile_spans(extent, cuts[begin:end])
        tile_total = origin.shape[0]
        next_low = np.empty(low.shape[0] * origin.shape[0], np.int64)
        next_high = np.empty(low.shape[0] * origin.shape[0], np.int64)
        for i in range(low.shape[0]):
            for j in range(tile_total):
                next_low[i * tile_total + j], next_high[i * tile_total + j] = (
                    low[i] + c * origin[j],
                    high[i] + c * (origin[j] + size[j] - 1),
                )
        low, high = next_low, next_high
    total = 0
    if clip:
        low, high = np.maximum(low, 0), np.minimum(high, stored_size - 1)
    if not distinct:
        for i in range(low.shape[0]):
            total += max(high[i] - low[i] + 1, 0)
        return total
    order, covered_to = np.argsort(low, kind="mergesort"), np.int64(-1 << 62)
    for i in order:
        if high[i] >= low[i]:
            total += max(high[i] - max(low[i] - 1, covered_to), 0)
            covered_to = max(covered_to, high[i])
    return total
