"""How much of each tensor stays on chip between the segments of a schedule: the published policies, and the
optimum for what the nests of the schedule move.

A tensor lives from the segment that makes it (an input: from the first segment that reads it) to the last one
that reads it. The segments that make or read it are its stops. From one stop to the next, x of its `size`
elements stay on chip; they take space in both stops and in all segments between. Each segment leaves some
space free. Elements that a segment finds on chip it does not fetch, however often its nests would:

    minimise   sum over stops that read  n * (1 - x / size)
               + sum over stops that make  n * (1 - x / size) + (x - y) * words / size
    subject to elements that stay <= free space, in every segment

    n       words that the stop moves if nothing stays; words: machine words of the whole tensor
    x       elements that stay: before a stop that reads, after one that makes
    y       elements that stay from the first to the last stop, so that they are never written to main memory;
            0 for results of the workload, which are always written

Where one tensor may take the place of another, the larger of both counts once. A segment that finds all of a
tensor on chip needs no tile of it in addition, so the tile's space is free, too. Whether all of it stays is a
yes-or-no choice for some segments and tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dse.mapping.schedule import Retained

MAX_NODES = 2000  # maximum of nodes in the branch and bound over the yes-or-no choices
SURE_SHARE = 1 - 1e-9  # at least this share of all possible savings: yes-or-no choices cannot save more
# tensor -> elements in one instance of the level that stay, for each pair of successive stops
RetainedElems = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The uses of a tensor in a schedule that retains nothing. stops: segments that make or read it; first:
    the first einsum that makes or reads it; last: the last such einsum of each stop.

    size, bits: elements in one instance of the level, and bits of each; words: machine words of the whole
    tensor. moved_words: machine words that each stop moves from and to the outermost level. is_produced:
    whether its first stop makes it; is_result: whether it is a result of the workload, which is written to
    main memory in any case.
    """

    tensor: str
    stops: tuple[int, ...]
    first: str
    last: tuple[str, ...]
    size: int
    bits: int
    words: float
    moved_words: tuple[float, ...]
    is_produced: bool
    is_result: bool


@dataclass(frozen=True, slots=True)
class ResidencyProblem:
    """Which tensors to retain between the segments of a schedule. lives: of the tensors that may stay.
    free_bits: bits of one instance that each segment leaves free; heirs: (segment, old tensor, new tensor),
    where the new one may take the place of the old one.

    spared_tiles: (segment, tensor, bits): space of a tile that the segment does not need if it finds all of
    the tensor on chip; the optimum makes use of this, the policies do not.
    """

    lives: tuple[Lifetime, ...]
    free_bits: tuple[int, ...]
    heirs: tuple[tuple[int, str, str], ...]
    spared_tiles: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ResidencyOptimum:
    """The best choice of elements that stay. retained: these elements; words: main-memory words of the
    schedule with them, before they are rounded down to whole elements; saved_per_bit: words fewer per
    additional bit of space in every instance (shadow price of the linear program); proven: whether no other
    choice moves fewer words.
    """

    retained: RetainedElems
    words: float
    saved_per_bit: float
    proven: bool = True


def moved_words(problem: ResidencyProblem, gaps: RetainedElems) -> float:
    """Machine words that all tensors of the problem move from and to the outermost level, if the elements
    `gaps` stay between stops.
    """
    return sum(
        _words_of(life, [n / life.size for n in gaps.get(life.tensor, ())] or [0.0] * (len(life.stops) - 1))
        for life in problem.lives
    )


def _words_of(life: Lifetime, shares: Sequence[float]) -> float:
    """The words that one tensor moves. shares: the part of it that stays, per pair of successive stops."""
    found = life.moved_words[0] * (1 - shares[0]) if life.is_produced else life.moved_words[0]
    found += sum(n * (1 - share) for n, share in zip(life.moved_words[1:], shares, strict=True))
    throughout = 0.0 if life.is_result else min(shares)
    return found + (max(0.0, shares[0] - throughout) * life.words if life.is_produced else 0.0)


def to_retained(problem: ResidencyProblem, gaps: RetainedElems, level: str) -> tuple[Retained, ...]:
    """The elements that stay as `retain` lines of a schedule: as shares of the elements in each instance."""
    found = []
    for life in problem.lives:
        shares = [Fraction(n, life.size) for n in gaps.get(life.tensor, ())]
        if not any(shares):
            continue
        first = shares[0] if life.is_produced or life.first == life.last[0] else Fraction(0)
        changes, current = [], first
        for name, share in zip(life.last, shares, strict=False):
            if share != current:
                changes.append((name, share))
                current = share
        found.append(Retained(level, life.tensor, first, tuple(changes)))
    return tuple(sorted(found, key=lambda retained: (retained.level, retained.tensor)))


def seq_flex(problem: ResidencyProblem) -> RetainedElems:
    """SEQ-Flex: nothing stays."""
    return {}


def seq_overflow(problem: ResidencyProblem) -> RetainedElems:
    """SEQ-Overflow: tensors stay in the order in which they come, as long as there is free space; their tails
    are evicted only where a segment leaves too little of it.
    """
    return _fill(problem, results_evict=False)


def gogeta(problem: ResidencyProblem) -> RetainedElems:
    """GOGETA's policy (section 5.3): a new result evicts the tail of the tensor that is needed latest, if
    that is needed later than the result; tensors that are read only fill free space.
    """
    return _fill(problem, results_evict=True)


def _fill(problem: ResidencyProblem, results_evict: bool) -> RetainedElems:
    """Fill the free space segment by segment. The space of a tensor that is read for the last time is free at
    the end of the segment, or passes to its heir. results_evict: results evict tensors that are needed later.
    """
    lives = {life.tensor: life for life in problem.lives}
    number = {t: i for i, t in enumerate(lives)}
    heirs = {(segment, new): old for segment, old, new in problem.heirs}
    used_in: dict[int, list[Lifetime]] = defaultdict(list)
    for life in problem.lives:
        for stop in life.stops:
            used_in[stop].append(life)
    retained: dict[str, int] = defaultdict(int)
    gaps: dict[str, list[int]] = {t: [] for t in lives}
    for segment, free in enumerate(problem.free_bits):
        used_lives = used_in.get(segment, [])
        users = dict.fromkeys(life.tensor for life in used_lives)
        # next stop of each tensor after this segment; 0: none
        next_stop = {t: _next_stop(lives[t], segment) for t in (*retained, *users)}
        produced_lives = [life for life in used_lives if life.is_produced and segment == life.stops[0]]
        free_bits = free - sum(n * lives[t].bits for t, n in retained.items())
        unused = sorted((t for t in retained if t not in users), key=lambda t: (-next_stop[t], number[t]))
        free_bits += _evict(retained, lives, [*unused, *users], -free_bits)
        for life in used_lives:
            if segment != life.stops[0]:
                gaps[life.tensor].append(retained[life.tensor])
        for life in produced_lives:
            old = heirs.get((segment, life.tensor))
            if old and next_stop[life.tensor]:
                retained[life.tensor] = min(retained[old], life.size)
        for life in sorted(
            (life for life in used_lives if next_stop[life.tensor]),
            key=lambda life: (life not in produced_lives, next_stop[life.tensor]),
        ):
            wanted = life.size - retained[life.tensor]
            if results_evict and life in produced_lives:
                free_bits += _evict(
                    retained,
                    lives,
                    [t for t in unused if next_stop[t] > next_stop[life.tensor]],
                    wanted * life.bits - free_bits,
                )
            more = max(0, min(wanted, free_bits // life.bits))
            retained[life.tensor] += more
            free_bits -= more * life.bits
        retained = defaultdict(int, {t: n for t, n in retained.items() if n and next_stop[t]})
    return {t: elems for t, elems in gaps.items() if any(elems)}


def _next_stop(life: Lifetime, segment: int) -> int:
    """Returns the next segment after this one that uses a tensor; 0: none."""
    at = bisect_right(life.stops, segment)
    return life.stops[at] if at < len(life.stops) else 0


def _evict(retained: dict[str, int], lives: Mapping[str, Lifetime], tensors: Sequence[str], bits: int) -> int:
    """Evict tails of these tensors from `retained`, in this order, until so many bits are free. Returns the
    bits that became free.
    """
    found = 0
    for t in tensors:
        evicted = min(retained[t], max(0, -(-(bits - found) // lives[t].bits)))
        retained[t] -= evicted
        found += evicted * lives[t].bits
    return found


def minimum(problem: ResidencyProblem) -> ResidencyOptimum:
    """The optimum. First the linear program is solved, without the space of `spared_tiles`; if that space
    could help, then the mixed-integer program, with at most MAX_NODES nodes of branch and bound.
    """
    from scipy.optimize import LinearConstraint, linprog, milp  # type: ignore[attr-defined, unused-ignore]
    from scipy.sparse import coo_array

    program = _Program([], [], [])
    # (tensor, k) -> variable of its elements that stay from its k-th stop to the next
    stay_variable: dict[tuple[str, int], int] = {}
    # by segment: (variable, bits per unit)
    space_of: list[list[tuple[int, float]]] = [[] for _ in problem.free_bits]
    # (tensor, segment) -> variable of the elements for which it takes space in the segment
    space_variable: dict[tuple[str, int], int] = {}
    for life in problem.lives:
        for k in range(len(life.stops) - 1):
            stay_variable[life.tensor, k] = program.variable(-life.moved_words[k + 1] / life.size, life.size)
        if life.is_produced:
            program.cost[stay_variable[life.tensor, 0]] += (life.words - life.moved_words[0]) / life.size
            if not life.is_result:
                throughout = program.variable(-life.words / life.size, life.size)
                for k in range(len(life.stops) - 1):
                    program.at_least(stay_variable[life.tensor, k], throughout)
        for at in range(life.stops[0], life.stops[-1] + 1):
            overlapping = [
                stay_variable[life.tensor, k]
                for k, (a, b) in enumerate(zip(life.stops, life.stops[1:], strict=False))
                if a <= at <= b
            ]
            space_variable[life.tensor, at] = program.maximum(overlapping, life.size)
    life_of = {life.tensor: life for life in problem.lives}
    heir_of = {(old, at): heir for at, old, heir in problem.heirs}
    inherits = {(at, heir) for at, _, heir in problem.heirs}
    for (tensor, at), variable in space_variable.items():
        if (tensor, at) in heir_of:
            heir = heir_of[tensor, at]
            variable = program.maximum(
                [variable, space_variable[heir, at]], max(life_of[tensor].size, life_of[heir].size)
            )
        if (at, tensor) not in inherits:
            space_of[at].append((variable, float(life_of[tensor].bits)))
    for at, tensor, bits in problem.spared_tiles:
        life = life_of[tensor]
        is_whole = program.variable(0.0, 1.0)
        program.rows.append(
            [(is_whole, float(life.size)), (stay_variable[tensor, max(life.stops.index(at) - 1, 0)], -1.0)]
        )
        space_of[at].append((is_whole, -float(bits)))
    # the last variables, one per spared tile: 1 if the tensor stays whole, else 0
    whole_variables = range(len(program.cost) - len(problem.spared_tiles), len(program.cost))
    total_words = sum(sum(life.moved_words) for life in problem.lives)
    if not program.cost:
        return ResidencyOptimum({}, total_words, 0.0)
    rows = [*program.rows, *space_of]
    limit = [*([0.0] * len(program.rows)), *map(float, problem.free_bits)]
    entries = [(i, column, value) for i, row in enumerate(rows) for column, value in row]
    row_numbers, columns, values = (np.array(each) for each in zip(*entries, strict=True))
    matrix = coo_array((values, (row_numbers, columns)), shape=(len(rows), len(program.cost))).tocsc()  # type: ignore[no-untyped-call, unused-ignore]
    upper = np.array(program.upper)
    upper[whole_variables] = 0.0
    solved = linprog(
        program.cost, matrix, limit, bounds=np.column_stack((np.zeros(len(upper)), upper)), method="highs"
    )  # type: ignore[no-untyped-call, unused-ignore]
    if solved.status != 0:
        raise RuntimeError(f"retention of {len(problem.free_bits)} segments: {solved.message}")
    best, proven = solved, True
    if problem.spared_tiles and -solved.fun < SURE_SHARE * sum(
        max(0.0, -cost * most) for cost, most in zip(program.cost, program.upper, strict=True)
    ):
        integral = np.zeros(len(upper))
        integral[whole_variables] = 1
        fits = LinearConstraint(matrix, -np.inf, np.array(limit))  # type: ignore[no-untyped-call, unused-ignore]
        found = milp(  # type: ignore[no-untyped-call, unused-ignore]
            np.array(program.cost),
            integrality=integral,
            bounds=(0.0, np.array(program.upper)),
            constraints=fits,
            options={"node_limit": MAX_NODES, "mip_rel_gap": 0.0},
        )
        proven = found.status == 0
        best = found if found.x is not None and found.fun < solved.fun else solved
    x: NDArray[np.int64] = np.floor(best.x + 1e-6).astype(int)
    gaps = {
        life.tensor: [int(x[stay_variable[life.tensor, k]]) for k in range(len(life.stops) - 1)]
        for life in problem.lives
    }
    saved = max(0.0, -float(solved.ineqlin.marginals[len(program.rows) :].sum()))
    return ResidencyOptimum(
        {t: elems for t, elems in gaps.items() if any(elems)}, total_words + float(best.fun), saved, proven
    )


@dataclass(slots=True)
class _Program:
    """minimise cost * x, 0 <= x <= upper, rows * x <= 0."""

    cost: list[float]
    upper: list[float]
    rows: list[list[tuple[int, float]]]

    def variable(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(float(upper))
        return len(self.cost) - 1

    def at_least(self, more: int, less: int) -> None:
        self.rows.append([(less, 1.0), (more, -1.0)])

    def maximum(self, variables: Sequence[int], upper: float) -> int:
        """A variable that is at least as large as each of these."""
        if len(variables) == 1:
            return variables[0]
        found = self.variable(0.0, upper)
        for one in variables:
            self.at_least(found, one)
        return found
