"""Minimum main-memory traffic of a list of single accesses, by a linear program; a lower bound that proves
it; and the words that one more word of buffer would save.

Between an access of a tensor and its next read, x of its words stay on chip. A word that does not stay is
read again; if it was made on chip and is not an output, it is also written once. All words that stay at one
time must fit.

The optimum is a lower bound for every policy: whatever words a policy retains, their numbers per tensor
satisfy these constraints at the same cost. It is attained by retaining the first x words of each tensor.
Space that an access itself needs is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.solve.gogeta.accesses import AccessList
from workloads.arrays import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csc_array

Block = tuple[Ints, Ints, Floats | float]  # entries of a matrix: rows, columns, values
EDGE = 2  # number of periods at each end that have variables of their own; all periods between them are equal


@dataclass(frozen=True, slots=True)
class RetainedSpan:
    """Words of a tensor that stay on chip from one access to the next read."""

    tensor: str
    first: int  # access (or phase) at the beginning
    last: int  # access (or phase) that reads the tensor
    words: float  # that stay
    size: int  # words of the whole tensor


@dataclass(frozen=True, slots=True)
class Optimum:
    """Minimum traffic of a list of accesses."""

    cost: float  # main-memory words
    bound: float  # lower bound on the cost of all policies, in closed form from the dual prices of space
    saved: float  # words that one more word of buffer saves
    spans: tuple[RetainedSpan, ...]


@dataclass(frozen=True, slots=True)
class _Intervals:
    """All intervals from an access of a tensor to its next read."""

    tensors: tuple[str, ...]
    first: Ints  # [intervals] access at the beginning
    last: Ints  # [intervals] access that reads
    size: Ints  # [intervals] words of the tensor
    value: Ints  # [intervals] number of the tensor
    read: Ints  # [intervals] position of the tensor among the reads of access `last`
    made: Ints  # [tensors] access that makes it, -1: it comes from outside
    spills: Ints  # [tensors] words written if none stay; 0: from outside, or outputs (always written)
    fixed: int  # words of first reads and outputs, which retention cannot save


def _intervals(listed: AccessList) -> _Intervals:
    """Returns the intervals of a list of accesses."""
    at: dict[str, int] = {}
    made: dict[str, int] = {}
    numbers: dict[str, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    fixed = sum(listed.words[t] for t in listed.outputs)
    for i, a in enumerate(listed.accesses):
        for k, t in enumerate(a.read):
            if t in at:
                rows.append((at[t], i, listed.words[t], numbers.setdefault(t, len(numbers)), k))
            else:
                fixed += listed.words[t]
            at[t] = i
        for t in a.written:
            at[t] = made[t] = i
    first, last, size, value, read = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    births = np.array([made.get(t, -1) for t in numbers], dtype=np.int64)
    spills = np.array(
        [listed.words[t] if t in made and t not in listed.outputs else 0 for t in numbers], dtype=np.int64
    )
    return _Intervals(tuple(numbers), first, last, size, value, read, births, spills, fixed)


@dataclass(frozen=True, slots=True)
class _Program:
    """A linear program over the intervals of a list."""

    listed: AccessList
    q: _Intervals
    capacity: int  # words
    weight: Floats  # [intervals] number of reads that each stands for
    spill: Floats  # [tensors] number of writes that each stands for
    scale: Floats  # [intervals] number of times that each takes space
    tied: Ints  # [intervals] intervals with equal entries share a variable
    # two successive periods that need to fit only on average: (first access, accesses per period, number of
    # periods for which the two stand)
    mean: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The solution of a linear program."""

    value: float  # words spilled minus words saved by retention
    stay: Floats  # [intervals] words that stay
    prices: Floats  # [accesses] dual price of one word of space after each access


def optimum(listed: AccessList, capacity: int) -> Optimum:
    """Returns the minimum cost of a list of accesses with a buffer of so many words."""
    q = _intervals(listed)
    ones, every = np.ones(len(q.first)), np.arange(len(q.first))
    found = _solve(_Program(listed, q, capacity, ones, np.ones(len(q.spills)), ones, every))
    return _to_optimum(q, ones, found, _bound(listed, q, capacity, found.prices), every)


def steady(lists: Callable[[int], AccessList], periods: int, capacity: int) -> Optimum:
    """Returns the minimum cost of many equal periods; a thousand take as long to solve as ten.

    Two middle periods stand for all periods but EDGE at each end: the second for the last one of these, the
    first for the others.

    lists: returns the accesses of a given number of periods.

    Of the result, `cost` is that of a solution in which both middle periods retain the same words, so it
    holds for any number of periods. `bound` is from a program in which the two need to fit only on average.
    If both are equal, the cost is the optimum. `spans` are those of one middle period.
    """
    few = 2 * EDGE + 2
    if periods <= few:
        return optimum(lists(periods), capacity)
    listed, less = lists(few), lists(few - 1)
    q, per, between = _intervals(listed), listed.per, periods - 2 * EDGE
    times = np.where(np.arange(few) == EDGE, between - 1.0, 1.0)
    first, last, made = q.first // per, q.last // per, np.where(q.made < 0, -1, q.made // per)
    spill, tied = times[made], shared(list(zip(q.first, q.last, q.read, strict=True)), per)
    found = _solve(_Program(listed, q, capacity, times[last], spill, np.ones(len(last)), tied))
    scale, every = np.where(made[q.value] < 0, times[first], spill[q.value]), np.arange(len(last))
    relaxed = _solve(_Program(listed, q, capacity, scale, spill, scale, every, (EDGE * per, per, between)))
    fewer = np.concatenate((relaxed.prices[: EDGE * per], relaxed.prices[(EDGE + 1) * per :]))
    bound, before = _bound(listed, q, capacity, relaxed.prices), _intervals(less)
    grown = bound - _bound(less, before, capacity, fewer)  # bound of each further period, at the same prices
    q = replace(q, fixed=q.fixed + (periods - few) * (q.fixed - before.fixed))
    return _to_optimum(q, times[last], found, bound + (periods - few) * grown, np.flatnonzero(last == EDGE))


def shared(places: Sequence[tuple[int, int, int]], per: int) -> Ints:
    """Returns for every interval the number of the interval with which it shares a variable: for one that
    touches both middle periods, the same interval shifted by as many periods as possible; for others itself.

    places: (access at its beginning, access that reads, position among the reads of that access); per:
        accesses of a period
    """
    number = {place: i for i, place in enumerate(places)}
    found = []
    for i, (first, last, k) in enumerate(places):
        while EDGE - 1 <= first // per <= EDGE <= last // per <= EDGE + 1:
            first, last = first + per, last + per
        found.append(number.get((first, last, k), i))
    return np.array(found, dtype=np.int64)


def _to_optimum(q: _Intervals, weight: Floats, found: _Answer, bound: float, shown: Ints) -> Optimum:
    cost = q.fixed + float((weight * q.size).sum() + found.value)
    stays = tuple(
        RetainedSpan(
            q.tensors[q.value[i]], int(q.first[i]), int(q.last[i]), float(found.stay[i]), int(q.size[i])
        )
        for i in shown
    )
    return Optimum(cost, bound, float(found.prices.sum()), stays)


def _solve(p: _Program) -> _Answer:
    """Returns the solution of a linear program.

    Variables are words of each interval, words that each tensor spills, and words on chip after each access.
    The last ones are given by those after the access before and by the intervals that begin or end there. So
    every column has few entries, and the prices of space are the duals of the upper bounds of the last
    variables.
    """
    q, gaps = p.q, len(p.listed.accesses)
    own, column = np.unique(p.tied, return_inverse=True)
    spilling = np.flatnonzero(q.spills > 0)
    n_x, start = len(own), len(own) + len(spilling)
    costs = np.zeros(start + gaps)
    np.add.at(costs, column, -p.weight)
    costs[n_x:start] = p.spill[spilling]
    first, per, many = p.mean
    room, joint = _capacity_rows(p.listed, p.capacity), np.arange(first, first + per)
    free = room.copy()
    free[joint] = free[joint + per] = np.inf
    held = start + np.arange(gaps)
    balance: list[Block] = [
        (held - start, held, 1.0),
        (held[1:] - start, held[:-1], -1.0),
        (q.first, column, -p.scale),
        (q.last, column, p.scale),
    ]
    number = np.full(len(q.spills), -1)
    number[spilling] = np.arange(len(spilling))
    spills = np.flatnonzero(number[q.value] >= 0)  # spilled + stays >= size
    rows, pairs = np.arange(len(spills)), start + joint
    # words on chip in the two averaged periods <= space of all periods that they stand for
    averaged = len(spills) + np.arange(per)
    upper: list[Block] = [
        (rows, n_x + number[q.value[spills]], -1.0),
        (rows, column[spills], -1.0),
        (averaged, pairs, 1.0),
        (averaged, pairs + per, 1.0),
    ]
    solved = least(
        costs,
        sparse(upper, len(spills) + per, len(costs)),
        np.concatenate((-q.size[spills], many * room[joint])),
        sparse(balance, gaps, len(costs)),
        np.concatenate((q.size[own], q.spills[spilling], free)),
        f"{gaps} accesses in {p.capacity} words",
    )
    prices = -solved.upper.marginals[start:]
    prices[joint] = prices[joint + per] = -solved.ineqlin.marginals[len(spills) :]
    return _Answer(float(solved.fun), solved.x[:n_x][column], np.maximum(prices, 0.0))


def least(
    costs: Sequence[float] | Floats,
    rows: csc_array,
    limit: Floats,
    balance: csc_array,
    upper: Floats,
    of: str,
) -> Any:
    """Returns SciPy's answer to: minimise costs * x, rows * x <= limit, balance * x = 0, 0 <= x <= upper. of:
    the problem, for the message of the RuntimeError that is raised if there is no answer.
    """
    # imported here since the import is slow and few runs need it
    from scipy.optimize import linprog  # type: ignore[attr-defined, unused-ignore]

    none, box = np.zeros(balance.shape[0]), np.column_stack((np.zeros(len(upper)), upper))
    found = linprog(costs, rows, limit, balance, none, box, method="highs")  # type: ignore[no-untyped-call, unused-ignore]
    if found.status != 0:
        raise RuntimeError(f"residency of {of}: {found.message}")
    return found


def sparse(entries: Sequence[Block], rows: int, columns: int) -> csc_array:
    """Returns a sparse matrix from blocks of (rows, columns, values)."""
    from scipy.sparse import csc_array

    values = np.concatenate([np.broadcast_to(value, row.shape) for row, _, value in entries])
    at = np.concatenate([row for row, _, _ in entries]), np.concatenate([column for _, column, _ in entries])
    return csc_array((values, at), shape=(rows, columns))  # type: ignore[no-untyped-call, unused-ignore]


def _capacity_rows(listed: AccessList, capacity: int) -> Floats:
    """Returns the words [accesses] that may stay on chip after each access. Resident words of a phase take
    space between the accesses of the phase.
    """
    held = np.array([a.resident_words for a in listed.accesses])
    room = np.full(len(held), float(capacity))
    room[:-1] = np.maximum(0.0, room[:-1] - np.minimum(held[:-1], held[1:]))
    return room


def _bound(listed: AccessList, q: _Intervals, capacity: int, prices: Floats) -> float:
    """Returns a lower bound on the cost of any retention, valid for any prices >= 0 (Lagrange).

    Retained words pay a price for their space instead of having to fit, so the minimum is taken tensor by
    tensor: a tensor that may spill stays whole all the time, or is written and stays only where that pays.
    """
    paid = np.concatenate(([0.0], np.cumsum(prices)))
    net = paid[q.last] - paid[q.first] - 1.0
    always, where = np.zeros(len(q.tensors)), np.zeros(len(q.tensors))
    np.add.at(always, q.value, q.size * net)
    np.add.at(where, q.value, q.size * np.minimum(net, 0.0))
    words = np.where(q.spills > 0, np.minimum(always, q.spills + where), where)
    return float(q.fixed + q.size.sum() + words.sum() - (prices * _capacity_rows(listed, capacity)).sum())
