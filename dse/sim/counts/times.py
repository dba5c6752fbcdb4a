"""Closed forms of the port times of every level of a nest, which latency.py turns into cycles (docs/model.md,
Time).

A tile rests at the position in the nest to which it sinks from its node (terms.resting_position); it changes
when any temporal loop above that position advances. A level starts empty in every period, that is in each
iteration of the loops above position `restart_at`: the deepest resting position of a tile at a
single-buffered level further out. A round is one iteration of the loops above the deepest resting position of
a level's tiles, or above that of its output; the head is the first round of the output in a period, the tail
the last round of the level. So

    first fills    loops above restart_at: all trips; between restart_at and the tile: the first trip
    last drains    the same with the last trip
    between        all transfers, minus the first fills and last drains
    tiles that change where a loop at positions a..b-1 advances, but no loop above a does:
                   fills(b) - fills(a), where fills(x) counts all trips of the loops above position x, and
                   of the loops from x to the tile the first trip

are sums of products over ranks (terms.py), for one mapping or for many at once (Number). Which nodes change
together depends on positions alone, not on tile sizes.

The closed form is at most what tests/port_times.py sums up by unrolling, so the latency stays a lower bound.
The two are equal if all rounds are alike. The closed form is smaller in these cases:
* `before`, the drain before the last, is taken as the drain of the first tile, the largest, if the tiles of
  an output change more than twice in a period.
* `returning` counts outputs that come back whole, not the halo of a transposed convolution.
* A window that slides across the end of a head or tail round counts nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from typing import Literal

from dse.mapping.nest import bits_at, role
from dse.sim.counts.actions import NO_DELAYS, Delay, Key, elem_cycles, op_cycles
from dse.sim.counts.latency import (
    Number,
    PortTimes,
    any_nonzero,
    double_buffer_cycles,
    exchange_cycles,
    largest,
    latency,
    where,
)
from dse.sim.counts.spans import FIRST, LAST, ONLY
from dse.sim.counts.terms import (
    AND_FIRST,
    AND_LAST,
    Link,
    NestSums,
    Term,
    additions,
    drains,
    fills,
    nonzero_share,
    passes,
    rounds,
    serves,
    writes,
)
from hw.arch import PORT_ACTIONS, Arch
from workloads.einsum import Einsum

Traffic = Literal["fill", "drain", "access"]  # fills or drains of a child, or accesses of compute
TripsCounted = tuple[int, ...]  # per loop, which of its trips count: ALL, FIRST, LAST or ONLY (spans.py)
# (level, port) -> cycles of each instance that may be the busiest
PortCycles = dict[tuple[int, str], list[Number]]


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of a level: one per counted iteration of the temporal loops above position `restart_at`.
    All trips of the loops below belong to the same period.
    """

    trips_counted: TripsCounted
    restart_at: int


@dataclass(frozen=True, slots=True)
class LevelLink:
    """A link with the levels of its ends."""

    link: Link
    parent: int  # index of the parent's level
    child: int  # index of the child's level; the number of levels for compute
    is_output: bool
    skips: bool  # the link is that of an output whose first reads the parent skips
    window: int  # index (in `Formulas.loops`) of the loop that the child's tile slides along, or -1


@dataclass(slots=True)
class NestTiming:
    """What the port times of one nest on one machine are computed from, for one or many choices of tile
    sizes.
    """

    sums: NestSums
    e: Einsum
    arch: Arch
    links: list[LevelLink]
    # (level, tensor, action) -> port, and cycles per element, of ports that are not infinitely fast
    rates: dict[tuple[int, str, str], tuple[str, Number]]
    wants_interval: bool = True  # whether the initiation interval is wanted, too
    # traffic of a link in the counted iterations (`_flow`) or in whole periods (`_all_traffic`)
    memo: dict[tuple[object, ...], PortCycles] = field(default_factory=dict)


def nest_timing(
    sums: NestSums, arch: Arch, wants_interval: bool = True, delays: Mapping[Key, Delay] = NO_DELAYS
) -> NestTiming:
    """Returns what port times are computed from: one LevelLink per link, and the cycles per element of ports.

    A tile slides along the loop right above its resting position (`LevelLink.window`) if that loop stands
    below the child's node, and its rank shares a dimension of the tensor with another rank.
    wants_interval: the initiation interval is wanted, too
    delays: by (level, tensor, action), what layouts add: every transfer takes that share longer
    """
    e, order = sums.formulas.e, arch.level_index()
    numbers = {i: number for number, (i, _) in enumerate(sums.formulas.loops)}
    links = []
    for link in sums.formulas.links:
        slides = (
            link.child is not None
            and link.rests_at - 1 > link.child_at
            and sums.formulas.loops[numbers[link.rests_at - 1]][1].rank not in link.tensor.full_ranks()
        )
        links.append(
            LevelLink(
                link,
                order[link.parent.level],
                order[link.child.level] if link.child else len(arch.levels),
                link.is_output,
                link.is_output and link.parent.level in sums.formulas.wires.skips,
                numbers[link.rests_at - 1] if slides else -1,
            )
        )
    tensors = [(p.tensor, role(e, p.tensor)) for p in e.tensors()]
    rates = {
        (v, tensor, action): (
            level.port(of, action)[0],
            rate * (1 + delays[key].share) if (key := (level.name, tensor, action)) in delays else rate,
        )
        for v, level in enumerate(arch.levels)
        for tensor, of in tensors
        for action in PORT_ACTIONS
        if any_nonzero(rate := elem_cycles(level, bits_at(level, tensor, e, arch), of, action))
    }
    return NestTiming(sums, e, arch, links, rates, wants_interval)


def port_times(
    sums: NestSums,
    arch: Arch,
    restart_at: int = 0,
    wants_interval: bool = True,
    delays: Mapping[Key, Delay] = NO_DELAYS,
) -> tuple[list[PortTimes], Number]:
    """Returns the port times of all levels, outermost first, and the cycles of compute steps: the arguments
    of `latency`.

    restart_at: levels start empty in every iteration of the loops above this position
    wants_interval: False leaves numbers that only the initiation interval needs at NaN
    delays: by (level, tensor, action), what layouts add
    """
    timing = nest_timing(sums, arch, wants_interval, delays)
    return _inside(timing, 0, Periods(sums.formulas.all_trips, restart_at))


def first_fills(
    sums: NestSums, arch: Arch, wanted: Collection[tuple[str, str]]
) -> dict[int, dict[tuple[int, str], Number]]:
    """Returns, per level that starts empty only once, the time of its very first fills that come from the
    outermost level, by the (level, port) that they occupy.

    wanted: (level, tensor) of the nodes whose fills count
    """
    timing = nest_timing(sums, arch)
    periods, found = Periods(sums.formulas.all_trips, 0), {}
    for v in range(1, len(arch.levels)):
        links = [
            one
            for one in _nodes(timing, v)
            if one.parent == 0 and (arch.levels[v].name, one.link.tensor.tensor) in wanted
        ]
        work = _at_ends(timing, periods, links, "fill")
        found[v] = {key: largest(0.0, *cycles) for key, cycles in work.items()}
        restart_at = max([0, *(one.link.rests_at for one in _nodes(timing, v))])
        if (
            not arch.levels[v].double_buffer
            and timing.sums.total([Term(1, passes(sums.formulas, restart_at, False, periods.trips_counted))])
            > 1
        ):
            break  # levels further inside start empty whenever a tile of this level changes
    return {v: ports for v, ports in found.items() if ports}


def _inside(timing: NestTiming, outermost: int, periods: Periods) -> tuple[list[PortTimes], Number]:
    """Returns the port times from level `outermost` inward, and the cycles of compute steps, in these
    periods. Each period starts with empty levels.
    """
    found, inner_periods = [], periods
    for v in range(outermost, len(timing.arch.levels)):
        found.append(_level(timing, v, inner_periods))
        if not timing.arch.levels[v].double_buffer:
            inner_periods = replace(
                inner_periods,
                restart_at=max([inner_periods.restart_at, *(one.link.rests_at for one in _nodes(timing, v))]),
            )
    return found, _compute(timing, periods)


def _compute(timing: NestTiming, periods: Periods) -> Number:
    """Returns the cycles of compute steps in these periods."""
    formulas = timing.sums.formulas
    innermost = max((i + 1 for i, _ in formulas.loops), default=0)
    ops, busiest_ops = (
        timing.sums.total(
            [Term(nonzero_share(timing.e), passes(formulas, innermost, all_pes, periods.trips_counted))]
        )
        for all_pes in (True, False)
    )
    return op_cycles(ops, busiest_ops, timing.e, timing.arch)


def _nodes(timing: NestTiming, v: int) -> list[LevelLink]:
    """Returns the links whose child is a node at level v."""
    return [one for one in timing.links if one.child == v and one.link.child]


def _flow(timing: NestTiming, one: LevelLink, kind: Traffic, trips_counted: TripsCounted) -> PortCycles:
    """Returns the traffic of one link in the counted iterations, at both ends.

    Of a window's loop, the first trip fetches the whole window and the last one drains it; every other trip
    moves a part, which has no closed form. So fills where only the last trip counts, and drains where only
    the first counts, are taken as nothing, which is a lower bound.
    """
    if one.window >= 0 and trips_counted[one.window] == {"fill": LAST, "drain": FIRST, "access": -1}[kind]:
        return {}
    tensor = one.link.tensor.tensor
    key = tensor, one.link.child_at, kind, trips_counted
    if key not in timing.memo:
        found: PortCycles = {}
        ends: dict[Traffic, list[tuple[int, str, Callable[..., tuple[Term, ...]], bool]]] = {
            "fill": [(one.child, "fill", fills, one.skips), (one.parent, "read", serves, one.skips)],
            "drain": [
                (one.child, "drain", drains, False),
                (one.parent, "write", writes, False),
                *[(one.parent, "read", additions, False)] * one.skips,
            ],
            "access": [
                (one.parent, "read", serves, one.skips),
                *[(one.parent, "read", additions, False)] * one.skips,
                *[(one.parent, "write", writes, False)] * one.is_output,
            ],
        }
        for v, action, terms_of, skips in ends[kind]:
            if (v, tensor, action) in timing.rates:
                own_port, rate = timing.rates[v, tensor, action]
                terms = terms_of(timing.sums.formulas, one.link, True, trips_counted)
                if skips:
                    terms = (*terms, *terms_of(timing.sums.formulas, one.link, True, trips_counted, True))
                cycles = [n * rate for n in timing.sums.by_instance(terms)]
                found = _total([found, {(v, own_port): cycles}])
        timing.memo[key] = found
    return timing.memo[key]


def _total(works: Iterable[PortCycles]) -> PortCycles:
    """Returns the sum of several port times."""
    found: PortCycles = {}
    for work in works:
        for key, cycles in work.items():
            found[key] = [a + b for a, b in zip(found[key], cycles, strict=True)] if key in found else cycles
    return found


def _minus(work: PortCycles, other: PortCycles) -> PortCycles:
    """Returns work minus other work, at least 0."""
    return {
        key: [largest(a - b, 0.0) for a, b in zip(cycles, other[key], strict=True)]
        if key in other
        else cycles
        for key, cycles in work.items()
    }


def _at_or_outside(work: PortCycles, v: int) -> PortCycles:
    """Returns the part of the work at level v or further out."""
    return {key: cycles for key, cycles in work.items() if key[0] <= v}


def _busiest(work: PortCycles) -> Number:
    """Returns the cycles of the busiest port and instance."""
    return largest(0.0, *(one for cycles in work.values() for one in cycles))


def _edge_traffic(timing: NestTiming, one: LevelLink, kind: Traffic, periods: Periods, b: int) -> PortCycles:
    """Returns the fills at the start of each iteration of the loops above position b: all trips of these
    loops, and the first trip of those from b to the tile; of kind "drain", the drains at its end (the last
    trip).
    """
    narrowed = AND_LAST if kind == "drain" else AND_FIRST
    end = max(one.link.rests_at, periods.restart_at)
    return _flow(
        timing,
        one,
        kind,
        tuple(
            narrowed[counted] if b <= i < end else counted
            for counted, (i, _) in zip(periods.trips_counted, timing.sums.formulas.loops, strict=True)
        ),
    )


def _edges_of_periods(timing: NestTiming, one: LevelLink, kind: Traffic, periods: Periods) -> PortCycles:
    """Returns the first fills, or last drains, of all periods."""
    return _edge_traffic(timing, one, kind, periods, min(one.link.rests_at, periods.restart_at))


def _at_ends(timing: NestTiming, periods: Periods, links: Sequence[LevelLink], kind: Traffic) -> PortCycles:
    """Returns the first fills, or last drains, of several links."""
    return _total(_edges_of_periods(timing, one, kind, periods) for one in links)


def _directions(one: LevelLink) -> tuple[Traffic, ...]:
    return ("fill", "drain") if one.is_output else ("fill",)


def _all_traffic(timing: NestTiming, one: LevelLink, periods: Periods) -> PortCycles:
    """Returns all traffic of a link in the periods."""
    # periods.restart_at matters only for tiles that rest at it or above it
    key = (
        one.link.tensor.tensor,
        one.link.child_at,
        periods.trips_counted,
        periods.restart_at if one.link.rests_at <= periods.restart_at else -1,
    )
    if key not in timing.memo:
        if one.link.child is None:
            timing.memo[key] = _flow(timing, one, "access", periods.trips_counted)
        elif one.link.rests_at <= periods.restart_at:
            timing.memo[key] = _total(
                _edges_of_periods(timing, one, kind, periods) for kind in _directions(one)
            )
        else:
            timing.memo[key] = _total(
                _flow(timing, one, kind, periods.trips_counted) for kind in _directions(one)
            )
    return timing.memo[key]


def _between(timing: NestTiming, one: LevelLink, kind: Traffic, periods: Periods) -> PortCycles:
    """Returns all fills except the first ones, or all drains except the last ones."""
    return (
        {}
        if one.link.rests_at <= periods.restart_at
        else _minus(
            _flow(timing, one, kind, periods.trips_counted), _edges_of_periods(timing, one, kind, periods)
        )
    )


def _changes(
    timing: NestTiming,
    periods: Periods,
    above: int | None,
    below: int,
    links: Sequence[LevelLink],
    kind: Traffic,
) -> PortCycles:
    """Returns the fills, or drains, of tiles that change where a loop at positions above..below-1 advances
    and no loop further out does. above None: also the fills at the very start, or drains at the very end.
    """
    edges = _total(_edge_traffic(timing, one, kind, periods, below) for one in links)
    return (
        edges
        if above is None
        else _minus(edges, _total(_edge_traffic(timing, one, kind, periods, above) for one in links))
    )


def _level(timing: NestTiming, v: int, periods: Periods) -> PortTimes:
    """Returns the port times of level v."""
    nodes, double = _nodes(timing, v), timing.arch.levels[v].double_buffer
    inner_traffic = _total(_all_traffic(timing, one, periods) for one in timing.links if one.child > v)
    node_traffic = _total(_all_traffic(timing, one, periods) for one in nodes)
    outputs = [one for one in nodes if one.is_output]
    found = PortTimes(
        double=double,
        restarts=timing.sums.total(
            [Term(1, passes(timing.sums.formulas, periods.restart_at, False, periods.trips_counted))]
        )
        if timing.wants_interval
        else nan,
        busy=_busiest({key: n for key, n in _total([inner_traffic, node_traffic]).items() if key[0] == v}),
        serve=_busiest(_at_or_outside(inner_traffic, v)),
        first=_edge_time(timing, nodes, "fill", periods),
        last=_edge_time(timing, nodes, "drain", periods),
        all_transfers=nan,
    )
    if double:
        between = _total(_between(timing, one, kind, periods) for one in nodes for kind in _directions(one))
        return replace(
            found,
            between=_busiest(between),
            all_transfers=_busiest(node_traffic),
            one_port=_busiest(_at_or_outside(_total([inner_traffic, between]), v)),
            double_buffer_time=_double_buffer_time(timing, v, nodes, periods, between),
            returning=_returning(timing, outputs, periods),
        )
    between = _exchanges(timing, nodes, periods)
    at_ends = partial(_at_ends, timing, periods)
    return replace(
        found,
        between=between,
        all_transfers=between + _exchange(nodes, at_ends) if timing.wants_interval else nan,
    )


def _edge_time(timing: NestTiming, nodes: Sequence[LevelLink], kind: Traffic, periods: Periods) -> Number:
    """Returns the time of first fills, or last drains. Nodes that change together transfer in parallel; tiles
    that rest above the position at which periods begin change in some periods only.
    """
    edges = [
        *sorted({one.link.rests_at for one in nodes if one.link.rests_at < periods.restart_at}),
        periods.restart_at,
    ]
    found: Number = 0.0
    for above, below in zip([None, *edges], edges, strict=False):
        found = found + _busiest(
            _changes(
                timing,
                periods,
                above,
                below,
                [one for one in nodes if one.link.rests_at >= below and kind in _directions(one)],
                kind,
            )
        )
    return found


def _exchanges(timing: NestTiming, nodes: Sequence[LevelLink], periods: Periods) -> Number:
    """Returns the time of the exchanges of a single-buffered level inside the periods: the sum over its
    different resting positions. Where a loop between two of them advances, the nodes that rest below it
    change together.
    """
    edges = sorted({one.link.rests_at for one in nodes if one.link.rests_at > periods.restart_at})
    found: Number = 0.0
    for above, below in zip([periods.restart_at, *edges], edges, strict=False):
        changing = [one for one in nodes if one.link.rests_at >= below]
        found = found + _exchange(changing, partial(_changes, timing, periods, above, below))
    return found


def _exchange(
    nodes: Sequence[LevelLink], traffic_of: Callable[[Sequence[LevelLink], Traffic], PortCycles]
) -> Number:
    """Returns `exchange_cycles` of nodes that change together.

    traffic_of: returns the fills, or the drains, of some of these nodes
    """
    outputs = [one for one in nodes if one.is_output]
    drains = traffic_of(outputs, "drain")
    return exchange_cycles(
        _busiest(_total([drains, traffic_of(nodes, "fill")])),
        _busiest(drains),
        _busiest(traffic_of(outputs, "fill")),
    )


def _inner_time(timing: NestTiming, v: int, periods: Periods) -> Number:
    """Returns the time of everything inside level v in these periods."""
    return largest(
        latency(*_inside(timing, v + 1, periods)),
        _busiest(
            _at_or_outside(
                _total(_all_traffic(timing, one, periods) for one in timing.links if one.child > v), v
            )
        ),
    )


def _round(timing: NestTiming, periods: Periods, end: int, narrowed: dict[int, int]) -> Periods:
    """Returns the first (AND_FIRST) or last (AND_LAST) iteration of the temporal loops above `end` in each
    period.
    """
    return Periods(
        tuple(
            narrowed[counted] if periods.restart_at <= i < end else counted
            for counted, (i, _) in zip(periods.trips_counted, timing.sums.formulas.loops, strict=True)
        ),
        end,
    )


def _rounds(timing: NestTiming, periods: Periods, end: int, most: bool = False) -> Number:
    """Returns the fewest (most: the most) iterations of the temporal loops above `end` in a period."""
    return timing.sums.total(
        [Term(1, rounds(timing.sums.formulas, periods.restart_at, end, periods.trips_counted, most))]
    )


def _double_buffer_time(
    timing: NestTiming, v: int, nodes: Sequence[LevelLink], periods: Periods, between: PortCycles
) -> Number:
    """Returns `double_buffer_cycles` of the busiest port. Its head and tail are the time of the inside in the
    first round of the output and in the last round of the level, by the same closed forms for that round.
    """
    deepest = max((one.link.rests_at for one in nodes), default=0)
    has_rounds = _rounds(timing, periods, deepest) > 1 if deepest > periods.restart_at else False
    if not between or has_rounds is False or (isinstance(has_rounds, bool) and not has_rounds):
        return 0.0
    last = _round(timing, periods, deepest, AND_LAST)
    tail, tail_compute, head = where(has_rounds, _inner_time(timing, v, last), 0.0), 0.0, 0.0
    drains: PortCycles = {}
    before: PortCycles = {}
    at_most_two: Number = True  # the output's tile changes at most twice in a period: `before` is exact
    for one in (one for one in nodes if one.is_output and one.link.rests_at > periods.restart_at):
        # compute writes the output at this level itself if no level inside holds it
        if not any(other.is_output and other.child > v and other.link.child for other in timing.links):
            tail_compute = where(has_rounds, _compute(timing, last), 0.0)
        first = _round(timing, periods, one.link.rests_at, AND_FIRST)
        has_output_rounds, at_most_two = (
            _rounds(timing, periods, one.link.rests_at) > 1,
            _rounds(timing, periods, one.link.rests_at, most=True) <= 2,
        )
        head = where(has_output_rounds, _inner_time(timing, v, first), 0.0)
        drains = _between(timing, one, "drain", periods)
        before = (
            drains if timing.e.output.partial_ranks() else _flow(timing, one, "drain", first.trips_counted)
        )
    found: Number = 0.0
    for key, cycles in between.items():
        for i, n in enumerate(cycles):
            drained, drain_before = (work[key][i] if key in work else 0.0 for work in (drains, before))
            drain_before = where(at_most_two, drained, _minimum(drain_before, drained))
            found = largest(
                found,
                where(
                    n > 0,
                    double_buffer_cycles(
                        n,
                        drained,
                        drain_before,
                        head,
                        where(at_most_two, tail, where(drained > 0, tail_compute, tail)),
                        tail_compute,
                    ),
                    0.0,
                ),
            )
    return found


def _minimum(a: Number, b: Number) -> Number:
    return -largest(-a, -b)


def _returning(timing: NestTiming, outputs: Sequence[LevelLink], periods: Periods) -> Number:
    """Returns the time of output tiles that leave and come straight back: a loop advances whose rank the
    output lacks, and each loop further inside over a rank of the output has one trip, so the next tile is the
    same.
    """
    reuses = [
        (one, number)
        for one in outputs
        for number, (i, loop) in enumerate(timing.sums.formulas.loops)
        if not loop.over and periods.restart_at <= i < one.link.rests_at and loop.rank not in one.link.ranks
    ]
    return _busiest(
        _total(_reuse_traffic(timing, one, "drain", LAST, periods, number) for one, number in reuses)
    ) + _busiest(
        _total(_reuse_traffic(timing, one, "fill", FIRST, periods, number) for one, number in reuses)
    )


def _reuse_traffic(
    timing: NestTiming, one: LevelLink, kind: Traffic, only_trip: int, periods: Periods, number: int
) -> PortCycles:
    """Returns the drains after each trip of loop `number` but the last (or the fills before each but the
    first) where the next trip needs the same output tile.

    only_trip: the one trip that counts of loops further inside over ranks that the output lacks: LAST for
        drains, FIRST for fills
    """
    trips_counted = [
        counted
        if j <= number or i >= one.link.rests_at
        else ONLY
        if loop.rank in one.link.ranks
        else only_trip
        for j, (counted, (i, loop)) in enumerate(
            zip(periods.trips_counted, timing.sums.formulas.loops, strict=True)
        )
    ]
    all_trips_traffic = _flow(timing, one, kind, tuple(trips_counted))
    trips_counted[number] = only_trip
    return _minus(all_trips_traffic, _flow(timing, one, kind, tuple(trips_counted)))
