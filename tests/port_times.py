"""What the closed form of a nest's time needs, summed up from the unrolled nest: port times of every level
(dse/sim/counts/latency.py).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dse.sim.counts.latency import PortTimes, double_buffer_cycles, exchange_cycles, latency
from tests.unrolled import Node, Program, Work, total

ZERO = Fraction(0)
Period = tuple[int, int]  # blocks start..end-1 between two restarts of a level


def closed_form(p: Program) -> Fraction:
    return latency(*port_times(p))


def port_times(p: Program) -> tuple[list[PortTimes], Fraction]:
    """Levels from the outside in, and compute steps as cycles."""
    return inside(p, 0, [(0, len(p.blocks))])


def inside(p: Program, outermost: int, periods: list[Period]) -> tuple[list[PortTimes], Fraction]:
    """The same of these periods alone, from level `outermost` inward, each begun with empty levels."""
    found, begun = [], periods
    for v in range(outermost, len(p.double)):
        found.append(level_times(p, v, begun))
        if not p.double[v]:
            begun = [piece for period in begun for piece in rounds(p, v, period)]
    return found, steps(p, periods)


def steps(p: Program, periods: Sequence[Period]) -> Fraction:
    return sum(
        (
            cycles
            for a, z in periods
            for k in range(a, z)
            for (_, _, side), cycles in p.blocks[k].items()
            if side == "mac"
        ),
        ZERO,
    )


def nodes_at(p: Program, v: int) -> list[Node]:
    return [node for node in p.nodes if node.level == v]


def rounds(p: Program, v: int, period: Period, output: bool = False) -> list[Period]:
    """The rounds of a level in a period: a new one begins where any of its tiles does; or where its output
    tile does.
    """
    a, z = period
    cuts = sorted(
        {
            a,
            z,
            *(
                tile.start
                for node in nodes_at(p, v)
                if node.output or not output
                for tile in node.tiles
                if a < tile.start < z
            ),
        }
    )
    return list(itertools.pairwise(cuts))


@dataclass(slots=True)
class Moves:
    """Transfers: fills before the inside starts, drains after it ends; fills and drains between, of these the
    drains before the last; leaving, coming: of output tiles that come straight back.
    """

    first: list[Work] = field(default_factory=list)
    last: list[Work] = field(default_factory=list)
    fills: list[Work] = field(default_factory=list)
    drains: list[Work] = field(default_factory=list)
    before: list[Work] = field(default_factory=list)
    leaving: list[Work] = field(default_factory=list)
    coming: list[Work] = field(default_factory=list)


def moves(nodes: Sequence[Node], periods: Sequence[Period]) -> Moves:
    found = Moves()
    for node in nodes:
        for a, z in periods:
            sooner = [tile.drain for tile in node.tiles if a < tile.end < z]
            found.first += [tile.fill for tile in node.tiles if tile.start == a]
            found.last += [tile.drain for tile in node.tiles if tile.end == z]
            found.fills += [tile.fill for tile in node.tiles if a < tile.start < z]
            found.drains, found.before = found.drains + sooner, found.before + sooner[-1:]
            again = [
                (old, new)
                for old, new in zip(node.tiles, node.tiles[1:], strict=False)
                if a < new.start < z and new.read & old.drained
            ]
            found.leaving += [old.drain for old, _ in again]
            found.coming += [new.fill for _, new in again]
    return found


def level_times(p: Program, v: int, periods: list[Period]) -> PortTimes:
    own, crossing, starts, stops = (
        moves(nodes_at(p, v), periods),
        crossed(p, v, periods),
        [a for a, _ in periods],
        [z for _, z in periods],
    )
    between, all_own = (
        total([*own.fills, *own.drains]),
        total([*own.first, *own.last, *own.fills, *own.drains]),
    )
    moved, move = top(between), top(all_own)
    if not p.double[v]:
        moved = sum((exchange(p, v, cuts, cuts) for cuts in exchanges(p, v, periods)), ZERO)
        move = moved + exchange(p, v, set(stops), set(starts))
    return PortTimes(
        double=p.double[v],
        restarts=len(periods),
        busy=top({port: n for port, n in total([crossing, all_own]).items() if port[0] == v}),
        serve=top(seen(crossing, v)),
        first=ends(p, v, starts, True),
        last=ends(p, v, stops, False),
        between=moved,
        all_transfers=move,
        one_port=top(seen(total([crossing, between]), v)) if p.double[v] else ZERO,
        double_buffer_time=paced(p, v, periods, own),
        returning=top(total(own.leaving)) + top(total(own.coming)),
    )


def crossed(p: Program, v: int, periods: list[Period]) -> Work:
    """All that the inside of a level moves, also what enters or leaves it."""
    within = moves([node for node in p.nodes if node.level > v], periods)
    return total(
        [
            *(p.blocks[k] for a, z in periods for k in range(a, z)),
            *within.first,
            *within.last,
            *within.fills,
            *within.drains,
        ]
    )


def worked(p: Program, v: int, periods: list[Period]) -> Fraction:
    """Time of the inside of a level in these periods."""
    return max(latency(*inside(p, v + 1, periods)), top(seen(crossed(p, v, periods), v)))


def paced(p: Program, v: int, periods: list[Period], own: Moves) -> Fraction:
    """Of the busiest port: `double_buffer_cycles`, heads and tails by the closed form of the inside in those
    rounds.
    """
    between, drains, before = total([*own.fills, *own.drains]), total(own.drains), total(own.before)
    if not p.double[v] or not between:
        return ZERO
    cut = [rounds(p, v, period) for period in periods]
    outputs = [rounds(p, v, period, output=True) for period in periods]
    tail = worked(p, v, [last for *_, last in cut]) if min(map(len, cut)) > 1 else ZERO
    head = worked(p, v, [first for first, *_ in outputs]) if min(map(len, outputs)) > 1 else ZERO
    innermost = [node for node in p.nodes if node.output][-1:]  # whose tiles the steps write
    late = steps(p, [last for *_, last in cut]) if tail and innermost and innermost[0].level == v else ZERO
    return max(
        double_buffer_cycles(n, drains.get(port, ZERO), before.get(port, ZERO), head, tail, late)
        for port, n in between.items()
    )


def ends(p: Program, v: int, boundaries: Sequence[int], starts: bool) -> Fraction:
    """Fills of the tiles that start at these boundaries, or drains of those that end there; together where
    the same nodes do.
    """
    kinds: dict[tuple[int, ...], list[Work]] = {}
    for b in boundaries:
        here = [
            (node.at, tile)
            for node in nodes_at(p, v)
            for tile in node.tiles
            if (tile.start if starts else tile.end) == b
        ]
        kinds.setdefault(tuple(at for at, _ in here), []).extend(
            tile.fill if starts else tile.drain for _, tile in here
        )
    return sum((top(total(works)) for works in kinds.values()), ZERO)


def exchanges(p: Program, v: int, periods: list[Period]) -> list[set[int]]:
    """Boundaries inside the periods at which tiles of a level change; those together at which the same nodes
    do.
    """
    found: dict[tuple[int, ...], set[int]] = {}
    for b in {start for period in periods for start, _ in rounds(p, v, period)[1:]}:
        found.setdefault(
            tuple(node.at for node in nodes_at(p, v) if any(tile.start == b for tile in node.tiles)), set()
        ).add(b)
    return list(found.values())


def exchange(p: Program, v: int, gone: set[int], come: set[int]) -> Fraction:
    """Of tiles of a single-buffered level that end at these boundaries, and that start at those."""
    tiles = [(node, tile) for node in nodes_at(p, v) for tile in node.tiles]
    drains = total(tile.drain for _, tile in tiles if tile.end in gone)
    fills = total(tile.fill for _, tile in tiles if tile.start in come)
    back = total(tile.fill for node, tile in tiles if node.output and tile.start in come)
    return exchange_cycles(top(total([drains, fills])), top(drains), top(back))


def seen(work: Work, v: int) -> Work:
    """At the level or outside of it."""
    return {port: cycles for port, cycles in work.items() if port[0] <= v}


def top(work: Work) -> Fraction:
    return max(work.values(), default=ZERO)


def first_lane(p: Program) -> Program:
    """The mutant that takes the first lane for the busiest: ports of no other instance."""

    def kept(work: Work) -> Work:
        return {port: cycles for port, cycles in work.items() if not any(port[1])}

    nodes = [
        replace(
            node, tiles=[replace(tile, fill=kept(tile.fill), drain=kept(tile.drain)) for tile in node.tiles]
        )
        for node in p.nodes
    ]
    return replace(p, nodes=nodes, blocks=[kept(block) for block in p.blocks])


def trip_sizes(extent: int, cuts: Sequence[tuple[int, str]]) -> Counter[int]:
    """(size -> how many) of the tiles of one rank that a share of a nest touches: what counts need for first
    fills and last drains.

    cuts: (tile, trips), outermost first; trips: lanes (a spatial loop), all, first, last. Lanes run in
    lockstep: the last trip is the last of the longest lane, a shorter lane takes no part in it.
    >>> trip_sizes(7, [(2, "lanes"), (1, "last")])  # lanes of 2, 2, 2, 1
    Counter({1: 3})
    """
    groups = Counter({((extent, 1),): 1})  # ((size, lanes), ...) -> how often
    for tile, trips in cuts:
        found: Counter[tuple[tuple[int, int], ...]] = Counter()
        for lanes, n in groups.items():
            longest = max(-(-size // tile) for size, _ in lanes)
            for at in {"first": [0], "last": [longest - 1], "lanes": [-1]}.get(trips, range(longest)):
                sizes: Counter[int] = Counter()
                for size, k in lanes:
                    for t in range(-(-size // tile)):
                        if at in (t, -1):
                            sizes[min(tile, size - t * tile)] += k
                found[tuple(sorted(sizes.items()))] += n
        groups = found
    return sum((Counter({size: k * n for size, k in lanes}) for lanes, n in groups.items()), Counter())
