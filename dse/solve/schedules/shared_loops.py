"""Search of one fused segment with several shared loops, for energy (docs/reuse.md, Fusion).

segment
  store DRAM ...; store G K        a tensor at depth 0: brought in once
  for h                            shared loops over classes of ranks (dse/mapping/classes.py)
    store G ...                    depth 1: once per trip of h
    for m
      store G S                    forwarded tensors stand below all loops
      einsum a ...                 a tensor may pass G by: its nodes stand in the nests of its einsums
      einsum b ...

Given the tiles, parts of the cost separate:

    pJ >= sum over tensors at G of traffic(tensor, order of loops, depth)
        + sum over einsums of inner(einsum of one trip, tensors at G, bits left) * trips

`inner` is the exact mapper's answer. It depends on order and depths through the bits left alone. Where
nothing leaks and partial sums return to G only, the two sides are equal; the evaluator prices every answer.
The mapper takes the sums of each trip to begin at zero. Where the evaluator says more, the nests that are
best if all sums return are priced, too.

Tiles are looked at by their lower bounds, best first. Four facts bound them:

    smaller tiles   with all tensors at G, an einsum's trips over smaller tiles cost together no less than
                    over larger ones, whose nest could begin with the loops that cut them. So a tile inherits
                    the bounds of its multiples.
    passing by      an einsum with a tensor that passes G by costs at least (outer - G) pJ per word and trip
                    more than with the tensor at G at no cost.
    capacity        forwarded tiles, and the cheapest depths that fit beside them, need no mapper.
    alone           an einsum costs no less than alone, minus the moves that others make
                    (`Nests.unfused_bound`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from math import inf

from dse.mapper.exact.spatial import primes
from dse.mapping.classes import smooth, uneven_tiles
from dse.mapping.trips import stretched, trips
from dse.sim.einsum.evaluate import ROUNDING_GAP
from dse.solve.schedules.depths import (
    PASSES,
    Leaf,
    SegmentSearch,
    Tiles,
    divides,
    leaves,
    most_leak_pj,
    nest_below,
    nests_of_returning_sums,
)
from dse.solve.schedules.nests import Place
from dse.solve.schedules.plan import Plan
from hw.arch import Arch, Level

MAX_LOOPS = 3  # shared loops of a segment
MAX_UNEVEN = 8  # tiles that leave a remainder, of a segment, in which plans are looked for
MAX_ABOVE_BOUND = 6  # plans priced above their lower bounds, after which the search of a segment ends


def searchable(arch: Arch, level: Level) -> bool:
    """True if the bounds of this module hold at a level: no level outside of it is cheaper."""
    outside = arch.levels[: arch.levels.index(level)]
    level_pj = max(level.read_pj, level.write_pj) + most_leak_pj(arch) / level.rates()[0]
    outer_pj = min(min(one.read_pj, one.write_pj) / one.width_bits for one in outside)
    return not arch.levels[0].bypass and not arch.models_layout() and outer_pj >= level_pj / level.width_bits


def search(s: SegmentSearch, cutoff: float, price: Callable[[Plan, int], float]) -> float:
    """Prices plans until no other plan of the searched space can cost less than the best of them, or than
    `cutoff`. Returns the lower bound (pJ) of all plans that may cost less than `cutoff`; inf: none does.
    Tiles that divide come first, so that the others, which have a budget of their own, take nothing from
    them.

    price: returns the evaluator's price of a plan that needs so many bits; inf if it does not fit
    """
    best, lower_bound = _best_first(s, [s.sizes], cutoff, price, inf)
    uneven = [
        (*s.sizes[:c], tile, *s.sizes[c + 1 :]) for c, n in enumerate(s.sizes) for tile in uneven_tiles(n)
    ]
    uneven = [tiles for tiles in uneven if tiles == s.one_of_mirrored(tiles)]
    if uneven:
        s.renew()
        lower_bound = min(lower_bound, _best_first(s, uneven, best, price, MAX_UNEVEN)[1])
    return lower_bound


def _best_first(
    s: SegmentSearch,
    first: Sequence[Tiles],
    cutoff: float,
    price: Callable[[Plan, int], float],
    max_asked: float,
) -> tuple[float, float]:
    """Returns the lowest price found (`cutoff` if none is lower) and the lower bound of `search`, of plans
    with the tiles `first` and with tiles that divide them.

    max_asked: the mapper is asked for nests of at most so many tiles
    """
    best, lower_bound, seen, above_bound, asked_tiles = cutoff, inf, set(first), 0, 0
    queue = [(_lower_bound(s, tiles), 0, tiles) for tiles in first]  # lower bound, - stage, tiles
    heapq.heapify(queue)
    while (
        queue
        and queue[0][0] < best
        and above_bound < MAX_ABOVE_BOUND
        and asked_tiles < max_asked
        and not s.exhausted()
    ):
        bound, minus_stage, tiles = heapq.heappop(queue)
        stage = -minus_stage
        if stage == 0:  # the bound is from larger tiles
            for smaller in (
                one for one in map(s.one_of_mirrored, _smaller_tiles(s, tiles)) if one not in seen
            ):
                seen.add(smaller)
                heapq.heappush(queue, (_lower_bound(s, smaller), 0, smaller))
            loop_count = sum(t < n for t, n in zip(tiles, s.sizes, strict=True))
            if (loop_count or s.segment.below_split) and loop_count <= MAX_LOOPS:
                inner_bounds = [_inherited(s, i, tiles) for i in range(len(s.segment.own))]
                heapq.heappush(queue, (max(bound, _with_depths(s, tiles, inner_bounds, best)), -1, tiles))
        elif stage == 1:  # the bound counts depths that fit, too
            heapq.heappush(queue, (max(bound, _with_nests(s, tiles, best)), -2, tiles))
        else:
            asked_tiles += 1
            if leaf := _best_leaf(s, tiles, best):
                cost = price(_plan(s, tiles, leaf), leaf.need_bits)
                if cost > leaf.bound * (1 + ROUNDING_GAP) and (
                    other := nests_of_returning_sums(s, tiles, leaf)
                ):
                    cost = min(cost, price(_plan(s, tiles, other), leaf.need_bits))
                lower_bound, best = min(lower_bound, leaf.bound), min(best, cost)
                above_bound += divides(s, tiles) and cost > leaf.bound * (1 + ROUNDING_GAP)
        if s.exhausted():  # some choices of these tiles may not have been looked at
            lower_bound = min(lower_bound, bound)
    return best, min([lower_bound, s.not_found, *(one[0] for one in queue[:1] if one[0] < best)])


def _plan(s: SegmentSearch, tiles: Tiles, leaf: Leaf) -> Plan:
    loops = tuple((c, tiles[c]) for c in leaf.order)
    nests = tuple(nest.mapping for nest in leaf.nests if nest.mapping)
    at = tuple((name, depth) for name, depth in leaf.depths if depth != PASSES)
    return Plan(s.segment.level.name, loops, at, tuple(s.segment.own), nests)


def _smaller_tiles(s: SegmentSearch, tiles: Tiles) -> Iterator[Tiles]:
    """Yields the tiles with one of them divided by a prime; nothing if one of `tiles` leaves a remainder."""
    for c, tile in enumerate(tiles) if divides(s, tiles) else ():
        yield from ((*tiles[:c], tile // prime, *tiles[c + 1 :]) for prime in dict.fromkeys(primes(tile)))


def _larger_tiles(s: SegmentSearch, tiles: Tiles) -> Iterator[Tiles]:
    """Yields the tiles with one of them multiplied by a prime, the inverse of `_smaller_tiles`."""
    for c, (n, tile) in enumerate(zip(s.sizes, tiles, strict=True)) if divides(s, tiles) else ():
        yield from ((*tiles[:c], tile * prime, *tiles[c + 1 :]) for prime in dict.fromkeys(primes(n // tile)))


def _inherited(s: SegmentSearch, i: int, tiles: Tiles) -> float:
    """Returns the highest bound that is known of an einsum in these tiles, or in larger ones."""
    larger = (s.inner_bounds.get((i, s.one_of_mirrored(one)), 0.0) for one in _larger_tiles(s, tiles))
    uneven_bound = sum(_uneven_bound(s, i, c, tile) for c, tile in enumerate(tiles) if s.sizes[c] % tile)
    s.inner_bounds[i, tiles] = max(s.inner_bounds.get((i, tiles), uneven_bound), *larger, 0.0)
    return s.inner_bounds[i, tiles]


def _uneven_bound(s: SegmentSearch, i: int, c: int, tile: int) -> float:
    """Returns a lower bound on the pJ of an einsum below a loop that leaves a remainder, all its tensors at
    the level: whole tiles cost per index no less than one trip over `smooth(n)` indices, which every tile
    that leaves a remainder divides; the remainder costs at least what it costs in any nest.
    """
    e, rank, n = s.segment.own[i], s.segment.members.classes[c][i], s.sizes[c]
    place = Place(s.segment.level.name, forwarded=_tensors_at_level(s, i), retained=s.segment.retained[i])
    if (i, c) not in s.per_index:
        bits, nests = s.segment.level.capacity_bits or inf, s.segment.nests
        longer = nests.best(stretched(e, rank, smooth(n)), nests.relaxed(e, place), bits)
        s.per_index[i, c] = longer.lower_bound / smooth(n)
    return s.per_index[i, c] * (n - n % tile) + s.segment.nests.any_nest_bound(
        trips(e, rank, tile)[-1][0], place
    )


def _tensors_at_level(s: SegmentSearch, i: int) -> frozenset[str]:
    """Returns the tensors of an einsum that may stand at the level, and are not retained."""
    standing = {t.name for t in s.tensors if t.may_stand} | set(s.segment.members.forwarded)
    return frozenset({p.tensor for p in s.segment.own[i].tensors()} & standing)


def _inner(s: SegmentSearch, i: int, tiles: Tiles) -> float:
    """Returns the least pJ of an einsum below loops with these tiles, all its tensors at the level."""
    if (i, tiles) not in s.inner:
        nest = nest_below(s, i, tiles, _tensors_at_level(s, i), inf, is_bound=True)
        s.inner[i, tiles] = s.inner_bounds[i, tiles] = max(nest.lower_bound, _inherited(s, i, tiles))
    return s.inner[i, tiles]


def _lower_bound(s: SegmentSearch, tiles: Tiles) -> float:
    """Returns a lower bound (pJ) from bounds of larger tiles, and one move of each word."""
    inner_bound = _inner if tiles == s.sizes else _inherited
    return sum(
        max(s.lower_bound(i, tiles), inner_bound(s, i, tiles) + s.min_move_pj[i])
        for i in range(len(s.segment.own))
    )


def _with_depths(s: SegmentSearch, tiles: Tiles, inner_bounds: Sequence[float], best: float) -> float:
    """Returns a lower bound (pJ) from bounds of the nests, and the cheapest depths that fit; inf: none below
    `best`.
    """
    return min((leaf.bound for leaf in leaves(s, tiles, inner_bounds, best, uses_mapper=False)), default=inf)


def _with_nests(s: SegmentSearch, tiles: Tiles, best: float) -> float:
    """Returns the bound of `_with_depths` with the best nests of all einsums, all tensors at the level; inf
    as soon as those of some of them leave no plan below `best`.
    """
    inner_bounds = [_inherited(s, i, tiles) for i in range(len(s.segment.own))]
    bound = 0.0
    for i, inherited in enumerate(inner_bounds):
        inner_bounds[i] = _inner(s, i, tiles)
        if bound == 0.0 or inner_bounds[i] > inherited:
            bound = _with_depths(s, tiles, inner_bounds, best)
        if bound >= best:
            break
    return bound


def _best_leaf(s: SegmentSearch, tiles: Tiles, best: float) -> Leaf | None:
    """Returns the choices with the lowest bound below `best`, None if there are none."""
    base = [_inner(s, i, tiles) for i in range(len(s.segment.own))]
    return min(leaves(s, tiles, base, best, uses_mapper=True), key=lambda leaf: leaf.bound, default=None)
