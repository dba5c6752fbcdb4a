"""On-chip retention between phases, each of which is one access of the list (`accesses.phase_list`): minimum
main-memory traffic, a lower bound that proves it, and replacement policies on the same list.

A phase runs step by step, and its steps may be taken in any order. Words share the buffer by these rules:

    - Of a tensor in step (`accesses.tensors_in_step`) each step needs a part of its own. Once the step is
      over, a word of it that is not retained for later gives its place to any word that is, of the same
      tensor or another one.
    - A tensor that steps have in common (broadcast, contracted) is needed until the last step and from the
      first one on: what is on chip before the phase occupies its space until the end, what remains
      afterwards from the begin. So the larger of both counts throughout.
    - A tensor that a pipeline needs whole in each step takes its full space during the phase, and no more if
      it is retained.
    - What one step works on takes space of its own, beside what is retained, but for one word of each
      tensor, which is in registers. So ranks of few, large steps (heads, columns) pay for them.

So two limits hold in each phase: what is on chip of tensors in step before it, and after it, each together
with all else. They are necessary, as the buffer is in these states, and they suffice: take the steps in
ascending order of the words that each adds to the buffer (those retained of its results and operands, less
those that its operands no longer need). Sums of ascending numbers first fall, then rise, so the buffer is
never fuller than before the first step or after the last one. This holds whatever the words of a step are:
parts of several results, of operands retained in part, of stages that run at once.

The linear program:

    minimise   sum over reads (size - x) + sum over results written + outputs
    subject to before and after each phase, sum over tensors in step of x + sum over others of
               max(x before, x after) <= free words;
               written >= size - x   for results that are read again and are not outputs
    x          words of a tensor that stay on chip from one phase that uses it to the next that reads it

The segments of a schedule (`residency_plan.py`) keep all places while they run, as the evaluator counts
them, but that a result may replace an operand; and operands are read as often as nests read them.
`optimum.py` uses a looser list of single accesses, on which GOGETA's published numbers rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.solve.gogeta.accesses import AFTER_END, AccessList
from dse.solve.gogeta.optimum import (
    EDGE_PERIODS,
    Optimum,
    RetainedSpan,
    solve_program,
    sparse,
    tied_intervals,
)
from dse.solve.gogeta.residency import Traffic
from workloads.arrays import Floats, Ints

# if a few periods do not prove the optimum of a loop, all are solved, if they have at most so many phases; so
# are ties, again and again
MAX_SOLVED_PHASES = 400
MAX_SETTLED = 40  # gaps that are tried to retain all or nothing of a tensor
PART = 1e-6  # a share between this and 1 - this is a part


@dataclass(frozen=True, slots=True)
class _Gap:
    """The time from a phase that uses a tensor to the next phase that reads it. Words of the tensor that stay
    on chip through it need not be read again.
    """

    tensor: str
    first: int  # phase at the beginning
    last: int  # phase that reads the tensor
    read: int  # position of the tensor among the reads of phase `last`


@dataclass(frozen=True, slots=True)
class _Place:
    """The space of a tensor in a phase that uses it. in_step: what the phase leaves of it takes the space
    that what it found no longer needs; else the larger of both counts all the time.
    """

    phase: int
    number: int  # number of the place in its phase
    before: tuple[int, ...]  # number of the gap of the tensor that ends in the phase, if there is one
    after: tuple[int, ...]  # number of the gap of the tensor that begins in it, if there is one
    in_step: bool


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The gaps of a list of phases. A spillable tensor is made on chip and is not an output, so only its
    words that do not stay on chip are written to main memory.
    """

    gaps: tuple[_Gap, ...]
    first: Ints  # [gaps]
    last: Ints  # [gaps]
    size: Ints  # [gaps] words of the tensor
    spillable_number: Ints  # [gaps] number of its tensor among the spillable ones, -1: not spillable
    spillable: tuple[tuple[int, int], ...]  # per spillable tensor: (phase that makes it, its words)
    places: tuple[_Place, ...]
    fixed_words: int  # words of first reads and outputs, which retention cannot save


def _gaps(listed: AccessList) -> _Gaps:
    """Returns the gaps of a list of phases."""
    last_phase: dict[str, int] = {}
    made_at: dict[str, int] = {}
    found: list[_Gap] = []
    ends: dict[tuple[int, str], int] = {}
    starts: dict[tuple[int, str], int] = {}
    fixed = sum(listed.words[t] for t in listed.outputs)
    for i, a in enumerate(listed.accesses):
        for k, t in enumerate(a.read):
            if t in last_phase:
                ends[i, t] = starts[last_phase[t], t] = len(found)
                found.append(_Gap(t, last_phase[t], i, k))
            else:
                fixed += listed.words[t]
            last_phase[t] = i
        for t in a.written:
            last_phase[t] = made_at[t] = i
    spillable_numbers: dict[str, int] = {}
    spillable_number = [
        spillable_numbers.setdefault(gap.tensor, len(spillable_numbers))
        if gap.tensor in made_at and gap.tensor not in listed.outputs
        else -1
        for gap in found
    ]
    places = []
    for i, a in enumerate(listed.accesses):
        for n, t in enumerate(dict.fromkeys((*a.read, *a.written))):
            before, after = ((gap_at[i, t],) if (i, t) in gap_at else () for gap_at in (ends, starts))
            if (before or after) and t not in a.whole_tensors:
                places.append(_Place(i, n, before, after, t in a.in_step))
    first, last, size = (
        np.array([(gap.first, gap.last, listed.words[gap.tensor]) for gap in found], dtype=np.int64)
        .reshape(-1, 3)
        .T
    )
    return _Gaps(
        tuple(found),
        first,
        last,
        size,
        np.array(spillable_number, dtype=np.int64),
        tuple((made_at[t], listed.words[t]) for t in spillable_numbers),
        tuple(places),
        fixed,
    )


def _free_words(listed: AccessList, capacity: int) -> Floats:
    """Returns the words that may stay on chip at each point: phase i begins at point 2 i, ends at 2 i + 1."""
    return np.repeat([max(0.0, float(capacity - a.resident_words)) for a in listed.accesses], 2)


@dataclass(frozen=True, slots=True)
class _Prices:
    """Dual prices of buffer space."""

    point: Floats  # [points] of one word as each phase begins, and as it ends
    # (phase, number of a place) -> the part of both prices that words before the phase pay (words after it
    # pay the rest); for places not in step that have gaps before and after
    before_share: dict[tuple[int, int], float]


def minimum_traffic(listed: AccessList, capacity: int, settles: bool = False) -> Optimum:
    """Returns the minimum main-memory words of a list of phases, and a lower bound that proves it. settles:
    whether `spans` retain few tensors in part (`_settled`).
    """
    g = _gaps(listed)
    all_gaps, ones = np.arange(len(g.gaps)), np.ones(len(g.gaps))
    problem = _RetentionProgram(listed, g, capacity, ones, np.ones(len(g.spillable)), all_gaps, ones)
    value, stay, prices = _solve(problem)
    cost = g.fixed_words + float(g.size.sum()) + value
    bound = _bound(listed, g, capacity, prices)
    stay = _settled(problem, value, stay) if settles else stay
    spans = _spans(g, stay, _gap_prices(g, prices), all_gaps)
    return Optimum(cost, bound, float(prices.point.sum()), spans)


def steady(lists: Callable[[int], AccessList], periods: int, capacity: int, settles: bool = False) -> Optimum:
    """Returns the minimum main-memory words of many equal periods (iterations of a loop), from a linear
    program of a few of them: EDGE_PERIODS at each end, and two that stand for all periods between.

    lists: returns the list of a given number of periods; settles: as in `minimum_traffic`.

    Of the result, `cost` is that of a solution in which both middle periods retain the same words, so it
    holds for any number of periods. `bound` is from the dual prices of a program in which the two need to fit
    only on average. `spans` are those of one middle period.

    If cost and bound differ and the list of all periods has at most MAX_SOLVED_PHASES phases, all periods are
    solved.
    """
    few_periods = 2 * EDGE_PERIODS + 2
    if periods <= few_periods:
        return minimum_traffic(lists(periods), capacity, settles)
    listed, full_list = lists(few_periods), lists(periods)
    g, per_period, middle_periods = _gaps(listed), listed.accesses_per_period, periods - 2 * EDGE_PERIODS
    # number of periods for which each of the few stands
    stands_for = np.where(np.arange(few_periods) == EDGE_PERIODS, middle_periods - 1.0, 1.0)
    reads = stands_for[g.last // per_period]
    writes = stands_for[np.array([i // per_period for i, _ in g.spillable], dtype=np.int64)]
    variable_of, ones = (
        tied_intervals([(gap.first, gap.last, gap.read) for gap in g.gaps], per_period),
        np.ones(len(g.gaps)),
    )
    problem = _RetentionProgram(listed, g, capacity, reads, writes, variable_of, ones)
    value, retained_words, prices = _solve(problem)
    full_gaps = _gaps(full_list)
    cost = full_gaps.fixed_words + float((reads * g.size).sum()) + value
    writes_of = dict(
        zip(
            (gap.tensor for gap in g.gaps),
            (writes[v] if v >= 0 else 0.0 for v in g.spillable_number),
            strict=True,
        )
    )
    space_times = np.array([writes_of[gap.tensor] or stands_for[gap.first // per_period] for gap in g.gaps])
    every_gap = np.arange(len(g.gaps))
    averaged = (EDGE_PERIODS * per_period, per_period, middle_periods)
    averaged_prices = _solve(
        _RetentionProgram(listed, g, capacity, space_times, writes, every_gap, space_times, averaged)
    )[2]
    all_prices = _repeat(averaged_prices, per_period, middle_periods)
    bound = _bound(full_list, full_gaps, capacity, all_prices)
    # prices that are the same in each period; up to the second of the periods between, phases of a few
    # periods are numbered as those of all
    price_of = dict(zip(full_gaps.gaps, _gap_prices(full_gaps, all_prices).tolist(), strict=True))
    if cost > bound * (1 + 1e-9) and len(full_list.accesses) <= MAX_SOLVED_PHASES:
        found = minimum_traffic(full_list, capacity, settles)
        return replace(
            found,
            spans=tuple(
                replace(span, price=price_of[gap])
                for gap, span in zip(full_gaps.gaps, found.spans, strict=True)
                if span.last // per_period == EDGE_PERIODS
            ),
        )
    shown = np.flatnonzero(g.last // per_period == EDGE_PERIODS)
    retained_words = _settled(problem, value, retained_words) if settles else retained_words
    gap_prices = np.array([price_of.get(gap, 0.0) for gap in g.gaps])
    return Optimum(cost, bound, float(prices.point.sum()), _spans(g, retained_words, gap_prices, shown))


def _settled(problem: _RetentionProgram, value: float, retained_words: Floats) -> Floats:
    """Returns words that stay [gaps], of the same value, so that few tensors stay in part: the gaps that
    retain a part, those with the largest share first, retain all or else nothing where that costs nothing.
    At most MAX_SETTLED are tried, of lists of at most MAX_SOLVED_PHASES phases.
    """
    if len(problem.listed.accesses) > MAX_SOLVED_PHASES:
        return retained_words
    size, fixed, tried = problem.gaps.size, dict[int, float](), set[int]()
    variables, firsts = np.unique(problem.variable_of, return_index=True)
    while len(tried) < MAX_SETTLED:
        shares = (retained_words / size)[firsts]
        is_part = (shares > PART) & (shares < 1 - PART) & ~np.isin(variables, list(tried))
        if not is_part.any():
            break
        at = int(np.argmax(np.where(is_part, shares, -1.0)))
        tried.add(int(variables[at]))
        for words in (float(size[firsts[at]]), 0.0):
            try:
                found, stay, _ = _solve(problem, fixed | {int(variables[at]): words})
            except RuntimeError:  # more than fits
                continue
            if found <= value + 1e-9 * max(abs(value), 1.0):
                fixed[int(variables[at])], retained_words = words, stay
                break
    return retained_words


def _repeat(prices: _Prices, per_period: int, middle_periods: int) -> _Prices:
    """Returns prices of all periods from those of a few: each of the `middle_periods` middle periods has the
    prices of the first of the two that stood for them. per_period: phases of a period.
    """
    middle_begin, second_begin, middle_end = (
        EDGE_PERIODS * per_period,
        (EDGE_PERIODS + 1) * per_period,
        (EDGE_PERIODS + 2) * per_period,
    )
    point = np.concatenate(
        (
            prices.point[: 2 * middle_begin],
            np.tile(prices.point[2 * middle_begin : 2 * second_begin], middle_periods),
            prices.point[2 * middle_end :],
        )
    )
    found = {
        key if key[0] < middle_begin else (key[0] + (middle_periods - 2) * per_period, key[1]): n
        for key, n in prices.before_share.items()
        if not middle_begin <= key[0] < middle_end
    }
    found |= {
        (i + t * per_period, place_number): n
        for (i, place_number), n in prices.before_share.items()
        if middle_begin <= i < second_begin
        for t in range(middle_periods)
    }
    return _Prices(point, found)


def _spans(g: _Gaps, retained_words: Floats, prices: Floats, shown: Ints) -> tuple[RetainedSpan, ...]:
    return tuple(
        RetainedSpan(
            g.gaps[i].tensor,
            g.gaps[i].first,
            g.gaps[i].last,
            float(retained_words[i]),
            int(g.size[i]),
            float(prices[i]),
            bool(g.spillable_number[i] >= 0),
        )
        for i in shown
    )


@dataclass(frozen=True, slots=True)
class _RetentionProgram:
    """A linear program over the gaps of a list."""

    listed: AccessList
    gaps: _Gaps
    capacity: int  # words
    reads: Floats  # [gaps] number of reads that each gap stands for
    writes: Floats  # [spillable tensors] number of writes that each stands for
    variable_of: Ints  # [gaps] gaps with equal entries share a variable
    # [gaps] number of periods whose words take its space: 1; in the averaged program those for which the
    # period stands in which the gap begins (of a spillable tensor: in which it is made)
    space_times: Floats
    # two successive periods that need to fit only on average: (first phase, phases per period, number of
    # periods for which the two stand)
    averaged: tuple[int, int, int] = (0, 0, 0)

    def averaged_phase(self, phase: int) -> int:
        """Returns the phase of the first of the two averaged periods for a phase of the second; all other
        phases are returned as they are.
        """
        first, per, _ = self.averaged
        return phase - per if first + per <= phase < first + 2 * per else phase


@dataclass(slots=True)
class _Program:
    """A linear program while it is built. Its columns are words of each gap, words of each spillable tensor
    that are never written, and the larger of the words before and after in each place not in step.
    """

    cost: list[float]  # per column
    upper: list[float]  # per column
    # constraints: (column, weight) pairs, columns; the weighted sum of the first <= the sum of the second
    rows: list[tuple[list[tuple[int, float]], list[int]]]
    # where columns take space: first point, last point (`_free_words`), column, how many times its words
    pieces: list[tuple[int, int, int, float]]

    def column(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1


def _solve(
    problem: _RetentionProgram, fixed: Mapping[int, float] | None = None
) -> tuple[float, Floats, _Prices]:
    """Returns (words spilled minus words saved by retention, words of each gap that stay [gaps], dual prices
    of space). fixed: words of some variables (`variable_of`). Raises RuntimeError if these do not fit.

    The last columns are the words on chip at each point: those of the point before, plus words of gaps that
    begin, minus words of gaps that ended. So every column has few entries, and the prices of space are the
    duals of the upper bounds of the last columns.
    """
    g, points = problem.gaps, 2 * len(problem.listed.accesses)
    if not g.gaps:
        return 0.0, np.zeros(0), _Prices(np.zeros(points), {})
    representatives, column = np.unique(problem.variable_of, return_inverse=True)
    costs = np.zeros(len(representatives))
    np.add.at(costs, column, -problem.reads)
    program = _Program(costs.tolist(), [float(n) for n in g.size[representatives]], [], [])
    never_written = [
        program.column(-float(n), float(words))
        for n, (_, words) in zip(problem.writes, g.spillable, strict=True)
    ]
    program.rows += [
        ([(never_written[v], 1.0)], [int(column[i])]) for i, v in enumerate(g.spillable_number) if v >= 0
    ]
    before_rows = _add_places(problem, program, column)
    column_count, free_words = len(program.cost), _free_words(problem.listed, problem.capacity)
    first, per_period, period_count = problem.averaged
    averaged_points = np.arange(2 * first, 2 * (first + per_period))
    limit = np.concatenate((np.zeros(len(program.rows)), period_count * free_words[averaged_points]))
    free_words[averaged_points] = free_words[averaged_points + 2 * per_period] = inf
    upper = np.array([*program.upper, *free_words])
    lower = np.zeros(len(upper))
    for variable, words in (fixed or {}).items():
        at = int(np.searchsorted(representatives, variable))
        lower[at] = upper[at] = words
    solved = solve_program(
        [*program.cost, *[0.0] * points],
        _inequalities(program, points, averaged_points),
        limit,
        _balance(program, points),
        upper,
        f"{points // 2} phases in {problem.capacity} words",
        lower,
    )
    spilled = float((problem.writes * np.array([words for _, words in g.spillable], dtype=float)).sum())
    prices = np.maximum(-solved.upper.marginals[column_count:], 0.0)
    prices[averaged_points] = prices[averaged_points + 2 * per_period] = np.maximum(
        -solved.ineqlin.marginals[len(program.rows) :], 0.0
    )
    before_share = {key: float(-solved.ineqlin.marginals[row]) for key, row in before_rows.items()}
    return float(solved.fun) + spilled, np.asarray(solved.x)[column], _Prices(prices, before_share)


def _add_places(
    problem: _RetentionProgram, program: _Program, column: NDArray[np.intp]
) -> dict[tuple[int, int], int]:
    """Adds rows and pieces that say which columns take space at which points. column: column of each gap.
    Returns (phase, place) -> number of the row of its words before, for places not in step that have gaps
    before and after.
    """
    g, space_times, before_rows = problem.gaps, problem.space_times, dict[tuple[int, int], int]()
    program.pieces += [
        (2 * gap.first + 2, 2 * gap.last - 1, int(column[i]), float(space_times[i]))
        for i, gap in enumerate(g.gaps)
        if gap.last > gap.first + 1
    ]
    groups: dict[tuple[int, int], list[_Place]] = defaultdict(list)
    for place in g.places:
        begin, end = 2 * place.phase, 2 * place.phase + 1
        if place.in_step:
            program.pieces += [(begin, begin, int(column[i]), float(space_times[i])) for i in place.before]
            program.pieces += [(end, end, int(column[i]), float(space_times[i])) for i in place.after]
        else:
            groups[problem.averaged_phase(place.phase), place.number].append(place)
    for group in groups.values():
        before = [(int(column[i]), float(space_times[i])) for place in group for i in place.before]
        after = [(int(column[i]), float(space_times[i])) for place in group for i in place.after]
        if not before or not after or (before == after and len(group) == 1):
            program.pieces += [
                (2 * place.phase, 2 * place.phase + 1, int(column[i]), float(space_times[i]))
                for place in group
                for i in (place.after if not before else place.before)
            ]
            continue
        larger = [program.column(0.0, inf) for _ in group]
        before_rows |= {(place.phase, place.number): len(program.rows) for place in group}
        program.rows += [(before, larger), (after, larger)]
        program.pieces += [
            (2 * place.phase, 2 * place.phase + 1, at, 1.0) for place, at in zip(group, larger, strict=True)
        ]
    return before_rows


def _inequalities(program: _Program, points: int, averaged_points: Ints) -> Any:
    """Returns the matrix of inequalities: `program.rows`, and for each point of a period: words in both
    averaged periods together <= space of all periods for which they stand.
    """
    width = len(program.cost)
    entries = [(row, column, n) for row, (weighted, _) in enumerate(program.rows) for column, n in weighted]
    entries += [(row, column, -1.0) for row, (_, summed) in enumerate(program.rows) for column in summed]
    entries += [
        (len(program.rows) + n, width + i, 1.0)
        for n, point in enumerate(averaged_points.tolist())
        for i in (point, point + len(averaged_points))
    ]
    return _matrix(entries, len(program.rows) + len(averaged_points), width + points)


def _balance(program: _Program, points: int) -> Any:
    """Returns the matrix of the equations, one per point: words at it - words at the point before - words
    that begin at it + words that ended at the point before = 0.
    """
    begin = len(program.cost)
    entries = [(i, begin + i, 1.0) for i in range(points)]
    entries += [(i, begin + i - 1, -1.0) for i in range(1, points)]
    entries += [(first, column, -n) for first, _, column, n in program.pieces]
    entries += [(last + 1, column, n) for _, last, column, n in program.pieces if last + 1 < points]
    return _matrix(entries, points, begin + points)


def _matrix(entries: Sequence[tuple[int, int, float]], rows: int, columns: int) -> Any:
    """Returns a sparse matrix from (row, column, value)."""
    numbers, column_numbers, values = np.array(entries, dtype=float).reshape(-1, 3).T
    return sparse([(numbers.astype(int), column_numbers.astype(int), values)], rows, columns)


def _bound(listed: AccessList, g: _Gaps, capacity: int, prices: _Prices) -> float:
    """Returns a lower bound on the words of any retention under these rules, for any prices >= 0 (Lagrange).

    Retained words pay a price for their space instead of having to fit. The words before and after a place
    may share its prices in any way. Then the minimum is taken tensor by tensor: a tensor stays whole all the
    time, or it is written and stays only in the gaps where that pays.
    """
    net_price = _gap_prices(g, prices) - 1.0  # [gaps] minus the word that it saves; < 0: retention pays
    words = np.array([n for _, n in g.spillable], dtype=float)
    always_retained, where_it_pays = np.zeros(len(words)), np.zeros(len(words))
    is_spillable = g.spillable_number >= 0
    np.add.at(always_retained, g.spillable_number[is_spillable], (g.size * net_price)[is_spillable])
    np.add.at(
        where_it_pays, g.spillable_number[is_spillable], (g.size * np.minimum(net_price, 0.0))[is_spillable]
    )
    unspillable_words = float((g.size * np.minimum(net_price, 0.0))[~is_spillable].sum())
    return float(
        g.fixed_words
        + g.size.sum()
        + unspillable_words
        + np.minimum(always_retained, words + where_it_pays).sum()
        - (prices.point * _free_words(listed, capacity)).sum()
    )


def _gap_prices(g: _Gaps, prices: _Prices) -> Floats:
    """Returns the price of the space of a retained word of each gap."""
    price_until = np.concatenate(([0.0], np.cumsum(prices.point)))
    found = price_until[2 * g.last] - price_until[np.minimum(2 * g.first + 2, 2 * g.last)]
    for place in g.places:
        begin, end = prices.point[2 * place.phase : 2 * place.phase + 2].tolist()
        price = begin + end
        before_share = (
            begin
            if place.in_step
            else price
            if not place.after
            else 0.0
            if not place.before
            else min(max(prices.before_share.get((place.phase, place.number), price / 2), 0.0), price)
        )
        found[list(place.before)] += before_share
        found[list(place.after)] += price - before_share
    return np.asarray(found)


def policy(
    listed: AccessList, capacity: int, results_evict: bool = True, reads_evict: bool = False
) -> Traffic:
    """Returns the words that GOGETA's policy (`residency`) moves, phase by phase, under the rules above.

    results_evict: results may evict tensors that are needed later than they (GOGETA); else they fill only
        free space (SEQ-Overflow)
    reads_evict: operands may, too
    """
    next_reads, size, retained, next_read = (
        listed.next_reads(),
        listed.words,
        dict[str, int](),
        dict[str, int](),
    )
    # per result: words on chip when it is made, and the fewest at any of its reads so far; the difference was
    # spilled
    min_retained_since: dict[str, int] = {}
    retained_when_made: dict[str, int] = {}
    read_words = 0
    for a in listed.accesses:
        users = dict.fromkeys((*a.read, *a.written))
        needed_whole = sum(n for t, n in retained.items() if t in a.whole_tensors)
        free = capacity - a.resident_words - sum(retained.values()) + needed_whole
        unused = sorted((t for t in retained if t not in users), key=lambda t: -next_read[t])
        free += _evict(
            retained, [*unused, *(t for t in retained if t in users and t not in a.whole_tensors)], -free
        )
        for t in a.read:
            next_reads[t].pop()
            on_chip = retained.get(t, 0)
            read_words += size[t] - on_chip
            if t in min_retained_since:
                min_retained_since[t] = min(min_retained_since[t], on_chip)
        for t in users:
            next_read[t] = next_reads[t][-1]
        retained_after = dict(retained)
        # words that are free in the end: also those of operands in step that nobody needs any more
        free_in_end = free + sum(
            retained.get(t, 0) for t in a.in_step if next_read[t] >= AFTER_END and t not in a.written
        )
        for t in sorted(
            (t for t in users if next_read[t] < AFTER_END), key=lambda t: (t not in a.written, next_read[t])
        ):
            wanted = size[t] - retained_after.get(t, 0)
            if t in a.whole_tensors:
                retained_after[t] = size[t]
                continue
            room = free_in_end if t in a.in_step else min(free, free_in_end)
            if results_evict and (t in a.written or reads_evict):
                evicted = _evict(
                    retained_after, [o for o in unused if next_read[o] > next_read[t]], wanted - room
                )
                free, free_in_end, room = free + evicted, free_in_end + evicted, room + evicted
            more = max(0, min(wanted, room))
            retained_after[t] = retained_after.get(t, 0) + more
            free, free_in_end = free - (0 if t in a.in_step else more), free_in_end - more
        for t in a.written:
            retained_when_made[t] = retained_after.get(t, 0) if next_read[t] < AFTER_END else 0
            if next_read[t] < AFTER_END and t not in listed.outputs:
                min_retained_since[t] = retained_when_made[t]
        retained = {t: n for t, n in retained_after.items() if n and next_read[t] < AFTER_END}
    results = listed.results()
    written_words = sum(size[t] - retained_when_made[t] for t in results)
    return Traffic(
        read_words,
        written_words,
        sum(retained_when_made[t] - n for t, n in min_retained_since.items()),
        sum(retained_when_made[t] for t in results if t in listed.outputs),
    )


def _evict(retained: dict[str, int], tensors: Sequence[str], words: int) -> int:
    """Evicts tails of tensors from `retained`, in the given order, until `words` are free. Returns the words
    evicted.
    """
    found = 0
    for t in tensors:
        evicted = max(0, min(retained.get(t, 0), words - found))
        if evicted:
            retained[t] -= evicted
            found += evicted
    return found
