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

None of these drops all optima, so the answer is exact for any graph. A table of more than `max_rows` rows is
cut to the best ones (a beam): the lowest bound of the dropped rows then bounds the answer's gap.

Tables of equal nodes share their arrays. EDP is a product of two sums: (energy, latency) fronts are kept, and
multiplied at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    # no choice has a lower objective value; inf: nothing fits; -inf: a front was cut to `max_rows` rows
    lower_bound: float
    max_table_rows: int  # rows of the largest table


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
        np.array([labels for labels, _ in rows], np.int64).reshape(len(rows), len(scope)),
        np.array([values for _, values in rows], np.float64).reshape(len(rows), SUMS + len(reservations)),
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
    max_rows: int = MAX_ROWS,
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
        return _Elimination(reservations, levels, ranking, max_rows, inf).run(tables)
    first = _Elimination(reservations, levels, ranking, min(FIRST_ROWS, max_rows), inf).run(tables)
    if first.lower_bound >= _best_value(first, ranking):
        return first
    second = _Elimination(reservations, levels, ranking, max_rows, _best_value(first, ranking)).run(tables)
    best = min(second, first, key=lambda one: _best_value(one, ranking))
    return replace(
        best,
        lower_bound=max(first.lower_bound, min(_best_value(best, ranking), second.lower_bound)),
        max_table_rows=second.max_table_rows,
    )


def _best_value(result: JoinResult, ranking: Ranking) -> float:
    """Returns the objective value of the best choice, inf if nothing fits."""
    return min((_ranking_value(choice, ranking) for choice in result.choices), default=inf)


def _ranking_value(choice: Choice, ranking: Ranking) -> float:
    return {
        "energy": choice.energy,
        "latency": choice.latency,
        "edp": choice.energy * choice.latency,
        "front": choice.energy,
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
    minimums: Floats = field(init=False)  # [columns of values] inf without rows

    def __post_init__(self) -> None:
        """Takes the minimums once: bounds of each other part ask for them."""
        object.__setattr__(self, "minimums", self.values.min(axis=0, initial=inf))

    def select(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> _Part:
        return replace(
            self,
            labels=self.labels[rows],
            values=self.values[rows],
            origin=replace(self.origin, rows=self.origin.rows[rows]),
        )


@dataclass(slots=True)
class _Elimination:
    """One run of elimination."""

    limits: Mapping[str, Reservation]  # by name
    levels: tuple[str, ...]  # levels whose peaks are reported
    ranking: Ranking
    max_rows: int  # rows of a table, at most
    cutoff: float  # objective value of a known answer: rows with a higher bound are dropped
    lower_bound: float = inf  # lowest bound of the rows that the beam dropped
    max_table_rows: int = 0  # rows of the largest table so far

    def run(self, tables: Sequence[Table]) -> JoinResult:
        """Returns the answer after all nodes are eliminated."""
        cost_columns = SUMS + len(self.levels)
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
            other_parts = [*parts[:i], *parts[i + 1 :]]
            parts[i] = self.prune(self.close(parts[i], other_parts), other_parts)
        for node in elimination_order(tables, self.limits, self.max_rows):
            with_node = sorted((p for p in parts if node in p.scope), key=lambda p: len(p.labels))
            parts = [p for p in parts if node not in p.scope]
            joined = with_node[0]
            for i, other in enumerate(with_node[1:], 2):
                joined = self.join(joined, other, [*parts, *with_node[i:]])
            parts.append(self.prune(self.drop_node(node, joined), parts))
        joined, *other_parts = sorted(parts, key=lambda p: len(p.labels))
        for i, other in enumerate(other_parts, 1):
            joined = self.join(joined, other, other_parts[i:])
        return self.to_result(joined, tables, cost_columns)

    def join(self, a: _Part, b: _Part, other_parts: Sequence[_Part]) -> _Part:
        """Returns all pairs of rows that agree in the labels of shared nodes, which get one column."""
        # far more pairs than a beam keeps: the worst rows of b are dropped before the join
        if (pair_count := _pair_count(a, b)) > 16 * self.max_rows:
            scale = pair_count / (16 * self.max_rows)
            b = self.beam(b, [*other_parts, a], max(int(len(b.labels) / scale), 1))
        shared = [node for node in a.scope if node in b.scope]
        left_rows, right_rows = _matching(*_keys(a, b, shared))
        reservations = (*a.reservations, *(name for name in b.reservations if name not in a.reservations))
        added_nodes, peaks = (
            [node for node in b.scope if node not in shared],
            slice(SUMS, SUMS + len(self.levels)),
        )
        values = np.zeros((len(left_rows), SUMS + len(self.levels) + len(reservations)))
        for part, part_rows in ((a, left_rows), (b, right_rows)):
            values[:, :SUMS] += part.values[part_rows, :SUMS]
            values[:, peaks] = np.maximum(values[:, peaks], part.values[part_rows, peaks])
            for i, name in enumerate(part.reservations):
                values[:, SUMS + len(self.levels) + reservations.index(name)] += part.values[
                    part_rows, SUMS + len(self.levels) + i
                ]
        labels = np.hstack(
            [a.labels[left_rows], b.labels[right_rows][:, [b.scope.index(node) for node in added_nodes]]]
        )
        joined = _Part(
            (*a.scope, *added_nodes),
            labels,
            values,
            reservations,
            _Origin((a.origin, b.origin), np.column_stack([left_rows, right_rows])),
        )
        return self.prune(self.close(joined, other_parts), other_parts)

    def drop_node(self, node: str, part: _Part) -> _Part:
        """Returns a part without a node. Rows stay; their labels of the node are read back at the end."""
        column = part.scope.index(node)
        return replace(
            part,
            scope=tuple(n for n in part.scope if n != node),
            labels=np.delete(part.labels, column, axis=1),
        )

    def close(self, part: _Part, other_parts: Sequence[_Part]) -> _Part:
        """Closes reservations to which no other part adds: rows beyond a limit are dropped, and the sums go
        into the peaks of their levels.
        """
        open_names = {name for p in other_parts for name in p.reservations}
        cost_columns, values = SUMS + len(self.levels), part.values
        fits, closed_columns = np.ones(len(values), np.bool_), []
        for i, name in enumerate(part.reservations):
            if name in open_names:
                continue
            closed_columns.append(cost_columns + i)
            fits &= values[:, cost_columns + i] <= self.limits[name].limit
            if level := self.limits[name].level:
                peak_column = SUMS + self.levels.index(level)
                values[:, peak_column] = np.maximum(values[:, peak_column], values[:, cost_columns + i])
        part = replace(
            part,
            values=np.delete(values, closed_columns, axis=1),
            reservations=tuple(name for name in part.reservations if name in open_names),
        )
        return part if fits.all() else part.select(fits)

    def prune(self, part: _Part, other_parts: Sequence[_Part]) -> _Part:
        """Returns the part without rows that must overflow, that exceed the cutoff, or that are dominated."""
        cost_columns = SUMS + len(self.levels)
        is_possible = np.ones(len(part.labels), np.bool_)
        for i, name in enumerate(part.reservations):
            is_possible &= (
                part.values[:, cost_columns + i]
                + sum(
                    p.minimums[cost_columns + p.reservations.index(name)]
                    for p in other_parts
                    if name in p.reservations
                )
                <= self.limits[name].limit
            )
        if self.cutoff < inf:
            is_possible &= self.bounds(part, other_parts) <= self.cutoff * (1 + TOLERANCE)
        part = part if is_possible.all() else part.select(is_possible)
        # active columns decide which row dominates; the others only put the best of equal rows first
        peaks = self.ranking == "front"
        active = np.array(
            [*RANKED_SUMS[self.ranking], *[peaks] * len(self.levels), *[True] * len(part.reservations)]
        )
        passive = part.values[:, :SUMS][:, ~active[:SUMS]]
        columns = np.ascontiguousarray(part.values[:, active])
        group = _groups(part.labels)
        sorted_rows = np.lexsort((*passive.T[::-1], *columns.T[::-1], group))
        part = part.select(sorted_rows[_undominated(group[sorted_rows], columns[sorted_rows])])
        self.max_table_rows = max(self.max_table_rows, len(part.labels))
        return self.beam(part, other_parts, self.max_rows) if len(part.labels) > self.max_rows else part

    def bounds(self, part: _Part, other_parts: Sequence[_Part]) -> Floats:
        """Returns lower bounds [rows] on the objective value of any answer that contains a row: its own sums
        plus the minimum of every other part.
        """
        minimum_sums = sum((p.minimums[:SUMS] for p in other_parts), np.zeros(SUMS))
        return ranking_values(part.values[:, :SUMS] + minimum_sums, self.ranking)

    def beam(self, part: _Part, other_parts: Sequence[_Part], max_rows: int) -> _Part:
        """Returns the `max_rows` rows of lowest bound. If there are few combinations of labels, the best row
        of each comes before the second of any.
        """
        bound = self.bounds(part, other_parts)
        group = _groups(part.labels)
        sorted_rows = np.lexsort((bound, group))
        begins_group = np.r_[True, group[sorted_rows][1:] != group[sorted_rows][:-1]]
        rank_in_group = np.empty(len(sorted_rows), np.int64)
        rank_in_group[sorted_rows] = np.arange(len(sorted_rows)) - np.maximum.accumulate(
            np.where(begins_group, np.arange(len(sorted_rows)), 0)
        )
        ranked = (
            np.lexsort((bound, rank_in_group > 0))
            if begins_group.sum() <= max_rows // 2
            else np.argsort(bound, kind="stable")
        )
        if len(ranked) > max_rows:
            self.lower_bound = min(
                self.lower_bound, float(bound[ranked[max_rows:]].min()) if self.ranking != "front" else -inf
            )
        return part.select(np.sort(ranked[:max_rows]))

    def to_result(self, joined: _Part, tables: Sequence[Table], cost_columns: int) -> JoinResult:
        """Returns the answer from the last part, in which no node is left. cost_columns: number of sums and
        peaks.
        """
        keys = (
            (joined.values[:, 1], ranking_values(joined.values, self.ranking))
            if self.ranking != "front"
            else (joined.values[:, 1], joined.values[:, 0])
        )
        choices = []
        for row in np.lexsort(keys)[: None if self.ranking == "front" else 1]:
            table_rows = _rows_of_tables(joined.origin, int(row), len(tables))
            labels = {
                node: int(label)
                for t, table_row in zip(tables, table_rows, strict=True)
                for node, label in zip(t.scope, t.labels[table_row], strict=True)
            }
            energy, latency, *peaks = (float(v) for v in joined.values[row, :cost_columns])
            choices.append(
                Choice(labels, table_rows, energy, latency, tuple(zip(self.levels, peaks, strict=True)))
            )
        best = min((_ranking_value(one, self.ranking) for one in choices), default=inf)
        return JoinResult(
            tuple(choices),
            self.lower_bound
            if self.ranking == "front" and self.lower_bound < inf
            else min(best, self.lower_bound),
            self.max_table_rows,
        )


def _rows_of_tables(origin: _Origin, row: int, table_count: int) -> tuple[int, ...]:
    """Returns the row of every table from which a row was joined."""
    found, pending = [0] * table_count, [(origin, row)]
    while pending:
        origin, row = pending.pop()
        if isinstance(origin.parents, int):
            found[origin.parents] = int(origin.rows[row, 0])
        else:
            pending += [
                (parent, int(parent_row))
                for parent, parent_row in zip(origin.parents, origin.rows[row], strict=True)
            ]
    return tuple(found)


def _groups(labels: Ints) -> Ints:
    """Returns a group number per row, equal for rows with equal labels."""
    if labels.shape[1] == 0 or not len(labels):
        return np.zeros(len(labels), np.int64)
    sizes = labels.max(axis=0) + 1
    if prod(int(n) for n in sizes) < 1 << 62:
        return np.asarray(np.ravel_multi_index(tuple(labels.T), tuple(int(n) for n in sizes)), np.int64)
    return np.asarray(np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1), np.int64)


def _keys(a: _Part, b: _Part, shared: Sequence[str]) -> tuple[Ints, Ints]:
    """Returns group numbers of the rows of a and of b, equal for equal labels of the shared nodes."""
    both = np.vstack([p.labels[:, [p.scope.index(node) for node in shared]] for p in (a, b)])
    group = _groups(both)
    return group[: len(a.labels)], group[len(a.labels) :]


def _match_ranges(left: Ints, right: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns (n, begin, order): row i of `left` matches the rows order[begin[i] : begin[i] + n[i]] of
    `right`.
    """
    right_order = np.argsort(right, kind="stable")
    begin, end = (np.searchsorted(right[right_order], left, side) for side in ("left", "right"))
    return end - begin, begin, right_order


def _pair_count(a: _Part, b: _Part) -> int:
    """Returns the number of rows that a join of a and b has."""
    return int(_match_ranges(*_keys(a, b, [node for node in a.scope if node in b.scope]))[0].sum())


def _matching(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Returns the row numbers of all matching pairs: those of `left`, those of `right`."""
    match_counts, begin, right_order = _match_ranges(left, right)
    rows = np.repeat(np.arange(len(left)), match_counts)
    return rows, right_order[
        np.arange(len(rows))
        - np.repeat(np.cumsum(match_counts) - match_counts, match_counts)
        + np.repeat(begin, match_counts)
    ]


@njit(cache=True, nogil=True)
def _undominated(group: Ints, columns: Floats) -> NDArray[np.bool_]:
    """Returns [rows] True for undominated rows. Rows are sorted by group, then by columns, so only an earlier
    row of the same group can dominate (lower or equal in all columns).
    """
    is_undominated = np.zeros(len(group), np.bool_)
    front, front_size = np.zeros(len(group), np.int64), 0
    for i in range(len(group)):
        if i and group[i] != group[i - 1]:
            front_size = 0
        is_dominated = False
        for j in range(front_size):
            dominates = True
            for c in range(columns.shape[1]):
                dominates = dominates and columns[front[j], c] <= columns[i, c]
            if dominates:
                is_dominated = True
                break
        if not is_dominated:
            is_undominated[i] = True
            front[front_size] = i
            front_size += 1
    return is_undominated


def elimination_order(
    tables: Sequence[Table], reservations: Mapping[str, Reservation], max_rows: int
) -> list[str]:
    """Returns the nodes in order of elimination (min-fill).

    All nodes of tables that add to one reservation are taken as neighbours, so that the reservation is closed
    before the first of them is eliminated. If that makes a table larger than `max_rows`, nodes that only
    share a reservation are no neighbours, and reservations stay open for longer.
    """
    labels: dict[str, int] = {}
    for t in tables:
        for i, node in enumerate(t.scope):
            labels[node] = max(labels.get(node, 1), int(t.labels[:, i].max(initial=0)) + 1)
    scopes = [t.scope for t in tables]
    reservation_scopes = [
        tuple(dict.fromkeys(node for t in tables if name in t.reservations for node in t.scope))
        for name in reservations
    ]
    found, size = _min_fill(labels, [*scopes, *reservation_scopes])
    return found if size <= max_rows or not reservation_scopes else _min_fill(labels, scopes)[0]


def _min_fill(labels: Mapping[str, int], scopes: Iterable[Sequence[str]]) -> tuple[list[str], int]:
    """Returns the order of elimination, and the number of label combinations of the largest table. The next
    node is always the one whose neighbours lack the fewest edges; ties go to the smaller table, then by name.
    """
    neighbours: dict[str, set[str]] = {node: set() for node in labels}
    for scope in scopes:
        for a, b in combinations(scope, 2):
            neighbours[a].add(b)
            neighbours[b].add(a)
    rank = {
        node: (_missing_edges(neighbours, node), _table_size(neighbours, labels, node), node)
        for node in neighbours
    }
    found, largest = [], 1
    while neighbours:
        node = min(rank, key=rank.__getitem__)
        largest = max(largest, rank.pop(node)[1])
        adjacent = neighbours.pop(node)
        for a in adjacent:
            neighbours[a] |= adjacent - {a}
            neighbours[a].discard(node)
        for other in {b for a in adjacent for b in (a, *neighbours[a])}:
            rank[other] = _missing_edges(neighbours, other), _table_size(neighbours, labels, other), other
        found.append(node)
    return found, largest


def _missing_edges(neighbours: Mapping[str, set[str]], node: str) -> int:
    """Returns the number of edges that the neighbours of a node lack between each other."""
    return sum(b not in neighbours[a] for a, b in combinations(neighbours[node], 2))


def _table_size(neighbours: Mapping[str, set[str]], labels: Mapping[str, int], node: str) -> int:
    """Returns the number of label combinations of a node and its neighbours."""
    return prod(labels[n] for n in (node, *neighbours[node]))
