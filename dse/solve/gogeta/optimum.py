"""Minimum main-memory traffic of a list of single accesses, by a linear program; a lower bound that proves
it; and the words that one more word of buffer would save.

Between an access of a tensor and its next read, x of its words stay on chip. A word that does not stay is
read again. If it was made on chip and is not an output, it is also written once. All words that stay at one
time must fit.

The optimum bounds every policy: the retention of single words, summed over the words of a tensor, satisfies
these constraints at the same cost. It is attained by retaining the first x words of each tensor. Space that
an access itself needs is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dse.solve.gogeta.accesses import AccessList
from workloads.arrays import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csc_array

EDGE = 2  # periods at each end that have variables of their own; all periods between them are equal


@dataclass(frozen=True, slots=True)
class BufferLevel:
    """An on-chip level."""

    words: int  # capacity
    cost: float = 0.0  # of reading a word there, relative to reading it from main memory


@dataclass(frozen=True, slots=True)
class RetainedSpan:
    """Words of a tensor that stay in a level from one access to the next read."""

    tensor: str
    first: int  # access (or phase) at the beginning
    last: int  # access (or phase) that reads the tensor
    level: int
    words: float  # that stay
    size: int  # words of the whole tensor


@dataclass(frozen=True, slots=True)
class Optimum:
    """Minimum traffic of a list of accesses."""

    cost: float  # main-memory words, plus on-chip reads at their relative cost
    words: float  # main-memory words alone
    bound: float  # lower bound on the cost of all policies, in closed form from the dual prices of space
    saved: tuple[float, ...]  # cost that one more word of each level saves
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
    spills: (
        Ints  # [tensors] words that are written if none stay; 0: from outside, or outputs (always written)
    )
    fixed: int  # words of first reads and outputs, which no retention saves


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
    levels: Sequence[BufferLevel]
    weight: Floats  # [intervals] number of reads that each stands for
    spill: Floats  # [tensors] number of writes that each stands for
    scale: Floats  # [intervals] number of times that each takes space
    tied: Ints  # [intervals] intervals with equal entries share a variable
    # two successive periods that fit on average only: first access, accesses per period, periods that they
    # stand for
    mean: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The solution of a linear program."""

    value: float  # words spilled minus words saved by retention
    stay: Floats  # [intervals, levels] words that stay
    prices: Floats  # [accesses, levels] dual price of one word of space after each access


def optimum(listed: AccessList, levels: Sequence[BufferLevel]) -> Optimum:
    """Returns the minimum cost of a list of accesses. levels: all on-chip levels except registers."""
    q = _intervals(listed)
    ones = np.ones(len(q.first))
    found = _solve(_Program(listed, q, levels, ones, np.ones(len(q.spills)), ones, np.arange(len(q.first))))
    return _to_optimum(
        q, levels, ones, found, _bound(listed, q, levels, found.prices), np.ones(len(q.first), dtype=bool)
    )


def steady(lists: Callable[[int], AccessList], periods: int, levels: Sequence[BufferLevel]) -> Optimum:
    """Returns the minimum cost of many equal periods; a thousand take as long to solve as ten.

    Two middle periods stand for all but EDGE at each end: the second for the last of them, the first for the
    others.

    lists: returns the accesses of so many periods.
    cost: the two middle periods retain the same words, so the answer can be run with any number of periods.
    bound: the two need to fit on average only. If cost and bound are equal the answer is the optimum.
    spans: of one middle period.
    """
    few = 2 * EDGE + 2
    if periods <= few:
        return optimum(lists(periods), levels)
    listed, less = lists(few), lists(few - 1)
    q, per, between = _intervals(listed), listed.per, periods - 2 * EDGE
    times = np.where(np.arange(few) == EDGE, between - 1.0, 1.0)
    first, last, made = q.first // per, q.last // per, np.where(q.made < 0, -1, q.made // per)
    spill = times[made]
    found = _solve(_Program(listed, q, levels, times[last], spill, np.ones(len(last)), _later(q, per)))
    scale = np.where(made[q.value] < 0, times[first], spill[q.value])
    relaxed = _solve(
        _Program(listed, q, levels, scale, spill, scale, np.arange(len(scale)), (EDGE * per, per, between))
    )
    fewer = np.concatenate((relaxed.prices[: EDGE * per], relaxed.prices[(EDGE + 1) * per :]))
    bound, before = _bound(listed, q, levels, relaxed.prices), _intervals(less)
    grown = bound - _bound(less, before, levels, fewer)  # bound of each further period, at the same prices
    q = replace(q, fixed=q.fixed + (periods - few) * (q.fixed - before.fixed))
    return _to_optimum(q, levels, times[last], found, bound + (periods - few) * grown, last == EDGE)


def _later(q: _Intervals, per: int) -> Ints:
    """Returns for every interval the number of the interval with which it shares a variable. Intervals that
    touch the two middle periods are tied to the same interval shifted by one period, the latest such one; all
    others to themselves.
    """
    places = list(zip(q.first.tolist(), q.last.tolist(), q.read.tolist(), strict=True))
    number = {place: i for i, place in enumerate(places)}
    found = []
    for i, (first, last, k) in enumerate(places):
        while EDGE - 1 <= first // per <= EDGE <= last // per <= EDGE + 1:
            first, last = first + per, last + per
        found.append(number.get((first, last, k), i))
    return np.array(found, dtype=np.int64)


def _to_optimum(
    q: _Intervals,
    levels: Sequence[BufferLevel],
    weight: Floats,
    found: _Answer,
    bound: float,
    shown: NDArray[np.bool_],
) -> Optimum:
    cost = q.fixed + float((weight * q.size).sum() + found.value)
    chip = float((weight[:, None] * found.stay * np.array([level.cost for level in levels])).sum())
    stays = tuple(
        RetainedSpan(
            q.tensors[q.value[i]],
            int(q.first[i]),
            int(q.last[i]),
            level,
            float(found.stay[i, level]),
            int(q.size[i]),
        )
        for i in np.flatnonzero(shown)
        for level in range(len(levels))
    )
    return Optimum(cost, cost - chip, bound, tuple(found.prices.sum(axis=0).tolist()), stays)


def _solve(p: _Program) -> _Answer:
    """Returns the solution of a linear program.

    Variables are words of each interval in each level, words that each tensor spills, and words on chip after
    each access, which change where intervals begin and end. So every column has few entries, and the prices
    of space are the duals of the upper bounds of the last variables.
    """
    # imported here since the import is slow and few runs need it
    from scipy.optimize import linprog  # type: ignore[attr-defined, unused-ignore]

    q, gaps, depth, count = p.q, len(p.listed.accesses), len(p.levels), len(p.q.first)
    own, column = np.unique(p.tied, return_inverse=True)
    spilling = np.flatnonzero(q.spills > 0)
    n_x, n_w = len(own) * depth, len(spilling)
    width, start = n_x + n_w + gaps * depth, n_x + n_w
    saving = 1.0 - np.array([level.cost for level in p.levels])
    costs = np.zeros(width)
    np.add.at(costs[:n_x].reshape(len(own), depth), column, -p.weight[:, None] * saving)
    costs[n_x:start] = p.spill[spilling]
    room = _capacity_rows(p.listed, p.levels)
    joint = np.arange(p.mean[0], p.mean[0] + p.mean[1])
    free = room.copy()
    free[joint] = free[joint + p.mean[1]] = np.inf
    uppers = np.concatenate((np.repeat(q.size[own], depth), q.spills[spilling], free.ravel()))
    level, each = np.tile(np.arange(depth), count), np.repeat(np.arange(count), depth)
    x, scale, held = column[each] * depth + level, p.scale[each], start + np.arange(gaps * depth)
    balance = _sparse(
        [
            (held - start, held, 1.0),
            (held[depth:] - start, held[:-depth], -1.0),
            (q.first[each] * depth + level, x, -scale),
            (q.last[each] * depth + level, x, scale),
        ],
        gaps * depth,
        width,
    )
    number = np.full(len(q.spills), -1)
    number[spilling] = np.arange(n_w)
    spills = np.flatnonzero(number[q.value] >= 0)  # spilled + stays >= size
    row = np.full(count, -1)
    row[spills] = np.arange(len(spills))
    some = row[each] >= 0
    whole = np.arange(len(own) if depth > 1 else 0)  # what stays in all levels <= size
    # words on chip in the two averaged periods <= space of all periods that they stand for
    pairs = start + (joint[:, None] * depth + np.arange(depth)).ravel()
    at = len(spills), len(spills) + len(whole), len(spills) + len(whole) + len(pairs)
    upper = _sparse(
        [
            (row[spills], n_x + number[q.value[spills]], -1.0),
            (row[each][some], x[some], -1.0),
            (at[0] + np.repeat(whole, depth), np.arange(len(whole) * depth), 1.0),
            (at[1] + np.arange(len(pairs)), pairs, 1.0),
            (at[1] + np.arange(len(pairs)), pairs + p.mean[1] * depth, 1.0),
        ],
        at[2],
        width,
    )
    limit = np.concatenate((-q.size[spills], q.size[own][whole], p.mean[2] * room[joint].ravel()))
    solved = linprog(  # type: ignore[no-untyped-call, unused-ignore]
        costs,
        upper,
        limit,
        balance,
        np.zeros(gaps * depth),
        np.column_stack((np.zeros(width), uppers)),
        method="highs",
    )
    if solved.status != 0:
        raise RuntimeError(
            f"residency of {gaps} accesses in {[level.words for level in p.levels]} words: {solved.message}"
        )
    prices = -solved.upper.marginals[start:].reshape(gaps, depth)
    prices[joint] = prices[joint + p.mean[1]] = -solved.ineqlin.marginals[at[1] :].reshape(-1, depth)
    return _Answer(
        float(solved.fun), solved.x[:n_x].reshape(len(own), depth)[column], np.maximum(prices, 0.0)
    )


def _sparse(entries: Sequence[tuple[Ints, Ints, Floats | float]], rows: int, columns: int) -> csc_array:
    """Returns a sparse matrix from blocks of (rows, columns, values)."""
    from scipy.sparse import csc_array

    values = np.concatenate([np.broadcast_to(value, row.shape) for row, _, value in entries])
    at = np.concatenate([row for row, _, _ in entries]), np.concatenate([column for _, column, _ in entries])
    return csc_array((values, at), shape=(rows, columns))  # type: ignore[no-untyped-call, unused-ignore]


def _capacity_rows(listed: AccessList, levels: Sequence[BufferLevel]) -> Floats:
    """Returns the words [accesses, levels] that may stay after each access. Resident words of a phase reduce
    the first level between the accesses of that phase.
    """
    held = np.array([a.resident_words for a in listed.accesses])
    room = np.tile(np.array([float(level.words) for level in levels]), (len(held), 1))
    room[:-1, 0] = np.maximum(0.0, room[:-1, 0] - np.minimum(held[:-1], held[1:]))
    return room


def _bound(listed: AccessList, q: _Intervals, levels: Sequence[BufferLevel], prices: Floats) -> float:
    """Returns a lower bound on the cost of any retention, valid for any prices >= 0 (Lagrange).

    Retained words pay a price for their space instead of having to fit, so each tensor is decided by itself.
    A tensor that may spill stays whole all the time, or is written and stays only where that pays.
    """
    paid = np.vstack((np.zeros(len(levels)), np.cumsum(prices, axis=0)))
    net = (paid[q.last] - paid[q.first] - (1.0 - np.array([level.cost for level in levels]))).min(axis=1)
    always, where = np.zeros(len(q.tensors)), np.zeros(len(q.tensors))
    np.add.at(always, q.value, q.size * net)
    np.add.at(where, q.value, q.size * np.minimum(net, 0.0))
    least = np.where(q.spills > 0, np.minimum(always, q.spills + where), where)
    return float(q.fixed + q.size.sum() + least.sum() - (prices * _capacity_rows(listed, levels)).sum())
