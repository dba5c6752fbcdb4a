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
# number of periods at each end that have variables of their own; all periods between them are equal
EDGE_PERIODS = 2


@dataclass(frozen=True, slots=True)
class RetainedSpan:
    """Words of a tensor that stay on chip from one access to the next read."""

    tensor: str
    first: int  # access (or phase) at the beginning
    last: int  # access (or phase) that reads the tensor
    words: float  # that stay
    size: int  # words of the whole tensor
    # words that the space of one word would save elsewhere (shadow price; `retention` only)
    price: float = 0.0
    spills: bool = False  # whether a word that leaves the chip is written for it (`retention` only)


@dataclass(frozen=True, slots=True)
class Optimum:
    """Minimum traffic of a list of accesses."""

    cost: float  # main-memory words
    bound: float  # lower bound on the cost of all policies, in closed form from the dual prices of space
    saved_per_word: float  # words that one more word of buffer saves
    spans: tuple[RetainedSpan, ...]


@dataclass(frozen=True, slots=True)
class _Intervals:
    """All intervals from an access of a tensor to its next read."""

    tensors: tuple[str, ...]
    first: Ints  # [intervals] access at the beginning
    last: Ints  # [intervals] access that reads
    size: Ints  # [intervals] words of the tensor
    tensor_number: Ints  # [intervals] number of the tensor
    read: Ints  # [intervals] position of the tensor among the reads of access `last`
    made_at: Ints  # [tensors] access that makes it, -1: it comes from outside
    spill_words: Ints  # [tensors] words written if none stay; 0: from outside, or outputs (always written)
    fixed_words: int  # words of first reads and outputs, which retention cannot save


def _intervals(listed: AccessList) -> _Intervals:
    """Returns the intervals of a list of accesses."""
    last_access: dict[str, int] = {}
    made_at: dict[str, int] = {}
    numbers: dict[str, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    fixed = sum(listed.words[t] for t in listed.outputs)
    for i, a in enumerate(listed.accesses):
        for k, t in enumerate(a.read):
            if t in last_access:
                rows.append((last_access[t], i, listed.words[t], numbers.setdefault(t, len(numbers)), k))
            else:
                fixed += listed.words[t]
            last_access[t] = i
        for t in a.written:
            last_access[t] = made_at[t] = i
    first, last, size, tensor_number, read = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    makers = np.array([made_at.get(t, -1) for t in numbers], dtype=np.int64)
    spill_words = np.array(
        [listed.words[t] if t in made_at and t not in listed.outputs else 0 for t in numbers], dtype=np.int64
    )
    return _Intervals(tuple(numbers), first, last, size, tensor_number, read, makers, spill_words, fixed)


@dataclass(frozen=True, slots=True)
class _Program:
    """A linear program over the intervals of a list."""

    listed: AccessList
    intervals: _Intervals
    capacity: int  # words
    reads: Floats  # [intervals] number of reads that each stands for
    writes: Floats  # [tensors] number of writes that each stands for
    # [intervals] number of periods whose words take its space: 1; in the averaged program those for which the
    # period stands in which the interval begins (of a made tensor: in which it was made)
    space_times: Floats
    variable_of: Ints  # [intervals] intervals with equal entries share a variable
    # two successive periods that need to fit only on average: (first access, accesses per period, number of
    # periods for which the two stand)
    averaged: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The solution of a linear program."""

    value: float  # words spilled minus words saved by retention
    retained_words: Floats  # [intervals] words that stay
    prices: Floats  # [accesses] dual price of one word of space after each access


def optimum(listed: AccessList, capacity: int) -> Optimum:
    """Returns the minimum cost of a list of accesses with a buffer of so many words."""
    intervals = _intervals(listed)
    ones, all_intervals = np.ones(len(intervals.first)), np.arange(len(intervals.first))
    found = _solve(
        _Program(listed, intervals, capacity, ones, np.ones(len(intervals.spill_words)), ones, all_intervals)
    )
    return _to_optimum(
        intervals, ones, found, _bound(listed, intervals, capacity, found.prices), all_intervals
    )


def steady(lists: Callable[[int], AccessList], periods: int, capacity: int) -> Optimum:
    """Returns the minimum cost of many equal periods; a thousand take as long to solve as ten.

    EDGE_PERIODS at each end are solved as they are. Of the n periods between, two are solved: the first
    stands for n - 1 of them, the second for the last.

    lists: returns the accesses of a given number of periods.

    Of the result, `cost` is that of a solution in which both middle periods retain the same words, so it
    holds for any number of periods. `bound` is from a program in which the two need to fit only on average.
    If both are equal, the cost is the optimum. `spans` are those of one middle period.
    """
    few_periods = 2 * EDGE_PERIODS + 2
    if periods <= few_periods:
        return optimum(lists(periods), capacity)
    listed, one_less = lists(few_periods), lists(few_periods - 1)
    intervals, per_period, middle_periods = (
        _intervals(listed),
        listed.accesses_per_period,
        periods - 2 * EDGE_PERIODS,
    )
    # number of periods for which each of the few stands
    stands_for = np.where(np.arange(few_periods) == EDGE_PERIODS, middle_periods - 1.0, 1.0)
    first, last, made_period = (
        intervals.first // per_period,
        intervals.last // per_period,
        np.where(intervals.made_at < 0, -1, intervals.made_at // per_period),
    )
    writes, variable_of = (
        stands_for[made_period],
        tied_intervals(list(zip(intervals.first, intervals.last, intervals.read, strict=True)), per_period),
    )
    found = _solve(
        _Program(listed, intervals, capacity, stands_for[last], writes, np.ones(len(last)), variable_of)
    )
    space_times, all_intervals = (
        np.where(
            made_period[intervals.tensor_number] < 0, stands_for[first], writes[intervals.tensor_number]
        ),
        np.arange(len(last)),
    )
    relaxed = _solve(
        _Program(
            listed,
            intervals,
            capacity,
            space_times,
            writes,
            space_times,
            all_intervals,
            (EDGE_PERIODS * per_period, per_period, middle_periods),
        )
    )
    fewer_prices = np.concatenate(
        (relaxed.prices[: EDGE_PERIODS * per_period], relaxed.prices[(EDGE_PERIODS + 1) * per_period :])
    )
    bound, fewer_intervals = _bound(listed, intervals, capacity, relaxed.prices), _intervals(one_less)
    # bound of each further period, at the same prices
    bound_per_period = bound - _bound(one_less, fewer_intervals, capacity, fewer_prices)
    intervals = replace(
        intervals,
        fixed_words=intervals.fixed_words
        + (periods - few_periods) * (intervals.fixed_words - fewer_intervals.fixed_words),
    )
    return _to_optimum(
        intervals,
        stands_for[last],
        found,
        bound + (periods - few_periods) * bound_per_period,
        np.flatnonzero(last == EDGE_PERIODS),
    )


def tied_intervals(places: Sequence[tuple[int, int, int]], per_period: int) -> Ints:
    """Returns for every interval the number of the interval with which it shares a variable, so that both
    middle periods retain the same. An interval is shifted by one period as long as it begins in the first
    middle period or the one before, and ends in a middle period. Others, and those whose shifted interval is
    none of the list, have variables of their own.

    places: (access at its beginning, access that reads, position among the reads of that access); per_period:
        accesses of a period
    """
    number = {place: i for i, place in enumerate(places)}
    found = []
    for i, (first, last, k) in enumerate(places):
        while (
            EDGE_PERIODS - 1 <= first // per_period <= EDGE_PERIODS <= last // per_period <= EDGE_PERIODS + 1
        ):
            first, last = first + per_period, last + per_period
        found.append(number.get((first, last, k), i))
    return np.array(found, dtype=np.int64)


def _to_optimum(intervals: _Intervals, reads: Floats, found: _Answer, bound: float, shown: Ints) -> Optimum:
    cost = intervals.fixed_words + float((reads * intervals.size).sum() + found.value)
    spans = tuple(
        RetainedSpan(
            intervals.tensors[intervals.tensor_number[i]],
            int(intervals.first[i]),
            int(intervals.last[i]),
            float(found.retained_words[i]),
            int(intervals.size[i]),
        )
        for i in shown
    )
    return Optimum(cost, bound, float(found.prices.sum()), spans)


def _solve(p: _Program) -> _Answer:
    """Returns the solution of a linear program.

    Variables are words of each interval, words that each tensor spills, and words on chip after each access.
    Words on chip after an access are those after the access before, plus words of the intervals that begin at
    it, minus words of those that end at it. So every column has few entries, and the prices of space are the
    duals of the upper bounds of the last variables.
    """
    intervals, access_count = p.intervals, len(p.listed.accesses)
    representatives, column = np.unique(p.variable_of, return_inverse=True)
    spillable = np.flatnonzero(intervals.spill_words > 0)
    first_spill, first_occupancy = len(representatives), len(representatives) + len(spillable)
    costs = np.zeros(first_occupancy + access_count)
    np.add.at(costs, column, -p.reads)
    costs[first_spill:first_occupancy] = p.writes[spillable]
    first, per_period, period_count = p.averaged
    space, averaged_rows = _free_words(p.listed, p.capacity), np.arange(first, first + per_period)
    free = space.copy()
    free[averaged_rows] = free[averaged_rows + per_period] = np.inf
    occupancy = first_occupancy + np.arange(access_count)
    balance: list[Block] = [
        (occupancy - first_occupancy, occupancy, 1.0),
        (occupancy[1:] - first_occupancy, occupancy[:-1], -1.0),
        (intervals.first, column, -p.space_times),
        (intervals.last, column, p.space_times),
    ]
    # [tensors] number among the spillable ones, -1: not spillable
    number = np.full(len(intervals.spill_words), -1)
    number[spillable] = np.arange(len(spillable))
    spills = np.flatnonzero(number[intervals.tensor_number] >= 0)  # spilled + stays >= size
    spill_rows, pairs = np.arange(len(spills)), first_occupancy + averaged_rows
    # words on chip in the two averaged periods <= space of all periods that they stand for
    averaged_limits = len(spills) + np.arange(per_period)
    inequalities: list[Block] = [
        (spill_rows, first_spill + number[intervals.tensor_number[spills]], -1.0),
        (spill_rows, column[spills], -1.0),
        (averaged_limits, pairs, 1.0),
        (averaged_limits, pairs + per_period, 1.0),
    ]
    solved = solve_program(
        costs,
        sparse(inequalities, len(spills) + per_period, len(costs)),
        np.concatenate((-intervals.size[spills], period_count * space[averaged_rows])),
        sparse(balance, access_count, len(costs)),
        np.concatenate((intervals.size[representatives], intervals.spill_words[spillable], free)),
        f"{access_count} accesses in {p.capacity} words",
    )
    prices = -solved.upper.marginals[first_occupancy:]
    prices[averaged_rows] = prices[averaged_rows + per_period] = -solved.ineqlin.marginals[len(spills) :]
    return _Answer(float(solved.fun), solved.x[:first_spill][column], np.maximum(prices, 0.0))


def solve_program(
    costs: Sequence[float] | Floats,
    rows: csc_array,
    limit: Floats,
    balance: csc_array,
    upper: Floats,
    question: str,
    lower: Floats | None = None,
) -> Any:
    """Returns SciPy's answer to: minimise costs * x, rows * x <= limit, balance * x = 0, lower <= x <= upper.
    question: the problem, for the message of the RuntimeError that is raised if there is no answer; lower:
    None: 0.
    """
    # imported here since the import is slow and few runs need it
    from scipy.optimize import linprog  # type: ignore[attr-defined, unused-ignore]

    zeros = np.zeros(balance.shape[0])
    box = np.column_stack((np.zeros(len(upper)) if lower is None else lower, upper))
    found = linprog(costs, rows, limit, balance, zeros, box, method="highs")  # type: ignore[no-untyped-call, unused-ignore]
    if found.status != 0:
        raise RuntimeError(f"residency of {question}: {found.message}")
    return found


def sparse(entries: Sequence[Block], rows: int, columns: int) -> csc_array:
    """Returns a sparse matrix from blocks of (rows, columns, values)."""
    from scipy.sparse import csc_array

    values = np.concatenate([np.broadcast_to(value, row.shape) for row, _, value in entries])
    at = np.concatenate([row for row, _, _ in entries]), np.concatenate([column for _, column, _ in entries])
    return csc_array((values, at), shape=(rows, columns))  # type: ignore[no-untyped-call, unused-ignore]


def _free_words(listed: AccessList, capacity: int) -> Floats:
    """Returns the words [accesses] that may stay on chip after each access. Between two accesses of one
    phase its resident words take space, between two phases the fewer of both: hence the minimum.
    """
    resident_words = np.array([a.resident_words for a in listed.accesses])
    free_words = np.full(len(resident_words), float(capacity))
    free_words[:-1] = np.maximum(0.0, free_words[:-1] - np.minimum(resident_words[:-1], resident_words[1:]))
    return free_words


def _bound(listed: AccessList, intervals: _Intervals, capacity: int, prices: Floats) -> float:
    """Returns a lower bound on the cost of any retention, valid for any prices >= 0 (Lagrange).

    Retained words pay a price for their space instead of having to fit, so the minimum is taken tensor by
    tensor: a tensor that may spill stays whole all the time, or is written and stays only where that pays.
    """
    price_until = np.concatenate(([0.0], np.cumsum(prices)))
    # [intervals] price of the space of a retained word, minus the word that it saves; < 0: retention pays
    net_price = price_until[intervals.last] - price_until[intervals.first] - 1.0
    always_retained, where_it_pays = np.zeros(len(intervals.tensors)), np.zeros(len(intervals.tensors))
    np.add.at(always_retained, intervals.tensor_number, intervals.size * net_price)
    np.add.at(where_it_pays, intervals.tensor_number, intervals.size * np.minimum(net_price, 0.0))
    words = np.where(
        intervals.spill_words > 0,
        np.minimum(always_retained, intervals.spill_words + where_it_pays),
        where_it_pays,
    )
    return float(
        intervals.fixed_words
        + intervals.size.sum()
        + words.sum()
        - (prices * _free_words(listed, capacity)).sum()
    )
