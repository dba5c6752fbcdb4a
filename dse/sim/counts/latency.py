"""Latency of one einsum in cycles, from the port times of its levels (docs/model.md, Time).

Port times are sums over the whole einsum. Let I be the time in which everything inside a level is done,
summed over all times that the level starts empty, and `stopped` the time of compute steps and of all
transfers during which no step runs. From the innermost level outward:

    I = stopped = steps; then per level
        I = max(I, serve)                             the inside's own fills and drains keep ports busy
        single:  I, stopped += first + between + last         nothing inside runs while a tile is exchanged
        double:  I = first + max(I, one_port, double_buffer_time) + last
                 stopped += first + returning + last
        I = max(I, stopped)
    latency = max(I, busy of every level) + ramp

A simulation in time (tests/timed.py) is never faster. It is as fast where all rounds are alike and no port is
wanted by two transfers at once. Why each term is a lower bound:
* first, last, between (single): transfers of one exchange run in parallel as ports allow, but an output
  leaves its space before the next one comes. Exchanges that change different tensors come at different times.
  So this is a sum over kinds of exchange, each at least the time of its busiest port.
* one_port: after its first fills and before its last drains, the port of a double-buffered level (and its
  parent's) also serves the inside.
* double_buffer_time, by fills: the last round (iteration of the loops above the level's tiles) starts after
  all fills. Only the drain before the last may move in it, since earlier drains had to make space. The rest
  of the round is therefore exposed; where drains keep the port busy, only the steps that write the drained
  space are.
* double_buffer_time, by drains: no drain starts before the first round of the output has ended. The steps of
  its last round are exposed as above.
* returning: an output tile that leaves and is also the next one comes back after it has left. No step runs in
  that time, at any level.
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
    """Port times of one storage level, in cycles. All but `restarts` are summed over restarts.

    first, last and between are sums over kinds of exchange; a kind is the set of tensors that change
    together. `between` of a double-buffered level is that of its busiest port instead.
    """

    double: bool  # the level is double-buffered
    restarts: Number  # how often the level starts empty: rounds of the single-buffered levels outside, or 1
    busy: Number  # the level's own port: all traffic of its busiest instance
    # fills, drains and accesses of the inside, on the busiest port of this level or of levels further out
    serve: Number
    first: Number = 0.0  # fills before the inside starts
    last: Number = 0.0  # drains after the inside has ended
    between: Number = 0.0  # all other fills and drains (single: `exchange_cycles`)
    # all fills and drains of one of many equal einsums back to back; single: between, and the exchange from
    # one einsum to the next
    all_transfers: Number = 0.0
    one_port: Number = 0.0  # double: between and serve on one port
    double_buffer_time: Number = 0.0  # double: `double_buffer_cycles` of the busiest port
    returning: Number = 0.0  # double: output tiles that leave and come straight back


def largest(*found: Number) -> Number:
    """Returns the largest number; for arrays, entry by entry."""
    return reduce(np.maximum, found) if any(isinstance(one, np.ndarray) for one in found) else max(found)


def where(condition: Number, then: Number, other: Number) -> Number:
    """Returns one of two numbers by a condition; for arrays, entry by entry."""
    return (
        np.where(condition, then, other)
        if isinstance(condition, np.ndarray)
        else then
        if condition
        else other
    )


def any_nonzero(number: Number) -> bool:
    """True if a number, or any entry of an array, is not 0."""
    return bool(number.any() if isinstance(number, np.ndarray) else number)


def latency(levels: Sequence[PortTimes], steps: Number, ramp: Number = 0.0, steady: bool = False) -> Number:
    """Returns the cycles of an einsum.

    levels: port times, outermost first
    steps: cycles of the operations of the busiest MAC unit
    ramp: cycles in which systolic arrays fill and empty
    steady: returns the initiation interval of equal einsums back to back; a level that starts empty once then
        has `all_transfers` in place of first fills, other transfers and last drains
    """
    inside = stopped = steps  # stopped: steps, and transfers during which no step runs
    for level in reversed(levels):
        starts_once = level.restarts == 1 if steady else False
        first, last = (where(starts_once, 0.0, cycles) for cycles in (level.first, level.last))
        inside = largest(inside, level.serve)
        if level.double:
            inside = (
                first
                + largest(
                    inside, level.one_port, where(starts_once, level.all_transfers, level.double_buffer_time)
                )
                + last
            )
            stopped = stopped + first + level.returning + last
        else:
            exchanged = first + where(starts_once, level.all_transfers, level.between) + last
            inside, stopped = inside + exchanged, stopped + exchanged
        inside = largest(inside, stopped)
    return largest(inside, *(level.busy for level in levels)) + ramp


def exchange_cycles(port: Number, drains: Number, returning: Number) -> Number:
    """Returns a lower bound on the time of those exchanges of a single-buffered level that change the same
    tensors.

    port: traffic of the busiest port in these exchanges
    drains: output tiles that leave
    returning: output tiles that come into the same space
    """
    return largest(port, drains + returning)


def double_buffer_cycles(
    between: Number, drains: Number, before: Number, head: Number, tail: Number, steps: Number
) -> Number:
    """Returns a lower bound on the time from the first fills of a double-buffered level to its last drains,
    by the traffic of one port.

    between: port time without first fills and last drains
    drains: the drains in it
    before: the drain before the last, at most
    head: time of the inside in the first round of the output, at least
    tail: time of the inside in the last round of the level, at least; 0 if that round is the only one
    steps: compute steps of that round if they write the output at this level, otherwise 0
    """
    # where drains keep the port busy, only steps wait for them, not the fills inside
    exposed = where(drains <= before, tail, steps)
    return largest(
        between + largest(exposed - before, 0),
        where(drains > 0, head + drains + largest(steps - before, 0), 0),
    )
