"""Cycles of one einsum from the port times of its levels: the one roll-up of what ports do to a latency
(docs/model.md, Time).

Port times are sums over the whole einsum of the busiest port at a level or outside of it. From the inside
out, with I the time in which all inside a level is done, summed over all times that the level starts empty:

    I = stopped = steps; then per level
        I = max(I, serve)                             what enters or leaves the inside keeps ports busy
        single:  I, stopped += first + between + last         nothing inside runs while a tile is exchanged
        double:  I = first + max(I, shared, paced) + last;  stopped += first + back + last
        I = max(I, stopped)
    latency = I + ramp

A walk in time (tests/timed.py) is never faster, and as fast where all rounds are alike and no port is wanted
by two at once. Why each term is a lower bound, where it is more than max(move, first + last) and max(I +
first + last, move + tail):
* first, last, between (single): transfers of one exchange go side by side as ports allow, but an output
  leaves its room before the next one comes. Exchanges of different tensors come at different times: a sum
  over kinds, each at least its busiest port.
* shared: after its first fills and before its last drains, a double-buffered level's port (and its parent's)
  also serves the inside.
* paced, by fills: the last round starts after all fills. While it works only the drain before the last may
  still move, the ones before it had to make room: the rest of the round is waited for; only steps that write
  that room, where drains keep the port. By drains: none starts before the first round of the output has
  ended; the steps of its last round wait as before.
* back: an output tile that leaves and is the next one again comes back after it has left: no step runs
  meanwhile, at no level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

Number = Any  # cycles of one mapping, or an array of one per mapping


@dataclass(frozen=True, slots=True)
class PortTimes:
    """One storage level in cycles; all but restarts are summed over restarts.

    restarts: how often the level starts empty: rounds of the single-buffered levels outside of it, 1 if there
    is none. busy: its own port, all traffic of its busiest instance. serve: what enters or leaves the inside.
    first: fills before the inside starts; last: drains after it ended; between: all others (single:
    `exchange_cycles`). Each is a sum over kinds of boundaries, by which tensors change there; between of a
    double-buffered level is its busiest port. move: all fills and drains of one of many equal einsums in
    turn; single: between, and the exchange from one to the next. shared, paced, back (double): between and
    serve on one port; `double_buffer_cycles` of the busiest; output tiles that come straight back.
    """

    double: bool
    restarts: Number
    busy: Number
    serve: Number
    first: Number = 0.0
    last: Number = 0.0
    between: Number = 0.0
    move: Number = 0.0
    one_port: Number = 0.0
    double_buffer_time: Number = 0.0
    back: Number = 0.0


def largest(*found: Number) -> Number:
    """Of numbers, or place by place of arrays."""
    return reduce(np.maximum, found) if any(isinstance(one, np.ndarray) for one in found) else max(found)


def where(condition: Number, then: Number, other: Number) -> Number:
    """Of one mapping, or place by place of many."""
    return (
        np.where(condition, then, other)
        if isinstance(condition, np.ndarray)
        else then
        if condition
        else other
    )


def any_nonzero(number: Number) -> bool:
    """Whether it is not 0, of one mapping, or of any of many."""
    return bool(number.any() if isinstance(number, np.ndarray) else number)


def latency(levels: Sequence[PortTimes], steps: Number, ramp: Number = 0.0, steady: bool = False) -> Number:
    """Cycles of an einsum. levels: outermost first; steps: cycles of the busiest lane's operations; systolic:
    a systolic array's.

    steady: of one of many equal einsums in turn; what starts once is filled for the next one meanwhile, if it
    has room.
    """
    inside = stopped = steps  # stopped: steps, and moves during which no step runs
    for level in reversed(levels):
        once = level.restarts == 1 if steady else False
        first, last = (where(once, 0.0, cycles) for cycles in (level.first, level.last))
        inside = largest(inside, level.serve)
        if level.double:
            inside = (
                first
                + largest(inside, level.one_port, where(once, level.move, level.double_buffer_time))
                + last
            )
            stopped = stopped + first + level.back + last
        else:
            exchanged = first + where(once, level.move, level.between) + last
            inside, stopped = inside + exchanged, stopped + exchanged
        inside = largest(inside, stopped)
    return largest(inside, *(level.busy for level in levels)) + ramp


def free(levels: Sequence[PortTimes], steps: Number, ramp: Number = 0.0) -> Number:
    """Cycles where fills overlap without doubled room and none is waited for (`overlap: free`): the largest
    busy time.

    At most `latency` of the same levels, which is the larger of it and another number: a bound for searches.
    """
    return largest(steps, *(level.busy for level in levels)) + ramp


def exchange_cycles(port: Number, drains: Number, back: Number) -> Number:
    """Least time of the exchanges of a single-buffered level that change the same tensors.

    port: all that its busiest port moves then; drains, back: of the output what leaves, and what comes into
    the same room.
    """
    return largest(port, drains + back)


def double_buffer_cycles(
    between: Number, drains: Number, before: Number, head: Number, tail: Number, steps: Number
) -> Number:
    """Least time from the first fills of a double-buffered level to its last drains, by what one port moves
    for it meanwhile.

    between: port time of all but first fills and last drains; of it drains, and of them (at most) before: of
    the drain before the last. head, tail (at least): time of the inside in the first round of the output, and
    in the last round of the level; of that steps, if they write the output there; 0 where that round is the
    only one.
    """
    # what drains leave no room for are steps, not the fills inside
    first = where(drains <= before, tail, steps)
    return largest(
        between + largest(first - before, 0), where(drains > 0, head + drains + largest(steps - before, 0), 0)
    )
