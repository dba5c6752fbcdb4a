"""Random label problems on small graphs, and all their choices, one by one. Shares no code with
dse/solve/elimination.py.
"""

from __future__ import annotations

from itertools import product
from random import Random
from unittest.mock import patch

import numpy as np

from dse.solve.elimination import MAX_ROWS, Reservation, Table, join

KINDS = ("chain", "residual", "branching", "shared inputs", "any")


def edges(kind: str, n: int, rng: Random) -> list[tuple[int, int]]:
    """(maker, reader) of a graph of n nodes in topological order."""
    chain = [(i, i + 1) for i in range(n - 1)]
    if kind == "chain":
        return chain
    if kind == "residual":
        return chain + [(i, i + 2) for i in range(n - 2) if rng.random() < 0.6]
    if kind == "branching":
        return [(rng.randrange(i), i) for i in range(1, n)]
    if kind == "shared inputs":
        return [(0, i) for i in range(1, n)] + [(i, i + 1) for i in range(1, n - 1) if rng.random() < 0.6]
    return [(a, b) for b in range(n) for a in range(b) if rng.random() < 0.7]


def random_problem(rng: Random, kind: str) -> tuple[list[Table], dict[str, Reservation]]:
    """Whole numbers, so that sums are exact; few different ones, so that rows tie. Equal nodes share the
    arrays of their tables.
    """
    n = rng.randint(2, 5)
    labels = [rng.randint(1, 3) for _ in range(n)]
    wide = 9 if rng.random() < 0.5 else 3
    seen: dict[tuple[int, ...], np.ndarray] = {}

    def table(scope: tuple[int, ...], rooms: tuple[str, ...], front: int, sparse: float) -> Table:
        rows = [
            (at, [rng.randint(0, wide) for _ in range(2 + len(rooms))])
            for at in product(*(range(labels[i]) for i in scope))
            if rng.random() > sparse
            for _ in range(rng.randint(1, front))
        ]
        values = np.array([row for _, row in rows], float).reshape(len(rows), 2 + len(rooms))
        return Table(
            tuple(f"n{i}" for i in scope),
            np.array([at for at, _ in rows], np.int64).reshape(len(rows), len(scope)),
            values,
            rooms,
        )

    def again(t: Table, key: tuple[int, ...]) -> Table:
        """The same arrays for another node that has as many labels."""
        own = seen.setdefault((*key, t.values.shape[1]), (t.labels, t.values))  # type: ignore[arg-type]
        return Table(t.scope, own[0], own[1], t.reservations) if rng.random() < 0.4 else t

    rooms = {
        f"L{v}@{i}": Reservation(rng.choice([4, 6, 9, 12]), "" if rng.random() < 0.3 else f"L{v}")
        for v in range(rng.randint(0, 2))
        for i in range(n)
    }
    drawn = edges(kind, n, rng)
    tables = [
        again(table((i,), tuple(name for name in rooms if name.endswith(f"@{i}")), 3, 0.0), (labels[i],))
        for i in range(n)
    ]
    tables += [again(table(edge, (), 2, 0.15), (labels[edge[0]], labels[edge[1]])) for edge in drawn]
    for i in range(n):  # what a node keeps until its last reader has run
        last = max([b for a, b in drawn if a == i], default=i)
        alive = tuple(name for name in rooms if i < int(name.split("@")[1]) <= last)
        if alive and rng.random() < 0.7:
            size = [0, *(rng.randint(0, 4) for _ in range(labels[i] - 1))]
            values = np.array([[0, 0, *[size[label]] * len(alive)] for label in range(labels[i])], float)
            tables.append(Table((f"n{i}",), np.arange(labels[i])[:, None], values, alive))
    if rng.random() < 0.3 and n > 2:
        tables.append(table(tuple(rng.sample(range(n), 3)), (), 1, 0.1))
    return tables, rooms


def wide_problem(rng: Random) -> list[Table]:
    """Two nodes of 24 labels, none dominated, the last ones best: a beam of 24 rows lets all of them through,
    but not all of their pairs.
    """
    labels = np.arange(24)[:, None]
    return [
        Table((node,), labels, np.array([[a + rng.choice([2.0, 2.5]), 24.0 - a] for a in range(24)]))
        for node in ("n0", "n1")
    ]


def everything(
    tables: list[Table], rooms: dict[str, Reservation]
) -> list[tuple[float, float, tuple[float, ...]]]:
    """(energy, latency, peaks by level) of every choice that fits, dominated ones too."""
    nodes = sorted({node for t in tables for node in t.scope})
    many = {
        node: 1
        + max(
            int(row[t.scope.index(node)])
            for t in tables
            if node in t.scope
            for row in [*t.labels, [0] * len(t.scope)]
        )
        for node in nodes
    }
    rows = [{} for _ in tables]  # type: list[dict[tuple[int, ...], list[list[float]]]]
    for t, own in zip(tables, rows, strict=True):
        for at, value in zip(t.labels.tolist(), t.values.tolist(), strict=True):
            own.setdefault(tuple(at), []).append(value)
    levels = sorted({room.level for room in rooms.values() if room.level})
    found = []
    for chosen in product(*(range(many[node]) for node in nodes)):
        at = dict(zip(nodes, chosen, strict=True))
        for options in product(
            *(own.get(tuple(at[node] for node in t.scope), []) for t, own in zip(tables, rows, strict=True))
        ):
            used = dict.fromkeys(rooms, 0.0)
            for t, row in zip(tables, options, strict=True):
                for name, value in zip(t.reservations, row[2:], strict=True):
                    used[name] += value
            if all(used[name] <= room.limit for name, room in rooms.items()):
                peaks = tuple(
                    max(used[name] for name, room in rooms.items() if room.level == level) for level in levels
                )
                found.append((sum(row[0] for row in options), sum(row[1] for row in options), peaks))
    return found


def front(found: list[tuple[float, float, tuple[float, ...]]]) -> set[tuple[float, ...]]:
    rows = {(energy, latency, *peaks) for energy, latency, peaks in found}
    return {
        a for a in rows if not any(b != a and all(y <= x for x, y in zip(a, b, strict=True)) for b in rows)
    }


FIGURES = {"energy": lambda one: one[0], "latency": lambda one: one[1], "edp": lambda one: one[0] * one[1]}


def wrong(seed: int, most: int | None = None) -> list[str]:
    """What the engine says otherwise than the enumeration of one random problem. most: rows that a beam lets
    through.
    """
    rng, kind = Random(seed), KINDS[seed % len(KINDS)]
    tables, rooms = random_problem(rng, kind)
    if most and most > 16:
        tables, rooms, kind = wide_problem(rng), {}, "wide"
    found, lines = everything(tables, rooms), []
    for figure, of in FIGURES.items():
        # a first answer that is none of the best, for look-ahead to count
        with patch("dse.solve.elimination.FIRST_ROWS", 3 if kind != "wide" else most):
            got = join(tables, rooms, figure, most or MAX_ROWS)  # type: ignore[arg-type]
        least = min(map(of, found), default=float("inf"))
        best = min((of((one.energy, one.latency)) for one in got.choices), default=float("inf"))
        if (
            (best < least if most else best != least)
            or got.lower_bound > least
            or (not most and got.lower_bound != least)
        ):
            lines.append(
                f"seed {seed} {kind} {figure}: least {least}, engine {best}, floor {got.lower_bound}"
            )
        for one in got.choices:
            lines += [f"seed {seed} {kind} {figure}: {line}" for line in _told(one, tables, found)]
    if not most:
        got = join(tables, rooms, "front")
        rows = {(one.energy, one.latency, *(peak for _, peak in one.peaks)) for one in got.choices}
        if rows != front(found):
            lines.append(f"seed {seed} {kind} front: {sorted(front(found))}, engine {sorted(rows)}")
    return lines


def _told(one, tables, found):  # type: ignore[no-untyped-def]
    """The rows that a choice names must be those of its labels and cost what it says."""
    for t, row in zip(tables, one.rows, strict=True):
        if tuple(t.labels[row]) != tuple(one.labels[node] for node in t.scope):
            yield f"row {row} of {t.scope} has other labels"
    rows = [t.values[row] for t, row in zip(tables, one.rows, strict=True)]
    if (sum(r[0] for r in rows), sum(r[1] for r in rows)) != (one.energy, one.latency) or not any(
        f[:2] == (one.energy, one.latency) for f in found
    ):
        yield (
            f"rows cost {sum(r[0] for r in rows)}, {sum(r[1] for r in rows)}; it says {one.energy}, "
            f"{one.latency}"
        )
