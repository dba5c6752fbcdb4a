"""Closed forms of the port times of every level of a nest, which latency.py turns into cycles (docs/model.md,
Time).

A tile changes when any temporal loop above its resting position advances. A level starts empty in every
period, that is in each iteration of the loops above position `restart_at`: the deepest resting position of a
tile at a single-buffered level further out. So

    first fills    loops above restart_at: all trips; between restart_at and the tile: the first trip
    last drains    the same with the last trip
    between        all transfers, minus the first fills and last drains
    tiles that change where loop i advances, but no loop above position a does:
                   (loops above i all, the others first) - (loops above a all, the others first)

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

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from typing import Literal

from dse.sim.counts.actions import elem_cycles, op_cycles, port
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
    fills,
    nonzero_share,
    passes,
    rounds,
    serves,
    writes,
)
from hw.arch import Arch
from workloads.einsum import Einsum

Traffic = Literal["fill", "drain", "access"]  # fills or drains of a child, or accesses of compute
TripsCounted = tuple[int, ...]
# (level, port) -> cycles of each instance that may be the busiest
PortCycles = dict[tuple[int, str], list[Number]]


@dataclass(frozen=True, slots=True)
class Periods:
    """The periods of a level: one per counted iteration of the temporal loops above position `restart_at`.
    All trips of the loops below belong to the same period.
    """

    trips_counted: TripsCounted  # per loop (spans.py)
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
class Clock:
    """One nest on one machine, for one or many choices of tile sizes."""

    sums: NestSums
    e: Einsum
    arch: Arch
    links: list[LevelLink]
    # (level, tensor) -> cycles per element, of ports that are not infinitely fast
    rates: dict[tuple[int, str], Number]
    wants_interval: bool = True  # whether the initiation interval is wanted, too
    # traffic of a link in the counted iterations (`_flow`) or in whole periods (`_all_traffic`)
    memo: dict[tuple[object, ...], PortCycles] = field(default_factory=dict)


def clock(sums: NestSums, arch: Arch, wants_interval: bool = True) -> Clock:
    """Returns the clock of one nest on one machine: a step per link, and rates of ports.

    A step has a window if the loop right above its tile's resting position stands below the child's node, and
    its rank shares a dimension of the tensor with another rank.
    wants_interval: the initiation interval is wanted, too
    """
    order = arch.level_index()
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
    rates = {
        (v, tensor): rate
        for v, level in enumerate(arch.levels)
        for tensor, n in sums.formulas.bits.items()
        if any_nonzero(rate := elem_cycles(level, n))
    }
    return Clock(sums, sums.formulas.e, arch, links, rates, wants_interval)


def port_times(
    sums: NestSums, arch: Arch, restart_at: int = 0, wants_interval: bool = True
) -> tuple[list[PortTimes], Number]:
    """Returns the port times of all levels, outermost first, and the cycles of compute steps: the arguments
    of `latency`.

    restart_at: levels start empty in every iteration of the loops above this position
    wants_interval: False leaves numbers that only the initiation interval needs at NaN
    """
    return _inside(clock(sums, arch, wants_interval), 0, Periods(sums.formulas.all_trips, restart_at))


def first_fills(
    sums: NestSums, arch: Arch, wanted: Collection[tuple[str, str]]
) -> dict[int, dict[tuple[int, str], Number]]:
    """Returns, by level and (level, port), the time of the very first fills that come from the outermost
    level, for levels that start empty only once.

    wanted: (level, tensor) of the nodes whose fills count
    """
    c = clock(sums, arch)
    periods, found = Periods(sums.formulas.all_trips, 0), {}
    for v in range(1, len(arch.levels)):
        links = [
            s for s in _nodes(c, v) if s.parent == 0 and (arch.levels[v].name, s.link.tensor.tensor) in wanted
        ]
        work = _at_ends(c, periods, links, "fill")
        found[v] = {key: largest(0.0, *cycles) for key, cycles in work.items()}
        restart_at = max([0, *(s.link.rests_at for s in _nodes(c, v))])
        if (
            not arch.levels[v].double_buffer
            and c.sums.total([Term(1, passes(sums.formulas, restart_at, False, periods.trips_counted))]) > 1
        ):
            break  # levels further inside start empty in each of its rounds
    return {v: ports for v, ports in found.items() if ports}


def _inside(c: Clock, outermost: int, periods: Periods) -> tuple[list[PortTimes], Number]:
    """Returns the port times from level `outermost` inward, and the compute steps, in these periods. Each
    period starts with empty levels.
    """
    found, inner_periods = [], periods
    for v in range(outermost, len(c.arch.levels)):
        found.append(_level(c, v, inner_periods))
        if not c.arch.levels[v].double_buffer:
            inner_periods = replace(
                inner_periods,
                restart_at=max([inner_periods.restart_at, *(s.link.rests_at for s in _nodes(c, v))]),
            )
    return found, _compute(c, periods)


def _compute(c: Clock, periods: Periods) -> Number:
    """Returns the cycles of compute steps in these periods."""
    s = c.sums.formulas
    innermost = max((i + 1 for i, _ in s.loops), default=0)
    ops, busiest_ops = (
        c.sums.total([Term(nonzero_share(c.e), passes(s, innermost, all_pes, periods.trips_counted))])
        for all_pes in (True, False)
    )
    return op_cycles(ops, busiest_ops, c.e, c.arch)


def _nodes(c: Clock, v: int) -> list[LevelLink]:
    """Returns the steps whose child is a node at level v."""
    return [s for s in c.links if s.child == v and s.link.child]


def _flow(c: Clock, s: LevelLink, kind: Traffic, trips_counted: TripsCounted) -> PortCycles:
    """Returns the traffic of one link in the counted iterations, at both ends. For a window, a fill in its
    last trip or a drain in its first counts as nothing.
    """
    if s.window >= 0 and trips_counted[s.window] == {"fill": LAST, "drain": FIRST, "access": -1}[kind]:
        return {}
    tensor = s.link.tensor.tensor
    key = tensor, s.link.child_at, kind, trips_counted
    if key not in c.memo:
        found: PortCycles = {}
        ends: dict[Traffic, list[tuple[int, str, Callable[..., tuple[Term, ...]], bool]]] = {
            "fill": [(s.child, "write", fills, s.skips), (s.parent, "read", serves, s.skips)],
            "drain": [(s.child, "read", fills, False), (s.parent, "write", serves, False)],
            "access": [
                (s.parent, "read", serves, s.skips),
                *[(s.parent, "write", writes, False)] * s.is_output,
            ],
        }
        for v, action, terms_of, skips in ends[kind]:
            if (v, tensor) in c.rates:
                terms = terms_of(c.sums.formulas, s.link, True, trips_counted)
                if skips:
                    terms = (*terms, *terms_of(c.sums.formulas, s.link, True, trips_counted, True))
                cycles = [n * c.rates[v, tensor] for n in c.sums.by_instance(terms)]
                found = _total([found, {(v, port(c.arch.levels[v], action)): cycles}])
        c.memo[key] = found
    return c.memo[key]


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


def _edge_traffic(c: Clock, s: LevelLink, kind: Traffic, periods: Periods, b: int) -> PortCycles:
    """Returns the fills of tiles that start at the start of an iteration of the loops above position b; of
    kind "drain", the drains of tiles that end at its end.
    """
    narrowed = AND_LAST if kind == "drain" else AND_FIRST
    end = max(s.link.rests_at, periods.restart_at)
    return _flow(
        c,
        s,
        kind,
        tuple(
            narrowed[counted] if b <= i < end else counted
            for counted, (i, _) in zip(periods.trips_counted, c.sums.formulas.loops, strict=True)
        ),
    )


def _edges_of_periods(c: Clock, s: LevelLink, kind: Traffic, periods: Periods) -> PortCycles:
    """Returns the first fills, or last drains, of all periods."""
    return _edge_traffic(c, s, kind, periods, min(s.link.rests_at, periods.restart_at))


def _at_ends(c: Clock, periods: Periods, links: Sequence[LevelLink], kind: Traffic) -> PortCycles:
    """Returns the first fills, or last drains, of several links."""
    return _total(_edges_of_periods(c, s, kind, periods) for s in links)


def _directions(s: LevelLink) -> tuple[Traffic, ...]:
    return ("fill", "drain") if s.is_output else ("fill",)


def _all_traffic(c: Clock, s: LevelLink, periods: Periods) -> PortCycles:
    """Returns all traffic of a link in the periods."""
    # span.above matters only for tiles that rest above it
    key = (
        s.link.tensor.tensor,
        s.link.child_at,
        periods.trips_counted,
        periods.restart_at if s.link.rests_at <= periods.restart_at else -1,
    )
    if key not in c.memo:
        if s.link.child is None:
            c.memo[key] = _flow(c, s, "access", periods.trips_counted)
        elif s.link.rests_at <= periods.restart_at:
            c.memo[key] = _total(_edges_of_periods(c, s, kind, periods) for kind in _directions(s))
        else:
            c.memo[key] = _total(_flow(c, s, kind, periods.trips_counted) for kind in _directions(s))
    return c.memo[key]


def _between(c: Clock, s: LevelLink, kind: Traffic, periods: Periods) -> PortCycles:
    """Returns all fills except the first ones, or all drains except the last ones."""
    return (
        {}
        if s.link.rests_at <= periods.restart_at
        else _minus(_flow(c, s, kind, periods.trips_counted), _edges_of_periods(c, s, kind, periods))
    )


def _changes(
    c: Clock, periods: Periods, above: int | None, below: int, links: Sequence[LevelLink], kind: Traffic
) -> PortCycles:
    """Returns the fills, or drains, of tiles that change where a loop at positions above..below-1 advances
    and no loop further out does. above None: also the fills at the very start, or drains at the very end.
    """
    edges = _total(_edge_traffic(c, s, kind, periods, below) for s in links)
    return (
        edges
        if above is None
        else _minus(edges, _total(_edge_traffic(c, s, kind, periods, above) for s in links))
    )


def _level(c: Clock, v: int, periods: Periods) -> PortTimes:
    """Returns the port times of level v."""
    nodes, double = _nodes(c, v), c.arch.levels[v].double_buffer
    crossing = _total(_all_traffic(c, s, periods) for s in c.links if s.child > v)
    moving = _total(_all_traffic(c, s, periods) for s in nodes)
    outputs = [s for s in nodes if s.is_output]
    found = PortTimes(
        double=double,
        restarts=c.sums.total(
            [Term(1, passes(c.sums.formulas, periods.restart_at, False, periods.trips_counted))]
        )
        if c.wants_interval
        else nan,
        busy=_busiest({key: n for key, n in _total([crossing, moving]).items() if key[0] == v}),
        serve=_busiest(_at_or_outside(crossing, v)),
        first=_edge_time(c, nodes, "fill", periods),
        last=_edge_time(c, nodes, "drain", periods),
        all_transfers=nan,
    )
    if double:
        between = _total(_between(c, s, kind, periods) for s in nodes for kind in _directions(s))
        return replace(
            found,
            between=_busiest(between),
            all_transfers=_busiest(moving),
            one_port=_busiest(_at_or_outside(_total([crossing, between]), v)),
            double_buffer_time=_double_buffer_time(c, v, nodes, periods, between),
            returning=_returning(c, outputs, periods),
        )
    between = _exchanges(c, nodes, periods)
    at_ends = partial(_at_ends, c, periods)
    return replace(
        found, between=between, all_transfers=between + _exchange(nodes, at_ends) if c.wants_interval else nan
    )


def _edge_time(c: Clock, nodes: Sequence[LevelLink], kind: Traffic, periods: Periods) -> Number:
    """Returns the time of first fills, or last drains. Nodes that change together transfer in parallel; tiles
    that rest above the position at which periods begin change in some periods only.
    """
    edges = [
        *sorted({s.link.rests_at for s in nodes if s.link.rests_at < periods.restart_at}),
        periods.restart_at,
    ]
    found: Number = 0.0
    for above, below in zip([None, *edges], edges, strict=False):
        found = found + _busiest(
            _changes(
                c,
                periods,
                above,
                below,
                [s for s in nodes if s.link.rests_at >= below and kind in _directions(s)],
                kind,
            )
        )
    return found


def _exchanges(c: Clock, nodes: Sequence[LevelLink], periods: Periods) -> Number:
    """Returns the time of the exchanges of a single-buffered level inside the periods, summed over kinds: the
    sets of nodes that change together.
    """
    edges = sorted({s.link.rests_at for s in nodes if s.link.rests_at > periods.restart_at})
    found: Number = 0.0
    for above, below in zip([periods.restart_at, *edges], edges, strict=False):
        changing = [s for s in nodes if s.link.rests_at >= below]
        found = found + _exchange(changing, partial(_changes, c, periods, above, below))
    return found


def _exchange(
    nodes: Sequence[LevelLink], traffic_of: Callable[[Sequence[LevelLink], Traffic], PortCycles]
) -> Number:
    """Returns `exchange_cycles` of nodes that change together.

    traffic_of: returns the fills, or the drains, of some of these nodes
    """
    outputs = [s for s in nodes if s.is_output]
    drains = traffic_of(outputs, "drain")
    return exchange_cycles(
        _busiest(_total([drains, traffic_of(nodes, "fill")])),
        _busiest(drains),
        _busiest(traffic_of(outputs, "fill")),
    )


def _inner_time(c: Clock, v: int, periods: Periods) -> Number:
    """Returns the time of everything inside level v in these periods."""
    return largest(
        latency(*_inside(c, v + 1, periods)),
        _busiest(_at_or_outside(_total(_all_traffic(c, s, periods) for s in c.links if s.child > v), v)),
    )


def _round(c: Clock, periods: Periods, end: int, narrowed: dict[int, int]) -> Periods:
    """Returns the first (AND_FIRST) or last (AND_LAST) iteration of the temporal loops above `end` in each
    period.
    """
    return Periods(
        tuple(
            narrowed[counted] if periods.restart_at <= i < end else counted
            for counted, (i, _) in zip(periods.trips_counted, c.sums.formulas.loops, strict=True)
        ),
        end,
    )


def _rounds(c: Clock, periods: Periods, end: int, most: bool = False) -> Number:
    """Returns the fewest (most: the most) iterations of the temporal loops above `end` in a period."""
    return c.sums.total(
        [Term(1, rounds(c.sums.formulas, periods.restart_at, end, periods.trips_counted, most))]
    )


def _double_buffer_time(
    c: Clock, v: int, nodes: Sequence[LevelLink], periods: Periods, between: PortCycles
) -> Number:
    """Returns `double_buffer_cycles` of the busiest port. Heads and tails are closed forms of the inside in
    those rounds.
    """
    deepest = max((s.link.rests_at for s in nodes), default=0)
    has_rounds = _rounds(c, periods, deepest) > 1 if deepest > periods.restart_at else False
    if not between or has_rounds is False or (isinstance(has_rounds, bool) and not has_rounds):
        return 0.0
    last = _round(c, periods, deepest, AND_LAST)
    tail, tail_steps, head = where(has_rounds, _inner_time(c, v, last), 0.0), 0.0, 0.0
    drains: PortCycles = {}
    before: PortCycles = {}
    at_most_two: Number = True
    for s in (s for s in nodes if s.is_output and s.link.rests_at > periods.restart_at):
        if not any(other.is_output and other.child > v and other.link.child for other in c.links):
            tail_steps = where(has_rounds, _compute(c, last), 0.0)
        first = _round(c, periods, s.link.rests_at, AND_FIRST)
        has_output_rounds, at_most_two = (
            _rounds(c, periods, s.link.rests_at) > 1,
            _rounds(c, periods, s.link.rests_at, most=True) <= 2,
        )
        head = where(has_output_rounds, _inner_time(c, v, first), 0.0)
        drains = _between(c, s, "drain", periods)
        before = drains if c.e.output.partial_ranks() else _flow(c, s, "drain", first.trips_counted)
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
                        where(at_most_two, tail, where(drained > 0, tail_steps, tail)),
                        tail_steps,
                    ),
                    0.0,
                ),
            )
    return found


def _minimum(a: Number, b: Number) -> Number:
    return -largest(-a, -b)


def _returning(c: Clock, outputs: Sequence[LevelLink], periods: Periods) -> Number:
    """Returns the time of output tiles that come straight back: a loop advances whose rank the output lacks,
    and each loop further inside over a rank of the output has one trip.
    """
    reuses = [
        (s, number)
        for s in outputs
        for number, (i, loop) in enumerate(c.sums.formulas.loops)
        if not loop.over and periods.restart_at <= i < s.link.rests_at and loop.rank not in s.link.ranks
    ]
    return _busiest(
        _total(_reuse_traffic(c, s, "drain", LAST, periods, number) for s, number in reuses)
    ) + _busiest(_total(_reuse_traffic(c, s, "fill", FIRST, periods, number) for s, number in reuses))


def _reuse_traffic(
    c: Clock, s: LevelLink, kind: Traffic, only_trip: int, periods: Periods, number: int
) -> PortCycles:
    """Returns the drains before (or fills after) the advance of loop `number`, whose next trip needs the same
    output tile.
    """
    trips_counted = [
        counted if j <= number or i >= s.link.rests_at else ONLY if loop.rank in s.link.ranks else only_trip
        for j, (counted, (i, loop)) in enumerate(
            zip(periods.trips_counted, c.sums.formulas.loops, strict=True)
        )
    ]
    every = _flow(c, s, kind, tuple(trips_counted))
    trips_counted[number] = only_trip
    return _minus(every, _flow(c, s, kind, tuple(trips_counted)))
