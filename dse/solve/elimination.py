"""Variable elimination on a graph of choices: finds one label per node so that the sum of all costs is
minimal and every reservation fits. All schedulers of `dse.solve` use it.

    nodes          einsums, tensors, boundaries between einsums: anything with a choice; a label is the number
                   of a choice
    factors        tables over a few nodes (`Table`): for each combination of labels a front of costs; a
                   combination without a row is impossible
    costs          energy and latency, which add up over factors
    reservations   bits of one level at one time, or cycles, which add up over factors too (`Reservation`); a
                   sum must not exceed its limit once all tables that add to it are joined; the largest sum
                   among the reservations of a level is its peak

Elimination of a node joins its tables and keeps the best labels of the node for each combination of its
neighbours' labels. Nodes are eliminated in min-fill order. A row is dropped in three cases:

    dominated      another row with the same labels is at least as good in every column that still matters
    overflow       a reservation exceeds its limit even with the minimum of every table to come
    look-ahead     its cost plus the minimum of every table to come exceeds a known answer

None of these drops all optima, so the answer is exact for any graph. A table of more than `most` rows is cut
to the best ones (a beam): the lowest bound of the dropped rows then bounds the answer's gap.

Tables of equal nodes share their arrays. EDP is a product of two sums: (energy, latency) fronts are kept, and
multiplied at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dse.run.compiled import njit
from dse.sim.fronts import Objective
from workloads.arrays import Floats, Ints

Ranking = Objective | Literal["front"]
SUMS = 2  # columns of a table that add up: energy, latency
# whether energy, and latency, enter a ranking
RANKED_SUMS = {"energy": (True, False), "latency": (False, True), "edp": (True, True), "front": (True, True)}
MAX_ROWS = 200_000  # rows of a table at most, beyond which only the best are kept
FIRST_ROWS = 64  # the same limit in a first, fast run, whose answer is the cutoff of the second
TOLERANCE = 1e-9  # relative tolerance where bounds are compared with the cutoff


@dataclass(frozen=True, slots=True)
class Table:
    """A factor: costs of combinations of labels. Rows of equal labels are a front."""

    scope: tuple[str, ...]  # names of its nodes
    labels: Ints  # [rows, nodes of the scope]
    values: Floats  # [rows, SUMS + reservations] energy, latency, and what is added to each reservation
    reservations: tuple[str, ...] = ()  # names of the reservations that it adds to


@dataclass(frozen=True, slots=True)
class Reservation:
    """A limited resource, such as the bits of a buffer at one time, to which tables add."""

    limit: float  # of the sum over all tables
    level: str = ""  # level whose peak this sum counts for; "": no peak is reported


@dataclass(frozen=True, slots=True)
class Choice:
    """A label per node, with costs."""

    labels: dict[str, int]  # by node
    rows: tuple[int, ...]  # chosen row of every table
    energy: float
    latency: float
    peaks: tuple[tuple[str, float], ...] = ()  # (level, largest sum among its reservations)


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer of `join`."""

    # the best choice; with ranking "front" all undominated ones in (energy, latency, peaks), lowest energy
    # first; none: nothing fits
    choices: tuple[Choice, ...]
    # no choice has a lower objective value; inf: nothing fits; -inf: a front was cut to `most` rows
    lower_bound: float
    largest: int  # rows of the largest table


def table(
    scope: Sequence[str],
    rows: Sequence[tuple[Sequence[int], Sequence[float]]],
    reservations: Sequence[str] = (),
) -> Table:
    """Returns the table of a factor. rows: pairs of labels (one per node of the scope) and values (energy,
    latency, what is added to each reservation).
    """
    return Table(
        tuple(scope),
        np.array([at for at, _ in rows], np.int64).reshape(len(rows), len(scope)),
        np.array([row for _, row in rows], np.float64).reshape(len(rows), SUMS + len(reservations)),
        tuple(reservations),
    )


def ranking_values(values: Floats, ranking: Ranking) -> Floats:
    """Returns [rows] the objective value of rows of (energy, latency, ...); the energy for a front."""
    energy, latency = values[:, 0], values[:, 1]
    return latency if ranking == "latency" else energy * latency if ranking == "edp" else energy


def join(
    tables: Sequence[Table],
    reservations: Mapping[str, Reservation] | None = None,
    ranking: Ranking = "energy",
    most: int = MAX_ROWS,
) -> JoinResult:
    """Returns the best choice of labels (a front with ranking "front"), and a lower bound. Equal choices are
    ordered by the other sum, then by labels.

    Raises ValueError on negative costs: bounds of tables to come assume that none is negative.
    """
    if any(len(t.values) and t.values.min() < 0 for t in tables):
        raise ValueError("a factor has a negative cost")
    reservations = reservations or {}
    levels = tuple(sorted({reservation.level for reservation in reservations.values() if reservation.level}))
    if ranking == "front":
        return _Elimination(reservations, levels, ranking, most, inf).run(tables)
    first = _Elimination(reservations, levels, ranking, min(FIRST_ROWS, most), inf).run(tables)
    if first.lower_bound >= _best(first, ranking):
        return first
    found = _Elimination(reservations, levels, ranking, most, _best(first, ranking)).run(tables)
    best = min(found, first, key=lambda one: _best(one, ranking))
    return replace(
        best,
        lower_bound=max(first.lower_bound, min(_best(best, ranking), found.lower_bound)),
        largest=found.largest,
    )


def _best(found: JoinResult, ranking: Ranking) -> float:
    """Returns the objective value of the best choice, inf if nothing fits."""
    return min((_ranking_value(one, ranking) for one in found.choices), default=inf)


def _ranking_value(one: Choice, ranking: Ranking) -> float:
    return {
        "energy": one.energy,
        "latency": one.latency,
        "edp": one.energy * one.latency,
        "front": one.energy,
    }[ranking]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Origin of the rows of a part, from which chosen rows are read back."""

    parents: tuple[_Origin, _Origin] | int  # of two parts that were joined; or the number of a table
    rows: Ints  # [n, 2] row in each parent; of a table [n, 1] its row


@dataclass(frozen=True, slots=True)
class _Part:
    """Joined tables."""

    scope: tuple[str, ...]  # nodes that are not yet eliminated
    labels: Ints  # [rows, nodes of the scope]
    values: Floats  # [rows, SUMS + levels + reservations] sums, peaks, open reservations
    reservations: tuple[str, ...]  # names of the reservations to which another part may add
    origin: _Origin

    def rows(self, at: NDArray[np.intp] | NDArray[np.bool_]) -> _Part:
        return replace(
            self,
            labels=self.labels[at],
            values=self.values[at],
            origin=replace(self.origin, rows=self.origin.rows[at]),
        )


@dataclass(slots=True)
class _Elimination:
    """One run of elimination."""

    limits: Mapping[str, Reservation]  # by name
    levels: tuple[str, ...]  # levels whose peaks are reported
    ranking: Ranking
    most: int  # rows of a table, at most
    cutoff: float  # objective value of a known answer: rows with a higher bound are dropped
    lower_bound: float = inf  # lowest bound of the rows that the beam dropped
    largest: int = 0  # rows of the largest table so far

    def run(self, tables: Sequence[Table]) -> JoinResult:
        """Returns the answer after all nodes are eliminated."""
        wide = SUMS + len(self.levels)
        parts = []
        for i, t in enumerate(tables):
            values = np.hstack(
                [t.values[:, :SUMS], np.zeros((len(t.values), len(self.levels))), t.values[:, SUMS:]]
            )
            parts.append(
                _Part(
                    t.scope, t.labels, values, t.reservations, _Origin(i, np.arange(len(t.values))[:, None])
                )
            )
        for i in range(len(parts)):
            rest = [*parts[:i], *parts[i + 1 :]]
            parts[i] = self.prune(self.close(parts[i], rest), rest)
        for node in order(tables, self.limits, self.most):
            own = sorted((p for p in parts if node in p.scope), key=lambda p: len(p.labels))
            parts = [p for p in parts if node not in p.scope]
            whole = own[0]
            for i, other in enumerate(own[1:], 2):
                whole = self.join(whole, other, [*parts, *own[i:]])
            parts.append(self.prune(self.without(node, whole), parts))
        whole, *rest = sorted(parts, key=lambda p: len(p.labels))
        for i, other in enumerate(rest, 1):
            whole = self.join(whole, other, rest[i:])
        return self.to_result(whole, tables, wide)

    def join(self, a: _Part, b: _Part, rest: Sequence[_Part]) -> _Part:
        """Returns all pairs of rows that agree in the labels of shared nodes, which get one column."""
        # far more pairs than a beam keeps: the worst rows of b are dropped before the join
        if (rows := _pairs(a, b)) > 16 * self.most:
            scale = rows / (16 * self.most)
            b = self.beam(b, [*rest, a], max(int(len(b.labels) / scale), 1))
        shared = [node for node in a.scope if node in b.scope]
        left, right = _matching(*_keys(a, b, shared))
        reservations = (*a.reservations, *(name for name in b.reservations if name not in a.reservations))
        own, peaks = [node for node in b.scope if node not in shared], slice(SUMS, SUMS + len(self.levels))
        values = np.zeros((len(left), SUMS + len(self.levels) + len(reservations)))
        for part, rows_of in ((a, left), (b, right)):
            values[:, :SUMS] += part.values[rows_of, :SUMS]
            values[:, peaks] = np.maximum(values[:, peaks], part.values[rows_of, peaks])
            for i, name in enumerate(part.reservations):
                values[:, SUMS + len(self.levels) + reservations.index(name)] += part.values[
                    rows_of, SUMS + len(self.levels) + i
                ]
        labels = np.hstack([a.labels[left], b.labels[right][:, [b.scope.index(node) for node in own]]])
        found = _Part(
            (*a.scope, *own),
            labels,
            values,
            reservations,
            _Origin((a.origin, b.origin), np.column_stack([left, right])),
        )
        return self.prune(self.close(found, rest), rest)

    def without(self, node: str, part: _Part) -> _Part:
        """Returns a part without a node. Rows stay; their labels of the node are read back at the end."""
        at = part.scope.index(node)
        return replace(
            part, scope=tuple(n for n in part.scope if n != node), labels=np.delete(part.labels, at, axis=1)
        )

    def close(self, part: _Part, rest: Sequence[_Part]) -> _Part:
        """Closes reservations to which no other part adds: rows beyond a limit are dropped, and the sums go
        into the peaks of their levels.
        """
        others = {name for p in rest for name in p.reservations}
        first, values = SUMS + len(self.levels), part.values
        fits, done = np.ones(len(values), np.bool_), []
        for i, name in enumerate(part.reservations):
            if name in others:
                continue
            done.append(first + i)
            fits &= values[:, first + i] <= self.limits[name].limit
            if level := self.limits[name].level:
                at = SUMS + self.levels.index(level)
                values[:, at] = np.maximum(values[:, at], values[:, first + i])
        part = replace(
            part,
            values=np.delete(values, done, axis=1),
            reservations=tuple(name for name in part.reservations if name in others),
        )
        return part if fits.all() else part.rows(fits)

    def prune(self, part: _Part, rest: Sequence[_Part]) -> _Part:
        """Returns the part without rows that must overflow, that exceed the cutoff, or that are dominated."""
        first = SUMS + len(self.levels)
        alive = np.ones(len(part.labels), np.bool_)
        for i, name in enumerate(part.reservations):
            alive &= (
                part.values[:, first + i]
                + sum(_minimum(p, first + p.reservations.index(name)) for p in rest if name in p.reservations)
                <= self.limits[name].limit
            )
        if self.cutoff < inf:
            alive &= self.bounds(part, rest) <= self.cutoff * (1 + TOLERANCE)
        part = part if alive.all() else part.rows(alive)
        # active columns decide which row dominates; the others only put the best of equal rows first
        peaks = self.ranking == "front"
        active = np.array(
            [*RANKED_SUMS[self.ranking], *[peaks] * len(self.levels), *[True] * len(part.reservations)]
        )
        passive = part.values[:, :SUMS][:, ~active[:SUMS]]
        columns = np.ascontiguousarray(part.values[:, active])
        group = _groups(part.labels)
        at = np.lexsort((*passive.T[::-1], *columns.T[::-1], group))
        part = part.rows(at[_undominated(group[at], columns[at])])
        self.largest = max(self.largest, len(part.labels))
        return self.beam(part, rest, self.most) if len(part.labels) > self.most else part

    def bounds(self, part: _Part, rest: Sequence[_Part]) -> Floats:
        """Returns lower bounds [rows] on the objective value of any answer that contains a row: its own sums
        plus the minimum of every other part.
        """
        least = np.array([sum(_minimum(p, column) for p in rest) for column in range(SUMS)])
        return ranking_values(part.values[:, :SUMS] + least, self.ranking)

    def beam(self, part: _Part, rest: Sequence[_Part], most: int) -> _Part:
        """Returns the `most` rows of lowest bound. If there are few combinations of labels, the best row of
        each comes before the second of any.
        """
        bound = self.bounds(part, rest)
        group = _groups(part.labels)
        at = np.lexsort((bound, group))
        fresh = np.r_[True, group[at][1:] != group[at][:-1]]
        rank = np.empty(len(at), np.int64)
        rank[at] = np.arange(len(at)) - np.maximum.accumulate(np.where(fresh, np.arange(len(at)), 0))
        best = np.lexsort((bound, rank > 0)) if fresh.sum() <= most // 2 else np.argsort(bound, kind="stable")
        if len(best) > most:
            self.lower_bound = min(
                self.lower_bound, float(bound[best[most:]].min()) if self.ranking != "front" else -inf
            )
        return part.rows(np.sort(best[:most]))

    def to_result(self, whole: _Part, tables: Sequence[Table], wide: int) -> JoinResult:
        """Returns the answer from the last part, in which no node is left. wide: number of sums and peaks."""
        keys = (
            (whole.values[:, 1], ranking_values(whole.values, self.ranking))
            if self.ranking != "front"
            else (whole.values[:, 1], whole.values[:, 0])
        )
        found = []
        for row in np.lexsort(keys)[: None if self.ranking == "front" else 1]:
            options = _rows_of_tables(whole.origin, int(row), len(tables))
            labels = {
                node: int(label)
                for t, pick in zip(tables, options, strict=True)
                for node, label in zip(t.scope, t.labels[pick], strict=True)
            }
            energy, latency, *peaks = (float(v) for v in whole.values[row, :wide])
            found.append(
                Choice(labels, options, energy, latency, tuple(zip(self.levels, peaks, strict=True)))
            )
        best = min((_ranking_value(one, self.ranking) for one in found), default=inf)
        return JoinResult(
            tuple(found),
            self.lower_bound
            if self.ranking == "front" and self.lower_bound < inf
            else min(best, self.lower_bound),
            self.largest,
        )


def _rows_of_tables(origin: _Origin, row: int, tables: int) -> tuple[int, ...]:
    """Returns the row of every table from which a row was joined."""
    found, left = [0] * tables, [(origin, row)]
    while left:
        origin, row = left.pop()
        if isinstance(origin.parents, int):
            found[origin.parents] = int(origin.rows[row, 0])
        else:
            left += [(parent, int(one)) for parent, one in zip(origin.parents, origin.rows[row], strict=True)]
    return tuple(found)


def _minimum(part: _Part, column: int) -> float:
    """Returns the minimum of a column, inf without rows."""
    return float(part.values[:, column].min()) if len(part.values) else inf


def _groups(labels: Ints) -> Ints:
    """Returns a group number per row, equal for rows with equal labels."""
    if labels.shape[1] == 0 or not len(labels):
        return np.zeros(len(labels), np.int64)
    most = labels.max(axis=0) + 1
    if prod(int(n) for n in most) < 1 << 62:
        return np.asarray(np.ravel_multi_index(tuple(labels.T), tuple(int(n) for n in most)), np.int64)
    return np.asarray(np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1), np.int64)


def _keys(a: _Part, b: _Part, shared: Sequence[str]) -> tuple[Ints, Ints]:
    """Returns group numbers of the rows of a and of b, equal for equal labels of the shared nodes."""
    both = np.vstack([p.labels[:, [p.scope.index(node) for node in shared]] for p in (a, b)])
    group = _groups(both)
    return group[: len(a.labels)], group[len(a.labels) :]


def _counts(left: Ints, right: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns for each row of `left` how many rows of `right` match it; the first of their positions in
    `right` sorted; and the order that sorts `right`.
    """
    at = np.argsort(right, kind="stable")
    begin, end = (np.searchsorted(right[at], left, side) for side in ("left", "right"))
    return end - begin, begin, at


def _pairs(a: _Part, b: _Part) -> int:
    """Returns the number of rows that a join of a and b has."""
    return int(_counts(*_keys(a, b, [node for node in a.scope if node in b.scope]))[0].sum())


def _matching(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Returns the row numbers of all matching pairs: those of `left`, those of `right`."""
    many, begin, at = _counts(left, right)
    rows = np.repeat(np.arange(len(left)), many)
    return rows, at[np.arange(len(rows)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(begin, many)]


@njit(cache=True, nogil=True)
def _undominated(group: Ints, columns: Floats) -> NDArray[np.bool_]:
    """Returns [rows] True for undominated rows. Rows are sorted by group, then by columns, so only an earlier
    row of the same group can dominate (lower or equal in all columns).
    """
    kept = np.zeros(len(group), np.bool_)
    front, many = np.zeros(len(group), np.int64), 0
    for i in range(len(group)):
        if i and group[i] != group[i - 1]:
            many = 0
        beaten = False
        for j in range(many):
            worse = True
            for c in range(columns.shape[1]):
                worse = worse and columns[front[j], c] <= columns[i, c]
            if worse:
                beaten = True
                break
        if not beaten:
            kept[i] = True
            front[many] = i
            many += 1
    return kept


def order(tables: Sequence[Table], reservations: Mapping[str, Reservation], most: int) -> list[str]:
    """Returns the nodes in order of elimination (min-fill).

    All nodes of tables that add to one reservation are taken as neighbours, so that the reservation is closed
    before the first of them is eliminated. If that makes a table larger than `most`, nodes that only share a
    reservation are no neighbours, and reservations stay open for longer.
    """
    labels: dict[str, int] = {}
    for t in tables:
        for i, node in enumerate(t.scope):
            labels[node] = max(labels.get(node, 1), int(t.labels[:, i].max(initial=0)) + 1)
    scopes = [t.scope for t in tables]
    closed = [
        tuple(dict.fromkeys(node for t in tables if name in t.reservations for node in t.scope))
        for name in reservations
    ]
    found, size = _min_fill(labels, [*scopes, *closed])
    return found if size <= most or not closed else _min_fill(labels, scopes)[0]


def _min_fill(labels: Mapping[str, int], scopes: Iterable[Sequence[str]]) -> tuple[list[str], int]:
    """Returns the order of elimination, and the number of label combinations of the largest table. The next
    node is always the one whose neighbours lack the fewest edges; ties go to the smaller table, then by name.
    """
    near: dict[str, set[str]] = {node: set() for node in labels}
    for scope in scopes:
        for a, b in combinations(scope, 2):
            near[a].add(b)
            near[b].add(a)
    rank = {node: (_fill(near, node), _size(near, labels, node), node) for node in near}
    found, largest = [], 1
    while near:
        node = min(rank, key=rank.__getitem__)
        largest = max(largest, rank.pop(node)[1])
        around = near.pop(node)
        for a in around:
            near[a] |= around - {a}
            near[a].discard(node)
        for other in {b for a in around for b in (a, *near[a])}:
            rank[other] = _fill(near, other), _size(near, labels, other), other
        found.append(node)
    return found, largest


def _fill(near: Mapping[str, set[str]], node: str) -> int:
    """Returns the number of edges that the neighbours of a node lack between each other."""
    return sum(b not in near[a] for a, b in combinations(near[node], 2))


def _size(near: Mapping[str, set[str]], labels: Mapping[str, int], node: str) -> int:
    """Returns the number of label combinations of a node and its neighbours."""
    return prod(labels[n] for n in (node, *near[node]))
