"""All ways of one rank from its extent to tiles of 1, in time and over the lanes of the fan-outs: what the tables of formula.py stand on (compiled).

A state is a way to cut the rank so far; cuts that leave the same tiles are one state (12 in time to 6 to 3, or 12 to 3).
States are numbered as a breadth-first search meets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.dataflow.space import Tiles

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
STATES = 30_000
TIME, UNIT, TIME_RAGGED, UNIT_RAGGED, LANES = range(5)  # groups of successors; LANES + b: over border b; and one more, see Walks
TILE, PARENT, OF, LAST, RAGGED, MARK = range(6)  # columns of a state: last cut, the state without it, class of its lanes, last class; see `_walked`; scratch
Dim = tuple[int, int, int]  # number, size, class: dimensions of one class share and merge alike, so that only the tiles that they leave count
Way = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]  # trips per fan-out dimension of the machine, and the loops (tile, dimension), outermost first


class Walks(NamedTuple):
    """States S of one rank, and from each of them the successors M of every group.

    tiles [S]; cut_tile, cut_lane [S, J], cuts [S]: every state's cuts, outermost first, and the class of their lanes, -1 in time; timed [S]: all in time.
    after [M] successors, of state s in group g from start[g, s] to start[g, s + 1]. Groups:
        TIME         by a loop in time; first s itself (no loop)
        UNIT         in time to tiles of 1
        *_RAGGED     the same two directly below lanes; a loop only if the lanes are ragged: below even lanes it may as well stand above them
        LANES + b    over the lanes of border b, those that leave a lane the same tile together, fewest lanes first
        the last     over border 0 again, one successor per tile of a lane: 12 over 4 lanes that share, or over 2 that share x 2 that do not, are two
                     states of group LANES, but leave 3 each and are one successor here (the one with fewest lanes), with the ways of both
    fewest [M] lanes that are needed; ways [M] number of the list of ways, each a row of trips in `lists`; fresh [groups + 1]: lists in use before a group.
    """

    extent: int
    dims: int
    tiles: Ints
    cut_tile: Ints
    cut_lane: Ints
    cuts: Ints
    timed: Bools
    start: Ints
    after: Ints
    ways: Ints
    fewest: Ints
    lists: tuple[bytes, ...]
    fresh: tuple[int, ...]

    def tile(self, state: int) -> int:
        return int(self.tiles[state])

    @property
    def time(self) -> list[list[int]]:
        """The states that follow every state in time, first itself."""
        return [self.after[first:last].tolist() for first, last in zip(self.start[TIME, :-1], self.start[TIME, 1:], strict=True)]

    def cuts_of(self, state: int) -> list[tuple[int, int]]:
        """(tile, class of the lanes or -1) of every cut, outermost first."""
        n = self.cuts[state]
        return list(zip(self.cut_tile[state, :n].tolist(), self.cut_lane[state, :n].tolist(), strict=True))


@lru_cache(maxsize=1 << 12)
def walks(extent: int, borders: tuple[tuple[Dim, ...], ...], dims: int, tiles: Tiles) -> Walks:
    """borders: per border, outermost first, the fan-out dimensions that take this rank; dims: of the machine. Raises ValueError above STATES states."""
    of = np.array([(b, *dim) for b, border in enumerate(borders) for dim in border], np.int64).reshape(-1, 4)
    states, spans, edges, lists, trips = _walked(extent, of, len(borders), dims, tiles == "ragged", tiles == "perfect")
    if not len(states):
        raise ValueError(f"{extent} elements in {tiles} tiles can be cut in more than {STATES:,} ways; take tiles: divisor, or another mapper")
    start, (after, ways, fewest), order, fresh = _grouped(spans, edges, len(lists))
    rows = tuple(trips[lists[n, 0]:lists[n, 1]].tobytes() for n in order)
    cut_tile, cut_lane, cuts = _cuts(states)
    return Walks(extent, dims, states[:, TILE].copy(), cut_tile, cut_lane, cuts, states[:, LAST] < 0, start, after, ways, fewest, rows,
                 tuple(fresh.tolist()))


def lanes(w: Walks, state: int, border: int) -> dict[int, list[Way]]:
    """The states that follow over a border, each with the ways there that need fewest lanes."""
    found: dict[int, list[Way]] = {}
    for m in range(w.start[LANES + border, state], w.start[LANES + border, state + 1]):
        rows = np.frombuffer(w.lists[w.ways[m]], np.int64).reshape(-1, w.dims).tolist()
        found[int(w.after[m])] = [(tuple(trips), _loops(w.tile(state), trips)) for trips in rows]
    return found


def _loops(tile: int, trips: Sequence[int]) -> tuple[tuple[int, int], ...]:
    loops = []
    for d, n in enumerate(trips):
        if n > 1:
            tile = -(-tile // n)
            loops.append((tile, d))
    return tuple(loops)


@njit(cache=True, nogil=True)
def _grown(a: Ints, rows: int) -> Ints:
    """An array with room for so many rows, at least doubled if it had not."""
    if rows <= a.shape[0]:
        return a
    found = np.empty((max(rows, 2 * a.shape[0]), a.shape[1]), np.int64)
    found[: a.shape[0]] = a
    return found


@njit(cache=True, nogil=True)
def _place(parent: int, tile: int, of: int, states: Ints, index: Ints) -> int:
    """Where the index holds a state, or may hold it."""
    at = ((parent * 2654435761 + tile) * 40503 + of) % index.shape[0]
    while index[at] >= 0 and (states[index[at], TILE] != tile or states[index[at], PARENT] != parent or states[index[at], OF] != of):
        at = (at + 1) % index.shape[0]
    return int(at)


@njit(cache=True, nogil=True)
def _cut(own: int, tile: int, of: int, n: int, states: Ints, index: Ints) -> int:
    """The state with one more cut, n if it is new. A last cut of the same class whose tile the new one divides is dropped: 12 -> 6 -> 3 leaves the tiles of
    12 -> 3."""
    parent = states[own, PARENT] if states[own, OF] == of and states[own, TILE] % tile == 0 else own
    at = _place(parent, tile, of, states, index)
    if index[at] < 0:
        index[at] = n
        states[n, TILE], states[n, PARENT], states[n, OF], states[n, LAST], states[n, MARK] = tile, parent, of, max(states[parent, LAST], of), -1
        states[n, RAGGED] = of >= 0 and (states[parent, TILE] % tile != 0 or states[parent, RAGGED] != 0)
    return int(index[at])


@njit(cache=True, nogil=True)
def _walked(extent: int, of: Ints, borders: int, dims: int, ragged: bool, perfect: bool) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """States [S, 6]; per group and state the edges from, to; edges [M, 3] (next state, list of ways, fewest lanes); lists [L, 2] from, to in trips.

    of [., 4]: border, number, size, class of a dimension. No states: too many. RAGGED: whether the lanes passed since the last loop in time leave tiles of
    different sizes (they do not divide the tile that they share out).
    """
    states, n, index = np.empty((64, 6), np.int64), 1, np.full(256, -1, np.int64)
    states[0, TILE], states[0, PARENT], states[0, OF], states[0, LAST], states[0, RAGGED], states[0, MARK] = extent, -1, -2, -1, 0, -1
    spans, edges, m = np.zeros((LANES + borders + 1, 64, 2), np.int64), np.empty((1024, 3), np.int64), 0
    lists, trips, shelf = np.zeros((64, 2), np.int64), np.ones((256, dims), np.int64), np.full(256, -1, np.int64)
    lists[0, 1], known, s = 1, 1, 0  # the first list: no lanes
    while s < n:
        if n > STATES:
            return states[:0], spans, edges, lists, trips
        tile, room = states[s, TILE], 1
        for d in range(of.shape[0]):
            room *= min(of[d, 2], 2 * int(np.sqrt(tile)) + 2)
        room = max(room, 1) + 1
        states, edges = _grown(states, n + tile + room * max(borders, 1)), _grown(edges, m + tile + 3 * room * max(borders, 1))
        if 2 * states.shape[0] > index.shape[0]:
            index = np.full(4 * states.shape[0], -1, np.int64)
            for i in range(1, n):
                index[_place(states[i, PARENT], states[i, TILE], states[i, OF], states, index)] = i
        if s >= spans.shape[1]:
            wider = np.zeros((spans.shape[0], 2 * spans.shape[1], 2), np.int64)
            wider[:, : spans.shape[1]] = spans
            spans = wider
        spans[TIME, s, 0] = m
        for i in range(tile):
            smaller = tile - i
            if smaller == tile or ragged or tile % smaller == 0:
                edges[m, 0], edges[m, 1], edges[m, 2] = s if i == 0 else _cut(s, smaller, -1, n, states, index), 0, 1
                n, m = max(n, edges[m, 0] + 1), m + 1
        spans[TIME, s, 1] = m
        spans[UNIT, s, 0], spans[UNIT, s, 1] = m - 1, m
        for group in (TIME, UNIT):
            first = spans[group, s, 0]
            whole = spans[group, s, 1] if states[s, RAGGED] else first + (group == TIME or tile == 1)
            spans[group + 2, s, 0], spans[group + 2, s, 1] = first, whole
        for b in range(borders):
            found, n = _spread(s, of, b, perfect, n, states, index, dims)
            m, known, lists, trips, shelf = _listed(found, b, s, states, spans, edges, m, lists, known, trips, shelf)
        s += 1
    return states[:n], spans[:, :n], edges[:m], lists[:known], trips


@njit(cache=True, nogil=True)
def _spread(s: int, of: Ints, b: int, perfect: bool, n: int, states: Ints, index: Ints, dims: int) -> tuple[Ints, int]:
    """All ways over the lanes of border b, at most one loop per dimension, in the machine's order: rows (state, tile, trips...); number of states."""
    found, k = np.ones((8, 2 + dims), np.int64), 1
    found[0, 0], found[0, 1] = s, states[s, TILE]
    for d in range(of.shape[0]):
        if of[d, 0] == b and states[s, LAST] >= of[d, 3]:
            return found[:1], n
    for d in range(of.shape[0]):
        for i in range(k if of[d, 0] == b else 0):
            tile = found[i, 1]
            before = tile
            for lanes_in_use in range(2, min(of[d, 2], tile) + 1):
                inner = -(-tile // lanes_in_use)
                if inner < before and (not perfect or tile % lanes_in_use == 0):
                    found = _grown(found, k + 1)
                    found[k] = found[i]
                    found[k, 0], found[k, 1], found[k, 2 + of[d, 1]] = _cut(found[i, 0], inner, of[d, 3], n, states, index), inner, -(-tile // inner)
                    n, before, k = max(n, found[k, 0] + 1), inner, k + 1
    return found[:k], n


@njit(cache=True, nogil=True)
def _listed(found: Ints, b: int, s: int, states: Ints, spans: Ints, edges: Ints, m: int, lists: Ints, known: int, trips: Ints,
            shelf: Ints) -> tuple[int, int, Ints, Ints, Ints]:
    """The edges of one state over border b: successors that leave a lane the same tile next to each other, fewest lanes first; over border 0 also one edge
    per tile of a lane, to the first of its successors, with the ways of all of them (the last group of Walks)."""
    k, dims, distinct = found.shape[0], trips.shape[1], 0
    first, least, own = np.empty(k, np.int64), np.empty(k, np.int64), np.empty(k, np.int64)
    for i in range(k):  # of every row the first one of its state, whose fewest lanes stand in `least`
        need, state = 1, found[i, 0]
        for d in range(dims):
            need *= found[i, 2 + d]
        if states[state, MARK] < 0:
            states[state, MARK], least[i], own[distinct], distinct = i, need, i, distinct + 1
        first[i] = states[state, MARK]
        least[first[i]] = min(least[first[i]], need)
    own = own[:distinct][np.argsort(least[own[:distinct]], kind="mergesort")]
    for row in own:
        states[found[row, 0], MARK] = -1
    done, rows, filled, many, groups = np.zeros(k, np.bool_), np.empty(k, np.int64), 0, 0, np.empty((k, 3), np.int64)
    spans[LANES + b, s, 0] = m
    for g in own:
        if done[g]:
            continue
        begin, group = m, filled
        for other in own:
            if found[other, 1] == found[g, 1]:
                done[other], member = True, filled
                for j in range(other, k):
                    if first[j] == other:
                        rows[filled], filled = j, filled + 1
                number, known, lists, trips, shelf = _list(found, rows[member:filled], lists, known, trips, shelf)
                edges[m, 0], edges[m, 1], edges[m, 2], m = found[other, 0], number, least[other], m + 1
        if b == 0:
            if m > begin + 1:
                number, known, lists, trips, shelf = _list(found, rows[group:filled], lists, known, trips, shelf)
            groups[many, 0], groups[many, 1], groups[many, 2], many = found[g, 0], number, least[g], many + 1
    spans[LANES + b, s, 1] = m
    if b == 0:
        edges[m:m + many] = groups[:many]
        spans[-1, s, 0], spans[-1, s, 1], m = m, m + many, m + many
    return m, known, lists, trips, shelf


@njit(cache=True, nogil=True)
def _list(found: Ints, rows: Ints, lists: Ints, known: int, trips: Ints, shelf: Ints) -> tuple[int, int, Ints, Ints, Ints]:
    """The number of the list of these ways, without those that another way undercuts or equals in the lanes of every dimension; shelf: an index of all
    lists."""
    begin, dims = lists[known - 1, 1], trips.shape[1]
    trips, lists = _grown(trips, begin + rows.shape[0]), _grown(lists, known + 1)
    if 2 * known > shelf.shape[0]:
        wider = np.full(2 * shelf.shape[0], -1, np.int64)
        for n in range(known):
            wider[_shelved(n, lists, trips, wider)] = n
        shelf = wider
    elif known == 1:
        shelf[_shelved(0, lists, trips, shelf)] = 0
    end = begin
    for i in rows:
        kept = True
        for j in rows:
            fits, same = True, True
            for d in range(dims):
                fits = fits and found[j, 2 + d] <= found[i, 2 + d]
                same = same and found[j, 2 + d] == found[i, 2 + d]
            kept = kept and not (fits and (not same or j < i))
        if kept:
            trips[end], end = found[i, 2:], end + 1
    lists[known, 0], lists[known, 1] = begin, end
    at = _shelved(known, lists, trips, shelf)
    if shelf[at] < 0:
        shelf[at], known = known, known + 1
    return shelf[at], known, lists, trips, shelf


@njit(cache=True, nogil=True)
def _shelved(n: int, lists: Ints, trips: Ints, shelf: Ints) -> int:
    """Where the shelf holds an equal list, or may hold it."""
    begin, end, key = lists[n, 0], lists[n, 1], 17
    for w in range(begin, end):
        for d in range(trips.shape[1]):
            key = (key * 1000003 + trips[w, d]) % 2147483647
    at = key % shelf.shape[0]
    while shelf[at] >= 0:
        other = lists[shelf[at], 0]
        if lists[shelf[at], 1] - other == end - begin and _alike(trips, other, begin, end - begin):
            break
        at = (at + 1) % shelf.shape[0]
    return int(at)


@njit(cache=True, nogil=True)
def _alike(trips: Ints, a: int, b: int, rows: int) -> bool:
    for i in range(rows):
        for d in range(trips.shape[1]):
            if trips[a + i, d] != trips[b + i, d]:
                return False
    return True


@njit(cache=True, nogil=True)
def _grouped(spans: Ints, edges: Ints, known: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Edges end to end, group by group: start [groups, S + 1], columns [3, M] with lists in the order of their use, these lists, and when each group
    begins how many were in use."""
    groups, size = spans.shape[0], spans.shape[1]
    start, m = np.zeros((groups, size + 1), np.int64), np.int64(0)
    flat, number, order, fresh = np.empty((3, (spans[:, :, 1] - spans[:, :, 0]).sum()), np.int64), np.full(known, -1, np.int64), np.empty(known, np.int64), \
        np.zeros(groups + 1, np.int64)
    used = 0
    for g in range(groups):
        for s in range(size):
            start[g, s] = m
            for i in range(spans[g, s, 0], spans[g, s, 1]):
                if number[edges[i, 1]] < 0:
                    number[edges[i, 1]], order[used], used = used, edges[i, 1], used + 1
                flat[0, m], flat[1, m], flat[2, m], m = edges[i, 0], number[edges[i, 1]], edges[i, 2], m + 1
        start[g, size], fresh[g + 1] = m, used
    return start, flat, order[:used], fresh


@njit(cache=True, nogil=True)
def _cuts(states: Ints) -> tuple[Ints, Ints, Ints]:
    """Tiles and lanes [S, J], number of cuts [S] of every state."""
    n = np.zeros(states.shape[0], np.int64)
    for s in range(1, states.shape[0]):
        n[s] = n[states[s, PARENT]] + 1
    tile, lane = np.ones((len(n), max(n.max(), 1)), np.int64), np.full((len(n), max(n.max(), 1)), -1, np.int64)
    for s in range(1, states.shape[0]):
        tile[s], lane[s] = tile[states[s, PARENT]], lane[states[s, PARENT]]
        tile[s, n[s] - 1], lane[s, n[s] - 1] = states[s, TILE], states[s, OF]
    return tile, lane, n
