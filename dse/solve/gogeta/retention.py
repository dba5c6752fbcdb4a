"""On-chip retention between phases, each of which is one access of the list (`accesses.phase_list`): minimum
main-memory traffic, a lower bound that proves it, and replacement policies on the same list.

While a phase runs, retained words share the buffer by these rules:

    - Words that are on chip before the phase occupy their space until its results are complete. Words that
      remain on chip after the phase need space from its begin on. So the larger of both counts for each
      tensor.
    - A result may replace an operand, element for element, if the operand is read for the last time: the
      larger of both counts once.
    - A tensor that each step of the phase needs whole takes its full space during the phase, and no more
      if it is retained.

The linear program:

    minimise   sum over reads (size - x) + sum over results written + outputs
    subject to in each phase, sum over tensors of max(x before, x after) <= free words;
               written >= size - x   for results that are read again and are not outputs
    x          words of a tensor that stay on chip from one phase that uses it to the next that reads it

The segments of a schedule follow the same rules (`residency_plan.py`), except that operands are read as often
as nests read them. `optimum.py` uses a looser list of single accesses, on which GOGETA's published numbers
rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dse.solve.gogeta.accesses import FINAL, Access, AccessList
from dse.solve.gogeta.optimum import EDGE, Optimum, RetainedSpan, least, shared, sparse
from dse.solve.gogeta.residency import Traffic
from workloads.arrays import Floats, Ints

# if a few periods do not prove the optimum of a loop, all are solved, if they have at most so many phases
SOLVED_WHOLE = 400


@dataclass(frozen=True, slots=True)
class _Gap:
    """The time from a phase that uses a tensor to the next phase that reads it."""

    tensor: str
    first: int  # phase at the beginning
    last: int  # phase that reads the tensor
    read: int  # position of the tensor among the reads of phase `last`


@dataclass(frozen=True, slots=True)
class _SharedSpace:
    """Tensors that share space in a phase, called a place: the larger of their words before and after the
    phase counts.
    """

    phase: int
    at: int  # number of the place in its phase
    before: tuple[int, ...]  # numbers of the gaps of these tensors that end in the phase
    after: tuple[int, ...]  # numbers of the gaps of these tensors that begin in it


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The gaps of a list of phases. A spillable tensor is made on chip and is not an output, so only its
    words that do not stay on chip are written to main memory.
    """

    gaps: tuple[_Gap, ...]
    first: Ints  # [gaps]
    last: Ints  # [gaps]
    size: Ints  # [gaps] words of the tensor
    spills: Ints  # [gaps] number of its tensor among the spillable ones, -1: not spillable
    written_once: tuple[tuple[int, int], ...]  # per spillable tensor: (phase that makes it, its words)
    places: tuple[_SharedSpace, ...]
    fixed: int  # words of first reads and outputs, which retention cannot save


def _gaps(listed: AccessList) -> _Gaps:
    """Returns the gaps of a list of phases."""
    at: dict[str, int] = {}
    made: dict[str, int] = {}
    found: list[_Gap] = []
    ends: dict[tuple[int, str], int] = {}
    starts: dict[tuple[int, str], int] = {}
    fixed = sum(listed.words[t] for t in listed.outputs)
    for i, a in enumerate(listed.accesses):
        for k, t in enumerate(a.read):
            if t in at:
                ends[i, t] = starts[at[t], t] = len(found)
                found.append(_Gap(t, at[t], i, k))
            else:
                fixed += listed.words[t]
            at[t] = i
        for t in a.written:
            at[t] = made[t] = i
    numbers: dict[str, int] = {}
    spills = [
        numbers.setdefault(gap.tensor, len(numbers))
        if gap.tensor in made and gap.tensor not in listed.outputs
        else -1
        for gap in found
    ]
    places = []
    for i, a in enumerate(listed.accesses):
        for n, own in enumerate(_sharing_space(a)):
            before, after = (tuple(where[i, t] for t in own if (i, t) in where) for where in (ends, starts))
            if before or after:
                places.append(_SharedSpace(i, n, before, after))
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
        np.array(spills, dtype=np.int64),
        tuple((made[t], listed.words[t]) for t in numbers),
        tuple(places),
        fixed,
    )


def _sharing_space(a: Access) -> list[list[str]]:
    """Returns the groups of tensors that share space in a phase: tensors with those that replace them, and
    every other tensor by itself. Tensors that the phase needs whole are in no group: `resident_words` counts
    them.
    """
    group = {t: [t] for t in (*a.read, *a.written) if t not in a.whole_tensors}
    for old, new in a.heirs:
        if group[old] is not group[new]:
            joined = group[old] + group[new]
            for t in joined:
                group[t] = joined
    return list({id(own): own for own in group.values()}.values())


def _free_words(listed: AccessList, capacity: int) -> Floats:
    return np.array([max(0.0, float(capacity - a.resident_words)) for a in listed.accesses])


@dataclass(frozen=True, slots=True)
class _Prices:
    """Dual prices of buffer space."""

    phase: Floats  # [phases] of one word in each phase
    # (phase, place) -> the part of the phase's price that words before it pay; for places that have gaps
    # before and after
    found: dict[tuple[int, int], float]


def minimum_traffic(listed: AccessList, capacity: int) -> Optimum:
    """Returns the minimum main-memory words of a list of phases, and a lower bound that proves it."""
    g = _gaps(listed)
    every, ones = np.arange(len(g.gaps)), np.ones(len(g.gaps))
    problem = _RetentionProgram(listed, g, capacity, ones, np.ones(len(g.written_once)), every, ones)
    value, stay, prices = _solve(problem)
    cost = g.fixed + float(g.size.sum()) + value
    bound = _bound(listed, g, capacity, prices)
    return Optimum(cost, bound, float(prices.phase.sum()), _spans(g, stay, every))


def steady(lists: Callable[[int], AccessList], periods: int, capacity: int) -> Optimum:
    """Returns the minimum main-memory words of many equal periods from a linear program of a few: EDGE at
    each end, and two that stand for all periods between.

    lists: returns the list of a given number of periods.

    Of the result, `cost` is that of a solution in which both middle periods retain the same words, so it
    holds for any number of periods. `bound` is from the dual prices of a program in which the two need to fit
    only on average. `spans` are those of one middle period.

    If cost and bound differ and the list of all periods has at most SOLVED_WHOLE phases, all periods are
    solved.
    """
    few = 2 * EDGE + 2
    if periods <= few:
        return minimum_traffic(lists(periods), capacity)
    listed, whole = lists(few), lists(periods)
    g, per, between = _gaps(listed), listed.per, periods - 2 * EDGE
    times = np.where(np.arange(few) == EDGE, between - 1.0, 1.0)
    weight = times[g.last // per]
    spill = times[np.array([i // per for i, _ in g.written_once], dtype=np.int64)]
    tied, ones = shared([(gap.first, gap.last, gap.read) for gap in g.gaps], per), np.ones(len(g.gaps))
    value, stay, prices = _solve(_RetentionProgram(listed, g, capacity, weight, spill, tied, ones))
    every = _gaps(whole)
    cost = every.fixed + float((weight * g.size).sum()) + value
    born = dict(
        zip((gap.tensor for gap in g.gaps), (spill[v] if v >= 0 else 0.0 for v in g.spills), strict=True)
    )
    scale = np.array([born[gap.tensor] or times[gap.first // per] for gap in g.gaps])
    every_gap = np.arange(len(g.gaps))
    mean = (EDGE * per, per, between)
    relaxed = _solve(_RetentionProgram(listed, g, capacity, scale, spill, every_gap, scale, mean))[2]
    bound = _bound(whole, every, capacity, _repeat(relaxed, per, between))
    if cost > bound * (1 + 1e-9) and len(whole.accesses) <= SOLVED_WHOLE:
        found = minimum_traffic(whole, capacity)
        return replace(found, spans=tuple(stay for stay in found.spans if stay.last // per == EDGE))
    shown = np.flatnonzero(g.last // per == EDGE)
    return Optimum(cost, bound, float(prices.phase.sum()), _spans(g, stay, shown))


def _repeat(prices: _Prices, per: int, between: int) -> _Prices:
    """Returns prices of all periods from those of a few: each of the `between` middle periods has the prices
    of the first of the two that stood for them. per: phases of a period.
    """
    one, two, rest = EDGE * per, (EDGE + 1) * per, (EDGE + 2) * per
    phase = np.concatenate((prices.phase[:one], np.tile(prices.phase[one:two], between), prices.phase[rest:]))
    found = {
        key if key[0] < one else (key[0] + (between - 2) * per, key[1]): n
        for key, n in prices.found.items()
        if not one <= key[0] < rest
    }
    found |= {
        (i + t * per, at): n for (i, at), n in prices.found.items() if one <= i < two for t in range(between)
    }
    return _Prices(phase, found)


def _spans(g: _Gaps, stay: Floats, shown: Ints) -> tuple[RetainedSpan, ...]:
    return tuple(
        RetainedSpan(g.gaps[i].tensor, g.gaps[i].first, g.gaps[i].last, float(stay[i]), int(g.size[i]))
        for i in shown
    )


@dataclass(frozen=True, slots=True)
class _RetentionProgram:
    """A linear program over the gaps of a list."""

    listed: AccessList
    g: _Gaps
    capacity: int  # words
    weight: Floats  # [gaps] number of reads that each gap stands for
    spill: Floats  # [spillable tensors] number of writes that each stands for
    tied: Ints  # [gaps] gaps with equal entries share a variable
    scale: Floats  # [gaps] number of times that each takes space
    # two successive periods that need to fit only on average: (first phase, phases per period, number of
    # periods for which the two stand)
    mean: tuple[int, int, int] = (0, 0, 0)

    def twin(self, phase: int) -> int:
        """Returns the phase of the first of the two averaged periods for a phase of the second; all other
        phases are returned as they are.
        """
        first, per, _ = self.mean
        return phase - per if first + per <= phase < first + 2 * per else phase


@dataclass(slots=True)
class _Program:
    """A linear program while it is built. Its columns are words of each gap, words of each spillable tensor
    that are never written, and the larger of the words before and after each place.
    """

    cost: list[float]  # per column
    upper: list[float]  # per column
    rows: list[tuple[list[tuple[int, float]], list[int]]]  # weighted sum of columns <= sum of columns
    pieces: list[tuple[int, int, int, float]]  # first and last phase, column, times that it takes space there

    def column(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1


def _solve(problem: _RetentionProgram) -> tuple[float, Floats, _Prices]:
    """Returns (words spilled minus words saved by retention, words of each gap that stay [gaps], dual prices
    of space).

    The last columns are the words on chip in each phase: those of the phase before, plus words of gaps that
    begin, minus words of gaps that ended. So every column has few entries, and the prices of space are the
    duals of the upper bounds of the last columns.
    """
    g, phases = problem.g, len(problem.listed.accesses)
    if not g.gaps:
        return 0.0, np.zeros(0), _Prices(np.zeros(phases), {})
    own, column = np.unique(problem.tied, return_inverse=True)
    costs = np.zeros(len(own))
    np.add.at(costs, column, -problem.weight)
    p = _Program(costs.tolist(), [float(n) for n in g.size[own]], [], [])
    always = [
        p.column(-float(n), float(words)) for n, (_, words) in zip(problem.spill, g.written_once, strict=True)
    ]
    p.rows += [([(always[v], 1.0)], [int(column[i])]) for i, v in enumerate(g.spills) if v >= 0]
    befores = _places(problem, p, column)
    width, free = len(p.cost), _free_words(problem.listed, problem.capacity)
    first, per, many = problem.mean
    joint = np.arange(first, first + per)
    limit = np.concatenate((np.zeros(len(p.rows)), many * free[joint]))
    free[joint] = free[joint + per] = inf
    solved = least(
        [*p.cost, *[0.0] * phases],
        _inequalities(p, phases, joint, per),
        limit,
        _balance(p, phases),
        np.array([*p.upper, *free]),
        f"{phases} phases in {problem.capacity} words",
    )
    spilled = float((problem.spill * np.array([words for _, words in g.written_once], dtype=float)).sum())
    prices = np.maximum(-solved.upper.marginals[width:], 0.0)
    prices[joint] = prices[joint + per] = np.maximum(-solved.ineqlin.marginals[len(p.rows) :], 0.0)
    found = {key: float(-solved.ineqlin.marginals[row]) for key, row in befores.items()}
    return float(solved.fun) + spilled, np.asarray(solved.x)[column], _Prices(prices, found)


def _places(problem: _RetentionProgram, p: _Program, column: NDArray[np.intp]) -> dict[tuple[int, int], int]:
    """Adds rows and pieces that say which columns take space in which phase. column: column of each gap.
    Returns (phase, place) -> number of the row of its words before, for places that have gaps before and
    after.
    """
    g, scale, befores = problem.g, problem.scale, dict[tuple[int, int], int]()
    p.pieces += [
        (gap.first + 1, gap.last - 1, int(column[i]), float(scale[i]))
        for i, gap in enumerate(g.gaps)
        if gap.last > gap.first + 1
    ]
    groups: dict[tuple[int, int], list[_SharedSpace]] = defaultdict(list)
    for place in g.places:
        groups[problem.twin(place.phase), place.at].append(place)
    for group in groups.values():
        before = [(int(column[i]), float(scale[i])) for place in group for i in place.before]
        after = [(int(column[i]), float(scale[i])) for place in group for i in place.after]
        if not before or not after or (before == after and len(group) == 1):
            p.pieces += [
                (place.phase, place.phase, int(column[i]), float(scale[i]))
                for place in group
                for i in (place.after if not before else place.before)
            ]
            continue
        larger = [p.column(0.0, inf) for _ in group]
        befores |= {(place.phase, place.at): len(p.rows) for place in group}
        p.rows += [(before, larger), (after, larger)]
        p.pieces += [(place.phase, place.phase, at, 1.0) for place, at in zip(group, larger, strict=True)]
    return befores


def _inequalities(p: _Program, phases: int, joint: Ints, per: int) -> Any:
    """Returns the matrix of inequalities: `p.rows`, and for each phase of a period: words in both averaged
    periods together <= space of all periods for which they stand.
    """
    width = len(p.cost)
    entries = [(row, at, n) for row, (few, _) in enumerate(p.rows) for at, n in few]
    entries += [(row, at, -1.0) for row, (_, most) in enumerate(p.rows) for at in most]
    entries += [
        (len(p.rows) + n, width + i, 1.0)
        for n, phase in enumerate(joint.tolist())
        for i in (phase, phase + per)
    ]
    return _matrix(entries, len(p.rows) + len(joint), width + phases)


def _balance(p: _Program, phases: int) -> Any:
    """Returns the matrix of the equations, one per phase: words in it - words in the phase before - words
    that begin in it + words that ended in the phase before = 0.
    """
    begin = len(p.cost)
    entries = [(i, begin + i, 1.0) for i in range(phases)]
    entries += [(i, begin + i - 1, -1.0) for i in range(1, phases)]
    entries += [(first, at, -n) for first, _, at, n in p.pieces]
    entries += [(last + 1, at, n) for _, last, at, n in p.pieces if last + 1 < phases]
    return _matrix(entries, phases, begin + phases)


def _matrix(entries: Sequence[tuple[int, int, float]], rows: int, columns: int) -> Any:
    """Returns a sparse matrix from (row, column, value)."""
    numbers, at, values = np.array(entries, dtype=float).reshape(-1, 3).T
    return sparse([(numbers.astype(int), at.astype(int), values)], rows, columns)


def _bound(listed: AccessList, g: _Gaps, capacity: int, prices: _Prices) -> float:
    """Returns a lower bound on the words of any retention, valid for any prices >= 0 (Lagrange).

    Retained words pay a price for their space instead of having to fit. The words before and after a place
    may share its price in any way. Then the minimum is taken tensor by tensor: a tensor stays whole all the
    time, or it is written and stays only in the gaps where that pays.
    """
    paid = np.concatenate(([0.0], np.cumsum(prices.phase)))
    net = paid[g.last] - paid[np.minimum(g.first + 1, g.last)] - 1.0
    for place in g.places:
        price = float(prices.phase[place.phase])
        part = (
            price
            if not place.after
            else 0.0
            if not place.before
            else min(max(prices.found.get((place.phase, place.at), price / 2), 0.0), price)
        )
        net[list(place.before)] += part
        net[list(place.after)] += price - part
    words = np.array([n for _, n in g.written_once], dtype=float)
    always, where = np.zeros(len(words)), np.zeros(len(words))
    some = g.spills >= 0
    np.add.at(always, g.spills[some], (g.size * net)[some])
    np.add.at(where, g.spills[some], (g.size * np.minimum(net, 0.0))[some])
    rest = float((g.size * np.minimum(net, 0.0))[~some].sum())
    return float(
        g.fixed
        + g.size.sum()
        + rest
        + np.minimum(always, words + where).sum()
        - (prices.phase * _free_words(listed, capacity)).sum()
    )


def policy(listed: AccessList, capacity: int, replace: bool = True, reads_evict: bool = False) -> Traffic:
    """Returns the words that GOGETA's policy (`residency`) moves, phase by phase, under the rules above.

    replace: results may evict tensors that are needed strictly later (GOGETA); else results only fill free
        space (SEQ-Overflow).
    reads_evict: operands that are read may also evict such tensors.
    """
    uses, size, kept, coming = listed.uses(), listed.words, dict[str, int](), dict[str, int]()
    least_kept: dict[str, int] = {}
    first_kept: dict[str, int] = {}
    read = 0
    for a in listed.accesses:
        users = dict.fromkeys((*a.read, *a.written))
        whole = sum(n for t, n in kept.items() if t in a.whole_tensors)
        free = capacity - a.resident_words - sum(kept.values()) + whole
        idle = sorted((t for t in kept if t not in users), key=lambda t: -coming[t])
        free += _evict(kept, [*idle, *(t for t in kept if t in users and t not in a.whole_tensors)], -free)
        for t in a.read:
            uses[t].pop()
            there = kept.get(t, 0)
            read += size[t] - there
            if t in least_kept:
                least_kept[t] = min(least_kept[t], there)
        for t in users:
            coming[t] = uses[t][-1]
        fresh = dict(kept)
        for own in _sharing_space(a):
            left = sum(kept.get(t, 0) for t in own if coming[t] >= FINAL)
            for t in (t for t in own if coming[t] < FINAL and t in a.written):
                fresh[t] = min(left, size[t])
                left -= fresh[t]
        for t in sorted(
            (t for t in users if coming[t] < FINAL), key=lambda t: (t not in a.written, coming[t])
        ):
            want = size[t] - fresh.get(t, 0)
            if replace and (t in a.written or reads_evict):
                free += _evict(fresh, [o for o in idle if coming[o] > coming[t]], want - free)
            more = want if t in a.whole_tensors else max(0, min(want, free))
            fresh[t] = fresh.get(t, 0) + more
            free -= 0 if t in a.whole_tensors else more
        for t in a.written:
            first_kept[t] = fresh.get(t, 0) if coming[t] < FINAL else 0
            if coming[t] < FINAL and t not in listed.outputs:
                least_kept[t] = first_kept[t]
        kept = {t: n for t, n in fresh.items() if n and coming[t] < FINAL}
    makes = listed.made()
    wrote = sum(size[t] - first_kept[t] for t in makes)
    return Traffic(
        read,
        wrote,
        sum(first_kept[t] - n for t, n in least_kept.items()),
        sum(first_kept[t] for t in makes if t in listed.outputs),
    )


def _evict(kept: dict[str, int], tensors: Sequence[str], words: int) -> int:
    """Evicts tails of tensors from `kept`, in the given order, until `words` are free. Returns the words
    evicted.
    """
    found = 0
    for t in tensors:
        gone = max(0, min(kept.get(t, 0), words - found))
        if gone:
            kept[t] -= gone
            found += gone
    return found
