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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dse.mapping.schedule import Retained

NODES = 2000  # maximum of nodes in the branch and bound over the yes-or-no choices
SURE = 1 - 1e-9  # at least this share of all possible savings: yes-or-no choices cannot save more
# tensor -> elements in one instance of the level that stay, for each pair of successive stops
Gaps = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Life:
    """The uses of a tensor in a schedule that retains nothing. stops: segments that make or read it; first:
    the first einsum that makes or reads it; last: the last such einsum of each stop.

    size, bits: elements in one instance of the level, and bits of each; words: machine words of the whole
    tensor. moved: machine words that each stop moves from and to the outermost level. produced: whether its
    first stop makes it; result: whether it is a result of the workload, which is written to main memory in
    any case.
    """

    tensor: str
    stops: tuple[int, ...]
    first: str
    last: tuple[str, ...]
    size: int
    bits: int
    words: float
    moved: tuple[float, ...]
    produced: bool
    result: bool


@dataclass(frozen=True, slots=True)
class ResidencyProblem:
    """Which tensors to retain between the segments of a schedule. lives: of the tensors that may stay. free:
    bits of one instance that each segment leaves free; heirs: (segment, old tensor, new tensor), where the
    new one may take the place of the old one.

    tiles: (segment, tensor, bits): space of a tile that the segment does not need if it finds all of the
    tensor on chip; the optimum makes use of this, the policies do not.
    """

    lives: tuple[Life, ...]
    free: tuple[int, ...]
    heirs: tuple[tuple[int, str, str], ...]
    tiles: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ResidencyOptimum:
    """The best choice of elements that stay. gaps: these elements; words: main-memory words of the schedule
    with them, before they are rounded down to whole elements; saved: words fewer per additional bit of space
    in every instance (shadow price of the linear program); proven: whether no other choice moves fewer words.
    """

    gaps: Gaps
    words: float
    saved: float
    proven: bool = True


def moved_words(problem: ResidencyProblem, gaps: Gaps) -> float:
    """Machine words that all tensors of the problem move from and to the outermost level, if `gaps` stay."""
    return sum(
        _moved_words(one, [n / one.size for n in gaps.get(one.tensor, ())] or [0.0] * (len(one.stops) - 1))
        for one in problem.lives
    )


def _moved_words(one: Life, shares: Sequence[float]) -> float:
    found = one.moved[0] * (1 - shares[0]) if one.produced else one.moved[0]
    found += sum(n * (1 - share) for n, share in zip(one.moved[1:], shares, strict=True))
    always = 0.0 if one.result else min(shares)
    return found + (max(0.0, shares[0] - always) * one.words if one.produced else 0.0)


def to_retained(problem: ResidencyProblem, gaps: Gaps, level: str) -> tuple[Retained, ...]:
    """The elements that stay as `retain` lines of a schedule: as shares of the elements in each instance."""
    found = []
    for one in problem.lives:
        shares = [Fraction(n, one.size) for n in gaps.get(one.tensor, ())]
        if not any(shares):
            continue
        first = shares[0] if one.produced or one.first == one.last[0] else Fraction(0)
        changes, now = [], first
        for name, share in zip(one.last, shares, strict=False):
            if share != now:
                changes.append((name, share))
                now = share
        found.append(Retained(level, one.tensor, first, tuple(changes)))
    return tuple(sorted(found, key=lambda keep: (keep.level, keep.tensor)))


def seq_flex(problem: ResidencyProblem) -> Gaps:
    """SEQ-Flex: nothing stays."""
    return {}


def seq_overflow(problem: ResidencyProblem) -> Gaps:
    """SEQ-Overflow: tensors stay in the order in which they come, as long as there is free space; their tails
    are evicted only where a segment leaves too little of it.
    """
    return _fill(problem, replace=False)


def gogeta(problem: ResidencyProblem) -> Gaps:
    """GOGETA's policy (section 5.3): a new result evicts the tail of the tensor that is needed latest, if
    that is needed later than the result; tensors that are read only fill free space.
    """
    return _fill(problem, replace=True)


def _fill(problem: ResidencyProblem, replace: bool) -> Gaps:
    """Fill the free space segment by segment. The space of a tensor that is read for the last time is free at
    the end of the segment, or passes to its heir. replace: results evict tensors that are needed later.
    """
    lives = {one.tensor: one for one in problem.lives}
    heirs = {(at, new): old for at, old, new in problem.heirs}
    kept = dict.fromkeys(lives, 0)
    gaps: dict[str, list[int]] = {t: [] for t in lives}
    for at, free in enumerate(problem.free):
        # next stop of each tensor after this segment; 0: none
        later = {t: next((stop for stop in one.stops if stop > at), 0) for t, one in lives.items()}
        here = [one for one in problem.lives if at in one.stops]
        born = [one for one in here if one.produced and at == one.stops[0]]
        room = free - sum(n * lives[t].bits for t, n in kept.items())
        users = {one.tensor for one in here}
        idle = sorted((t for t in lives if t not in users), key=lambda t: -later[t])
        room += _evict(kept, lives, [*idle, *users], -room)
        for one in here:
            if at != one.stops[0]:
                gaps[one.tensor].append(kept[one.tensor])
        for one in born:
            old = heirs.get((at, one.tensor))
            if old and later[one.tensor]:
                kept[one.tensor] = min(kept[old], one.size)
        for one in sorted(
            (one for one in here if later[one.tensor]), key=lambda one: (one not in born, later[one.tensor])
        ):
            want = one.size - kept[one.tensor]
            if replace and one in born:
                room += _evict(
                    kept, lives, [t for t in idle if later[t] > later[one.tensor]], want * one.bits - room
                )
            more = max(0, min(want, room // one.bits))
            kept[one.tensor] += more
            room -= more * one.bits
        kept = {t: n if later[t] else 0 for t, n in kept.items()}
    return {t: own for t, own in gaps.items() if any(own)}


def _evict(kept: dict[str, int], lives: Mapping[str, Life], tensors: Sequence[str], bits: int) -> int:
    """Evict tails of these tensors from `kept`, in this order, until so many bits are free. Returns the bits
    that became free.
    """
    found = 0
    for t in tensors:
        gone = min(kept[t], max(0, -(-(bits - found) // lives[t].bits)))
        kept[t] -= gone
        found += gone * lives[t].bits
    return found


def minimum(problem: ResidencyProblem) -> ResidencyOptimum:
    """The optimum. First the linear program is solved, without the space of `tiles`; if that space could
    help, then the mixed-integer program, with at most NODES nodes of branch and bound.
    """
    from scipy.optimize import LinearConstraint, linprog, milp  # type: ignore[attr-defined, unused-ignore]
    from scipy.sparse import coo_array

    p = _Program([], [], [])
    gap: dict[tuple[str, int], int] = {}
    taken: list[list[tuple[int, float]]] = [[] for _ in problem.free]  # by segment: (variable, bits per unit)
    most: dict[tuple[str, int], int] = {}
    for one in problem.lives:
        for k in range(len(one.stops) - 1):
            gap[one.tensor, k] = p.variable(-one.moved[k + 1] / one.size, one.size)
        if one.produced:
            p.cost[gap[one.tensor, 0]] += (one.words - one.moved[0]) / one.size
            if not one.result:
                always = p.variable(-one.words / one.size, one.size)
                for k in range(len(one.stops) - 1):
                    p.at_least(gap[one.tensor, k], always)
        for at in range(one.stops[0], one.stops[-1] + 1):
            there = [
                gap[one.tensor, k]
                for k, (a, b) in enumerate(zip(one.stops, one.stops[1:], strict=False))
                if a <= at <= b
            ]
            most[one.tensor, at] = p.larger(there, one.size)
    size = {one.tensor: one for one in problem.lives}
    pairs = {(old, at): heir for at, old, heir in problem.heirs}
    new = {(at, heir) for at, _, heir in problem.heirs}
    for (tensor, at), variable in most.items():
        if (tensor, at) in pairs:
            heir = pairs[tensor, at]
            variable = p.larger([variable, most[heir, at]], max(size[tensor].size, size[heir].size))
        if (at, tensor) not in new:
            taken[at].append((variable, float(size[tensor].bits)))
    for at, tensor, bits in problem.tiles:
        one = size[tensor]
        whole = p.variable(0.0, 1.0)
        p.rows.append([(whole, float(one.size)), (gap[tensor, max(one.stops.index(at) - 1, 0)], -1.0)])
        taken[at].append((whole, -float(bits)))
    choices = range(len(p.cost) - len(problem.tiles), len(p.cost))
    fixed = sum(sum(one.moved) for one in problem.lives)
    if not p.cost:
        return ResidencyOptimum({}, fixed, 0.0)
    rows = [*p.rows, *taken]
    limit = [*([0.0] * len(p.rows)), *map(float, problem.free)]
    entries = [(i, column, value) for i, row in enumerate(rows) for column, value in row]
    numbers, columns, values = (np.array(each) for each in zip(*entries, strict=True))
    matrix = coo_array((values, (numbers, columns)), shape=(len(rows), len(p.cost))).tocsc()  # type: ignore[no-untyped-call, unused-ignore]
    upper = np.array(p.upper)
    upper[choices] = 0.0
    solved = linprog(
        p.cost, matrix, limit, bounds=np.column_stack((np.zeros(len(upper)), upper)), method="highs"
    )  # type: ignore[no-untyped-call, unused-ignore]
    if solved.status != 0:
        raise RuntimeError(f"retention of {len(problem.free)} segments: {solved.message}")
    best, proven = solved, True
    if problem.tiles and -solved.fun < SURE * sum(
        max(0.0, -cost * most) for cost, most in zip(p.cost, p.upper, strict=True)
    ):
        integral = np.zeros(len(upper))
        integral[choices] = 1
        fits = LinearConstraint(matrix, -np.inf, np.array(limit))  # type: ignore[no-untyped-call, unused-ignore]
        found = milp(  # type: ignore[no-untyped-call, unused-ignore]
            np.array(p.cost),
            integrality=integral,
            bounds=(0.0, np.array(p.upper)),
            constraints=fits,
            options={"node_limit": NODES, "mip_rel_gap": 0.0},
        )
        proven = found.status == 0
        best = found if found.x is not None and found.fun < solved.fun else solved
    x: NDArray[np.int64] = np.floor(best.x + 1e-6).astype(int)
    gaps = {
        one.tensor: [int(x[gap[one.tensor, k]]) for k in range(len(one.stops) - 1)] for one in problem.lives
    }
    saved = max(0.0, -float(solved.ineqlin.marginals[len(p.rows) :].sum()))
    return ResidencyOptimum(
        {t: own for t, own in gaps.items() if any(own)}, fixed + float(best.fun), saved, proven
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

    def larger(self, variables: Sequence[int], upper: float) -> int:
        """A variable that is at least as large as each of these."""
        if len(variables) == 1:
            return variables[0]
        found = self.variable(0.0, upper)
        for one in variables:
            self.at_least(found, one)
        return found
