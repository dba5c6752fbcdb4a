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
    Reading,
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
class Span:
    """The periods of a level: one per counted iteration of the temporal loops above position `above`.
    All trips of the loops below belong to the same period.
    """

    trips_counted: TripsCounted  # per loop (spans.py)
    above: int


@dataclass(frozen=True, slots=True)
class Step:
    """A link with the levels of its ends."""

    link: Link
    parent: int  # index of the parent's level
    child: int  # index of the child's level; the number of levels for compute
    output: bool
    skips: bool  # the link is that of an output whose first reads the parent skips
    window: int  # index (in `Sums.loops`) of the loop that the child's tile slides along, or -1


@dataclass(slots=True)
class Clock:
    """One nest on one machine, for one or many choices of tile sizes."""

    reading: Reading
    e: Einsum
    arch: Arch
    steps: list[Step]
    # (level, tensor) -> cycles per element, of ports that are not infinitely fast
    rates: dict[tuple[int, str], Number]
    steady: bool = True  # whether the initiation interval is wanted, too
    # traffic of a link in the counted iterations (`_flow`) or in whole periods (`_all_traffic`)
    memo: dict[tuple[object, ...], PortCycles] = field(default_factory=dict)


def clock(reading: Reading, arch: Arch, steady: bool = True) -> Clock:
    """Returns the clock of one nest on one machine: a step per link, and rates of ports.

    A step has a window if the loop right above its tile's resting position stands below the child's node, and
    its rank shares a dimension of the tensor with another rank.
    steady: the initiation interval is wanted, too
    """
    order = arch.order()
    numbers = {i: number for number, (i, _) in enumerate(reading.sums.loops)}
    steps = []
    for link in reading.sums.links:
        slides = (
            link.child is not None
            and link.rests_at - 1 > link.child_at
            and reading.sums.loops[numbers[link.rests_at - 1]][1].rank not in link.tensor.full()
        )
        steps.append(
            Step(
                link,
                order[link.parent.level],
                order[link.child.level] if link.child else len(arch.levels),
                link.output,
                link.output and link.parent.level in reading.sums.wires.skips,
                numbers[link.rests_at - 1] if slides else -1,
            )
        )
    rates = {
        (v, tensor): rate
        for v, level in enumerate(arch.levels)
        for tensor, n in reading.sums.bits.items()
        if any_nonzero(rate := elem_cycles(level, n))
    }
    return Clock(reading, reading.sums.e, arch, steps, rates, steady)


def port_times(
    reading: Reading, arch: Arch, begun: int = 0, steady: bool = True
) -> tuple[list[PortTimes], Number]:
    """Returns the port times of all levels, outermost first, and the cycles of compute steps: the arguments
    of `latency`.

    begun: levels start empty in every iteration of the loops above this position
    steady: False leaves numbers that only the initiation interval needs at NaN
    """
    return _inside(clock(reading, arch, steady), 0, Span(reading.sums.all_trips, begun))


def first_fills(
    reading: Reading, arch: Arch, wanted: Collection[tuple[str, str]]
) -> dict[int, dict[tuple[int, str], Number]]:
    """Returns, by level and (level, port), the time of the very first fills that come from the outermost
    level, for levels that start empty only once.

    wanted: (level, tensor) of the nodes whose fills count
    """
    c = clock(reading, arch)
    span, found = Span(reading.sums.all_trips, 0), {}
    for v in range(1, len(arch.levels)):
        own = [
            s for s in _nodes(c, v) if s.parent == 0 and (arch.levels[v].name, s.link.tensor.tensor) in wanted
        ]
        work = _at_ends(c, span, own, "fill")
        found[v] = {key: largest(0.0, *cycles) for key, cycles in work.items()}
        begun = max([0, *(s.link.rests_at for s in _nodes(c, v))])
        if (
            not arch.levels[v].double_buffer
            and c.reading.total([Term(1, passes(reading.sums, begun, False, span.trips_counted))]) > 1
        ):
            break  # levels further inside start empty in each of its rounds
    return {v: ports for v, ports in found.items() if ports}


def _inside(c: Clock, outermost: int, span: Span) -> tuple[list[PortTimes], Number]:
    """Returns the port times from level `outermost` inward, and the compute steps, in these periods. Each
    period starts with empty levels.
    """
    found, begun = [], span
    for v in range(outermost, len(c.arch.levels)):
        found.append(_level(c, v, begun))
        if not c.arch.levels[v].double_buffer:
            begun = replace(begun, above=max([begun.above, *(s.link.rests_at for s in _nodes(c, v))]))
    return found, _compute(c, span)


def _compute(c: Clock, span: Span) -> Number:
    """Returns the cycles of compute steps in these periods."""
    s = c.reading.sums
    whole = max((i + 1 for i, _ in s.loops), default=0)
    ops, own = (
        c.reading.total([Term(nonzero_share(c.e), passes(s, whole, all_pes, span.trips_counted))])
        for all_pes in (True, False)
    )
    return op_cycles(ops, own, c.e, c.arch)


def _nodes(c: Clock, v: int) -> list[Step]:
    """Returns the steps whose child is a node at level v."""
    return [s for s in c.steps if s.child == v and s.link.child]


def _flow(c: Clock, s: Step, kind: Traffic, trips_counted: TripsCounted) -> PortCycles:
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
            "access": [(s.parent, "read", serves, s.skips), *[(s.parent, "write", writes, False)] * s.output],
        }
        for v, action, side, skips in ends[kind]:
            if (v, tensor) in c.rates:
                terms = side(c.reading.sums, s.link, True, trips_counted)
                if skips:
                    terms = (*terms, *side(c.reading.sums, s.link, True, trips_counted, True))
                moved = [n * c.rates[v, tensor] for n in c.reading.by_instance(terms)]
                found = _total([found, {(v, port(c.arch.levels[v], action)): moved}])
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


def _edge_traffic(c: Clock, s: Step, kind: Traffic, span: Span, b: int) -> PortCycles:
    """Returns the fills of tiles that start at the start of an iteration of the loops above position b; of
    kind "drain", the drains of tiles that end at its end.
    """
    only = AND_LAST if kind == "drain" else AND_FIRST
    end = max(s.link.rests_at, span.above)
    return _flow(
        c,
        s,
        kind,
        tuple(
            only[counted] if b <= i < end else counted
            for counted, (i, _) in zip(span.trips_counted, c.reading.sums.loops, strict=True)
        ),
    )


def _edges_of_periods(c: Clock, s: Step, kind: Traffic, span: Span) -> PortCycles:
    """Returns the first fills, or last drains, of all periods."""
    return _edge_traffic(c, s, kind, span, min(s.link.rests_at, span.above))


def _at_ends(c: Clock, span: Span, steps: Sequence[Step], kind: Traffic) -> PortCycles:
    """Returns the first fills, or last drains, of several links."""
    return _total(_edges_of_periods(c, s, kind, span) for s in steps)


def _directions(s: Step) -> tuple[Traffic, ...]:
    return ("fill", "drain") if s.output else ("fill",)


def _all_traffic(c: Clock, s: Step, span: Span) -> PortCycles:
    """Returns all traffic of a link in the periods."""
    # span.above matters only for tiles that rest above it
    key = (
        s.link.tensor.tensor,
        s.link.child_at,
        span.trips_counted,
        span.above if s.link.rests_at <= span.above else -1,
    )
    if key not in c.memo:
        if s.link.child is None:
            c.memo[key] = _flow(c, s, "access", span.trips_counted)
        elif s.link.rests_at <= span.above:
            c.memo[key] = _total(_edges_of_periods(c, s, kind, span) for kind in _directions(s))
        else:
            c.memo[key] = _total(_flow(c, s, kind, span.trips_counted) for kind in _directions(s))
    return c.memo[key]


def _between(c: Clock, s: Step, kind: Traffic, span: Span) -> PortCycles:
    """Returns all fills except the first ones, or all drains except the last ones."""
    return (
        {}
        if s.link.rests_at <= span.above
        else _minus(_flow(c, s, kind, span.trips_counted), _edges_of_periods(c, s, kind, span))
    )


def _changes(
    c: Clock, span: Span, above: int | None, below: int, steps: Sequence[Step], kind: Traffic
) -> PortCycles:
    """Returns the fills, or drains, of tiles that change where a loop at positions above..below-1 advances
    and no loop further out does. above None: also the fills at the very start, or drains at the very end.
    """
    at = _total(_edge_traffic(c, s, kind, span, below) for s in steps)
    return at if above is None else _minus(at, _total(_edge_traffic(c, s, kind, span, above) for s in steps))


def _level(c: Clock, v: int, span: Span) -> PortTimes:
    """Returns the port times of level v."""
    nodes, double = _nodes(c, v), c.arch.levels[v].double_buffer
    crossing = _total(_all_traffic(c, s, span) for s in c.steps if s.child > v)
    moving = _total(_all_traffic(c, s, span) for s in nodes)
    outputs = [s for s in nodes if s.output]
    found = PortTimes(
        double=double,
        restarts=c.reading.total([Term(1, passes(c.reading.sums, span.above, False, span.trips_counted))])
        if c.steady
        else nan,
        busy=_busiest({key: n for key, n in _total([crossing, moving]).items() if key[0] == v}),
        serve=_busiest(_at_or_outside(crossing, v)),
        first=_edge_time(c, nodes, "fill", span),
        last=_edge_time(c, nodes, "drain", span),
        all_transfers=nan,
    )
    if double:
        between = _total(_between(c, s, kind, span) for s in nodes for kind in _directions(s))
        return replace(
            found,
            between=_busiest(between),
            all_transfers=_busiest(moving),
            one_port=_busiest(_at_or_outside(_total([crossing, between]), v)),
            double_buffer_time=_double_buffer_time(c, v, nodes, span, between),
            returning=_returning(c, outputs, span),
        )
    between = _exchanges(c, nodes, span)
    at_ends = partial(_at_ends, c, span)
    return replace(
        found, between=between, all_transfers=between + _exchange(nodes, at_ends) if c.steady else nan
    )


def _edge_time(c: Clock, nodes: Sequence[Step], kind: Traffic, span: Span) -> Number:
    """Returns the time of first fills, or last drains. Nodes that change together transfer in parallel; tiles
    that rest above the position at which periods begin change in some periods only.
    """
    edges = [*sorted({s.link.rests_at for s in nodes if s.link.rests_at < span.above}), span.above]
    found: Number = 0.0
    for above, below in zip([None, *edges], edges, strict=False):
        found = found + _busiest(
            _changes(
                c,
                span,
                above,
                below,
                [s for s in nodes if s.link.rests_at >= below and kind in _directions(s)],
                kind,
            )
        )
    return found


def _exchanges(c: Clock, nodes: Sequence[Step], span: Span) -> Number:
    """Returns the time of the exchanges of a single-buffered level inside the periods, summed over kinds: the
    sets of nodes that change together.
    """
    edges = sorted({s.link.rests_at for s in nodes if s.link.rests_at > span.above})
    found: Number = 0.0
    for above, below in zip([span.above, *edges], edges, strict=False):
        here = [s for s in nodes if s.link.rests_at >= below]
        found = found + _exchange(here, partial(_changes, c, span, above, below))
    return found


def _exchange(nodes: Sequence[Step], work: Callable[[Sequence[Step], Traffic], PortCycles]) -> Number:
    """Returns `exchange_cycles` of nodes that change together.

    work: returns the fills, or the drains, of some of these nodes
    """
    outputs = [s for s in nodes if s.output]
    drains = work(outputs, "drain")
    return exchange_cycles(
        _busiest(_total([drains, work(nodes, "fill")])), _busiest(drains), _busiest(work(outputs, "fill"))
    )


def _inner_time(c: Clock, v: int, span: Span) -> Number:
    """Returns the time of everything inside level v in these periods."""
    return largest(
        latency(*_inside(c, v + 1, span)),
        _busiest(_at_or_outside(_total(_all_traffic(c, s, span) for s in c.steps if s.child > v), v)),
    )


def _round(c: Clock, span: Span, end: int, only: dict[int, int]) -> Span:
    """Returns the first (AND_FIRST) or last (AND_LAST) iteration of the temporal loops above `end` in each
    period.
    """
    return Span(
        tuple(
            only[counted] if span.above <= i < end else counted
            for counted, (i, _) in zip(span.trips_counted, c.reading.sums.loops, strict=True)
        ),
        end,
    )


def _rounds(c: Clock, span: Span, end: int, most: bool = False) -> Number:
    """Returns the fewest (most: the most) iterations of the temporal loops above `end` in a period."""
    return c.reading.total([Term(1, rounds(c.reading.sums, span.above, end, span.trips_counted, most))])


def _double_buffer_time(c: Clock, v: int, nodes: Sequence[Step], span: Span, between: PortCycles) -> Number:
    """Returns `double_buffer_cycles` of the busiest port. Heads and tails are closed forms of the inside in
    those rounds.
    """
    deepest = max((s.link.rests_at for s in nodes), default=0)
    many = _rounds(c, span, deepest) > 1 if deepest > span.above else False
    if not between or many is False or (isinstance(many, bool) and not many):
        return 0.0
    last = _round(c, span, deepest, AND_LAST)
    tail, late, head = where(many, _inner_time(c, v, last), 0.0), 0.0, 0.0
    drains: PortCycles = {}
    before: PortCycles = {}
    few: Number = True
    for s in (s for s in nodes if s.output and s.link.rests_at > span.above):
        if not any(other.output and other.child > v and other.link.child for other in c.steps):
            late = where(many, _compute(c, last), 0.0)
        first = _round(c, span, s.link.rests_at, AND_FIRST)
        several, few = (
            _rounds(c, span, s.link.rests_at) > 1,
            _rounds(c, span, s.link.rests_at, most=True) <= 2,
        )
        head = where(several, _inner_time(c, v, first), 0.0)
        drains = _between(c, s, "drain", span)
        before = drains if c.e.output.partial() else _flow(c, s, "drain", first.trips_counted)
    found: Number = 0.0
    for key, cycles in between.items():
        for i, n in enumerate(cycles):
            drained, ended = (work[key][i] if key in work else 0.0 for work in (drains, before))
            ended = where(few, drained, _minimum(ended, drained))
            found = largest(
                found,
                where(
                    n > 0,
                    double_buffer_cycles(
                        n, drained, ended, head, where(few, tail, where(drained > 0, late, tail)), late
                    ),
                    0.0,
                ),
            )
    return found


def _minimum(a: Number, b: Number) -> Number:
    return -largest(-a, -b)


def _returning(c: Clock, outputs: Sequence[Step], span: Span) -> Number:
    """Returns the time of output tiles that come straight back: a loop advances whose rank the output lacks,
    and each loop further inside over a rank of the output has one trip.
    """
    turns = [
        (s, number)
        for s in outputs
        for number, (i, loop) in enumerate(c.reading.sums.loops)
        if not loop.over and span.above <= i < s.link.rests_at and loop.rank not in s.link.seen
    ]
    return _busiest(_total(_reuse_turn(c, s, "drain", LAST, span, number) for s, number in turns)) + _busiest(
        _total(_reuse_turn(c, s, "fill", FIRST, span, number) for s, number in turns)
    )


def _reuse_turn(c: Clock, s: Step, kind: Traffic, end: int, span: Span, number: int) -> PortCycles:
    """Returns the drains before (or fills after) the advance of loop `number`, whose next trip needs the same
    output tile.
    """
    trips_counted = [
        counted if j <= number or i >= s.link.rests_at else ONLY if loop.rank in s.link.seen else end
        for j, (counted, (i, loop)) in enumerate(zip(span.trips_counted, c.reading.sums.loops, strict=True))
    ]
    every = _flow(c, s, kind, tuple(trips_counted))
    trips_counted[number] = end
    return _minus(every, _flow(c, s, kind, tuple(trips_counted)))
