"""The one graph engine: one label per node of a graph, so that what all of them cost together is least and
fits.

    nodes     einsums, tensors, cuts between segments: whatever has a choice; a label is one of its choices, a
              number
    factors   tables over a few nodes: for labels of these, a small front of what they cost (`Table`); labels
              without a row cannot stand together
    costs     sums (energy, latency) add up over factors; rooms add up as well and are reservations of one
              level at one time: where all that take part are known, the room must keep to its limit, and the
              largest of the rooms of a level is its peak

Elimination: a node's tables are joined, its label is chosen for every choice of its neighbours', the next
node's turn comes (min-fill order). Rows fall that are dominated (as good in every column that may still
matter, for the same labels), that overflow with the least that is to come, and that cannot beat an answer
known before with the least that is to come (look-ahead). So the answer is exact for any graph. Where a table
has more rows than `most`, only the best are kept: what fell has a lower bound, and the answer's gap is to the
least of these.

Equal nodes share their tables' arrays. EDP is the product of two sums and is taken at the end: until then
(energy, latency) fronts are kept.
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
# sums that a figure is made of
COUNTS = {"energy": (True, False), "latency": (False, True), "edp": (True, True), "front": (True, True)}
MOST = 200_000
FIRST = 64  # rows per table of the first answer, which the others must beat
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Table:
    """A factor. labels [rows, nodes of the scope]; values [rows, SUMS + rooms]; rows of equal labels are a
    front. reservations: names of reservations.
    """

    scope: tuple[str, ...]
    labels: Ints
    values: Floats
    reservations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation: what tables add to it must keep to the limit. level: whose peak it counts for, "":
    nobody asks.
    """

    limit: float
    level: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A label per node, the row that was taken of every table, and what they cost. peaks: by level."""

    labels: dict[str, int]
    rows: tuple[int, ...]
    energy: float
    latency: float
    peaks: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinResult:
    """Choices: the best one, or a front (energy, latency, peaks), best energy first. lower_bound: no choice
    has a lower figure, -inf where a front was cut.

    largest: rows of the largest table.
    """

    choices: tuple[Choice, ...]
    lower_bound: float
    largest: int


def table(
    scope: Sequence[str],
    rows: Sequence[tuple[Sequence[int], Sequence[float]]],
    reservations: Sequence[str] = (),
) -> Table:
    """The table of a factor from its rows: a label per node of the scope; energy, latency, what is taken of
    each room.
    """
    return Table(
        tuple(scope),
        np.array([at for at, _ in rows], np.int64).reshape(len(rows), len(scope)),
        np.array([row for _, row in rows], np.float64).reshape(len(rows), SUMS + len(reservations)),
        tuple(reservations),
    )


def ranking_values(values: Floats, ranking: Ranking) -> Floats:
    """What rows of (energy, latency, ...) are ranked by; a front by energy."""
    energy, latency = values[:, 0], values[:, 1]
    return latency if ranking == "latency" else energy * latency if ranking == "edp" else energy


def join(
    tables: Sequence[Table],
    reservations: Mapping[str, Reservation] | None = None,
    ranking: Ranking = "energy",
    most: int = MOST,
) -> JoinResult:
    """The best choice of labels: its gap is `best / floor - 1`, none where they are equal. Ties: the other
    sum, then labels.

    Negative costs are refused: what is to come would not be bounded. No choices and a floor of inf: none
    fits.
    """
    if any(len(t.values) and t.values.min() < 0 for t in tables):
        raise ValueError("a factor has a negative cost")
    reservations = reservations or {}
    levels = tuple(sorted({room.level for room in reservations.values() if room.level}))
    if ranking == "front":
        return _Elimination(reservations, levels, ranking, most, inf).run(tables)
    first = _Elimination(reservations, levels, ranking, min(FIRST, most), inf).run(tables)
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
    return min((_ranking_value(one, ranking) for one in found.choices), default=inf)


def _ranking_value(one: Choice, ranking: Ranking) -> float:
    return {
        "energy": one.energy,
        "latency": one.latency,
        "edp": one.energy * one.latency,
        "front": one.energy,
    }[ranking]


@dataclass(frozen=True, slots=True)
class _Past:
    """Where rows come from. parents: two parts, rows [n, 2] the row of each; or a table, rows [n, 1] its
    row."""

    parents: tuple[_Past, _Past] | int
    rows: Ints


@dataclass(frozen=True, slots=True)
class _Part:
    """Tables joined. values: sums, peaks, open rooms."""

    scope: tuple[str, ...]
    labels: Ints
    values: Floats
    reservations: tuple[str, ...]
    past: _Past

    def rows(self, at: NDArray[np.intp] | NDArray[np.bool_]) -> _Part:
        return replace(
            self,
            labels=self.labels[at],
            values=self.values[at],
            past=replace(self.past, rows=self.past.rows[at]),
        )


@dataclass(slots=True)
class _Elimination:
    """cutoff: an answer's figure that others must not exceed; lower_bound: the least bound of what a beam let
    fall.
    """

    limits: Mapping[str, Reservation]
    levels: tuple[str, ...]
    ranking: Ranking
    most: int
    cutoff: float
    lower_bound: float = inf
    largest: int = 0

    def run(self, tables: Sequence[Table]) -> JoinResult:
        wide = SUMS + len(self.levels)
        parts = []
        for i, t in enumerate(tables):
            values = np.hstack(
                [t.values[:, :SUMS], np.zeros((len(t.values), len(self.levels))), t.values[:, SUMS:]]
            )
            parts.append(
                _Part(t.scope, t.labels, values, t.reservations, _Past(i, np.arange(len(t.values))[:, None]))
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
        """All pairs of rows whose labels agree; of the shared nodes one column stays."""
        # more than a beam lets through by far: the worst rows of the larger fall before
        if (rows := _pairs(a, b)) > 16 * self.most:
            scale = rows / (16 * self.most)
            b = self.beam(b, [*rest, a], max(int(len(b.labels) / scale), 1))
        shared = [node for node in a.scope if node in b.scope]
        left, right = _matching(*_keys(a, b, shared))
        rooms = (*a.reservations, *(name for name in b.reservations if name not in a.reservations))
        own, peaks = [node for node in b.scope if node not in shared], slice(SUMS, SUMS + len(self.levels))
        values = np.zeros((len(left), SUMS + len(self.levels) + len(rooms)))
        for part, rows_of in ((a, left), (b, right)):
            values[:, :SUMS] += part.values[rows_of, :SUMS]
            values[:, peaks] = np.maximum(values[:, peaks], part.values[rows_of, peaks])
            for i, name in enumerate(part.reservations):
                values[:, SUMS + len(self.levels) + rooms.index(name)] += part.values[
                    rows_of, SUMS + len(self.levels) + i
                ]
        labels = np.hstack([a.labels[left], b.labels[right][:, [b.scope.index(node) for node in own]]])
        found = _Part(
            (*a.scope, *own), labels, values, rooms, _Past((a.past, b.past), np.column_stack([left, right]))
        )
        return self.prune(self.close(found, rest), rest)

    def without(self, node: str, part: _Part) -> _Part:
        at = part.scope.index(node)
        return replace(
            part, scope=tuple(n for n in part.scope if n != node), labels=np.delete(part.labels, at, axis=1)
        )

    def close(self, part: _Part, rest: Sequence[_Part]) -> _Part:
        """Rooms that no other table adds to: held to their limits, then part of a peak."""
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
        """Without rows that overflow or lose whatever comes, and those that others dominate."""
        first = SUMS + len(self.levels)
        alive = np.ones(len(part.labels), np.bool_)
        for i, name in enumerate(part.reservations):
            alive &= (
                part.values[:, first + i]
                + sum(_minimum(p, first + p.reservations.index(name)) for p in rest if name in p.reservations)
                <= self.limits[name].limit
            )
        if self.cutoff < inf:
            alive &= self.bounds(part, rest) <= self.cutoff * (1 + SAME)
        part = part if alive.all() else part.rows(alive)
        peaks = self.ranking == "front"
        active = np.array(
            [*COUNTS[self.ranking], *[peaks] * len(self.levels), *[True] * len(part.reservations)]
        )
        passive = part.values[:, :SUMS][:, ~active[:SUMS]]
        columns = np.ascontiguousarray(part.values[:, active])
        group = _groups(part.labels)
        at = np.lexsort((*passive.T[::-1], *columns.T[::-1], group))
        part = part.rows(at[_undominated(group[at], columns[at])])
        self.largest = max(self.largest, len(part.labels))
        return self.beam(part, rest, self.most) if len(part.labels) > self.most else part

    def bounds(self, part: _Part, rest: Sequence[_Part]) -> Floats:
        """No answer with a row has a lower figure: what is to come costs its least."""
        least = np.array([sum(_minimum(p, column) for p in rest) for column in range(SUMS)])
        return ranking_values(part.values[:, :SUMS] + least, self.ranking)

    def beam(self, part: _Part, rest: Sequence[_Part], most: int) -> _Part:
        """The best rows, of every choice of labels the first before the second of any."""
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
        keys = (
            (whole.values[:, 1], ranking_values(whole.values, self.ranking))
            if self.ranking != "front"
            else (whole.values[:, 1], whole.values[:, 0])
        )
        found = []
        for row in np.lexsort(keys)[: None if self.ranking == "front" else 1]:
            options = _rows_of_tables(whole.past, int(row), len(tables))
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


def _rows_of_tables(past: _Past, row: int, tables: int) -> tuple[int, ...]:
    """The row of every table that a row is made of."""
    found, left = [0] * tables, [(past, row)]
    while left:
        past, row = left.pop()
        if isinstance(past.parents, int):
            found[past.parents] = int(past.rows[row, 0])
        else:
            left += [(parent, int(one)) for parent, one in zip(past.parents, past.rows[row], strict=True)]
    return tuple(found)


def _minimum(part: _Part, column: int) -> float:
    return float(part.values[:, column].min()) if len(part.values) else inf


def _groups(labels: Ints) -> Ints:
    """One number per row, the same for equal labels."""
    if labels.shape[1] == 0 or not len(labels):
        return np.zeros(len(labels), np.int64)
    most = labels.max(axis=0) + 1
    if prod(int(n) for n in most) < 1 << 62:
        return np.asarray(np.ravel_multi_index(tuple(labels.T), tuple(int(n) for n in most)), np.int64)
    return np.asarray(np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1), np.int64)


def _keys(a: _Part, b: _Part, shared: Sequence[str]) -> tuple[Ints, Ints]:
    both = np.vstack([p.labels[:, [p.scope.index(node) for node in shared]] for p in (a, b)])
    group = _groups(both)
    return group[: len(a.labels)], group[len(a.labels) :]


def _counts(left: Ints, right: Ints) -> tuple[Ints, Ints, Ints]:
    """Per row of the left: how many rows of the right match it, and where they begin in the right as
    sorted."""
    at = np.argsort(right, kind="stable")
    begin, end = (np.searchsorted(right[at], left, side) for side in ("left", "right"))
    return end - begin, begin, at


def _pairs(a: _Part, b: _Part) -> int:
    return int(_counts(*_keys(a, b, [node for node in a.scope if node in b.scope]))[0].sum())


def _matching(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Rows of both sides, pair by pair."""
    many, begin, at = _counts(left, right)
    rows = np.repeat(np.arange(len(left)), many)
    return rows, at[np.arange(len(rows)) - np.repeat(np.cumsum(many) - many, many) + np.repeat(begin, many)]


@njit(cache=True, nogil=True)
def _undominated(group: Ints, columns: Floats) -> NDArray[np.bool_]:
    """Rows, sorted by group and then by columns, that no row before them in their group is at least as good
    as.
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
    """Nodes as they are eliminated: min-fill. Rooms are edges between all that add to them, and are closed
    before any of these is gone; where that takes tables beyond `most`, rooms stay open.
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
    """The node first whose neighbours lack the fewest edges, ties by the table that it takes, then by name;
    and the labels of the largest table.
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
    return sum(b not in near[a] for a, b in combinations(near[node], 2))


def _size(near: Mapping[str, set[str]], labels: Mapping[str, int], node: str) -> int:
    return prod(labels[n] for n in (node, *near[node]))
